//! The medium of a simulated disk: its contents, its cache and its faults.
//!
//! A medium outlives the simulation that wrote it: after a power cut, a new [`SimDisk`] of a new
//! [`Sim`] uses it. Tests inspect it, compare it, and inject faults.
//!
//! [`SimDisk`]: crate::disk::SimDisk
//! [`Sim`]: crate::scheduler::Sim

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ashlar_block::{BioResult, ExtentState, Extents, Op, Request, Sector, Sectors, Status};

use crate::faults::{Corruption, Faults, countdown};
use crate::rng::Rng;
use crate::scheduler::core;
pub use crate::state::{Break, Command, Counts, DiscardReads};
use crate::state::{Change, SharedState, State};
use crate::store::{Fill, SectorData, Store};

/// What the disk knows of a command when it arrives.
pub(crate) struct Arrival {
    /// The factor by which it is slower than usual.
    pub(crate) slowness: u64,
    /// The number of the first change that a flush that arrives now does not cover.
    pub(crate) covered: u64,
    /// Whether it hangs.
    pub(crate) hangs: bool,
    /// The connection over which it arrives: the number of breaks before.
    pub(crate) connection: usize,
}

/// A handle to a medium; clones refer to the same medium.
#[derive(Clone)]
pub struct Media {
    state: SharedState,
}

/// The contents of a medium at one time.
#[derive(Clone)]
pub struct Snapshot {
    store: Store,
}

