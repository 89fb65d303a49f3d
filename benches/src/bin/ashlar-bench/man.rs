//! `ashlar-bench man`: manual pages, from the same text as `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use ashlar_commands::error::{Error, Result};
use clap::{Args, CommandFactory};

use crate::Cli;

/// Write the manual pages
///
/// One for each measurement: ashlar-bench.1, ashlar-bench-zvol.1 and so on.
#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Where to: a directory that exists
    directory: PathBuf,
}

impl Man {
    pub(crate) fn run(self) -> Result<ExitCode> {
        clap_mangen::generate_to(Cli::command(), &self.directory).map_err(|error| {
            Error::new("cannot write the manual pages", self.directory.display(), error)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
