//! Malicious file systems: checksums are right, but the contents are not. Each must end in a clear
//! error, quickly and with little memory.

use crate::support;

use std::io;
use std::sync::Arc;

use crate::support::{Rig, blocks};
use ashlar_btrfs::backref;
use ashlar_btrfs::csum::ChecksumKind;
use ashlar_btrfs::error::OpenError;
use ashlar_btrfs::files::Files;
use ashlar_btrfs::inspect::{self, SizeForm};
use ashlar_btrfs::ondisk::items::name_hash;
use ashlar_btrfs::ondisk::key::{Key, item};
use ashlar_btrfs::ondisk::node::{BlockExpectation, HEADER_SIZE};
use ashlar_btrfs::path::{Path, Root};
use ashlar_btrfs::units::{Logical, MirrorNum};
use ashlar_btrfs::volume::{FileSystem, OpenOptions};
use ashlar_files::{Entries, FileError, FileType, LossReason, Piece, Tree as _};
use ashlar_sim::Rng;

const ITEM_SIZE: usize = 25;
const POINTER_SIZE: usize = 33;

/// Changes a block of `single-4k` (or another image with one copy of everything and CRC-32C), and
/// updates its checksum.
fn change(rig: &Rig, fs: &FileSystem, at: Logical, change: impl FnOnce(&mut [u8])) {
    let size = u64::from(fs.nodesize());
    let mut bytes = rig.run(fs.read_mirror(at, size, MirrorNum(1))).expect("it is there");
    change(&mut bytes);
    let sum = ChecksumKind::Crc32c.compute(&bytes[32..]);
    bytes[..4].copy_from_slice(sum.as_bytes());
    let place = fs.chunks().get(at).expect("mapped").locate(at, MirrorNum(1)).expect("stored");
    rig.patch(0, place.at.0, &bytes);
}

/// Like [`change`], for the data of one item.
fn change_item(
    rig: &Rig,
    fs: &Arc<FileSystem>,
    root: Root,
    key: Key,
    with: impl FnOnce(&mut [u8]),
) {
    let (at, from, len) = rig.run(async {
        let mut path = Path::new(fs, root);
        assert!(path.search(key).await.expect("sound") && path.key() == Some(key), "no {key}");
        let (leaf, slot) = path.leaf().expect("it is in one");
        let (_, data) = leaf.item(slot).expect("it is there");
        let from = data.as_ptr() as usize - leaf.bytes().as_ptr() as usize;
        (Logical(leaf.header().bytenr.get()), from, data.len())
    });
    change(rig, fs, at, |bytes| with(&mut bytes[from..from + len]));
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn rig() -> (Rig, Arc<FileSystem>) {
    let rig = Rig::golden("single-4k");
    let fs = rig.open();
    (rig, fs)
}

/// Walks a whole tree; returns the number of items, and the error that ended the walk.
fn walk(rig: &Rig, fs: &Arc<FileSystem>, root: Root) -> (usize, String) {
    rig.run(async {
        let (mut path, mut count) = (Path::new(fs, root), 0);
        let mut more = path.search(Key::MIN).await;
        loop {
            match more {
                Ok(true) => count += 1,
                Ok(false) => return (count, String::new()),
                Err(error) => return (count, error.to_string()),
            }
            assert!(count < 100_000, "the walk does not end");
            more = path.next().await;
        }
    })
}

#[test]
fn trees_that_lead_back_into_themselves_end() {
    let (rig, fs) = rig();
    let root = rig.run(fs.need_root(5)).expect("sound");
    let leaves = rig.run(blocks(&fs, root));
    // Points the second pointer to its own block, then to the leaf of the first pointer.
    for (to, wanted) in [(root.at, "bad level"), (leaves[1], "bad first key")] {
        change(&rig, &fs, root.at, |bytes| put(bytes, HEADER_SIZE + POINTER_SIZE + 17, to.0));
        let again = rig.open();
        let (count, error) = walk(&rig, &again, root);
        assert!(count > 0 && error.contains(wanted) || error.contains("generation"), "{error}");
        let mut text = Vec::new();
        let dumped = rig.run(inspect::tree(&again, 5, &mut text)).expect("the rest is sound");
        assert_eq!(dumped.unreadable, 1);
    }
}

#[test]
fn items_beyond_their_block_are_refused() {
    let (rig, fs) = rig();
    let root = rig.run(fs.need_root(5)).expect("sound");
    let leaf = rig.run(blocks(&fs, root))[1];
    let number = |at: usize, value: u32| {
        move |bytes: &mut [u8]| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes())
    };
    type Change = Box<dyn Fn(&mut [u8])>;
    let cases: [(Change, &str); 4] = [
        (Box::new(number(96, u32::MAX)), "more items than fit"),
        (Box::new(number(HEADER_SIZE + 17, 4096)), "not beside"),
        (Box::new(number(HEADER_SIZE + 21, u32::MAX)), "not beside"),
        (Box::new(number(HEADER_SIZE + ITEM_SIZE, 0)), "keys that do not ascend"),
    ];
    drop((fs, rig));
    for (how, wanted) in cases {
        let (rig, fs) = self::rig();
        change(&rig, &fs, leaf, how);
        let again = rig.open();
        let (_, error) = walk(&rig, &again, root);
        assert!(error.contains(wanted), "{error}, wanted {wanted}");
    }
}

