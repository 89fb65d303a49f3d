//! `ashlar btrfs restore`: copies files out, with the options of btrfs-progs.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_btrfs::inspect;
use ashlar_btrfs::units::Logical;
use ashlar_commands::btrfs::restore::{ExistingFiles, PathFilter, RestoreAdvice, RestoreOptions};
use ashlar_daemon::error::{Error, Result};
use clap::Args;

use super::copying::{self, CopyOutput};
use super::volumes::{FileSystemArgs, OpenArgs};
use super::{SubvolumeArgs, with};
use crate::output;

/// Take files out of a file system that is not mounted, as btrfs restore does
///
/// The options are those of btrfs restore, which extracts files and directories only, with no owners, modes
/// and times, unless options say otherwise. Files that are in PATH already are left as they are without -o. Unlike
/// there all devices are to be named, each block is verified, and a file has its own name only when it is
/// complete. ashlar btrfs get does the same with other defaults.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed or something is lost, 2 wrong usage.

Examples:
  ashlar btrfs restore -mSx disk*.img rescued
  ashlar btrfs restore -D disk.img rescued
  ashlar btrfs restore -i -o disk.img rescued
  ashlar btrfs restore -l disk.img
  ashlar btrfs restore --path-regex '^/(|home(|/.*))$' disk.img rescued")]
pub(crate) struct Restore {
    /// Image files or block devices of the file system, and the directory that files are put into
    #[arg(required = true, value_name = "DEVICE... PATH")]
    words: Vec<PathBuf>,

    #[command(flatten)]
    how: OpenArgs,

    /// Extract snapshots, too
    #[arg(short, long)]
    snapshots: bool,

    /// Set extended attributes; those of security.* and trusted.*, such as capabilities, with -m only
    #[arg(short, long)]
    xattr: bool,

    /// Set owners, modes and times
    #[arg(short, long)]
    metadata: bool,

    /// Extract symbolic links, too
    #[arg(short = 'S', long, visible_alias = "symlink")]
    symlinks: bool,

    /// Continue after errors, and keep files that have lost something, with holes where it was
    #[arg(short, long)]
    ignore_errors: bool,

    /// Replace files that are in PATH
    #[arg(short, long)]
    overwrite: bool,

    /// Name what would be extracted, and write nothing
    #[arg(short = 'D', long)]
    dry_run: bool,

    /// Extract the subvolume of this number
    #[arg(short, long, value_name = "ROOTID", default_value_t = 5)]
    root: u64,

    /// The subvolume whose tree begins at this address
    #[arg(short = 'f', value_name = "BYTENR", conflicts_with = "root")]
    at: Option<u64>,

    /// List the trees that there are, with their addresses
    #[arg(short, long)]
    list_roots: bool,

    /// Extract only what this matches, which begins with a slash and must match each directory on the way, too
    #[arg(long, value_name = "REGEX")]
    path_regex: Option<String>,

    /// Ignore case in --path-regex
    #[arg(short = 'c', requires = "path_regex")]
    ignore_case: bool,

    /// Not supported: the newest good superblock is taken
    #[arg(short = 'u', long = "super", value_name = "MIRROR", hide = true)]
    superblock: Option<u64>,

    /// Not supported
    #[arg(short = 't', value_name = "BYTENR", hide = true)]
    tree: Option<u64>,

    /// Not supported
    #[arg(short = 'd', hide = true)]
    find_directory: bool,
}

impl Restore {
    pub(super) fn run(self) -> Result<ExitCode> {
        self.check()?;
        let mut devices = self.words.clone();
        if self.list_roots {
            return list(&FileSystemArgs { devices, how: self.how });
        }
        let (Some(dest), false) = (devices.pop(), devices.is_empty()) else {
            return Err(Error::usage(
                "a device and the directory that files are put into are needed",
            ));
        };
        if !dest.is_dir() {
            let error = Error::new("cannot restore into", dest.display(), "it is not a directory");
            return Err(error.hint("make it first"));
        }
        let chosen = FileSystemArgs { devices, how: self.how.clone() };
        let top = match self.at {
            Some(at) => SubvolumeArgs { subvolid: subvolume_at(&chosen, at)? },
            None => SubvolumeArgs { subvolid: self.root },
        };
        if self.dry_run {
            output::print("This is a dry-run, no files are going to be restored\n")?;
        }
        let options = RestoreOptions {
            paths: vec![b"/".to_vec()],
            dest,
            existing: if self.overwrite { ExistingFiles::Replace } else { ExistingFiles::Keep },
            keep_partial: self.ignore_errors,
            stop_at_first: !self.ignore_errors,
            dry_run: self.dry_run,
            links: self.symlinks,
            snapshots: self.snapshots,
            modes_and_times: self.metadata,
            owners: self.metadata,
            xattrs: self.xattr,
            only: self.filter()?,
            except: Vec::new(),
            progress: false,
            advice: RestoreAdvice {
                overwrite: "-o",
                go_on: "the same command continues: files that are there are left as they are",
                merge: "-o replaces it",
            },
        };
        let names = (output::is_verbose() || self.dry_run).then_some("Restoring ");
        copying::run(&chosen, top, &options, CopyOutput { progress: None, names, owners: "-m" })
    }

    /// Refuses options of btrfs restore that are not supported.
    fn check(&self) -> Result<()> {
        let (option, why) = if self.superblock.is_some() {
            ("-u", "the newest good superblock of all devices is taken")
        } else if self.tree.is_some() {
            ("-t", "only the tree of roots that the superblock names can be read")
        } else if self.find_directory {
            ("-d", "the root directory of each subvolume is the one that kernels take")
        } else {
            return Ok(());
        };
        Err(Error::usage(format_args!("{option} of btrfs restore is not supported: {why}")))
    }

    fn filter(&self) -> Result<Option<PathFilter>> {
        let Some(text) = &self.path_regex else { return Ok(None) };
        let filter = PathFilter::new(text, self.ignore_case);
        let wrong = |why| Error::usage(format_args!("--path-regex {text}: {why}"));
        filter.map(Some).map_err(wrong)
    }
}

/// Prints the trees of the file system.
fn list(chosen: &FileSystemArgs) -> Result<ExitCode> {
    with(chosen, async |fs| {
        let failed = |why| Error::plain("cannot list the trees", why);
        for (key, root) in fs.roots().await.map_err(failed)? {
            let key = inspect::key(key);
            output::print(&format!(" tree {key} {} level {}\n", root.at.0, root.level))?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The subvolume whose tree root is at an address.
fn subvolume_at(chosen: &FileSystemArgs, at: u64) -> Result<u64> {
    with(chosen, async |fs| {
        let found = fs.subvolume_at(Logical(at)).await;
        let found = found.map_err(|why| Error::plain("cannot list the subvolumes", why))?;
        let text = format_args!("no subvolume's tree begins at {at}");
        let error = Error::failed(text).hint("-l lists the trees; older ones cannot be read");
        found.map(|subvolume| subvolume.id).ok_or(error)
    })
}
