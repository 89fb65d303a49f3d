//! Uberblocks: one per transaction group, in a ring, each the root of the pool at that time.

use zerocopy::FromBytes;
use zerocopy::byteorder::{BigEndian, ByteOrder, LittleEndian};

use super::layout::{CHECKSUM_BYTES, ChecksumError, Endian, RING_BYTES, RawUberblock, verify};

/// "oo-ba-bloc"
pub const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;
/// "all-see-all": the fields of `multihost` are present.
pub const MMP_MAGIC: u64 = 0xa11c_ea11;
/// Slot sizes are powers of two: at least 2^10 bytes (`UBERBLOCK_SHIFT`), at most 2^13 (`MAX_UBERBLOCK_SHIFT`).
const SLOT_SHIFTS: std::ops::RangeInclusive<u32> = 10..=13;
/// Bit of `mmp_config`: bits 32 to 47 contain a sequence number.
const MMP_HAS_SEQUENCE: u64 = 2;

/// The contents of an uberblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uberblock {
    /// Its slot in the ring.
    pub slot: usize,
    /// Byte order of the machine that wrote it.
    pub endian: Endian,
    /// Version of the pool.
    pub version: u64,
    /// The transaction group that it completes.
    pub txg: u64,
    /// Time of the write, seconds since 1970.
    pub timestamp: u64,
    /// The `multihost` state (interval, sequence number and fail intervals), if the software was new enough to write it.
    pub multihost: Option<u64>,
}

/// The contents of a ring of uberblocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ring {
    /// The newest uberblock.
    pub best: Option<Uberblock>,
    /// Number of valid uberblocks.
    pub good: usize,
    /// Number of uberblocks with the magic number, but a wrong checksum.
    pub damaged: usize,
}

impl Uberblock {
    /// The sort key for age, newer is greater: transaction group, then time, then the sequence
    /// number of `multihost`.
    pub fn age(&self) -> (u64, u64, u16) {
        let sequence = self.multihost.filter(|config| config & MMP_HAS_SEQUENCE != 0);
        let sequence = sequence.map_or(0, |config| (config >> 32) as u16);
        (self.txg, self.timestamp, sequence)
    }

    /// The uberblock in `bytes`, a whole slot at `offset` on its device; `None` if the slot contains no uberblock.
    ///
    /// # Errors
    /// Its checksum is wrong.
    pub fn parse(bytes: &[u8], offset: u64, slot: usize) -> Result<Option<Self>, ChecksumError> {
        let (endian, mut parsed) = match (raw::<LittleEndian>(bytes), raw::<BigEndian>(bytes)) {
            (Some(raw), _) => (Endian::Little, Self::from_raw(&raw, Endian::Little)),
            (None, Some(raw)) => (Endian::Big, Self::from_raw(&raw, Endian::Big)),
            (None, None) => return Ok(None),
        };
        // A new label has a template in its first slot, with a checksum over the whole ring.
        if parsed.txg == 0 {
            return Ok(None);
        }
        parsed.slot = slot;
        if verify(bytes, offset)? == endian { Ok(Some(parsed)) } else { Err(ChecksumError::Wrong) }
    }

    fn from_raw<O: ByteOrder>(raw: &RawUberblock<O>, endian: Endian) -> Self {
        let multihost = (raw.mmp_magic == MMP_MAGIC).then(|| raw.mmp_config.get());
        Self {
            slot: 0,
            endian,
            version: raw.version.get(),
            txg: raw.txg.get(),
            timestamp: raw.timestamp.get(),
            multihost,
        }
    }
}

impl Ring {
    /// The uberblocks in `ring`, which begins at `offset` on its device. Without the vdev's
    /// `ashift`, all slot sizes are tried: the one with the newest uberblock is right.
    pub fn parse(ring: &[u8; RING_BYTES], offset: u64, ashift: Option<u64>) -> Self {
        match ashift {
            Some(ashift) => Self::of_slots(ring, offset, slot_shift(ashift)),
            None => SLOT_SHIFTS
                .map(|shift| Self::of_slots(ring, offset, shift))
                .max_by_key(|ring| ring.best.as_ref().map(Uberblock::age))
                .unwrap_or_default(),
        }
    }

    fn of_slots(ring: &[u8; RING_BYTES], offset: u64, shift: u32) -> Self {
        let mut found = Self::default();
        for (slot, bytes) in ring.chunks_exact(1 << shift).enumerate() {
            match Uberblock::parse(bytes, offset + ((slot as u64) << shift), slot) {
                Ok(Some(uberblock)) => {
                    found.good += 1;
                    if found.best.as_ref().is_none_or(|best| best.age() < uberblock.age()) {
                        found.best = Some(uberblock);
                    }
                }
                Ok(None) => {}
                Err(ChecksumError::Absent | ChecksumError::Wrong) => found.damaged += 1,
            }
        }
        found
    }
}