fn opened(rig: &Rig) -> OpenError {
    rig.try_open(OpenOptions::default()).expect_err("it cannot be opened")
}

#[test]
fn chunks_that_cannot_be_are_refused() {
    type Change = fn(&mut [u8]);
    let cases: [(Change, &str); 6] = [
        (|data| put(data, 0, 1 << 40), "overlap"),
        (|data| data[44..46].copy_from_slice(&[0, 0]), "number of stripes"),
        (|data| data[44..46].copy_from_slice(&[0xff, 0xff]), "cut off"),
        (|data| put(data, 16, 0), "stripe length"),
        (|data| put(data, 24, 0x7f8), "type"),
        (|data| put(data, 48 + 8, u64::MAX - 4095), "offset of a stripe"),
    ];
    for (how, wanted) in cases {
        let (rig, fs) = rig();
        // A data chunk: those in the superblock's array are read earlier.
        let data = fs.chunks().iter().find(|chunk| !chunk.flags.bits() & 2 != 0).expect("one");
        let key = Key::new(256, item::CHUNK_ITEM, data.start.0);
        change_item(&rig, &fs, fs.chunk_root(), key, how);
        let error = opened(&rig).to_string();
        assert!(error.contains(wanted), "{error}, wanted {wanted}");
    }
}

#[test]
fn superblocks_with_absurd_numbers_are_refused() {
    let cases: [(usize, &[u8], &str); 5] = [
        (144, &[1, 0, 0, 0], "sectorsize"),
        (148, &[0, 0, 0, 0x80], "nodesize"),
        (160, &[0xff; 4], "sys_chunk_array_size"),
        (198, &[8], "level"),
        (136, &[0; 8], "num_devices"),
    ];
    for (at, value, wanted) in cases {
        let rig = Rig::golden("mixed");
        let mut bytes = rig.peek(0, 64 << 10, 4096);
        bytes[at..at + value.len()].copy_from_slice(value);
        let sum = ChecksumKind::Crc32c.compute(&bytes[32..]);
        bytes[..4].copy_from_slice(sum.as_bytes());
        rig.patch(0, 64 << 10, &bytes);
        let error = opened(&rig).to_string();
        assert!(error.contains(wanted), "{error}, wanted {wanted}");
    }
}

/// The key of a directory's entry by its index, and the inode that it refers to.
fn entry(rig: &Rig, fs: &Arc<FileSystem>, directory: u64, name: &[u8]) -> (Key, u64) {
    let root = rig.run(fs.need_root(5)).expect("sound");
    let all = rig.run(support::items(fs, root));
    let found = all.into_iter().find(|(_, _, key, data)| {
        (key.objectid, key.kind) == (directory, item::DIR_INDEX) && data.ends_with(name)
    });
    let (_, _, key, data) = found.expect("the entry is there");
    (key, u64::from_le_bytes(data[..8].try_into().expect("eight bytes")))
}

/// The number of valid entries of a directory, and the errors of the others.
async fn listed(mut listing: Box<dyn Entries + '_>) -> (usize, Vec<FileError>) {
    let (mut count, mut errors) = (0, Vec::new());
    loop {
        match listing.next().await {
            Ok(Some(_)) => count += 1,
            Ok(None) => return (count, errors),
            Err(error) => errors.push(error),
        }
    }
}

