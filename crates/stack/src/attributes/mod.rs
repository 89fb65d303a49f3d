//! The one table of attributes: the kernel's names, units and text formats.
//!
//! [`Attributes`] is a tree of paths like a Linux root (`sys/block/md0/queue/nomerges`,
//! `proc/mdstat`, `dev/md0`). The rows behind it are in [`block`] (every device), [`md`] (arrays)
//! and [`zfs`] (volumes of pools); each is a name, a function that returns the text, and one that
//! takes a value, if the kernel permits writing. The control socket, the FUSE mount and `ashlar
//! get`/`set` all use this table, so that they cannot disagree.
//!
//! Members of arrays are added and removed, with their directories: a tree is built from a [`Source`]
//! and rebuilt when the source has changed its shape.
//!
//! Texts end with a newline, as in sysfs, unless they are empty. A written value may end with
//! one. Writing may take a while, for example to fail a member: it is a future, which ends with the
//! reply to the writer.

pub mod block;
pub mod md;
pub mod mdstat;

mod stack_source;
mod tree;
pub mod zfs;

use std::sync::{Arc, Mutex, PoisonError};

use ashlar_block::disk::SettingError;
use ashlar_block::{ByteVolume, LocalFuture};
use thiserror::Error;

pub(crate) use stack_source::StackSource;
pub(crate) use tree::Tree;

use crate::arrays::{Turn, TurnSource};

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
    /// The value is not valid for this attribute.
    #[error("{0}")]
    Invalid(String),
    /// Not possible now.
    #[error("{0}")]
    Busy(String),
}

impl AttributeError {
    /// The errno that sysfs returns in the same case (positive).
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
pub(crate) fn number<T: TryFrom<u64>>(text: &str) -> Result<T, AttributeError> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let value: Option<u64> = digits.parse().ok().filter(|_| plain);
    let value =
        value.ok_or_else(|| AttributeError::Invalid(format!("`{text}` is not a number")))?;
    T::try_from(value).map_err(|_| AttributeError::Invalid(format!("{value} is too large")))
}

/// Sets a value of a `T`, at once.
pub(crate) type ImmediateSetter<T> = fn(&T, &str) -> Result<(), AttributeError>;

/// Sets a value of a `T`; may take a while.
pub(crate) type DeferredSetter<T> =
    for<'a> fn(&'a T, &'a str) -> LocalFuture<'a, Result<(), AttributeError>>;

/// Changes the stack, within a turn.
pub(crate) type Changer<T> =
    for<'a> fn(&'a T, &'a str, Turn) -> LocalFuture<'a, Result<(), AttributeError>>;

/// How a value is set. The caller has removed the final newline.
pub(crate) enum Setter<T> {
    Now(ImmediateSetter<T>),
    Later(DeferredSetter<T>),
    Change(Changer<T>),
}

// Derived impls would require `T: Clone` and `T: Copy`.
impl<T> Clone for Setter<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Setter<T> {}

/// A row of the table of `T`'s attributes.
pub(crate) struct Row<T> {
    /// The path below the directory of the `T`.
    pub(crate) name: &'static str,
    /// The text, with or without the final newline.
    pub(crate) get: Option<fn(&T) -> String>,
    /// Sets the value.
    pub(crate) set: Option<Setter<T>>,
}

impl<T> Row<T> {
    /// A row that can be read.
    pub(crate) const fn ro(name: &'static str, get: fn(&T) -> String) -> Self {
        Self { name, get: Some(get), set: None }
    }

    /// A row that can be read and written.
    pub(crate) const fn rw(
        name: &'static str,
        get: fn(&T) -> String,
        set: ImmediateSetter<T>,
    ) -> Self {
        Self { name, get: Some(get), set: Some(Setter::Now(set)) }
    }

    /// A row that can be read and written, where writing takes a while.
    pub(crate) const fn act(
        name: &'static str,
        get: fn(&T) -> String,
        set: DeferredSetter<T>,
    ) -> Self {
        Self { name, get: Some(get), set: Some(Setter::Later(set)) }
    }

    /// A row that can be read, and whose writing changes the stack.
    pub(crate) const fn change(name: &'static str, get: fn(&T) -> String, set: Changer<T>) -> Self {
        Self { name, get: Some(get), set: Some(Setter::Change(set)) }
    }

    /// A row that can only be written.
    pub(crate) const fn wo(name: &'static str, set: DeferredSetter<T>) -> Self {
        Self { name, get: None, set: Some(Setter::Later(set)) }
    }
}

/// The kind of node at a path.
#[derive(Clone)]
pub enum NodeKind {
    /// A directory.
    Directory,
    /// A symlink to this target.
    Symlink(String),
    /// An attribute, and how it may be accessed.
    Attribute {
        /// Whether it can be read.
        readable: bool,
        /// Whether it can be written.
        writable: bool,
    },
    /// A volume.
    Volume(Arc<ByteVolume>),
}

