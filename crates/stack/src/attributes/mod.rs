//! The one table of attributes: the kernel's names, units and text formats.
//!
//! [`Attributes`] is a tree of paths like a Linux root (`sys/block/md0/queue/nomerges`,
//! `proc/mdstat`, `dev/md0`). The rows behind it are in [`block`] (every device) and [`md`] (arrays);
//! each is a name, a function that gives the text, and one that takes a value, if the kernel lets one
//! write there. The control socket, the FUSE mount and `ashlar get`/`set` all ask here, so that they
//! cannot disagree.
//!
//! Texts end with a newline, as in sysfs. A value written may end with one.

pub mod block;
pub mod md;
pub mod mdstat;

use std::collections::BTreeMap;
use std::sync::Arc;

use ashlar_block::Gateway;
use ashlar_block::disk::SettingError;
use thiserror::Error;

/// Why an attribute could not be read or written.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AttributeError {
    /// There is nothing at that path.
    #[error("no such attribute")]
    NotFound,
    /// A directory has no value.
    #[error("is a directory")]
    IsDirectory,
    /// A volume's data is not an attribute.
    #[error("is a volume, not an attribute")]
    IsVolume,
    /// It can only be written.
    #[error("cannot be read")]
    NotReadable,
    /// It can only be read.
    #[error("cannot be written")]
    NotWritable,
    /// The value is not one of this attribute.
    #[error("{0}")]
    Invalid(String),
    /// Not now.
    #[error("{0}")]
    Busy(String),
}

impl AttributeError {
    /// The errno that sysfs gives in the same case (positive).
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NotFound => 2,
            Self::IsDirectory => 21,
            Self::NotReadable | Self::NotWritable => 13,
            Self::Invalid(_) | Self::IsVolume => 22,
            Self::Busy(_) => 16,
        }
    }
}

impl From<SettingError> for AttributeError {
    fn from(error: SettingError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// Parses the value of an attribute as the kernel's `kstrtou64` with base 10 does.
pub(crate) fn number(text: &str) -> Result<u64, AttributeError> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let value = digits.parse().ok().filter(|_| plain);
    value.ok_or_else(|| AttributeError::Invalid(format!("`{text}` is not a number")))
}

/// Takes a value for a thing of type `T`.
pub(crate) type SetFn<T> = fn(&T, &str) -> Result<(), AttributeError>;

/// A row of the table for things of type `T`.
pub(crate) struct Row<T> {
    /// The path below the thing's directory.
    pub(crate) name: &'static str,
    /// The text, without the final newline.
    pub(crate) get: fn(&T) -> String,
    /// Takes a value, its final newline removed.
    pub(crate) set: Option<SetFn<T>>,
}

impl<T> Row<T> {
    /// A row that can be read.
    pub(crate) const fn ro(name: &'static str, get: fn(&T) -> String) -> Self {
        Self { name, get, set: None }
    }

    /// A row that can be read and written.
    pub(crate) const fn rw(name: &'static str, get: fn(&T) -> String, set: SetFn<T>) -> Self {
        Self { name, get, set: Some(set) }
    }
}

type Get = Box<dyn Fn() -> String + Send + Sync>;
type Set = Box<dyn Fn(&str) -> Result<(), AttributeError> + Send + Sync>;

enum Node {
    Directory(Vec<String>),
    Symlink(String),
    Attribute { get: Get, set: Option<Set> },
    Volume(Gateway),
}

/// What is at a path.
#[derive(Clone)]
pub enum Found {
    /// A directory.
    Directory,
    /// A symlink to this target.
    Symlink(String),
    /// An attribute, and whether it can be written.
    Attribute {
        /// Whether it can be written.
        writable: bool,
    },
    /// A volume.
    Volume(Gateway),
}

/// All attributes of a stack. Paths have no leading slash; the root is the empty path.
pub struct Attributes {
    nodes: BTreeMap<String, Node>,
}

impl Default for Attributes {
    fn default() -> Self {
        let root = (String::new(), Node::Directory(Vec::new()));
        Self { nodes: BTreeMap::from([root]) }
    }
}

impl Attributes {
    /// Adds a node, and the directories above it. What is at the path already stays.
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

    /// Adds `rows` of `thing` below `directory`.
    pub(crate) fn add_rows<T: Send + Sync + 'static>(
        &mut self,
        directory: &str,
        thing: &Arc<T>,
        rows: &'static [Row<T>],
    ) {
        for row in rows {
            let reader = Arc::clone(thing);
            let get = Box::new(move || (row.get)(&reader)) as Get;
            let set = row.set.map(|set| {
                let writer = Arc::clone(thing);
                Box::new(move |value: &str| set(&writer, value)) as Set
            });
            self.add(&format!("{directory}/{}", row.name), Node::Attribute { get, set });
        }
    }

