//! A request of virtio-blk: from the buffers of its chain to its status.

use std::future::Future;

use ashlar_block::bio::Flags;
use ashlar_block::buffer::{gather, scatter};
use ashlar_block::byte_volume::OpenVolume;
use ashlar_block::device::IoFuture;
use ashlar_block::{BioResult, Segment, Segments, Status};
use futures_util::future::Either;
use virtio_bindings::virtio_blk;

use crate::blk::{ID_BYTES, MAX_RANGE_SECTORS, MAX_RANGES};
use crate::chain::Chain;
use crate::fault::Fault;
use crate::memory::{Lease, View};

/// Type, reserved, sector.
const HEADER_BYTES: usize = 16;
/// Sector, number of sectors, flags.
const RANGE_BYTES: usize = 16;
const SECTOR_BYTES: u64 = 512;
/// Reads from this size on go to the guest's memory directly, with [`Flags::GIVEN`]; queues copy smaller ones in less time.
const LEASED_BYTES: u32 = 32 << 10;

/// What a request's last byte says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Answer {
    Ok = virtio_blk::VIRTIO_BLK_S_OK as u8,
    Failed = virtio_blk::VIRTIO_BLK_S_IOERR as u8,
    Unsupported = virtio_blk::VIRTIO_BLK_S_UNSUPP as u8,
}

impl From<BioResult> for Answer {
    fn from(result: BioResult) -> Self {
        match result {
            Ok(()) => Self::Ok,
            Err(Status::NotSupported) => Self::Unsupported,
            Err(_) => Self::Failed,
        }
    }
}

/// What holds for all requests of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Writes fail.
    pub(crate) is_read_only: bool,
    /// The driver does not flush: each write is durable when it is answered.
    pub(crate) is_write_through: bool,
    /// The answer to GET_ID.
    pub(crate) id: [u8; ID_BYTES],
}

/// A request that was taken from a ring.
#[derive(Debug)]
pub(crate) struct Request {
    /// The head of its chain.
    head: u16,
    kind: u32,
    sector: u64,
    /// What follows the header.
    out: Segments,
    out_bytes: u32,
    /// What precedes the status.
    into: Segments,
    into_bytes: u32,
    /// That of `into`, for a read that may go there directly.
    lease: Option<Lease>,
    status: Segment,
}

/// A request that has ended: its status is in the guest's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// The head of its chain.
    pub(crate) head: u16,
    /// Bytes that the device has written, from the start of its buffers on without a gap (virtio 1.2, 2.7.8.2): a driver may take them for
    /// data, so there may be more, and must not be less.
    pub(crate) written: u32,
}

/// What the end of a request needs.
struct Ending {
    head: u16,
    /// Bytes before the status.
    into_bytes: u32,
    /// How many of them have data if the request succeeds.
    filled_bytes: u32,
    status: Segment,
}

impl Ending {
    /// Writes the status.
    fn end(self, answer: Answer) -> Done {
        self.status.copy_from(&[answer as u8]);
        let filled = if answer == Answer::Ok { self.filled_bytes } else { 0 };
        // The status counts if nothing before it is left out.
        let written = if filled == self.into_bytes { filled + 1 } else { filled };
        Done { head: self.head, written }
    }
}

/// Waits for a read or a write.
async fn finish(io: IoFuture<'_>, lease: Option<Lease>, ending: Ending) -> Done {
    let result = io.await;
    if result.is_err()
        && let Some(lease) = lease
    {
        // The device may still write to the memory, which the guest uses for something else once it has the answer.
        lease.ended().await;
    }
    ending.end(result.into())
}

/// A request that has begun.
pub(crate) enum Begun<F> {
    /// It has ended meanwhile.
    Ended(Done),
    Runs(F),
}

