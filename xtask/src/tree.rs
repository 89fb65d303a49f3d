//! The files of the repository, as rules and pictures see them, and what they find.

use std::path::Path;
use std::process::Command;
use std::{fs, io};

use crate::tidy::lex::code_only;

/// The repository in which this program was built.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

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
        let code = if path.ends_with(".rs") { code_only(text) } else { String::new() };
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

    /// Reads what git lists in the repository in which this program was built; files with a NUL byte or not in UTF-8 count as binary.
    ///
    /// # Errors
    /// Git or a file of its list cannot be read.
    pub(crate) fn load() -> io::Result<Self> {
        let root = root();
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