#[test]
fn a_directory_within_itself_is_not_entered() {
    let (rig, fs) = rig();
    let root = rig.run(fs.need_root(5)).expect("sound");
    let (_, deep) = entry(&rig, &fs, 256, b"deep");
    let (key, er) = entry(&rig, &fs, deep, b"er");
    change_item(&rig, &fs, root, key, |data| put(data, 0, deep));
    let again = rig.open();
    rig.run(async {
        let files = Files::open(&again, 5).await.expect("it is there");
        let deep = files.resolve(b"deep").await.expect("it is there");
        let (count, errors) = listed(files.entries(deep).await.expect("a directory")).await;
        assert!(count > 10 && matches!(&errors[..], [FileError::Elsewhere { .. }]), "{errors:?}");
    });
    // The inodes' own names in a cycle: `deep` is in `er`, which is in `deep`.
    let (rig, fs) = {
        drop((again, fs));
        drop(rig);
        self::rig()
    };
    let parent = Key::new(deep, item::INODE_REF, 256);
    let (leaf, slot) = rig.run(async {
        let mut path = Path::new(&fs, root);
        assert!(path.search(parent).await.expect("sound"));
        let (leaf, slot) = path.leaf().expect("it is there");
        (Logical(leaf.header().bytenr.get()), slot)
    });
    change(&rig, &fs, leaf, |bytes| put(bytes, HEADER_SIZE + slot * ITEM_SIZE + 9, er));
    let again = rig.open();
    let error = rig.run(backref::names_of(&again, 5, er)).expect_err("a circle");
    assert!(error.to_string().contains("in a circle"), "{error}");
}

#[test]
fn an_entry_for_the_root_directory_is_refused() {
    let (rig, fs) = rig();
    let root = rig.run(fs.need_root(5)).expect("sound");
    let (_, deep) = entry(&rig, &fs, 256, b"deep");
    let (key, _) = entry(&rig, &fs, deep, b"er");
    let by_name = Key::new(deep, item::DIR_ITEM, name_hash(b"er"));
    for key in [key, by_name] {
        change_item(&rig, &fs, root, key, |data| put(data, 0, 256));
    }
    // The root directory agrees: its back reference names `deep/er` as its only entry.
    let (leaf, slot) = rig.run(async {
        let mut path = Path::new(&fs, root);
        assert!(path.search(Key::new(256, item::INODE_REF, 0)).await.expect("sound"));
        let (leaf, slot) = path.leaf().expect("it is in one");
        (Logical(leaf.header().bytenr.get()), slot)
    });
    change(&rig, &fs, leaf, |bytes| {
        let at = HEADER_SIZE + slot * ITEM_SIZE;
        put(bytes, at + 9, deep);
        let data = u32::from_le_bytes(bytes[at + 17..at + 21].try_into().expect("four bytes"));
        let data = HEADER_SIZE + data as usize;
        put(bytes, data, key.offset);
        bytes[data + 10..data + 12].copy_from_slice(b"er");
    });
    let again = rig.open();
    rig.run(async {
        let files = Files::open(&again, 5).await.expect("it is there");
        let found = files.resolve(b"deep/er").await;
        assert!(matches!(found, Err(FileError::Root { .. })), "{found:?}");
        let deep = files.resolve(b"deep").await.expect("it is there");
        let (count, errors) = listed(files.entries(deep).await.expect("a directory")).await;
        assert!(count > 10 && matches!(&errors[..], [FileError::Root { .. }]), "{errors:?}");
    });
}

/// Otherwise 40 nested directories, each listed twice, would be 2^40 directories.
#[test]
fn a_directory_or_subvolume_that_is_there_twice_is_entered_once() {
    for (it, twin) in [(b"deep".as_slice(), b"zlib".as_slice()), (b"volume", b"inline")] {
        let (rig, fs) = rig();
        let root = rig.run(fs.need_root(5)).expect("sound");
        let items = rig.run(support::items(&fs, root));
        let (key, _) = entry(&rig, &fs, 256, it);
        let (_, _, _, bytes) = items.iter().find(|(_, _, at, _)| *at == key).expect("it is there");
        let (key, _) = entry(&rig, &fs, 256, twin);
        change_item(&rig, &fs, root, key, |data| data.copy_from_slice(bytes));
        let again = rig.open();
        rig.run(async {
            let files = Files::open(&again, 5).await.expect("it is there");
            assert!(files.resolve(it).await.is_ok(), "its path leads to it");
            let (count, errors) = listed(files.entries(files.root()).await.expect("it is")).await;
            assert!(
                count > 10 && matches!(&errors[..], [FileError::Elsewhere { .. }]),
                "{errors:?}"
            );
        });
    }
}

