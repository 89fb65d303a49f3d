//! `ashlar md detail`: an array, as mdadm --detail prints it.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_host::client::Client;
use ashlar_host::disks::{self, Access};
use ashlar_host::error::{Error, Result};
use ashlar_md::AssembleError;
use ashlar_stack::assemble::{NotAMember, Options, Probed, assemble, probe_all};
use ashlar_stack::detail::{Detail, INACTIVE};
use ashlar_stack::signature::{Signature, Usage};
use clap::Args;

use super::ArrayName;
use crate::commands::Daemon;
use crate::output;

/// Print the details of arrays, as mdadm --detail does
///
/// With a name (md0, /dev/md0, /dev/md/NAME), asks the running daemon; with devices, describes the
/// arrays by their superblocks, and starts or writes nothing.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage. With --test they are mdadm's: 0 the arrays work normally, 1
at least one member has failed or is missing, 2 too many for the array to work, 4 the state is
unknown.

Examples:
  ashlar md detail md0
  ashlar md detail --test md0 >/dev/null || echo look after it
  ashlar md detail disk*.img
  ashlar md detail --scan >>mdadm.conf
  ashlar md detail --export md0")]
pub(crate) struct DetailCommand {
    /// A running array's name, or the members of arrays or disks with partitions that are
    #[arg(required_unless_present = "scan", value_name = "NAME|DEVICE")]
    what: Vec<PathBuf>,

    /// Print a line for each array; with -v with its level and devices
    #[arg(short, long, conflicts_with = "json")]
    brief: bool,

    /// Print all arrays of the running daemon if none are given, as with --brief, or with -vv in
    /// full
    #[arg(short, long, conflicts_with = "json")]
    scan: bool,

    /// Print variables for scripts
    #[arg(short = 'Y', long, conflicts_with = "json")]
    export: bool,

    /// Print more with --brief and --scan
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Report the state of the arrays in the exit code
    #[arg(short, long)]
    test: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    daemon: Daemon,
}

impl DetailCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let unknown = |error: Error| if self.test { error.code(UNKNOWN) } else { error };
        let (details, unusable) = self.details().map_err(unknown)?;
        let text: Vec<String> = details.iter().map(|detail| self.text(detail)).collect();
        let printed =
            if self.json { output::print_json(&details) } else { output::print(&text.concat()) };
        printed.map_err(unknown)?;
        let mut code = details.iter().map(health).max().unwrap_or(0);
        for error in unusable {
            output::report(&error);
            code = UNUSABLE;
        }
        Ok(if self.test { ExitCode::from(code) } else { ExitCode::SUCCESS })
    }

    fn text(&self, detail: &Detail) -> String {
        if self.brief || self.scan && self.verbose < 2 {
            detail.brief(self.verbose > 0)
        } else if self.export {
            detail.export()
        } else {
            detail.to_string()
        }
    }

    /// All arrays of the daemon, by their user-visible names.
    fn scanned(&self) -> Result<Vec<Detail>> {
        let mut client = self.daemon.connect()?;
        let mut all = arrays(&mut client)?;
        for detail in &mut all {
            if let Some(alias) = &detail.alias {
                detail.device.clone_from(alias);
            }
        }
        Ok(all)
    }

    /// The arrays, and why others cannot be used; without --test the latter is an error.
    fn details(&self) -> Result<(Vec<Detail>, Vec<Error>)> {
        if self.what.is_empty() {
            return Ok((self.scanned()?, Vec::new()));
        }
        if let Some(name) = running_name(&self.what) {
            let mut detail = self.daemon.connect()?.detail(name.as_str())?;
            if self.brief || self.scan {
                // The name that the user gave.
                detail.device = format!("/dev/{}", name.as_str());
            }
            return Ok((vec![detail], Vec::new()));
        }
        let (details, mut failed) = offline(&self.what)?;
        let fatal = failed.iter().position(|failed| !self.test || !failed.lacks_members);
        match fatal {
            Some(index) => Err(failed.swap_remove(index).error),
            None => Ok((details, failed.into_iter().map(|failed| failed.error).collect())),
        }
    }
}

/// An array cannot be used.
const UNUSABLE: u8 = 2;
/// The state could not be determined.
const UNKNOWN: u8 = 4;

/// The state of an array, as the exit code of `mdadm --detail --test`.
fn health(detail: &Detail) -> u8 {
    let complete = detail.active_devices == detail.raid_devices;
    if detail.state == INACTIVE { UNUSABLE } else { u8::from(!complete) }
}

/// All arrays of a daemon, including those that wait for members.
pub(super) fn arrays(client: &mut Client) -> Result<Vec<Detail>> {
    let volumes = client.status()?.volumes;
    // The level of other volumes is their kind: disk, part, lvm, zvol.
    let arrays = volumes.iter().filter(|volume| volume.level.starts_with("raid"));
    arrays.map(|volume| client.detail(&volume.name)).collect()
}

/// The array name, if the argument is one and not a file.
fn running_name(what: &[PathBuf]) -> Option<ArrayName> {
    let [one] = what else { return None };
    ArrayName::of_running(one.to_str()?)
}

/// An array that cannot be assembled.
struct Failed {
    /// Whether members are missing.
    lacks_members: bool,
    error: Error,
}

fn is_partitioned(disk: &Probed) -> bool {
    let is_table = |found: &Signature| found.usage == Usage::PartitionTable;
    disk.contents.as_ref().is_ok_and(|contents| contents.foreign.iter().any(is_table))
}

/// Reports the arrays on `devices` and their partitions, by assembling them read-only.
fn offline(devices: &[PathBuf]) -> Result<(Vec<Detail>, Vec<Failed>)> {
    let opened = disks::open_all(devices, Access::Look)?;
    let reactor = disks::reactor()?;
    reactor.block_on(async {
        let probed = probe_all(opened).await;
        let (mut whole, mut unused) = (true, Vec::new());
        for disk in &probed {
            match disk.candidate() {
                Ok(_) => {}
                Err(NotAMember::Foreign(_)) if is_partitioned(disk) => whole = false,
                Err(why @ NotAMember::Damaged(_)) => {
                    unused.push(Error::plain(disk.disk.path.display(), why));
                }
                Err(why) => return Err(Error::plain(disk.disk.path.display(), why)),
            }
        }
        let md = ashlar_md::Options { run: true, read_only: true };
        let options = Options { md, whole, ..Options::default() };
        let stack = assemble(&probed, options, &disks::runtime()).await;
        if stack.arrays.running().is_empty() && stack.failures.is_empty() {
            let first = probed.iter().find_map(|disk| Some((disk, disk.candidate().err()?)));
            let Some((disk, why)) = first else { return Ok((Vec::new(), Vec::new())) };
            return Err(Error::plain(disk.disk.path.display(), why));
        }
        for error in unused {
            output::report(&error);
        }
        let failed = stack.failures.iter().map(|failure| {
            let lacks_members = matches!(failure.error, AssembleError::NotEnough { .. });
            Failed { lacks_members, error: Error::new("cannot tell", failure, &failure.error) }
        });
        Ok((stack.arrays.running().iter().map(Detail::of).collect(), failed.collect()))
    })
}
