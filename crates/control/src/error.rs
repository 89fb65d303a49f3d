//! The message of a failure: one line with what, where and why, and a hint with advice. The program prints it.

use std::fmt::Display;

/// A failure, with the exit code of a program that ends because of it.
#[derive(Debug)]
pub struct Error {
    text: String,
    hint: Option<String>,
    code: u8,
}

/// The result of an action that may fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Exit code of a failed command.
pub const FAILURE: u8 = 1;
/// Exit code of a command with wrong usage (also that of the parser of the command line).
pub const USAGE: u8 = 2;
/// Exit code after a defect of the program (also Rust's for a panic).
pub const PANICKED: u8 = 101;

impl Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error {
    /// `what` failed at `place` because of `why`: `ashlar: cannot open: disk.img: no such file`.
    pub fn new(what: impl Display, place: impl Display, why: impl Display) -> Self {
        Self { text: format!("{what}: {place}: {why}"), hint: None, code: FAILURE }
    }

    /// A failure whose text already names the place.
    pub fn plain(what: impl Display, why: impl Display) -> Self {
        Self { text: format!("{what}: {why}"), hint: None, code: FAILURE }
    }

    /// A failure with a complete message.
    pub fn failed(text: impl Display) -> Self {
        Self { text: text.to_string(), hint: None, code: FAILURE }
    }

    /// Invalid arguments.
    pub fn usage(text: impl Display) -> Self {
        Self { text: text.to_string(), hint: None, code: USAGE }
    }

    /// Exchanges the exit codes of failures and of invalid arguments for these.
    pub fn codes(self, failed: u8, usage: u8) -> Self {
        match self.code {
            FAILURE => self.code(failed),
            USAGE => self.code(usage),
            _ => self,
        }
    }

    /// Raises the exit code to this one, if it is worse.
    pub fn code_at_least(self, code: u8) -> Self {
        let worse = self.code.max(code);
        self.code(worse)
    }

    /// Adds advice.
    pub fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// Sets the exit code.
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// The message and the advice, for printing elsewhere.
    pub fn into_parts(self) -> (String, Option<String>) {
        (self.text, self.hint)
    }

    /// The advice, if there is any.
    pub fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The exit code.
    pub fn exit_code(&self) -> u8 {
        self.code
    }
}
