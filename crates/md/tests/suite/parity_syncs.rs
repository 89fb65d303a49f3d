//! Arrays with parity, synced: resync, check, repair, recovery of one member and of two, replacements, what cannot be recovered.

use ashlar_block::{Buffer, Flags, Op, Sector, Sectors, Status};
use ashlar_md::create::create;
use ashlar_md::internals::raid5::{Held, ParityLevel};
use ashlar_md::ondisk::Level;
use ashlar_md::{AddOptions, ManageError, Need, SyncAction, SyncRequest};
use ashlar_sim::{Media, Model as Timing, Sim, SimDisk};
use uuid::Uuid;

use crate::common::{DATA, Shape, gateway, make_with, new_devices, spec, start};
use crate::parity::{CHUNK, READ_ONLY, ROWS, Rig};
use crate::parity_writes::{Model, RW};

const LEVELS: [(ParityLevel, u32); 5] = [
    (ParityLevel::Raid4, 0),
    (ParityLevel::Raid5, 2),
    (ParityLevel::Raid5, 4),
    (ParityLevel::Raid6, 2),
    (ParityLevel::Raid6, 8),
];

/// Bytes of each member's data area.
fn data_of(media: &[Media]) -> Vec<Vec<u8>> {
    media.iter().map(|medium| medium.peek_range(Sector(DATA), Sectors(ROWS * CHUNK))).collect()
}

/// Overwrites a sector of P or Q, so that it does not fit its row.
fn spoil(rig: &Rig, at: u64, is_q: bool) {
    let row = rig.geometry.row_at(Sector(at));
    let slot = row.q.filter(|_| is_q).unwrap_or(row.p);
    rig.media[slot].poke(Sector(DATA + at), &[0xa5; 512]);
}

#[test]
fn a_resync_makes_parity_fit_and_changes_nothing_else() {
    for (level, layout) in LEVELS {
        for from in [0, 40] {
            let rig = Rig::new(level, layout, 5);
            let model = Model::of(&rig);
            let good = data_of(&rig.media);
            for at in [from, from + 9, 95] {
                spoil(&rig, at, at == 95);
            }
            rig.record(|superblock| superblock.resync_offset = Sectors(from));
            let sim = Sim::new(1);
            sim.block_on(async {
                let array = rig.start(&sim, &[], &RW).await.unwrap();
                assert!(array.is_unsynced());
                model.check(&array, "before").await;
                array.sync_ended().await;
                assert!(!array.is_unsynced());
                assert_eq!(array.sync_status().last, SyncAction::Resync);
                model.check(&array, "after").await;
                array.stop().await.unwrap();
            });
            assert_eq!(rig.misfit(), None, "{level:?} {layout}");
            assert!(data_of(&rig.media) == good, "{level:?} {layout}");
        }
    }
}

