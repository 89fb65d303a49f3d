//! Checks the structures of a file system, and changes nothing.
//!
//! Verified: all tree blocks that are reached from the superblock (checksum, generation, level,
//! order of keys, first key); the form of their items; that each tree block and each data extent is
//! in the extent tree with as many references as the trees have; that extents do not overlap; what
//! block groups count as used; and that chunks, block groups and device extents agree. Superblocks
//! are verified by [`crate::scrub::superblocks`].
//!
//! Not verified: which tree or file each back reference names, directories and inodes against each
//! other, the free space tree, quota groups, the log, mirrors other than the first good one, and
//! data against their checksums: a scrub reads those two.
//!
//! References are counted as the kernel counts them: each tree block that is reached in several
//! ways holds its own references once.
//!
//! Memory: less than 100 bytes for each tree block and each data extent.

use std::collections::HashMap;
use std::sync::Arc;

use thiserror::Error;

use crate::error::TreeError;
use crate::inspect::{Sizes, invalid};
use crate::ondisk::items::{
    BlockGroup, DevExtent, ExtentItem, FileExtent, FileExtentBody, RootItem, keyed_ref,
};
use crate::ondisk::key::{Key, item, objectid};
use crate::ondisk::node::{BlockExpectation, Node};
use crate::ondisk::superblock::CompatRo;
use crate::path::{Path, Root};
use crate::readahead::Reada;
use crate::roots::{damaged, root_of};
use crate::units::{DevId, Logical, Physical};
use crate::volume::FileSystem;

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CheckFault {
    /// A tree block or an item is damaged.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Two pointers to one block expect different blocks.
    #[error("two pointers to the tree block at {0} expect different generations or levels")]
    Pointers(Logical),
    /// Two parts of files say different lengths of one extent.
    #[error("files say different lengths of the extent at {0}")]
    Lengths(Logical),
    /// An extent is used, and the extent tree does not have it.
    #[error("the extent at {at} is used, but not in the extent tree with the length {length}")]
    NotAllocated {
        /// Its address.
        at: Logical,
        /// Its length in bytes.
        length: u64,
    },
    /// The extent tree counts other references than the trees have.
    #[error("the extent at {at} has {stored} references in the extent tree, and {found} in trees")]
    References {
        /// Its address.
        at: Logical,
        /// The count of the extent tree.
        stored: u64,
        /// The references that were found.
        found: u64,
    },
    /// The back references of an extent are not as many as its count says.
    #[error("the extent at {at} counts {stored} references, and lists {listed}")]
    BackReferences {
        /// Its address.
        at: Logical,
        /// The count.
        stored: u64,
        /// The references that are listed.
        listed: u64,
    },
    /// Two extents overlap.
    #[error("the extent at {0} overlaps the one before it")]
    Overlap(Logical),
    /// An extent is in no chunk, or not completely in one.
    #[error("the extent at {0} is not within a chunk")]
    Outside(Logical),
    /// A block group counts other bytes than its extents have.
    #[error("the block group at {at} counts {stored} bytes as used, and its extents have {found}")]
    Used {
        /// Its address.
        at: Logical,
        /// Its count.
        stored: u64,
        /// The sum of the extents.
        found: u64,
    },
    /// The superblock counts other bytes than the block groups.
    #[error("the superblock counts {stored} bytes as used, and the block groups {found}")]
    BytesUsed {
        /// The superblock's count.
        stored: u64,
        /// The sum of the block groups.
        found: u64,
    },
    /// A chunk has no block group of its length and type.
    #[error("the chunk at {0} has no block group of its length and type")]
    NoGroup(Logical),
    /// A block group has no chunk.
    #[error("the block group at {0} has no chunk")]
    NoChunk(Logical),
    /// A stripe of a chunk has no device extent of its length.
    #[error("the device tree lacks the extent at {at} of device {devid}, or has another one")]
    NoDeviceExtent {
        /// The device.
        devid: DevId,
        /// The offset on the device.
        at: Physical,
    },
    /// A device extent is not a stripe of a chunk.
    #[error("the extent at {at} of device {devid} in the device tree is not a stripe of a chunk")]
    NoStripe {
        /// The device.
        devid: DevId,
        /// The offset on the device.
        at: Physical,
    },
}

