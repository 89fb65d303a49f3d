//! From addresses to files: in golden images, every part of every file leads back to all its names.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::support::{Rig, blocks, items, names};
use ashlar_btrfs::backref::{self, FilePart, Owners};
use ashlar_btrfs::files::Files;
use ashlar_btrfs::ondisk::items::{FileExtent, FileExtentBody};
use ashlar_btrfs::ondisk::key::{item, objectid};
use ashlar_btrfs::units::{Logical, MirrorNum};
use ashlar_btrfs::volume::FileSystem;
use ashlar_files::{FileType, Place, Tree as _};

/// An extent as a walk over all files sees it: tree, inode, offset in the file; address; whether it
/// is compressed.
type SeenExtent = (FilePart, Logical, bool);

async fn seen(fs: &Arc<FileSystem>) -> Vec<SeenExtent> {
    let mut all = Vec::new();
    for subvolume in fs.subvolumes().await.expect("sound") {
        for (_, _, key, data) in items(fs, subvolume.root).await {
            if key.kind != item::EXTENT_DATA {
                continue;
            }
            let extent = FileExtent::parse(&data, fs.sectorsize()).expect("sound");
            let compressed =
                !matches!(extent.compression, ashlar_btrfs::ondisk::items::Compression::None);
            let it = match extent.body {
                FileExtentBody::Regular(it) | FileExtentBody::Prealloc(it) => it,
                FileExtentBody::Inline(_) => continue,
            };
            let Some(at) = it.at else { continue };
            let part = FilePart { root: subvolume.id, inode: key.objectid, offset: key.offset };
            let at = if compressed { at } else { Logical(at.0 + it.offset) };
            all.push((part, at, compressed));
        }
    }
    all
}

#[test]
fn every_part_of_every_file_is_found_from_its_address() {
    let (mut shared, mut compared) = (0, 0);
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let seen = rig.run(seen(&fs));
        for (part, at, compressed) in &seen {
            let owned = rig.run(backref::owners(&fs, *at, 1)).expect("sound");
            assert_eq!(owned.len(), 1, "{name} {at}");
            assert!(!owned[0].more, "{name} {at}");
            let Owners::Data(parts) = &owned[0].owners else { panic!("{name} {at}: {owned:?}") };
            assert!(parts.contains(part), "{name} {at}: no {part:?} in {parts:?}");
            // Compare with everything the walk met at this address. Parts that begin earlier and
            // reach over it are not in that list: each of these is looked up by its own start.
            if *compressed {
                let wanted: BTreeSet<FilePart> =
                    seen.iter().filter(|it| it.1 == *at).map(|it| it.0).collect();
                assert_eq!(parts.iter().copied().collect::<BTreeSet<_>>(), wanted, "{name} {at}");
            }
            shared += usize::from(parts.len() > 1);
            compared += 1;
        }
        assert!(!seen.is_empty(), "{name}");
    }
    assert!(shared > 50 && compared > 500, "{shared} of {compared} are shared");
}

/// All files by tree and inode, with their paths from the first root directory.
async fn paths(fs: &Arc<FileSystem>) -> BTreeSet<(u64, u64, Vec<u8>)> {
    let files = Files::open(fs, objectid::FS_TREE).await.expect("it is there");
    let mut all = BTreeSet::new();
    let mut directories = vec![(Vec::new(), files.root())];
    while let Some((path, directory)) = directories.pop() {
        let mut listing = files.entries(directory).await.expect("a directory");
        while let Some(entry) = listing.next().await.expect("sound") {
            let path = [&path[..], b"/", &entry.name].concat();
            if let Place::Inode { tree, inode } = entry.place {
                all.insert((tree, inode, path.clone()));
            }
            if entry.kind == FileType::Directory {
                directories.push((path, entry.place));
            }
        }
    }
    all
}

#[test]
fn every_name_of_every_inode_is_found() {
    let mut hard_links = 0;
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let paths = rig.run(paths(&fs));
        for (tree, inode, _) in &paths {
            let found = rig.run(backref::names_of(&fs, *tree, *inode)).expect("sound");
            let found: BTreeSet<Vec<u8>> = found.iter().map(|name| name.full().0).collect();
            let all = paths.iter().filter(|it| (it.0, it.1) == (*tree, *inode));
            let wanted: BTreeSet<Vec<u8>> = all.map(|it| it.2.clone()).collect();
            assert_eq!(found, wanted, "{name}: inode {inode} of {tree}");
            hard_links += usize::from(wanted.len() > 1);
        }
    }
    assert!(hard_links > 10, "{hard_links}");
}

