//! Checksums of data.

use super::ItemError;
use crate::csum::ChecksumKind;
use crate::ondisk::key::Key;
use crate::units::Logical;

/// Checksums of consecutive sectors. The key is `(EXTENT_CSUM EXTENT_CSUM first byte)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CsumItem<'a> {
    start: Logical,
    size: usize,
    sectorsize: u64,
    sums: &'a [u8],
}

impl<'a> CsumItem<'a> {
    /// Parses an `EXTENT_CSUM`.
    ///
    /// # Errors
    /// Its size is not that of one or more whole checksums; or its range overflows or does not
    /// consist of whole sectors.
    pub fn parse(
        key: Key,
        bytes: &'a [u8],
        kind: ChecksumKind,
        sectorsize: u32,
    ) -> Result<Self, ItemError> {
        const ITEM: &str = "checksum item";
        let (found, size) = (bytes.len(), kind.size());
        if bytes.is_empty() || !found.is_multiple_of(size) {
            let wanted = found.next_multiple_of(size).max(size);
            return Err(ItemError::Size { item: ITEM, found, wanted });
        }
        let (start, sectorsize) = (Logical(key.offset), u64::from(sectorsize.max(1)));
        let length = sectorsize.checked_mul((found / size) as u64);
        let end = length.and_then(|length| start.checked_add(length));
        if !start.0.is_multiple_of(sectorsize) || end.is_none() {
            return Err(ItemError::Field { item: ITEM, field: "start", value: start.0 });
        }
        Ok(Self { start, size, sectorsize, sums: bytes })
    }

    /// The first byte covered.
    pub const fn start(&self) -> Logical {
        self.start
    }

    /// Number of sectors covered.
    pub const fn sectors(&self) -> usize {
        self.sums.len() / self.size
    }

    /// The byte after the last one covered.
    pub const fn end(&self) -> Logical {
        Logical(self.start.0 + self.sectors() as u64 * self.sectorsize)
    }

    /// The checksum of the sector that contains `at`.
    pub fn get(&self, at: Logical) -> Option<&'a [u8]> {
        let sector = at.0.checked_sub(self.start.0)? / self.sectorsize;
        let first = usize::try_from(sector).ok()?.checked_mul(self.size)?;
        self.sums.get(first..first.checked_add(self.size)?)
    }

    /// Each sector with its checksum.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Logical, &'a [u8])> + use<'a> {
        let (start, sectorsize) = (self.start.0, self.sectorsize);
        let sums = self.sums.chunks_exact(self.size).enumerate();
        sums.map(move |(sector, sum)| (Logical(start + sector as u64 * sectorsize), sum))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::counting;
    use super::*;
    use crate::ondisk::key::{item, objectid};

    fn key(offset: u64) -> Key {
        Key::new(objectid::EXTENT_CSUM, item::EXTENT_CSUM, offset)
    }

    #[test]
    fn each_sector_has_its_checksum() {
        let bytes = counting::<96>();
        for kind in ChecksumKind::ALL {
            let item = CsumItem::parse(key(0x10_0000), &bytes, kind, 4096).unwrap();
            assert_eq!(item.sectors(), 96 / kind.size());
            assert_eq!(item.start(), Logical(0x10_0000));
            assert_eq!(item.end(), Logical(0x10_0000 + 4096 * item.sectors() as u64));
            assert_eq!(item.iter().len(), item.sectors());
            for (index, (at, sum)) in item.iter().enumerate() {
                assert_eq!(at, Logical(0x10_0000 + 4096 * index as u64));
                assert_eq!(sum, &bytes[index * kind.size()..][..kind.size()]);
                assert_eq!(item.get(at), Some(sum));
                assert_eq!(item.get(Logical(at.0 + 4095)), Some(sum));
            }
            assert_eq!(item.get(Logical(0x10_0000 - 1)), None);
            assert_eq!(item.get(item.end()), None);
            assert_eq!(item.get(Logical(u64::MAX)), None);
        }
    }

    #[test]
    fn items_that_cannot_be_are_refused() {
        let parse = |start, bytes| CsumItem::parse(key(start), bytes, ChecksumKind::Crc32c, 4096);
        for (found, wanted) in [(0, 4), (1, 4), (3, 4), (5, 8), (7, 8)] {
            let size = ItemError::Size { item: "checksum item", found, wanted };
            assert_eq!(parse(0, &[0; 8][..found]), Err(size));
        }
        let start = |value| Err(ItemError::Field { item: "checksum item", field: "start", value });
        assert_eq!(parse(512, &[0; 4]), start(512));
        let last = u64::MAX - 4095;
        assert_eq!(parse(last, &[0; 4]), start(last));
        assert!(parse(last - 4096, &[0; 4]).is_ok());
    }
}
