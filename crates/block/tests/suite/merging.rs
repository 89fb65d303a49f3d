//! The plug: bios that merge, bios that do not, and the moment of the flush.

use crate::common::{
    discard, end_all, end_one, held, holder, memory, poll, read, result, take, write,
};
use ashlar_block::{Bio, Features, Flags, Limits, Op, Sector, Sectors, Status, plug};
use ashlar_sim::{Media, Model, Sim, SimDisk};

fn limits() -> Limits {
    Limits {
        max_hw_discard: Sectors(1 << 20),
        max_write_zeroes: Sectors(1 << 20),
        features: Features::WRITE_CACHE | Features::FUA,
        ..Limits::default()
    }
}

/// What the driver gets when `bios` are submitted together.
fn requests(limits: Limits, nomerges: u64, bios: Vec<Bio>) -> Vec<(Op, u64, u64, usize)> {
    let (queue, gateway) = holder(limits);
    ashlar_block::BlockDevice::disk(&*queue).set_nomerges(nomerges).unwrap();
    let count = bios.len();
    let mut ios: Vec<_> = bios.into_iter().map(|bio| gateway.submit(bio)).collect();
    // Some I/Os start only when they are polled.
    assert!(ios.iter_mut().all(|io| poll(io).is_pending()));
    plug::flush_current();
    let mut all = Vec::new();
    loop {
        all.extend(held());
        let taken = take();
        if taken.is_empty() {
            break;
        }
        taken.into_iter().for_each(|rq| rq.complete(Ok(())));
    }
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
    assert_eq!(all.iter().map(|r| r.3).sum::<usize>(), count, "every bio in one request");
    all
}

#[test]
fn neighbours_merge_at_the_back_and_at_the_front() {
    let up = (0..16).map(|i| read(100 + i * 8, 8)).collect();
    assert_eq!(requests(limits(), 0, up), [(Op::Read, 100, 128, 16)]);
    let down = (0..16).rev().map(|i| read(100 + i * 8, 8)).collect();
    assert_eq!(requests(limits(), 0, down), [(Op::Read, 100, 128, 16)]);
}

#[test]
fn gaps_overlaps_and_other_operations_do_not_merge() {
    let gap = vec![read(0, 8), read(9, 8)];
    assert_eq!(requests(limits(), 0, gap).len(), 2);
    let overlap = vec![read(0, 8), read(7, 8)];
    assert_eq!(requests(limits(), 0, overlap).len(), 2);
    let same = vec![write(0, 8), write(0, 8)];
    assert_eq!(requests(limits(), 0, same).len(), 2);
    let mixed = vec![read(0, 8), write(8, 8)];
    assert_eq!(requests(limits(), 0, mixed).len(), 2);
    let zeroes = |at| Bio::write_zeroes(Sector(at), Sectors(8));
    let mixed = vec![zeroes(0), discard(8, 8), write(16, 8)];
    assert_eq!(requests(limits(), 0, mixed).len(), 3);
}

#[test]
fn flags_and_priorities_that_forbid_a_merge() {
    let with = |flags| vec![write(0, 8), write(8, 8).with_flags(flags)];
    for flags in [Flags::FUA, Flags::NOMERGE, Flags::NOWAIT, Flags::RAHEAD, Flags::GIVEN] {
        assert_eq!(requests(limits(), 0, with(flags)).len(), 2, "{flags:?}");
        let mut first = with(flags);
        first.reverse();
        assert_eq!(requests(limits(), 0, first).len(), 2, "{flags:?} first");
    }
    assert_eq!(requests(limits(), 0, with(Flags::SYNC)).len(), 1);
    let mut urgent = vec![write(0, 8), write(8, 8)];
    urgent[1].ioprio = 1 << 13;
    assert_eq!(requests(limits(), 0, urgent).len(), 2);
}