/// Takes the first `len` bytes away, which there are.
fn split_front(segments: &mut Segments, mut len: usize) -> Segments {
    let mut front = Segments::new();
    while len > 0 {
        let Some(first) = segments.first_mut() else { break };
        if first.len() > len {
            front.push(first.split_to(len));
            break;
        }
        len -= first.len();
        front.push(segments.remove(0));
    }
    front
}

impl Request {
    /// The request of a chain: any layout of header, data and status.
    ///
    /// # Errors
    /// It has no room for header and status.
    pub(crate) fn parse(head: u16, chain: Chain, view: &View) -> Result<Self, Fault> {
        let Chain { mut readable, mut writable, readable_bytes, writable_bytes } = chain;
        let short = Fault::Short(readable_bytes.into(), writable_bytes.into());
        let out_bytes = readable_bytes.checked_sub(HEADER_BYTES as u32);
        let (Some(out_bytes), Some(mut last)) = (out_bytes, writable.pop()) else {
            return Err(short);
        };
        let mut header = [0; HEADER_BYTES];
        gather(&split_front(&mut readable, HEADER_BYTES), &mut header);
        let rest = last.split_to(last.len() - 1);
        if !rest.is_empty() {
            writable.push(rest);
        }
        let [kind @ .., _, _, _, _, _, _, _, _, _, _, _, _] = header;
        let [_, _, _, _, _, _, _, _, sector @ ..] = header;
        let (kind, into_bytes) = (u32::from_le_bytes(kind), writable_bytes - 1);
        let mut request = Self {
            head,
            kind,
            sector: u64::from_le_bytes(sector),
            out: readable,
            out_bytes,
            into: writable,
            into_bytes,
            lease: None,
            status: last,
        };
        if kind == virtio_blk::VIRTIO_BLK_T_IN
            && into_bytes >= LEASED_BYTES
            && let Some((into, lease)) = view.lease(&request.into)
        {
            (request.into, request.lease) = (into, Some(lease));
        }
        Ok(request)
    }

