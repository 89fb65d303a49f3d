//! The medium of a simulated disk: what is stored, what is only in its cache, what is wrong.
//!
//! A medium outlives the simulation that wrote it: after a power cut a new [`SimDisk`] of a new
//! [`Sim`] is put over it. Two pictures are kept: `durable`, and `current`, which reads see; between
//! them lies the list of changes in the cache, oldest first. A flush moves the changes acknowledged
//! before it began to `durable`. docs/internals/fault-model.md says what a power cut does.
//!
//! [`SimDisk`]: crate::disk::SimDisk
//! [`Sim`]: crate::scheduler::Sim

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ashlar_block::{BioResult, Flags, Op, Request, Sector, Sectors, Status};

use crate::faults::{Corruption, Faults, countdown};
use crate::rng::Rng;
use crate::store::{Fill, SectorData, Store};

/// Bytes in the cache at most; the oldest become durable by themselves.
const CACHE_BYTES: u64 = 64 << 20;
/// Commands in the log at most; further ones are only counted.
const LOG_COMMANDS: usize = 1 << 20;
/// Above this many sectors a fill survives a power cut in a few large parts and not by the sector.
const FINE_FILL: u64 = 256;

/// What discarded sectors read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DiscardReads {
    /// Zeroes.
    Zeroes,
    /// Arbitrary bytes.
    Noise,
    /// Part of the range keeps its contents, part reads zeroes, part is noise: the default, because
    /// the contract promises nothing.
    #[default]
    Mixed,
}

/// A command that the disk has executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// When the disk got it, nanoseconds.
    pub issued_ns: u64,
    /// What.
    pub op: Op,
    /// How.
    pub flags: Flags,
    /// Where: one range, several only for discards, none for a flush.
    pub ranges: Vec<Range<u64>>,
    /// How many bios it was merged from.
    pub bios: usize,
    /// How many data segments it had.
    pub segments: usize,
    /// How it ended.
    pub result: BioResult,
}

impl Command {
    /// Sectors that it covers.
    pub fn sectors(&self) -> u64 {
        self.ranges.iter().map(|r| r.end - r.start).sum()
    }
}

/// How many commands a disk has executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Write-zeroes.
    pub write_zeroes: u64,
}

impl Counts {
    fn count(&mut self, op: Op) {
        match op {
            Op::Read => self.reads += 1,
            Op::Write => self.writes += 1,
            Op::Flush => self.flushes += 1,
            Op::Discard => self.discards += 1,
            Op::WriteZeroes => self.write_zeroes += 1,
        }
    }
}

#[derive(Clone)]
enum Change {
    Data { sector: u64, data: Arc<[SectorData]> },
    Fill { range: Range<u64>, fill: Fill },
}

impl Change {
    fn range(&self) -> Range<u64> {
        match self {
            Self::Data { sector, data } => *sector..sector + data.len() as u64,
            Self::Fill { range, .. } => range.clone(),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Data { data, .. } => data.len() as u64 * 512,
            Self::Fill { .. } => 512,
        }
    }

    /// Applies the part of it that lies in `part`.
    fn apply(&self, part: Range<u64>, store: &mut Store) {
        match self {
            Self::Data { sector, data } => {
                for at in part {
                    store.set(at, &data[(at - sector) as usize]);
                }
            }
            Self::Fill { fill, .. } => store.fill(part, *fill),
        }
    }

    /// The parts that a power cut decides about one by one.
    fn parts(&self, rng: &mut Rng) -> Vec<Range<u64>> {
        let range = self.range();
        let len = range.end - range.start;
        let fine = matches!(self, Self::Data { .. }) || len <= FINE_FILL;
        let mut cuts: Vec<u64> = if fine {
            range.clone().collect()
        } else {
            (0..8).map(|_| range.start + rng.below(len)).collect()
        };
        cuts.extend([range.start, range.end]);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|w| w[0]..w[1]).collect()
    }
}

#[derive(Clone)]
struct Cached {
    change: Change,
    /// Durable already (FUA), and here only because something older is not.
    forced: bool,
}

#[derive(Clone)]
struct State {
    capacity: u64,
    current: Store,
    durable: Store,
    /// Changes in the cache, oldest first; the first has the number `first_change`.
    cache: VecDeque<Cached>,
    first_change: u64,
    cached_bytes: u64,
    volatile: bool,
    discard_reads: DiscardReads,
    faults: Faults,
    log: Vec<Command>,
    counts: Counts,
    /// What was in flight when the power failed.
    late: Vec<Change>,
}

