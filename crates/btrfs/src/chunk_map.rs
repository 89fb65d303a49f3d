//! Maps the file system's space to its devices.
//!
//! The arithmetic is that of `btrfs_map_block` in the kernel's `fs/btrfs/volumes.c`. A chunk's
//! space is divided into strips of [`STRIPE_LEN`]:
//!
//! | profile | strip `n` of the chunk |
//! |---|---|
//! | single, DUP, RAID1 and its kin | at the same offset on every stripe |
//! | RAID0 | stripe `n % stripes`, row `n / stripes` |
//! | RAID10 | both stripes of pair `n % pairs`, row `n / pairs` |
//! | RAID5, RAID6 | row `r = n / data`; stripe `(r + n % data) % stripes`; P follows the data, Q follows P |

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;
use thiserror::Error;

use crate::ondisk::chunk::{Chunk, Profile, STRIPE_LEN};
use crate::units::{DevId, Logical, MirrorNum, Physical};

/// The stripes of one row of a RAID5 or RAID6 chunk, in the order data, P, Q; each is an index into
/// the chunk's stripes.
pub type Row = SmallVec<[usize; 8]>;

/// One copy of a range of the file system's space on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// Index of the stripe in the chunk.
    pub stripe: usize,
    /// The device of that stripe.
    pub devid: DevId,
    /// Offset on the device.
    pub at: Physical,
    /// Number of contiguous bytes from there, regardless of the end of the requested range.
    pub len: u64,
}

/// What a part of a device holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// A copy of data or tree blocks, starting at `start`.
    Data {
        /// The first byte.
        start: Logical,
        /// Which copy it is.
        mirror: MirrorNum,
    },
    /// Parity of a row.
    Parity {
        /// 0 is P, 1 is Q.
        which: usize,
        /// The number of the row within its chunk.
        row: u64,
    },
    /// Past the end of the chunk.
    Nothing,
}

impl Chunk {
    /// Number of mirrors that can be read: copies, or reconstructions from parity.
    pub fn mirrors(&self) -> u8 {
        match self.profile {
            Profile::Single | Profile::Raid0 => 1,
            Profile::Dup | Profile::Raid1 | Profile::Raid10 | Profile::Raid5 => 2,
            Profile::Raid1c3 => 3,
            Profile::Raid1c4 => 4,
            // P, Q, and one for each further data stripe that may be wrong without a checksum to tell.
            Profile::Raid6 => u8::try_from(self.stripes.len()).unwrap_or(u8::MAX),
        }
    }

    /// All mirrors, the first one first.
    pub fn all_mirrors(&self) -> impl Iterator<Item = MirrorNum> + use<> {
        (1..=self.mirrors()).map(MirrorNum)
    }

    /// Whether `mirror` is stored on a device, not computed from a row.
    pub fn is_stored(&self, mirror: MirrorNum) -> bool {
        mirror.0 >= 1 && usize::from(mirror.0) <= self.profile.copies()
    }

    /// Location of copy `mirror` of the byte at `logical`.
    ///
    /// `None` if the byte is not in this chunk or the mirror is not a stored one.
    pub fn locate(&self, logical: Logical, mirror: MirrorNum) -> Option<Location> {
        let offset = logical.0.checked_sub(self.start.0).filter(|offset| *offset < self.length)?;
        if !self.is_stored(mirror) {
            return None;
        }
        let copy = usize::from(mirror.0) - 1;
        let (strip, within) = (offset / STRIPE_LEN, offset % STRIPE_LEN);
        let data = self.data_stripes();
        let (row, column) = (strip / data, (strip % data) as usize);
        let in_strip = (STRIPE_LEN - within).min(self.length - offset);
        let (stripe, at, len) = match self.profile {
            Profile::Single
            | Profile::Dup
            | Profile::Raid1
            | Profile::Raid1c3
            | Profile::Raid1c4 => (copy, offset, self.length - offset),
            Profile::Raid0 => (column, row * STRIPE_LEN + within, in_strip),
            Profile::Raid10 => (column * 2 + copy, row * STRIPE_LEN + within, in_strip),
            Profile::Raid5 | Profile::Raid6 => {
                (self.rotated(row, column), row * STRIPE_LEN + within, in_strip)
            }
        };
        let on = self.stripes.get(stripe)?;
        Some(Location { stripe, devid: on.devid, at: on.offset.checked_add(at)?, len })
    }

