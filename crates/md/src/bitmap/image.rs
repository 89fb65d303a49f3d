//! The intended bytes of a bitmap on every member, superblock and marks, and the blocks
//! that are not yet written.
//!
//! Classic: after 256 bytes of superblock one bit for each chunk, the lowest bit of a byte first.
//! Lockless: after 1,024 bytes (the superblock's and zeroes) one byte for each chunk.

use std::ops::Range;

use zerocopy::IntoBytes;

use super::lockless::{Action, State};
use crate::ondisk::bitmap_super::{self, BitmapSuper};

/// Dirty blocks at most this far apart are written in one write: another write would cost more than
/// the bytes between.
const GAP: usize = 16 << 10;

/// The two formats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A bit for each chunk (superblock version 3 or 4).
    Classic,
    /// A byte for each chunk (superblock version 6).
    Lockless,
}

impl Kind {
    /// The byte of the first mark.
    pub(super) const fn start(self) -> usize {
        match self {
            Self::Classic => bitmap_super::SIZE,
            Self::Lockless => bitmap_super::LOCKLESS_START,
        }
    }
}

/// See the module text.
pub(super) struct Image {
    kind: Kind,
    chunks: u32,
    bytes: Vec<u8>,
    block: usize,
    dirty: Vec<bool>,
    /// Whether a block may be dirty.
    any_dirty: bool,
}

/// Bytes of a bitmap with `chunks` chunks, in whole blocks.
pub(super) fn bytes_of(kind: Kind, chunks: u64, block: u64) -> u64 {
    let marks = match kind {
        Kind::Classic => chunks.div_ceil(8),
        Kind::Lockless => chunks,
    };
    (kind.start() as u64).saturating_add(marks).checked_next_multiple_of(block).unwrap_or(u64::MAX)
}

impl Image {
    /// An image of zeroes: all chunks clean (classic) or unwritten (lockless). Every block is dirty.
    pub(super) fn new(kind: Kind, chunks: u32, block: usize) -> Self {
        let len = bytes_of(kind, chunks.into(), block as u64) as usize;
        let dirty = vec![true; len / block];
        Self { kind, chunks, bytes: vec![0; len], block, dirty, any_dirty: true }
    }

    /// Copies the marks from bytes that were read; they must be at least as long as the image.
    pub(super) fn fill_from(&mut self, bytes: &[u8]) {
        let (start, len) = (self.kind.start(), self.bytes.len());
        self.bytes[start..].copy_from_slice(&bytes[start..len]);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn superblock(&self) -> BitmapSuper {
        BitmapSuper::from_bytes(&self.bytes).expect("an image begins with a superblock")
    }

    pub(super) fn set_superblock(&mut self, sb: &BitmapSuper) {
        self.bytes[..bitmap_super::SIZE].copy_from_slice(sb.as_bytes());
        self.touch(0);
    }

    /// The index of the byte with the chunk's mark, and the mask of the mark in it.
    fn place(&self, chunk: u32) -> (usize, u8) {
        debug_assert!(chunk < self.chunks, "chunk {chunk} of {}", self.chunks);
        match self.kind {
            Kind::Classic => (self.kind.start() + chunk as usize / 8, 1 << (chunk % 8)),
            Kind::Lockless => (self.kind.start() + chunk as usize, 0xff),
        }
    }

    fn decode(&self, byte: u8, mask: u8) -> State {
        match self.kind {
            Kind::Classic if byte & mask != 0 => State::Dirty,
            Kind::Classic => State::Clean,
            Kind::Lockless => State::from_byte(byte),
        }
    }

    pub(super) fn state(&self, chunk: u32) -> State {
        let (at, mask) = self.place(chunk);
        self.decode(self.bytes[at], mask)
    }

    /// Whether `bytes`, a part of this image from `offset` on, contain the chunk's mark and it is set.
    pub(super) fn is_marked_in(&self, offset: usize, bytes: &[u8], chunk: u32) -> bool {
        let (at, mask) = self.place(chunk);
        let byte = at.checked_sub(offset).and_then(|at| bytes.get(at));
        byte.is_some_and(|byte| self.decode(*byte, mask).is_marked())
    }

    pub(super) fn set(&mut self, chunk: u32, state: State) {
        let (at, mask) = self.place(chunk);
        let byte = match self.kind {
            Kind::Classic if state.is_marked() => self.bytes[at] | mask,
            Kind::Classic => self.bytes[at] & !mask,
            Kind::Lockless => state.byte(),
        };
        if byte != self.bytes[at] {
            self.bytes[at] = byte;
            self.touch(at);
        }
    }

    /// Applies `action` to the chunk's state.
    pub(super) fn act(&mut self, chunk: u32, action: Action) {
        if let Some(state) = self.state(chunk).after(action) {
            self.set(chunk, state);
        }
    }

    /// Makes the block with the chunk's mark dirty, although it did not change.
    pub(super) fn rewrite(&mut self, chunk: u32) {
        self.touch(self.place(chunk).0);
    }

    pub(super) fn rewrite_all(&mut self) {
        self.dirty.fill(true);
        self.any_dirty = true;
    }

    fn touch(&mut self, at: usize) {
        self.dirty[at / self.block] = true;
        self.any_dirty = true;
    }

    /// Makes blocks dirty again because it is not known whether they were written.
    pub(super) fn touch_range(&mut self, range: Range<usize>) {
        self.dirty[range.start / self.block..range.end.div_ceil(self.block)].fill(true);
        self.any_dirty = true;
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.any_dirty
    }

    /// The ranges of bytes to be written. They are no longer dirty.
    pub(super) fn take_dirty(&mut self) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        if !std::mem::take(&mut self.any_dirty) {
            return runs;
        }
        for (index, dirty) in self.dirty.iter_mut().enumerate() {
            if !std::mem::take(dirty) {
                continue;
            }
            let start = index * self.block;
            let end = start + self.block;
            match runs.last_mut() {
                Some(run) if start - run.end <= GAP => run.end = end,
                Some(_) | None => runs.push(start..end),
            }
        }
        runs
    }

