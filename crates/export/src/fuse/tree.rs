//! The file tree: what a mount shows, and the nodes that the kernel references.
//!
//! The tree's content is not stored here. A [`Namespace`] says what is at a path. The kernel uses node ids, so
//! [`Nodes`] remembers the path of every node the kernel knows, from LOOKUP until FORGET. A node id is never reused:
//! when another volume appears at the same path, its next lookup gives a new node. Inode numbers (what `stat` shows)
//! are a hash of the path, hence the same in every run.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ashlar_block::LocalFuture;
use ashlar_block::byte_volume::ByteVolume;
use rustix::io::Errno;

use super::abi::{self, mode};

/// The contents of a mount. Paths are relative to the mount, without a leading slash; the root is `""`.
///
/// Called on reactor threads: implementations must not block.
pub trait Namespace: Send + Sync + 'static {
    /// The entry at `path`.
    fn lookup(&self, path: &str) -> Option<Entry>;

    /// The names in the directory at `path`.
    fn list(&self, path: &str) -> Vec<String>;

    /// The text of the attribute at `path`, with its final newline.
    ///
    /// # Errors
    /// The errno for `read(2)`.
    fn read(&self, path: &str) -> Result<String, Errno>;

    /// Stores `text` (one `write(2)`, one final newline removed) in the attribute at `path`. Namespaces without
    /// writable attributes need not implement it.
    ///
    /// # Errors
    /// The errno for `write(2)`: EINVAL for a value not understood, EBUSY, ...
    fn write(&self, _path: &str, _text: &str) -> Result<(), Errno> {
        Err(Errno::ACCESS)
    }

    /// As [`Self::write`], for stores that may take a while: `write(2)` returns when the future ends. The future is
    /// polled on the reactor that received the request.
    fn store(&self, path: &str, text: &str) -> LocalFuture<'static, Result<(), Errno>> {
        Box::pin(std::future::ready(self.write(path, text)))
    }
}

/// An entry of the tree.
#[derive(Clone)]
pub enum Entry {
    /// A directory.
    Directory,
    /// A symlink to this target.
    Symlink(String),
    /// A file with one value, as in sysfs.
    Attribute(Access),
    /// A volume; mode 0600, or 0400 when it is read-only.
    Volume(Arc<ByteVolume>),
}

/// How an attribute may be accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Mode 0444.
    ReadOnly,
    /// Mode 0200.
    WriteOnly,
    /// Mode 0644.
    ReadWrite,
}

impl Access {
    const fn mode(self) -> u32 {
        match self {
            Self::ReadOnly => 0o444,
            Self::WriteOnly => 0o200,
            Self::ReadWrite => 0o644,
        }
    }

    /// Whether a file of this kind may be opened with these `open(2)` flags.
    pub(crate) fn allows_open(self, flags: u32) -> bool {
        let access = flags & abi::oflag::ACCESS_MODE;
        match self {
            Self::ReadOnly => access == abi::oflag::RDONLY,
            Self::WriteOnly => access == abi::oflag::WRONLY,
            Self::ReadWrite => true,
        }
    }
}

/// The owner and the time stamps of the files.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// User ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Time stamp of every file, since the Unix epoch.
    pub since: Duration,
}

/// The size that sysfs shows for every attribute; reads are not limited by it.
const ATTRIBUTE_SIZE: u64 = 4096;
const BLOCK: u32 = 4096;

impl Entry {
    /// `st_mode`.
    pub(crate) fn mode(&self) -> u32 {
        match self {
            Self::Directory => mode::DIRECTORY | 0o755,
            Self::Symlink(_) => mode::SYMLINK | 0o777,
            Self::Attribute(access) => mode::REGULAR | access.mode(),
            Self::Volume(volume) if volume.gateway().disk().is_read_only() => mode::REGULAR | 0o400,
            Self::Volume(_) => mode::REGULAR | 0o600,
        }
    }

    fn size(&self) -> u64 {
        match self {
            Self::Directory => 0,
            Self::Symlink(target) => target.len() as u64,
            Self::Attribute(_) => ATTRIBUTE_SIZE,
            Self::Volume(volume) => volume.size_bytes(),
        }
    }

    /// The attributes for `stat(2)`.
    pub(crate) fn attr(&self, path: &str, owner: &Owner) -> abi::Attr {
        let size = self.size();
        let (seconds, nanos) = (owner.since.as_secs(), owner.since.subsec_nanos());
        abi::Attr {
            ino: inode_number(path),
            size,
            blocks: if matches!(self, Self::Volume(_)) { size.div_ceil(512) } else { 0 },
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atimensec: nanos,
            mtimensec: nanos,
            ctimensec: nanos,
            mode: self.mode(),
            nlink: if matches!(self, Self::Directory) { 2 } else { 1 },
            uid: owner.uid,
            gid: owner.gid,
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        }
    }

    /// The values for `statfs(2)` at this entry. On a volume the block size is the discard granularity, because a loop
    /// device takes its own from there.
    pub(crate) fn statfs(&self) -> abi::StatfsOut {
        let bsize = match self {
            Self::Volume(volume) => {
                let limits = volume.gateway().disk().limits();
                limits.discard_granularity_bytes.max(limits.logical_block_bytes).max(512)
            }
            Self::Directory | Self::Symlink(_) | Self::Attribute(_) => BLOCK,
        };
        let blocks = match self {
            Self::Volume(volume) => volume.size_bytes() / u64::from(bsize),
            Self::Directory | Self::Symlink(_) | Self::Attribute(_) => 0,
        };
        abi::StatfsOut { blocks, bsize, frsize: bsize, namelen: 255, ..Default::default() }
    }

