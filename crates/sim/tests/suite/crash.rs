//! Power cuts, kills and lying disks, against the oracle.

use ashlar_block::{Bio, Buffer, Features, Flags, Limits, Op, Sector, Sectors, Status};
use ashlar_sim::{
    Corruption, DiscardReads, Media, Mix, Model, Oracle, Rng, Sim, SimDisk, Stop, Value, Violation,
    Workload, seeds,
};

const SPAN: u64 = 256;

fn kinds() -> [(Limits, Model); 4] {
    let nvme = Model::nvme();
    let no_fua = Limits { features: Features::WRITE_CACHE, ..nvme.limits() };
    let no_cache = Limits { features: Features::empty(), ..nvme.limits() };
    let plain = Limits { features: Features::WRITE_CACHE, ..Limits::default() };
    [(nvme.limits(), nvme), (no_fua, Model::sata_ssd()), (no_cache, nvme), (plain, Model::hdd())]
}

/// How lives end.
#[derive(Clone, Copy, PartialEq)]
enum End {
    PowerCut,
    Kill,
    Either,
}

/// Several lives of one medium, each ended by a power cut or kill at a random step. All sectors are
/// checked at the end, and after some lives.
fn lives(seed: u64, limits: Limits, model: Model, lie: bool, end: End) -> Result<(), Violation> {
    let mut rng = Rng::new(seed);
    let media = Media::new(Sectors(SPAN));
    let oracle = Oracle::new(seed, Value::Zeroes);
    let workload = Workload { tasks: 4, ios: 30, max_len: 24, ..Workload::over(0..SPAN) };
    for life in 0..4 {
        if lie {
            media.lie_about_flush();
        }
        let sim = Sim::new(seed * 100 + life);
        let disk = SimDisk::with("d", media.clone(), limits, model);
        let gateway = disk.gateway();
        // Without this, unread sectors stay undecided into the next life.
        if rng.chance(1, 2) {
            sim.block_on(workload.verify(&gateway, &oracle))?;
        }
        let stop = Stop::AfterSteps(rng.below(900));
        let work = workload.run(&gateway, &oracle, &mut rng);
        if let Some(result) = sim.block_on_until(work, stop) {
            result?;
        }
        if end == End::Kill || end == End::Either && rng.chance(1, 2) {
            sim.kill();
            oracle.kill();
        } else {
            sim.power_cut();
            oracle.power_cut();
        }
        if rng.chance(1, 2) {
            let raw = media.peek_range(Sector(0), Sectors(SPAN));
            oracle.check_contents(0..SPAN, &raw)?;
        }
    }
    let raw = media.peek_range(Sector(0), Sectors(SPAN));
    oracle.check_contents(0..SPAN, &raw)
}

fn survives(end: End, count: u64) {
    for (limits, model) in kinds() {
        for seed in seeds(count) {
            let result = lives(seed, limits, model, false, end);
            result.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        }
    }
}

#[test]
fn what_was_flushed_survives_every_power_cut() {
    survives(End::PowerCut, 20);
}

#[test]
fn what_was_acknowledged_survives_every_kill() {
    survives(End::Kill, 15);
}

#[test]
fn kills_and_power_cuts_in_any_order_leave_what_they_must() {
    survives(End::Either, 25);
}

#[test]
fn a_disk_that_lies_about_flushes_is_found_out() {
    let (limits, model) = kinds()[0];
    let caught =
        (0..20).filter(|&seed| lives(seed, limits, model, true, End::PowerCut).is_err()).count();
    assert!(caught >= 15, "only {caught} of 20 runs noticed");
}

/// Contents of sectors 0..8 after a power cut, for writes of two generations without a flush.
fn outcome(seed: u64) -> Vec<u8> {
    let sim = Sim::new(seed);
    let disk = SimDisk::new("d", Sectors(64));
    let media = disk.media().clone();
    sim.block_on(async {
        let gateway = disk.gateway();
        for generation in [1u8, 2] {
            let mut data = Buffer::from_slice(&[generation; 8 * 512]);
            gateway.write(Sector(0), &mut data, Flags::empty()).await.unwrap();
        }
    });
    sim.power_cut();
    (0..8).map(|s| media.peek(Sector(s))[0]).collect()
}

#[test]
fn power_cuts_tear_writes_at_any_sector_and_bring_back_old_generations() {
    let outcomes: Vec<_> = (0..200).map(outcome).collect();
    assert!(outcomes.iter().any(|o| o.iter().all(|&g| g == 0)), "nothing survives");
    assert!(outcomes.iter().any(|o| o.iter().all(|&g| g == 1)), "the first alone survives");
    assert!(outcomes.iter().any(|o| o.iter().all(|&g| g == 2)), "all survives");
    let torn = |o: &&Vec<u8>| o.contains(&0) && o.contains(&1) && o.contains(&2);
    assert!(outcomes.iter().filter(torn).count() > 50, "torn in three ways");
}

