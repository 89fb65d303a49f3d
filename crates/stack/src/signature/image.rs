//! The parts of a device that may contain signatures, in memory.

use std::ops::Range;

/// Bytes searched at the start; the last signature there is VMFS.
const HEAD: u64 = (1 << 20) + BLOCK;
/// Bytes searched at the end, before the last multiple of [`LABEL`]: the third and fourth ZFS labels.
const TAIL: u64 = 512 << 10;
/// ZFS rounds the size of a device down to this.
const LABEL: u64 = 256 << 10;
/// Ranges are rounded to this, so that any disk can read them.
const BLOCK: u64 = 4096;

/// A device with some ranges in memory.
#[derive(Clone, Debug, Default)]
pub struct Image {
    size: u64,
    parts: Vec<(u64, Vec<u8>)>,
}

impl Image {
    /// A device of `size` bytes without ranges in memory.
    pub fn new(size: u64) -> Self {
        Self { size, parts: Vec::new() }
    }

    /// The device's size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Adds the bytes at `offset`.
    pub fn add(&mut self, offset: u64, bytes: Vec<u8>) {
        self.parts.push((offset, bytes));
    }

    /// The byte ranges of a device of `size` bytes that may contain signatures: multiples of 4096,
    /// except for the device's end.
    pub fn wanted(size: u64) -> Vec<Range<u64>> {
        let tail = (size - size % LABEL).saturating_sub(TAIL) / BLOCK * BLOCK;
        if tail <= HEAD {
            let whole = 0..size;
            return if size == 0 { Vec::new() } else { vec![whole] };
        }
        vec![0..HEAD, tail..size]
    }

    /// Fills the loaded part of `range` with zeroes.
    pub(crate) fn zero(&mut self, range: &Range<u64>) {
        for (start, part) in &mut self.parts {
            let index = |at: u64| at.saturating_sub(*start).min(part.len() as u64) as usize;
            let (from, to) = (index(range.start), index(range.end));
            part[from..to].fill(0);
        }
    }

    /// `len` bytes at `offset`, if they are loaded.
    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.parts.iter().find_map(|(start, part)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            part.get(from..from.checked_add(len)?)
        })
    }

    /// Whether `magic` is at `offset`.
    pub(crate) fn has(&self, offset: u64, magic: &[u8]) -> bool {
        self.bytes(offset, magic.len()) == Some(magic)
    }

    /// The little-endian number at `offset`.
    pub(crate) fn le_u32(&self, offset: u64) -> Option<u32> {
        Some(u32::from_le_bytes(*self.bytes(offset, 4)?.first_chunk()?))
    }

    /// The little-endian number at `offset`.
    pub(crate) fn le_u16(&self, offset: u64) -> Option<u16> {
        Some(u16::from_le_bytes(*self.bytes(offset, 2)?.first_chunk()?))
    }

    /// The byte at `offset`.
    pub(crate) fn byte(&self, offset: u64) -> Option<u8> {
        self.bytes(offset, 1)?.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wanted_ranges_cover_both_ends_and_stay_inside() {
        assert_eq!(Image::wanted(0), []);
        assert_eq!(Image::wanted(1 << 20).len(), 1);
        let odd = (64 << 20) + 12_800;
        assert_eq!(Image::wanted(odd), [0..HEAD, (64 << 20) - TAIL..odd]);
        for size in (0..3 << 20).step_by(1536) {
            let wanted = Image::wanted(size);
            assert!(
                wanted.iter().all(|r| r.start < r.end && r.end <= size && r.start % BLOCK == 0)
            );
            assert_eq!(wanted.last().map_or(0, |r| r.end), size);
        }
    }

    #[test]
    fn bytes_that_are_not_known_are_none() {
        let mut image = Image::new(1 << 40);
        image.add(4096, vec![7; 16]);
        assert!(image.has(4100, &[7; 12]) && !image.has(4100, &[7; 13]) && !image.has(0, &[0]));
        assert_eq!(image.bytes(u64::MAX, 2), None);
        assert_eq!(image.bytes(4096, usize::MAX), None);
    }
}
