//! A scrub in a separate process, which continues after the command that started it.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::ExitCode;

use super::run::ScrubRun;
use crate::background::{Background, Launch, is_marked, launch};
use crate::error::{Error, FAILURE, Result};

/// In the environment of the background process.
const MARK: &str = "ASHLAR_SCRUB_BACKGROUND";

/// The outcome of starting a background process.
pub enum BackgroundScrub {
    /// It scrubs.
    Running {
        /// Its number.
        pid: u32,
        /// The UUID of the file system.
        fsid: String,
    },
    /// It ended before that, and has reported why.
    Ended(ExitCode),
}

/// Whether this process is to scrub in the background, and not the command that starts it.
pub fn is_background() -> bool {
    is_marked(MARK)
}

/// Starts this program anew with `args`, its own command line, and waits until that process scrubs.
///
/// # Errors
/// It could not be started.
pub fn start_in_background(args: impl Iterator<Item = OsString>) -> Result<BackgroundScrub> {
    Ok(match launch(MARK, args)? {
        Launch::Ready { pid, message } => BackgroundScrub::Running { pid, fsid: message },
        Launch::Ended(status) => {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            BackgroundScrub::Ended(ExitCode::from(code.unwrap_or(FAILURE)))
        }
    })
}

/// A process that has left the terminal of the command that started it, which waits.
#[derive(Debug)]
pub struct BackgroundProcess(Background);

/// Leaves the terminal of the command that started this process, if it is to scrub in the background: outside of the sandbox,
/// which has no way to do so.
///
/// # Errors
/// Those of the system calls.
pub fn leave_terminal() -> Result<Option<BackgroundProcess>> {
    is_background().then(|| Background::begin().map(BackgroundProcess)).transpose()
}

impl ScrubRun {
    /// Lets the command that started this process return.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn go_to_background(&self, process: &BackgroundProcess) -> Result<()> {
        match process.0.ready(&self.fsid().to_string()) {
            // The scrub continues even if that command has ended.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Error::plain("cannot go to the background", error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
