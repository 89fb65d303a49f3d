//! `ashlar btrfs ls`: directories.

use std::io::Write;
use std::process::ExitCode;

use ashlar_commands::btrfs::listing::ListedFile;
use ashlar_daemon::error::{Error, FAILURE, Result};
use ashlar_disks::sandbox::Sandbox;
use ashlar_files::{FileError, FileType, Name, Place, Tree, Walk, trimmed};
use ashlar_terminal::bulk::{BulkError, text_output, written};
use clap::Args;

use super::volumes::FileSystemArgs;
use super::{SubvolumeArgs, with_files};
use crate::output::report;

/// List a directory of an unmounted file system
///
/// PATH begins in the root directory of the first subvolume; other subvolumes and snapshots are
/// directories in it. The order is that of the directory. Printable ASCII in names is printed
/// unchanged; other bytes, and the backslash, as \xNN.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar btrfs ls / disk*.img
  ashlar btrfs ls -lR /home disk*.img
  ashlar btrfs ls --json /etc disk0.img")]
pub(crate) struct Ls {
    /// The directory, or a file
    #[arg(value_name = "PATH")]
    path: String,

    #[command(flatten)]
    chosen: FileSystemArgs,

    #[command(flatten)]
    top: SubvolumeArgs,

    /// Also print details: type, mode, links, owner, group, size and time of change
    #[arg(short, long)]
    long: bool,

    /// Also list the directories below, as paths
    #[arg(short = 'R', long)]
    recursive: bool,

    /// Print JSON: an array of objects
    #[arg(long)]
    json: bool,
}

impl Ls {
    pub(super) fn run(self) -> Result<ExitCode> {
        with_files(Sandbox::of(&self.chosen.devices), &self.chosen, self.top, async |files| {
            let mut out = text_output();
            let mut listing = Listing { ls: &self, files, first: true, damaged: false };
            let listed = listing.all(&mut out).await;
            if !matches!(listed, Err(BulkError::Gone)) {
                written(out.flush())?;
            }
            if let Err(BulkError::Failed(error)) = listed {
                return Err(error);
            }
            Ok(if listing.damaged { ExitCode::from(FAILURE) } else { ExitCode::SUCCESS })
        })
    }
}

struct Listing<'a> {
    ls: &'a Ls,
    files: &'a dyn Tree,
    first: bool,
    damaged: bool,
}

impl Listing<'_> {
    async fn all(&mut self, out: &mut impl Write) -> std::result::Result<(), BulkError> {
        let asked = &Name::from_shown(self.ls.path.as_bytes()).0[..];
        let failed =
            |why: FileError| BulkError::Failed(Error::new("cannot list", &self.ls.path, why));
        let place = self.files.resolve(asked).await.map_err(failed)?;
        let kind = self.files.kind(place).await.map_err(failed)?;
        if self.ls.json {
            write!(out, "[")?;
        }
        if kind == FileType::Directory {
            let mut walk = Walk::new(self.files, place, &trimmed(asked), self.ls.recursive);
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
    ) -> std::result::Result<(), BulkError> {
        if !self.ls.long && !self.ls.json {
            writeln!(out, "{}", Name(path.to_vec()))?;
            return Ok(());
        }
        let mut file = match ListedFile::read(self.files, path, place).await {
            Ok(file) => file,
            Err(why) => {
                self.complain(path, &why);
                return Ok(());
            }
        };
        if let Err(why) = file.read_target(self.files).await {
            self.complain(path, &why);
        }
        if self.ls.json {
            let comma = if std::mem::replace(&mut self.first, false) { "" } else { "," };
            let text = serde_json::to_string(&file);
            let text = text.map_err(|why| Error::plain("cannot write JSON", why))?;
            write!(out, "{comma}\n  {text}")?;
        } else {
            file.print_long(out)?;
        }
        Ok(())
    }
}
