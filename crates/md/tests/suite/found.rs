//! Regression tests for the defects that the simulation found.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Bio, Op, Runtime, Sector, Sectors};
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::ondisk::{Level, Role, Superblock, Version};
use ashlar_md::{
    AddOptions, Array, ArrayState, FlagChange, MemberFlag, Options, SyncAction, SyncRequest,
};
use ashlar_sim::{Media, Sim, SimDisk, SimRuntime};
use futures_util::future::join;
use uuid::Uuid;

use crate::common::{
    DATA, Shape, all_clean, disks, gateway, make, make_with, media, spec, stamped, start, write,
};

const DISK: Sectors = Sectors(600);
const SUPER: Sector = Sector(8);
const RUN: Options = Options { run: true, read_only: false, force: false };

/// A resync begins by marking the array clean, if no write is under way. Directly after a recovery it
/// overtook a write that was waiting to make the array active, and took the array for active already:
/// no task ever checked whether it was idle.
#[test]
fn a_write_between_a_recovery_and_a_resync_leaves_an_array_that_becomes_clean() {
    let shape = Shape::new(Level::Raid1, None, 0, 3);
    for seed in 0..100 {
        let media = media(3, DISK);
        let sim = Sim::new(seed);
        sim.block_on(async {
            make(&shape, &disks(&media)).await;
            let array = start(&sim, &disks(&media), &RUN).await.unwrap();
            write(&gateway(&array), 0, 8, 1).await.unwrap();
        });
        sim.power_cut();
        // The last member must be rebuilt, from copies that may differ.
        let sb = media[2].peek_range(SUPER, Sectors(8));
        let mut sb = Superblock::parse(Version::V1_2, &sb, DISK).unwrap();
        sb.recovery_offset = Some(Sectors::ZERO);
        media[2].poke(SUPER, &sb.encode(512).unwrap());
        let sim = Sim::new(seed);
        sim.block_on(async {
            let array = start(&sim, &disks(&media), &RUN).await.unwrap();
            assert!(array.is_unsynced());
            SimRuntime.sleep(Duration::from_micros(sim.rng().below(3000))).await;
            write(&gateway(&array), 16, 8, 2).await.unwrap();
            array.sync_ended().await;
            SimRuntime.sleep(Duration::from_secs(1)).await;
            assert_eq!(array.state(), ArrayState::Clean, "seed {seed}");
        });
    }
}

/// No member fails for a failed discard, but its chunks must be synced. The sync was not woken.
#[test]
fn what_a_member_did_not_discard_is_synced_though_it_stays_a_member() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let mut spec = spec(&Shape::new(Level::Raid1, None, 0, 2), &[DISK; 2]);
        spec.bitmap = NewBitmap::Internal { chunk: None };
        make_with(&spec, &disks(&media)).await;
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
        media[1].fail_writes(DATA..DATA + 8);
        gateway(&array).submit(Bio::discard(Sector(0), Sectors(8))).await.unwrap();
        media[1].heal();
        SimRuntime.sleep(Duration::from_secs(1)).await;
        assert_eq!(array.degraded(), 0);
        assert_eq!(array.bitmap().unwrap().needed_chunks(), 0);
        assert_eq!(array.sync_status().last, SyncAction::Resync);
    });
}

/// The last marks are cleared when an array stops. A member that died just then made the stop fail, and
/// the array was not clean.
#[test]
fn an_array_with_a_bitmap_stops_clean_whenever_a_member_dies() {
    for at in (0..4000).step_by(10) {
        let media = media(2, DISK);
        let sim = Sim::new(at);
        sim.block_on(async {
            let mut spec = spec(&Shape::new(Level::Raid1, None, 0, 2), &[DISK; 2]);
            spec.bitmap = NewBitmap::Internal { chunk: None };
            make_with(&spec, &disks(&media)).await;
            let array = start(&sim, &disks(&media), &RUN).await.unwrap();
            write(&gateway(&array), 0, 8, 1).await.unwrap();
            let dies = async {
                SimRuntime.sleep(Duration::from_micros(at)).await;
                media[1].kill();
            };
            let (stopped, ()) = join(array.stop(), dies).await;
            assert_eq!(stopped, Ok(()), "died after {at} us");
        });
    }
}

