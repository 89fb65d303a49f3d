//! What a command says to its user, and asks.

use std::fmt::Display;

use ashlar_lvm::command::Question;

use crate::error::{Error, Result};

/// The program around a command on disks, as far as it speaks to its user.
pub trait Dialogue {
    /// Warns of what does not end the command.
    fn warn(&self, text: &dyn Display);

    /// Says these lines, which have no newlines.
    ///
    /// # Errors
    /// They cannot be written.
    fn tell(&self, lines: &[String]) -> Result<()>;

    /// Whether the user agrees.
    ///
    /// # Errors
    /// There is no terminal on which to ask.
    fn confirm(&self, question: &str) -> Result<bool>;
}

impl dyn Dialogue {
    /// Asks these questions, until the user does not agree.
    ///
    /// # Errors
    /// The user did not agree to a question: its refusal; or there is no terminal on which to ask.
    pub fn confirm_all(&self, questions: &[Question]) -> Result<()> {
        for Question { text, refusal } in questions {
            if !self.confirm(text)? {
                return Err(Error::failed(refusal));
            }
        }
        Ok(())
    }
}
