//! The options of a copy, its reports, and its result.

use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ashlar_files::{Name, size};

use super::filter::PathFilter;
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
    /// The source paths, relative to the tree's root directory; at least one.
    pub paths: Vec<Vec<u8>>,
    /// The destination: what the only path becomes, or the directory for several, which keep their names.
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
    /// Copy snapshots inside the tree, too; other subvolumes are always copied.
    pub snapshots: bool,
    /// Set modes and times.
    pub modes_and_times: bool,
    /// Set owners, and the attributes that give rights.
    pub owners: bool,
    /// Set extended attributes.
    pub xattrs: bool,
    /// Copy only the paths that it accepts.
    pub only: Option<PathFilter>,
    /// Leave out the paths that any of these accepts, with all below them; not the source paths themselves.
    pub except: Vec<PathFilter>,
    /// Tell the observer of the progress.
    pub progress: bool,
    /// The advice in messages.
    pub advice: RestoreAdvice,
}

impl RestoreOptions {
    /// The source paths, each with its destination.
    ///
    /// # Errors
    /// Of several paths, one has no name, or two have the same.
    pub(super) fn sources(&self) -> Result<Vec<(&[u8], PathBuf)>> {
        if let [path] = &self.paths[..] {
            return Ok(vec![(path, self.dest.clone())]);
        }
        let mut all: Vec<(&[u8], PathBuf)> = Vec::new();
        for path in &self.paths {
            let shown = Name(path.clone());
            let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
            let name = names.next_back().filter(|name| ![&b"."[..], b".."].contains(name));
            let Some(name) = name else {
                return Err(Error::usage(format_args!(
                    "{shown} has no name to keep in the target"
                )));
            };
            let dest = self.dest.join(OsStr::from_bytes(name));
            if all.iter().any(|(_, other)| *other == dest) {
                let (name, dest) = (Name(name.to_vec()), self.dest.display());
                return Err(Error::usage(format_args!("two paths would be {name} in {dest}"))
                    .hint("extract them one after the other"));
            }
            all.push((path, dest));
        }
        Ok(all)
    }
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
    /// Failures, each reported to the observer.
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

    /// Something is not copied, or not completely. The copy continues.
    fn failure(&self, error: &Error);

    /// The progress, several times a second.
    ///
    /// # Errors
    /// Those of the observer, which end the copy.
    fn progress(&self, progress: &RestoreProgress) -> Result<()>;
}

/// A number of files and their bytes, without holes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Amount {
    /// The files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The progress of a copy.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RestoreProgress {
    /// What is done; never more bytes than those of the total.
    pub done: Amount,
    /// All that is to be done, once it was counted.
    pub total: Option<Amount>,
    /// Bytes read per second.
    pub rate: f64,
}

impl RestoreProgress {
    /// The part that is done, in thousandths; zero if the total is not known.
    pub fn parts(&self) -> u64 {
        let Some(total) = self.total else { return 0 };
        (u128::from(self.done.bytes) * 1000 / u128::from(total.bytes.max(1))) as u64
    }

    /// The seconds left, if the total is known and there is progress.
    pub fn seconds_left(&self) -> Option<u64> {
        let left = self.total?.bytes.saturating_sub(self.done.bytes);
        (self.rate >= 1.0).then(|| (left as f64 / self.rate) as u64)
    }
}
