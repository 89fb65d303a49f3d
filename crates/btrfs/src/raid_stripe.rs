//! Locations of the copies of data, from the chunk or from the RAID stripe tree.
//!
//! On a file system with the incompatible feature `RAID_STRIPE_TREE`, the locations of data in
//! chunks that are mirrored or striped without parity are items of a tree
//! (`fs/btrfs/raid-stripe-tree.c`):
//!
//! | key | body |
//! |---|---|
//! | `(address RAID_STRIPE length)` | for each copy, the device and the offset of the first byte on it |
//!
//! Items correspond to writes, not to extents: an extent may have several, and one may cover less
//! than an extent after part of that was freed. Data that was allocated but never written has none.
//! The order of the copies has no meaning, except for DUP, where both are on one device.
//!
//! A copy must be on the device, and in the part of it, that the chunk assigns to that copy. An
//! item that says otherwise is damaged and not followed.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::chunk_map::Location;
use crate::error::{ReadError, TreeError};
use crate::ondisk::chunk::{BlockGroupFlags, Chunk, Profile};
use crate::ondisk::items::{RaidStride, raid_stripe};
use crate::ondisk::key::{Key, item, objectid};
use crate::ondisk::superblock::Incompat;
use crate::path::Path;
use crate::readahead::Reada;
use crate::units::{Leg, Logical, MirrorNum, Physical};
use crate::volume::FileSystem;

impl FileSystem {
    /// Whether the RAID stripe tree, not the chunk, locates the bytes of `chunk`.
    pub fn has_stripes_of(&self, chunk: &Chunk) -> bool {
        let is_spread = match chunk.profile {
            Profile::Dup
            | Profile::Raid0
            | Profile::Raid1
            | Profile::Raid1c3
            | Profile::Raid1c4
            | Profile::Raid10 => true,
            Profile::Single | Profile::Raid5 | Profile::Raid6 => false,
        };
        let trees = BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
        let is_data = chunk.flags.contains(BlockGroupFlags::DATA) && !chunk.flags.intersects(trees);
        self.superblock().incompat().contains(Incompat::RAID_STRIPE_TREE) && is_data && is_spread
    }

    /// Like [`Self::read_mirror`], for what may be data: if the RAID stripe tree locates the
    /// copies, its locations are used.
    ///
    /// # Errors
    /// As for [`Self::read_mirror`]; or the tree has no location for the bytes, or is damaged.
    pub async fn read_data(
        self: &Arc<Self>,
        start: Logical,
        len: u64,
        leg: impl Into<Leg>,
    ) -> Result<Vec<u8>, ReadError> {
        let leg = leg.into();
        let (mut all, mut walk) = (Vec::new(), StripeWalk::new(self));
        while (all.len() as u64) < len {
            let done = all.len() as u64;
            let at = start.checked_add(done).ok_or(ReadError::Unmapped(start))?;
            let chunk = self.chunks().get(at).ok_or(ReadError::Unmapped(at))?;
            if self.has_stripes_of(chunk) {
                let place = walk.locate(chunk, at, leg.mirror).await?;
                let part = place.len.min(len - done);
                let bytes = self.read_device(place.devid, place.at, part, leg.copy).await?;
                all.extend_from_slice(bytes.as_slice());
            } else {
                let part = (chunk.end().0 - at.0).min(len - done);
                all.extend(self.read_mirror(at, part, leg).await?);
            }
        }
        Ok(all)
    }
}

/// What the tree has for an address range.
struct RangeCopies {
    range: Range<u64>,
    /// The copies of the range; none if there is no item for it.
    copies: Result<SmallVec<[RaidStride; 4]>, ReadError>,
}

/// A walk over the RAID stripe tree, which keeps its position: a range that follows the last one or
/// lies in it needs no descent.
pub struct StripeWalk<'a> {
    fs: &'a Arc<FileSystem>,
    path: Option<Path<'a>>,
    found: Option<RangeCopies>,
}

impl<'a> StripeWalk<'a> {
    /// A walk without a position yet.
    pub fn new(fs: &'a Arc<FileSystem>) -> Self {
        Self { fs, path: None, found: None }
    }

