//! The md superblocks of a device and of its partitions, with their bitmaps and bad block logs, in mdadm's words.

use ashlar_block::{Gateway, Sector, Sectors, Status};
use ashlar_md::BitmapState;
use ashlar_md::ondisk::bad_block_log::{self, BadRange};
use ashlar_md::ondisk::bitmap_super::{self, BitmapSuper};
use ashlar_md::ondisk::{Features, MdadmUuid, Role, Superblock, examine as text};
use ashlar_stack::partitions::{self, mbr};
use ashlar_stack::probe::{Contents, Md, probe_readable};
use ashlar_stack::signature::{Signature, Usage};
use serde::Serialize;
use thiserror::Error;

use crate::scan::layout_name;

/// Why a device was not examined.
#[derive(Debug, Error)]
pub enum ExamineError {
    /// It cannot be read.
    #[error("cannot read: {path}: {status}")]
    Unreadable {
        /// The device.
        path: String,
        /// Why.
        status: Status,
    },
    /// Its bad block log cannot be read.
    #[error("cannot read the bad block log: {path}: {status}")]
    UnreadableLog {
        /// The device.
        path: String,
        /// Why.
        status: Status,
    },
    /// Its bad block log is damaged.
    #[error("damaged bad block log: {path}: {error}")]
    DamagedLog {
        /// The device.
        path: String,
        /// Why.
        error: String,
    },
}

/// A device or partition, and its md superblock.
pub struct ExaminedPlace {
    /// Its path.
    pub path: String,
    /// The superblock.
    pub md: Md,
    /// The array that it describes without being a member.
    pub describes: Option<String>,
    gateway: Gateway,
}

/// A device with its superblocks.
pub struct ExaminedDevice {
    /// A description of the MBR, if the device has partitions; otherwise empty.
    pub table: String,
    /// The device; or its partitions with md superblocks, if it has any.
    pub places: Vec<ExaminedPlace>,
}

/// Looks for superblocks on the device `path`, and on its partitions if it has none itself.
///
/// # Errors
/// It cannot be read.
pub async fn examine(path: String, gateway: Gateway) -> Result<ExaminedDevice, ExamineError> {
    let unreadable =
        |path: &str, status| ExamineError::Unreadable { path: path.to_owned(), status };
    let contents = probe_readable(&gateway).await;
    let contents = contents.map_err(|status| unreadable(&path, status))?;
    refuse_hidden(&contents).map_err(|status| unreadable(&path, status))?;
    let Contents { md, foreign, .. } = contents;
    let describes = foreign.iter().find(|found| found.usage == Usage::Configuration);
    let describes = describes.map(Signature::to_string);
    let mut found = ExaminedDevice { table: String::new(), places: Vec::new() };
    if matches!(md, Md::None)
        && let partitions::TableState::Table(table) = partitions::read(&gateway, &foreign)
            .await
            .map_err(|status| unreadable(&path, status))?
    {
        let sector = read(&gateway, Sector::ZERO, 512).await;
        let sector = sector.map_err(|status| unreadable(&path, status))?;
        found.table = format!("{path}:\n{}", mbr_text(&sector));
        for entry in table.entries {
            let (path, gateway) = entry.open(&path, &gateway);
            let contents = probe_readable(&gateway).await;
            let contents = contents.map_err(|status| unreadable(&path, status))?;
            refuse_hidden(&contents).map_err(|status| unreadable(&path, status))?;
            let md = contents.md;
            if !matches!(md, Md::None) {
                found.places.push(ExaminedPlace { path, gateway, md, describes: None });
            }
        }
    }
    if found.places.is_empty() {
        found.places.push(ExaminedPlace { path, gateway, md, describes });
    }
    Ok(found)
}

/// Fails if there is no md superblock, but one may be where the device cannot be read.
fn refuse_hidden(contents: &Contents) -> Result<(), Status> {
    match (&contents.md, &contents.unread) {
        (Md::None, Some(unread)) if unread.hidden_owner(true).is_some() => Err(unread.status()),
        _ => Ok(()),
    }
}

impl ExaminedPlace {
    /// The superblock `sb` of this place, as `mdadm --examine` prints it on the host `homehost`.
    pub async fn superblock_text(&self, sb: &Superblock, homehost: Option<&str>) -> String {
        let bitmap = read_bitmap(&self.gateway, sb).await;
        format!("{}:\n{}", self.path, text::examine(sb, bitmap.as_ref(), homehost))
    }

    /// Its bitmap, as `mdadm --examine-bitmap` prints it.
    ///
    /// # Errors
    /// Why there is no bitmap to print.
    pub async fn bitmap_text(&self, sb: &Superblock) -> Result<String, String> {
        let start = sb.bitmap_start().ok_or("the array has no bitmap")?;
        let unreadable = |status: Status| status.to_string();
        let first = read(&self.gateway, start, bitmap_super::SIZE).await.map_err(unreadable)?;
        let bitmap = BitmapSuper::parse(&first).map_err(|error| error.to_string())?;
        let marked = marked(&self.gateway, start, &bitmap).await.map_err(unreadable)?;
        let bitmap = bitmap.describe(sb.version, Some(marked));
        Ok(format!("        Filename : {}\n{bitmap}", self.path))
    }

