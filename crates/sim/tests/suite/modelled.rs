//! Devices with the timing of a model, in virtual time: when I/Os end, what reaches the device below, and that the
//! block contract still holds.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{
    Bio, BlockDevice, Buffer, Features, Flags, Gateway, Limits, Runtime, Sector, Sectors, Status,
};
use ashlar_engine::{EngineRuntime, OpenOptions, RamDevice, Reactor, open};
use ashlar_sim::model::{Model, NamedModel};
use ashlar_sim::{Media, Oracle, Rng, Sim, SimDisk, Stop, Value, Workload, modelled, seeds};
use futures_util::future::join_all;

const MS: u64 = 1_000_000;
const MIB: u64 = 2048;

fn model(text: &str) -> Model {
    text.parse::<NamedModel>().unwrap().model
}

fn ram(capacity: u64) -> Gateway {
    Gateway::new(Arc::new(RamDevice::new("ram", Sectors(capacity)).unwrap()))
}

/// `lower` with the model `text`, in a simulation.
fn over(sim: &Sim, lower: Gateway, text: &str) -> Gateway {
    let NamedModel { model, unreadable, .. } = text.parse().unwrap();
    Gateway::new(Arc::new(modelled(lower, model, unreadable, sim.runtime())))
}

/// `count` consecutive reads of 4 KiB, all submitted at once; returns when each ended.
async fn reads(disk: &Gateway, sim: &dyn Runtime, count: u64) -> Vec<u64> {
    let read = async |at: u64| {
        disk.read(Sector(at * 8), Sectors(8)).await.unwrap();
        sim.now_ns()
    };
    join_all((0..count).map(read)).await
}

#[test]
fn an_io_ends_when_the_model_says_if_the_device_is_faster() {
    let sim = Sim::new(1);
    let disk = over(&sim, ram(MIB), "custom:read=3ms,write=5ms");
    sim.block_on(async {
        disk.read(Sector(0), Sectors(8)).await.unwrap();
        assert_eq!(sim.now_ns(), 3 * MS);
        let mut data = Buffer::zeroed(4096);
        disk.write(Sector(0), &mut data, Flags::empty()).await.unwrap();
        assert_eq!(sim.now_ns(), 8 * MS);
    });
}

#[test]
fn an_io_ends_when_the_device_says_if_that_is_slower() {
    let time = |below: &str, text: &str| {
        let sim = Sim::new(1);
        let slow = model(below);
        let disk = SimDisk::with("d", Media::new(Sectors(MIB)), slow.limits(), slow);
        let disk = over(&sim, disk.gateway(), text);
        sim.block_on(disk.read(Sector(0), Sectors(8))).unwrap();
        sim.now_ns()
    };
    assert_eq!(time("custom:read=7ms", "custom:read=2ms"), 7 * MS);
    assert_eq!(time("custom:read=7ms", "custom:read=9ms"), 9 * MS);
    assert_eq!(time("custom:read=7ms", "custom"), 7 * MS);
}

#[test]
fn ios_beyond_a_cap_wait_for_their_turn_one_after_the_other() {
    let sim = Sim::new(1);
    let disk = over(&sim, ram(MIB), "custom:1000iops,burst=1");
    disk.disk().set_nomerges(2).unwrap();
    let ends = sim.block_on(reads(&disk, &*sim.runtime(), 100));
    assert_eq!(ends, (0..100).map(|n| n * MS).collect::<Vec<_>>());
}

#[test]
fn neighbours_that_merge_are_one_io_to_the_cap() {
    let sim = Sim::new(1);
    let disk = over(&sim, ram(MIB), "custom:1000iops,burst=1,unit=256K");
    let ends = sim.block_on(reads(&disk, &*sim.runtime(), 64));
    assert_eq!(ends, [0; 64]);
    let stat = disk.disk().stats().totals().read;
    assert_eq!((stat.ios, stat.merges, stat.sectors), (1, 63, 512));
}

#[test]
fn a_cap_counts_the_ios_of_all_queues_over_time() {
    let sim = Sim::new(1);
    let disk = over(&sim, ram(MIB), "custom:1000iops,burst=1,read=2ms,parallelism=64");
    let runtime = sim.runtime();
    let busy = async |lane: u64| {
        for n in 0..100 {
            disk.read(Sector((lane * 131 + n * 37) % 200 * 8), Sectors(8)).await.unwrap();
        }
    };
    sim.block_on(join_all((0..10).map(busy)));
    // A thousand I/Os, the last of which began in the thousandth millisecond.
    assert_eq!(runtime.now_ns(), 1001 * MS);
}

