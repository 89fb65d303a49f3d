//! `ashlar md add`, `re-add`, `fail`, `remove` and `replace`: changes members of a running array.

use std::process::ExitCode;

use ashlar_client::client::Client;
use ashlar_client::interface::{self, ManageAction, disk_for_daemon};
use ashlar_daemon::error::Result;
use clap::Args;

use super::ArrayName;
use crate::commands::Daemon;
use crate::output;

/// Applies changes one after the other, until one is refused.
pub(super) fn change(
    client: &mut Client,
    changes: impl IntoIterator<Item = interface::Manage>,
    json: bool,
) -> Result<ExitCode> {
    for change in changes {
        for line in client.manage(&change)? {
            if json {
                output::print(&format!("{}\n", serde_json::json!({ "done": line })))?;
            } else {
                output::tell(&format!("{line}\n"))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the flags of new members are to be.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct FlagArgs {
    /// Read from it only if no other member is readable (write-mostly)
    #[arg(short = 'W', long, overrides_with = "readwrite")]
    write_mostly: bool,

    /// Read from it as from the others, even if it was write-mostly before
    #[arg(long, overrides_with = "write_mostly")]
    readwrite: bool,

    /// Fail it at its first error
    #[arg(long, overrides_with = "nofailfast")]
    failfast: bool,

    /// Retry its errors, even if it was failfast before
    #[arg(long, overrides_with = "failfast")]
    nofailfast: bool,
}

impl FlagArgs {
    fn pair(set: bool, clear: bool) -> Option<bool> {
        if set { Some(true) } else { clear.then_some(false) }
    }

    fn on(self, change: interface::Manage) -> interface::Manage {
        interface::Manage {
            write_mostly: Self::pair(self.write_mostly, self.readwrite),
            failfast: Self::pair(self.failfast, self.nofailfast),
            ..change
        }
    }
}

/// The array and the disks of a command.
#[derive(Args, Debug)]
struct MemberArgs {
    /// The array: md0, /dev/md0 or /dev/md/NAME
    array: ArrayName,

    /// Image files or block devices
    #[arg(required = true, value_name = "DISK")]
    disks: Vec<String>,

    /// Print JSON, a line for each change
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    daemon: Daemon,
}

impl MemberArgs {
    fn change(
        &self,
        action: ManageAction,
        with: impl Fn(interface::Manage) -> interface::Manage,
    ) -> Result<ExitCode> {
        let changes = self.disks.iter();
        let changes =
            changes.map(|disk| with(interface::Manage::new(self.array.as_str(), action, disk)));
        change(&mut self.daemon.connect()?, changes, self.json)
    }
}

/// Add disks to a running array
///
/// A former member whose missing writes the bitmap knows returns to its slot. Any other disk
/// becomes a spare, which is rebuilt completely in place of a missing member or one to be replaced.
/// Disks with other known contents are refused without --force.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage.

Examples:
  ashlar md add md0 disk4.img
  ashlar md add /dev/md0 /dev/sdd --write-mostly
  ashlar md wait md0")]
pub(crate) struct Add {
    #[command(flatten)]
    which: MemberArgs,

    #[command(flatten)]
    flags: FlagArgs,

    /// Make it a spare, whatever its former role
    #[arg(long, alias = "add-spare")]
    spare: bool,

    /// Overwrite its contents
    #[arg(short, long)]
    force: bool,
}

impl Add {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (spare, force) = (self.spare.then_some(true), self.force.then_some(true));
        self.which.change(ManageAction::Add, |change| {
            self.flags.on(interface::Manage { spare, force, ..change })
        })
    }
}

/// Re-add former members to a running array, or members that have failed
///
/// They return to their slots and get the missing chunks by the bitmap. If that is impossible, this
/// is refused; `ashlar md add` makes them spares instead.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage.

Examples:
  ashlar md re-add md0 disk1.img")]
pub(crate) struct ReAdd {
    #[command(flatten)]
    which: MemberArgs,

    #[command(flatten)]
    flags: FlagArgs,
}

impl ReAdd {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.which.change(ManageAction::ReAdd, |change| self.flags.on(change))
    }
}

/// Mark members of a running array as failed
///
/// The array continues without them, and a spare takes over if it has one. The last copy of any data cannot fail.
/// Members are named by path or by name under sys/block; `detached` means all whose devices are gone.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage.

Examples:
  ashlar md fail md0 disk1.img
  ashlar md fail md0 detached")]
pub(crate) struct Fail {
    #[command(flatten)]
    which: MemberArgs,
}

impl Fail {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.which.change(ManageAction::Fail, |change| change)
    }
}

/// Remove failed members and spares from a running array
///
/// A working member must be failed first. `failed` means all failed members, `detached` all whose devices are gone.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage.

Examples:
  ashlar md remove md0 disk1.img
  ashlar md remove md0 failed")]
pub(crate) struct Remove {
    #[command(flatten)]
    which: MemberArgs,
}

impl Remove {
    pub(crate) fn run(self) -> Result<ExitCode> {
        self.which.change(ManageAction::Remove, |change| change)
    }
}

/// Replace members of a running array by spares
///
/// A member stays in use until its replacement has all data, and then counts as failed, so that
/// redundancy never decreases. Without a spare, the member is replaced as soon as one is added.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage.

Examples:
  ashlar md add md0 disk4.img
  ashlar md replace md0 disk1.img --with disk4.img
  ashlar md wait md0")]
pub(crate) struct Replace {
    #[command(flatten)]
    which: MemberArgs,

    /// The spares to use, in the order of the disks that they replace
    #[arg(long, value_name = "SPARE")]
    with: Vec<String>,
}

impl Replace {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let spares = self.with.iter().map(|spare| Some(disk_for_daemon(spare)));
        let array = self.which.array.as_str();
        let changes = self.which.disks.iter().zip(spares.chain(std::iter::repeat(None)));
        let changes = changes.map(|(disk, with)| interface::Manage {
            with,
            ..interface::Manage::new(array, ManageAction::Replace, disk)
        });
        change(&mut self.which.daemon.connect()?, changes, self.which.json)
    }
}
