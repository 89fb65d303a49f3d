//! `ashlar md examine`: the superblocks on devices.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_block::{Gateway, Sector, Sectors, Status};
use ashlar_host::disks::{self, Access};
use ashlar_host::error::{Error, FAILURE, Result};
use ashlar_md::BitmapState;
use ashlar_md::ondisk::bad_block_log::{self, BadRange};
use ashlar_md::ondisk::bitmap_super::{self, BitmapSuper};
use ashlar_md::ondisk::brief::{self, Brief};
use ashlar_md::ondisk::{Features, MdadmUuid, Role, Superblock, examine};
use ashlar_stack::assemble::Disk;
use ashlar_stack::partitions::{self, mbr};
use ashlar_stack::probe::{Contents, Md, probe};
use ashlar_stack::scan::layout_name;
use clap::Args;
use serde::Serialize;

use crate::output;

/// Print the superblocks on devices, as mdadm --examine does
///
/// With --bitmap or --badblocks, their write-intent bitmaps or bad block logs instead, as mdadm
/// --examine-bitmap and --examine-badblocks do. Of a disk with partitions those are printed that have
/// superblocks. With --brief a line for each array, for mdadm.conf.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 all have one, 1 some have none or a damaged one.

Examples:
  ashlar md examine disk*.img
  ashlar md examine --json /dev/sda1
  ashlar md examine --scan
  ashlar md examine --export /dev/sda1
  ashlar md examine --bitmap disk0.img
  ashlar md examine --badblocks disk*.img")]
pub(crate) struct Examine {
    /// Image files or block devices
    #[arg(required_unless_present = "scan", value_name = "DEVICE")]
    devices: Vec<PathBuf>,

    /// Print a line for each array; with -v with its level and devices
    #[arg(short, long, conflicts_with_all = ["json", "bitmap", "badblocks"])]
    brief: bool,

    /// Look at all block devices if none are given, pass over those without array, and print as with
    /// --brief, or with -vv everything
    #[arg(short, long, conflicts_with_all = ["json", "bitmap", "badblocks"])]
    scan: bool,

    /// Print variables for scripts
    #[arg(short = 'Y', long, conflicts_with_all = ["json", "bitmap", "badblocks"])]
    export: bool,

    /// Print more with --brief and --scan
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Print the write-intent bitmaps
    #[arg(short = 'X', long, conflicts_with_all = ["json", "badblocks"])]
    bitmap: bool,

    /// Print the known bad blocks
    #[arg(long, conflicts_with = "json")]
    badblocks: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A superblock as data.
#[derive(Serialize)]
struct Examined {
    device: String,
    version: String,
    uuid: String,
    name: String,
    level: String,
    layout: Option<String>,
    chunk_kib: u64,
    raid_devices: u32,
    used_dev_size_kib: u64,
    data_offset: u64,
    super_offset: u64,
    device_uuid: String,
    role: String,
    events: u64,
    clean: bool,
    created: u64,
    updated: u64,
}

impl Examined {
    fn new(device: String, sb: &Superblock) -> Self {
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

/// The output format.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Json,
    Brief,
    Export,
}

impl Examine {
    fn form(&self) -> Form {
        // As in mdadm, --scan implies --brief unless more detail is requested.
        if self.brief || self.scan && self.verbose < 2 {
            Form::Brief
        } else if self.export {
            Form::Export
        } else if self.json {
            Form::Json
        } else {
            Form::Text
        }
    }

    /// The devices to examine.
    fn open(&self) -> Result<Vec<Disk>> {
        if !self.scan {
            return disks::open_all(&self.devices, Access::Look);
        }
        Ok(disks::open_for_scan(&self.devices))
    }

