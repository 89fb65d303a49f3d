//! A tree of attributes, symlinks and volumes, constant between two changes of the stack.
//!
//! The rows of a table are not nodes: their directory refers to the table, which costs the same for a table of any length.
//! A tree of a thousand devices is built in a millisecond.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use ashlar_block::{ByteVolume, LocalFuture};

use super::{AttributeError, NodeKind, Row, Setter, TurnSource};

/// The future result of a write.
pub(super) type WriteFuture = LocalFuture<'static, Result<(), AttributeError>>;

type Reader = Box<dyn Fn() -> String + Send + Sync>;

enum Node {
    Directory(Vec<Member>),
    Symlink(String),
    Attribute(Reader),
    Volume(Arc<ByteVolume>),
}

/// Part of a directory.
enum Member {
    /// A node.
    Name(String),
    /// What the rows of a table are named. Of two with one name, the first counts; a node comes before both.
    Table(Box<dyn Table>),
}

/// Rows of the attributes of a thing.
trait Table: Send + Sync {
    /// The paths of the rows, below the directory of the thing.
    fn names(&self) -> Box<dyn Iterator<Item = &'static str> + '_>;
    /// Whether a row can be read, and whether it can be written.
    fn access(&self, row: usize) -> (bool, bool);
    fn read(&self, row: usize) -> Option<String>;
    fn write(&self, row: usize, value: &str, turns: &Arc<TurnSource>) -> Option<WriteFuture>;
}

struct Rows<T: 'static> {
    thing: Arc<T>,
    rows: &'static [Row<T>],
}

impl<T: Send + Sync> Table for Rows<T> {
    fn names(&self) -> Box<dyn Iterator<Item = &'static str> + '_> {
        Box::new(self.rows.iter().map(|row| row.name))
    }

    fn access(&self, row: usize) -> (bool, bool) {
        (self.rows[row].get.is_some(), self.rows[row].set.is_some())
    }

    fn read(&self, row: usize) -> Option<String> {
        self.rows[row].get.map(|get| get(&self.thing))
    }

    fn write(&self, row: usize, value: &str, turns: &Arc<TurnSource>) -> Option<WriteFuture> {
        Some(match self.rows[row].set? {
            Setter::Now(set) => ready(set(&self.thing, value)),
            Setter::Later(set) => {
                let (thing, value) = (Arc::clone(&self.thing), value.to_owned());
                Box::pin(async move { set(&thing, &value).await })
            }
            Setter::Change(set) => {
                let (thing, value) = (Arc::clone(&self.thing), value.to_owned());
                let turns = Arc::clone(turns);
                Box::pin(async move {
                    let turn = turns.take().await?;
                    set(&thing, &value, turn).await
                })
            }
        })
    }
}

