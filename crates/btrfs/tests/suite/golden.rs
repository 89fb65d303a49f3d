//! Golden images compared with the output of btrfs-progs: superblocks, trees, subvolumes; also with
//! damage that a second copy can repair.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::{MIRRORED, PARITY, Rig, blocks, items, names, text, text_of};
use ashlar_btrfs::ondisk::key::objectid;
use ashlar_btrfs::ondisk::superblock::Superblock;
use ashlar_btrfs::path::Root;
use ashlar_btrfs::units::{Logical, MirrorNum};
use ashlar_btrfs::volume::FileSystem;

/// All trees: the tree of roots, the chunk tree, and those in the tree of roots.
async fn trees(fs: &Arc<FileSystem>) -> Vec<Root> {
    let roots = fs.roots().await.expect("the tree of roots is sound");
    let first = [fs.tree_root(), fs.chunk_root()];
    first.into_iter().chain(roots.into_iter().map(|(_, root)| root)).collect()
}

/// The number for a name that dump-tree prints for an object or an item type.
fn number(word: &str) -> u64 {
    match word {
        "ROOT_TREE" => 1,
        "EXTENT_TREE" => 2,
        "CHUNK_TREE" => 3,
        "DEV_TREE" => 4,
        "FS_TREE" => 5,
        "ROOT_TREE_DIR" => 6,
        "CSUM_TREE" => 7,
        "QUOTA_TREE" => 8,
        "UUID_TREE" => 9,
        "FREE_SPACE_TREE" => 10,
        "DEV_STATS" => 0,
        "DEV_ITEMS" => 1,
        "FIRST_CHUNK_TREE" => 256,
        "EXTENT_CSUM" => objectid::EXTENT_CSUM,
        "DATA_RELOC_TREE" => objectid::DATA_RELOC_TREE,
        "FREE_SPACE" => objectid::FREE_SPACE,
        "BALANCE" => objectid::BALANCE,
        "TREE_RELOC" => objectid::TREE_RELOC,
        _ => match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).unwrap_or_else(|_| panic!("{word}")),
            None => word.parse().unwrap_or_else(|_| panic!("unknown object {word}")),
        },
    }
}

/// The items that dump-tree lists, in order: leaf, slot, object, data length.
fn listed(text: &str) -> Vec<(u64, usize, Option<u64>, usize)> {
    let (mut all, mut leaf) = (Vec::new(), 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["leaf", at, "items", ..] => leaf = at.parse().expect("an address"),
            ["item", slot, "key", object, kind, rest @ ..] if rest.contains(&"itemsize") => {
                // UUIDs are printed as words that are no object.
                let object = object.trim_start_matches('(');
                let object = (!kind.starts_with("UUID")).then(|| number(object));
                let size = rest.last().expect("a size").parse().expect("a size");
                all.push((leaf, slot.parse().expect("a slot"), object, size));
            }
            _ => {}
        }
    }
    all
}

#[test]
fn every_image_opens_and_every_tree_can_be_walked() {
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let counted = rig.run(async {
            let mut counted = 0;
            for root in trees(&fs).await {
                counted += items(&fs, root).await.len();
            }
            counted
        });
        assert!(counted > 50, "{name}: {counted} items only");
        assert!(fs.missing().is_empty());
    }
}

#[test]
fn walks_give_the_items_that_dump_tree_lists() {
    let mut compared = 0;
    for name in names() {
        let Some(text) = text(&name, "tree.txt") else { continue };
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let walked = rig.run(async {
            let mut all = Vec::new();
            for root in trees(&fs).await {
                for (leaf, slot, key, data) in items(&fs, root).await {
                    all.push((leaf.0, slot, Some(key.objectid), data.len()));
                }
            }
            all
        });
        // Empty leaves list nothing, and a file system has several: only items count.
        let listed = listed(&text);
        assert_eq!(walked.len(), listed.len(), "{name}");
        for (walked, listed) in walked.iter().zip(&listed) {
            let object = listed.2.or(walked.2);
            assert_eq!(*walked, (listed.0, listed.1, object, listed.3), "{name}");
        }
        compared += 1;
    }
    assert_eq!(compared, 3, "images with a text of their trees");
}

