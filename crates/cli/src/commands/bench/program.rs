//! Programs that the measurement runs, including this one.

use std::fmt::Display;
use std::path::Path;
use std::process::Command;

use ashlar_host::error::{Error, Result};

/// Runs a program to its end; returns its output.
///
/// # Errors
/// The program is missing or failed; the error contains its error output.
pub(super) fn run(program: &str, args: &[&str]) -> Result<String> {
    finish(Command::new(program).args(args), program, args)
}

/// Runs this program with other arguments, in `dir`.
///
/// # Errors
/// It failed; the error contains its error output.
pub(super) fn run_self(args: &[&str], dir: &Path) -> Result<()> {
    // This path works even if the program's file has been replaced since it was started.
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
