//! Damaged blocks: found exactly, and repaired bit for bit where possible.

use ashlar_block::Status;
use ashlar_btrfs::ondisk::key::objectid;
use ashlar_btrfs::scrub::{Options, ProblemKind, Repair};
use ashlar_btrfs::units::{DevId, MirrorNum};
use ashlar_btrfs::volume::OpenOptions;
use ashlar_sim::Rng;

use super::common::{
    Block, Damage, Kind, Place, assert_all, assert_same, blocks, damage, medium, parity_places,
    place, places, read_only, scrub, snapshots, writes,
};
use crate::support::{MIRRORED, PARITY, Rig};

/// The blocks in which changed bytes can be detected.
fn verifiable(blocks: &[Block]) -> Vec<Block> {
    blocks.iter().copied().filter(|block| block.kind != Kind::NoSum).collect()
}

/// Damages parts of an image, scrubs, and asserts that exactly these are found and repaired; first
/// that a read-only scrub finds the same and writes nothing.
fn round(name: &str, choose: impl Fn(&Rig) -> Vec<Place>, how: Damage) {
    let rig = Rig::golden(name);
    let then = snapshots(&rig);
    let mut spoilt = choose(&rig);
    spoilt.sort();
    assert!(!spoilt.is_empty(), "{name}");
    damage(&rig, &rig.open(), &spoilt, how);
    let fs = rig.open();
    let damaged = snapshots(&rig);
    let (reports, problems) = scrub(&rig, &fs, read_only());
    assert_eq!(places(&problems), spoilt, "{name}, {how:?}, read-only");
    assert_all(&problems, Repair::NotTried, name);
    assert_same(&rig, &damaged, name);
    assert_eq!(writes(&rig), 0, "{name}");
    let sectors: u64 = spoilt.iter().map(|(_, _, len)| len / u64::from(fs.sectorsize())).sum();
    let all = reports.iter().fold(Default::default(), |all: ashlar_btrfs::scrub::Counters, one| {
        all.plus(&one.counters)
    });
    let found = all.read_errors + all.csum_errors + all.verify_errors;
    assert_eq!((found, all.corrected_errors), (sectors, sectors), "{name}, {how:?}");
    assert_eq!((all.uncorrectable_errors, all.unverified_errors), (0, 0), "{name}, {how:?}");

    let (_, problems) = scrub(&rig, &fs, Options::default());
    assert_eq!(places(&problems), spoilt, "{name}, {how:?}");
    assert_all(&problems, Repair::Done, name);
    for problem in &problems {
        let is_read = matches!(problem.kind, ProblemKind::Read(Status::Medium));
        assert_eq!(is_read, how == Damage::Unreadable, "{name}: {problem}");
    }
    assert_same(&rig, &then, name);
    let (_, problems) = scrub(&rig, &rig.open(), read_only());
    assert_eq!(problems, [], "{name}, {how:?}: after the repair");
}

/// One copy of everything is damaged.
#[test]
fn each_copy_in_turn_is_repaired_from_the_others() {
    for name in MIRRORED {
        let copies = match name {
            "raid1c3" => 3,
            "raid1c4" => 4,
            _ => 2,
        };
        for copy in 1..=copies {
            for how in [Damage::Bytes, Damage::Unreadable] {
                let choose = |rig: &Rig| {
                    let fs = rig.open();
                    let mut all = blocks(rig, &fs);
                    if how == Damage::Bytes {
                        all = verifiable(&all);
                    }
                    all.iter().map(|block| place(&fs, block, MirrorNum(copy))).collect()
                };
                round(name, choose, how);
            }
        }
    }
}

/// All copies but one are damaged, a different one for each block.
#[test]
fn one_good_copy_anywhere_is_enough() {
    for name in MIRRORED {
        for seed in 0..4 {
            let choose = |rig: &Rig| {
                let fs = rig.open();
                let mut rng = Rng::new(seed);
                let mut spoilt = Vec::new();
                for block in verifiable(&blocks(rig, &fs)) {
                    let mirrors = fs.chunks().get(block.start).expect("a chunk").mirrors();
                    let left = rng.below(u64::from(mirrors)) as u8 + 1;
                    let bad = (1..=mirrors).filter(|mirror| *mirror != left);
                    spoilt.extend(bad.map(|mirror| place(&fs, &block, MirrorNum(mirror))));
                }
                spoilt
            };
            round(name, choose, Damage::Bytes);
        }
    }
}

