//! The picture of the house, drawn from the code: rooms (crates and their modules), arrows between them, circles of files within them, lines.
//!
//! docs/house.md shows it, and a rule of [`crate::tidy`] compares that page with the code. Its lines are rounded and not compared, so that only a
//! commit that changes the shape has to write the page again.

mod graph;
mod picture;

use std::collections::BTreeSet;
use std::fs;
use std::process::ExitCode;

use crate::tidy::arrows::{normal_dependencies, our_crate};
use crate::tidy::lex::test_items;
use crate::tree::{File, Finding, Tree, root};
use graph::Package;

const PAGE: &str = "docs/house.md";
const PICTURE: &str = "docs/pictures/house.svg";

/// A package of the workspace.
struct Room {
    name: String,
    /// Whether it is a part of the program, and not for work on it.
    is_shipped: bool,
    /// The packages of this repository that it uses, without those of its tests.
    uses: BTreeSet<String>,
    package: Package,
    source_lines: usize,
    /// Of tests beside the code and in folders of their own, and of what only tests compile.
    test_lines: usize,
}

impl Room {
    fn uses(&self) -> BTreeSet<&str> {
        self.uses.iter().map(String::as_str).collect()
    }

    /// The modules in the root of the crate, by their files.
    fn modules(&self) -> BTreeSet<&str> {
        let files = self.package.files.keys().map(|path| {
            let first = path.split('/').next().unwrap_or(path);
            first.trim_end_matches(".rs")
        });
        files.filter(|name| !["lib", "main"].contains(name)).collect()
    }
}

/// All packages of the workspace, by name.
fn rooms(tree: &Tree) -> Vec<Room> {
    let manifests = tree.files.iter().filter_map(|file| {
        let folder = file.path.strip_suffix("/Cargo.toml")?;
        Some((folder, folder.strip_prefix("crates/").unwrap_or(folder), &file.text))
    });
    let workspace = manifests.filter(|(_, name, _)| !name.contains('/'));
    let mut rooms: Vec<Room> = workspace
        .map(|(folder, name, manifest)| {
            let package = Package::read(tree, folder);
            let all = tree.rust().filter(|file| file.path.starts_with(&format!("{folder}/")));
            let all: usize = all.map(|file| file.text.lines().count()).sum();
            let source_lines = package.files.values().map(|file| source_lines(tree, file)).sum();
            let uses = normal_dependencies(manifest).into_iter();
            Room {
                name: name.to_owned(),
                is_shipped: folder != name,
                uses: uses.filter_map(|(_, name)| our_crate(&name).map(str::to_owned)).collect(),
                package,
                source_lines,
                test_lines: all.saturating_sub(source_lines),
            }
        })
        .collect();
    rooms.sort_by(|a, b| a.name.cmp(&b.name));
    rooms
}

/// The lines of a shipped file without those of its tests.
fn source_lines(tree: &Tree, shipped: &File) -> usize {
    let code = tree.get(&shipped.path).map_or("", |file| &file.code);
    let of_tests = test_items(code).into_iter().map(|item| code[item].matches('\n').count() + 1);
    shipped.text.lines().count().saturating_sub(of_tests.sum())
}

/// Lines, rounded: `8.9k`. Nothing else on the page is written so: see [`without_lines`].
fn thousands(lines: usize) -> String {
    let hundreds = (lines + 50) / 100;
    format!("{}.{}k", hundreds / 10, hundreds % 10)
}

/// The page with all numbers of lines cut out.
fn without_lines(page: &str) -> String {
    let is_lines =
        |word: &str| word.strip_suffix('k').is_some_and(|number| number.parse::<f64>().is_ok());
    page.split(' ').filter(|word| !is_lines(word)).collect::<Vec<_>>().join(" ")
}

