//! What the bytes of a device hold: files, trees, superblocks, parity, or nothing.
//!
//! The way back from a device is the chunk map's ([`crate::chunk_map`]), from there the extent tree's
//! ([`crate::backref`]). What was found is remembered, within a bound, because the steps of an I/O
//! ask for the same bytes.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use tracing::debug;

use crate::backref::{self, FilePart, OWNERS_MAX, OwnedExtent, Owners, names_of};
use crate::chunk_map::{Content, DeviceExtent};
use crate::error::TreeError;
use crate::inspect::tree_title;
use crate::ondisk::chunk::{Profile, STRIPE_LEN};
use crate::ondisk::superblock::{OFFSETS, SUPERBLOCK_SIZE};
use crate::roots::is_subvolume;
use crate::units::{DevId, Logical, Physical};
use crate::volume::FileSystem;

/// The most ranges and the most files that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1 << 14).expect("not zero");
/// The most parts that a range is cut into; the rest is one.
const PARTS_MAX: usize = 4096;
/// The most names of the same bytes.
const NAMES_MAX: usize = 4;

/// A number of bytes that belong together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Occupant {
    /// How many they are.
    pub len: u64,
    /// The path of the file, or several; `fs tree 5 level 0`, `superblock`, `free space` and so on.
    pub name: Arc<str>,
}

/// Finds out what a file system has on its devices.
pub struct Occupants {
    fs: Arc<FileSystem>,
    /// What the last asked device has.
    device: Option<(DevId, Vec<DeviceExtent>)>,
    ranges: LruCache<(Logical, u64), Vec<Occupant>>,
    names: LruCache<(u64, u64), Arc<str>>,
}

impl Occupants {
    /// What `fs` has.
    pub fn new(fs: Arc<FileSystem>) -> Self {
        let (ranges, names) = (LruCache::new(REMEMBERED), LruCache::new(REMEMBERED));
        Self { fs, device: None, ranges, names }
    }

    /// What is in `len` bytes of a device, in order and without gaps. Neighbours differ.
    pub async fn at(&mut self, devid: DevId, at: Physical, len: u64) -> Vec<Occupant> {
        let mut all = Vec::new();
        let (mut at, end) = (at.0, at.0.saturating_add(len));
        while at < end {
            if all.len() >= PARTS_MAX {
                put(&mut all, end - at, &"more".into());
                break;
            }
            let place = self.place(devid, at);
            let until = place.end.min(end);
            match place.content {
                Place::Named(name) => put(&mut all, until - at, &name.into()),
                Place::Chunk(start) => {
                    for part in self.range(start, until - at).await {
                        put(&mut all, part.len, &part.name);
                    }
                }
            }
            at = until;
        }
        all
    }

    /// What is at a byte of a device, and up to where.
    fn place(&mut self, devid: DevId, at: u64) -> Extent {
        let size = SUPERBLOCK_SIZE as u64;
        let superblock = OFFSETS.into_iter().find(|offset| offset.0.saturating_add(size) > at);
        let named = |name, end| Extent { content: Place::Named(name), end };
        let end = match superblock {
            Some(offset) if offset.0 <= at => return named("superblock", offset.0 + size),
            Some(offset) => offset.0,
            None => u64::MAX,
        };
        let chunks = self.chunks_of(devid);
        let behind = chunks.partition_point(|extent| extent.start.0 <= at);
        let next = chunks.get(behind).map_or(u64::MAX, |extent| extent.start.0);
        let here = behind.checked_sub(1).and_then(|index| chunks.get(index)).cloned();
        let free = named("free space", end.min(next));
        let Some(here) = here else { return free };
        let offset = at - here.start.0;
        let Some(left) = here.length.checked_sub(offset).filter(|left| *left > 0) else {
            return free;
        };
        let run = match here.chunk.profile {
            Profile::Single
            | Profile::Dup
            | Profile::Raid1
            | Profile::Raid1c3
            | Profile::Raid1c4 => left,
            Profile::Raid0 | Profile::Raid10 | Profile::Raid5 | Profile::Raid6 => {
                left.min(STRIPE_LEN - offset % STRIPE_LEN)
            }
        };
        let end = end.min(at.saturating_add(run));
        if self.fs.has_stripes_of(&here.chunk) {
            return named("data that the RAID stripe tree places", end);
        }
        match here.chunk.content(here.stripe, offset) {
            Content::Data { start, .. } => Extent { content: Place::Chunk(start), end },
            Content::Parity { .. } => named("parity", end),
            Content::Nothing => named("free space", end),
        }
    }

