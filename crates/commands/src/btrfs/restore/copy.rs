//! The copy itself, directory by directory.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use ashlar_files::{
    Entries, FileError, FileType, Name, PATH_BYTES_MAX, Piece, Place, Stat, Time, Tree,
};

use super::options::{ExistingFiles, RestoreCounts, RestoreEvent, RestoreObserver, RestoreOptions};
use super::progress::{Meter, weight};
use super::store::{self, FinishedEntry, Store, parent};
use crate::error::{Error, Result};

/// A directory that is being copied.
struct OpenDirectory<'a> {
    path: Vec<u8>,
    dest: PathBuf,
    stat: Option<Stat>,
    place: Place,
    listing: Box<dyn Entries + 'a>,
}

/// An entry of a directory, and its destination.
struct Entry {
    path: Vec<u8>,
    dest: PathBuf,
    place: Place,
    kind: FileType,
}

/// The place of a file that may already exist.
enum Destination {
    /// It is to be created, or replaced.
    Free,
    /// It stays as it is.
    Taken,
}

/// A running copy.
pub(super) struct Copy<'a> {
    options: &'a RestoreOptions,
    store: Store,
    files: &'a dyn Tree,
    observer: &'a dyn RestoreObserver,
    meter: &'a Meter,
    counts: RestoreCounts,
}

impl<'a> Copy<'a> {
    pub(super) fn new(
        files: &'a dyn Tree,
        options: &'a RestoreOptions,
        observer: &'a dyn RestoreObserver,
        meter: &'a Meter,
    ) -> Self {
        let store = Store::new(options.dry_run);
        let counts = RestoreCounts::default();
        Self { options, store, files, observer, meter, counts }
    }

    /// Gives complete files their names, and makes them durable.
    ///
    /// # Errors
    /// The target failed.
    pub(super) async fn end(mut self) -> Result<RestoreCounts> {
        self.flush().await?;
        self.store.sync()?;
        Ok(self.counts)
    }

    /// Copies everything.
    ///
    /// # Errors
    /// Nothing could be copied: the source path does not exist, or the destination already exists; or the target
    /// accepts no more data.
    pub(super) async fn run(&mut self) -> Result<()> {
        let options = self.options;
        let mut found = Vec::new();
        for (path, dest) in options.sources()? {
            let failed = |why: FileError| Error::new("cannot extract", Name(path.to_vec()), why);
            let place = self.files.resolve(path).await.map_err(failed)?;
            let kind = self.files.kind(place).await.map_err(failed)?;
            // Paths in messages are this one, followed by a slash and more.
            let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
            found.push(Entry { path: path[..end].to_vec(), dest, place, kind });
        }
        let dest = &options.dest;
        if options.existing == ExistingFiles::Refuse && dest.symlink_metadata().is_ok() {
            let error = Error::new("nothing is overwritten", dest.display(), "it is there already");
            return Err(error.hint(options.advice.merge));
        }
        if found.len() > 1 {
            let made = self.directory(dest);
            made.map_err(|why| Error::new("cannot make", dest.display(), why))?;
        }
        for entry in found {
            self.tree(entry).await?;
        }
        Ok(())
    }

    /// Copies a file, or a directory with all that is in it.
    async fn tree(&mut self, entry: Entry) -> Result<()> {
        let options = self.options;
        let mut open = Vec::new();
        if entry.kind != FileType::Directory {
            self.remove_leftovers(parent(&entry.dest), entry.dest.file_name());
        }
        self.one(entry, &mut open).await?;
        while let Some(directory) = open.last_mut() {
            if options.stop_at_first && self.counts.failures > 0 {
                return Ok(());
            }
            match directory.listing.next().await {
                Ok(Some(found)) => {
                    let path = [&directory.path[..], b"/", &found.name].concat();
                    // A name has no slash, and is not `.` or `..`: the path stays inside the destination.
                    let dest = directory.dest.join(OsStr::from_bytes(&found.name));
                    let entry = Entry { path, dest, place: found.place, kind: found.kind };
                    let directory = directory.place;
                    if self.is_selected(directory, &entry).await? {
                        self.one(entry, &mut open).await?;
                    }
                }
                Ok(None) => {
                    // Its time and mode are set last, because creating entries in it changed them.
                    if let Some(OpenDirectory { path, dest, stat, place, .. }) = open.pop() {
                        self.store.push(FinishedEntry::Directory { path, dest, stat, place }, 0);
                        self.flush_if_full().await?;
                    }
                }
                Err(why) => {
                    let path = directory.path.clone();
                    self.fail(&path, why);
                }
            }
        }
        Ok(())
    }

