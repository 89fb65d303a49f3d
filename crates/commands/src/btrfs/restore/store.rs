//! Writing to the target: temporary names, and final names once the contents are durable.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use ashlar_files::{FileType, Place, Stat, Time};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, Timestamps, UTIME_OMIT, XattrFlags, fchmod, fsetxattr, futimens,
    lsetxattr, open, utimensat,
};
use rustix::io::Errno;
use tempfile::{Builder, NamedTempFile, TempPath};

use crate::error::{Error, Result};

/// The most files that wait for their names, and their bytes: one sync of the target covers them all.
const WAITING_MAX: usize = 256;
const WAITING_BYTES_MAX: u64 = 256 << 20;

/// The part of temporary names between the file's name and the random characters.
const MARK: &[u8] = b".ashlar-";
/// The number of random characters.
const RANDOM: usize = 6;
/// The most bytes of a name.
const NAME_MAX: usize = 255;

/// A file that is complete except for its name, or a directory whose entries are complete.
pub(super) enum FinishedEntry {
    Named { path: Vec<u8>, dest: PathBuf, temporary: TempPath },
    Directory { path: Vec<u8>, dest: PathBuf, stat: Option<Stat>, place: Place },
}

/// Finished files that wait for a sync, in the order in which they were finished.
pub(super) struct Store {
    /// An open directory on the target.
    target: Option<(File, PathBuf)>,
    waiting: Vec<FinishedEntry>,
    bytes: u64,
    dry_run: bool,
}

impl Store {
    pub(super) fn new(dry_run: bool) -> Self {
        Self { target: None, waiting: Vec::new(), bytes: 0, dry_run }
    }

    /// Sets the directory to sync through. Only the first call counts.
    pub(super) fn onto(&mut self, directory: &Path) -> io::Result<()> {
        if self.target.is_none() {
            self.target = Some((File::open(directory)?, directory.to_owned()));
        }
        Ok(())
    }

    pub(super) fn push(&mut self, finished: FinishedEntry, bytes: u64) {
        self.waiting.push(finished);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX || self.bytes >= WAITING_BYTES_MAX
    }

    /// Syncs, and returns the finished files, which are now durable.
    ///
    /// # Errors
    /// They cannot be made durable; they are removed.
    pub(super) fn take(&mut self) -> Result<Vec<FinishedEntry>> {
        if self.target.is_none()
            && let Some(FinishedEntry::Named { dest, .. }) = self.waiting.first()
        {
            let directory = parent(dest).to_owned();
            let opened = self.onto(&directory);
            opened.map_err(|why| Error::new("cannot store", directory.display(), why))?;
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        if !waiting.is_empty() {
            self.sync()?;
        }
        Ok(waiting)
    }

    /// Makes everything written durable.
    ///
    /// # Errors
    /// The target failed.
    pub(super) fn sync(&self) -> Result<()> {
        let Some((target, path)) = self.target.as_ref().filter(|_| !self.dry_run) else {
            return Ok(());
        };
        let synced = rustix::fs::syncfs(target);
        synced.map_err(|why| Error::new("cannot store the extracted files", path.display(), why))
    }
}

/// The parent directory of a path.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// `.NAME.ashlar-`, with a long name truncated.
fn prefix(dest: &Path) -> OsString {
    let name = dest.file_name().map_or(&[][..], OsStrExt::as_bytes);
    let room = NAME_MAX - 1 - MARK.len() - RANDOM;
    let name = &name[..name.len().min(room)];
    OsString::from_vec([b".", name, MARK].concat())
}

/// A new file, to be renamed to `dest`.
pub(super) fn file(dest: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let prefix = prefix(dest);
    let mut builder = Builder::new();
    builder.prefix(&prefix).rand_bytes(RANDOM).permissions(Permissions::from_mode(mode));
    builder.tempfile_in(parent(dest))
}

/// A new link, to be renamed to `dest`.
pub(super) fn link(dest: &Path, target: &OsStr) -> io::Result<TempPath> {
    let prefix = prefix(dest);
    let mut builder = Builder::new();
    builder.prefix(&prefix).rand_bytes(RANDOM);
    let made = builder.make_in(parent(dest), |path| symlink(target, path))?;
    Ok(made.into_temp_path())
}

/// Renames it to its final name.
pub(super) fn name(temporary: TempPath, dest: &Path, replace: bool) -> io::Result<()> {
    let named = if replace { temporary.persist(dest) } else { temporary.persist_noclobber(dest) };
    named.map_err(|why| why.error)
}

/// Whether a name could come from [`file`] or [`link`]; with `of`, only for that file's name.
fn is_leftover(name: &OsStr, of: Option<&OsStr>) -> bool {
    let name = name.as_bytes();
    let Some(at) = name.len().checked_sub(RANDOM) else { return false };
    let (front, random) = name.split_at(at);
    let is_ours = match of {
        Some(of) => front == prefix(Path::new(of)).as_bytes(),
        None => front.starts_with(b".") && front.ends_with(MARK) && front.len() > MARK.len() + 1,
    };
    is_ours && random.iter().all(u8::is_ascii_alphanumeric)
}

/// Removes the temporary files that a killed run left.
pub(super) fn remove_leftovers(directory: &Path, of: Option<&OsStr>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if (kind.is_file() || kind.is_symlink()) && is_leftover(&entry.file_name(), of) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

pub(super) fn set_owner(dest: &Path, stat: &Stat) -> io::Result<()> {
    lchown(dest, Some(stat.uid), Some(stat.gid))
}

/// The file or directory at a path, opened; `None` for a symbolic link, and for a file accessible only by its name. In the
/// sandbox modes and attributes are changed only through open descriptors: landlock decides which files may be opened.
fn opened(dest: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match open(dest, flags, Mode::empty()) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::LOOP | Errno::ACCESS) => Ok(None),
        Err(why) => Err(why.into()),
    }
}

