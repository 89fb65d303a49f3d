//! Signatures of volume managers and encryption: LVM2, LUKS, ZFS.

use super::{Image, Signature, Usage};

pub(super) fn detect(image: &Image, found: &mut Vec<Signature>) {
    lvm(image, found);
    luks(image, found);
    zfs(image, found);
}

/// The label of an LVM2 physical volume: `LABELONE` at the start of one of the first four sectors
/// (LVM2 `lib/format_text/layout.h`), its type 24 bytes on.
fn lvm(image: &Image, found: &mut Vec<Signature>) {
    for sector in (0..4).map(|n| n * 512) {
        let offset = sector + 24;
        if image.has(sector, b"LABELONE") && image.has(offset, b"LVM2 001") {
            found.push(Signature { name: "LVM2_member", usage: Usage::Member, offset });
        }
    }
}

/// LUKS 1 and 2, and the second header of LUKS2, which survives the loss of the first (LUKS2
/// On-Disk Format Specification, 2.1: at one of nine places, the first of them by default).
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

/// ZFS: an uberblock in one of the four labels of 256 KiB, two at either end (ZFS On-Disk
/// Specification, 1.2).
fn zfs(image: &Image, found: &mut Vec<Signature>) {
    const LABEL: u64 = 256 << 10;
    const RING: u64 = 128 << 10;
    const UBERBLOCK: u64 = 1 << 10;
    const MAGIC: u64 = 0x00ba_b10c;

    let end = image.size() - image.size() % LABEL;
    let tail = [2, 1].map(|n| end.checked_sub(n * LABEL));
    let mut labels: Vec<u64> = [Some(0), Some(LABEL)].into_iter().chain(tail).flatten().collect();
    labels.sort_unstable();
    labels.dedup();
    for label in labels {
        let ring = label + RING..label + LABEL;
        let mut slots = ring.step_by(UBERBLOCK as usize);
        let used = |offset: &u64| {
            image.has(*offset, &MAGIC.to_le_bytes()) || image.has(*offset, &MAGIC.to_be_bytes())
        };
        if let Some(offset) = slots.find(used) {
            found.push(Signature { name: "zfs_member", usage: Usage::Member, offset });
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
}
