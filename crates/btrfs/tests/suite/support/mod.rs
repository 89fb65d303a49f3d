//! Golden images (`tests/images/btrfs`) on simulated disks.

#![allow(dead_code, reason = "each test program uses another part of it")]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use ashlar_block::{Sector, Sectors};
use ashlar_btrfs::csum::ChecksumKind;
use ashlar_btrfs::error::OpenError;
use ashlar_btrfs::ondisk::key::Key;
use ashlar_btrfs::path::{Path, Root};
use ashlar_btrfs::units::{DevId, Logical, MirrorNum};
use ashlar_btrfs::volume::{FileSystem, OpenOptions, Source};
use ashlar_sim::{Media, Sim, SimDisk};

/// Images that store data and metadata more than once, as plain copies.
pub(crate) const MIRRORED: [&str; 8] = [
    "dup-xxhash",
    "raid1-sha256",
    "raid1c3",
    "raid1c4",
    "raid10-blake2",
    "stripe-dup",
    "stripe-raid1",
    "stripe-raid10",
];
/// Images with parity.
pub(crate) const PARITY: [&str; 2] = ["raid5", "raid6"];

/// Updates the checksum (crc32c) of a changed node, and calls `store` for each location of a copy.
pub(crate) fn store_node(
    fs: &FileSystem,
    at: Logical,
    bytes: &mut [u8],
    mut store: impl FnMut(DevId, u64, &[u8]),
) {
    let sum = ChecksumKind::Crc32c.compute(&bytes[32..]);
    bytes[..4].copy_from_slice(sum.as_bytes());
    let chunk = fs.chunks().get(at).expect("mapped");
    for mirror in chunk.all_mirrors() {
        let place = chunk.locate(at, mirror).expect("stored");
        store(place.devid, place.at.0, bytes);
    }
}

/// Directory of the golden images.
pub(crate) fn images() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/btrfs")
}

/// The names of all golden images, sorted.
pub(crate) fn names() -> Vec<String> {
    let entries = fs::read_dir(images()).expect("the directory of images is there");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().join("image.map").exists())
        .map(|entry| entry.file_name().into_string().expect("names are ASCII"))
        .collect();
    names.sort();
    assert!(names.len() >= 22, "images are missing: {names:?}");
    names
}

/// A text file of an image, byte for byte; `None` if the image has none of that name.
pub(crate) fn bytes(image: &str, file: &str) -> Option<Vec<u8>> {
    fs::read(images().join(image).join(file)).ok()
}