#[test]
fn every_tree_block_is_found_with_all_its_trees() {
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.open();
        let mut of: std::collections::BTreeMap<Logical, BTreeSet<u64>> = Default::default();
        rig.run(async {
            let roots = fs.roots().await.expect("sound").into_iter().map(|(_, root)| root);
            for root in [fs.tree_root(), fs.chunk_root()].into_iter().chain(roots) {
                for at in blocks(&fs, root).await {
                    of.entry(at).or_default().insert(root.id);
                }
            }
        });
        for (at, wanted) in &of {
            let owned = rig.run(backref::owners(&fs, *at, 1)).expect("sound");
            assert_eq!(owned.len(), 1, "{name} {at}");
            let Owners::Tree { level, first_key, roots } = &owned[0].owners else {
                panic!("{name} {at}: {owned:?}")
            };
            let node =
                ashlar_btrfs::ondisk::node::BlockExpectation { at: *at, ..Default::default() };
            let node = rig.run(fs.node(node)).expect("sound");
            assert_eq!((*level, *first_key), (node.level(), node.key(0)), "{name} {at}");
            // Relocation trees share blocks too, but only temporarily.
            let relocated = wanted.contains(&objectid::TREE_RELOC);
            if !relocated {
                let found: BTreeSet<u64> = roots.iter().copied().collect();
                assert_eq!(found, *wanted, "{name} {at}");
                assert!(!owned[0].more, "{name} {at}");
            }
        }
    }
}

#[test]
fn blocks_that_snapshots_share_belong_to_all_of_them() {
    let rig = Rig::golden("shared");
    let fs = rig.open();
    let (mut kinds, mut of) =
        (std::collections::HashSet::new(), std::collections::BTreeMap::<_, usize>::new());
    rig.run(async {
        let extents = fs.need_root(objectid::EXTENT_TREE).await.expect("sound");
        for (_, _, key, data) in items(&fs, extents).await {
            use ashlar_btrfs::ondisk::items::{ExtentItem, keyed_ref};
            if matches!(key.kind, item::EXTENT_ITEM | item::METADATA_ITEM) {
                let it = ExtentItem::parse(key, &data).expect("sound");
                kinds.extend(it.inline.map(|it| std::mem::discriminant(&it.expect("sound"))));
            } else if let Some(it) = keyed_ref(key, &data) {
                kinds.insert(std::mem::discriminant(&it.expect("sound")));
            }
        }
        for subvolume in fs.subvolumes().await.expect("sound") {
            for at in blocks(&fs, subvolume.root).await {
                *of.entry(at).or_default() += 1;
            }
        }
    });
    // The other tests of this file ran on an image with references of these kinds.
    assert_eq!(kinds.len(), 4, "references of all kinds are in it");
    assert!(of.values().filter(|trees| **trees == 3).count() > 5, "{of:?}");
}

#[test]
fn a_damaged_block_is_known_by_what_is_above_it() {
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    let root = rig.run(fs.need_root(5)).expect("sound");
    let at = rig.run(blocks(&fs, root))[2];
    let key = rig.run(backref::owners(&fs, at, 1)).expect("sound");
    rig.damage(&fs, at, 4096, MirrorNum(1));
    let fs = rig.open();
    let owned = rig.run(backref::owners(&fs, at, 1)).expect("the extent tree is sound");
    let (Owners::Tree { roots, .. }, Owners::Tree { roots: before, .. }) =
        (&owned[0].owners, &key[0].owners)
    else {
        panic!("{owned:?}")
    };
    assert!(roots.contains(&5) && before.contains(&5), "{roots:?} {before:?}");
}

#[test]
fn addresses_that_nobody_has_lead_nowhere() {
    let rig = Rig::golden("single-16k");
    let fs = rig.open();
    for at in [0, u64::MAX - 8192, 1 << 62] {
        assert_eq!(rig.run(backref::owners(&fs, Logical(at), 4096)), Ok(Vec::new()), "{at}");
    }
    // A range returns all extents in it.
    let all = rig.run(backref::owners(&fs, Logical(0), u64::MAX)).expect("sound");
    let starts: Vec<Logical> = all.iter().map(|owned| owned.start).collect();
    assert!(starts.len() > 20 && starts.is_sorted());
}
