//! The bytes to zero so that no tool finds a former owner on a device: those that `wipefs --all`
//! erases, and the copies that it leaves.
//!
//! `mdadm --zero-superblock` erases fewer: the superblocks of md, and no other owner's signature.
//!
//! This module only finds the ranges. A command that creates something on the device zeroes them
//! durably once it cannot be refused any more, and before it writes anything else: a crash leaves
//! the old owner's signatures (those not yet zeroed), or none, or the new owner's; never both,
//! because then the old one might be assembled over the new one.

use std::ops::Range;

use ashlar_block::{Buffer, ByteVolume, Gateway, Sectors, Status};
use ashlar_btrfs::ondisk::superblock::{
    MAGIC as BTRFS_MAGIC, OFFSETS as BTRFS_OFFSETS, SUPERBLOCK_SIZE as BTRFS_BYTES,
};
use ashlar_md::ondisk::{MAGIC as MD_MAGIC, Version, superblock_1};
use ashlar_zfs::ondisk::label::DeviceLabels;
use ashlar_zfs::ondisk::layout::{LABEL_BYTES, LABELS, PHYS_OFFSET, label_offset};

use crate::probe::read_image;
use crate::signature::{Image, Signature, ZFS_MEMBER, detect};

/// Bytes around a magic number that are zeroed with it: related magic may be slightly before or after it.
const AROUND: u64 = 4096;
/// Maximum of detection rounds: one signature may hide another.
const MOST_LAYERS: usize = 16;
/// Offset of the magic number in a btrfs superblock.
const BTRFS_MAGIC_OFFSET: u64 = 0x40;

/// The byte ranges with signatures of any kind, ascending. Reads only.
///
/// # Errors
/// The device cannot be read.
pub async fn ranges(gateway: &Gateway) -> Result<Vec<Range<u64>>, Status> {
    let mut image = read_image(gateway).await?;
    let volume = ByteVolume::new(gateway.clone());
    for offset in btrfs_superblocks(image.size()) {
        let mut buffer = Buffer::zeroed(BTRFS_BYTES);
        let whole = buffer.whole();
        volume.read(offset, [whole]).await?;
        image.add(offset, buffer.as_slice().to_vec());
    }
    Ok(in_image(image))
}

/// The byte ranges with the magic number of an md superblock where one can be, ascending. Reads only.
///
/// # Errors
/// The device cannot be read.
pub async fn md_ranges(gateway: &Gateway) -> Result<Vec<Range<u64>>, Status> {
    Ok(merged(md(&read_image(gateway).await?)))
}

/// The offsets of btrfs superblocks on a device of `size` bytes.
fn btrfs_superblocks(size: u64) -> impl Iterator<Item = u64> {
    let fits = move |at: &u64| at.checked_add(BTRFS_BYTES as u64).is_some_and(|end| end <= size);
    BTRFS_OFFSETS.into_iter().map(|at| at.0).filter(fits)
}

/// The same, for the loaded parts of a device.
fn in_image(mut image: Image) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for _ in 0..MOST_LAYERS {
        let mut layer = Vec::new();
        layer.extend(detect(&image).iter().map(|found| around(found, image.size())));
        layer.extend(md(&image));
        layer.extend(btrfs(&image));
        layer.extend(zfs(&image));
        if layer.is_empty() {
            break;
        }
        layer.iter().for_each(|range| image.zero(range));
        all.extend(layer);
    }
    merged(all)
}

fn around(found: &Signature, size: u64) -> Range<u64> {
    let start = found.offset / AROUND * AROUND;
    start..(start + AROUND).min(size)
}

/// The md superblocks at all offsets of all versions, in both byte orders.
fn md(image: &Image) -> Vec<Range<u64>> {
    let places = Version::ALL.iter().filter_map(|version| md_range(*version, image.size()));
    let has_magic = |range: &Range<u64>| {
        let at = range.start;
        image.has(at, &MD_MAGIC.to_le_bytes()) || image.has(at, &MD_MAGIC.to_be_bytes())
    };
    places.filter(has_magic).collect()
}

