//! What the command line and a `stack.toml` may both give: structs of options, their fields, and the values of these.

use std::path::PathBuf;

use ashlar_block::byte_volume::Holes;
use ashlar_block::io_max::VolumeLimit;
use ashlar_control::console::LogPlace;
use ashlar_engine::BackEnd;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable as Table, Deserializer, Error as BadValue};

use super::values::{Bytes, Group, Mode, ReAddPolicy};

/// What the command line and a `stack.toml` may both give: an option, or a struct of them.
pub trait Given: Sized {
    /// This one, which overrides that of a file or comes after it.
    fn over(self, file: Self) -> Self;

    /// The paths in it.
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        Vec::new()
    }
}

/// A struct of options, which are the keys of a `stack.toml`.
pub trait Options: Given {
    /// All keys.
    fn keys() -> Vec<&'static str>;

    /// Takes those that are here out of a file.
    ///
    /// # Errors
    /// A value is wrong for its option.
    fn take(file: &mut Table<'_>) -> Result<Self, BadValue>;
}

/// Takes the values of `keys` out of a file, for a struct with such fields and no others that are read.
///
/// # Errors
/// As [`Options::take`].
pub fn take_keys<T: DeserializeOwned>(file: &mut Table<'_>, keys: &[&str]) -> Result<T, BadValue> {
    let own = keys.iter().filter_map(|key| file.remove_entry(*key)).collect();
    T::deserialize(Deserializer::from(Spanned::new(0..0, own)))
}

/// The value of an option.
pub trait OptionValue {
    /// Whether several of them replace those of a file, and do not follow them.
    const REPLACE: bool = false;

    /// The paths in it.
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        Vec::new()
    }
}

impl Given for bool {
    fn over(self, file: Self) -> Self {
        self | file
    }
}

impl<T: OptionValue> Given for Option<T> {
    fn over(self, file: Self) -> Self {
        self.or(file)
    }

    fn paths(&mut self) -> Vec<&mut PathBuf> {
        self.iter_mut().flat_map(T::paths).collect()
    }
}

impl<T: OptionValue> Given for Vec<T> {
    fn over(self, file: Self) -> Self {
        let replaces = T::REPLACE && !self.is_empty();
        if replaces { self } else { file.into_iter().chain(self).collect() }
    }

    fn paths(&mut self) -> Vec<&mut PathBuf> {
        self.iter_mut().flat_map(T::paths).collect()
    }
}

impl OptionValue for u16 {}
impl OptionValue for u32 {}
impl OptionValue for BackEnd {}
impl OptionValue for Bytes {}
impl OptionValue for Group {}
impl OptionValue for Holes {}
impl OptionValue for Mode {}
impl OptionValue for ReAddPolicy {}
impl OptionValue for VolumeLimit {}
/// An attribute and its value.
impl OptionValue for (String, String) {}

impl OptionValue for PathBuf {
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        vec![self]
    }
}

impl OptionValue for LogPlace {
    fn paths(&mut self) -> Vec<&mut PathBuf> {
        self.file_mut().into_iter().collect()
    }
}