    fn chunks_of(&mut self, devid: DevId) -> &[DeviceExtent] {
        if self.device.as_ref().is_none_or(|(known, _)| *known != devid) {
            // Chunks that share bytes are refused when the file system is opened.
            let all = self.fs.chunks().on_device(devid).unwrap_or_default();
            self.device = Some((devid, all));
        }
        self.device.as_ref().map_or(&[], |(_, all)| all)
    }

    /// What is in a range of the file system's space.
    async fn range(&mut self, start: Logical, len: u64) -> Vec<Occupant> {
        if let Some(known) = self.ranges.get(&(start, len)) {
            return known.clone();
        }
        let mut all = Vec::new();
        let (mut at, end) = (start.0, start.0.saturating_add(len));
        while at < end {
            let extents = match backref::owners(&self.fs, Logical(at), end - at).await {
                Ok(extents) => extents,
                Err(error) => {
                    debug!(%start, %error, "cannot find the owners of a range");
                    put(&mut all, end - at, &"unknown".into());
                    break;
                }
            };
            for owned in &extents {
                let from = owned.start.0.clamp(at, end);
                let until = owned.start.0.saturating_add(owned.length).clamp(from, end);
                put(&mut all, from - at, &"free space".into());
                let name = self.name(owned).await;
                put(&mut all, until - from, &name);
                at = until;
            }
            // With that many there may be more behind them.
            if extents.len() < OWNERS_MAX || all.len() >= PARTS_MAX {
                let name = if extents.len() < OWNERS_MAX { "free space" } else { "more" };
                put(&mut all, end - at, &name.into());
                break;
            }
        }
        self.ranges.put((start, len), all.clone());
        all
    }

    /// The name of an extent.
    async fn name(&mut self, owned: &OwnedExtent) -> Arc<str> {
        let mut names: Vec<Arc<str>> = Vec::new();
        match &owned.owners {
            Owners::Data(parts) => {
                for FilePart { root, inode, .. } in parts {
                    let name = self.file(*root, *inode).await;
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
            }
            Owners::Tree { level, roots, .. } => names.extend(roots.iter().map(|root| {
                let tree = match *root {
                    id if is_subvolume(id) => format!("fs tree {id}"),
                    id => format!("{} tree", tree_title(id)),
                };
                format!("{tree} level {level}").into()
            })),
        }
        match &names[..] {
            [] => "data of no file".into(),
            [one] => Arc::clone(one),
            [..] => {
                let shown = names[..names.len().min(NAMES_MAX)].join(", ");
                match names.len().saturating_sub(NAMES_MAX) {
                    0 => shown.into(),
                    more => format!("{shown} and {more} more").into(),
                }
            }
        }
    }

    /// The first name of a file.
    async fn file(&mut self, root: u64, inode: u64) -> Arc<str> {
        if let Some(known) = self.names.get(&(root, inode)) {
            return Arc::clone(known);
        }
        let unnamed = || format!("inode {inode} of tree {root}");
        let name: Result<Arc<str>, TreeError> = names_of(&self.fs, root, inode)
            .await
            .map(|names| names.first().map_or_else(unnamed, |name| name.full().to_string()).into());
        let name = name.unwrap_or_else(|error| {
            debug!(root, inode, %error, "cannot find the name of an inode");
            unnamed().into()
        });
        self.names.put((root, inode), Arc::clone(&name));
        name
    }
}

/// What is at a place of a device.
enum Place {
    Named(&'static str),
    /// The file system's space, from here.
    Chunk(Logical),
}

/// A place, and its end on the device.
struct Extent {
    content: Place,
    end: u64,
}

/// Appends bytes, to the last part if it has that name.
fn put(all: &mut Vec<Occupant>, len: u64, name: &Arc<str>) {
    match all.last_mut() {
        Some(last) if last.name == *name => last.len += len,
        Some(_) | None if len > 0 => all.push(Occupant { len, name: Arc::clone(name) }),
        Some(_) | None => {}
    }
}