#[test]
fn the_device_below_gets_each_request_as_one_io() {
    for (nomerges, requests) in [(2, 16), (0, 1)] {
        let sim = Sim::new(1);
        let below = SimDisk::new("d", Sectors(MIB));
        let disk = over(&sim, below.gateway(), "gp2");
        disk.disk().set_nomerges(nomerges).unwrap();
        sim.block_on(reads(&disk, &*sim.runtime(), 16));
        let log = below.media().log();
        assert_eq!(log.len(), requests);
        assert!(log.iter().all(|command| command.bios == 1), "merged below: {log:?}");
        assert_eq!(log.iter().map(|command| command.sectors()).sum::<u64>(), 128);
    }
}

#[test]
fn settings_of_the_device_below_do_not_stand_in_the_way() {
    let sim = Sim::new(1);
    let limits = Limits { max_hw_sectors: Sectors(8192), ..Limits::default() };
    let below = SimDisk::with("d", Media::new(Sectors(4 * MIB)), limits, Model::nvme());
    let disk = over(&sim, below.gateway(), "nvme");
    disk.disk().set_max_sectors_kb(4096).unwrap();
    disk.disk().set_nr_requests(1000).unwrap();
    sim.block_on(disk.read(Sector(0), Sectors(8192))).unwrap();
    assert_eq!(below.media().log().len(), 1);
    assert_eq!(below.disk().nr_requests(), 65_536);
}

#[test]
fn a_bad_sector_fails_its_own_bio_and_not_its_neighbours() {
    let sim = Sim::new(1);
    let below = SimDisk::new("d", Sectors(MIB));
    below.media().fail_reads(20..21);
    let disk = over(&sim, below.gateway(), "gp2");
    let results = sim
        .block_on(async { join_all((0..8).map(|n| disk.read(Sector(n * 8), Sectors(8)))).await });
    let results: Vec<_> = results.into_iter().map(|result| result.map(drop)).collect();
    let expected: Vec<_> =
        (0..8).map(|n| if n == 2 { Err(Status::Medium) } else { Ok(()) }).collect();
    assert_eq!(results, expected);
}

#[test]
fn every_range_of_a_merged_discard_is_discarded() {
    let sim = Sim::new(1);
    let below = SimDisk::new("d", Sectors(MIB));
    let disk = over(&sim, below.gateway(), "nvme");
    let discards = [0, 64, 256].map(|at| disk.submit(Bio::discard(Sector(at), Sectors(8))));
    assert_eq!(sim.block_on(join_all(discards)), [Ok(()); 3]);
    assert_eq!(disk.disk().stats().totals().discard.merges, 2, "one request with three ranges");
    let mut ranges: Vec<_> = below.media().log().into_iter().flat_map(|c| c.ranges).collect();
    ranges.sort_by_key(|range| range.start);
    assert_eq!(ranges, [0..8, 64..72, 256..264]);
}

#[test]
fn a_model_tells_what_it_is_beside_the_limits_of_the_device() {
    let sim = Sim::new(1);
    let below = ram(MIB);
    let limits = *below.disk().limits();
    below.disk().set_read_only(true);
    let plain = over(&sim, below, "custom:read=1ms");
    assert_eq!((plain.disk().name(), plain.capacity()), ("ram", Sectors(MIB)));
    assert!(plain.disk().is_read_only());
    assert_eq!(*plain.disk().limits(), limits);
    let hdd = over(&sim, ram(MIB), "hdd");
    let more = Features::WRITE_CACHE | Features::FUA | Features::ROTATIONAL;
    // A disk that seeks writes its zeroes.
    let features = (limits.features - Features::FAST_ZERO) | more;
    assert_eq!(*hdd.disk().limits(), Limits { features, ..limits });
    sim.block_on(hdd.flush()).unwrap();
    assert!(sim.now_ns() >= 8 * MS, "the flush took its time");
    // A device below with a cache but without FUA stays so.
    let no_fua = Limits { features: Features::WRITE_CACHE, ..Limits::default() };
    let below = SimDisk::with("d", Media::new(Sectors(MIB)), no_fua, Model::nvme());
    let disk = over(&sim, below.gateway(), "nvme");
    assert_eq!(disk.disk().limits().features, Features::WRITE_CACHE);
}

