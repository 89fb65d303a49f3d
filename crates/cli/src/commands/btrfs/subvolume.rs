//! `ashlar btrfs subvolume`: subvolumes and snapshots.

use std::process::ExitCode;

use ashlar_btrfs::inspect::{SubvolumeKey, SubvolumeList};
use ashlar_host::error::{Error, Result};
use clap::{Args, Subcommand};

use super::volumes::FileSystemArgs;
use super::with;
use crate::output;

/// Look at subvolumes and snapshots
#[derive(Subcommand, Debug)]
pub(crate) enum SubvolumeCommand {
    List(List),
}

impl SubvolumeCommand {
    pub(super) fn run(self) -> Result<ExitCode> {
        match self {
            Self::List(command) => command.run(),
        }
    }
}

/// List subvolumes and snapshots, as btrfs subvolume list does
///
/// Paths are those from the root directory of the first subvolume on, which is not listed. Times are in UTC.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar btrfs subvolume list disk*.img
  ashlar btrfs subvolume list -s -u -q disk*.img")]
pub(crate) struct List {
    #[command(flatten)]
    chosen: FileSystemArgs,

    /// Mark those that are not directly in the first subvolume with <FS_TREE>
    #[arg(short)]
    all: bool,

    /// List only those that are directly in the first subvolume
    #[arg(short = 'o')]
    below: bool,

    /// Print the number of the subvolume that it is in
    #[arg(short)]
    parent: bool,

    /// Print the generation that made it
    #[arg(short = 'c')]
    made_in: bool,

    /// Print the generation; it is printed in any case
    #[arg(short)]
    generation: bool,

    /// Print the UUID
    #[arg(short)]
    uuid: bool,

    /// Print the UUID of the subvolume that it is a snapshot of
    #[arg(short = 'q')]
    parent_uuid: bool,

    /// In place of the option of all commands, whose -q has another meaning here
    #[arg(long = "quiet", id = "quiet", hide = true)]
    _quiet: bool,

    /// Print the UUID of the subvolume that it was received as
    #[arg(short = 'R')]
    received_uuid: bool,

    /// List only snapshots, with the time and the generation of each
    #[arg(short)]
    snapshots: bool,

    /// List only those that cannot be written
    #[arg(short)]
    readonly: bool,

    /// Print a table
    #[arg(short)]
    table: bool,

    /// In the order of these, each with a - in front for the reverse
    #[arg(
        long,
        value_name = "gen,ogen,rootid,path",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    sort: Vec<SubvolumeKey>,
}

impl List {
    fn run(self) -> Result<ExitCode> {
        let list = SubvolumeList {
            mark_nested: self.all,
            only_top: self.below,
            only_snapshots: self.snapshots,
            only_readonly: self.readonly,
            parent: self.parent,
            made_in: self.made_in,
            uuid: self.uuid,
            parent_uuid: self.parent_uuid,
            received_uuid: self.received_uuid,
        };
        with(&self.chosen, async |fs| {
            let lines = list.read(fs).await;
            let mut lines = lines.map_err(|why| Error::plain("cannot list the subvolumes", why))?;
            SubvolumeKey::sort(&self.sort, &mut lines);
            output::print(&if self.table { list.table(&lines) } else { list.text(&lines) })?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
