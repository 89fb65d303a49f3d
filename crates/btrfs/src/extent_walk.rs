//! Walks over the extent tree in address order, and over the checksum tree.
//!
//! Both walks keep their position, so a range that follows the last one needs no descent, and both
//! know what lies ahead, so an empty range costs nothing. Ranges may be in any order: after a jump,
//! a walk searches again, in blocks that are mostly cached.
//!
//! A tree block that cannot be read from any mirror does not end a walk: the walk reports the range
//! for which nothing is known and continues after it. Such ranges are remembered, so that each is
//! reported once.
//!
//! Bounds: a walk keeps one path, one leaf, and at most [`UNKNOWN_MAX`] ranges. Each call moves the
//! walk forward by at least one byte.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::error::TreeError;
pub use crate::extent::{Extent, ExtentKind};
use crate::extent_leaves::{Leaves, LostLeaf};
use crate::ondisk::items::CsumItem;
use crate::ondisk::key::{Key, item, objectid};
use crate::ondisk::node::Node;
use crate::path::{Path, Root};
use crate::readahead::Reada;
use crate::sweep::Sweep;
use crate::units::Logical;
use crate::volume::FileSystem;

/// Maximum number of unknown ranges remembered; beyond this, some are reported twice.
const UNKNOWN_MAX: usize = 4096;

/// Result of a search.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SearchResult {
    /// The first extent with a byte in the range. It may begin before the range.
    Extent(Extent),
    /// Nothing is known from the start of the range up to `end`.
    Unknown {
        /// End of the unknown part; after the start of the range.
        end: Logical,
        /// The error, when first met.
        error: Option<TreeError>,
    },
    /// The range contains no extent.
    Nothing,
}

/// Unknown ranges, as start and end, without overlaps.
#[derive(Default)]
struct UnknownRanges {
    ranges: BTreeMap<u64, u64>,
}

impl UnknownRanges {
    fn insert(&mut self, range: Range<u64>) {
        if self.ranges.len() >= UNKNOWN_MAX {
            self.ranges.pop_first();
        }
        self.ranges.insert(range.start, range.end);
    }

    /// End of the unknown range that contains `at`.
    fn end_at(&self, at: u64) -> Option<u64> {
        let (_, end) = self.ranges.range(..=at).next_back()?;
        Some(*end).filter(|end| at < *end)
    }
}

/// What is known about the space ahead of a walk.
#[derive(Clone, Copy)]
struct Lookahead {
    /// From here on
    from: Logical,
    /// there is nothing before this extent; if `None`, there is nothing at all.
    extent: Option<Extent>,
}

/// A walk over the extent tree.
pub struct ExtentWalk<'a> {
    fs: &'a Arc<FileSystem>,
    leaves: Leaves<'a>,
    ahead: Option<Lookahead>,
    unknown: UnknownRanges,
    /// The last error reported.
    told: Option<TreeError>,
}

/// An unreadable part of a tree: the error, and the first byte after it.
struct Gap {
    error: TreeError,
    end: u64,
}

impl<'a> ExtentWalk<'a> {
    /// A walk over the extent tree of `fs`.
    ///
    /// # Errors
    /// There is no extent tree, or the tree of roots is damaged.
    pub async fn new(fs: &'a Arc<FileSystem>, reada: Reada) -> Result<Self, TreeError> {
        let root = fs.need_root(objectid::EXTENT_TREE).await?;
        Ok(Self::over(fs, root, reada))
    }

    fn over(fs: &'a Arc<FileSystem>, root: Root, reada: Reada) -> Self {
        let leaves = Leaves::new(fs, root, reada);
        Self { fs, leaves, ahead: None, unknown: UnknownRanges::default(), told: None }
    }

    /// Lets `sweep` read ahead.
    pub(crate) fn with_sweep(mut self, sweep: Option<Arc<Sweep<'a>>>) -> Self {
        self.leaves = self.leaves.with_sweep(sweep);
        self
    }

