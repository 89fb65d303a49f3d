//! LVM's regular expressions: `.`, `*`, `+`, `?`, `|`, `^`, `$`, `[...]`, `(...)` and `\` in front of a literal.

use regex_automata::nfa::thompson::{self, pikevm::PikeVM};

/// A regular expression.
pub(super) struct Pattern(PikeVM);

impl Pattern {
    /// Parses it; `None`: it is malformed, or too large.
    pub(super) fn new(text: &str) -> Option<Self> {
        let limits = thompson::Config::new().nfa_size_limit(Some(1 << 20));
        PikeVM::builder().thompson(limits).build(&translated(text)?).ok().map(Self)
    }

    /// Whether a part of the text matches.
    pub(super) fn is_match(&self, text: &str) -> bool {
        self.0.is_match(&mut self.0.create_cache(), text)
    }
}

/// The expression in the syntax of the library, which knows more operators, and accepts empty alternatives.
fn translated(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut chars = text.chars();
    // Whether there is something to repeat, or to end an alternative with.
    let mut has_item = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => push_literal(&mut out, escaped(chars.next()?)),
            '[' => set(&mut chars, &mut out)?,
            '*' | '+' | '?' if has_item => out.push(c),
            '(' | '|' if c == '(' || has_item => {
                out.push(c);
                has_item = false;
                continue;
            }
            ')' if has_item => out.push(c),
            '*' | '+' | '?' | '|' | ')' => return None,
            '.' => out.push_str("(?s:.)"),
            '^' | '$' => out.push(c),
            _ => push_literal(&mut out, c),
        }
        has_item = true;
    }
    has_item.then_some(out)
}

/// A set of characters, after the opening bracket.
fn set(chars: &mut std::str::Chars<'_>, out: &mut String) -> Option<()> {
    out.push('[');
    let mut is_first = true;
    loop {
        match chars.next()? {
            ']' if !is_first => break,
            '^' if is_first && out.ends_with('[') => {
                out.push('^');
                continue;
            }
            '-' => out.push('-'),
            '\\' => push_literal(out, escaped(chars.next()?)),
            c => push_literal(out, c),
        }
        is_first = false;
    }
    out.push(']');
    Some(())
}

fn escaped(c: char) -> char {
    match c {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        c => c,
    }
}

fn push_literal(out: &mut String, c: char) {
    if c.is_ascii_punctuation() {
        out.push('\\');
    }
    out.push(c);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_lvms() {
        for (pattern, text, matches) in [
            ("^l", "lin", true),
            ("n$", "lin", true),
            ("^in", "lin", false),
            ("li+n?x?", "lin", true),
            ("[k-m]in", "lin", true),
            ("[^l]in", "lin", false),
            ("(d|e)$", "ubde", true),
            ("l{1}", "lin", false),
            ("l{1}", "l{1}", true),
            (r"\w", "lin", false),
            (r"\.", "a.b", true),
            ("[[:alpha:]]", "lin", false),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().is_match(text), matches, "{pattern}");
        }
        for bad in ["", "(", "*l", "(?i)x", "^(x|)lin", "a)", "[a", "a\\"] {
            assert!(Pattern::new(bad).is_none(), "{bad}");
        }
    }
}
