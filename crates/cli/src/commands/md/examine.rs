//! `ashlar md examine`: the superblocks on devices.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_block::{Gateway, Sectors};
use ashlar_md::ondisk::bitmap_super::{self, BitmapSuper};
use ashlar_md::ondisk::{MdadmUuid, Role, Superblock, examine};
use ashlar_stack::probe::{Md, probe};
use ashlar_stack::scan::layout_name;
use clap::Args;
use serde::Serialize;

use crate::disks::{self, Access};
use crate::error::{Error, FAILURE, Result};
use crate::output;

/// Print the superblocks on devices, as mdadm --examine does
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 all have one, 1 some have none or a damaged one.

Examples:
  ashlar md examine disk*.img
  ashlar md examine --json /dev/sda1")]
pub(crate) struct Examine {
    /// Image files or block devices
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,

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

impl Examine {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let opened = disks::open_all(&self.devices, Access::Look)?;
        let reactor = disks::reactor()?;
        let (mut text, mut all, mut code) = (String::new(), Vec::new(), ExitCode::SUCCESS);
        for disk in opened {
            let path = disk.path.display().to_string();
            let contents = reactor.block_on(probe(&disk.gateway));
            let contents = contents.map_err(|status| Error::new("cannot read", &path, status))?;
            match contents.md {
                Md::Member(sb) => {
                    let bitmap = reactor.block_on(read_bitmap(&disk.gateway, &sb));
                    text += &format!("{path}:\n{}", examine::examine(&sb, bitmap.as_ref()));
                    all.push(Examined::new(path, &sb));
                }
                Md::Damaged(error) => {
                    Error::new("damaged md superblock", &path, error).report();
                    code = ExitCode::from(FAILURE);
                }
                Md::None => {
                    Error::plain("no md superblock", &path).report();
                    code = ExitCode::from(FAILURE);
                }
            }
        }
        if self.json {
            output::print_json(&all)?
        } else {
            output::print(&text)?
        }
        Ok(code)
    }
}

/// The superblock of the bitmap, if there is one and it can be read.
async fn read_bitmap(gateway: &Gateway, sb: &Superblock) -> Option<BitmapSuper> {
    let at = sb.bitmap_start()?;
    let block = gateway.disk().limits().logical_block();
    let from = at.round_down(block);
    let end = (at + Sectors::from_bytes_ceil(bitmap_super::SIZE as u64)).round_up(block);
    let buffer = gateway.read(from, end - from).await.ok()?;
    BitmapSuper::from_bytes(buffer.as_slice().get((at - from).bytes() as usize..)?)
}
