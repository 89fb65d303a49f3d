//! What the bytes of devices hold: in golden images, compared with the way from files to devices.

use std::collections::BTreeMap;

use crate::support::{Rig, blocks, names};
use ashlar_btrfs::backref::{self, Owners};
use ashlar_btrfs::occupants::Occupants;
use ashlar_btrfs::ondisk::superblock::OFFSETS;
use ashlar_btrfs::units::Physical;

/// The whole of each device is cut into parts without gaps, and each mirror of each tree block is one
/// of its trees' blocks.
#[test]
fn each_byte_has_a_name_and_tree_blocks_have_their_trees() {
    let mut compared = 0;
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let mut occupants = Occupants::new(fs.clone());
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for device in fs.devices() {
            let len = device.total_bytes;
            let all = rig.run(occupants.at(device.devid, Physical(0), len));
            assert_eq!(all.iter().map(|it| it.len).sum::<u64>(), len, "{name}");
            assert!(all.windows(2).all(|pair| pair[0].name != pair[1].name), "{name}");
            let supers = OFFSETS.iter().filter(|at| at.0 + 4096 <= len).count() as u64;
            let parts = all.iter().filter(|it| &*it.name == "superblock");
            assert_eq!(parts.map(|it| it.len).sum::<u64>(), 4096 * supers, "{name}");
            for it in all {
                *sums.entry(it.name.to_string()).or_default() += it.len;
            }
        }
        assert!(!sums.contains_key("unknown") && !sums.contains_key("more"), "{name}: {sums:?}");
        for (root, tree) in [(fs.tree_root(), "root tree"), (fs.chunk_root(), "chunk tree")] {
            for at in rig.run(blocks(&fs, root)) {
                let chunk = fs.chunks().get(at).expect("it is in a chunk");
                for mirror in chunk.all_mirrors().filter(|it| chunk.is_stored(*it)) {
                    let place = chunk.locate(at, mirror).expect("it is stored");
                    let found = rig.run(occupants.at(place.devid, place.at, 4096));
                    let [one] = &found[..] else { panic!("{name} {at}: {found:?}") };
                    assert!(one.name.starts_with(&format!("{tree} level ")), "{name}: {one:?}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 50, "{compared}");
}

/// From a file's byte to the device and back.
#[test]
fn the_bytes_of_files_have_their_names_on_each_mirror() {
    for name in ["single-4k", "raid10-blake2", "raid5", "shared"] {
        let rig = Rig::golden(name);
        let fs = rig.open();
        let (mut occupants, mut compared) = (Occupants::new(fs.clone()), 0);
        for chunk in fs.chunks().iter() {
            let owned = rig.run(backref::owners(&fs, chunk.start, chunk.length)).expect("sound");
            for extent in owned {
                let Owners::Data(parts) = &extent.owners else { continue };
                let Some(part) = parts.first() else { continue };
                let wanted = rig.run(backref::names_of(&fs, part.root, part.inode)).expect("sound");
                let Some(wanted) = wanted.first() else { continue };
                for mirror in chunk.all_mirrors().filter(|it| chunk.is_stored(*it)) {
                    let place = chunk.locate(extent.start, mirror).expect("it is stored");
                    if place.len < extent.length || parts.len() > 4 {
                        continue;
                    }
                    let found = rig.run(occupants.at(place.devid, place.at, extent.length));
                    assert_eq!(found.iter().map(|it| it.len).sum::<u64>(), extent.length, "{name}");
                    let wanted = wanted.full().to_string();
                    assert!(found.iter().any(|it| it.name.contains(&wanted)), "{name}: {found:?}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 5, "{name}: {compared}");
    }
}
