//! A pool: its metadata, its data and its devices.

use std::sync::Arc;

use ashlar_block::{Gateway, Sectors};

use super::error::{SuperblockFault, ThinError};
use super::node::{Bounds, Tree};
use super::ondisk::{BLOCK, DiskDetails};
use super::store::{Descent, End, Store, read_block};
use super::superblock::Superblock;

/// How to open a pool.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Sectors per data block, if known from elsewhere (LVM's `chunk_size`): then another size in
    /// the superblock is an error.
    pub data_block: Option<Sectors>,
    /// Open it although the kernel requires `thin_check` first. Nothing is written in any case.
    pub unchecked: bool,
    /// Maximum of cached metadata nodes, of about 2 KiB each.
    pub nodes: usize,
}

impl Default for Options {
    /// Any block size; pools that need a check are refused; up to 32 MiB of nodes, which map 128
    /// GiB and more in blocks of 64 KiB.
    fn default() -> Self {
        Self { data_block: None, unchecked: false, nodes: 16_384 }
    }
}

/// A pool's details of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Details {
    /// Number of mapped data blocks, exclusive or shared.
    pub mapped_blocks: u64,
    /// The pool's transaction ID at its creation.
    pub transaction_id: u64,
    /// The pool's time at its creation.
    pub creation_time: u32,
    /// The pool's time at its last snapshot.
    pub snapshotted_time: u32,
}

/// Consecutive blocks of a device that are also consecutive in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The first block of the device.
    pub block: u64,
    /// Its data block.
    pub data_block: u64,
    /// Number of blocks.
    pub len: u64,
    /// The pool's time when they were mapped.
    pub time: u32,
}

/// A read-only pool. Nothing else may write to its devices meanwhile.
pub struct ThinPool {
    pub(super) name: String,
    superblock: Superblock,
    pub(super) store: Store,
    pub(super) data: Gateway,
}

impl ThinPool {
    /// Opens the pool with its metadata and its data on these devices; `name` is its name in
    /// tables. Nothing is written.
    ///
    /// # Errors
    /// The superblock is unreadable or unusable, a device is too small for it, or the pool needs a check.
    pub async fn open(
        name: impl Into<String>,
        metadata: Gateway,
        data: Gateway,
        options: Options,
    ) -> Result<Arc<Self>, ThinError> {
        let superblock = examine(&metadata).await?;
        let device = || metadata.disk().name().to_owned();
        let refused = |fault| ThinError::Superblock { device: device(), fault };
        let found = superblock.data_block;
        if let Some(wanted) = options.data_block.filter(|wanted| *wanted != found) {
            return Err(refused(SuperblockFault::OtherDataBlock { found, wanted }));
        }
        if superblock.needs_check && !options.unchecked {
            return Err(refused(SuperblockFault::NeedsCheck));
        }
        check_size(&metadata, superblock.metadata_blocks, BLOCK)?;
        check_size(&data, superblock.data_blocks, superblock.data_block)?;
        let bounds = Bounds {
            metadata_blocks: superblock.metadata_blocks,
            data_blocks: superblock.data_blocks,
        };
        let store = Store::new(metadata, bounds, options.nodes);
        Ok(Arc::new(Self { name: name.into(), superblock, store, data }))
    }

    /// The pool's superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The details of device `id`; None if it does not exist.
    ///
    /// # Errors
    /// The metadata cannot be read, or is damaged.
    pub async fn details(&self, id: u32) -> Result<Option<Details>, ThinError> {
        let descent = Descent::new(Tree::Details, self.superblock.details, id.into());
        let details = |disk: &DiskDetails| Details::of(disk);
        let take = |end| match end {
            End::At(index) => Some(index),
            End::Gap(_) => None,
        };
        self.store.find(descent, |node, end| node.details().get(take(end)?).map(details)).await
    }

    /// All devices by ID, with their details. At most 2^24.
    ///
    /// # Errors
    /// The metadata cannot be read, or is damaged.
    pub async fn devices(&self) -> Result<Vec<(u32, Details)>, ThinError> {
        let mut all = Vec::new();
        let take = |node: &super::node::Node| {
            let entries = node.keys().iter().zip(node.details());
            all.extend(entries.map(|(id, disk)| (*id as u32, Details::of(disk))));
        };
        self.store.walk(Tree::Details, self.superblock.details, take).await?;
        Ok(all)
    }

    /// Calls `visit` for all mappings of device `id`, in block order. Reads all of its metadata.
    ///
    /// # Errors
    /// There is no such device, or the metadata cannot be read or is damaged. The mappings visited
    /// before are correct.
    pub async fn mappings(&self, id: u32, mut visit: impl FnMut(Mapping)) -> Result<(), ThinError> {
        let root = self.root(id).await?;
        let mut run: Option<Mapping> = None;
        let leaf = |node: &super::node::Node| {
            for (block, value) in node.keys().iter().zip(node.values()) {
                let (data_block, time) = (value >> 24, (value & 0xff_ffff) as u32);
                let next = Mapping { block: *block, data_block, len: 1, time };
                match &mut run {
                    Some(run) if run.is_followed_by(next) => run.len += 1,
                    Some(done) => visit(core::mem::replace(done, next)),
                    None => run = Some(next),
                }
            }
        };
        self.store.walk(Tree::Mappings, root, leaf).await?;
        if let Some(last) = run {
            visit(last);
        }
        Ok(())
    }

    /// The root of the mappings of device `id`.
    pub(super) async fn root(&self, id: u32) -> Result<u64, ThinError> {
        let descent = Descent::new(Tree::Devices, self.superblock.devices, id.into());
        let root = self.store.find(descent, |node, end| match end {
            End::At(index) => node.values().get(index).copied(),
            End::Gap(_) => None,
        });
        root.await?.ok_or_else(|| self.no_device(id))
    }

    pub(super) fn no_device(&self, id: u32) -> ThinError {
        ThinError::NoDevice { device: self.store.device().to_owned(), id }
    }
}

/// The superblock of the pool with its metadata on this device. The caller must check whether the
/// pool needs a check.
///
/// # Errors
/// The superblock is unreadable or unusable.
pub async fn examine(metadata: &Gateway) -> Result<Superblock, ThinError> {
    check_size(metadata, 1, BLOCK)?;
    let block = read_block(metadata, 0).await?;
    let device = || metadata.disk().name().to_owned();
    Superblock::parse(&block).map_err(|fault| ThinError::Superblock { device: device(), fault })
}

fn check_size(gateway: &Gateway, blocks: u64, block: Sectors) -> Result<(), ThinError> {
    let size = gateway.capacity();
    if size.0 / block.0 >= blocks {
        return Ok(());
    }
    Err(ThinError::TooSmall { device: gateway.disk().name().to_owned(), size, blocks, block })
}

impl Details {
    fn of(disk: &DiskDetails) -> Self {
        Self {
            mapped_blocks: disk.mapped_blocks.get(),
            transaction_id: disk.transaction_id.get(),
            creation_time: disk.creation_time.get(),
            snapshotted_time: disk.snapshotted_time.get(),
        }
    }
}

impl Mapping {
    fn is_followed_by(&self, next: Self) -> bool {
        let (block, data_block) = (self.block + self.len, self.data_block + self.len);
        (next.block, next.data_block, next.time) == (block, data_block, self.time)
    }
}
