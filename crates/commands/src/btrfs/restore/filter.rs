//! Which paths are copied.

use std::error::Error as _;

use regex_automata::nfa::thompson::{self, pikevm::PikeVM};
use regex_automata::util::syntax;

/// The most memory of a compiled expression, bytes.
const SIZE_MAX: usize = 1 << 20;

/// A regular expression for paths, which begin with a slash and may contain any bytes.
#[derive(Clone, Debug)]
pub struct PathFilter(PikeVM);

impl PathFilter {
    /// The paths that `regex` matches.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(regex: &str, ignore_case: bool) -> Result<Self, String> {
        let syntax = syntax::Config::new().unicode(false).utf8(false).case_insensitive(ignore_case);
        let built = PikeVM::builder()
            .syntax(syntax)
            .thompson(thompson::Config::new().utf8(false).nfa_size_limit(Some(SIZE_MAX)))
            .build(regex);
        // The cause says what is wrong.
        let cause = |why: &thompson::BuildError| why.source().map(ToString::to_string);
        built.map(Self).map_err(|why| cause(&why).unwrap_or_else(|| why.to_string()))
    }

    /// The paths that a pattern of the shell matches: without a slash the last component of a path, otherwise all of it. `*` and
    /// `?` stand for no slash, `**` also for slashes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn glob(pattern: &str) -> Result<Self, String> {
        let start = match pattern.strip_prefix('/') {
            Some(_) => "^",
            None if pattern.trim_end_matches('/').contains('/') => "^/",
            None => "/",
        };
        let pattern = pattern.trim_end_matches('/');
        if pattern.is_empty() {
            return Err("it matches nothing".to_owned());
        }
        let mut regex = format!("(?s){start}");
        let mut rest = pattern.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '*' if rest.next_if_eq(&'*').is_some() => regex.push_str(".*"),
                '*' => regex.push_str("[^/]*"),
                // A character of UTF-8, or another byte.
                '?' => regex.push_str(r"(?:[\xc2-\xf4][\x80-\xbf]{1,3}|[^/])"),
                '[' => regex.push_str(&class(&mut rest)?),
                '\\' => {
                    literal(rest.next().ok_or("there is nothing behind the backslash")?, &mut regex)
                }
                c => literal(c, &mut regex),
            }
        }
        regex.push('$');
        Self::new(&regex, false)
    }

    /// Whether a path is copied, or is one that is left out.
    pub(super) fn accepts(&self, path: &[u8]) -> bool {
        // A user may leave out the first slash.
        let rooted;
        let path = if path.starts_with(b"/") {
            path
        } else {
            rooted = [b"/", path].concat();
            &rooted
        };
        self.0.is_match(&mut self.0.create_cache(), path)
    }
}

/// Adds the bytes of a character that stands for itself.
fn literal(c: char, regex: &mut String) {
    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
        regex.push_str(&format!(r"\x{byte:02x}"));
    }
}

/// A class of characters behind its `[`: those of ASCII.
fn class(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<String, String> {
    let is_not = rest.next_if(|c| matches!(c, '!' | '^')).is_some();
    let mut class = (if is_not { "[^/" } else { "[" }).to_owned();
    let mut is_empty = true;
    loop {
        match rest.next() {
            Some(']') if !is_empty => return Ok(class + "]"),
            Some('-') if !is_empty && rest.peek().is_some_and(|next| *next != ']') => {
                class.push('-')
            }
            Some(c) if c.is_ascii() && c != '/' => literal(c, &mut class),
            Some(c) => return Err(format!("{c} cannot be in [ ]")),
            None => return Err("a ] is missing".to_owned()),
        }
        is_empty = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_may_contain_any_bytes() {
        let filter = PathFilter::new("^/(|home(|/.*))$", false).unwrap();
        for path in [&b"/"[..], b"/home", b"/home/\xff"] {
            assert!(filter.accepts(path), "{path:?}");
        }
        assert!(!filter.accepts(b"/HOME"));
        assert!(PathFilter::new("^/home$", true).unwrap().accepts(b"/HOME"));
        assert!(PathFilter::new("(", false).is_err());
    }

    #[test]
    fn patterns_match_names_or_paths() {
        let cases: [(&str, &[&str], &[&str]); 9] = [
            ("*.iso", &["/a.iso", "/x/b.iso", ".iso"], &["/a.iso/b", "/aiso", "/a.ISO"]),
            ("cache", &["/cache", "/x/cache"], &["/xcache", "/cache2"]),
            ("cache/", &["/x/cache"], &["/caches"]),
            ("/home/*/tmp", &["/home/a/tmp"], &["/x/home/a/tmp", "/home/a/b/tmp"]),
            ("home/**/tmp", &["/home/a/tmp", "home/a/b/tmp"], &["/home/tmp", "/x/home/a/tmp"]),
            ("file.?", &["/file.a", "/file.\u{e9}"], &["/file.", "/file.ab", "/file./"]),
            ("[a-c]x[!0-9]", &["/axy", "/cx-"], &["/dxy", "/ax1", "/ax/"]),
            ("[]-]", &["/]", "/-"], &["/a"]),
            (r"\*(+\\", &[r"/*(+\"], &["/x(+"]),
        ];
        for (pattern, matching, others) in cases {
            let filter = PathFilter::glob(pattern).unwrap();
            for path in matching {
                assert!(filter.accepts(path.as_bytes()), "{pattern} {path}");
            }
            for path in others {
                assert!(!filter.accepts(path.as_bytes()), "{pattern} {path}");
            }
        }
        assert!(PathFilter::glob("?").unwrap().accepts(b"/\xff"));
        for wrong in ["", "/", "[a", "a\\", "[z-a]", "[\u{e9}]"] {
            assert!(PathFilter::glob(wrong).is_err(), "{wrong}");
        }
    }
}
