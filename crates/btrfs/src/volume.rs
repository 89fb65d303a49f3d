//! A file system on its available devices.

mod device;
mod open;
mod probe;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ashlar_block::{Buffer, CopyNumber, Runtime, Sectors};
pub use device::{Device, Source, SuperState};
pub use open::OpenOptions;
pub use probe::identify;
use tracing::debug;

use crate::cache::{Cache, CacheValue, Lookup};
use crate::chunk_map::ChunkMap;
use crate::error::{ReadError, TreeError};
use crate::extent::Extent;
use crate::extent_leaf::ExtentLeaf;
use crate::ondisk::key::{Key, objectid};
use crate::ondisk::node::{BlockExpectation, Identity, Node, NodeError, header};
pub use crate::ondisk::superblock::Owner;
use crate::ondisk::superblock::Superblock;
use crate::root::Root;
use crate::units::{DevId, Logical, Physical};

/// Tree blocks that were not in memory when they were wanted, since the file system was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TreeReads {
    /// How often a walk waited for one.
    pub waits: u64,
    /// How many were read ahead of walks.
    pub ahead: u64,
}

/// An open file system; see the crate documentation for assumptions and guarantees.
pub struct FileSystem {
    superblock: Box<Superblock>,
    identity: Identity,
    devices: Vec<Device>,
    missing: Vec<DevId>,
    chunks: ChunkMap,
    nodes: Cache<Node>,
    extent_leaves: Cache<ExtentLeaf>,
    /// Tree blocks that were wanted and not in memory, and those of them that were read ahead.
    misses: AtomicU64,
    ahead: AtomicU64,
    runtime: Arc<dyn Runtime>,
}

impl fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileSystem({})", self.superblock.fsid())
    }
}

impl FileSystem {
    /// The newest superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The identity against which tree blocks are checked.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The available devices, ordered by number.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The device with this number, if available.
    pub fn device(&self, devid: DevId) -> Option<&Device> {
        self.devices.iter().find(|device| device.devid == devid)
    }

    /// The missing devices.
    pub fn missing(&self) -> &[DevId] {
        &self.missing
    }

    /// The map of the file system's space to its devices.
    pub fn chunks(&self) -> &ChunkMap {
        &self.chunks
    }

    /// Clock and tasks.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    /// Bytes covered by one data checksum.
    pub fn sectorsize(&self) -> u32 {
        self.superblock.sectorsize.get()
    }

    /// Size of a tree block in bytes.
    pub fn nodesize(&self) -> u32 {
        self.superblock.nodesize.get()
    }

    /// The root of the chunk tree.
    pub fn chunk_root(&self) -> Root {
        Root {
            id: objectid::CHUNK_TREE,
            at: self.superblock.chunk_root(),
            generation: self.superblock.chunk_root_generation.get(),
            level: self.superblock.chunk_root_level,
        }
    }

    /// The root of the tree of roots.
    pub fn tree_root(&self) -> Root {
        Root {
            id: objectid::ROOT_TREE,
            at: self.superblock.root(),
            generation: self.superblock.generation.get(),
            level: self.superblock.root_level,
        }
    }

    /// Reads bytes of a device; `at` and `len` are multiples of the file system's sector size.
    ///
    /// # Errors
    /// The device is missing, failed, or has no such copy.
    pub async fn read_device(
        &self,
        devid: DevId,
        at: Physical,
        len: u64,
        copy: CopyNumber,
    ) -> Result<Buffer, ReadError> {
        let device = self.device(devid).ok_or(ReadError::Missing(devid))?;
        let (sector, len) = (at.sector(), Sectors::from_bytes_floor(len));
        let read = device.gateway.read_copy(sector, len, copy).await;
        read.map_err(|status| ReadError::Device { devid, status })
    }

    /// The tree block at `expected.at`, from the first mirror, or copy of a mirror below the file
    /// system, on which it is as expected.
    ///
    /// # Errors
    /// There is no such mirror.
    pub async fn node(&self, expected: BlockExpectation) -> Result<Arc<Node>, TreeError> {
        self.cached(&self.nodes, expected, |node| node).await
    }

    /// The extents of the extent tree leaf at `expected.at`, all of whose keys must be smaller than `end`.
    ///
    /// # Errors
    /// No mirror has such a leaf, or its keys are not smaller.
    pub(crate) async fn extent_leaf(
        &self,
        expected: BlockExpectation,
        end: Option<Key>,
    ) -> Result<Arc<ExtentLeaf>, TreeError> {
        let leaf =
            self.cached(&self.extent_leaves, expected, |node| self.extents_of(&node)).await?;
        match leaf.check_end(end) {
            Ok(()) => Ok(leaf),
            Err(why) => Err(TreeError::damaged(expected.at, why)),
        }
    }

    fn extents_of(&self, leaf: &Node) -> ExtentLeaf {
        let (sector, node) = (self.sectorsize(), self.nodesize());
        ExtentLeaf::new(leaf, sector, |key, bytes| Extent::parse(key, bytes, sector, node))
    }

