//! `ashlar completions`: completion scripts for shells.

use std::process::ExitCode;

use ashlar_host::error::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output;

/// Print a completion script
///
/// For bash: ashlar completions bash > /etc/bash_completion.d/ashlar
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints the script for `cli`.
    pub(crate) fn run(self, mut cli: Command) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut cli, "ashlar", &mut script);
        output::print(&String::from_utf8_lossy(&script))?;
        Ok(ExitCode::SUCCESS)
    }
}
