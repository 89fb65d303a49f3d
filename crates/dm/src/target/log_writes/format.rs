//! The log format (the kernel's `dm-log-writes.c`).
//!
//! The log is divided into sectors of [`Super::sector_size`] bytes, the logical block size of the
//! logged device. Sector 0 is the super. Entries start in sector 1: one sector with an [`Entry`],
//! followed by the written data, if any. A mark's name is in the entry's sector itself.

use ashlar_block::ondisk_layout;
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The magic number of a super.
pub const MAGIC: u64 = 0x6a_7366_7773_6872;
/// The only existing version.
pub const VERSION: u64 = 1;

/// A flush, or a write with a flush.
pub const FLUSH: u64 = 1;
/// The data was durable when the write was acknowledged.
pub const FUA: u64 = 1 << 1;
/// A discard: there is no data.
pub const DISCARD: u64 = 1 << 2;
/// A mark set by a message.
pub const MARK: u64 = 1 << 3;
/// The submitter flagged it as metadata.
pub const METADATA: u64 = 1 << 4;

/// Sector 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Super {
    /// [`MAGIC`].
    pub magic: U64,
    /// [`VERSION`].
    pub version: U64,
    /// Entries in the log.
    pub nr_entries: U64,
    /// Bytes per sector of the log.
    pub sector_size: U32,
}

/// The start of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Entry {
    /// Start of the write on the device, in the log's sectors.
    pub sector: U64,
    /// Length, in the log's sectors.
    pub nr_sectors: U64,
    /// The kind of operation: [`FLUSH`] and so on.
    pub flags: U64,
    /// Length of a mark's name, which follows.
    pub data_len: U64,
}

ondisk_layout!(Super, 28, { magic: 0, version: 8, nr_entries: 16, sector_size: 24 });
ondisk_layout!(Entry, 32, { sector: 0, nr_sectors: 8, flags: 16, data_len: 24 });

/// Why bytes are not a log.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LogError {
    /// There is no super.
    #[error("no log of writes: the magic number is {0:#x}")]
    Magic(u64),
    /// The version is unknown.
    #[error("the log has version {0}, only version {VERSION} is known")]
    Version(u64),
    /// The sector size is invalid.
    #[error("the log's sectors have {0} bytes: must be a power of two from 512 to 65536")]
    SectorSize(u32),
    /// The log is truncated.
    #[error("the log ends within entry {0}, but has {1}")]
    Truncated(u64, u64),
    /// A mark's name does not fit into its sector.
    #[error("entry {0}: the mark's name is said to have {1} bytes")]
    Mark(u64, u64),
}

/// An entry of a log, with its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The entry.
    pub entry: Entry,
    /// The data of a write, or the name of a mark.
    pub data: &'a [u8],
}

impl Super {
    /// A super for `nr_entries` entries.
    pub fn new(nr_entries: u64, sector_size: u32) -> Self {
        Self {
            magic: MAGIC.into(),
            version: VERSION.into(),
            nr_entries: nr_entries.into(),
            sector_size: sector_size.into(),
        }
    }

    /// The super at the start of `log`.
    ///
    /// # Errors
    /// There is no super, or it is invalid.
    pub fn parse(log: &[u8]) -> Result<Self, LogError> {
        let (found, _) = Self::read_from_prefix(log).map_err(|_| LogError::Truncated(0, 0))?;
        let size = found.sector_size.get();
        if found.magic.get() != MAGIC {
            return Err(LogError::Magic(found.magic.get()));
        }
        if found.version.get() != VERSION {
            return Err(LogError::Version(found.version.get()));
        }
        if !(512..=65536).contains(&size) || !size.is_power_of_two() {
            return Err(LogError::SectorSize(size));
        }
        Ok(found)
    }
}

