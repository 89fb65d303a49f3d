//! The metadata area: a header, followed by a ring of texts.
//!
//! The header's first slot names the current text, its second slot a text about to become current.
//! A new text goes into the ring after the current one, at the next multiple of 512 bytes; at the
//! end of the area it wraps around to the header's end. A text has at most half of the ring, so the
//! new text never touches the current one.

use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use super::crc::crc;
use super::layout::{MDA_MAGIC, MDA_VERSION, MdaBlock, RAW_LOCN_IGNORED, RawLocn, SECTOR_SIZE};
use crate::text;

/// The header's size, which is the start of the ring.
const RING: u64 = SECTOR_SIZE as u64;
/// Texts begin at multiples of this.
const ALIGN: u64 = 512;

/// A range of bytes of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

/// A slot of a header: the location of a text, in bytes from the start of the area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawText {
    /// First byte.
    pub offset: u64,
    /// Size, including the NUL at the end.
    pub size: u64,
    /// Checksum of all these bytes.
    pub checksum: u32,
}

/// The header of a metadata area.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MdaHeader {
    /// Location of the area on the device; the size is from the header.
    pub area: Range,
    /// The current text; none on a volume without a group.
    pub current: Option<RawText>,
    /// A text that was about to become current. LVM never reads it on its own.
    pub precommitted: Option<RawText>,
    /// The area must not be read or written: the group has enough copies.
    pub ignored: bool,
}

/// Why a metadata area is unusable.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MdaError {
    /// The header is damaged.
    #[error("the header's checksum is {found:#010x}, not {expected:#010x}")]
    HeaderChecksum {
        /// The stored checksum.
        found: u32,
        /// The computed checksum.
        expected: u32,
    },
    /// There is no metadata area.
    #[error("there is no metadata area where the label says that one is")]
    Magic,
    /// An unknown version.
    #[error("its version is {0}, only 1 is known")]
    Version(u32),
    /// A copy of an area from another location.
    #[error("its header says that it is at byte {0}")]
    Misplaced(u64),
    /// It is beyond the end of the device, or too small for a header.
    #[error("it lies outside of the device: {size} bytes at byte {offset}")]
    Outside {
        /// First byte.
        offset: u64,
        /// Size in bytes.
        size: u64,
    },
    /// The text's location is outside of the area.
    #[error("its text of {size} bytes at byte {offset} of the area does not fit it")]
    TextOutside {
        /// First byte in the area.
        offset: u64,
        /// Size in bytes.
        size: u64,
    },
    /// The text is damaged.
    #[error("the text's checksum is {found:#010x}, not {expected:#010x}")]
    TextChecksum {
        /// The stored checksum.
        found: u32,
        /// The computed checksum.
        expected: u32,
    },
    /// The device cannot be read.
    #[error("it cannot be read: {0}")]
    Read(ashlar_block::Status),
    /// There are more areas than LVM supports.
    #[error("the volume has more than two metadata areas")]
    TooMany,
}

/// Why a text cannot be written into an area.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum WriteError {
    /// Two texts of this size do not fit in the ring.
    #[error(
        "the metadata has {size} bytes, the metadata area has room for {max}; \
         remove volumes, tags or snapshots, or use physical volumes with a larger area (pvcreate --metadatasize)"
    )]
    TooLarge {
        /// Size of the text.
        size: u64,
        /// Maximum size.
        max: u64,
    },
    /// The current text takes more than its half of the ring.
    #[error("the metadata in use leaves no room for {size} bytes of new metadata")]
    Full {
        /// Size of the text.
        size: u64,
    },
}

/// The location of a text's bytes on the device, in order: a text that wraps around has two parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The header's slot for it.
    pub text: RawText,
    /// Ranges on the device.
    pub parts: [Range; 2],
    /// Bytes up to the end of the last sector, written as zeroes.
    pub padding: u64,
}

impl MdaHeader {
    /// The header of a new area without a text.
    pub fn empty(area: Range) -> Self {
        Self { area, current: None, precommitted: None, ignored: false }
    }

    /// Parses the header in `bytes`, read from the label's location `area`.
    ///
    /// # Errors
    /// It is damaged, or missing.
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
        // LVM uses the header's size, not the label's.
        let area = Range { offset: area.offset, size: block.size.get() };
        // No device is larger than the maximum file offset, so sums of two such numbers do not overflow.
        let end = area.offset.checked_add(area.size);
        if area.size <= RING || end.is_none_or(|end| end > i64::MAX as u64) {
            return Err(MdaError::Outside { offset: area.offset, size: area.size });
        }
        Ok(Self {
            area,
            current: read_place(&block.current),
            // LVM reads the second slot only if there is a first one.
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

    /// The location of `text` on the device.
    ///
    /// # Errors
    /// It does not fit in the ring, or is larger than allowed.
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

    /// Maximum size of a text, including its NUL.
    pub fn max_text(&self) -> u64 {
        ((self.area.size - RING) / 2).saturating_sub(ALIGN)
    }

    /// The location of a new text (including NUL), chosen as LVM does.
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

    /// The offset after `old`, rounded up to a sector; the start of the ring if less than a sector is left.
    fn next_offset(&self, old: RawText) -> u64 {
        let end = old.offset + old.size;
        let end = if end > self.area.size { end - self.area.size + RING } else { end };
        let next = end.next_multiple_of(ALIGN);
        // As in LVM: with the last byte, and with the end not rounded first.
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
