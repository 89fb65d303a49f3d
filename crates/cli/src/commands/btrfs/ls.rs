//! `ashlar btrfs ls`: directories.

use std::io::{self, Write};
use std::process::ExitCode;

use ashlar_btrfs::files::{FileError, Files, Name, Place, Walk, device_numbers, kind_of};
use ashlar_btrfs::inspect;
use ashlar_btrfs::ondisk::items::{FileType, InodeItem};
use ashlar_host::error::{Error, FAILURE, Result};
use base64::Engine;
use clap::Args;
use serde::Serialize;

use super::volumes::Chosen;
use super::{Top, output, with, written};
use crate::output::report;

/// List a directory of an unmounted file system
///
/// PATH begins in the root directory of the first subvolume; other subvolumes and snapshots are
/// directories in it. The order is that of the directory. Printable ASCII in names is printed
/// unchanged; other bytes, and the backslash, as \xNN.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed or something is damaged, 2 wrong usage.

Examples:
  ashlar btrfs ls / disk*.img
  ashlar btrfs ls -lR /home disk*.img
  ashlar btrfs ls --json /etc disk0.img")]
pub(crate) struct Ls {
    /// The directory, or a file
    #[arg(value_name = "PATH")]
    path: String,

    #[command(flatten)]
    chosen: Chosen,

    #[command(flatten)]
    top: Top,

    /// Also print type, mode, links, owner, group, size and time of change
    #[arg(short, long)]
    long: bool,

    /// Also list the directories below, as paths
    #[arg(short = 'R', long)]
    recursive: bool,

    /// Print JSON: an array of objects
    #[arg(long)]
    json: bool,
}

/// A line of JSON.
#[derive(Serialize)]
struct Listed {
    path: String,
    /// The bytes of the path, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    kind: &'static str,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    modified: i64,
    subvolume: Option<u64>,
    inode: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
}

/// A file to be listed.
struct Thing<'a> {
    path: &'a [u8],
    place: Place,
    stat: Option<InodeItem>,
    target: Option<Vec<u8>>,
}

impl Ls {
    pub(super) fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let files = self.top.files(fs).await?;
            let mut out = output();
            let mut listing = Listing { ls: &self, files, first: true, damaged: false };
            let listed = listing.all(&mut out).await;
            match listed {
                Ok(()) => written(out.flush())?,
                Err(Failed::Io(error)) => written(Err(error))?,
                Err(Failed::Error(error)) => {
                    written(out.flush())?;
                    return Err(error);
                }
            }
            Ok(if listing.damaged { ExitCode::from(FAILURE) } else { ExitCode::SUCCESS })
        })
    }
}

enum Failed {
    Io(io::Error),
    Error(Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

struct Listing<'a> {
    ls: &'a Ls,
    files: Files,
    first: bool,
    damaged: bool,
}

impl Listing<'_> {
    async fn all(&mut self, out: &mut impl Write) -> std::result::Result<(), Failed> {
        let asked = &Name::from_shown(self.ls.path.as_bytes()).0[..];
        let failed = |why: FileError| Failed::Error(Error::new("cannot list", &self.ls.path, why));
        let place = self.files.resolve(asked).await.map_err(failed)?;
        let kind = self.files.kind(place).await.map_err(failed)?;
        if self.ls.json {
            write!(out, "[")?;
        }
        if kind == FileType::Directory {
            let mut walk = Walk::new(&self.files, place, &trimmed(asked), self.ls.recursive);
            loop {
                match walk.next().await {
                    Ok(Some(entry)) => self.one(walk.path(), entry.place, out).await?,
                    Ok(None) => break,
                    Err(why) => self.complain(walk.path(), &why),
                }
            }
        } else {
            self.one(asked, place, out).await?;
        }
        if self.ls.json {
            writeln!(out, "\n]")?;
        }
        Ok(())
    }

    fn complain(&mut self, path: &[u8], why: &FileError) {
        let path = if path.is_empty() { b"/" } else { path };
        report(&Error::new("damaged", Name(path.to_vec()), why));
        self.damaged = true;
    }

