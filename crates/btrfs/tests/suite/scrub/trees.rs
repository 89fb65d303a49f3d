//! Unreadable trees: what they describe is never called good, and the rest is scrubbed.

use ashlar_btrfs::ondisk::key::{Key, item, objectid};
use ashlar_btrfs::ondisk::node::{BlockExpectation, DiskItem, HEADER_SIZE, KeyPtr};
use ashlar_btrfs::readahead::Reada;
use ashlar_btrfs::scrub::{Options, Problem, ProblemKind, Repair, ScrubError, State};
use ashlar_btrfs::units::{Logical, MirrorNum};
use ashlar_btrfs::volume::FileSystem;
use ashlar_sim::Command;
use zerocopy::IntoBytes;

use super::common::{
    Block, Damage, Kind, assert_same, blocks, damage, place, places, read_only, scrub, snapshots,
};
use crate::support::{self, Rig, names};

/// Damages all copies of a block, and returns their locations.
fn spoil(rig: &Rig, at: Logical) -> Vec<super::common::Place> {
    let fs = rig.open();
    let block = Block { start: at, len: u64::from(fs.nodesize()), kind: Kind::Tree(None) };
    let chunk = fs.chunks().get(at).expect("a chunk");
    let stored = chunk.all_mirrors().filter(|mirror| chunk.is_stored(*mirror));
    let all: Vec<_> = stored.map(|mirror: MirrorNum| place(&fs, &block, mirror)).collect();
    damage(rig, &fs, &all, Damage::Bytes);
    all
}

fn is_tree(problem: &&Problem) -> bool {
    matches!(problem.kind, ProblemKind::Tree(_))
}

/// The leaves of a tree, with object id and offset of each key they contain.
fn leaves(rig: &Rig, tree: u64) -> Vec<(Logical, Vec<(u64, u64)>)> {
    let fs = rig.open();
    let items = rig.run(async {
        let root = fs.need_root(tree).await.expect("sound");
        support::items(&fs, root).await
    });
    let mut leaves: Vec<(Logical, Vec<(u64, u64)>)> = Vec::new();
    for (at, _, key, _) in items {
        if leaves.last().is_none_or(|(last, _)| *last != at) {
            leaves.push((at, Vec::new()));
        }
        leaves.last_mut().expect("there is one").1.push((key.objectid, key.offset));
    }
    leaves
}

/// Stores a tree block with its checksum; it has a single copy.
fn store(rig: &Rig, fs: &FileSystem, at: Logical, mut bytes: Vec<u8>) {
    let csum = fs.identity().csum.compute(&bytes[32..]);
    bytes[..csum.as_bytes().len()].copy_from_slice(csum.as_bytes());
    let chunk = fs.chunks().get(at).expect("a chunk");
    assert_eq!(chunk.mirrors(), 1, "one place");
    let place = chunk.locate(at, MirrorNum(1)).expect("it is stored");
    rig.patch(0, place.at.0, &bytes);
}

