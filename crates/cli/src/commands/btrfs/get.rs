//! `ashlar btrfs get`: files and directories taken out.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ashlar_btrfs::files::{Directory, FileError, Files, Name, Piece, Place, kind_of};
use ashlar_btrfs::ondisk::items::{FileType, InodeItem, Timespec};
use clap::Args;
use rustix::fs::{AtFlags, CWD, Timestamps, XattrFlags, lsetxattr, utimensat};

use super::volumes::Chosen;
use super::{Top, with};
use crate::error::{Error, FAILURE, Result};

/// Take a file, or a directory with all that is in it, out of a file system that is not mounted
///
/// DEST must not exist: nothing is overwritten. Each block is verified, and read from another mirror if it
/// is wrong. A file that has lost something is named, and not kept unless --keep-partial says so; the others
/// are. Modes and times are kept; device nodes, pipes and sockets are left out, and hard links become files of
/// their own.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed or something is lost, 2 wrong usage.

Examples:
  ashlar btrfs get /home rescued disk*.img
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
    chosen: Chosen,

    #[command(flatten)]
    top: Top,

    /// Keep files that have lost something, with holes where it was
    #[arg(long)]
    keep_partial: bool,

    /// Set owners and groups too, and with these the bits that change them: for root
    #[arg(long)]
    owners: bool,

    /// Set extended attributes too; those of security.* and trusted.*, such as capabilities, with --owners only
    #[arg(long)]
    xattrs: bool,
}

impl Get {
    pub(super) fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let files = self.top.files(fs).await?;
            let mut taking = Taking { get: &self, files, failures: 0, left_out: 0, privileged: 0 };
            taking.all().await?;
            if taking.left_out > 0 {
                eprintln!("left out: {} device nodes, pipes and sockets", taking.left_out);
            }
            if taking.privileged > 0 {
                eprintln!(
                    "left out: {} attributes of security.* and trusted.*, which --owners sets",
                    taking.privileged
                );
            }
            Ok(if taking.failures > 0 { ExitCode::from(FAILURE) } else { ExitCode::SUCCESS })
        })
    }
}

/// A directory that is being taken out.
struct Open {
    path: Vec<u8>,
    dest: PathBuf,
    stat: Option<InodeItem>,
    place: Place,
    listing: Directory,
}

struct Taking<'a> {
    get: &'a Get,
    files: Files,
    failures: u64,
    left_out: u64,
    /// Attributes that were left out, because they give rights and the owner is not kept.
    privileged: u64,
}

