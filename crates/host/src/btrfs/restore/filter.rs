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

    /// Whether a path is copied.
    pub(super) fn accepts(&self, path: &[u8]) -> bool {
        self.0.is_match(&mut self.0.create_cache(), path)
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
}
