//! `ashlar man`: manual pages, from the same text as `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_host::error::{Error, Result};
use clap::{Args, Command};

/// Write the manual pages
///
/// One for each command: ashlar.1, ashlar-serve.1, ashlar-md-create.1 and so on.
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Where to: a directory that exists
    directory: PathBuf,
}

impl Man {
    /// Writes the pages of `cli`.
    pub(crate) fn run(self, cli: Command) -> Result<ExitCode> {
        clap_mangen::generate_to(cli, &self.directory).map_err(|error| {
            Error::new("cannot write the manual pages", self.directory.display(), error)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