/// The source of a tree of attributes.
pub(crate) trait Source: Send + Sync + 'static {
    /// The state that determines the names in the tree.
    type Shape: PartialEq + Send;

    /// The current shape.
    fn shape(&self) -> Self::Shape;

    /// The tree for a shape. The values of its attributes are computed when they are read.
    fn build(&self, shape: &Self::Shape) -> Tree;
}

/// All attributes of a stack. Paths have no leading slash; the root is the empty path.
pub struct Attributes {
    tree: Box<dyn CachedTree>,
    turns: Arc<TurnSource>,
}

/// The tree for the present shape of its source.
trait CachedTree: Send + Sync {
    fn get(&self) -> Arc<Tree>;
    /// Drops the tree of an earlier shape.
    fn release_old(&self);
}

struct Cached<S: Source> {
    source: S,
    built: Mutex<Option<(S::Shape, Arc<Tree>)>>,
}

impl<S: Source> CachedTree for Cached<S> {
    fn get(&self) -> Arc<Tree> {
        let shape = self.source.shape();
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        match &*built {
            Some((of, tree)) if *of == shape => Arc::clone(tree),
            Some(_) | None => {
                let tree = Arc::new(self.source.build(&shape));
                *built = Some((shape, Arc::clone(&tree)));
                tree
            }
        }
    }

    fn release_old(&self) {
        let shape = self.source.shape();
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let old = built.take_if(|(of, _)| *of != shape);
        drop(built);
        // What it alone held ends here, and that may ask for attributes.
        drop(old);
    }
}

impl Attributes {
    /// The attributes of `source`.
    pub(crate) fn new<S: Source>(source: S) -> Self {
        let tree = Box::new(Cached { source, built: Mutex::new(None) });
        Self { tree, turns: Arc::default() }
    }

    /// Where writes that change the stack get their turns.
    pub(crate) fn turns(&self) -> &TurnSource {
        &self.turns
    }

    /// Drops the tree's references to removed devices and arrays: their disks are closed then.
    pub fn release_old(&self) {
        self.tree.release_old();
    }

    /// The node at `path`. Symlinks are not followed, neither at the end nor on the way.
    pub fn lookup(&self, path: &str) -> Option<NodeKind> {
        self.tree.get().lookup(path)
    }

    /// `path` with all symlinks followed; `None` if they lead in circles.
    pub fn resolve(&self, path: &str) -> Option<String> {
        self.tree.get().resolve(path)
    }

    /// The names in the directory at `path`, in the order they were added; empty if it is not a directory.
    pub fn list(&self, path: &str) -> Vec<String> {
        self.tree.get().list(path)
    }

    /// The text of the attribute at `path`, symlinks followed.
    ///
    /// # Errors
    /// [`AttributeError`], as in sysfs.
    pub fn read(&self, path: &str) -> Result<String, AttributeError> {
        let mut text = self.tree.get().read(path)?;
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text)
    }

    /// Sets the attribute at `path`, symlinks followed. One newline at the end of `value` is
    /// ignored. This call does what can be done at once; polling the future does the rest, and
    /// needs a reactor. A write that changes the stack waits for its turn: the caller must not hold one.
    ///
    /// # Errors
    /// [`AttributeError`], as in sysfs; nothing was changed then, unless the text says otherwise.
    pub fn write(
        &self,
        path: &str,
        value: &str,
    ) -> LocalFuture<'static, Result<(), AttributeError>> {
        self.tree.get().write(path, value, &self.turns)
    }
}

/// The result of a write that does not wait.
#[cfg(test)]
pub(crate) fn outcome(
    mut written: LocalFuture<'static, Result<(), AttributeError>>,
) -> Result<(), AttributeError> {
    use std::task::{Context, Poll, Waker};
    match written.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    /// The given number of files, each with a text.
    struct Files(Arc<AtomicUsize>);

    impl Source for Files {
        type Shape = usize;

        fn shape(&self) -> usize {
            self.0.load(SeqCst)
        }

        fn build(&self, count: &usize) -> Tree {
            let mut tree = Tree::default();
            for number in 0..*count {
                let text = ["", "one", "two\n"][number % 3].to_owned();
                tree.add_text(&format!("f{number}"), move || text.clone());
            }
            tree
        }
    }

    #[test]
    fn the_tree_follows_its_source_at_once() {
        let count = Arc::new(AtomicUsize::new(1));
        let files = Attributes::new(Files(Arc::clone(&count)));
        assert_eq!(files.list(""), ["f0"]);
        count.store(3, SeqCst);
        assert!(files.lookup("f2").is_some());
        count.store(0, SeqCst);
        assert_eq!(files.read("f0"), Err(AttributeError::NotFound));
        assert_eq!(files.list(""), [""; 0]);
    }

    #[test]
    fn a_text_ends_with_one_newline_unless_there_is_none() {
        let files = Attributes::new(Files(Arc::new(AtomicUsize::new(3))));
        assert_eq!(files.read("f0"), Ok(String::new()));
        assert_eq!(files.read("f1"), Ok("one\n".to_owned()));
        assert_eq!(files.read("f2"), Ok("two\n".to_owned()));
    }
}
