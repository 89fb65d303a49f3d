//! The time that a device takes: latency, bandwidth, parallelism, seeks, an IOPS cap.
//!
//! A [`Model`] is a set of figures; a [`Clockwork`] is a device with these figures and its current load. Both
//! are pure: the caller provides time and random numbers, so the same device exists in the
//! simulator's time and, in front of a real device, in the engine's. The figures of the presets are those of common devices,
//! rounded. [`text`] has their notation.

mod text;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ashlar_block::{Features, Limits, Op, Sector, Sectors};

pub use text::{EXAMPLES, ModelError, NamedModel, PRESETS};

const MS: u64 = 1_000_000;
const US: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;

/// Most commands processed at a time.
pub const MAX_PARALLELISM: usize = 1024;

/// A cap on I/Os per second, as cloud providers enforce it: a token bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IopsCap {
    /// I/Os per second.
    pub per_second: u64,
    /// I/Os that may start at once after a pause.
    pub burst: u64,
    /// Bytes that count as one I/O (EBS gp2: 256 KiB).
    pub unit_bytes: u64,
}

impl IopsCap {
    /// The default of [`Self::burst`].
    pub const BURST: u64 = 16;
    /// The default of [`Self::unit_bytes`].
    pub const UNIT_BYTES: u64 = 256 << 10;
}

/// The cost of moving a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seek {
    /// The shortest seek, including settling, in nanoseconds.
    pub min_ns: u64,
    /// A seek from one end to the other, in nanoseconds.
    pub full_stroke_ns: u64,
    /// One turn of the platter, in nanoseconds; a seek is followed by a wait of half a turn.
    pub turn_ns: u64,
}

/// Commands that take much longer than others: one that the network or the server keeps back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// One command in so many takes longer, at random.
    pub one_in: u64,
    /// How many times as long as others it takes at most. That it takes `n` times as long has the probability 1 / `n`: no
    /// length is typical.
    pub most_times: u64,
}

impl Tail {
    /// By how much a command of `usual_ns` is late.
    fn late_ns(self, usual_ns: u64, below: &mut impl FnMut(u64) -> u64) -> u64 {
        if below(self.one_in.max(1)) != 0 {
            return 0;
        }
        let most = self.most_times.max(1);
        let times = most / (1 + below(most));
        usual_ns * times.saturating_sub(1)
    }
}

/// The times of a device. All `_ns` are nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Model {
    /// Commands processed at a time.
    pub parallelism: usize,
    /// Fixed cost of a read.
    pub read_ns: u64,
    /// Fixed cost of a write.
    pub write_ns: u64,
    /// Cost of a flush.
    pub flush_ns: u64,
    /// Fixed cost of a discard or write-zeroes.
    pub discard_ns: u64,
    /// Cost per MiB of a discard or write-zeroes.
    pub discard_ns_per_mib: u64,
    /// Bytes per second over the device's bus, for all commands together; `u64::MAX` for no limit.
    pub bytes_per_second: u64,
    /// The fixed cost increases by up to this percentage, at random, which reorders completions.
    pub jitter_percent: u64,
    /// The commands that take much longer, if there are any. They keep no others waiting, except by what they count in
    /// `parallelism`.
    pub tail: Option<Tail>,
    /// The cost of moving the head, if there is one.
    pub seek: Option<Seek>,
    /// The cap on I/Os, if there is one.
    pub iops_cap: Option<IopsCap>,
}

/// Sectors that cannot be read: of a device in front of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreadable {
    /// The first one.
    pub start: Sector,
    /// How many there are.
    pub len: Sectors,
}

impl Unreadable {
    /// Whether a read of `len` sectors from `at` on needs one of them.
    pub fn is_in(self, at: Sector, len: Sectors) -> bool {
        at < self.start + self.len && self.start < at + len
    }
}

impl Model {
    /// An NVMe SSD: 80 us, 3 GB/s, 32 commands at a time.
    pub const fn nvme() -> Self {
        Self {
            parallelism: 32,
            read_ns: 80 * US,
            write_ns: 20 * US,
            flush_ns: 500 * US,
            discard_ns: 100 * US,
            discard_ns_per_mib: 20,
            bytes_per_second: 3_000_000_000,
            jitter_percent: 50,
            tail: None,
            seek: None,
            iops_cap: None,
        }
    }

