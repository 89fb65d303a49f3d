//! Parses a text into a tree.

use super::error::{Problem, TextError};
use super::lexer::{Lexer, Token, TokenPlace, shown};
use super::raw;
use super::tree::{Array, ArrayStyle, Entry, Node, Scalar, Section};

/// Maximum bytes of a text. Ten thousand volumes take about 8 MiB.
pub const MAX_BYTES: usize = 32 << 20;
/// Maximum number of entries and values, which bounds the memory of the tree.
pub const MAX_ENTRIES: usize = 2 << 20;
/// Maximum nesting of sections; LVM needs six.
pub const MAX_DEPTH: usize = 16;

/// A 32-bit LVM once wrote creation times that are too large for a number; LVM reads them as this,
/// and so does ashlar.
const REPAIRED_CREATION_TIME: i64 = 1_527_120_000;

/// Parses a whole text. Bytes after a NUL are ignored.
///
/// # Errors
/// The first syntax error; or the text is larger than any volume group needs.
pub fn parse(bytes: &[u8]) -> Result<Section, TextError> {
    if bytes.len() > MAX_BYTES {
        return Err(TextError { line: 1, problem: Problem::Size(MAX_BYTES) });
    }
    let text = raw::decode(bytes);
    let mut parser = Parser { lexer: Lexer::new(&text), entries: 0 };
    parser.section(0)
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    entries: usize,
}

impl Parser<'_> {
    fn count(&mut self) -> Result<(), TextError> {
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            return Err(self.lexer.error(Problem::Entries(MAX_ENTRIES)));
        }
        Ok(())
    }

    /// Parses the entries up to the closing brace, or at depth 0 to the end.
    fn section(&mut self, depth: usize) -> Result<Section, TextError> {
        if depth > MAX_DEPTH {
            return Err(self.lexer.error(Problem::Nesting(MAX_DEPTH)));
        }
        let mut section = Section::default();
        loop {
            let lead = self.lexer.lines();
            let token = self.lexer.next(TokenPlace::Key)?;
            let end = if depth > 0 { Token::CloseSection } else { Token::End };
            if token == end {
                section.tail = lead;
                return Ok(section);
            }
            let expected = if depth > 0 { "a name or '}'" } else { "a name" };
            let key = name(&token).ok_or_else(|| self.lexer.unexpected(expected, &token))?;
            self.count()?;
            let (_, at_once) = self.lexer.gap();
            let token = self.lexer.next(TokenPlace::Key)?;
            let (node, tight) = if token == Token::OpenSection {
                self.lexer.rest_of_line();
                (Node::Section(self.section(depth + 1)?), false)
            } else if token == Token::Equals {
                (self.value(&key)?, at_once)
            } else {
                return Err(self.lexer.unexpected("'=' or '{'", &token));
            };
            let trail = self.lexer.rest_of_line();
            let trail = if depth == 0 { trail.to_owned() } else { String::new() };
            section.entries.push(Entry { lead, key, node, trail, tight });
        }
    }

    fn value(&mut self, key: &str) -> Result<Node, TextError> {
        let token = self.lexer.next(TokenPlace::Value)?;
        if token == Token::OpenArray {
            return Ok(Node::Array(self.array(key)?));
        }
        Ok(Node::Scalar(self.scalar(key, token)?))
    }

    fn array(&mut self, key: &str) -> Result<Array, TextError> {
        let mut items = Vec::new();
        let (in_rows, at_once) = self.lexer.gap();
        let mut style = if at_once { ArrayStyle::Inline } else { ArrayStyle::Spaced };
        let mut per_line = None;
        let mut behind_value = false;
        loop {
            let token = self.lexer.next(TokenPlace::Value)?;
            if token == Token::CloseArray {
                break;
            }
            // For libdevmapper, commas are optional.
            if token != Token::Comma || !behind_value {
                self.count()?;
                items.push(self.scalar(key, token)?);
                behind_value = true;
                continue;
            }
            behind_value = false;
            let (new_line, at_once) = self.lexer.gap();
            if new_line {
                per_line.get_or_insert(items.len());
            }
            if at_once && items.len() == 1 {
                style = ArrayStyle::Tight;
            }
        }
        if in_rows {
            let per_line = per_line.unwrap_or(items.len()).clamp(1, 255);
            style = ArrayStyle::Rows(per_line as u8);
        }
        Ok(Array { items, style })
    }

    fn scalar(&self, key: &str, token: Token<'_>) -> Result<Scalar, TextError> {
        match token {
            Token::Str(text) => Ok(Scalar::Str(text)),
            Token::Word(word) if !word.is_empty() => Ok(Scalar::Bare(word.to_owned())),
            Token::Number(text) if text.contains('.') => match text.parse::<f64>() {
                Ok(_) => Ok(Scalar::Float(text.to_owned())),
                Err(_) => Err(self.lexer.unexpected("a number", &token)),
            },
            Token::Number(text) => match integer(text) {
                Some(number) => Ok(Scalar::Int(number)),
                None if !text.contains(|c: char| c.is_ascii_digit()) => {
                    Err(self.lexer.unexpected("a value", &token))
                }
                None if key == "creation_time" => Ok(Scalar::Int(REPAIRED_CREATION_TIME)),
                None => Err(self.lexer.error(Problem::LargeNumber(shown(text)))),
            },
            Token::Word(_)
            | Token::OpenSection
            | Token::CloseSection
            | Token::OpenArray
            | Token::CloseArray
            | Token::Comma
            | Token::Equals
            | Token::End => Err(self.lexer.unexpected("a value", &token)),
        }
    }
}

/// The name of an entry, if the token is one.
fn name(token: &Token<'_>) -> Option<String> {
    let name = match token {
        Token::Word(word) => (*word).to_owned(),
        Token::Str(text) => text.clone(),
        Token::OpenSection
        | Token::CloseSection
        | Token::OpenArray
        | Token::CloseArray
        | Token::Comma
        | Token::Equals
        | Token::Number(_)
        | Token::End => return None,
    };
    (!name.is_empty()).then_some(name)
}

/// A number in C's notation: octal with a leading zero.
fn integer(text: &str) -> Option<i64> {
    let digits = text.trim_start_matches(['+', '-']);
    let octal = digits.len() > 1 && digits.starts_with('0');
    if octal { i64::from_str_radix(text, 8).ok() } else { text.parse().ok() }
}
