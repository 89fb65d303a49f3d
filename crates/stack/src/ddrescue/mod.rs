//! The map files of GNU ddrescue: what of a disk it has read into an image.
//!
//! What was not read is whatever the image held there before, mostly zeroes, and nothing in the image says so. With its map an image
//! is a [`RescuedDevice`], whose other parts are sectors that cannot be read: mirrors, parity and file systems with checksums then take
//! their other copy.
//!
//! The format is that of the manual of GNU ddrescue 1.28, section "Mapfile structure" (before 1.20: "logfile"). A `#` at the beginning of a
//! line or after white space begins a comment. The first other line is the status: a position, a character, and from 1.20 on a pass.
//! Each further line is a block of bytes: where it begins, its length, and its status, of which only `+` means that it was read.
//! Blocks follow each other without gaps. Numbers are written as in C: decimal, `0x` hexadecimal, `0` octal, at most 2^63-1.

mod device;

use std::iter::once;
use std::ops::Range;

use thiserror::Error;

pub use device::RescuedDevice;

/// The largest map that is read, bytes: the map of a 20 TB disk with a million bad areas is smaller.
pub const MAX_BYTES: usize = 64 << 20;
/// The most areas that were not read.
pub const MAX_AREAS: usize = 1 << 20;
/// The largest number: positions are signed in ddrescue.
const MAX_NUMBER: u64 = i64::MAX as u64;
/// How many bytes of a word outside the format an error shows.
const SHOWN: usize = 24;

/// Why a text is not a map.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum MapError {
    /// It is longer than [`MAX_BYTES`].
    #[error("it has more than {} MiB", MAX_BYTES >> 20)]
    TooLong,
    /// It has more areas than are kept.
    #[error("line {line}: it has more than {MAX_AREAS} areas that were not read")]
    TooManyAreas {
        /// The line, from 1.
        line: usize,
    },
    /// It contains only comments.
    #[error("it has no status line (POSITION STATUS PASS)")]
    NoStatus,
    /// There are no blocks.
    #[error("it has no blocks (POSITION SIZE STATUS), so ddrescue has read nothing")]
    NoBlocks,
    /// A line is not of the format.
    #[error("line {line}: {why}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        why: LineError,
    },
}

/// Why a line is not of the format.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LineError {
    /// The status line has too few or too many words.
    #[error("the status line is POSITION STATUS [PASS], but this one has {0} words")]
    StatusWords(usize),
    /// A block has too few or too many words.
    #[error("a block is POSITION SIZE STATUS, but this one has {0} words")]
    BlockWords(usize),
    /// A word is not a number.
    #[error("`{0}` is not a number (decimal, 0x hexadecimal or 0 octal)")]
    Number(String),
    /// A number is too large, or the end of a block is.
    #[error("`{0}` is too large: ddrescue counts to 2^63-1 bytes")]
    Overflow(String),
    /// A word is not a status.
    #[error("`{word}` is not a status; use one of {known}")]
    Status {
        /// The word.
        word: String,
        /// The statuses of the format.
        known: &'static str,
    },
    /// No block describes the bytes between two blocks.
    #[error("the block begins at {found:#x}, but the one before ends at {end:#x}: a gap")]
    Gap {
        /// The end of the block before.
        end: u64,
        /// The position.
        found: u64,
    },
    /// Two blocks describe the same bytes.
    #[error("the block begins at {found:#x}, but the one before ends at {end:#x}: they overlap")]
    Overlap {
        /// The end of the block before.
        end: u64,
        /// The position.
        found: u64,
    },
    /// A block begins before the one above it.
    #[error("the block begins at {found:#x}, before the one above it at {before:#x}")]
    Order {
        /// The position of the block before.
        before: u64,
        /// The position.
        found: u64,
    },
}

/// A map: the bytes of a disk that ddrescue has not read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RescueMap {
    /// Where its first block begins.
    start: u64,
    /// Where its last block ends.
    end: u64,
    /// What was not read in between: not empty, in order, with something between any two.
    unread: Vec<Range<u64>>,
}

/// Whether a text that may have defects is meant to be a map: ddrescue and the programs that write maps for it say so in their first line.
pub fn claims_to_be_a_map(text: &[u8]) -> bool {
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    first.starts_with(b"#") && first.windows(8).any(|word| word == b"ddrescue")
}