#[test]
fn discards_merge_as_ranges_where_the_device_takes_several() {
    let bios = |n: u64| (0..n).map(|i| discard(i * 100, 8)).collect::<Vec<_>>();
    let one = limits();
    assert_eq!(requests(one, 0, bios(3)).len(), 3);
    let several = Limits { max_discard_segments: 8, ..limits() };
    let got = requests(several, 0, bios(20));
    assert_eq!(got.iter().map(|r| r.3).collect::<Vec<_>>(), [8, 8, 4]);
    // The limit applies to the total length of all ranges.
    let small = Limits { max_hw_discard: Sectors(20), ..several };
    let got = requests(small, 0, bios(5));
    assert_eq!(got.iter().map(|r| r.3).collect::<Vec<_>>(), [2, 2, 1]);
    // On a device without several ranges, neighbours still merge, up to the limit.
    let row = (0..5).map(|i| discard(i * 8, 8)).collect();
    let got = requests(Limits { max_hw_discard: Sectors(20), ..one }, 0, row);
    assert_eq!(got.iter().map(|r| r.2).collect::<Vec<_>>(), [16, 16, 8]);
}

#[test]
fn nomerges_chooses_how_hard_the_queue_looks() {
    let streams = || (0..8).flat_map(|i| [read(i * 8, 8), read(10_000 + i * 8, 8)]).collect();
    let row = || (0..8).map(|i| read(i * 8, 8)).collect();
    assert_eq!(requests(limits(), 0, streams()).len(), 2);
    assert_eq!(requests(limits(), 1, streams()).len(), 16);
    assert_eq!(requests(limits(), 1, row()).len(), 1);
    assert_eq!(requests(limits(), 2, row()).len(), 8);
}

#[test]
fn merged_requests_keep_to_the_limits() {
    let row = |n: u64| (0..n).map(|i| read(i * 8, 8)).collect::<Vec<_>>();
    let lens =
        |limits, bios| requests(limits, 0, bios).iter().map(|r| (r.1, r.2)).collect::<Vec<_>>();
    let sectors = Limits { max_hw_sectors: Sectors(20), ..limits() };
    assert_eq!(lens(sectors, row(5)), [(0, 16), (16, 16), (32, 8)]);
    let segments = Limits { max_segments: 3, ..limits() };
    assert_eq!(lens(segments, row(5)), [(0, 24), (24, 16)]);
    let chunks = Limits { chunk_sectors: Sectors(16), ..limits() };
    assert_eq!(lens(chunks, row(5)), [(0, 16), (16, 16), (32, 8)]);
    let mut down = row(5);
    down.reverse();
    assert_eq!(lens(chunks, down), [(32, 8), (16, 16), (0, 16)]);
}

#[test]
fn what_is_larger_than_bios_merge_to_stays_whole() {
    let (queue, gateway) = holder(limits());
    let disk = ashlar_block::BlockDevice::disk(&*queue);
    for (max, lens) in [(64, &[64, 32, 200][..]), (0, &[96, 200]), (2560, &[96, 200])] {
        disk.set_max_merged(Sectors(max));
        let bios = (0..12).map(|i| read(i * 8, 8)).chain([read(1000, 200)]);
        let mut ios: Vec<_> = bios.map(|bio| gateway.submit(bio)).collect();
        plug::flush_current();
        assert_eq!(held().iter().map(|r| r.2).collect::<Vec<_>>(), lens, "{max}");
        end_all();
        assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
    }
    // It is not above the limit of a read or write.
    disk.set_max_sectors_kb(16).unwrap();
    disk.set_max_merged(Sectors(64));
    let mut ios: Vec<_> = (0..8).map(|i| gateway.submit(read(i * 8, 8))).collect();
    plug::flush_current();
    assert_eq!(held().iter().map(|r| r.2).collect::<Vec<_>>(), [32, 32]);
    end_all();
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
}

#[test]
fn bios_wait_on_the_plug_until_the_runtime_is_idle() {
    let (_, gateway) = holder(limits());
    let mut ios = [gateway.submit(read(0, 8)), gateway.submit(read(8, 8))];
    assert_eq!(held(), []);
    assert!(plug::flush_current());
    assert_eq!(held(), [(Op::Read, 0, 16, 2)]);
    assert!(!plug::flush_current());
    end_one(Ok(()));
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
}

#[test]
fn the_plug_is_flushed_at_32_requests() {
    let (_, gateway) = holder(Limits { max_segments: 2, ..limits() });
    // Pairs, so that a merge comes between any two requests and misses do not add up.
    let mut ios = Vec::new();
    for i in 0..=plug::MAX_PLUGGED as u64 {
        assert_eq!(held(), [], "{i}");
        ios.push(gateway.submit(read(i * 100, 8)));
        ios.push(gateway.submit(read(i * 100 + 8, 8)));
    }
    assert_eq!(held().len(), plug::MAX_PLUGGED);
    end_all();
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
}

