//! Copying files and directories out of a file system, to a mounted one.
//!
//! Each file and link is created completely under a temporary name beside its final name, and is renamed once it is
//! durable ([`store`]). So every file under its final name is complete, whenever the program or the machine stops;
//! leftovers are called `.NAME.ashlar-XXXXXX`.

mod store;
mod told;
mod wanted;

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ashlar_btrfs::files::{Directory, FileError, Files, Name, Piece, Place, kind_of};
use ashlar_btrfs::ondisk::items::{FileType, InodeItem, Timespec};
use ashlar_engine::signal::{self, Signal};
use ashlar_host::error::{Error, FAILURE, Result};
use futures_util::future::{Either, select};

use self::store::{Finished, Store};
pub(super) use self::told::Telling;
use self::told::Told;
use self::wanted::Counts;
pub(super) use self::wanted::{Existing, Names, Wanted};
use super::volumes::Chosen;
use super::{Top, with};
use crate::output;

/// The signals that end it cleanly.
const SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Opens the file system, and copies `wanted` out of its subvolume `top`.
///
/// # Errors
/// It cannot be opened, nothing could be copied, the target accepts no more data, or a signal ended it.
pub(super) fn run(chosen: &Chosen, top: Top, wanted: &Wanted) -> Result<ExitCode> {
    signal::block(&SIGNALS).map_err(|error| Error::plain("cannot block signals", error))?;
    with(chosen, async |fs| {
        let files = top.files(fs).await?;
        Ok(ExitCode::from(take(files, wanted).await?))
    })
}

async fn take(files: Files, wanted: &Wanted) -> Result<u8> {
    let told = Told::new(wanted);
    let mut taking = Taking {
        wanted,
        store: Store::new(wanted.dry_run),
        files: files.clone(),
        told: &told,
        counts: Counts::default(),
    };
    let ended = {
        let work = std::pin::pin!(taking.all());
        let ends = std::pin::pin!(signal::wait(&SIGNALS));
        let beside = std::pin::pin!(told.run(&files, &wanted.path));
        match select(select(work, beside), ends).await {
            Either::Left((Either::Left((result, _)), _)) => result,
            Either::Left((Either::Right((Err(error), _)), _)) => Err(error),
            Either::Left((Either::Right((Ok(never), _)), _)) => match never {},
            // The file being written is dropped, together with its temporary file.
            Either::Right((Ok(_), _)) => {
                Err(Error::failed("interrupted").hint(wanted.options.go_on))
            }
            Either::Right((Err(why), _)) => Err(Error::plain("cannot wait for signals", why)),
        }
    };
    // Complete files are kept, however it ended.
    let stored = taking.flush().await.and_then(|()| taking.store.sync());
    let counts = taking.counts;
    ended.and(stored)?;
    told.end(&counts)?;
    if counts.special > 0 {
        let count = counts.special;
        output::note(&format!("left out: {count} device nodes, pipes and sockets\n"));
    }
    if counts.privileged > 0 {
        output::note(&format!(
            "left out: {} attributes of security.* and trusted.*, which {} sets\n",
            counts.privileged, wanted.options.owners
        ));
    }
    Ok(if counts.failures > 0 { FAILURE } else { 0 })
}

/// A directory that is being copied.
struct Open {
    path: Vec<u8>,
    dest: PathBuf,
    stat: Option<InodeItem>,
    place: Place,
    listing: Directory,
}

/// The target of an entry, and its destination.
struct Thing {
    path: Vec<u8>,
    dest: PathBuf,
    place: Place,
    kind: FileType,
}

/// What to do with a file that may already exist.
enum Standing {
    /// Create it.
    Make,
    /// It already exists.
    There,
}

struct Taking<'a> {
    wanted: &'a Wanted,
    store: Store,
    files: Files,
    told: &'a Told,
    counts: Counts,
}