/// What was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckSummary {
    /// Trees, also those of snapshots.
    pub trees: u64,
    /// Different tree blocks.
    pub blocks: u64,
    /// Extents in the extent tree, those of data and of tree blocks.
    pub extents: u64,
    /// Faults.
    pub faults: u64,
    /// Why references were not compared, if they were not.
    pub uncounted: Option<Uncounted>,
}

/// Why references were not compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Uncounted {
    /// Something cannot be read.
    #[error("a part of the trees cannot be read")]
    Unreadable,
    /// The removal of a subvolume has dropped a part of its references.
    #[error("a subvolume is being removed")]
    Removal,
}

/// A block or extent in use: what its references expect, and how many they are.
struct Use {
    /// A block's generation, or the length of a data extent.
    expected: u64,
    /// A block's level.
    level: u8,
    refs: u64,
}

/// A step of the walk down a tree; all keys below are smaller than `end`.
struct Step {
    node: Arc<Node>,
    slot: usize,
    end: Option<Key>,
}

/// An extent of the extent tree whose separate back references follow.
struct Listed {
    at: Logical,
    stored: u64,
    listed: u64,
}

struct Check<'a> {
    fs: &'a Arc<FileSystem>,
    sizes: Sizes,
    blocks: HashMap<Logical, Use>,
    data: HashMap<Logical, Use>,
    summary: CheckSummary,
    tell: &'a mut dyn FnMut(CheckFault),
}

/// Checks the trees of a file system. Faults go to `tell` as they are found.
pub async fn check(fs: &Arc<FileSystem>, tell: &mut dyn FnMut(CheckFault)) -> CheckSummary {
    let sizes = Sizes { csum: fs.superblock().csum_kind(), sectorsize: fs.sectorsize() };
    let (blocks, data, summary) = (HashMap::new(), HashMap::new(), CheckSummary::default());
    let mut check = Check { fs, sizes, blocks, data, summary, tell };
    check.trees().await;
    if let Err(why) = check.extents().await {
        check.unreadable(why);
    }
    if let Err(why) = check.device_extents().await {
        check.unreadable(why);
    }
    check.summary
}