/// The image `single-4k`, with its one-leaf checksum tree turned into `count` leaves below a node.
pub(crate) fn several_sum_leaves(count: usize) -> Rig {
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    let root = rig.run(fs.need_root(objectid::CSUM_TREE)).expect("sound");
    let expected = BlockExpectation { at: root.at, ..BlockExpectation::default() };
    let old = rig.run(fs.node(expected)).expect("sound");
    // Items of at most three sectors, so that there are enough for all leaves.
    let mut sums: Vec<(Key, Vec<u8>)> = Vec::new();
    for slot in 0..old.len() {
        let (key, data) = old.item(slot).expect("an item");
        for (sector, sum) in data.chunks(12).enumerate() {
            let key = Key { offset: key.offset + sector as u64 * 3 * 4096, ..key };
            sums.push((key, sum.to_vec()));
        }
    }
    let nodesize = fs.nodesize() as usize;
    let all = blocks(&rig, &fs);
    let chunk = fs.chunks().get(root.at).expect("a chunk");
    let free = Logical(chunk.end().0 - (count as u64 + 1) * nodesize as u64);
    assert!(all.iter().all(|block| block.start < free || block.start >= chunk.end()));
    let at = |index: usize| Logical(free.0 + (index * nodesize) as u64);
    let block = |index: usize, level: u8, items: usize| {
        let mut bytes = vec![0; nodesize];
        bytes[..HEADER_SIZE].copy_from_slice(&old.bytes()[..HEADER_SIZE]);
        bytes[48..56].copy_from_slice(&at(index).0.to_le_bytes());
        bytes[96..100].copy_from_slice(&(items as u32).to_le_bytes());
        bytes[100] = level;
        bytes
    };
    let shares: Vec<_> = sums.chunks(sums.len().div_ceil(count)).collect();
    assert_eq!(shares.len(), count);
    let mut node = block(count, 1, count);
    for (index, share) in shares.into_iter().enumerate() {
        let mut leaf = block(index, 0, share.len());
        let mut end = nodesize;
        for (slot, (key, data)) in share.iter().enumerate() {
            let start = end - data.len();
            leaf[start..end].copy_from_slice(data);
            let (offset, size) = ((start - HEADER_SIZE) as u32, data.len() as u32);
            let item = DiskItem { key: (*key).into(), offset: offset.into(), size: size.into() };
            let slot_at = HEADER_SIZE + slot * size_of::<DiskItem>();
            leaf[slot_at..slot_at + size_of::<DiskItem>()].copy_from_slice(item.as_bytes());
            end = start;
        }
        store(&rig, &fs, at(index), leaf);
        let pointer = KeyPtr {
            key: share[0].0.into(),
            blockptr: at(index).0.into(),
            generation: root.generation.into(),
        };
        let slot_at = HEADER_SIZE + index * size_of::<KeyPtr>();
        node[slot_at..slot_at + size_of::<KeyPtr>()].copy_from_slice(pointer.as_bytes());
    }
    store(&rig, &fs, at(count), node);
    // The tree's root item: the address is at offset 176, the level at 238.
    let roots = rig.run(support::items(&fs, fs.tree_root()));
    let (leaf, slot, ..) = roots
        .into_iter()
        .find(|(_, _, key, _)| (key.objectid, key.kind) == (objectid::CSUM_TREE, item::ROOT_ITEM))
        .expect("a root item");
    let expected = BlockExpectation { at: leaf, ..BlockExpectation::default() };
    let mut bytes = rig.run(fs.node(expected)).expect("sound").bytes().to_vec();
    let slot_at = HEADER_SIZE + slot * size_of::<DiskItem>() + 17;
    let offset: [u8; 4] = bytes[slot_at..slot_at + 4].try_into().expect("four bytes");
    let data = HEADER_SIZE + u32::from_le_bytes(offset) as usize;
    bytes[data + 176..data + 184].copy_from_slice(&at(count).0.to_le_bytes());
    bytes[data + 238] = 1;
    store(&rig, &fs, leaf, bytes);
    rig
}

/// Nine adjacent leaves: read one by one without readahead, all at once by a sweep.
#[test]
fn leaves_that_are_needed_next_are_read_together() {
    let reads = |reada: Reada| {
        let rig = several_sum_leaves(9);
        let leaves = leaves(&rig, objectid::CSUM_TREE);
        let fs = rig.open();
        let place = |at: &Logical| {
            let chunk = fs.chunks().get(*at).expect("a chunk");
            chunk.locate(*at, MirrorNum(1)).expect("it is stored").at.0 / 512
        };
        let places: Vec<u64> = leaves.iter().map(|(leaf, _)| place(leaf)).collect();
        rig.media[0].clear_log();
        let options = Options { extent_reada: reada, csum_reada: reada, ..read_only() };
        let (_, problems) = scrub(&rig, &fs, options);
        assert_eq!(problems, []);
        let (bytes, max) = fs.cached_bytes();
        assert!(bytes > 9 * 4096 && bytes <= max && max == 64 << 20, "{bytes} of {max}");
        let log = rig.media[0].log();
        let is_of_leaf =
            |command: &&Command| places.iter().any(|place| command.ranges[0].contains(place));
        log.iter().filter(is_of_leaf).count()
    };
    assert_eq!([Reada::None, Reada::Scan].map(reads), [9, 1]);
}

