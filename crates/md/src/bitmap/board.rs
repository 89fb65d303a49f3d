//! The image behind its lock, and the numbers of the flights that carry its changes to the members.
//!
//! The **next** flight collects current changes. At most one is in the air. Two numbers tell waiters the result: all flights up to
//! `durable` (or one after them, with their blocks) have arrived; flights up to `tried` and above
//! `durable` have failed.

use std::sync::Arc;

use ashlar_block::{BioResult, Status};

use super::image::Image;
use crate::ondisk::bitmap_super::BitmapSuper;

/// What the lock protects.
pub(super) struct Board {
    pub(super) image: Image,
    /// The superblock that the image will get once the marks are settled.
    pub(super) next: BitmapSuper,
    /// After a change of layout: the members' superblock in the old layout, until the marks are
    /// written in the new one.
    pub(super) old_layout: Option<BitmapSuper>,
    air: Option<Flight>,
    loading: u64,
    tried: u64,
    durable: u64,
    error: Status,
}

/// The number of the flight that carries a change: the change is durable once it arrived.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Number(u64);

struct Flight {
    number: u64,
    cargo: Arc<[Run]>,
}

/// Adjacent blocks, as at take-off.
pub(super) struct Run {
    pub(super) offset: usize,
    pub(super) bytes: Vec<u8>,
}

impl Board {
    pub(super) fn new(image: Image, next: BitmapSuper) -> Self {
        Self {
            image,
            next,
            old_layout: None,
            air: None,
            loading: 1,
            tried: 0,
            durable: 0,
            error: Status::Io,
        }
    }

    /// The flight that will carry all changes that are not in the air yet.
    pub(super) fn loading(&self) -> Number {
        Number(self.loading)
    }

    /// The flight that makes a chunk's mark durable. The mark is in the image, and not known to be
    /// durable.
    pub(super) fn carrier(&mut self, chunk: u32) -> Number {
        let aboard = |run: &Run| self.image.is_marked_in(run.offset, &run.bytes, chunk);
        match &self.air {
            Some(flight) if flight.cargo.iter().any(aboard) => Number(flight.number),
            Some(_) | None => {
                self.image.rewrite(chunk);
                self.loading()
            }
        }
    }

    /// The result of a flight, once it has landed.
    pub(super) fn result(&self, of: Number) -> Option<BioResult> {
        match self.durable >= of.0 {
            true => Some(Ok(())),
            false => (self.tried >= of.0).then_some(Err(self.error)),
        }
    }

    pub(super) fn is_flying(&self) -> bool {
        self.air.is_some()
    }

    /// The flight that is loading takes off.
    pub(super) fn take_off(&mut self) -> Arc<[Run]> {
        let runs = self.image.take_dirty();
        let bytes = self.image.bytes();
        let cargo: Arc<[Run]> = runs
            .into_iter()
            .map(|run| Run { offset: run.start, bytes: bytes[run].to_vec() })
            .collect();
        self.air = Some(Flight { number: self.loading, cargo: Arc::clone(&cargo) });
        self.loading += 1;
        cargo
    }

    /// The flight in the air arrived, failed, or (`None`) was abandoned.
    pub(super) fn land(&mut self, result: Option<BioResult>) {
        let Some(flight) = self.air.take() else { return };
        match result {
            Some(Ok(())) => {
                self.tried = flight.number;
                self.durable = flight.number;
                return;
            }
            Some(Err(status)) => {
                self.tried = flight.number;
                self.error = status;
            }
            None => {}
        }
        for run in &*flight.cargo {
            self.image.touch_range(run.offset..run.offset + run.bytes.len());
        }
    }
}