#[test]
fn what_is_in_flight_when_the_runtime_ends_is_neither_lost_nor_done_twice() {
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let media = Media::new(Sectors(512));
        let oracle = Oracle::new(seed, Value::Zeroes);
        let workload = Workload { tasks: 6, ios: 25, max_len: 24, ..Workload::over(0..512) };
        for life in 0..3 {
            let sim = Sim::new(seed * 10 + life);
            let text = ["gp2:500iops", "nvme", "hdd", "custom"][rng.index(4)];
            let features =
                [Features::empty(), Features::WRITE_CACHE, Features::WRITE_CACHE | Features::FUA];
            let limits = Limits { features: features[rng.index(3)], ..Model::nvme().limits() };
            let below = SimDisk::with("d", media.clone(), limits, Model::sata_ssd());
            let disk = over(&sim, below.gateway(), text);
            disk.disk().set_nomerges(rng.below(3)).unwrap();
            disk.disk().set_nr_requests(4 + rng.below(8)).unwrap();
            let found = || format!("seed {seed}, life {life}, {text}");
            let stop = Stop::AfterSteps(rng.below(2500));
            let checked = sim.block_on_until(
                async {
                    workload.verify(&disk, &oracle).await?;
                    workload.run(&disk, &oracle, &mut rng).await?;
                    workload.verify(&disk, &oracle).await
                },
                stop,
            );
            assert!(checked.is_none_or(|result| result.is_ok()), "{}", found());
            sim.power_cut();
            oracle.power_cut();
        }
    }
}

#[test]
fn reads_of_each_unreadable_range_fail_and_others_do_not() {
    let sim = Sim::new(1);
    let disk = over(&sim, ram(MIB), "custom:unreadable=8K+4K,unreadable=64K+512");
    sim.block_on(async {
        for (at, len, expected) in [
            (0, 16, Ok(())),
            (16, 8, Err(Status::Medium)),
            (23, 1, Err(Status::Medium)),
            (24, 104, Ok(())),
            (120, 9, Err(Status::Medium)),
            (129, 8, Ok(())),
        ] {
            let read = disk.read(Sector(at), Sectors(len)).await;
            assert_eq!(read.map(drop), expected, "{len} sectors at {at}");
        }
    });
}

#[test]
fn a_dropped_future_and_a_dropped_device_end_in_peace() {
    let sim = Sim::new(1);
    let disk = over(&sim, ram(MIB), "custom:write=5ms");
    let mut data = Buffer::from_slice(&[7; 4096]);
    sim.block_on(async {
        drop(disk.submit(Bio::write_from(Sector(0), &mut data)));
    });
    drop(disk);
    sim.run_for(Duration::from_millis(10));
    assert_eq!(data.as_slice(), [7; 4096], "the buffer is free again");
}

#[test]
fn a_modelled_file_on_a_reactor_keeps_its_data_and_merges() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    Reactor::new(Default::default()).unwrap().block_on(async {
        let file = open(&path, &OpenOptions::default()).unwrap();
        let lower = Gateway::new(Arc::new(file));
        let slow = model("gp2:20000iops,latency=10us");
        let device = modelled(lower, slow, Vec::new(), Arc::new(EngineRuntime));
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let disk = Gateway::new(Arc::clone(&device));
        let mut pages: Vec<Buffer> = (0..64_u8).map(|n| Buffer::from_slice(&[n; 4096])).collect();
        let write = |(n, page): (usize, &mut Buffer)| {
            disk.submit(Bio::write_from(Sector(n as u64 * 8), page))
        };
        let written = join_all(pages.iter_mut().enumerate().map(write)).await;
        assert!(written.iter().all(Result::is_ok));
        disk.flush().await.unwrap();
        assert!(device.disk().stats().totals().write.merges > 0);
        let back = disk.read(Sector(0), Sectors(512)).await.unwrap();
        assert!(back.as_slice().chunks(4096).zip(0..64).all(|(page, n)| page == [n; 4096]));
        let zeroed = disk.submit(Bio::write_zeroes(Sector(8), Sectors(8))).await;
        assert_eq!(zeroed, Ok(()));
    });
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes[4096..8192].iter().all(|byte| *byte == 0) && bytes[8192] == 2);
}
