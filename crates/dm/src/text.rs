//! Tables as text, in the format of `dmsetup create`, `load` and `table`.
//!
//! One piece per line: its start, its length (both in sectors), the type of its target, and
//! arguments of that target. Empty lines, and lines that begin with `#`, are ignored; a `#` among
//! the arguments begins a comment. A backslash makes the next character an ordinary one, so that
//! names may contain spaces (the kernel's `dm_split_args`). A `#` after a backslash is ordinary
//! here but not for dmsetup, which has no way to write one.

use std::fmt;
use std::fmt::Write;

use ashlar_block::{Sector, Sectors};
use thiserror::Error;

/// A piece as in the text: not checked against other pieces or devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Start of the piece on the device.
    pub start: Sector,
    /// Length.
    pub len: Sectors,
    /// The type of its target: `linear`. Without white space.
    pub kind: String,
    /// The target's arguments, without quoting. None is empty or contains a line end.
    pub args: Vec<String>,
}

/// The defect of a line.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// It ends too early.
    #[error("{0} is missing: a line is START LENGTH TYPE [ARGUMENT...]")]
    Missing(&'static str),
    /// A field is not a number.
    #[error("{what} is '{found}', but must be a number of sectors below 2^64")]
    NotANumber {
        /// The field.
        what: &'static str,
        /// Its text.
        found: String,
    },
}

/// Why a text is not a table.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line} of the table: {fault}")]
pub struct TextError {
    /// The line, counted from 1.
    pub line: usize,
    /// The defect.
    pub fault: Fault,
}

/// The lines of a table.
///
/// # Errors
/// The first invalid line.
pub fn parse(text: &str) -> Result<Vec<Line>, TextError> {
    let mut lines = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        let line = line.trim_start_matches(is_space);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        lines.push(parse_line(line).map_err(|fault| TextError { line: index + 1, fault })?);
    }
    Ok(lines)
}

/// C's `isspace`.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

fn parse_line(line: &str) -> Result<Line, Fault> {
    let mut rest = line;
    let start = Sector(number(word(&mut rest), "the start")?);
    let len = Sectors(number(word(&mut rest), "the length")?);
    let kind = word(&mut rest).ok_or(Fault::Missing("the type"))?.to_owned();
    Ok(Line { start, len, kind, args: arguments(rest) })
}

fn word<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let line = rest.trim_start_matches(is_space);
    let (word, left) = line.split_at(line.find(is_space).unwrap_or(line.len()));
    *rest = left;
    (!word.is_empty()).then_some(word)
}

fn number(word: Option<&str>, what: &'static str) -> Result<u64, Fault> {
    let word = word.ok_or(Fault::Missing(what))?;
    parse_number(word).ok_or_else(|| Fault::NotANumber { what, found: word.to_owned() })
}

/// Only decimal digits.
pub(crate) fn parse_number<T: std::str::FromStr>(word: &str) -> Option<T> {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| word.parse().ok()).flatten()
}

fn arguments(rest: &str) -> Vec<String> {
    let mut args = Vec::new();
    let mut word = String::new();
    let mut chars = rest.chars();
    while let Some(c) = chars.next() {
        match c {
            '#' => break,
            // A backslash at the end has nothing to quote, and stands for itself.
            '\\' => word.push(chars.next().unwrap_or('\\')),
            c if is_space(c) => {
                if !word.is_empty() {
                    args.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        args.push(word);
    }
    args
}

/// An argument, quoted where necessary.
pub struct QuotedArgument<'a>(pub &'a str);

impl fmt::Display for QuotedArgument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_space(c) || c == '\\' || c == '#' {
                f.write_char('\\')?;
            }
            f.write_char(c)?;
        }
        Ok(())
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.start, self.len, self.kind)?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", QuotedArgument(arg)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(start: u64, len: u64, kind: &str, args: &[&str]) -> Line {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Line { start: Sector(start), len: Sectors(len), kind: kind.to_owned(), args }
    }

    #[test]
    fn lines_are_read_as_dmsetup_reads_them() {
        let text = "\n# a comment\n  0 8 zero\n\t8\t16 linear /dev/a 2048 # here, too\r\n   \n\
                    24 8 linear a\\ b\\\\c 0\n32 8 striped 1 8 a\\#b 0#c\n40 8 x \\";
        let want = [
            line(0, 8, "zero", &[]),
            line(8, 16, "linear", &["/dev/a", "2048"]),
            line(24, 8, "linear", &["a b\\c", "0"]),
            line(32, 8, "striped", &["1", "8", "a#b", "0"]),
            line(40, 8, "x", &["\\"]),
        ];
        assert_eq!(parse(text).expect("a table"), want);
        assert_eq!(parse("").expect("nothing"), []);
        assert_eq!(parse(" \n#").expect("nothing"), []);
    }

    #[test]
    fn what_is_printed_is_read_back() {
        let words = ["a", "\\", "#", " ", "a b", "\\\\", "x#y", "\t\\#", "\u{e4}\u{3b1}"];
        for first in words {
            for second in words {
                let printed = line(7, u64::MAX, "t", &[first, second]);
                let text = printed.to_string();
                assert_eq!(parse(&text), Ok(vec![printed]), "{text}");
            }
        }
    }

    #[test]
    fn every_bad_line_is_named_and_what_is_wrong_with_it() {
        let cases = [
            ("0", "the length is missing"),
            ("0 8", "the type is missing"),
            ("0 8  # comment", "no fault: '#' is a type for dmsetup"),
            ("a 8 zero", "the start is 'a'"),
            ("0 -8 zero", "the length is '-8'"),
            ("+0 8 zero", "the start is '+0'"),
            ("0x0 8 zero", "the start is '0x0'"),
            ("0 18446744073709551616 zero", "the length is '18446744073709551616'"),
            ("0 8zero", "the length is '8zero'"),
            ("\u{662}0 8 zero", "the start is '\u{662}0'"),
        ];
        for (text, want) in cases {
            let text = format!("0 1 zero\n\n{text}");
            match parse(&text) {
                Ok(lines) => {
                    assert!(want.starts_with("no fault") && lines[1].kind == "#", "{text}");
                }
                Err(error) => {
                    assert_eq!(error.line, 3);
                    let said = error.to_string();
                    assert!(said.starts_with(&format!("line 3 of the table: {want}")), "{said}");
                }
            }
        }
    }
}
