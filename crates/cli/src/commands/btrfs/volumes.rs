//! The devices of a file system, among the options.

use std::path::PathBuf;

use ashlar_commands::btrfs::{OpenFileSystem, Selection};
use ashlar_daemon::error::Result;
use ashlar_disks::Access;
use ashlar_disks::sandbox::Sandbox;
use uuid::Uuid;

/// Which devices, and how they are opened.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct FileSystemArgs {
    /// Image files or block devices: those of the file system, or those of the arrays, partitions
    /// and volume groups below it
    #[arg(required = true, value_name = "DEVICE")]
    pub(crate) devices: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) how: OpenArgs,
}

/// How devices are opened, and which of them.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct OpenArgs {
    /// Open the file system although devices are missing
    #[arg(long)]
    pub(crate) degraded: bool,

    /// Also use devices that missed transactions: they may hold old data that checksums do not
    /// reveal
    #[arg(long)]
    pub(crate) stale: bool,

    /// The UUID of the file system, if the devices have several
    #[arg(long, value_name = "UUID", value_parser = ashlar_md::ondisk::words::uuid)]
    pub(crate) fsid: Option<Uuid>,

    /// Use only this array, partition or logical volume, as `vg/lv`, `md/NAME`; may be repeated.
    /// Chooses between a volume and its snapshot, which have the same file system
    #[arg(long, value_name = "NAME")]
    pub(crate) on: Vec<String>,
}

impl FileSystemArgs {
    /// Opens the file system in `sandbox`.
    ///
    /// # Errors
    /// As [`Selection::open`].
    pub(crate) async fn open(&self, access: Access, sandbox: Sandbox) -> Result<OpenFileSystem> {
        let OpenArgs { degraded, stale, fsid, on } = self.how.clone();
        let devices = self.devices.clone();
        Selection { devices, degraded, stale, fsid, on }.open(access, sandbox).await
    }
}
