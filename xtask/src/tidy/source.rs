//! Rules about single Rust files: length, opening comment, alphabet, unfinished code.

use super::lex::{find_word, line_of, lines_with_word};
use super::{Finding, Tree};

/// A file with more lines should be split, or listed in [`ALLOWED_LENGTH`].
const SOFT_LINES: usize = 600;
/// No file is longer than this.
const HARD_LINES: usize = 1_000;

/// Files that may be longer than the soft limit: path, allowed lines (this number may only decrease), and the reason.
const ALLOWED_LENGTH: &[(&str, usize, &str)] = &[];

/// The least lines of theory at the start of a crate.
const THEORY_LINES: usize = 10;

/// A file must be readable in one sitting.
pub(crate) fn length(tree: &Tree) -> Vec<Finding> {
    length_with(tree, ALLOWED_LENGTH)
}

fn length_with(tree: &Tree, allowed: &[(&str, usize, &str)]) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let lines = file.text.lines().count();
        let allowance = allowed.iter().find(|(path, ..)| *path == file.path);
        if lines > HARD_LINES {
            found.push(Finding::error(
                &file.path,
                0,
                format!("{lines} lines, at most {HARD_LINES} are read in one sitting"),
            ));
        } else if let Some((path, limit, _)) = allowance {
            if lines > *limit {
                found.push(Finding::error(
                    path,
                    0,
                    format!("{lines} lines, its allowance is {limit} and may only fall"),
                ));
            } else if lines <= SOFT_LINES {
                found.push(Finding::error(path, 0, "short enough now: remove its allowance"));
            }
        } else if lines > SOFT_LINES {
            found.push(Finding::warning(
                &file.path,
                0,
                format!("{lines} lines, more than {SOFT_LINES}"),
            ));
        }
    }
    for (path, ..) in allowed.iter().filter(|(path, ..)| tree.get(path).is_none()) {
        found.push(Finding::error(path, 0, "an allowance for a file that is not there"));
    }
    found
}

/// Every file says what it is for; a crate's first file explains its theory.
pub(crate) fn theory(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        let is_doc = |line: &&str| line.starts_with("//!");
        let mut lines = file.text.lines().skip_while(|line| line.starts_with("#!["));
        if !lines.clone().next().is_some_and(|line| is_doc(&line)) {
            found.push(Finding::error(
                &file.path,
                1,
                "does not open with a `//!` line that says what it is for",
            ));
            continue;
        }
        let first_of_crate =
            match file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/")) {
                Some((_, "lib.rs")) => true,
                Some((name, "main.rs")) => tree.get(&format!("crates/{name}/src/lib.rs")).is_none(),
                Some(_) | None => false,
            };
        let said =
            lines.by_ref().take_while(is_doc).filter(|line| line.len() > "//! ".len()).count();
        if first_of_crate && said < THEORY_LINES {
            let message = format!(
                "{said} lines of theory, at least {THEORY_LINES}: states, invariants, ordering, what it assumes of the layer below"
            );
            found.push(Finding::error(&file.path, 1, message));
        }
    }
    found
}

/// Sources are ASCII, so that what a reader sees is what is compiled.
pub(crate) fn ascii(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(odd) = line.chars().find(|c| !c.is_ascii()) {
                found.push(Finding::error(
                    &file.path,
                    index + 1,
                    format!("{} is not ASCII", odd.escape_unicode()),
                ));
            }
        }
    }
    found
}

/// No unfinished code, and no debugging code.
pub(crate) fn unfinished(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")] {
            for line in lines_with_word(&file.text, word) {
                found.push(Finding::error(
                    &file.path,
                    line,
                    format!("{word}: finish it, or open an issue"),
                ));
            }
        }
        for name in ["todo", "unimplemented", "dbg"] {
            let mut from = 0;
            while let Some(at) = find_word(&file.code, name, from) {
                from = at + name.len();
                if file.code[from..].starts_with('!') {
                    found.push(Finding::error(
                        &file.path,
                        line_of(&file.code, at),
                        format!("{name}! is for unfinished code"),
                    ));
                }
            }
        }
    }
    found
}