    /// The cached block, or what `take` makes of the tree block after reading it.
    async fn cached<T: CacheValue>(
        &self,
        cache: &Cache<T>,
        expected: BlockExpectation,
        take: impl FnOnce(Node) -> T,
    ) -> Result<Arc<T>, TreeError> {
        let at = expected.at;
        if !at.0.is_multiple_of(u64::from(self.sectorsize())) {
            let what = "an address that is not a multiple of the sector size";
            return Err(TreeError::damaged(at, NodeError::Contents { what, slot: 0 }));
        }
        let mut is_first = true;
        let reading = loop {
            let found = cache.look_up(at);
            if std::mem::take(&mut is_first) && !matches!(found, Lookup::Ready(_)) {
                self.misses.fetch_add(1, Ordering::Relaxed);
            }
            match found {
                Lookup::Ready(block) => {
                    // It was checked against another pointer when it was cached.
                    return match block.check_expected(&expected) {
                        Ok(()) => Ok(block),
                        Err(why) => Err(TreeError::damaged(at, why)),
                    };
                }
                Lookup::Wait(listener) => listener.await,
                Lookup::Read(reading) => break reading,
            }
        };
        let block = Arc::new(take(self.read_node(expected).await?));
        reading.done(Arc::clone(&block));
        Ok(block)
    }

    /// Like [`Self::node`], for a block on the way down a tree, all of whose keys must be smaller than `end`.
    ///
    /// # Errors
    /// There is no such mirror, or its keys are not smaller.
    pub(crate) async fn node_below(
        &self,
        expected: BlockExpectation,
        end: Option<Key>,
    ) -> Result<Arc<Node>, TreeError> {
        let node = self.node(expected).await?;
        match node.check_end(end) {
            Ok(()) => Ok(node),
            Err(why) => Err(TreeError::damaged(expected.at, why)),
        }
    }

    async fn read_node(&self, expected: BlockExpectation) -> Result<Node, TreeError> {
        let at = expected.at;
        let unmapped = TreeError::Read { at, why: ReadError::Unmapped(at) };
        if self.chunks.get(at).is_none() {
            return Err(unmapped);
        }
        let (mut last, size) = (unmapped, u64::from(self.nodesize()));
        for leg in self.legs(at, size) {
            let read = self.read_mirror(at, size, leg).await;
            let checked = match read {
                Ok(bytes) => Node::new(bytes.into_boxed_slice(), &self.identity, &expected)
                    .map_err(|why| TreeError::damaged(at, why)),
                Err(why) => Err(TreeError::Read { at, why }),
            };
            match checked {
                Ok(node) => return Ok(node),
                Err(error) => {
                    debug!(%at, mirror = leg.mirror.0, copy = leg.copy.0, %error, "tree block");
                    // A mirror's error is that of its plain read.
                    if leg.copy == CopyNumber::ANY {
                        last = error;
                    }
                }
            }
        }
        Err(last)
    }

    /// Whether the tree block at `at` is cached or being read.
    pub(crate) fn has_node(&self, at: Logical) -> bool {
        self.nodes.contains(at)
    }

    /// Whether the leaf of the extent tree at `at` is cached or being read.
    pub(crate) fn has_extent_leaf(&self, at: Logical) -> bool {
        self.extent_leaves.contains(at)
    }

    /// Caches a verified block of the extent or checksum tree, if there is room for it. It must
    /// have passed [`check_header`](crate::ondisk::node::check_header).
    pub(crate) fn offer_node(&self, at: Logical, bytes: &[u8]) {
        let Some(header) = header(bytes) else { return };
        let is_extent_leaf = header.owner.get() == objectid::EXTENT_TREE && header.level == 0;
        let is_here = if is_extent_leaf { self.has_extent_leaf(at) } else { self.has_node(at) };
        // Invalid contents are reported by the walk that needs the block.
        let node = if is_here { None } else { Node::of_checked_header(bytes.into()).ok() };
        match node {
            None => {}
            Some(node) if is_extent_leaf => {
                self.extent_leaves.offer(at, Arc::new(self.extents_of(&node)));
            }
            Some(node) => self.nodes.offer(at, Arc::new(node)),
        }
    }

    /// Marks a leaf of the extent tree as passed by a walk.
    pub(crate) fn spend_extent_leaf(&self, at: Logical) {
        self.extent_leaves.spend(at);
    }

    /// Marks a leaf of another tree as passed by a walk.
    pub(crate) fn spend_node(&self, at: Logical) {
        self.nodes.spend(at);
    }

    /// Counts a block that is about to be read ahead.
    pub(crate) fn count_ahead(&self) {
        self.ahead.fetch_add(1, Ordering::Relaxed);
    }

    /// How many tree blocks were waited for, and read ahead.
    pub fn tree_reads(&self) -> TreeReads {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let misses = self.misses.load(Ordering::Relaxed);
        TreeReads { waits: misses.saturating_sub(ahead), ahead }
    }

    /// Memory used by cached tree blocks, and its limit, in bytes.
    pub fn cached_bytes(&self) -> (usize, usize) {
        let (nodes, leaves) = (self.nodes.bytes(), self.extent_leaves.bytes());
        (nodes.0 + leaves.0, nodes.1 + leaves.1)
    }
}
