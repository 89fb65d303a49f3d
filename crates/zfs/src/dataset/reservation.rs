//! The space of a fully written volume: the reservation of a volume that is not sparse.

use crate::pool::{children, list, number, text};
use crate::protocol::NvMap;

/// SPA_OLD_MAXBLOCKSIZE of sys/spa.h: the block size that space is accounted with.
const USUAL_BLOCK_BYTES: u64 = 128 << 10;
/// 1 << DN_MAX_INDBLKSHIFT of sys/dnode.h.
const INDIRECT_BLOCK_BYTES: u64 = 128 << 10;
/// DNODES_PER_LEVEL of sys/dnode.h: block pointers per indirect block.
const POINTERS_PER_INDIRECT: u64 = 1024;
/// Blocks of the object set's meta dnode, in all its levels.
const METADNODE_BLOCKS: u64 = 7;
/// SPA_DVAS_PER_BP of sys/spa.h: maximum copies of a block.
const MAX_COPIES: u64 = 3;
/// 1 << SPA_MINBLOCKSHIFT of sys/spa.h.
const SECTOR_BYTES: u64 = 512;

/// The reservation of a volume of this size, in a pool with this configuration. The formula is
/// ZFS's (zvol_volsize_to_reservation of libzfs): it includes the copies of data and metadata, the
/// indirect blocks, and the extra parity that the worst RAID-Z vdev needs for these small blocks,
/// compared with the usual ones.
pub(super) fn reservation_bytes(
    config: &NvMap,
    volsize_bytes: u64,
    volblocksize_bytes: u64,
    copies: u64,
) -> u64 {
    let blocks = volsize_bytes / volblocksize_bytes;
    let mut metadata_blocks = METADNODE_BLOCKS;
    let mut level = blocks;
    while level > 1 {
        level = level.div_ceil(POINTERS_PER_INDIRECT);
        metadata_blocks += level;
    }
    let metadata_bytes = metadata_blocks
        .saturating_mul((copies + 1).min(MAX_COPIES))
        .saturating_mul(INDIRECT_BLOCK_BYTES);
    data_bytes(config, blocks, volblocksize_bytes)
        .saturating_mul(copies)
        .saturating_add(metadata_bytes)
}

/// The space accounted for `blocks`, in the pool's vdevs.
fn data_bytes(config: &NvMap, blocks: u64, block_bytes: u64) -> u64 {
    let vdevs = list(config, "vdev_tree").map(children).unwrap_or_default();
    vdevs
        .iter()
        .filter_map(|vdev| {
            let usual = allocated_bytes(vdev, USUAL_BLOCK_BYTES)?;
            let these = allocated_bytes(vdev, block_bytes)?;
            // In this order, and in sectors, to round as ZFS does.
            let sectors =
                u128::from(blocks) * u128::from(these) / u128::from((usual / SECTOR_BYTES).max(1));
            let bytes = sectors * u128::from(USUAL_BLOCK_BYTES / SECTOR_BYTES);
            Some(u64::try_from(bytes).unwrap_or(u64::MAX))
        })
        .max()
        .unwrap_or_else(|| blocks.saturating_mul(block_bytes))
}

/// The allocated size of a block on a RAID-Z or dRAID vdev, with parity and padding; `None` for other vdevs.
fn allocated_bytes(vdev: &NvMap, block_bytes: u64) -> Option<u64> {
    let kind = text(vdev, "type")?;
    let parity = number(vdev, "nparity");
    let ashift = number(vdev, "ashift");
    let sectors = |ashift: u64| ((block_bytes - 1) >> ashift) + 1;
    match kind {
        "raidz" => {
            let (parity, ashift) = (parity?, ashift?);
            let data_disks = u64::try_from(children(vdev).len()).ok()?.checked_sub(parity)?;
            let data = sectors(ashift);
            let with_parity = data + parity * data.div_ceil(data_disks.max(1));
            Some(with_parity.next_multiple_of(parity + 1) << ashift)
        }
        "draid" => {
            let (parity, ashift) = (parity?, ashift?);
            let data_disks = number(vdev, "draid_ndata")?.max(1);
            let rows = sectors(ashift).div_ceil(data_disks);
            Some((rows * (data_disks + parity)) << ashift)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::NvValue;

    fn map(pairs: &[(&str, NvValue)]) -> NvMap {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    fn pool_of(vdev: NvMap) -> NvMap {
        let tree = map(&[("children", NvValue::Lists(vec![vdev]))]);
        map(&[("vdev_tree", NvValue::List(tree))])
    }

    fn disk() -> NvMap {
        map(&[("type", NvValue::String("disk".into()))])
    }

    fn raidz(parity: u64, disks: usize, ashift: u64) -> NvMap {
        map(&[
            ("type", NvValue::String("raidz".into())),
            ("nparity", NvValue::Uint64(parity)),
            ("ashift", NvValue::Uint64(ashift)),
            ("children", NvValue::Lists(vec![disk(); disks])),
        ])
    }

    /// 64 MiB in blocks of 16 KiB are 4096, with 4 indirect blocks of the first level and 1 above.
    #[test]
    fn on_a_disk_it_is_the_data_and_two_copies_of_its_metadata() {
        let bytes = reservation_bytes(&pool_of(disk()), 64 << 20, 16 << 10, 1);
        assert_eq!(bytes, (64 << 20) + (7 + 4 + 1) * 2 * (128 << 10));
    }

    #[test]
    fn copies_multiply_data_and_metadata_but_metadata_not_beyond_three() {
        let bytes = reservation_bytes(&pool_of(disk()), 64 << 20, 16 << 10, 3);
        assert_eq!(bytes, 3 * (64 << 20) + (7 + 4 + 1) * 3 * (128 << 10));
    }

    /// 8 KiB on a raidz1 of 3 disks with sectors of 4 KiB: 2 data, 1 parity, padded to 4 sectors, 16 KiB; 128 KiB take
    /// 32 + 16 sectors, 192 KiB.
    #[test]
    fn small_blocks_of_raidz_take_more() {
        let bytes = reservation_bytes(&pool_of(raidz(1, 3, 12)), 64 << 20, 8 << 10, 1);
        let data = 8192 * (16 << 10) / ((192 << 10) / 512) * 256;
        assert_eq!(bytes, data + (7 + 8 + 1) * 2 * (128 << 10));
    }

    #[test]
    fn nothing_overflows() {
        assert_eq!(reservation_bytes(&pool_of(raidz(3, 4, 16)), u64::MAX, 512, 3), u64::MAX);
    }
}
