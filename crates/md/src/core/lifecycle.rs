//! Whether an array is active, clean or stopped, and whether the superblocks [have](Records) what acknowledgements depend on.
//!
//! # States
//!
//! ```text
//!            first write              200 ms without a write, or stop
//!   clean --------------> active --------------------------------------> clean
//!     |                     |
//!     +---- stop -----------+--> stopped: every I/O fails with `Offline`
//! ```
//!
//! A user can make a clean array *auto-read-only* (the kernel's `read-auto`): it stays so, and syncs nothing, until its first
//! write makes it active. That write finds the array not active, as the first write of any clean array does, so
//! no other write looks at the state.
//!
//! `clean` on disk promises that all copies are the same. So the superblocks say `active` before
//! the first write goes to a member, and `clean` only after the last write has ended and the members
//! were flushed.
//!
//! # The handshake
//!
//! A write counts itself in a [`Flow`] and then reads `active`. The change back to clean clears `active` and then asks the
//! flow whether it is idle. Either it is not idle because of the write, or the write finds `active` cleared. Stopping works in
//! the same way, with `stopped`. `model` checks this.

#[cfg(test)]
mod model;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use ashlar_block::sync::flow::{self, Flow};
use ashlar_block::sync::{Shards, Std, Word};
use ashlar_block::{BioResult, Status};
use async_lock::OnceCell;

use super::records::Records;

/// How long an array stays active without a write (the kernel's `safe_mode_delay`, in seconds its
/// "0.200").
pub const SAFE_MODE_DELAY: Duration = Duration::from_millis(200);

/// The writes of a shard of threads, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard<W> {
    writes: Flow<W>,
    holds: Flow<W>,
}

/// Why the array stays active.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// A write of a client: the array was not idle.
    Write,
    /// Other work on the members.
    Hold,
}

impl<W> Shard<W> {
    #[inline]
    fn flow(&self, reason: Reason) -> &Flow<W> {
        match reason {
            Reason::Write => &self.writes,
            Reason::Hold => &self.holds,
        }
    }
}

/// The writes, and whether the superblocks say active.
pub(super) struct Activity<P: Shards = Std> {
    shards: Box<[Shard<P::Word>]>,
    active: P::Word,
}

impl<P: Shards> Default for Activity<P> {
    fn default() -> Self {
        let shards = std::iter::repeat_with(Shard::default).take(P::SHARDS).collect();
        Self { shards, active: P::Word::default() }
    }
}

impl<P: Shards> Activity<P> {
    #[inline]
    fn begin(&self, reason: Reason) -> Hold<'_, P> {
        self.shards[P::shard()].flow(reason).begin();
        Hold { activity: self, reason }
    }

    /// Whether the superblocks say active, durably.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.active.load() != 0
    }

    /// The superblocks say active.
    pub(crate) fn activate(&self) {
        self.active.swap(1);
    }

    /// Makes the next write record the active state first, unless a write is under way.
    pub(crate) fn try_deactivate(&self) -> bool {
        let was = self.active.swap(0);
        let idle = self.is_idle();
        if !idle {
            // If the array was not active, that write is about to make it active.
            self.active.swap(was);
        }
        idle
    }

    /// Whether no write is under way. A write that begins later sees what the caller did before.
    pub(crate) fn is_idle(&self) -> bool {
        flow::is_idle(self.shards.iter().flat_map(|shard| [&shard.writes, &shard.holds]))
    }
}

/// Keeps the array from being marked clean or stopped while a write is under way.
#[must_use = "the write has ended when this is dropped"]
pub(crate) struct Hold<'a, P: Shards = Std> {
    activity: &'a Activity<P>,
    reason: Reason,
}

impl<P: Shards> Drop for Hold<'_, P> {
    #[inline]
    fn drop(&mut self) {
        let shard = P::shard();
        self.activity.shards[shard].flow(self.reason).end(P::is_own(shard));
    }
}

/// See the module text. It does no I/O: [`Core`](super::Core) does what it decides.
#[derive(Default)]
pub(crate) struct Lifecycle {
    pub(super) activity: Activity,
    /// The array writes nothing to its members before the first write of a client, which ends this state. Set with the
    /// superblocks locked, while the array is clean and not active.
    auto_read_only: AtomicBool,
    /// Some superblock may say active.
    dirty: AtomicBool,
    stopped: AtomicBool,
    /// The result of the stop.
    end: OnceCell<BioResult>,
    pub(super) records: Records,
}

impl Lifecycle {
    /// Of an array whose superblocks say active if `dirty`.
    pub(crate) fn new(dirty: bool) -> Self {
        Self { dirty: dirty.into(), ..Self::default() }
    }

    /// Counts a write in. The array is then kept from being marked clean; whether it is active is to be asked
    /// afterwards.
    ///
    /// # Errors
    /// [`Status::Offline`]: the array was stopped.
    #[inline]
    pub(crate) fn begin(&self) -> Result<Hold<'_>, Status> {
        let hold = self.activity.begin(Reason::Write);
        if self.is_stopped() { Err(Status::Offline) } else { Ok(hold) }
    }

    /// Keeps the array from being marked clean or stopped until the guard is dropped.
    pub(crate) fn hold_open(&self) -> Hold<'_> {
        self.activity.begin(Reason::Hold)
    }

    /// Writes begun so far.
    pub(crate) fn writes_begun(&self) -> u64 {
        self.activity.shards.iter().map(|shard| shard.writes.begun()).sum()
    }

    /// Whether some superblock may say active.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(SeqCst)
    }

    /// Notes that a superblock may say active, or that none does.
    pub(crate) fn set_dirty(&self, dirty: bool) {
        self.dirty.store(dirty, SeqCst);
    }

    /// Whether the array writes nothing to its members until the first write makes it active.
    pub(crate) fn is_auto_read_only(&self) -> bool {
        self.auto_read_only.load(SeqCst)
    }

    /// Begins or ends the auto-read-only state; returns whether the array was in it.
    pub(crate) fn set_auto_read_only(&self, on: bool) -> bool {
        self.auto_read_only.swap(on, SeqCst)
    }

    /// Whether the array was stopped.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    /// Refuses I/O from now on.
    pub(crate) fn refuse(&self) {
        self.stopped.store(true, SeqCst);
    }

    /// The result of the stop; `wind_up` runs once.
    pub(crate) async fn end<F>(&self, wind_up: impl FnOnce() -> F) -> BioResult
    where
        F: Future<Output = BioResult>,
    {
        *self.end.get_or_init(wind_up).await
    }

    /// Waits until the array has stopped.
    pub(crate) async fn ended(&self) {
        self.end.wait().await;
    }

    /// Requires that the caller's change is recorded before any write is acknowledged. Call it after
    /// the change, so that superblocks written without it do not count; see [`Records`] for failures of members.
    pub(crate) fn must_record(&self) {
        self.records.must_record();
    }

    /// Whether the superblocks record all failures of members and all other changes that
    /// acknowledgements depend on.
    #[inline]
    pub(crate) fn is_recorded(&self) -> bool {
        self.records.is_recorded()
    }
}
