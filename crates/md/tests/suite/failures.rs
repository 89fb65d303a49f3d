//! Arrays whose members fail: one by one, together, halfway, at bad moments.

use crate::common::{
    DATA, SUPERBLOCK, Shape, all_clean, candidates, differing, disks, gateway, make, media,
    stamped, start, write,
};
use ashlar_block::{Bio, Buffer, Flags, Op, Sector, Sectors, Status};
use ashlar_md::ondisk::{Level, Role};
use ashlar_md::{ArrayState, Options, probe};
use ashlar_sim::{Sim, Stop};
use futures_util::FutureExt;
use futures_util::future::{join, join_all, join3};
use std::time::Duration;

const DISK: Sectors = Sectors(4096);
const RUN: Options = Options { run: true, read_only: false, force: false };
const READ_ONLY: Options = Options { run: true, read_only: true, force: false };

fn raid1(members: usize) -> Shape {
    Shape::new(Level::Raid1, None, 0, members)
}

fn raid10(layout: u32, members: usize) -> Shape {
    Shape::new(Level::Raid10, Some(layout), 4, members)
}

#[test]
fn no_write_is_acknowledged_while_a_failure_cannot_be_recorded() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        make(&raid1(2), &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        let volume = gateway(&array);
        write(&volume, 0, 64, 1).await.unwrap();
        media[0].fail_writes(SUPERBLOCK);
        media[1].fail_writes(DATA..DISK.0);
        let two = join(write(&volume, 0, 8, 2), write(&volume, 32, 8, 2)).await;
        assert!(two.0.is_err() && two.1.is_err(), "{two:?}");
        assert!(volume.flush().await.is_err());
        assert!(write(&volume, 0, 8, 3).await.is_err());
        // Once the superblock can be written, so can the array.
        media[0].heal();
        assert_eq!(write(&volume, 0, 8, 4).await, Ok(()));
        let survivor = probe(&disks[0].gateway()).await.unwrap().unwrap();
        assert_eq!(survivor.roles[1], Role::Faulty);
        // A disk that refuses durable writes may have lost others.
        volume.flush().await.unwrap_err();
        array.stop().await.unwrap();
    });
}