/// A resync that failed because a member that must stay could not be flushed was woken by this failure:
/// it restarted forever.
#[test]
fn a_resync_that_cannot_be_flushed_gives_up() {
    let shape = Shape::new(Level::Raid10, Some(0x102), 4, 3);
    let media = media(3, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        make(&shape, &disks(&media)).await;
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
    });
    sim.power_cut();
    let sim = Sim::new(2);
    sim.set_time_limit(Duration::from_secs(5));
    sim.block_on(async {
        let array = start(&sim, &disks(&media)[1..], &RUN).await.unwrap();
        assert!(array.is_unsynced());
        media[1].drop_support(Op::Flush);
        array.sync_ended().await;
        assert!(array.is_unsynced());
    });
}

/// An array of this shape without its member 1, in whose slot a spare is being rebuilt.
pub(crate) async fn rebuilding(sim: &Sim, shape: &Shape, media: &[Media]) -> Arc<Array> {
    make(shape, &disks(&media[..shape.members])).await;
    let all = disks(media);
    let there: Vec<&SimDisk> =
        (0..shape.members).filter(|at| *at != 1).map(|at| &all[at]).collect();
    let array = start(sim, &there, &RUN).await.unwrap();
    let spare = &all[shape.members];
    let options = AddOptions {
        device_uuid: Uuid::from_u128(1),
        write_mostly: None,
        failfast: None,
        spare_only: false,
    };
    array.add(spare.gateway(), spare.disk().name(), options).await.unwrap();
    array
}

/// A recovery did the same, if the member shares no data with another in-sync member.
#[test]
fn a_recovery_that_cannot_be_flushed_gives_up() {
    let media = media(5, DISK);
    let sim = Sim::new(1);
    sim.set_time_limit(Duration::from_secs(5));
    sim.block_on(async {
        let shape = Shape::new(Level::Raid10, Some(0x102), 4, 4);
        let array = rebuilding(&sim, &shape, &media).await;
        media[0].drop_support(Op::Flush);
        array.sync_ended().await;
        assert_eq!((array.degraded(), array.sync_status().action), (1, SyncAction::Idle));
    });
}

/// The same halfway, at a checkpoint of a sync. Progress that was not flushed is not recorded.
#[test]
fn a_sync_that_cannot_be_flushed_half_way_gives_up_and_records_nothing() {
    const LARGE: Sectors = Sectors(1 << 17);
    let shape = Shape::new(Level::Raid10, Some(0x102), 4, 3);
    let media = media(3, LARGE);
    let sim = Sim::new(1);
    sim.block_on(async {
        make(&shape, &disks(&media)).await;
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
    });
    sim.power_cut();
    let sim = Sim::new(2);
    sim.set_time_limit(Duration::from_secs(20));
    sim.block_on(async {
        let array = start(&sim, &disks(&media)[1..], &RUN).await.unwrap();
        let settings = array.sync_settings();
        settings.set_speed_min_kib(Some(4096));
        settings.set_speed_max_kib(Some(4096));
        while array.sync_status().done < Sectors(1 << 13) {
            SimRuntime.sleep(Duration::from_millis(10)).await;
        }
        media[1].drop_support(Op::Flush);
        array.sync_ended().await;
        assert!(array.is_unsynced());
        assert_eq!(array.in_sync_to(), Sectors::ZERO);
        let sb = media[2].peek_range(SUPER, Sectors(8));
        let recorded = Superblock::parse(Version::V1_2, &sb, LARGE).unwrap().resync_offset;
        assert!(recorded < Sectors(1 << 13), "{recorded}");
    });
}

