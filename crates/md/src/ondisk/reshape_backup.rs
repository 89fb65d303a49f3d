//! mdadm's backup of what a reshape moves in place: a file of the user (`--backup-file`), or an area at the end of a new member.
//!
//! A reshape that writes rows where rows lie that it has not yet read cannot be continued after a crash from the members alone. mdadm therefore
//! copies that part of the array first. A header says which part it is; it lies in front of the data, and its copy 4 KiB before the data's
//! start, or behind the data. The sections hold the array's data in their order.
//!
//! The checksum adds the first byte again and again, so it protects nothing; header and copy are compared instead.
//!
//! Seen with mdadm 4.2 and Linux 6.1 (docs/upstream.md, B0): mdadm saves two sections, but lets the kernel run at once and without a limit, so
//! that they may have what was already moved.
//!
//! Facts of the format: `Grow.c` of mdadm (`mdp_backup_super`, `grow_backup`, `Grow_restart`).

use std::ops::Range;

use ashlar_block::ondisk_layout;
use ashlar_block::units::{Sector, Sectors};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Version;

/// Length of a header.
pub const HEADER: Sectors = Sectors(1);
/// From the copy of the header in front of the data to the data.
pub const COPY: Sectors = Sectors(8);
/// From the header on a new member to the end of the part of it that the array uses.
pub const BEFORE_END: Sectors = Sectors(8);
/// The longest section that is believed: mdadm backs up a few rows at a time.
pub const MAX_SECTION: Sectors = Sectors(1 << 19);

const MAGIC: &[u8; 15] = b"md_backup_data-";

/// A header as it is on disk.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBackup {
    magic: [u8; 15],
    version: u8,
    set_uuid: [u8; 16],
    mtime: U64,
    devstart: U64,
    arraystart: U64,
    length: U64,
    sb_csum: U32,
    pad1: U32,
    devstart2: U64,
    arraystart2: U64,
    length2: U64,
    sb_csum2: U32,
    pad: [u8; 412],
}

ondisk_layout!(RawBackup, 512, {
    magic: 0, version: 15, set_uuid: 16, mtime: 32, devstart: 40, arraystart: 48, length: 56, sb_csum: 64,
    pad1: 68, devstart2: 72, arraystart2: 80, length2: 88, sb_csum2: 96, pad: 100,
});

/// Part of the array in a backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Section {
    /// The part of the array.
    pub range: Range<Sector>,
    /// Where its data begins in the file or on the member.
    pub at: Sector,
}

/// What a header says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReshapeBackup {
    /// The array: see [`Self::is_of`].
    pub set_uuid: Uuid,
    /// When the sections were saved, seconds since 1970.
    pub mtime: u64,
    /// Where the data begins in the file or on the member.
    pub data: Sector,
    /// The parts of the array that are saved, at most two.
    pub sections: Vec<Section>,
}

