//! How a file system is opened: the superblocks of its devices, the chunks that these name, then the tree of chunks.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ashlar_block::Runtime;
use tracing::warn;
use uuid::Uuid;
use zerocopy::FromBytes;

use super::device::{Device, Source};
use super::{FileSystem, probe};
use crate::cache::Cache;
use crate::chunk_map::ChunkMap;
use crate::error::{OpenError, TreeError};
use crate::ondisk::chunk::{Chunk, system_chunks};
use crate::ondisk::key::{Key, item, objectid};
use crate::ondisk::node::Identity;
use crate::ondisk::superblock::{
    CompatRo, DevItem, FLAG_METADUMP, FLAG_SEEDING, FLAGS_INTERRUPTED, FLAGS_SUPPORTED, Incompat,
    Superblock,
};
use crate::path::Path;
use crate::units::{DevId, Logical};

/// Maximum bytes of cached tree blocks.
const NODES_BYTES: usize = 40 << 20;
/// Maximum bytes of cached extent tree leaves, in packed form, for scrubs.
const EXTENT_LEAVES_BYTES: usize = 24 << 20;

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