/// Everything on some devices: data, tree blocks, parity.
fn of_devices(rig: &Rig, devices: &[u64], how: Damage) -> Vec<Place> {
    let fs = rig.open();
    let all = blocks(rig, &fs);
    let chosen = if how == Damage::Bytes { verifiable(&all) } else { all.clone() };
    let data = chosen.iter().map(|block| place(&fs, block, MirrorNum(1)));
    let parity = parity_places(&fs, &all);
    data.chain(parity).filter(|(devid, _, _)| devices.contains(&devid.0)).collect()
}

#[test]
fn a_lost_stripe_of_a_row_with_parity_comes_back() {
    for (name, devices) in [("raid5", 3), ("raid6", 4)] {
        for devid in 1..=devices {
            for how in [Damage::Bytes, Damage::Unreadable] {
                round(name, |rig| of_devices(rig, &[devid], how), how);
            }
        }
    }
}

#[test]
fn two_lost_stripes_of_a_row_with_two_parities_come_back() {
    for first in 1..=4 {
        for second in first + 1..=4 {
            for how in [Damage::Bytes, Damage::Unreadable] {
                round("raid6", |rig| of_devices(rig, &[first, second], how), how);
            }
        }
    }
}

/// All parity, and nothing else.
#[test]
fn parity_is_computed_anew_from_good_data() {
    for name in PARITY {
        for how in [Damage::Bytes, Damage::Unreadable] {
            let choose = |rig: &Rig| {
                let fs = rig.open();
                parity_places(&fs, &blocks(rig, &fs))
            };
            round(name, choose, how);
        }
    }
}

/// For data that is lost for good, parity is neither trusted nor written.
#[test]
fn parity_of_lost_data_is_not_written() {
    let rig = Rig::golden("raid5");
    let fs = rig.open();
    let all = verifiable(&blocks(&rig, &fs));
    let lost = *all.iter().find(|block| block.kind == Kind::Data).expect("there is data");
    let mut spoilt = vec![place(&fs, &lost, MirrorNum(1))];
    spoilt.extend(parity_places(&fs, &[lost]));
    spoilt.sort();
    damage(&rig, &fs, &spoilt, Damage::Bytes);
    let damaged = snapshots(&rig);
    let (reports, problems) = scrub(&rig, &rig.open(), Options::default());
    assert_eq!(places(&problems), spoilt);
    assert_all(&problems, Repair::Impossible, "raid5");
    let kinds: Vec<bool> =
        problems.iter().map(|problem| problem.kind == ProblemKind::ParityUnverified).collect();
    assert_eq!(kinds.iter().filter(|is_parity| **is_parity).count(), 1, "{problems:?}");
    assert_same(&rig, &damaged, "raid5");
    assert_eq!(writes(&rig), 0);
    let unverified: u64 = reports.iter().map(|report| report.counters.unverified_errors).sum();
    assert_eq!(unverified, 1);
}

/// Without a second copy: the list of problems is exact, and nothing is written.
#[test]
fn without_redundancy_all_is_told_and_nothing_written() {
    for name in ["single-4k", "single-16k", "large-node", "mixed", "raid0"] {
        for how in [Damage::Bytes, Damage::Unreadable] {
            let rig = Rig::golden(name);
            let fs = rig.open();
            let mut all = blocks(&rig, &fs);
            if how == Damage::Bytes {
                all = verifiable(&all);
            }
            // Trees that the scrub itself needs must stay valid.
            let is_spoilt = |block: &&Block| match block.kind {
                Kind::Tree(owner) => owner.is_some_and(|owner| {
                    owner == objectid::FS_TREE || (objectid::FIRST_FREE..1 << 32).contains(&owner)
                }),
                Kind::Data | Kind::NoSum => true,
            };
            let spoilt = all.iter().filter(is_spoilt).map(|block| place(&fs, block, MirrorNum(1)));
            let mut spoilt: Vec<Place> = spoilt.collect();
            spoilt.sort();
            damage(&rig, &fs, &spoilt, how);
            let damaged = snapshots(&rig);
            let (reports, problems) = scrub(&rig, &rig.open(), Options::default());
            assert_eq!(places(&problems), spoilt, "{name}, {how:?}");
            assert_all(&problems, Repair::Impossible, name);
            assert!(problems.iter().any(ashlar_btrfs::scrub::Problem::is_metadata), "{name}");
            assert_same(&rig, &damaged, name);
            assert_eq!(writes(&rig), 0, "{name}");
            let lost: u64 = reports.iter().map(|one| one.counters.uncorrectable_errors).sum();
            let bytes: u64 = spoilt.iter().map(|(_, _, len)| len).sum();
            assert_eq!(lost, bytes / u64::from(fs.sectorsize()), "{name}, {how:?}");
        }
    }
}

