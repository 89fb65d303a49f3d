//! The persistent exception store as bytes (`drivers/md/dm-snap-persistent.c`).
//!
//! The COW device is divided into chunks. Chunk 0 holds the header. **Areas** follow: one chunk of
//! exceptions, then as many data chunks as the area has slots for exceptions. The first exception
//! whose new chunk is 0 ends the list, in any area. All numbers are little-endian.
//! docs/formats/dm-snapshot.md has the tables.

use ashlar_block::{Sector, Sectors, ondisk_layout};
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::runs::CHUNK_BITS;

/// "SnAp".
pub const MAGIC: u32 = 0x7041_6e53;
/// The only existing version.
pub const VERSION: u32 = 1;
/// The default chunk size of a new store, 16 KiB.
pub const DEFAULT_CHUNK: Sectors = Sectors(32);
/// The maximum chunk size, 16 MiB: LVM makes none above 512 KiB, and a whole area is held in memory.
pub const MAX_CHUNK: Sectors = Sectors(32_768);

/// Chunks of a device that have numbers, as in the kernel.
pub(super) const MOST_CHUNKS: u64 = 1 << CHUNK_BITS;

/// The start of chunk 0.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`]; zero if there is no store yet.
    pub magic: U32,
    /// Zero if the snapshot is invalid and must not be used.
    pub valid: U32,
    /// [`VERSION`].
    pub version: U32,
    /// Sectors per chunk.
    pub chunk_size: U32,
}

/// The location of a chunk's copy.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Exception {
    /// The chunk of the origin.
    pub old_chunk: U64,
    /// The chunk of the COW device; zero ends the list.
    pub new_chunk: U64,
}

ondisk_layout!(Header, 16, { magic: 0, valid: 4, version: 8, chunk_size: 12 });
ondisk_layout!(Exception, 16, { old_chunk: 0, new_chunk: 8 });

impl Header {
    /// The header of a store.
    pub fn new(geometry: Geometry, valid: bool) -> Self {
        Self {
            magic: MAGIC.into(),
            valid: u32::from(valid).into(),
            version: VERSION.into(),
            chunk_size: geometry.chunk_u32().into(),
        }
    }
}

impl Exception {
    /// An exception.
    pub fn new(old_chunk: u64, new_chunk: u64) -> Self {
        Self { old_chunk: old_chunk.into(), new_chunk: new_chunk.into() }
    }
}

/// Why a chunk size is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ChunkSizeError {
    /// Not a power of two.
    #[error("chunk size {0} is not a power of two")]
    NotAPowerOfTwo(u64),
    /// It is not a multiple of the devices' block size.
    #[error("chunk size {chunk} is not a multiple of the devices' block size of {block} sectors")]
    NotInBlocks {
        /// The chunk size in sectors.
        chunk: u64,
        /// The block size in sectors.
        block: u64,
    },
    /// Above [`MAX_CHUNK`].
    #[error("chunk size {0} is too large: {max} sectors is the most", max = MAX_CHUNK)]
    TooLarge(u64),
    /// It is missing: a transient store has no default.
    #[error("the chunk size is not set: a transient snapshot needs one")]
    NotSet,
}

/// The chunk size, and values derived from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    shift: u32,
}

impl Geometry {
    /// Chunks of `chunk` sectors over devices with logical blocks of `block`.
    ///
    /// # Errors
    /// The kernel does not allow the size, or it is above [`MAX_CHUNK`].
    pub fn new(chunk: Sectors, block: Sectors) -> Result<Self, ChunkSizeError> {
        if !chunk.0.is_power_of_two() {
            return Err(ChunkSizeError::NotAPowerOfTwo(chunk.0));
        }
        if !chunk.0.is_multiple_of(block.0.max(1)) {
            return Err(ChunkSizeError::NotInBlocks { chunk: chunk.0, block: block.0 });
        }
        if chunk > MAX_CHUNK {
            return Err(ChunkSizeError::TooLarge(chunk.0));
        }
        Ok(Self { shift: chunk.0.trailing_zeros() })
    }

    /// Sectors per chunk.
    pub const fn chunk(self) -> Sectors {
        Sectors(1 << self.shift)
    }

    const fn chunk_u32(self) -> u32 {
        1 << self.shift
    }

    /// Bytes per chunk.
    pub const fn chunk_bytes(self) -> usize {
        512 << self.shift
    }

    /// Exceptions per area.
    pub const fn per_area(self) -> u64 {
        (self.chunk_bytes() / size_of::<Exception>()) as u64
    }

    /// The chunk with the exceptions of an area.
    pub const fn area_chunk(self, area: u64) -> u64 {
        1 + (self.per_area() + 1) * area
    }

    /// Whether a chunk of the COW device contains metadata: the header, or exceptions.
    pub const fn is_metadata(self, chunk: u64) -> bool {
        chunk == 0 || chunk % (self.per_area() + 1) == 1
    }

    /// The first sector of a chunk.
    pub const fn sector(self, chunk: u64) -> Sector {
        Sector(chunk << self.shift)
    }

    /// The chunk that contains a sector.
    pub const fn chunk_of(self, sector: Sector) -> u64 {
        sector.0 >> self.shift
    }

    /// The offset of a sector in its chunk.
    pub const fn offset(self, sector: Sector) -> Sectors {
        Sectors(sector.0 & (self.chunk().0 - 1))
    }

    /// Number of whole chunks in a device, and of these at most as many as have numbers.
    pub const fn chunks_in(self, len: Sectors) -> u64 {
        let chunks = len.0 >> self.shift;
        if chunks < MOST_CHUNKS { chunks } else { MOST_CHUNKS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Sectors = Sectors(1);

    #[test]
    fn areas_lie_between_the_data_as_in_the_kernel() {
        let small = Geometry::new(Sectors(8), BLOCK).unwrap();
        assert_eq!((small.per_area(), small.area_chunk(0), small.area_chunk(1)), (256, 1, 258));
        let metadata: Vec<u64> = (0..600).filter(|chunk| small.is_metadata(*chunk)).collect();
        assert_eq!(metadata, [0, 1, 258, 515]);
        let large = Geometry::new(Sectors(128), BLOCK).unwrap();
        assert_eq!((large.per_area(), large.area_chunk(2)), (4096, 8195));
    }

    #[test]
    fn chunk_sizes_are_those_that_the_kernel_takes() {
        let size = |chunk, block| Geometry::new(Sectors(chunk), Sectors(block));
        assert!(size(8, 1).is_ok() && size(8, 8).is_ok() && size(32_768, 1).is_ok());
        assert_eq!(size(0, 1), Err(ChunkSizeError::NotAPowerOfTwo(0)));
        assert_eq!(size(12, 1), Err(ChunkSizeError::NotAPowerOfTwo(12)));
        assert_eq!(size(4, 8), Err(ChunkSizeError::NotInBlocks { chunk: 4, block: 8 }));
        assert_eq!(size(65_536, 1), Err(ChunkSizeError::TooLarge(65_536)));
    }

    #[test]
    fn a_header_is_the_bytes_of_the_kernel() {
        let header = Header::new(Geometry::new(Sectors(8), BLOCK).unwrap(), true);
        assert_eq!(header.as_bytes(), b"SnAp\x01\0\0\0\x01\0\0\0\x08\0\0\0");
    }
}
