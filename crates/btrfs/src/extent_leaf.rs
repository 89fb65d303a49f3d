//! The part of an extent tree leaf that a scrub needs, in a twentieth of the leaf's memory.
//!
//! A leaf of 16 KiB describes some 240 extents and their references. To know what is in use,
//! address, length and generation are enough. Stored as differences from the previous extent they
//! take a byte or two each, so the extents of many gigabytes of data fit into a few megabytes.

use crate::cache::CacheValue;
use crate::error::TreeError;
use crate::extent::{Extent, ExtentKind};
use crate::ondisk::key::Key;
use crate::ondisk::node::{
    BlockExpectation, Node, NodeError, check_end, check_first_key, check_version,
};
use crate::units::Logical;

/// Flag bits of a packed extent, below its length.
const IS_TREE: u64 = 1;
const HAS_LEVEL: u64 = 2;
const HAS_OWNER: u64 = 4;
const LENGTH_SHIFT: u32 = 3;

/// Approximate bytes of an error: its message is a line.
const ERROR_BYTES: usize = 256;

/// An invalid item: its first byte, and what is wrong.
pub(crate) type InvalidItem = (Logical, TreeError);

/// A leaf of the extent tree.
pub(crate) struct ExtentLeaf {
    generation: u64,
    level: u8,
    items: usize,
    first_key: Option<Key>,
    last_key: Option<Key>,
    sector: u64,
    /// The extents, in the order of their keys.
    packed: Box<[u8]>,
    /// Invalid items, in the order of their keys.
    wrong: Box<[InvalidItem]>,
}

impl CacheValue for ExtentLeaf {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.packed.len() + self.wrong.len() * ERROR_BYTES
    }

    fn check_expected(&self, expected: &BlockExpectation) -> Result<(), NodeError> {
        check_version(self.generation, self.level, expected)?;
        check_first_key(self.first_key, expected.first_key)
    }
}

impl ExtentLeaf {
    /// Packs the extents in `leaf`. `parse` parses an item, and returns `None` if it is not an extent.
    pub(crate) fn new(
        leaf: &Node,
        sectorsize: u32,
        parse: impl Fn(Key, &[u8]) -> Option<Result<Extent, TreeError>>,
    ) -> Self {
        let sector = u64::from(sectorsize);
        let generation = leaf.header().generation.get();
        let mut packer = Packer { sector, generation, end: 0, bytes: Vec::new() };
        let mut wrong = Vec::new();
        for (key, bytes) in (0..leaf.len()).filter_map(|slot| leaf.item(slot)) {
            match parse(key, bytes) {
                Some(Ok(extent)) => packer.push(&extent),
                Some(Err(error)) => wrong.push((Logical(key.objectid), error)),
                None => {}
            }
        }
        Self {
            generation,
            level: leaf.level(),
            items: leaf.len(),
            first_key: leaf.key(0),
            last_key: leaf.len().checked_sub(1).and_then(|last| leaf.key(last)),
            sector,
            packed: packer.bytes.into(),
            wrong: wrong.into(),
        }
    }

    /// Like [`Node::check_end`].
    ///
    /// # Errors
    /// It has keys that are not smaller than `end`.
    pub(crate) fn check_end(&self, end: Option<Key>) -> Result<(), NodeError> {
        check_end(self.last_key, self.items, end)
    }

    /// The key of its first item, of any type.
    pub(crate) const fn first_key(&self) -> Option<Key> {
        self.first_key
    }

    /// The first extent that starts at or after `from`, or the error if an invalid item precedes it.
    pub(crate) fn first_from(&self, from: Logical) -> Option<Result<Extent, InvalidItem>> {
        let extent = self.extents().find(|extent| extent.start >= from);
        let wrong = self.wrong.iter().find(|(start, _)| *start >= from);
        match (extent, wrong) {
            (extent, None) => extent.map(Ok),
            (Some(extent), Some((start, _))) if extent.start <= *start => Some(Ok(extent)),
            (Some(_) | None, Some(wrong)) => Some(Err(wrong.clone())),
        }
    }

    /// The last extent that starts before `from`, or the error if an invalid item follows it.
    pub(crate) fn last_before(&self, from: Logical) -> Option<Result<Extent, InvalidItem>> {
        let extent = self.extents().take_while(|extent| extent.start < from).last();
        let wrong = self.wrong.iter().rfind(|(start, _)| *start < from);
        match (extent, wrong) {
            (extent, None) => extent.map(Ok),
            (Some(extent), Some((start, _))) if extent.start > *start => Some(Ok(extent)),
            (Some(_) | None, Some(wrong)) => Some(Err(wrong.clone())),
        }
    }

    fn extents(&self) -> impl Iterator<Item = Extent> {
        let Self { sector, generation, .. } = *self;
        let mut unpacker = Unpacker { sector, generation, end: 0, bytes: &self.packed };
        std::iter::from_fn(move || unpacker.next())
    }
}

struct Packer {
    sector: u64,
    generation: u64,
    /// End of the last extent, in sectors.
    end: u64,
    bytes: Vec<u8>,
}

