//! `ashlar btrfs inspect inode-resolve` and so on: from numbers to paths, and back.

use std::process::ExitCode;
use std::sync::Arc;

use ashlar_btrfs::backref::{self, FilePart, Owners};
use ashlar_btrfs::error::TreeError;
use ashlar_btrfs::ondisk::key::objectid;
use ashlar_btrfs::units::Logical;
use ashlar_btrfs::volume::FileSystem;
use ashlar_daemon::error::{Error, Result};
use ashlar_files::{Name, Place, Tree as _};
use clap::Args;

use super::volumes::FileSystemArgs;
use super::{SubvolumeArgs, with};
use crate::output;

fn failed(why: TreeError) -> Error {
    Error::plain("cannot read the trees", why)
}

/// Print the paths of an inode, as btrfs inspect-internal inode-resolve does
///
/// Paths begin at the first subvolume's root directory. Control characters, bytes that are not
/// UTF-8 and the backslash appear as \\xNN.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 found, 1 not found or failed, 2 wrong usage.

Examples:
  ashlar btrfs inspect inode-resolve 257 disk*.img
  ashlar btrfs inspect inode-resolve 257 --subvolid 256 disk*.img")]
pub(crate) struct InodeResolve {
    /// The inode number
    #[arg(value_name = "INODE")]
    inode: u64,

    #[command(flatten)]
    chosen: FileSystemArgs,

    #[command(flatten)]
    top: SubvolumeArgs,
}

impl InodeResolve {
    pub(super) fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let names = backref::names_of(fs, self.top.subvolid, self.inode).await;
            let names = names.map_err(failed)?;
            if names.is_empty() {
                let why = format!("the subvolume {} has no name of it", self.top.subvolid);
                let error = Error::new("no such inode", self.inode, why);
                return Err(error.hint("--subvolid chooses another subvolume"));
            }
            let lines: String = names.iter().map(|name| format!("{}\n", name.full())).collect();
            output::print(&lines)?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Print the files at an address, as btrfs inspect-internal logical-resolve does
///
/// The address is in the file system's address space, as in messages of scrubs and of the kernel
/// (`logical`). Paths begin at the first subvolume's root directory. `inspect paths` prints more,
/// also about addresses of trees.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 found, 1 not found or failed, 2 wrong usage.

Examples:
  ashlar btrfs inspect logical-resolve 13631488 disk*.img
  ashlar btrfs inspect logical-resolve -P 13631488 disk*.img")]
pub(crate) struct LogicalResolve {
    /// The address
    #[arg(value_name = "LOGICAL")]
    logical: u64,

    #[command(flatten)]
    chosen: FileSystemArgs,

    /// Print inode, offset and subvolume in place of paths
    #[arg(short = 'P')]
    inodes: bool,
}

impl LogicalResolve {
    pub(super) fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let at = Logical(self.logical);
            let all = backref::owners(fs, at, 1).await.map_err(failed)?;
            let (mut lines, mut is_cut) = (Vec::new(), false);
            for owned in all {
                is_cut |= owned.more;
                let Owners::Data(parts) = owned.owners else { continue };
                for FilePart { root, inode, offset } in parts {
                    if self.inodes {
                        lines.push(format!("inode {inode} offset {offset} root {root}\n"));
                        continue;
                    }
                    let names = backref::names_of(fs, root, inode).await.map_err(failed)?;
                    lines.extend(names.iter().map(|name| format!("{}\n", name.full())));
                }
            }
            if lines.is_empty() {
                let error = Error::new("no file", self.logical, "no file has data there");
                return Err(error.hint("ashlar btrfs inspect paths also finds trees"));
            }
            output::print(&lines.concat())?;
            if is_cut {
                output::note("there may be more files\n");
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Print the path of a subvolume, as btrfs inspect-internal subvolid-resolve does
///
/// The path begins at the first subvolume's root directory, whose own path is empty.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 found, 1 not found or failed, 2 wrong usage.

Examples:
  ashlar btrfs inspect subvolid-resolve 256 disk*.img")]
pub(crate) struct SubvolidResolve {
    /// The number of the subvolume
    #[arg(value_name = "ID")]
    subvolume: u64,

    #[command(flatten)]
    chosen: FileSystemArgs,
}

impl SubvolidResolve {
    pub(super) fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let path = backref::subvolume_path(fs, self.subvolume).await.map_err(failed)?;
            let Some(path) = path else {
                let why = "no subvolume has this number, or it is being removed";
                let error = Error::new("no path", self.subvolume, why);
                return Err(error.hint("ashlar btrfs subvolume list lists them"));
            };
            output::print(&format!("{path}\n"))?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Print the number of the subvolume that a file is in, as btrfs inspect-internal rootid does
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 found, 1 not found or failed, 2 wrong usage.

Examples:
  ashlar btrfs inspect rootid /home disk*.img")]
pub(crate) struct Rootid {
    /// Its path from the root directory on, as ls prints it
    #[arg(value_name = "PATH")]
    path: String,

    #[command(flatten)]
    chosen: FileSystemArgs,

    #[command(flatten)]
    top: SubvolumeArgs,
}

impl Rootid {
    pub(super) fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let id = self.top.subvolume_at(fs, &self.path).await?.0;
            output::print(&format!("{id}\n"))?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

impl SubvolumeArgs {
    /// The number of the subvolume that the file at `path` is in, and whether `path` is its root directory.
    pub(super) async fn subvolume_at(
        self,
        fs: &Arc<FileSystem>,
        path: &str,
    ) -> Result<(u64, bool)> {
        let files = self.files(fs).await?;
        let failed = |why: &dyn std::fmt::Display| Error::new("cannot look at", path, why);
        let place = files.resolve(&Name::from_shown(path.as_bytes()).0).await;
        match place.map_err(|why| failed(&why))? {
            Place::Inode { tree, inode } => Ok((tree, inode == objectid::FIRST_FREE)),
            Place::Empty => Err(failed(&"a subvolume was here when the snapshot was taken")),
        }
    }
}