/// The page that shows these rooms.
fn page(rooms: &[Room]) -> String {
    let mut page = String::from(
        "# The house\n\nDrawn from the code by `cargo xtask house --write`; `cargo xtask tidy` compares it with the code. \
         Lines are rounded and not compared.\n\
         [ARCHITECTURE.md](../ARCHITECTURE.md) says what each room is for, [decisions/0009](decisions/0009-house.md) how the house shall look.\n\n\
         ![Crates and their arrows](pictures/house.svg)\n\n\
         An arrow that follows from others is not drawn. Arrows of tests do not count here and below.\n\n\
         ## Rooms\n\n\
         | crate | lines | of tests | uses | modules |\n|---|---|---|---|---|\n",
    );
    let list = |names: &BTreeSet<&str>| {
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    for room in rooms {
        let [source, tests] = [room.source_lines, room.test_lines].map(thousands);
        let (uses, modules) = (list(&room.uses()), list(&room.modules()));
        page += &format!("| `{}` | {source} | {tests} | {uses} | {modules} |\n", room.name);
    }
    page += "\n## Circles\n\nFiles of a crate that all lead to each other: who changes one may have to read all. \
             `cargo xtask house CRATE` prints the arrows inside.\n\n\
             | crate | files | |\n|---|---|---|\n";
    let mut circles: Vec<_> = rooms
        .iter()
        .flat_map(|room| room.package.circles().into_iter().map(|circle| (&room.name, circle)))
        .collect();
    circles.sort_by_key(|(_, circle)| std::cmp::Reverse(circle.len()));
    for (name, circle) in &circles {
        page += &format!("| `{name}` | {} | {} |\n", circle.len(), list(circle));
    }
    let sum = |of: fn(&Room) -> usize| rooms.iter().map(of).sum::<usize>();
    let in_circles: usize = circles.iter().map(|(_, circle)| circle.len()).sum();
    page += &format!(
        "\n## Sums\n\n| crates | arrows | circles | files in circles | lines | of tests |\n|---|---|---|---|---|---|\n\
         | {} | {} | {} | {in_circles} | {} | {} |\n",
        rooms.len(),
        sum(|room| room.uses.len()),
        circles.len(),
        thousands(sum(|room| room.source_lines)),
        thousands(sum(|room| room.test_lines))
    );
    page
}

/// The picture of the shipped rooms.
fn picture(rooms: &[Room]) -> String {
    let shipped = rooms.iter().filter(|room| room.is_shipped);
    let uses = shipped.map(|room| (room.name.as_str(), room.uses()));
    picture::draw(&uses.collect())
}

/// The page of the house and its picture show the code.
pub(crate) fn drawn(tree: &Tree) -> Vec<Finding> {
    let rooms = rooms(tree);
    differences(tree, &page(&rooms), &picture(&rooms))
}

/// What a tree's page and picture show otherwise.
fn differences(tree: &Tree, page: &str, picture: &str) -> Vec<Finding> {
    let text = |path| tree.get(path).map_or("", |file| &file.text);
    let (old, new) = (without_lines(text(PAGE)), without_lines(page));
    let mut found = Vec::new();
    for (index, line) in
        old.lines().enumerate().filter(|(_, line)| !new.lines().any(|l| l == *line))
    {
        found.push(Finding::error(PAGE, index + 1, format!("no longer so: {line}")));
    }
    for line in new.lines().filter(|line| !old.lines().any(|l| l == *line)) {
        let message = format!("not shown; if it shall be so, `cargo xtask house --write`: {line}");
        found.push(Finding::error(PAGE, 0, message));
    }
    if found.is_empty() && (old != new || text(PICTURE) != picture) {
        found.push(Finding::error(
            PICTURE,
            0,
            "differs from the code: `cargo xtask house --write`",
        ));
    }
    found
}

/// Runs `task` on the rooms of this repository.
fn with_rooms(task: impl FnOnce(&Tree, &[Room]) -> ExitCode) -> ExitCode {
    match Tree::load() {
        Ok(tree) => task(&tree, &rooms(&tree)),
        Err(error) => {
            eprintln!("house: cannot read the repository: {error}");
            ExitCode::from(2)
        }
    }
}

/// Prints the page, and fails if docs/house.md shows something else.
pub(crate) fn check() -> ExitCode {
    with_rooms(|tree, rooms| {
        let page = page(rooms);
        print!("{page}");
        let found = differences(tree, &page, &picture(rooms));
        for Finding { path, line, message, .. } in &found {
            eprintln!("{path}:{line}: {message}");
        }
        if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    })
}

/// Writes the page and its picture.
pub(crate) fn write() -> ExitCode {
    with_rooms(|_, rooms| {
        for (path, text) in [(PAGE, page(rooms)), (PICTURE, picture(rooms))] {
            if let Err(error) = fs::write(root().join(path), text) {
                eprintln!("house: cannot write {path}: {error}");
                return ExitCode::from(2);
            }
        }
        ExitCode::SUCCESS
    })
}

/// Prints the arrows inside of each circle of the crate `name`, with the names for which they are there.
pub(crate) fn circles_of(name: &str) -> ExitCode {
    with_rooms(|_, rooms| {
        let Some(room) = rooms.iter().find(|room| room.name == name) else {
            eprintln!("house: there is no crate {name}");
            return ExitCode::from(2);
        };
        for circle in room.package.circles() {
            println!("{} files:", circle.len());
            for ((from, to), names) in &room.package.arrows {
                if circle.contains(from.as_str()) && circle.contains(to.as_str()) {
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    println!("  {from} -> {to}: {}", names.join(", "));
                }
            }
        }
        ExitCode::SUCCESS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: (&str, &str) = ("crates/md/Cargo.toml", "[dependencies]\nashlar-block = {}\n");
    const OTHER: (&str, &str) = ("crates/block/Cargo.toml", "[dependencies]\n");
    const ROOT: (&str, &str) = ("crates/md/src/lib.rs", "mod a;\nmod b;\n");

    fn tree<'a>(a: &'a str, b: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![MANIFEST, OTHER, ROOT, ("crates/md/src/a.rs", a), ("crates/md/src/b.rs", b)]
    }

    /// What the page that was written of `old` says of `new`.
    fn said(old: &[(&str, &str)], new: &[(&str, &str)]) -> Vec<String> {
        let rooms = rooms(&Tree::of(old));
        let (page, picture) = (page(&rooms), picture(&rooms));
        let mut new = new.to_vec();
        new.extend([(PAGE, page.as_str()), (PICTURE, picture.as_str())]);
        drawn(&Tree::of(&new)).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn lines_change_without_a_word() {
        let more = "// one line more\n".repeat(1_000);
        assert_eq!(said(&tree("", ""), &tree(&more, "")), [""; 0]);
    }

    #[test]
    fn a_new_circle_is_found() {
        let (a, b) = ("pub struct A; use super::b::B;", "pub struct B;");
        let found = said(&tree(a, b), &tree(a, "pub struct B; use crate::a::A;"));
        assert!(
            found.iter().any(|line| line.contains("| `md` | 2 | `a.rs`, `b.rs` |")),
            "{found:?}"
        );
        assert_eq!(said(&tree("", ""), &tree(a, b)), [""; 0]);
    }

    #[test]
    fn a_new_arrow_and_a_new_module_are_found() {
        let mut more = tree("", "");
        more[1].1 = "[dependencies]\nashlar-parity = {}\n";
        assert!(!said(&tree("", ""), &more).is_empty());
        let mut more = tree("", "");
        more[2].1 = "mod a;\nmod b;\nmod c;\n";
        more.push(("crates/md/src/c.rs", ""));
        let found = said(&tree("", ""), &more);
        assert!(found.iter().any(|line| line.contains("`a`, `b`, `c`")), "{found:?}");
    }

    #[test]
    fn tests_are_counted_apart() {
        let tree = Tree::of(&tree("fn f() {}\n#[cfg(test)]\nmod tests {\n}\n", ""));
        let rooms = rooms(&tree);
        assert_eq!((rooms[1].source_lines, rooms[1].test_lines), (3, 3));
    }
}
