//! Partition tables: GPT, its backup, its protective MBR, and the MBR.

use super::{Image, Signature, Usage, file_systems};

/// Logical block sizes tried for a GPT.
const BLOCKS: [u64; 4] = [512, 1024, 2048, 4096];

pub(super) fn detect(image: &Image, found: &mut Vec<Signature>) {
    let mut push = |name, offset| {
        found.push(Signature { name, usage: Usage::PartitionTable, offset });
    };
    for block in BLOCKS {
        // The header is block 1, the backup the last block (UEFI specification, 5.3).
        let backup = (image.size() / block).checked_sub(1).map(|last| last * block);
        for offset in [Some(block), backup].into_iter().flatten() {
            if image.has(offset, b"EFI PART") {
                push("gpt", offset);
            }
        }
    }
    if let Some(name) = mbr(image) {
        push(name, 0x1fe);
    }
}

/// `dos` or `PMBR`, if the first sector is a partition table and not a file system's boot sector,
/// which ends with the same two bytes.
fn mbr(image: &Image) -> Option<&'static str> {
    if !image.has(0x1fe, &[0x55, 0xaa]) {
        return None;
    }
    let file_system = file_systems::fat_magic(image).is_some()
        || image.has(3, b"NTFS    ")
        || image.has(3, b"EXFAT   ");
    let entries: Vec<&[u8]> = image.bytes(446, 64)?.chunks_exact(16).collect();
    let flags_are_flags = entries.iter().all(|entry| matches!(entry[0], 0 | 0x80));
    if file_system || !flags_are_flags {
        return None;
    }
    let protective = entries.iter().any(|entry| entry[4] == 0xee);
    Some(if protective { "PMBR" } else { "dos" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(parts: &[(usize, &[u8])]) -> Vec<(&'static str, u64)> {
        let mut bytes = vec![0; 1 << 20];
        for (offset, part) in parts {
            bytes[*offset..][..part.len()].copy_from_slice(part);
        }
        let mut image = Image::new(bytes.len() as u64);
        image.add(0, bytes);
        let mut found = Vec::new();
        detect(&image, &mut found);
        found.iter().map(|signature| (signature.name, signature.offset)).collect()
    }

    #[test]
    fn a_gpt_is_found_at_both_ends_for_each_block_size() {
        assert_eq!(
            names(&[(512, b"EFI PART"), ((1 << 20) - 512, b"EFI PART")]),
            [("gpt", 512), ("gpt", (1 << 20) - 512)]
        );
        assert_eq!(names(&[((1 << 20) - 4096, b"EFI PART")]), [("gpt", (1 << 20) - 4096)]);
    }

    #[test]
    fn an_mbr_is_told_from_a_boot_sector() {
        let end: (usize, &[u8]) = (510, &[0x55, 0xaa]);
        assert_eq!(names(&[end]), [("dos", 510)]);
        assert_eq!(names(&[end, (446, &[0x80]), (450, &[0x83])]), [("dos", 510)]);
        assert_eq!(names(&[end, (450, &[0xee])]), [("PMBR", 510)]);
        assert_eq!(names(&[end, (446, &[0x12])]), []);
        assert_eq!(names(&[end, (3, b"NTFS    ")]), []);
        assert_eq!(names(&[(510, &[0x55, 0xab])]), []);
    }
}