    /// Whether an entry of `directory` should be copied.
    async fn is_selected(&mut self, directory: Place, entry: &Entry) -> Result<bool> {
        if let Some(only) = &self.options.only
            && !only.accepts(&entry.path)
        {
            return Ok(false);
        }
        if self.options.except.iter().any(|except| except.accepts(&entry.path)) {
            return Ok(false);
        }
        if self.options.snapshots {
            return Ok(true);
        }
        let (Place::Inode { tree: outer, .. }, Place::Inode { tree, .. }) =
            (directory, entry.place)
        else {
            return Ok(true);
        };
        if outer == tree {
            return Ok(true);
        }
        match self.files.is_snapshot(tree).await {
            Ok(true) => {
                self.observer.event(RestoreEvent::SkippedSnapshot(base(&entry.path)))?;
                Ok(false)
            }
            Ok(false) => Ok(true),
            Err(why) => {
                self.fail(&entry.path, why);
                Ok(false)
            }
        }
    }

    fn fail(&mut self, path: &[u8], why: impl std::fmt::Display) {
        let path = if path.is_empty() { b"/" } else { path };
        self.observer.failure(&Error::new("not extracted", Name(path.to_vec()), why));
        self.counts.failures += 1;
    }

    /// Copies one file; a directory is opened, and its entries follow.
    async fn one(&mut self, entry: Entry, open: &mut Vec<OpenDirectory<'a>>) -> Result<()> {
        let Entry { path, dest, place, kind } = entry;
        let stat = match self.files.stat(place).await {
            Ok(stat) => stat,
            Err(why) => {
                self.fail(&path, why);
                return Ok(());
            }
        };
        let found = stat.as_ref().map_or(FileType::Directory, Stat::kind);
        if found != kind {
            self.fail(&path, "its inode is of another type than its directory entry");
            return Ok(());
        }
        if path.len() > PATH_BYTES_MAX {
            self.fail(&path, FileError::TooLong);
            return Ok(());
        }
        match kind {
            FileType::Directory => {
                let listing = match self.files.entries(place).await {
                    Ok(listing) => listing,
                    Err(why) => {
                        self.fail(&path, why);
                        return Ok(());
                    }
                };
                match self.directory(&dest) {
                    Ok(()) => {
                        self.counts.directories += 1;
                        open.push(OpenDirectory { path, dest, stat, place, listing });
                    }
                    Err(why) => self.fail(&path, format_args!("{}: {why}", dest.display())),
                }
            }
            FileType::Regular => {
                let Some(stat) = stat else { return Ok(()) };
                self.file(path, dest, place, &stat).await?;
            }
            FileType::Symlink if !self.options.links => {}
            FileType::Symlink => self.link(path, dest, place, stat.as_ref()).await?,
            FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Fifo
            | FileType::Socket
            | FileType::Unknown => self.counts.special += 1,
        }
        self.flush_if_full().await
    }

    /// Creates a directory, or uses an existing one.
    fn directory(&mut self, dest: &Path) -> io::Result<()> {
        if self.options.dry_run {
            return Ok(());
        }
        let made = fs::create_dir(dest);
        let is_there = made.as_ref().is_err_and(|why| why.kind() == io::ErrorKind::AlreadyExists);
        // Not through a link, which could lead out of the target.
        if is_there
            && self.options.existing != ExistingFiles::Refuse
            && dest.symlink_metadata().is_ok_and(|found| found.is_dir())
        {
            self.remove_leftovers(dest, None);
        } else {
            made?;
        }
        self.store.onto(dest)
    }