    fn identity(&self) -> Identity {
        match self {
            Self::Volume(volume) => Identity::Volume(Arc::downgrade(volume)),
            Self::Directory | Self::Symlink(_) | Self::Attribute(_) => Identity::Path,
        }
    }
}

/// The path of `name` in the directory `parent`; `None` if it cannot be a name of ours.
pub(crate) fn child_path(parent: &str, name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return None;
    }
    Some(if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") })
}

/// `st_ino`: FNV-1a of the path; the root's number is reserved for the root.
pub(crate) fn inode_number(path: &str) -> u64 {
    if path.is_empty() {
        return abi::ROOT_ID;
    }
    let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(abi::ROOT_ID + 1)
}

/// Decides whether the entry at a path is still the one that was looked up before.
enum Identity {
    Path,
    Volume(Weak<ByteVolume>),
}

impl Identity {
    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Path, Self::Path) => true,
            (Self::Volume(a), Self::Volume(b)) => Weak::ptr_eq(a, b),
            (Self::Path, Self::Volume(_)) | (Self::Volume(_), Self::Path) => false,
        }
    }
}

struct Node {
    path: Arc<str>,
    identity: Identity,
    /// References that the kernel holds. Those of the root are not counted.
    lookups: u64,
}

/// The nodes that the kernel knows.
pub(crate) struct Nodes {
    by_id: HashMap<u64, Node>,
    by_path: HashMap<Arc<str>, u64>,
    next: u64,
}

impl Nodes {
    pub(crate) fn new() -> Self {
        let root = Node { path: "".into(), identity: Identity::Path, lookups: 0 };
        Self {
            by_id: HashMap::from([(abi::ROOT_ID, root)]),
            by_path: HashMap::new(),
            next: abi::ROOT_ID + 1,
        }
    }

    /// The path of a node.
    pub(crate) fn path(&self, id: u64) -> Option<Arc<str>> {
        self.by_id.get(&id).map(|node| Arc::clone(&node.path))
    }

    /// The nodes of a volume.
    pub(crate) fn of(&self, volume: &Arc<ByteVolume>) -> Vec<u64> {
        let is = |node: &Node| match &node.identity {
            Identity::Volume(other) => std::ptr::eq(other.as_ptr(), Arc::as_ptr(volume)),
            Identity::Path => false,
        };
        self.by_id.iter().filter(|(_, node)| is(node)).map(|(id, _)| *id).collect()
    }

    /// Counts a reference that the kernel is about to get, and returns the node's id.
    pub(crate) fn refer(&mut self, path: &str, entry: &Entry) -> u64 {
        let identity = entry.identity();
        if let Some(&id) = self.by_path.get(path)
            && let Some(node) = self.by_id.get_mut(&id)
            && node.identity.same(&identity)
        {
            node.lookups += 1;
            return id;
        }
        let (id, path) = (self.next, Arc::<str>::from(path));
        self.next += 1;
        self.by_path.insert(Arc::clone(&path), id);
        self.by_id.insert(id, Node { path, identity, lookups: 1 });
        id
    }

    /// Drops references; dropping the last one frees the node.
    pub(crate) fn forget(&mut self, id: u64, lookups: u64) {
        if id == abi::ROOT_ID {
            return;
        }
        let Some(node) = self.by_id.get_mut(&id) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups > 0 {
            return;
        }
        if let Some(node) = self.by_id.remove(&id)
            && self.by_path.get(&node.path) == Some(&id)
        {
            self.by_path.remove(&node.path);
        }
    }

    /// How many nodes the kernel knows besides the root.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_id.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_lives_until_its_last_reference_is_forgotten() {
        let mut nodes = Nodes::new();
        let id = nodes.refer("dev", &Entry::Directory);
        assert_eq!(nodes.refer("dev", &Entry::Directory), id);
        let other = nodes.refer("sys", &Entry::Directory);
        assert_ne!(other, id);
        nodes.forget(id, 1);
        assert_eq!(nodes.path(id).as_deref(), Some("dev"));
        nodes.forget(id, 1);
        assert_eq!(nodes.path(id), None);
        // An id is not reused.
        assert!(nodes.refer("dev", &Entry::Directory) > other);
    }

    #[test]
    fn forgetting_too_much_or_the_unknown_does_no_harm() {
        let mut nodes = Nodes::new();
        let id = nodes.refer("dev", &Entry::Directory);
        nodes.forget(id, u64::MAX);
        nodes.forget(id, 1);
        nodes.forget(77, 1);
        nodes.forget(abi::ROOT_ID, u64::MAX);
        assert_eq!(nodes.len(), 0);
        assert_eq!(nodes.path(abi::ROOT_ID).as_deref(), Some(""));
    }

    #[test]
    fn only_plain_utf8_names_have_a_path() {
        assert_eq!(child_path("", b"dev").as_deref(), Some("dev"));
        assert_eq!(child_path("dev", b"md0").as_deref(), Some("dev/md0"));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", b"\xff"] {
            assert_eq!(child_path("dev", bad), None, "{bad:?}");
        }
    }

    #[test]
    fn inode_numbers_depend_on_the_path_alone() {
        assert_eq!(inode_number(""), 1);
        assert_eq!(inode_number("dev/md0"), inode_number("dev/md0"));
        assert_ne!(inode_number("dev/md0"), inode_number("dev/md1"));
    }
}
