//! What is wrong with a text, and in which line.

use thiserror::Error;

/// Why a text cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}: {problem}")]
pub struct TextError {
    /// Counted from one.
    pub line: usize,
    /// What is wrong there.
    pub problem: Problem,
}

/// What can be wrong with a text.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Problem {
    /// Another token had to come.
    #[error("expected {expected}, found {found}")]
    Unexpected {
        /// What would have been right.
        expected: &'static str,
        /// The token that is there, shortened.
        found: String,
    },
    /// A string without its closing quotation mark.
    #[error("the string that begins here never ends")]
    OpenString,
    /// A number of more than 64 bits.
    #[error("the number {0} is too large")]
    LargeNumber(String),
    /// Sections in sections in sections.
    #[error("sections are nested more than {0} deep")]
    Nesting(usize),
    /// More bytes than any volume group needs.
    #[error("the text has more than {0} bytes")]
    Size(usize),
    /// More entries than any volume group needs.
    #[error("the text has more than {0} entries and values")]
    Entries(usize),
}
