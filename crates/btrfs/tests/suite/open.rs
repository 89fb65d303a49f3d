//! What is refused or accepted when opening a file system: leftover superblocks, devices that
//! missed transactions, invalid trees.

use std::sync::Arc;

use crate::support::{Rig, golden_media, items, names};
use ashlar_btrfs::error::{OpenError, TreeError};
use ashlar_btrfs::ondisk::key::{Key, item, objectid};
use ashlar_btrfs::ondisk::node::{BlockExpectation, HEADER_SIZE, Header, KeyPtr, NodeError};
use ashlar_btrfs::ondisk::superblock::{
    FLAG_SEEDING, OFFSETS, SUPERBLOCK_SIZE, Superblock, SuperblockError,
};
use ashlar_btrfs::path::{Path, Root};
use ashlar_btrfs::scrub::{self, Problem, ProblemKind, Repair, Scrub, Sink, SuperError};
use ashlar_btrfs::units::{DevId, Logical, Physical};
use ashlar_btrfs::volume::{FileSystem, OpenOptions, Owner, SuperState, identify};
use futures_util::FutureExt;
use uuid::Uuid;
use zerocopy::IntoBytes;

const READ: OpenOptions = OpenOptions { degraded: false, writable: false, stale: false };
const WRITE: OpenOptions = OpenOptions { writable: true, ..READ };

/// The superblock at `at`, which must be valid.
fn superblock(rig: &Rig, device: usize, at: Physical) -> Box<Superblock> {
    let bytes = rig.peek(device, at.0, SUPERBLOCK_SIZE);
    Superblock::parse(&bytes, at).expect("it is good")
}

/// Changes the superblock at `at`, and updates its checksum.
fn change(rig: &Rig, device: usize, at: Physical, change: impl Fn(&mut Superblock)) {
    let mut copy = superblock(rig, device, at);
    change(&mut copy);
    let kind = copy.csum_kind();
    let csum = copy.checksum(kind);
    copy.csum[..kind.size()].copy_from_slice(csum.as_bytes());
    rig.patch(device, at.0, copy.as_bytes());
}

fn erase(rig: &Rig, device: usize, at: Physical) {
    rig.patch(device, at.0, &[0; SUPERBLOCK_SIZE]);
}

/// Changes all mirrors of a tree block, and updates its checksum.
fn change_node(rig: &Rig, fs: &FileSystem, at: Logical, change: impl Fn(&mut [u8])) {
    let chunk = fs.chunks().get(at).expect("it is in a chunk");
    for mirror in chunk.all_mirrors() {
        let place = chunk.locate(at, mirror).expect("the image has no parity");
        let name = &fs.device(place.devid).expect("it is there").name;
        let index: usize = name.trim_end_matches(".img").parse().expect("N.img");
        let mut bytes = rig.peek(index, place.at.0, fs.nodesize() as usize);
        change(&mut bytes);
        let csum = fs.identity().csum.compute(&bytes[32..]);
        bytes[..csum.as_bytes().len()].copy_from_slice(csum.as_bytes());
        rig.patch(index, place.at.0, &bytes);
    }
}

/// A tree with several leaves below a block.
async fn deep_tree(fs: &Arc<FileSystem>) -> Root {
    for (_, root) in fs.roots().await.expect("sound") {
        if root.level > 0 {
            return root;
        }
    }
    panic!("no tree has more than one block");
}

/// Walks over all items of a tree.
async fn walk(fs: &Arc<FileSystem>, root: Root) -> Result<(), TreeError> {
    let mut path = Path::new(fs, root);
    let mut more = path.search(Key::MIN).await?;
    while more {
        more = path.next().await?;
    }
    Ok(())
}

fn contents(error: &TreeError) -> &'static str {
    let TreeError::Damaged { why: NodeError::Contents { what, .. }, .. } = error else {
        panic!("another error: {error}")
    };
    what
}

#[test]
fn every_image_can_be_opened_for_writing() {
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.try_open(WRITE).unwrap_or_else(|error| panic!("{name}: {error}"));
        for device in fs.devices() {
            assert!(!device.is_by_backup(), "{name}");
            let generation = fs.superblock().generation.get();
            for (state, at) in device.supers.iter().zip(OFFSETS) {
                let is_there = at.0 + SUPERBLOCK_SIZE as u64 <= device.total_bytes;
                let wanted = SuperState::Good { generation };
                assert_eq!(*state, if is_there { wanted } else { SuperState::Absent }, "{name}");
            }
        }
    }
}

