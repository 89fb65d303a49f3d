//! Copying files and directories out of a file system, to a mounted one.
//!
//! Each file and link is created completely under a temporary name beside its final name, and is renamed once it is
//! durable ([`store`]). So every file under its final name is complete, whenever the program or the machine stops;
//! leftovers are called `.NAME.ashlar-XXXXXX`.

mod copy;
mod filter;
mod progress;
mod store;

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use ashlar_btrfs::files::{Files, Name};
use ashlar_btrfs::inspect::size;
use ashlar_engine::signal;
use futures_util::future::{Either, select};

use self::copy::Copy;
pub use self::filter::PathFilter;
use self::progress::Meter;
pub use self::progress::{Amount, RestoreProgress};
use super::SIGNALS;
use crate::error::{Error, Result};

/// What to do with existing files at the destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExistingFiles {
    /// The destination must not exist.
    Refuse,
    /// A file of the same size and time is complete; a different one is an error.
    Resume,
    /// A file of the same size and time is complete; a different one is replaced.
    ResumeAndReplace,
    /// Existing files are kept.
    Keep,
    /// Existing files and links are replaced.
    Replace,
}

/// What to copy, and how.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// The source path, relative to the subvolume's root directory.
    pub path: Vec<u8>,
    /// The destination.
    pub dest: PathBuf,
    /// What to do with existing files.
    pub existing: ExistingFiles,
    /// Keep incomplete files.
    pub keep_partial: bool,
    /// Stop at the first failure.
    pub stop_at_first: bool,
    /// Write nothing.
    pub dry_run: bool,
    /// Copy symbolic links, too.
    pub links: bool,
    /// Copy snapshots inside the subvolume, too; other subvolumes are always copied.
    pub snapshots: bool,
    /// Set modes and times.
    pub modes_and_times: bool,
    /// Set owners, and the attributes that give rights.
    pub owners: bool,
    /// Set extended attributes.
    pub xattrs: bool,
    /// Copy only the paths that it accepts.
    pub only: Option<PathFilter>,
    /// Tell the observer of the progress.
    pub progress: bool,
    /// The advice in messages.
    pub advice: RestoreAdvice,
}

/// The advice of a command, for messages.
#[derive(Clone, Copy, Debug)]
pub struct RestoreAdvice {
    /// The option that replaces existing files.
    pub overwrite: &'static str,
    /// What to do after an interruption.
    pub go_on: &'static str,
    /// What to do if the destination exists.
    pub merge: &'static str,
}

/// The result of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RestoreCounts {
    /// Files that were copied.
    pub files: u64,
    /// Directories that were made, or used.
    pub directories: u64,
    /// Symbolic links that were copied.
    pub links: u64,
    /// Bytes read of files.
    pub bytes: u64,
    /// Files and links that already existed.
    pub existing: u64,
    /// Device nodes, pipes and sockets, which are left out.
    pub special: u64,
    /// Attributes that give rights, left out because owners are not set.
    pub privileged: u64,
    /// Failures, each of which the observer was told.
    pub failures: u64,
}

/// `2 files (4.00MiB), 1 directory, 0 links, 1 failure`
impl Display for RestoreCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = number(self.files, "file", "files");
        let directories = number(self.directories, "directory", "directories");
        let links = number(self.links, "link", "links");
        write!(f, "{files} ({}), {directories}, {links}", size(self.bytes as f64))?;
        if self.existing > 0 {
            write!(f, ", {} there already", self.existing)?;
        }
        if self.failures > 0 {
            write!(f, ", {}", number(self.failures, "failure", "failures"))?;
        }
        Ok(())
    }
}

/// `1 file`, `2 files`.
fn number(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A file about which the observer may print a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RestoreEvent<'a> {
    /// It is copied, or would be.
    File(&'a Path),
    /// It already exists, and is kept.
    KeptFile(&'a Path),
    /// A snapshot is left out.
    SkippedSnapshot(Name),
}

/// Follows a copy.
pub trait RestoreObserver {
    /// Something is done with a file.
    ///
    /// # Errors
    /// Those of the observer, which end the copy.
    fn event(&self, event: RestoreEvent<'_>) -> Result<()>;

    /// Something is not copied, or not completely. The copy goes on.
    fn failure(&self, error: &Error);

    /// The progress, several times a second.
    ///
    /// # Errors
    /// Those of the observer, which end the copy.
    fn progress(&self, progress: &RestoreProgress) -> Result<()>;
}

/// Copies what `options` says out of a subvolume. SIGINT, SIGTERM and SIGHUP, which
/// [`block_signals`](super::block_signals) has blocked, end it early.
///
/// # Errors
/// Nothing could be copied, the target accepts no more data, the observer failed, or a signal ended it.
pub async fn restore(
    files: &Files,
    options: &RestoreOptions,
    observer: &dyn RestoreObserver,
) -> Result<RestoreCounts> {
    let meter = Meter::new();
    let mut copy = Copy::new(files, options, observer, &meter);
    let ended = {
        let work = std::pin::pin!(copy.run());
        let ends = std::pin::pin!(signal::wait(&SIGNALS));
        let beside = std::pin::pin!(meter.run(files, options, observer));
        match select(select(work, beside), ends).await {
            Either::Left((Either::Left((result, _)), _)) => result,
            Either::Left((Either::Right((Err(error), _)), _)) => Err(error),
            Either::Left((Either::Right((Ok(never), _)), _)) => match never {},
            // The file being written is dropped, together with its temporary file.
            Either::Right((Ok(_), _)) => {
                Err(Error::failed("interrupted").hint(options.advice.go_on))
            }
            Either::Right((Err(why), _)) => Err(Error::plain("cannot wait for signals", why)),
        }
    };
    // Complete files are kept, however it ended.
    let stored = copy.end().await;
    ended.and(stored)
}