impl Packer {
    /// Appends an extent of whole sectors.
    fn push(&mut self, extent: &Extent) {
        let (start, length) = (extent.start.0 / self.sector, extent.length / self.sector);
        self.number(start.wrapping_sub(self.end));
        let (is_tree, level, owner) = match extent.kind {
            ExtentKind::Data => (0, None, None),
            ExtentKind::Tree { level, owner } => (IS_TREE, level, owner),
        };
        let has_level = if level.is_some() { HAS_LEVEL } else { 0 };
        let has_owner = if owner.is_some() { HAS_OWNER } else { 0 };
        // A length in sectors of at least 4 KiB leaves the upper twelve bits free.
        self.number(length << LENGTH_SHIFT | has_owner | has_level | is_tree);
        self.number(self.generation.wrapping_sub(extent.generation));
        if let Some(level) = level {
            self.bytes.push(level);
        }
        if let Some(owner) = owner {
            self.number(owner);
        }
        self.end = start + length;
    }

    /// Seven bits per byte, lowest first; the eighth bit says that more follow.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

struct Unpacker<'a> {
    sector: u64,
    generation: u64,
    end: u64,
    bytes: &'a [u8],
}

impl Unpacker<'_> {
    fn next(&mut self) -> Option<Extent> {
        let start = self.end.wrapping_add(self.number()?);
        let word = self.number()?;
        let generation = self.generation.wrapping_sub(self.number()?);
        let level = if word & HAS_LEVEL == 0 { None } else { Some(self.byte()?) };
        let owner = if word & HAS_OWNER == 0 { None } else { Some(self.number()?) };
        let length = word >> LENGTH_SHIFT;
        self.end = start + length;
        let is_tree = word & IS_TREE != 0;
        let kind = if is_tree { ExtentKind::Tree { level, owner } } else { ExtentKind::Data };
        let start = Logical(start * self.sector);
        Some(Extent { start, length: length * self.sector, generation, kind })
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(extents: &[Extent], wrong: &[u64], sector: u64) -> ExtentLeaf {
        let mut packer = Packer { sector, generation: 900, end: 0, bytes: Vec::new() };
        extents.iter().for_each(|extent| packer.push(extent));
        let error = |at: &u64| (Logical(*at), TreeError::NoTree(*at));
        ExtentLeaf {
            generation: 900,
            level: 0,
            items: extents.len(),
            first_key: None,
            last_key: None,
            sector,
            packed: packer.bytes.into(),
            wrong: wrong.iter().map(error).collect(),
        }
    }

    fn extent(start: u64, length: u64, generation: u64, kind: ExtentKind) -> Extent {
        Extent { start: Logical(start), length, generation, kind }
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        let top = u64::MAX / 65536 * 65536;
        for sector in [4096, 65536] {
            let tree = |level, owner| ExtentKind::Tree { level, owner };
            let extents = [
                extent(0, sector, 900, ExtentKind::Data),
                extent(sector, 128 << 20, 1, ExtentKind::Data),
                // Overlaps the previous extent, from a later transaction: no file system has this.
                extent(2 * sector, sector, u64::MAX, tree(Some(255), Some(u64::MAX))),
                extent(2 * sector, sector, 899, tree(None, Some(0))),
                extent(1 << 60, 1 << 61, 0, tree(Some(0), None)),
                extent(top - sector, sector, 900, ExtentKind::Data),
            ];
            let leaf = leaf(&extents, &[], sector);
            assert_eq!(leaf.extents().collect::<Vec<_>>(), extents);
        }
    }

    #[test]
    fn extents_beside_each_other_take_few_bytes() {
        let beside = |n: u64| extent((5000 + n) * 8192, 8192, 900 - n % 100, ExtentKind::Data);
        let extents: Vec<Extent> = (0..240).map(beside).collect();
        let bytes = leaf(&extents, &[], 4096).bytes();
        assert!(bytes < 240 * 3 + 200, "{bytes}");
    }

    #[test]
    fn items_that_cannot_be_are_met_in_their_place() {
        let data = |start| extent(start, 4096, 900, ExtentKind::Data);
        let leaf = leaf(&[data(4096), data(12288), data(32768)], &[8192, 20480, 40960], 4096);
        let start = |found: Option<Result<Extent, InvalidItem>>| match found {
            Some(Ok(extent)) => Some((extent.start.0, true)),
            Some(Err((at, _))) => Some((at.0, false)),
            None => None,
        };
        let all = [4096, 8192, 12288, 20480, 32768, 40960];
        let is_good = [true, false, true, false, true, false];
        for from in (0..50_000).step_by(512) {
            let first = all.iter().zip(is_good).find(|(at, _)| **at >= from);
            let last = all.iter().zip(is_good).rfind(|(at, _)| **at < from);
            let of = |found: Option<(&u64, bool)>| found.map(|(at, good)| (*at, good));
            assert_eq!(start(leaf.first_from(Logical(from))), of(first), "{from}");
            assert_eq!(start(leaf.last_before(Logical(from))), of(last), "{from}");
        }
    }
}
