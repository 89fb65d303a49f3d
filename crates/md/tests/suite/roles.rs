//! Tables of roles: numbers that do not fit, and tables of version 0.90 that differ.

use crate::common::{
    Shape, candidates, disks, gateway, make_with, media, spec, stamped, start, write,
};
use ashlar_block::{Sector, Sectors};
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::ondisk::superblock::BadBlockLogPlace;
use ashlar_md::ondisk::superblock_0_90::{Block090, disk, state};
use ashlar_md::ondisk::{Level, MAGIC, Role, Superblock, Version};
use ashlar_md::{AssembleError, MemberStatus, Options, plan, probe};
use ashlar_sim::{Media, Sim, SimDisk};
use zerocopy::IntoBytes;

const DISK: Sectors = Sectors(4096);
const RW: Options = Options { run: false, read_only: false, force: false };
const RUN: Options = Options { run: true, read_only: false, force: false };

/// The numbers that a superblock of 4 KiB cannot have in its table.
const IMPOSSIBLE: [u32; 5] = [1920, 1921, 200_000_000, 0x8000_0000, u32::MAX];

async fn edit(disk: &SimDisk, change: impl FnOnce(&mut Superblock)) {
    let mut sb = probe(&disk.gateway()).await.unwrap().unwrap();
    change(&mut sb);
    disk.media().poke(sb.super_offset, &sb.encode(512).unwrap());
}

/// Starts the array, and asserts that what is written to it is on its first member, and recorded as clean when it stops.
/// Returns its members.
async fn use_it(sim: &Sim, disks: &[SimDisk], generation: u8) -> Vec<MemberStatus> {
    let array = start(sim, disks, &RUN).await.unwrap();
    write(&gateway(&array), 0, 8, generation).await.unwrap();
    gateway(&array).flush().await.unwrap();
    array.sync_ended().await;
    let members = array.status().await.members;
    array.stop().await.unwrap();
    let got = gateway(&start(sim, disks, &RUN).await.unwrap());
    assert!(got.read(Sector(0), Sectors(8)).await.unwrap().as_slice() == stamped(0, 8, generation));
    assert!(probe(&disks[0].gateway()).await.unwrap().unwrap().is_clean());
    members
}

fn in_sync(members: &[MemberStatus]) -> Vec<&str> {
    let in_sync = members.iter().filter(|member| member.in_sync);
    in_sync.filter_map(|member| member.path.as_deref()).collect()
}

/// An array of version 1 with a bitmap, on two disks.
async fn make_1(version: Version, disks: &[SimDisk]) {
    let shape = Shape { version, ..Shape::new(Level::Raid1, None, 0, 2) };
    let mut spec = spec(&shape, &[DISK; 2]);
    spec.bitmap = NewBitmap::Internal { chunk: None };
    make_with(&spec, disks).await;
}

/// The table of roles was extended up to the number: 8 GiB of memory, or superblocks that nothing could be recorded in.
#[test]
fn a_member_with_an_impossible_number_is_left_out_and_the_others_stay_writable() {
    for version in [Version::V1_0, Version::V1_1, Version::V1_2] {
        for number in IMPOSSIBLE {
            let media = media(2, DISK);
            let sim = Sim::new(1);
            sim.block_on(async {
                let disks = disks(&media);
                make_1(version, &disks).await;
                edit(&disks[1], |sb| sb.dev_number = number).await;
                let notes = plan(candidates(&disks).await, &RUN).await.unwrap().notes;
                assert!(notes[0].starts_with("d1 left out: it has the number "), "{notes:?}");
                let members = use_it(&sim, &disks, 1).await;
                assert_eq!(in_sync(&members), ["d0"], "{version}, {number}");
                assert!(probe(&disks[0].gateway()).await.unwrap().unwrap().roles.len() < 200);
            });
        }
    }
}

#[test]
fn a_spare_with_the_highest_number_is_rebuilt_and_stays_a_member() {
    for number in [128, 1919] {
        let media = media(2, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            let disks = disks(&media);
            make_1(Version::V1_2, &disks).await;
            edit(&disks[1], |sb| sb.dev_number = number).await;
            for generation in [1, 2] {
                let members = use_it(&sim, &disks, generation).await;
                assert_eq!(in_sync(&members), ["d0", "d1"]);
            }
            let sb = probe(&disks[0].gateway()).await.unwrap().unwrap();
            assert_eq!(sb.roles.get(number as usize), Some(&Role::Active(1)));
        });
    }
}

