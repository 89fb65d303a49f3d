//! An export as a disk.

use std::sync::Arc;

use ashlar_block::bio::{Flags, Op};
use ashlar_block::device::LocalFuture;
use ashlar_block::disk::Disk;
use ashlar_block::extent::{ExtentState, Extents};
use ashlar_block::queue::{Driver, Queue, ReadMemory};
use ashlar_block::request::{Request, RequestId};
use ashlar_block::status::Status;
use ashlar_block::units::{Sector, Sectors};
use ashlar_block::{Features, Limits, Runtime};
use ashlar_engine::EngineRuntime;

use crate::connection::{Command, Descriptor, Owner};
use crate::handshake::{ConnectError, ExportInfo};
use crate::lanes::Lanes;
use crate::link::LinkHandle;
use crate::network::{Internet, Network};
use crate::session::Losses;
use crate::uri::{Address, Uri};
use crate::wire::{
    CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE,
    CMD_WRITE_ZEROES, FLAG_CAN_MULTI_CONN, FLAG_READ_ONLY, FLAG_ROTATIONAL, FLAG_SEND_FAST_ZERO,
    FLAG_SEND_FLUSH, FLAG_SEND_FUA, FLAG_SEND_TRIM, FLAG_SEND_WRITE_ZEROES, MAX_PAYLOAD,
};

/// `max_sectors_kb`, unless the user sets another one. Requests of more, which adjacent ones would be merged into, leave the server
/// with one at a time where it could receive, execute and answer several at once.
const MAX_KIB: u64 = 256;

/// An export as a disk.
pub type NbdDisk = Queue<NbdDriver>;

/// The driver of an export. Requests must be submitted on a reactor's thread.
pub struct NbdDriver<N: Network = Internet> {
    link: Arc<LinkHandle<N>>,
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
    let disk = disk(&info, &uri.address, name, read_only)?;
    let lanes = info.has(FLAG_CAN_MULTI_CONN).then(|| {
        let block_bytes = disk.limits().logical_block_bytes;
        Lanes::new(uri.clone(), info, link.thread(), block_bytes)
    });
    Ok(queue(disk, link, lanes, &losses, Arc::new(EngineRuntime)))
}

/// The disk of a link, with its lanes.
pub(crate) fn queue<N: Network>(
    disk: Disk,
    link: LinkHandle<N>,
    lanes: Option<Arc<Lanes>>,
    losses: &Losses,
    runtime: Arc<dyn Runtime>,
) -> Queue<NbdDriver<N>> {
    let driver = NbdDriver { link: Arc::new(link), lanes };
    let queue = Queue::with_deadline(disk, driver, runtime);
    losses.set_report(Box::new(queue.loss_reporter()));
    queue
}

