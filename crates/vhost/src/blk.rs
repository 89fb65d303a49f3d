//! What the device is to its driver: features, limits and the configuration space of virtio-blk (virtio 1.2, 5.2).

use ashlar_block::{ByteVolume, Sectors};
use virtio_bindings::{virtio_blk, virtio_config, virtio_ring};

/// Most sectors of one range of a discard or a write-zeroes, and most ranges: as QEMU's server.
pub(crate) const MAX_RANGE_SECTORS: u32 = 32768;
pub(crate) const MAX_RANGES: usize = 1;
/// Most segments of a request: as QEMU's server.
const SEG_MAX: u32 = 128 - 2;
/// Bytes of the identity that GET_ID returns.
pub(crate) const ID_BYTES: usize = virtio_blk::VIRTIO_BLK_ID_BYTES as usize;
/// Bytes of the configuration space that are defined for the features offered.
const CONFIG_BYTES: usize = 60;

const fn bit(number: u32) -> u64 {
    1 << number
}

pub(crate) const RO: u64 = bit(virtio_blk::VIRTIO_BLK_F_RO);
pub(crate) const FLUSH: u64 = bit(virtio_blk::VIRTIO_BLK_F_FLUSH);
const DISCARD: u64 = bit(virtio_blk::VIRTIO_BLK_F_DISCARD);
const WRITE_ZEROES: u64 = bit(virtio_blk::VIRTIO_BLK_F_WRITE_ZEROES);
pub(crate) const INDIRECT: u64 = bit(virtio_ring::VIRTIO_RING_F_INDIRECT_DESC);
pub(crate) const EVENT_IDX: u64 = bit(virtio_ring::VIRTIO_RING_F_EVENT_IDX);

/// Features of every device.
const COMMON: u64 = bit(virtio_blk::VIRTIO_BLK_F_SEG_MAX)
    | bit(virtio_blk::VIRTIO_BLK_F_BLK_SIZE)
    | bit(virtio_blk::VIRTIO_BLK_F_TOPOLOGY)
    | bit(virtio_blk::VIRTIO_BLK_F_MQ)
    | FLUSH
    | INDIRECT
    | EVENT_IDX
    | bit(virtio_config::VIRTIO_F_VERSION_1);

/// The virtio features of a volume's device, as it is now.
pub(crate) fn features(volume: &ByteVolume, is_read_only: bool) -> u64 {
    if is_read_only {
        return COMMON | RO;
    }
    let has_discard = !volume.gateway().disk().limits().max_hw_discard.is_zero();
    COMMON | WRITE_ZEROES | if has_discard { DISCARD } else { 0 }
}

/// The configuration space of a volume's device, as it is now.
pub(crate) fn config(volume: &ByteVolume, queues: u16) -> [u8; CONFIG_BYTES] {
    let limits = volume.gateway().disk().limits();
    let block = limits.logical_block_bytes.max(512);
    let in_blocks = |bytes: u32| bytes / block;
    let mut config = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &Sectors::from_bytes_floor(volume.size_bytes()).0.to_le_bytes());
    put(12, &SEG_MAX.to_le_bytes());
    put(20, &block.to_le_bytes());
    let exponent = in_blocks(limits.physical_block_bytes).max(1).ilog2();
    put(24, &[exponent as u8, 0]);
    put(26, &u16::try_from(in_blocks(limits.io_min_bytes)).unwrap_or(u16::MAX).to_le_bytes());
    put(28, &in_blocks(limits.io_opt_bytes).to_le_bytes());
    put(34, &queues.to_le_bytes());
    let alignment = limits.discard_granularity_bytes.max(block) / 512;
    let ranges = MAX_RANGES as u32;
    for (at, value) in
        (36..).step_by(4).zip([MAX_RANGE_SECTORS, ranges, alignment, MAX_RANGE_SECTORS, ranges])
    {
        put(at, &value.to_le_bytes());
    }
    // A write-zeroes may free the space of its range, because the range reads as zeroes afterwards in any case.
    put(56, &[1]);
    config
}
