//! `ashlar md examine`: the superblocks on devices.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_host::disks::{self, Access};
use ashlar_host::error::{Error, FAILURE, Result};
use ashlar_host::md::hostname;
use ashlar_md::ondisk::Superblock;
use ashlar_md::ondisk::brief::{self, Brief};
use ashlar_stack::assemble::Disk;
use ashlar_stack::examine::{ExaminedSuperblock, examine};
use ashlar_stack::probe::Md;
use clap::Args;

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
        let homehost = hostname();
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
            let found = match reactor.block_on(examine(path, disk.gateway)) {
                Ok(found) => found,
                Err(_) if self.scan => continue,
                Err(error) => return Err(Error::failed(error)),
            };
            if form == Form::Text && !self.bitmap && !self.badblocks {
                text += &found.table;
            }
            for place in found.places {
                match &place.md {
                    Md::Member(sb) if self.bitmap => {
                        match reactor.block_on(place.bitmap_text(sb)) {
                            Ok(bitmap) => text += &bitmap,
                            Err(why) => fail(Error::new("no bitmap", &place.path, why)),
                        }
                    }
                    Md::Member(sb) if self.badblocks => {
                        let blocks = reactor.block_on(place.bad_blocks_text(sb));
                        text += &blocks.map_err(Error::failed)?;
                    }
                    Md::Member(sb) => {
                        text += &match form {
                            Form::Text => {
                                reactor.block_on(place.superblock_text(sb, homehost.as_deref()))
                            }
                            Form::Export => brief::export(sb),
                            Form::Json | Form::Brief => String::new(),
                        };
                        all.push((sb.clone(), place.path));
                    }
                    Md::Damaged(error) => {
                        fail(Error::new("damaged md superblock", &place.path, error));
                    }
                    // mdadm prints nothing for them in this case.
                    Md::None if form == Form::Brief => {}
                    Md::None => fail(Error::plain("no md superblock", &place.path)),
                }
            }
        }
        match form {
            Form::Json => {
                let all = all.iter().map(|(sb, path)| ExaminedSuperblock::new(path.clone(), sb));
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