#[test]
fn names_that_lead_elsewhere_are_no_names() {
    for bad in [b'/', 0] {
        let (rig, fs) = rig();
        let root = rig.run(fs.need_root(5)).expect("sound");
        let (key, _) = entry(&rig, &fs, 256, b"inline");
        change_item(&rig, &fs, root, key, |data| {
            let last = data.len() - 3;
            data[last] = bad;
        });
        let again = rig.open();
        rig.run(async {
            let files = Files::open(&again, 5).await.expect("it is there");
            let root = files.entries(files.root()).await.expect("a directory");
            let (count, errors) = listed(root).await;
            assert!(count > 10 && matches!(&errors[..], [FileError::BadName { .. }]), "{errors:?}");
        });
    }
}

#[test]
fn a_name_longer_than_its_item_is_an_error() {
    let (rig, fs) = rig();
    let root = rig.run(fs.need_root(5)).expect("sound");
    let (key, _) = entry(&rig, &fs, 256, b"inline");
    change_item(&rig, &fs, root, key, |data| data[27..29].copy_from_slice(&[0xff, 0xff]));
    let again = rig.open();
    let mut text = Vec::new();
    rig.run(inspect::tree(&again, 5, &mut text)).expect("the rest is sound");
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(text.matches("\t\tinvalid: the directory item").count(), 1);
}

#[test]
fn absurd_sizes_of_files_take_no_memory() {
    let (rig, fs) = rig();
    let root = rig.run(fs.need_root(5)).expect("sound");
    let (_, inode) = entry(&rig, &fs, 256, b"inline");
    change_item(&rig, &fs, root, Key::new(inode, item::INODE_ITEM, 0), |data| {
        put(data, 16, u64::MAX);
    });
    let again = rig.open();
    let pieces = rig.run(pieces(&again, b"inline"));
    assert_eq!(pieces.len(), 2, "{pieces:?}");
    assert_eq!(pieces[1], Piece::Hole { offset: 1000, len: u64::MAX - 1000 });
}

async fn pieces(fs: &Arc<FileSystem>, path: &[u8]) -> Vec<Piece> {
    let files = Files::open(fs, 5).await.expect("it is there");
    let place = files.resolve(path).await.expect("it is there");
    let mut reader = files.read(place).await.expect("a file");
    let mut all = Vec::new();
    while let Some(piece) = reader.next().await {
        all.push(piece);
        assert!(all.len() < 10_000, "the listing does not end");
    }
    all
}

#[test]
fn absurd_extents_are_lost_and_not_looked_for() {
    // The decompressed size of the compressed inline file, and the length of a plain one.
    let (rig, fs) = rig();
    let root = rig.run(fs.need_root(5)).expect("sound");
    let (_, zlib) = entry(&rig, &fs, 256, b"zlib");
    let (_, inline) = entry(&rig, &fs, zlib, b"inline");
    change_item(&rig, &fs, root, Key::new(inline, item::EXTENT_DATA, 0), |data| {
        put(data, 8, 1 << 60);
    });
    let (_, large) = entry(&rig, &fs, 256, b"large");
    change_item(&rig, &fs, root, Key::new(large, item::EXTENT_DATA, 0), |data| {
        put(data, 8, 1 << 60);
        put(data, 29, 1 << 60);
        put(data, 45, 1 << 60);
    });
    change_item(&rig, &fs, root, Key::new(large, item::INODE_ITEM, 0), |data| {
        put(data, 16, 1 << 60);
    });
    let again = rig.open();
    let lost = rig.run(pieces(&again, b"zlib/inline"));
    assert!(matches!(&lost[..], [Piece::Lost { why: LossReason::Decompress(_), .. }]), "{lost:?}");
    let lost = rig.run(pieces(&again, b"large"));
    assert!(matches!(&lost[..], [Piece::Lost { why: LossReason::Read(_), .. }]), "{lost:?}");
}

