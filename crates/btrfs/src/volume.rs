//! A file system on its available devices.

mod probe;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ashlar_block::{Buffer, CopyNumber, Gateway, Runtime, Sectors};
pub use probe::{Owner, SuperState, identify};
use tracing::{debug, warn};
use uuid::Uuid;
use zerocopy::FromBytes;

use crate::cache::{Cache, CacheValue, Lookup};
use crate::chunk_map::ChunkMap;
use crate::error::{OpenError, ReadError, TreeError};
use crate::extent_leaf::ExtentLeaf;
use crate::extent_walk::Extent;
use crate::ondisk::chunk::{Chunk, system_chunks};
use crate::ondisk::key::{Key, item, objectid};
use crate::ondisk::node::{BlockExpectation, Identity, Node, NodeError, header};
use crate::ondisk::superblock::{
    CompatRo, DevItem, FLAG_METADUMP, FLAG_SEEDING, FLAGS_INTERRUPTED, FLAGS_SUPPORTED, Incompat,
    Superblock, SuperblockError,
};
use crate::path::{Path, Root};
use crate::readahead::TreeReads;
use crate::units::{DevId, Logical, Physical};

/// Maximum bytes of cached tree blocks.
const NODES_BYTES: usize = 40 << 20;
/// Maximum bytes of cached extent tree leaves, in packed form, for scrubs.
const EXTENT_LEAVES_BYTES: usize = 24 << 20;

/// A device that may belong to a file system.
#[derive(Clone)]
pub struct Source {
    /// Name for messages.
    pub name: String,
    /// Access to the device.
    pub gateway: Gateway,
}

/// Options for opening a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    /// Whether devices may be missing.
    pub degraded: bool,
    /// Whether the file system will be written.
    pub writable: bool,
    /// Whether to accept devices that missed transactions when writing. They may hold old data that
    /// no checksum reveals: data without checksums, and parity.
    pub stale: bool,
}

/// A device of the file system.
pub struct Device {
    /// Its number.
    pub devid: DevId,
    /// Its identity.
    pub uuid: Uuid,
    /// Name for messages.
    pub name: String,
    /// Access to the device.
    pub gateway: Gateway,
    /// Its size according to the file system.
    pub total_bytes: u64,
    /// State of its superblocks.
    pub supers: [SuperState; 3],
    /// The newest of its own superblocks.
    pub superblock: Box<Superblock>,
}

impl Device {
    /// Whether only a backup superblock shows that the device belongs to the file system: the first
    /// superblock is missing (it is not merely damaged), or its location cannot be
    /// read. Such a device may have been reformatted since; look for other signatures before
    /// writing to it.
    pub fn is_by_backup(&self) -> bool {
        match &self.supers[0] {
            SuperState::Unreadable(_) | SuperState::Bad(SuperblockError::Magic) => true,
            SuperState::Bad(
                SuperblockError::ChecksumType(_)
                | SuperblockError::Checksum { .. }
                | SuperblockError::Bytenr { .. }
                | SuperblockError::Field { .. },
            )
            | SuperState::Absent
            | SuperState::Good { .. }
            | SuperState::Foreign { .. } => false,
        }
    }