impl ReshapeBackup {
    /// Reads the header at the start of `bytes`; `None` if there is no header, or it is impossible.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (raw, _) = RawBackup::ref_from_prefix(bytes).ok()?;
        let has_second = match raw.version {
            _ if raw.magic != *MAGIC => return None,
            b'1' => false,
            b'2' => true,
            _ => return None,
        };
        let data = raw.devstart.get();
        let first = (raw.arraystart.get(), raw.length.get(), Some(data));
        let second = data.checked_add(raw.devstart2.get());
        let second = (raw.arraystart2.get(), raw.length2.get(), second);
        let mut sections = Vec::new();
        for (start, len, at) in [first, second].into_iter().take(1 + usize::from(has_second)) {
            if len == 0 {
                continue;
            }
            let (at, end) = (at?, start.checked_add(len)?);
            at.checked_add(len).filter(|_| len <= MAX_SECTION.0)?;
            sections.push(Section { range: Sector(start)..Sector(end), at: Sector(at) });
        }
        let set_uuid = Uuid::from_bytes(raw.set_uuid);
        Some(Self { set_uuid, mtime: raw.mtime.get(), data: Sector(data), sections })
    }

    /// Whether it is of the array whose superblocks have this version and identity. mdadm copies the identity as the superblock has it; the
    /// words of a 0.90 superblock are in the machine's byte order.
    pub fn is_of(&self, version: Version, set_uuid: Uuid) -> bool {
        let mut bytes = set_uuid.into_bytes();
        if version == Version::V0_90 {
            bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse());
        }
        *self.set_uuid.as_bytes() == bytes
    }

    /// Where the copy of the header is that is compared with it.
    pub fn copy(&self) -> Option<Sector> {
        self.data.0.checked_sub(COPY.0).map(Sector)
    }

    /// Whether two headers say the same.
    pub fn is_copy(bytes: &[u8], copy: &[u8]) -> bool {
        let (Ok((one, _)), Ok((other, _))) =
            (RawBackup::ref_from_prefix(bytes), RawBackup::ref_from_prefix(copy))
        else {
            return false;
        };
        // What mdadm compares: without the second section its fields mean nothing.
        let used = if one.version == b'1' { 68 } else { 100 };
        one.as_bytes()[..used] == other.as_bytes()[..used]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u8) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        bytes[..15].copy_from_slice(MAGIC);
        bytes[15] = version;
        bytes[16..32].fill(7);
        for (at, value) in
            [(32, 1_700_000_000), (40, 8), (48, 1024), (56, 256), (72, 256), (80, 4096), (88, 128)]
        {
            bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        bytes
    }

    fn section(start: u64, len: u64, at: u64) -> Section {
        Section { range: Sector(start)..Sector(start + len), at: Sector(at) }
    }

    #[test]
    fn a_header_with_one_section_and_one_with_two() {
        let one = ReshapeBackup::parse(&header(b'1')).unwrap();
        assert_eq!(one.sections, [section(1024, 256, 8)]);
        assert_eq!((one.mtime, one.copy()), (1_700_000_000, Some(Sector::ZERO)));
        let two = ReshapeBackup::parse(&header(b'2')).unwrap();
        assert_eq!(two.sections, [section(1024, 256, 8), section(4096, 128, 264)]);
    }

    #[test]
    fn it_is_of_the_array_whose_identity_it_has() {
        let backup = ReshapeBackup {
            set_uuid: Uuid::from_u128(0x0403_0201_0807_0605_0c0b_0a09_100f_0e0d),
            ..ReshapeBackup::parse(&header(b'1')).unwrap()
        };
        let printed = Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
        assert!(backup.is_of(Version::V0_90, printed) && !backup.is_of(Version::V1_2, printed));
        assert!(backup.is_of(Version::V1_2, backup.set_uuid));
    }

    #[test]
    fn a_section_of_length_zero_is_none() {
        let mut bytes = header(b'2');
        bytes[56..64].fill(0);
        assert_eq!(ReshapeBackup::parse(&bytes).unwrap().sections, [section(4096, 128, 264)]);
    }

    #[test]
    fn impossible_headers_are_refused() {
        assert_eq!(ReshapeBackup::parse(&header(b'3')), None);
        assert_eq!(ReshapeBackup::parse(&header(b'1')[..511]), None);
        assert_eq!(ReshapeBackup::parse(&[0; 512]), None);
        for (at, what) in [(40, "its place"), (48, "its range"), (56, "its length")] {
            let mut bytes = header(b'1');
            bytes[at..at + 8].fill(0xff);
            assert_eq!(ReshapeBackup::parse(&bytes), None, "{what} overflows");
        }
    }

    #[test]
    fn a_copy_is_the_same_in_all_fields_that_count() {
        let (one, mut other) = (header(b'1'), header(b'1'));
        other[88] ^= 1;
        assert!(ReshapeBackup::is_copy(&one, &other), "the second section does not count");
        other[56] ^= 1;
        assert!(!ReshapeBackup::is_copy(&one, &other));
        let (two, mut other) = (header(b'2'), header(b'2'));
        assert!(ReshapeBackup::is_copy(&two, &other));
        other[88] ^= 1;
        assert!(!ReshapeBackup::is_copy(&two, &other));
    }
}