/// Like [`bytes`]; invalid UTF-8 is replaced.
pub(crate) fn text(image: &str, file: &str) -> Option<String> {
    bytes(image, file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A text file that the image must have.
pub(crate) fn text_of(image: &str, file: &str) -> String {
    text(image, file).unwrap_or_else(|| panic!("{image} has no {file}"))
}

/// Disks with a file system, and the simulation in which they run.
pub(crate) struct Rig {
    pub(crate) name: String,
    pub(crate) sim: Sim,
    pub(crate) media: Vec<Media>,
    disks: Vec<SimDisk>,
}

impl Rig {
    /// The golden image `name`, unchanged. Panics on a thread that already has a rig.
    pub(crate) fn golden(name: &str) -> Self {
        Self::over(name, golden_media(name))
    }

    /// A rig over existing media; device `n` is named `n.img`.
    pub(crate) fn over(name: &str, media: Vec<Media>) -> Self {
        let sim = Sim::new(1);
        let disk =
            |(index, media): (usize, &Media)| SimDisk::over(format!("{index}.img"), media.clone());
        let disks = media.iter().enumerate().map(disk).collect();
        Self { name: name.to_owned(), sim, media, disks }
    }

    /// All devices.
    pub(crate) fn sources(&self) -> Vec<Source> {
        self.sources_of(0..self.disks.len())
    }

    /// Some devices.
    pub(crate) fn sources_of(&self, indices: impl IntoIterator<Item = usize>) -> Vec<Source> {
        let source = |index: usize| Source {
            name: format!("{index}.img"),
            gateway: self.disks[index].gateway(),
        };
        indices.into_iter().map(source).collect()
    }

    /// Opens the file system.
    pub(crate) fn try_open(&self, options: OpenOptions) -> Result<Arc<FileSystem>, OpenError> {
        let runtime = self.sim.runtime();
        self.sim.block_on(FileSystem::open(self.sources(), options, runtime))
    }

    /// Opens the file system, which must be valid.
    pub(crate) fn open(&self) -> Arc<FileSystem> {
        let opened = self.try_open(OpenOptions::default());
        opened.unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// Runs `future` to completion.
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.sim.block_on(future)
    }

    /// Bytes of a device.
    pub(crate) fn peek(&self, device: usize, at: u64, len: usize) -> Vec<u8> {
        peek(&self.media[device], at, len)
    }

    /// Stores bytes directly on the medium.
    pub(crate) fn patch(&self, device: usize, at: u64, bytes: &[u8]) {
        patch(&self.media[device], at, bytes);
    }

    /// Damages `len` bytes of a stored mirror: every 64th byte changes. Damaging the same bytes
    /// again restores them.
    pub(crate) fn damage(&self, fs: &FileSystem, start: Logical, len: u64, mirror: MirrorNum) {
        let mut done = 0;
        while done < len {
            let at = Logical(start.0 + done);
            let chunk = fs.chunks().get(at).expect("it is in a chunk");
            let place = chunk.locate(at, mirror).expect("the mirror is stored");
            let device = fs.devices().iter().position(|device| device.devid == place.devid);
            let device = device.expect("the device is there");
            let part = place.len.min(len - done);
            let name = &fs.devices()[device].name;
            let index: usize = name.trim_end_matches(".img").parse().expect("N.img");
            let mut bytes = self.peek(index, place.at.0, part as usize);
            bytes.iter_mut().step_by(64).for_each(|byte| *byte ^= 0xa5);
            self.patch(index, place.at.0, &bytes);
            done += part;
        }
    }
}

/// The devices of a golden image.
pub(crate) fn golden_media(name: &str) -> Vec<Media> {
    let directory = images().join(name);
    let map = fs::read_to_string(directory.join("image.map")).expect("image.map");
    let bin = fs::read(directory.join("image.bin")).expect("image.bin");
    let mut media: Vec<Media> = Vec::new();
    for line in map.lines() {
        let (kind, numbers) = line.split_once(' ').expect("a word and numbers");
        let numbers: Vec<u64> =
            numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
        match (kind, numbers.as_slice()) {
            ("device", [index, bytes]) => {
                assert_eq!(*index, media.len() as u64, "{name}: devices in their order");
                media.push(Media::new(Sectors::from_bytes_floor(*bytes)));
            }
            ("copy", [index, at, len, source]) => {
                let bytes = &bin[*source as usize..(*source + *len) as usize];
                patch(&media[*index as usize], *at, bytes);
            }
            _ => panic!("{name}: unknown line {line}"),
        }
    }
    media
}

/// Bytes of a medium.
pub(crate) fn peek(media: &Media, at: u64, len: usize) -> Vec<u8> {
    let (first, end) = (at >> 9, (at + len as u64).div_ceil(512));
    let all = media.peek_range(Sector(first), Sectors(end - first));
    let skip = (at - (first << 9)) as usize;
    all[skip..skip + len].to_vec()
}

/// Stores bytes on a medium.
pub(crate) fn patch(media: &Media, at: u64, bytes: &[u8]) {
    let (first, end) = (at >> 9, (at + bytes.len() as u64).div_ceil(512));
    let mut all = media.peek_range(Sector(first), Sectors(end - first));
    let skip = (at - (first << 9)) as usize;
    all[skip..skip + bytes.len()].copy_from_slice(bytes);
    media.poke(Sector(first), &all);
}

/// All items of a tree: leaf, slot, key and data.
pub(crate) async fn items(fs: &Arc<FileSystem>, root: Root) -> Vec<(Logical, usize, Key, Vec<u8>)> {
    let mut all = Vec::new();
    let mut path = Path::new(fs, root);
    let mut more = path.search(Key::MIN).await.expect("the tree is sound");
    while more {
        let (key, data) = path.item().expect("there is one");
        let (leaf, slot) = path.leaf().expect("it is in a leaf");
        all.push((Logical(leaf.header().bytenr.get()), slot, key, data.to_vec()));
        more = path.next().await.expect("the tree is sound");
    }
    all
}

/// Addresses of all blocks of a tree, level by level.
pub(crate) async fn blocks(fs: &Arc<FileSystem>, root: Root) -> Vec<Logical> {
    use ashlar_btrfs::ondisk::node::BlockExpectation;
    let mut all = vec![root.at];
    let mut next = 0;
    while next < all.len() {
        let expected = BlockExpectation { at: all[next], ..BlockExpectation::default() };
        let node = fs.node(expected).await.expect("the tree is sound");
        all.extend((0..node.len()).filter_map(|slot| node.pointer(slot)).map(|to| to.at));
        next += 1;
    }
    all
}
