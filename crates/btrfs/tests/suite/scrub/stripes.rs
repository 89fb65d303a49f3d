//! File systems with a RAID stripe tree: damage is found where the tree places the data, and a
//! malicious tree causes no writes over other data.

use std::sync::Arc;

use ashlar_block::Status;
use ashlar_btrfs::error::ReadError;
use ashlar_btrfs::files::Files;
use ashlar_btrfs::ondisk::key::{Key, item, objectid};
use ashlar_btrfs::ondisk::node::{BlockExpectation, HEADER_SIZE};
use ashlar_btrfs::raid_stripe::StripeWalk;
use ashlar_btrfs::scrub::{Options, Problem, ProblemKind, Repair};
use ashlar_btrfs::units::{DevId, Logical, MirrorNum, Physical};
use ashlar_btrfs::volume::{FileSystem, OpenOptions};
use ashlar_files::{FileType, Piece, Place as InFs, Tree as _};
use ashlar_sim::Rng;

use super::common::{
    Block, Damage, Kind, Place, assert_all, assert_same, blocks, damage, medium, places, read_only,
    scrub, snapshots, writes,
};
use super::{assert_counters, kernel, told};
use crate::support::{Rig, items, patch, store_node};

/// All images with a RAID stripe tree.
const IMAGES: [&str; 5] =
    ["stripe-dup", "stripe-raid0", "stripe-raid1", "stripe-raid10", "stripe-scattered"];
/// Size of an item header.
const ITEM_SIZE: usize = 25;

/// The ranges that were damaged before the kernel's scrub.
fn spoilt(image: &str) -> Vec<Place> {
    let lines = told(image).lines().filter_map(|line| line.strip_prefix("spoilt "));
    let place = |line: &str| {
        let mut numbers = line.split(' ').map(|number| number.parse().expect("a number"));
        let mut next = || numbers.next().expect("three numbers");
        (DevId(next()), Physical(next()), next())
    };
    lines.map(place).collect()
}

#[test]
fn damage_is_counted_as_in_the_kernel_and_repaired_where_it_is() {
    for name in IMAGES {
        let rig = Rig::golden(name);
        let then = snapshots(&rig);
        let image = format!("{name} spoilt");
        let places_spoilt = spoilt(&image);
        assert!(places_spoilt.len() > 4, "{name}");
        damage(&rig, &rig.open(), &places_spoilt, Damage::Bytes);
        let damaged = snapshots(&rig);
        let (reports, problems) = scrub(&rig, &rig.open(), read_only());
        assert_counters(&reports, &kernel(&image), name);
        assert_eq!(places(&problems), places_spoilt, "{name}");
        assert_same(&rig, &damaged, name);

        let fs = rig.open();
        let (_, problems) = scrub(&rig, &fs, Options::default());
        assert_eq!(places(&problems), places_spoilt, "{name}");
        let is_lost = |problem: &&Problem| problem.repair == Repair::Impossible;
        assert!(problems.iter().filter(is_lost).count() >= 2, "{name}: two sectors are lost");
        // What is not in its chunk's order, or has no good copy, stays damaged; the rest is restored.
        let mut left: Vec<Place> = Vec::new();
        for problem in &problems {
            let Some(logical) = problem.logical else {
                assert_eq!(problem.repair, Repair::Done, "{name}: a superblock");
                continue;
            };
            let chunk = fs.chunks().get(logical).expect("mapped");
            let mirror = problem.mirror.expect("it is a copy");
            let in_order = chunk.locate(logical, mirror).expect("stored").at == problem.physical;
            match problem.repair {
                Repair::Done => assert!(in_order, "{name}: {problem}"),
                Repair::Failed(Status::NotSupported) => {
                    assert!(!in_order && name == "stripe-scattered", "{name}: {problem}");
                }
                Repair::Impossible => {}
                Repair::NotTried | Repair::Failed(_) => panic!("{name}: {problem}"),
            }
            if problem.repair != Repair::Done {
                left.push((problem.devid, problem.physical, problem.len.into()));
            }
        }
        damage(&rig, &fs, &left, Damage::Bytes);
        assert_same(&rig, &then, name);
    }
}

