//! Superblocks.

use ashlar_btrfs::ondisk::superblock::{OFFSETS, SUPERBLOCK_SIZE, Superblock};
use ashlar_btrfs::scrub::{Options, ProblemKind, Repair, SuperError};
use ashlar_btrfs::units::{DevId, Physical};
use zerocopy::IntoBytes;

use super::common::{
    Damage, Place, assert_all, assert_same, damage, places, read_only, scrub, snapshots, writes,
};
use crate::support::Rig;

fn copies(devid: u64, which: &[usize]) -> Vec<Place> {
    which.iter().map(|copy| (DevId(devid), OFFSETS[*copy], SUPERBLOCK_SIZE as u64)).collect()
}

/// Damages every set of copies, except all of them, on a device with three.
#[test]
fn superblocks_are_written_anew_from_a_good_one() {
    let sets: [&[usize]; 6] = [&[0], &[1], &[2], &[0, 1], &[0, 2], &[1, 2]];
    for set in sets {
        for how in [Damage::Bytes, Damage::Unreadable] {
            let rig = Rig::golden("huge");
            let then = snapshots(&rig);
            let spoilt = copies(1, set);
            damage(&rig, &rig.open(), &spoilt, how);
            let (reports, problems) = scrub(&rig, &rig.open(), read_only());
            assert_eq!(places(&problems), spoilt);
            assert_all(&problems, Repair::NotTried, "huge");
            assert_eq!(reports[0].counters.super_errors, set.len() as u64);
            assert_eq!(writes(&rig), 0);
            let (reports, problems) = scrub(&rig, &rig.open(), Options::default());
            assert_eq!(places(&problems), spoilt);
            assert_all(&problems, Repair::Done, "huge");
            assert_eq!(reports[0].counters.super_errors, set.len() as u64);
            assert_same(&rig, &then, "huge");
            let (_, problems) = scrub(&rig, &rig.open(), read_only());
            assert_eq!(problems, []);
        }
    }
}

/// Changes the superblock at `at`, and updates its checksum.
fn change(rig: &Rig, device: usize, at: Physical, change: impl FnOnce(&mut Superblock)) {
    let bytes = rig.peek(device, at.0, SUPERBLOCK_SIZE);
    let mut copy = Superblock::parse(&bytes, at).expect("it is good");
    change(&mut copy);
    let kind = copy.csum_kind();
    let csum = copy.checksum(kind);
    copy.csum[..kind.size()].copy_from_slice(csum.as_bytes());
    rig.patch(device, at.0, copy.as_bytes());
}

#[test]
fn an_outdated_copy_is_brought_up_to_date() {
    let rig = Rig::golden("raid1-sha256");
    let then = snapshots(&rig);
    change(&rig, 1, OFFSETS[1], |copy| copy.generation = (copy.generation.get() - 1).into());
    let fs = rig.open();
    let wanted = fs.superblock().generation.get();
    let (_, problems) = scrub(&rig, &fs, Options::default());
    assert_eq!(places(&problems), copies(2, &[1]));
    let kind = SuperError::Generation { found: wanted - 1, wanted };
    assert_eq!(problems[0].kind, ProblemKind::Super(kind));
    assert_all(&problems, Repair::Done, "raid1");
    assert_same(&rig, &then, "raid1");
}

/// A device that missed transactions has no good superblock, and gets none from another device.
#[test]
fn a_device_that_missed_transactions_is_left_alone() {
    let rig = Rig::golden("raid1-sha256");
    for at in &OFFSETS[..2] {
        change(&rig, 1, *at, |copy| copy.generation = (copy.generation.get() - 1).into());
    }
    let damaged = snapshots(&rig);
    let (reports, problems) = scrub(&rig, &rig.open(), Options::default());
    assert_eq!(places(&problems), copies(2, &[0, 1]));
    assert_all(&problems, Repair::Impossible, "raid1");
    assert_eq!(reports[1].counters.super_errors, 2);
    assert_same(&rig, &damaged, "raid1");
}

/// A valid copy from another device may be all that is left of another file system.
#[test]
fn a_good_copy_of_another_device_is_told_and_left_alone() {
    let rig = Rig::golden("raid1-sha256");
    let foreign = rig.peek(0, OFFSETS[1].0, SUPERBLOCK_SIZE);
    rig.patch(1, OFFSETS[1].0, &foreign);
    let then = snapshots(&rig);
    let (_, problems) = scrub(&rig, &rig.open(), Options::default());
    assert_eq!(places(&problems), copies(2, &[1]));
    assert!(matches!(problems[0].kind, ProblemKind::Super(SuperError::Foreign { .. })));
    assert_all(&problems, Repair::Impossible, "raid1");
    assert_same(&rig, &then, "raid1");
}

/// Only the first copies record an `fsync` log: it is restored from another first copy.
#[test]
fn a_first_copy_that_is_lost_keeps_the_log() {
    let rig = Rig::golden("log");
    let fs = rig.open();
    assert_ne!(fs.superblock().log_root.get(), 0, "the image has a log");
    let then = snapshots(&rig);
    damage(&rig, &fs, &copies(1, &[0]), Damage::Bytes);
    let (_, problems) = scrub(&rig, &rig.open(), Options::default());
    assert_eq!(places(&problems), copies(1, &[0]));
    assert_all(&problems, Repair::Done, "log");
    let at = OFFSETS[0];
    let copy = Superblock::parse(&rig.peek(0, at.0, SUPERBLOCK_SIZE), at).expect("it is good");
    assert_eq!(copy.log_root, fs.superblock().log_root);
    assert_eq!(copy.log_root_level, fs.superblock().log_root_level);
    assert_same(&rig, &then, "log");
}