/// A bitmap 1 KiB behind the superblock, where mdadm puts it if a 1.0 array has no other room, limits the table to 384 roles.
#[test]
fn a_number_without_room_before_the_bitmap_is_left_out() {
    for (number, fits) in [(383, true), (384, false), (1919, false)] {
        let media = media(2, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            let disks = disks(&media);
            make_1(Version::V1_0, &disks).await;
            edit(&disks[0], |sb| sb.bitmap_offset = Some(2)).await;
            edit(&disks[1], |sb| (sb.bitmap_offset, sb.dev_number) = (Some(2), number)).await;
            assert_eq!(probe(&disks[0].gateway()).await.unwrap().unwrap().room(), 384);
            let members = use_it(&sim, &disks, 1).await;
            assert_eq!(in_sync(&members).contains(&"d1"), fits, "{number}");
        });
    }
}

/// A member that cannot list the others would make them spares when it is the freshest.
#[test]
fn a_member_without_room_for_the_roles_of_the_others_is_left_out() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        make_1(Version::V1_0, &disks).await;
        let place = BadBlockLogPlace { offset: 2, len: Sectors(1), shift: 0 };
        edit(&disks[1], |sb| sb.bad_block_log = Some(place)).await;
        edit(&disks[0], |sb| {
            sb.events += 1;
            sb.roles.resize(385, Role::Spare);
            sb.roles[384] = Role::Faulty;
        })
        .await;
        let notes = plan(candidates(&disks).await, &RUN).await.unwrap().notes;
        let why = "d1 left out: its superblock has room for 384 members, and must list 385";
        assert!(notes.iter().any(|note| note == why), "{notes:?}");
        assert_eq!(in_sync(&use_it(&sim, &disks, 1).await), ["d0"]);
        // A long table that names nobody is no reason.
        edit(&disks[0], |sb| sb.roles.fill(Role::Spare)).await;
        edit(&disks[0], |sb| sb.roles[..2].copy_from_slice(&[Role::Active(0), Role::Active(1)]))
            .await;
        let events = probe(&disks[0].gateway()).await.unwrap().unwrap().events;
        edit(&disks[1], |sb| sb.events = events).await;
        assert_eq!(in_sync(&use_it(&sim, &disks, 2).await), ["d0", "d1"]);
    });
}

/// A member's number, its events, and the slot and the state of each descriptor.
type Table<'a> = (u32, u64, &'a [(u32, u32)]);

/// The 0.90 superblocks of a RAID1: `tables[n]` has the state of each descriptor on disk n, and its events; the member's number is n, or
/// as given.
fn old(media: &[Media], tables: &[Table]) {
    let place = Version::V0_90.super_offset(DISK).unwrap();
    for (medium, (number, events, table)) in media.iter().zip(tables) {
        let mut block = Block090::from_bytes(&[0; 4096]).unwrap();
        block.md_magic = MAGIC.into();
        block.minor_version = 90.into();
        block.set_uuid0 = 7.into();
        block.level = 1.into();
        block.size = 1024.into();
        block.raid_disks = (media.len() as u32).into();
        block.state = state::CLEAN.into();
        block.set_events(*events);
        for ((number, (slot, state)), entry) in (0..).zip(*table).zip(&mut block.disks) {
            (entry.number, entry.raid_disk) = (number.into(), (*slot).into());
            (entry.major, entry.minor, entry.state) = (8.into(), number.into(), (*state).into());
        }
        block.this_disk.number = (*number).into();
        if let Some(own) = block.disks.get(*number as usize) {
            block.this_disk = own.clone();
        }
        block.set_resync_offset(u64::MAX);
        block.seal();
        medium.poke(place, block.as_bytes());
    }
}

const ACTIVE: u32 = disk::ACTIVE | disk::SYNC;
const SPARE: u32 = 0;
const GONE: u32 = disk::FAULTY | disk::REMOVED;

/// A test on disks with these superblocks.
fn on_old(tables: &[Table], test: impl AsyncFnOnce(&Sim, &[SimDisk])) {
    let media = media(tables.len(), DISK);
    old(&media, tables);
    let sim = Sim::new(1);
    sim.block_on(async { test(&sim, &disks(&media)).await });
}

#[test]
fn a_0_90_member_with_an_impossible_number_is_left_out_and_the_others_stay_writable() {
    for number in [27, 28, 0x8000_0000, u32::MAX] {
        let table: &[_] = &[(0, ACTIVE), (1, GONE)];
        on_old(&[(0, 10, table), (number, 10, table)], async |sim, disks| {
            let notes = plan(candidates(disks).await, &RUN).await.unwrap().notes;
            assert!(notes[0].starts_with("d1 left out: it has the number "), "{notes:?}");
            assert_eq!(in_sync(&use_it(sim, disks, 1).await), ["d0"]);
        });
    }
}

