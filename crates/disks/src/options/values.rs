//! Values of numeric keys, in the notation of the options.

use std::str::FromStr;

use ashlar_block::size::Notation;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

/// A value that may be a number or a boolean, too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Value(pub(super) String);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a string, an integer or a boolean")]
        enum Scalar {
            Integer(i64),
            Boolean(bool),
            String(String),
        }
        Ok(Self(match Scalar::deserialize(deserializer)? {
            Scalar::Integer(number) => number.to_string(),
            Scalar::Boolean(flag) => u8::from(flag).to_string(),
            Scalar::String(text) => text,
        }))
    }
}

/// A number of bytes: `512M`, or an integer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bytes(pub u64);

/// Why a text is not a number of bytes.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is not a number of bytes, or one with K, M, G or T")]
pub struct BadBytes(String);

impl FromStr for Bytes {
    type Err = BadBytes;

    fn from_str(text: &str) -> Result<Self, BadBytes> {
        let number = text.strip_prefix('+').unwrap_or(text);
        let bytes = Notation::BYTES.parse(number);
        bytes.map(Self).map_err(|_| BadBytes(text.to_owned()))
    }
}

/// The permissions of a file, three octal digits: `660`. In TOML a string: an integer is decimal, and has no leading zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mode(pub u32);

/// Why a text is not a mode.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is not a mode of three octal digits, as 660")]
pub struct BadMode(String);

impl FromStr for Mode {
    type Err = BadMode;

    fn from_str(text: &str) -> Result<Self, BadMode> {
        let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(text);
        let is_octal = digits.len() == 3 && digits.bytes().all(|c| (b'0'..=b'7').contains(&c));
        let mode = is_octal.then(|| u32::from_str_radix(digits, 8).ok()).flatten();
        mode.map(Self).ok_or_else(|| BadMode(text.to_owned()))
    }
}

/// A group of users, by its name or number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group(pub String);

/// What happens when a member of an array that was lost comes back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ReAddPolicy {
    /// It is re-added by the bitmap.
    #[default]
    Auto,
    /// Nothing, until a user re-adds it.
    Manual,
}

/// Why a text is not a policy.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is neither auto nor manual")]
pub struct BadReAddPolicy(String);

impl FromStr for ReAddPolicy {
    type Err = BadReAddPolicy;

    fn from_str(text: &str) -> Result<Self, BadReAddPolicy> {
        match text {
            "auto" => Ok(Self::Auto),
            "manual" => Ok(Self::Manual),
            _ => Err(BadReAddPolicy(text.to_owned())),
        }
    }
}

/// Deserializes a value from its text.
///
/// # Errors
/// It is not a text, or not the text of such a value.
pub(crate) fn parsed<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: std::fmt::Display>,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// As [`parsed`], for an option that is given once.
///
/// # Errors
/// As there.
pub fn some_parsed<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: std::fmt::Display>,
{
    parsed(deserializer).map(Some)
}

impl From<String> for Group {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl<'de> Deserialize<'de> for Group {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "the name or the number of a group")]
        enum GroupValue {
            Number(u32),
            Name(String),
        }
        Ok(Self(match GroupValue::deserialize(deserializer)? {
            GroupValue::Number(number) => number.to_string(),
            GroupValue::Name(name) => name,
        }))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer)?.0.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_bytes_have_a_unit_or_none() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("64k", 64 << 10), ("3G", 3 << 30)] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
        }
        for bad in ["", "M", "-1", "1.5G", "1KB", "99999999999T"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn modes_are_octal() {
        for text in ["660", "0660"] {
            assert_eq!(text.parse(), Ok(Mode(0o660)));
        }
        for bad in ["", "66", "1660", "00660", "668", "+60", "rw-"] {
            assert!(bad.parse::<Mode>().is_err(), "{bad}");
        }
    }
}