#[test]
fn an_unacknowledged_write_may_survive_in_part() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let sim = Sim::new(seed);
        let disk = SimDisk::new("d", Sectors(64));
        let media = disk.media().clone();
        let gateway = disk.gateway();
        let mut data = Buffer::from_slice(&[1; 4 * 512]);
        let write = gateway.write(Sector(0), &mut data, Flags::FUA);
        // One poll, then the plug is flushed and the command is in flight.
        assert!(sim.block_on_until(write, Stop::AtNs(1)).is_none());
        sim.power_cut();
        seen.insert((0..4).map(|s| media.peek(Sector(s))[0]).collect::<Vec<_>>());
    }
    assert_eq!(seen.len(), 16, "every subset of four sectors");
}

#[test]
fn fua_survives_over_older_unflushed_writes() {
    for seed in 0..100 {
        let sim = Sim::new(seed);
        let disk = SimDisk::new("d", Sectors(64));
        let media = disk.media().clone();
        sim.block_on(async {
            let gateway = disk.gateway();
            for (generation, flags) in [(1u8, Flags::empty()), (2, Flags::FUA)] {
                let mut data = Buffer::from_slice(&[generation; 512]);
                gateway.write(Sector(3), &mut data, flags).await.unwrap();
            }
            assert_eq!(media.peek_durable(Sector(3)), [2; 512]);
        });
        sim.power_cut();
        assert_eq!(media.peek(Sector(3)), [2; 512]);
    }
}

#[test]
fn latent_errors_last_until_the_sector_is_written() {
    let sim = Sim::new(1);
    let disk = SimDisk::new("d", Sectors(64));
    let gateway = disk.gateway();
    sim.block_on(async {
        disk.media().fail_reads(10..12);
        assert_eq!(gateway.read(Sector(8), Sectors(8)).await.unwrap_err(), Status::Medium);
        assert!(gateway.read(Sector(12), Sectors(8)).await.is_ok());
        let mut data = Buffer::from_slice(&[1; 512]);
        gateway.write(Sector(10), &mut data, Flags::empty()).await.unwrap();
        assert!(gateway.read(Sector(10), Sectors(1)).await.is_ok());
        assert_eq!(gateway.read(Sector(11), Sectors(1)).await.unwrap_err(), Status::Medium);
        assert_eq!(disk.media().peek(Sector(11)), [0; 512]);
    });
}

#[test]
fn corruption_changes_what_is_read_and_not_what_is_stored() {
    let sim = Sim::new(1);
    let disk = SimDisk::new("d", Sectors(64));
    let (gateway, media) = (disk.gateway(), disk.media());
    sim.block_on(async {
        for s in 0..4u8 {
            let mut data = Buffer::from_slice(&[s; 512]);
            gateway.write(Sector(s.into()), &mut data, Flags::empty()).await.unwrap();
        }
        media.corrupt(Sector(1), Corruption::Flip { byte: 7, mask: 0x80 });
        media.corrupt(Sector(2), Corruption::Misdirected { from: 3 });
        let read = gateway.read(Sector(0), Sectors(4)).await.unwrap();
        let bytes = read.as_slice();
        assert_eq!((bytes[512 + 6], bytes[512 + 7], bytes[512 + 8]), (1, 0x81, 1));
        assert_eq!(&bytes[1024..1536], [3; 512]);
        assert_eq!((media.peek(Sector(1)), media.peek(Sector(2))), ([1; 512], [2; 512]));
        let mut data = Buffer::from_slice(&[9; 512]);
        gateway.write(Sector(2), &mut data, Flags::empty()).await.unwrap();
        let read = gateway.read(Sector(2), Sectors(1)).await.unwrap();
        assert_eq!(read.as_slice(), [9; 512]);
    });
}

#[test]
fn write_errors_hit_the_sector_or_the_command_they_were_set_on() {
    let sim = Sim::new(1);
    let disk = SimDisk::new("d", Sectors(64));
    let (gateway, media) = (disk.gateway(), disk.media());
    sim.block_on(async {
        media.fail_writes(4..5);
        let before = media.snapshot();
        let mut data = Buffer::from_slice(&[1; 8 * 512]);
        let result = gateway.write(Sector(0), &mut data, Flags::empty()).await;
        assert_eq!(result, Err(Status::Io));
        // The data may be written up to the bad sector, but not past it.
        for part in media.diff(&before) {
            assert!(part.end <= 4, "{part:?}");
        }
        assert_eq!(gateway.write(Sector(8), &mut data, Flags::empty()).await, Ok(()));
        media.fail_nth_write(1);
        assert_eq!(gateway.write(Sector(8), &mut data, Flags::empty()).await, Ok(()));
        assert_eq!(gateway.write(Sector(8), &mut data, Flags::empty()).await, Err(Status::Io));
        assert_eq!(gateway.write(Sector(8), &mut data, Flags::empty()).await, Ok(()));
    });
}

