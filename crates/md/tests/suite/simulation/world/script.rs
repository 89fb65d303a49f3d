//! The script of a life.

use std::time::Duration;

use ashlar_block::{Op, Runtime};
use ashlar_sim::scheduler::start as start_task;
use ashlar_sim::{Media, Mix, Rng, SimRuntime, Workload};

const READS: Mix = Mix { read: 1, write: 0, write_fua: 0, flush: 0, discard: 0, write_zeroes: 0 };

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// At an arbitrary step.
    Step(u64),
    /// When the work is done.
    Done,
    /// When the work is done and everything is synced.
    Synced,
    /// Some time after the work, when the idle array has become clean.
    Idle,
    /// Stopped after the work.
    Stop,
    /// Stopped during the work.
    StopEarly,
    /// After the work, one copy of a sector is corrupted and repaired.
    Repaired,
}

impl End {
    /// Any end.
    pub(crate) fn random(rng: &mut Rng) -> Self {
        match rng.below(12) {
            0..3 => Self::Step(rng.below(600)),
            3..5 => Self::Step(rng.below(6000)),
            5 => Self::Done,
            6 if rng.chance(1, 3) => Self::Repaired,
            6 => Self::Idle,
            7 => Self::StopEarly,
            8..10 => Self::Synced,
            _ => Self::Stop,
        }
    }
}

/// An act of the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    /// Fails a member.
    Fail,
    /// Removes a failed member.
    Remove,
    /// Adds a disk that is not a member.
    Add,
    /// Replaces a member.
    Replace,
    /// Starts a check.
    Check,
    /// Starts a repair.
    Repair,
    /// Re-adds a failed member.
    ReAdd,
    /// Removes or adds a bitmap.
    Bitmap,
    /// Sets or clears write-mostly of a member.
    WriteMostly,
    /// Sets or clears failfast of a member.
    Failfast,
    /// Freezes syncs.
    Frozen,
    /// Sets the speed limits of a sync.
    Speed,
    /// Sets the bounds of a sync.
    Bounds,
    /// Ends the running sync.
    Idle,
    /// Waits until everything is synced.
    Wait,
}

/// Properties of an array that a script depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Sectors.
    pub(crate) size: u64,
    /// Sectors of a logical block.
    pub(crate) block: u64,
    /// Number of its disks, including spares.
    pub(crate) disks: usize,
    /// Whether the array can lose a member: all are present and none lists bad blocks.
    pub(crate) spare: bool,
    /// Whether its members can be changed.
    pub(crate) redundant: bool,
    /// Whether no more disks may misbehave than the array can lose.
    pub(crate) careful: bool,
    /// Whether many of its disks misbehave in many lives.
    pub(crate) unruly: bool,
}

/// What happens in a life.
#[derive(Debug)]
pub(crate) struct Script {
    /// Writers, each with a separate part of the array, and readers of all of it. (Concurrent writes to
    /// one sector may leave its copies different, as in md; sane clients do not do that.)
    pub(crate) work: Vec<Workload>,
    /// How it ends.
    pub(crate) end: End,
    /// The disks that misbehave.
    pub(crate) victims: Vec<usize>,
    /// Whether more disks may misbehave than the array can lose.
    pub(crate) too_many: bool,
    /// Number of writes after the work, one at a time, with pauses in which marks are cleared.
    pub(crate) trickle: usize,
    /// The operator's acts, each after a delay.
    pub(crate) acts: Vec<(Duration, Act)>,
}

impl Script {
    /// A random script.
    pub(crate) fn random(facts: Facts, end: End, rng: &mut Rng) -> Self {
        let (none, one) = if facts.unruly { (2, 5) } else { (4, 7) };
        let victims = match rng.below(8) {
            draw if draw < none => Vec::new(),
            draw if draw < one => vec![rng.index(facts.disks)],
            _ => (0..facts.disks).filter(|_| rng.chance(1, 2)).collect(),
        };
        let acts = if facts.redundant && rng.chance(2, 3) { random_acts(rng) } else { Vec::new() };
        let fails = acts.iter().any(|(_, act)| *act == Act::Fail);
        let mut victims = victims;
        if facts.careful {
            victims.truncate(usize::from(facts.spare && !fails));
        }
        let too_many = victims.len() > usize::from(facts.spare && !fails);
        let tolerate = too_many || end == End::StopEarly;
        let trickle = if rng.chance(1, 6) { rng.index(40) } else { 0 };
        Self { work: random_work(facts, tolerate, rng), end, victims, too_many, trickle, acts }
    }
}

/// One write in the span of a workload.
pub(crate) fn one_write(of: &Workload) -> Workload {
    let mix = Mix { write: 1, read: 0, ..READS };
    Workload { ios: 1, tasks: 1, mix, tolerate_errors: true, ..of.clone() }
}

