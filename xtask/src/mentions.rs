//! The paths that Rust code names: what `use` items import, and what the other code mentions.

use crate::tidy::lex::is_identifier;

/// A path, with the groups of a `use` expanded.
pub(crate) struct Mention<'a> {
    /// The offset of its first part.
    pub(crate) at: usize,
    /// Its parts. A glob ends with `*`.
    pub(crate) path: Vec<&'a str>,
    /// The modules inside of the file around it.
    pub(crate) inside: Vec<&'a str>,
    pub(crate) kind: Kind<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    /// A `use` of it under this name.
    Use { name: &'a str, is_public: bool },
    /// The definition of this name.
    Definition,
    /// Any other place.
    Code,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a str),
    /// `::`
    Step,
    Other(u8),
}

/// The words after which a name is defined.
const DEFINES: &[&str] = &["const", "enum", "fn", "static", "struct", "trait", "type", "union"];

/// Every path of `code`, which has no comments and empty literals. Names of fields and methods are left out.
pub(crate) fn mentions(code: &str) -> Vec<Mention<'_>> {
    let tokens = tokens(code);
    let token = |index: usize| tokens.get(index).map(|(_, token)| *token);
    let mut found = Vec::new();
    let mut scopes: Vec<Option<&str>> = Vec::new();
    let mut index = 0;
    while let Some((at, now)) = tokens.get(index).copied() {
        let inside = || scopes.iter().copied().flatten().collect::<Vec<_>>();
        match now {
            Token::Other(b'{') => scopes.push(None),
            Token::Other(b'}') => drop(scopes.pop()),
            Token::Name("mod") => {
                if let (Some(Token::Name(name)), Some(Token::Other(b'{'))) =
                    (token(index + 1), token(index + 2))
                {
                    scopes.push(Some(name));
                    index += 2;
                } else {
                    index += 1;
                }
            }
            // `use<'a>` is a bound.
            Token::Name("use") if token(index + 1) != Some(Token::Other(b'<')) => {
                let before = index.checked_sub(1).and_then(token);
                let is_public = matches!(before, Some(Token::Name("pub") | Token::Other(b')')));
                let mut leaves = Vec::new();
                index = import(&tokens, index + 1, &[], &mut leaves);
                found.extend(leaves.into_iter().map(|(at, path, name)| {
                    let kind = Kind::Use { name, is_public };
                    Mention { at, path, inside: inside(), kind }
                }));
            }
            Token::Name(word) if DEFINES.contains(&word) => {
                // `const fn`, `*const T`
                if let Some(Token::Name(name)) = token(index + 1)
                    && !DEFINES.contains(&name)
                {
                    let is_pointer =
                        index.checked_sub(1).and_then(token) == Some(Token::Other(b'*'));
                    let kind = if is_pointer { Kind::Code } else { Kind::Definition };
                    if kind == Kind::Definition {
                        index += 1;
                        found.push(Mention { at, path: vec![name], inside: inside(), kind });
                    }
                }
            }
            Token::Name(first) => {
                let before = index.checked_sub(1).and_then(token);
                let mut path = vec![first];
                while let (Some(Token::Step), Some(Token::Name(name))) =
                    (token(index + 1), token(index + 2))
                {
                    path.push(name);
                    index += 2;
                }
                let is_known = !matches!(before, Some(Token::Other(b'.') | Token::Step));
                if is_known && !is_visibility(&tokens, at) {
                    found.push(Mention { at, path, inside: inside(), kind: Kind::Code });
                }
            }
            Token::Step | Token::Other(_) => {}
        }
        index += 1;
    }
    found
}

