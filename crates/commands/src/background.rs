//! A process in the background: the daemon of `serve --daemon`, and a scrub of btrfs.
//!
//! ```text
//! command                               process
//! starts the program anew ------------> its own session
//! waits                                 starts; logs and fails on the command's standard error
//!       <------------------- a line --- it works; standard streams become /dev/null
//! exits with 0
//!       <-------- end of the pipe ----- could not start
//! exits with the process's code
//! ```
//!
//! A fork in the middle would lose threads and rings, and an early one would have to come before everything else, in a program
//! that must not use unsafe code. The pipe is the process's standard input, so no descriptor needs a number. If the
//! command was killed meanwhile, for example by ^C, the daemon ends when it cannot report to the command that it is ready.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, ExitStatus};

use ashlar_engine::process::pass_on_nothing;
use rustix::process::{chdir, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdin};

use crate::error::{Error, FAILURE, Result};

/// In the environment of a daemon that was started by a command that waits.
const MARK: &str = "ASHLAR_SERVE_IN_BACKGROUND";

/// Whether this process is to become the daemon, and not the command that starts it.
pub fn is_it() -> bool {
    is_marked(MARK)
}

/// Starts this program anew with `args`, its own command line, as a daemon, and waits until it is ready. Returns the
/// exit code.
///
/// # Errors
/// It could not be started, or ended without a message of its own.
pub fn start(args: impl Iterator<Item = OsString>) -> Result<ExitCode> {
    let status = match launch(MARK, args)? {
        Launch::Ready { .. } => return Ok(ExitCode::SUCCESS),
        Launch::Ended(status) => status,
    };
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Err(Error::failed("the daemon was stopped before it was ready")),
        Some(code) => Ok(ExitCode::from(code)),
        None => Err(Error::plain("the daemon ended before it was ready", status).code(FAILURE)),
    }
}

/// The outcome of starting a process.
pub(crate) enum Launch {
    /// It is ready.
    Ready {
        /// Its number.
        pid: u32,
        /// What it says.
        message: String,
    },
    /// It ended before that, and has reported why.
    Ended(ExitStatus),
}

/// Whether this process has `mark` in its environment.
pub(crate) fn is_marked(mark: &str) -> bool {
    std::env::var_os(mark).is_some()
}

/// Starts this program anew with `args`, its own command line, and `mark` in its environment, and waits until it is
/// ready.
///
/// # Errors
/// It could not be started.
pub(crate) fn launch(mark: &str, mut args: impl Iterator<Item = OsString>) -> Result<Launch> {
    let failed = |error: io::Error| Error::plain("cannot start in the background", error);
    let (said, saying) = io::pipe().map_err(failed)?;
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    command.args(args).env(mark, "1").stdin(saying);
    // Otherwise, for example, a script's lock file would stay open as long as the process runs.
    pass_on_nothing().map_err(failed)?;
    let mut child = command.spawn().map_err(failed)?;
    // Our copy of the pipe's other end.
    drop(command);
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line).map_err(failed)?;
    match line.strip_suffix('\n') {
        Some(message) => Ok(Launch::Ready { pid: child.id(), message: message.to_owned() }),
        None => child.wait().map(Launch::Ended).map_err(failed),
    }
}

/// The background as the process in it sees it.
#[derive(Debug)]
pub struct Background {
    /// The command that waits.
    command: File,
    /// `/dev/null`.
    nothing: File,
    /// Whether standard error stays where it is.
    pub keeps_stderr: bool,
}

impl Background {
    /// Leaves the terminal of the command that started this process.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn begin() -> Result<Self> {
        let begin = || {
            let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
            let command = File::from(rustix::io::fcntl_dupfd_cloexec(stdin(), 3)?);
            dup2_stdin(&nothing)?;
            // Before workers are started, which inherit it.
            setsid()?;
            // The program was started by the name /proc/self/exe, which is not what users look for.
            rustix::thread::set_name(c"ashlar")?;
            Ok(Self { command, nothing, keeps_stderr: false })
        };
        begin().map_err(failed)
    }

    /// Leaves the directory of the command. Relative paths have another meaning from now on.
    ///
    /// # Errors
    /// That of chdir(2).
    pub fn leave_directory(&self) -> Result<()> {
        chdir("/").map_err(|error| failed(error.into()))
    }

    /// Lets the command return, and passes it `message`, a line. Standard output and error are `/dev/null` from now on, unless
    /// the log is meant to stay there.
    ///
    /// # Errors
    /// The command has ended: the process is no longer wanted.
    pub fn ready(&self, message: &str) -> io::Result<()> {
        dup2_stdout(&self.nothing)?;
        if !self.keeps_stderr {
            dup2_stderr(&self.nothing)?;
        }
        (&self.command).write_all(format!("{message}\n").as_bytes())
    }
}

fn failed(error: io::Error) -> Error {
    Error::plain("cannot go to the background", error)
}