    /// Content at `offset` bytes from the start of the chunk's part on stripe `stripe`.
    pub fn content(&self, stripe: usize, offset: u64) -> Content {
        let mirror = |copy: usize| MirrorNum(copy as u8 + 1);
        let data_at = |strip: u64, copy: usize| {
            let start =
                strip.checked_mul(STRIPE_LEN).and_then(|at| at.checked_add(offset % STRIPE_LEN));
            match start.filter(|start| *start < self.length) {
                Some(start) => {
                    Content::Data { start: Logical(self.start.0 + start), mirror: mirror(copy) }
                }
                None => Content::Nothing,
            }
        };
        let (row, data) = (offset / STRIPE_LEN, self.data_stripes());
        match self.profile {
            Profile::Single
            | Profile::Dup
            | Profile::Raid1
            | Profile::Raid1c3
            | Profile::Raid1c4
                if offset < self.length =>
            {
                Content::Data { start: Logical(self.start.0 + offset), mirror: mirror(stripe) }
            }
            Profile::Single
            | Profile::Dup
            | Profile::Raid1
            | Profile::Raid1c3
            | Profile::Raid1c4 => Content::Nothing,
            Profile::Raid0 => data_at(row.saturating_mul(data).saturating_add(stripe as u64), 0),
            Profile::Raid10 => {
                data_at(row.saturating_mul(data).saturating_add(stripe as u64 / 2), stripe % 2)
            }
            Profile::Raid5 | Profile::Raid6 => {
                let stripes = self.stripes.len() as u64;
                let column = (stripe as u64 + stripes - row % stripes) % stripes;
                if column < data {
                    data_at(row.saturating_mul(data).saturating_add(column), 0)
                } else if row.saturating_mul(data).saturating_mul(STRIPE_LEN) < self.length {
                    Content::Parity { which: (column - data) as usize, row }
                } else {
                    Content::Nothing
                }
            }
        }
    }

    /// The stripes of a row with parity: data, P, Q.
    pub fn row(&self, row: u64) -> Row {
        (0..self.stripes.len()).map(|column| self.rotated(row, column)).collect()
    }

    /// The first byte of `row` in the file system's space.
    pub fn row_start(&self, row: u64) -> Option<Logical> {
        self.start.checked_add(row.checked_mul(self.data_stripes())?.checked_mul(STRIPE_LEN)?)
    }

    fn rotated(&self, row: u64, column: usize) -> usize {
        let stripes = self.stripes.len() as u64;
        ((row % stripes + column as u64) % stripes) as usize
    }
}

/// Two chunks that claim the same bytes.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MapError {
    /// In the file system's space.
    #[error("the chunks at {0} and {1} overlap")]
    Overlap(Logical, Logical),
    /// On a device.
    #[error("the chunks at {0} and {1} share bytes of device {2}")]
    Shared(Logical, Logical, DevId),
}

/// A part of a device that belongs to a chunk.
#[derive(Clone, Debug)]
pub struct DeviceExtent {
    /// Its start.
    pub start: Physical,
    /// Its length in bytes.
    pub length: u64,
    /// The chunk.
    pub chunk: Arc<Chunk>,
    /// Index of the stripe in the chunk.
    pub stripe: usize,
}

/// All chunks of a file system, without overlaps.
#[derive(Clone, Default, Debug)]
pub struct ChunkMap {
    chunks: BTreeMap<Logical, Arc<Chunk>>,
}

impl ChunkMap {
    /// Adds a chunk. An identical chunk is accepted again: the superblock repeats system chunks of
    /// the chunk tree.
    ///
    /// # Errors
    /// It overlaps another.
    pub fn insert(&mut self, chunk: Chunk) -> Result<(), MapError> {
        if let Some((_, before)) = self.chunks.range(..chunk.end()).next_back()
            && before.end() > chunk.start
        {
            if **before == chunk {
                return Ok(());
            }
            return Err(MapError::Overlap(before.start, chunk.start));
        }
        self.chunks.insert(chunk.start, Arc::new(chunk));
        Ok(())
    }

