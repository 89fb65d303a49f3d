//! The house rules, each a function from the tree of files to findings.
//!
//! A rule never reads the disk: it gets a [`Tree`], so that its tests can pass it a tree with one violation. Errors
//! fail the run, warnings are only printed.

mod arrows;
mod blocking;
mod docs;
mod lex;
mod modules;
mod ondisk;
mod paths;
mod source;
mod unsafety;
mod words;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::{fs, io};

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
];

/// A text file of the repository.
pub(crate) struct File {
    /// Path from the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// `text` with comments and the insides of literals blanked, byte for byte in place.
    /// Empty unless the file is Rust.
    pub(crate) code: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        let code = if path.ends_with(".rs") { lex::code_only(text) } else { String::new() };
        File { path: path.to_owned(), text: text.to_owned(), code }
    }
}

/// All text files that git tracks or would list as untracked.
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
    /// Paths of all files, including binary ones.
    pub(crate) paths: Vec<String>,
}

impl Tree {
    /// A tree of these (path, text) pairs.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        Tree {
            files: files.iter().map(|(path, text)| File::new(path, text)).collect(),
            paths: files.iter().map(|(path, _)| (*path).to_owned()).collect(),
        }
    }

    /// Reads what git lists under `root`; files with a NUL byte or not in UTF-8 count as binary.
    fn load(root: &Path) -> io::Result<Self> {
        let listing = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()?;
        if !listing.status.success() {
            return Err(io::Error::other("git ls-files failed"));
        }
        let mut tree = Tree { files: Vec::new(), paths: Vec::new() };
        let names = String::from_utf8_lossy(&listing.stdout).into_owned();
        for path in names.split('\0').filter(|path| root.join(path).is_file()) {
            tree.paths.push(path.to_owned());
            if let Ok(text) = String::from_utf8(fs::read(root.join(path))?)
                && !text.contains('\0')
            {
                tree.files.push(File::new(path, &text));
            }
        }
        tree.paths.sort_unstable();
        tree.paths.dedup();
        Ok(tree)
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    pub(crate) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Warning,
    Error,
}

/// One violation of a rule. Line 0 means the file as a whole.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Finding {
    pub(crate) fn error(path: &str, line: usize, message: impl Into<String>) -> Self {
        Finding { level: Level::Error, path: path.to_owned(), line, message: message.into() }
    }

    pub(crate) fn warning(path: &str, line: usize, message: impl Into<String>) -> Self {
        Finding { level: Level::Warning, ..Finding::error(path, line, message) }
    }
}

/// Checks the repository in which this program was built.
pub(crate) fn run() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let tree = match Tree::load(root) {
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
