//! RAID 5 with a partial parity log: random lives that end in crashes, and after each one every member is taken away in turn. What was
//! flushed reads as it was written, also from what is then missing; only what was being written on the missing member may be anything.
//!
//! `ASHLAR_SEED=n` runs only seed n, `ASHLAR_SEEDS=a..b` those from a up to b.

use ashlar_block::canary::break_rule;
use ashlar_block::{Buffer, Flags, Sector, Sectors, Status};
use ashlar_md::canary::Rule;
use ashlar_md::ondisk::ppl::SEVERAL_LOGS;
use ashlar_md::ondisk::{Features, Level, PplPlace, Superblock};
use ashlar_md::{Array, AssembleError};
use ashlar_sim::oracle::stamp;
use ashlar_sim::runs::{RunReminder, first_failure, wanted};
use ashlar_sim::{Media, Mix, Oracle, Rng, Sim, SimDisk, Stop, Value, Workload};

use crate::common::{Shape, candidates, disks, gateway, make_with, media, spec, start};
use crate::parity::READ_ONLY;
use crate::parity_writes::RW;

/// Where data begins: behind the largest log.
const DATA: u64 = 2560;
const CHUNK: u64 = 16;
/// Most lives of an array.
const LIVES: usize = 5;

struct World {
    seed: u64,
    rng: Rng,
    media: Vec<Media>,
    oracle: Oracle,
    /// Whether the logs have room for several.
    several: bool,
    /// The member that is gone for good.
    lost: Option<usize>,
    /// Starts that were refused after a crash, and all.
    refused: (u64, u64),
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x7070_6c00);
        let members = 3 + rng.index(3);
        let layout = rng.below(6) as u32;
        let area = [16, 40, 528, 528, 600, 2048][rng.index(6)];
        Self::with(seed, members, layout, Sectors(area))
    }

    fn with(seed: u64, members: usize, layout: u32, area: Sectors) -> Self {
        let mut rng = Rng::new(seed ^ 0x7070_6c01);
        let shape = Shape::new(Level::Raid5, Some(layout), CHUNK / 2, members);
        let media = media(members, Sectors(DATA + CHUNK * (2 + rng.below(10))));
        let mut world = Self {
            seed,
            rng,
            media,
            oracle: Oracle::new(seed, Value::Zeroes),
            several: area >= SEVERAL_LOGS,
            lost: None,
            refused: (0, 0),
        };
        world.make(&shape, area);
        world
    }

    fn make(&mut self, shape: &Shape, area: Sectors) {
        let disks = disks(&self.media);
        let sizes: Vec<Sectors> = self.media.iter().map(Media::capacity).collect();
        let mut spec = spec(shape, &sizes);
        (spec.ppl, spec.data_offset) = (true, Some(Sectors(DATA)));
        Sim::new(self.rng.next_u64()).block_on(async {
            make_with(&spec, &disks).await;
            for candidate in candidates(&disks).await {
                let mut sb: Superblock = *candidate.sb;
                sb.ppl = Some(PplPlace { offset: 8, len: area });
                let bytes = sb.encode(512).expect("a superblock");
                let slot: usize = candidate.path[1..].parse().expect("the name of a disk");
                for (sector, bytes) in (sb.super_offset.0..).zip(bytes.chunks(512)) {
                    self.media[slot].poke(Sector(sector), bytes);
                }
            }
        });
    }

    fn disks(media: &[Media], without: &[Option<usize>]) -> Vec<SimDisk> {
        let all = disks(media).into_iter().enumerate();
        all.filter(|(slot, _)| !without.contains(&Some(*slot))).map(|(_, disk)| disk).collect()
    }

    fn live(&mut self) {
        let sim = Sim::new(self.rng.next_u64());
        let disks = Self::disks(&self.media, &[self.lost]);
        let stops = self.rng.chance(1, 4);
        let stop = Stop::AfterSteps(if stops { u64::MAX } else { 30 + self.rng.below(2500) });
        let mut rng = self.rng.fork();
        let oracle = self.oracle.clone();
        let lived = sim.block_on_until(
            async {
                let array = match start(&sim, &disks, &RW).await {
                    Ok(array) => array,
                    Err(AssembleError::DirtyDegraded { .. }) => return None,
                    Err(error) => panic!("{error}"),
                };
                let volume = gateway(&array);
                let mix = match rng.below(3) {
                    0 => Mix { discard: 0, write_zeroes: 0, ..Mix::default() },
                    1 => Mix { discard: 20, write_zeroes: 30, ..Mix::default() },
                    _ => Mix { flush: 30, ..Mix::default() },
                };
                let work = Workload {
                    max_len: [4, 24, 90][rng.index(3)],
                    tasks: 1 + rng.index(4),
                    ios: 10 + rng.index(60),
                    mix,
                    ..Workload::over(0..volume.capacity().0)
                };
                // Of a part of the array each: the oracle does not order writes that overlap.
                let size = volume.capacity().0;
                let tasks = work.tasks as u64;
                let parts = (0..tasks).map(|task| Workload {
                    span: size * task / tasks..size * (task + 1) / tasks,
                    tasks: 1,
                    ..work.clone()
                });
                let mut runs: Vec<_> = parts.map(|part| (part, rng.fork())).collect();
                let runs = runs.iter_mut().map(|(part, rng)| part.run(&volume, &oracle, rng));
                for result in futures_util::future::join_all(runs).await {
                    result.unwrap_or_else(|violation| panic!("{violation}"));
                }
                if stops {
                    let flush = oracle.begin_flush();
                    oracle.end(flush, array.stop().await);
                }
                Some(())
            },
            stop,
        );
        if lived == Some(None) {
            self.refused.0 += 1;
            return;
        }
        let cut = self.rng.chance(2, 3);
        if std::env::var_os("ASHLAR_SEED").is_some() {
            println!("lost {:?}, stops: {stops}, power cut: {cut}", self.lost);
        }
        if cut {
            sim.power_cut();
            self.oracle.power_cut();
        } else {
            sim.kill();
            self.oracle.kill();
        }
        let slots = (0..self.media.len()).map(Some);
        let away: Vec<Option<usize>> = match self.lost {
            None => [None].into_iter().chain(slots).collect(),
            Some(_) => vec![None],
        };
        for away in away {
            self.inspect(away);
        }
        if stops && self.lost.is_none() && self.rng.chance(1, 3) {
            self.lost = Some(self.rng.index(self.media.len()));
        }
    }

    /// Reads everything without a member, and changes nothing.
    fn inspect(&mut self, away: Option<usize>) {
        let copies: Vec<Media> = self.media.iter().map(Media::copy).collect();
        let sim = Sim::new(self.rng.next_u64());
        let disks = Self::disks(&copies, &[away, self.lost]);
        let is_degraded = away.or(self.lost).is_some();
        self.refused.1 += u64::from(is_degraded);
        let refused = sim.block_on(async {
            let array = match start(&sim, &disks, &READ_ONLY).await {
                Ok(array) => array,
                Err(AssembleError::DirtyDegraded { .. }) if is_degraded => return true,
                Err(error) => panic!("without {away:?}: {error}"),
            };
            if std::env::var_os("ASHLAR_SEED").is_some() {
                println!("without {away:?}: {:#?}", array.status().await.notes);
            }
            let size = gateway(&array).capacity();
            let all = gateway(&array).read(Sector(0), size).await;
            let all = all.unwrap_or_else(|status| panic!("without {away:?}: {status}"));
            for (sector, found) in (0..size.0).zip(all.as_slice().chunks(512)) {
                self.check(&array, away.or(self.lost), sector, found);
                if self.lost.is_some() && self.is_open(&array, self.lost, sector) {
                    let open = self.oracle.begin_discard(sector..sector + 1, Flags::empty());
                    self.oracle.end(open, Ok(()));
                }
            }
            false
        });
        self.refused.0 += u64::from(refused);
    }

    fn check(&self, array: &Array, away: Option<usize>, sector: u64, found: &[u8]) {
        let allowed = self.oracle.allowed(sector);
        let fits = |value: &Value| match value {
            Value::Anything => true,
            Value::Zeroes => found.iter().all(|byte| *byte == 0),
            Value::Stamp(generation) => found == stamp(self.seed, sector, *generation),
        };
        assert!(
            self.is_open(array, away, sector) || allowed.iter().any(fits),
            "without {away:?}: sector {sector} is not one of {allowed:?}"
        );
    }

    /// Whether a sector was being written on a member that is away, so that it may be anything.
    fn is_open(&self, array: &Array, away: Option<usize>, sector: u64) -> bool {
        let slot = array.personality().map(Sector(sector))[0].disk;
        self.oracle.allowed(sector).len() > 1 && Some(slot) == away
    }
}