impl Taking<'_> {
    /// # Errors
    /// Nothing could be taken out: the path leads nowhere, or the destination is there.
    async fn all(&mut self) -> Result<()> {
        let asked = self.get.path.as_bytes();
        let failed = |why: FileError| Error::new("cannot take out", &self.get.path, why);
        let place = self.files.resolve(asked).await.map_err(failed)?;
        let kind = self.files.kind(place).await.map_err(failed)?;
        let dest = &self.get.dest;
        if dest.symlink_metadata().is_ok() {
            let error = Error::new("nothing is overwritten", dest.display(), "it is there already");
            return Err(error.hint("name something that does not exist"));
        }
        let mut open = Vec::new();
        // Paths in messages are this one with a slash and more behind it.
        let end = asked.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let asked = &asked[..end];
        self.one(asked.to_vec(), dest.clone(), place, kind, &mut open).await;
        while let Some(directory) = open.last_mut() {
            match directory.listing.next().await {
                Ok(Some(entry)) => {
                    let path = [&directory.path[..], b"/", &entry.name].concat();
                    // A name has no slash, and is neither `.` nor `..`: it stays within.
                    let dest = directory.dest.join(OsStr::from_bytes(&entry.name));
                    self.one(path, dest, entry.place, entry.kind, &mut open).await;
                }
                Ok(None) => {
                    // Its own time and mode come last: what was put into it changed them.
                    if let Some(done) = open.pop() {
                        self.finish(&done.path, &done.dest, done.place, done.stat.as_ref()).await;
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

    fn fail(&mut self, path: &[u8], why: impl std::fmt::Display) {
        let path = if path.is_empty() { b"/" } else { path };
        Error::new("not taken out", Name(path.to_vec()), why).report();
        self.failures += 1;
    }

    /// Takes out one thing; a directory is opened, for its entries to follow.
    async fn one(
        &mut self,
        path: Vec<u8>,
        dest: PathBuf,
        place: Place,
        kind: FileType,
        open: &mut Vec<Open>,
    ) {
        let stat = match self.files.stat(place).await {
            Ok(stat) => stat,
            Err(why) => return self.fail(&path, why),
        };
        let found = stat.as_ref().map_or(FileType::Directory, |stat| kind_of(stat.mode.get()));
        if found != kind {
            return self.fail(&path, "its inode is of another type than its directory entry");
        }
        if path.len() > ashlar_btrfs::files::PATH_BYTES_MAX {
            return self.fail(&path, FileError::TooLong);
        }
        match kind {
            FileType::Directory => {
                let listing = match self.files.list(place).await {
                    Ok(listing) => listing,
                    Err(why) => return self.fail(&path, why),
                };
                match fs::create_dir(&dest) {
                    Ok(()) => open.push(Open { path, dest, stat, place, listing }),
                    Err(why) => self.fail(&path, format_args!("{}: {why}", dest.display())),
                }
            }
            FileType::Regular => {
                if self.file(&path, &dest, place).await {
                    self.finish(&path, &dest, place, stat.as_ref()).await;
                }
            }
            FileType::Symlink => match self.files.target(place).await {
                Ok(target) => match symlink(OsStr::from_bytes(&target), &dest) {
                    Ok(()) => self.finish(&path, &dest, place, stat.as_ref()).await,
                    Err(why) => self.fail(&path, format_args!("{}: {why}", dest.display())),
                },
                Err(why) => self.fail(&path, why),
            },
            FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Fifo
            | FileType::Socket
            | FileType::Unknown
            | FileType::Xattr => self.left_out += 1,
        }
    }

    /// Takes out a file's contents; whether the file is there now.
    async fn file(&mut self, path: &[u8], dest: &Path, place: Place) -> bool {
        let opened = File::options().write(true).create_new(true).open(dest);
        let file = match opened {
            Ok(file) => file,
            Err(why) => {
                self.fail(path, format_args!("{}: {why}", dest.display()));
                return false;
            }
        };
        match self.contents(path, &file, place).await {
            Ok(true) => true,
            Ok(false) if self.get.keep_partial => true,
            Ok(false) => {
                self.remove(path, dest);
                false
            }
            Err(why) => {
                self.fail(path, why);
                self.remove(path, dest);
                false
            }
        }
    }

    fn remove(&mut self, path: &[u8], dest: &Path) {
        if let Err(why) = fs::remove_file(dest) {
            self.fail(path, format_args!("cannot remove {}: {why}", dest.display()));
        }
    }

    /// Whether nothing is lost.
    async fn contents(
        &mut self,
        path: &[u8],
        file: &File,
        place: Place,
    ) -> std::result::Result<bool, String> {
        let mut reader = self.files.read(place).await.map_err(|why| why.to_string())?;
        let mut is_whole = true;
        while let Some(piece) = reader.next().await {
            match piece {
                Piece::Data { offset, bytes } => {
                    file.write_all_at(&bytes, offset).map_err(|why| why.to_string())?;
                }
                Piece::Hole { .. } => {}
                Piece::Lost { offset, len, why } => {
                    let end = offset.saturating_add(len).saturating_sub(1);
                    self.fail(path, format_args!("bytes {offset} to {end} are lost: {why}"));
                    is_whole = false;
                    if !self.get.keep_partial {
                        return Ok(false);
                    }
                }
            }
        }
        file.set_len(reader.size()).map_err(|why| why.to_string())?;
        Ok(is_whole)
    }

    /// Sets what is not contents.
    async fn finish(&mut self, path: &[u8], dest: &Path, place: Place, stat: Option<&InodeItem>) {
        let Some(stat) = stat else { return };
        // A change of the owner takes capabilities away, and a mode may forbid to set attributes. What gives
        // rights is only for the owner that it was given to.
        let owned = self.get.owners
            && match lchown(dest, Some(stat.uid.get()), Some(stat.gid.get())) {
                Ok(()) => true,
                Err(why) => {
                    self.fail(path, format_args!("{}: {why}", dest.display()));
                    false
                }
            };
        if self.get.xattrs {
            match self.files.attributes(place).await {
                Ok(all) => {
                    for (name, value) in all {
                        self.attribute(path, dest, (&name, &value), owned);
                    }
                }
                Err(why) => self.fail(path, why),
            }
        }
        if let Err(why) = mode_and_times(dest, stat, owned) {
            self.fail(path, format_args!("{}: {why}", dest.display()));
        }
    }

    fn attribute(&mut self, path: &[u8], dest: &Path, (name, value): (&[u8], &[u8]), owned: bool) {
        // How btrfs compresses the file is of no use elsewhere.
        if name.starts_with(b"btrfs.") {
            return;
        }
        let gives_rights = [&b"security."[..], b"trusted."].iter().any(|it| name.starts_with(it));
        if gives_rights && !owned {
            self.privileged += 1;
            return;
        }
        if let Err(why) = lsetxattr(dest, OsStr::from_bytes(name), value, XattrFlags::empty()) {
            let name = Name(name.to_vec());
            self.fail(path, format_args!("cannot set the attribute {name}: {why}"));
        }
    }
}

fn mode_and_times(dest: &Path, stat: &InodeItem, owned: bool) -> io::Result<()> {
    if kind_of(stat.mode.get()) != FileType::Symlink {
        // Without the owner a program must not run as whoever takes it out.
        let kept = if owned { 0o7777 } else { 0o1777 };
        fs::set_permissions(dest, fs::Permissions::from_mode(stat.mode.get() & kept))?;
    }
    let time = |time: &Timespec| rustix::fs::Timespec {
        tv_sec: time.sec.get() as i64,
        tv_nsec: time.nsec.get().min(999_999_999).into(),
    };
    let times = Timestamps { last_access: time(&stat.atime), last_modification: time(&stat.mtime) };
    utimensat(CWD, dest, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}
