//! Which file of a crate uses which: an arrow leads from a file that names an item to the file that defines it.
//!
//! Tests do not count. A `pub use` only passes a name on: whoever mentions that name has the arrow, to the definition. A name that a macro
//! defines counts for the file that calls the macro. Calls of methods are not seen: the file that names the type has an arrow to the type's file.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::mentions::{Kind, Mention, mentions};
use crate::tidy::lex::without_tests;
use crate::tidy::modules::{children, is_root};
use crate::tree::{File, Tree};

/// How many imports of imports are followed.
const MOST_STEPS: usize = 16;

/// The shipped sources of a package, and their arrows.
#[derive(Default)]
pub(crate) struct Package {
    /// All shipped files, below `src`, with their code without tests.
    pub(crate) files: BTreeMap<String, File>,
    /// From a file to another, with the names for which.
    pub(crate) arrows: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Package {
    /// Reads the package in `folder`: `crates/md`.
    pub(crate) fn read(tree: &Tree, folder: &str) -> Self {
        let source = format!("{folder}/src/");
        let is_root = |file: &&File| file.path.starts_with(&source) && is_root(tree, &file.path);
        let mut package = Package::default();
        for root in tree.rust().filter(is_root) {
            let files = shipped(tree, root);
            arrows(&files, &source, &mut package.arrows);
            let below = |path: &str| path.strip_prefix(&source).unwrap_or(path).to_owned();
            let named = files.into_iter().map(|(_, file)| (below(&file.path), file));
            package.files.extend(named);
        }
        package
    }

    /// The files that all lead to each other, largest circle first.
    pub(crate) fn circles(&self) -> Vec<BTreeSet<&str>> {
        let mut next: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        for (from, to) in self.arrows.keys() {
            next.entry(from).or_default().insert(to);
        }
        let reach: HashMap<&str, HashSet<&str>> =
            next.keys().map(|from| (*from, reached(&next, from))).collect();
        let leads = |from: &str, to: &str| reach.get(from).is_some_and(|all| all.contains(to));
        let mut circles: Vec<BTreeSet<&str>> = Vec::new();
        for from in self.files.keys() {
            if leads(from, from) && !circles.iter().any(|circle| circle.contains(from.as_str())) {
                let files = self.files.keys().map(String::as_str);
                circles.push(files.filter(|to| leads(from, to) && leads(to, from)).collect());
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

/// Everything to which arrows lead from `from`: itself only if it is in a circle.
fn reached<'a>(next: &HashMap<&'a str, BTreeSet<&'a str>>, from: &str) -> HashSet<&'a str> {
    let mut found = HashSet::new();
    let mut waiting: Vec<&str> = next[from].iter().copied().collect();
    while let Some(file) = waiting.pop() {
        if found.insert(file) {
            waiting.extend(next.get(file).into_iter().flatten().copied());
        }
    }
    found
}

/// The files that `root` declares, directly or not, without tests: their modules, and the files.
fn shipped(tree: &Tree, root: &File) -> Vec<(String, File)> {
    let mut found = Vec::new();
    let mut waiting = vec![(String::new(), root.path.clone())];
    while let Some((module, path)) = waiting.pop() {
        let Some(file) = tree.get(&path) else { continue };
        let (path, text) = (path.clone(), file.text.clone());
        let file = File { path, text, code: without_tests(&file.code) };
        for child in children(&file, file.path == root.path) {
            waiting.push((deeper(&module, &child.module), child.path));
        }
        found.push((module, file));
    }
    found
}

fn deeper(module: &str, name: &str) -> String {
    let between = if module.is_empty() || name.is_empty() { "" } else { "::" };
    format!("{module}{between}{name}")
}

/// A module, and what its names mean.
#[derive(Default)]
struct Module<'a> {
    file: usize,
    imports: HashMap<&'a str, (Vec<&'a str>, bool)>,
    globs: Vec<Vec<&'a str>>,
    defined: HashSet<&'a str>,
}

/// What a name or a path leads to.
#[derive(Clone, PartialEq)]
enum Place {
    Module(String),
    /// The item with the second name, of the module with the first one.
    Item(String, String),
    /// Something of another crate.
    Elsewhere,
}

struct Modules<'a>(HashMap<String, Module<'a>>);

impl<'a> Modules<'a> {
    /// What `name` means in `module`; a module before all others if a path continues behind it.
    fn find(&self, module: &str, name: &str, continues: bool, steps: usize) -> Option<Place> {
        let here = self.0.get(module)?;
        let child = deeper(module, name);
        let is_module = self.0.contains_key(&child);
        if steps == 0 {
            return None;
        }
        if is_module && continues {
            return Some(Place::Module(child));
        }
        if let Some((path, _)) = here.imports.get(name) {
            return Some(self.follow(module, path, steps - 1).unwrap_or(Place::Elsewhere));
        }
        if here.defined.contains(name) {
            return Some(Place::Item(module.to_owned(), name.to_owned()));
        }
        if is_module {
            return Some(Place::Module(child));
        }
        here.globs.iter().find_map(|glob| {
            let place = self.follow(module, glob, steps - 1)?;
            let Place::Module(other) = place else { return None };
            self.find(&other, name, continues, steps - 1)
        })
    }

    /// Where `path` leads that is written in `module`; `None` if it begins with a name that nothing here defines.
    fn follow(&self, module: &str, path: &[&str], steps: usize) -> Option<Place> {
        let mut at = module.to_owned();
        for (index, name) in path.iter().enumerate() {
            match *name {
                "self" => continue,
                "crate" => at = String::new(),
                "super" => at = at.rsplit_once("::").map_or("", |(above, _)| above).to_owned(),
                name => match self.find(&at, name, index + 1 < path.len(), steps) {
                    Some(Place::Module(below)) => at = below,
                    Some(item) => return Some(item),
                    // A macro defines it there, or it is another crate.
                    None if index > 0 => return Some(Place::Item(at, name.to_owned())),
                    None => return None,
                },
            }
        }
        Some(Place::Module(at))
    }
}

fn arrows(
    files: &[(String, File)],
    source: &str,
    arrows: &mut BTreeMap<(String, String), BTreeSet<String>>,
) {
    let mut modules = Modules(HashMap::new());
    let mut mentioned: Vec<(String, usize, Mention<'_>)> = Vec::new();
    for (number, (module, file)) in files.iter().enumerate() {
        modules.0.entry(module.clone()).or_default().file = number;
        for mut mention in mentions(&file.code) {
            let module = deeper(module, &mention.inside.join("::"));
            let here = modules.0.entry(module.clone()).or_default();
            here.file = number;
            match mention.kind {
                Kind::Definition => drop(here.defined.insert(mention.path[0])),
                Kind::Use { name: "*", .. } => {
                    mention.path.pop();
                    here.globs.push(mention.path);
                }
                Kind::Use { name, is_public } => {
                    here.imports.insert(name, (mention.path.clone(), is_public));
                    if !is_public {
                        mentioned.push((module, number, mention));
                    }
                }
                Kind::Code => mentioned.push((module, number, mention)),
            }
        }
    }
    for (module, number, Mention { path, kind, .. }) in mentioned {
        // One's own imports have their arrow already; a path to a module alone is not yet a use of it.
        let is_passed_on = || {
            let own = modules.0.get(&module).and_then(|module| module.imports.get(path[0]));
            own.is_none_or(|(_, is_public)| *is_public)
        };
        if kind == Kind::Code && path.len() == 1 && !is_passed_on() {
            continue;
        }
        let (place, name) = match modules.follow(&module, &path, MOST_STEPS) {
            Some(Place::Item(place, name)) => (place, name),
            Some(Place::Module(place)) if path.len() > 1 && kind == Kind::Code => {
                (place, path[path.len() - 1].to_owned())
            }
            Some(Place::Module(_) | Place::Elsewhere) | None => continue,
        };
        let to = modules.0[&place].file;
        if to != number {
            let below = |number: usize| {
                let path = &files[number].1.path;
                path.strip_prefix(source).unwrap_or(path).to_owned()
            };
            let names = arrows.entry((below(number), below(to))).or_default();
            names.insert(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(files: &[(&str, &str)]) -> Package {
        let mut all: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        all.push(("crates/a/Cargo.toml".to_owned(), ""));
        let all: Vec<(&str, &str)> =
            all.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        Package::read(&Tree::of(&all), "crates/a")
    }

    fn arrows_of(files: &[(&str, &str)]) -> Vec<String> {
        package(files).arrows.keys().map(|(from, to)| format!("{from} > {to}")).collect()
    }

    #[test]
    fn imports_and_paths_lead_to_the_file_that_defines_the_item() {
        let files = [
            ("lib.rs", "mod b; pub mod c; pub use c::C; fn f() { std::g(); h.b::<u8>() }"),
            ("b.rs", "use crate::C; use std::fmt;"),
            ("c/mod.rs", "mod d; pub use d::*; pub struct C;"),
            ("c/d.rs", "pub struct D; fn f() { super::super::b::x() }"),
        ];
        assert_eq!(arrows_of(&files), ["b.rs > c/mod.rs", "c/d.rs > b.rs"]);
        let more = [files[0], ("b.rs", "fn f(_: crate::c::D) {}"), files[2], files[3]];
        assert_eq!(arrows_of(&more), ["b.rs > c/d.rs", "c/d.rs > b.rs"]);
        assert_eq!(package(&more).circles(), [BTreeSet::from(["b.rs", "c/d.rs"])]);
    }

    #[test]
    fn a_name_that_is_passed_on_is_no_arrow_until_it_is_mentioned() {
        let child = ("b.rs", "pub struct B; fn f(_: super::A) {}");
        assert_eq!(arrows_of(&[("lib.rs", "mod b; pub use b::B; struct A;"), child]).len(), 1);
        let both = [("lib.rs", "mod b; pub use b::B; struct A(B);"), child];
        assert_eq!(arrows_of(&both), ["b.rs > lib.rs", "lib.rs > b.rs"]);
    }

    #[test]
    fn tests_do_not_count() {
        let files = [
            ("lib.rs", "mod b; mod c; #[cfg(test)] mod t;"),
            ("b.rs", "#[cfg(test)] mod tests { use crate::c::C; }"),
            ("c.rs", "pub struct C;"),
            ("t.rs", "use crate::c::C;"),
        ];
        assert_eq!(arrows_of(&files), [""; 0]);
        assert_eq!(package(&files).files.len(), 3);
    }

    #[test]
    fn modules_and_items_of_one_name_are_told_apart() {
        let files = [
            ("lib.rs", "mod open; mod x; pub use open::open;"),
            ("open.rs", "pub fn open() {}"),
            ("x.rs", "fn f() { crate::open(); crate::open::more!(); }"),
        ];
        assert_eq!(arrows_of(&files), ["x.rs > open.rs"]);
    }
}
