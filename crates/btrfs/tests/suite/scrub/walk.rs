//! The walks over the extent and checksum trees, compared with lists of all items: between any
//! positions, forward and backward.

use std::collections::BTreeMap;

use ashlar_btrfs::extent_walk::{CsumWalk, Extent, ExtentKind, ExtentWalk, SearchResult, Sum};
use ashlar_btrfs::ondisk::key::{item, objectid};
use ashlar_btrfs::readahead::Reada;
use ashlar_btrfs::units::Logical;
use ashlar_sim::Rng;

use super::trees::several_sum_leaves;
use crate::support::{self, Rig, names};

#[test]
fn extents_are_found_from_anywhere() {
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let nodesize = u64::from(fs.nodesize());
        let sector = u64::from(fs.sectorsize());
        rig.run(async {
            let root = fs.need_root(objectid::EXTENT_TREE).await.expect("sound");
            // Start, end, and whether it is metadata.
            let mut all: Vec<(u64, u64, bool)> = Vec::new();
            for (_, _, key, data) in support::items(&fs, root).await {
                let of_tree = data.get(16).is_some_and(|flags| flags & 2 != 0);
                match key.kind {
                    item::EXTENT_ITEM => {
                        all.push((key.objectid, key.objectid + key.offset, of_tree))
                    }
                    item::METADATA_ITEM => all.push((key.objectid, key.objectid + nodesize, true)),
                    _ => {}
                }
            }
            assert!(all.len() > 5, "{name}");
            let mut rng = Rng::new(3);
            let mut walk = ExtentWalk::new(&fs, Reada::Forward).await.expect("sound");
            let chunks: Vec<_> = fs.chunks().iter().collect();
            let mut from = Logical(0);
            for step in 0..4000 {
                // Continue at the last position, jump within the chunk, or jump anywhere, also into extents.
                let chunk = match fs.chunks().get(from) {
                    Some(chunk) if !rng.chance(1, 8) => chunk,
                    _ => chunks[rng.index(chunks.len())],
                };
                let inside = (chunk.start..chunk.end()).contains(&from);
                if !inside || rng.chance(1, 4) {
                    let near: Vec<_> = all
                        .iter()
                        .filter(|one| chunk.start.0 <= one.0 && one.1 <= chunk.end().0)
                        .collect();
                    from = if near.is_empty() || rng.chance(1, 4) {
                        Logical(chunk.start.0 + rng.below(chunk.length / sector) * sector)
                    } else {
                        let (start, end, _) = *near[rng.index(near.len())];
                        Logical(start + rng.below((end - start) / sector) * sector)
                    };
                }
                let len = (1 + rng.below(64)) * sector;
                let to = Logical((from.0 + len).min(chunk.end().0));
                let wanted = all.iter().find(|(start, end, _)| *start < to.0 && from.0 < *end);
                let found = match walk.find(from..to, chunk.start).await {
                    SearchResult::Extent(Extent { start, length, kind, .. }) => {
                        let of_tree = kind != ExtentKind::Data;
                        Some((start.0, start.0 + length, of_tree))
                    }
                    SearchResult::Nothing => None,
                    SearchResult::Unknown { error, .. } => panic!("{name}: {error:?}"),
                };
                assert_eq!(found, wanted.copied(), "{name}, step {step}: {from}..{to}");
                from = match found {
                    Some((_, end, _)) if rng.chance(3, 4) => Logical(end),
                    Some(_) | None => to,
                };
            }
        });
    }
}

#[test]
fn checksums_are_found_from_anywhere() {
    let golden = names().into_iter().map(|name| (name, 1));
    for (name, leaves) in golden.chain([2, 5, 9].map(|leaves| ("single-4k".to_owned(), leaves))) {
        let rig = if leaves == 1 { Rig::golden(&name) } else { several_sum_leaves(leaves) };
        let fs = rig.open();
        let sector = u64::from(fs.sectorsize());
        let size = fs.identity().csum.size();
        rig.run(async {
            let root = fs.need_root(objectid::CSUM_TREE).await.expect("sound");
            let mut all: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
            for (_, _, key, data) in support::items(&fs, root).await {
                for (index, sum) in data.chunks(size).enumerate() {
                    all.insert(key.offset + index as u64 * sector, sum.to_vec());
                }
            }
            let (first, last) = (all.first_key_value(), all.last_key_value());
            let (first, last) = (first.expect("sums").0, last.expect("sums").0);
            let sectors = (last - first) / sector + 40;
            let mut walk = CsumWalk::new(&fs, Reada::Forward).await;
            let mut rng = Rng::new(4);
            let mut from = 0;
            for step in 0..4000 {
                if rng.chance(1, 2) {
                    from = first.saturating_sub(20 * sector) + rng.below(sectors) * sector;
                }
                let mut found = vec![Sum::Unknown; 1 + rng.index(40)];
                walk.sums(Logical(from), &mut found, |error| panic!("{name}: {error}")).await;
                for sum in found {
                    match (sum, all.get(&from)) {
                        (Sum::None, None) => {}
                        (Sum::Known(sum), Some(wanted)) if sum.starts_with(wanted) => {}
                        (sum, wanted) => panic!("{name}, step {step}, {from}: {sum:?}, {wanted:?}"),
                    }
                    from += sector;
                }
            }
        });
    }
}
