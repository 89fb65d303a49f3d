//! The partial parity log (PPL): what parity was made of, on the member that holds it, written before the row.
//!
//! An area holds logs, each a header of 4 KiB and the partial parity of its entries, one after the other and without gaps. A partial parity is
//! the XOR of the data that the write leaves alone; with the data that the members have after a crash, written or not, it gives a parity
//! that fits. An entry is a range of one row in which the same neighbouring chunks are written; of a row that is written whole it has no
//! partial parity.
//!
//! Logs lie one behind the other, and the next one begins again near the start of the area where it does not fit. Small areas have one
//! log, always at the start. Only the newest log counts: the rows of the one before it were flushed when it was written.
//!
//! Verified against areas that Linux 6.12 wrote (`tests/images/md/ppl`). Facts of a format: `md_p.h`.

use ashlar_block::ondisk_layout;
use ashlar_block::units::{Sector, Sectors};
use crc_fast::{CrcAlgorithm, checksum};
use thiserror::Error;
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fields::Features;
use super::superblock_1::Block1;

/// Length of a header.
pub const HEADER: Sectors = Sectors(8);
/// The most entries of a log.
pub const MAX_ENTRIES: usize = 148;
/// The most partial parity that Linux puts into a log.
pub const MAX_PARITY: Sectors = Sectors(256);
/// Areas of this size and larger hold several logs.
pub const SEVERAL_LOGS: Sectors = Sectors(2 * (MAX_PARITY.0 + HEADER.0));
/// The most members of an array with a log.
pub const MAX_MEMBERS: usize = 64;

/// Where the partial parity log is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PplPlace {
    /// Sectors from the superblock, signed.
    pub offset: i16,
    /// Its length.
    pub len: Sectors,
}

impl PplPlace {
    /// What the fields of a version 1 block say, if its features name a log.
    pub(super) fn of(block: &Block1) -> Option<Self> {
        let header = &block.header;
        let features = Features::from_bits_retain(header.feature_map.get());
        let raw = header.bitmap_offset.get();
        features
            .intersects(Features::PPL | Features::MULTIPLE_PPLS)
            .then(|| Self { offset: raw as u16 as i16, len: Sectors(u64::from(raw >> 16)) })
    }
}

/// A header as it is on disk.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    reserved: [u8; 512],
    signature: U32,
    padding: U32,
    generation: U64,
    entries_count: U32,
    checksum: U32,
    entries: [RawEntry; MAX_ENTRIES],
    rest: [u8; 8],
}

ondisk_layout!(RawHeader, HEADER.0 as usize * 512, {
    reserved: 0,
    signature: 512,
    padding: 516,
    generation: 520,
    entries_count: 528,
    checksum: 532,
    entries: 536,
    rest: 4088,
});

/// An entry as it is on disk.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    data_sector: U64,
    pp_size: U32,
    data_size: U32,
    parity_disk: U32,
    checksum: U32,
}

ondisk_layout!(RawEntry, 24, {
    data_sector: 0,
    pp_size: 8,
    data_size: 12,
    parity_disk: 16,
    checksum: 20,
});

/// A log: what its header says. The default one has no entries.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Log {
    /// The number of the log among all of the array since it was assembled.
    pub generation: u64,
    /// Its entries, in the order of their partial parity.
    pub entries: Vec<Entry>,
}

/// A range of a row that is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The first sector of the array that is written.
    pub data_sector: Sector,
    /// The length of the range on each member.
    pub len: Sectors,
    /// How many neighbouring chunks of the row are written.
    pub chunks: u32,
    /// Whether they are all data of the row: there is no partial parity.
    pub is_whole: bool,
    /// The slot that holds P.
    pub parity_slot: u32,
    /// Checksum of the partial parity.
    pub checksum: u32,
}

/// Why bytes are not a header of this array.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LogError {
    /// They end before the header does.
    #[error("only {0} bytes")]
    Truncated(usize),
    /// The checksum is another one.
    #[error("the checksum of the header is wrong")]
    Checksum,
    /// It is of another array.
    #[error("the log belongs to another array")]
    Signature,
    /// It has more entries than there is room for.
    #[error("{0} entries")]
    Entries(u32),
    /// An entry that no write makes.
    #[error("entry {0} is impossible")]
    Entry(usize),
}

