//! `ashlar btrfs inspect paths`: the owners of an address.

use std::io::Write;
use std::process::ExitCode;

use ashlar_btrfs::backref;
use ashlar_btrfs::error::TreeError;
use ashlar_btrfs::inspect::{self, InspectError};
use ashlar_btrfs::units::Logical;
use ashlar_daemon::error::{Error, Result};
use ashlar_terminal::bulk::{text_output, written};
use clap::Args;

use super::volumes::FileSystemArgs;
use super::with;

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
    chosen: FileSystemArgs,

    /// Number of bytes from there on
    #[arg(long, value_name = "BYTES", default_value_t = 1)]
    len: u64,
}

impl Paths {
    pub(super) fn run(self) -> Result<ExitCode> {
        with(&self.chosen, async |fs| {
            let failed = |why: TreeError| Error::plain("cannot find out whose it is", why);
            let all = backref::owners(fs, Logical(self.logical), self.len).await.map_err(failed)?;
            if !all.iter().any(|owned| owned.owners.is_any()) {
                let text = format!("nobody has the bytes at {}", self.logical);
                return Err(Error::failed(text));
            }
            let mut out = text_output();
            for owned in &all {
                match inspect::owners(fs, owned, &mut out).await {
                    Ok(()) => {}
                    Err(InspectError::Io(error)) => {
                        written(Err(error))?;
                        return Ok(ExitCode::SUCCESS);
                    }
                    Err(InspectError::Tree(why)) => return Err(failed(why)),
                }
            }
            written(out.flush())?;
            Ok(ExitCode::SUCCESS)
        })
    }
}