/// Whether the path at this offset is that of `pub(in PATH)`.
fn is_visibility(tokens: &[(usize, Token<'_>)], at: usize) -> bool {
    let index = tokens.partition_point(|(offset, _)| *offset < at);
    let before = |steps| index.checked_sub(steps).map(|index| tokens[index].1);
    before(1) == Some(Token::Name("in")) && before(3) == Some(Token::Name("pub"))
}

/// A path of a `use`: its offset, its parts, and the name that it gives.
type Leaf<'a> = (usize, Vec<&'a str>, &'a str);

/// Reads a tree of a `use` item from token `index`; returns the index of the token after it.
fn import<'a>(
    tokens: &[(usize, Token<'a>)],
    mut index: usize,
    prefix: &[&'a str],
    leaves: &mut Vec<Leaf<'a>>,
) -> usize {
    let mut path = prefix.to_vec();
    let start = tokens.get(index).map_or(0, |(at, _)| *at);
    while let Some((_, token)) = tokens.get(index) {
        index += 1;
        match token {
            Token::Step => {}
            Token::Name("as") => {
                if let Some((_, Token::Name(name))) = tokens.get(index) {
                    leaves.push((start, path, name));
                }
                return index + 1;
            }
            Token::Name("self") if !path.is_empty() => {}
            Token::Name(name) => path.push(name),
            Token::Other(b'*') => path.push("*"),
            Token::Other(b'{') => {
                while !matches!(tokens.get(index), None | Some((_, Token::Other(b'}')))) {
                    index = import(tokens, index, &path, leaves);
                    index +=
                        usize::from(matches!(tokens.get(index), Some((_, Token::Other(b',')))));
                }
                return index + 1;
            }
            Token::Other(_) => {
                index -= 1;
                break;
            }
        }
    }
    if let Some(name) = path.last().copied() {
        leaves.push((start, path, name));
    }
    // Whatever is there: the next call must not start at the same token.
    let is_end = matches!(tokens.get(index), Some((_, Token::Other(b',' | b'}' | b';'))));
    if is_end { index } else { index + 1 }
}

/// Names and signs, with their offsets; without numbers and lifetimes.
fn tokens(code: &str) -> Vec<(usize, Token<'_>)> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        if is_identifier(byte) {
            let length = bytes[at..].iter().take_while(|byte| is_identifier(**byte)).count();
            let word = &code[at..at + length];
            let is_raw = word == "r" && bytes.get(at + 1) == Some(&b'#');
            let is_lifetime = at.checked_sub(1).is_some_and(|before| bytes[before] == b'\'');
            if !byte.is_ascii_digit() && !is_raw && !is_lifetime {
                found.push((at, Token::Name(word)));
            }
            at += length + usize::from(is_raw);
        } else if bytes[at..].starts_with(b"::") {
            found.push((at, Token::Step));
            at += 2;
        } else {
            // The dots of a range are not those of a field.
            if bytes[at..].starts_with(b"..") {
                found.push((at, Token::Other(b'~')));
                at += 2;
                continue;
            }
            if !byte.is_ascii_whitespace() {
                found.push((at, Token::Other(byte)));
            }
            at += 1;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::lex::code_only;

    fn all(text: &str) -> Vec<String> {
        let code = code_only(text);
        let shown = mentions(&code).into_iter().map(|mention| {
            let path = mention.path.join("::");
            let inside: String = mention.inside.iter().map(|name| format!("{name}: ")).collect();
            match mention.kind {
                Kind::Use { name, is_public } => {
                    format!("{inside}{}use {path} as {name}", if is_public { "pub " } else { "" })
                }
                Kind::Definition => format!("{inside}define {path}"),
                Kind::Code => format!("{inside}{path}"),
            }
        });
        shown.collect()
    }

    #[test]
    fn groups_names_and_globs_of_a_use_are_expanded() {
        assert_eq!(
            all("use super::{a::{self, B as C}, d::*};\npub(crate) use e;"),
            [
                "use super::a as a",
                "use super::a::B as C",
                "use super::d::* as *",
                "pub",
                "crate",
                "pub use e as e"
            ]
        );
    }

    #[test]
    fn paths_are_found_and_fields_methods_lifetimes_and_numbers_are_not() {
        assert_eq!(
            all("fn f<'a>(x: &'a T) { x.y.z(1u8, a::b::<C>(), ..k) }"),
            ["define f", "x", "T", "x", "a::b", "C", "k"]
        );
        assert_eq!(all("const fn g() { *const h }"), ["define g", "h"]);
    }

    #[test]
    fn modules_inside_of_a_file_are_known() {
        assert_eq!(
            all("mod a { use super::B; } mod c; use d;"),
            ["a: use super::B as B", "use d as d"]
        );
    }
}