#[test]
fn a_check_counts_pages_and_changes_nothing_and_a_repair_changes_parity_alone() {
    for (level, layout) in LEVELS {
        let rig = Rig::new(level, layout, 5);
        let good = data_of(&rig.media);
        // Two in one page, and P and Q of another.
        for (at, is_q) in [(1, false), (3, false), (50, false), (50, true)] {
            spoil(&rig, at, is_q);
        }
        let spoilt = data_of(&rig.media);
        let sim = Sim::new(2);
        sim.block_on(async {
            let array = rig.start(&sim, &[], &RW).await.unwrap();
            array.request_sync(SyncRequest::Check).unwrap();
            array.sync_ended().await;
            assert_eq!(array.sync_status().mismatches, Sectors(16), "{level:?} {layout}");
            assert!(data_of(&rig.media) == spoilt, "a check changes nothing");
            array.request_sync(SyncRequest::Repair).unwrap();
            array.sync_ended().await;
            assert_eq!(array.sync_status().mismatches, Sectors(16));
            assert!(data_of(&rig.media) == good);
            array.request_sync(SyncRequest::Check).unwrap();
            array.sync_ended().await;
            assert_eq!(array.sync_status().mismatches, Sectors::ZERO);
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn a_check_corrects_what_a_member_cannot_return() {
    for (level, layout) in LEVELS {
        let rig = Rig::new(level, layout, 5);
        let good = data_of(&rig.media);
        rig.media[0].fail_reads(DATA + 3..DATA + 4);
        rig.media[4].fail_reads(DATA + 60..DATA + 61);
        let sim = Sim::new(3);
        sim.block_on(async {
            let array = rig.start(&sim, &[], &RW).await.unwrap();
            array.request_sync(SyncRequest::Check).unwrap();
            array.sync_ended().await;
            assert_eq!(array.sync_status().mismatches, Sectors::ZERO, "{level:?} {layout}");
            let corrected: u64 = array.members().placed().map(|(_, rdev)| rdev.errors().1).sum();
            assert!(corrected > 0);
            array.stop().await.unwrap();
        });
        assert!(data_of(&rig.media) == good, "{level:?} {layout}");
        assert!(rig.media.iter().all(|medium| !medium.dropped_cache()));
    }
}

fn spare(number: u128) -> (Media, AddOptions) {
    let options = AddOptions {
        device_uuid: Uuid::from_u128(900 + number),
        write_mostly: None,
        failfast: None,
        spare_only: false,
    };
    (Media::noisy(Sectors(DATA + ROWS * CHUNK), number as u64), options)
}

#[test]
fn as_many_members_as_the_array_can_lose_are_recovered_in_one_pass() {
    for (level, layout) in LEVELS {
        for first in 0..5 {
            let lost: Vec<usize> = (0..level.parities()).map(|n| (first + 2 * n) % 5).collect();
            let rig = Rig::new(level, layout, 5);
            let model = Model::of(&rig);
            let good = data_of(&rig.media);
            let sim = Sim::new(4);
            sim.block_on(async {
                let array = rig.start(&sim, &lost, &RW).await.unwrap();
                array.request_sync(SyncRequest::Frozen).unwrap();
                let spares: Vec<(Media, AddOptions)> =
                    (0..lost.len()).map(|number| spare(number as u128)).collect();
                for (number, (medium, options)) in spares.iter().enumerate() {
                    let disk = SimDisk::over(format!("s{number}"), medium.clone());
                    let name = disk.disk().name().to_owned();
                    array.add(disk.gateway(), &name, *options).await.unwrap();
                }
                let reads = |media: &[Media]| -> u64 {
                    let mut left = lost.clone();
                    left.sort_unstable();
                    let others = media.iter().enumerate().filter(|(at, _)| !left.contains(at));
                    others.map(|(_, medium)| medium.counts().reads).sum()
                };
                rig.media.iter().for_each(|medium| medium.clear_log());
                array.request_sync(SyncRequest::Idle).unwrap();
                array.sync_ended().await;
                assert_eq!(array.degraded(), 0, "{level:?} {layout} {lost:?}");
                // Each row of the others is read once, whether one or two are recovered.
                let pieces = ROWS;
                assert!(reads(&rig.media) <= (5 - lost.len() as u64) * pieces + 20);
                model.check(&array, "after the recovery").await;
                array.stop().await.unwrap();
                let mut slots = lost.clone();
                slots.sort_unstable();
                for (slot, (medium, _)) in slots.iter().zip(&spares) {
                    let data = medium.peek_range(Sector(DATA), Sectors(ROWS * CHUNK));
                    assert!(data == good[*slot], "{level:?} {layout}: slot {slot}");
                }
            });
        }
    }
}

/// A disk with a head is slow at anything else. Chunks of 512 KiB are two windows with six members, and four with eight.
#[test]
fn windows_that_are_shorter_than_a_chunk_read_every_member_in_its_order() {
    const CHUNK_KIB: u64 = 512;
    for (members, is_check) in [(6, false), (8, false), (8, true)] {
        let size = Sectors(DATA + 8 * 2 * CHUNK_KIB);
        let media: Vec<Media> = (0..members).map(|_| Media::new(size)).collect();
        let sim = Sim::new(8);
        sim.block_on(async {
            let model = Timing::hdd();
            let disk = |(number, medium): (usize, &Media)| {
                SimDisk::with(format!("d{number}"), medium.clone(), model.limits(), model)
            };
            let disks: Vec<SimDisk> = media.iter().enumerate().map(disk).collect();
            let sizes = vec![size; members];
            make_with(&spec(&Shape::new(Level::Raid6, None, CHUNK_KIB, members), &sizes), &disks)
                .await;
            let lost = usize::from(!is_check);
            let array = start(&sim, &disks[lost..], &RW).await.unwrap();
            array.request_sync(SyncRequest::Frozen).unwrap();
            if !is_check {
                let medium = Media::new(size);
                let spare = SimDisk::with("s", medium, model.limits(), model);
                array.add(spare.gateway(), "s", self::spare(1).1).await.unwrap();
            }
            media.iter().for_each(Media::clear_log);
            array
                .request_sync(if is_check { SyncRequest::Check } else { SyncRequest::Idle })
                .unwrap();
            array.sync_ended().await;
            assert_eq!(array.degraded(), 0);
            array.stop().await.unwrap();
        });
        for medium in &media[usize::from(!is_check)..] {
            let log = medium.log();
            let reads = log.iter().filter(|one| one.op == Op::Read && one.ranges[0].start >= DATA);
            let at: Vec<u64> = reads.map(|one| one.ranges[0].start).collect();
            assert!(at.len() > 4 && at.is_sorted(), "{members} members: {at:?}");
        }
    }
}

#[test]
fn a_replacement_gets_what_its_member_has() {
    for (level, layout) in LEVELS {
        let rig = Rig::new(level, layout, 5);
        let good = data_of(&rig.media);
        let sim = Sim::new(5);
        sim.block_on(async {
            let array = rig.start(&sim, &[], &RW).await.unwrap();
            let (medium, options) = spare(1);
            let disk = SimDisk::over("s".to_owned(), medium.clone());
            let added = array.add(disk.gateway(), "s", options).await.unwrap();
            // One block of the old member comes from the rest of its row.
            rig.media[2].fail_reads(DATA + 17..DATA + 18);
            array.replace(2, Some(added.index())).await.unwrap();
            array.sync_ended().await;
            assert_eq!(array.degraded(), 0);
            array.stop().await.unwrap();
            let data = medium.peek_range(Sector(DATA), Sectors(ROWS * CHUNK));
            assert!(data == good[2], "{level:?} {layout}");
        });
    }
}

#[test]
fn a_recovery_takes_parity_that_may_be_wrong_for_nothing() {
    // Slot 0 of this layout has nothing but parity.
    let rig = Rig::new(ParityLevel::Raid5, 4, 4);
    let good = data_of(&rig.media);
    rig.record(|superblock| superblock.resync_offset = Sectors::ZERO);
    let sim = Sim::new(6);
    sim.block_on(async {
        let array = rig.start(&sim, &[0], &RW).await.unwrap();
        let (medium, options) = spare(1);
        let disk = SimDisk::over("s".to_owned(), medium.clone());
        array.add(disk.gateway(), "s", options).await.unwrap();
        array.sync_ended().await;
        assert!(!array.is_unsynced() && array.degraded() == 0);
        array.stop().await.unwrap();
        assert!(medium.peek_range(Sector(DATA), Sectors(ROWS * CHUNK)) == good[0]);
    });
}

#[test]
fn what_a_resync_cannot_read_is_not_recovered_from_wrong_parity_later() {
    let rig = Rig::new(ParityLevel::Raid5, 2, 4);
    rig.record(|superblock| superblock.resync_offset = Sectors::ZERO);
    let slot = (0..4).find(|slot| matches!(rig.geometry.unmap(*slot, Sector(20)), Held::Data(_)));
    let slot = slot.unwrap();
    let Held::Data(sector) = rig.geometry.unmap(slot, Sector(20)) else { panic!("data") };
    spoil(&rig, 20, false);
    rig.media[slot].fail_reads(DATA + 20..DATA + 21);
    let sim = Sim::new(7);
    sim.block_on(async {
        let array = rig.start(&sim, &[], &RW).await.unwrap();
        array.sync_ended().await;
        let read = gateway(&array).read(sector, Sectors(1)).await;
        assert_eq!(read.map(|_| ()), Err(Status::Medium));
        // A write makes it good.
        let mut data = Buffer::from_slice(&[5; 512]);
        gateway(&array).write(sector, &mut data, Flags::empty()).await.unwrap();
        rig.media[slot].heal();
        let read = gateway(&array).read(sector, Sectors(1)).await.unwrap();
        assert!(read.as_slice() == [5; 512]);
        assert!(array.stop().await.is_ok() || array.is_unsynced());
    });
    // The rest of the row is as it was.
    sim.block_on(async {
        let array = rig.start(&sim, &[], &READ_ONLY).await.unwrap();
        assert!(gateway(&array).read(Sector(0), Sectors(CHUNK)).await.is_ok());
        array.stop().await.unwrap();
    });
}

/// mdadm's 19raid6check and 19raid6repair: one block of a row is wrong, and nothing says which.
#[test]
fn a_repair_of_raid6_finds_the_block_that_is_wrong_if_one_alone_is() {
    const LIAR: usize = 2;
    let layouts = crate::parity::layouts().filter(|(level, _)| *level == ParityLevel::Raid6);
    for (level, layout) in layouts {
        for members in 4..=6 {
            for slot in 0..members {
                let rig = Rig::new(level, layout, members);
                let good = data_of(&rig.media);
                let sim = Sim::new(3);
                sim.block_on(async {
                    let array = rig.start(&sim, &[], &RW).await.unwrap();
                    // Rows of each turn of the layout.
                    for row in 0..members as u64 {
                        rig.poke(slot, Sector(row * CHUNK + 3), &[0x5a; 512]);
                    }
                    array.request_sync(SyncRequest::Check).unwrap();
                    array.sync_ended().await;
                    let wrong = Sectors(8 * members as u64);
                    assert_eq!(array.sync_status().mismatches, wrong);
                    assert!(data_of(&rig.media) != good, "a check changes nothing");
                    array.parity_settings().unwrap().set(LIAR, 1).unwrap();
                    array.request_sync(SyncRequest::Repair).unwrap();
                    array.sync_ended().await;
                    array.stop().await.unwrap();
                });
                assert!(data_of(&rig.media) == good, "{layout} of {members}, {slot}");
            }
        }
    }
}

#[test]
fn a_repair_of_raid6_believes_the_data_if_two_blocks_are_wrong_or_it_is_not_asked_which() {
    for (slots, asked) in [([0, 1], 1), ([0, 0], 0)] {
        // P and Q are on the last two.
        let rig = Rig::new(ParityLevel::Raid6, 5, 5);
        for slot in slots {
            rig.poke(slot, Sector(3), &[0x5a + slot as u8; 512]);
        }
        let spoilt = data_of(&rig.media);
        let sim = Sim::new(4);
        sim.block_on(async {
            let array = rig.start(&sim, &[], &RW).await.unwrap();
            array.parity_settings().unwrap().set(2, asked).unwrap();
            array.request_sync(SyncRequest::Repair).unwrap();
            array.sync_ended().await;
            array.stop().await.unwrap();
        });
        assert!(data_of(&rig.media)[..3] == spoilt[..3], "data of {slots:?} were changed");
        assert_eq!(rig.misfit(), None);
    }
}

/// After a crash parity may be older than the data, which looks like one wrong block.
#[test]
fn parity_that_a_crash_may_have_left_says_nothing_about_data() {
    let rig = Rig::new(ParityLevel::Raid6, 5, 5);
    rig.poke(1, Sector(3), &[0x5a; 512]);
    let written = data_of(&rig.media);
    rig.record(|superblock| superblock.resync_offset = Sectors::ZERO);
    let sim = Sim::new(5);
    sim.block_on(async {
        let array = rig.start(&sim, &[], &RW).await.unwrap();
        array.parity_settings().unwrap().set(2, 1).unwrap();
        array.sync_ended().await;
        array.request_sync(SyncRequest::Repair).unwrap();
        array.sync_ended().await;
        array.stop().await.unwrap();
    });
    assert!(data_of(&rig.media)[..3] == written[..3], "what was written was changed");
    assert_eq!(rig.misfit(), None);
}

/// On members with old data P and Q need not fit each other: a write that reads one of them would leave the other one wrong.
#[test]
fn a_new_raid6_without_a_member_is_the_same_without_each_other_one() {
    for away in [0, 1, 6, 7] {
        let sizes = [Sectors(DATA + 160); 8];
        let media: Vec<Media> = (0..8).map(|seed| Media::noisy(sizes[0], seed)).collect();
        let sim = Sim::new(6);
        sim.block_on(async {
            let mut disks = crate::common::disks(&media);
            let shape = Shape::new(Level::Raid6, None, 8, 8);
            let mut spec = spec(&shape, &sizes);
            (spec.assume_clean, spec.members[away]) = (false, None);
            let mut devices = new_devices(&disks);
            devices.iter_mut().flatten().for_each(|device| device.known_zero = false);
            devices[away] = None;
            create(&spec, &devices).await.unwrap();
            disks.remove(away);
            let array = start(&sim, &disks, &RW).await.unwrap();
            let volume = gateway(&array);
            for at in (0..volume.capacity().0).step_by(16) {
                crate::common::write(&volume, at, 1, 9).await.unwrap();
            }
            array.sync_ended().await;
            assert_eq!(array.degraded(), 1, "without {away}");
            let all = volume.read(Sector(0), volume.capacity()).await.unwrap();
            array.stop().await.unwrap();
            for other in 0..disks.len() {
                let mut fewer: Vec<&SimDisk> = disks.iter().collect();
                fewer.remove(other);
                let array = start(&sim, &fewer, &READ_ONLY).await.unwrap();
                let found = gateway(&array).read(Sector(0), volume.capacity()).await.unwrap();
                assert!(found.as_slice() == all.as_slice(), "without {away} and another one");
                array.stop().await.unwrap();
            }
        });
    }
}

#[test]
fn a_member_fails_once_the_resync_has_made_parity_and_before_that_the_reason_is_given() {
    let rig = Rig::new(ParityLevel::Raid5, 2, 3);
    rig.record(|superblock| superblock.resync_offset = Sectors::ZERO);
    let sim = Sim::new(9);
    sim.block_on(async {
        let array = rig.start(&sim, &[], &RW).await.unwrap();
        let refused = array.fail(0).await.unwrap_err();
        assert!(matches!(refused, ManageError::Needed { why: Need::Resync, .. }), "{refused}");
        assert!(refused.to_string().contains("until the resync has ended"), "{refused}");
        while array.is_unsynced() {
            sim.runtime().sleep(std::time::Duration::from_millis(10)).await;
        }
        array.fail(0).await.unwrap();
        let refused = array.fail(1).await.unwrap_err();
        assert!(matches!(refused, ManageError::Needed { why: Need::LastCopy, .. }), "{refused}");
        array.stop().await.unwrap();
    });
}