#[test]
fn no_crash_loses_what_was_not_being_written_even_with_a_member() {
    let seeds = wanted(|name| std::env::var(name).ok()).unwrap_or(0..60);
    let (mut refused, mut of) = (0, 0);
    for seed in seeds {
        let _reminder = RunReminder::new("ppl", seed);
        let mut world = World::new(seed);
        (0..LIVES).for_each(|_| world.live());
        // A log that has to be overwritten in place may be torn.
        if world.several {
            (refused, of) = (refused + world.refused.0, of + world.refused.1);
        }
    }
    println!("{refused} of {of} starts with several logs were refused");
    assert!(refused * 50 <= of, "{refused} of {of} starts were refused");
}

/// Runs worlds until one fails, because a rule is broken.
fn is_found(rule: Rule, bound: u64) {
    let _broken = break_rule(rule);
    let found = first_failure(bound, |seed| {
        let mut world = World::new(seed);
        (0..LIVES).for_each(|_| world.live());
    });
    match found {
        Some((seed, text)) => println!("{rule:?}: found by seed {seed}: {text}"),
        None => panic!("{rule:?} is broken and {bound} runs did not find it"),
    }
}

#[test]
fn a_row_that_is_written_before_its_log_is_found() {
    is_found(Rule::LogComesFirst, 100);
}