    /// Begins to execute the request.
    pub(crate) fn begin<'v>(
        mut self,
        volume: &'v OpenVolume,
        terms: &'v Terms,
    ) -> Begun<impl Future<Output = Done> + 'v> {
        let io = match self.kind {
            virtio_blk::VIRTIO_BLK_T_IN => self.read(volume),
            virtio_blk::VIRTIO_BLK_T_OUT => self.write(volume, terms),
            _ => return Begun::Runs(Either::Left(self.execute(volume, terms))),
        };
        let (head, into_bytes, filled_bytes) = (self.head, self.into_bytes, self.filled_bytes());
        let ending = Ending { head, into_bytes, filled_bytes, status: self.status };
        match io.result() {
            Some(Ok(())) => Begun::Ended(ending.end(Answer::Ok)),
            Some(Err(_)) | None => Begun::Runs(Either::Right(finish(io, self.lease, ending))),
        }
    }

    /// How many of the bytes before the status have data if it succeeds.
    fn filled_bytes(&self) -> u32 {
        match self.kind {
            virtio_blk::VIRTIO_BLK_T_IN => self.into_bytes,
            virtio_blk::VIRTIO_BLK_T_GET_ID => self.into_bytes.min(ID_BYTES as u32),
            _ => 0,
        }
    }

    /// Executes a request that is neither a read nor a write, and writes its status.
    async fn execute(self, volume: &OpenVolume, terms: &Terms) -> Done {
        let (head, into_bytes, filled_bytes) = (self.head, self.into_bytes, self.filled_bytes());
        let status = self.status.clone();
        let answer = self.answer(volume, terms).await;
        Ending { head, into_bytes, filled_bytes, status }.end(answer)
    }

    async fn answer(self, volume: &OpenVolume, terms: &Terms) -> Answer {
        match self.kind {
            virtio_blk::VIRTIO_BLK_T_FLUSH => volume.flush().await.into(),
            virtio_blk::VIRTIO_BLK_T_GET_ID => {
                let len = ID_BYTES.min(self.into_bytes as usize);
                let mut into = self.into;
                scatter(&terms.id[..len], &split_front(&mut into, len));
                Answer::Ok
            }
            virtio_blk::VIRTIO_BLK_T_DISCARD | virtio_blk::VIRTIO_BLK_T_WRITE_ZEROES => {
                self.ranges(volume, terms).await
            }
            _ => Answer::Unsupported,
        }
    }

    /// The range of a read or a write in bytes.
    fn offset(&self, volume: &OpenVolume, len: u32) -> Result<u64, Status> {
        let offset = self.sector.checked_mul(SECTOR_BYTES).ok_or(Status::Invalid)?;
        let is_aligned = (offset | u64::from(len)) & (volume.block_bytes() - 1) == 0;
        // What follows needs no memory of its own for parts of a block.
        if is_aligned { Ok(offset) } else { Err(Status::Invalid) }
    }

    fn read<'v>(&mut self, volume: &'v OpenVolume) -> IoFuture<'v> {
        let offset = match self.offset(volume, self.into_bytes) {
            Ok(offset) => offset,
            Err(status) => return IoFuture::failed(status),
        };
        if self.into_bytes == 0 {
            return IoFuture::ready(Ok(()));
        }
        let flags = if self.lease.is_some() { Flags::GIVEN } else { Flags::empty() };
        volume.read_with(offset, std::mem::take(&mut self.into), flags)
    }

    fn write<'v>(&mut self, volume: &'v OpenVolume, terms: &Terms) -> IoFuture<'v> {
        if terms.is_read_only {
            return IoFuture::failed(Status::ReadOnly);
        }
        let flags = if terms.is_write_through { Flags::FUA } else { Flags::empty() };
        match self.offset(volume, self.out_bytes) {
            Ok(offset) => volume.write(offset, std::mem::take(&mut self.out), flags),
            Err(status) => IoFuture::failed(status),
        }
    }

    async fn ranges(self, volume: &OpenVolume, terms: &Terms) -> Answer {
        let bytes = self.out_bytes as usize;
        let count = bytes / RANGE_BYTES;
        if terms.is_read_only || count == 0 || !bytes.is_multiple_of(RANGE_BYTES) {
            return Answer::Failed;
        }
        // As QEMU's server.
        if count > MAX_RANGES {
            return Answer::Unsupported;
        }
        let mut ranges = [0; RANGE_BYTES * MAX_RANGES];
        gather(&self.out, &mut ranges[..bytes]);
        for range in ranges[..bytes].chunks_exact(RANGE_BYTES) {
            let answer = self.range(range, volume, terms).await;
            if answer != Answer::Ok {
                return answer;
            }
        }
        Answer::Ok
    }

    async fn range(&self, range: &[u8], volume: &OpenVolume, terms: &Terms) -> Answer {
        let field = |at: usize| {
            range[at..at + 4].iter().rev().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte))
        };
        let sector = u64::from(field(4)) << 32 | u64::from(field(0));
        let (sectors, flags) = (field(8), field(12));
        let unmap = virtio_blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP;
        let is_discard = self.kind == virtio_blk::VIRTIO_BLK_T_DISCARD;
        if flags & !unmap != 0 || is_discard && flags != 0 {
            return Answer::Unsupported;
        }
        let Some(offset) =
            sector.checked_mul(SECTOR_BYTES).filter(|_| sectors <= MAX_RANGE_SECTORS)
        else {
            return Answer::Failed;
        };
        let len = u64::from(sectors) * SECTOR_BYTES;
        if is_discard {
            return volume.discard(offset, len, Flags::empty()).await.into();
        }
        let mut kinds = Flags::empty();
        kinds.set(Flags::NOUNMAP, flags & unmap == 0);
        kinds.set(Flags::FUA, terms.is_write_through);
        volume.write_zeroes(offset, len, kinds).await.into()
    }
}