    /// A SATA SSD: 100 us, 520 MB/s, 8 commands at a time, slow discards.
    pub const fn sata_ssd() -> Self {
        Self {
            parallelism: 8,
            read_ns: 100 * US,
            write_ns: 60 * US,
            flush_ns: 2 * MS,
            discard_ns: MS,
            discard_ns_per_mib: 100,
            bytes_per_second: 520_000_000,
            ..Self::nvme()
        }
    }

    /// A disk of 7200 turns a minute: 180 MB/s, seeks of 1 to 16 ms.
    pub const fn hdd() -> Self {
        Self {
            parallelism: 1,
            read_ns: 100 * US,
            write_ns: 100 * US,
            flush_ns: 8 * MS,
            discard_ns: 100 * US,
            discard_ns_per_mib: 100,
            bytes_per_second: 180_000_000,
            jitter_percent: 5,
            tail: None,
            seek: Some(Seek { min_ns: MS, full_stroke_ns: 16 * MS, turn_ns: 8_333_333 }),
            iops_cap: None,
        }
    }

    /// A disk of 5400 turns a minute, as in laptops: 120 MB/s, seeks of 1.5 to 20 ms.
    pub const fn hdd_5400() -> Self {
        Self {
            bytes_per_second: 120_000_000,
            seek: Some(Seek { min_ns: 1_500 * US, full_stroke_ns: 20 * MS, turn_ns: 11_111_111 }),
            ..Self::hdd()
        }
    }

    /// A cloud volume with a cap on IOPS that counts up to 256 KiB as one (EBS gp2).
    pub const fn cloud_gp2(per_second: u64) -> Self {
        Self {
            parallelism: 64,
            read_ns: 600 * US,
            write_ns: 900 * US,
            flush_ns: MS,
            bytes_per_second: 250 << 20,
            jitter_percent: 10,
            iops_cap: Some(IopsCap {
                per_second,
                burst: IopsCap::BURST,
                unit_bytes: IopsCap::UNIT_BYTES,
            }),
            ..Self::nvme()
        }
    }

    /// A device that takes no time: the base for adjustments.
    pub const fn instant() -> Self {
        Self {
            parallelism: MAX_PARALLELISM,
            read_ns: 0,
            write_ns: 0,
            flush_ns: 0,
            discard_ns: 0,
            discard_ns_per_mib: 0,
            bytes_per_second: u64::MAX,
            jitter_percent: 0,
            tail: None,
            seek: None,
            iops_cap: None,
        }
    }

    /// The limits of a device of this kind: a volatile cache, FUA, discards of any size with granules
    /// of 4 KiB, write-zeroes, which are fast unless it seeks.
    pub fn limits(&self) -> Limits {
        let mut features = Features::WRITE_CACHE | Features::FUA;
        if self.seek.is_some() {
            features |= Features::ROTATIONAL;
        } else {
            features |= Features::FAST_ZERO;
        }
        Limits {
            max_hw_discard: Sectors(1 << 32),
            discard_granularity_bytes: 4096,
            max_discard_segments: if self.seek.is_some() { 1 } else { 256 },
            max_write_zeroes: Sectors(1 << 32),
            physical_block_bytes: 4096,
            features,
            ..Limits::default()
        }
    }
}

/// A device's clockwork: the model and its current load.
pub struct Clockwork {
    model: Model,
    capacity: u64,
    /// When each of the `parallelism` units is free again, the earliest on top.
    free_ns: BinaryHeap<Reverse<u64>>,
    bus_free_ns: u64,
    head: u64,
    /// When the token bucket will be full.
    bucket_full_ns: u64,
}

fn transfer_ns(bytes: u64, per_second: u64) -> u64 {
    (u128::from(bytes) * u128::from(SECOND) / u128::from(per_second.max(1))) as u64
}

impl Clockwork {
    /// An idle device of `capacity`.
    pub fn new(model: Model, capacity: Sectors) -> Self {
        let units = model.parallelism.clamp(1, MAX_PARALLELISM);
        Self {
            free_ns: std::iter::repeat_n(Reverse(0), units).collect(),
            model,
            capacity: capacity.0.max(1),
            bus_free_ns: 0,
            head: 0,
            bucket_full_ns: 0,
        }
    }

