//! The values of fields: what is shown, compared and sorted.

use std::cmp::Ordering;

use ashlar_block::Sectors;

use super::Units;

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
}

impl Kind {
    /// LVM's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "string",
            Self::Number => "number",
            Self::Size => "size",
            Self::Percent => "percent",
            Self::List => "string list",
        }
    }

    /// Whether a column of it is right-aligned.
    pub(super) fn is_right(self) -> bool {
        match self {
            Self::Number | Self::Size | Self::Percent => true,
            Self::Text | Self::List => false,
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
}

impl Value {
    /// The number of things.
    pub(super) fn count(count: usize) -> Self {
        Self::Number(count as u64)
    }

    /// Its text.
    pub fn show(&self, units: &Units) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Hidden(name) => format!("[{name}]"),
            Self::Number(number) => number.to_string(),
            Self::Size(size) => units.size(*size),
            Self::Percent(percent) => percent.map_or_else(String::new, Percent::show),
            Self::List(texts) => texts.join(","),
        }
    }

    /// The order of two values of a field; an unknown percentage is the greatest.
    pub fn order(&self, other: &Self) -> Ordering {
        let rank = |percent: &Option<Percent>| percent.map_or(u64::MAX, |percent| percent.0);
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.cmp(b),
            (Self::Size(a), Self::Size(b)) => a.cmp(b),
            (Self::Percent(a), Self::Percent(b)) => rank(a).cmp(&rank(b)),
            (Self::List(a), Self::List(b)) => a.cmp(b),
            (a, b) => a.text().cmp(b.text()),
        }
    }

    /// The text that a selection compares; of other kinds nothing.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Hidden(text) => text,
            Self::Number(_) | Self::Size(_) | Self::Percent(_) | Self::List(_) => "",
        }
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
