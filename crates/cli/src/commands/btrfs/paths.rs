//! `ashlar btrfs inspect paths`: the owners of an address.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use ashlar_btrfs::backref::{self, FilePart, Owned, Owners};
use ashlar_btrfs::error::TreeError;
use ashlar_btrfs::inspect;
use ashlar_btrfs::units::Logical;
use ashlar_btrfs::volume::FileSystem;
use ashlar_host::error::{Error, Result};
use clap::Args;

use super::volumes::Chosen;
use super::{output, with, written};

/// Print the files or trees that use an address
///
/// The address is in the file system's address space, as in messages of scrubs and of the kernel
/// (`logical`). For data, prints all files that contain it, with all their names, including hard
/// links, reflinks and snapshots. Names are paths from the first subvolume on; control
/// characters, bytes that are not UTF-8 and the backslash appear as \xNN. Prints at most 1000 parts of files.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 found, 1 unused or not found out.

Examples:
  ashlar btrfs inspect paths 30523392 disk*.img
  ashlar btrfs inspect paths --len 1048576 30523392 disk*.img")]
pub(crate) struct Paths {
    /// The address
    #[arg(value_name = "LOGICAL")]
    logical: u64,

    #[command(flatten)]
    chosen: Chosen,

    /// Number of bytes from there on
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    len: u64,
}

impl Paths {
    pub(super) fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let failed = |why: TreeError| Error::plain("cannot find out whose it is", why);
            let all = backref::owners(fs, Logical(self.logical), self.len).await.map_err(failed)?;
            let is_owned = |owned: &Owned| match &owned.owners {
                Owners::Data(parts) => !parts.is_empty(),
                Owners::Tree { roots, .. } => !roots.is_empty(),
            };
            if !all.iter().any(is_owned) {
                let text = format!("nobody has the bytes at {}", self.logical);
                return Err(Error::failed(text));
            }
            let mut out = output();
            for owned in &all {
                match tell(fs, owned, &mut out).await {
                    Ok(()) => {}
                    Err(Failed::Io(error)) => {
                        written(Err(error))?;
                        return Ok(ExitCode::SUCCESS);
                    }
                    Err(Failed::Tree(why)) => return Err(failed(why)),
                }
            }
            written(out.flush())?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

enum Failed {
    Io(io::Error),
    Tree(TreeError),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<TreeError> for Failed {
    fn from(error: TreeError) -> Self {
        Self::Tree(error)
    }
}

async fn tell(
    fs: &Arc<FileSystem>,
    owned: &Owned,
    out: &mut impl Write,
) -> std::result::Result<(), Failed> {
    let Owned { start, length, owners, more } = owned;
    match owners {
        Owners::Data(parts) => {
            writeln!(out, "data {start} length {length}")?;
            for FilePart { root, inode, offset } in parts {
                let names = backref::names_of(fs, *root, *inode).await?;
                if names.is_empty() {
                    writeln!(out, "\troot {root} inode {inode} offset {offset} (no name)")?;
                }
                for name in names {
                    let path = name.full();
                    writeln!(out, "\troot {root} inode {inode} offset {offset} path {path}")?;
                }
            }
        }
        Owners::Tree { level, first_key, roots } => {
            write!(out, "tree block {start} level {level}")?;
            match first_key {
                Some(key) => writeln!(out, " first {}", inspect::key(*key))?,
                None => writeln!(out)?,
            }
            for root in roots {
                writeln!(out, "\troot {root} ({})", inspect::object(*root, 0))?;
            }
        }
    }
    if *more {
        writeln!(out, "\tand perhaps more")?;
    }
    Ok(())
}