    /// When a command that arrives at `now_ns` ends. `below(n)` must return a random number below `n`,
    /// which is never 0.
    pub fn end_ns(
        &mut self,
        now_ns: u64,
        op: Op,
        at: Sector,
        len: Sectors,
        mut below: impl FnMut(u64) -> u64,
    ) -> u64 {
        let model = self.model;
        let (fixed, moved, per_mib) = match op {
            Op::Read => (model.read_ns, len.bytes(), 0),
            Op::Write => (model.write_ns, len.bytes(), 0),
            Op::Flush => (model.flush_ns, 0, 0),
            Op::Discard | Op::WriteZeroes => (model.discard_ns, 0, model.discard_ns_per_mib),
        };
        let jitter = below(fixed * model.jitter_percent / 100 + 1);
        let Reverse(free_ns) = self.free_ns.pop().unwrap_or_default();
        let mut start = now_ns.max(free_ns);
        if let Some(cap) = model.iops_cap {
            start = self.take_tokens(cap, start, moved);
        }
        let worked =
            start + fixed + jitter + (len.bytes() >> 20) * per_mib + self.seek_ns(op, at, len);
        let bus = worked.max(self.bus_free_ns);
        let passed = bus + transfer_ns(moved, model.bytes_per_second);
        if moved > 0 {
            self.bus_free_ns = passed;
        }
        let late_ns = model.tail.map_or(0, |tail| tail.late_ns(fixed + jitter, &mut below));
        let end = passed + late_ns;
        self.free_ns.push(Reverse(end));
        end
    }

    /// When the tokens for `bytes` are available, at `now_ns` or later.
    fn take_tokens(&mut self, cap: IopsCap, now_ns: u64, bytes: u64) -> u64 {
        let tokens = bytes.div_ceil(cap.unit_bytes.max(1)).max(1);
        let burst = cap.burst.max(1);
        let each = SECOND / cap.per_second.max(1);
        let spare = burst.saturating_sub(tokens) * each;
        let at_ns = now_ns.max(self.bucket_full_ns.saturating_sub(spare));
        self.bucket_full_ns = self.bucket_full_ns.max(at_ns) + tokens * each;
        at_ns
    }

