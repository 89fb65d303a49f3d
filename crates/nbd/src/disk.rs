//! An export as a disk.

use std::sync::Arc;

use ashlar_block::bio::{Flags, Op};
use ashlar_block::disk::Disk;
use ashlar_block::queue::{Driver, Queue};
use ashlar_block::request::{Request, RequestId};
use ashlar_block::units::Sectors;
use ashlar_block::{Features, Limits};
use ashlar_engine::{EngineRuntime, spawn};

use crate::connection::Command;
use crate::handshake::{ConnectError, ExportInfo};
use crate::lanes::Lanes;
use crate::link::LinkHandle;
use crate::session::Losses;
use crate::uri::{Address, Uri};
use crate::wire::{
    CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES,
    FLAG_CAN_MULTI_CONN, FLAG_READ_ONLY, FLAG_ROTATIONAL, FLAG_SEND_FLUSH, FLAG_SEND_FUA,
    FLAG_SEND_TRIM, FLAG_SEND_WRITE_ZEROES, MAX_PAYLOAD,
};

/// An export as a disk.
pub type NbdDisk = Queue<NbdDriver>;

/// The driver of an export. Requests must be submitted on a reactor's thread.
pub struct NbdDriver {
    link: Arc<LinkHandle>,
    /// If the server promises that connections share a cache.
    lanes: Option<Arc<Lanes>>,
}

/// Connects to the server of an export, and makes it a disk with this name, which writes unless `read_only`. Blocks while it
/// connects, so a reactor runs it in the [pool](ashlar_engine::blocking::run).
///
/// # Errors
/// [`ConnectError`].
pub fn open(uri: &Uri, name: &str, read_only: bool) -> Result<NbdDisk, ConnectError> {
    let losses = Arc::<Losses>::default();
    let (link, info) = LinkHandle::start(uri.clone(), Arc::clone(&losses))?;
    let limits = limits(&info, &uri.address)?;
    let is_sealed = info.has(FLAG_READ_ONLY);
    if is_sealed && !read_only {
        let why = "the server exports it read-only".to_owned();
        return Err(ConnectError::Unsuitable(uri.address.clone(), why));
    }
    let block = u64::from(limits.logical_block_bytes);
    let capacity = Sectors::from_bytes_floor(info.size_bytes - info.size_bytes % block);
    let disk = Disk::new(name, capacity, limits);
    disk.set_read_only(read_only);
    disk.set_shared(true);
    let lanes = info.has(FLAG_CAN_MULTI_CONN).then(|| {
        let block_bytes = disk.limits().logical_block_bytes;
        Lanes::new(uri.clone(), info, link.thread(), block_bytes)
    });
    let driver = NbdDriver { link: Arc::new(link), lanes };
    let queue = Queue::with_deadline(disk, driver, Arc::new(EngineRuntime));
    losses.set_report(Box::new(queue.loss_reporter()));
    Ok(queue)
}

fn limits(info: &ExportInfo, address: &Address) -> Result<Limits, ConnectError> {
    let ExportInfo { min_block_bytes: min, preferred_block_bytes: preferred, .. } = *info;
    let logical = min.max(512);
    let max = info.max_block_bytes.min(MAX_PAYLOAD) / logical * logical;
    if !logical.is_power_of_two() || logical > 4096 || max < logical {
        let why = format!("blocks of {min} to {} bytes are not possible", info.max_block_bytes);
        return Err(ConnectError::Unsuitable(address.clone(), why));
    }
    let physical =
        if preferred.is_power_of_two() { preferred.clamp(logical, 4096) } else { logical };
    // Lengths are of 32 bits.
    let longest = |flag| match info.has(flag) {
        true => Sectors::from_bytes_floor(u64::from(u32::MAX / logical * logical)),
        false => Sectors::ZERO,
    };
    let mut features = Features::empty();
    features.set(Features::WRITE_CACHE, info.has(FLAG_SEND_FLUSH));
    features.set(Features::FUA, info.has(FLAG_SEND_FUA));
    features.set(Features::ROTATIONAL, info.has(FLAG_ROTATIONAL));
    Ok(Limits {
        logical_block_bytes: logical,
        physical_block_bytes: physical,
        io_min_bytes: physical,
        max_hw_sectors: Sectors::from_bytes_floor(max.into()),
        dma_alignment_bytes: 1,
        max_hw_discard: longest(FLAG_SEND_TRIM),
        discard_granularity_bytes: if info.has(FLAG_SEND_TRIM) { physical } else { 0 },
        max_write_zeroes: longest(FLAG_SEND_WRITE_ZEROES),
        features,
        ..Limits::default()
    })
}

impl Driver for NbdDriver {
    fn queue_rq(&self, rq: Request) {
        let (kind, mut flags) = match rq.op() {
            Op::Read => (CMD_READ, 0),
            Op::Write => (CMD_WRITE, 0),
            Op::Flush => (CMD_FLUSH, 0),
            Op::Discard => (CMD_TRIM, 0),
            Op::WriteZeroes if rq.flags().contains(Flags::NOUNMAP) => {
                (CMD_WRITE_ZEROES, CMD_FLAG_NO_HOLE)
            }
            Op::WriteZeroes => (CMD_WRITE_ZEROES, 0),
        };
        if rq.flags().contains(Flags::FUA) && rq.op().is_write() {
            flags |= CMD_FLAG_FUA;
        }
        let command = Command {
            kind,
            flags,
            offset: if kind == CMD_FLUSH { 0 } else { rq.sector().bytes() },
            len: rq.len().bytes() as u32,
            segments: rq.segments().cloned().collect(),
        };
        if let Some(connection) = self.lanes.as_ref().and_then(Lanes::here) {
            spawn(async move { rq.complete(connection.execute(command).await) }).detach();
            return;
        }
        let link = Arc::clone(&self.link);
        spawn(async move {
            let result = link.execute(command).await;
            rq.complete(result);
        })
        .detach();
    }

    /// The request stays overdue until the server has closed the connection.
    fn abort(&self, _: RequestId) {
        self.link.reset();
    }
}
