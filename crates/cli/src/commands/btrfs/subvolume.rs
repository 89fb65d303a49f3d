//! `ashlar btrfs subvolume`: subvolumes and snapshots.

use std::process::ExitCode;
use std::sync::Arc;

use ashlar_btrfs::inspect::{self, SubvolumeKey, SubvolumeList};
use ashlar_btrfs::volume::FileSystem;
use ashlar_daemon::error::{Error, Result};
use clap::{Args, Subcommand};
use uuid::Uuid;

use super::inspect::print_about;
use super::volumes::FileSystemArgs;
use super::{SubvolumeArgs, with};
use crate::commands::verbs::verbs;
use crate::output;

verbs! {
    /// Look at subvolumes and snapshots
    #[derive(Subcommand, Debug)]
    pub(crate) enum SubvolumeCommand {
        List(List),
        Show(Show),
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

    /// Mark those not in the first subvolume with <FS_TREE>
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

    /// Sort by gen, ogen, rootid or path, each with a - in front for the reverse
    #[arg(long, value_name = "KEY,...", value_delimiter = ',', allow_hyphen_values = true)]
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

/// Print a subvolume and its snapshots, as btrfs subvolume show does
///
/// Paths are those from the root directory of the first subvolume on. Times are in UTC; `Send time`
/// is `-` for one that was not received.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Examples:
  ashlar btrfs subvolume show /home disk*.img
  ashlar btrfs subvolume show 256 disk*.img
  ashlar btrfs subvolume show 26833606-ff36-ce4c-b4c5-06c5140e1fd2 disk*.img")]
pub(crate) struct Show {
    /// The subvolume: its path, number or UUID. A path that looks like a number begins with a slash
    #[arg(value_name = "PATH|ID|UUID")]
    subvolume: String,

    #[command(flatten)]
    chosen: FileSystemArgs,

    #[command(flatten)]
    top: SubvolumeArgs,
}

impl Show {
    fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let id = self.id(fs).await?;
            print_about(async |out| inspect::subvolume(fs, id, out).await).await
        })
    }

    /// The number of the subvolume that is asked for.
    async fn id(&self, fs: &Arc<FileSystem>) -> Result<u64> {
        let given = &self.subvolume;
        let hint = "ashlar btrfs subvolume list lists them";
        let failed = |why| Error::plain("cannot list the subvolumes", why);
        let found = if let Ok(id) = given.parse() {
            fs.subvolume(id).await.map_err(failed)?.map(|found| found.id)
        } else if let Ok(uuid) = Uuid::try_parse(given) {
            inspect::subvolume_with(fs, uuid).await.map_err(failed)?
        } else {
            let (id, is_root) = self.top.subvolume_at(fs, given).await?;
            if !is_root {
                let why = format!("it is a file or directory in the subvolume {id}");
                return Err(Error::new("not a subvolume", given, why).hint(hint));
            }
            Some(id)
        };
        let none = || Error::new("no such subvolume", given, "the file system has others");
        found.ok_or_else(|| none().hint(hint))
    }
}
