//! How much of its device a file system needs, as its superblock says: a smaller device would cut it off.

use super::Image;

/// The type of the file system on a device, and its size in bytes; `None` if there is no file system whose size is known.
pub fn file_system_bytes(image: &Image) -> Option<(&'static str, u64)> {
    let ext = || Some(("ext2/3/4", ext(image)?));
    let xfs = || Some(("xfs", xfs(image)?));
    let btrfs = || Some(("btrfs", btrfs(image)?));
    ext().or_else(xfs).or_else(btrfs)
}

/// Kernel documentation, `filesystems/ext4/super.rst`.
fn ext(image: &Image) -> Option<u64> {
    const SUPERBLOCK: u64 = 1024;
    const INCOMPAT_64BIT: u32 = 0x80;
    if !image.has(SUPERBLOCK + 0x38, &[0x53, 0xef]) {
        return None;
    }
    let low = u64::from(image.le_u32(SUPERBLOCK + 0x4)?);
    let wide = image.le_u32(SUPERBLOCK + 0x60)? & INCOMPAT_64BIT != 0;
    let high = if wide { u64::from(image.le_u32(SUPERBLOCK + 0x150)?) } else { 0 };
    let shift = image.le_u32(SUPERBLOCK + 0x18)?.checked_add(10)?;
    (high << 32 | low).checked_mul(1_u64.checked_shl(shift)?)
}

/// XFS Algorithms and Data Structures, "Superblocks": `sb_blocksize`, `sb_dblocks`.
fn xfs(image: &Image) -> Option<u64> {
    if !image.has(0, b"XFSB") {
        return None;
    }
    let block = u32::from_be_bytes(*image.bytes(4, 4)?.first_chunk()?);
    let blocks = u64::from_be_bytes(*image.bytes(8, 8)?.first_chunk()?);
    blocks.checked_mul(u64::from(block))
}

/// btrfs on-disk format, "Superblock": `dev_item.total_bytes`.
fn btrfs(image: &Image) -> Option<u64> {
    const SUPERBLOCK: u64 = 0x1_0000;
    if !image.has(SUPERBLOCK + 0x40, b"_BHRfS_M") {
        return None;
    }
    Some(u64::from_le_bytes(*image.bytes(SUPERBLOCK + 0xd1, 8)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(fields: &[(usize, &[u8])]) -> Image {
        let mut bytes = vec![0; 0x2_0000];
        for (at, field) in fields {
            bytes[*at..][..field.len()].copy_from_slice(field);
        }
        let mut image = Image::new(1 << 30);
        image.add(0, bytes);
        image
    }

    #[test]
    fn sizes_are_those_of_the_superblocks() {
        let blocks = 25600_u32.to_le_bytes();
        let ext: &[(usize, &[u8])] = &[
            (1024 + 0x38, &[0x53, 0xef]),
            (1024 + 4, &blocks),
            (1024 + 0x18, &[2]),
            (1024 + 0x150, &[1]),
        ];
        assert_eq!(file_system_bytes(&image(ext)), Some(("ext2/3/4", 100 << 20)));
        let wide = [ext, &[(1024 + 0x60, &[0x80])]].concat();
        assert_eq!(
            file_system_bytes(&image(&wide)),
            Some(("ext2/3/4", (100 << 20) + (4096 << 32)))
        );
        let absurd = [ext, &[(1024 + 0x18, &[0xff, 0xff, 0xff, 0xff])]].concat();
        assert_eq!(file_system_bytes(&image(&absurd)), None);
        let xfs: &[(usize, &[u8])] =
            &[(0, b"XFSB"), (4, &4096_u32.to_be_bytes()), (8, &77_u64.to_be_bytes())];
        assert_eq!(file_system_bytes(&image(xfs)), Some(("xfs", 77 * 4096)));
        let btrfs: &[(usize, &[u8])] =
            &[(0x1_0040, b"_BHRfS_M"), (0x1_00d1, &(5_u64 << 20).to_le_bytes())];
        assert_eq!(file_system_bytes(&image(btrfs)), Some(("btrfs", 5 << 20)));
        assert_eq!(file_system_bytes(&image(&[])), None);
        assert_eq!(file_system_bytes(&Image::new(0)), None);
    }
}