/// The last in-sync member did not take a write, but a member under rebuild did, in its rebuilt part:
/// reads returned either version.
#[test]
fn what_a_rebuilt_member_took_and_the_last_one_did_not_is_synced() {
    const LARGE: Sectors = Sectors(1 << 15);
    let media = media(3, LARGE);
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = rebuilding(&sim, &Shape::new(Level::Raid1, None, 0, 2), &media).await;
        array.sync_settings().set_speed_max_kib(Some(1024));
        let recovered = || array.members().member(1).map_or(Sectors::ZERO, |rdev| rdev.recovered());
        while recovered() < Sectors(4096) {
            SimRuntime.sleep(Duration::from_millis(10)).await;
        }
        let data = array.members().member(0).unwrap().data_offset().0;
        media[0].fail_writes(data + 8..data + 16);
        let volume = gateway(&array);
        write(&volume, 8, 8, 1).await.unwrap_err();
        media[0].heal();
        assert!(array.is_unsynced());
        array.sync_settings().set_speed_max_kib(None);
        array.sync_ended().await;
        assert_eq!((array.degraded(), array.is_unsynced()), (0, false));
        let copy = |at: usize| media[at].peek_range(Sector(data + 8), Sectors(8));
        assert_eq!(copy(0), copy(2));
    });
}

/// Write-zeroes took the path of discards, where bad blocks stayed listed.
#[test]
fn bad_blocks_that_were_overwritten_with_zeroes_are_good_again() {
    const LARGE: Sectors = Sectors(4096);
    let shapes = [
        Shape::new(Level::Raid1, None, 0, 2),
        Shape::new(Level::Raid10, Some(0x102), 4, 4),
        Shape::new(Level::Raid10, Some(0x102), 4, 3),
        Shape::new(Level::Raid10, Some(0x201), 4, 4),
    ];
    for (shape, len) in shapes.iter().flat_map(|shape| [(shape, 8), (shape, 1024)]) {
        let media = media(shape.members, LARGE);
        let sim = Sim::new(1);
        sim.block_on(async {
            let mut spec = spec(shape, &vec![LARGE; shape.members]);
            spec.bad_block_log = true;
            make_with(&spec, &disks(&media)).await;
            let array = start(&sim, &disks(&media), &RUN).await.unwrap();
            let volume = gateway(&array);
            let member = array.members().member(1).unwrap();
            let bad = (member.data_offset() + Sectors(3)).0;
            media[1].fail_writes(bad..bad + 1);
            write(&volume, 0, 64, 1).await.unwrap();
            let listed = || !member.bad_blocks().is_empty();
            assert!(listed(), "{shape:?}");
            volume.submit(Bio::discard(Sector(0), Sectors(1024))).await.unwrap();
            assert!(listed(), "{shape:?}: discarded");
            volume.submit(Bio::write_zeroes(Sector(64), Sectors(len))).await.unwrap();
            assert!(listed(), "{shape:?}: zeroes beside it");
            media[1].heal();
            volume.submit(Bio::write_zeroes(Sector(0), Sectors(len.max(64)))).await.unwrap();
            assert!(!listed(), "{shape:?}: {len} sectors of zeroes");
        });
    }
}