    /// Finds the first extent in `range`. No extent crosses `floor`, the start of the chunk, which
    /// is at or before the start of the range.
    pub async fn find(&mut self, range: Range<Logical>, floor: Logical) -> SearchResult {
        let Range { start: from, end: to } = range;
        if from >= to {
            return SearchResult::Nothing;
        }
        if let Some(end) = self.unknown.end_at(from.0) {
            return SearchResult::Unknown { end: Logical(end.min(to.0)), error: None };
        }
        let within = |extent: Option<Extent>| match extent {
            Some(extent) if extent.start < to => SearchResult::Extent(extent),
            Some(_) | None => SearchResult::Nothing,
        };
        let mut follows = false;
        if let Some(Lookahead { from: known_from, extent }) = self.ahead
            && known_from <= from
        {
            match extent {
                None => return SearchResult::Nothing,
                Some(extent) if from < extent.end() => {
                    // An unknown range may lie in between.
                    let between = self.unknown.ranges.range(from.0..extent.start.0.max(from.0));
                    return match between.map(|(start, _)| *start).next() {
                        Some(start) if start < to.0 => self.up_to(start, from),
                        Some(_) | None => within(Some(extent)),
                    };
                }
                Some(extent) => follows = from == extent.end(),
            }
        }
        self.ahead = None;
        let extent = match self.forward(from).await {
            Ok(extent) => extent,
            Err(gap) => return self.gap(gap, from, to),
        };
        let begins_here = extent.is_some_and(|extent| extent.start <= from);
        if !follows && !begins_here && from > floor {
            match self.before(from, floor).await {
                Ok(Some(before)) => {
                    self.ahead = Some(Lookahead { from, extent: Some(before) });
                    return within(Some(before));
                }
                Ok(None) => {}
                Err(error) => {
                    let end = extent.map_or(u64::MAX, |extent| extent.start.0);
                    return self.gap(Gap { error, end }, from, to);
                }
            }
        }
        self.ahead = Some(Lookahead { from, extent });
        within(extent)
    }

    /// Nothing is known from `start` on, before the next known extent.
    fn up_to(&self, start: u64, from: Logical) -> SearchResult {
        match self.unknown.end_at(start) {
            Some(end) => SearchResult::Unknown { end: Logical(end.max(from.0 + 1)), error: None },
            None => SearchResult::Nothing,
        }
    }

    fn gap(&mut self, gap: Gap, from: Logical, to: Logical) -> SearchResult {
        // Extents begin at whole sectors, even if a neighbour of the lost block has another key.
        let sector = u64::from(self.fs.sectorsize());
        let end = gap.end.max(from.0.saturating_add(sector));
        let end = end.checked_next_multiple_of(sector).unwrap_or(u64::MAX);
        self.unknown.insert(from.0..end);
        // A lost block is met from both sides.
        let is_new = self.told.as_ref() != Some(&gap.error);
        self.told = Some(gap.error.clone());
        SearchResult::Unknown { end: Logical(end.min(to.0)), error: is_new.then_some(gap.error) }
    }

    /// The first extent that starts at or after `from`.
    async fn forward(&mut self, from: Logical) -> Result<Option<Extent>, Gap> {
        let mut key = Key::new(from.0, 0, 0);
        loop {
            let mut leaf = self.leaves.with(key).await;
            while let Ok(Some(extents)) = &leaf {
                match extents.first_from(from) {
                    Some(Ok(extent)) => return Ok(Some(extent)),
                    // Skip invalid items, sector by sector.
                    Some(Err((at, error))) => {
                        let end = at.0.saturating_add(u64::from(self.fs.sectorsize()));
                        return Err(Gap { error, end });
                    }
                    None => leaf = self.leaves.next().await,
                }
            }
            let Err(LostLeaf { error, resume }) = leaf else { return Ok(None) };
            let Some(resume) = resume else {
                return Err(Gap { error, end: u64::MAX });
            };
            // If references follow, the item of their extent is in the lost block.
            let lost = resume.kind > item::METADATA_ITEM;
            let lost = if lost { u64::from(self.fs.sectorsize()) } else { 0 };
            let end = resume.objectid.saturating_add(lost);
            if end > from.0 || resume <= key {
                return Err(Gap { error, end });
            }
            // The lost block has only keys before the range.
            key = resume;
        }
    }

    /// The extent that starts before `from`, but not before `floor`, and reaches beyond `from`.
    async fn before(&mut self, from: Logical, floor: Logical) -> Result<Option<Extent>, TreeError> {
        let mut key = Key::new(from.0, 0, 0);
        loop {
            let leaf = self.leaves.before(key).await.map_err(|lost| lost.error)?;
            let Some((leaf, first)) = leaf.and_then(|leaf| Some((leaf.first_key()?, leaf))) else {
                return Ok(None);
            };
            match first.last_before(from) {
                Some(Ok(extent)) if extent.start >= floor && extent.end() > from => {
                    return Ok(Some(extent));
                }
                Some(Ok(_) | Err(_)) => return Ok(None),
                None if leaf.objectid < floor.0 => return Ok(None),
                None => {}
            }
            // A reference, whose extent has a smaller key, or a block group, which may have no extent.
            let has_extent = leaf.kind > item::METADATA_ITEM;
            key = if has_extent {
                Key::new(leaf.objectid, item::METADATA_ITEM, u64::MAX)
            } else {
                Key::new(leaf.objectid, 0, 0)
            };
        }
    }
}

