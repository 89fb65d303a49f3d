//! `ashlar zpool add`, `attach`, `replace`, `detach`, `offline`, `online` and `clear`.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::pools::{ImportMode, NewDisks, PoolLayout, Session};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::{self as disks, Access};
use ashlar_view::zfs_text::scan_status;
use ashlar_zfs::protocol::{Command, LeafChange, ScanStatus};
use clap::Args;

use super::place::PoolArgs;
use super::scrub::Progress;
use crate::output;

/// The name of a device as the pool knows it: the full path, if it is a file here.
fn leaf(name: &str) -> String {
    let path = std::fs::canonicalize(name).ok();
    path.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or_else(|| name.to_owned())
}

/// Opens the new disks of a pool whose present disks are given.
fn open(place: &PoolArgs, pool: &str, layout: PoolLayout, force: bool) -> Result<NewDisks> {
    if place.devices().is_empty() {
        let error = Error::usage("a pool that a daemon serves is given no disks");
        return Err(error.hint(format_args!(
            "type ashlar zpool export {pool}, and name the pool's present disks with --devices"
        )));
    }
    disks::reactor()?.block_on(NewDisks::open(layout, Access::Write, force))
}

/// Carries out a command that starts a resilver. Without a daemon, waits for its end: it would be interrupted.
fn resilver(session: &mut Session, pool: &str, command: Command) -> Result<ExitCode> {
    let before = session.status(pool)?.scan;
    session.run(pool, command)?;
    if matches!(session, Session::Daemon(_)) {
        return Ok(ExitCode::SUCCESS);
    }
    let progress = Progress::new(pool);
    let scan = session.await_resilver(pool, before.as_ref(), |scan| progress.show(scan))?;
    progress.end();
    let Some(scan) = scan else { return Ok(ExitCode::SUCCESS) };
    output::tell(&format!("{pool}: {}\n", scan_status(Some(&scan))))?;
    let ScanStatus { errors, .. } = scan;
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Add disks, mirrors or raidz groups to a pool
///
/// The pool grows, and cannot shrink again. The pool's present disks are named with --devices.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 added, 1 failed, 2 wrong usage.

Examples:
  ashlar zpool add -d a.img,b.img tank mirror c.img d.img
  ashlar zpool add -d a.img,b.img tank log e.img")]
pub(crate) struct Add {
    /// Also disks with known contents, and vdevs of another form or block size than the pool's
    #[arg(short, long)]
    force: bool,

    /// The pool
    pool: String,

    /// Disks, and words such as mirror before them
    ///
    /// The words mirror, raidz, raidz2, raidz3 and log apply to the disks behind them
    #[arg(value_name = "VDEV", required = true)]
    vdevs: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl Add {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let layout = PoolLayout::parse_more(&self.vdevs)?;
        let disks = open(&self.place, &self.pool, layout, self.force)?;
        self.place.change(&self.pool, disks.add())
    }
}

/// A disk of a pool, and a new one.
#[derive(Args, Debug)]
struct NewDisk {
    /// Also a new disk with known contents
    #[arg(short, long)]
    force: bool,

    /// The pool
    pool: String,

    /// The disk of the pool; one that is replaced may be missing
    device: String,

    /// The new disk
    new_device: PathBuf,

    #[command(flatten)]
    place: PoolArgs,
}

impl NewDisk {
    /// Attaches the new disk; with `replace` in the place of the old one.
    fn attach(&self, replace: bool) -> Result<ExitCode> {
        let layout = PoolLayout::single(self.new_device.clone());
        let disks = open(&self.place, &self.pool, layout, self.force)?;
        let command = disks.attach(leaf(&self.device), replace)?;
        // The new disk is locked meanwhile.
        self.place.with(Some(&self.pool), ImportMode::WRITE, |session| {
            resilver(session, &self.pool, command)
        })
    }
}

/// Attach a disk to a disk of a pool, as its mirror
///
/// The pool's present disks are named with --devices. Waits for the end of the resilver.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 attached, 1 failed, 2 wrong usage.

Examples:
  ashlar zpool attach -d a.img tank a.img b.img")]
pub(crate) struct Attach {
    #[command(flatten)]
    disk: NewDisk,
}

impl Attach {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.disk.attach(false)
    }
}

/// Replace a disk of a pool
///
/// The pool's present disks are named with --devices. Waits for the end of the resilver, after which the old disk is
/// detached.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 replaced, 1 failed, 2 wrong usage.

Examples:
  ashlar zpool replace -d a.img,b.img tank b.img c.img")]
pub(crate) struct Replace {
    #[command(flatten)]
    disk: NewDisk,
}

impl Replace {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.disk.attach(true)
    }
}

/// Detach a disk from its mirror
///
/// Its labels say then that it is free.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 detached, 1 failed, 2 wrong usage.

Examples:
  ashlar zpool detach tank b.img
  ashlar zpool detach -d a.img,b.img tank b.img")]
pub(crate) struct Detach {
    /// The pool
    pool: String,

    /// The disk
    device: String,

    #[command(flatten)]
    place: PoolArgs,
}

impl Detach {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let leaf = leaf(&self.device);
        self.place.change(&self.pool, Command::ChangeLeaf { leaf, change: LeafChange::Detach })
    }
}

/// Stop the use of disks of a pool, until they are brought online
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 offline, 1 failed, 2 wrong usage.

Examples:
  ashlar zpool offline tank b.img")]
pub(crate) struct Offline {
    /// The pool
    pool: String,

    /// The disks
    #[arg(value_name = "DEVICE", required = true)]
    named: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl Offline {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.place.with(Some(&self.pool), ImportMode::WRITE, |session| {
            for device in &self.named {
                let (leaf, change) = (leaf(device), LeafChange::Offline);
                session.run(&self.pool, Command::ChangeLeaf { leaf, change })?;
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Use disks of a pool again, and bring them up to date
///
/// Without a daemon, waits for the end of the resilver.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 online, 1 failed, 2 wrong usage.

Examples:
  ashlar zpool online tank b.img
  ashlar zpool online -e -d a.img,b.img tank a.img b.img")]
pub(crate) struct Online {
    /// Also use space that the disks have gained
    #[arg(short)]
    expand: bool,

    /// The pool
    pool: String,

    /// The disks
    #[arg(value_name = "DEVICE", required = true)]
    named: Vec<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl Online {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.place.with(Some(&self.pool), ImportMode::WRITE, |session| {
            let change = LeafChange::Online { expand: self.expand };
            let mut code = ExitCode::SUCCESS;
            for device in &self.named {
                let online = Command::ChangeLeaf { leaf: leaf(device), change };
                let done = resilver(session, &self.pool, online)?;
                if done != ExitCode::SUCCESS {
                    code = done;
                }
            }
            Ok(code)
        })
    }
}

/// Set the error counters of a pool's devices to 0
///
/// A device that failed is opened again.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar zpool clear tank
  ashlar zpool clear tank b.img")]
pub(crate) struct Clear {
    /// The pool
    pool: String,

    /// One of its disks [default: all]
    device: Option<String>,

    #[command(flatten)]
    place: PoolArgs,
}

impl Clear {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let leaf = self.device.as_deref().map(leaf);
        self.place.change(&self.pool, Command::ClearErrors { leaf })
    }
}
