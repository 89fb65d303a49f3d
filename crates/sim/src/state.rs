//! The state of a disk, without handles and locks: contents, cache, faults.
//!
//! There are two versions of the contents: `durable`, and `current`, which reads see; the list of
//! changes in the cache, oldest first, leads from one to the other. A flush applies the changes
//! acknowledged before it began to `durable`. docs/internals/fault-model.md says what a power cut does.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ashlar_block::buffer::{gather, scatter};
use ashlar_block::{BioResult, Flags, Op, Request, Sector, Sectors, Status};

use crate::faults::{Faults, countdown};
use crate::rng::Rng;
use crate::store::{Fill, SectorData, Store};

/// Most bytes in the cache; beyond that, the oldest changes become durable without a flush.
const CACHE_BYTES: u64 = 64 << 20;
/// Most commands in the log; further ones are only counted.
const LOG_COMMANDS: usize = 1 << 20;
/// A fill of more sectors than this survives a power cut in a few large parts, not sector by sector.
const FINE_FILL: u64 = 256;

/// A command that the disk has executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// When the disk received it, in nanoseconds.
    pub issued_ns: u64,
    /// The operation.
    pub op: Op,
    /// Its flags.
    pub flags: Flags,
    /// Its sectors: one range, several only for discards, none for a flush.
    pub ranges: Vec<Range<u64>>,
    /// Number of bios that it was merged from.
    pub bios: usize,
    /// Number of data segments.
    pub segments: usize,
    /// Its result.
    pub result: BioResult,
}

impl Command {
    /// Number of sectors that it covers.
    pub fn sectors(&self) -> u64 {
        self.ranges.iter().map(|r| r.end - r.start).sum()
    }
}

/// Numbers of commands that a disk has executed.
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
    pub(crate) fn count(&mut self, op: Op) {
        match op {
            Op::Read => self.reads += 1,
            Op::Write => self.writes += 1,
            Op::Flush => self.flushes += 1,
            Op::Discard => self.discards += 1,
            Op::WriteZeroes => self.write_zeroes += 1,
        }
    }
}

/// How the connection to a disk breaks, and what becomes of the commands that were in flight on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Break {
    /// The disk has ended them: each has taken effect, or never will.
    Ended,
    /// The disk restarts: none takes effect, and the cache is lost.
    Restart,
    /// The disk executes those that change data, for up to `within`, also over another connection's commands. The driver
    /// keeps each until it has taken effect or never will, so that beyond its deadline the queue lets no change overtake it.
    Late {
        /// For how long.
        within: Duration,
    },
    /// As [`Self::Late`], but the driver abandons them at once, which breaks its promise: for testing the tests.
    LateAndForgotten {
        /// For how long.
        within: Duration,
    },
}

/// What discarded sectors read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DiscardReads {
    /// Zeroes.
    Zeroes,
    /// Arbitrary bytes.
    Noise,
    /// Part of the range keeps its contents, part reads zeroes, part is noise: the default, because
    /// the block contract promises nothing.
    #[default]
    Mixed,
}

/// A change of the contents.
#[derive(Clone)]
pub(crate) enum Change {
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

    /// Applies the sectors in `part` of this change.
    fn apply(&self, part: Range<u64>, store: &mut Store) {
        match self {
            Self::Data { sector, data } => store.write(part, *sector, data),
            Self::Fill { fill, .. } => store.fill(part, *fill),
        }
    }

    /// The parts that survive a power cut independently.
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

/// A change in the cache.
#[derive(Clone)]
struct CachedChange {
    change: Change,
    /// Already durable (FUA), and in the list only because an older change is not.
    forced: bool,
}

/// The disk, as its handles and the scheduler have it.
pub(crate) type SharedState = Arc<Mutex<State>>;

/// The disk.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) capacity: u64,
    pub(crate) current: Store,
    durable: Store,
    /// Changes in the cache, oldest first; the first has the number `first_change`.
    cache: VecDeque<CachedChange>,
    first_change: u64,
    cached_bytes: u64,
    pub(crate) volatile: bool,
    pub(crate) discard_reads: DiscardReads,
    pub(crate) faults: Faults,
    /// It cancels what its driver aborts.
    pub(crate) cancels: bool,
    /// How the connections to it broke, in this order.
    pub(crate) breaks: Vec<Break>,
    pub(crate) log: Vec<Command>,
    pub(crate) counts: Counts,
    /// Changes in flight when the simulation ended.
    pub(crate) late: Vec<Change>,
}

/// How a power cut treats data that is not durable. All variants are cases of "any subset survives";
/// the simple ones exist because randomness alone would hardly ever produce them.
#[derive(Clone, Copy)]
enum Survival {
    Nothing,
    Everything,
    Oldest(u64),
    WholeChanges,
    AnyPart,
}

impl State {
    /// A healthy disk that holds `fill`.
    pub(crate) fn new(capacity: Sectors, fill: Fill) -> Self {
        Self {
            capacity: capacity.0,
            current: Store::new(fill),
            durable: Store::new(fill),
            cache: VecDeque::new(),
            first_change: 0,
            cached_bytes: 0,
            volatile: true,
            discard_reads: DiscardReads::default(),
            faults: Faults::default(),
            cancels: false,
            breaks: Vec::new(),
            log: Vec::new(),
            counts: Counts::default(),
            late: Vec::new(),
        }
    }

    /// What a sector would hold after a power cut that loses everything not durable.
    pub(crate) fn durable(&self, sector: u64) -> SectorData {
        let here = |c: &&CachedChange| c.forced && c.change.range().contains(&sector);
        match self.cache.iter().rev().find(here).map(|cached| &cached.change) {
            Some(Change::Data { sector: first, data }) => data[(sector - first) as usize],
            Some(Change::Fill { fill, .. }) => fill.sector(sector),
            None => self.durable.get(sector),
        }
    }