/// Runs every query on a file system; returns the amount of output.
async fn ask_everything(fs: &Arc<FileSystem>) -> usize {
    struct ByteCounter(usize);
    impl io::Write for ByteCounter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            assert!(self.0 < 256 << 20, "the text does not end");
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut out = ByteCounter(0);
    let mut said = usize::from(inspect::trees(fs, &mut out).await.is_ok());
    said += usize::from(inspect::usage(fs, SizeForm::Bytes, &mut out).await.is_ok());
    inspect::chunks(fs, &mut out).expect("nothing is read");
    if let Ok(files) = Files::open(fs, 5).await {
        let mut open: Vec<_> = files.entries(files.root()).await.into_iter().collect();
        let mut steps = 0;
        while let Some(listing) = open.last_mut() {
            steps += 1;
            assert!(steps < 10_000, "the directories do not end");
            let entry = match listing.next().await {
                Ok(Some(entry)) => entry,
                Ok(None) => {
                    open.pop();
                    continue;
                }
                Err(_) => continue,
            };
            said += files.attributes(entry.place).await.map_or(0, |all| all.len());
            said += usize::from(files.target(entry.place).await.is_ok());
            if let Ok(mut reader) = files.read(entry.place).await {
                let (mut end, mut count) = (0, 0);
                while let Some(piece) = reader.next().await {
                    let (offset, len) = match &piece {
                        Piece::Data { offset, bytes } => (*offset, bytes.len() as u64),
                        Piece::Hole { offset, len } | Piece::Lost { offset, len, .. } => {
                            (*offset, *len)
                        }
                    };
                    assert!(offset == end && len > 0, "pieces are beside each other");
                    end = offset + len;
                    count += 1;
                    assert!(count < 10_000, "the pieces do not end");
                }
                assert_eq!(end, reader.size());
            }
            if entry.kind == FileType::Directory {
                open.extend(files.entries(entry.place).await);
            }
        }
    }
    if let Ok(all) = backref::owners(fs, Logical(0), u64::MAX).await {
        for owned in all {
            if let backref::Owners::Data(parts) = owned.owners {
                for part in parts {
                    let names = backref::names_of(fs, part.root, part.inode).await;
                    said += names.map_or(0, |names| names.len());
                }
            }
        }
    }
    said + out.0
}

/// Any byte of any tree block may change, with the right checksum: nothing panics, and everything ends.
#[test]
fn whatever_is_in_a_tree_block_everything_ends() {
    for seed in 0..150 {
        let name = ["single-4k", "shared", "old"][seed as usize % 3];
        let rig = Rig::golden(name);
        let fs = rig.open();
        let mut rng = Rng::new(seed);
        let all = rig.run(async {
            let mut all = blocks(&fs, fs.tree_root()).await;
            all.extend(blocks(&fs, fs.chunk_root()).await);
            for (_, root) in fs.roots().await.expect("sound") {
                all.extend(blocks(&fs, root).await);
            }
            all
        });
        for _ in 0..=rng.below(3) {
            let at = all[rng.below(all.len() as u64) as usize];
            change_all(&rig, &fs, at, |bytes| {
                for _ in 0..=rng.below(6) {
                    let len = bytes.len() as u64;
                    let place = 48 + rng.below(len - 48) as usize;
                    // Mostly extreme values.
                    let value = [0, 1, 0x7f, 0x80, 0xff, rng.below(256) as u8];
                    bytes[place] = value[rng.below(6) as usize];
                }
            });
        }
        let before = rig.run(ask_everything(&fs));
        assert!(before > 0);
        if let Ok(again) = rig.try_open(OpenOptions::default()) {
            rig.run(ask_everything(&again));
        }
    }
}

/// Like [`change`], for all stored copies.
fn change_all(rig: &Rig, fs: &FileSystem, at: Logical, change: impl FnOnce(&mut [u8])) {
    let size = u64::from(fs.nodesize());
    let mut bytes = rig.run(fs.read_mirror(at, size, MirrorNum(1))).expect("it is there");
    change(&mut bytes);
    support::store_node(fs, at, &mut bytes, |_, at, bytes| rig.patch(0, at, bytes));
}

#[test]
fn a_block_that_is_nowhere_is_an_error() {
    let (rig, fs) = rig();
    for at in [0, 4096, u64::MAX - 4095, 1 << 50] {
        let expected = BlockExpectation { at: Logical(at), ..BlockExpectation::default() };
        assert!(rig.run(fs.node(expected)).is_err(), "{at}");
    }
}