#[test]
fn a_device_without_its_first_superblock_is_there_by_backup() {
    let rig = Rig::golden("huge");
    erase(&rig, 0, OFFSETS[0]);
    let fs = rig.try_open(WRITE).expect("the backups agree");
    assert!(fs.devices()[0].is_by_backup());
    assert_eq!(fs.devices()[0].supers[0], SuperState::Bad(SuperblockError::Magic));
}

#[test]
fn a_device_whose_first_superblock_cannot_be_read_is_there_by_backup() {
    let rig = Rig::golden("huge");
    let first = OFFSETS[0].0 >> 9;
    rig.media[0].fail_reads(first..first + 8);
    let fs = rig.try_open(WRITE).expect("the backups agree");
    assert!(fs.devices()[0].is_by_backup());
}

#[test]
fn a_damaged_first_superblock_is_still_one() {
    let rig = Rig::golden("huge");
    rig.patch(0, OFFSETS[0].0 + 3000, b"damage");
    let fs = rig.try_open(WRITE).expect("the backups agree");
    let SuperState::Bad(why) = &fs.devices()[0].supers[0] else { panic!("it is damaged") };
    assert!(matches!(why, SuperblockError::Checksum { .. }));
    assert!(!fs.devices()[0].is_by_backup());
}

/// A file system was created over a larger one: the last copy of the old one remains, with a newer generation.
#[test]
fn a_newer_copy_of_another_file_system_or_device_counts_for_nothing() {
    let changes: [fn(&mut Superblock); 3] = [
        |copy| copy.fsid = [7; 16],
        |copy| copy.dev_item.uuid = [7; 16],
        |copy| copy.dev_item.devid = 9.into(),
    ];
    for copy in [1, 2] {
        for other in changes {
            let rig = Rig::golden("huge");
            let first = superblock(&rig, 0, OFFSETS[0]);
            let generation = first.generation.get();
            change(&rig, 0, OFFSETS[copy], |leftover| {
                other(leftover);
                leftover.generation = (generation + 1000).into();
                leftover.root = (1 << 40).into();
            });
            let fs = rig.try_open(WRITE).expect("the first superblock is good");
            assert_eq!(*fs.superblock(), *first);
            let states = &fs.devices()[0].supers;
            let leftover = superblock(&rig, 0, OFFSETS[copy]);
            let owner = Owner::of(&leftover);
            assert_ne!(owner, Owner::of(&first));
            assert_eq!(states[copy], SuperState::Foreign { owner, generation: generation + 1000 });
            assert_eq!(states[3 - copy], SuperState::Good { generation });
        }
    }
}

#[test]
fn the_newest_copy_of_the_same_device_is_taken() {
    for newest in [0, 1, 2] {
        let rig = Rig::golden("huge");
        let generation = superblock(&rig, 0, OFFSETS[0]).generation.get();
        for copy in (0..3).filter(|copy| *copy != newest) {
            change(&rig, 0, OFFSETS[copy], |copy| copy.generation = (generation - 1).into());
        }
        let fs = rig.try_open(WRITE).expect("they agree");
        assert_eq!(fs.superblock().bytenr.get(), OFFSETS[newest].0);
        assert_eq!(fs.superblock().generation.get(), generation);
    }
}

/// A device that was shrunk still has copies from before.
#[test]
fn copies_behind_the_end_of_the_file_system_are_not_looked_at() {
    for first_is_there in [true, false] {
        let rig = Rig::golden("huge");
        let generation = superblock(&rig, 0, OFFSETS[0]).generation.get();
        for copy in [0, 1] {
            change(&rig, 0, OFFSETS[copy], |it| it.dev_item.total_bytes = OFFSETS[2].0.into());
        }
        let older = if first_is_there { generation + 5 } else { generation - 5 };
        change(&rig, 0, OFFSETS[2], |leftover| leftover.generation = older.into());
        if !first_is_there {
            erase(&rig, 0, OFFSETS[0]);
        }
        let fs = rig.try_open(WRITE).expect("the first ones are good");
        assert_eq!(fs.superblock().generation.get(), generation);
        assert_eq!(fs.devices()[0].supers[1], SuperState::Good { generation });
        assert_eq!(fs.devices()[0].supers[2], SuperState::Absent);
    }
    // A copy is ignored if its own size says that it is past the end.
    let rig = Rig::golden("huge");
    erase(&rig, 0, OFFSETS[0]);
    change(&rig, 0, OFFSETS[2], |leftover| {
        leftover.dev_item.total_bytes = OFFSETS[2].0.into();
        leftover.fsid = [7; 16];
    });
    let fs = rig.try_open(WRITE).expect("the second one is good");
    assert_eq!(fs.devices()[0].supers[2], SuperState::Absent);
}

