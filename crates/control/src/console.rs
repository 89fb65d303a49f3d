//! The program around a daemon, and the place of its log.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

use crate::error::{Error, Result};

/// The program around a daemon, as far as it talks to its user. The daemon logs everything else.
pub trait Console {
    /// Sends the log to `place` from now on; with `and_stderr` also to standard error, which may be closed later.
    ///
    /// # Errors
    /// The place cannot be opened.
    fn open_log(&mut self, place: &LogPlace, and_stderr: bool) -> Result<()>;

    /// Has a separate thread write the log from now on, so that no serving thread waits for a reader of the log. Returns a
    /// function that waits briefly until everything is written.
    fn hand_over_log(&mut self) -> fn();

    /// Everything is served: `text` has a line for each array, pool and volume, and then `ready`.
    ///
    /// # Errors
    /// The text was not written. The daemon logs the error, and continues.
    fn announce(&mut self, text: &str) -> Result<()>;

    /// The daemon's forced shutdown failed. The process exits as soon as this returns.
    fn complain(&mut self, error: &Error);
}

/// The place of a daemon's log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogPlace {
    /// Standard error.
    Stderr,
    /// The system's log (syslog(3)).
    Syslog,
    /// A file, to which lines are added.
    File(PathBuf),
}

impl LogPlace {
    /// The path of a file.
    pub fn file_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::File(path) => Some(path),
            Self::Stderr | Self::Syslog => None,
        }
    }
}

impl From<String> for LogPlace {
    fn from(text: String) -> Self {
        match text.as_str() {
            "stderr" => Self::Stderr,
            "syslog" => Self::Syslog,
            _ => Self::File(text.into()),
        }
    }
}

impl<'de> Deserialize<'de> for LogPlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}