    fn seek_ns(&mut self, op: Op, at: Sector, len: Sectors) -> u64 {
        let (Some(seek), true) = (self.model.seek, op.has_data()) else { return 0 };
        let distance = self.head.abs_diff(at.0);
        let ahead = at.0.checked_sub(self.head);
        self.head = at.0 + len.0;
        if distance == 0 {
            return 0;
        }
        // A place a little ahead passes below the head, which is faster than moving it.
        let passing_ns = ahead.map_or(u64::MAX, |skipped| {
            transfer_ns(Sectors(skipped).bytes(), self.model.bytes_per_second)
        });
        // Seek time grows with the square root of the distance.
        let part = (u128::from(distance) * 1_000_000 / u128::from(self.capacity)) as u64;
        let travel = seek.full_stroke_ns.saturating_sub(seek.min_ns) / 1000 * part.isqrt();
        passing_ns.min(seek.min_ns + travel + seek.turn_ns / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(model: Model, commands: impl IntoIterator<Item = (Op, u64, u64)>) -> u64 {
        let mut clockwork = Clockwork::new(model, Sectors(1 << 30));
        let mut last = 0;
        for (draws, (op, at, len)) in (1_u64..).zip(commands) {
            let below = |n| draws.wrapping_mul(0x9e37_79b9_7f4a_7c15) % n;
            let end = clockwork.end_ns(0, op, Sector(at), Sectors(len), below);
            last = last.max(end);
        }
        last
    }

    #[test]
    fn an_iops_cap_counts_256_kib_as_one() {
        let small = run(Model::cloud_gp2(1000), (0..3000).map(|i| (Op::Read, i * 8, 8)));
        let large = run(Model::cloud_gp2(1000), (0..300).map(|i| (Op::Read, i * 512, 512)));
        assert!((2_900 * MS..3_100 * MS).contains(&small), "{small}");
        assert!((280 * MS..700 * MS).contains(&large), "{large}");
    }

    #[test]
    fn a_cap_holds_to_a_hundredth_however_late_completions_are_seen() {
        let model: NamedModel = "gp2:3000iops,jitter=0%".parse().unwrap();
        let mut clockwork = Clockwork::new(model.model, Sectors(1 << 30));
        // 32 in flight; another follows when an end is seen, up to 200 us late.
        let mut seen: Vec<u64> = vec![0; 32];
        let (mut done, mut draws) = (0_u64, 0_u64);
        loop {
            let now = seen.iter().copied().min().unwrap();
            if now > 10 * SECOND {
                break;
            }
            let slot = seen.iter().position(|at| *at == now).unwrap();
            let end = clockwork.end_ns(now, Op::Read, Sector(0), Sectors(8), |_| 0);
            draws += 1;
            seen[slot] = end + draws * 7919 % (200 * US);
            done += 1;
        }
        assert!((29_700..30_300).contains(&done), "{done}");
    }

    #[test]
    fn a_burst_is_what_may_come_at_once_after_a_pause() {
        let model: NamedModel = "custom:1000iops,burst=10".parse().unwrap();
        let mut clockwork = Clockwork::new(model.model, Sectors(1 << 30));
        let mut end =
            |now| clockwork.end_ns(now, Op::Write, Sector(0), Sectors(8), |_| 0).abs_diff(now);
        for now in [0, SECOND] {
            let ends: Vec<u64> = (0..12).map(|_| end(now)).collect();
            assert_eq!(ends, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, MS, 2 * MS], "at {now}");
        }
    }

    #[test]
    fn a_head_that_has_to_go_a_little_ahead_waits_for_that_to_pass() {
        let gap = |to: u64| run(Model::hdd(), [(Op::Read, 1 << 20, 8), (Op::Read, to, 8)]);
        let next = gap((1 << 20) + 8);
        // 128 KiB pass in 0.7 ms; 128 KiB back, or far ahead, the head moves.
        let (ahead, back, far) = (gap((1 << 20) + 264), gap((1 << 20) - 256), gap(1 << 29));
        assert!((600 * US..900 * US).contains(&(ahead - next)), "{ahead} {next}");
        assert!(back - next > 5 * MS && far - next > 5 * MS, "{back} {far}");
    }

    #[test]
    fn few_commands_take_much_longer_and_keep_no_others_waiting() {
        const COMMANDS: u64 = 30_000;
        let tail = Some(Tail { one_in: 10, most_times: 100 });
        let model =
            Model { parallelism: MAX_PARALLELISM, jitter_percent: 0, tail, ..Model::nvme() };
        let mut clockwork = Clockwork::new(model, Sectors(1 << 30));
        let mut rng = crate::rng::Rng::new(1);
        let mut times: Vec<u64> = (0..COMMANDS)
            .map(|i| {
                let now_ns = i * 10 * US;
                let end =
                    clockwork.end_ns(now_ns, Op::Read, Sector(0), Sectors(1), |n| rng.below(n));
                (end - now_ns) / model.read_ns
            })
            .collect();
        times.sort_unstable();
        let longer = |times_as_long| times.iter().filter(|it| **it >= times_as_long).count();
        // Half of the tenth takes twice as long at least, a fiftieth 50 times.
        assert!((1200..1800).contains(&longer(2)), "{}", longer(2));
        assert!((30..120).contains(&longer(50)), "{}", longer(50));
        assert_eq!(times.last(), Some(&100));
    }

    #[test]
    fn the_instant_device_takes_no_time() {
        assert_eq!(run(Model::instant(), (0..5000).map(|i| (Op::Write, i, 2048))), 0);
    }

    #[test]
    fn heads_make_random_reads_slow_and_sequential_ones_fast() {
        let sequential = run(Model::hdd(), (0..100).map(|i| (Op::Read, i * 512, 512)));
        let scattered =
            run(Model::hdd(), (0..100).map(|i| (Op::Read, i * 7_919_993 % (1 << 30), 512)));
        assert!(scattered > 5 * sequential, "{scattered} {sequential}");
    }

    #[test]
    fn bandwidth_bounds_large_transfers_and_parallelism_small_ones() {
        let large = run(Model::nvme(), (0..1000).map(|i| (Op::Read, i * 2048, 2048)));
        assert!((340 * MS..370 * MS).contains(&large), "{large}");
        let small = run(Model::nvme(), (0..3200).map(|i| (Op::Read, i * 8, 8)));
        assert!((8 * MS..13 * MS).contains(&small), "{small}");
    }
}