/// The rebuild of a member ended, its number changed from 2 to 1 as with the kernel, and power failed before the other one knew that.
#[test]
fn a_0_90_member_that_does_not_know_yet_that_the_other_is_rebuilt_stays() {
    let before: &[_] = &[(0, ACTIVE), (1, GONE), (2, SPARE)];
    let after: &[_] = &[(0, ACTIVE), (1, ACTIVE)];
    on_old(&[(0, 9, before), (1, 10, after)], async |sim, disks| {
        for generation in [1, 2] {
            assert_eq!(in_sync(&use_it(sim, disks, generation).await), ["d0", "d1"]);
        }
        for disk in disks {
            let sb = probe(&disk.gateway()).await.unwrap().unwrap();
            assert_eq!(sb.roles[..2], [Role::Active(0), Role::Active(1)]);
            let block = sb.block_0_90().unwrap();
            let counts = [block.nr_disks, block.active_disks, block.spare_disks];
            assert_eq!(counts.map(|n| n.get()), [2, 2, 0]);
            assert_eq!(block.this_disk, block.disks[sb.dev_number as usize]);
        }
    });
}

/// As before, but the rebuilt one does not know it: it is a spare, and the array is written without it.
#[test]
fn a_0_90_member_that_does_not_know_yet_that_it_is_rebuilt_is_a_spare() {
    // The second has the number that it has, or already that of the slot.
    let before: [(u32, &[_]); 2] =
        [(2, &[(0, ACTIVE), (1, GONE), (2, SPARE)]), (1, &[(0, ACTIVE), (2, SPARE)])];
    for (number, before) in before {
        for events in [9, 10] {
            let after: &[_] = &[(0, ACTIVE), (1, ACTIVE)];
            on_old(&[(0, 10, after), (number, events, before)], async |sim, disks| {
                for generation in [1, 2] {
                    let members = use_it(sim, disks, generation).await;
                    assert_eq!(in_sync(&members), ["d0"]);
                    let spare = members.iter().find(|m| m.path.as_deref() == Some("d1")).unwrap();
                    assert!(spare.is_spare());
                }
                let sb = probe(&disks[0].gateway()).await.unwrap().unwrap();
                assert!(!matches!(sb.roles[1], Role::Active(_)));
            });
        }
    }
}

/// No update leaves that, so it is unknown which of them is right.
#[test]
fn equally_fresh_0_90_members_must_agree_on_which_are_active() {
    let (one, both): (&[_], &[_]) = (&[(0, ACTIVE), (2, SPARE)], &[(0, ACTIVE), (1, ACTIVE)]);
    on_old(&[(0, 10, one), (1, 10, both)], async |sim, disks| {
        for disks in [[&disks[0], &disks[1]], [&disks[1], &disks[0]]] {
            for options in [RW, RUN] {
                let refused = plan(candidates(&disks).await, &options).await.err();
                let what =
                    matches!(refused, Some(AssembleError::Disagree { what: "active members", .. }));
                assert!(what, "{refused:?}");
            }
        }
        // The user decides.
        assert_eq!(in_sync(&use_it(sim, &disks[..1], 1).await), ["d0"]);
    });
    // Most know.
    let three: &[_] = &[(0, ACTIVE), (1, ACTIVE), (2, ACTIVE)];
    let two: &[_] = &[(0, ACTIVE), (1, ACTIVE), (2, SPARE)];
    on_old(&[(0, 10, three), (1, 10, two), (2, 10, three)], async |sim, disks| {
        assert_eq!(in_sync(&use_it(sim, disks, 1).await), ["d0", "d2"]);
    });
}

/// A crash while several members are recorded: all of them but the one that is rebuilt know it.
#[test]
fn a_0_90_array_of_three_starts_whichever_of_them_know_the_last_update() {
    let before: &[_] = &[(0, ACTIVE), (1, ACTIVE), (2, GONE), (3, SPARE)];
    let after: &[_] = &[(0, ACTIVE), (1, ACTIVE), (2, ACTIVE)];
    for known in 1..7_u32 {
        let knows = |slot: u32| known >> slot & 1 == 1;
        let table = |slot| if knows(slot) { (slot, 10, after) } else { (slot, 9, before) };
        let third = if knows(2) { (2, 10, after) } else { (3, 9, before) };
        on_old(&[table(0), table(1), third], async |sim, disks| {
            let members = use_it(sim, disks, 1).await;
            let all = ["d0", "d1", "d2"];
            assert_eq!(in_sync(&members), all[..if knows(2) { 3 } else { 2 }], "{known:b}");
        });
    }
}
