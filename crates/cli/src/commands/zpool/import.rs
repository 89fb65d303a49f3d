//! `ashlar zpool import`.

use std::process::ExitCode;

use ashlar_commands::pools::{ImportMode, Session, labelled};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::{self as disks, Access};
use ashlar_view::zfs_text::importable_pool;
use ashlar_zfs::ondisk::label::PoolState;
use clap::Args;

use super::place::PoolArgs;
use crate::output;

/// Show the importable pools on disks, or import one temporarily
///
/// Without a pool, only reads labels. With a pool, imports and exports it: its intent log is kept
/// for the next opening of its volumes, and the pool then belongs to this host. To use its volumes,
/// serve its disks: `ashlar serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zpool import -d a.img,b.img
  ashlar zpool import -d /srv/images
  ashlar zpool import -a -d /srv/images
  ashlar zpool import -f -d a.img,b.img tank
  ashlar zpool import -m -d a.img,b.img tank
  ashlar zpool import -o readonly=on -d a.img,b.img tank")]
pub(crate) struct Import {
    /// Even if another host used it last
    #[arg(short, long)]
    force: bool,

    /// Even if log devices are missing: what was only in the log is lost
    #[arg(short)]
    missing_log: bool,

    /// All pools on the disks
    #[arg(short, long)]
    all: bool,

    /// readonly=on: write nothing
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = ["readonly=on", "readonly=off"])]
    option: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Pools, by name or number, and disks [default: show all pools]
    #[arg(value_name = "POOL")]
    names: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl Import {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (place, names) = self.place.with_named(self.names);
        if place.devices().is_empty() {
            let hint = "name them with --devices DISK,...";
            return Err(Error::usage("no disks to look for pools on").hint(hint));
        }
        let read_only = self.option.as_deref() == Some("readonly=on");
        let mode = ImportMode { read_only, force: self.force, missing_log: self.missing_log };
        if self.all {
            if !names.is_empty() {
                return Err(Error::usage("--all takes no names of pools"));
            }
            if place.with(None, mode, Session::pools)?.is_empty() {
                return Err(Error::failed("no pools available to import"));
            }
            return Ok(ExitCode::SUCCESS);
        }
        for name in &names {
            place.with(Some(name), mode, |_| Ok(()))?;
        }
        if !names.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        let disks = disks::reactor()?.block_on(labelled(place.devices(), Access::Look))?;
        let mut pools = disks.pools().pools;
        pools.retain(|pool| pool.state != PoolState::Destroyed);
        if self.json {
            output::print_json(&pools)?;
        } else if pools.is_empty() {
            return Err(Error::failed("no pools available to import"));
        } else {
            output::print(&pools.iter().map(importable_pool).collect::<Vec<_>>().join("\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