/// The checksum of a sector of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sum {
    /// The checksum, in as many bytes as the algorithm uses.
    Known([u8; crate::csum::MAX_SIZE]),
    /// The tree has no checksum.
    None,
    /// The part of the tree that may have a checksum cannot be read.
    Unknown,
}

/// A walk over the checksum tree.
pub struct CsumWalk<'a> {
    fs: &'a Arc<FileSystem>,
    /// Why there is no tree; `None` once reported.
    missing: Option<TreeError>,
    path: Option<Path<'a>>,
    /// Reads ahead, with a separate path that tells it what to read.
    sweep: Option<(Arc<Sweep<'a>>, Path<'a>)>,
    /// The current item: its leaf, its slot there, its range.
    item: Option<(Arc<Node>, usize, Range<u64>)>,
    /// A range without checksums.
    empty: Range<u64>,
    unknown: UnknownRanges,
    /// The last error reported.
    told: Option<TreeError>,
}

/// What the tree has for a sector.
enum SectorSum {
    /// The current item has its checksum.
    Item,
    /// There are no checksums up to here.
    None(u64),
    /// Nothing is known up to here.
    Unknown(u64),
}

impl<'a> CsumWalk<'a> {
    /// A walk over the checksum tree of `fs`. If the tree cannot be found, every checksum is unknown.
    pub async fn new(fs: &'a Arc<FileSystem>, reada: Reada) -> Self {
        let (path, missing) = match fs.need_root(objectid::CSUM_TREE).await {
            Ok(root) => (Some(Path::new(fs, root).with_reada(reada)), None),
            Err(error) => (None, Some(error)),
        };
        let unknown = UnknownRanges::default();
        Self { fs, missing, path, sweep: None, item: None, empty: 0..0, unknown, told: None }
    }

    /// Lets `sweep` read ahead.
    pub(crate) fn with_sweep(mut self, sweep: Option<Arc<Sweep<'a>>>) -> Self {
        let root = self.path.as_ref().map(Path::root);
        let above = root.and_then(|root| Path::above_leaves(self.fs, root));
        self.sweep = sweep.zip(above);
        self
    }