#[test]
fn a_log_that_takes_the_place_of_one_whose_rows_are_not_flushed_is_found() {
    is_found(Rule::LogIsFlushedBeforeReuse, 300);
}

/// Writes one sector of the first two chunks in turn, and after 56 of them, whose logs fill the area, eight.
fn fill_the_log(writes: u64) -> World {
    let world = World::with(1, 3, 0, Sectors(528));
    let disks = disks(&world.media);
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = start(&sim, &disks, &RW).await.unwrap();
        for number in 0..writes {
            let (at, len) = (number % 2 * CHUNK, if number < 56 { 1 } else { 8 });
            let (ticket, data) = world.oracle.begin_write(at..at + len, Flags::FUA);
            let mut data = Buffer::from_slice(&data);
            let done = gateway(&array).write(Sector(at), &mut data, Flags::FUA).await;
            world.oracle.end(ticket, done);
        }
    });
    world
}

/// The power fails while a log is written where the chain of logs begins again: its header is not there, and the parity behind it has destroyed
/// the second log of the earlier chain, not the first.
fn crash_as_logs_begin_again() {
    const AREA: u64 = 16;
    let (mut world, next) = (fill_the_log(56), fill_the_log(57));
    for at in (0..8).chain(17..24).map(|at| Sector(AREA + at)) {
        world.media[2].poke(at, &next.media[2].peek(at));
    }
    let (ticket, _) = world.oracle.begin_write(0..8, Flags::FUA);
    world.oracle.end(ticket, Err(Status::Io));
    (0..3).for_each(|away| world.inspect(Some(away)));
}

#[test]
fn logs_begin_again_without_a_way_back() {
    crash_as_logs_begin_again();
}

#[test]
fn a_torn_log_where_an_earlier_chain_began_is_found() {
    let _broken = break_rule(Rule::BasesAreRenewed);
    let (_, text) = first_failure(1, |_| crash_as_logs_begin_again()).expect("a failure");
    println!("BasesAreRenewed: {text}");
}

#[test]
fn logs_of_the_last_run_that_stay_are_found() {
    is_found(Rule::RingsAreEmptiedFirst, 300);
}

#[test]
fn linux_sees_that_there_are_several_logs() {
    let mut world = World::new(2);
    world.media.iter().for_each(|medium| medium.clear_log());
    while !world.several {
        world = World::new(world.seed + 1);
    }
    let sim = Sim::new(1);
    let disks = disks(&world.media);
    sim.block_on(async {
        let array = start(&sim, &disks, &RW).await.unwrap();
        crate::common::write(&gateway(&array), 0, 1, 1).await.unwrap();
        array.stop().await.unwrap();
        for candidate in candidates(&disks).await {
            let both = Features::PPL | Features::MULTIPLE_PPLS;
            assert_eq!(candidate.sb.features & both, Features::MULTIPLE_PPLS);
            assert!(candidate.sb.is_clean());
        }
    });
}
