//! Every Rust file must be part of a crate: a file without a `mod` is never compiled, and its tests silently do not
//! run.

use std::collections::BTreeSet;

use super::lex::{find_word, is_identifier};
use super::{File, Finding, Tree};

/// Each .rs file is a root that cargo knows, or declared by a file that is reached.
pub(crate) fn reachable(tree: &Tree) -> Vec<Finding> {
    let mut waiting: Vec<String> =
        tree.rust().map(|file| &file.path).filter(|path| is_root(tree, path)).cloned().collect();
    let mut reached: BTreeSet<String> = BTreeSet::new();
    while let Some(path) = waiting.pop() {
        if let Some(file) = tree.get(&path)
            && reached.insert(path.clone())
        {
            let children = children(file, is_root(tree, &path));
            waiting.extend(children.into_iter().map(|child| child.path));
        }
    }
    let lost = tree.rust().filter(|file| !reached.contains(&file.path));
    lost.map(|file| Finding::error(&file.path, 0, "no `mod` declares it, so it is never compiled"))
        .collect()
}

/// Whether cargo compiles this file as a root.
pub(crate) fn is_root(tree: &Tree, path: &str) -> bool {
    let Some((package, inside)) = split_package(tree, path) else {
        return false;
    };
    let parts: Vec<&str> = inside.split('/').collect();
    let by_place = matches!(
        parts[..],
        ["build.rs"]
            | ["src", "lib.rs" | "main.rs"]
            | ["src", "bin", _]
            | ["src", "bin", _, "main.rs"]
            | ["tests" | "benches" | "examples", _]
            | ["tests" | "benches" | "examples", _, "main.rs"]
    );
    by_place
        || tree
            .get(&format!("{package}Cargo.toml"))
            .is_some_and(|manifest| manifest.text.contains(&format!("\"{inside}\"")))
}

/// Splits a path at the folder of the nearest Cargo.toml.
fn split_package<'a>(tree: &Tree, path: &'a str) -> Option<(&'a str, &'a str)> {
    let cuts = path.rmatch_indices('/').map(|(slash, _)| slash + 1).chain([0]);
    cuts.map(|cut| path.split_at(cut))
        .find(|(folder, _)| tree.get(&format!("{folder}Cargo.toml")).is_some())
}

/// A file that another one may declare.
pub(crate) struct Child {
    pub(crate) path: String,
    /// The name of its module, counted from that of the declaring file: `a::b`. Empty for an `include!`.
    pub(crate) module: String,
}

/// The files that the `mod` items and `include!`s of `file` may refer to.
pub(crate) fn children(file: &File, root: bool) -> Vec<Child> {
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let own = if root || name == "mod.rs" {
        folder.to_owned()
    } else {
        format!("{folder}/{}", name.trim_end_matches(".rs"))
    };
    let bytes = file.code.as_bytes();
    let mut found = Vec::new();
    let mut scopes: Vec<Option<String>> = Vec::new();
    let mut explicit: Option<String> = None;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'{' => scopes.push(None),
            b'}' => drop(scopes.pop()),
            b'#' if file.code[at..].starts_with("#[path") => explicit = quoted(file, at),
            _ => {}
        }
        if file.code[at..].starts_with("include!(") {
            let included = quoted(file, at).map(|name| join(folder, &name));
            found.extend(included.map(|path| Child { path, module: String::new() }));
        }
        let is_mod = file.code[at..].starts_with("mod ")
            && at.checked_sub(1).is_none_or(|before| !is_identifier(bytes[before]));
        if !is_mod {
            at += 1;
            continue;
        }
        let start = at + "mod ".len();
        let length = bytes[start..].iter().take_while(|byte| is_identifier(**byte)).count();
        let module = &file.code[start..start + length];
        let after = file.code[start + length..].trim_start();
        at = start + length;
        if after.starts_with('{') {
            at = at + file.code[at..].find('{').unwrap_or_default() + 1;
            scopes.push(Some(module.to_owned()));
        } else if after.starts_with(';') {
            let inner: Vec<&str> = scopes.iter().flatten().map(String::as_str).collect();
            let inner = || inner.iter().copied();
            let folder_of_child =
                [own.as_str()].into_iter().chain(inner()).collect::<Vec<_>>().join("/");
            let paths = match explicit.take() {
                Some(name) => vec![join(folder, &name)],
                None => vec![
                    format!("{folder_of_child}/{module}.rs"),
                    format!("{folder_of_child}/{module}/mod.rs"),
                ],
            };
            let module = inner().chain([module]).collect::<Vec<_>>().join("::");
            found.extend(paths.into_iter().map(|path| Child { path, module: module.clone() }));
        }
    }
    found
}

/// The string literal after `at` in the same bracket.
fn quoted(file: &File, at: usize) -> Option<String> {
    let open = at + file.code[at..].find('"')? + 1;
    let end = open + file.code[open..].find('"')?;
    find_word(&file.code[at..open], "mod", 0).is_none().then(|| file.text[open..end].to_owned())
}

/// `name` relative to `folder`, with its dots resolved.
pub(crate) fn join(folder: &str, name: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(files: &[(&str, &str)]) -> Vec<String> {
        let mut files = files.to_vec();
        files.push(("a/Cargo.toml", "[[bin]]\npath = \"odd/place.rs\""));
        reachable(&Tree::of(&files)).into_iter().map(|finding| finding.path).collect()
    }

    #[test]
    fn a_file_without_a_mod_is_found() {
        assert_eq!(
            lost(&[("a/src/lib.rs", "mod b;"), ("a/src/b.rs", ""), ("a/src/c.rs", "")]),
            ["a/src/c.rs"]
        );
        assert_eq!(lost(&[("a/src/lib.rs", "// mod b;"), ("a/src/b.rs", "")]), ["a/src/b.rs"]);
        assert_eq!(lost(&[("elsewhere/x.rs", "")]), ["elsewhere/x.rs"]);
    }

    #[test]
    fn modules_are_followed_down() {
        let files = [
            ("a/src/lib.rs", "pub(crate) mod b;\n#[cfg(test)] mod e { mod f; }"),
            ("a/src/b.rs", "mod c;"),
            ("a/src/b/c/mod.rs", "fn x() { if a { } } mod d;"),
            ("a/src/b/c/d.rs", ""),
            ("a/src/e/f.rs", ""),
        ];
        assert_eq!(lost(&files), [""; 0]);
        assert_eq!(lost(&files[1..]).len(), 4);
    }

    #[test]
    fn a_mod_of_the_wrong_folder_does_not_count() {
        assert_eq!(
            lost(&[("a/src/lib.rs", "mod b { mod c; }"), ("a/src/c.rs", "")]),
            ["a/src/c.rs"]
        );
    }

    #[test]
    fn explicit_paths_includes_and_cargo_roots_count() {
        let files = [
            ("a/src/main.rs", "#[path = \"../odd/b.rs\"]\nmod b;\nmod c;\ninclude!(\"d.rs\");"),
            ("a/odd/b.rs", ""),
            ("a/odd/place.rs", ""),
            ("a/src/c.rs", ""),
            ("a/src/d.rs", ""),
            ("a/tests/t.rs", "mod common;"),
            ("a/tests/common/mod.rs", ""),
            ("a/build.rs", ""),
        ];
        assert_eq!(lost(&files), [""; 0]);
    }

    #[test]
    fn dots_are_resolved() {
        assert_eq!(join("a/b", "../c/./d"), "a/c/d");
        assert_eq!(join("", "x"), "x");
    }
}
