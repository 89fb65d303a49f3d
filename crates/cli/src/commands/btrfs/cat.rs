//! `ashlar btrfs cat`: the contents of a file.

use std::io::Write;
use std::process::ExitCode;

use ashlar_daemon::error::{Error, FAILURE, Result};
use ashlar_disks::sandbox::Sandbox;
use ashlar_files::{FileError, Name, Piece};
use ashlar_terminal::bulk::{output, written, zeroes};
use clap::Args;

use super::volumes::FileSystemArgs;
use super::{SubvolumeArgs, with_files};
use crate::output::report;

/// Write a file of an unmounted file system to standard output
///
/// Verifies each block, and reads another mirror if it is wrong. The output ends at the first block
/// without a good mirror; with --ignore-errors, zeroes replace lost data.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed or something is lost, 2 wrong usage.

Examples:
  ashlar btrfs cat /etc/fstab disk*.img
  ashlar btrfs cat --ignore-errors /database disk0.img >database")]
pub(crate) struct Cat {
    /// The file
    #[arg(value_name = "PATH")]
    path: String,

    #[command(flatten)]
    chosen: FileSystemArgs,

    #[command(flatten)]
    top: SubvolumeArgs,

    /// Write zeroes for lost data, report them, and continue
    #[arg(long)]
    ignore_errors: bool,
}

impl Cat {
    pub(super) fn run(self) -> Result<ExitCode> {
        with_files(Sandbox::of(&self.chosen.devices), &self.chosen, self.top, async |files| {
            let failed = |why: FileError| Error::new("cannot read", &self.path, why);
            let place =
                files.resolve(&Name::from_shown(self.path.as_bytes()).0).await.map_err(failed)?;
            let mut reader = files.read(place).await.map_err(failed)?;
            let (mut out, mut code) = (output(), ExitCode::SUCCESS);
            while let Some(piece) = reader.next().await {
                let result = match piece {
                    Piece::Data { bytes, .. } => out.write_all(&bytes),
                    Piece::Hole { len, .. } => zeroes(&mut out, len),
                    Piece::Lost { offset, len, why } => {
                        let what = format!("{}, bytes {offset} to {}", self.path, offset + len - 1);
                        let error = Error::new("lost", what, why);
                        if !self.ignore_errors {
                            written(out.flush())?;
                            return Err(error.hint("--ignore-errors continues behind it"));
                        }
                        report(&error);
                        code = ExitCode::from(FAILURE);
                        zeroes(&mut out, len)
                    }
                };
                if result.is_err() {
                    written(result)?;
                    return Ok(code);
                }
            }
            written(out.flush())?;
            Ok(code)
        })
    }
}