/// One read or write in a few blocks of the span of a workload: what takes effect late there meets newer data.
pub(crate) fn one_in_few_blocks(of: &Workload) -> Workload {
    let end = of.span.end.min(of.span.start + 16 * of.align);
    let (mix, max_len) = (Mix { write: 1, ..READS }, 4 * of.align);
    Workload { span: of.span.start..end, mix, max_len, ..one_write(of) }
}

fn random_acts(rng: &mut Rng) -> Vec<(Duration, Act)> {
    let mut act = || {
        let delay = [100, 1000, 20_000][rng.index(3)];
        let act = match rng.below(24) {
            0..4 => Act::Fail,
            4..7 => Act::Remove,
            7..11 => Act::Add,
            11 => Act::ReAdd,
            12..14 => Act::Replace,
            14 => Act::Check,
            15 => Act::Repair,
            16 => Act::Idle,
            17 => Act::Frozen,
            18 => Act::Speed,
            19 => Act::Bounds,
            20 => Act::Bitmap,
            21 => [Act::WriteMostly, Act::Failfast][rng.index(2)],
            _ => Act::Wait,
        };
        (Duration::from_micros(rng.below(delay)), act)
    };
    let first = act();
    let more = (first.0.as_nanos() % 8) as usize;
    std::iter::once(first).chain((0..more).map(|_| act())).collect()
}

fn random_work(facts: Facts, tolerate_errors: bool, rng: &mut Rng) -> Vec<Workload> {
    let Facts { size, block, .. } = facts;
    let (mix, max_len) = match rng.below(5) {
        0 => (Mix { discard: 30, write_zeroes: 20, ..Mix::default() }, 24),
        1 => (Mix { discard: 0, ..Mix::default() }, 24),
        2 => (Mix { read: 2, write: 2, discard: 10, ..Mix::default() }, size),
        _ => (Mix::default(), 8),
    };
    let mut cuts: Vec<u64> = (0..rng.below(5)).map(|_| rng.below(size / block) * block).collect();
    cuts.extend([0, size]);
    cuts.sort_unstable();
    cuts.dedup();
    let common = Workload {
        align: block,
        max_len: max_len.max(block),
        tasks: 1,
        ios: 2 + rng.index(16),
        mix,
        tolerate_errors,
        ..Workload::over(0..size)
    };
    let readers = Workload { mix: READS, tasks: rng.index(3), max_len: 40, ..common.clone() };
    let mut work: Vec<Workload> =
        cuts.windows(2).map(|w| Workload { span: w[0]..w[1], ..common.clone() }).collect();
    work.push(readers);
    work
}

/// Ways to misbehave that not every disk has.
#[derive(Clone, Copy)]
pub(crate) struct Ways {
    /// The array keeps its data, so the disk may lose its cache: otherwise clients would see data of before their last
    /// flush, which the oracle does not expect.
    pub(crate) keeps_data: bool,
    /// The disk may fall silent, for a while or for ever.
    pub(crate) silence: bool,
}

/// Makes a disk misbehave in a random way, now or later; its data begins at `data`.
pub(crate) fn misbehave(medium: &Media, data: u64, ways: Ways, rng: &mut Rng) {
    let Ways { keeps_data, silence } = ways;
    let medium = medium.clone();
    let end = medium.capacity().0;
    let mut range = || {
        let at = data + rng.below(end - data);
        at..(at + 1 + rng.below(24)).min(end)
    };
    let (one, other) = (range(), range());
    let (n, delay) = (rng.below(20), Duration::from_micros(rng.below(3000)));
    let kind = rng.below(if silence { 18 } else { 12 });
    if silence {
        medium.set_cancels(rng.chance(1, 2));
    }
    let misbehave = move || match kind {
        0 => medium.kill(),
        1 => medium.fail_nth_write(n),
        2 => medium.fail_writes(one),
        3 => {
            medium.fail_reads(one.clone());
            medium.fail_writes(one);
        }
        4 => medium.fail_writes(0..data),
        5 => medium.slow_down(2 + n * n * 10),
        6 => medium.drop_support(Op::Flush),
        7 if keeps_data => medium.fail_nth_flush(n / 8),
        8 if keeps_data => medium.fail_nth_fua(n / 4),
        9 if keeps_data => medium.vanish(),
        12..14 => medium.fall_silent(),
        14..16 => medium.hang_nth_command(n),
        16..18 => {
            medium.fall_silent();
            drop(start_task(async move {
                SimRuntime.sleep(Duration::from_millis(n * 200)).await;
                medium.answer();
            }));
        }
        _ => {
            medium.fail_reads(one);
            medium.fail_reads(other);
        }
    };
    if rng.chance(1, 2) {
        misbehave();
    } else {
        drop(start_task(async move {
            SimRuntime.sleep(delay).await;
            misbehave();
        }));
    }
}