#[test]
fn backups_that_contradict_each_other_are_refused() {
    let rig = Rig::golden("huge");
    erase(&rig, 0, OFFSETS[0]);
    let own = Owner::of(&superblock(&rig, 0, OFFSETS[1]));
    change(&rig, 0, OFFSETS[2], |leftover| leftover.fsid = [7; 16]);
    let other = Owner { fsid: Uuid::from_bytes([7; 16]), ..own };
    for options in [READ, WRITE] {
        let error = rig.try_open(options).expect_err("which one is it");
        let (first, second) = ((OFFSETS[1], own), (OFFSETS[2], other));
        let text = error.to_string();
        assert_eq!(error, OpenError::Copies { name: "0.img".to_owned(), first, second });
        assert!(text.contains(&own.fsid.to_string()) && text.contains(&other.fsid.to_string()));
    }
    // The file system is still identified, so that opening it reports the contradiction.
    let gateway = rig.sources().remove(0).gateway;
    assert_eq!(rig.run(identify(&gateway)), Some(own.fsid));
}

/// Collects the problems.
#[derive(Default)]
struct ProblemList(std::sync::Mutex<Vec<Problem>>);

impl Sink for ProblemList {
    fn problem(&self, problem: &Problem) {
        self.0.lock().expect("nobody panicked").push(problem.clone());
    }
}

#[test]
fn a_scrub_leaves_the_superblock_of_another_file_system_alone() {
    let changes: [fn(&mut Superblock); 2] =
        [|copy| copy.fsid = [7; 16], |copy| copy.dev_item.uuid = [7; 16]];
    for other in changes {
        let rig = Rig::golden("huge");
        change(&rig, 0, OFFSETS[1], other);
        let then = rig.media[0].snapshot();
        let fs = rig.try_open(WRITE).expect("the first one is good");
        let (kept, scrub) = (ProblemList::default(), Scrub::new(fs, scrub::Options::default()));
        let reports = rig.run(scrub.run(&kept)).expect("there is something to scrub");
        assert_eq!(reports[0].counters.super_errors, 1);
        let problems = kept.0.into_inner().expect("nobody panicked");
        assert_eq!(problems.len(), 1);
        assert_eq!((problems[0].physical, problems[0].repair), (OFFSETS[1], Repair::Impossible));
        let kind = &problems[0].kind;
        assert!(matches!(kind, ProblemKind::Super(SuperError::Foreign { .. })), "{kind}");
        assert_eq!(rig.media[0].diff(&then), []);
    }
}

/// A mirrored file system whose second device missed `missed` transactions.
fn with_stale_device(missed: u64) -> Rig {
    let rig = Rig::golden("raid1-sha256");
    for at in [OFFSETS[0], OFFSETS[1]] {
        change(&rig, 1, at, |copy| copy.generation = (copy.generation.get() - missed).into());
    }
    rig
}

#[test]
fn a_device_that_missed_transactions_is_not_written_unasked() {
    for missed in [1, 5] {
        let rig = with_stale_device(missed);
        let newest = superblock(&rig, 0, OFFSETS[0]).generation.get();
        rig.try_open(READ).expect("it is read with a warning");
        let error = rig.try_open(WRITE).expect_err("it is stale");
        let text = error.to_string();
        let generation = newest - missed;
        assert_eq!(error, OpenError::Stale { name: "1.img".to_owned(), generation, newest });
        for word in ["1.img", "missed transactions", &newest.to_string()] {
            assert!(text.contains(word), "{text}");
        }
        let fs = rig.try_open(OpenOptions { stale: true, ..WRITE }).expect("it was said");
        assert_eq!(fs.superblock().generation.get(), newest);
        let (sources, runtime) = (rig.sources_of([0]), rig.sim.runtime());
        let options = OpenOptions { degraded: true, ..WRITE };
        let fs = rig.run(FileSystem::open(sources, options, runtime)).expect("it is left out");
        assert_eq!(fs.missing(), [DevId(2)]);
    }
}

