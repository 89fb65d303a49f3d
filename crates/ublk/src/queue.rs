//! A queue of a device: one task on a reactor, with a command in flight for each tag that has no request.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use ashlar_block::byte_volume::OpenVolume;
use ashlar_block::{BioResult, Buffer, Flags, Segment, Status};
use ashlar_engine::fd::Fd;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use io_uring::{opcode, types};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use zerocopy::IntoBytes;

use crate::abi::{self, Description, IoCommand};

/// What a queue is made of.
pub(crate) struct Setup {
    pub(crate) file: OwnedFd,
    pub(crate) queue: u16,
    pub(crate) depth: u16,
    /// The most bytes of a request.
    pub(crate) max_io_bytes: u32,
    pub(crate) volume: Arc<OpenVolume>,
    pub(crate) abandoned: Arc<AtomicBool>,
}

/// The descriptions of a queue's requests, which the driver writes.
struct Descriptions {
    start: NonNull<Description>,
    bytes: usize,
    depth: u16,
}

#[allow(unsafe_code)]
impl Descriptions {
    /// Maps those of a queue.
    ///
    /// # Errors
    /// Those of mmap(2).
    fn map(file: impl AsFd, queue: u16, depth: u16) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let bytes = (usize::from(depth) * size_of::<Description>()).next_multiple_of(page);
        let each = (abi::MAX_DEPTH * size_of::<Description>()).next_multiple_of(page);
        let offset = (usize::from(queue) * each) as u64;
        let (prot, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, which nobody else knows.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, prot, flags, file, offset) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { start, bytes, depth })
    }

    /// The request of a tag, whose command has ended.
    fn of(&self, tag: u16) -> Description {
        assert!(tag < self.depth);
        // SAFETY: it is within the mapping. The driver wrote it before the command ended, and does not change it until the next one.
        unsafe { self.start.add(tag.into()).read_volatile() }
    }
}

#[allow(unsafe_code)]
impl Drop for Descriptions {
    fn drop(&mut self) {
        // SAFETY: nobody else has the mapping.
        if let Err(errno) = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) } {
            tracing::warn!(%errno, "the descriptions of a ublk queue stay mapped");
        }
    }
}

/// Serves a queue on the current reactor until its device is stopped.
///
/// # Errors
/// The driver does not take a command.
pub(crate) async fn serve(setup: Setup) -> io::Result<()> {
    let Setup { file, queue, depth, max_io_bytes, volume, abandoned } = setup;
    let descriptions = Rc::new(Descriptions::map(&file, queue, depth)?);
    let file = Fd::new(file);
    let mut tags = FuturesUnordered::new();
    for tag in 0..depth {
        let memory = Buffer::try_alloc(max_io_bytes as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        let (memory, file) = (memory.into_whole(), file.clone());
        let tag = Tag { queue, tag, memory, file, abandoned: Arc::clone(&abandoned) };
        tags.push(tag.serve(Rc::clone(&descriptions), Arc::clone(&volume)));
    }
    let mut result = Ok(());
    while let Some(ended) = tags.next().await {
        result = result.and(ended);
    }
    result
}

/// One of the requests that a queue may have in flight.
struct Tag {
    queue: u16,
    tag: u16,
    /// The data of its request.
    memory: Segment,
    file: Fd,
    abandoned: Arc<AtomicBool>,
}

impl Tag {
    async fn serve(
        self,
        descriptions: Rc<Descriptions>,
        volume: Arc<OpenVolume>,
    ) -> io::Result<()> {
        let (mut command, mut result) = (abi::FETCH, 0);
        loop {
            match self.command(command, result).await {
                Ok(()) => {}
                // The device is stopped.
                Err(Errno::NODEV) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
            let description = descriptions.of(self.tag);
            result = match self.execute(&description, &volume).await {
                Ok(bytes) => bytes,
                Err(status) => -status.errno(),
            };
            if self.abandoned.load(SeqCst) {
                // The next server gets the request again. Its volume may have stopped here, and the result may be an error only for that.
                return std::future::pending().await;
            }
            command = abi::COMMIT_AND_FETCH;
        }
    }

    /// Gives the driver the result of a request, unless it fetches the first one; ends when there is another request.
    #[allow(unsafe_code)]
    async fn command(&self, command: u32, result: i32) -> Result<(), Errno> {
        let address = self.memory.as_ptr() as u64;
        let words = IoCommand { queue: self.queue, tag: self.tag, result, address };
        let mut bytes = [0; size_of::<IoCommand>()];
        bytes.copy_from_slice(words.as_bytes());
        let entry = opcode::UringCmd16::new(types::Fd(self.file.as_fd().as_raw_fd()), command);
        let entry = entry.cmd(bytes).build();
        // SAFETY: the payload owns the memory at the address, which does not move; the command ends once, also when the device stops.
        let submitted = unsafe { self.file.submit(entry, self.memory.clone(), false) };
        match submitted.await.0 {
            Ok(_) => Ok(()),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }

    /// Executes a request; returns the bytes of a read or a write.
    async fn execute(&self, request: &Description, volume: &OpenVolume) -> Result<i32, Status> {
        let (op, flags) = (request.op_flags & 0xff, request.op_flags);
        if op == abi::OP_FLUSH {
            // It has no place.
            return volume.flush().await.map(|()| 0);
        }
        let bytes = u64::from(request.sectors) * 512;
        let offset = request.start.checked_mul(512).ok_or(Status::Invalid)?;
        let data = || {
            let fits = usize::try_from(bytes).is_ok_and(|len| len <= self.memory.len() && len > 0);
            let is_aligned = (offset | bytes) & (volume.block_bytes() - 1) == 0;
            let len = bytes as usize;
            (fits && is_aligned).then(|| self.memory.slice(0..len)).ok_or(Status::Invalid)
        };
        let mut kinds = Flags::empty();
        kinds.set(Flags::FUA, flags & abi::IO_FUA != 0);
        let moved = |result: BioResult| result.map(|()| bytes as i32);
        match op {
            abi::OP_READ => moved(volume.read_with(offset, [data()?], Flags::empty()).await),
            abi::OP_WRITE => moved(volume.write(offset, [data()?], kinds).await),
            abi::OP_DISCARD => volume.discard(offset, bytes, Flags::empty()).await.map(|()| 0),
            abi::OP_WRITE_ZEROES => {
                kinds.set(Flags::NOUNMAP, flags & abi::IO_NOUNMAP != 0);
                volume.write_zeroes(offset, bytes, kinds).await.map(|()| 0)
            }
            _ => Err(Status::NotSupported),
        }
    }
}