    /// The first marked chunk from `chunk` on.
    pub(super) fn next_marked(&self, chunk: u32) -> Option<u32> {
        let mut chunk = chunk;
        while chunk < self.chunks {
            if self.kind == Kind::Classic
                && chunk.is_multiple_of(8)
                && self.bytes[self.place(chunk).0] == 0
            {
                chunk = chunk.saturating_add(8);
            } else if self.state(chunk).is_marked() {
                return Some(chunk);
            } else {
                chunk += 1;
            }
        }
        None
    }

    /// All marked chunks, ascending.
    pub(super) fn marked(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.next_marked(0), |last| self.next_marked(last + 1))
    }

    /// Number of chunks in each state, in the order of [`State::ALL`].
    pub(super) fn count(&self) -> [u64; 5] {
        let mut count = [0; 5];
        for chunk in 0..self.chunks {
            count[usize::from(self.state(chunk).byte())] += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_n_of_a_classic_bitmap_is_chunk_n_lowest_first_after_256_bytes() {
        for chunk in [0, 1, 7, 8, 9, 63, 64, 2047, 2048, 9999] {
            let mut image = Image::new(Kind::Classic, 10_000, 512);
            image.act(chunk, Action::Write);
            let set: Vec<(usize, u8)> =
                image.bytes.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect();
            assert_eq!(set, [(256 + chunk as usize / 8, 1u8 << (chunk % 8))]);
            assert_eq!(image.marked().collect::<Vec<_>>(), [chunk]);
        }
    }

    #[test]
    fn byte_n_of_a_lockless_bitmap_is_chunk_n_after_1024_bytes() {
        for (chunk, state) in [(0, State::Clean), (511, State::NeedSync), (9999, State::Dirty)] {
            let mut image = Image::new(Kind::Lockless, 10_000, 4096);
            image.set(chunk, state);
            let set: Vec<(usize, u8)> =
                image.bytes.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect();
            assert_eq!(set, [(1024 + chunk as usize, state as u8)]);
            assert_eq!(image.count()[state as usize], 1);
            assert_eq!(image.count()[0], 9999);
        }
    }

    #[test]
    fn only_blocks_that_changed_are_written_and_near_ones_together() {
        let mut image = Image::new(Kind::Lockless, 100_000, 512);
        assert_eq!(
            image.take_dirty(),
            [Range { start: 0, end: (1024 + 100_000usize).next_multiple_of(512) }]
        );
        assert!(!image.is_dirty() && image.take_dirty().is_empty());
        image.act(0, Action::Write);
        image.act(0, Action::Write);
        image.act(512, Action::Write);
        image.act(20_000, Action::Write);
        image.act(60_000, Action::Write);
        let at = |chunk: usize| (1024 + chunk) / 512 * 512;
        assert_eq!(
            image.take_dirty(),
            [1024..at(512) + 512, at(20_000)..at(20_000) + 512, at(60_000)..at(60_000) + 512]
        );
        image.act(60_000, Action::Write);
        assert!(!image.is_dirty(), "a chunk was marked twice");
        image.touch_range(1536..2048);
        assert_eq!(image.take_dirty(), [Range { start: 1536, end: 2048 }]);
    }

    #[test]
    fn the_bytes_needed_are_those_of_superblock_and_marks_in_whole_blocks() {
        assert_eq!(bytes_of(Kind::Classic, 1, 512), 512);
        assert_eq!(bytes_of(Kind::Classic, 2048, 512), 512);
        assert_eq!(bytes_of(Kind::Classic, 2049, 512), 1024);
        assert_eq!(bytes_of(Kind::Lockless, 1, 512), 1536);
        assert_eq!(bytes_of(Kind::Lockless, 3072, 4096), 4096);
        assert_eq!(bytes_of(Kind::Lockless, 3073, 4096), 8192);
        assert_eq!(bytes_of(Kind::Lockless, u64::MAX, 512), u64::MAX);
    }
}
