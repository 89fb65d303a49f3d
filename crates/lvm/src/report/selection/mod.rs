//! `-S`: conditions that rows must meet.
//!
//! The grammar is LVM's: comparisons of a field with a value, joined by `&&` or `,` and by `||` or `#`, of which the
//! former bind tighter; parentheses, and `!` in front of them.

mod parser;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use thiserror::Error;

use self::parser::Parser;
use super::pattern::Pattern;
use super::{Field, Row, Value};

/// Why a selection is invalid.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{}{what}", at.as_ref().map_or_else(String::new, |at| format!("Selection syntax error at '{at}': ")))]
pub struct SelectionError {
    what: String,
    /// The rest of the text from where it is invalid.
    at: Option<String>,
}

impl SelectionError {
    fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), at: None }
    }

    fn at(self, text: &str) -> Self {
        Self { at: Some(text.to_owned()), ..self }
    }
}

/// The operators of selections.
pub const SELECTION_HELP: &str = "\
  =~ !~           - a text matches a regular expression, or does not
  = !=            - equals, or does not; texts may be quoted with \" or '
  > >= < <=       - compare numbers, percentages, and sizes, whose unit is m unless one follows
  FIELD={a,b}     - a list contains a and b; {a||b}: a or b
  FIELD=[a,b]     - a list contains a and b only
  && , || #       - and, and, or, or
  ( ) !( )        - grouping and negation
";

type Result<T> = std::result::Result<T, SelectionError>;

/// A condition that rows may meet.
pub struct Selection<R: 'static>(Condition<R>);

enum Condition<R: 'static> {
    Field { field: &'static Field<R>, test: Test, is_negated: bool },
    Not(Box<Self>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

/// A comparison with a value.
enum Test {
    Text(String),
    Matches(Pattern),
    /// With a number; `None`: the undefined one.
    Number(Comparison, Option<u64>),
    /// With a time in seconds since 1970.
    Time(Comparison, u64),
    /// With bytes.
    Size(Comparison, f64),
    Percent(Comparison, u64),
    List(ListTest),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Comparison {
    Equal,
    Greater,
    AtLeast,
    Less,
    AtMost,
}

/// What a list must contain.
struct ListTest {
    items: Vec<String>,
    /// One of the items is enough.
    is_any: bool,
    /// It must contain nothing else.
    is_whole: bool,
}

impl<R: Row> Selection<R> {
    /// Parses a selection; an empty text selects all rows. Names of fields may lack `prefix`.
    ///
    /// # Errors
    /// It is invalid.
    pub fn parse(prefix: &str, text: &str) -> Result<Self> {
        if text.is_empty() {
            return Ok(Self(Condition::All(Vec::new())));
        }
        Parser::parse(prefix, text).map(Self)
    }

    /// The fields that it compares.
    pub fn fields(&self) -> Vec<&'static Field<R>> {
        let mut found = Vec::new();
        self.0.add_fields(&mut found);
        found
    }

    /// Whether the row meets it.
    pub fn selects(&self, row: &R) -> bool {
        self.0.holds(row)
    }
}

impl<R> Condition<R> {
    fn add_fields(&self, found: &mut Vec<&'static Field<R>>) {
        match self {
            Self::Field { field, .. } => found.push(field),
            Self::Not(condition) => condition.add_fields(found),
            Self::All(conditions) | Self::Any(conditions) => {
                conditions.iter().for_each(|condition| condition.add_fields(found));
            }
        }
    }

    fn holds(&self, row: &R) -> bool {
        match self {
            Self::Field { field, test, is_negated } => {
                let value = (field.get)(row);
                // An unknown value meets no condition.
                value != Value::Percent(None) && test.holds(&value) != *is_negated
            }
            Self::Not(condition) => !condition.holds(row),
            Self::All(conditions) => conditions.iter().all(|condition| condition.holds(row)),
            Self::Any(conditions) => conditions.iter().any(|condition| condition.holds(row)),
        }
    }
}

impl Test {
    fn holds(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Number(comparison, Some(wanted)), value) => {
                let number = value.number().filter(|number| *number != u64::MAX);
                number.is_some_and(|number| comparison.holds(number.cmp(wanted)))
            }
            // There is no order among undefined numbers and others.
            (Self::Number(Comparison::Equal, None), value) => value.number() == Some(u64::MAX),
            (Self::Time(comparison, wanted), Value::Time(time)) => {
                *time > 0 && comparison.holds(time.cmp(wanted))
            }
            (Self::Size(comparison, wanted), Value::Size(size)) => {
                let bytes = size.0.saturating_mul(512) as f64;
                bytes.partial_cmp(wanted).is_some_and(|order| comparison.holds(order))
            }
            (Self::Percent(comparison, wanted), Value::Percent(Some(percent))) => {
                comparison.holds(percent.0.cmp(wanted))
            }
            (Self::List(test), Value::List(list)) => test.holds(list),
            (Self::Text(wanted), value) => value.text() == wanted,
            (Self::Matches(pattern), value) => pattern.is_match(value.text()),
            (
                Self::Number(..)
                | Self::Size(..)
                | Self::Percent(..)
                | Self::Time(..)
                | Self::List(_),
                _,
            ) => false,
        }
    }
}

impl Comparison {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::Greater => order.is_gt(),
            Self::AtLeast => order.is_ge(),
            Self::Less => order.is_lt(),
            Self::AtMost => order.is_le(),
        }
    }
}

impl ListTest {
    fn holds(&self, list: &[String]) -> bool {
        if self.items.iter().all(String::is_empty) && self.items.len() <= 1 {
            return list.is_empty();
        }
        if self.is_any {
            return self.items.iter().any(|item| list.contains(item));
        }
        let has_all = self.items.iter().all(|item| list.contains(item));
        has_all && (!self.is_whole || self.items.len() == list.len())
    }
}
