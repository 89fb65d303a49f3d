//! The image behind its lock, and the transactions that write its changes to the members.
//!
//! As in a journal, the **running** transaction collects changes while at most one other commits. Two numbers tell waiters the
//! result: all transactions up to `durable` are committed (or a later one committed their blocks); those up to `tried` and
//! above `durable` have failed.

use std::sync::Arc;

use ashlar_block::{BioResult, Status};

use super::image::Image;
use crate::ondisk::bitmap_super::BitmapSuper;

/// What the lock protects.
pub(super) struct Transactions {
    pub(super) image: Image,
    /// The superblock that the image will get once the marks are settled.
    pub(super) next: BitmapSuper,
    /// After a change of layout: the members' superblock in the old layout, until the marks are
    /// written in the new one.
    pub(super) old_layout: Option<BitmapSuper>,
    committing: Option<Committing>,
    running: u64,
    tried: u64,
    durable: u64,
    error: Status,
}

/// The number of the transaction that has a change: the change is durable once that has committed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Tid(u64);

struct Committing {
    tid: u64,
    runs: Arc<[Run]>,
}

/// Adjacent blocks, as they were when their commit started.
pub(super) struct Run {
    pub(super) offset: usize,
    pub(super) bytes: Vec<u8>,
}

impl Transactions {
    pub(super) fn new(image: Image, next: BitmapSuper) -> Self {
        Self {
            image,
            next,
            old_layout: None,
            committing: None,
            running: 1,
            tried: 0,
            durable: 0,
            error: Status::Io,
        }
    }

    /// The running transaction: it has all changes that no commit has begun to write.
    pub(super) fn running(&self) -> Tid {
        Tid(self.running)
    }

    /// The transaction that makes a chunk's mark durable. The mark is in the image, and not known to be
    /// durable.
    pub(super) fn transaction_of(&mut self, chunk: u32) -> Tid {
        let is_in = |run: &Run| self.image.is_marked_in(run.offset, &run.bytes, chunk);
        match &self.committing {
            Some(committing) if committing.runs.iter().any(is_in) => Tid(committing.tid),
            Some(_) | None => {
                self.image.rewrite(chunk);
                self.running()
            }
        }
    }

    /// The result of a transaction, once its commit has ended.
    pub(super) fn result(&self, of: Tid) -> Option<BioResult> {
        match self.durable >= of.0 {
            true => Some(Ok(())),
            false => (self.tried >= of.0).then_some(Err(self.error)),
        }
    }

    pub(super) fn is_committing(&self) -> bool {
        self.committing.is_some()
    }

    /// The running transaction begins to commit; returns what it writes.
    pub(super) fn start_commit(&mut self) -> Arc<[Run]> {
        let runs = self.image.take_dirty();
        let bytes = self.image.bytes();
        let runs: Arc<[Run]> = runs
            .into_iter()
            .map(|run| Run { offset: run.start, bytes: bytes[run].to_vec() })
            .collect();
        self.committing = Some(Committing { tid: self.running, runs: Arc::clone(&runs) });
        self.running += 1;
        runs
    }

    /// The commit has written all, has failed, or (`None`) was dropped: its blocks are in the next one then.
    pub(super) fn end_commit(&mut self, result: Option<BioResult>) {
        let Some(committing) = self.committing.take() else { return };
        match result {
            Some(Ok(())) => {
                self.tried = committing.tid;
                self.durable = committing.tid;
                return;
            }
            Some(Err(status)) => {
                self.tried = committing.tid;
                self.error = status;
            }
            None => {}
        }
        for run in &*committing.runs {
            self.image.touch_range(run.offset..run.offset + run.bytes.len());
        }
    }
}
