//! `ashlar md detail`: an array, as mdadm --detail prints it.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_stack::arrays::Volume;
use ashlar_stack::assemble::{assemble, probe_all};
use ashlar_stack::detail::Detail;
use clap::Args;

use super::ArrayName;
use crate::commands::Daemon;
use crate::disks::{self, Access};
use crate::error::{Error, Result};
use crate::output;

/// Print the details of arrays, as mdadm --detail does
///
/// With a name (md0, /dev/md0, /dev/md/NAME) the running daemon is asked; with devices the arrays
/// are told from their superblocks, and nothing is started or written.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar md detail md0
  ashlar md detail disk*.img")]
pub(crate) struct DetailCommand {
    /// A running array's name, or the members of arrays
    #[arg(required = true, value_name = "NAME|DEVICE")]
    what: Vec<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    daemon: Daemon,
}

impl DetailCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let details = match running_name(&self.what) {
            Some(name) => vec![self.daemon.connect()?.detail(name.as_str())?],
            None => offline(&self.what)?,
        };
        let text: Vec<String> = details.iter().map(Detail::to_string).collect();
        if self.json {
            output::print_json(&details)?
        } else {
            output::print(&text.concat())?
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The name, if that is what was given and no file is called so.
fn running_name(what: &[PathBuf]) -> Option<ArrayName> {
    let [one] = what else { return None };
    ArrayName::of_running(one.to_str()?)
}

/// Tells of the arrays on `devices` by assembling them for reading only.
fn offline(devices: &[PathBuf]) -> Result<Vec<Detail>> {
    let opened = disks::open_all(devices, Access::Look)?;
    let reactor = disks::reactor()?;
    reactor.block_on(async {
        let probed = probe_all(opened).await;
        for disk in &probed {
            disk.candidate().map_err(|why| Error::plain(disk.disk.path.display(), why))?;
        }
        let options = ashlar_md::Options { run: true, read_only: true };
        let stack = assemble(&probed, &options, None, &disks::runtime()).await;
        if let Some(failure) = stack.failures.first() {
            return Err(Error::new("cannot tell", failure, &failure.error));
        }
        let detail = |volume: &Volume| {
            Detail::new(&volume.view.snapshot(), format!("/dev/{}", volume.name.device()))
        };
        Ok(stack.arrays.running().iter().map(detail).collect())
    })
}
