//! The parser of selections.

use ashlar_block::size::power;

use super::super::pattern::Pattern;
use super::super::value::Percent;
use super::super::{Kind, Row, find};
use super::{Comparison, Condition, ListTest, Result, SelectionError, Test};
use crate::text::dates;

/// The deepest nesting of parentheses.
const DEPTH: u32 = 100;

/// What is left to parse.
pub(super) struct Parser<'a> {
    rest: &'a str,
    /// What names of fields may lack.
    prefix: &'a str,
    /// Where the present comparison begins.
    start: &'a str,
    /// How many parentheses are open.
    depth: u32,
}

/// The words of operators, longer ones before those that they begin with.
const OPERATORS: [(&str, Operator, bool); 12] = [
    ("=~", Operator::Matches, false),
    ("!~", Operator::Matches, true),
    ("!=", Operator::Compares(Comparison::Equal), true),
    ("=", Operator::Compares(Comparison::Equal), false),
    (">=", Operator::Compares(Comparison::AtLeast), false),
    (">", Operator::Compares(Comparison::Greater), false),
    ("<=", Operator::Compares(Comparison::AtMost), false),
    ("<", Operator::Compares(Comparison::Less), false),
    ("since", Operator::Time(Comparison::AtLeast), false),
    ("after", Operator::Time(Comparison::Greater), false),
    ("until", Operator::Time(Comparison::AtMost), false),
    ("before", Operator::Time(Comparison::Less), false),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operator {
    Compares(Comparison),
    Matches,
    /// Only for times.
    Time(Comparison),
}

const ALL: [&str; 2] = ["&&", ","];
const ANY: [&str; 2] = ["||", "#"];

impl<'a> Parser<'a> {
    /// Parses all of a text.
    pub(super) fn parse<R: Row>(prefix: &'a str, text: &'a str) -> Result<Condition<R>> {
        let mut parser = Self { rest: text, prefix, start: text, depth: 0 };
        let condition = parser.any()?;
        parser.skip_blanks();
        if parser.rest.is_empty() {
            Ok(condition)
        } else {
            Err(SelectionError::new("Expecting logical operator").at(parser.rest))
        }
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Takes one of these words, after blanks.
    fn take(&mut self, words: &[&str]) -> bool {
        self.skip_blanks();
        let rest = words.iter().find_map(|word| self.rest.strip_prefix(word));
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Takes the characters before the first that meets the condition.
    fn take_until(&mut self, ends: impl Fn(&str) -> bool) -> &'a str {
        let end = self.rest.char_indices().map(|(at, _)| at).find(|at| ends(&self.rest[*at..]));
        let (taken, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn any<R: Row>(&mut self) -> Result<Condition<R>> {
        let mut conditions = vec![self.all()?];
        while self.take(&ANY) {
            conditions.push(self.all()?);
        }
        Ok(Condition::Any(conditions))
    }

    fn all<R: Row>(&mut self) -> Result<Condition<R>> {
        let mut conditions = vec![self.one()?];
        while self.take(&ALL) {
            conditions.push(self.one()?);
        }
        Ok(Condition::All(conditions))
    }

    fn one<R: Row>(&mut self) -> Result<Condition<R>> {
        let is_negated = self.take(&["!"]);
        if !self.take(&["("]) {
            if is_negated {
                return Err(self.parenthesis("left"));
            }
            return self.comparison();
        }
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(SelectionError::new("Too many parentheses").at(self.rest));
        }
        let condition = self.any()?;
        self.depth -= 1;
        if !self.take(&[")"]) {
            return Err(self.parenthesis("right"));
        }
        Ok(if is_negated { Condition::Not(Box::new(condition)) } else { condition })
    }

    /// The present comparison is invalid.
    fn invalid(&self, what: String) -> SelectionError {
        SelectionError::new(what).at(self.start)
    }

    fn parenthesis(&self, which: &str) -> SelectionError {
        let what = format!("Syntax error: {which} parenthesis expected at '{}'", self.rest);
        SelectionError::new(what)
    }

    fn comparison<R: Row>(&mut self) -> Result<Condition<R>> {
        self.skip_blanks();
        self.start = self.rest;
        let name =
            self.take_until(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'));
        if name.is_empty() {
            return Err(SelectionError::new("Expecting field name").at(self.start));
        }
        let Some(field) = find::<R>(self.prefix, name) else {
            let what = format!("Unrecognised selection field: {name}");
            return Err(SelectionError::new(what).at(self.start));
        };
        self.skip_blanks();
        let Some((word, operator, is_negated)) =
            OPERATORS.iter().copied().find(|(word, ..)| self.rest.starts_with(word))
        else {
            let what = format!("Unrecognised comparison operator: {}", self.rest);
            return Err(SelectionError::new(what).at(self.start));
        };
        self.rest = &self.rest[word.len()..];
        self.skip_blanks();
        let test = self.test(field.kind, field.name, operator)?;
        Ok(Condition::Field { field, test, is_negated })
    }

    fn test(&mut self, kind: Kind, name: &str, operator: Operator) -> Result<Test> {
        let start = self.start;
        let only = |what: &str| {
            let what = format!("Operator can be used only with {what} fields: {start}");
            SelectionError::new(what).at(start)
        };
        let comparison = match (operator, kind) {
            (Operator::Matches, Kind::Text) => {
                let text = self.quoted_or(name, "regex", &[('(', ')'), ('[', ']'), ('{', '}')])?;
                let pattern = Pattern::new(&text).ok_or_else(|| {
                    SelectionError::new(format!(
                        "failed to create regex matcher for selection field {name}"
                    ))
                })?;
                return Ok(Test::Matches(pattern));
            }
            (Operator::Matches, _) => {
                let what = "incompatible comparison type for selection field";
                return Err(SelectionError::new(format!("{what} {name}")));
            }
            (Operator::Time(comparison), Kind::Time) => comparison,
            (Operator::Time(_), _) => return Err(only("time")),
            (Operator::Compares(comparison), _) => comparison,
        };
        match kind {
            Kind::Text | Kind::List if comparison != Comparison::Equal => {
                Err(only("number, size, time or percent"))
            }
            Kind::Text => Ok(Test::Text(self.quoted_or(name, "string", &[])?)),
            Kind::List => Ok(Test::List(self.list(name)?)),
            Kind::Time => Ok(Test::Time(comparison, self.time(name)?)),
            Kind::Number | Kind::Flag(_) => {
                if let Some(is_set) = self.word_of(kind) {
                    return Ok(Test::Number(comparison, Some(is_set.into())));
                }
                for word in ["-1", "unknown", "undefined", "undef"] {
                    let after = self.rest.strip_prefix(word);
                    if let Some(rest) = after.filter(|rest| ends_word(rest)) {
                        self.rest = rest;
                        return Ok(Test::Number(comparison, None));
                    }
                }
                let digits = self.quantity(name, "numeric")?.digits;
                let whole = digits.split('.').next().filter(|whole| !whole.is_empty());
                let number =
                    whole.unwrap_or("0").parse().map_err(|_| out_of_range(digits, name))?;
                if number == u64::MAX {
                    let what = format!("Numeric value {number} found in selection is reserved.");
                    return Err(SelectionError::new(what));
                }
                Ok(Test::Number(comparison, Some(number)))
            }
            Kind::Size => {
                let Quantity { digits, unit } = self.quantity(name, "size")?;
                Ok(Test::Size(comparison, decimal(digits) * unit_bytes(unit.unwrap_or('m'))))
            }
            Kind::Percent => {
                let digits = self.quantity(name, "percent")?.digits;
                let percent = decimal(digits);
                if percent > 100.0 {
                    return Err(out_of_range(digits, name));
                }
                // Not negative, and small.
                Ok(Test::Percent(
                    comparison,
                    (percent * (Percent::ALL.0 / 100) as f64).round() as u64,
                ))
            }
        }
    }
}

impl Parser<'_> {
    /// Takes a word for yes or no, if a field of this kind has such words.
    fn word_of(&mut self, kind: Kind) -> Option<bool> {
        let Kind::Flag(words) = kind else { return None };
        let quotes: &[char] = &['"', '\''];
        let words = words.iter().map(|word| (*word, true)).chain([("yes", true), ("no", false)]);
        for (word, is_set) in words {
            let quote = self.rest.chars().next().filter(|first| quotes.contains(first));
            let after = match quote {
                Some(quote) => {
                    let inside = self.rest[1..].strip_prefix(word);
                    inside.and_then(|rest| rest.strip_prefix(quote))
                }
                None => self.rest.strip_prefix(word).filter(|rest| ends_word(rest)),
            };
            if let Some(rest) = after {
                self.rest = rest;
                return Some(is_set);
            }
        }
        None
    }

    /// Takes a time: `@` and seconds since 1970, or a date with or without a time of day, in UTC.
    fn time(&mut self, name: &str) -> Result<u64> {
        let text = self.quoted_or(name, "time", &[])?;
        dates::parse(&text).ok_or_else(|| {
            self.invalid(format!(
                "Unrecognized string in date/time specification at \"{text}\". \
                 Failed to parse time value for selection field {name}."
            ))
        })
    }
}

/// A number, and the letter of the unit behind it.
struct Quantity<'a> {
    digits: &'a str,
    unit: Option<char>,
}

impl<'a> Parser<'a> {
    /// Takes a number with its unit, which only sizes and percentages have.
    fn quantity(&mut self, name: &str, kind: &str) -> Result<Quantity<'a>> {
        let start = self.rest;
        self.take_until(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
        if let Some(rest) = self.rest.strip_prefix('.') {
            self.rest = rest;
            self.take_until(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
        }
        let digits = &start[..start.len() - self.rest.len()];
        if digits.is_empty() {
            let what = format!("Failed to parse numeric value for selection field {name}.");
            return Err(self.invalid(what));
        }
        let suffix = self.rest.chars().next();
        let unit = suffix.filter(|c| UNITS.contains(c.to_ascii_lowercase()));
        let found = match (kind, unit, suffix) {
            ("numeric" | "percent", Some(_), _) => Some("size unit specifier"),
            ("numeric" | "size", None, Some('%')) => Some("percent value"),
            _ => None,
        };
        if let Some(found) = found {
            let what =
                format!("Found {found} but {kind} value expected for selection field {name}.");
            return Err(self.invalid(what));
        }
        if unit.is_some() || suffix == Some('%') {
            self.rest = &self.rest[1..];
        }
        Ok(Quantity { digits, unit })
    }

    /// Takes a text in quotes, or in one of these pairs, or up to the next blank or logical operator.
    fn quoted_or(&mut self, name: &str, kind: &str, pairs: &[(char, char)]) -> Result<String> {
        match self.quoted(pairs) {
            Some(Ok(text)) => Ok(text.to_owned()),
            Some(Err(UnclosedQuote)) => Err(self.invalid(format!(
                "Missing end quote. Failed to parse {kind} value for selection field {name}."
            ))),
            None => Ok(self.take_until(ends_word).to_owned()),
        }
    }

    /// Takes a text in quotes, or in one of these pairs, if there is one.
    fn quoted(
        &mut self,
        pairs: &[(char, char)],
    ) -> Option<std::result::Result<&'a str, UnclosedQuote>> {
        let open = self.rest.chars().next()?;
        let mut quotes = [('"', '"'), ('\'', '\'')].iter().chain(pairs);
        let (_, close) = quotes.find(|(quote, _)| *quote == open)?;
        let Some((text, rest)) = self.rest[1..].split_once(*close) else {
            return Some(Err(UnclosedQuote));
        };
        self.rest = rest;
        Some(Ok(text))
    }

    /// Takes a list in brackets, or one text.
    fn list(&mut self, name: &str) -> Result<ListTest> {
        let start = self.start;
        let failed = |what: String| {
            let end = format!("Failed to parse string list value for selection field {name}.");
            SelectionError::new(format!("{what} {end}")).at(start)
        };
        let (is_whole, close) = match self.rest.chars().next() {
            Some('[') => (true, ']'),
            Some('{') => (false, '}'),
            _ => {
                let item = self.quoted_or(name, "string list", &[])?;
                return Ok(ListTest { items: vec![item], is_any: false, is_whole: false });
            }
        };
        self.rest = &self.rest[1..];
        let mut items = Vec::new();
        let mut is_any = None;
        loop {
            self.skip_blanks();
            if self.rest.is_empty() {
                return Err(failed(format!("Missing list end for selection field {name}")));
            }
            items.push(match self.quoted(&[]) {
                Some(Ok(text)) => text.to_owned(),
                Some(Err(UnclosedQuote)) => return Err(failed("Missing end quote.".into())),
                None => {
                    let ends = |rest: &str| ends_word(rest) || rest.starts_with([']', '}']);
                    self.take_until(ends).to_owned()
                }
            });
            let is_or = if self.take(&ANY) {
                true
            } else if self.take(&ALL) {
                false
            } else {
                break;
            };
            if is_any.is_some_and(|before| before != is_or) {
                let what = "Only one type of logical operator allowed in selection list at a time.";
                return Err(failed(what.into()));
            }
            is_any = Some(is_or);
        }
        if self.rest.starts_with(close) {
            self.rest = &self.rest[1..];
            return Ok(ListTest { items, is_any: is_any == Some(true), is_whole });
        }
        Err(failed(match self.rest.starts_with([']', '}']) {
            true => format!("List ended with incorrect character, expecting '{close}'."),
            false => "Invalid operator in selection list.".into(),
        }))
    }
}

/// A quote without an end.
struct UnclosedQuote;

/// Whether an unquoted word ends before this text.
fn ends_word(rest: &str) -> bool {
    let is_operator = ALL.iter().chain(&ANY).any(|word| rest.starts_with(word));
    is_operator || rest.is_empty() || rest.starts_with(|c: char| c.is_whitespace() || c == ')')
}

fn out_of_range(digits: &str, name: &str) -> SelectionError {
    SelectionError::new(format!(
        "Field selection value {digits} out of supported range for field {name}."
    ))
}

/// The value of digits with or without a point.
fn decimal(digits: &str) -> f64 {
    // A lone point is 0 for LVM.
    digits.parse().unwrap_or(0.0)
}

const UNITS: &str = "hrbskmgtpe";

/// The bytes of a unit; an upper-case letter means powers of 1,000. Those that stand for no size are bytes, as for LVM.
fn unit_bytes(unit: char) -> f64 {
    let base: f64 = if unit.is_ascii_uppercase() { 1000.0 } else { 1024.0 };
    match power(unit) {
        Some(power) => base.powi(power as i32),
        None if unit.eq_ignore_ascii_case(&'s') => 512.0,
        None => 1.0,
    }
}
