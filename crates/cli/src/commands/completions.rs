//! `ashlar completions`: completion scripts for shells.

use std::process::ExitCode;

use ashlar_host::error::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
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
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "ashlar", &mut script);
        output::print(&String::from_utf8_lossy(&script))?;
        Ok(ExitCode::SUCCESS)
    }
}
