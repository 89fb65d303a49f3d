//! Signatures of file systems and swap that need several checks: ext2/3/4, FAT, swap.

use super::{Image, Signature, Usage};

pub(super) fn detect(image: &Image, found: &mut Vec<Signature>) {
    found.extend(ext(image));
    found.extend(fat(image));
    found.extend(swap(image));
}

/// ext2, ext3, ext4 or an external journal, distinguished by the features in the superblock at 1024
/// (kernel documentation, `filesystems/ext4/super.rst`).
fn ext(image: &Image) -> Option<Signature> {
    const SUPERBLOCK: u64 = 1024;
    const HAS_JOURNAL: u32 = 0x4;
    const JOURNAL_DEVICE: u32 = 0x8;
    // The features allowed without extents: sparse_super, large_file, btree_dir.
    const OLD_RO_COMPAT: u32 = 0x1 | 0x2 | 0x4;
    // filetype, meta_bg; and with a journal, needs_recovery.
    const OLD_INCOMPAT: u32 = 0x2 | 0x10;
    const NEEDS_RECOVERY: u32 = 0x4;

    let offset = SUPERBLOCK + 0x38;
    if !image.has(offset, &[0x53, 0xef]) {
        return None;
    }
    let compat = image.le_u32(SUPERBLOCK + 0x5c)?;
    let incompat = image.le_u32(SUPERBLOCK + 0x60)?;
    let ro_compat = image.le_u32(SUPERBLOCK + 0x64)?;
    let old = ro_compat & !OLD_RO_COMPAT == 0 && incompat & !(OLD_INCOMPAT | NEEDS_RECOVERY) == 0;
    let name = if incompat & JOURNAL_DEVICE != 0 {
        "jbd"
    } else if !old {
        "ext4"
    } else if compat & HAS_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    };
    Some(Signature { name, usage: Usage::FileSystem, offset })
}

/// FAT12, FAT16 or FAT32: a plausible BIOS parameter block, and the name or a boot sector's jump and end.
fn fat(image: &Image) -> Option<Signature> {
    let offset = fat_magic(image)?;
    Some(Signature { name: "vfat", usage: Usage::FileSystem, offset })
}

/// The offset of the FAT magic in the first sector.
pub(super) fn fat_magic(image: &Image) -> Option<u64> {
    let sector_bytes = image.le_u16(11)?;
    let cluster_sectors = image.byte(13)?;
    let media = image.byte(21)?;
    let sane = (512..=4096).contains(&sector_bytes)
        && sector_bytes.is_power_of_two()
        && cluster_sectors.is_power_of_two()
        && image.le_u16(14)? != 0
        && (1..=2).contains(&image.byte(16)?)
        && (media == 0xf0 || media >= 0xf8);
    if !sane {
        return None;
    }
    const NAMES: [(u64, &[u8]); 6] = [
        (0x52, b"FAT32   "),
        (0x52, b"MSWIN"),
        (0x36, b"FAT16   "),
        (0x36, b"FAT12   "),
        (0x36, b"FAT     "),
        (0x36, b"MSDOS"),
    ];
    let named = NAMES.iter().find(|(offset, name)| image.has(*offset, name));
    // Without a name (old DOS): the jump of a boot sector and its end.
    let bootable = || {
        let jumps = image.byte(0) == Some(0xe9)
            || (image.byte(0) == Some(0xeb) && image.byte(2) == Some(0x90));
        (jumps && image.has(510, &[0x55, 0xaa])).then_some(510)
    };
    named.map(|(offset, _)| *offset).or_else(bootable)
}

/// Swap space, or a hibernated system in it: the magic is in the last ten bytes of the first page,
/// of 4 to 64 KiB (`mkswap(8)`).
fn swap(image: &Image) -> Option<Signature> {
    const MAGICS: [(&str, &[u8]); 6] = [
        ("swap", b"SWAPSPACE2"),
        ("swap", b"SWAP-SPACE"),
        ("swsuspend", b"S1SUSPEND"),
        ("swsuspend", b"S2SUSPEND"),
        ("swsuspend", b"ULSUSPEND"),
        ("swsuspend", b"LINHIB0001"),
    ];
    let pages = [4, 8, 16, 32, 64].map(|kib: u64| (kib << 10) - 10);
    let all =
        pages.into_iter().flat_map(|offset| MAGICS.map(|(name, magic)| (offset, name, magic)));
    let mut hits = all.filter(|(offset, _, magic)| image.has(*offset, magic));
    hits.next().map(|(offset, name, _)| Signature { name, usage: Usage::Swap, offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(parts: &[(usize, &[u8])]) -> Image {
        let mut bytes = vec![0; 256 << 10];
        for (offset, part) in parts {
            bytes[*offset..][..part.len()].copy_from_slice(part);
        }
        let mut image = Image::new(bytes.len() as u64);
        image.add(0, bytes);
        image
    }

    #[test]
    fn ext_features_tell_the_generations_apart() {
        let name = |compat: u32, incompat: u32, ro_compat: u32| {
            let image = image(&[
                (0x438, &[0x53, 0xef]),
                (0x45c, &compat.to_le_bytes()),
                (0x460, &incompat.to_le_bytes()),
                (0x464, &ro_compat.to_le_bytes()),
            ]);
            ext(&image).map(|found| found.name)
        };
        assert_eq!(name(0, 2, 1), Some("ext2"));
        assert_eq!(name(4, 2, 1), Some("ext3"));
        assert_eq!(name(4, 0x42, 1), Some("ext4"));
        assert_eq!(name(0, 0x42, 1), Some("ext4"));
        assert_eq!(name(4, 2, 0x400), Some("ext4"));
        assert_eq!(name(0, 8, 0), Some("jbd"));
    }

    #[test]
    fn fat_needs_a_sane_parameter_block() {
        let block = [0, 2, 4, 1, 0, 2, 0, 2, 0, 0, 0xf8];
        let found = |parts: &[(usize, &[u8])]| fat(&image(parts)).map(|found| found.offset);
        assert_eq!(found(&[(11, &block), (0x36, b"FAT16   ")]), Some(0x36));
        assert_eq!(found(&[(11, &block), (0x52, b"FAT32   ")]), Some(0x52));
        assert_eq!(
            found(&[(0, &[0xeb, 0x3c, 0x90]), (11, &block), (510, &[0x55, 0xaa])]),
            Some(510)
        );
        assert_eq!(found(&[(11, &block)]), None);
        assert_eq!(found(&[(0x36, b"FAT16   ")]), None);
    }

    #[test]
    fn swap_is_found_for_every_page_size() {
        for kib in [4, 8, 16, 32, 64_usize] {
            let found = swap(&image(&[((kib << 10) - 10, b"SWAPSPACE2")])).unwrap();
            assert_eq!((found.name, found.offset), ("swap", (kib as u64) * 1024 - 10));
        }
        assert_eq!(swap(&image(&[(4086, b"S1SUSPEND\0")])).unwrap().name, "swsuspend");
    }
}
