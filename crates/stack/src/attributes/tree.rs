//! A tree of attributes, symlinks and volumes, constant between two changes of the stack.

use std::collections::BTreeMap;
use std::sync::Arc;

use ashlar_block::{ByteVolume, LocalFuture};

use super::{AttributeError, Found, Row, Set};

/// The future result of a write.
pub(super) type Written = LocalFuture<'static, Result<(), AttributeError>>;

type Reader = Box<dyn Fn() -> String + Send + Sync>;
type Writer = Box<dyn Fn(&str) -> Written + Send + Sync>;

enum Node {
    Directory(Vec<String>),
    Symlink(String),
    Attribute { read: Option<Reader>, write: Option<Writer> },
    Volume(Arc<ByteVolume>),
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
fn ready(result: Result<(), AttributeError>) -> Written {
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
        if let Some(Node::Directory(names)) = self.nodes.get_mut(parent) {
            names.push(name.to_owned());
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
        for row in rows {
            let read = row.get.map(|get| {
                let thing = Arc::clone(thing);
                Box::new(move || get(&thing)) as Reader
            });
            let write = row.set.map(|set| writer(thing, set));
            self.add(&format!("{directory}/{}", row.name), Node::Attribute { read, write });
        }
    }

    /// Adds an attribute that can only be read.
    pub(crate) fn add_text(
        &mut self,
        path: &str,
        get: impl Fn() -> String + Send + Sync + 'static,
    ) {
        self.add(path, Node::Attribute { read: Some(Box::new(get)), write: None });
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
    pub(crate) fn lookup(&self, path: &str) -> Option<Found> {
        Some(match self.nodes.get(path)? {
            Node::Directory(_) => Found::Directory,
            Node::Symlink(target) => Found::Symlink(target.clone()),
            Node::Attribute { read, write } => {
                Found::Attribute { readable: read.is_some(), writable: write.is_some() }
            }
            Node::Volume(bytes) => Found::Volume(Arc::clone(bytes)),
        })
    }

    /// See [`Attributes::list`](super::Attributes::list).
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        match self.resolve(path).and_then(|path| self.nodes.get(&path)) {
            Some(Node::Directory(names)) => names.clone(),
            Some(Node::Symlink(_) | Node::Attribute { .. } | Node::Volume(_)) | None => Vec::new(),
        }
    }

    /// See [`Attributes::read`](super::Attributes::read).
    pub(crate) fn read(&self, path: &str) -> Result<String, AttributeError> {
        match self.get(path)? {
            Node::Attribute { read: Some(read), .. } => Ok(read()),
            Node::Attribute { read: None, .. } => Err(AttributeError::NotReadable),
            Node::Volume(_) => Err(AttributeError::IsVolume),
            Node::Directory(_) | Node::Symlink(_) => Err(AttributeError::IsDirectory),
        }
    }

    /// See [`Attributes::write`](super::Attributes::write).
    pub(crate) fn write(&self, path: &str, value: &str) -> Written {
        match self.get(path) {
            Ok(Node::Attribute { write: Some(write), .. }) => {
                write(value.strip_suffix('\n').unwrap_or(value))
            }
            Ok(Node::Attribute { write: None, .. }) => ready(Err(AttributeError::NotWritable)),
            Ok(Node::Volume(_)) => ready(Err(AttributeError::IsVolume)),
            Ok(Node::Directory(_) | Node::Symlink(_)) => ready(Err(AttributeError::IsDirectory)),
            Err(error) => ready(Err(error)),
        }
    }

    fn get(&self, path: &str) -> Result<&Node, AttributeError> {
        let path = self.resolve(path).ok_or(AttributeError::NotFound)?;
        self.nodes.get(&path).ok_or(AttributeError::NotFound)
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

fn writer<T: Send + Sync + 'static>(thing: &Arc<T>, set: Set<T>) -> Writer {
    let thing = Arc::clone(thing);
    match set {
        Set::Now(set) => Box::new(move |value| ready(set(&thing, value))),
        Set::Later(set) => Box::new(move |value| {
            let (thing, value) = (Arc::clone(&thing), value.to_owned());
            Box::pin(async move { set(&thing, &value).await })
        }),
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
    fn values_are_read_and_written_through_symlinks_too() {
        let tree = tree();
        assert_eq!(tree.read("sys/a/deep/knob"), Ok("3".to_owned()));
        assert_eq!(outcome(tree.write("sys/b/knob", "12\n")), Ok(()));
        assert_eq!(tree.read("/sys//b/../deep/knob"), Ok("12".to_owned()));
    }

    #[test]
    fn what_can_only_be_written_cannot_be_read() {
        let tree = tree();
        assert_eq!(outcome(tree.write("sys/a/add", "4")), Ok(()));
        assert_eq!(tree.read("sys/b/knob"), Ok("7".to_owned()));
        assert_eq!(tree.read("sys/a/add"), Err(AttributeError::NotReadable));
        let found = tree.lookup("sys/a/add");
        assert!(matches!(found, Some(Found::Attribute { readable: false, writable: true })));
    }

    #[test]
    fn errors_are_those_of_sysfs() {
        let tree = tree();
        let errno = |written: Written| outcome(written).unwrap_err().errno();
        assert_eq!(errno(tree.write("sys/a/fixed", "1")), 13);
        assert_eq!(errno(tree.write("sys/a", "1")), 21);
        assert_eq!(errno(tree.write("sys/a/none", "1")), 2);
        assert_eq!(tree.read("sys/loop"), Err(AttributeError::NotFound));
        for bad in ["", " 1", "-1", "1x", "0x10", "18446744073709551616", "1\n\n", "+"] {
            assert_eq!(errno(tree.write("sys/b/knob", bad)), 22, "{bad:?}");
        }
        assert_eq!(tree.read("sys/b/knob"), Ok("3".to_owned()));
    }
}
