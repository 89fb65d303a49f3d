//! Devices whose tables change while they are in use.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{device, disks, disks_with, gateway, give_up, media, stamped, table, write};
use ashlar_block::{
    Bio, Buffer, Features, Flags, Gateway, IoFuture, Limits, Op, Runtime, Sector, Sectors,
    Segments, Status,
};
use ashlar_dm::{Device, LoadError, Table, Target};
use ashlar_sim::{Oracle, Sim, SimRuntime, Stop, Value, Workload, seeds};

const DISK: u64 = 4096;

/// Different tables with the same mapping of the first 768 sectors.
const SAME: [&str; 4] = [
    "0 768 linear d0 16",
    "0 100 linear d0 16\n100 668 linear d0 116",
    "0 768 striped 1 32 d0 16\n768 64 zero",
    "0 256 striped 1 8 d0 16\n256 511 linear d0 272\n767 1 linear d0 783\n768 8 linear d1 0",
];

#[test]
fn nothing_is_lost_or_fails_while_tables_come_and_go() {
    let mut held = 0;
    for seed in seeds(40) {
        let (sim, media) = (Sim::new(seed), media(2, DISK));
        let mut rng = sim.rng();
        let oracle = Oracle::new(seed, Value::Zeroes);
        sim.block_on(async {
            let disks = disks(&media);
            let device = device(&sim, &disks, SAME[0]).await;
            let volume = gateway(&device);
            let work = Workload::over(0..768);
            let done = Rc::new(Cell::new(false));
            let work = {
                let (done, volume, oracle) = (done.clone(), volume.clone(), oracle.clone());
                let mut rng = rng.fork();
                sim.start(async move {
                    work.run(&volume, &oracle, &mut rng).await.expect("what was written");
                    work.verify(&volume, &oracle).await.expect("what was written");
                    done.set(true);
                })
            };
            while !done.get() {
                SimRuntime.sleep(Duration::from_micros(rng.below(200))).await;
                if rng.chance(1, 2) {
                    let text = SAME[rng.index(SAME.len())];
                    let table = table(&sim, &disks, text).await.expect("a table");
                    device.load(table).await.expect("it fits");
                }
                if rng.chance(2, 3) {
                    device.suspend(rng.chance(1, 2)).await.expect("it suspends");
                    let log: Vec<_> = media.iter().map(|medium| medium.log().len()).collect();
                    SimRuntime.sleep(Duration::from_micros(rng.below(300))).await;
                    let after: Vec<_> = media.iter().map(|medium| medium.log().len()).collect();
                    assert_eq!(log, after, "I/O of a suspended device");
                    held += device.held();
                }
                device.resume().await.expect("it resumes");
            }
            work.await;
            assert_eq!(device.held(), 0);
        });
    }
    assert!(held > 100, "{held} I/Os were held: the test tests nothing");
}

#[test]
fn a_flush_reaches_every_device_and_what_it_covered_survives_a_power_cut() {
    let text = "0 256 linear d0 0\n256 256 striped 2 8 d1 0 d2 0\n512 256 delay d3 0 1";
    for seed in seeds(40) {
        let (sim, media) = (Sim::new(seed), media(4, DISK));
        let oracle = Oracle::new(seed, Value::Zeroes);
        let work = Workload::over(0..768);
        let mut rng = sim.rng();
        let steps = rng.below(4000);
        let cut = async {
            let device = device(&sim, &disks(&media), text).await;
            let volume = gateway(&device);
            volume.flush().await.expect("a flush");
            for medium in &media {
                assert_eq!(medium.log().iter().filter(|c| c.op == Op::Flush).count(), 1);
            }
            loop {
                work.run(&volume, &oracle, &mut rng).await.expect("what was written");
                device.suspend(true).await.expect("it suspends");
                device.resume().await.expect("it resumes");
            }
        };
        let never: Option<()> = sim.block_on_until(cut, Stop::AfterSteps(steps));
        assert!(never.is_none());
        sim.power_cut();
        oracle.power_cut();
        let sim = Sim::new(seed + 1_000_000);
        sim.block_on(async {
            let volume = gateway(&device(&sim, &disks(&media), text).await);
            work.verify(&volume, &oracle).await.expect("what was flushed");
        });
    }
}

#[test]
fn a_suspension_with_a_flush_makes_durable_what_was_acknowledged() {
    for flush in [false, true] {
        let (sim, media) = (Sim::new(1), media(1, DISK));
        sim.block_on(async {
            let device = device(&sim, &disks(&media), "0 64 linear d0 0").await;
            write(&gateway(&device), 0, 8, 1, Flags::empty()).await;
            device.suspend(flush).await.expect("it suspends");
        });
        let durable = media[0].peek_durable(Sector(0)) == stamped(0, 1, 1)[..];
        assert_eq!(durable, flush);
    }
}

