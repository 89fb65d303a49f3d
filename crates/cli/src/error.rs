//! What a user sees when a command fails: one line, what, where and why, and a hint what to do.

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

/// What a command ends with.
pub(crate) type Result<T = ExitCode> = std::result::Result<T, Error>;

/// Exit code for what could not be done.
pub(crate) const FAILURE: u8 = 1;
/// Exit code for a command that makes no sense (clap's own, too).
pub(crate) const USAGE: u8 = 2;
/// Exit code for a defect of the program (Rust's own for a panic, too).
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

    /// Something went wrong that has its place in its text.
    pub(crate) fn plain(what: impl Display, why: impl Display) -> Self {
        Self { text: format!("{what}: {why}"), hint: None, code: FAILURE }
    }

    /// Something could not be done, in words that say all.
    pub(crate) fn failed(text: impl Display) -> Self {
        Self { text: text.to_string(), hint: None, code: FAILURE }
    }

    /// Arguments that make no sense.
    pub(crate) fn usage(text: impl Display) -> Self {
        Self { text: text.to_string(), hint: None, code: USAGE }
    }

    /// To end the program with this code, if it is the worse one.
    pub(crate) fn code_at_least(self, code: u8) -> Self {
        let worse = self.code.max(code);
        self.code(worse)
    }

    /// With advice.
    pub(crate) fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// To end the program with this code.
    pub(crate) fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// What went wrong, and the advice, for somebody else to print.
    pub(crate) fn into_parts(self) -> (String, Option<String>) {
        (self.text, self.hint)
    }

    /// Prints it and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        ExitCode::from(self.print())
    }

    /// Prints it and gives the number of the exit code.
    pub(crate) fn print(&self) -> u8 {
        // One line, whatever the message of some layer looks like.
        let text = self.text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let hint = self.hint.as_ref().map_or_else(String::new, |hint| format!("hint: {hint}\n"));
        output::to_stderr(&format!("ashlar: {text}\n{hint}"));
        self.code
    }
}