/// Found by tests/e2e/nbd-members.sh: a check of a clean array rewrote the bad blocks of a member, but they stayed in the member's log:
/// nothing wrote the superblocks before the stop. Later the member alone refused to read them.
#[test]
fn bad_blocks_that_a_check_has_rewritten_leave_the_log() {
    const LARGE: Sectors = Sectors(4096);
    for stops in [false, true] {
        for shape in
            [Shape::new(Level::Raid1, None, 0, 2), Shape::new(Level::Raid10, Some(0x102), 4, 4)]
        {
            let media = media(shape.members, LARGE);
            let sim = Sim::new(1);
            sim.block_on(async {
                let mut spec = spec(&shape, &vec![LARGE; shape.members]);
                spec.bad_block_log = true;
                make_with(&spec, &disks(&media)).await;
                let array = start(&sim, &disks(&media), &RUN).await.unwrap();
                let bad = (array.members().member(1).unwrap().data_offset() + Sectors(3)).0;
                media[1].fail_writes(bad..bad + 1);
                write(&gateway(&array), 0, 64, 1).await.unwrap();
                array.stop().await.unwrap();
                media[1].heal();

                let array = start(&sim, &disks(&media), &RUN).await.unwrap();
                assert!(!array.members().member(1).unwrap().bad_blocks().is_empty());
                array.request_sync(SyncRequest::Check).unwrap();
                array.sync_ended().await;
                assert!(array.members().member(1).unwrap().bad_blocks().is_empty());
                if stops {
                    array.stop().await.unwrap();
                }
                let array = start(&sim, &disks(&media), &RUN).await.unwrap();
                assert!(array.members().member(1).unwrap().bad_blocks().is_empty(), "{stops}");
            });
        }
    }
}

/// An array that cannot become clean is stopped anyway.
#[test]
fn an_array_whose_last_member_cannot_be_flushed_stops_with_an_error() {
    for work in [false, true] {
        let media = media(2, DISK);
        let sim = Sim::new(1);
        sim.set_time_limit(Duration::from_secs(5));
        sim.block_on(async {
            make(&Shape::new(Level::Raid1, None, 0, 2), &disks(&media)).await;
            let array = start(&sim, &disks(&media), &RUN).await.unwrap();
            let volume = gateway(&array);
            write(&volume, 0, 8, 1).await.unwrap();
            media[1].kill();
            media[0].drop_support(Op::Flush);
            let late = async {
                while work && !array.is_stopped() {
                    SimRuntime.sleep(Duration::from_micros(50)).await;
                    let flushed = volume.flush().await;
                    assert!(flushed.is_err() || array.degraded() == 0);
                }
            };
            let stop = async {
                SimRuntime.sleep(Duration::from_millis(1)).await;
                array.stop().await
            };
            let ((), stopped) = join(late, stop).await;
            assert!(stopped.is_err());
            assert!(array.is_active());
        });
    }
}

/// A failed superblock write on a member that must stay made the next superblocks say active. The array
/// was clean in memory, so the superblocks never became clean again.
#[test]
fn a_clean_array_stays_clean_on_disk_though_superblocks_could_not_be_written_once() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        make(&Shape::new(Level::Raid1, None, 0, 2), &disks(&media)).await;
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
        array.fail(1).await.unwrap();
        SimRuntime.sleep(Duration::from_secs(1)).await;
        let left = &disks(&media)[..1];
        assert_eq!((array.state(), all_clean(left).await), (ArrayState::Clean, true));
        media[0].fail_writes(0..DATA);
        let failfast = FlagChange { flag: MemberFlag::Failfast, on: true };
        array.set_flag(0, failfast).await.unwrap_err();
        media[0].heal();
        array.set_flag(0, FlagChange { on: false, ..failfast }).await.unwrap();
        assert_eq!((array.state(), all_clean(left).await), (ArrayState::Clean, true));
        // A later write is preceded by superblocks that say active.
        write(&gateway(&array), 0, 8, 2).await.unwrap();
        assert_eq!((array.state(), all_clean(left).await), (ArrayState::Active, false));
    });
}

/// An array that could not become clean, because the bitmap could not be written before the superblocks,
/// considered itself clean anyway: its stop succeeded, although the superblocks said active.
#[test]
fn an_array_that_could_not_become_clean_does_when_it_is_stopped() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let mut spec = spec(&Shape::new(Level::Raid1, None, 0, 2), &[DISK; 2]);
        spec.bitmap = NewBitmap::Internal { chunk: None };
        make_with(&spec, &disks(&media)).await;
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        array.fail(1).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
        media[0].fail_writes(SUPER.0 + 8..DATA);
        SimRuntime.sleep(Duration::from_secs(1)).await;
        assert_eq!(array.state(), ArrayState::Active);
        media[0].heal();
        // A disk that refuses durable writes may have lost others.
        gateway(&array).flush().await.unwrap_err();
        array.stop().await.unwrap();
        assert!(all_clean(&disks(&media)[..1]).await);
    });
}