/// The slot size is the vdev's sector size, within bounds.
fn slot_shift(ashift: u64) -> u32 {
    let (least, most) = (*SLOT_SHIFTS.start(), *SLOT_SHIFTS.end());
    u32::try_from(ashift).unwrap_or(most).clamp(least, most)
}

fn raw<O: ByteOrder>(bytes: &[u8]) -> Option<RawUberblock<O>> {
    const { assert!(size_of::<RawUberblock<LittleEndian>>() + CHECKSUM_BYTES <= 1 << 10) };
    let (raw, _) = RawUberblock::<O>::read_from_prefix(bytes).ok()?;
    (raw.magic == UBERBLOCK_MAGIC).then_some(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::layout::{seal, seal_big};

    /// A slot with a different value in each field.
    fn slot(bytes: usize, txg: u64, timestamp: u64) -> Vec<u8> {
        let mut slot = vec![0; bytes];
        let fields = [
            (0, UBERBLOCK_MAGIC),
            (8, 5000),
            (16, txg),
            (24, 3),
            (32, timestamp),
            (168, 5001),
            (176, MMP_MAGIC),
            (184, 7),
            (192, MMP_HAS_SEQUENCE | 9 << 32),
            (200, 11),
            (208, 13),
        ];
        for (at, value) in fields {
            slot[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        slot
    }

    fn ring_of(shift: u32, slots: &[(usize, u64, u64)]) -> Box<[u8; RING_BYTES]> {
        let mut ring = Box::new([0; RING_BYTES]);
        for (n, txg, timestamp) in slots {
            let at = n << shift;
            let mut bytes = slot(1 << shift, *txg, *timestamp);
            seal(&mut bytes, 4096 + at as u64);
            ring[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        ring
    }

    #[test]
    fn every_field_is_where_it_belongs() {
        let mut bytes = slot(1024, 17, 19);
        seal(&mut bytes, 0);
        let expected = Uberblock {
            slot: 5,
            endian: Endian::Little,
            version: 5000,
            txg: 17,
            timestamp: 19,
            multihost: Some(MMP_HAS_SEQUENCE | 9 << 32),
        };
        assert_eq!(expected.age(), (17, 19, 9));
        assert_eq!(Uberblock::parse(&bytes, 0, 5), Ok(Some(expected)));
    }

    #[test]
    fn the_newest_counts_by_transaction_group_and_then_by_time() {
        let ring = ring_of(12, &[(0, 40, 9), (1, 41, 7), (2, 41, 8), (31, 12, 99)]);
        let found = Ring::parse(&ring, 4096, Some(12));
        assert_eq!((found.good, found.damaged), (4, 0));
        assert_eq!(found.best.map(|best| (best.slot, best.txg, best.timestamp)), Some((2, 41, 8)));
    }

    #[test]
    fn a_slot_is_as_large_as_a_sector_within_bounds() {
        for (ashift, shift) in
            [(0, 10), (9, 10), (10, 10), (12, 12), (13, 13), (16, 13), (u64::MAX, 13)]
        {
            let ring = ring_of(shift, &[(3, 8, 1)]);
            for ashift in [Some(ashift), None] {
                let best = Ring::parse(&ring, 4096, ashift).best.expect("an uberblock");
                assert_eq!((best.slot, best.txg), (3, 8), "{ashift:?}");
            }
        }
    }

    #[test]
    fn damaged_ones_are_counted_and_do_not_count() {
        let mut ring = ring_of(10, &[(0, 40, 9), (1, 41, 7)]);
        ring[1024 + 20] ^= 1;
        let found = Ring::parse(&ring, 4096, Some(9));
        assert_eq!((found.good, found.damaged), (1, 1));
        assert_eq!(found.best.map(|best| best.txg), Some(40));
        // At another offset, the same bytes are invalid.
        assert_eq!(Ring::parse(&ring, 0, Some(9)).good, 0);
    }

    #[test]
    fn an_uberblock_of_the_other_byte_order_says_the_same() {
        let little = slot(1024, 17, 19);
        let mut big = little.clone();
        for word in big[..216].chunks_exact_mut(8) {
            word.reverse();
        }
        seal_big(&mut big, 4096);
        let mut little = little;
        seal(&mut little, 4096);
        let parsed =
            |bytes: &[u8]| Uberblock::parse(bytes, 4096, 3).expect("sound").expect("there");
        assert_eq!(parsed(&big), Uberblock { endian: Endian::Big, ..parsed(&little) });
        assert_eq!(Uberblock::parse(&big, 0, 3), Err(ChecksumError::Wrong));
        // A checksum in the other byte order is invalid.
        seal(&mut big, 4096);
        assert_eq!(Uberblock::parse(&big, 4096, 3), Err(ChecksumError::Wrong));
    }
}
