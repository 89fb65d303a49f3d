//! The configuration of an Unraid array: a file, `config/super.dat` on the flash drive that the server boots from.
//!
//! The disks of such an array have no superblock. Each data disk is a partition with a file system of its own, and a parity disk a partition with
//! what looks like noise, so a disk alone does not say that it has been in one.
//!
//! Source: `md_unraid.h` of the driver, version 2.9.28 (4096 bytes, in the processor's byte order; versions 1 and 2).

use super::{Image, Signature, Usage};

/// The name of the signature.
pub const UNRAID: &str = "unraid";

/// The size of the file in bytes.
const SIZE: u64 = 4096;
/// `MD_SB_MAGIC`: one bit differs from md's.
const MAGIC: u32 = 0xb92b_4efc;

pub(super) fn detect(image: &Image, found: &mut Vec<Signature>) {
    let word = |at| Some(u32::from_le_bytes(*image.bytes(at, 4)?.first_chunk()?));
    if image.size() == SIZE && word(0) == Some(MAGIC) && matches!(word(4), Some(1 | 2)) {
        found.push(Signature { name: UNRAID, usage: Usage::Configuration, offset: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::super::detect;
    use super::*;

    #[test]
    fn a_configuration_is_one_by_its_size_its_magic_and_its_version() {
        let found = |size: usize, words: [u32; 2]| {
            let mut bytes = vec![0; size];
            bytes[..4].copy_from_slice(&words[0].to_le_bytes());
            bytes[4..8].copy_from_slice(&words[1].to_le_bytes());
            let mut image = Image::new(size as u64);
            image.add(0, bytes);
            detect(&image).iter().map(Signature::to_string).collect::<Vec<_>>()
        };
        for version in [1, 2] {
            assert_eq!(found(4096, [MAGIC, version]), ["unraid array configuration at 0x0"]);
        }
        assert_eq!(found(8192, [MAGIC, 2]), [""; 0]);
        assert_eq!(found(4096, [MAGIC, 3]), [""; 0]);
        assert_eq!(found(4096, [0xa92b_4efc, 2]), [""; 0]);
    }
}