    pub(crate) fn run(self) -> Result<ExitCode> {
        let opened = self.open()?;
        let form = self.form();
        let reactor = disks::reactor()?;
        let homehost = super::create::hostname();
        let (mut text, mut code) = (String::new(), ExitCode::SUCCESS);
        let mut all: Vec<(Box<Superblock>, String)> = Vec::new();
        let mut fail = |error: Error| {
            if !self.scan {
                output::report(&error);
                code = ExitCode::from(FAILURE);
            }
        };
        for disk in opened {
            let path = disk.path.display().to_string();
            let found = match reactor.block_on(look(path, disk.gateway)) {
                Ok(found) => found,
                Err(_) if self.scan => continue,
                Err(error) => return Err(error),
            };
            if form == Form::Text && !self.bitmap && !self.badblocks {
                text += &found.table;
            }
            for Place { path, gateway, md } in found.places {
                match md {
                    Md::Member(sb) if self.bitmap => {
                        match reactor.block_on(bitmap_text(&gateway, &sb)) {
                            Ok(of_it) => text += &format!("        Filename : {path}\n{of_it}"),
                            Err(why) => fail(Error::new("no bitmap", &path, why)),
                        }
                    }
                    Md::Member(sb) if self.badblocks => {
                        text += &reactor.block_on(bad_blocks_text(&gateway, &sb, &path))?;
                    }
                    Md::Member(sb) => {
                        match form {
                            Form::Text => {
                                let bitmap = reactor.block_on(read_bitmap(&gateway, &sb));
                                let host = homehost.as_deref();
                                let of_it = examine::examine(&sb, bitmap.as_ref(), host);
                                text += &format!("{path}:\n{of_it}");
                            }
                            Form::Export => text += &brief::export(&sb),
                            Form::Json | Form::Brief => {}
                        }
                        all.push((sb, path));
                    }
                    Md::Damaged(error) => fail(Error::new("damaged md superblock", &path, error)),
                    // mdadm prints nothing for them in this case.
                    Md::None if form == Form::Brief => {}
                    Md::None => fail(Error::plain("no md superblock", &path)),
                }
            }
        }
        match form {
            Form::Json => {
                let all = all.iter().map(|(sb, path)| Examined::new(path.clone(), sb));
                output::print_json(&all.collect::<Vec<_>>())?;
            }
            Form::Brief => {
                let arrays = Brief::all(all.iter().map(|(sb, path)| (&**sb, path.as_str())));
                let lines = arrays.iter().map(|array| array.lines(self.verbose > 0));
                output::print(&lines.collect::<String>())?;
            }
            Form::Text | Form::Export => output::print(&text)?,
        }
        Ok(code)
    }
}

/// A device or partition, and its md superblock.
struct Place {
    path: String,
    gateway: Gateway,
    md: Md,
}

/// The contents of a device.
struct Found {
    /// A description of the MBR, if the device has partitions.
    table: String,
    /// The device; or its partitions with md superblocks, if it has any.
    places: Vec<Place>,
}

async fn look(path: String, gateway: Gateway) -> Result<Found> {
    let unreadable = |status: Status| Error::new("cannot read", &path, status);
    let Contents { md, foreign, .. } = probe(&gateway).await.map_err(unreadable)?;
    let mut found = Found { table: String::new(), places: Vec::new() };
    if matches!(md, Md::None)
        && let partitions::Found::Table(table) =
            partitions::read(&gateway, &foreign).await.map_err(unreadable)?
    {
        let sector = read(&gateway, Sector::ZERO, 512).await.map_err(unreadable)?;
        found.table = format!("{path}:\n{}", mbr_text(&sector));
        for entry in table.entries {
            let (path, gateway) = entry.open(&path, &gateway);
            let contents = probe(&gateway).await;
            let md = contents.map_err(|status| Error::new("cannot read", &path, status))?.md;
            if !matches!(md, Md::None) {
                found.places.push(Place { path, gateway, md });
            }
        }
    }
    if found.places.is_empty() {
        found.places.push(Place { path, gateway, md });
    }
    Ok(found)
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

/// A description of the bitmap (`mdadm --examine-bitmap`), or why there is none.
async fn bitmap_text(gateway: &Gateway, sb: &Superblock) -> std::result::Result<String, String> {
    let start = sb.bitmap_start().ok_or("the array has none")?;
    let unreadable = |status: Status| status.to_string();
    let first = read(gateway, start, bitmap_super::SIZE).await.map_err(unreadable)?;
    let bitmap = BitmapSuper::parse(&first).map_err(|error| error.to_string())?;
    let marked = marked(gateway, start, &bitmap).await.map_err(unreadable)?;
    Ok(bitmap.describe(sb.version, Some(marked)).to_string())
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

/// A description of the bad blocks (`mdadm --examine-badblocks`).
async fn bad_blocks_text(gateway: &Gateway, sb: &Superblock, path: &str) -> Result<String> {
    let (Some(place), Some(start)) = (sb.bad_block_log, sb.bad_block_log_start()) else {
        return Ok(format!("No bad-blocks list configured on {path}\n"));
    };
    if !sb.features.contains(Features::BAD_BLOCKS) {
        return Ok(format!("Bad-blocks list is empty in {path}\n"));
    }
    let log = read(gateway, start, place.len.bytes() as usize).await;
    let log = log.map_err(|status| Error::new("cannot read the bad block log", path, status))?;
    let ranges = bad_block_log::parse(&log, place.shift)
        .map_err(|error| Error::new("damaged bad block log", path, error))?;
    let line = |range: BadRange| format!("{:>20} for {} sectors\n", range.start, range.len);
    let lines: String = ranges.into_iter().map(line).collect();
    Ok(format!("Bad-blocks on {path}:\n{lines}"))
}
