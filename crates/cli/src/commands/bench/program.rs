//! Programs that the measurement runs, this one among them.

use std::fmt::Display;
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result};

/// Runs a program to its end; what it printed.
///
/// # Errors
/// There is none, or it failed: with what it said.
pub(super) fn run(program: &str, args: &[&str]) -> Result<String> {
    finish(Command::new(program).args(args), program, args)
}

/// Runs this program with other arguments, in `dir`.
///
/// # Errors
/// It failed: with what it said.
pub(super) fn run_self(args: &[&str], dir: &Path) -> Result<()> {
    // By this path it is found even when its file has been replaced since it was started.
    let mut command = Command::new("/proc/self/exe");
    finish(command.args(args).current_dir(dir), "ashlar", args).map(drop)
}

fn finish(command: &mut Command, program: &str, args: &[&str]) -> Result<String> {
    let failed =
        |why: &dyn Display| Error::new("cannot run", format!("{program} {}", args.join(" ")), why);
    let output = command.output().map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
