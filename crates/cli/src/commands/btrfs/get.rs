//! `ashlar btrfs get`: copies files and directories out.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::btrfs::restore::{ExistingFiles, PathFilter, RestoreAdvice, RestoreOptions};
use ashlar_daemon::error::Result;
use ashlar_files::Name;
use clap::Args;

use super::SubvolumeArgs;
use super::copying::{self, CopyOutput};
use super::volumes::FileSystemArgs;
use crate::output;
use crate::progress::ProgressArgs;

/// Take a file, or a directory with all that is in it, out of a file system that is not mounted
///
/// DEST must not exist: nothing is overwritten, unless --resume or --overwrite says so. With --also, it is a directory in which each file
/// or directory keeps its name. Each block is verified,
/// and read from another mirror if it is wrong. A file that has lost something is named, and not kept unless
/// --keep-partial says so; the others are. Modes and times are kept; device nodes, pipes and sockets are left
/// out, and hard links become files of their own.
///
/// A file has its own name only when all of it is stored: until then it is called .NAME.ashlar-XXXXXX. After an
/// interruption --resume continues: files that are there with the right size and time are taken for complete.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed or something is lost, 2 wrong usage.

Examples:
  ashlar btrfs get /home rescued disk*.img
  ashlar btrfs get /etc rescued disk*.img --also /home --also /srv --exclude '*.iso' --exclude /home/*/.cache
  ashlar btrfs get --dry-run --no-snapshots / rescued disk*.img
  ashlar btrfs get --resume /home rescued disk*.img
  ashlar btrfs get --keep-partial /var/lib/database rescued disk0.img
  ashlar btrfs get --owners --xattrs / rescued disk*.img")]
pub(crate) struct Get {
    /// The file or directory
    #[arg(value_name = "PATH")]
    path: String,

    /// What it becomes
    #[arg(value_name = "DEST")]
    dest: PathBuf,

    #[command(flatten)]
    chosen: FileSystemArgs,

    #[command(flatten)]
    top: SubvolumeArgs,

    /// Extract this file or directory, too (may be repeated)
    #[arg(long, value_name = "PATH")]
    also: Vec<String>,

    /// Leave out what this pattern matches, with all that is in it (may be repeated): without a slash names, with one paths from
    /// the root directory of the subvolume on. `*` and `?` match no slash, `**` any characters, [a-z] one of these
    #[arg(long, value_name = "GLOB", value_parser = PathFilter::glob)]
    exclude: Vec<PathFilter>,

    /// Leave out snapshots inside the directory; other subvolumes are extracted
    #[arg(long)]
    no_snapshots: bool,

    /// Name the files that would be extracted, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Continue an earlier run: files that are there with the same size and time are not extracted again, those
    /// with others are errors, and temporary files of the earlier run are removed
    #[arg(long)]
    resume: bool,

    /// Replace files that are there; with --resume only those with another size or time
    #[arg(long)]
    overwrite: bool,

    /// Keep files that have lost something, with holes where it was. They do not get their time, so that --resume does
    /// not take them for complete
    #[arg(long)]
    keep_partial: bool,

    /// Set owners and groups too, and with these the bits that change them: for root
    #[arg(long)]
    owners: bool,

    /// Set extended attributes too; those of security.* and trusted.*, such as capabilities, with --owners only
    #[arg(long)]
    xattrs: bool,

    #[command(flatten)]
    shown: ProgressArgs,
}

impl Get {
    pub(super) fn run(self) -> Result<ExitCode> {
        let existing = match (self.resume, self.overwrite) {
            (false, false) => ExistingFiles::Refuse,
            (true, false) => ExistingFiles::Resume,
            (true, true) => ExistingFiles::ResumeAndReplace,
            (false, true) => ExistingFiles::Replace,
        };
        let paths = std::iter::once(&self.path).chain(&self.also);
        let progress = (!output::is_quiet()).then_some(self.shown);
        let options = RestoreOptions {
            paths: paths.map(|path| Name::from_shown(path.as_bytes()).0).collect(),
            dest: self.dest,
            existing,
            keep_partial: self.keep_partial,
            stop_at_first: false,
            dry_run: self.dry_run,
            links: true,
            snapshots: !self.no_snapshots,
            modes_and_times: true,
            owners: self.owners,
            xattrs: self.xattrs,
            only: None,
            except: self.exclude,
            progress: progress.is_some(),
            advice: RestoreAdvice {
                overwrite: "--overwrite",
                go_on: "--resume continues where it was",
                merge: "name something that does not exist; --resume continues an earlier run",
            },
        };
        let names = self.dry_run.then_some("");
        let speech = CopyOutput { progress, names, owners: "--owners" };
        copying::run(&self.chosen, self.top, &options, speech)
    }
}
