//! The GUID partition table (UEFI specification 2.10, 5.3): headers and entries as bytes.

use ashlar_block::{Sector, Sectors, Status};
use thiserror::Error;
use uuid::Uuid;

use super::{Entry, Unit};

/// The minimum size of a header; the rest of its block is reserved.
const HEADER: usize = 92;
/// The maximum of bytes of entries to read; 32 times what the specification reserves.
const MAX_ENTRIES: u64 = 512 << 10;
/// Characters of a partition's name.
const NAME_CHARS: usize = 36;

/// Why a copy of the table cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Defect {
    /// There is no header.
    #[error("no header")]
    Missing,
    /// The header was damaged.
    #[error("the header's checksum is wrong")]
    HeaderChecksum,
    /// A number in the header is impossible.
    #[error("the header's {0} is impossible")]
    Impossible(&'static str),
    /// The entries were damaged.
    #[error("the checksum of the entries is wrong")]
    EntriesChecksum,
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(Status),
}

/// A header whose checksum is right and whose numbers are possible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Location of the other copy, in blocks.
    pub alternate: u64,
    /// The disk's identity.
    pub disk: Uuid,
    /// Start of the entries, in blocks.
    pub entries_at: u64,
    /// Number of entries.
    pub count: u32,
    /// Bytes per entry: at least 128.
    pub entry_size: u32,
    /// Checksum of all entries.
    pub checksum: u32,
}

/// A field of `N` bytes at an offset; zeroes if the bytes end before.
fn field<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes.get(offset..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

fn le_u32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(field(bytes, offset))
}

fn le_u64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(field(bytes, offset))
}

/// A GUID, whose first three parts are little-endian.
fn guid(bytes: &[u8], offset: usize) -> Uuid {
    Uuid::from_bytes_le(field(bytes, offset))
}

impl Header {
    /// Reads the header in `block`, the block `at` of a disk whose last block is `last`.
    ///
    /// # Errors
    /// The header cannot be used.
    pub fn parse(block: &[u8], at: u64, last: u64) -> Result<Self, Defect> {
        if block.get(..8) != Some(b"EFI PART") {
            return Err(Defect::Missing);
        }
        let size = le_u32(block, 12) as usize;
        let Some(header) = block.get(..size).filter(|_| size >= HEADER) else {
            return Err(Defect::Impossible("size"));
        };
        let mut checked = header.to_vec();
        checked[16..20].fill(0);
        if crc32fast::hash(&checked) != le_u32(header, 16) {
            return Err(Defect::HeaderChecksum);
        }
        let (first_usable, last_usable) = (le_u64(header, 40), le_u64(header, 48));
        let this = Self {
            alternate: le_u64(header, 32),
            disk: guid(header, 56),
            entries_at: le_u64(header, 72),
            count: le_u32(header, 80),
            entry_size: le_u32(header, 84),
            checksum: le_u32(header, 88),
        };
        let entries = u64::from(this.count) * u64::from(this.entry_size);
        let checks = [
            ("place", le_u64(header, 24) == at),
            ("first usable block", first_usable <= last_usable),
            ("last usable block", last_usable <= last),
            ("size of an entry", this.entry_size >= 128 && this.entry_size.is_power_of_two()),
            ("number of entries", this.count > 0 && entries <= MAX_ENTRIES),
            ("place of the entries", (1..=last).contains(&this.entries_at)),
        ];
        match checks.iter().find(|(_, holds)| !holds) {
            Some((what, _)) => Err(Defect::Impossible(what)),
            None => Ok(this),
        }
    }

    /// Bytes of all entries: at most 512 KiB.
    pub fn entries_bytes(&self) -> usize {
        self.count as usize * self.entry_size as usize
    }

    /// The used entries in `bytes`, which begin at [`Self::entries_at`], in the table's order.
    /// Their positions are not checked.
    ///
    /// # Errors
    /// The bytes do not match the header's checksum.
    pub fn entries(&self, bytes: &[u8], unit: Unit) -> Result<Vec<Entry>, Defect> {
        let bytes = bytes.get(..self.entries_bytes()).ok_or(Defect::EntriesChecksum)?;
        if crc32fast::hash(bytes) != self.checksum {
            return Err(Defect::EntriesChecksum);
        }
        let all = bytes.chunks_exact(self.entry_size as usize).zip(1..);
        Ok(all.filter_map(|(bytes, number)| entry(bytes, number, unit)).collect())
    }
}

/// A used entry.
fn entry(bytes: &[u8], number: u32, unit: Unit) -> Option<Entry> {
    let kind = guid(bytes, 0);
    if kind.is_nil() {
        return None;
    }
    let (first, last) = (le_u64(bytes, 32), le_u64(bytes, 40));
    // The caller that places the entries refuses a length of zero.
    let len = last.checked_sub(first).and_then(|less| less.checked_add(1)).unwrap_or(0);
    let name: Vec<u16> =
        (0..NAME_CHARS).map(|n| u16::from_le_bytes(field(bytes, 56 + 2 * n))).collect();
    let name = name.split(|unit| *unit == 0).next().unwrap_or_default();
    Some(Entry {
        number,
        start: Sector(unit.sectors(first)),
        len: Sectors(unit.sectors(len)),
        kind: kind.hyphenated().to_string(),
        name: String::from_utf16_lossy(name),
        uuid: Some(guid(bytes, 16)),
    })
}