/// How a power cut treats what is not durable. All of them are cases of "any subset survives"; the
/// plain ones are there because chance alone would hardly ever produce them.
#[derive(Clone, Copy)]
enum Survival {
    Nothing,
    Everything,
    Oldest(u64),
    WholeChanges,
    AnyPart,
}

impl State {
    fn apply(&mut self, change: Change, forced: bool) {
        change.apply(change.range(), &mut self.current);
        self.cached_bytes += change.bytes();
        self.cache.push_back(Cached { change, forced: forced || !self.volatile });
        while self.cached_bytes > CACHE_BYTES || self.cache.front().is_some_and(|c| c.forced) {
            self.write_back();
        }
    }

    /// Makes the oldest change durable.
    fn write_back(&mut self) {
        if let Some(Cached { change, .. }) = self.cache.pop_front() {
            change.apply(change.range(), &mut self.durable);
            self.cached_bytes -= change.bytes();
            self.first_change += 1;
        }
    }

    fn flush(&mut self, before: u64) {
        while self.first_change < before && !self.cache.is_empty() {
            self.write_back();
        }
        while self.cache.front().is_some_and(|c| c.forced) {
            self.write_back();
        }
    }

    fn discard(&self, range: Range<u64>, rng: &mut Rng) -> Vec<Change> {
        let fill = |range, fill| Change::Fill { range, fill };
        match self.discard_reads {
            DiscardReads::Zeroes => vec![fill(range, Fill::Zero)],
            DiscardReads::Noise => vec![fill(range, Fill::Noise(rng.next_u64()))],
            DiscardReads::Mixed => {
                let (at, len) = (range.start, range.end - range.start);
                let mut cuts = [at + rng.below(len + 1), at + rng.below(len + 1)];
                cuts.sort_unstable();
                let (zero, noise) = (at..cuts[0], cuts[0]..cuts[1]);
                vec![fill(zero, Fill::Zero), fill(noise, Fill::Noise(rng.next_u64()))]
            }
        }
    }

    /// The changes that a request makes, and how it ends.
    fn changes(&mut self, rq: &Request, rng: &mut Rng) -> (Vec<Change>, BioResult) {
        let ranges = ranges_of(rq);
        let mut out = Vec::new();
        for range in ranges {
            let done = self.faults.writable(range.clone());
            match rq.op() {
                Op::Write => {
                    let data = payload(rq, (done.end - done.start) as usize);
                    out.push(Change::Data { sector: done.start, data });
                }
                Op::WriteZeroes => {
                    out.push(Change::Fill { range: done.clone(), fill: Fill::Zero });
                }
                Op::Discard => out.extend(self.discard(done.clone(), rng)),
                Op::Read | Op::Flush => {}
            }
            if done != range {
                return (out, Err(Status::Io));
            }
        }
        (out, Ok(()))
    }

    fn execute(&mut self, rq: &Request, before: u64, rng: &mut Rng) -> BioResult {
        self.faults.check(rq.op())?;
        match rq.op() {
            Op::Read => self.read(rq),
            Op::Flush => {
                if !self.faults.lies_about_flush {
                    self.flush(before);
                }
                Ok(())
            }
            Op::Write | Op::Discard | Op::WriteZeroes => {
                let (changes, result) = self.changes(rq, rng);
                let forced = rq.flags().contains(Flags::FUA) && !self.faults.lies_about_flush;
                for change in changes {
                    self.faults.rewritten(change.range());
                    self.apply(change, forced);
                }
                result
            }
        }
    }

    fn read(&self, rq: &Request) -> BioResult {
        let range = rq.sector().0..rq.end().0;
        if self.faults.latent.first_in(range.clone()).is_some() {
            return Err(Status::Medium);
        }
        let mut bytes = Vec::with_capacity(rq.len().bytes() as usize);
        for sector in range {
            bytes.extend(self.faults.look(&self.current, sector));
        }
        let mut rest = &bytes[..];
        for segment in rq.segments() {
            let (part, more) = rest.split_at(segment.len());
            segment.copy_from(part);
            rest = more;
        }
        Ok(())
    }