#[test]
fn of_two_devices_of_one_number_the_outdated_one_is_named() {
    for (missed, outdated) in [(3, Some("2.img is outdated")), (0, None)] {
        let mut media = golden_media("raid1-sha256");
        media.push(golden_media("raid1-sha256").remove(1));
        let rig = Rig::over("twice", media);
        for at in [OFFSETS[0], OFFSETS[1]] {
            change(&rig, 2, at, |copy| copy.generation = (copy.generation.get() - missed).into());
        }
        let newest = superblock(&rig, 0, OFFSETS[0]).generation.get();
        for order in [[0, 1, 2], [2, 0, 1]] {
            let (sources, runtime) = (rig.sources_of(order), rig.sim.runtime());
            let error = rig.run(FileSystem::open(sources, READ, runtime)).expect_err("two of two");
            let text = error.to_string();
            let OpenError::Twice { first, second, devid: DevId(2) } = error else {
                panic!("another error: {error}")
            };
            let mut both = [first, second];
            both.sort();
            let wanted = [("1.img".to_owned(), newest), ("2.img".to_owned(), newest - missed)];
            assert_eq!(both, wanted);
            match outdated {
                Some(outdated) => assert!(text.contains(outdated), "{text}"),
                None => assert!(!text.contains("outdated"), "{text}"),
            }
        }
    }
}

#[test]
fn the_target_of_an_unfinished_replacement_is_named() {
    let rig = Rig::golden("raid1-sha256");
    for at in [OFFSETS[0], OFFSETS[1]] {
        change(&rig, 1, at, |copy| copy.dev_item.devid = 0.into());
    }
    let error = rig.try_open(READ).expect_err("it is not a device yet");
    assert_eq!(error, OpenError::ReplaceTarget { name: "1.img".to_owned() });
}

#[test]
fn an_empty_leaf_below_another_block_is_refused() {
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    let root = rig.run(deep_tree(&fs));
    let top = BlockExpectation { at: root.at, ..BlockExpectation::default() };
    let mut pointer = rig.run(fs.node(top)).expect("sound").pointer(1).expect("it has several");
    let mut level = root.level - 1;
    while level > 0 {
        let block = BlockExpectation { at: pointer.at, ..BlockExpectation::default() };
        pointer = rig.run(fs.node(block)).expect("sound").pointer(0).expect("it has one");
        level -= 1;
    }
    let count = std::mem::offset_of!(Header, nritems);
    change_node(&rig, &fs, pointer.at, |bytes| bytes[count..count + 4].fill(0));
    let again = rig.open();
    let error = rig.run(walk(&again, root)).expect_err("a leaf is empty");
    assert_eq!(contents(&error), "no items, and its parent has a key for it");
    // Also if the block is cached by a reader without expectations.
    let again = rig.open();
    let any = BlockExpectation { at: pointer.at, ..BlockExpectation::default() };
    assert!(rig.run(again.node(any)).expect("trees without items are such a leaf").is_empty());
    let expected = BlockExpectation { first_key: Some(pointer.key), ..any };
    let error = rig.run(again.node(expected)).expect_err("it is empty");
    assert_eq!(contents(&error), "no items, and its parent has a key for it");
}

/// A search that is dropped while it waits for a leaf leaves the path at the block above.
#[test]
fn a_search_that_was_dropped_midway_misleads_no_other() {
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    let root = rig.run(deep_tree(&fs));
    let all = rig.run(items(&fs, root));
    let fs = rig.open();
    rig.run(async {
        let top = BlockExpectation { at: root.at, ..BlockExpectation::default() };
        fs.node(top).await.expect("sound");
        let last = all.last().expect("there are items").2;
        let mut dropped = 0;
        for (_, _, key, data) in &all {
            let mut path = Path::new(&fs, root);
            // The last leaf is cached once the search for its first item has read it.
            if path.search(last).now_or_never().is_none() {
                assert_eq!(path.item(), None);
                dropped += 1;
            }
            assert!(path.search(*key).await.expect("sound"));
            assert_eq!(path.item(), Some((*key, data.as_slice())));
        }
        assert!(dropped > 10, "{dropped} searches dropped");
    });
}

