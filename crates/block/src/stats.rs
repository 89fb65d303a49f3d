//! I/O statistics of a device: the fields of `/sys/block/*/stat`
//! (kernel documentation, `Documentation/block/stat.rst`).
//!
//! Counters are kept in shards, one cache line group for each thread (threads beyond the number of
//! shards share), so that counting an I/O writes no line that all threads share.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::bio::Op;
use crate::clock;
use crate::sync::Word;
use crate::units::Sectors;

/// Shards of a counter; see [`thread_shard`].
pub const SHARDS: usize = 16;

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The current thread's shard number, below [`SHARDS`].
pub fn thread_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
        }
        shard.get()
    })
}

/// The kernel's groups of counters: write-zeroes count as writes, as in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Group {
    Read,
    Write,
    Discard,
    Flush,
}

impl From<Op> for Group {
    fn from(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write | Op::WriteZeroes => Self::Write,
            Op::Discard => Self::Discard,
            Op::Flush => Self::Flush,
        }
    }
}

/// I/Os that started and ended, in words that their threads only add to.
#[derive(Default)]
struct Flow<W = AtomicU64> {
    started: W,
    ended: W,
}

impl<W: Word> Flow<W> {
    fn start(&self) {
        self.started.add(1);
    }

    fn end(&self) {
        self.ended.add(1);
    }

    /// The I/Os that ended, and those in flight.
    ///
    /// The order matters: an I/O that is counted as ended is counted as started too, and one that is in
    /// flight all the time is not hidden by others that start and end between the two loads.
    fn counts(&self) -> (u64, u64) {
        let ended = self.ended.load();
        (ended, self.started.load() - ended)
    }

    /// See [`Stats::is_idle`].
    fn is_idle(&self) -> bool {
        let ended = self.ended.load();
        // With an addition, which comes before or after the addition of any I/O; a load may return an
        // old value.
        self.started.add(0) == ended
    }
}

#[derive(Default)]
struct Counters {
    flow: Flow,
    merges: AtomicU64,
    sectors: AtomicU64,
    ticks_ns: AtomicU64,
}

/// One thread's counters, on separate cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    groups: [Counters; 4],
    /// When the number in flight last rose from zero, for `io_ticks`.
    busy_since_ns: AtomicU64,
    busy_ns: AtomicU64,
    in_flight: AtomicU64,
}

/// The statistics of one device.
#[derive(Default)]
pub struct Stats {
    shards: [Shard; SHARDS],
}

/// Sums over all threads for one group of operations.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct GroupTotals {
    /// I/Os completed, except those merged into another.
    pub ios: u64,
    /// I/Os merged into another.
    pub merges: u64,
    /// Sectors moved (or discarded).
    pub sectors: u64,
    /// Total time of all I/Os in nanoseconds.
    pub ticks_ns: u64,
    /// I/Os in flight now.
    pub in_flight: u64,
}

/// Sums over all threads.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Totals {
    /// Reads.
    pub read: GroupTotals,
    /// Writes and write-zeroes.
    pub write: GroupTotals,
    /// Discards.
    pub discard: GroupTotals,
    /// Flushes.
    pub flush: GroupTotals,
    /// Time in which at least one I/O of a thread was in flight, in nanoseconds, summed over threads.
    pub io_ticks_ns: u64,
}

impl Totals {
    /// I/Os in flight now.
    pub fn in_flight(&self) -> u64 {
        [self.read, self.write, self.discard, self.flush].iter().map(|g| g.in_flight).sum()
    }

    /// The 17 numbers of `/sys/block/*/stat`.
    pub fn fields(&self) -> [u64; 17] {
        const MS: u64 = 1_000_000;
        let (r, w, d, f) = (self.read, self.write, self.discard, self.flush);
        [
            r.ios,
            r.merges,
            r.sectors,
            r.ticks_ns / MS,
            w.ios,
            w.merges,
            w.sectors,
            w.ticks_ns / MS,
            self.in_flight(),
            self.io_ticks_ns / MS,
            (r.ticks_ns + w.ticks_ns + d.ticks_ns + f.ticks_ns) / MS,
            d.ios,
            d.merges,
            d.sectors,
            d.ticks_ns / MS,
            f.ios,
            f.ticks_ns / MS,
        ]
    }
}

/// An I/O in flight; counted as done when dropped.
pub struct Account<'a> {
    stats: &'a Stats,
    group: Group,
    shard: u8,
    sectors: Sectors,
    started_ns: u64,
}

