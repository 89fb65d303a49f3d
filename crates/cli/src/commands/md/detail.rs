//! `ashlar md detail`: an array, as mdadm --detail prints it.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::md::{UnusableArray, arrays_on, served_arrays};
use ashlar_daemon::error::{Error, Result};
use ashlar_disks as disks;
use ashlar_disks::sandbox::Sandbox;
use ashlar_view::detail::{Detail, INACTIVE};
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
  ashlar md detail /dev/md0 /dev/md/home
  ashlar md detail --test md0 >/dev/null || echo look after it
  ashlar md detail disk*.img
  ashlar md detail --scan >>mdadm.conf
  ashlar md detail --export md0")]
pub(crate) struct DetailCommand {
    /// Names of running arrays, or the members of arrays or disks with partitions that are
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
        let mut all = served_arrays(&mut client)?;
        for detail in &mut all {
            if let Some(alias) = &detail.alias {
                detail.device.clone_from(alias);
            }
        }
        Ok(all)
    }

    /// The error for a word that may be the name of a file as well as an array's.
    fn neither(&self, error: Error) -> Error {
        match self.what.first().filter(|what| what.to_str().is_some_and(ArrayName::is_plain)) {
            None => error,
            Some(what) => {
                let why = format!("there is no such file, and as an array's name: {error}");
                let said = Error::new("cannot tell", what.display(), why);
                match error.advice() {
                    Some(hint) => said.hint(hint),
                    None => said,
                }
            }
        }
    }

    /// The arrays, and why others cannot be used; without --test the latter is an error.
    fn details(&self) -> Result<(Vec<Detail>, Vec<Error>)> {
        if self.what.is_empty() {
            return Ok((self.scanned()?, Vec::new()));
        }
        if let Some(names) = running_names(&self.what) {
            let found = self.daemon.connect().and_then(|mut client| {
                names.iter().map(|name| client.detail(name.as_str())).collect::<Result<Vec<_>>>()
            });
            let mut details = found.map_err(|error| self.neither(error))?;
            if self.brief || self.scan {
                for (detail, name) in details.iter_mut().zip(&names) {
                    // The name that the user gave.
                    detail.device = format!("/dev/{}", name.as_str());
                }
            }
            return Ok((details, Vec::new()));
        }
        let sandbox = Sandbox::of(&self.what);
        let mut found = disks::reactor()?.block_on(arrays_on(&self.what, sandbox))?;
        for error in found.damaged {
            output::report(&error);
        }
        let is_fatal = |array: &UnusableArray| !self.test || !array.lacks_members;
        match found.unusable.iter().position(is_fatal) {
            Some(index) => Err(found.unusable.swap_remove(index).error),
            None => {
                let unusable = found.unusable.into_iter().map(|array| array.error);
                Ok((found.details, unusable.collect()))
            }
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

/// The arrays' names, if all arguments are such and no files. Of several, each must look like one: md0, /dev/md0 or /dev/md/NAME.
fn running_names(what: &[PathBuf]) -> Option<Vec<ArrayName>> {
    let is_alone = what.len() == 1;
    let name = |one: &PathBuf| {
        let text = one.to_str().filter(|text| is_alone || !ArrayName::is_plain(text))?;
        ArrayName::of_running(text)
    };
    what.iter().map(name).collect()
}