/// The fields of one superblock in the output of dump-super: the first word of a line, and the rest.
fn fields(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .take_while(|line| !line.starts_with("backup_roots"))
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, rest)| (name.trim(), rest.trim()))
        .collect()
}

fn check_fields(name: &str, superblock: &Superblock, fields: &BTreeMap<&str, &str>) {
    let of = |field: &str| {
        let text = fields.get(field).unwrap_or_else(|| panic!("{name} has no field {field}"));
        let word = text.split_whitespace().next().unwrap_or("");
        match word.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => word.parse(),
        }
        .unwrap_or_else(|_| panic!("{name}: {field} is {text}"))
    };
    let dev = &superblock.dev_item;
    let values: [(&str, u64); 24] = [
        ("bytenr", superblock.bytenr.get()),
        ("flags", superblock.flags.get()),
        ("generation", superblock.generation.get()),
        ("root", superblock.root.get()),
        ("sys_array_size", superblock.sys_chunk_array_size.get().into()),
        ("chunk_root_generation", superblock.chunk_root_generation.get()),
        ("root_level", superblock.root_level.into()),
        ("chunk_root", superblock.chunk_root.get()),
        ("chunk_root_level", superblock.chunk_root_level.into()),
        ("log_root", superblock.log_root.get()),
        ("log_root_level", superblock.log_root_level.into()),
        ("total_bytes", superblock.total_bytes.get()),
        ("bytes_used", superblock.bytes_used.get()),
        ("sectorsize", superblock.sectorsize.get().into()),
        ("nodesize", superblock.nodesize.get().into()),
        ("num_devices", superblock.num_devices.get()),
        ("compat_flags", superblock.compat_flags.get()),
        ("compat_ro_flags", superblock.compat_ro_flags.get()),
        ("incompat_flags", superblock.incompat_flags.get()),
        ("cache_generation", superblock.cache_generation.get()),
        ("uuid_tree_generation", superblock.uuid_tree_generation.get()),
        ("dev_item.total_bytes", dev.total_bytes.get()),
        ("dev_item.bytes_used", dev.bytes_used.get()),
        ("dev_item.devid", dev.devid.get()),
    ];
    for (field, value) in values {
        assert_eq!(of(field), value, "{name}: {field}");
    }
    assert_eq!(fields["fsid"], superblock.fsid().to_string(), "{name}");
    let metadata = superblock.metadata_uuid().to_string();
    assert_eq!(fields["metadata_uuid"], metadata, "{name}");
    let sum = superblock.checksum(superblock.csum_kind());
    assert_eq!(fields["csum"].split(' ').next(), Some(sum.to_string().as_str()), "{name}");
}

#[test]
fn superblocks_have_the_fields_that_dump_super_prints() {
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let text = text_of(&name, "super.txt");
        let mut compared = 0;
        for part in text.split("superblock: bytenr=").skip(1) {
            let (head, body) = part.split_once('\n').expect("a first line");
            let (at, device) = head.split_once(", device=").expect("the device is named");
            let at: u64 = at.parse().expect("an address");
            let device: usize = device.trim_end_matches(".img").parse().expect("N.img");
            let bytes = rig.peek(device, at, 4096);
            let superblock = Superblock::parse(&bytes, ashlar_btrfs::units::Physical(at));
            let superblock = superblock.unwrap_or_else(|error| panic!("{name} {device}: {error}"));
            check_fields(&name, &superblock, &fields(body));
            compared += 1;
        }
        assert!(compared >= fs.devices().len(), "{name}: {compared} superblocks compared");
    }
}