impl Check<'_> {
    fn fault(&mut self, fault: CheckFault) {
        self.summary.faults += 1;
        (self.tell)(fault);
    }

    fn unreadable(&mut self, why: TreeError) {
        self.summary.uncounted = Some(Uncounted::Unreadable);
        self.fault(why.into());
    }

    /// Walks all trees.
    async fn trees(&mut self) {
        let roots = self.fs.tree_root();
        self.walk(roots).await;
        self.walk(self.fs.chunk_root()).await;
        let mut path = Path::new(self.fs, roots);
        let mut more = path.search(Key::MIN).await;
        while let Ok(true) = more {
            let Some((key, data)) = path.item() else { break };
            // The walk has told of invalid items.
            if key.kind == item::ROOT_ITEM
                && let Ok(found) = RootItem::parse(data)
            {
                if found.drop_progress() != Key::MIN {
                    self.summary.uncounted.get_or_insert(Uncounted::Removal);
                }
                self.walk(root_of(key, &found)).await;
            }
            more = path.next().await;
        }
        // The walk has told of unreadable blocks, too.
        if more.is_err() {
            self.summary.uncounted = Some(Uncounted::Unreadable);
        }
        self.summary.blocks = self.blocks.len() as u64;
    }

    /// Walks a tree, except for what is below blocks that another walk has met.
    async fn walk(&mut self, root: Root) {
        self.summary.trees += 1;
        let mut steps = Vec::new();
        self.enter(root.id, root.expected(), None, &mut steps).await;
        while let Some(step) = steps.last_mut() {
            let Some(expected) = step.node.child(step.slot) else {
                steps.pop();
                continue;
            };
            let end = step.node.key(step.slot + 1).or(step.end);
            step.slot += 1;
            self.enter(root.id, expected, end, &mut steps).await;
        }
    }

    async fn enter(
        &mut self,
        tree: u64,
        expected: BlockExpectation,
        end: Option<Key>,
        steps: &mut Vec<Step>,
    ) {
        let at = expected.at;
        let generation = expected.generation.unwrap_or_default();
        let level = expected.level.unwrap_or_default();
        if let Some(block) = self.blocks.get_mut(&at) {
            block.refs += 1;
            if (block.expected, block.level) != (generation, level) {
                self.fault(CheckFault::Pointers(at));
            }
            return;
        }
        self.blocks.insert(at, Use { expected: generation, level, refs: 1 });
        match self.fs.node_below(expected, end).await {
            Ok(node) if node.level() > 0 => steps.push(Step { node, slot: 0, end }),
            Ok(node) => {
                self.leaf(tree, &node);
                self.fs.spend_node(at);
            }
            Err(why) => self.unreadable(why),
        }
    }

    fn leaf(&mut self, tree: u64, node: &Node) {
        for slot in 0..node.len() {
            let Some((key, data)) = node.item(slot) else { break };
            if let Some(why) = invalid(key, data, self.sizes) {
                self.fault(damaged(tree, key, &why).into());
                continue;
            }
            if key.kind != item::EXTENT_DATA {
                continue;
            }
            let part = match FileExtent::parse(data, self.sizes.sectorsize) {
                Ok(part) => part,
                Err(why) => {
                    self.fault(damaged(tree, key, &why).into());
                    continue;
                }
            };
            let (FileExtentBody::Regular(part) | FileExtentBody::Prealloc(part)) = part.body else {
                continue;
            };
            let Some(at) = part.at else { continue };
            let length = part.disk_num_bytes;
            let used = self.data.entry(at).or_insert(Use { expected: length, level: 0, refs: 0 });
            used.refs += 1;
            if used.expected != length {
                self.fault(CheckFault::Lengths(at));
            }
        }
    }

    /// Compares the extent tree with what the trees use.
    async fn extents(&mut self) -> Result<(), TreeError> {
        let mut groups = HashMap::new();
        let mut used: HashMap<Logical, u64> = HashMap::new();
        let (mut open, mut end) = (None, 0);
        let root = self.fs.need_root(objectid::EXTENT_TREE).await?;
        let mut path = Path::new(self.fs, root).with_reada(Reada::Forward);
        let mut more = path.search(Key::MIN).await?;
        while more {
            let Some((key, data)) = path.item() else { break };
            match key.kind {
                item::EXTENT_ITEM | item::METADATA_ITEM => {
                    self.listed(open.take());
                    if let Ok(found) = ExtentItem::parse(key, data) {
                        let length = self.length(key);
                        let at = Logical(key.objectid);
                        if at.0 < end {
                            self.fault(CheckFault::Overlap(at));
                        }
                        end = at.0.saturating_add(length);
                        match self.fs.chunks().get(at) {
                            Some(chunk) if end <= chunk.end().0 => {
                                let sum = used.entry(chunk.start).or_default();
                                *sum = sum.saturating_add(length);
                            }
                            Some(_) | None => self.fault(CheckFault::Outside(at)),
                        }
                        self.compare(at, length, &found);
                        let refs = found.inline.clone().flatten();
                        let listed = refs.map(|it| it.count()).fold(0, u64::saturating_add);
                        open = Some(Listed { at, stored: found.refs, listed });
                    }
                }
                item::BLOCK_GROUP_ITEM => {
                    if let Ok(group) = BlockGroup::parse(key, data) {
                        groups.insert(group.start, group);
                    }
                }
                _ => {
                    if let Some(Ok(back)) = keyed_ref(key, data)
                        && let Some(open) = open.as_mut().filter(|it| it.at.0 == key.objectid)
                    {
                        open.listed = open.listed.saturating_add(back.count());
                    }
                }
            }
            more = path.next().await?;
        }
        self.listed(open);
        self.rest();
        if self.fs.superblock().compat_ro().contains(CompatRo::BLOCK_GROUP_TREE) {
            let root = self.fs.need_root(objectid::BLOCK_GROUP_TREE).await?;
            let mut path = Path::new(self.fs, root);
            let mut more = path.search(Key::MIN).await?;
            while more {
                let Some((key, data)) = path.item() else { break };
                if let Ok(group) = BlockGroup::parse(key, data) {
                    groups.insert(group.start, group);
                }
                more = path.next().await?;
            }
        }
        self.groups(groups, &used);
        Ok(())
    }

    fn length(&self, key: Key) -> u64 {
        match key.kind {
            item::METADATA_ITEM => u64::from(self.fs.nodesize()),
            _ => key.offset,
        }
    }

    /// Compares an extent with its uses.
    fn compare(&mut self, at: Logical, length: u64, found: &ExtentItem<'_>) {
        self.summary.extents += 1;
        let used = match found.is_data() {
            true => self.data.remove(&at).map(|used| (used.expected, used.refs)),
            false => self.blocks.remove(&at).map(|used| (u64::from(self.fs.nodesize()), used.refs)),
        };
        let (wanted, refs) = used.unwrap_or((length, 0));
        if wanted != length {
            self.fault(CheckFault::NotAllocated { at, length: wanted });
        }
        if refs != found.refs && self.summary.uncounted.is_none() {
            self.fault(CheckFault::References { at, stored: found.refs, found: refs });
        }
    }

    /// All back references of an extent were read.
    fn listed(&mut self, open: Option<Listed>) {
        if let Some(Listed { at, stored, listed }) = open
            && stored != listed
        {
            self.fault(CheckFault::BackReferences { at, stored, listed });
        }
    }

    /// What is left after the walk over the extent tree is not in it.
    fn rest(&mut self) {
        let length = u64::from(self.fs.nodesize());
        let blocks = std::mem::take(&mut self.blocks).into_keys().map(|at| (at, length));
        let data = std::mem::take(&mut self.data).into_iter().map(|(at, it)| (at, it.expected));
        let mut all: Vec<(Logical, u64)> = blocks.chain(data).collect();
        all.sort();
        for (at, length) in all {
            self.fault(CheckFault::NotAllocated { at, length });
        }
    }

    /// Compares block groups with chunks, and with the sums of their extents.
    fn groups(&mut self, mut groups: HashMap<Logical, BlockGroup>, used: &HashMap<Logical, u64>) {
        let mut total = 0_u64;
        for chunk in self.fs.chunks().iter() {
            let at = chunk.start;
            let group = groups.remove(&at);
            let group = group.filter(|it| (it.length, it.flags) == (chunk.length, chunk.flags));
            let Some(group) = group else {
                self.fault(CheckFault::NoGroup(at));
                continue;
            };
            total = total.saturating_add(group.used);
            let found = used.get(&at).copied().unwrap_or_default();
            if group.used != found {
                self.fault(CheckFault::Used { at, stored: group.used, found });
            }
        }
        let mut rest: Vec<Logical> = groups.into_keys().collect();
        rest.sort();
        for at in rest {
            self.fault(CheckFault::NoChunk(at));
        }
        let stored = self.fs.superblock().bytes_used.get();
        if stored != total {
            self.fault(CheckFault::BytesUsed { stored, found: total });
        }
    }

    /// Compares the device tree with the stripes of chunks.
    async fn device_extents(&mut self) -> Result<(), TreeError> {
        let mut stripes = HashMap::new();
        for chunk in self.fs.chunks().iter() {
            for stripe in &chunk.stripes {
                let wanted = (chunk.start, chunk.stripe_length());
                stripes.insert((stripe.devid, stripe.offset), wanted);
            }
        }
        let root = self.fs.need_root(objectid::DEV_TREE).await?;
        let mut path = Path::new(self.fs, root).with_reada(Reada::Forward);
        let mut more = path.search(Key::MIN).await?;
        while more {
            let Some((key, data)) = path.item() else { break };
            if key.kind == item::DEV_EXTENT
                && let Ok(found) = DevExtent::parse(key, data)
            {
                let (devid, at) = (DevId(key.objectid), Physical(key.offset));
                match stripes.remove(&(devid, at)) {
                    Some(wanted) if wanted == (found.chunk(), found.length.get()) => {}
                    Some(_) => self.fault(CheckFault::NoDeviceExtent { devid, at }),
                    None => self.fault(CheckFault::NoStripe { devid, at }),
                }
            }
            more = path.next().await?;
        }
        let mut rest: Vec<(DevId, Physical)> = stripes.into_keys().collect();
        rest.sort();
        for (devid, at) in rest {
            self.fault(CheckFault::NoDeviceExtent { devid, at });
        }
        Ok(())
    }
}
