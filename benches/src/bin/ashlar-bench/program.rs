//! Programs that the measurement runs, `ashlar` among them.

use std::env;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ashlar_commands::error::{Error, Result};

/// Runs a program to its end; returns its output.
///
/// # Errors
/// The program is missing or failed; the error contains its error output.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String> {
    finish(Command::new(program).args(args).output(), program, args)
}

/// The program `ashlar`: the one beside this one, or else the one in `PATH`.
pub(crate) fn ashlar() -> PathBuf {
    let beside = env::current_exe().ok().map(|path| path.with_file_name("ashlar"));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("ashlar"))
}

/// Runs [`ashlar`] in `dir`; returns its output.
///
/// # Errors
/// The program is not installed, or it failed; the error contains its error output.
pub(crate) fn run_ashlar(args: &[&str], dir: &Path) -> Result<String> {
    let output = Command::new(ashlar()).args(args).current_dir(dir).output();
    if let Err(error) = &output
        && error.kind() == io::ErrorKind::NotFound
    {
        let why = "the program is neither beside ashlar-bench nor in PATH";
        let error = Error::new("cannot run", format!("ashlar {}", args.join(" ")), why);
        return Err(error.hint("install both: ashlar-bench creates and serves volumes with ashlar"));
    }
    finish(output, "ashlar", args)
}

fn finish(output: io::Result<Output>, program: &str, args: &[&str]) -> Result<String> {
    let failed =
        |why: &dyn Display| Error::new("cannot run", format!("{program} {}", args.join(" ")), why);
    let output = output.map_err(|error| failed(&error))?;
    if !output.status.success() {
        return Err(failed(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