/// Where a superblock of `version` is on a device of `size` bytes, if there is room for it.
pub fn md_range(version: Version, size: u64) -> Option<Range<u64>> {
    let at = version.super_offset(Sectors::from_bytes_floor(size))?.bytes();
    Some(at..(at + superblock_1::BLOCK_SIZE as u64).min(size))
}

/// The copies of btrfs's superblock: repair tools use them.
fn btrfs(image: &Image) -> Vec<Range<u64>> {
    let has_magic = |at: &u64| image.has(at + BTRFS_MAGIC_OFFSET, &BTRFS_MAGIC);
    let found = btrfs_superblocks(image.size()).filter(has_magic);
    found.map(|at| at..at + BTRFS_BYTES as u64).collect()
}

/// All ZFS labels if there is a trace of one: each label is complete, with its configuration and uberblocks.
fn zfs(image: &Image) -> Vec<Range<u64>> {
    let labels =
        DeviceLabels::parse(image.size(), |at| image.bytes(at, LABEL_BYTES)?.first_chunk());
    if !labels.is_any() && !detect(image).iter().any(|found| found.name == ZFS_MEMBER) {
        return Vec::new();
    }
    let starts = (0..LABELS).filter_map(|index| label_offset(image.size(), index));
    starts.map(|at| at + PHYS_OFFSET as u64..at + LABEL_BYTES as u64).collect()
}

/// Ascending, without overlaps.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what is compared")]
mod tests {
    use super::*;

    /// 1.25 MiB: ZFS labels fit, and the whole device is loaded as one part.
    const SIZE: u64 = 1280 << 10;

    fn found(parts: &[(u64, &[u8])]) -> Vec<Range<u64>> {
        let mut bytes = vec![0; SIZE as usize];
        for (offset, part) in parts {
            bytes[*offset as usize..][..part.len()].copy_from_slice(part);
        }
        let mut image = Image::new(SIZE);
        image.add(0, bytes);
        in_image(image)
    }

    #[test]
    fn nothing_is_wiped_where_nothing_is() {
        assert_eq!(found(&[]), []);
    }

    #[test]
    fn superblocks_of_md_are_found_for_each_version_and_byte_order() {
        let magic = MD_MAGIC.to_le_bytes();
        for version in Version::ALL {
            let at = version.super_offset(Sectors::from_bytes_floor(SIZE)).unwrap().bytes();
            assert_eq!(found(&[(at, &magic)]), [at..at + 4096], "{version}");
            assert_eq!(found(&[(at, &MD_MAGIC.to_be_bytes())]), [at..at + 4096], "{version}");
        }
        assert_eq!(found(&[(0, &magic), (4096, &magic)]), [0..8192]);
    }

    #[test]
    fn one_sign_of_zfs_takes_all_labels_away() {
        let label = |at: u64| at + (16 << 10)..at + (256 << 10);
        let uberblock = 0x00ba_b10c_u64.to_le_bytes();
        let all = [0, 256 << 10, 768 << 10, 1024 << 10].map(label);
        assert_eq!(found(&[((256 << 10) + (255 << 10), &uberblock)]), all);
    }

    #[test]
    fn what_another_signature_hides_is_found_too() {
        // A boot sector counts as a file system's, not as a partition table, until the file
        // system's name is gone.
        let ends = (510, &[0x55, 0xaa][..]);
        let (ntfs, page) = ((3, &b"NTFS    "[..]), (4086, &b"SWAPSPACE2"[..]));
        let second = ((64 << 10) - 10, &b"SWAPSPACE2"[..]);
        assert_eq!(found(&[ends, ntfs, page, second]), [0..4096, 60 << 10..64 << 10]);
    }

    #[test]
    fn ranges_end_with_the_device_and_do_not_overlap() {
        assert_eq!(around(&Signature { offset: SIZE - 8, ..sample() }, SIZE), SIZE - 4096..SIZE);
        assert_eq!(around(&Signature { offset: 4096, ..sample() }, 4608), 4096..4608);
        assert_eq!(merged(vec![4..6, 0..2, 5..9, 2..3, 20..21]), [0..3, 4..9, 20..21]);
    }

    fn sample() -> Signature {
        detect(&{
            let mut image = Image::new(SIZE);
            image.add(0, b"XFSB".to_vec());
            image
        })[0]
    }
}
