//! Readahead for a scrub: leaves of the extent and checksum trees, in one pass of a disk's head.
//!
//! A scrub moves along a device and needs, from both trees, the leaves that describe what comes
//! next. They are scattered over the metadata, and a disk that fetches them one by one does little
//! else. So when one is not cached, a sweep takes the next leaves of both trees, sorts them by
//! address, and reads them all.
//!
//! The scrub itself also reads leaves, as metadata, and caches them ([`FileSystem::offer_node`]). A
//! sweep skips leaves that the scrub will read before they are needed.
//!
//! Bounds: a sweep examines [`POINTERS_MAX`] pointers, reads leaves of up to [`EXTENTS_BYTES`] and
//! [`SUMS_BYTES`], and has [`BATCHES`] batches of [`BATCH_BYTES`] in flight. All of it fits into
//! the caches at once.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use tracing::trace;

use crate::chunk_map::ChunkMap;
use crate::ondisk::chunk::STRIPE_LEN;
use crate::ondisk::key::{Key, item, objectid};
use crate::ondisk::node::BlockExpectation;
use crate::path::{Path, Root};
use crate::readahead::Blocks;
use crate::units::{DevId, Logical, Physical};
use crate::volume::FileSystem;

/// Maximum number of pointers to leaves that a sweep examines in each tree.
const POINTERS_MAX: usize = 1 << 14;
/// Maximum bytes of extent tree leaves per sweep. A twentieth of this is cached.
const EXTENTS_BYTES: usize = 64 << 20;
/// Maximum bytes of checksum tree leaves per sweep: a quarter of the cache.
const SUMS_BYTES: usize = 10 << 20;
/// Bytes of leaves requested at once, so that adjacent ones are merged.
const BATCH_BYTES: usize = 4 << 20;
/// Number of batches in flight.
const BATCHES: usize = 2;
/// Distance on the device after which a block read by the scrub is sure to be cached: twice what
/// the scrub has in flight.
const IN_FLIGHT_BYTES: u64 = 16 << 20;

/// The sweeps for the scrub of a device.
pub(crate) struct Sweep<'a> {
    fs: &'a Arc<FileSystem>,
    devid: DevId,
    /// Current position of the scrub.
    here: AtomicU64,
    extents: Option<Root>,
    sums: Option<Root>,
}

impl<'a> Sweep<'a> {
    /// Sweeps for the scrub of `devid`, over the given trees.
    pub(crate) fn new(
        fs: &'a Arc<FileSystem>,
        devid: DevId,
        extents: Option<Root>,
        sums: Option<Root>,
    ) -> Self {
        Self { fs, devid, here: AtomicU64::new(0), extents, sums }
    }

    /// Tells that the scrub has reached `at`.
    pub(crate) fn pass(&self, at: Physical) {
        self.here.store(at.0, Ordering::Relaxed);
    }

    /// Starts reads of leaves, including the extent tree's leaf with `key` and the leaf with the
    /// checksum of `sum`. Does not wait for the reads.
    pub(crate) async fn run(&self, key: Key, sum: Logical) {
        let nodesize = self.fs.nodesize() as usize;
        let (mut leaves, mut end) = (Vec::new(), u64::MAX);
        if let Some(root) = self.extents {
            let (blocks, max) = (Blocks::ExtentLeaves, EXTENTS_BYTES / nodesize);
            end = self.due(root, key, key.objectid..end, blocks, max, &mut leaves).await;
        }
        if let Some(root) = self.sums {
            let key = Key::new(objectid::EXTENT_CSUM, item::EXTENT_CSUM, sum.0);
            let max = SUMS_BYTES / nodesize;
            self.due(root, key, sum.0..end, Blocks::Nodes, max, &mut leaves).await;
        }
        if leaves.is_empty() {
            return;
        }
        leaves.sort_unstable_by_key(|(leaf, _)| leaf.at);
        trace!(leaves = leaves.len(), from = sum.0, end, "sweep");
        let fs = Arc::clone(self.fs);
        self.fs.runtime().spawn(Box::pin(async move {
            let batches = leaves
                .chunks((BATCH_BYTES / nodesize).max(1))
                .map(|batch| join_all(batch.iter().map(|(leaf, blocks)| blocks.read(&fs, *leaf))));
            stream::iter(batches).buffered(BATCHES).for_each(async |_| {}).await;
        }));
    }

    /// Adds leaves from the one with `key` on that describe part of `range` and are due for
    /// reading, at most `max`; returns the address up to which leaves were considered.
    async fn due(
        &self,
        root: Root,
        key: Key,
        range: Range<u64>,
        blocks: Blocks,
        max: usize,
        leaves: &mut Vec<(BlockExpectation, Blocks)>,
    ) -> u64 {
        let Some(mut path) = Path::above_leaves(self.fs, root) else { return range.end };
        let of = |key: Key| match blocks {
            Blocks::ExtentLeaves => key.objectid,
            Blocks::Nodes => key.offset,
        };
        let mut taken = 0;
        let mut more = path.search(key).await;
        let mut from = range.start;
        for _ in 0..POINTERS_MAX {
            // The walk that needs the block reports any error.
            let (Ok(true), Some((leaf, end))) = (&more, path.child()) else { return range.end };
            if from >= range.end || taken == max {
                return from;
            }
            if !blocks.has(self.fs, leaf.at) && self.is_due(leaf.at, Logical(from)) {
                leaves.push((leaf, blocks));
                taken += 1;
            }
            from = end.map_or(u64::MAX, of).max(from);
            more = path.next().await;
        }
        from
    }

