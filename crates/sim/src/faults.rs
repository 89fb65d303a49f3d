//! What is wrong with a disk: kept apart from its contents, so that tests can compare what was
//! stored with what is read.

use std::collections::BTreeMap;
use std::ops::Range;

use ashlar_block::{BioResult, Op, Status};

use crate::ranges::RangeMap;
use crate::store::{Fill, SectorData, Store};

/// How a sector lies about its contents until it is written again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Corruption {
    /// One byte differs: `mask` is xored to the byte at this offset.
    Flip {
        /// Which byte of the sector.
        byte: usize,
        /// Which of its bits.
        mask: u8,
    },
    /// The contents of another sector are returned (a misdirected read, or the trace of a write
    /// that went elsewhere).
    Misdirected {
        /// The sector whose contents are returned.
        from: u64,
    },
    /// Bytes that nobody wrote.
    Garbage {
        /// What they follow from.
        seed: u64,
    },
}

/// The fault overlay of a disk.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    /// Reads fail until the sector is written.
    pub(crate) latent: RangeMap<()>,
    /// Writes fail.
    pub(crate) unwritable: RangeMap<()>,
    /// Reads still to succeed before one fails, once.
    pub(crate) fail_read_in: Option<u64>,
    /// Writes still to succeed before one fails.
    pub(crate) fail_write_in: Option<u64>,
    /// Flushes still to succeed before one fails and takes the cache along.
    pub(crate) fail_flush_in: Option<u64>,
    /// Commands still to be answered before one never is.
    pub(crate) hang_in: Option<u64>,
    pub(crate) corrupt: BTreeMap<u64, Corruption>,
    pub(crate) unsupported: Vec<Op>,
    pub(crate) dead: bool,
    pub(crate) lies_about_flush: bool,
    /// Commands take so many times longer; 0 means 1.
    pub(crate) slowness: u64,
}

/// Counts down; true when the time has come.
pub(crate) fn countdown(left: &mut Option<u64>) -> bool {
    match left {
        Some(0) => {
            *left = None;
            true
        }
        Some(n) => {
            *n -= 1;
            false
        }
        None => false,
    }
}

impl Faults {
    /// What happens to any command.
    pub(crate) fn check(&self, op: Op) -> BioResult {
        if self.dead {
            return Err(Status::Offline);
        }
        if self.unsupported.contains(&op) { Err(Status::NotSupported) } else { Ok(()) }
    }

    /// How far a write to `range` gets: all of it, or to a bad sector.
    pub(crate) fn writable(&mut self, range: Range<u64>) -> Range<u64> {
        if countdown(&mut self.fail_write_in) {
            return range.start..range.start;
        }
        match self.unwritable.first_in(range.clone()) {
            Some(bad) => range.start..bad,
            None => range,
        }
    }

    /// A new write heals what the old contents suffered from.
    pub(crate) fn rewritten(&mut self, range: Range<u64>) {
        self.latent.clear(range.clone());
        let healed: Vec<u64> = self.corrupt.range(range).map(|(sector, _)| *sector).collect();
        for sector in healed {
            self.corrupt.remove(&sector);
        }
    }

    /// What a read of `sector` sees.
    pub(crate) fn look(&self, store: &Store, sector: u64) -> SectorData {
        match self.corrupt.get(&sector) {
            None => store.get(sector),
            Some(Corruption::Misdirected { from }) => store.get(*from),
            Some(Corruption::Garbage { seed }) => Fill::Noise(*seed).sector(sector),
            Some(Corruption::Flip { byte, mask }) => {
                let mut data = store.get(sector);
                data[byte % 512] ^= mask;
                data
            }
        }
    }
}
