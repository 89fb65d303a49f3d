//! I/O statistics of a device: the fields of `/sys/block/*/stat`
//! (kernel documentation, `Documentation/block/stat.rst`).
//!
//! Counters are kept in the threads' [shards](crate::shard), so that counting an I/O writes no line that all threads share.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::bio::Op;
use crate::clock;
use crate::latency::{GROUPS, Latencies, Ranges};
use crate::shard::{SHARDS, is_own, thread_shard};
use crate::status::BioResult;
use crate::sync::count;
use crate::sync::flow::{self, Flow};
use crate::units::Sectors;

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
    groups: [Counters; GROUPS],
    /// When the number in flight last rose from zero, for `io_ticks`.
    busy_since_ns: AtomicU64,
    busy_ns: AtomicU64,
    in_flight: AtomicU64,
}

/// The statistics of one device.
#[derive(Default)]
pub struct Stats {
    shards: [Shard; SHARDS],
    latencies: Latencies,
    errors: AtomicU64,
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

impl Account<'_> {
    /// Notes the result of the I/O. Requests that the device does not support, or that are wrong themselves, are no errors of
    /// the device.
    #[inline]
    pub fn note(&self, result: BioResult) {
        if let Err(status) = result
            && status.is_retryable_elsewhere()
        {
            self.stats.errors.fetch_add(1, Relaxed);
        }
    }
}

impl Stats {
    /// Counts an I/O as started.
    #[inline]
    pub fn start(&self, op: Op, len: Sectors) -> Account<'_> {
        let index = thread_shard();
        let shard = &self.shards[index];
        let group = Group::from(op);
        let now = clock::now_ns();
        shard.groups[group as usize].flow.begin();
        if count(&shard.in_flight, 1, is_own(index)) == 0 {
            shard.busy_since_ns.store(now, Relaxed);
        }
        Account { stats: self, group, shard: index as u8, sectors: len, started_ns: now }
    }

    /// Counts `n` I/Os of operation `op` as merged into another.
    pub fn merged(&self, op: Op, n: u64) {
        let index = thread_shard();
        count(&self.shards[index].groups[Group::from(op) as usize].merges, n, is_own(index));
    }

    /// The I/Os that the current thread has in flight, with those of other threads of its shard.
    #[inline]
    pub fn in_flight_here(&self) -> u64 {
        self.shards[thread_shard()].in_flight.load(Relaxed)
    }

    /// As [`flow::is_idle`]. So a device that first refuses new I/O is quiet once this is true.
    pub fn is_idle(&self) -> bool {
        flow::is_idle(self.shards.iter().flat_map(|shard| &shard.groups).map(|group| &group.flow))
    }

    /// How long the I/Os took that ended, of the operations that are counted with `op` (write-zeroes with writes). I/Os
    /// that were merged into another are among them; the times add up to [`GroupTotals::ticks_ns`].
    pub fn latencies(&self, op: Op) -> Ranges {
        self.latencies.of(Group::from(op) as usize)
    }

    /// The I/Os of all operations that the device failed.
    pub fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    /// The sums over all threads.
    pub fn totals(&self) -> Totals {
        let sum = |group: Group| {
            let counters = self.shards.iter().map(|shard| &shard.groups[group as usize]);
            let (ios, in_flight) = flow::counts(counters.clone().map(|c| &c.flow));
            let mut out = GroupTotals { ios, in_flight, ..GroupTotals::default() };
            for c in counters {
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
    #[inline]
    fn drop(&mut self) {
        let index = thread_shard();
        let (shard, alone) = (&self.stats.shards[index], is_own(index));
        let now = clock::now_ns();
        let counters = &shard.groups[self.group as usize];
        count(&counters.sectors, self.sectors.0, alone);
        let took = now.saturating_sub(self.started_ns);
        count(&counters.ticks_ns, took, alone);
        self.stats.latencies.count(self.group as usize, took, index);
        counters.flow.end(alone);
        if index != usize::from(self.shard) {
            // The thread gave its shard back before.
            self.stats.shards[usize::from(self.shard)].in_flight.fetch_sub(1, Relaxed);
        } else if count(&shard.in_flight, u64::MAX, alone) == 1 {
            let since = shard.busy_since_ns.load(Relaxed);
            count(&shard.busy_ns, now.saturating_sub(since), alone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::BOUNDS_US;

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
        let range = BOUNDS_US.iter().position(|us| *us > 4000).unwrap();
        for (op, count) in [(Op::Read, 4), (Op::Write, 1), (Op::Discard, 0), (Op::Flush, 0)] {
            let latencies = stats.latencies(op);
            assert_eq!((latencies[range], latencies.iter().sum::<u64>()), (count, count), "{op:?}");
        }
    }
}
