//! Chunk items: a range of the file system's space, and the parts of devices that hold it.

use std::fmt;

use ashlar_block::ondisk_layout;
use smallvec::SmallVec;
use thiserror::Error;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::key::{DiskKey, Key, item, objectid};
use crate::units::{DevId, Logical, Physical};

/// Length of a stripe in bytes, always the same (`BTRFS_STRIPE_LEN`).
pub const STRIPE_LEN: u64 = 64 << 10;

/// Maximum number of stripes of a chunk: those that fit into a leaf of the largest size, 64 KiB,
/// with its header of 101 bytes and an item header of 25.
pub const MAX_STRIPES: usize =
    ((64 << 10) - 101 - 25 - size_of::<DiskChunk>()) / size_of::<DiskStripe>();
/// Maximum number of data stripes in a parity row: Q cannot distinguish more.
pub const MAX_DATA_STRIPES_WITH_PARITY: usize = 255;

/// `struct btrfs_chunk` without its stripes.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskChunk {
    /// Length in the file system's space.
    pub length: U64,
    /// Always the extent tree.
    pub owner: U64,
    /// [`STRIPE_LEN`]
    pub stripe_len: U64,
    /// [`BlockGroupFlags`]
    pub kind: U64,
    /// Alignment of I/O.
    pub io_align: U32,
    /// Best width of I/O.
    pub io_width: U32,
    /// Its sector size.
    pub sector_size: U32,
    /// Number of [`DiskStripe`]s that follow.
    pub num_stripes: U16,
    /// RAID10: copies of each stripe.
    pub sub_stripes: U16,
}

ondisk_layout!(DiskChunk, 48, {
    length: 0, owner: 8, stripe_len: 16, kind: 24, io_align: 32, io_width: 36, sector_size: 40,
    num_stripes: 44, sub_stripes: 46,
});

/// `struct btrfs_stripe`
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiskStripe {
    /// The device.
    pub devid: U64,
    /// Offset on the device.
    pub offset: U64,
    /// The device's identity.
    pub dev_uuid: [u8; 16],
}

ondisk_layout!(DiskStripe, 32, { devid: 0, offset: 8, dev_uuid: 16 });

bitflags::bitflags! {
    /// Content and profile of a block group (`BTRFS_BLOCK_GROUP_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct BlockGroupFlags: u64 {
        /// Files' data.
        const DATA = 1 << 0;
        /// The chunk tree.
        const SYSTEM = 1 << 1;
        /// All other trees.
        const METADATA = 1 << 2;
        /// Striped.
        const RAID0 = 1 << 3;
        /// Two copies on two devices.
        const RAID1 = 1 << 4;
        /// Two copies on one device.
        const DUP = 1 << 5;
        /// Striped, two copies.
        const RAID10 = 1 << 6;
        /// Striped with one parity.
        const RAID5 = 1 << 7;
        /// Striped with two parities.
        const RAID6 = 1 << 8;
        /// Three copies.
        const RAID1C3 = 1 << 9;
        /// Four copies.
        const RAID1C4 = 1 << 10;
    }
}

/// How the bytes of a chunk are distributed over its stripes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Profile {
    /// One copy, on one device.
    Single,
    /// Two copies on one device.
    Dup,
    /// One copy, striped.
    Raid0,
    /// Two copies.
    Raid1,
    /// Three copies.
    Raid1c3,
    /// Four copies.
    Raid1c4,
    /// Striped over pairs.
    Raid10,
    /// Striped with one parity.
    Raid5,
    /// Striped with two parities.
    Raid6,
}

