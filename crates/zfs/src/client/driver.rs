//! The driver of a volume, and the limits of the queue in front of it.
//!
//! Limits as OpenZFS's `zvol_queue_limits_init` has them (`module/os/linux/zfs/zvol_os.c`). The kernel counts a request's
//! pages: with `use_blk_mq` a request has as many as are in `zvol_blk_mq_blocks_per_thread` blocks. Segments here are of any
//! length, so that it is the request's length that is bounded, by the soft limit (`max_sectors_kb`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use ashlar_block::bio::Op;
use ashlar_block::limits::{Features, Limits};
use ashlar_block::queue::Driver;
use ashlar_block::request::Request;
use ashlar_block::status::Status;
use ashlar_block::units::{Sector, Sectors};

use super::channel;
use super::worker::Worker;
use crate::protocol::{MAX_SEGMENTS, OpenedVolume};

/// What a transaction may touch (`DMU_MAX_ACCESS`, `include/sys/dmu.h`).
const DMU_MAX_ACCESS_BYTES: u32 = 64 << 20;

/// What an open volume's channels share.
pub(super) struct Volume {
    /// Its identity in this process.
    pub(super) id: usize,
    /// Its number in the worker.
    pub(super) number: u32,
    pub(super) worker: Arc<Worker>,
    /// Its device's name, for the log.
    name: String,
    /// No request is taken any more.
    is_closed: AtomicBool,
    errors: AtomicU64,
}

impl Volume {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Logs a failed request; of many only some.
    pub(super) fn failed(&self, op: Op, sector: Sector, status: Status) {
        let count = self.errors.fetch_add(1, Relaxed) + 1;
        if status != Status::NotSupported && count.is_power_of_two() {
            tracing::error!(volume = self.name, ?op, sector = sector.0, %status, errors = count, "I/O failed");
        }
    }
}

/// The driver of a volume whose I/O a worker does. Its requests must come from a reactor's thread.
pub struct ZvolDriver {
    volume: Arc<Volume>,
}

impl ZvolDriver {
    /// The driver of volume `number` of `worker`, called `name` in the log.
    pub(super) fn new(worker: Arc<Worker>, number: u32, name: &str) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Self {
            volume: Arc::new(Volume {
                id: NEXT.fetch_add(1, Relaxed),
                number,
                worker,
                name: name.to_owned(),
                is_closed: AtomicBool::new(false),
                errors: AtomicU64::new(0),
            }),
        }
    }

    /// The volume's number in its worker.
    pub(super) fn number(&self) -> u32 {
        self.volume.number
    }

    /// Whether the worker has ended.
    pub(super) fn is_dead(&self) -> bool {
        self.volume.worker.end().is_some()
    }

    /// Takes no more requests.
    pub(super) fn close(&self) {
        self.volume.is_closed.store(true, Relaxed);
    }
}

impl Driver for ZvolDriver {
    fn queue_rq(&self, rq: Request) {
        if self.volume.is_closed.load(Relaxed) {
            return rq.complete(Err(Status::Io));
        }
        channel::submit(&self.volume, rq);
    }
}

/// The hard limits of a volume; a discard covers `max_discard_blocks` blocks at most.
pub(super) fn limits(opened: &OpenedVolume, max_discard_blocks: u64) -> Limits {
    let block = opened.volblocksize_bytes;
    let max_discard =
        Sectors::from_bytes_floor(u64::from(block).saturating_mul(max_discard_blocks));
    Limits {
        logical_block_bytes: 512,
        physical_block_bytes: block,
        io_min_bytes: block,
        io_opt_bytes: DMU_MAX_ACCESS_BYTES / 2,
        max_hw_sectors: Sectors::from_bytes_floor((DMU_MAX_ACCESS_BYTES / 4).into()),
        max_segments: MAX_SEGMENTS as u32,
        dma_alignment_bytes: 1,
        max_hw_discard: max_discard,
        discard_granularity_bytes: block,
        max_write_zeroes: max_discard,
        features: Features::WRITE_CACHE | Features::FUA,
        ..Limits::default()
    }
}

/// The length of a request at most when bios are merged: `blocks` blocks; 0 for no bound but the hard one.
pub(super) fn request_bytes(volblocksize_bytes: u32, blocks: u64) -> u64 {
    const PAGE_BYTES: u64 = 4096;
    let max = u64::from(DMU_MAX_ACCESS_BYTES / 4);
    match blocks {
        0 => max,
        blocks => u64::from(volblocksize_bytes)
            .saturating_mul(blocks.min(u16::MAX.into()))
            .clamp(PAGE_BYTES, max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_upstreams() {
        let opened = OpenedVolume {
            volume: 1,
            volsize_bytes: 1 << 30,
            volblocksize_bytes: 16 << 10,
            read_only: false,
        };
        let limits = limits(&opened, 16384);
        assert_eq!(
            (limits.physical_block_bytes, limits.discard_granularity_bytes),
            (16 << 10, 16 << 10)
        );
        assert_eq!(limits.max_hw_sectors.bytes(), 16 << 20);
        assert_eq!(limits.max_hw_discard.bytes(), 256 << 20);
        assert_eq!(limits.io_opt_bytes, 32 << 20);
    }

    #[test]
    fn a_merged_request_is_of_so_many_blocks() {
        assert_eq!(request_bytes(16 << 10, 8), 128 << 10);
        assert_eq!(request_bytes(512, 1), 4096);
        assert_eq!(request_bytes(16 << 10, 0), 16 << 20);
        assert_eq!(request_bytes(16 << 20, 8), 16 << 20);
    }
}