#[test]
fn data_whose_checksums_are_lost_is_unverified() {
    let (whole, _) = {
        let rig = Rig::golden("single-4k");
        scrub(&rig, &rig.open(), read_only())
    };
    let then = whole[0].counters;
    for count in [1, 2, 5] {
        let make = || if count == 1 { Rig::golden("single-4k") } else { several_sum_leaves(count) };
        {
            let rig = make();
            let (reports, problems) = scrub(&rig, &rig.open(), read_only());
            assert_eq!((&reports, problems), (&whole, vec![]), "{count} leaves");
        }
        let leaves = leaves(&make(), objectid::CSUM_TREE);
        assert_eq!(leaves.len(), count);
        let mut unknown = 0;
        for (leaf, _) in &leaves {
            let rig = make();
            let spoilt = spoil(&rig, *leaf);
            let damaged = snapshots(&rig);
            let (reports, problems) = scrub(&rig, &rig.open(), Options::default());
            assert_eq!(problems.iter().filter(is_tree).count(), 1, "{problems:?}");
            let mut others = problems.clone();
            others.retain(|problem| !is_tree(&problem));
            // The leaves created here have no extent items.
            let wanted = if count == 1 { spoilt } else { Vec::new() };
            assert_eq!(places(&others), wanted);
            let now = reports[0].counters;
            assert_eq!(reports[0].state, State::Finished);
            assert_eq!(now.data_bytes_scrubbed, then.data_bytes_scrubbed);
            assert_eq!(now.tree_extents_scrubbed, then.tree_extents_scrubbed);
            assert_eq!(now.last_physical, then.last_physical);
            let sectors = now.data_bytes_scrubbed / 4096;
            let lost = now.unverified_errors - 1;
            assert!(now.no_csum + lost >= then.no_csum, "lost is not absent");
            if count == 1 {
                // Without the tree nothing is known, not even which data has no checksum.
                assert_eq!((now.no_csum, lost), (0, sectors));
            } else {
                assert!(lost > 0 && lost < sectors, "{lost} of {sectors}");
            }
            unknown += lost;
            assert_same(&rig, &damaged, "single-4k");
        }
        let with_sums = then.data_bytes_scrubbed / 4096 - then.no_csum;
        assert!(unknown >= with_sums, "{count} leaves: each sector is in one of them");
    }
}

/// What the lost leaf lists is not scrubbed; everything else is.
#[test]
fn the_rest_of_a_damaged_extent_tree_is_scrubbed() {
    let mut several = 0;
    for name in names() {
        let name = name.as_str();
        let all = leaves(&Rig::golden(name), objectid::EXTENT_TREE);
        if all.len() == 1 {
            continue;
        }
        several += 1;
        for (leaf, keys) in &all {
            let rig = Rig::golden(name);
            let fs = rig.open();
            let listed = |block: &&Block| {
                let within = |(start, len): &(u64, u64)| {
                    *start == block.start.0
                        || *start < block.start.0
                            && block.start.0 < start.saturating_add(*len)
                            && block.kind == Kind::NoSum
                };
                !keys.iter().any(within)
            };
            let left: Vec<Block> = blocks(&rig, &fs).iter().filter(listed).copied().collect();
            let trees = left.iter().filter(|block| matches!(block.kind, Kind::Tree(_))).count();
            let copies = fs.chunks().get(*leaf).expect("a chunk").profile.copies();
            spoil(&rig, *leaf);
            let damaged = snapshots(&rig);
            let (reports, problems) = scrub(&rig, &rig.open(), Options::default());
            let scrubbed: u64 = reports.iter().map(|one| one.counters.tree_extents_scrubbed).sum();
            assert_eq!(scrubbed, (trees * copies) as u64, "{name}, leaf {leaf}");
            let told = problems.iter().filter(is_tree).count();
            assert!(told > 0 && told <= reports.len(), "{name}, leaf {leaf}: {problems:?}");
            let unverified: u64 = reports.iter().map(|one| one.counters.unverified_errors).sum();
            assert!(unverified >= told as u64, "{name}");
            assert!(reports.iter().all(|report| report.state == State::Finished));
            assert!(problems.iter().all(|problem| problem.repair == Repair::Impossible));
            assert_same(&rig, &damaged, name);
        }
    }
    assert!(several > 0, "a tree of several leaves");
}

#[test]
fn without_the_root_of_the_extent_tree_there_is_no_scrub_that_says_all_is_well() {
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    let root = rig.run(fs.need_root(objectid::EXTENT_TREE)).expect("sound");
    drop(fs);
    spoil(&rig, root.at);
    let (reports, problems) = scrub(&rig, &rig.open(), read_only());
    assert!(problems.iter().any(|problem| is_tree(&problem)));
    assert!(reports[0].counters.unverified_errors > 0);
    assert_eq!(reports[0].counters.data_bytes_scrubbed, 0);
    drop(rig);

    let rig = Rig::golden("single-4k");
    let top = rig.open().tree_root().at;
    spoil(&rig, top);
    let fs = rig.open();
    let scrub = ashlar_btrfs::scrub::Scrub::new(fs, read_only());
    let ended = rig.run(scrub.run(&()));
    assert!(matches!(ended, Err(ScrubError::Tree(_))), "{ended:?}");
    assert_eq!(scrub.progress()[0].state, State::Failed);
}