#[test]
fn copies_are_never_called_clean_after_a_write_that_failed_on_all_of_them() {
    let layouts = [(0x102, 4), (0x102, 3), (0x201, 3), (0x1_0201, 4), (0x103, 4), (0x301, 3)];
    let raid10s = layouts.map(|(layout, members)| raid10(layout, members));
    for shape in [raid1(2), raid1(3)].into_iter().chain(raid10s) {
        let media = media(shape.members, DISK);
        let sim = Sim::new(2);
        sim.block_on(async {
            let disks = disks(&media);
            make(&shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            write(&volume, 0, 256, 1).await.unwrap();
            // Each member takes a different part of the write.
            for (copy, taken) in array.personality().map(Sector(0)).iter().zip(1..) {
                let bad = DATA + copy.sector.0 + taken;
                media[copy.disk].fail_writes(bad..bad + 1);
            }
            let len = 8;
            assert!(write(&volume, 0, len, 2).await.is_err(), "{shape:?}");
            for medium in &media {
                medium.heal();
            }
            array.stop().await.unwrap();
            let clean = candidates(&disks).await.iter().any(|c| c.sb.is_clean());
            assert_eq!(!array.is_unsynced(), clean, "{shape:?}");
            if clean {
                assert!(differing(&array, &media, len).await.is_empty(), "{shape:?}");
            }
        });
    }
}

#[test]
fn the_last_copy_stays_and_an_array_that_it_made_differ_is_not_called_clean() {
    // near=2 on three members: chunk 0 on 0 and 1, chunk 1 on 2 and 0, chunk 2 on 1 and 2.
    let shape = raid10(0x102, 3);
    let media = media(3, DISK);
    let sim = Sim::new(3);
    sim.block_on(async {
        let disks = disks(&media);
        make(&shape, &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        let volume = gateway(&array);
        write(&volume, 0, 64, 1).await.unwrap();
        media[1].kill();
        write(&volume, 0, 64, 2).await.unwrap();
        assert_eq!(array.degraded(), 1);
        media[0].fail_writes(DATA..DISK.0);
        // Chunk 1: member 2 takes it; member 0 does not, and must not fail.
        assert!(write(&volume, 8, 8, 3).await.is_err());
        assert_eq!(array.degraded(), 1, "the last copy of chunk 0 was failed");
        let first = volume.read(Sector(8), Sectors(8)).await.unwrap();
        for _ in 0..20 {
            let again =
                join(volume.read(Sector(8), Sectors(8)), volume.read(Sector(8), Sectors(4)));
            let (again, part) = again.await;
            assert!(again.unwrap().as_slice() == first.as_slice());
            assert!(part.unwrap().as_slice() == &first.as_slice()[..4 * 512]);
        }
        sim.runtime().sleep(Duration::from_secs(2)).await;
        assert!(!all_clean(&disks[2..]).await, "copies differ, and it is called clean");
        array.stop().await.unwrap();
        assert!(!all_clean(&disks[2..]).await);
    });
}

#[test]
fn a_failed_flush_of_a_last_copy_keeps_the_array_from_being_clean() {
    let shape = raid10(0x102, 4);
    let media = media(4, DISK);
    let sim = Sim::new(4);
    sim.block_on(async {
        let disks = disks(&media);
        make(&shape, &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        let volume = gateway(&array);
        write(&volume, 0, 64, 1).await.unwrap();
        media[1].kill();
        write(&volume, 0, 64, 2).await.unwrap();
        // Member 0 has the last copy of its pair, member 2 does not.
        media[0].drop_support(Op::Flush);
        media[2].drop_support(Op::Flush);
        assert!(array.stop().await.is_err());
        assert!(!candidates(&disks[..1]).await[0].sb.is_clean());
        assert!(!candidates(&disks[3..]).await[0].sb.is_clean());
    });
}

#[test]
fn a_member_that_cannot_be_flushed_fails_before_the_flush_is_acknowledged() {
    for shape in [raid1(2), raid1(3), raid10(0x102, 4), raid10(0x201, 3)] {
        let media = media(shape.members, DISK);
        let sim = Sim::new(5);
        sim.block_on(async {
            let disks = disks(&media);
            make(&shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            write(&volume, 0, 64, 1).await.unwrap();
            media[1].drop_support(Op::Flush);
            volume.flush().await.unwrap();
            let survivor = probe(&disks[0].gateway()).await.unwrap().unwrap();
            assert_eq!(survivor.roles[1], Role::Faulty, "{shape:?}");
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn two_members_may_fail_at_once_and_as_many_stay_as_all_data_needs() {
    for shape in [raid1(3), raid10(0x102, 4), raid10(0x201, 3), raid10(0x301, 3)] {
        for pair in [(0, 1), (0, 2), (1, 2)] {
            let media = media(shape.members, DISK);
            let sim = Sim::new(6);
            sim.block_on(async {
                let disks = disks(&media);
                make(&shape, &disks).await;
                let array = start(&sim, &disks, &Options::default()).await.unwrap();
                let volume = gateway(&array);
                write(&volume, 0, 96, 1).await.unwrap();
                volume.flush().await.unwrap();
                media[pair.0].fail_writes(0..DISK.0);
                media[pair.1].fail_writes(0..DISK.0);
                let rest = (0..shape.members).filter(|s| *s != pair.0 && *s != pair.1);
                let rest: Vec<usize> = rest.collect();
                let readable = array.personality().is_readable_with(|slot| rest.contains(&slot));
                let writes = (0..12).map(|chunk| write(&volume, chunk * 8, 8, 2));
                let results = join_all(writes).await;
                assert_eq!(results.iter().all(Result::is_ok), readable, "{shape:?} {pair:?}");
                // In either case everything can be read.
                let got = volume.read(Sector(0), Sectors(96)).await.unwrap();
                for (sector, bytes) in (0..).zip(got.as_slice().chunks(512)) {
                    let ok = results[sector as usize / 8].is_ok();
                    let new = bytes == stamped(sector, 1, 2);
                    assert!(new || !ok && bytes == stamped(sector, 1, 1), "{shape:?} {sector}");
                }
            });
        }
    }
}

#[test]
fn a_crash_while_a_failure_is_recorded_leaves_an_array_that_assembles() {
    for shape in [raid1(2), raid1(4), raid10(0x102, 4), raid10(0x201, 4)] {
        for step in 0..60 {
            let media = media(shape.members, DISK);
            let sim = Sim::new(7);
            let array = sim.block_on(async {
                let disks = disks(&media);
                make(&shape, &disks).await;
                let array = start(&sim, &disks, &Options::default()).await.unwrap();
                write(&gateway(&array), 0, 64, 1).await.unwrap();
                gateway(&array).flush().await.unwrap();
                array
            });
            media[1].fail_writes(DATA..DISK.0);
            let acknowledged = {
                let volume = gateway(&array);
                let work = write(&volume, 0, 64, 2);
                sim.block_on_until(work, Stop::AfterSteps(step)).is_some()
            };
            drop(array);
            sim.power_cut();
            media[1].heal();
            let sim = Sim::new(8);
            sim.block_on(async {
                let disks = disks(&media);
                let array = start(&sim, &disks, &READ_ONLY).await;
                let array = array.unwrap_or_else(|e| panic!("{shape:?} step {step}: {e}"));
                assert!(array.degraded() <= 1, "{shape:?} step {step}");
                assert!(!acknowledged || array.degraded() == 1, "{shape:?} step {step}");
                gateway(&array).read(Sector(0), Sectors(64)).await.unwrap();
            });
        }
    }
}

#[test]
fn superblocks_that_cannot_be_written_do_not_make_their_member_stale() {
    let shape = raid10(0x102, 4);
    let media = media(4, DISK);
    let sim = Sim::new(9);
    sim.block_on(async {
        let disks = disks(&media);
        make(&shape, &disks).await;
        let three = [&disks[0], &disks[2], &disks[3]];
        let array = start(&sim, &three, &RUN).await.unwrap();
        // The last copy of its pair.
        media[0].fail_writes(SUPERBLOCK);
        for _ in 0..6 {
            assert!(write(&gateway(&array), 0, 8, 1).await.is_err());
        }
        let nothing = media[0].peek(Sector(DATA));
        assert!(nothing == [0; 512], "written before the superblock said so");
        drop(array);
    });
    sim.kill();
    media[0].heal();
    let sim = Sim::new(10);
    sim.block_on(async {
        let disks = disks(&media);
        let three = [&disks[0], &disks[2], &disks[3]];
        let array = start(&sim, &three, &READ_ONLY).await.unwrap();
        assert_eq!(array.degraded(), 1);
    });
}

#[test]
fn a_member_that_cannot_take_its_superblock_fails_and_the_others_say_so() {
    for shape in [raid1(2), raid1(3), raid10(0x102, 4)] {
        let media = media(shape.members, DISK);
        let sim = Sim::new(11);
        sim.block_on(async {
            let disks = disks(&media);
            make(&shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            media[1].fail_writes(SUPERBLOCK);
            write(&gateway(&array), 0, 8, 1).await.unwrap();
            assert_eq!(array.degraded(), 1);
            array.stop().await.unwrap();
            media[1].heal();
            for other in (0..shape.members).filter(|slot| *slot != 1) {
                let sb = probe(&disks[other].gateway()).await.unwrap().unwrap();
                assert!(sb.roles[1] == Role::Faulty && sb.is_clean(), "{shape:?}");
            }
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            assert_eq!(array.degraded(), 1, "{shape:?}");
        });
    }
}

#[test]
fn no_write_begins_when_no_superblock_can_say_so() {
    let media = media(2, DISK);
    let sim = Sim::new(12);
    sim.block_on(async {
        let disks = disks(&media);
        make(&raid1(2), &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        media.iter().for_each(|m| m.fail_writes(SUPERBLOCK));
        assert!(write(&gateway(&array), 0, 8, 1).await.is_err());
        assert!(media.iter().all(|m| m.peek(Sector(DATA)) == [0; 512]));
        assert!(gateway(&array).read(Sector(0), Sectors(8)).await.is_ok());
    });
}

#[test]
fn what_some_member_does_not_know_fails_nobody() {
    for shape in [raid1(2), raid10(0x102, 4), raid10(0x201, 4)] {
        let media = media(shape.members, DISK);
        let sim = Sim::new(14);
        sim.block_on(async {
            let disks = disks(&media);
            make(&shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            write(&volume, 0, 256, 1).await.unwrap();
            media[1].drop_support(Op::WriteZeroes);
            for (len, flags) in [(8, Flags::FAST), (200, Flags::FAST), (200, Flags::empty())] {
                let zeroes = Bio::write_zeroes(Sector(0), Sectors(len)).with_flags(flags);
                let done = volume.submit(zeroes).await;
                assert!(matches!(done, Ok(()) | Err(Status::NotSupported)), "{done:?}");
                if done.is_ok() {
                    let got = volume.read(Sector(0), Sectors(len)).await.unwrap();
                    assert!(got.as_slice().iter().all(|b| *b == 0));
                }
                assert_eq!(array.degraded(), 0, "{shape:?} {len} {flags:?}");
            }
            array.stop().await.unwrap();
            assert!(differing(&array, &media, 256).await.is_empty(), "{shape:?}");
        });
    }
}

#[test]
fn a_write_that_would_rather_fail_than_wait_fails_no_member() {
    let media = media(2, DISK);
    let sim = Sim::new(15);
    sim.block_on(async {
        let disks = disks(&media);
        make(&raid1(2), &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        let volume = gateway(&array);
        disks[1].disk().set_nr_requests(4).unwrap();
        let writes = (0..40u64).map(|i| {
            let (volume, mut data) = (volume.clone(), Buffer::from_slice(&stamped(i * 16, 8, 1)));
            async move { volume.write(Sector(i * 16), &mut data, Flags::NOWAIT).await }
        });
        let results = join_all(writes).await;
        assert!(results.iter().all(|r| matches!(r, Ok(()) | Err(Status::Again))), "{results:?}");
        assert_eq!(array.degraded(), 0);
        array.stop().await.unwrap();
        assert!(differing(&array, &media, 700).await.is_empty());
    });
}

#[test]
fn a_write_whose_submitter_went_away_is_finished_all_the_same() {
    for shape in [raid1(2), raid10(0x102, 4), raid10(0x201, 3)] {
        let media = media(shape.members, DISK);
        let sim = Sim::new(17);
        sim.block_on(async {
            let disks = disks(&media);
            make(&shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            write(&volume, 0, 64, 1).await.unwrap();
            media[1].slow_down(10_000);
            // First on members 0 and 1, later only on the others.
            let mut gone = Box::pin(write(&volume, 0, 8, 2));
            assert!(gone.as_mut().now_or_never().is_none());
            sim.runtime().sleep(Duration::from_millis(1)).await;
            drop(gone);
            media[1].fail_writes(DATA..DISK.0);
            sim.runtime().sleep(Duration::from_millis(100)).await;
            assert_eq!(array.state(), ArrayState::Active, "clean with a write in flight");
            sim.runtime().sleep(Duration::from_secs(3)).await;
            assert_eq!(array.degraded(), 1, "{shape:?}: nobody noticed the failure");
            media[1].heal();
            array.stop().await.unwrap();
            assert!(differing(&array, &media, 64).await.is_empty());
            let survivor = probe(&disks[0].gateway()).await.unwrap().unwrap();
            assert_eq!(survivor.roles[1], Role::Faulty, "{shape:?}");
        });
    }
}

#[test]
fn stopping_twice_waits_for_the_one_stop_and_survives_a_caller_that_goes_away() {
    let media = media(2, DISK);
    let sim = Sim::new(18);
    sim.block_on(async {
        let disks = disks(&media);
        make(&raid1(2), &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
        let first = Box::pin(array.stop());
        assert!(first.now_or_never().is_none());
        array.stop().await.unwrap();
        assert!(all_clean(&disks).await, "the second stop did not wait");
        assert_eq!(array.stop().await, Ok(()));
    });
}

#[test]
fn stopping_waits_for_writes_and_corrections_under_way() {
    for seed in 0..40 {
        let media = media(2, DISK);
        let sim = Sim::new(seed);
        sim.block_on(async {
            let disks = disks(&media);
            make(&raid1(2), &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            write(&volume, 0, 64, 1).await.unwrap();
            media[0].fail_reads(DATA + 32..DATA + 48);
            let read = async { volume.read(Sector(0), Sectors(64)).await.map(drop) };
            let stop = async {
                sim.runtime().sleep(Duration::from_micros(seed * 10)).await;
                array.stop().await
            };
            let (written, read, stopped) = join3(write(&volume, 0, 64, 2), read, stop).await;
            assert_eq!((written, stopped), (Ok(()), Ok(())), "seed {seed}");
            assert!(matches!(read, Ok(()) | Err(Status::Offline)), "seed {seed}: {read:?}");
            assert!(all_clean(&disks).await);
            assert!(differing(&array, &media, 64).await.is_empty(), "seed {seed}");
            let writes: u64 = media.iter().map(|m| m.counts().writes).sum();
            sim.runtime().sleep(Duration::from_secs(1)).await;
            let later: u64 = media.iter().map(|m| m.counts().writes).sum();
            assert_eq!(writes, later, "seed {seed}: written after the stop");
        });
    }
}

#[test]
fn an_array_made_read_only_while_it_runs_is_still_stopped_cleanly() {
    let media = media(2, DISK);
    let sim = Sim::new(19);
    sim.block_on(async {
        let disks = disks(&media);
        make(&raid1(2), &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
        ashlar_block::BlockDevice::disk(&*array).set_read_only(true);
        array.stop().await.unwrap();
        assert!(all_clean(&disks).await);
        let array = start(&sim, &disks, &READ_ONLY).await.unwrap();
        ashlar_block::BlockDevice::disk(&*array).set_read_only(false);
        assert_eq!(write(&gateway(&array), 0, 8, 2).await, Err(Status::ReadOnly));
    });
}

#[test]
fn a_failed_or_missing_member_is_two_events_behind_for_those_who_go_by_the_count() {
    type Break = fn(&ashlar_sim::Media);
    let breaks: [Break; 4] = [
        |m| m.fail_writes(DATA..DISK.0),
        |m| m.fail_writes(SUPERBLOCK),
        |m| m.drop_support(Op::Flush),
        |m| m.kill(),
    ];
    for shape in [raid1(2), raid1(3), raid10(0x102, 4)] {
        for (how, fail) in breaks.iter().enumerate() {
            for idle in [false, true] {
                let media = media(shape.members, DISK);
                let sim = Sim::new(20);
                sim.block_on(async {
                    let disks = disks(&media);
                    make(&shape, &disks).await;
                    let array = start(&sim, &disks, &Options::default()).await.unwrap();
                    let volume = gateway(&array);
                    write(&volume, 0, 64, 1).await.unwrap();
                    if idle {
                        sim.runtime().sleep(Duration::from_secs(1)).await;
                    }
                    fail(&media[1]);
                    write(&volume, 0, 64, 2).await.unwrap();
                    volume.flush().await.unwrap();
                    array.stop().await.unwrap();
                    assert_eq!(array.degraded(), 1);
                    media[1].heal();
                    let found = candidates(&disks).await;
                    let behind = found[0].sb.events - found[1].sb.events;
                    assert!(behind >= 2, "{shape:?} {how} {idle}: {behind}");
                });
            }
        }
        let media = media(shape.members, DISK);
        let sim = Sim::new(21);
        sim.block_on(async {
            let disks = disks(&media);
            make(&shape, &disks).await;
            let array = start(&sim, &disks[..shape.members - 1], &RUN).await.unwrap();
            write(&gateway(&array), 0, 64, 1).await.unwrap();
            let found = candidates(&disks).await;
            assert!(found[0].sb.events - found[shape.members - 1].sb.events >= 2, "missing");
        });
    }
}

#[test]
fn no_array_becomes_clean_around_a_write_that_began_while_a_failure_was_recorded() {
    for ms in (300..2000).step_by(50) {
        let media = media(3, DISK);
        let sim = Sim::new(ms);
        let array = sim.block_on(async {
            let disks = disks(&media);
            make(&raid1(3), &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            write(&gateway(&array), 0, 64, 1).await.unwrap();
            array
        });
        let life = async {
            let volume = gateway(&array);
            let wait = |us| sim.runtime().sleep(Duration::from_micros(us));
            // Its failure is recorded by slow superblock writes; meanwhile the array looks idle.
            let flush = async {
                wait(100_000).await;
                media[2].drop_support(Op::Flush);
                join(volume.flush(), async {
                    wait(100).await;
                    media[0].slow_down(10_000);
                })
                .await
            };
            // A write that takes seconds only on member 1.
            let late = async {
                wait(405_000).await;
                media[1].slow_down(100_000);
                join(write(&volume, 0, 64, 2), async {
                    wait(100).await;
                    media.iter().for_each(|m| m.slow_down(1));
                })
                .await
            };
            join(flush, late).await
        };
        let done = sim.block_on_until(life, Stop::AtNs(ms * 1_000_000));
        assert!(done.is_none(), "the write ended after {ms} ms already");
        drop(array);
        sim.power_cut();
        media.iter().for_each(|m| m.heal());
        let sim = Sim::new(23);
        sim.block_on(async {
            let disks = disks(&media);
            let array = start(&sim, &disks, &RUN).await.unwrap();
            if !array.is_unsynced() {
                assert!(differing(&array, &media, 64).await.is_empty(), "cut after {ms} ms");
            }
        });
    }
}
