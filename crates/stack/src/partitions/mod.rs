//! Partition tables: their contents, and the devices of the partitions.
//!
//! [`gpt`] and [`mbr`] work on bytes; [`read`] gets these from a device and selects the valid
//! table (docs/internals/stack.md). Nothing is written, even to repair a damaged copy.

mod device;
pub mod gpt;
pub mod mbr;

use std::sync::Arc;

use ashlar_block::{Gateway, Sector, Sectors, Status};
use uuid::Uuid;

use crate::names::partition_suffix;
use crate::signature::Signature;
use gpt::{Defect, Header};

pub use device::Partition;

/// The unit of a table's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit {
    bytes: u32,
}

impl Unit {
    /// Blocks of `bytes`, a multiple of 512; any other number means 512.
    pub fn new(bytes: u32) -> Self {
        Self { bytes: if bytes >= 512 && bytes.is_multiple_of(512) { bytes } else { 512 } }
    }

    /// The sectors of `blocks`; saturates.
    pub fn sectors(self, blocks: u64) -> u64 {
        blocks.saturating_mul(u64::from(self.bytes) / 512)
    }

    fn sector(self, block: u64) -> Sector {
        Sector(self.sectors(block))
    }
}

/// The kind of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// GUID partition table.
    Gpt,
    /// MBR.
    Dos,
}

impl Scheme {
    /// The name, as in `lsblk`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpt => "gpt",
            Self::Dos => "dos",
        }
    }
}

/// A partition, as in its table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its number, from 1.
    pub number: u32,
    /// Its start.
    pub start: Sector,
    /// Its length.
    pub len: Sectors,
    /// Its type: a GUID, or a hexadecimal number.
    pub kind: String,
    /// Its label; only a GPT has them.
    pub name: String,
    /// Its UUID; only a GPT has them.
    pub uuid: Option<Uuid>,
}

impl Entry {
    /// Its end, unless it overflows.
    pub fn end(&self) -> Option<Sector> {
        self.start.checked_add(self.len)
    }

    /// The partition of `lower`, which must contain it, and its name on a device named `disk`: as
    /// in Linux `sda1`, `md0p1`.
    pub fn open(&self, disk: &str, lower: &Gateway) -> (String, Gateway) {
        let name = format!("{disk}{}", partition_suffix(disk, self.number));
        let part = Partition::new(&*name, lower.clone(), self.start, self.len);
        (name, Gateway::new(Arc::new(part)))
    }
}

/// A table that can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// Its kind.
    pub scheme: Scheme,
    /// The partitions. None overlap or reach beyond the device.
    pub entries: Vec<Entry>,
    /// Messages to the user: entries left out, a damaged copy.
    pub notes: Vec<String>,
    /// Whether the table has no partitions, not even one that was left out.
    pub is_empty: bool,
}

impl Table {
    /// Leaves out entries that do not fit on a device of this size.
    fn new(scheme: Scheme, mut all: Vec<Entry>, device: Sectors, mut notes: Vec<String>) -> Self {
        let is_empty = all.is_empty();
        all.retain(|entry| {
            let why = match entry.end() {
                _ if entry.len.is_zero() => "it ends before it begins",
                Some(end) if end <= device.as_end() => return true,
                Some(_) | None => "it reaches beyond the end of the device",
            };
            notes.push(format!("partition {} left out: {why}", entry.number));
            false
        });
        for (number, other) in overlapping(&all) {
            notes.push(format!("partition {number} left out: it overlaps partition {other}"));
            all.retain(|entry| entry.number != number);
        }
        Self { scheme, entries: all, notes, is_empty }
    }
}

/// The numbers of overlapping entries, each with the number of the other entry, in ascending order.
/// All entries have an end.
fn overlapping(entries: &[Entry]) -> Vec<(u32, u32)> {
    let mut sorted: Vec<(Sector, Sector, u32)> =
        entries.iter().filter_map(|e| Some((e.start, e.end()?, e.number))).collect();
    sorted.sort_unstable();
    let mut found = Vec::new();
    // The entry with the farthest end so far: an entry that begins before that end overlaps it.
    let mut farthest: Option<(Sector, u32)> = None;
    for (start, end, number) in sorted {
        if let Some((reach, other)) = farthest
            && start < reach
        {
            found.extend([(number, other), (other, number)]);
        }
        if farthest.is_none_or(|(reach, _)| end > reach) {
            farthest = Some((end, number));
        }
    }
    found.sort_unstable();
    found.dedup_by_key(|(number, _)| *number);
    found
}

/// The partition table of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TableState {
    /// No valid table; maybe a message to the user.
    Nothing(Option<String>),
    /// A table.
    Table(Table),
    /// A table that cannot be used, and why.
    Damaged(String),
}