    /// What to do with a file; `is_same` tells whether the existing file is the same.
    ///
    /// # Errors
    /// A different file exists and must not be replaced.
    fn destination(
        &self,
        dest: &Path,
        is_same: impl Fn(&Metadata) -> bool,
    ) -> std::result::Result<Destination, String> {
        let found = match dest.symlink_metadata() {
            Ok(found) => found,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Destination::Free),
            Err(why) => return Err(format!("{}: {why}", dest.display())),
        };
        let refused = |what: &str| Err(format!("{} is there already{what}", dest.display()));
        let replaced = |is_file: bool| {
            if is_file {
                Ok(Destination::Free)
            } else {
                refused(", and is neither a file nor a link")
            }
        };
        let is_file = found.is_file() || found.is_symlink();
        match self.options.existing {
            ExistingFiles::Refuse => refused(""),
            ExistingFiles::Keep => Ok(Destination::Taken),
            ExistingFiles::Replace => replaced(is_file),
            ExistingFiles::Resume | ExistingFiles::ResumeAndReplace if is_same(&found) => {
                Ok(Destination::Taken)
            }
            ExistingFiles::ResumeAndReplace => replaced(is_file),
            ExistingFiles::Resume => {
                let overwrite = self.options.advice.overwrite;
                refused(&format!(", and of another size or time; {overwrite} replaces it"))
            }
        }
    }

    /// Whether it must be created; if not, counts and reports it.
    ///
    /// # Errors
    /// Its name cannot be printed.
    fn is_to_be_made(
        &mut self,
        path: &[u8],
        dest: &Path,
        is_same: impl Fn(&Metadata) -> bool,
    ) -> Result<bool> {
        match self.destination(dest, is_same) {
            Ok(Destination::Free) => {
                self.observer.event(RestoreEvent::File(dest))?;
                Ok(true)
            }
            Ok(Destination::Taken) => {
                if self.options.existing == ExistingFiles::Keep {
                    self.observer.event(RestoreEvent::KeptFile(dest))?;
                }
                self.counts.existing += 1;
                Ok(false)
            }
            Err(why) => {
                self.fail(path, why);
                Ok(false)
            }
        }
    }

    async fn file(
        &mut self,
        path: Vec<u8>,
        dest: PathBuf,
        place: Place,
        stat: &Stat,
    ) -> Result<()> {
        // The quick check of rsync.
        let is_same = |found: &Metadata| {
            found.is_file()
                && found.len() == stat.size
                && is_time(stat.modified, found.mtime(), found.mtime_nsec())
        };
        if self.is_to_be_made(&path, &dest, is_same)? {
            match self.options.dry_run {
                true => {
                    self.counts.files += 1;
                    self.counts.bytes += weight(stat);
                }
                false => self.new_file(path, dest, place, stat).await,
            }
        }
        self.meter.file_ended(stat);
        Ok(())
    }

    async fn new_file(&mut self, path: Vec<u8>, dest: PathBuf, place: Place, stat: &Stat) {
        match self.contents(&path, &dest, place, stat).await {
            Ok(Some(temporary)) => {
                self.counts.files += 1;
                let finished = FinishedEntry::Named { path, dest, temporary };
                self.store.push(finished, weight(stat));
            }
            Ok(None) => {}
            Err(why) => self.fail(&path, why),
        }
    }

    /// Writes a file's contents and its attributes; returns the temporary file, if it should be kept.
    async fn contents(
        &mut self,
        path: &[u8],
        dest: &Path,
        place: Place,
        stat: &Stat,
    ) -> std::result::Result<Option<tempfile::TempPath>, String> {
        let mut reader = self.files.read(place).await.map_err(|why| why.to_string())?;
        let in_dest = |why: io::Error| format!("{}: {why}", dest.display());
        // With mode 0600 other users cannot read it until it is complete.
        let mode = if self.options.modes_and_times { 0o600 } else { 0o666 };
        let temporary = store::file(dest, mode).map_err(in_dest)?;
        let file: &File = temporary.as_file();
        let mut is_whole = true;
        while let Some(piece) = reader.next().await {
            match piece {
                Piece::Data { offset, bytes } => {
                    file.write_all_at(&bytes, offset).map_err(in_dest)?;
                    self.counts.bytes += bytes.len() as u64;
                    self.meter.bytes(bytes.len() as u64);
                }
                Piece::Hole { .. } => {}
                Piece::Lost { offset, len, why } => {
                    let end = offset.saturating_add(len).saturating_sub(1);
                    self.fail(path, format_args!("bytes {offset} to {end} are lost: {why}"));
                    is_whole = false;
                    if !self.options.keep_partial {
                        return Ok(None);
                    }
                }
            }
        }
        file.set_len(reader.size()).map_err(in_dest)?;
        let temporary = temporary.into_temp_path();
        self.finish(path, &temporary, place, Some(stat), is_whole).await;
        Ok(Some(temporary))
    }

    async fn link(
        &mut self,
        path: Vec<u8>,
        dest: PathBuf,
        place: Place,
        stat: Option<&Stat>,
    ) -> Result<()> {
        let target = match self.files.target(place).await {
            Ok(target) => target,
            Err(why) => {
                self.fail(&path, why);
                return Ok(());
            }
        };
        let target = OsStr::from_bytes(&target);
        let is_same = |found: &Metadata| {
            found.is_symlink() && fs::read_link(&dest).is_ok_and(|found| found == target)
        };
        if !self.is_to_be_made(&path, &dest, is_same)? {
            return Ok(());
        }
        if self.options.dry_run {
            self.counts.links += 1;
            return Ok(());
        }
        match store::link(&dest, target) {
            Ok(temporary) => {
                self.finish(&path, &temporary, place, stat, true).await;
                self.counts.links += 1;
                self.store.push(FinishedEntry::Named { path, dest, temporary }, 0);
            }
            Err(why) => self.fail(&path, format_args!("{}: {why}", dest.display())),
        }
        Ok(())
    }

    /// Sets everything except the contents, on the temporary file `dest`. An incomplete file does not get its time, so
    /// that a later run does not take it for complete.
    async fn finish(
        &mut self,
        path: &[u8],
        dest: &Path,
        place: Place,
        stat: Option<&Stat>,
        is_whole: bool,
    ) {
        let Some(stat) = stat else { return };
        // A change of the owner removes capabilities, and a mode may forbid setting attributes. Attributes that give
        // rights are set only if the owner was set, too.
        let owned = self.options.owners
            && match store::set_owner(dest, stat) {
                Ok(()) => true,
                Err(why) => {
                    self.fail(path, format_args!("the owner of {}: {why}", dest.display()));
                    false
                }
            };
        if self.options.xattrs {
            match self.files.attributes(place).await {
                Ok(all) => {
                    for (name, value) in all {
                        self.attribute(path, dest, (&name, &value), owned);
                    }
                }
                Err(why) => self.fail(path, why),
            }
        }
        if self.options.modes_and_times
            && let Err(why) = store::set_mode_and_times(dest, stat, owned, is_whole)
        {
            self.fail(path, format_args!("{}: {why}", dest.display()));
        }
    }

    fn attribute(&mut self, path: &[u8], dest: &Path, (name, value): (&[u8], &[u8]), owned: bool) {
        let gives_rights = [&b"security."[..], b"trusted."].iter().any(|it| name.starts_with(it));
        if gives_rights && !owned {
            // A failure to set the owner was already reported.
            self.counts.privileged += u64::from(!self.options.owners);
            return;
        }
        if let Err(why) = store::set_attribute(dest, name, value) {
            let name = Name(name.to_vec());
            self.fail(path, format_args!("cannot set the attribute {name}: {why}"));
        }
    }

    /// Removes leftovers of an earlier run from a directory, if this run continues it; with `of` only those of one
    /// name.
    fn remove_leftovers(&mut self, directory: &Path, of: Option<&OsStr>) {
        if self.options.existing == ExistingFiles::Refuse || self.options.dry_run {
            return;
        }
        if let Err(why) = store::remove_leftovers(directory, of) {
            let what = "what an earlier run left in";
            tracing::warn!("cannot remove {what} {}: {why}", directory.display());
        }
    }

    async fn flush_if_full(&mut self) -> Result<()> {
        if self.store.is_full() { self.flush().await } else { Ok(()) }
    }

    /// Renames complete files to their final names, once they are durable.
    async fn flush(&mut self) -> Result<()> {
        for finished in self.store.take()? {
            match finished {
                FinishedEntry::Named { path, dest, temporary } => {
                    let replace = match self.options.existing {
                        ExistingFiles::Refuse | ExistingFiles::Resume | ExistingFiles::Keep => {
                            false
                        }
                        ExistingFiles::ResumeAndReplace | ExistingFiles::Replace => true,
                    };
                    if let Err(why) = store::name(temporary, &dest, replace) {
                        self.fail(&path, format_args!("{}: {why}", dest.display()));
                    }
                }
                FinishedEntry::Directory { path, dest, stat, place } => {
                    if !self.options.dry_run {
                        self.finish(&path, &dest, place, stat.as_ref(), true).await;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether a file has the time that was set, which its file system may have truncated.
fn is_time(given: Time, seconds: i64, nanoseconds: i64) -> bool {
    // NTFS has units of 100 ns, others of 1 us, 10 ms or 1 s.
    const UNITS: [i64; 5] = [1, 100, 1_000, 10_000_000, 1_000_000_000];
    let nsec = i64::from(given.nanoseconds);
    given.seconds == seconds && UNITS.iter().any(|unit| nsec - nsec % unit == nanoseconds)
}

/// The last component of a path.
fn base(path: &[u8]) -> Name {
    Name(path.rsplit(|byte| *byte == b'/').next().unwrap_or(path).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_may_be_cut_off_by_the_file_system_and_is_another_otherwise() {
        let given = Time { seconds: 1_700_000_000, nanoseconds: 123_456_789 };
        for kept in [123_456_789, 123_456_700, 123_456_000, 120_000_000, 0] {
            assert!(is_time(given, 1_700_000_000, kept), "{kept}");
            assert!(!is_time(given, 1_700_000_001, kept), "{kept}");
        }
        assert!(!is_time(given, 1_700_000_000, 123_456_788));
    }
}