/// Damages the first copies of all tree blocks selected by `wanted`, and reads all trees.
fn damaged_copies_are_read_around(
    name: &str,
    wanted: impl Fn(&FileSystem, Logical) -> bool,
) -> usize {
    let rig = Rig::golden(name);
    let fs = rig.open();
    let (before, all) = rig.run(async {
        let (mut before, mut all) = (Vec::new(), Vec::new());
        for root in trees(&fs).await {
            before.push(items(&fs, root).await);
            all.extend(blocks(&fs, root).await);
        }
        (before, all)
    });
    // Trees share blocks, and damaging a block twice would undo the damage.
    let all: std::collections::BTreeSet<Logical> = all.into_iter().collect();
    let mut damaged = 0;
    for at in all.into_iter().filter(|at| wanted(&fs, *at)) {
        rig.damage(&fs, at, fs.nodesize().into(), MirrorNum(1));
        damaged += 1;
    }
    let again = rig.open();
    rig.run(async {
        for (root, before) in trees(&again).await.into_iter().zip(before) {
            assert_eq!(items(&again, root).await, before, "{name}: tree {}", root.id);
        }
    });
    damaged
}

#[test]
fn tree_blocks_whose_first_copy_is_damaged_are_read_from_another() {
    for name in MIRRORED {
        assert!(damaged_copies_are_read_around(name, |_, _| true) > 8, "{name}");
    }
    // Check of the test itself: without a second copy the damage is an error.
    let rig = Rig::golden("single-16k");
    let fs = rig.open();
    rig.damage(&fs, fs.tree_root().at, fs.nodesize().into(), MirrorNum(1));
    let again = rig.open();
    assert!(rig.run(again.roots()).is_err());
}

#[test]
fn tree_blocks_on_a_damaged_device_are_computed_from_parity() {
    for name in PARITY {
        let devices = Rig::golden(name).media.len();
        let mut damaged = 0;
        for device in 0..devices {
            let is_there = |fs: &FileSystem, at: Logical| {
                let place = fs.chunks().get(at).and_then(|chunk| chunk.locate(at, MirrorNum(1)));
                place.is_some_and(|place| place.devid == fs.devices()[device].devid)
            };
            damaged += damaged_copies_are_read_around(name, is_there);
        }
        assert!(damaged > 8, "{name}: {damaged} blocks damaged");
    }
}

/// Outer subvolume, directory in it, name in it.
type Place = (u64, u64, String);

#[test]
fn subvolumes_are_those_that_dump_tree_lists() {
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    let all = rig.run(fs.subvolumes()).expect("sound");
    let places: Vec<(u64, Option<Place>)> = all
        .iter()
        .map(|it| {
            let place = it.place.as_ref();
            let place = place
                .map(|at| (at.outer, at.dirid, String::from_utf8(at.name.clone()).expect("ASCII")));
            (it.id, place)
        })
        .collect();
    let text = text_of("single-4k", "tree.txt");
    for (id, place) in &places {
        let object = if *id == 5 { "FS_TREE".to_owned() } else { id.to_string() };
        assert!(text.contains(&format!("key ({object} ROOT_ITEM")), "{id}");
        if let Some((outer, dirid, name)) = place {
            let of = format!("key ({id} ROOT_BACKREF {outer})");
            let line = format!("root backref key dirid {dirid} sequence");
            let at = text.find(&of).unwrap_or_else(|| panic!("no {of}"));
            let next = text[at..].lines().nth(1).expect("its text");
            assert!(next.contains(&line) && next.ends_with(&format!("name {name}")), "{next}");
        }
        let one = rig.run(fs.subvolume(*id)).expect("sound");
        assert_eq!(one.as_ref(), all.iter().find(|it| it.id == *id));
        assert_eq!(rig.run(fs.root(*id)).expect("sound"), one.map(|it| it.root));
    }
    let backrefs = text.matches(" ROOT_BACKREF ").count();
    assert_eq!(places.iter().filter(|(_, place)| place.is_some()).count(), backrefs);
    assert_eq!(places.len(), backrefs + 1, "all but the first are within another");
    assert_eq!(rig.run(fs.root(99)), Ok(None));
}