    /// Its bad blocks, as `mdadm --examine-badblocks` prints them.
    ///
    /// # Errors
    /// The log cannot be read or is damaged.
    pub async fn bad_blocks_text(&self, sb: &Superblock) -> Result<String, ExamineError> {
        let path = &self.path;
        let (Some(place), Some(start)) = (sb.bad_block_log, sb.bad_block_log_start()) else {
            return Ok(format!("No bad-blocks list configured on {path}\n"));
        };
        if !sb.features.contains(Features::BAD_BLOCKS) {
            return Ok(format!("Bad-blocks list is empty in {path}\n"));
        }
        let log = read(&self.gateway, start, place.len.bytes() as usize).await;
        let log =
            log.map_err(|status| ExamineError::UnreadableLog { path: path.to_owned(), status })?;
        let ranges = bad_block_log::parse(&log, place.shift).map_err(|error| {
            ExamineError::DamagedLog { path: path.to_owned(), error: error.to_string() }
        })?;
        let line = |range: BadRange| format!("{:>20} for {} sectors\n", range.start, range.len);
        let lines: String = ranges.into_iter().map(line).collect();
        Ok(format!("Bad-blocks on {path}:\n{lines}"))
    }
}

/// A superblock as data.
#[derive(Serialize)]
pub struct ExaminedSuperblock {
    /// The device.
    pub device: String,
    /// The version of the superblock.
    pub version: String,
    /// The array's UUID, in mdadm's form.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// Its level.
    pub level: String,
    /// Its layout, if the level has layouts.
    pub layout: Option<String>,
    /// The size of its chunks, KiB; 0 if it has none.
    pub chunk_kib: u64,
    /// The devices of the complete array.
    pub raid_devices: u32,
    /// What it uses of each device, KiB.
    pub used_dev_size_kib: u64,
    /// The first sector with data.
    pub data_offset: u64,
    /// The sector of the superblock.
    pub super_offset: u64,
    /// The member's UUID, in mdadm's form.
    pub device_uuid: String,
    /// `active 0`, `spare`, `faulty` or `journal`.
    pub role: String,
    /// How often the array has changed.
    pub events: u64,
    /// Whether all copies are the same.
    pub clean: bool,
    /// When it was created, seconds since the epoch.
    pub created: u64,
    /// When it last changed, seconds since the epoch.
    pub updated: u64,
}

impl ExaminedSuperblock {
    /// The superblock `sb` of `device`.
    pub fn new(device: String, sb: &Superblock) -> Self {
        Self {
            device,
            version: sb.version.to_string(),
            uuid: MdadmUuid(sb.set_uuid).to_string(),
            name: sb.name.clone(),
            level: sb.level.to_string(),
            layout: layout_name(sb.level, sb.layout),
            chunk_kib: sb.chunk.0 / 2,
            raid_devices: sb.raid_disks,
            used_dev_size_kib: sb.size.0 / 2,
            data_offset: sb.data_offset.0,
            super_offset: sb.super_offset.0,
            device_uuid: MdadmUuid(sb.device_uuid).to_string(),
            role: match sb.role() {
                Role::Active(slot) => format!("active {slot}"),
                Role::Spare => "spare".to_owned(),
                Role::Faulty => "faulty".to_owned(),
                Role::Journal => "journal".to_owned(),
            },
            events: sb.events,
            clean: sb.is_clean(),
            created: sb.ctime.seconds,
            updated: sb.utime.seconds,
        }
    }
}

/// A description of an MBR, as `mdadm --examine` prints it: for a GPT the protective entry.
fn mbr_text(sector: &[u8]) -> String {
    let Some(records) = mbr::records(sector) else { return String::new() };
    let used = records.iter().enumerate().filter(|(_, record)| record.len != 0);
    let lines = used.map(|(index, mbr::Record { kind, start, len })| {
        format!("Partition[{index}] : {len:>12} sectors at {start:>12} (type {kind:02x})\n")
    });
    format!("   MBR Magic : aa55\n{}", lines.collect::<String>())
}

/// `bytes` bytes of a device from sector `at`; reads whole blocks.
async fn read(gateway: &Gateway, at: Sector, bytes: usize) -> std::result::Result<Vec<u8>, Status> {
    let block = gateway.disk().limits().logical_block();
    let from = at.round_down(block);
    let end = (at + Sectors::from_bytes_ceil(bytes as u64)).round_up(block);
    let buffer = gateway.read(from, end - from).await?;
    let skip = (at - from).bytes() as usize;
    Ok(buffer.as_slice().iter().skip(skip).take(bytes).copied().collect())
}

/// The superblock of the bitmap, if there is one and it can be read.
async fn read_bitmap(gateway: &Gateway, sb: &Superblock) -> Option<BitmapSuper> {
    let bytes = read(gateway, sb.bitmap_start()?, bitmap_super::SIZE).await.ok()?;
    BitmapSuper::from_bytes(&bytes)
}

/// How many chunks are marked.
async fn marked(
    gateway: &Gateway,
    start: Sector,
    bitmap: &BitmapSuper,
) -> std::result::Result<u64, Status> {
    const PIECE: u64 = 1 << 20;
    let lockless = bitmap.is_lockless();
    let (header, per_byte) =
        if lockless { (bitmap_super::LOCKLESS_START, 1) } else { (bitmap_super::SIZE, 8) };
    let (header, chunks) = (header as u64, bitmap.bits());
    let end = header.saturating_add(chunks.div_ceil(per_byte));
    let mut marked = 0;
    let mut at = 0;
    while at < end {
        let len = PIECE.min(end - at);
        let piece = read(gateway, start + Sectors::from_bytes_floor(at), len as usize).await?;
        for (offset, byte) in (at..).zip(piece).skip_while(|(offset, _)| *offset < header) {
            if lockless {
                marked += u64::from(BitmapState::from_byte(byte).is_marked());
            } else {
                // Bits after the last chunk do not count.
                let left = (chunks - (offset - header) * 8).min(8);
                marked += u64::from((u16::from(byte) & ((1 << left) - 1)).count_ones());
            }
        }
        at += len;
    }
    Ok(marked)
}