/// What is at a path.
enum Place<'a> {
    Node(&'a Node),
    Row(&'a dyn Table, usize),
    /// A directory in the names of rows.
    Between,
}

/// See the module text. Paths have no leading slash; the root is the empty path.
pub(crate) struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Default for Tree {
    fn default() -> Self {
        let root = (String::new(), Node::Directory(Vec::new()));
        Self { nodes: BTreeMap::from([root]) }
    }
}

/// A future that is ready at once.
fn ready(result: Result<(), AttributeError>) -> WriteFuture {
    Box::pin(std::future::ready(result))
}

impl Tree {
    /// Adds a node and the directories above it. A node already at the path stays.
    fn add(&mut self, path: &str, node: Node) {
        if self.nodes.contains_key(path) {
            return;
        }
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.add(parent, Node::Directory(Vec::new()));
        if let Some(Node::Directory(members)) = self.nodes.get_mut(parent) {
            members.push(Member::Name(name.to_owned()));
        }
        self.nodes.insert(path.to_owned(), node);
    }

    /// Adds `rows`, evaluated on `thing`, below `directory`.
    pub(crate) fn add_rows<T: Send + Sync + 'static>(
        &mut self,
        directory: &str,
        thing: &Arc<T>,
        rows: &'static [Row<T>],
    ) {
        self.add(directory, Node::Directory(Vec::new()));
        if let Some(Node::Directory(members)) = self.nodes.get_mut(directory) {
            members.push(Member::Table(Box::new(Rows { thing: Arc::clone(thing), rows })));
        }
    }

    /// Adds an attribute that can only be read.
    pub(crate) fn add_text(
        &mut self,
        path: &str,
        get: impl Fn() -> String + Send + Sync + 'static,
    ) {
        self.add(path, Node::Attribute(Box::new(get)));
    }

    /// Adds an attribute that never changes.
    pub(crate) fn add_fixed(&mut self, path: &str, text: impl Into<String>) {
        let text = text.into();
        self.add_text(path, move || text.clone());
    }

    /// Adds a symlink.
    pub(crate) fn add_symlink(&mut self, path: &str, target: &str) {
        self.add(path, Node::Symlink(target.to_owned()));
    }

    /// Adds a volume's file.
    pub(crate) fn add_volume(&mut self, path: &str, bytes: &Arc<ByteVolume>) {
        self.add(path, Node::Volume(Arc::clone(bytes)));
    }

    /// See [`Attributes::lookup`](super::Attributes::lookup).
    pub(crate) fn lookup(&self, path: &str) -> Option<NodeKind> {
        Some(match self.at(path)? {
            Place::Between | Place::Node(Node::Directory(_)) => NodeKind::Directory,
            Place::Node(Node::Symlink(target)) => NodeKind::Symlink(target.clone()),
            Place::Node(Node::Attribute(_)) => {
                NodeKind::Attribute { readable: true, writable: false }
            }
            Place::Row(table, row) => {
                let (readable, writable) = table.access(row);
                NodeKind::Attribute { readable, writable }
            }
            Place::Node(Node::Volume(bytes)) => NodeKind::Volume(Arc::clone(bytes)),
        })
    }

    /// See [`Attributes::list`](super::Attributes::list).
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        let Some(path) = self.resolve(path) else { return Vec::new() };
        let (mut names, mut known) = (Vec::new(), HashSet::new());
        let mut add = |name| {
            if known.insert(name) {
                names.push(str::to_owned(name));
            }
        };
        // What the directories above say of this one, and its own members.
        for (directory, below) in above(&path).chain([(&*path, "")]) {
            let Some(Node::Directory(members)) = self.nodes.get(directory) else { continue };
            for member in members {
                match member {
                    Member::Name(name) if below.is_empty() => add(name),
                    Member::Name(_) => {}
                    Member::Table(table) => {
                        let rests = table.names().filter_map(|name| within(name, below));
                        rests.for_each(|rest| add(rest.split('/').next().unwrap_or(rest)));
                    }
                }
            }
        }
        names
    }

    /// See [`Attributes::read`](super::Attributes::read).
    pub(crate) fn read(&self, path: &str) -> Result<String, AttributeError> {
        match self.get(path)? {
            Place::Node(Node::Attribute(read)) => Ok(read()),
            Place::Row(table, row) => table.read(row).ok_or(AttributeError::NotReadable),
            Place::Node(Node::Volume(_)) => Err(AttributeError::IsVolume),
            Place::Between | Place::Node(Node::Directory(_) | Node::Symlink(_)) => {
                Err(AttributeError::IsDirectory)
            }
        }
    }

    /// See [`Attributes::write`](super::Attributes::write).
    pub(crate) fn write(&self, path: &str, value: &str, turns: &Arc<TurnSource>) -> WriteFuture {
        match self.get(path) {
            Ok(Place::Row(table, row)) => {
                let value = value.strip_suffix('\n').unwrap_or(value);
                let written = table.write(row, value, turns);
                written.unwrap_or_else(|| ready(Err(AttributeError::NotWritable)))
            }
            Ok(Place::Node(Node::Attribute(_))) => ready(Err(AttributeError::NotWritable)),
            Ok(Place::Node(Node::Volume(_))) => ready(Err(AttributeError::IsVolume)),
            Ok(Place::Between | Place::Node(Node::Directory(_) | Node::Symlink(_))) => {
                ready(Err(AttributeError::IsDirectory))
            }
            Err(error) => ready(Err(error)),
        }
    }

    fn get(&self, path: &str) -> Result<Place<'_>, AttributeError> {
        let path = self.resolve(path).ok_or(AttributeError::NotFound)?;
        self.at(&path).ok_or(AttributeError::NotFound)
    }

    /// What is at a path, symlinks not followed.
    fn at(&self, path: &str) -> Option<Place<'_>> {
        if let Some(node) = self.nodes.get(path) {
            return Some(Place::Node(node));
        }
        let mut found = None;
        for (directory, below) in above(path) {
            let Some(Node::Directory(members)) = self.nodes.get(directory) else { continue };
            for member in members {
                let Member::Table(table) = member else { continue };
                if let Some(row) = table.names().position(|name| name == below) {
                    return Some(Place::Row(&**table, row));
                }
                if table.names().any(|name| within(name, below).is_some()) {
                    found = Some(Place::Between);
                }
            }
        }
        found
    }

    /// `path` with its symlinks followed; repeated slashes count as one. No symlink of the tree
    /// leads to an ancestor of another one, but the steps are bounded anyway, as in the kernel.
    pub(crate) fn resolve(&self, path: &str) -> Option<String> {
        const MAX_STEPS: usize = 40;
        let mut done: Vec<String> = Vec::new();
        let split = |path: &str| path.split('/').rev().map(str::to_owned).collect::<Vec<_>>();
        let mut rest = split(path);
        let mut steps = 0;
        while let Some(part) = rest.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    done.pop();
                    continue;
                }
                _ => done.push(part),
            }
            if let Some(Node::Symlink(target)) = self.nodes.get(&done.join("/")) {
                steps += 1;
                if steps > MAX_STEPS {
                    return None;
                }
                done.pop();
                rest.extend(split(target));
            }
        }
        Some(done.join("/"))
    }
}

/// The directories above a path that may have tables, each with the rest of the path; the nearest first.
fn above(path: &str) -> impl Iterator<Item = (&str, &str)> {
    path.rmatch_indices('/').map(|(at, _)| (&path[..at], &path[at + 1..]))
}

