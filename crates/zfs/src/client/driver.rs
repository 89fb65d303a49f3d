//! The driver of a volume, and the limits of the queue in front of it.
//!
//! Limits as in OpenZFS's `zvol_queue_limits_init` (`module/os/linux/zfs/zvol_os.c`). The kernel
//! limits a request's pages: with `use_blk_mq`, a request has at most the pages of
//! `zvol_blk_mq_blocks_per_thread` blocks. Segments here have any length, so the length to which bios
//! merge is bounded instead. A bio that is larger stays whole, as without `use_blk_mq`: each request costs the
//! worker a transaction and a turn of its threads, and its blocks are not faster in several of them.

use std::sync::Arc;

use ashlar_block::limits::{Features, Limits};
use ashlar_block::queue::Driver;
use ashlar_block::request::Request;
use ashlar_block::status::Status;
use ashlar_block::units::Sectors;

use super::channel;
use super::opening::Volume;
use super::worker::Worker;
use crate::protocol::{DMU_MAX_ACCESS_BYTES, MAX_REQUEST_BYTES, MAX_SEGMENTS, OpenedVolume};

/// The driver of a volume whose I/O a worker does. Requests must come from a reactor thread.
pub struct ZvolDriver {
    volume: Arc<Volume>,
}

impl ZvolDriver {
    /// The driver of volume `number` of `worker`; the log names it `name`.
    pub(super) fn new(worker: Arc<Worker>, number: u32, name: &str) -> Self {
        Self { volume: Arc::new(Volume::new(worker, number, name)) }
    }

    /// Whether the worker has ended.
    pub(super) fn is_dead(&self) -> bool {
        self.volume.worker.end().is_some()
    }

    /// Stops taking requests. Returns the volume's number in its worker, if it was open.
    pub(super) fn shut(&self) -> Option<u32> {
        self.volume.shut()
    }

    /// Takes requests; the worker has opened the volume as `number`.
    pub(super) fn reopen(&self, number: u32) {
        self.volume.reopen(number);
    }

    /// The volume's number in its worker, if it is open.
    pub(super) fn number(&self) -> Option<u32> {
        Some(self.volume.opening()?.number)
    }
}

impl Driver for ZvolDriver {
    fn queue_rq(&self, rq: Request) {
        match self.volume.opening() {
            Some(opening) => channel::submit(&self.volume, opening, rq),
            None => rq.complete(Err(Status::Io)),
        }
    }
}

/// The hard limits of a volume; a discard covers at most `max_discard_blocks` blocks.
pub(super) fn limits(opened: &OpenedVolume, max_discard_blocks: u64) -> Limits {
    let block = opened.volblocksize_bytes;
    let max_discard =
        Sectors::from_bytes_floor(u64::from(block).saturating_mul(max_discard_blocks));
    Limits {
        logical_block_bytes: 512,
        physical_block_bytes: block,
        io_min_bytes: block,
        io_opt_bytes: DMU_MAX_ACCESS_BYTES / 2,
        max_hw_sectors: Sectors::from_bytes_floor(MAX_REQUEST_BYTES.into()),
        max_segments: MAX_SEGMENTS as u32,
        dma_alignment_bytes: 1,
        max_hw_discard: max_discard,
        discard_granularity_bytes: block,
        max_write_zeroes: max_discard,
        // Zeroing frees blocks.
        features: Features::WRITE_CACHE | Features::FUA | Features::FAST_ZERO,
        ..Limits::default()
    }
}

/// How far bios merge: to `blocks` blocks, a page at least; with 0 blocks zero, which is to the limit of a request.
pub(super) fn max_merged(volblocksize_bytes: u32, blocks: u64) -> Sectors {
    const PAGE_BYTES: u64 = 4096;
    if blocks == 0 {
        return Sectors::ZERO;
    }
    let bytes = u64::from(volblocksize_bytes).saturating_mul(blocks.min(u16::MAX.into()));
    Sectors::from_bytes_floor(bytes.max(PAGE_BYTES))
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
            guid: 7,
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
        let bytes = |block, blocks| max_merged(block, blocks).bytes();
        assert_eq!(bytes(16 << 10, 8), 128 << 10);
        assert_eq!(bytes(512, 1), 4096);
        assert_eq!(bytes(16 << 10, 0), 0);
    }
}