#[test]
fn a_flush_that_fails_leaves_the_device_active() {
    let (sim, media) = (Sim::new(1), media(1, DISK));
    sim.block_on(async {
        let device = device(&sim, &disks(&media), "0 64 linear d0 0").await;
        media[0].fail_nth_flush(0);
        assert_eq!(device.suspend(true).await, Err(Status::Io));
        assert!(!device.is_suspended().await);
        write(&gateway(&device), 0, 8, 1, Flags::empty()).await;
        device.suspend(true).await.expect("it suspends");
        assert!(device.is_suspended().await);
        device.suspend(true).await.expect("it is");
        device.resume().await.expect("it resumes");
        device.resume().await.expect("it is");
    });
}

#[test]
fn the_capacity_follows_the_table_and_held_io_beyond_the_end_fails() {
    let (sim, media) = (Sim::new(1), media(1, DISK));
    sim.block_on(async {
        let disks = disks(&media);
        let device = device(&sim, &disks, "0 64 linear d0 0").await;
        let volume = gateway(&device);
        assert!(!device.clear().await);
        device.load(table(&sim, &disks, "0 128 linear d0 0").await.unwrap()).await.unwrap();
        assert_eq!((volume.capacity(), device.table()), (Sectors(64), "0 64 linear d0 0\n".into()));
        assert!(device.clear().await);
        device.resume().await.unwrap();
        assert_eq!(volume.capacity(), Sectors(64));
        device.load(table(&sim, &disks, "0 128 linear d0 0").await.unwrap()).await.unwrap();
        // Without a suspension first.
        device.resume().await.unwrap();
        assert_eq!((volume.capacity(), device.clear().await), (Sectors(128), false));
        write(&volume, 120, 8, 1, Flags::empty()).await;

        device.suspend(true).await.unwrap();
        let late = {
            let volume = volume.clone();
            sim.start(async move { volume.read(Sector(120), Sectors(8)).await.map(drop) })
        };
        let good = {
            let volume = volume.clone();
            sim.start(async move { volume.read(Sector(0), Sectors(8)).await.map(drop) })
        };
        SimRuntime.sleep(Duration::from_millis(1)).await;
        assert_eq!(device.held(), 2);
        device.load(table(&sim, &disks, "0 64 linear d0 0").await.unwrap()).await.unwrap();
        device.resume().await.unwrap();
        assert_eq!((late.await, good.await), (Err(Status::Io), Ok(())));
        assert_eq!(volume.capacity(), Sectors(64));
    });
}

#[test]
fn who_must_not_wait_is_told_so_while_the_device_is_suspended() {
    let (sim, media) = (Sim::new(1), media(1, DISK));
    sim.block_on(async {
        let device = device(&sim, &disks(&media), "0 64 linear d0 0").await;
        let volume = gateway(&device);
        device.suspend(true).await.unwrap();
        let mut buffer = Buffer::alloc(4096);
        for (flag, want) in [(Flags::NOWAIT, Status::Again), (Flags::RAHEAD, Status::Io)] {
            let read = Bio::read_into(Sector(0), &mut buffer).with_flags(flag);
            assert_eq!(volume.submit(read).await, Err(want));
        }
        device.resume().await.unwrap();
        let read = Bio::read_into(Sector(0), &mut buffer).with_flags(Flags::NOWAIT);
        volume.submit(read).await.expect("a read");
    });
}

#[test]
fn a_write_whose_future_is_dropped_is_waited_for_by_a_suspension() {
    let (sim, media) = (Sim::new(1), media(1, DISK));
    sim.block_on(async {
        let device = device(&sim, &disks(&media), "0 64 delay d0 0 50").await;
        let volume = gateway(&device);
        let mut data = Buffer::from_slice(&stamped(0, 8, 1));
        let segments: Segments = [data.whole()].into();
        assert!(!give_up(volume.submit(Bio::write(Sector(0), segments))).await);
        device.suspend(false).await.unwrap();
        assert_eq!(media[0].peek_range(Sector(0), Sectors(8)), stamped(0, 8, 1));
    });
}

#[test]
fn a_suspension_whose_future_is_dropped_comes_to_its_end() {
    let (sim, media) = (Sim::new(1), media(1, DISK));
    sim.block_on(async {
        let device = device(&sim, &disks(&media), "0 64 delay d0 0 50").await;
        let volume = gateway(&device);
        let io = sim.start(async move { volume.read(Sector(0), Sectors(8)).await.map(drop) });
        SimRuntime.sleep(Duration::from_millis(1)).await;
        assert!(!give_up(device.suspend(true)).await);
        io.await.expect("a read");
        assert!(device.is_suspended().await);
        device.resume().await.expect("it resumes");
        gateway(&device).read(Sector(0), Sectors(8)).await.expect("a read");
    });
}

#[test]
fn a_table_with_other_blocks_is_refused_and_one_with_a_cache_is_flushed() {
    let (sim, media) = (Sim::new(1), media(3, DISK));
    sim.block_on(async {
        let disks = disks_with(&media, |index, limits| match index {
            0 => Limits { features: limits.features - Features::WRITE_CACHE, ..limits },
            1 => Limits { logical_block_bytes: 4096, ..limits },
            _ => limits,
        });
        let device = device(&sim, &disks, "0 64 linear d0 0").await;
        let volume = gateway(&device);
        let other = table(&sim, &disks, "0 64 linear d1 0").await.unwrap();
        let refused = device.load(other).await.expect_err("other blocks");
        assert!(matches!(refused, LoadError::BlockSize { now: 512, wanted: 4096, .. }));
        device.load(table(&sim, &disks, "0 64 linear d2 0").await.unwrap()).await.unwrap();
        device.resume().await.unwrap();
        write(&volume, 0, 8, 1, Flags::empty()).await;
        volume.flush().await.unwrap();
        assert_eq!(media[2].peek_durable(Sector(7)), stamped(7, 1, 1)[..]);
    });
}