/// The contents of every file in the first subvolume; `None` if a part is lost.
async fn contents(fs: &Arc<FileSystem>) -> Vec<(InFs, Option<Vec<u8>>)> {
    let files = Files::open(fs, objectid::FS_TREE).await.expect("it is there");
    let (mut all, mut directories) = (Vec::new(), vec![files.root()]);
    while let Some(directory) = directories.pop() {
        let mut listing = files.entries(directory).await.expect("a directory");
        while let Some(entry) = listing.next().await.expect("sound") {
            match entry.kind {
                FileType::Directory => directories.push(entry.place),
                FileType::Regular => {
                    let mut reader = files.read(entry.place).await.expect("a file");
                    let mut whole = Some(Vec::new());
                    while let Some(piece) = reader.next().await {
                        match piece {
                            Piece::Data { bytes, .. } => {
                                whole.iter_mut().for_each(|all| all.extend_from_slice(&bytes));
                            }
                            Piece::Hole { len, .. } => whole
                                .iter_mut()
                                .for_each(|all| all.resize(all.len() + len as usize, 0)),
                            Piece::Lost { .. } => whole = None,
                        }
                    }
                    all.push((entry.place, whole));
                }
                FileType::Unknown
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Fifo
                | FileType::Socket
                | FileType::Symlink => {}
            }
        }
    }
    all
}

#[test]
fn a_missing_device_is_read_around() {
    for (name, devices) in [("stripe-raid1", 2), ("stripe-raid10", 4), ("stripe-scattered", 2)] {
        let rig = Rig::golden(name);
        let wanted = rig.run(contents(&rig.open()));
        assert!(wanted.len() > 10 && wanted.iter().all(|(_, bytes)| bytes.is_some()), "{name}");
        for gone in 0..devices {
            let there = rig.sources_of((0..devices).filter(|device| *device != gone));
            let options = OpenOptions { degraded: true, ..OpenOptions::default() };
            let opened = rig.run(FileSystem::open(there, options, rig.sim.runtime()));
            let fs = opened.expect("one copy of all is there");
            assert_eq!(rig.run(contents(&fs)), wanted, "{name} without {gone}");
            let (reports, problems) = scrub(&rig, &fs, Options::default());
            assert_eq!((reports.len(), problems), (devices - 1, vec![]), "{name} without {gone}");
        }
    }
}

/// The stripe tree's only leaf.
fn leaf(rig: &Rig, fs: &Arc<FileSystem>) -> (Logical, Vec<u8>) {
    let root = rig.run(fs.need_root(objectid::RAID_STRIPE_TREE)).expect("sound");
    assert_eq!(root.level, 0);
    let node = rig
        .run(fs.node(BlockExpectation { at: root.at, ..BlockExpectation::default() }))
        .expect("sound");
    (root.at, node.bytes().to_vec())
}

