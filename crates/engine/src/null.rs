//! The null device: every I/O succeeds at once and moves nothing (the kernel's null_blk).

use ashlar_block::bio::{Bio, Op};
use ashlar_block::device::{BlockDevice, IoFuture};
use ashlar_block::disk::Disk;
use ashlar_block::limits::{Features, Limits};
use ashlar_block::units::Sectors;

/// Reads leave the buffer as it is; writes are discarded. For measuring the layers above.
pub struct NullDevice {
    disk: Disk,
}

impl NullDevice {
    /// A null device of the given size.
    pub fn new(name: impl Into<String>, capacity: Sectors) -> Self {
        let limits = Limits {
            max_hw_sectors: Sectors(1 << 16),
            max_segments: 1 << 16,
            dma_alignment_bytes: 1,
            max_hw_discard: Sectors(u64::from(u32::MAX)),
            discard_granularity_bytes: 512,
            max_write_zeroes: Sectors(u64::from(u32::MAX)),
            features: Features::FAST_ZERO,
            ..Limits::default()
        };
        Self { disk: Disk::new(name, capacity, limits) }
    }
}

impl BlockDevice for NullDevice {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Read | Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => {
                // The device drops its reference to the data before the I/O ends.
                drop(bio);
                IoFuture::ready(Ok(()))
            }
        }
    }
}