impl Taking<'_> {
    /// # Errors
    /// Nothing could be copied: the source path does not exist, or the destination already exists; or the target
    /// accepts no more data.
    async fn all(&mut self) -> Result<()> {
        let wanted = self.wanted;
        let asked = &wanted.path[..];
        let failed = |why: FileError| Error::new("cannot take out", Name(wanted.path.clone()), why);
        let place = self.files.resolve(asked).await.map_err(failed)?;
        let kind = self.files.kind(place).await.map_err(failed)?;
        let dest = &wanted.dest;
        if wanted.existing == Existing::Refuse && dest.symlink_metadata().is_ok() {
            let error = Error::new("nothing is overwritten", dest.display(), "it is there already");
            return Err(error.hint(wanted.options.merge));
        }
        // Paths in messages are this one, followed by a slash and more.
        let end = asked.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let mut open = Vec::new();
        if kind != FileType::Directory {
            self.remove_leftovers(parent(dest), dest.file_name());
        }
        let thing = Thing { path: asked[..end].to_vec(), dest: dest.clone(), place, kind };
        self.one(thing, &mut open).await?;
        while let Some(directory) = open.last_mut() {
            if wanted.stop_at_first && self.counts.failures > 0 {
                return Ok(());
            }
            match directory.listing.next().await {
                Ok(Some(entry)) => {
                    let path = [&directory.path[..], b"/", &entry.name].concat();
                    // A name has no slash, and is not `.` or `..`: the path stays inside the destination.
                    let dest = directory.dest.join(OsStr::from_bytes(&entry.name));
                    let thing = Thing { path, dest, place: entry.place, kind: entry.kind };
                    let directory = directory.place;
                    if self.is_wanted(directory, &thing).await? {
                        self.one(thing, &mut open).await?;
                    }
                }
                Ok(None) => {
                    // Its time and mode are set last, because creating entries in it changed them.
                    if let Some(Open { path, dest, stat, place, .. }) = open.pop() {
                        self.store.push(Finished::Directory { path, dest, stat, place }, 0);
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
    async fn is_wanted(&mut self, directory: Place, thing: &Thing) -> Result<bool> {
        if let Some(only) = &self.wanted.only
            && !only.is_match(&mut only.create_cache(), &thing.path[..])
        {
            return Ok(false);
        }
        if self.wanted.snapshots {
            return Ok(true);
        }
        let (Place::Inode { tree: outer, .. }, Place::Inode { tree, .. }) =
            (directory, thing.place)
        else {
            return Ok(true);
        };
        if outer.id == tree.id {
            return Ok(true);
        }
        match self.files.fs().subvolume(tree.id).await {
            Ok(found) if found.as_ref().is_some_and(|found| found.parent_uuid.is_some()) => {
                self.told.line(&format!("Skipping snapshot {}", base(&thing.path)))?;
                Ok(false)
            }
            Ok(_) => Ok(true),
            Err(why) => {
                self.fail(&thing.path, why);
                Ok(false)
            }
        }
    }

    fn fail(&mut self, path: &[u8], why: impl std::fmt::Display) {
        let path = if path.is_empty() { b"/" } else { path };
        self.told.beside(|| output::report(&Error::new("not taken out", Name(path.to_vec()), why)));
        self.counts.failures += 1;
    }

    /// Copies one file; a directory is opened, and its entries follow.
    async fn one(&mut self, thing: Thing, open: &mut Vec<Open>) -> Result<()> {
        let Thing { path, dest, place, kind } = thing;
        let stat = match self.files.stat(place).await {
            Ok(stat) => stat,
            Err(why) => {
                self.fail(&path, why);
                return Ok(());
            }
        };
        let found = stat.as_ref().map_or(FileType::Directory, |stat| kind_of(stat.mode.get()));
        if found != kind {
            self.fail(&path, "its inode is of another type than its directory entry");
            return Ok(());
        }
        if path.len() > ashlar_btrfs::files::PATH_BYTES_MAX {
            self.fail(&path, FileError::TooLong);
            return Ok(());
        }
        match kind {
            FileType::Directory => {
                let listing = match self.files.list(place).await {
                    Ok(listing) => listing,
                    Err(why) => {
                        self.fail(&path, why);
                        return Ok(());
                    }
                };
                match self.directory(&dest) {
                    Ok(()) => {
                        self.counts.directories += 1;
                        open.push(Open { path, dest, stat, place, listing });
                    }
                    Err(why) => self.fail(&path, format_args!("{}: {why}", dest.display())),
                }
            }
            FileType::Regular => {
                let Some(stat) = stat else { return Ok(()) };
                self.file(path, dest, place, &stat).await?;
            }
            FileType::Symlink if !self.wanted.links => {}
            FileType::Symlink => self.link(path, dest, place, stat.as_ref()).await?,
            FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Fifo
            | FileType::Socket
            | FileType::Unknown
            | FileType::Xattr => self.counts.special += 1,
        }
        self.flush_if_full().await
    }

    /// Creates a directory, or uses an existing one.
    fn directory(&mut self, dest: &Path) -> io::Result<()> {
        if self.wanted.dry_run {
            return Ok(());
        }
        let made = fs::create_dir(dest);
        let is_there = made.as_ref().is_err_and(|why| why.kind() == io::ErrorKind::AlreadyExists);
        // Not through a link, which could lead out of the target.
        if is_there
            && self.wanted.existing != Existing::Refuse
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
    fn standing(
        &self,
        dest: &Path,
        is_same: impl Fn(&Metadata) -> bool,
    ) -> std::result::Result<Standing, String> {
        let found = match dest.symlink_metadata() {
            Ok(found) => found,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Standing::Make),
            Err(why) => return Err(format!("{}: {why}", dest.display())),
        };
        let refused = |what: &str| Err(format!("{} is there already{what}", dest.display()));
        let replaced = |is_file: bool| {
            if is_file { Ok(Standing::Make) } else { refused(", and is neither a file nor a link") }
        };
        let is_file = found.is_file() || found.is_symlink();
        match self.wanted.existing {
            Existing::Refuse => refused(""),
            Existing::Keep => Ok(Standing::There),
            Existing::Replace => replaced(is_file),
            Existing::Resume | Existing::ResumeAndReplace if is_same(&found) => Ok(Standing::There),
            Existing::ResumeAndReplace => replaced(is_file),
            Existing::Resume => {
                let overwrite = self.wanted.options.overwrite;
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
        match self.standing(dest, is_same) {
            Ok(Standing::Make) => {
                if self.wanted.verbose || self.wanted.dry_run {
                    self.told.line(&format!("Restoring {}", dest.display()))?;
                }
                Ok(!self.wanted.dry_run)
            }
            Ok(Standing::There) => {
                if self.wanted.existing == Existing::Keep {
                    self.told.line(&format!("Skipping existing file {}", dest.display()))?;
                    if self.counts.there == 0 {
                        let overwrite = self.wanted.options.overwrite;
                        self.told.line(&format!("If you wish to overwrite use {overwrite}"))?;
                    }
                }
                self.counts.there += 1;
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
        stat: &InodeItem,
    ) -> Result<()> {
        // The quick check of rsync.
        let is_same = |found: &Metadata| {
            found.is_file()
                && found.len() == stat.size.get()
                && is_time(&stat.mtime, found.mtime(), found.mtime_nsec())
        };
        if self.is_to_be_made(&path, &dest, is_same)? {
            match self.contents(&path, &dest, place, stat).await {
                Ok(Some(temporary)) => {
                    self.counts.files += 1;
                    let finished = Finished::Named { path, dest, temporary };
                    self.store.push(finished, told::weight(stat));
                }
                Ok(None) => {}
                Err(why) => self.fail(&path, why),
            }
        }
        self.told.file_ended(stat);
        Ok(())
    }

    /// Writes a file's contents and its attributes; returns the temporary file, if it should be kept.
    async fn contents(
        &mut self,
        path: &[u8],
        dest: &Path,
        place: Place,
        stat: &InodeItem,
    ) -> std::result::Result<Option<tempfile::TempPath>, String> {
        let mut reader = self.files.read(place).await.map_err(|why| why.to_string())?;
        let in_dest = |why: io::Error| format!("{}: {why}", dest.display());
        // With mode 0600 other users cannot read it until it is complete.
        let mode = if self.wanted.modes_and_times { 0o600 } else { 0o666 };
        let temporary = store::file(dest, mode).map_err(in_dest)?;
        let file: &File = temporary.as_file();
        let mut is_whole = true;
        while let Some(piece) = reader.next().await {
            match piece {
                Piece::Data { offset, bytes } => {
                    file.write_all_at(&bytes, offset).map_err(in_dest)?;
                    self.counts.bytes += bytes.len() as u64;
                    self.told.bytes(bytes.len() as u64);
                }
                Piece::Hole { .. } => {}
                Piece::Lost { offset, len, why } => {
                    let end = offset.saturating_add(len).saturating_sub(1);
                    self.fail(path, format_args!("bytes {offset} to {end} are lost: {why}"));
                    is_whole = false;
                    if !self.wanted.keep_partial {
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
        stat: Option<&InodeItem>,
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
        match store::link(&dest, target) {
            Ok(temporary) => {
                self.finish(&path, &temporary, place, stat, true).await;
                self.counts.links += 1;
                self.store.push(Finished::Named { path, dest, temporary }, 0);
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
        stat: Option<&InodeItem>,
        is_whole: bool,
    ) {
        let Some(stat) = stat else { return };
        // A change of the owner removes capabilities, and a mode may forbid setting attributes. Attributes that give
        // rights are set only if the owner was set, too.
        let owned = self.wanted.owners
            && match store::set_owner(dest, stat) {
                Ok(()) => true,
                Err(why) => {
                    self.fail(path, format_args!("the owner of {}: {why}", dest.display()));
                    false
                }
            };
        if self.wanted.xattrs {
            match self.files.attributes(place).await {
                Ok(all) => {
                    for (name, value) in all {
                        self.attribute(path, dest, (&name, &value), owned);
                    }
                }
                Err(why) => self.fail(path, why),
            }
        }
        if self.wanted.modes_and_times
            && let Err(why) = store::set_mode_and_times(dest, stat, owned, is_whole)
        {
            self.fail(path, format_args!("{}: {why}", dest.display()));
        }
    }

    fn attribute(&mut self, path: &[u8], dest: &Path, (name, value): (&[u8], &[u8]), owned: bool) {
        // How btrfs compresses the file does not matter elsewhere.
        if name.starts_with(b"btrfs.") {
            return;
        }
        let gives_rights = [&b"security."[..], b"trusted."].iter().any(|it| name.starts_with(it));
        if gives_rights && !owned {
            // A failure to set the owner was already reported.
            self.counts.privileged += u64::from(!self.wanted.owners);
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
        if self.wanted.existing == Existing::Refuse || self.wanted.dry_run {
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
                Finished::Named { path, dest, temporary } => {
                    let replace = match self.wanted.existing {
                        Existing::Refuse | Existing::Resume | Existing::Keep => false,
                        Existing::ResumeAndReplace | Existing::Replace => true,
                    };
                    if let Err(why) = store::name(temporary, &dest, replace) {
                        self.fail(&path, format_args!("{}: {why}", dest.display()));
                    }
                }
                Finished::Directory { path, dest, stat, place } => {
                    if !self.wanted.dry_run {
                        self.finish(&path, &dest, place, stat.as_ref(), true).await;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether a file has the time that was set, which its file system may have truncated.
fn is_time(given: &Timespec, seconds: i64, nanoseconds: i64) -> bool {
    // NTFS has units of 100 ns, others of 1 us, 10 ms or 1 s.
    const UNITS: [i64; 5] = [1, 100, 1_000, 10_000_000, 1_000_000_000];
    let nsec = i64::from(given.nsec.get().min(999_999_999));
    given.sec.get() as i64 == seconds && UNITS.iter().any(|unit| nsec - nsec % unit == nanoseconds)
}

/// The parent directory of a path.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
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
        let given = Timespec { sec: 1_700_000_000.into(), nsec: 123_456_789.into() };
        for kept in [123_456_789, 123_456_700, 123_456_000, 120_000_000, 0] {
            assert!(is_time(&given, 1_700_000_000, kept), "{kept}");
            assert!(!is_time(&given, 1_700_000_001, kept), "{kept}");
        }
        assert!(!is_time(&given, 1_700_000_000, 123_456_788));
    }
}