impl Profile {
    /// The profile of these flags; `None` if they name two.
    pub fn of(flags: BlockGroupFlags) -> Option<Self> {
        let kinds = BlockGroupFlags::DATA | BlockGroupFlags::SYSTEM | BlockGroupFlags::METADATA;
        const NAMED: [(BlockGroupFlags, Profile); 8] = [
            (BlockGroupFlags::RAID0, Profile::Raid0),
            (BlockGroupFlags::RAID1, Profile::Raid1),
            (BlockGroupFlags::DUP, Profile::Dup),
            (BlockGroupFlags::RAID10, Profile::Raid10),
            (BlockGroupFlags::RAID5, Profile::Raid5),
            (BlockGroupFlags::RAID6, Profile::Raid6),
            (BlockGroupFlags::RAID1C3, Profile::Raid1c3),
            (BlockGroupFlags::RAID1C4, Profile::Raid1c4),
        ];
        let flags = flags - kinds;
        if flags.is_empty() {
            return Some(Self::Single);
        }
        NAMED.into_iter().find(|(named, _)| *named == flags).map(|(_, profile)| profile)
    }

    /// Name in btrfs-progs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Dup => "DUP",
            Self::Raid0 => "RAID0",
            Self::Raid1 => "RAID1",
            Self::Raid1c3 => "RAID1C3",
            Self::Raid1c4 => "RAID1C4",
            Self::Raid10 => "RAID10",
            Self::Raid5 => "RAID5",
            Self::Raid6 => "RAID6",
        }
    }

    /// Number of stripes that hold the same bytes.
    pub const fn copies(self) -> usize {
        match self {
            Self::Single | Self::Raid0 | Self::Raid5 | Self::Raid6 => 1,
            Self::Dup | Self::Raid1 | Self::Raid10 => 2,
            Self::Raid1c3 => 3,
            Self::Raid1c4 => 4,
        }
    }

    /// Number of parity stripes per row.
    pub const fn parities(self) -> usize {
        match self {
            Self::Raid5 => 1,
            Self::Raid6 => 2,
            Self::Single
            | Self::Dup
            | Self::Raid0
            | Self::Raid1
            | Self::Raid1c3
            | Self::Raid1c4
            | Self::Raid10 => 0,
        }
    }

    /// Whether its chunks are rows of strips of [`STRIPE_LEN`] each, not copies of one range.
    pub const fn is_striped(self) -> bool {
        match self {
            Self::Raid0 | Self::Raid10 | Self::Raid5 | Self::Raid6 => true,
            Self::Single | Self::Dup | Self::Raid1 | Self::Raid1c3 | Self::Raid1c4 => false,
        }
    }

    /// Whether a chunk can have this number of stripes.
    fn takes_stripes(self, stripes: usize) -> bool {
        if stripes > MAX_STRIPES {
            return false;
        }
        let with_parity = self.parities() + 1..=self.parities() + MAX_DATA_STRIPES_WITH_PARITY;
        match self {
            Self::Single => stripes == 1,
            Self::Dup | Self::Raid1 => stripes == 2,
            Self::Raid0 => stripes >= 1,
            Self::Raid1c3 => stripes == 3,
            Self::Raid1c4 => stripes == 4,
            Self::Raid10 => stripes >= 2 && stripes.is_multiple_of(2),
            Self::Raid5 | Self::Raid6 => with_parity.contains(&stripes),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A chunk's part of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stripe {
    /// The device.
    pub devid: DevId,
    /// Offset on the device.
    pub offset: Physical,
    /// The device's identity.
    pub dev_uuid: Uuid,
}

/// A chunk: checked, so that arithmetic within it cannot overflow, and that it ends with a whole row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Its first byte in the file system's space.
    pub start: Logical,
    /// Its length there.
    pub length: u64,
    /// Content and profile.
    pub flags: BlockGroupFlags,
    /// How it is distributed.
    pub profile: Profile,
    /// The parts of devices, in order.
    pub stripes: SmallVec<[Stripe; 4]>,
}

/// What is wrong with a chunk item.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ChunkError {
    /// Too few bytes.
    #[error("the chunk item at {start} is cut off")]
    Short {
        /// Start of the chunk.
        start: Logical,
    },
    /// An impossible value.
    #[error("the chunk at {start} has an impossible {field}: {value}")]
    Field {
        /// Start of the chunk.
        start: Logical,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The superblock's chunk array holds something else.
    #[error("the superblock's array of system chunks holds the key {0}")]
    Key(Key),
}