pub(super) fn set_attribute(dest: &Path, name: &[u8], value: &[u8]) -> io::Result<()> {
    let (name, flags) = (OsStr::from_bytes(name), XattrFlags::empty());
    match opened(dest)? {
        Some(file) => fsetxattr(file, name, value, flags)?,
        None => lsetxattr(dest, name, value, flags)?,
    }
    Ok(())
}

/// Sets the mode, without the set-user-ID and set-group-ID bits unless `owned`; and the times, except the modification
/// time if the file is incomplete.
pub(super) fn set_mode_and_times(
    dest: &Path,
    stat: &Stat,
    owned: bool,
    is_whole: bool,
) -> io::Result<()> {
    let file = opened(dest)?;
    if stat.kind() != FileType::Symlink {
        // Otherwise a program could run as the user who copies it out.
        let kept = stat.mode & if owned { 0o7777 } else { 0o1777 };
        match &file {
            Some(file) => fchmod(file, Mode::from_raw_mode(kept))?,
            None => fs::set_permissions(dest, Permissions::from_mode(kept))?,
        }
    }
    let time = |time: Time| rustix::fs::Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    };
    let omitted = rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let last_modification = if is_whole { time(stat.modified) } else { omitted };
    let times = Timestamps { last_access: time(stat.accessed), last_modification };
    match file {
        Some(file) => futimens(file, &times)?,
        None => utimensat(CWD, dest, &times, AtFlags::SYMLINK_NOFOLLOW)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_are_told_from_others() {
        let long = "x".repeat(NAME_MAX);
        for name in ["a", ".hidden", long.as_str()] {
            let temporary = prefix(Path::new(name)).into_string().unwrap() + "aB3dE6";
            assert!(temporary.len() <= NAME_MAX);
            assert!(is_leftover(OsStr::new(&temporary), None), "{temporary}");
            assert!(is_leftover(OsStr::new(&temporary), Some(OsStr::new(name))));
            assert!(!is_leftover(OsStr::new(&temporary), Some(OsStr::new("b"))));
        }
        for name in
            ["a", ".a", "a.ashlar-aB3dE6", "..ashlar-aB3dE", ".a.ashlar-aB3dE", ".a.ashlar-aB3d-6"]
        {
            assert!(!is_leftover(OsStr::new(name), None), "{name}");
        }
    }
}
