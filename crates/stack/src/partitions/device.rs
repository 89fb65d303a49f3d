//! A partition as a block device: a range of another device.

use ashlar_block::{
    Bio, BlockDevice, Disk, Extents, Gateway, IoFuture, Limits, LocalFuture, Op, Sector, Sectors,
    Status, trace,
};

/// See the module text. Limits, cache and errors are those of the lower device.
pub struct Partition {
    disk: Disk,
    lower: Gateway,
    start: Sector,
}

impl Partition {
    /// The `len` sectors of `lower` from `start` on, as the device `name`. They must exist.
    pub fn new(name: impl Into<String>, lower: Gateway, start: Sector, len: Sectors) -> Self {
        let mut limits = Limits::stacking();
        limits.stack(lower.disk().limits(), start);
        // The lower gateway splits at boundaries that are not aligned to the partition's start.
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

    fn copies(&self, at: Sector, len: Sectors) -> u16 {
        self.lower.copies(at + Sectors(self.start.0), len)
    }

    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(async move {
            let found = self.lower.extents(at + Sectors(self.start.0), len).await?;
            Ok(found.moved_to(at))
        })
    }

    fn holds_changes(&self) -> bool {
        self.lower.holds_changes()
    }

    fn submit_bio(&self, mut bio: Bio) -> IoFuture<'_> {
        match bio.op {
            Op::Flush => {}
            // The gateway has checked that the bio ends inside.
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes => {
                bio.sector += Sectors(self.start.0);
                trace::bio(&self.disk, trace::Action::Remap, &bio);
            }
        }
        self.lower.submit(bio)
    }
}