#[test]
fn the_plug_is_flushed_when_its_last_request_is_large() {
    let (_, gateway) = holder(limits());
    let large = plug::FLUSH_BYTES / 512;
    let mut ios =
        vec![gateway.submit(read(0, large / 2)), gateway.submit(read(large / 2, large / 2))];
    assert_eq!(held(), []);
    // A bio that continues it still merges; the next request flushes it.
    ios.push(gateway.submit(read(large, 8)));
    assert_eq!(held(), []);
    ios.push(gateway.submit(read(100_000, 8)));
    assert_eq!(held(), [(Op::Read, 0, large + 8, 3)]);
    end_all();
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
}

#[test]
fn a_large_read_or_write_joins_no_request() {
    let large = plug::FLUSH_BYTES / 512;
    for io in [read, write] {
        let three = vec![io(0, 8), io(8, large), io(8 + large, large)];
        assert_eq!(requests(limits(), 0, three).len(), 3);
        let smaller = vec![io(0, 8), io(8, large - 8), io(large, large - 8)];
        assert_eq!(requests(limits(), 0, smaller).len(), 1);
        assert_eq!(requests(limits(), 0, vec![io(0, large), io(large, 8)]).len(), 1);
    }
    let both = vec![discard(0, large), discard(large, large)];
    assert_eq!(requests(limits(), 0, both).len(), 1);
}

#[test]
fn the_plug_is_flushed_when_nothing_merges() {
    let (_, gateway) = holder(limits());
    let mut ios = Vec::new();
    for i in 0..plug::MAX_MISSES as u64 {
        assert_eq!(held(), []);
        ios.push(gateway.submit(read(i * 1000, 8)));
    }
    assert_eq!(held().len(), plug::MAX_MISSES);
    end_all();
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
}

#[test]
fn a_flush_does_not_wait_on_the_plug() {
    let (_, gateway) = holder(limits());
    let mut ios = [gateway.submit(write(0, 8)), gateway.submit(Bio::flush())];
    assert_eq!(held(), [(Op::Flush, 0, 0, 1)]);
    end_all();
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
}

#[test]
fn no_more_than_nr_requests_are_with_the_driver() {
    let (queue, gateway) = holder(limits());
    ashlar_block::BlockDevice::disk(&*queue).set_nr_requests(6).unwrap();
    let mut ios: Vec<_> = (0..100).map(|i| gateway.submit(read(i * 1000, 8))).collect();
    plug::flush_current();
    let mut seen = 0;
    while !held().is_empty() {
        assert!(held().len() <= 6);
        assert!(held().len() == 6 || seen + held().len() == 100, "the device is kept busy");
        end_one(Ok(()));
        seen += 1;
    }
    assert_eq!(seen, 100);
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
}

#[test]
fn a_full_queue_says_again_to_those_who_will_not_wait() {
    let (queue, gateway) = holder(limits());
    ashlar_block::BlockDevice::disk(&*queue).set_nr_requests(4).unwrap();
    let mut ios: Vec<_> = (0..4).map(|i| gateway.submit(read(i * 1000, 8))).collect();
    plug::flush_current();
    let mut refused = gateway.submit(read(9000, 8).with_flags(Flags::NOWAIT));
    assert_eq!(result(&mut refused), Err(Status::Again));
    end_one(Ok(()));
    let mut taken = gateway.submit(read(9000, 8).with_flags(Flags::NOWAIT));
    end_all();
    assert_eq!(result(&mut taken), Ok(()));
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
}

#[test]
fn bios_join_requests_that_wait_for_the_driver() {
    let (queue, gateway) = holder(limits());
    ashlar_block::BlockDevice::disk(&*queue).set_nr_requests(4).unwrap();
    let mut ios: Vec<_> = (0..5).map(|i| gateway.submit(read(i * 1000, 8))).collect();
    plug::flush_current();
    ios.push(gateway.submit(read(4008, 8)));
    end_one(Ok(()));
    assert_eq!(held().last(), Some(&(Op::Read, 4000, 16, 2)));
    end_all();
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
}