/// A resync begins by marking the array clean. If a flush was under way just then, it did not, and
/// without a later write nothing else did: the array stayed active after the resync, so that the next
/// crash caused another resync.
#[test]
fn a_flush_as_a_resync_begins_leaves_an_array_that_becomes_clean() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        make(&Shape::new(Level::Raid1, None, 0, 2), &disks(&media)).await;
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
    });
    sim.power_cut();
    let sim = Sim::new(2);
    sim.block_on(async {
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        gateway(&array).flush().await.unwrap();
        array.sync_ended().await;
        SimRuntime.sleep(Duration::from_secs(1)).await;
        assert_eq!((array.state(), array.is_unsynced()), (ArrayState::Clean, false));
        assert!(all_clean(&disks(&media)).await);
    });
}

/// A member that failed while marks were cleared, without writes under way, was not recorded as failed.
#[test]
fn a_member_that_fails_for_the_bitmap_of_an_idle_array_is_recorded() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let mut spec = spec(&Shape::new(Level::Raid1, None, 0, 2), &[DISK; 2]);
        spec.bitmap = NewBitmap::Internal { chunk: None };
        spec.daemon_sleep = 1;
        make_with(&spec, &disks(&media)).await;
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
        while array.state() != ArrayState::Clean {
            SimRuntime.sleep(Duration::from_millis(10)).await;
        }
        media[1].fail_writes(SUPER.0 + 8..DATA);
        SimRuntime.sleep(Duration::from_secs(5)).await;
        assert_eq!((array.degraded(), array.is_recorded()), (1, true));
        let sb = media[0].peek_range(SUPER, Sectors(8));
        let roles = Superblock::parse(Version::V1_2, &sb, DISK).unwrap().roles;
        assert_eq!(roles[1], Role::Faulty);
    });
}

/// A spare was absent while another was added, which got its number. When both were present, both counted
/// as the member that one of them became.
#[test]
fn a_spare_whose_number_another_one_has_is_left_out() {
    let media = media(4, DISK);
    let all = disks(&media);
    let add = async |array: &Array, at: usize| {
        let options = AddOptions {
            device_uuid: Uuid::from_u128(at as u128),
            write_mostly: None,
            failfast: None,
            spare_only: false,
        };
        array.add(all[at].gateway(), all[at].disk().name(), options).await.unwrap();
    };
    let sim = Sim::new(1);
    sim.block_on(async {
        make(&Shape::new(Level::Raid1, None, 0, 2), &all[..2]).await;
        for spare in [2, 3] {
            let array = start(&sim, &all[..2], &RUN).await.unwrap();
            add(&array, spare).await;
            array.stop().await.unwrap();
        }
        let array = start(&sim, &all, &RUN).await.unwrap();
        let notes = array.status().await.notes;
        let left_out = notes.iter().filter(|note| note.contains("its number 2")).count();
        assert_eq!((array.members().spares().count(), left_out), (1, 1));
        array.fail(1).await.unwrap();
        array.sync_ended().await;
        assert_eq!(array.degraded(), 0);
        array.stop().await.unwrap();
        let array = start(&sim, &all, &RUN).await.unwrap();
        assert_eq!((array.degraded(), array.members().spares().count()), (0, 0));
        add(&array, 3).await;
        assert_eq!(array.members().spares().count(), 1);
    });
}