#[test]
fn discards_touch_nothing_outside_and_are_logged_with_their_ranges() {
    for reads in [DiscardReads::Zeroes, DiscardReads::Noise, DiscardReads::Mixed] {
        let sim = Sim::new(1);
        let disk = SimDisk::over("d", Media::noisy(Sectors(1 << 32), 5));
        let media = disk.media();
        media.set_discard_reads(reads);
        let before = media.snapshot();
        sim.block_on(async {
            let discard = Bio::discard(Sector(1 << 20), Sectors(1 << 31));
            disk.gateway().submit(discard).await.unwrap();
        });
        for part in media.diff(&before) {
            assert!(part.start >= 1 << 20 && part.end <= (1 << 20) + (1 << 31));
        }
        let log = media.log();
        assert_eq!((log.len(), log[0].op, log[0].sectors()), (1, Op::Discard, 1 << 31));
        assert_eq!(media.counts().discards, 1);
    }
}

#[test]
fn a_slow_disk_takes_longer() {
    let time = |factor| {
        let sim = Sim::new(1);
        let disk = SimDisk::new("d", Sectors(64));
        disk.media().slow_down(factor);
        sim.block_on(async { disk.gateway().read(Sector(0), Sectors(8)).await.unwrap() });
        sim.now_ns()
    };
    assert_eq!(time(50), 50 * time(1));
}

#[test]
fn overlapping_writers_are_checked_too() {
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let disk = SimDisk::new("d", Sectors(32));
        let oracle = Oracle::new(seed, Value::Zeroes);
        let mix = Mix::reads_and_writes();
        let workload = Workload { mix, tasks: 16, max_len: 16, ..Workload::over(0..32) };
        let result = sim.block_on(workload.run(&disk.gateway(), &oracle, &mut sim.rng()));
        assert_eq!(result, Ok(0), "seed {seed}");
        sim.block_on(workload.verify(&disk.gateway(), &oracle)).unwrap();
    }
}

#[test]
fn the_oracle_notices_a_sector_that_lies() {
    let sim = Sim::new(1);
    let disk = SimDisk::new("d", Sectors(64));
    let oracle = Oracle::new(1, Value::Zeroes);
    let mix = Mix { write: 1, read: 0, write_fua: 0, flush: 0, discard: 0, write_zeroes: 0 };
    let workload = Workload { mix, ..Workload::over(0..64) };
    sim.block_on(workload.run(&disk.gateway(), &oracle, &mut sim.rng())).unwrap();
    disk.media().corrupt(Sector(20), Corruption::Flip { byte: 100, mask: 1 });
    let violation = sim.block_on(workload.verify(&disk.gateway(), &oracle)).unwrap_err();
    assert_eq!(violation.sector, 20);
}

#[test]
fn what_was_in_flight_when_a_simulation_was_dropped_does_not_haunt_the_next() {
    for seed in 0..40 {
        let media = Media::new(Sectors(64));
        let sim = Sim::new(seed);
        let gateway = SimDisk::over("d", media.clone()).gateway();
        let mut data = Buffer::from_slice(&[1; 512]);
        let write = gateway.write(Sector(0), &mut data, Flags::empty());
        assert!(sim.block_on_until(write, Stop::AtNs(1)).is_none());
        drop(sim);
        let sim = Sim::new(seed);
        let gateway = SimDisk::over("d", media.clone()).gateway();
        let mut data = Buffer::from_slice(&[2; 512]);
        sim.block_on(gateway.write(Sector(0), &mut data, Flags::FUA)).unwrap();
        sim.power_cut();
        assert_eq!(media.peek(Sector(0)), [2; 512]);
    }
}

#[test]
fn a_transient_read_error_is_gone_at_the_next_try() {
    let sim = Sim::new(1);
    let disk = SimDisk::new("d", Sectors(64));
    let gateway = disk.gateway();
    disk.media().fail_nth_read(1);
    sim.block_on(async {
        for expected in [true, false, true] {
            assert_eq!(gateway.read(Sector(0), Sectors(8)).await.is_ok(), expected);
        }
    });
}

#[test]
fn a_flush_that_fails_takes_what_was_not_durable_along_and_the_next_one_tells_nothing() {
    let media = Media::new(Sectors(64));
    let sim = Sim::new(1);
    let gateway = SimDisk::over("d", media.clone()).gateway();
    let write = async |sector: u64, byte: u8, flags| {
        let mut data = Buffer::from_slice(&[byte; 512]);
        gateway.write(Sector(sector), &mut data, flags).await.unwrap();
    };
    sim.block_on(async {
        write(0, 1, Flags::empty()).await;
        write(1, 1, Flags::empty()).await;
        gateway.flush().await.unwrap();
        write(0, 2, Flags::empty()).await;
        write(1, 2, Flags::empty()).await;
        write(1, 3, Flags::FUA).await;
        media.fail_nth_flush(0);
        assert_eq!(gateway.flush().await, Err(Status::Io));
        assert_eq!(gateway.flush().await, Ok(()));
        let read = gateway.read(Sector(0), Sectors(1)).await.unwrap();
        assert_eq!(read.as_slice(), [1; 512]);
        write(2, 4, Flags::empty()).await;
        gateway.flush().await.unwrap();
    });
    sim.power_cut();
    for (sector, byte) in [(0, 1), (1, 3), (2, 4)] {
        assert_eq!(media.peek(Sector(sector)), [byte; 512], "sector {sector}");
    }
}
