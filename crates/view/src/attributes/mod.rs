//! The one table of attributes: the kernel's names, units and text formats.
//!
//! [`Attributes`] is a tree of paths like a Linux root (`sys/block/md0/queue/nomerges`,
//! `proc/mdstat`, `dev/md0`). The rows behind it are in [`block`] (every device), [`io_max`] (volumes),
//! [`md`] (arrays) and [`zfs`] (volumes of pools); each is a name, a function that returns the text, and one that
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
mod error;
mod io_max;
pub mod md;
pub mod mdstat;
mod row;
mod stack_source;
mod tree;
mod turns;
pub mod zfs;

use std::sync::{Arc, Mutex, PoisonError};

use ashlar_block::LocalFuture;
use ashlar_stack::incremental::{Collector, Turns};

pub use error::AttributeError;
pub use row::NodeKind;
pub(crate) use row::{Row, Setter, number};
pub(crate) use tree::Tree;
pub use turns::{End, Ender};
pub(crate) use turns::{EnderSource, TurnSource};

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
    ender: Arc<EnderSource>,
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
    fn new<S: Source>(source: S) -> Self {
        let tree = Box::new(Cached { source, built: Mutex::new(None) });
        Self { tree, turns: Arc::default(), ender: Arc::default() }
    }

    /// The turns of the stack whose later members `collector` collects: from now on those attributes can be written that change the
    /// stack. No change begins once `is_over` returns true.
    pub fn turns(
        self: &Arc<Self>,
        collector: Collector,
        is_over: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Arc<Turns> {
        let changed = Arc::clone(self);
        let turns = Arc::new(Turns::new(collector, move || changed.release_old(), is_over));
        self.turns.set(&turns);
        turns
    }

    /// Sets the function that ends arrays; later calls have no effect.
    pub fn set_ender(&self, ender: Box<Ender>) {
        self.ender.set(ender);
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
