//! The values of fields: what is shown, compared and sorted.

use std::cmp::Ordering;

use ashlar_block::Sectors;

use super::Units;
use crate::text::dates;

/// The kinds of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A text.
    Text,
    /// A natural number.
    Number,
    /// A size.
    Size,
    /// A percentage.
    Percent,
    /// Several texts.
    List,
    /// A time.
    Time,
    /// Yes or no: yes is shown as the first of these words, which also stand for it in selections.
    Flag(&'static [&'static str]),
}

impl Kind {
    /// LVM's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "string",
            Self::Number | Self::Flag(_) => "number",
            Self::Size => "size",
            Self::Percent => "percent",
            Self::List => "string list",
            Self::Time => "time",
        }
    }

    /// Whether a column of it is right-aligned.
    pub(super) fn is_right(self, units: &Units) -> bool {
        match self {
            Self::Number | Self::Size | Self::Percent => true,
            Self::Flag(_) => units.binary,
            Self::Text | Self::List | Self::Time => false,
        }
    }
}

/// A part of the whole in millionths of a percent, as LVM counts it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Percent(pub u64);

impl Percent {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// All.
    pub const ALL: Self = Self(100_000_000);

    /// `part` of `whole`; `None` if there is no whole.
    pub fn of(part: u64, whole: u64) -> Option<Self> {
        part.checked_mul(Self::ALL.0)?.checked_div(whole).map(Self)
    }

    /// Its text, with two digits after the point: 0 and 100 only if it is exactly that.
    pub fn show(self) -> String {
        let rounded = match self {
            Self::NONE => 0,
            Self::ALL => 10_000,
            Self(exact) => ((exact + 5_000) / 10_000).clamp(1, 9_999),
        };
        format!("{}.{:02}", rounded / 100, rounded % 100)
    }
}

/// The value of a field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A text.
    Text(String),
    /// The name of a hidden volume, shown in brackets.
    Hidden(String),
    /// A number.
    Number(u64),
    /// A size.
    Size(Sectors),
    /// A percentage, if it is known.
    Percent(Option<Percent>),
    /// Several texts.
    List(Vec<String>),
    /// A time in seconds since 1970; unknown ones are 0.
    Time(u64),
    /// Yes or no, or unknown.
    Flag(Option<bool>),
    /// What takes the place of a number that is not defined, and how it is shown.
    Undefined(&'static str),
}

/// The number that LVM takes for undefined ones.
const UNDEFINED: u64 = u64::MAX;

impl Value {
    /// This number, or nothing.
    pub(super) fn defined(number: Option<u64>) -> Self {
        number.map_or(Self::Undefined(""), Self::Number)
    }

    /// Its text in a field of this kind.
    pub fn show(&self, kind: Kind, units: &Units) -> String {
        match self {
            Self::Flag(flag) if units.binary => {
                flag.map_or("-1", |flag| if flag { "1" } else { "0" }).to_owned()
            }
            Self::Flag(Some(true)) => {
                let words = if let Kind::Flag(words) = kind { words } else { &[] };
                words.first().copied().unwrap_or("1").to_owned()
            }
            Self::Flag(Some(false)) | Self::Time(0) => String::new(),
            Self::Flag(None) => "unknown".to_owned(),
            Self::Time(seconds) => dates::stamp(*seconds, 0),
            Self::Undefined(shown) => (*shown).to_owned(),
            Self::Text(text) => text.clone(),
            Self::Hidden(name) => format!("[{name}]"),
            Self::Number(number) => number.to_string(),
            Self::Size(size) => units.size(*size),
            Self::Percent(percent) => percent.map_or_else(String::new, Percent::show),
            Self::List(texts) => texts.join(","),
        }
    }

    /// The number that it is or stands for.
    pub(super) fn number(&self) -> Option<u64> {
        Some(match self {
            Self::Number(number) | Self::Time(number) => *number,
            Self::Size(size) => size.0,
            Self::Percent(percent) => percent.map_or(UNDEFINED, |percent| percent.0),
            Self::Flag(flag) => flag.map_or(UNDEFINED, u64::from),
            Self::Undefined(_) => UNDEFINED,
            Self::Text(_) | Self::Hidden(_) | Self::List(_) => return None,
        })
    }

    /// The order of two values of a field; an unknown number is the greatest.
    pub fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::List(a), Self::List(b)) => a.cmp(b),
            (a, b) => a.number().cmp(&b.number()).then_with(|| a.text().cmp(b.text())),
        }
    }

    /// The text that a selection compares; of other kinds nothing.
    pub(super) fn text(&self) -> &str {
        if let Self::Text(text) | Self::Hidden(text) = self { text } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_rounded_but_not_to_0_or_100() {
        for (part, whole, text) in [
            (0, 5, "0.00"),
            (5, 5, "100.00"),
            (1, 1_000_000, "0.01"),
            (999_999, 1_000_000, "99.99"),
            (1, 3, "33.33"),
            (2, 3, "66.67"),
        ] {
            assert_eq!(Percent::of(part, whole).unwrap().show(), text);
        }
        assert_eq!(Percent::of(1, 0), None);
    }
}