#[test]
fn a_failed_request_is_tried_again_bio_by_bio() {
    let (_, gateway) = holder(limits());
    let mut ios: Vec<_> = (0..4).map(|i| gateway.submit(read(i * 8, 8))).collect();
    plug::flush_current();
    let places = memory().concat();
    end_one(Err(Status::Medium));
    let each: Vec<_> = (0..4).map(|i| (Op::Read, i * 8, 8, 1)).collect();
    assert_eq!(held(), each);
    // Each in its own memory.
    assert_eq!((memory().len(), memory().concat()), (4, places));
    for i in 0..4 {
        end_one(if i == 2 { Err(Status::Medium) } else { Ok(()) });
    }
    let results: Vec<_> = ios.iter_mut().map(result).collect();
    assert_eq!(results, [Ok(()), Ok(()), Err(Status::Medium), Ok(())]);
}

#[test]
fn what_no_retry_can_help_is_not_tried_again() {
    let (_, gateway) = holder(limits());
    let mut ios: Vec<_> = (0..4).map(|i| gateway.submit(discard(i * 8, 8))).collect();
    plug::flush_current();
    end_one(Err(Status::NotSupported));
    assert_eq!(held(), []);
    assert!(ios.iter_mut().all(|io| result(io) == Err(Status::NotSupported)));
}

#[test]
fn a_bad_sector_fails_only_the_bio_it_lies_in() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        let disk = SimDisk::new("d", Sectors(1 << 16));
        let gateway = disk.gateway();
        disk.media().fail_reads(seed * 8 + 3..seed * 8 + 4);
        let ios: Vec<_> = (0..32).map(|i| gateway.submit(read(i * 8, 8))).collect();
        let results = sim.block_on(futures_util::future::join_all(ios));
        for (i, result) in (0..).zip(results) {
            assert_eq!(result, if i == seed { Err(Status::Medium) } else { Ok(()) });
        }
        assert_eq!(disk.media().log()[0].bios, 32);
    }
}

#[test]
fn a_request_that_the_driver_drops_fails() {
    let (_, gateway) = holder(limits());
    let mut io = gateway.submit(read(0, 8));
    plug::flush_current();
    drop(take());
    assert_eq!(result(&mut io), Err(Status::Io));
}

#[test]
fn a_thread_can_end_with_bios_on_its_plug() {
    let ended = std::thread::spawn(|| {
        let (_, gateway) = holder(limits());
        drop(gateway.submit(read(0, 8)));
    });
    assert!(ended.join().is_ok());
}

#[test]
fn merging_pays_where_ios_are_counted() {
    let time = |nomerges| {
        let sim = Sim::new(1);
        let model = Model::cloud_gp2(1000);
        let media = Media::new(Sectors(1 << 20));
        let disk = SimDisk::with("d", media, model.limits(), model);
        disk.disk().set_nomerges(nomerges).unwrap();
        let gateway = disk.gateway();
        sim.block_on(async {
            for round in 0..50 {
                let ios: Vec<_> =
                    (0..64).map(|i| gateway.submit(read((round * 64 + i) * 8, 8))).collect();
                for result in futures_util::future::join_all(ios).await {
                    assert_eq!(result, Ok(()));
                }
            }
        });
        sim.now_ns()
    };
    let (merged, single) = (time(0), time(2));
    assert!(single > 20 * merged, "{single} {merged}");
}

#[test]
fn one_flush_sends_off_the_plugs_of_all_queues() {
    let (_one, first) = holder(limits());
    let (_two, second) = holder(limits());
    let mut ios = Vec::new();
    for i in 0..3 {
        ios.extend([first.submit(read(i * 8, 8)), second.submit(read(i * 8, 8))]);
    }
    assert_eq!(held(), []);
    plug::flush_current();
    assert_eq!(held(), [(Op::Read, 0, 24, 3), (Op::Read, 0, 24, 3)]);
    end_all();
    assert!(ios.iter_mut().all(|io| result(io) == Ok(())));
}

#[test]
fn requests_that_wait_are_issued_when_others_fail_too() {
    let (queue, gateway) = holder(limits());
    ashlar_block::BlockDevice::disk(&*queue).set_nr_requests(4).unwrap();
    let mut ios: Vec<_> = (0..20).map(|i| gateway.submit(read(i * 1000, 8))).collect();
    plug::flush_current();
    for i in 0..20 {
        assert!(held().len() <= 4);
        end_one(if i % 2 == 0 { Err(Status::Offline) } else { Ok(()) });
    }
    for (i, io) in (0..).zip(&mut ios) {
        assert_eq!(result(io), if i % 2 == 0 { Err(Status::Offline) } else { Ok(()) });
    }
}