impl Chunk {
    /// Parses a chunk item whose key has the offset `start`.
    ///
    /// # Errors
    /// The item is cut off or invalid.
    pub fn parse(start: Logical, bytes: &[u8], sectorsize: u32) -> Result<Self, ChunkError> {
        Self::parse_prefix(start, bytes, sectorsize).map(|(chunk, _)| chunk)
    }

    /// Like [`Self::parse`]; also returns the number of bytes parsed.
    fn parse_prefix(
        start: Logical,
        bytes: &[u8],
        sectorsize: u32,
    ) -> Result<(Self, usize), ChunkError> {
        let short = ChunkError::Short { start };
        let wrong = |field, value| Err(ChunkError::Field { start, field, value });
        let Ok((disk, rest)) = DiskChunk::ref_from_prefix(bytes) else { return Err(short) };
        let count = usize::from(disk.num_stripes.get());
        let Ok((stripes, _)) = <[DiskStripe]>::ref_from_prefix_with_elems(rest, count) else {
            return Err(short);
        };
        let flags = BlockGroupFlags::from_bits_retain(disk.kind.get());
        let kinds = BlockGroupFlags::DATA | BlockGroupFlags::SYSTEM | BlockGroupFlags::METADATA;
        let profile = Profile::of(flags).filter(|_| flags.intersects(kinds));
        let Some(profile) = profile else { return wrong("type", flags.bits()) };
        if !profile.takes_stripes(count) {
            return wrong("number of stripes", count as u64);
        }
        if profile == Profile::Raid10 && disk.sub_stripes.get() != 2 {
            return wrong("number of sub-stripes", disk.sub_stripes.get().into());
        }
        if disk.stripe_len.get() != STRIPE_LEN {
            return wrong("stripe length", disk.stripe_len.get());
        }
        let sector = u64::from(sectorsize.max(1));
        if !start.0.is_multiple_of(sector) {
            return wrong("start", start.0);
        }
        let length = disk.length.get();
        let fits = length > 0 && length.is_multiple_of(sector) && length <= i64::MAX as u64;
        if !fits || start.checked_add(length).is_none_or(|end| end.0 > i64::MAX as u64) {
            return wrong("length", length);
        }
        let stripes: SmallVec<[Stripe; 4]> = stripes
            .iter()
            .map(|stripe| Stripe {
                devid: DevId(stripe.devid.get()),
                offset: Physical(stripe.offset.get()),
                dev_uuid: Uuid::from_bytes(stripe.dev_uuid),
            })
            .collect();
        let chunk = Self { start, length, flags, profile, stripes };
        if profile.is_striped() && !length.is_multiple_of(chunk.data_stripes() * STRIPE_LEN) {
            return wrong("length", length);
        }
        let on_device = chunk.stripe_length();
        for stripe in &chunk.stripes {
            let end = stripe.offset.checked_add(on_device);
            let fits = end.is_some_and(|end| end.0 <= i64::MAX as u64);
            if !fits || !stripe.offset.0.is_multiple_of(sector) {
                return wrong("offset of a stripe", stripe.offset.0);
            }
        }
        Ok((chunk, size_of::<DiskChunk>() + count * size_of::<DiskStripe>()))
    }

    /// Its end in the file system's space.
    pub fn end(&self) -> Logical {
        Logical(self.start.0 + self.length)
    }

    /// Stripes per row that hold different data.
    pub fn data_stripes(&self) -> u64 {
        let stripes = self.stripes.len() - self.profile.parities();
        (stripes / self.profile.copies()).max(1) as u64
    }

    /// Bytes on each of its devices.
    pub fn stripe_length(&self) -> u64 {
        if self.profile.is_striped() { self.length / self.data_stripes() } else { self.length }
    }
}

