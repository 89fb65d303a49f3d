//! Just enough of Rust's lexical grammar to distinguish code from comments and literals.

use std::ops::Range;

/// `text` with every comment and the inside of every string and character literal replaced by blanks. Newlines and byte
/// offsets are unchanged.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let (from, to) = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => (at, find(bytes, at, b"\n")),
            b'/' if bytes[at..].starts_with(b"/*") => (at, block_comment_end(bytes, at)),
            b'"' => (at + 1, string_end(bytes, at + 1)),
            b'r' if !ends_identifier(bytes, at) => match raw_string(bytes, at) {
                Some(inside) => inside,
                None => (at, at),
            },
            b'\'' => match char_literal_end(bytes, at) {
                Some(end) => (at + 1, end),
                None => (at, at),
            },
            _ => (at, at),
        };
        for byte in &mut code[from..to] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        // A literal's closing quote must not be taken for an opening quote.
        at = if to > at { to + usize::from(from > at) } else { at + 1 };
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// The lines (from 1) that contain `word` as a whole word.
pub(crate) fn lines_with_word(text: &str, word: &str) -> Vec<usize> {
    let lines = text.lines().enumerate();
    lines
        .filter(|(_, line)| find_word(line, word, 0).is_some())
        .map(|(index, _)| index + 1)
        .collect()
}

/// The offset of the first whole-word `word` in `text` at or after `from`.
pub(crate) fn find_word(text: &str, word: &str, mut from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    while let Some(found) = text.get(from..)?.find(word) {
        let (start, end) = (from + found, from + found + word.len());
        let free = |index: Option<usize>| {
            index.and_then(|i| bytes.get(i)).is_none_or(|b| !is_identifier(*b))
        };
        if free(start.checked_sub(1)) && free(Some(end)) {
            return Some(start);
        }
        from = end;
    }
    None
}

/// The line (from 1) of a byte offset.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// The offset of the bracket that closes the one at `open`, or the end of the code.
pub(crate) fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return offset;
        }
    }
    code.len()
}

/// `code` with every item under a `#[cfg(...test...)]` blanked.
pub(crate) fn without_tests(code: &str) -> String {
    let mut kept = code.as_bytes().to_vec();
    for item in test_items(code) {
        for byte in &mut kept[item] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Where the items under a `#[cfg(...test...)]` are, without the bracket or semicolon at their end.
pub(crate) fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = code[from..].find("#[cfg(") {
        let start = from + at;
        let attribute_end = closing(code, start + 1);
        let is_test = find_word(&code[start..attribute_end], "test", 0).is_some()
            && find_word(&code[start..attribute_end], "not", 0).is_none();
        from = attribute_end;
        if is_test {
            let body =
                code[attribute_end..].find(['{', ';']).map_or(code.len(), |i| attribute_end + i);
            from =
                if code.as_bytes().get(body) == Some(&b'{') { closing(code, body) } else { body };
            found.push(start..from);
        }
    }
    found
}

pub(crate) fn is_identifier(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn ends_identifier(bytes: &[u8], at: usize) -> bool {
    // The prefixes b and c belong to a literal: br"..." and cr"...".
    match at.checked_sub(1).map(|before| bytes[before]) {
        Some(b'b' | b'c') => at >= 2 && is_identifier(bytes[at - 2]),
        Some(byte) => is_identifier(byte),
        None => false,
    }
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    rest.windows(what.len())
        .position(|window| window == what)
        .map_or(bytes.len(), |index| from + index)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start + 2, 1);
    while at < bytes.len() && depth > 0 {
        if bytes[at..].starts_with(b"/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if bytes[at..].starts_with(b"*/") {
            (at, depth) = (at + 2, depth - 1);
        } else {
            at += 1;
        }
    }
    at.min(bytes.len())
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len())
}

/// The inside of the raw string whose `r` is at `at`; `None` for a raw identifier.
fn raw_string(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let hashes = bytes[at + 1..].iter().take_while(|byte| **byte == b'#').count();
    let inside = at + hashes + 2;
    if bytes.get(inside - 1) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'#'; hashes + 1];
    close[0] = b'"';
    Some((inside, find(bytes, inside, &close)))
}

/// The end of the character literal at `at`; `None` for a lifetime.
fn char_literal_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        return Some(find(bytes, at + 3, b"'"));
    }
    let width = match *bytes.get(at + 1)? {
        0x00..=0x7f => 1,
        0x80..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
    };
    (bytes.get(at + 1 + width) == Some(&b'\'')).then_some(at + 1 + width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squeezed(text: &str) -> String {
        code_only(text).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_vanish_and_code_stays() {
        assert_eq!(squeezed("a // unsafe\nb /* x /* nested */ y */ c"), "a b c");
        assert_eq!(squeezed("/// doc \" quote\nfn f() {}"), "fn f() {}");
    }

    #[test]
    fn insides_of_literals_vanish() {
        assert_eq!(squeezed(r#"f("unsafe", "a\"b // c") + g"#), "f(\" \", \" \") + g");
        assert_eq!(squeezed("x(r#\"a \" unsafe\"#, br\"b\\\") y"), "x(r#\" \"#, br\" \") y");
        assert_eq!(squeezed("m('\"', '\\'', '\\u{1F600}', b'x') z"), "m(' ', ' ', ' ', b' ') z");
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_code() {
        assert_eq!(
            squeezed("fn f<'a>(x: &'a str, r#type: u8) {}"),
            "fn f<'a>(x: &'a str, r#type: u8) {}"
        );
        assert_eq!(squeezed("attr\"x\" bar\"y\""), "attr\" \" bar\" \"");
    }

    #[test]
    fn offsets_and_lines_do_not_move() {
        let text = "a \"\u{e9}\n\u{e9}\" /* \n */ b";
        let code = code_only(text);
        assert_eq!(code.len(), text.len());
        assert_eq!(code.lines().count(), text.lines().count());
        assert_eq!(code.find('b'), text.find('b'));
        assert_eq!(line_of(text, text.len()), 3);
    }

    #[test]
    fn unfinished_literals_do_not_run_off_the_end() {
        for text in ["\"abc", "r#\"abc", "/* abc", "'\\", "'", "\"\\", "r", "b'"] {
            assert_eq!(code_only(text).len(), text.len(), "{text}");
        }
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(lines_with_word("unsafe_code\nx unsafe{\nnot_unsafe", "unsafe"), [2]);
        assert_eq!(find_word("aa a", "a", 0), Some(3));
        assert_eq!(find_word("aa", "a", 7), None);
    }

    #[test]
    fn test_items_are_cut_out() {
        let code = "use a;\n#[cfg(test)]\nmod tests { use b; { } }\nuse c;\n#[cfg(all(test, unix))] use d;\nuse e;\n#[cfg(not(test))] use f;";
        let kept = without_tests(code);
        for (name, stays) in
            [("a", true), ("b", false), ("c", true), ("d", false), ("e", true), ("f", true)]
        {
            assert_eq!(kept.contains(&format!("use {name};")), stays, "{name}");
        }
        assert_eq!(kept.lines().count(), code.lines().count());
    }
}