    /// Fills `into` with the checksums of its `into.len()` sectors from `from` on. Each error is
    /// passed to `tell` once.
    pub async fn sums(&mut self, from: Logical, into: &mut [Sum], mut tell: impl FnMut(TreeError)) {
        let sector = u64::from(self.fs.sectorsize());
        let kind = self.fs.identity().csum;
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            let Some(at) = from.checked_add(done as u64 * sector) else { return };
            let up_to = |end: u64| ((end - at.0).div_ceil(sector).max(1) as usize).min(rest.len());
            match self.at(at, &mut tell).await {
                SectorSum::None(end) => {
                    let count = up_to(end);
                    rest[..count].fill(Sum::None);
                    done += count;
                }
                SectorSum::Unknown(end) => {
                    let count = up_to(end);
                    rest[..count].fill(Sum::Unknown);
                    done += count;
                }
                SectorSum::Item => {
                    let parsed = self.item.as_ref().and_then(|(leaf, slot, _)| {
                        let (key, bytes) = leaf.item(*slot)?;
                        CsumItem::parse(key, bytes, kind, self.fs.sectorsize()).ok()
                    });
                    let sums = parsed.as_ref().map_or(0, |item| {
                        let stored = (0..rest.len()).map_while(|sector_nr| {
                            item.get(Logical(at.0 + sector_nr as u64 * sector))
                        });
                        rest.iter_mut()
                            .zip(stored)
                            .map(|(sum, stored)| {
                                let mut bytes = [0; crate::csum::MAX_SIZE];
                                bytes[..stored.len()].copy_from_slice(stored);
                                *sum = Sum::Known(bytes);
                            })
                            .count()
                    });
                    // The item was parsed before and contains the sector, so it has at least one.
                    done += sums.max(1);
                }
            }
        }
    }

    /// What the tree has for the sector at `at`.
    async fn at(&mut self, at: Logical, tell: &mut impl FnMut(TreeError)) -> SectorSum {
        if self.item.as_ref().is_some_and(|(_, _, range)| range.contains(&at.0)) {
            return SectorSum::Item;
        }
        if self.empty.contains(&at.0) {
            return SectorSum::None(self.empty.end);
        }
        if let Some(end) = self.unknown.end_at(at.0) {
            return SectorSum::Unknown(end);
        }
        if self.path.is_none() {
            if let Some(error) = self.missing.take() {
                tell(error);
            }
            return SectorSum::Unknown(u64::MAX);
        }
        self.item = None;
        self.sweep(at).await;
        match self.seek(at).await {
            Ok(found) => found,
            Err(Gap { error, end }) => {
                let end = end.max(at.0 + 1);
                self.unknown.insert(at.0..end);
                if self.told.as_ref() != Some(&error) {
                    self.told = Some(error.clone());
                    tell(error);
                }
                SectorSum::Unknown(end)
            }
        }
    }

    /// Has the leaf for the checksum of `at` read together with others, unless it is cached.
    async fn sweep(&mut self, at: Logical) {
        let Some((sweep, above)) = &mut self.sweep else { return };
        let key = Key::new(objectid::EXTENT_CSUM, item::EXTENT_CSUM, at.0);
        // The search for the item reports any error.
        let Ok(true) = above.search(key).await else { return };
        let Some((leaf, _)) = above.child() else { return };
        let last = self.path.as_ref().and_then(Path::leaf).map(|(last, _)| last.header().bytenr);
        if let Some(last) = last.map(|last| Logical(last.get())).filter(|last| *last != leaf.at) {
            self.fs.spend_node(last);
        }
        if !self.fs.has_node(leaf.at) {
            sweep.run(Key::new(at.0, 0, 0), at).await;
        }
    }

    /// Moves to the item that contains `at`, if one does.
    async fn seek(&mut self, at: Logical) -> Result<SectorSum, Gap> {
        let Some(path) = &mut self.path else { return Ok(SectorSum::Unknown(u64::MAX)) };
        let key = Key::new(objectid::EXTENT_CSUM, item::EXTENT_CSUM, at.0);
        match path.search_back(key).await {
            Ok(_) => {}
            Err(error) => {
                let mut end = behind(path.resume());
                if end <= at.0 {
                    // The part before cannot be read: nothing is known up to the next item.
                    end = match path.search(key).await {
                        Ok(true) => behind(path.key()),
                        Ok(false) => u64::MAX,
                        Err(_) => behind(path.resume()),
                    };
                }
                return Err(Gap { error, end });
            }
        }
        if let Some(range) = self.range(at)?
            && range.contains(&at.0)
        {
            self.item = self.leaf().map(|(leaf, slot)| (leaf, slot, range));
            return Ok(SectorSum::Item);
        }
        // No item has it: nothing up to the next item.
        let Some(path) = &mut self.path else { return Ok(SectorSum::Unknown(u64::MAX)) };
        if let Err(error) = path.search(key).await {
            return Err(Gap { error, end: behind(path.resume()) });
        }
        let end = self.range(at)?.map_or(u64::MAX, |range| range.start);
        self.empty = at.0..end;
        Ok(SectorSum::None(end))
    }

    fn leaf(&self) -> Option<(Arc<Node>, usize)> {
        let (leaf, slot) = self.path.as_ref()?.leaf()?;
        Some((Arc::clone(leaf), slot))
    }

    /// The range of the current item; `None` if that is not a checksum item.
    fn range(&self, at: Logical) -> Result<Option<Range<u64>>, Gap> {
        let Some((key, bytes)) = self.path.as_ref().and_then(Path::item) else { return Ok(None) };
        if (key.objectid, key.kind) != (objectid::EXTENT_CSUM, item::EXTENT_CSUM) {
            return Ok(None);
        }
        let (kind, sectorsize) = (self.fs.identity().csum, self.fs.sectorsize());
        match CsumItem::parse(key, bytes, kind, sectorsize) {
            Ok(item) => Ok(Some(item.start().0..item.end().0)),
            Err(why) => {
                let (tree, why) = (objectid::CSUM_TREE, why.to_string());
                let error = TreeError::Item { tree, key, why };
                Err(Gap { error, end: at.0.saturating_add(u64::from(sectorsize)) })
            }
        }
    }
}

/// The first byte whose checksum is at or after `key`.
fn behind(key: Option<Key>) -> u64 {
    let sums = Key::new(objectid::EXTENT_CSUM, item::EXTENT_CSUM, 0);
    match key {
        Some(key) if (key.objectid, key.kind) == (sums.objectid, sums.kind) => key.offset,
        Some(key) if key < sums => 0,
        Some(_) | None => u64::MAX,
    }
}
