//! The bad block log, format 1: ranges of a member that cannot be read and whose data is only on the
//! other members.
//!
//! An array of 64-bit little-endian words: 54 bits of position, 10 bits of length, both in units of
//! 2^shift sectors, position counted from the start of the device (not of the data). A word of all
//! ones ends the list. The acknowledged bit that the kernel keeps in memory is not stored: every entry on disk
//! is acknowledged. The kernel reads and writes at most one page of it.

use ashlar_block::units::{Sector, Sectors};
use thiserror::Error;

/// The most sectors a log can have: one 4 KiB page.
pub const MAX_LOG_SECTORS: u16 = 8;
/// The largest shift with which every length still fits into the kernel's 31 bits.
pub const MAX_SHIFT: u8 = 21;
/// Longest range one entry holds as the kernel writes it, in units.
pub const MAX_ENTRY_LEN: u64 = 512;

const LEN_BITS: u32 = 10;
const LEN_MASK: u64 = (1 << LEN_BITS) - 1;
/// Units that positions can address.
pub(crate) const UNITS: u64 = 1 << (u64::BITS - LEN_BITS);
/// The word that ends the list. No entry looks like it: its length would be 1023 units.
pub(crate) const END: u64 = u64::MAX;

/// A range that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadRange {
    /// First sector, counted from the start of the device.
    pub start: Sector,
    /// Its length, never zero.
    pub len: Sectors,
}

/// Why a log was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadBlockLogError {
    /// The log has a size that the kernel does not read.
    #[error("bad block log of {found} bytes, not a multiple of 512 up to {max}")]
    Size {
        /// Bytes given.
        found: usize,
        /// Most bytes allowed.
        max: usize,
    },
    /// Units larger than the kernel can handle.
    #[error("bad block log shift is {found}, more than {max}", max = MAX_SHIFT)]
    Shift {
        /// The shift found.
        found: u8,
    },
    /// An entry without length.
    #[error("bad block log entry {index}: {word:#018x} has no length")]
    Empty {
        /// Index of the entry.
        index: usize,
        /// The entry.
        word: u64,
    },
    /// An entry beyond the end of the number space.
    #[error("bad block log entry {index}: {word:#018x} is beyond any device at shift {shift}")]
    Overflow {
        /// Index of the entry.
        index: usize,
        /// The entry.
        word: u64,
        /// The log's shift.
        shift: u8,
    },
    /// More or longer ranges than the log can hold.
    #[error("{needed} bad block entries needed, the log holds {available}")]
    Full {
        /// Entries needed.
        needed: usize,
        /// Entries that fit.
        available: usize,
    },
}

/// The ranges of a log, in stored order.
///
/// # Errors
/// [`BadBlockLogError`] if the size or the shift is impossible or an entry is empty or overflows.
pub fn parse(log: &[u8], shift: u8) -> Result<Vec<BadRange>, BadBlockLogError> {
    let max = usize::from(MAX_LOG_SECTORS) * 512;
    if !log.len().is_multiple_of(512) || log.len() > max {
        return Err(BadBlockLogError::Size { found: log.len(), max });
    }
    if shift > MAX_SHIFT {
        return Err(BadBlockLogError::Shift { found: shift });
    }
    let words = log.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    words
        .take_while(|word| *word != END)
        .enumerate()
        .map(|(index, word)| {
            if word & LEN_MASK == 0 {
                return Err(BadBlockLogError::Empty { index, word });
            }
            decode(word, shift).ok_or(BadBlockLogError::Overflow { index, word, shift })
        })
        .collect()
}

/// Whether a log lists nothing.
pub fn is_empty(log: &[u8]) -> bool {
    log.as_chunks::<8>().0.first().is_none_or(|word| u64::from_le_bytes(*word) == END)
}

/// The word for `len` units, at most [`MAX_ENTRY_LEN`], from unit `start` on, which must fit in 54 bits.
pub(crate) const fn entry(start: u64, len: u64) -> u64 {
    start << LEN_BITS | len
}

fn decode(word: u64, shift: u8) -> Option<BadRange> {
    let start = word >> LEN_BITS;
    let units = word & LEN_MASK;
    // Two such overlapping entries could merge to a range whose second part has a position that does
    // not fit: written again, it would be at the start of the device.
    if start + units > UNITS {
        return None;
    }
    let len = units << shift;
    let sector = Sector(start << shift);
    if sector.0 >> shift != start {
        return None;
    }
    sector.checked_add(Sectors(len))?;
    Some(BadRange { start: sector, len: Sectors(len) })
}