#[test]
fn discards_are_not_supported_while_the_table_breaks_what_was_said_of_them() {
    let (sim, media) = (Sim::new(1), media(3, DISK));
    sim.block_on(async {
        let disks = disks_with(&media, |index, limits| match index {
            0 => Limits { features: limits.features | Features::DISCARD_ZEROES, ..limits },
            1 => Limits { features: limits.features - Features::DISCARD_ZEROES, ..limits },
            _ => Limits { max_hw_discard: Sectors::ZERO, ..limits },
        });
        let device = device(&sim, &disks, "0 64 linear d0 0").await;
        let volume = gateway(&device);
        assert!(volume.disk().limits().features.contains(Features::DISCARD_ZEROES));
        let discard = async || volume.submit(Bio::discard(Sector(0), Sectors(8))).await;
        assert_eq!(discard().await, Ok(()));
        for (name, want) in [("d1", false), ("d2", false), ("d0", true)] {
            let text = format!("0 64 linear {name} 0");
            device.load(table(&sim, &disks, &text).await.unwrap()).await.unwrap();
            device.resume().await.unwrap();
            let want = if want { Ok(()) } else { Err(Status::NotSupported) };
            assert_eq!(discard().await, want, "{name}");
        }
    });
}

#[test]
fn the_limits_are_those_of_the_live_table_and_held_io_may_exceed_them() {
    let (sim, media) = (Sim::new(1), media(2, DISK));
    sim.block_on(async {
        let disks = disks_with(&media, |index, limits| match index {
            0 => limits,
            _ => Limits { max_hw_sectors: Sectors(16), max_hw_discard: Sectors(8), ..limits },
        });
        let device = device(&sim, &disks, "0 256 linear d0 0").await;
        let volume = gateway(&device);
        let first = *volume.disk().limits();
        volume.disk().set_max_sectors_kb(64).unwrap();
        device.suspend(true).await.unwrap();
        let mut data = Buffer::from_slice(&stamped(0, 256, 1));
        let long = Bio::write_from(Sector(0), &mut data);
        let (held, long) = (volume.clone(), sim.start(async move { volume.submit(long).await }));
        SimRuntime.sleep(Duration::from_millis(1)).await;
        device.load(table(&sim, &disks, "0 256 linear d1 0").await.unwrap()).await.unwrap();
        assert_eq!(*held.disk().limits(), first, "the table is not live yet");
        device.resume().await.unwrap();
        assert_eq!(long.await, Ok(()));
        held.flush().await.unwrap();
        assert_eq!(media[1].peek_durable(Sector(255)), stamped(255, 1, 1)[..]);
        let disk = held.disk();
        assert_eq!((disk.limits().max_hw_sectors, disk.max_sectors()), (Sectors(16), Sectors(16)));
        assert_eq!(disk.max_discard(), Sectors(8));
        device.load(table(&sim, &disks, "0 256 linear d0 0").await.unwrap()).await.unwrap();
        device.resume().await.unwrap();
        assert_eq!((*disk.limits(), disk.max_sectors()), (first, Sectors(128)));
    });
}

/// A target that shows by its reference whether it still exists.
struct CountedTarget(Arc<()>);

impl Target for CountedTarget {
    fn type_name(&self) -> &'static str {
        "held"
    }

    fn arguments(&self) -> String {
        Arc::strong_count(&self.0).to_string()
    }

    fn iterate_devices(&self, _seen: &mut dyn FnMut(&Gateway)) {}

    fn stack_limits(&self, _limits: &mut Limits) {}

    fn submit(&self, _bio: Bio) -> IoFuture<'_> {
        IoFuture::ready(Ok(()))
    }
}

#[test]
fn a_table_that_was_replaced_is_gone() {
    let sim = Sim::new(1);
    sim.block_on(async {
        let alive: [Arc<()>; 3] = Default::default();
        let table = |n: usize| {
            let target: Box<dyn Target> = Box::new(CountedTarget(alive[n].clone()));
            Table::of(vec![(Sectors(8), target)]).unwrap()
        };
        let device = Device::start("dm-0", table(0), sim.runtime()).await.unwrap();
        let volume = gateway(&device);
        volume.read(Sector(0), Sectors(8)).await.unwrap();
        device.load(table(1)).await.unwrap();
        device.load(table(2)).await.unwrap();
        let counts = || alive.each_ref().map(Arc::strong_count);
        assert_eq!(counts(), [2, 1, 2]);
        device.resume().await.unwrap();
        volume.flush().await.unwrap();
        assert_eq!(counts(), [1, 1, 2]);
        drop((device, volume));
        assert_eq!(counts(), [1, 1, 1]);
    });
}
