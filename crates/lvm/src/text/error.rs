//! Syntax errors of a text, with their lines.

use thiserror::Error;

/// Why a text cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}: {problem}")]
pub struct TextError {
    /// Counted from one.
    pub line: usize,
    /// The error.
    pub problem: Problem,
}

/// The possible errors of a text.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Problem {
    /// An unexpected token.
    #[error("expected {expected}, found {found}")]
    Unexpected {
        /// The expected token.
        expected: &'static str,
        /// The actual token, shortened.
        found: String,
    },
    /// A string without a closing quotation mark.
    #[error("the string that begins here never ends")]
    OpenString,
    /// A number with more than 64 bits.
    #[error("the number {0} is too large")]
    LargeNumber(String),
    /// Sections are nested too deep.
    #[error("sections are nested more than {0} deep")]
    Nesting(usize),
    /// The text is larger than any volume group needs.
    #[error("the text has more than {0} bytes")]
    Size(usize),
    /// There are more entries than any volume group needs.
    #[error("the text has more than {0} entries and values")]
    Entries(usize),
}