    /// The chunk that contains the byte at `logical`.
    pub fn get(&self, logical: Logical) -> Option<&Arc<Chunk>> {
        let (_, chunk) = self.chunks.range(..=logical).next_back()?;
        (logical < chunk.end()).then_some(chunk)
    }

    /// The chunk that contains the byte at `logical`, or else the next one.
    pub(crate) fn at_or_behind(&self, logical: Logical) -> Option<&Arc<Chunk>> {
        let next = || self.chunks.range(logical..).next().map(|(_, chunk)| chunk);
        self.get(logical).or_else(next)
    }

    /// All chunks, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Chunk>> {
        self.chunks.values()
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The parts of a device that belong to chunks, in device order.
    ///
    /// # Errors
    /// Two parts overlap.
    pub fn on_device(&self, devid: DevId) -> Result<Vec<DeviceExtent>, MapError> {
        let mut all = Vec::new();
        for chunk in self.iter() {
            for (stripe, on) in chunk.stripes.iter().enumerate() {
                if on.devid == devid {
                    let (start, length) = (on.offset, chunk.stripe_length());
                    all.push(DeviceExtent { start, length, chunk: Arc::clone(chunk), stripe });
                }
            }
        }
        all.sort_by_key(|extent| extent.start);
        for pair in all.windows(2) {
            if pair[0].start.0.saturating_add(pair[0].length) > pair[1].start.0 {
                let (a, b) = (pair[0].chunk.start, pair[1].chunk.start);
                return Err(MapError::Shared(a, b, devid));
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::ondisk::chunk::{BlockGroupFlags, Stripe};

    const ALL: [(BlockGroupFlags, &[usize]); 9] = [
        (BlockGroupFlags::empty(), &[1]),
        (BlockGroupFlags::DUP, &[2]),
        (BlockGroupFlags::RAID0, &[1, 2, 3, 5]),
        (BlockGroupFlags::RAID1, &[2]),
        (BlockGroupFlags::RAID1C3, &[3]),
        (BlockGroupFlags::RAID1C4, &[4]),
        (BlockGroupFlags::RAID10, &[2, 4, 6]),
        (BlockGroupFlags::RAID5, &[2, 3, 4, 5]),
        (BlockGroupFlags::RAID6, &[3, 4, 5, 6]),
    ];

    fn chunk(start: u64, length: u64, kind: BlockGroupFlags, stripes: usize) -> Chunk {
        let flags = BlockGroupFlags::DATA | kind;
        let stripe = |n: usize| Stripe {
            devid: DevId(n as u64 + 1),
            offset: Physical((n as u64 + 1) << 24),
            dev_uuid: Uuid::nil(),
        };
        let profile = Profile::of(flags).expect("one profile");
        let stripes = (0..stripes).map(stripe).collect();
        Chunk { start: Logical(start), length, flags, profile, stripes }
    }

    /// Checks every strip of every profile: each located strip is what the device part says it
    /// holds, and no two strips share a place.
    #[test]
    fn each_byte_is_where_the_device_says_it_is() {
        for (kind, counts) in ALL {
            for stripes in counts {
                let rows = 13;
                let mut it = chunk(1 << 30, 0, kind, *stripes);
                it.length = rows * STRIPE_LEN * it.data_stripes();
                let mut seen = std::collections::HashSet::new();
                for strip in 0..it.length / STRIPE_LEN {
                    let logical = Logical(it.start.0 + strip * STRIPE_LEN + 4096);
                    for mirror in it.all_mirrors().filter(|mirror| it.is_stored(*mirror)) {
                        let at = it.locate(logical, mirror).expect("it is stored");
                        let offset = at.at.0 - it.stripes[at.stripe].offset.0;
                        let content = it.content(at.stripe, offset);
                        assert_eq!(content, Content::Data { start: logical, mirror }, "{kind:?}");
                        assert!(seen.insert((at.stripe, offset / STRIPE_LEN)), "{kind:?}");
                        assert!(offset < it.stripe_length());
                    }
                }
                // The rest is parity: one P (and one Q) per row.
                let mut parities = Vec::new();
                for stripe in 0..*stripes {
                    for row in 0..it.stripe_length() / STRIPE_LEN {
                        match it.content(stripe, row * STRIPE_LEN) {
                            Content::Data { .. } => assert!(seen.contains(&(stripe, row))),
                            Content::Parity { which, row: of } => {
                                assert_eq!(of, row);
                                let column = it.data_stripes() as usize + which;
                                assert_eq!(it.row(row)[column], stripe);
                                parities.push((row, which));
                            }
                            Content::Nothing => panic!("{kind:?}: a hole"),
                        }
                    }
                }
                parities.sort_unstable();
                let wanted =
                    (0..rows).flat_map(|row| (0..it.profile.parities()).map(move |n| (row, n)));
                assert!(parities.into_iter().eq(wanted), "{kind:?} {stripes}");
            }
        }
    }

    /// RAID5 over three devices, written by hand: D0 D1 P / P' D2 D3, rotated by one each row.
    #[test]
    fn parity_turns_as_the_kernel_has_it() {
        let it = chunk(0, 6 * STRIPE_LEN, BlockGroupFlags::RAID5, 3);
        let stripe =
            |strip: u64| it.locate(Logical(strip * STRIPE_LEN), MirrorNum(1)).map(|at| at.stripe);
        assert_eq!([0, 1, 2, 3, 4, 5].map(stripe), [0, 1, 1, 2, 2, 0].map(Some));
        assert_eq!(it.content(2, 0), Content::Parity { which: 0, row: 0 });
        assert_eq!(it.content(0, STRIPE_LEN), Content::Parity { which: 0, row: 1 });
        assert_eq!(it.content(1, 2 * STRIPE_LEN), Content::Parity { which: 0, row: 2 });
    }

    /// Offsets come from resumed scrubs and from items of other trees.
    #[test]
    fn there_is_nothing_behind_the_end_of_a_chunk() {
        for (kind, counts) in ALL {
            for stripes in counts {
                let mut it = chunk(1 << 30, 0, kind, *stripes);
                it.length = 5 * STRIPE_LEN * it.data_stripes();
                let end = it.stripe_length();
                let last = it.locate(Logical(it.end().0 - 4096), MirrorNum(1)).expect("within");
                assert_eq!(last.len, 4096, "{kind:?}");
                for stripe in 0..*stripes {
                    assert_ne!(it.content(stripe, end - 1), Content::Nothing, "{kind:?}");
                    for behind in [end, end + 1, end + 64 * STRIPE_LEN, 1 << 62, u64::MAX] {
                        assert_eq!(it.content(stripe, behind), Content::Nothing, "{kind:?}");
                    }
                }
                for mirror in (0..=u8::MAX).map(MirrorNum) {
                    for outside in [0, it.start.0 - 1, it.end().0, u64::MAX] {
                        assert_eq!(it.locate(Logical(outside), mirror), None, "{kind:?}");
                    }
                    assert_eq!(it.locate(it.start, mirror).is_some(), it.is_stored(mirror));
                }
            }
        }
    }

    #[test]
    fn chunks_that_overlap_are_refused_and_the_same_one_is_not() {
        let mut map = ChunkMap::default();
        let it = chunk(1 << 20, 1 << 20, BlockGroupFlags::empty(), 1);
        map.insert(it.clone()).expect("the first");
        map.insert(it.clone()).expect("the same");
        for start in [(1 << 20) - 4096, (1 << 20) + 4096, (2 << 20) - 4096] {
            let other = chunk(start, 8192, BlockGroupFlags::empty(), 1);
            assert!(map.insert(other).is_err(), "{start}");
        }
        let other = chunk(2 << 20, 8192, BlockGroupFlags::empty(), 1);
        map.insert(other).expect("beside it");
        // Both claim the same bytes of device 1.
        assert!(matches!(map.on_device(DevId(1)), Err(MapError::Shared(..))));
        assert_eq!(map.get(Logical((2 << 20) + 8191)).map(|it| it.start.0), Some(2 << 20));
        assert!(map.get(Logical((2 << 20) + 8192)).is_none());
        assert!(map.get(Logical(0)).is_none());
    }
}
