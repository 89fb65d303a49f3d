//! The message of a failed command: one line with what, where and why, and a hint with advice.

use std::fmt::Display;
use std::process::ExitCode;

use crate::output;

/// A failed command.
#[derive(Debug)]
pub(crate) struct Error {
    text: String,
    hint: Option<String>,
    code: u8,
}

/// The result of a command.
pub(crate) type Result<T = ExitCode> = std::result::Result<T, Error>;

/// Exit code of a failed command.
pub(crate) const FAILURE: u8 = 1;
/// Exit code of a command with wrong usage (also clap's).
pub(crate) const USAGE: u8 = 2;
/// Exit code after a defect of the program (also Rust's for a panic).
pub(crate) const PANICKED: u8 = 101;

impl Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error {
    /// `what` failed at `place` because of `why`: `ashlar: cannot open: disk.img: no such file`.
    pub(crate) fn new(what: impl Display, place: impl Display, why: impl Display) -> Self {
        Self { text: format!("{what}: {place}: {why}"), hint: None, code: FAILURE }
    }

    /// A failure whose text already names the place.
    pub(crate) fn plain(what: impl Display, why: impl Display) -> Self {
        Self { text: format!("{what}: {why}"), hint: None, code: FAILURE }
    }

    /// A failure with a complete message.
    pub(crate) fn failed(text: impl Display) -> Self {
        Self { text: text.to_string(), hint: None, code: FAILURE }
    }

    /// Invalid arguments.
    pub(crate) fn usage(text: impl Display) -> Self {
        Self { text: text.to_string(), hint: None, code: USAGE }
    }

    /// Exchanges the exit codes of failures and of invalid arguments for these.
    pub(crate) fn codes(self, failed: u8, usage: u8) -> Self {
        match self.code {
            FAILURE => self.code(failed),
            USAGE => self.code(usage),
            _ => self,
        }
    }

    /// Raises the exit code to this one, if it is worse.
    pub(crate) fn code_at_least(self, code: u8) -> Self {
        let worse = self.code.max(code);
        self.code(worse)
    }

    /// Adds advice.
    pub(crate) fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Sets the exit code.
    pub(crate) fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// The message and the advice, for printing elsewhere.
    pub(crate) fn into_parts(self) -> (String, Option<String>) {
        (self.text, self.hint)
    }

    /// Prints it and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        ExitCode::from(self.print())
    }

    /// Prints it and returns the exit code as a number.
    pub(crate) fn print(&self) -> u8 {
        // One line, even if a layer's message has several.
        let text = self.text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let hint = self.hint.as_ref().map_or_else(String::new, |hint| format!("hint: {hint}\n"));
        output::to_stderr(&format!("ashlar: {text}\n{hint}"));
        self.code
    }
}