    /// Locates copy `mirror` of the byte at `at`, which is in `chunk`; the result's length is that
    /// of the contiguous bytes from there. If the chunk is not in the tree, the chunk's own
    /// location is returned.
    ///
    /// # Errors
    /// [`ReadError::Unmapped`]: the chunk has no such stored copy. [`ReadError::NoStripe`]: the
    /// tree has no item for the byte. [`ReadError::StripeTree`]: the tree is damaged there.
    pub async fn locate(
        &mut self,
        chunk: &Chunk,
        at: Logical,
        mirror: MirrorNum,
    ) -> Result<Location, ReadError> {
        let by_chunk = chunk.locate(at, mirror).ok_or(ReadError::Unmapped(at))?;
        if !self.fs.has_stripes_of(chunk) {
            return Ok(by_chunk);
        }
        let RangeCopies { range, copies } = self.find(at).await;
        let copies = copies.as_ref().map_err(Clone::clone)?;
        if copies.is_empty() {
            return Err(ReadError::NoStripe(at));
        }
        let damaged = |why: String| Err(ReadError::StripeTree(Box::new(damaged(range, why))));
        let devid = by_chunk.devid;
        let is_here = |copy: &&RaidStride| copy.devid() == devid;
        let copy = if chunk.profile == Profile::Dup {
            copies.get(by_chunk.stripe).filter(is_here)
        } else {
            copies.iter().find(is_here)
        };
        let Some(copy) = copy else {
            return damaged(format!("it has no copy on device {devid}, where the chunk has one"));
        };
        let (offset, len) = (at.0 - range.start, by_chunk.len.min(range.end - at.0));
        let part = chunk.stripes[by_chunk.stripe].offset;
        let part_end = part.0.saturating_add(chunk.stripe_length());
        let place = copy.physical().checked_add(offset);
        let is_within = |place: &Physical| {
            *place >= part && place.checked_add(len).is_some_and(|end| end.0 <= part_end)
        };
        match place.filter(is_within) {
            Some(at) => Ok(Location { at, len, ..by_chunk }),
            None => damaged(format!(
                "{} is not in the part of device {devid} that the chunk has, {part} to {part_end}",
                copy.physical(),
            )),
        }
    }

    /// What the tree has for the byte at `at`.
    async fn find(&mut self, at: Logical) -> &RangeCopies {
        let found = match self.found.take() {
            Some(found) if found.range.contains(&at.0) => found,
            Some(_) | None => self.look(at).await,
        };
        self.found.insert(found)
    }

    async fn look(&mut self, at: Logical) -> RangeCopies {
        if self.path.is_none() {
            match self.fs.need_root(objectid::RAID_STRIPE_TREE).await {
                Ok(root) => {
                    self.path = Some(Path::new(self.fs, root).with_reada(Reada::Forward));
                }
                Err(error) => return RangeCopies::lost(0..u64::MAX, error),
            }
        }
        let sectorsize = u64::from(self.fs.sectorsize());
        let behind = at.0.saturating_add(sectorsize);
        let Some(path) = &mut self.path else { return RangeCopies::nothing(at.0..behind) };
        let last = Key::new(at.0, item::RAID_STRIPE, u64::MAX);
        let before = match path.search_back(last).await {
            Ok(false) => None,
            Ok(true) => path.item().map(|(key, data)| (key, Item::parse(key, data, sectorsize))),
            Err(error) => {
                // Skip the range of the lost block instead of searching it sector by sector.
                let next = path.resume().map_or(u64::MAX, |key| key.objectid);
                return RangeCopies::lost(at.0..next.max(behind), error);
            }
        };
        // If the next block cannot be read, the read that needs it reports the error.
        let next = match before {
            Some(_) => path.next().await,
            None => path.search(last).await,
        };
        let next = path.key().filter(|_| next == Ok(true)).map_or(u64::MAX, |key| key.objectid);
        match before {
            Some((_, Ok(Item { range, copies }))) if range.contains(&at.0) => {
                if next >= range.end {
                    return RangeCopies { range, copies: Ok(copies) };
                }
                let error =
                    damaged(&range, format!("it overlaps the next item, which begins at {next}"));
                RangeCopies::lost(at.0..behind, error)
            }
            Some((key, Err(why))) => {
                let tree = objectid::RAID_STRIPE_TREE;
                RangeCopies::lost(at.0..behind, TreeError::Item { tree, key, why })
            }
            Some((_, Ok(_))) | None => RangeCopies::nothing(at.0..next.max(behind)),
        }
    }
}

impl RangeCopies {
    fn nothing(range: Range<u64>) -> Self {
        Self { range, copies: Ok(SmallVec::new()) }
    }

    fn lost(range: Range<u64>, error: TreeError) -> Self {
        Self { range, copies: Err(ReadError::StripeTree(Box::new(error))) }
    }
}

/// An item of the tree.
struct Item {
    range: Range<u64>,
    copies: SmallVec<[RaidStride; 4]>,
}

impl Item {
    fn parse(key: Key, data: &[u8], sectorsize: u64) -> Result<Self, String> {
        if key.kind != item::RAID_STRIPE {
            return Err("it is not a RAID stripe".to_owned());
        }
        let is_aligned = [key.objectid, key.offset].iter().all(|it| it.is_multiple_of(sectorsize));
        let end = key.objectid.checked_add(key.offset);
        let Some(end) = end.filter(|_| key.offset > 0 && is_aligned) else {
            return Err("its range is not of whole sectors".to_owned());
        };
        let strides = raid_stripe(data).map_err(|why| why.to_string())?;
        let is_aligned = |stride: &RaidStride| stride.physical.get().is_multiple_of(sectorsize);
        if !strides.iter().all(is_aligned) {
            return Err("the address of a copy is not a multiple of the sector size".to_owned());
        }
        Ok(Self { range: key.objectid..end, copies: strides.into() })
    }
}

fn damaged(range: &Range<u64>, why: String) -> TreeError {
    let key = Key::new(range.start, item::RAID_STRIPE, range.end - range.start);
    TreeError::Item { tree: objectid::RAID_STRIPE_TREE, key, why }
}
