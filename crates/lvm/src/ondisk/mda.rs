//! The metadata area: a header, and behind it a ring of texts.
//!
//! The header's first place names the text that counts, its second one a text about to follow it. A new text
//! goes into the ring behind the current one, at the next multiple of 512 bytes; near the end of the
//! area it wraps around to behind the header. A text has at most half of the ring, so that the new one never
//! touches the one that still counts.

use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use super::crc::crc;
use super::layout::{MDA_MAGIC, MDA_VERSION, MdaBlock, RAW_LOCN_IGNORED, RawLocn, SECTOR_SIZE};
use crate::text;

/// The header's size, and where the ring begins.
const RING: u64 = SECTOR_SIZE as u64;
/// Texts begin at multiples of this.
const ALIGN: u64 = 512;

/// A range of bytes of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// A place in a header: where a text is, in bytes from the start of the area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawText {
    /// First byte.
    pub offset: u64,
    /// Bytes with the NUL at the end.
    pub size: u64,
    /// Of all these bytes.
    pub checksum: u32,
}

/// The header of a metadata area.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MdaHeader {
    /// Where on the device the area is; the size is the header's own.
    pub area: Range,
    /// The text that counts; none on a volume that belongs to no group.
    pub current: Option<RawText>,
    /// A text that was to follow it. LVM never reads it on its own.
    pub precommitted: Option<RawText>,
    /// The area is not to be read or written: the group has enough copies.
    pub ignored: bool,
}

/// Why a metadata area cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MdaError {
    /// The header is damaged.
    #[error("the header's checksum is {found:#010x}, not {expected:#010x}")]
    HeaderChecksum {
        /// As stored.
        found: u32,
        /// As computed.
        expected: u32,
    },
    /// There is something else.
    #[error("there is no metadata area where the label says that one is")]
    Magic,
    /// A version nobody knows.
    #[error("its version is {0}, only 1 is known")]
    Version(u32),
    /// A copy of an area from somewhere else.
    #[error("its header says that it is at byte {0}")]
    Misplaced(u64),
    /// It does not fit the device, or cannot hold a header.
    #[error("it lies outside of the device: {size} bytes at byte {offset}")]
    Outside {
        /// First byte.
        offset: u64,
        /// Bytes.
        size: u64,
    },
    /// Where the text should be there is no room for it.
    #[error("its text of {size} bytes at byte {offset} of the area does not fit it")]
    TextOutside {
        /// First byte in the area.
        offset: u64,
        /// Bytes.
        size: u64,
    },
    /// The text is damaged.
    #[error("the text's checksum is {found:#010x}, not {expected:#010x}")]
    TextChecksum {
        /// As stored.
        found: u32,
        /// As computed.
        expected: u32,
    },
    /// The device cannot be read there.
    #[error("it cannot be read: {0}")]
    Read(ashlar_block::Status),
    /// LVM knows two areas of a volume.
    #[error("the volume has more than two metadata areas")]
    TooMany,
}

/// Why a text cannot be written into an area.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum WriteError {
    /// Two texts of this size have no room in the ring.
    #[error(
        "the metadata has {size} bytes, the metadata area has room for {max}; \
         remove volumes, tags or snapshots, or use physical volumes with a larger area (pvcreate --metadatasize)"
    )]
    TooLarge {
        /// Of the text.
        size: u64,
        /// That fit.
        max: u64,
    },
    /// The text in use takes more than its half of the ring.
    #[error("the metadata in use leaves no room for {size} bytes of new metadata")]
    Full {
        /// Of the text.
        size: u64,
    },
}

/// Where the bytes of a text are on the device, in order: a text that wraps around has two parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// What the header will say.
    pub text: RawText,
    /// On the device.
    pub parts: [Range; 2],
    /// Bytes up to the end of the last sector, which are written as zeroes.
    pub padding: u64,
}

impl MdaHeader {
    /// The header of a new area without a text.
    pub fn empty(area: Range) -> Self {
        Self { area, current: None, precommitted: None, ignored: false }
    }