    /// Stores sectors durably.
    pub(crate) fn poke(&mut self, sector: u64, data: &[SectorData]) {
        self.apply(Change::Data { sector, data: data.into() }, true);
    }

    /// The number of the first change that a flush arriving now does not cover.
    pub(crate) fn covered(&self) -> u64 {
        self.first_change + self.cache.len() as u64
    }

    /// Records a command that was in flight when the simulation ended.
    pub(crate) fn strand(&mut self, rq: &Request, rng: &mut Rng) {
        if self.faults.check(rq.op()).is_ok() {
            let (changes, _) = self.changes(rq, rng);
            self.late.extend(changes);
        }
    }

    /// A command takes effect that is not answered.
    pub(crate) fn land(&mut self, rq: &Request, rng: &mut Rng) {
        let (changes, _) = self.changes(rq, rng);
        self.apply_late(changes);
    }

    /// Changes of a command take effect that is not answered.
    pub(crate) fn apply_late(&mut self, changes: Vec<Change>) {
        for change in changes {
            self.faults.rewritten(change.range());
            self.apply(change, false);
        }
    }

    /// The host died but the disk did not: each command in flight may or may not take effect.
    pub(crate) fn settle(&mut self, rng: &mut Rng) {
        for change in std::mem::take(&mut self.late) {
            if rng.chance(1, 2) {
                self.apply(change, false);
            }
        }
    }

    fn apply(&mut self, change: Change, forced: bool) {
        change.apply(change.range(), &mut self.current);
        self.cached_bytes += change.bytes();
        self.cache.push_back(CachedChange { change, forced: forced || !self.volatile });
        while self.cached_bytes > CACHE_BYTES || self.cache.front().is_some_and(|c| c.forced) {
            self.write_back();
        }
    }

    /// Makes the oldest change durable.
    fn write_back(&mut self) {
        if let Some(CachedChange { change, .. }) = self.cache.pop_front() {
            change.apply(change.range(), &mut self.durable);
            self.cached_bytes -= change.bytes();
            self.first_change += 1;
        }
    }

    fn flush(&mut self, covered: u64) {
        while self.first_change < covered && !self.cache.is_empty() {
            self.write_back();
        }
        while self.cache.front().is_some_and(|c| c.forced) {
            self.write_back();
        }
    }

    /// Loses the cache, except for changes written with FUA.
    pub(crate) fn lose_cache(&mut self) {
        // Flushes in flight hold such numbers.
        self.first_change = self.covered();
        self.cached_bytes = 0;
        for cached in std::mem::take(&mut self.cache).into_iter().filter(|c| c.forced) {
            cached.change.apply(cached.change.range(), &mut self.durable);
        }
        self.current = self.durable.clone();
    }

    /// Loses the cache while it has power.
    pub(crate) fn drop_cache(&mut self) {
        self.lose_cache();
        self.faults.dropped_cache = true;
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

    /// The changes that a request makes, and its result.
    pub(crate) fn changes(&mut self, rq: &Request, rng: &mut Rng) -> (Vec<Change>, BioResult) {
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

    /// Executes a command and logs it.
    pub(crate) fn execute(
        &mut self,
        rq: &Request,
        issued_ns: u64,
        covered: u64,
        rng: &mut Rng,
    ) -> BioResult {
        let result = self.work(rq, covered, rng);
        self.counts.count(rq.op());
        if self.log.len() < LOG_COMMANDS {
            self.log.push(Command {
                issued_ns,
                op: rq.op(),
                flags: rq.flags(),
                ranges: ranges_of(rq),
                bios: rq.nr_bios(),
                segments: rq.nr_segments(),
                result,
            });
        }
        result
    }

    fn work(&mut self, rq: &Request, covered: u64, rng: &mut Rng) -> BioResult {
        self.faults.check(rq.op())?;
        match rq.op() {
            Op::Read => self.read(rq),
            Op::Flush if countdown(&mut self.faults.fail_flush_in) => {
                self.drop_cache();
                Err(Status::Io)
            }
            Op::Flush => {
                if !self.faults.lies_about_flush {
                    self.flush(covered);
                }
                Ok(())
            }
            Op::Write
                if rq.flags().contains(Flags::FUA) && countdown(&mut self.faults.fail_fua_in) =>
            {
                self.drop_cache();
                Err(Status::Io)
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

    fn read(&mut self, rq: &Request) -> BioResult {
        let range = rq.sector().0..rq.end().0;
        if countdown(&mut self.faults.fail_read_in) {
            return Err(Status::Medium);
        }
        if self.faults.latent.overlaps(&range) {
            return Err(Status::Medium);
        }
        let mut bytes = Vec::with_capacity(rq.len().bytes() as usize);
        self.faults.read(&self.current, range, &mut bytes);
        scatter(&bytes, rq.segments());
        Ok(())
    }

    /// The power fails: any subset of the data that is not durable survives.
    pub(crate) fn power_cut(&mut self, rng: &mut Rng) {
        let late = std::mem::take(&mut self.late);
        let all: Vec<CachedChange> = std::mem::take(&mut self.cache)
            .into_iter()
            .chain(late.into_iter().map(|change| CachedChange { change, forced: false }))
            .collect();
        let how = match rng.below(8) {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            2 => Survival::Oldest(rng.below(all.len() as u64 + 1)),
            3 => Survival::WholeChanges,
            _ => Survival::AnyPart,
        };
        for (i, CachedChange { change, forced }) in (0u64..).zip(all) {
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
    gather(rq.segments(), &mut bytes);
    let (whole, _) = bytes.as_chunks::<512>();
    whole[..sectors].into()
}
