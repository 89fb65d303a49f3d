//! The command line: global options and the subcommands.

use std::process::ExitCode;

use ashlar_daemon::error::{Error, Result};
use ashlar_disks::MapFile;
use clap::{CommandFactory, Parser, Subcommand};

use crate::commands;
use crate::help::GLOBAL;

/// The Linux block-storage stack in user space.
///
/// Assembles md arrays (linear, RAID 0, 1, 4, 5, 6 and 10) from disks or disk images, in the kernel's own formats, and
/// serves them as files and over NBD, with no kernel module and no root.
#[derive(Parser, Debug)]
#[command(
    name = "ashlar",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong usage.

Environment: ASHLAR_LOG filters the log (error, warn, info, debug, trace, or per module as in
ashlar_md=debug). ASHLAR_IO=threads has threads do I/O, without io_uring.

Examples:
  ashlar scan disk*.img
  ashlar md create --level=10 --raid-devices=4 disk*.img
  ashlar serve disk*.img --mount /mnt/volumes --nbd unix:/run/ashlar.nbd"
)]
pub(crate) struct Cli {
    /// Log more: debug with -v, trace with -vv
    #[arg(short, long, action = clap::ArgAction::Count, global = true, help_heading = GLOBAL, display_order = 900)]
    pub(crate) verbose: u8,

    /// Print only errors and what was asked for: no progress, no note of what was done, no ready
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = GLOBAL, display_order = 901)]
    pub(crate) quiet: bool,

    /// Do not enter the sandbox in which the contents of disks are looked at
    #[arg(long, global = true, help_heading = GLOBAL, hide_short_help = true, display_order = 902)]
    pub(crate) no_sandbox: bool,

    /// A map of GNU ddrescue: sectors of the disk that it has not read fail to be read from its image, so that mirrors, parity and checksums
    /// make up for it (may be repeated; FILE alone if there is one disk) [default: IMAGE.map, or disk.map beside disk.img]
    #[arg(long, value_name = "[DISK=]FILE", global = true, help_heading = GLOBAL, hide_short_help = true, display_order = 903)]
    pub(crate) map: Vec<MapFile>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Scan(commands::scan::Scan),
    Serve(Box<commands::serve::Serve>),
    #[command(subcommand)]
    Md(commands::md::Md),
    #[command(subcommand)]
    Lvm(commands::lvm::Lvm),
    #[command(subcommand)]
    Btrfs(commands::btrfs::Btrfs),
    #[command(subcommand)]
    Zpool(commands::zpool::Zpool),
    #[command(subcommand, visible_alias = "zfs")]
    Zvol(commands::zvol::Zvol),
    Status(commands::status::Status),
    #[cfg(feature = "top")]
    Top(commands::top::Top),
    Jobs(commands::jobs::Jobs),
    Get(commands::get::Get),
    Set(commands::set::Set),
    Trace(commands::trace::Trace),
    Stop(commands::stop::Stop),
    #[command(hide = true)]
    Completions(commands::completions::Completions),
    #[command(hide = true)]
    Man(commands::man::Man),
    /// Have a ZFS pool, for the process that started this one
    #[command(hide = true)]
    ZfsWorker {
        /// Enter a sandbox before the first command
        #[arg(long)]
        confined: bool,
    },
    #[command(hide = true)]
    CleanupHelper(commands::cleanup_helper::Keep),
}

impl Command {
    /// Whether this may become a daemon, which logs its activity.
    pub(crate) fn is_daemon(&self) -> bool {
        matches!(self, Self::Serve(_)) || matches!(self, Self::Md(md) if md.is_daemon())
    }

    /// Refuses maps of disks for a command whose disks OpenZFS's library opens. (The client of a daemon refuses them by itself.)
    ///
    /// # Errors
    /// It is such a command.
    pub(crate) fn refuse_maps(&self) -> Result<()> {
        if !matches!(self, Self::Zpool(_) | Self::Zvol(_)) {
            return Ok(());
        }
        let why = "OpenZFS's library reads the disks by itself, and verifies their checksums";
        Err(Error::usage(format!("cannot use --map: {why}")))
    }

    /// Runs the command.
    ///
    /// # Errors
    /// The message for the user.
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Scan(command) => command.run(),
            Self::Serve(command) => command.run(),
            Self::Md(command) => command.run(),
            Self::Lvm(command) => command.run(),
            Self::Btrfs(command) => command.run(),
            Self::Zpool(command) => command.run(),
            Self::Zvol(command) => command.run(),
            Self::ZfsWorker { confined } => {
                ashlar_zfs::worker::main(confined.then_some(ashlar_disks::sandbox::enter_as_worker))
            }
            Self::CleanupHelper(command) => command.run(),
            Self::Status(command) => command.run(),
            #[cfg(feature = "top")]
            Self::Top(command) => command.run(),
            Self::Jobs(command) => command.run(),
            Self::Get(command) => command.run(),
            Self::Set(command) => command.run(),
            Self::Trace(command) => command.run(),
            Self::Stop(command) => command.run(),
            Self::Completions(command) => command.run(Cli::command()),
            Self::Man(command) => command.run(Cli::command()),
        }
    }
}