/// The chunks in the superblock's array.
///
/// # Errors
/// An entry is not a valid chunk.
pub fn system_chunks(mut array: &[u8], sectorsize: u32) -> Result<Vec<Chunk>, ChunkError> {
    let mut chunks = Vec::new();
    while !array.is_empty() {
        let Ok((key, rest)) = DiskKey::ref_from_prefix(array) else {
            return Err(ChunkError::Short { start: Logical(0) });
        };
        let key = Key::from(key);
        if (key.objectid, key.kind) != (objectid::FIRST_CHUNK_TREE, item::CHUNK_ITEM) {
            return Err(ChunkError::Key(key));
        }
        let (chunk, len) = Chunk::parse_prefix(Logical(key.offset), rest, sectorsize)?;
        chunks.push(chunk);
        array = &rest[len..];
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    /// A chunk item.
    fn chunk_item(kind: BlockGroupFlags, length: u64, stripes: usize) -> Vec<u8> {
        let chunk = DiskChunk {
            length: length.into(),
            owner: objectid::EXTENT_TREE.into(),
            stripe_len: STRIPE_LEN.into(),
            kind: (BlockGroupFlags::DATA | kind).bits().into(),
            io_align: 4096.into(),
            io_width: 4096.into(),
            sector_size: 4096.into(),
            num_stripes: u16::try_from(stripes).expect("a number of stripes").into(),
            sub_stripes: 2.into(),
        };
        let mut bytes = chunk.as_bytes().to_vec();
        for devid in 1..=stripes as u64 {
            let stripe =
                DiskStripe { devid: devid.into(), offset: (1 << 20).into(), dev_uuid: [1; 16] };
            bytes.extend_from_slice(stripe.as_bytes());
        }
        bytes
    }

    #[test]
    fn a_striped_chunk_that_ends_within_a_row_is_refused() {
        let cases = [
            (BlockGroupFlags::RAID0, 3, 3),
            (BlockGroupFlags::RAID0, 1, 1),
            (BlockGroupFlags::RAID10, 4, 2),
            (BlockGroupFlags::RAID5, 4, 3),
            (BlockGroupFlags::RAID6, 4, 2),
        ];
        let start = Logical(1 << 30);
        for (kind, stripes, data) in cases {
            let row = data * STRIPE_LEN;
            let whole = Chunk::parse(start, &chunk_item(kind, 7 * row, stripes), 4096);
            assert_eq!(whole.expect("whole rows").stripe_length(), 7 * STRIPE_LEN);
            for more in [4096, STRIPE_LEN - 4096, STRIPE_LEN, row - 4096] {
                let length = 7 * row + more;
                if length.is_multiple_of(row) {
                    continue;
                }
                let error = Chunk::parse(start, &chunk_item(kind, length, stripes), 4096);
                assert_eq!(error, Err(ChunkError::Field { start, field: "length", value: length }));
            }
        }
        // Copies of one range have no rows.
        for (kind, stripes) in [(BlockGroupFlags::RAID1, 2), (BlockGroupFlags::empty(), 1)] {
            let length = STRIPE_LEN + 4096;
            Chunk::parse(start, &chunk_item(kind, length, stripes), 4096).expect("no rows");
        }
    }

    #[test]
    fn numbers_of_stripes_that_cannot_be_are_refused() {
        let start = Logical(1 << 30);
        let (most, parse) = (MAX_STRIPES, |kind, stripes: usize, data: usize| {
            let length = data as u64 * STRIPE_LEN;
            Chunk::parse(start, &chunk_item(kind, length, stripes), 4096)
        });
        let cases = [
            (BlockGroupFlags::RAID0, most, most, 1, 1),
            (BlockGroupFlags::RAID10, most, most / 2, 2, 2),
            (BlockGroupFlags::RAID5, 256, 255, 1, 1),
            (BlockGroupFlags::RAID6, 257, 255, 1, 1),
        ];
        assert_eq!(most % 2, 0, "as it stands in the cases");
        for (kind, stripes, data, more, copies) in cases {
            parse(kind, stripes, data).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            let value = (stripes + more) as u64;
            let wanted = ChunkError::Field { start, field: "number of stripes", value };
            assert_eq!(parse(kind, stripes + more, data + more / copies), Err(wanted), "{kind:?}");
        }
    }
}
