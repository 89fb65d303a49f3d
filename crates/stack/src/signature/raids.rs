//! Signatures at the end of a device, in its own sectors: members of firmware RAIDs, and DRBD's metadata.
//!
//! Sources: the SNIA Common RAID Disk Data Format 2.0 (DDF); mdadm's `super-intel.c` (IMSM); DRBD's `drbd_meta_data.h`; libblkid for
//! the others, and for the offsets it reports.

use super::{Image, Signature, Usage};

const SECTOR: u64 = 512;
/// Smaller devices have no such metadata, as for libblkid.
const LEAST: u64 = 64 << 10;

/// A constant so many sectors before the end.
struct Tail(&'static str, u64, &'static [u8]);

/// Of Intel's the second last sector, of 512 or of 4096 bytes.
const TAILS: &[Tail] = &[
    Tail("isw_raid_member", 2, b"Intel Raid ISM Cfg Sig. "),
    Tail("isw_raid_member", 16, b"Intel Raid ISM Cfg Sig. "),
    Tail("nvidia_raid_member", 2, b"NVIDIA"),
    Tail("lsi_mega_raid_member", 1, b"$XIDE$"),
    Tail("hpt45x_raid_member", 11, b"\xf3\x16\x78\x5a"),
    Tail("hpt45x_raid_member", 11, b"\xfd\x16\x78\x5a"),
];
/// Promise's metadata are so many sectors before the end. (Those at 3087 are outside of what is read.)
const PROMISE: [u64; 12] = [63, 255, 256, 16, 399, 591, 675, 735, 911, 974, 991, 951];

pub(super) fn detect(image: &Image, found: &mut Vec<Signature>) {
    if image.size() < LEAST {
        return;
    }
    let mut push = |name, offset| found.push(Signature { name, usage: Usage::Member, offset });
    for Tail(name, sectors, magic) in TAILS {
        if let Some(offset) = at(image, *sectors).filter(|offset| image.has(*offset, magic)) {
            push(name, offset);
        }
    }
    if let Some(offset) = ddf(image) {
        push("ddf_raid_member", offset);
    }
    let is_promise = |offset: &u64| image.has(*offset, b"Promise Technology, Inc.");
    if let Some(offset) = PROMISE.iter().filter_map(|n| at(image, *n)).find(is_promise) {
        push("promise_fasttrack_raid_member", offset);
    }
    if let Some(offset) = at(image, 1).filter(|offset| is_adaptec(image, *offset)) {
        push("adaptec_raid_member", offset);
    }
    if let Some(offset) = drbd(image) {
        push("drbd", offset);
    }
}

/// The offset of the sector so many sectors before the end.
fn at(image: &Image, sectors: u64) -> Option<u64> {
    Some((image.size() / SECTOR).checked_sub(sectors)? * SECTOR)
}

/// The anchor header in the last sector, or where some controllers have it, in either byte order. It names the sector of the primary
/// header, which is on the device.
fn ddf(image: &Image) -> Option<u64> {
    const PRIMARY: u64 = 96;
    let is_header = |offset: &u64| {
        let primary = || image.bytes(*offset + PRIMARY, 8)?.first_chunk();
        let primary = if image.has(*offset, b"\xde\x11\xde\x11") {
            primary().map(|bytes| u64::from_be_bytes(*bytes))
        } else if image.has(*offset, b"\x11\xde\x11\xde") {
            primary().map(|bytes| u64::from_le_bytes(*bytes))
        } else {
            None
        };
        primary.is_some_and(|sector| sector < image.size() / SECTOR)
    };
    [1, 257].into_iter().filter_map(|sectors| at(image, sectors)).find(is_header)
}

fn is_adaptec(image: &Image, offset: u64) -> bool {
    image.has(offset, b"\x37\xfc\x4d\x1e") && image.has(offset + 256, b"DPTM")
}