/// The entries of a whole log, in order. An error ends the iteration.
pub fn records(log: &[u8]) -> impl Iterator<Item = Result<Record<'_>, LogError>> {
    let mut state = Super::parse(log).map(|found| {
        let size = found.sector_size.get() as usize;
        (log.get(size..).unwrap_or_default(), size, 0, found.nr_entries.get())
    });
    let mut ended = false;
    std::iter::from_fn(move || {
        let next = match &mut state {
            _ if ended => return None,
            Err(error) => Err(error.clone()),
            Ok((_, _, number, count)) if number == count => return None,
            Ok((rest, size, number, count)) => {
                *number += 1;
                record(rest, *size, *number, *count)
            }
        };
        ended = next.is_err();
        Some(next)
    })
}

fn record<'a>(
    rest: &mut &'a [u8],
    size: usize,
    number: u64,
    count: u64,
) -> Result<Record<'a>, LogError> {
    let truncated = || LogError::Truncated(number, count);
    let (head, behind) = rest.split_at_checked(size).ok_or_else(truncated)?;
    let (entry, inline) = Entry::read_from_prefix(head).map_err(|_| truncated())?;
    let flags = entry.flags.get();
    if flags & MARK != 0 {
        let name = usize::try_from(entry.data_len.get()).ok().and_then(|len| inline.get(..len));
        let data = name.ok_or(LogError::Mark(number, entry.data_len.get()))?;
        *rest = behind;
        return Ok(Record { entry, data });
    }
    let sectors = if flags & DISCARD != 0 { 0 } else { entry.nr_sectors.get() };
    let len = usize::try_from(sectors).ok().and_then(|n| n.checked_mul(size));
    let parts = len.and_then(|len| behind.split_at_checked(len));
    let (data, behind) = parts.ok_or_else(truncated)?;
    *rest = behind;
    Ok(Record { entry, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> Vec<u8> {
        let mut log = vec![0; 5 * 512];
        log[..28].copy_from_slice(&[
            0x72, 0x68, 0x73, 0x77, 0x66, 0x73, 0x6a, 0, 1, 0, 0, 0, 0, 0, 0, 0, //
            3, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0,
        ]);
        log[512..544].copy_from_slice(&[
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 1, 0, 0, 0, 0, 0, 0, 0, //
            0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ]);
        log[1024..1536].fill(0x5a);
        log[1536 + 8] = 7;
        log[1536 + 16] = 4;
        log[2048 + 16] = 8;
        log[2048 + 24] = 5;
        log[2048 + 32..2048 + 37].copy_from_slice(b"hello");
        log
    }

    #[test]
    fn a_golden_log_is_read() {
        let log = golden();
        assert_eq!(Super::parse(&log), Ok(Super::new(3, 512)));
        let all: Vec<_> = records(&log).map(|record| record.expect("a record")).collect();
        assert_eq!(all.len(), 3);
        let Entry { sector, nr_sectors, flags, data_len } = all[0].entry;
        let fields = [sector, nr_sectors, flags, data_len].map(U64::get);
        assert_eq!(fields, [0x1817_1615_1413_1211, 1, FUA | METADATA, 0]);
        assert_eq!(all[0].data, [0x5a; 512]);
        assert_eq!((all[1].entry.nr_sectors.get(), all[1].data), (7, &[][..]));
        assert_eq!(all[2].data, b"hello");
        let bytes = all[0].entry.as_bytes();
        assert_eq!(bytes, &log[512..544]);
    }

    #[test]
    fn a_log_cut_anywhere_or_with_absurd_numbers_is_an_error_and_ends() {
        let log = golden();
        for len in 0..log.len() {
            let read: Vec<_> = records(&log[..len]).collect();
            let (last, before) = read.split_last().expect("an error at least");
            assert!(last.is_err() && before.iter().all(Result::is_ok), "{len}");
        }
        for at in 0..log.len() {
            let mut bad = log.clone();
            bad[at] = 0xff;
            assert!(records(&bad).count() <= 4, "{at}");
        }
    }
}
