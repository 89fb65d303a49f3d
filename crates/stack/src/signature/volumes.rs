//! Signatures of volume managers and encryption: LVM2, LUKS, ZFS.

use ashlar_zfs::ondisk::layout::{
    CHECKSUM_BYTES, CHECKSUM_MAGIC, LABELS, PHYS_BYTES, PHYS_OFFSET, RING_BYTES, RING_OFFSET,
    label_offset,
};
use ashlar_zfs::ondisk::nvlist::NvList;
use ashlar_zfs::ondisk::uberblock::UBERBLOCK_MAGIC;

use super::{Image, Signature, Usage, ZFS_MEMBER};

pub(super) fn detect(image: &Image, found: &mut Vec<Signature>) {
    lvm(image, found);
    luks(image, found);
    zfs(image, found);
}

/// The label of an LVM2 physical volume: `LABELONE` at the start of one of the first four sectors
/// (LVM2 `lib/format_text/layout.h`), with the type 24 bytes after it.
fn lvm(image: &Image, found: &mut Vec<Signature>) {
    for sector in (0..4).map(|n| n * 512) {
        let offset = sector + 24;
        if image.has(sector, b"LABELONE") && image.has(offset, b"LVM2 001") {
            found.push(Signature { name: "LVM2_member", usage: Usage::Member, offset });
        }
    }
}

/// LUKS 1 and 2, and the second header of LUKS2, which survives the loss of the first (LUKS2
/// On-Disk Format Specification, 2.1: at one of nine offsets, the smallest by default).
fn luks(image: &Image, found: &mut Vec<Signature>) {
    let mut push = |offset| {
        found.push(Signature { name: "crypto_LUKS", usage: Usage::Encrypted, offset });
    };
    if image.has(0, b"LUKS\xba\xbe") {
        push(0);
    }
    for offset in (0..9).map(|n| 0x4000 << n) {
        if image.has(offset, b"SKUL\xba\xbe") {
            push(offset);
        }
    }
}

/// ZFS: an uberblock in one of the four labels, or a configuration without an uberblock (docs/formats/zfs.md).
fn zfs(image: &Image, found: &mut Vec<Signature>) {
    const SLOT: usize = 1 << 10;
    let has = |offset: &u64, magic: u64| {
        image.has(*offset, &magic.to_le_bytes()) || image.has(*offset, &magic.to_be_bytes())
    };
    for label in (0..LABELS).filter_map(|index| label_offset(image.size(), index)) {
        let ring = label + RING_OFFSET as u64;
        let mut slots = (ring..ring + RING_BYTES as u64).step_by(SLOT);
        let phys = label + PHYS_OFFSET as u64;
        let checksum = phys + (PHYS_BYTES - CHECKSUM_BYTES) as u64;
        let offset = slots.find(|slot| has(slot, UBERBLOCK_MAGIC));
        // Other data has such checksums too, so a version is also required.
        let is_config = || {
            let bytes = image.bytes(phys, PHYS_BYTES - CHECKSUM_BYTES)?;
            NvList::parse(bytes).ok()?.number("version")
        };
        let config = || (has(&checksum, CHECKSUM_MAGIC) && is_config().is_some()).then_some(phys);
        if let Some(offset) = offset.or_else(config) {
            found.push(Signature { name: ZFS_MEMBER, usage: Usage::Member, offset });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(parts: &[(usize, &[u8])]) -> Vec<(&'static str, u64)> {
        let size = (1 << 20) + 4096;
        let mut bytes = vec![0; size];
        for (offset, part) in parts {
            bytes[*offset..][..part.len()].copy_from_slice(part);
        }
        let mut image = Image::new(size as u64);
        image.add(0, bytes);
        let mut found = Vec::new();
        detect(&image, &mut found);
        found.iter().map(|signature| (signature.name, signature.offset)).collect()
    }

    #[test]
    fn an_lvm_label_may_be_in_any_of_four_sectors() {
        for sector in 0..5 {
            let hits = found(&[(sector * 512, b"LABELONE"), (sector * 512 + 24, b"LVM2 001")]);
            let expected = vec![("LVM2_member", sector as u64 * 512 + 24)];
            assert_eq!(hits, if sector < 4 { expected } else { vec![] });
        }
        assert_eq!(found(&[(536, b"LVM2 001")]), []);
    }

    #[test]
    fn the_second_luks_header_is_found_when_the_first_is_gone() {
        assert_eq!(found(&[(0, b"LUKS\xba\xbe")]), [("crypto_LUKS", 0)]);
        assert_eq!(found(&[(0x4000, b"SKUL\xba\xbe")]), [("crypto_LUKS", 0x4000)]);
        assert_eq!(found(&[(0x8_0000, b"SKUL\xba\xbe")]), [("crypto_LUKS", 0x8_0000)]);
    }

    #[test]
    fn each_zfs_label_is_found_in_either_byte_order() {
        let magic = 0x00ba_b10c_u64;
        for label in [0, 256 << 10, 512 << 10, 768 << 10] {
            let at = label + (128 << 10) + 7 * 1024;
            assert_eq!(found(&[(at, &magic.to_le_bytes())]), [("zfs_member", at as u64)]);
            assert_eq!(found(&[(at, &magic.to_be_bytes())]), [("zfs_member", at as u64)]);
        }
    }
    #[test]
    fn a_zfs_label_without_uberblocks_is_found_by_its_configuration() {
        let config = NvList::default().with("version", 5000).encode();
        let magic = (PHYS_OFFSET + PHYS_BYTES - CHECKSUM_BYTES, &CHECKSUM_MAGIC.to_le_bytes()[..]);
        assert_eq!(found(&[(PHYS_OFFSET, &config), magic]), [("zfs_member", PHYS_OFFSET as u64)]);
        assert_eq!(found(&[(PHYS_OFFSET, &config)]), []);
        assert_eq!(found(&[magic]), []);
    }
}