/// A disk on which writes fail: each block is reported, and the scrub continues to the end.
#[test]
fn writes_that_fail_are_told() {
    let rig = Rig::golden("raid1-sha256");
    let fs = rig.open();
    let all = verifiable(&blocks(&rig, &fs));
    let mut spoilt: Vec<Place> = all.iter().map(|block| place(&fs, block, MirrorNum(1))).collect();
    spoilt.sort();
    damage(&rig, &fs, &spoilt, Damage::Bytes);
    let damaged = snapshots(&rig);
    for devid in [1, 2] {
        let media = medium(&rig, &fs, DevId(devid));
        media.fail_writes(0..media.capacity().0);
    }
    let (reports, problems) = scrub(&rig, &rig.open(), Options::default());
    assert_eq!(places(&problems), spoilt);
    assert_all(&problems, Repair::Failed(Status::Io), "raid1");
    assert_same(&rig, &damaged, "raid1");
    let counted: u64 = reports.iter().map(|one| one.counters.uncorrectable_errors).sum();
    assert_eq!(counted, spoilt.len() as u64);
}

/// A tree block of which no copy is fully readable is assembled from several.
#[test]
fn a_tree_block_is_put_together_from_sectors_of_several_copies() {
    let rig = Rig::golden("dup-xxhash");
    let fs = rig.open();
    let then = snapshots(&rig);
    let all = blocks(&rig, &fs);
    let tree = |block: &&Block| block.kind == Kind::Tree(Some(objectid::FS_TREE));
    let block = all.iter().find(tree).expect("the file system's tree");
    let sector = u64::from(fs.sectorsize());
    let part = |mirror: u8, sector_nr: u64| {
        let (devid, at, _) = place(&fs, block, MirrorNum(mirror));
        (devid, ashlar_btrfs::units::Physical(at.0 + sector_nr * sector), sector)
    };
    let spoilt = [part(1, 0), part(1, 1), part(2, 3)];
    damage(&rig, &fs, &spoilt, Damage::Unreadable);
    let (reports, problems) = scrub(&rig, &fs, Options::default());
    let mut wanted = vec![place(&fs, block, MirrorNum(1)), place(&fs, block, MirrorNum(2))];
    wanted.sort();
    assert_eq!(places(&problems), wanted);
    assert_all(&problems, Repair::Done, "dup");
    assert_eq!(reports[0].counters.read_errors, 3);
    assert_eq!(reports[0].counters.corrected_errors, 8);
    assert_same(&rig, &then, "dup");
}

/// Copies on a missing device are skipped; bad blocks elsewhere are repaired.
#[test]
fn with_a_missing_device_the_others_are_scrubbed() {
    for name in ["raid1c3", "raid1c4", "raid6"] {
        let rig = Rig::golden(name);
        let then = snapshots(&rig);
        let all = {
            let fs = rig.open();
            let all = verifiable(&blocks(&rig, &fs));
            let of_device_2 = all.iter().flat_map(|block| {
                let chunk = fs.chunks().get(block.start).expect("a chunk");
                let stored = chunk.all_mirrors().filter(|mirror| chunk.is_stored(*mirror));
                stored.map(|mirror| place(&fs, block, mirror)).collect::<Vec<_>>()
            });
            of_device_2.filter(|(devid, _, _)| *devid == DevId(2)).collect::<Vec<Place>>()
        };
        let mut spoilt = all;
        spoilt.sort();
        damage(&rig, &rig.open(), &spoilt, Damage::Bytes);
        let missing = OpenOptions { degraded: true, ..OpenOptions::default() };
        let sources = rig.sources_of(1..rig.media.len());
        let opened = ashlar_btrfs::volume::FileSystem::open(sources, missing, rig.sim.runtime());
        let fs = rig.run(opened).expect("there is enough");
        assert_eq!(fs.missing(), [DevId(1)], "{name}");
        let (reports, problems) = scrub(&rig, &fs, Options::default());
        assert_eq!(reports.len(), rig.media.len() - 1, "{name}");
        assert_eq!(places(&problems), spoilt, "{name}");
        assert_all(&problems, Repair::Done, name);
        assert_same(&rig, &then, name);
    }
}
