//! Tokens of LVM's configuration language, as in libdevmapper's tokenizer.

use super::error::{Problem, TextError};

/// A token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Token<'a> {
    OpenSection,
    CloseSection,
    OpenArray,
    CloseArray,
    Comma,
    Equals,
    /// The text between quotation marks, escapes resolved.
    Str(String),
    /// A token that looks like a number.
    Number(&'a str),
    Word(&'a str),
    End,
}

/// Whether a token is read where a value may be: only there, numbers are recognized.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenPlace {
    Key,
    Value,
}

/// Bytes of a token shown in an error.
const SHOWN: usize = 32;

/// The current position in the text.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        // For libdevmapper, a NUL is the end.
        let end = text.find('\0').unwrap_or(text.len());
        Self { text: &text[..end], at: 0, line: 1 }
    }

    pub(super) fn error(&self, problem: Problem) -> TextError {
        TextError { line: self.line, problem }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, len: usize) -> &'a str {
        let (taken, _) = self.rest().split_at(len);
        self.line += taken.bytes().filter(|byte| *byte == b'\n').count();
        self.at += len;
        taken
    }

    fn take_while(&mut self, within: impl Fn(u8) -> bool) -> &'a str {
        let rest = self.rest();
        self.take(rest.bytes().position(|byte| !within(byte)).unwrap_or(rest.len()))
    }

    fn comment(&mut self) -> &'a str {
        if self.peek() == Some(b'#') {
            self.take_while(|byte| byte != b'\n').trim_end()
        } else {
            ""
        }
    }

    /// Skips the rest of the line if it has only blanks and a comment; returns the comment.
    pub(super) fn rest_of_line(&mut self) -> &'a str {
        self.take_while(|byte| is_space(byte) && byte != b'\n');
        let comment = self.comment();
        if self.peek() == Some(b'\n') {
            self.take(1);
        }
        comment
    }

    /// Skips to the next token; returns the blank lines and comments before it.
    pub(super) fn lines(&mut self) -> String {
        let mut lines = String::new();
        loop {
            self.take_while(|byte| is_space(byte) && byte != b'\n');
            match self.peek() {
                Some(b'#') => lines.push_str(self.comment()),
                Some(b'\n') => {
                    self.take(1);
                    lines.push('\n');
                }
                Some(_) | None => return lines,
            }
        }
    }

    /// Skips to the next token; returns whether it is on another line, and whether it follows directly.
    pub(super) fn gap(&mut self) -> (bool, bool) {
        let (line, at) = (self.line, self.at);
        self.lines();
        (self.line > line, self.at == at)
    }

    pub(super) fn next(&mut self, expect: TokenPlace) -> Result<Token<'a>, TextError> {
        self.lines();
        let Some(first) = self.peek() else { return Ok(Token::End) };
        let single = match first {
            b'{' => Some(Token::OpenSection),
            b'}' => Some(Token::CloseSection),
            b'[' => Some(Token::OpenArray),
            b']' => Some(Token::CloseArray),
            b',' => Some(Token::Comma),
            b'=' => Some(Token::Equals),
            _ => None,
        };
        if let Some(token) = single {
            self.take(1);
            return Ok(token);
        }
        Ok(match first {
            b'"' => Token::Str(self.escaped_string()?),
            b'\'' => Token::Str(self.plain_string()?),
            b'0'..=b'9' | b'+' | b'-' | b'.' if expect == TokenPlace::Value => {
                let rest = self.rest();
                let end = rest[1..].bytes().position(|b| !b.is_ascii_digit() && b != b'.');
                Token::Number(self.take(end.map_or(rest.len(), |end| end + 1)))
            }
            _ => {
                Token::Word(self.take_while(|byte| !is_space(byte) && !b"#={}[],".contains(&byte)))
            }
        })
    }

    fn plain_string(&mut self) -> Result<String, TextError> {
        let end = self.rest()[1..].find('\'').ok_or_else(|| self.error(Problem::OpenString))?;
        Ok(self.take(end + 2)[1..=end].into())
    }

    fn escaped_string(&mut self) -> Result<String, TextError> {
        let mut text = String::new();
        let mut chars = self.rest().char_indices().skip(1).peekable();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.take(at + 1);
                    return Ok(text);
                }
                '\\' => match chars.next_if(|(_, next)| matches!(next, '"' | '\\')) {
                    Some((_, escaped)) => text.push(escaped),
                    None => text.push('\\'),
                },
                _ => text.push(c),
            }
        }
        Err(self.error(Problem::OpenString))
    }

    /// The error for a token other than the expected one.
    pub(super) fn unexpected(&self, expected: &'static str, token: &Token<'_>) -> TextError {
        let found = match token {
            Token::OpenSection => "'{'".into(),
            Token::CloseSection => "'}'".into(),
            Token::OpenArray => "'['".into(),
            Token::CloseArray => "']'".into(),
            Token::Comma => "','".into(),
            Token::Equals => "'='".into(),
            Token::Str(text) => format!("the string \"{}\"", shown(text)),
            Token::Number(text) => format!("the number {}", shown(text)),
            Token::Word(text) => format!("'{}'", shown(text)),
            Token::End => "the end of the text".into(),
        };
        self.error(Problem::Unexpected { expected, found })
    }
}

/// C's isspace.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// The start of a token that may be very long, without control characters.
pub(super) fn shown(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN).map(|c| if c.is_control() { '?' } else { c }).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    shown
}
