//! A whole btrfs file system from a hostile disk: never a panic, never an unbounded loop or allocation, whatever
//! operation is called.
//!
//! Input: changes of a file system made by the kernel: five bytes each, for the tree block, the offset in it (two
//! bytes), and the two bytes to write there. Block 255 is the superblock. Checksums are corrected.

use std::io;
use std::sync::{Arc, OnceLock};

use ashlar_block::{Sector, Sectors};
use ashlar_btrfs::csum::ChecksumKind;
use ashlar_btrfs::files::Files;
use ashlar_btrfs::ondisk::node::BlockExpectation;
use ashlar_btrfs::path::Root;
use ashlar_btrfs::units::{Logical, MirrorNum};
use ashlar_btrfs::volume::{FileSystem, OpenOptions, Source};
use ashlar_btrfs::{backref, inspect};
use ashlar_files::{FileType, Piece, Place, Tree as _};
use ashlar_sim::{Media, Sim, SimDisk};

/// A file system on one device, without duplicated blocks.
static MAP: &str = include_str!("../../tests/images/btrfs/single-4k/image.map");
static BYTES: &[u8] = include_bytes!("../../tests/images/btrfs/single-4k/image.bin");

/// The size of a tree block, and of a superblock.
pub const BLOCK: usize = 4096;
/// The offset of the superblock.
const SUPERBLOCK: u64 = 64 << 10;
/// The block number that stands for the superblock.
const IS_SUPERBLOCK: u8 = 255;
/// The most steps of an operation before it counts as endless.
const STEPS_MAX: usize = 20_000;

fn media() -> Media {
    let mut media = None;
    for line in MAP.lines() {
        let mut words = line.split(' ');
        let kind = words.next();
        let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        match (kind, numbers.as_slice()) {
            (Some("device"), [_, bytes]) => media = Some(Media::new(Sectors(bytes >> 9))),
            (Some("copy"), [_, at, len, source]) => {
                let media = media.as_ref().expect("the device comes first");
                let bytes = &BYTES[*source as usize..(*source + *len) as usize];
                let first = at >> 9;
                let skip = (at - (first << 9)) as usize;
                let sectors = (skip + bytes.len()).div_ceil(512) as u64;
                let mut whole = media.peek_range(Sector(first), Sectors(sectors));
                whole[skip..skip + bytes.len()].copy_from_slice(bytes);
                media.poke(Sector(first), &whole);
            }
            _ => panic!("unknown line {line}"),
        }
    }
    media.expect("there is a device")
}

async fn open(media: &Media, sim: &Sim) -> Option<Arc<FileSystem>> {
    let gateway = SimDisk::over("0.img", media.clone()).gateway();
    let source = Source { name: "0.img".to_owned(), gateway };
    FileSystem::open(vec![source], OpenOptions::default(), sim.runtime()).await.ok()
}

/// The tree blocks: offset on the device, and bytes.
pub fn blocks() -> &'static [(u64, Vec<u8>)] {
    static BLOCKS: OnceLock<Vec<(u64, Vec<u8>)>> = OnceLock::new();
    BLOCKS.get_or_init(|| {
        let (media, sim) = (media(), Sim::new(1));
        sim.block_on(async {
            let fs = open(&media, &sim).await.expect("it is sound");
            let mut roots: Vec<Root> = vec![fs.tree_root(), fs.chunk_root()];
            roots.extend(fs.roots().await.expect("sound").into_iter().map(|(_, root)| root));
            let mut waiting: Vec<Logical> = roots.into_iter().map(|root| root.at).collect();
            let mut all = Vec::new();
            while let Some(at) = waiting.pop() {
                let node = fs
                    .node(BlockExpectation { at, ..BlockExpectation::default() })
                    .await
                    .expect("sound");
                waiting
                    .extend((0..node.len()).filter_map(|slot| node.pointer(slot)).map(|to| to.at));
                let chunk = fs.chunks().get(at).expect("mapped");
                let place = chunk.locate(at, MirrorNum(1)).expect("stored");
                all.push((place.at.0, node.bytes().to_vec()));
            }
            all.sort();
            all.dedup();
            all
        })
    })
}

/// The superblock.
pub fn superblock() -> Vec<u8> {
    media().peek_range(Sector(SUPERBLOCK >> 9), Sectors(BLOCK as u64 >> 9))
}

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    let media = media();
    let all = blocks();
    for [block, high, low, first, second] in data.as_chunks::<5>().0.iter().take(64) {
        let place = match *block {
            IS_SUPERBLOCK => SUPERBLOCK,
            block => all[usize::from(block) % all.len()].0,
        };
        let mut bytes = media.peek_range(Sector(place >> 9), Sectors(BLOCK as u64 >> 9));
        let at = usize::from(u16::from_be_bytes([*high, *low])) % (BLOCK - 33) + 32;
        bytes[at..at + 2].copy_from_slice(&[*first, *second]);
        let sum = ChecksumKind::Crc32c.compute(&bytes[32..]);
        bytes[..4].copy_from_slice(sum.as_bytes());
        media.poke(Sector(place >> 9), &bytes);
    }
    let sim = Sim::new(1);
    sim.block_on(async {
        match open(&media, &sim).await {
            Some(fs) => {
                ask(&fs).await;
                true
            }
            None => false,
        }
    })
}

/// A writer that only counts.
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

/// Calls every operation. An error is an acceptable result.
async fn ask(fs: &Arc<FileSystem>) {
    let mut out = ByteCounter(0);
    if let Err(error) = inspect::trees(fs, &mut out).await {
        assert!(!error.to_string().is_empty());
    }
    if let Err(error) = inspect::usage(fs, inspect::SizeForm::Bytes, &mut out).await {
        assert!(!error.to_string().is_empty());
    }
    inspect::chunks(fs, &mut out).expect("nothing is read");
    if let Ok(files) = Files::open(fs, 5).await {
        walk(&files).await;
    }
    if let Ok(all) = backref::owners(fs, Logical(0), u64::MAX).await {
        assert!(all.is_sorted_by_key(|owned| owned.start));
        for owned in all {
            let backref::Owners::Data(parts) = owned.owners else { continue };
            for part in parts {
                if let Err(error) = backref::names_of(fs, part.root, part.inode).await {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}

/// Walks through all files.
async fn walk(files: &Files) {
    let mut open: Vec<_> = files.entries(files.root()).await.into_iter().collect();
    let mut steps = 0;
    while let Some(listing) = open.last_mut() {
        steps += 1;
        assert!(steps < STEPS_MAX, "the directories do not end");
        let entry = match listing.next().await {
            Ok(Some(entry)) => entry,
            Ok(None) => {
                open.pop();
                continue;
            }
            Err(_) => continue,
        };
        assert!(!entry.name.contains(&b'/') && !entry.name.contains(&0));
        read(files, entry.place).await;
        if entry.kind == FileType::Directory {
            open.extend(files.entries(entry.place).await);
        }
    }
}

/// Reads a file to its end.
async fn read(files: &Files, place: Place) {
    let Ok(mut reader) = files.read(place).await else { return };
    let (mut end, mut steps) = (0, 0);
    while let Some(piece) = reader.next().await {
        let (Piece::Data { offset, .. } | Piece::Hole { offset, .. } | Piece::Lost { offset, .. }) =
            &piece;
        assert!(*offset == end && piece.end() > end, "pieces are beside each other");
        end = piece.end();
        steps += 1;
        assert!(steps < STEPS_MAX, "the pieces do not end");
    }
    assert_eq!(end, reader.size());
}