    fn power_cut(&mut self, rng: &mut Rng) {
        let late = std::mem::take(&mut self.late);
        let all: Vec<Cached> = std::mem::take(&mut self.cache)
            .into_iter()
            .chain(late.into_iter().map(|change| Cached { change, forced: false }))
            .collect();
        let how = match rng.below(8) {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            2 => Survival::Oldest(rng.below(all.len() as u64 + 1)),
            3 => Survival::WholeChanges,
            _ => Survival::AnyPart,
        };
        for (i, Cached { change, forced }) in (0u64..).zip(all) {
            let whole = change.range();
            let whole_if = |survives| if survives { vec![whole.clone()] } else { Vec::new() };
            let parts = match how {
                _ if forced => whole_if(true),
                Survival::Nothing => whole_if(false),
                Survival::Everything => whole_if(true),
                Survival::Oldest(n) => whole_if(i < n),
                Survival::WholeChanges => whole_if(rng.chance(1, 2)),
                Survival::AnyPart => {
                    let mut parts = change.parts(rng);
                    parts.retain(|_| rng.chance(1, 2));
                    parts
                }
            };
            for part in parts {
                change.apply(part, &mut self.durable);
            }
        }
        self.cached_bytes = 0;
        self.first_change = 0;
        self.current = self.durable.clone();
    }
}

fn ranges_of(rq: &Request) -> Vec<Range<u64>> {
    match rq.op() {
        Op::Flush => Vec::new(),
        Op::Read | Op::Write | Op::WriteZeroes => {
            std::iter::once(rq.sector().0..rq.end().0).collect()
        }
        Op::Discard => {
            let mut out: Vec<Range<u64>> = Vec::new();
            for (Sector(at), Sectors(len)) in rq.ranges() {
                match out.last_mut() {
                    Some(last) if last.end == at => last.end += len,
                    Some(_) | None => out.push(at..at + len),
                }
            }
            out
        }
    }
}

/// The first `sectors` sectors of a write's data.
fn payload(rq: &Request, sectors: usize) -> Arc<[SectorData]> {
    let mut bytes = vec![0; rq.len().bytes() as usize];
    let mut rest = &mut bytes[..];
    for segment in rq.segments() {
        let (part, more) = rest.split_at_mut(segment.len());
        segment.copy_to(part);
        rest = more;
    }
    let (whole, _) = bytes.as_chunks::<512>();
    whole[..sectors].into()
}

/// A handle on a medium; clones are handles on the same one.
#[derive(Clone)]
pub struct Media {
    state: Arc<Mutex<State>>,
}

/// The contents of a medium at some time.
#[derive(Clone)]
pub struct Snapshot {
    store: Store,
}