    /// The last transaction on the device.
    pub fn generation(&self) -> u64 {
        self.superblock.generation.get()
    }
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
    /// Opens the file system on these devices: superblocks, chunks, devices. Nothing is written.
    ///
    /// # Errors
    /// The devices belong to different file systems, some are missing without `degraded`, some
    /// missed transactions and are to be written without `stale`, or what leads to the trees is
    /// damaged on all mirrors.
    pub async fn open(
        sources: Vec<Source>,
        options: OpenOptions,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Arc<Self>, OpenError> {
        let mut devices: Vec<Device> = Vec::with_capacity(sources.len());
        for source in sources {
            let device = probe::probe(source).await?;
            if let Some(first) = devices.first() {
                let (wanted, found) = (first.superblock.fsid(), device.superblock.fsid());
                if found != wanted {
                    let (name, first) = (device.name, first.name.clone());
                    return Err(OpenError::OtherFileSystem { name, found, first, wanted });
                }
            }
            if device.devid == DevId(0) {
                return Err(OpenError::ReplaceTarget { name: device.name });
            }
            if let Some(twin) = devices.iter().find(|other| other.devid == device.devid) {
                let first = (twin.name.clone(), twin.generation());
                let second = (device.name.clone(), device.generation());
                return Err(OpenError::Twice { first, second, devid: device.devid });
            }
            devices.push(device);
        }
        devices.sort_by_key(|device| device.devid);
        let newest = devices.iter().max_by_key(|device| device.generation());
        let superblock = newest.ok_or(OpenError::NoDevice)?.superblock.clone();
        check_features(&superblock, options)?;
        let newest = superblock.generation.get();
        for device in devices.iter().filter(|device| device.generation() < newest) {
            let (name, generation) = (&device.name, device.generation());
            if options.writable && !options.stale {
                return Err(OpenError::Stale { name: name.clone(), generation, newest });
            }
            warn!(device = %name, generation, newest, "the device missed transactions");
        }
        let identity = Identity {
            csum: superblock.csum_kind(),
            metadata_uuid: superblock.metadata_uuid(),
            chunk_tree_uuid: None,
            nodesize: superblock.nodesize.get(),
        };
        let mut chunks = ChunkMap::default();
        for chunk in system_chunks(superblock.sys_chunks(), superblock.sectorsize.get())? {
            chunks.insert(chunk)?;
        }
        let mut shared = Arc::new(Self {
            superblock,
            identity,
            devices,
            missing: Vec::new(),
            chunks,
            nodes: Cache::new(NODES_BYTES),
            extent_leaves: Cache::new(EXTENT_LEAVES_BYTES),
            misses: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            runtime,
        });
        let found = read_chunk_tree(&shared).await.map_err(|error| match error {
            ChunkTreeError::Tree(why) => OpenError::Tree { tree: "chunk tree", why },
            ChunkTreeError::Open(error) => error,
        })?;
        let this = Arc::get_mut(&mut shared).expect("nobody else has it yet");
        // The cache has blocks read before the identity was known; they are read again like any other.
        this.nodes.clear();
        this.take(found)?;
        if !this.missing.is_empty() && !options.degraded {
            let (missing, total) = (this.missing.clone(), this.superblock.num_devices.get());
            return Err(OpenError::Missing { missing, total });
        }
        Ok(shared)
    }

    /// Takes over the contents of the chunk tree.
    fn take(&mut self, found: ChunkTree) -> Result<(), OpenError> {
        let ChunkTree { uuid, chunks, devices } = found;
        self.identity.chunk_tree_uuid = Some(uuid);
        self.chunks = chunks;
        for device in &self.devices {
            let known = devices.iter().find(|(devid, _)| *devid == device.devid);
            if known.is_none_or(|(_, uuid)| *uuid != device.uuid) {
                let (name, devid) = (device.name.clone(), device.devid);
                return Err(OpenError::Replaced { name, devid });
            }
            self.chunks.on_device(device.devid)?;
        }
        let is_here = |devid| self.devices.iter().any(|device| device.devid == devid);
        self.missing = devices.iter().map(|(devid, _)| *devid).filter(|id| !is_here(*id)).collect();
        Ok(())
    }

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
        ExtentLeaf::new(leaf, self.sectorsize(), |key, bytes| Extent::parse(self, key, bytes))
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

/// Contents of the chunk tree.
struct ChunkTree {
    uuid: Uuid,
    chunks: ChunkMap,
    devices: Vec<(DevId, Uuid)>,
}

async fn read_chunk_tree(fs: &Arc<FileSystem>) -> Result<ChunkTree, ChunkTreeError> {
    let root = fs.chunk_root();
    let top = fs.node(root.expected()).await?;
    let uuid = Uuid::from_bytes(top.header().chunk_tree_uuid);
    let (mut chunks, mut devices) = (fs.chunks.clone(), Vec::new());
    let mut path = Path::new(fs, root);
    let mut more = path.search(Key::MIN).await?;
    while more {
        if let Some((key, data)) = path.item() {
            match (key.objectid, key.kind) {
                (objectid::DEV_ITEMS, item::DEV_ITEM) => {
                    let Ok((disk, _)) = DevItem::ref_from_prefix(data) else {
                        let (tree, why) = (objectid::CHUNK_TREE, "it is cut off".to_owned());
                        return Err(TreeError::Item { tree, key, why }.into());
                    };
                    // Devices of a seed keep the seed's identity.
                    let (seed, own) = (Uuid::from_bytes(disk.fsid), fs.identity.metadata_uuid);
                    if seed != own {
                        return Err(OpenError::Sprout { devid: DevId(key.offset), seed }.into());
                    }
                    devices.push((DevId(key.offset), Uuid::from_bytes(disk.uuid)));
                }
                (objectid::FIRST_CHUNK_TREE, item::CHUNK_ITEM) => {
                    let chunk = Chunk::parse(Logical(key.offset), data, fs.sectorsize());
                    chunks.insert(chunk.map_err(OpenError::from)?).map_err(OpenError::from)?;
                }
                _ => {}
            }
        }
        more = path.next().await?;
    }
    Ok(ChunkTree { uuid, chunks, devices })
}

/// Why reading the chunk tree failed.
enum ChunkTreeError {
    Tree(TreeError),
    Open(OpenError),
}

impl From<TreeError> for ChunkTreeError {
    fn from(error: TreeError) -> Self {
        Self::Tree(error)
    }
}

impl From<OpenError> for ChunkTreeError {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

/// Refuses unknown or unsupported features.
fn check_features(superblock: &Superblock, options: OpenOptions) -> Result<(), OpenError> {
    let incompat = superblock.incompat();
    let refused = Incompat::EXTENT_TREE_V2 | Incompat::REMAP_TREE;
    let unknown = incompat & (refused | !Incompat::all());
    // Flags without a name do not survive the complement.
    let nameless = incompat.bits() & !Incompat::all().bits();
    let unknown = Incompat::from_bits_retain(unknown.bits() | nameless);
    if !unknown.is_empty() {
        return Err(OpenError::Features(unknown.to_string()));
    }
    let flags = superblock.flags.get();
    if flags & FLAG_METADUMP != 0 {
        let what = "it is an image of metadata only (btrfs-image)";
        return Err(OpenError::Features(what.to_owned()));
    }
    if flags & FLAGS_INTERRUPTED != 0 {
        let interrupted = flags & FLAGS_INTERRUPTED;
        let what =
            format!("an interrupted btrfstune (flags {interrupted:#x}); btrfstune finishes it");
        return Err(OpenError::Features(what));
    }
    let unknown = flags & !FLAGS_SUPPORTED;
    if unknown != 0 {
        return Err(OpenError::Features(format!("superblock flags {unknown:#x}")));
    }
    if !options.writable {
        return Ok(());
    }
    let read_only = |what: &str| Err(OpenError::ReadOnlyFeatures(what.to_owned()));
    if incompat.contains(Incompat::ZONED) {
        return read_only("it is on zoned devices, which take no writes in place");
    }
    if flags & FLAG_SEEDING != 0 {
        return read_only("it is a seed");
    }
    let nameless = superblock.compat_ro().bits() & !CompatRo::all().bits();
    if nameless != 0 {
        return read_only(&format!("unknown features {}", CompatRo::from_bits_retain(nameless)));
    }
    Ok(())
}
