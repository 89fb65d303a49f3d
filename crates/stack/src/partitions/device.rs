//! A partition as a block device: a range of another device.

use ashlar_block::{Bio, BlockDevice, Disk, Gateway, IoFuture, Limits, Op, Sector, Sectors, trace};

/// See the module text. It shares the lower device's fate: the same limits, cache and errors.
pub struct Partition {
    disk: Disk,
    lower: Gateway,
    start: Sector,
}

impl Partition {
    /// The `len` sectors of `lower` from `start` on, which are there, as the device `name`.
    pub fn new(name: impl Into<String>, lower: Gateway, start: Sector, len: Sectors) -> Self {
        let mut limits = Limits::stacking();
        limits.stack(lower.disk().limits(), start);
        // Boundaries that lie elsewhere seen from here are kept by the lower gateway.
        if !limits.chunk_sectors.is_zero() && !start.is_aligned(limits.chunk_sectors) {
            limits.chunk_sectors = Sectors::ZERO;
        }
        let disk = Disk::new(name, len, limits.finish_stacking());
        disk.set_read_only(lower.disk().is_read_only());
        Self { disk, lower, start }
    }
}

impl BlockDevice for Partition {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, mut bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Flush => {}
            // The gateway has checked that it ends inside.
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes => {
                bio.sector += Sectors(self.start.0);
                trace::bio(&self.disk, trace::Action::Remap, &bio);
            }
        }
        self.lower.submit(bio)
    }
}