/// Two copies with different bad blocks in one page have all of it together, but it could not be read.
#[test]
fn copies_that_lack_different_blocks_of_a_page_are_read_block_by_block() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let mut spec = spec(&Shape::new(Level::Raid1, None, 0, 2), &[DISK; 2]);
        spec.bad_block_log = true;
        make_with(&spec, &disks(&media)).await;
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        let volume = gateway(&array);
        write(&volume, 0, 32, 1).await.unwrap();
        for (at, sector) in [(0, 9), (1, 13)] {
            let data = array.members().member(at).unwrap().data_offset().0;
            media[at].fail_writes(data + sector..data + sector + 1);
            write(&volume, sector, 1, 1).await.unwrap();
        }
        assert_eq!(array.degraded(), 0);
        let read = volume.read(Sector(0), Sectors(32)).await.unwrap();
        assert!(read.as_slice() == stamped(0, 32, 1));
    });
}

/// The first copy, which is read because copies may differ, was on a member that a write-mostly one
/// replaced: from then on another copy was read, with other data. The same happened the other way round.
#[test]
fn a_member_that_is_replaced_while_copies_may_differ_leaves_what_is_read_as_it_is() {
    for case in 0..8 {
        let [old_is_last, new_is_last, second] = [1, 2, 4].map(|bit| case & bit != 0);
        let replaced = usize::from(second);
        let media = media(3, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            let mut spec = spec(&Shape::new(Level::Raid1, None, 0, 2), &[DISK; 2]);
            spec.members[replaced].as_mut().unwrap().flags.write_mostly = old_is_last;
            make_with(&spec, &disks(&media)[..2]).await;
            let array = start(&sim, &disks(&media)[..2], &RUN).await.unwrap();
            write(&gateway(&array), 0, 8, 1).await.unwrap();
        });
        sim.power_cut();
        // One copy has a write that was not acknowledged.
        media[0].poke(Sector(DATA), &stamped(0, 1, 2));
        let sim = Sim::new(2);
        sim.block_on(async {
            let array = start(&sim, &disks(&media)[..2], &RUN).await.unwrap();
            array.request_sync(SyncRequest::Frozen).unwrap();
            let spare = &disks(&media)[2];
            let options = AddOptions {
                device_uuid: Uuid::from_u128(1),
                write_mostly: Some(new_is_last),
                failfast: None,
                spare_only: true,
            };
            let added = array.add(spare.gateway(), spare.disk().name(), options).await.unwrap();
            array.replace(replaced as u32, Some(added.index())).await.unwrap();
            let volume = gateway(&array);
            let read =
                async || volume.read(Sector(0), Sectors(1)).await.unwrap().as_slice().to_vec();
            let first = read().await;
            array.request_sync(SyncRequest::Idle).unwrap();
            while array.is_unsynced() {
                assert!(read().await == first, "case {case}: it reads differently");
                SimRuntime.sleep(Duration::from_micros(20)).await;
            }
            assert!(array.members().member(replaced).is_some_and(|rdev| rdev.path() == "d2"));
            assert!(read().await == first, "case {case}: it reads differently at the end");
        });
    }
}

/// A disk that fails a flush drops its cache. Its member failed only after all other members had flushed, and was read until
/// then: reads returned what the cache had replaced.
#[test]
fn a_member_that_lost_its_cache_is_not_read_while_others_flush() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        make(&Shape::new(Level::Raid1, None, 0, 2), &disks(&media)).await;
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        let volume = gateway(&array);
        write(&volume, 0, 8, 1).await.unwrap();
        volume.flush().await.unwrap();
        write(&volume, 0, 8, 2).await.unwrap();
        media[0].fail_nth_flush(0);
        media[1].slow_down(100);
        let reads = async {
            for _ in 0..100 {
                let data = volume.read(Sector(0), Sectors(8)).await.unwrap();
                assert!(data.as_slice() == stamped(0, 8, 2), "old data");
                SimRuntime.sleep(Duration::from_micros(10)).await;
            }
        };
        let (flushed, ()) = join(volume.flush(), reads).await;
        assert_eq!((flushed, array.degraded()), (Ok(()), 1));
    });
}