/// What an export is as a disk.
pub(crate) fn disk(
    info: &ExportInfo,
    address: &Address,
    name: &str,
    read_only: bool,
) -> Result<Disk, ConnectError> {
    let limits = limits(info, address)?;
    let is_sealed = info.has(FLAG_READ_ONLY);
    if is_sealed && !read_only {
        let why = "the server exports it read-only".to_owned();
        return Err(ConnectError::Unsuitable(address.clone(), why));
    }
    let block = u64::from(limits.logical_block_bytes);
    let capacity = Sectors::from_bytes_floor(info.size_bytes - info.size_bytes % block);
    let disk = Disk::new(name, capacity, limits);
    disk.set_read_only(read_only);
    disk.set_shared(true);
    // This fails if the server's own limit is lower, which then stays.
    let (Ok(()) | Err(_)) = disk.set_max_sectors_kb(MAX_KIB);
    Ok(disk)
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
    // The server may still refuse each of them: it says only that it does so fast.
    features.set(Features::FAST_ZERO, info.has(FLAG_SEND_FAST_ZERO));
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

/// The sectors of `bytes` bytes from `at` on that descriptors tell of. A sector of more than one state is data.
fn extents(at: Sector, bytes: u32, descriptors: &[Descriptor]) -> Extents {
    let (mut extents, data) = (Extents::new(at), ExtentState::empty());
    let (mut start, last) = (at.bytes(), at.bytes() + u64::from(bytes));
    for (len, state) in descriptors {
        let end = (start + u64::from(*len)).min(last);
        // Bits of the protocol that are not known say nothing.
        let state = ExtentState::from_bits_truncate(*state as u8);
        if state != data {
            extents.extend_to(Sector::from_bytes_floor(start.next_multiple_of(512)), data);
        }
        extents.extend_to(Sector::from_bytes_floor(end), state);
        start = end;
    }
    if extents.end() == at {
        Extents::data(at, Sectors::from_bytes_floor(bytes.into()))
    } else {
        extents
    }
}

/// The command flags of a write-zeroes. The gateway lets fast ones pass only where the server takes them.
fn zeroing(flags: Flags) -> u16 {
    let of = |flag, bit| if flags.contains(flag) { bit } else { 0 };
    of(Flags::NOUNMAP, CMD_FLAG_NO_HOLE) | of(Flags::FAST, CMD_FLAG_FAST_ZERO)
}

impl<N: Network> Driver for NbdDriver<N> {
    fn queue_rq(&self, mut rq: Request) {
        if self.link.is_released() {
            return rq.complete(Err(Status::Offline));
        }
        let (kind, mut flags) = match rq.op() {
            Op::Read => (CMD_READ, 0),
            Op::Write => (CMD_WRITE, 0),
            Op::Flush => (CMD_FLUSH, 0),
            Op::Discard => (CMD_TRIM, 0),
            Op::WriteZeroes => (CMD_WRITE_ZEROES, zeroing(rq.flags())),
        };
        if rq.flags().contains(Flags::FUA) && rq.op().is_write() {
            flags |= CMD_FLAG_FUA;
        }
        let command = Command {
            kind,
            flags,
            offset: if kind == CMD_FLUSH { 0 } else { rq.sector().bytes() },
            len: rq.len().bytes() as u32,
            owner: Some(Owner::here(rq.id())),
            segments: rq.take_segments(),
        };
        if let Some(connection) = self.lanes.as_ref().and_then(Lanes::here) {
            return N::spawn(async move { rq.complete(connection.execute(command).await) });
        }
        if rq.is_revocable() {
            // The connection has just ended; the link's thread could not release the memory.
            return rq.complete(Err(Status::Transport));
        }
        let link = Arc::clone(&self.link);
        N::spawn(async move {
            let result = link.execute(command).await;
            rq.complete(result);
        });
    }

    /// A connection of the thread itself can release memory.
    fn read_memory(&self, _: usize) -> ReadMemory {
        match self.lanes.as_ref().is_some_and(|lanes| lanes.are_here()) {
            true => ReadMemory::Submitters,
            false => ReadMemory::Queue,
        }
    }

    fn revoke(&self, id: RequestId) -> bool {
        self.lanes.as_ref().is_some_and(|lanes| lanes.revoke(Owner::here(id)))
    }

    /// What the server tells of `base:allocation`.
    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        Box::pin(async move {
            if self.link.is_released() {
                return Err(Status::Offline);
            }
            // As much as a request of 32 bits can ask for.
            let bytes = len.bytes().min(u64::from(u32::MAX - 4095)) as u32;
            let told = match self.lanes.as_ref().and_then(Lanes::here) {
                Some(connection) => connection.block_status(at.bytes(), bytes).await,
                None => self.link.block_status(at.bytes(), bytes).await,
            };
            match told {
                Err(Status::NotSupported) => Ok(Extents::data(at, len)),
                Err(status) => Err(status),
                Ok(descriptors) => Ok(extents(at, bytes, &descriptors)),
            }
        })
    }

    /// The request stays overdue until the server has closed the connection that has it. No other connection is concerned, above all no
    /// newer one.
    fn abort(&self, id: RequestId) {
        let owner = Owner::here(id);
        if let Some(connection) = self.lanes.as_ref().and_then(|lanes| lanes.current()) {
            connection.abort(owner);
        }
        self.link.abort(owner);
    }

    /// The connections end once the server has answered what it got, and none is opened.
    fn release(&self) {
        self.link.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The states of sectors: each that lies in one descriptor has its state, others are data.
    fn naive(at: u64, sectors: u64, descriptors: &[Descriptor]) -> Vec<u8> {
        let mut states = vec![0; sectors as usize];
        let mut start = at * 512;
        for (len, state) in descriptors {
            let end = start + u64::from(*len);
            for (sector, known) in (at..).zip(&mut states) {
                if sector * 512 >= start && (sector + 1) * 512 <= end {
                    *known = *state as u8 & 3;
                }
            }
            start = end;
        }
        states
    }

    #[test]
    fn sectors_have_the_state_of_the_descriptor_in_which_they_lie() {
        let mut seed = 1_u64;
        let mut below = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % bound
        };
        for _ in 0..2000 {
            let (at, sectors) = (below(5), 1 + below(12));
            let unit = [1, 100, 512][below(3) as usize];
            let mut next = || ((1 + below(1500 / unit)) * unit, below(4));
            let descriptors: Vec<Descriptor> =
                (0..6).map(|_| next()).map(|(len, state)| (len as u32, state as u32)).collect();
            let found = extents(Sector(at), sectors as u32 * 512, &descriptors);
            let told: Vec<u8> = found
                .iter()
                .flat_map(|extent| vec![extent.state.bits(); extent.len.0 as usize])
                .collect();
            assert!(!told.is_empty() && told.len() as u64 <= sectors, "{descriptors:?}");
            assert_eq!(told, naive(at, told.len() as u64, &descriptors), "{descriptors:?}");
            let sum: u64 = descriptors.iter().map(|(len, _)| u64::from(*len)).sum();
            assert!(told.len() as u64 >= (sum / 512).min(sectors), "{descriptors:?}");
        }
    }
}