#[test]
fn a_pointer_into_a_sector_is_refused() {
    let what = "an address that is not a multiple of the sector size";
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    let root = rig.run(deep_tree(&fs));
    for by in [1, 512] {
        let odd = BlockExpectation { at: Logical(root.at.0 + by), ..BlockExpectation::default() };
        assert_eq!(contents(&rig.run(fs.node(odd)).expect_err("it is odd")), what);
    }
    let at = HEADER_SIZE + std::mem::offset_of!(KeyPtr, blockptr);
    change_node(&rig, &fs, root.at, |bytes| bytes[at + 1] ^= 2);
    let error = rig.run(walk(&rig.open(), root)).expect_err("a pointer is odd");
    assert_eq!(contents(&error), what);
}

/// Location of the first item's data with this object and type: the leaf, and the offset in it.
fn find(rig: &Rig, fs: &Arc<FileSystem>, tree: Root, object: u64, kind: u8) -> (Logical, usize) {
    rig.run(async {
        let mut path = Path::new(fs, tree);
        assert!(path.search(Key::new(object, kind, 0)).await.expect("sound"));
        let (key, data) = path.item().expect("it is at one");
        assert_eq!((key.objectid, key.kind), (object, kind));
        let (leaf, _) = path.leaf().expect("it is in a leaf");
        let offset = data.as_ptr() as usize - leaf.bytes().as_ptr() as usize;
        (Logical(leaf.header().bytenr.get()), offset)
    })
}

#[test]
fn a_root_within_a_sector_is_refused() {
    let rig = Rig::golden("single-16k");
    let fs = rig.open();
    let (leaf, at) = find(&rig, &fs, fs.tree_root(), objectid::FS_TREE, item::ROOT_ITEM);
    let bytenr = at + std::mem::offset_of!(ashlar_btrfs::ondisk::items::DiskRootItem, bytenr);
    change_node(&rig, &fs, leaf, |bytes| bytes[bytenr + 1] ^= 2);
    let again = rig.open();
    let root = rig.run(again.need_root(objectid::FS_TREE)).expect("the item is whole");
    let error = rig.run(walk(&again, root)).expect_err("it is odd");
    assert_eq!(contents(&error), "an address that is not a multiple of the sector size");
}

/// Each bit on its own.
#[test]
fn superblock_flags_are_known_or_refused() {
    for bit in 0..64 {
        let rig = Rig::golden("single-16k");
        change(&rig, 0, OFFSETS[0], |copy| copy.flags = (1 << bit | 1).into());
        change(&rig, 0, OFFSETS[1], |copy| copy.flags = (1 << bit | 1).into());
        let opened = rig.try_open(READ);
        let word = match bit {
            0..=2 | 32 => {
                opened.unwrap_or_else(|error| panic!("bit {bit}: {error}"));
                let writable = rig.try_open(WRITE);
                assert_eq!(writable.is_err(), 1 << bit == FLAG_SEEDING, "bit {bit}");
                continue;
            }
            33 | 34 => "btrfs-image",
            35..=40 => "an interrupted btrfstune",
            _ => &format!("superblock flags {:#x}", 1_u64 << bit),
        };
        let error = opened.expect_err("it is not supported");
        let OpenError::Features(what) = &error else { panic!("bit {bit}: {error}") };
        assert!(what.contains(word), "bit {bit}: {what}");
    }
}

/// The first device belongs to another file system: the seed of this one.
#[test]
fn a_file_system_grown_on_a_seed_is_refused_by_name() {
    for name in ["raid1-sha256", "uuid"] {
        let rig = Rig::golden(name);
        let fs = rig.open();
        let (leaf, at) = find(&rig, &fs, fs.chunk_root(), objectid::DEV_ITEMS, item::DEV_ITEM);
        let fsid = at + std::mem::offset_of!(ashlar_btrfs::ondisk::superblock::DevItem, fsid);
        change_node(&rig, &fs, leaf, |bytes| bytes[fsid..fsid + 16].fill(7));
        let seed = Uuid::from_bytes([7; 16]);
        for options in [READ, WRITE, OpenOptions { degraded: true, ..READ }] {
            let error = rig.try_open(options).expect_err("it has a seed");
            assert_eq!(error, OpenError::Sprout { devid: DevId(1), seed }, "{name}");
        }
    }
}