/// Internal metadata of DRBD 8 and 9, in the last 4 KiB: the magic number of a clean 8, an unclean 8.4, a 9.
fn drbd(image: &Image) -> Option<u64> {
    const BLOCK: u64 = 4096;
    const MAGIC: u64 = 60;
    let offset = (image.size() / BLOCK).checked_sub(1)? * BLOCK + MAGIC;
    let is_one =
        [0x6b, 0x6c, 0x6d].iter().any(|last| image.has(offset, &[0x83, 0x74, 0x02, *last]));
    is_one.then_some(offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 2 << 20;

    fn found(size: u64, parts: &[(u64, &[u8])]) -> Vec<(&'static str, u64)> {
        let mut bytes = vec![0; size as usize];
        for (offset, part) in parts {
            bytes[*offset as usize..][..part.len()].copy_from_slice(part);
        }
        let mut image = Image::new(size);
        image.add(0, bytes);
        let mut found = Vec::new();
        detect(&image, &mut found);
        found.iter().map(|signature| (signature.name, signature.offset)).collect()
    }

    #[test]
    fn every_tail_is_found_also_if_the_last_sector_is_not_whole() {
        for Tail(name, sectors, magic) in TAILS {
            let offset = SIZE - sectors * SECTOR;
            assert_eq!(found(SIZE, &[(offset, magic)]), [(*name, offset)]);
            assert_eq!(found(SIZE + 100, &[(offset, magic)]), [(*name, offset)]);
            assert!(!found(SIZE, &[(offset - SECTOR, magic)]).contains(&(*name, offset)));
        }
        for sectors in PROMISE {
            let offset = SIZE - sectors * SECTOR;
            let parts: [(u64, &[u8]); 1] = [(offset, b"Promise Technology, Inc.")];
            assert_eq!(found(SIZE, &parts), [("promise_fasttrack_raid_member", offset)]);
        }
        assert_eq!(found(LEAST - SECTOR, &[(LEAST - 3 * SECTOR, TAILS[0].2)]), []);
    }

    #[test]
    fn an_anchor_of_ddf_names_a_primary_header_on_the_device() {
        let (big, little) = ([0xde, 0x11, 0xde, 0x11], [0x11, 0xde, 0x11, 0xde]);
        let last = SIZE / SECTOR - 1;
        for offset in [SIZE - 512, SIZE - 257 * 512] {
            for sector in [0, last] {
                let sectors = [sector.to_be_bytes(), sector.to_le_bytes()];
                for (magic, sector) in [big, little].iter().zip(&sectors) {
                    let header: [(u64, &[u8]); 2] = [(offset, magic), (offset + 96, sector)];
                    assert_eq!(found(SIZE, &header), [("ddf_raid_member", offset)]);
                }
            }
            let beyond = (last + 1).to_be_bytes();
            assert_eq!(found(SIZE, &[(offset, &big), (offset + 96, &beyond)]), []);
        }
        assert_eq!(found(SIZE, &[(SIZE - 1024, &big)]), []);
    }

    #[test]
    fn the_metadata_of_drbd_are_in_the_last_whole_block() {
        for (last, is_known) in
            [(0x6a, false), (0x6b, true), (0x6c, true), (0x6d, true), (0x6e, false)]
        {
            for size in [SIZE, SIZE + 512, SIZE + 3584] {
                let offset = SIZE - 4096 + 60;
                let expected = if is_known { vec![("drbd", offset)] } else { Vec::new() };
                assert_eq!(found(size, &[(offset, &[0x83, 0x74, 0x02, last])]), expected);
            }
        }
    }

    #[test]
    fn adaptec_has_two_magic_numbers() {
        let parts: [(u64, &[u8]); 2] =
            [(SIZE - 512, &[0x37, 0xfc, 0x4d, 0x1e]), (SIZE - 256, b"DPTM")];
        assert_eq!(found(SIZE, &parts), [("adaptec_raid_member", SIZE - 512)]);
        assert_eq!(found(SIZE, &parts[..1]), []);
    }
}
