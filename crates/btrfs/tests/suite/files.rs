//! Files read from golden images are those that the kernel stored, also with damage that a second
//! copy or parity can repair.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::support::{MIRRORED, PARITY, Rig, blocks, items, names, text_of};
use ashlar_btrfs::files::Files;
use ashlar_btrfs::ondisk::items::CsumItem;
use ashlar_btrfs::ondisk::key::{item, objectid};
use ashlar_btrfs::units::{Logical, MirrorNum};
use ashlar_btrfs::volume::{FileSystem, OpenOptions};
use ashlar_files::{FileError, FileType, LossReason, Piece, Place, Tree as _};
use sha2::{Digest, Sha256};

fn escaped(path: &[u8]) -> String {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
    path.iter()
        .map(|byte| match *byte {
            byte if is_plain(byte) => char::from(byte).to_string(),
            byte => format!("\\x{byte:02x}"),
        })
        .collect()
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All bytes of a file; lost bytes are an error.
async fn contents(files: &Files, at: Place) -> Result<Vec<u8>, LossReason> {
    let mut reader = files.read(at).await.expect("it is a file");
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await {
        let next = all.len() as u64;
        match piece {
            Piece::Data { offset, bytes } => {
                assert!(offset == next && bytes.len() <= 512 << 10 && !bytes.is_empty());
                all.extend_from_slice(&bytes);
            }
            Piece::Hole { offset, len } => {
                assert!(offset == next && len > 0);
                all.resize(all.len() + len as usize, 0);
            }
            Piece::Lost { why, .. } => return Err(why),
        }
    }
    assert_eq!(all.len() as u64, reader.size());
    Ok(all)
}

/// The manifest of all files, as `btrfs_files.py manifest` makes it.
async fn manifest(fs: &Arc<FileSystem>) -> BTreeMap<String, String> {
    let files = Files::open(fs, objectid::FS_TREE).await.expect("it is there");
    let mut all = BTreeMap::new();
    let mut directories = vec![(Vec::new(), files.root())];
    while let Some((path, directory)) = directories.pop() {
        let mut listing = files.entries(directory).await.expect("a directory");
        while let Some(entry) = listing.next().await.expect("sound") {
            let path = [&path[..], b"/", &entry.name].concat();
            let stat = files.stat(entry.place).await.expect("sound");
            let mode = stat.as_ref().map_or(0o755, |stat| stat.mode & 0o7777);
            let numbers = stat.as_ref().map(|stat| stat.device);
            let numbers = numbers.map_or(String::new(), |(a, b)| format!("{a}:{b}"));
            assert_eq!(files.kind(entry.place).await, Ok(entry.kind), "{}", escaped(&path));
            let (letter, size, content) = match entry.kind {
                FileType::Regular => {
                    let bytes = contents(&files, entry.place).await;
                    let bytes = bytes.unwrap_or_else(|why| panic!("{}: {why}", escaped(&path)));
                    ("f", bytes.len(), hex(&Sha256::digest(&bytes)))
                }
                FileType::Symlink => {
                    let target = files.target(entry.place).await.expect("a link");
                    ("l", target.len(), hex(&Sha256::digest(&target)))
                }
                FileType::Directory => {
                    directories.push((path.clone(), entry.place));
                    ("d", 0, "-".to_owned())
                }
                FileType::BlockDevice => ("b", 0, numbers),
                FileType::CharacterDevice => ("c", 0, numbers),
                FileType::Fifo => ("p", 0, "-".to_owned()),
                FileType::Socket => ("s", 0, "-".to_owned()),
                FileType::Unknown => {
                    panic!("{}: {:?}", escaped(&path), entry.kind)
                }
            };
            // A path leads to the directory's entry with that name.
            assert_eq!(files.resolve(&path).await, Ok(entry.place), "{}", escaped(&path));
            let path = escaped(&path);
            let line = format!("{letter} {mode:04o} {size} {content} {path}");
            assert_eq!(all.insert(path, line), None);
        }
    }
    all
}

fn assert_manifest(rig: &Rig, fs: &Arc<FileSystem>, what: &str) {
    let found = rig.run(manifest(fs));
    let text = text_of(&rig.name, "manifest.txt");
    let path = |line: &str| line.rsplit(' ').next().expect("a path").to_owned();
    let wanted: BTreeMap<String, String> =
        text.lines().map(|line| (path(line), line.to_owned())).collect();
    for (path, line) in &wanted {
        assert_eq!(found.get(path), Some(line), "{} {what}: {path}", rig.name);
    }
    assert_eq!(found.len(), wanted.len(), "{} {what}", rig.name);
}

#[test]
fn every_path_of_every_image_is_as_the_kernel_had_it() {
    for name in names() {
        let rig = Rig::golden(&name);
        let fs = rig.open();
        assert_manifest(&rig, &fs, "as it is");
    }
}

/// All tree blocks, and all data sectors that have checksums.
async fn verified(fs: &Arc<FileSystem>) -> (BTreeSet<Logical>, BTreeSet<Logical>) {
    let (mut trees, mut data) = (BTreeSet::new(), BTreeSet::new());
    trees.extend(blocks(fs, fs.tree_root()).await);
    trees.extend(blocks(fs, fs.chunk_root()).await);
    for (_, root) in fs.roots().await.expect("sound") {
        trees.extend(blocks(fs, root).await);
    }
    let sums = fs.need_root(objectid::CSUM_TREE).await.expect("it is there");
    for (_, _, key, bytes) in items(fs, sums).await {
        if key.kind == item::EXTENT_CSUM {
            let kind = fs.superblock().csum_kind();
            let item = CsumItem::parse(key, &bytes, kind, fs.sectorsize()).expect("sound");
            data.extend(item.iter().map(|(at, _)| at));
        }
    }
    (trees, data)
}

#[test]
fn the_good_copy_of_each_block_is_read() {
    for name in MIRRORED {
        let rig = Rig::golden(name);
        let fs = rig.open();
        let (trees, data) = rig.run(verified(&fs));
        let (node, sector) = (u64::from(fs.nodesize()), u64::from(fs.sectorsize()));
        // Alternately the first and the second copy.
        let mirror = |index: usize| MirrorNum(1 + (index % 2) as u8);
        for (index, at) in trees.iter().enumerate() {
            rig.damage(&fs, *at, node, mirror(index));
        }
        for (index, at) in data.iter().enumerate() {
            rig.damage(&fs, *at, sector, mirror(index));
        }
        assert!(data.len() > 100 && trees.len() > 8, "{name}");
        let fs = rig.open();
        assert_manifest(&rig, &fs, "with half of all copies damaged");
    }
}

#[test]
fn devices_may_be_missing() {
    let cases = [
        ("raid1-sha256", 1),
        ("raid1c3", 2),
        ("raid1c4", 3),
        ("raid10-blake2", 1),
        ("raid5", 1),
        ("raid6", 2),
        ("log", 1),
    ];
    for (name, most) in cases {
        for first in [0, 1] {
            let rig = Rig::golden(name);
            let left = (0..rig.media.len()).filter(|index| !(first..first + most).contains(index));
            let options = OpenOptions { degraded: true, ..OpenOptions::default() };
            let (sources, runtime) = (rig.sources_of(left), rig.sim.runtime());
            let fs = rig.run(FileSystem::open(sources, options, runtime));
            let fs = fs.unwrap_or_else(|error| panic!("{name} without {first}: {error}"));
            assert!(!fs.missing().is_empty());
            assert_manifest(&rig, &fs, "with devices missing");
        }
    }
}

#[test]
fn damage_of_a_device_is_made_good_by_parity() {
    for name in PARITY {
        let devices = Rig::golden(name).media.len();
        for device in 0..devices {
            let rig = Rig::golden(name);
            let fs = rig.open();
            let (trees, data) = rig.run(verified(&fs));
            let devid = fs.devices()[device].devid;
            let is_there = |at: &&Logical| {
                let place =
                    fs.chunks().get(**at).and_then(|chunk| chunk.locate(**at, MirrorNum(1)));
                place.is_some_and(|place| place.devid == devid)
            };
            let mut damaged = 0;
            for at in trees.iter().filter(is_there) {
                rig.damage(&fs, *at, fs.nodesize().into(), MirrorNum(1));
                damaged += 1;
            }
            for at in data.iter().filter(is_there) {
                rig.damage(&fs, *at, fs.sectorsize().into(), MirrorNum(1));
                damaged += 1;
            }
            assert!(damaged > 10, "{name} {device}: {damaged}");
            let fs = rig.open();
            assert_manifest(&rig, &fs, "with a damaged device");
        }
    }
}

#[test]
fn a_sector_without_a_good_copy_is_lost_and_nothing_else_is() {
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    let (_, data) = rig.run(verified(&fs));
    let before = rig.run(async {
        let files = Files::open(&fs, 5).await.expect("it is there");
        contents(&files, files.resolve(b"large").await.expect("it is there")).await
    });
    let before = before.expect("sound");
    // The file's sectors are found by content: each sector differs from every other.
    let place_of = |sector: &[u8]| {
        let is_it = |at: &&Logical| {
            rig.run(fs.read_mirror(**at, 4096, MirrorNum(1))).expect("sound") == sector
        };
        *data.iter().find(is_it).expect("it is somewhere")
    };
    let place = place_of(&before[8 * 4096..9 * 4096]);
    rig.damage(&fs, place, 4096, MirrorNum(1));
    let fs = rig.open();
    let pieces = rig.run(async {
        let files = Files::open(&fs, 5).await.expect("it is there");
        let at = files.resolve(b"/large").await.expect("it is there");
        let mut reader = files.read(at).await.expect("a file");
        let mut all = Vec::new();
        while let Some(piece) = reader.next().await {
            all.push(piece);
        }
        all
    });
    let lost: Vec<&Piece> =
        pieces.iter().filter(|piece| matches!(piece, Piece::Lost { .. })).collect();
    let wanted = Piece::Lost { offset: 8 * 4096, len: 4096, why: LossReason::Checksum };
    assert_eq!(lost, [&wanted]);
    let mut next = 0;
    for piece in &pieces {
        match piece {
            Piece::Data { offset, bytes } => {
                assert_eq!(bytes[..], before[*offset as usize..][..bytes.len()]);
                assert_eq!(*offset, next);
                next += bytes.len() as u64;
            }
            Piece::Hole { offset, len } | Piece::Lost { offset, len, .. } => {
                assert_eq!(*offset, next);
                next += len;
            }
        }
    }
    assert_eq!(next, before.len() as u64);
}

#[test]
fn paths_lead_somewhere_or_say_why_not() {
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    rig.run(async {
        let files = Files::open(&fs, 5).await.expect("it is there");
        let at = |path: &'static str| files.resolve(path.as_bytes());
        assert_eq!(at("").await, Ok(files.root()));
        assert_eq!(at("/deep/../deep/./er//and").await, at("deep/er/and").await);
        assert_eq!(at("../../deep").await, at("deep").await);
        assert_eq!(at("deep/nothing").await, Err(FileError::NotFound));
        assert!(matches!(at("inline/behind").await, Err(FileError::NotADirectory(_))));
        let place = at("deep").await.expect("it is there");
        assert!(matches!(files.read(place).await, Err(FileError::Kind { .. })));
        assert!(matches!(files.target(place).await, Err(FileError::Kind { .. })));
        let place = at("inline").await.expect("it is there");
        assert!(matches!(files.entries(place).await, Err(FileError::Kind { .. })));
        // With another subvolume as root, its contents are at the top level.
        let inner = Files::open(&fs, 259).await.expect("it is there");
        let place = at("deep/second/kept").await.expect("it is there");
        assert_eq!(inner.resolve(b"kept").await, Ok(place));
        let nothing = Files::open(&fs, 2).await;
        assert_eq!(nothing.map(|_| ()), Err(FileError::NoSubvolume(2)));
        // A subvolume that is not in a snapshot appears there as an empty directory.
        let place = at("deep/second/nested").await.expect("it is there");
        assert_eq!((place, files.stat(place).await), (Place::Empty, Ok(None)));
        let mut listing = files.entries(place).await.expect("a directory");
        assert_eq!(listing.next().await, Ok(None));
    });
}

#[test]
fn extended_attributes_are_there() {
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    let found = rig.run(async {
        let files = Files::open(&fs, 5).await.expect("it is there");
        let mut directories = vec![files.root()];
        let mut all = Vec::new();
        while let Some(directory) = directories.pop() {
            let mut listing = files.entries(directory).await.expect("a directory");
            while let Some(entry) = listing.next().await.expect("sound") {
                all.extend(files.attributes(entry.place).await.expect("sound"));
                if entry.kind == FileType::Directory {
                    directories.push(entry.place);
                }
            }
        }
        all
    });
    let value = |name: &[u8]| found.iter().find(|(found, _)| found == name).map(|(_, value)| value);
    assert_eq!(value(b"user.note").map(Vec::as_slice), Some(&b"an attribute"[..]));
    assert_eq!(value(b"user.long").map(Vec::len), Some(700));
}