    async fn one(
        &mut self,
        path: &[u8],
        place: Place,
        out: &mut impl Write,
    ) -> std::result::Result<(), Failed> {
        if !self.ls.long && !self.ls.json {
            writeln!(out, "{}", Name(path.to_vec()))?;
            return Ok(());
        }
        let stat = match self.files.stat(place).await {
            Ok(stat) => stat,
            Err(why) => {
                self.complain(path, &why);
                return Ok(());
            }
        };
        let is_link = stat.as_ref().is_some_and(|it| kind_of(it.mode.get()) == FileType::Symlink);
        let target = match is_link {
            false => None,
            true => match self.files.target(place).await {
                Ok(target) => Some(target),
                Err(why) => {
                    self.complain(path, &why);
                    None
                }
            },
        };
        let thing = Thing { path, place, stat, target };
        if self.ls.json {
            let comma = if std::mem::replace(&mut self.first, false) { "" } else { "," };
            let text = serde_json::to_string(&thing.listed());
            let text = text.map_err(|why| Failed::Error(Error::plain("cannot write JSON", why)))?;
            write!(out, "{comma}\n  {text}")?;
        } else {
            thing.long(out)?;
        }
        Ok(())
    }
}

/// A path with one leading slash and no trailing slash.
fn trimmed(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    parts.flat_map(|part| [b"/", part].concat()).collect()
}

/// The word for a kind.
const fn kind_word(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::Symlink => "link",
        FileType::Unknown | FileType::Xattr => "unknown",
    }
}

impl Thing<'_> {
    /// The mode; a subvolume's stand-in directory without an inode has 0755.
    fn mode(&self) -> u32 {
        self.stat.as_ref().map_or(0o040_755, |stat| stat.mode.get())
    }

    fn device(&self) -> Option<String> {
        let stat = self.stat.as_ref()?;
        match kind_of(stat.mode.get()) {
            FileType::CharacterDevice | FileType::BlockDevice => {
                let (major, minor) = device_numbers(stat.rdev.get());
                Some(format!("{major}:{minor}"))
            }
            FileType::Unknown
            | FileType::Regular
            | FileType::Directory
            | FileType::Fifo
            | FileType::Socket
            | FileType::Symlink
            | FileType::Xattr => None,
        }
    }

    fn listed(&self) -> Listed {
        let stat = self.stat.as_ref();
        let (subvolume, inode) = match self.place {
            Place::Inode { tree, inode } => (Some(tree.id), Some(inode)),
            Place::Empty => (None, None),
        };
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let is_text = std::str::from_utf8(self.path).is_ok();
        let base64 = || base64::engine::general_purpose::STANDARD.encode(self.path);
        Listed {
            path: lossy(self.path),
            path_base64: (!is_text).then(base64),
            kind: kind_word(kind_of(self.mode())),
            mode: format!("{:04o}", self.mode() & 0o7777),
            links: stat.map_or(1, |stat| stat.nlink.get()),
            uid: stat.map_or(0, |stat| stat.uid.get()),
            gid: stat.map_or(0, |stat| stat.gid.get()),
            size: stat.map_or(0, |stat| stat.size.get()),
            modified: stat.map_or(0, |stat| stat.mtime.sec.get() as i64),
            subvolume,
            inode,
            target: self.target.as_deref().map(lossy),
            device: self.device(),
        }
    }

    fn long(&self, out: &mut impl Write) -> io::Result<()> {
        let mode = inspect::mode(self.mode());
        let stat = self.stat.as_ref();
        let (links, uid, gid) =
            stat.map_or((1, 0, 0), |stat| (stat.nlink.get(), stat.uid.get(), stat.gid.get()));
        let size = stat.map_or(0, |stat| stat.size.get()).to_string();
        let size = self.device().unwrap_or(size);
        let time = inspect::utc(stat.map_or(0, |stat| stat.mtime.sec.get() as i64));
        let name = Name(self.path.to_vec());
        write!(out, "{mode} {links:>3} {uid:>5} {gid:>5} {size:>12} {time} {name}")?;
        match &self.target {
            Some(target) => writeln!(out, " -> {}", Name(target.clone())),
            None => writeln!(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_trimmed_to_one_slash_in_front_of_each_part() {
        assert_eq!(trimmed(b"//a/b//"), b"/a/b");
        assert_eq!(trimmed(b"/"), b"");
    }
}