/// Reads the table of a device with these `signatures`. Reads only.
///
/// # Errors
/// The device cannot be read.
pub async fn read(gateway: &Gateway, signatures: &[Signature]) -> Result<TableState, Status> {
    let has = |name| signatures.iter().any(|found| found.name == name);
    let units = units(gateway);
    if !has("PMBR") && !has("dos") {
        let stray = has("gpt").then(|| {
            "there is a GPT, but no MBR that names it: it is not used, as in the kernel".to_owned()
        });
        return Ok(TableState::Nothing(stray));
    }
    let Some(unit) = units.first().copied() else { return Ok(TableState::Nothing(None)) };
    let sector = read_block(gateway, unit, 0).await?;
    let Some(records) = mbr::records(&sector) else { return Ok(TableState::Nothing(None)) };
    if !records.iter().any(mbr::Record::is_protective) {
        let mut table = read_dos(gateway, unit, &records).await;
        if has("gpt") {
            let note = "there is a GPT too, but the MBR does not name it: the MBR counts";
            table.notes.insert(0, note.to_owned());
        }
        return Ok(TableState::Table(table));
    }
    let is_hybrid = records.iter().any(|record| record.is_used() && !record.is_protective());
    let mut defects = Vec::new();
    for unit in units {
        match read_gpt(gateway, unit).await {
            Ok((entries, mut notes)) => {
                if is_hybrid {
                    notes.push("hybrid MBR: only the GPT's partitions count".to_owned());
                }
                let size = gateway.capacity();
                return Ok(TableState::Table(Table::new(Scheme::Gpt, entries, size, notes)));
            }
            Err([primary, backup]) => defects.push((primary, backup)),
        }
    }
    // Of several units, report the one in which a copy exists.
    let missing = (Defect::Missing, Defect::Missing);
    let (primary, backup) =
        defects.into_iter().find(|defects| *defects != missing).unwrap_or(missing);
    Ok(TableState::Damaged(format!(
        "both copies of the GPT are unusable: the primary: {primary}; the backup: {backup}"
    )))
}

/// The possible units of a device's table, the most likely first.
fn units(gateway: &Gateway) -> Vec<Unit> {
    let block = gateway.disk().limits().logical_block_bytes.max(512);
    let capacity = gateway.capacity().bytes();
    let mut sizes = vec![block];
    // A file with smaller blocks may be the image of a disk with larger blocks.
    sizes.extend((block < 4096).then_some(4096));
    sizes.into_iter().map(Unit::new).filter(|unit| capacity >= u64::from(unit.bytes)).collect()
}

async fn read_block(gateway: &Gateway, unit: Unit, block: u64) -> Result<Vec<u8>, Status> {
    read_bytes(gateway, unit, block, unit.bytes as usize).await
}

/// `len` bytes from a block on; shorter at the end of the device.
async fn read_bytes(
    gateway: &Gateway,
    unit: Unit,
    block: u64,
    len: usize,
) -> Result<Vec<u8>, Status> {
    let (from, end) = (unit.sector(block), gateway.capacity().as_end());
    if from >= end {
        return Ok(Vec::new());
    }
    let wanted = Sectors::from_bytes_ceil(len as u64).round_up(Sectors(unit.sectors(1)));
    let there = wanted.min((end - from).round_down(gateway.disk().limits().logical_block()));
    if there.is_zero() {
        return Ok(Vec::new());
    }
    let buffer = gateway.read(from, there).await?;
    let bytes = buffer.as_slice();
    Ok(bytes[..len.min(bytes.len())].to_vec())
}

async fn read_dos(gateway: &Gateway, unit: Unit, records: &[mbr::Record; 4]) -> Table {
    let (mut entries, chains) = mbr::primary(records, unit);
    let mut notes = Vec::new();
    let mut number = mbr::FIRST_LOGICAL;
    for mut chain in chains {
        while let Some(at) = chain.next() {
            let link = match read_block(gateway, unit, at).await {
                Ok(link) => link,
                Err(status) => {
                    chain.end(format!("block {at} cannot be read: {status}"));
                    break;
                }
            };
            let found = chain.take(&link, number, unit);
            number += found.len() as u32;
            entries.extend(found);
        }
        notes.extend(chain.defect().map(|why| format!("the extended partition is damaged: {why}")));
    }
    Table::new(Scheme::Dos, entries, gateway.capacity(), notes)
}

/// A copy of a GPT: its header and entries.
type Copy = Result<(Header, Vec<Entry>), Defect>;

/// The entries of the GPT in these units, with the defects of its copies; or the defects of both
/// copies if neither can be used.
async fn read_gpt(gateway: &Gateway, unit: Unit) -> Result<(Vec<Entry>, Vec<String>), [Defect; 2]> {
    let last = (gateway.capacity().0 / unit.sectors(1)).saturating_sub(1);
    let primary = read_copy(gateway, unit, 1, last).await;
    // On a disk that has grown, the backup is at the primary's alternate location.
    let backup_at = primary.as_ref().map_or(last, |(header, _)| header.alternate.min(last));
    let backup = read_copy(gateway, unit, backup_at, last).await;
    match (primary, backup) {
        (Ok((ours, entries)), Ok((theirs, others))) => {
            let same = ours.disk == theirs.disk && entries == others;
            let note = "the two copies of the GPT differ: the primary counts";
            Ok((entries, if same { Vec::new() } else { vec![note.to_owned()] }))
        }
        (Ok((_, entries)), Err(why)) => {
            Ok((entries, vec![format!("the backup GPT is damaged ({why}); the primary counts")]))
        }
        (Err(why), Ok((_, entries))) => {
            Ok((entries, vec![format!("the primary GPT is damaged ({why}); the backup is used")]))
        }
        (Err(primary), Err(backup)) => Err([primary, backup]),
    }
}

async fn read_copy(gateway: &Gateway, unit: Unit, at: u64, last: u64) -> Copy {
    let block = read_block(gateway, unit, at).await.map_err(Defect::Unreadable)?;
    let header = Header::parse(&block, at, last)?;
    let bytes = read_bytes(gateway, unit, header.entries_at, header.entries_bytes()).await;
    let entries = header.entries(&bytes.map_err(Defect::Unreadable)?, unit)?;
    Ok((header, entries))
}
