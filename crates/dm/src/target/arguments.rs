//! The arguments of a target, parsed one after the other.

use std::slice;
use std::str::FromStr;

use ashlar_block::{Sector, Sectors, Status};
use thiserror::Error;

use crate::text::parse_number;

/// Why a target cannot be constructed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TargetError {
    /// There are too few arguments.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// There are too many arguments.
    #[error("'{0}' is one argument too many")]
    Surplus(String),
    /// A number is malformed, or too large for its field.
    #[error("{what} is '{found}', but must be a number of at most {bits} bits")]
    NotANumber {
        /// The argument.
        what: &'static str,
        /// Its text.
        found: String,
        /// Its maximum size.
        bits: usize,
    },
    /// The device does not exist.
    #[error("there is no device '{0}'")]
    NoDevice(String),
    /// The device ends before the end of the area.
    #[error("device {name} is smaller: it has {size} sectors, {len} from {start} on are wanted")]
    TooSmall {
        /// The device.
        name: String,
        /// Its size.
        size: Sectors,
        /// Start of the area on it.
        start: Sector,
        /// Length of the area.
        len: Sectors,
    },
    /// The area does not consist of whole blocks.
    #[error(
        "{what} {sectors} is not a multiple of the {block} sectors of a block of device {name}"
    )]
    Unaligned {
        /// The misaligned value.
        what: &'static str,
        /// The value in sectors.
        sectors: u64,
        /// The logical block size.
        block: Sectors,
        /// The device.
        name: String,
    },
    /// A device failed during construction.
    #[error("device {name}: {status}")]
    Io {
        /// The device.
        name: String,
        /// The error.
        status: Status,
    },
    /// The arguments are inconsistent.
    #[error("{0}")]
    Invalid(String),
}

/// The text after the type in a line, parsed word by word.
#[derive(Clone)]
pub struct Arguments<'a> {
    words: slice::Iter<'a, String>,
}

impl<'a> Arguments<'a> {
    /// The arguments `words`.
    pub fn new(words: &'a [String]) -> Self {
        Self { words: words.iter() }
    }

    /// The number of remaining words.
    pub fn left(&self) -> usize {
        self.words.len()
    }

    /// The next word; `what` describes it in errors.
    ///
    /// # Errors
    /// [`TargetError::Missing`].
    pub fn word(&mut self, what: &'static str) -> Result<&'a str, TargetError> {
        self.words.next().map(String::as_str).ok_or(TargetError::Missing(what))
    }

    /// The next word, which must consist of digits.
    ///
    /// # Errors
    /// It is missing, not a number, or too large for its type.
    pub fn number<T: FromStr>(&mut self, what: &'static str) -> Result<T, TargetError> {
        let word = self.word(what)?;
        let error =
            || TargetError::NotANumber { what, found: word.to_owned(), bits: 8 * size_of::<T>() };
        parse_number(word).ok_or_else(error)
    }

    /// Checks that no words are left.
    ///
    /// # Errors
    /// [`TargetError::Surplus`].
    pub fn end(mut self) -> Result<(), TargetError> {
        match self.words.next() {
            Some(word) => Err(TargetError::Surplus(word.clone())),
            None => Ok(()),
        }
    }
}