impl RescueMap {
    /// The map in a text.
    ///
    /// # Errors
    /// The text is not a map.
    pub fn parse(text: &[u8]) -> Result<Self, MapError> {
        if text.len() > MAX_BYTES {
            return Err(MapError::TooLong);
        }
        let lines = (1..).zip(text.split(|byte| *byte == b'\n'));
        let mut lines = lines.filter(|(_, line)| words(line).next().is_some());
        let (line, status) = lines.next().ok_or(MapError::NoStatus)?;
        check_status_line(status).map_err(|why| MapError::Line { line, why })?;
        let mut map: Option<Self> = None;
        let mut before = 0;
        for (line, text) in lines {
            let block = Block::parse(text).map_err(|why| MapError::Line { line, why })?;
            let map = map.get_or_insert(Self {
                start: block.bytes.start,
                end: block.bytes.start,
                unread: Vec::new(),
            });
            let (end, found) = (map.end, block.bytes.start);
            let why = match found {
                _ if found == end => None,
                _ if found > end => Some(LineError::Gap { end, found }),
                _ if found < before => Some(LineError::Order { before, found }),
                _ => Some(LineError::Overlap { end, found }),
            };
            if let Some(why) = why {
                return Err(MapError::Line { line, why });
            }
            before = found;
            map.end = block.bytes.end;
            if !block.is_read && !block.bytes.is_empty() {
                add(&mut map.unread, block.bytes);
            }
            if map.unread.len() > MAX_AREAS {
                return Err(MapError::TooManyAreas { line });
            }
        }
        map.ok_or(MapError::NoBlocks)
    }

    /// The byte where its last block ends.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// The bytes of a disk of this size that were not read, also those that no block describes: in order, with something between any
    /// two.
    pub fn unread(&self, size: u64) -> Vec<Range<u64>> {
        let mut all = Vec::with_capacity(self.unread.len() + 2);
        let described = self.unread.iter().cloned();
        for area in once(0..self.start).chain(described).chain(once(self.end..size)) {
            let area = area.start..area.end.min(size);
            if area.start < area.end {
                add(&mut all, area);
            }
        }
        all
    }
}

/// Adds an area behind the others, or to the last one if it follows that.
fn add(areas: &mut Vec<Range<u64>>, area: Range<u64>) {
    match areas.last_mut() {
        Some(last) if last.end == area.start => last.end = area.end,
        Some(_) | None => areas.push(area),
    }
}

/// A line of the list.
struct Block {
    bytes: Range<u64>,
    is_read: bool,
}

impl Block {
    fn parse(line: &[u8]) -> Result<Self, LineError> {
        let mut words = words(line);
        let (Some(position), Some(size), Some(status), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(LineError::BlockWords(self::words(line).count()));
        };
        let start = number(position)?;
        let end = start.checked_add(number(size)?).filter(|end| *end <= MAX_NUMBER);
        let end = end.ok_or_else(|| LineError::Overflow(shown(size)))?;
        let is_read = match status {
            b"+" => true,
            b"?" | b"*" | b"/" | b"-" => false,
            _ => return Err(LineError::Status { word: shown(status), known: "? * / - +" }),
        };
        Ok(Self { bytes: start..end, is_read })
    }
}

/// The line says where ddrescue continues. That does not matter here, but the line distinguishes a map from another text.
fn check_status_line(line: &[u8]) -> Result<(), LineError> {
    let count = words(line).count();
    let mut words = words(line);
    let (Some(position), Some(status), 2 | 3) = (words.next(), words.next(), count) else {
        return Err(LineError::StatusWords(count));
    };
    number(position)?;
    if !matches!(status, [b'?' | b'*' | b'/' | b'-' | b'F' | b'G' | b'+']) {
        return Err(LineError::Status { word: shown(status), known: "? * / - F G +" });
    }
    words.next().map_or(Ok(0), number).map(drop)
}

/// The words of a line before its comment.
fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let all = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    all.take_while(|word| !word.starts_with(b"#"))
}

/// A number in C's notation.
fn number(word: &[u8]) -> Result<u64, LineError> {
    let (digits, radix) = match word {
        [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
        [b'0', digits @ ..] if !digits.is_empty() => (digits, 8),
        digits => (digits, 10),
    };
    if digits.is_empty() {
        return Err(LineError::Number(shown(word)));
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = char::from(*digit).to_digit(radix);
        let digit = digit.ok_or_else(|| LineError::Number(shown(word)))?;
        let next = number.checked_mul(radix.into()).and_then(|n| n.checked_add(digit.into()));
        next.filter(|n| *n <= MAX_NUMBER).ok_or_else(|| LineError::Overflow(shown(word)))
    })
}

/// The beginning of a word, printable.
fn shown(word: &[u8]) -> String {
    let more = if word.len() > SHOWN { "..." } else { "" };
    format!("{}{more}", word[..word.len().min(SHOWN)].escape_ascii())
}

#[cfg(test)]
mod tests;