/// The rest of a row's name within a directory.
fn within<'a>(name: &'a str, directory: &str) -> Option<&'a str> {
    if directory.is_empty() {
        return Some(name);
    }
    name.strip_prefix(directory)?.strip_prefix('/')
}

#[cfg(test)]
impl Tree {
    /// Writes what needs no turn.
    pub(crate) fn set(&self, path: &str, value: &str) -> WriteFuture {
        self.write(path, value, &Arc::default())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{number, outcome};
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    const ROWS: &[Row<AtomicU64>] = &[
        Row::ro("fixed", |_| "7".to_owned()),
        Row::rw(
            "deep/knob",
            |n| n.load(Relaxed).to_string(),
            |n, text| {
                n.store(number(text)?, Relaxed);
                Ok(())
            },
        ),
        Row::wo("add", |n, text| {
            Box::pin(async move {
                n.fetch_add(number(text)?, Relaxed);
                Ok(())
            })
        }),
        Row::ro("nothing", |_| String::new()),
        Row::ro("lines", |_| "1\n2\n".to_owned()),
    ];

    fn tree() -> Tree {
        let mut tree = Tree::default();
        tree.add_rows("sys/a", &Arc::new(AtomicU64::new(3)), ROWS);
        tree.add_symlink("sys/b", "a/deep");
        tree.add_symlink("sys/loop", "loop");
        tree
    }

    #[test]
    fn directories_above_an_attribute_exist_and_list_it_once() {
        let tree = tree();
        assert_eq!(tree.list(""), ["sys"]);
        assert_eq!(tree.list("sys"), ["a", "b", "loop"]);
        assert_eq!(tree.list("sys/a"), ["fixed", "deep", "add", "nothing", "lines"]);
        assert_eq!(tree.list("sys/b"), ["knob"]);
        assert_eq!(tree.list("sys/a/fixed"), [""; 0]);
    }

    #[test]
    fn a_directory_has_the_rows_of_all_its_tables_and_nodes_of_its_own() {
        const OTHERS: &[Row<AtomicU64>] = &[
            Row::ro("fixed", |_| "8".to_owned()),
            Row::ro("deep/other", |_| "9".to_owned()),
            Row::ro("deeper", |_| String::new()),
        ];
        let mut tree = tree();
        tree.add_rows("sys/a", &Arc::new(AtomicU64::new(0)), OTHERS);
        tree.add_fixed("sys/a/deep/node", "10");
        tree.add_fixed("sys/a/lines", "11");
        let names = ["fixed", "deep", "add", "nothing", "lines", "deeper"];
        assert_eq!(tree.list("sys/a"), names);
        assert_eq!(tree.list("sys/a/deep"), ["knob", "other", "node"]);
        assert_eq!(tree.list("sys/b"), ["knob", "other", "node"]);
        // Of two tables the first counts, and a node before both.
        for (path, text) in [("fixed", "7"), ("deep/other", "9"), ("lines", "11")] {
            assert_eq!(tree.read(&format!("sys/a/{path}")), Ok(text.to_owned()));
        }
        for missing in ["sys/a/dee", "sys/a/deep/kno", "sys/a/fixed/knob", "sys/deep", "a/deep"] {
            assert!(tree.lookup(missing).is_none(), "{missing}");
            assert_eq!(tree.list(missing), [""; 0]);
        }
        assert!(matches!(tree.lookup("sys/a/deep"), Some(NodeKind::Directory)));
    }

    #[test]
    fn values_are_read_and_written_through_symlinks_too() {
        let tree = tree();
        assert_eq!(tree.read("sys/a/deep/knob"), Ok("3".to_owned()));
        assert_eq!(outcome(tree.set("sys/b/knob", "12\n")), Ok(()));
        assert_eq!(tree.read("/sys//b/../deep/knob"), Ok("12".to_owned()));
    }

    #[test]
    fn what_can_only_be_written_cannot_be_read() {
        let tree = tree();
        assert_eq!(outcome(tree.set("sys/a/add", "4")), Ok(()));
        assert_eq!(tree.read("sys/b/knob"), Ok("7".to_owned()));
        assert_eq!(tree.read("sys/a/add"), Err(AttributeError::NotReadable));
        let found = tree.lookup("sys/a/add");
        assert!(matches!(found, Some(NodeKind::Attribute { readable: false, writable: true })));
    }

    #[test]
    fn errors_are_those_of_sysfs() {
        let tree = tree();
        let errno = |written: WriteFuture| outcome(written).unwrap_err().errno();
        assert_eq!(errno(tree.set("sys/a/fixed", "1")), 13);
        assert_eq!(errno(tree.set("sys/a", "1")), 21);
        assert_eq!(errno(tree.set("sys/a/none", "1")), 2);
        assert_eq!(tree.read("sys/loop"), Err(AttributeError::NotFound));
        for bad in ["", " 1", "-1", "1x", "0x10", "18446744073709551616", "1\n\n", "+"] {
            assert_eq!(errno(tree.set("sys/b/knob", bad)), 22, "{bad:?}");
        }
        assert_eq!(tree.read("sys/b/knob"), Ok("3".to_owned()));
    }
}
