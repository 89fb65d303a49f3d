//! `serve --daemon`: the daemon in the background.
//!
//! ```text
//! command                               daemon
//! starts the program anew ------------> its own session, / as its directory
//! waits                                 starts; logs and fails on the command's standard error
//!       <------------------- a byte --- everything is served; standard streams become /dev/null
//! exits with 0
//!       <-------- end of the pipe ----- could not start
//! exits with the daemon's code
//! ```
//!
//! A fork in the middle would lose threads and rings, and one before would have to be first of all, in a program that
//! is not allowed unsafe code. The pipe is the daemon's standard input, so no descriptor needs a number. If the
//! command was killed meanwhile, by ^C say, the daemon ends when it cannot tell the command that it is ready.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use ashlar_engine::process::pass_on_nothing;
use rustix::process::{chdir, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdin};

use crate::error::{Error, FAILURE, Result};

/// In the environment of a daemon that was started by a command that waits.
const MARK: &str = "ASHLAR_SERVE_IN_BACKGROUND";
/// What a daemon says when it is ready.
const READY: u8 = 1;

/// Whether this process is to become the daemon, and not the command that starts it.
pub fn is_it() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Starts this program anew with `args`, its own command line, as a daemon, and waits until it is ready. Returns the
/// exit code.
///
/// # Errors
/// It could not be started, or ended without a message of its own.
pub fn start(mut args: impl Iterator<Item = OsString>) -> Result<ExitCode> {
    let failed = |error: io::Error| Error::plain("cannot start in the background", error);
    let (mut said, saying) = io::pipe().map_err(failed)?;
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    command.args(args).env(MARK, "1").stdin(saying);
    // A script's lock file, say, must not stay open as long as the daemon runs.
    pass_on_nothing().map_err(failed)?;
    let mut child = command.spawn().map_err(failed)?;
    // Our copy of the pipe's other end.
    drop(command);
    match said.read_exact(&mut [0]) {
        Ok(()) => return Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(failed(error)),
    }
    let status = child.wait().map_err(failed)?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Err(Error::failed("the daemon was stopped before it was ready")),
        Some(code) => Ok(ExitCode::from(code)),
        None => Err(Error::plain("the daemon ended before it was ready", status).code(FAILURE)),
    }
}

/// The background as the daemon sees it.
#[derive(Debug)]
pub(crate) struct Background {
    /// The command that waits.
    command: File,
    /// `/dev/null`.
    nothing: File,
}

impl Background {
    /// Leaves the terminal and the directory of the command that started this process. Relative paths mean something
    /// else from now on.
    ///
    /// # Errors
    /// Those of the system calls.
    pub(crate) fn begin() -> Result<Self> {
        let begin = || {
            let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
            let command = File::from(rustix::io::fcntl_dupfd_cloexec(stdin(), 3)?);
            dup2_stdin(&nothing)?;
            // Before workers are started, which inherit it.
            setsid()?;
            // The program was started by the name /proc/self/exe, which is not what users look for.
            rustix::thread::set_name(c"ashlar")?;
            chdir("/")?;
            Ok(Self { command, nothing })
        };
        begin().map_err(|error: io::Error| Error::plain("cannot go to the background", error))
    }

    /// Lets the command return. Standard output and error lead nowhere from now on.
    ///
    /// # Errors
    /// The command is gone: the daemon is not wanted any more.
    pub(crate) fn ready(&self) -> io::Result<()> {
        dup2_stdout(&self.nothing)?;
        dup2_stderr(&self.nothing)?;
        (&self.command).write_all(&[READY])
    }
}