/// The signature of an array's logs.
pub fn signature(set_uuid: Uuid) -> u32 {
    crc(set_uuid.as_bytes())
}

/// The checksum of a partial parity.
pub fn crc(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

impl Entry {
    /// A range of all data of a row: its parity comes from them alone.
    pub fn whole(data_sector: Sector, len: Sectors, data_disks: usize, parity_slot: usize) -> Self {
        Self {
            data_sector,
            len,
            chunks: data_disks as u32,
            is_whole: true,
            parity_slot: parity_slot as u32,
            checksum: 0,
        }
    }

    /// The length of its partial parity.
    pub fn parity(&self) -> Sectors {
        if self.is_whole { Sectors::ZERO } else { self.len }
    }
}

impl Log {
    /// The log whose header `bytes` begin with. `data_disks` is the number of data chunks of a row.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn parse(bytes: &[u8], signature: u32, data_disks: u32) -> Result<Self, LogError> {
        let header = bytes.get(..size_of::<RawHeader>());
        let mut header = header
            .and_then(|bytes| RawHeader::read_from_bytes(bytes).ok())
            .ok_or(LogError::Truncated(bytes.len()))?;
        let stored = std::mem::take(&mut header.checksum).get();
        if crc(header.as_bytes()) != stored {
            return Err(LogError::Checksum);
        }
        if header.signature.get() != signature {
            return Err(LogError::Signature);
        }
        let count = header.entries_count.get();
        let entries = header.entries.get(..count as usize).ok_or(LogError::Entries(count))?;
        let entries = entries.iter().enumerate().map(|(number, raw)| {
            let (parity, data) = (raw.pp_size.get(), raw.data_size.get());
            let is_whole = parity == 0;
            let (len, chunks) = match is_whole {
                true => (data / data_disks.max(1), data_disks),
                false => (parity, data / parity),
            };
            let fits = u64::from(len) * u64::from(chunks) == u64::from(data);
            if !fits || len == 0 || len % 512 != 0 || chunks == 0 || chunks > data_disks {
                return Err(LogError::Entry(number));
            }
            Ok(Entry {
                data_sector: Sector(raw.data_sector.get()),
                len: Sectors(u64::from(len) / 512),
                chunks,
                is_whole,
                parity_slot: raw.parity_disk.get(),
                checksum: raw.checksum.get(),
            })
        });
        Ok(Self {
            generation: header.generation.get(),
            entries: entries.collect::<Result<_, _>>()?,
        })
    }

    /// The header's bytes; of more than [`MAX_ENTRIES`] entries the first ones.
    pub fn encode(&self, signature: u32) -> Vec<u8> {
        let mut header = RawHeader::new_zeroed();
        header.reserved.fill(0xff);
        header.signature = signature.into();
        header.generation = self.generation.into();
        header.entries_count = (self.entries.len().min(MAX_ENTRIES) as u32).into();
        for (raw, entry) in header.entries.iter_mut().zip(&self.entries) {
            let len = entry.len.bytes() as u32;
            raw.data_sector = entry.data_sector.0.into();
            raw.pp_size = (entry.parity().bytes() as u32).into();
            raw.data_size = (len * entry.chunks).into();
            raw.parity_disk = entry.parity_slot.into();
            raw.checksum = entry.checksum.into();
        }
        header.checksum = crc(header.as_bytes()).into();
        header.as_bytes().to_vec()
    }

    /// Its length, with the partial parity.
    pub fn len(&self) -> Sectors {
        self.entries.iter().fold(HEADER, |sum, entry| sum + entry.parity())
    }

    /// Whether it has no entries: nothing was written since the log was emptied.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Finds the newest log of an area: where it begins in it, and its header. It is the last one of those that follow one another from the start,
/// as in Linux.
pub fn newest(area: &[u8], signature: u32, data_disks: u32) -> Option<(Sectors, Log)> {
    let mut found: Option<(Sectors, Log)> = None;
    let mut from = Sectors::ZERO;
    while let Some(bytes) = area.get(from.bytes() as usize..)
        && let Ok(log) = Log::parse(bytes, signature, data_disks)
        && found.as_ref().is_none_or(|(_, last)| log.generation >= last.generation)
    {
        let next = from + log.len();
        found = Some((from, log));
        from = next;
    }
    found
}