/// Changes that leaf on both devices, and updates its checksum.
fn change(rig: &Rig, fs: &Arc<FileSystem>, change: impl FnOnce(&mut [u8])) {
    let (at, mut bytes) = leaf(rig, fs);
    change(&mut bytes);
    store_node(fs, at, &mut bytes, |devid, at, bytes| {
        patch(medium(rig, fs, devid), at, bytes);
    });
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// The items: slot, first byte and length of the range, and offset of the first stride in the leaf.
fn stripes(rig: &Rig, fs: &Arc<FileSystem>) -> Vec<(usize, Logical, u64, usize)> {
    let root = rig.run(fs.need_root(objectid::RAID_STRIPE_TREE)).expect("sound");
    let (_, bytes) = leaf(rig, fs);
    let all = rig.run(items(fs, root)).into_iter();
    all.map(|(_, slot, key, _): (_, _, Key, _)| {
        assert_eq!(key.kind, item::RAID_STRIPE);
        let head = HEADER_SIZE + slot * ITEM_SIZE + 17;
        let data = u32::from_le_bytes(bytes[head..head + 4].try_into().expect("four bytes"));
        (slot, Logical(key.objectid), key.offset, HEADER_SIZE + data as usize)
    })
    .collect()
}

/// Length of the only long item of `stripe-raid1`, which holds only data.
const LONG: u64 = 204_800;

#[test]
fn an_item_that_cannot_be_has_nothing_written_and_what_it_is_for_is_named() {
    type Change = fn(&mut [u8], head: usize, strides: usize);
    // The change, the error, and the number of affected copies.
    let cases: [(Change, &str, usize); 10] = [
        (|leaf, _, at| put(leaf, at, 77), "no copy on device", 1),
        (|leaf, _, at| put(leaf, at + 8, 1 << 40), "not in the part of device", 1),
        (|leaf, _, at| put(leaf, at + 8, 64 << 10), "not in the part of device", 1),
        (|leaf, _, at| put(leaf, at + 8, !4095), "not in the part of device", 1),
        (|leaf, _, at| put(leaf, at + 8, 131_137_537), "not a multiple of the sector size", 2),
        (|leaf, head, _| put(leaf, head + 9, 0), "not of whole sectors", 2),
        (|leaf, head, _| put(leaf, head + 9, LONG + 1), "not of whole sectors", 2),
        (|leaf, head, _| put(leaf, head + 9, !4095), "not of whole sectors", 2),
        (|leaf, head, _| put(leaf, head + 9, 100 << 20), "overlaps the next item", 2),
        (|leaf, head, _| leaf[head + 8] = item::RAID_STRIPE - 1, "not a RAID stripe", 2),
    ];
    for (how, wanted, copies) in cases {
        let rig = Rig::golden("stripe-raid1");
        let fs = rig.open();
        let all = stripes(&rig, &fs);
        let (slot, start, len, strides) =
            *all.iter().find(|(_, _, len, _)| *len == LONG).expect("it is there");
        let before = rig.run(contents(&fs));
        change(&rig, &fs, |leaf| how(leaf, HEADER_SIZE + slot * ITEM_SIZE, strides));
        let then = snapshots(&rig);
        let fs = rig.open();
        let (reports, problems) = scrub(&rig, &fs, Options::default());
        assert_eq!(problems.len() as u64, copies as u64 * len / 4096, "{wanted}");
        for problem in &problems {
            let ProblemKind::Place(ReadError::StripeTree(why)) = &problem.kind else {
                panic!("{wanted}: {problem}");
            };
            assert!(why.to_string().contains(wanted), "{why}, wanted {wanted}");
            let logical = problem.logical.expect("it is data");
            assert!(logical >= start && logical.0 < start.0 + len, "{problem}");
        }
        assert_all(&problems, Repair::Impossible, wanted);
        let lost: u64 = reports.iter().map(|report| report.counters.uncorrectable_errors).sum();
        assert_eq!(lost, problems.len() as u64, "{wanted}");
        assert_same(&rig, &then, wanted);
        assert_eq!(writes(&rig), 0, "{wanted}");
        // A file with another good copy is readable; only a file without one is lost.
        let after = rig.run(contents(&fs));
        let lost: Vec<_> = after.iter().filter(|(_, bytes)| bytes.is_none()).collect();
        assert_eq!(lost.len(), copies - 1, "{wanted}");
        for (found, wanted) in after.iter().zip(&before).filter(|(found, _)| found.1.is_some()) {
            assert_eq!(found, wanted);
        }
    }
}

#[test]
fn an_item_without_copies_is_told() {
    let rig = Rig::golden("stripe-raid1");
    let fs = rig.open();
    let (slot, start, ..) = *stripes(&rig, &fs).last().expect("there are some");
    // The data of the last item is the lowest of the leaf: any length is valid.
    change(&rig, &fs, |leaf| {
        let at = HEADER_SIZE + slot * ITEM_SIZE + 17;
        let data = u32::from_le_bytes(leaf[at..at + 4].try_into().expect("four bytes"));
        leaf[at..at + 4].copy_from_slice(&(data + 32).to_le_bytes());
        leaf[at + 4..at + 8].copy_from_slice(&[0; 4]);
    });
    let fs = rig.open();
    let chunk = fs.chunks().get(start).expect("mapped");
    let found = rig.run(async { StripeWalk::new(&fs).locate(chunk, start, MirrorNum(1)).await });
    assert!(matches!(found, Err(ReadError::StripeTree(_))), "{found:?}");
    let (_, problems) = scrub(&rig, &fs, Options::default());
    assert!(!problems.is_empty());
    assert_all(&problems, Repair::Impossible, "no copies");
    assert_eq!(writes(&rig), 0);
}

/// An item that claims the place of other data: that data is good, and stays.
#[test]
fn what_another_item_has_there_is_not_overwritten() {
    let rig = Rig::golden("stripe-raid1");
    let fs = rig.open();
    let all = stripes(&rig, &fs);
    let (_, start, len, strides) =
        *all.iter().find(|(_, _, len, _)| *len == LONG).expect("it is there");
    let before = rig.run(contents(&fs));
    let chunk = fs.chunks().get(start).expect("mapped");
    let (_, other, ..) = *all
        .iter()
        .find(|it| it.1 < start && fs.chunks().get(it.1) == Some(chunk))
        .expect("data of another file");
    let theirs = chunk.locate(other, MirrorNum(1)).expect("stored");
    let mut devid = DevId(0);
    change(&rig, &fs, |leaf| {
        devid = DevId(u64::from_le_bytes(leaf[strides..strides + 8].try_into().expect("eight")));
        put(leaf, strides + 8, theirs.at.0);
    });
    assert_eq!(devid, theirs.devid, "its first copy is the chunk's first");
    let then = snapshots(&rig);
    let fs = rig.open();
    let (_, problems) = scrub(&rig, &fs, Options::default());
    assert_eq!(problems.len() as u64, len / 4096);
    assert!(problems.iter().all(|problem| problem.kind == ProblemKind::Checksum));
    assert_all(&problems, Repair::Failed(Status::NotSupported), "another's place");
    assert_same(&rig, &then, "another's place");
    assert_eq!(writes(&rig), 0);
    assert_eq!(rig.run(contents(&fs)), before, "the other copy has it all");
}

#[test]
fn a_lost_stripe_tree_is_told_for_all_its_data_and_nothing_is_written() {
    let rig = Rig::golden("stripe-raid10");
    let fs = rig.open();
    let data: Vec<Block> =
        blocks(&rig, &fs).into_iter().filter(|block| block.kind == Kind::Data).collect();
    let (at, _) = leaf(&rig, &fs);
    for mirror in [1, 2].map(MirrorNum) {
        rig.damage(&fs, at, 4096, mirror);
    }
    let then = snapshots(&rig);
    let fs = rig.open();
    let (_, problems) = scrub(&rig, &fs, Options::default());
    let (unplaced, others): (Vec<&Problem>, Vec<&Problem>) =
        problems.iter().partition(|problem| matches!(problem.kind, ProblemKind::Place(_)));
    for block in data {
        let of_block = unplaced.iter().filter(|problem| problem.logical == Some(block.start));
        assert_eq!(of_block.count(), 2, "{block:?}");
    }
    assert!(others.iter().all(|problem| problem.logical == Some(at)), "{others:?}");
    assert_all(&problems, Repair::Impossible, "no stripe tree");
    assert_same(&rig, &then, "no stripe tree");
}

/// Whatever the stripe tree says, valid data is never overwritten, and everything ends.
#[test]
fn no_stripe_tree_makes_a_scrub_write_to_what_is_sound() {
    let mut rng = Rng::new(11);
    let mut refused = 0;
    for round in 0..150 {
        let rig = Rig::golden(IMAGES[round % IMAGES.len()]);
        let fs = rig.open();
        let count = stripes(&rig, &fs).len();
        let (_, bytes) = leaf(&rig, &fs);
        change(&rig, &fs, |leaf| {
            for _ in 0..=rng.below(6) {
                // In the headers of the items, or in their data.
                let heads = HEADER_SIZE..HEADER_SIZE + count * ITEM_SIZE;
                let data = bytes.len() - count * 16..bytes.len();
                let range = if rng.below(2) == 0 { heads } else { data };
                let at = range.start + rng.below(range.len() as u64 - 1) as usize;
                leaf[at] = [0, 0xff, rng.below(256) as u8, leaf[at] ^ 0x10][rng.below(4) as usize];
            }
        });
        let then = snapshots(&rig);
        let fs = rig.open();
        let (_, problems) = scrub(&rig, &fs, Options::default());
        refused += usize::from(!problems.is_empty());
        assert!(problems.iter().all(|problem| problem.repair != Repair::Done), "round {round}");
        assert_same(&rig, &then, &format!("round {round}"));
        drop(rig.run(contents(&fs)));
    }
    assert!(refused > 100, "{refused} of 150 are refused");
}
