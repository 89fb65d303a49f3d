//! Paths in comments and documents: each must lead to a file or folder of the repository.

use super::modules::join;
use super::{File, Finding, Tree};

/// The top-level folders whose paths are checked.
const FOLDERS: &[&str] = &["benches/", "crates/", "docs/", "fuzz/", "scripts/", "tests/", "xtask/"];

/// Past events are described with the paths of their time.
const HISTORY: &[&str] = &["CHANGELOG.md"];

/// Every path below one of [`FOLDERS`] in a document, or in a comment of a Rust file, exists. It is relative to the
/// root or to a folder that contains the text. For a source file its end suffices, optionally after the name of its
/// crate: `level/striped.rs`, `md/level/striped.rs`. The extension may be omitted; `crates/*/tests` stands for several paths, and
/// `tests/images/md/NAME` for a path that does not exist yet.
pub(crate) fn exist(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| !HISTORY.contains(&file.path.as_str())) {
        for (line, text) in prose(file) {
            for path in named(text) {
                if !leads_somewhere(tree, &file.path, path) {
                    let message = format!("{path}: there is no such file or folder");
                    found.push(Finding::error(&file.path, line, message));
                }
            }
        }
    }
    found
}

/// The lines (from 1) of a document, or the comments of a Rust file.
fn prose(file: &File) -> impl Iterator<Item = (usize, &str)> {
    let is_document = file.path.ends_with(".md");
    let is_rust = file.path.ends_with(".rs");
    let numbered = file.text.lines().enumerate().map(|(index, line)| (index + 1, line));
    numbered
        .filter(move |(_, line)| is_document || (is_rust && line.trim_start().starts_with("//")))
}

/// The words in `text` that look like a path below one of [`FOLDERS`], or of a source file.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !"_-./*$~".contains(c));
    let words = words.map(|word| word.trim_end_matches(['.', '/']));
    words.filter(|word| {
        let is_source =
            word.ends_with(".rs") && word.contains('/') && !word.starts_with(['/', '.', '*']);
        is_source || FOLDERS.iter().any(|folder| word.starts_with(folder))
    })
}

/// Whether `path` exists from the root, or from a folder that contains `from`: a crate may name its own tests.
fn leads_somewhere(tree: &Tree, from: &str, path: &str) -> bool {
    let folders = from.match_indices('/').map(|(end, _)| &from[..end]);
    exists(tree, path)
        || folders.into_iter().any(|folder| exists(tree, &join(folder, path)))
        || (path.ends_with(".rs") && ends_a_source(tree, path))
}

/// Whether `path` is the end of a source file's path: `level/striped.rs`, or after a crate's name, `md/level/striped.rs`.
fn ends_a_source(tree: &Tree, path: &str) -> bool {
    let ending = format!("/{path}");
    let of_crate = path.split_once('/').map(|(name, rest)| format!("crates/{name}/src/{rest}"));
    let is_rooted = FOLDERS.iter().any(|folder| path.starts_with(folder));
    !is_rooted
        && tree
            .paths
            .iter()
            .any(|known| known.ends_with(&ending) || Some(known) == of_crate.as_ref())
}

fn exists(tree: &Tree, path: &str) -> bool {
    let wanted: Vec<&str> = path.split('/').collect();
    tree.paths.iter().any(|known| {
        let mut known = known.split('/');
        wanted.iter().all(|part| known.next().is_some_and(|known| stands_for(part, known)))
    })
}

/// Whether a component of a path in a text matches this component of a file's path.
fn stands_for(part: &str, known: &str) -> bool {
    let stem = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
    match part.split_once('*') {
        Some((start, end)) => known.starts_with(start) && known.ends_with(end),
        None => part == known || part == stem(known) || stem(part) == "NAME",
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::*;

    fn missing(path: &str, text: &str) -> Vec<usize> {
        let files = [
            (path, text),
            ("crates/md/src/lib.rs", ""),
            ("crates/md/tests/suite/sync.rs", ""),
            ("tests/interop/md.sh", ""),
            ("docs/formats/md.md", ""),
            ("tests/images/x", ""),
        ];
        findings(exist, &files).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn a_path_in_a_document_that_does_not_exist_is_found() {
        let text = "`tests/interop/md.sh`, docs/formats/md.md. See crates/md/tests/suite/ and crates/*/tests,\n\
                    [x](docs/gone.md) or crates/md/tests/sync.rs,\nONLY=x tests/interop/lvm.sh\n";
        assert_eq!(missing("docs/a.md", text), [2, 2, 3]);
    }

    #[test]
    fn a_path_in_a_comment_that_does_not_exist_is_found_and_code_is_not_looked_at() {
        let text =
            "//! See docs/formats/md.md.\n    // and tests/gone.rs\nlet a = \"docs/gone.md\";\n";
        assert_eq!(missing("crates/md/src/a.rs", text), [2]);
    }

    #[test]
    fn a_path_may_count_from_a_folder_above_the_text_and_needs_no_ending() {
        assert_eq!(missing("crates/md/src/a.rs", "// tests/suite/sync, tests/suite/sync.rs\n"), []);
        assert_eq!(missing("crates/dm/src/a.rs", "// tests/suite/sync.rs\n"), [1]);
    }

    #[test]
    fn the_end_of_a_source_file_s_path_must_be_that_of_one() {
        let text = "`md/lib.rs` `suite/sync.rs` `src/lib.rs`\n`md/sync.rs` `io/gone.rs`\n";
        assert_eq!(missing("docs/a.md", text), [2, 2]);
    }

    #[test]
    fn a_name_in_capitals_stands_for_what_is_yet_to_be_made() {
        let text = "tests/interop/NAME.sh tests/NAME/x docs/formats/GONE.md gone/NAME fuzz/NAME
";
        assert_eq!(missing("docs/a.md", text), [1, 1]);
    }

    #[test]
    fn paths_of_other_places_and_of_the_past_are_left_alone() {
        assert_eq!(
            missing("docs/a.md", "/usr/share/docs/x ~/docs/x drivers/tests/x $D/docs/x\n"),
            []
        );
        assert_eq!(missing("CHANGELOG.md", "docs/gone.md\n"), []);
    }
}