    /// Adds an attribute that can only be read.
    pub(crate) fn add_text(
        &mut self,
        path: &str,
        get: impl Fn() -> String + Send + Sync + 'static,
    ) {
        self.add(path, Node::Attribute { get: Box::new(get), set: None });
    }

    /// Adds a symlink.
    pub(crate) fn add_symlink(&mut self, path: &str, target: &str) {
        self.add(path, Node::Symlink(target.to_owned()));
    }

    /// Adds a volume's file.
    pub(crate) fn add_volume(&mut self, path: &str, gateway: Gateway) {
        self.add(path, Node::Volume(gateway));
    }

    /// What is at `path`; a symlink at its end is not followed, nor any on the way.
    pub fn lookup(&self, path: &str) -> Option<Found> {
        Some(match self.nodes.get(path)? {
            Node::Directory(_) => Found::Directory,
            Node::Symlink(target) => Found::Symlink(target.clone()),
            Node::Attribute { set, .. } => Found::Attribute { writable: set.is_some() },
            Node::Volume(gateway) => Found::Volume(gateway.clone()),
        })
    }

    /// The names in the directory at `path`, in the order they were added; none if it is no
    /// directory.
    pub fn list(&self, path: &str) -> Vec<String> {
        match self.resolve(path).and_then(|path| self.nodes.get(&path)) {
            Some(Node::Directory(names)) => names.clone(),
            Some(Node::Symlink(_) | Node::Attribute { .. } | Node::Volume(_)) | None => Vec::new(),
        }
    }

    /// The text of the attribute at `path`, symlinks followed.
    ///
    /// # Errors
    /// [`AttributeError`], as sysfs would.
    pub fn read(&self, path: &str) -> Result<String, AttributeError> {
        match self.get(path)? {
            Node::Attribute { get, .. } => Ok(get() + "\n"),
            Node::Volume(_) => Err(AttributeError::IsVolume),
            Node::Directory(_) | Node::Symlink(_) => Err(AttributeError::IsDirectory),
        }
    }

    /// Sets the attribute at `path`, symlinks followed. One newline at the end of `value` is ignored.
    ///
    /// # Errors
    /// [`AttributeError`], as sysfs would; then nothing was changed.
    pub fn write(&self, path: &str, value: &str) -> Result<(), AttributeError> {
        match self.get(path)? {
            Node::Attribute { set: Some(set), .. } => {
                set(value.strip_suffix('\n').unwrap_or(value))
            }
            Node::Attribute { set: None, .. } => Err(AttributeError::NotWritable),
            Node::Volume(_) => Err(AttributeError::IsVolume),
            Node::Directory(_) | Node::Symlink(_) => Err(AttributeError::IsDirectory),
        }
    }

    fn get(&self, path: &str) -> Result<&Node, AttributeError> {
        let path = self.resolve(path).ok_or(AttributeError::NotFound)?;
        self.nodes.get(&path).ok_or(AttributeError::NotFound)
    }

    /// `path` with its symlinks followed; slashes too many are taken as one. The tree's own symlinks
    /// lead to no other symlink's ancestors, but the steps are bounded all the same, as in the kernel.
    fn resolve(&self, path: &str) -> Option<String> {
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

#[cfg(test)]
mod tests {
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
    ];

    fn tree() -> Attributes {
        let mut tree = Attributes::default();
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
        assert_eq!(tree.list("sys/a"), ["fixed", "deep"]);
        assert_eq!(tree.list("sys/b"), ["knob"]);
        assert_eq!(tree.list("sys/a/fixed"), [""; 0]);
    }

    #[test]
    fn values_are_read_and_written_through_symlinks_too() {
        let tree = tree();
        assert_eq!(tree.read("sys/a/deep/knob"), Ok("3\n".to_owned()));
        assert_eq!(tree.write("sys/b/knob", "12\n"), Ok(()));
        assert_eq!(tree.read("/sys//b/../deep/knob"), Ok("12\n".to_owned()));
    }

    #[test]
    fn errors_are_those_of_sysfs() {
        let tree = tree();
        let errno = |result: Result<(), AttributeError>| result.unwrap_err().errno();
        assert_eq!(errno(tree.write("sys/a/fixed", "1")), 13);
        assert_eq!(errno(tree.write("sys/a", "1")), 21);
        assert_eq!(errno(tree.write("sys/a/none", "1")), 2);
        assert_eq!(tree.read("sys/loop"), Err(AttributeError::NotFound));
        for bad in ["", " 1", "-1", "1x", "0x10", "18446744073709551616", "1\n\n", "+"] {
            assert_eq!(errno(tree.write("sys/b/knob", bad)), 22, "{bad:?}");
        }
        assert_eq!(tree.read("sys/b/knob"), Ok("3\n".to_owned()));
    }
}
