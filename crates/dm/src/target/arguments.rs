//! The arguments of a target, taken one after the other.

use std::slice;
use std::str::FromStr;

use ashlar_block::{Sector, Sectors, Status};
use thiserror::Error;

use crate::text::parse_number;

/// Why a target cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TargetError {
    /// There are too few arguments.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// There are too many.
    #[error("'{0}' is one argument too many")]
    Surplus(String),
    /// A number is none, or too large for what it stands for.
    #[error("{what} is '{found}', but must be a number of at most {bits} bits")]
    NotANumber {
        /// Which argument.
        what: &'static str,
        /// What is there.
        found: String,
        /// How large it may be.
        bits: usize,
    },
    /// Nobody knows the device.
    #[error("there is no device '{0}'")]
    NoDevice(String),
    /// The device ends before the area that is to be used.
    #[error("device {name} is smaller: it has {size} sectors, {len} from {start} on are wanted")]
    TooSmall {
        /// The device.
        name: String,
        /// Its size.
        size: Sectors,
        /// Where the area begins on it.
        start: Sector,
        /// How long the area is.
        len: Sectors,
    },
    /// The area cannot be addressed in whole blocks.
    #[error(
        "{what} {sectors} is not a multiple of the {block} sectors of a block of device {name}"
    )]
    Unaligned {
        /// What must be aligned.
        what: &'static str,
        /// How much it is.
        sectors: u64,
        /// The logical block size.
        block: Sectors,
        /// The device.
        name: String,
    },
    /// A device failed while the target looked at it.
    #[error("device {name}: {status}")]
    Io {
        /// The device.
        name: String,
        /// How it failed.
        status: Status,
    },
    /// The arguments say what cannot be.
    #[error("{0}")]
    Invalid(String),
}

/// What a line says behind the type, to be taken word by word.
#[derive(Clone)]
pub struct Arguments<'a> {
    words: slice::Iter<'a, String>,
}

impl<'a> Arguments<'a> {
    /// All of `words`.
    pub fn new(words: &'a [String]) -> Self {
        Self { words: words.iter() }
    }

    /// How many are left.
    pub fn left(&self) -> usize {
        self.words.len()
    }

    /// The next one, `what` it stands for.
    ///
    /// # Errors
    /// [`TargetError::Missing`].
    pub fn word(&mut self, what: &'static str) -> Result<&'a str, TargetError> {
        self.words.next().map(String::as_str).ok_or(TargetError::Missing(what))
    }

    /// The next one, which must be a number of digits alone.
    ///
    /// # Errors
    /// It is missing, none, or too large for its type.
    pub fn number<T: FromStr>(&mut self, what: &'static str) -> Result<T, TargetError> {
        let word = self.word(what)?;
        let error =
            || TargetError::NotANumber { what, found: word.to_owned(), bits: 8 * size_of::<T>() };
        parse_number(word).ok_or_else(error)
    }

    /// There must be no more.
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