impl Stats {
    /// Counts an I/O as started.
    pub fn start(&self, op: Op, len: Sectors) -> Account<'_> {
        let index = thread_shard();
        let shard = &self.shards[index];
        let group = Group::from(op);
        let now = clock::now_ns();
        shard.groups[group as usize].flow.start();
        if shard.in_flight.fetch_add(1, Relaxed) == 0 {
            shard.busy_since_ns.store(now, Relaxed);
        }
        Account { stats: self, group, shard: index as u8, sectors: len, started_ns: now }
    }

    /// Counts `n` I/Os of operation `op` as merged into another.
    pub fn merged(&self, op: Op, n: u64) {
        self.shards[thread_shard()].groups[Group::from(op) as usize].merges.fetch_add(n, Relaxed);
    }

    /// Whether no I/O is in flight: what the I/Os did happened before. An I/O that starts meanwhile and is
    /// not seen here sees what the caller did before.
    ///
    /// So a device that first refuses new I/O is quiet once this is true.
    pub fn is_idle(&self) -> bool {
        self.shards.iter().flat_map(|shard| &shard.groups).all(|group| group.flow.is_idle())
    }

    /// The sums over all threads.
    pub fn totals(&self) -> Totals {
        let sum = |group: Group| {
            let mut out = GroupTotals::default();
            for shard in &self.shards {
                let c = &shard.groups[group as usize];
                let (ended, in_flight) = c.flow.counts();
                out.ios += ended;
                out.in_flight += in_flight;
                out.merges += c.merges.load(Relaxed);
                out.sectors += c.sectors.load(Relaxed);
                out.ticks_ns += c.ticks_ns.load(Relaxed);
            }
            // Counters count bios, but the kernel reports requests: a merged bio is not a separate
            // I/O.
            out.ios = out.ios.saturating_sub(out.merges);
            out
        };
        Totals {
            read: sum(Group::Read),
            write: sum(Group::Write),
            discard: sum(Group::Discard),
            flush: sum(Group::Flush),
            io_ticks_ns: self.shards.iter().map(|s| s.busy_ns.load(Relaxed)).sum(),
        }
    }
}

impl Drop for Account<'_> {
    fn drop(&mut self) {
        let shard = &self.stats.shards[usize::from(self.shard)];
        let now = clock::now_ns();
        let counters = &shard.groups[self.group as usize];
        counters.sectors.fetch_add(self.sectors.0, Relaxed);
        counters.ticks_ns.fetch_add(now.saturating_sub(self.started_ns), Relaxed);
        counters.flow.end();
        if shard.in_flight.fetch_sub(1, Relaxed) == 1 {
            let since = shard.busy_since_ns.load(Relaxed);
            shard.busy_ns.fetch_add(now.saturating_sub(since), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::model::explore;
    use crate::sync::model::loom::cell::UnsafeCell;
    use crate::sync::model::loom::sync::atomic::{AtomicBool, AtomicU64 as LoomU64};

    #[test]
    fn an_io_in_flight_is_not_hidden_by_others_that_start_and_end() {
        fn others(flow: &Flow<LoomU64>) {
            for _ in 0..2 {
                flow.start();
                flow.end();
            }
        }
        fn count(flow: &Flow<LoomU64>) {
            let (ended, in_flight) = flow.counts();
            assert!(ended <= 4 && (1..=5).contains(&in_flight), "{ended} {in_flight}");
            assert!(!flow.is_idle());
        }
        let one_in_flight = || {
            let flow = Flow::default();
            flow.start();
            flow
        };
        explore(3, one_in_flight, &[count, others, others], |flow| {
            assert_eq!(flow.counts(), (4, 1));
        });
    }

    #[test]
    fn an_io_has_ended_before_idle_or_sees_that_the_device_stopped() {
        struct Device {
            flow: Flow<LoomU64>,
            stopped: AtomicBool,
            members: UnsafeCell<()>,
        }
        fn io(device: &Device) {
            device.flow.start();
            if !device.stopped.load(Relaxed) {
                device.members.with(|_| ());
            }
            device.flow.end();
        }
        fn stop(device: &Device) {
            device.stopped.store(true, Relaxed);
            if device.flow.is_idle() {
                device.members.with_mut(|_| ());
            }
        }
        let device = || Device {
            flow: Flow::default(),
            stopped: AtomicBool::new(false),
            members: UnsafeCell::new(()),
        };
        explore(3, device, &[stop, io, io], |device| assert!(device.flow.is_idle()));
    }

    #[test]
    fn stat_counts_what_is_done_and_what_is_in_flight() {
        let stats = Stats::default();
        clock::set_now_ns(5_000_000);
        let read = stats.start(Op::Read, Sectors(8));
        let merged: Vec<_> = (0..3).map(|_| stats.start(Op::Read, Sectors(8))).collect();
        stats.merged(Op::Read, 3);
        let zero = stats.start(Op::WriteZeroes, Sectors(16));
        assert_eq!(stats.totals().in_flight(), 5);
        clock::set_now_ns(9_000_000);
        drop((read, merged));
        drop(zero);
        let totals = stats.totals();
        assert_eq!(totals.fields(), [1, 3, 32, 16, 1, 0, 16, 4, 0, 4, 20, 0, 0, 0, 0, 0, 0]);
    }
}