impl Media {
    fn filled(capacity: Sectors, fill: Fill) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(capacity, fill))) }
    }

    /// A medium of zeroes.
    pub fn new(capacity: Sectors) -> Self {
        Self::filled(capacity, Fill::Zero)
    }

    /// A medium of arbitrary contents, like a used disk.
    pub fn noisy(capacity: Sectors, seed: u64) -> Self {
        Self::filled(capacity, Fill::Noise(seed))
    }

    /// Another medium with the same contents, cache and faults. Cheap, so a test can try several
    /// continuations.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.lock().clone())) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The medium that a scheduler remembers.
    pub(crate) const fn of(state: SharedState) -> Self {
        Self { state }
    }

    /// What a scheduler remembers about a medium.
    pub(crate) const fn state(&self) -> &SharedState {
        &self.state
    }

    /// Whether `other` refers to the same medium.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// The size.
    pub fn capacity(&self) -> Sectors {
        Sectors(self.lock().capacity)
    }

    /// The contents of a sector as a healthy disk would return them, regardless of faults.
    pub fn peek(&self, sector: Sector) -> SectorData {
        self.lock().current.get(sector.0)
    }

    /// The contents of a range, as [`Self::peek`].
    pub fn peek_range(&self, sector: Sector, len: Sectors) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len.bytes() as usize);
        self.lock().current.read(sector.0..sector.0 + len.0, &mut bytes);
        bytes
    }

    /// Which sectors of a range read as zeroes.
    pub(crate) fn extents(&self, at: Sector, len: Sectors) -> Result<Extents, Status> {
        let state = self.lock();
        if state.faults.dead {
            return Err(Status::Offline);
        }
        let mut extents = Extents::new(at);
        for sector in at.0..at.0 + len.0 {
            let is_zero = state.current.get(sector) == [0; 512];
            let known = if is_zero { ExtentState::all() } else { ExtentState::empty() };
            extents.extend_to(Sector(sector + 1), known);
        }
        Ok(extents)
    }

    /// What a sector would hold if the power failed and everything not durable were lost.
    pub fn peek_durable(&self, sector: Sector) -> SectorData {
        self.lock().durable(sector.0)
    }

    /// Stores bytes durably, without a command. The rest of a partial last sector is unchanged.
    pub fn poke(&self, sector: Sector, bytes: &[u8]) {
        let mut state = self.lock();
        let mut data = Vec::new();
        for (at, chunk) in (sector.0..).zip(bytes.chunks(512)) {
            let mut whole = state.current.get(at);
            whole[..chunk.len()].copy_from_slice(chunk);
            data.push(whole);
        }
        state.poke(sector.0, &data);
    }

    /// The current contents, for a later comparison.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { store: self.lock().current.clone() }
    }

    /// The ranges of sectors that changed since `snapshot`.
    pub fn diff(&self, snapshot: &Snapshot) -> Vec<Range<u64>> {
        let state = self.lock();
        state.current.diff(&snapshot.store, state.capacity)
    }

    /// The ranges of sectors in which two media differ.
    pub fn differences(&self, other: &Self) -> Vec<Range<u64>> {
        self.diff(&other.snapshot())
    }

    /// The commands executed since the beginning or since [`Self::clear_log`], in the order of their
    /// ends.
    pub fn log(&self) -> Vec<Command> {
        self.lock().log.clone()
    }

    /// Numbers of commands executed since then.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Clears the log and the counts.
    pub fn clear_log(&self) {
        let mut state = self.lock();
        state.log.clear();
        state.counts = Counts::default();
    }

    /// Chooses what discarded sectors read.
    pub fn set_discard_reads(&self, reads: DiscardReads) {
        self.lock().discard_reads = reads;
    }

    /// Reads of these sectors fail (`Medium`) until they are written.
    pub fn fail_reads(&self, range: Range<u64>) {
        if !range.is_empty() {
            self.lock().faults.latent.insert(range);
        }
    }

    /// Writes to these sectors fail (`Io`); the part of a request before the first of them may have been
    /// written.
    pub fn fail_writes(&self, range: Range<u64>) {
        if !range.is_empty() {
            self.lock().faults.unwritable.insert(range);
        }
    }

    /// The `n`-th write, discard or write-zeroes from now (0 is the next) fails (`Io`).
    pub fn fail_nth_write(&self, n: u64) {
        self.lock().faults.fail_write_in = Some(n);
    }

    /// The `n`-th read from now (0 is the next) fails (`Medium`); a retry succeeds.
    pub fn fail_nth_read(&self, n: u64) {
        self.lock().faults.fail_read_in = Some(n);
    }

    /// The `n`-th flush from now (0 is the next) fails (`Io`), and all data that was not durable is lost:
    /// reads return the old data again. Later flushes succeed, but have nothing to make durable.
    pub fn fail_nth_flush(&self, n: u64) {
        self.lock().faults.fail_flush_in = Some(n);
    }

    /// The `n`-th write with FUA from now (0 is the next) fails (`Io`): its data is not stored, and all data that was not
    /// durable is lost, as with [`Self::fail_nth_flush`].
    pub fn fail_nth_fua(&self, n: u64) {
        self.lock().faults.fail_fua_in = Some(n);
    }

    /// The disk vanishes: every command fails (`Offline`) until [`Self::heal`], and its cache is lost.
    pub fn vanish(&self) {
        let mut state = self.lock();
        state.drop_cache();
        state.faults.dead = true;
    }

    /// The connection to the disk breaks: commands in flight fail (`Transport`), as `how` says, and so do later ones, until
    /// [`Self::reconnect`].
    pub fn cut_off(&self, how: Break) {
        let mut state = self.lock();
        state.breaks.push(how);
        state.faults.cut_off = true;
        if how == Break::Restart {
            state.drop_cache();
        }
        drop(state);
        self.answer();
    }

    /// Ends [`Self::cut_off`].
    pub fn reconnect(&self) {
        self.lock().faults.cut_off = false;
    }

    /// The disk stops responding: commands, also those in flight, neither take effect nor end until [`Self::answer`].
    pub fn fall_silent(&self) {
        self.lock().faults.silent = true;
    }

    /// Ends [`Self::fall_silent`]: the disk executes what it held, in any order, and answers it. If the simulation ends
    /// before, those commands may have taken effect or not, as any in flight.
    pub fn answer(&self) {
        self.lock().faults.silent = false;
        if let Some(core) = core::try_current() {
            core.release(&self.state);
        }
    }

    /// Whether a silent disk cancels, without effect, the commands that its driver aborts at their deadline.
    pub fn set_cancels(&self, cancels: bool) {
        self.lock().cancels = cancels;
    }

    /// The `n`-th command from now (0 is the next) is held, also if the disk answers others, until [`Self::answer`].
    pub fn hang_nth_command(&self, n: u64) {
        self.lock().faults.hang_in = Some(n);
    }

    /// Every command fails from now on (`Offline`).
    pub fn kill(&self) {
        self.lock().faults.dead = true;
    }

    /// Whether it has lost its cache, while it had power, since the last [`Self::heal`].
    pub fn dropped_cache(&self) -> bool {
        self.lock().faults.dropped_cache
    }

    /// Removes all faults: a killed disk works again, with its contents.
    pub fn heal(&self) {
        self.lock().faults = Faults::default();
        self.answer();
    }

    /// Commands take `factor` times as long.
    pub fn slow_down(&self, factor: u64) {
        self.lock().faults.slowness = factor;
    }

    /// Reads of the sector return wrong data, without an error, until it is written.
    pub fn corrupt(&self, sector: Sector, how: Corruption) {
        self.lock().faults.corrupt.insert(sector.0, how);
    }

    /// The operation fails with `NotSupported`, although the limits announce it.
    pub fn drop_support(&self, op: Op) {
        self.lock().faults.unsupported.push(op);
    }

    /// Flushes and FUA are acknowledged and do nothing: a broken disk, for testing the tests.
    pub fn lie_about_flush(&self) {
        self.lock().faults.lies_about_flush = true;
    }

    /// The power fails: see docs/internals/fault-model.md.
    pub(crate) fn power_cut(&self, rng: &mut Rng) {
        self.lock().power_cut(rng);
    }

    /// The host died but the disk did not: each command in flight may or may not take effect.
    pub(crate) fn settle(&self, rng: &mut Rng) {
        self.lock().settle(rng);
    }

    /// Sets whether writes stay in a cache until a flush.
    pub(crate) fn set_volatile(&self, volatile: bool) {
        self.lock().volatile = volatile;
    }

    /// A command arrives.
    pub(crate) fn begin(&self) -> Arrival {
        let mut state = self.lock();
        let slowness = state.faults.slowness.max(1);
        let hangs = countdown(&mut state.faults.hang_in);
        Arrival { slowness, covered: state.covered(), hangs, connection: state.breaks.len() }
    }

    /// How the connection broke over which a command arrived, if it has. A restart later on ends what was left.
    pub(crate) fn how_it_broke(&self, connection: usize) -> Option<Break> {
        let state = self.lock();
        let since = state.breaks.get(connection..)?;
        let restart = since.iter().find(|how| **how == Break::Restart);
        restart.or(since.first()).copied()
    }

    /// A command of a connection that broke like this takes effect, or not.
    pub(crate) fn end_broken(&self, rq: &Request, how: Break, rng: &mut Rng) {
        if how != Break::Restart && rng.chance(1, 2) {
            self.lock().land(rq, rng);
        }
    }

    /// The changes that a command makes that takes effect later.
    pub(crate) fn changes(&self, rq: &Request, rng: &mut Rng) -> Vec<Change> {
        self.lock().changes(rq, rng).0
    }

    /// Such changes take effect.
    pub(crate) fn apply(&self, changes: Vec<Change>) {
        self.lock().apply_late(changes);
    }

    /// Such changes were in flight when the simulation ended.
    pub(crate) fn strand_changes(&self, changes: Vec<Change>) {
        self.lock().late.extend(changes);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.lock().faults.silent
    }

    pub(crate) fn cancels(&self) -> bool {
        self.lock().cancels
    }

    /// Executes a command that arrived at `issued_ns`.
    pub(crate) fn execute(
        &self,
        rq: &Request,
        issued_ns: u64,
        covered: u64,
        rng: &mut Rng,
    ) -> BioResult {
        self.lock().execute(rq, issued_ns, covered, rng)
    }

    /// Records a command that was in flight when the simulation ended.
    pub(crate) fn strand(&self, rq: &Request, rng: &mut Rng) {
        self.lock().strand(rq, rng);
    }
}