    /// The header in `bytes`, read from the place where the label says that `area` is.
    ///
    /// # Errors
    /// It is damaged, or none.
    pub fn parse(bytes: &[u8; SECTOR_SIZE], area: Range) -> Result<Self, MdaError> {
        let block = MdaBlock::read_from_bytes(bytes).map_err(|_| MdaError::Magic)?;
        if block.magic != MDA_MAGIC {
            return Err(MdaError::Magic);
        }
        let expected = crc(&bytes[4..]);
        if block.checksum.get() != expected {
            return Err(MdaError::HeaderChecksum { found: block.checksum.get(), expected });
        }
        if block.version.get() != MDA_VERSION {
            return Err(MdaError::Version(block.version.get()));
        }
        if block.start.get() != area.offset {
            return Err(MdaError::Misplaced(block.start.get()));
        }
        // LVM goes by the header's size, not by the label's.
        let area = Range { offset: area.offset, size: block.size.get() };
        // No device is larger than file offsets are, and sums of two numbers below that do not overflow.
        let end = area.offset.checked_add(area.size);
        if area.size <= RING || end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(MdaError::Outside { offset: area.offset, size: area.size });
        }
        Ok(Self {
            area,
            current: read_place(&block.current),
            // LVM looks at the second place only if there is a first one.
            precommitted: read_place(&block.precommitted),
            ignored: block.current.flags.get() & RAW_LOCN_IGNORED != 0,
        })
    }

    /// The sector to write.
    pub fn encode(&self) -> [u8; SECTOR_SIZE] {
        let mut block = MdaBlock {
            checksum: 0.into(),
            magic: MDA_MAGIC,
            version: MDA_VERSION.into(),
            start: self.area.offset.into(),
            size: self.area.size.into(),
            current: write_place(self.current, self.ignored),
            precommitted: write_place(self.precommitted, false),
            rest: [0; 424],
        };
        block.checksum = crc(&block.as_bytes()[4..]).into();
        let mut bytes = [0; SECTOR_SIZE];
        bytes.copy_from_slice(block.as_bytes());
        bytes
    }

    /// Where on the device the text `text` is.
    ///
    /// # Errors
    /// It does not fit the ring, or is larger than any text.
    pub fn locate(&self, text: RawText) -> Result<Placement, MdaError> {
        let RawText { offset, size, .. } = text;
        let room = self.area.size - RING;
        let fits = (RING..self.area.size).contains(&offset)
            && (1..=room).contains(&size)
            && size <= text::MAX_BYTES as u64;
        if !fits {
            return Err(MdaError::TextOutside { offset, size });
        }
        Ok(self.parts(text))
    }

    /// Bytes of the largest text that can be written, with its NUL.
    pub fn max_text(&self) -> u64 {
        ((self.area.size - RING) / 2).saturating_sub(ALIGN)
    }

    /// Where a new text with NUL goes, as LVM decides it.
    ///
    /// # Errors
    /// There is no room.
    pub fn place(&self, text: &[u8]) -> Result<Placement, WriteError> {
        let size = text.len() as u64;
        if size > self.max_text().min(text::MAX_BYTES as u64) {
            return Err(WriteError::TooLarge { size, max: self.max_text() });
        }
        let usable = |old: &RawText| !self.ignored && self.locate(*old).is_ok();
        let old = self.current.filter(usable);
        let offset = old.map_or(RING, |old| self.next_offset(old));
        let new = RawText { offset, size, checksum: crc(text) };
        let placement = self.parts(new);
        // Positions as distances from the old text's start, once around the ring.
        let overlaps = |old: RawText| {
            let ring = self.area.size - RING;
            let ahead = (offset + ring - old.offset) % ring;
            ahead < old.size || ahead + size + placement.padding > ring
        };
        if old.is_some_and(overlaps) {
            return Err(WriteError::Full { size });
        }
        Ok(placement)
    }

    /// Behind `old`, rounded up to a sector; at the start of the ring if less than a sector is left.
    fn next_offset(&self, old: RawText) -> u64 {
        let end = old.offset + old.size;
        let end = if end > self.area.size { end - self.area.size + RING } else { end };
        let next = end.next_multiple_of(ALIGN);
        // As LVM computes it: with its last byte, and with the end not rounded first.
        let last = end - 1;
        let no_room = self.area.size - last < ALIGN || next > self.area.size - ALIGN;
        if no_room { RING } else { next }
    }

    fn parts(&self, text: RawText) -> Placement {
        let Range { offset: start, size } = self.area;
        let wrapped = (text.offset + text.size).saturating_sub(size);
        let first = Range { offset: start + text.offset, size: text.size - wrapped };
        let end = if wrapped > 0 { RING + wrapped } else { text.offset + text.size };
        let padding = end.next_multiple_of(ALIGN).min(size) - end;
        Placement { text, parts: [first, Range { offset: start + RING, size: wrapped }], padding }
    }
}

fn read_place(place: &RawLocn) -> Option<RawText> {
    let (offset, size) = (place.offset.get(), place.size.get());
    let text = RawText { offset, size, checksum: place.checksum.get() };
    (offset != 0 || size != 0).then_some(text)
}

fn write_place(text: Option<RawText>, ignored: bool) -> RawLocn {
    let flags = if ignored { RAW_LOCN_IGNORED } else { 0 };
    let Some(text) = text else { return RawLocn { flags: flags.into(), ..RawLocn::default() } };
    RawLocn {
        offset: text.offset.into(),
        size: text.size.into(),
        checksum: text.checksum.into(),
        flags: flags.into(),
    }
}
