//! The house rules, each a function from the tree of files to findings.
//!
//! A rule never reads the disk: it gets a [`Tree`], so that its tests can pass it a tree with one violation. Errors
//! fail the run, warnings are only printed.

pub(crate) mod arrows;
mod blocking;
mod docs;
pub(crate) mod lex;
pub(crate) mod modules;
mod ondisk;
mod paths;
mod source;
mod unsafety;
mod words;

use std::process::ExitCode;

use crate::house;
pub(crate) use crate::tree::{File, Finding, Level, Tree};

/// A rule: returns all its violations in the tree.
type Rule = fn(&Tree) -> Vec<Finding>;

/// Every rule: its name, which is printed with its findings, and its check.
const RULES: &[(&str, Rule)] = &[
    ("length", source::length),
    ("theory", source::theory),
    ("ascii", source::ascii),
    ("unfinished", source::unfinished),
    ("ignored-test", source::ignored_tests),
    ("arrows", arrows::dependencies),
    ("lints", arrows::lints),
    ("std-use", arrows::standard_library),
    ("blocking", blocking::off_reactors),
    ("unsafe", unsafety::allowed_places),
    ("unsafe-attribute", unsafety::crate_attributes),
    ("modules", modules::reachable),
    ("ondisk", ondisk::layout_asserted),
    ("machine", docs::machine),
    ("links", docs::links),
    ("paths", paths::exist),
    ("words", words::plain),
    ("house", house::drawn),
];

/// Checks the repository in which this program was built.
pub(crate) fn run() -> ExitCode {
    let tree = match Tree::load() {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: cannot read the repository: {error}");
            return ExitCode::from(2);
        }
    };
    let (mut errors, mut warnings) = (0, 0);
    for (name, rule) in RULES {
        let mut findings = rule(&tree);
        findings.sort_unstable();
        for Finding { level, path, line, message } in findings {
            let word = match level {
                Level::Error => {
                    errors += 1;
                    "error"
                }
                Level::Warning => {
                    warnings += 1;
                    "warning"
                }
            };
            println!("{path}:{line}: {word} [{name}]: {message}");
        }
    }
    println!(
        "tidy: {} files, {} rules, {errors} errors, {warnings} warnings",
        tree.paths.len(),
        RULES.len()
    );
    if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Test helper: the (line, message) pairs a rule finds in a tree of these files.
#[cfg(test)]
pub(crate) fn findings(
    rule: fn(&Tree) -> Vec<Finding>,
    files: &[(&str, &str)],
) -> Vec<(usize, String)> {
    rule(&Tree::of(files)).into_iter().map(|finding| (finding.line, finding.message)).collect()
}