impl Media {
    fn filled(capacity: Sectors, fill: Fill) -> Self {
        let state = State {
            capacity: capacity.0,
            current: Store::new(fill),
            durable: Store::new(fill),
            cache: VecDeque::new(),
            first_change: 0,
            cached_bytes: 0,
            volatile: true,
            discard_reads: DiscardReads::default(),
            faults: Faults::default(),
            log: Vec::new(),
            counts: Counts::default(),
            late: Vec::new(),
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// A medium of zeroes.
    pub fn new(capacity: Sectors) -> Self {
        Self::filled(capacity, Fill::Zero)
    }

    /// A medium of arbitrary contents, as a used disk has.
    pub fn noisy(capacity: Sectors, seed: u64) -> Self {
        Self::filled(capacity, Fill::Noise(seed))
    }

    /// Another medium with the same contents, cache and faults (cheap: to try several futures).
    #[must_use]
    pub fn copy(&self) -> Self {
        Self { state: Arc::new(Mutex::new(self.lock().clone())) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `other` is a handle on the same medium.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// The size.
    pub fn capacity(&self) -> Sectors {
        Sectors(self.lock().capacity)
    }

    /// What is stored in a sector, whatever faults and caches say: what a healthy disk would read.
    pub fn peek(&self, sector: Sector) -> SectorData {
        self.lock().current.get(sector.0)
    }

    /// What is stored in a range.
    pub fn peek_range(&self, sector: Sector, len: Sectors) -> Vec<u8> {
        let state = self.lock();
        (sector.0..sector.0 + len.0).flat_map(|at| state.current.get(at)).collect()
    }

    /// What a sector would hold if the power failed and nothing survived that may be lost.
    pub fn peek_durable(&self, sector: Sector) -> SectorData {
        let state = self.lock();
        let forced =
            state.cache.iter().rev().find(|c| c.forced && c.change.range().contains(&sector.0));
        let mut store = state.durable.clone();
        if let Some(cached) = forced {
            cached.change.apply(sector.0..sector.0 + 1, &mut store);
        }
        store.get(sector.0)
    }

    /// Stores bytes behind everybody's back, durably; a rest below a sector keeps what was there.
    pub fn poke(&self, sector: Sector, bytes: &[u8]) {
        let mut state = self.lock();
        let mut data = Vec::new();
        for (at, chunk) in (sector.0..).zip(bytes.chunks(512)) {
            let mut whole = state.current.get(at);
            whole[..chunk.len()].copy_from_slice(chunk);
            data.push(whole);
        }
        state.apply(Change::Data { sector: sector.0, data: data.into() }, true);
    }

    /// The contents now, to compare with later.
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

    /// The commands executed since the beginning or since [`Self::clear_log`], by order of their
    /// ends.
    pub fn log(&self) -> Vec<Command> {
        self.lock().log.clone()
    }

    /// How many commands were executed since then.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Forgets the commands so far.
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
        self.lock().faults.latent.set(range, ());
    }

    /// Writes to these sectors fail (`Io`); what lies before the first of them in a request may have
    /// been written.
    pub fn fail_writes(&self, range: Range<u64>) {
        self.lock().faults.unwritable.set(range, ());
    }

    /// The `n`-th write, discard or write-zeroes from now (0 is the next) fails (`Io`).
    pub fn fail_nth_write(&self, n: u64) {
        self.lock().faults.fail_write_in = Some(n);
    }

    /// The `n`-th command from now (0 is the next) never ends.
    pub fn hang_nth_command(&self, n: u64) {
        self.lock().faults.hang_in = Some(n);
    }

    /// Every command fails from now on (`Offline`).
    pub fn kill(&self) {
        self.lock().faults.dead = true;
    }

    /// Takes all faults away: a killed disk is back with its contents.
    pub fn heal(&self) {
        self.lock().faults = Faults::default();
    }

    /// Commands take `factor` times as long.
    pub fn slow_down(&self, factor: u64) {
        self.lock().faults.slowness = factor;
    }

    /// The sector reads wrongly, with no error, until it is written.
    pub fn corrupt(&self, sector: Sector, how: Corruption) {
        self.lock().faults.corrupt.insert(sector.0, how);
    }

    /// The operation fails with `NotSupported` although the limits promise it.
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

    /// The host died but the disk did not: what was in flight happens, or does not.
    pub(crate) fn settle(&self, rng: &mut Rng) {
        let mut state = self.lock();
        for change in std::mem::take(&mut state.late) {
            if rng.chance(1, 2) {
                state.apply(change, false);
            }
        }
    }

    /// Tells whether writes stay in a cache until a flush.
    pub(crate) fn set_volatile(&self, volatile: bool) {
        self.lock().volatile = volatile;
    }

    /// A command arrives: how much slower than usual it is (`None`: it never ends), and the number
    /// of the first change that a flush arriving now does not cover.
    pub(crate) fn begin(&self) -> (Option<u64>, u64) {
        let mut state = self.lock();
        let slowness = state.faults.slowness.max(1);
        let hangs = countdown(&mut state.faults.hang_in);
        let covered = state.first_change + state.cache.len() as u64;
        ((!hangs).then_some(slowness), covered)
    }

    /// Executes a command that arrived at `issued_ns`.
    pub(crate) fn execute(
        &self,
        rq: &Request,
        issued_ns: u64,
        covered: u64,
        rng: &mut Rng,
    ) -> BioResult {
        let mut state = self.lock();
        let result = state.execute(rq, covered, rng);
        state.counts.count(rq.op());
        if state.log.len() < LOG_COMMANDS {
            let command = Command {
                issued_ns,
                op: rq.op(),
                flags: rq.flags(),
                ranges: ranges_of(rq),
                bios: rq.nr_bios(),
                segments: rq.nr_segments(),
                result,
            };
            state.log.push(command);
        }
        result
    }

    /// Notes a command that was in flight when everything stopped.
    pub(crate) fn strand(&self, rq: &Request, rng: &mut Rng) {
        let mut state = self.lock();
        if state.faults.check(rq.op()).is_ok() {
            let (changes, _) = state.changes(rq, rng);
            state.late.extend(changes);
        }
    }
}