    /// Whether to read a leaf at `at`, which describes addresses from `from` on, now.
    fn is_due(&self, at: Logical, from: Logical) -> bool {
        let here = self.here.load(Ordering::Relaxed);
        // If `None`, the scrub of this device does not reach what the leaf describes.
        let Some(needed) = comes_to(self.fs.chunks(), self.devid, from, here) else { return false };
        let passed = comes_by(self.fs.chunks(), self.devid, at, here);
        passed.is_none_or(|passed| passed.saturating_add(IN_FLIGHT_BYTES) > needed)
    }
}

/// Approximate position at which a scrub of the device, now at `here`, reaches `from` or a later
/// address in the same chunk.
fn comes_to(chunks: &ChunkMap, devid: DevId, from: Logical, here: u64) -> Option<u64> {
    let chunk = chunks.at_or_behind(from)?;
    let within = from.0.saturating_sub(chunk.start.0) / chunk.data_stripes();
    let stripes = chunk.stripes.iter().filter(|stripe| stripe.devid == devid);
    let ahead = stripes.filter_map(|stripe| {
        let (start, end) = (stripe.offset.0, stripe.offset.0.checked_add(chunk.stripe_length())?);
        let at = start.checked_add(within)?;
        (here < end).then_some(at.max(here))
    });
    ahead.min()
}

/// Position at which a scrub of the device, now at `here`, reads a copy of the tree block at `at`.
fn comes_by(chunks: &ChunkMap, devid: DevId, at: Logical, here: u64) -> Option<u64> {
    let chunk = chunks.get(at)?;
    let copies = chunk.all_mirrors().filter_map(|mirror| chunk.locate(at, mirror));
    let on_device = copies.filter(|copy| copy.devid == devid).map(|copy| copy.at.0);
    on_device.filter(|copy| *copy >= here.saturating_add(STRIPE_LEN)).min()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::ondisk::chunk::{BlockGroupFlags, Chunk, Profile, Stripe};

    const MIB: u64 = 1 << 20;

    fn chunk(start: u64, length: u64, flags: BlockGroupFlags, on: &[(u64, u64)]) -> Chunk {
        let stripe = |(devid, offset): &(u64, u64)| Stripe {
            devid: DevId(*devid),
            offset: Physical(offset * MIB),
            dev_uuid: Uuid::nil(),
        };
        let profile = Profile::of(flags).expect("one profile");
        let stripes = on.iter().map(stripe).collect();
        Chunk { start: Logical(start * MIB), length: length * MIB, flags, profile, stripes }
    }

    /// Two copies of the metadata in the middle of a device, data on both sides, one chunk on another device.
    fn map() -> ChunkMap {
        let mut map = ChunkMap::default();
        let (data, metadata) = (BlockGroupFlags::DATA, BlockGroupFlags::METADATA);
        for chunk in [
            chunk(1000, 100, data, &[(1, 10)]),
            chunk(1200, 50, metadata | BlockGroupFlags::DUP, &[(1, 110), (1, 160)]),
            chunk(2000, 100, data, &[(1, 210)]),
            chunk(3000, 100, data, &[(2, 10)]),
            chunk(4000, 200, data | BlockGroupFlags::RAID0, &[(1, 400), (2, 400)]),
        ] {
            map.insert(chunk).expect("none overlaps");
        }
        map
    }

    #[test]
    fn where_a_scrub_comes_to_data_and_by_blocks() {
        let map = map();
        let to = |from: u64, here: u64| {
            comes_to(&map, DevId(1), Logical(from * MIB), here * MIB).map(|at| at / MIB)
        };
        assert_eq!([to(1020, 0), to(1020, 30), to(1020, 70)], [Some(30), Some(30), Some(70)]);
        assert_eq!([to(1020, 110), to(3000, 0), to(5000, 0)], [None; 3]);
        // After a chunk comes the next one; of two copies, the first one ahead counts.
        assert_eq!([to(1150, 0), to(1210, 155), to(1210, 160)], [Some(110), Some(155), Some(170)]);
        assert_eq!(to(4100, 0), Some(450));
        let by = |at: u64, here: u64| {
            comes_by(&map, DevId(1), Logical(at * MIB), here * MIB).map(|at| at / MIB)
        };
        assert_eq!([by(1210, 0), by(1210, 130), by(1210, 180)], [Some(120), Some(170), None]);
        assert_eq!([by(3000, 0), by(900, 0)], [None; 2]);
    }
}
