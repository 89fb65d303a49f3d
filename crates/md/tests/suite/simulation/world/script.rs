//! The script of a life.

use std::time::Duration;

use ashlar_block::{Op, Runtime};
use ashlar_sim::scheduler::start as start_task;
use ashlar_sim::{Media, Mix, Rng, SimRuntime, Workload};

const READS: Mix = Mix { read: 1, write: 0, write_fua: 0, flush: 0, discard: 0, write_zeroes: 0 };

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// At some step, wherever that is.
    Step(u64),
    /// When the work is done.
    Done,
    /// When the work is done and everything that there is to be synced has been.
    Synced,
    /// Some time after the work, when the array has become clean by itself.
    Idle,
    /// Stopped after the work.
    Stop,
    /// Stopped in the midst of it.
    StopEarly,
    /// After the work one copy of something is spoiled, and the copies are repaired.
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

/// What an operator does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    /// Fails a member.
    Fail,
    /// Takes out what failed.
    Remove,
    /// Adds what is not a member.
    Add,
    /// Wants a member replaced.
    Replace,
    /// Has the copies compared.
    Check,
    /// Has them compared and made the same.
    Repair,
    /// Puts back a member that failed.
    ReAdd,
    /// Takes the bitmap away, or has another one.
    Bitmap,
    /// Has a member read last, or no longer.
    WriteMostly,
    /// Has a member fail at its first error, or no longer.
    Failfast,
    /// Keeps anything from being synced.
    Frozen,
    /// Sets how fast a sync may be.
    Speed,
    /// Sets where a sync begins and waits.
    Bounds,
    /// Ends what is synced.
    Idle,
    /// Waits until everything is synced.
    Wait,
}

/// What is asked of an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Sectors.
    pub(crate) size: u64,
    /// Sectors of a logical block.
    pub(crate) block: u64,
    /// Its disks, spares among them.
    pub(crate) disks: usize,
    /// Whether one member can be done without: all are there and none lists bad blocks.
    pub(crate) spare: bool,
    /// Whether its members can be changed.
    pub(crate) redundant: bool,
}

/// What happens in a life.
#[derive(Debug)]
pub(crate) struct Script {
    /// Writers with a part of the array each, and readers of all of it. (Writes to one sector that
    /// are in flight together may leave its copies different, as in md; nobody sane does it.)
    pub(crate) work: Vec<Workload>,
    /// How it ends.
    pub(crate) end: End,
    /// The disks that misbehave.
    pub(crate) victims: Vec<usize>,
    /// More misbehave than can be done without, perhaps.
    pub(crate) too_many: bool,
    /// Writes after the work, one at a time, with pauses in which marks are taken away.
    pub(crate) trickle: usize,
    /// What the operator does, each after some time.
    pub(crate) acts: Vec<(Duration, Act)>,
}

impl Script {
    /// What comes next.
    pub(crate) fn random(facts: Facts, end: End, rng: &mut Rng) -> Self {
        let victims = match rng.below(8) {
            0..4 => Vec::new(),
            4..7 => vec![rng.index(facts.disks)],
            _ => (0..facts.disks).filter(|_| rng.chance(1, 2)).collect(),
        };
        let acts = if facts.redundant && rng.chance(2, 3) { random_acts(rng) } else { Vec::new() };
        let fails = acts.iter().any(|(_, act)| *act == Act::Fail);
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

/// Lets a disk misbehave in some way, from now on or from some time on; its data begins at `data`.
pub(crate) fn misbehave(medium: &Media, data: u64, rng: &mut Rng) {
    let medium = medium.clone();
    let end = medium.capacity().0;
    let mut range = || {
        let at = data + rng.below(end - data);
        at..(at + 1 + rng.below(24)).min(end)
    };
    let (one, other) = (range(), range());
    let (n, delay) = (rng.below(20), Duration::from_micros(rng.below(3000)));
    let kind = rng.below(9);
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
