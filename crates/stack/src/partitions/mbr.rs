//! The MBR and its chains of extended partitions, as bytes.
//!
//! No specification exists; the interpretation is the kernel's (`block/partitions/msdos.c`):
//! logical partitions are numbered from 5 in the order of the chain; the links of a chain are
//! relative to its first sector, and the start of a data partition to the sector with its entry.

use std::collections::BTreeSet;

use ashlar_block::{Sector, Sectors};

use super::{Entry, Unit};

/// The type of an entry that announces a GPT.
const PROTECTIVE: u8 = 0xee;
/// Types of extended partitions: CHS, LBA, Linux.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// The number of the first logical partition.
pub const FIRST_LOGICAL: u32 = 5;
/// Maximum number of links followed: the kernel's maximum of partitions.
const MAX_LINKS: usize = 256;

/// One of the four entries of an MBR, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Type byte.
    pub kind: u8,
    /// Start; what it is relative to depends on the entry.
    pub start: u32,
    /// Length; zero for an unused entry.
    pub len: u32,
}

impl Record {
    /// Whether the entry is used.
    pub fn is_used(&self) -> bool {
        self.len != 0 && self.kind != 0
    }

    /// Whether it holds a chain of logical partitions.
    pub fn is_extended(&self) -> bool {
        EXTENDED.contains(&self.kind)
    }

    /// Whether it announces a GPT.
    pub fn is_protective(&self) -> bool {
        self.kind == PROTECTIVE
    }

    fn entry(&self, number: u32, from: u64, unit: Unit) -> Entry {
        Entry {
            number,
            start: Sector(unit.sectors(from + u64::from(self.start))),
            len: Sectors(unit.sectors(self.len.into())),
            kind: format!("{:x}", self.kind),
            name: String::new(),
            uuid: None,
        }
    }
}

/// The entries in `sector`, if it has the boot signature.
pub fn records(sector: &[u8]) -> Option<[Record; 4]> {
    if sector.get(510..512) != Some(&[0x55, 0xaa]) {
        return None;
    }
    let record = |n: usize| {
        let bytes: &[u8; 16] = sector.get(446 + 16 * n..)?.first_chunk()?;
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Some(Record { kind: bytes[4], start: number(8), len: number(12) })
    };
    Some([record(0)?, record(1)?, record(2)?, record(3)?])
}

/// The primary partitions of the MBR with these entries, and its chains.
pub fn primary(records: &[Record; 4], unit: Unit) -> (Vec<Entry>, Vec<Chain>) {
    let used = || (1..).zip(records).filter(|(_, record)| record.is_used());
    let data = used().filter(|(_, record)| !record.is_extended());
    let chains = used().filter(|(_, record)| record.is_extended());
    (
        data.map(|(number, record)| record.entry(number, 0, unit)).collect(),
        chains.map(|(_, record)| Chain::new(record)).collect(),
    )
}

/// A walk along a chain of logical partitions: the caller passes the block at [`Self::next`] to
/// [`Self::take`], until the chain ends.
#[derive(Clone, Debug)]
pub struct Chain {
    first: u64,
    len: u64,
    next: Option<u64>,
    seen: BTreeSet<u64>,
    defect: Option<String>,
}

impl Chain {
    fn new(record: &Record) -> Self {
        let first = u64::from(record.start);
        let seen = BTreeSet::new();
        Self { first, len: record.len.into(), next: Some(first), seen, defect: None }
    }

    /// The block with the chain's next link.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Why the chain ended early.
    pub fn defect(&self) -> Option<&str> {
        self.defect.as_deref()
    }

    /// Ends the chain because of `why`.
    pub fn end(&mut self, why: impl Into<String>) {
        self.defect = Some(why.into());
        self.next = None;
    }

    /// The partitions in the link in `sector`; the first of them gets `number`.
    pub fn take(&mut self, sector: &[u8], number: u32, unit: Unit) -> Vec<Entry> {
        let Some(at) = self.next.take() else { return Vec::new() };
        self.seen.insert(at);
        let Some(records) = records(sector) else {
            self.end(format!("block {at} is not a partition table"));
            return Vec::new();
        };
        let used = || (0..).zip(&records).filter(|(_, record)| record.is_used());
        // The last two entries often hold garbage: they count if they fit.
        let counts = |index: usize, record: &Record| {
            let start = at + u64::from(record.start);
            index < 2 || start + u64::from(record.len) <= self.first + self.len
        };
        let data = used().filter(|(index, r)| !r.is_extended() && counts(*index, r));
        let entries = data.map(|(_, record)| record);
        let entries: Vec<Entry> =
            entries.zip(number..).map(|(record, number)| record.entry(number, at, unit)).collect();
        if let Some((_, link)) = used().find(|(_, record)| record.is_extended()) {
            let next = self.first + u64::from(link.start);
            if self.seen.contains(&next) {
                self.end(format!("it leads back to block {next}"));
            } else if self.seen.len() >= MAX_LINKS {
                self.end(format!("it has more than {MAX_LINKS} links"));
            } else {
                self.next = Some(next);
            }
        }
        entries
    }
}