/// A test may be ignored only with a reason.
pub(crate) fn ignored_tests(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.rust() {
        for (at, _) in file.code.match_indices("#[ignore") {
            let rest = file.text[at + "#[ignore".len()..].trim_start();
            let reason =
                rest.strip_prefix('=').map(str::trim_start).and_then(|rest| rest.strip_prefix('"'));
            if !reason.is_some_and(|reason| {
                reason.find('"').is_some_and(|length| reason[..length].trim().len() >= 8)
            }) {
                let line = line_of(&file.text, at);
                found.push(Finding::error(
                    &file.path,
                    line,
                    "an ignored test gives its reason: #[ignore = \"why\"]",
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::{Level, findings};
    use super::*;

    #[test]
    fn long_files_are_found() {
        let tree = |lines: usize| Tree::of(&[("crates/md/src/a.rs", &"//\n".repeat(lines))]);
        let level = |lines, allowed| {
            length_with(&tree(lines), allowed).first().map(|finding| finding.level)
        };
        assert_eq!(level(600, &[]), None);
        assert_eq!(level(601, &[]), Some(Level::Warning));
        assert_eq!(level(1_001, &[]), Some(Level::Error));
        let allowed: &[_] = &[("crates/md/src/a.rs", 700, "a table")];
        assert_eq!(level(700, allowed), None);
        assert_eq!(level(701, allowed), Some(Level::Error), "an allowance may only fall");
        assert_eq!(level(600, allowed), Some(Level::Error), "a spent allowance goes");
        assert_eq!(length_with(&Tree::of(&[]), allowed).len(), 1, "an allowance for nothing goes");
    }

    #[test]
    fn a_crate_opens_with_its_theory() {
        let line = "//! Why.\n";
        let check = |path, text: &str| findings(theory, &[(path, text)]).len();
        assert_eq!(check("crates/md/src/lib.rs", &line.repeat(10)), 0);
        assert_eq!(check("crates/md/src/lib.rs", &line.repeat(9)), 1);
        assert_eq!(
            check("crates/md/src/lib.rs", &format!("{}//!\n", line.repeat(9))),
            1,
            "an empty line says nothing"
        );
        assert_eq!(
            check("crates/cli/src/main.rs", line),
            1,
            "a program without a library has its theory in main.rs"
        );
        assert_eq!(check("crates/md/src/raid0.rs", line), 0, "other files need one line");
        assert_eq!(check("crates/md/src/raid0.rs", "use std;\n"), 1);
        assert_eq!(check("fuzz/fuzz_targets/a.rs", "#![no_main]\n//! Fuzzes.\n"), 0);
    }

    #[test]
    fn other_alphabets_are_found() {
        let files = [("a.rs", "//! a\n// caf\u{e9}\n"), ("b.md", "\u{e9}")];
        assert_eq!(findings(ascii, &files), [(2, "\\u{e9} is not ASCII".to_owned())]);
    }

    #[test]
    fn unfinished_code_is_found() {
        let check = |text: &str| findings(unfinished, &[("a.rs", text)]).len();
        assert_eq!(check("fn f() { todo!() }"), 1);
        assert_eq!(check("fn f() { unimplemented!(\"x\"); dbg!(1) }"), 2);
        for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")] {
            assert_eq!(check(&format!("// {word} later")), 1);
            assert_eq!(check(&format!("// {word}ABLE")), 0);
        }
        assert_eq!(check("let todo = \"todo!()\"; // dbg!"), 0);
    }

    #[test]
    fn a_test_ignored_without_a_reason_is_found() {
        let check = |text: &str| findings(ignored_tests, &[("a.rs", text)]).len();
        assert_eq!(check("#[ignore]\nfn f() {}"), 1);
        assert_eq!(check("#[ignore = \"\"]\nfn f() {}"), 1);
        assert_eq!(check("#[ignore = \"needs a disk of 4 TB\"]\nfn f() {}"), 0);
        assert_eq!(check("let s = \"#[ignore]\";"), 0);
    }
}
