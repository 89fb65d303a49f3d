//! `ashlar btrfs`: file systems that are not mounted.

mod cat;
mod check;
mod copying;
mod device;
mod filesystem;
mod get;
mod inspect;
mod ls;
mod paths;
mod rescue;
mod resolve;
mod restore;
pub(crate) mod scrub;
mod subvolume;
pub(crate) mod volumes;

use std::process::ExitCode;
use std::sync::Arc;

use ashlar_btrfs::files::Files;
use ashlar_btrfs::inspect::{InspectError, Sink, SizeForm};
use ashlar_btrfs::ondisk::key::objectid;
use ashlar_btrfs::volume::FileSystem;
use ashlar_daemon::error::{Error, Result};
use ashlar_disks::sandbox::Sandbox;
use ashlar_disks::{self as disks, Access};
use ashlar_files::Tree;
use clap::Subcommand;

use self::volumes::FileSystemArgs;
use crate::commands::verbs::verbs;

verbs! {
    /// Scrub, repair and inspect unmounted btrfs file systems
    ///
    /// DEVICEs are the disks or image files of one file system, or those of the arrays, partitions and
    /// volume groups below it, which are assembled first. Only scrub and rescue write to them.
    #[derive(Subcommand, Debug)]
    #[command(infer_subcommands = true)]
    #[command(after_help = "\
Exit codes: 0 done, 1 failed or something is damaged, 2 wrong usage.

Examples:
  ashlar btrfs scrub start disk*.img
  ashlar btrfs check disk*.img
  ashlar btrfs ls -l / disk*.img
  ashlar btrfs get /home rescued disk*.img
  ashlar btrfs inspect usage disk*.img")]
    pub(crate) enum Btrfs {
        #[command(subcommand)]
        Scrub(scrub::ScrubCommand),
        #[command(subcommand, visible_alias = "inspect-internal")]
        Inspect(inspect::Inspect),
        Check(check::Check),
        #[command(subcommand)]
        Rescue(rescue::Rescue),
        Ls(ls::Ls),
        Cat(cat::Cat),
        Get(get::Get),
        Restore(Box<restore::Restore>),
        #[command(subcommand, visible_alias = "fi")]
        Filesystem(filesystem::Filesystem),
        #[command(subcommand, visible_alias = "su")]
        Subvolume(subvolume::SubvolumeCommand),
        #[command(subcommand, visible_alias = "dev")]
        Device(device::Device),
    }
}

/// Opens the file system for reading, and calls `work` with it, in a sandbox without other files.
fn with<T>(
    chosen: &FileSystemArgs,
    work: impl AsyncFnOnce(&Arc<FileSystem>) -> Result<T>,
) -> Result<T> {
    with_in(Sandbox::of(&chosen.devices), chosen, work)
}

/// Opens the file system for reading, and calls `work` with it, in `sandbox`.
fn with_in<T>(
    sandbox: Sandbox,
    chosen: &FileSystemArgs,
    work: impl AsyncFnOnce(&Arc<FileSystem>) -> Result<T>,
) -> Result<T> {
    disks::reactor()?.block_on(async {
        let opened = chosen.open(Access::Read, sandbox).await?;
        let result = work(&opened.fs).await;
        let closed = opened.close().await;
        let result = result?;
        closed.map(|()| result)
    })
}

/// Opens the files of a subvolume, and calls `work` with them, in `sandbox`. What `work` does is the same for every format.
fn with_files<T>(
    sandbox: Sandbox,
    chosen: &FileSystemArgs,
    top: SubvolumeArgs,
    work: impl AsyncFnOnce(&dyn Tree) -> Result<T>,
) -> Result<T> {
    with_in(sandbox, chosen, async |fs| work(&top.files(fs).await?).await)
}

/// How sizes are printed.
#[derive(clap::Args, Clone, Copy, Debug)]
struct SizeArgs {
    /// Print sizes in bytes
    #[arg(short = 'b', long)]
    raw: bool,

    /// Print sizes with binary units, as is done anyway
    #[arg(short = 'h', long, conflicts_with = "raw")]
    human_readable: bool,

    // For btrfs-progs, -h is not help.
    /// Print help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    help: Option<bool>,
}

impl SizeArgs {
    const fn form(self) -> SizeForm {
        if self.raw { SizeForm::Bytes } else { SizeForm::Units }
    }
}

/// A file system about which sizes are printed.
#[derive(clap::Args, Debug)]
struct SizedArgs {
    #[command(flatten)]
    chosen: FileSystemArgs,

    #[command(flatten)]
    sizes: SizeArgs,
}

impl SizedArgs {
    /// Prints what `print` writes about the file system.
    fn printed(
        &self,
        print: impl AsyncFnOnce(
            &Arc<FileSystem>,
            SizeForm,
            Sink<'_>,
        ) -> std::result::Result<(), InspectError>,
    ) -> Result<ExitCode> {
        let form = self.sizes.form();
        inspect::printed(&self.chosen, async |fs, out| print(fs, form, out).await)
    }
}

/// Which subvolume a path begins in.
#[derive(clap::Args, Clone, Copy, Debug)]
struct SubvolumeArgs {
    /// The subvolume in whose root directory paths begin; 5 is the top one, which contains all
    /// others
    #[arg(long, value_name = "ID", default_value_t = objectid::FS_TREE)]
    subvolid: u64,
}

impl SubvolumeArgs {
    /// Its files.
    async fn files(self, fs: &Arc<FileSystem>) -> Result<Files> {
        let files = Files::open(fs, self.subvolid).await;
        files.map_err(|why| Error::plain("cannot look at the files", why))
    }
}
