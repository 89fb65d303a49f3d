//! A request on its way through the ring.
//!
//! | op           | image                              | block device                         |
//! |--------------|------------------------------------|--------------------------------------|
//! | read, write  | read(v), write(v); FUA: RWF_DSYNC  | the same                             |
//! | flush        | fdatasync                          | fdatasync                            |
//! | discard      | fallocate PUNCH_HOLE               | uring_cmd DISCARD (6.12), or ioctl   |
//! | write zeroes | fallocate PUNCH_HOLE or, NOUNMAP, ZERO_RANGE | the same, if offloaded     |
//!
//! A short transfer continues with the rest; a transfer of zero bytes inside the device means that the file was
//! truncated under us, and fails. Memory that O_DIRECT would refuse to write is bounced.

use std::cell::RefCell;
use std::iter;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ashlar_block::bio::{Flags, Op};
use ashlar_block::buffer::{Buffer, Segment, shared};
use ashlar_block::request::Request;
use ashlar_block::status::{BioResult, Status};
use ashlar_block::sync::sharded_arc::ShardHandle;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};

use super::probe::DirectAlign;
use super::{Kind, SharedFile, ioctl};
use crate::blocking;
use crate::fixed::FixedMemory;
use crate::op::OperationOwner;
use crate::reactor::{self, ReactorCore};

/// `BLOCK_URING_CMD_DISCARD`, `_IO(0x12, 0)` of `include/uapi/linux/blkdev.h`.
const BLOCK_URING_CMD_DISCARD: u32 = 0x1200;
/// Interruptions of one operation before it counts as failed.
const MAX_RETRIES: u32 = 100;
/// How many idle records a thread keeps.
const MAX_SPARE: usize = 256;
/// The most bytes that one system call transfers (`MAX_RW_COUNT`, rounded down to 1 MiB).
const MAX_CALL_BYTES: u32 = 0x7ff0_0000;

/// The smallest buffer for a part of a write: no block of a device is longer.
const LEAST_BOUNCE: usize = 4096;

thread_local! {
    /// Idle records for reuse, so that an I/O allocates nothing.
    #[expect(clippy::vec_box, reason = "the ring is given the boxes, whose addresses stay")]
    static SPARE: RefCell<Vec<Box<FileRequest>>> = const { RefCell::new(Vec::new()) };
}

/// Starts a request.
pub(super) fn start(shared: &Arc<ShardHandle<SharedFile>>, rq: Request) {
    let core = reactor::current();
    let op = rq.op();
    if op == Op::Flush && shared.flush_failed.load(Relaxed) {
        return rq.complete(Err(Status::Io));
    }
    if op == Op::Discard && shared.kind == Kind::Device && !shared.ring_discard.load(Relaxed) {
        return discard_by_ioctl(Arc::clone(shared), rq);
    }
    // The kernel says of no device that it zeroes fast and keeps the range allocated.
    let keeps = rq.flags().contains(Flags::FAST | Flags::NOUNMAP);
    if keeps && shared.kind == Kind::Device {
        return rq.complete(Err(Status::NotSupported));
    }
    let spare = SPARE.with_borrow_mut(Vec::pop);
    let mut this = spare.unwrap_or_default();
    let taken = if op.has_data() { this.take_data(&rq, shared.direct) } else { Ok(()) };
    this.job = Some(Job { shared: Arc::clone(shared), rq });
    match taken {
        Ok(()) => this.submit(&core),
        Err(status) => this.finish(Err(status)),
    }
}

struct Job {
    shared: Arc<ShardHandle<SharedFile>>,
    rq: Request,
}

/// A request in flight, with everything the kernel may touch: the iovec array is on the heap, the bytes belong to the
/// request's segments or to `bounce`.
#[derive(Default)]
struct FileRequest {
    job: Option<Job>,
    iov: Vec<libc::iovec>,
    bounce: Option<Segment>,
    /// Bytes transferred.
    done: u64,
    retries: u32,
}

/// Appends a piece of memory, or extends the last piece if the new one continues it.
fn append(iov: &mut Vec<libc::iovec>, start: *mut u8, len: usize) {
    if let Some(last) = iov.last_mut()
        && last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == start
    {
        last.iov_len += len;
    } else if len > 0 {
        iov.push(libc::iovec { iov_base: start.cast(), iov_len: len });
    }
}

impl FileRequest {
    /// Lists the request's memory, or that of a bounce buffer if direct I/O would refuse to write it. (A read has memory of
    /// the queue, which is aligned.)
    ///
    /// # Errors
    /// [`Status::Resource`]: there is not even a little memory.
    fn take_data(&mut self, rq: &Request, direct: Option<DirectAlign>) -> BioResult {
        self.iov.clear();
        for segment in rq.segments() {
            append(&mut self.iov, segment.as_ptr(), segment.len());
        }
        let Some(align) = direct.filter(|_| rq.op() == Op::Write) else { return Ok(()) };
        let mask = align.memory as usize - 1;
        let refused = |piece: &libc::iovec| (piece.iov_base as usize | piece.iov_len) & mask != 0;
        if !self.iov.iter().any(refused) {
            return Ok(());
        }
        let whole = rq.len().bytes() as usize;
        self.bounce = Some(bounce_buffer(whole).ok_or(Status::Resource)?.into_whole());
        self.fill_bounce(rq);
        Ok(())
    }

    /// Lists the next part of a write that is bounced: all that is left, or what the bounce buffer holds.
    fn fill_bounce(&mut self, rq: &Request) {
        let Some(bounce) = &self.bounce else { return };
        let (mut skip, mut at) = (self.done as usize, 0);
        for segment in rq.segments() {
            let start = skip.min(segment.len());
            skip -= start;
            let count = (segment.len() - start).min(bounce.len() - at);
            let (from, to) = (segment.slice(start..start + count), bounce.slice(at..at + count));
            shared::copy(from.bytes(), to.bytes());
            at += count;
        }
        let start = bounce.as_ptr();
        self.iov.clear();
        append(&mut self.iov, start, at);
    }

    /// Drops the first `count` bytes from the list.
    fn advance(&mut self, mut count: usize) {
        let whole = self.iov.iter().take_while(|piece| {
            let covered = piece.iov_len <= count;
            count -= if covered { piece.iov_len } else { 0 };
            covered
        });
        let whole = whole.count();
        self.iov.drain(..whole);
        if let Some(first) = self.iov.first_mut() {
            first.iov_base = first.iov_base.wrapping_byte_add(count);
            first.iov_len -= count;
        }
    }

    fn submit(self: Box<Self>, core: &Rc<ReactorCore>) {
        let Some(job) = &self.job else { return };
        let target = job.shared.file.target(core);
        let blocks = job.shared.blocks;
        if blocks {
            core.need_worker();
        }
        let how = if blocks { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let entry = self.entry(job, target.number, core).flags(target.flags | how);
        // SAFETY: the array and the memory it points to belong to `self`, on the heap; the file stays open while the
        // job holds its `SharedFile`.
        unsafe { core.submit_callback(entry, self) }
    }

    /// Submits what is left of a request, unless its deadline has passed.
    fn go_on(self: Box<Self>, core: &Rc<ReactorCore>) {
        let is_overdue = self.job.as_ref().is_some_and(|job| job.rq.is_overdue());
        if is_overdue { self.finish(Err(Status::Timeout)) } else { self.submit(core) }
    }

    fn entry(&self, job: &Job, file: Fd, core: &ReactorCore) -> squeue::Entry {
        let (rq, kind) = (&job.rq, job.shared.kind);
        let (offset, len) = (rq.sector().bytes(), rq.len().bytes());
        let prio = rq.ioprio();
        match rq.op() {
            Op::Read => {
                let at = offset + self.done;
                match self.iov[..] {
                    [one] if core.is_fixed(one.iov_base.cast(), one.iov_len) => {
                        let (len, index) = (call_len(one.iov_len), FixedMemory::INDEX);
                        let read = opcode::ReadFixed::new(file, one.iov_base.cast(), len, index);
                        read.offset(at).ioprio(prio).build()
                    }
                    [one] => {
                        let len = call_len(one.iov_len);
                        let read = opcode::Read::new(file, one.iov_base.cast(), len);
                        read.offset(at).ioprio(prio).build()
                    }
                    _ => {
                        let read = opcode::Readv::new(file, self.iov.as_ptr(), self.pieces());
                        read.offset(at).ioprio(prio).build()
                    }
                }
            }
            Op::Write => {
                let at = offset + self.done;
                let flags = if rq.flags().contains(Flags::FUA) { libc::RWF_DSYNC } else { 0 };
                match self.iov[..] {
                    [one] => {
                        let len = call_len(one.iov_len);
                        let write = opcode::Write::new(file, one.iov_base.cast(), len);
                        write.offset(at).ioprio(prio).rw_flags(flags).build()
                    }
                    _ => {
                        let write = opcode::Writev::new(file, self.iov.as_ptr(), self.pieces());
                        write.offset(at).ioprio(prio).rw_flags(flags).build()
                    }
                }
            }
            Op::Flush => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
            Op::Discard if kind == Kind::Device => {
                let mut command = [0; 16];
                command[..8].copy_from_slice(&len.to_ne_bytes());
                let discard = opcode::UringCmd16::new(file, BLOCK_URING_CMD_DISCARD);
                discard.addr(Some(offset)).cmd(command).build()
            }
            Op::Discard => fallocate(file, libc::FALLOC_FL_PUNCH_HOLE, offset, len),
            Op::WriteZeroes => {
                let keep = rq.flags().contains(Flags::NOUNMAP);
                let mode =
                    if keep { libc::FALLOC_FL_ZERO_RANGE } else { libc::FALLOC_FL_PUNCH_HOLE };
                fallocate(file, mode, offset, len)
            }
        }
    }

    /// The pieces for one call; a longer list continues after a short transfer.
    fn pieces(&self) -> u32 {
        self.iov.len().min(libc::UIO_MAXIOV as usize) as u32
    }

    /// Records `count` transferred bytes. `None`: the rest remains to be transferred.
    fn progress(&mut self, job: &Job, count: u32) -> Option<BioResult> {
        let total = job.rq.len().bytes();
        let mut now = self.done + u64::from(count);
        if now >= total {
            return Some(Ok(()));
        }
        // Direct I/O must continue at a block boundary.
        let block = job.shared.direct.map_or(1, |align| u64::from(align.offset));
        now -= now % block;
        if now <= self.done {
            return Some(Err(Status::Io));
        }
        self.advance((now - self.done) as usize);
        self.done = now;
        self.retries = 0;
        if self.iov.is_empty() {
            self.fill_bounce(&job.rq);
        }
        None
    }

    /// Ends the request, and keeps the record for reuse.
    fn finish(mut self: Box<Self>, result: BioResult) {
        self.bounce = None;
        self.iov.clear();
        (self.done, self.retries) = (0, 0);
        let Some(Job { shared, rq }) = self.job.take() else { return };
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MAX_SPARE {
                spare.push(self);
            }
        });
        if let Err(status) = result
            && !matches!(status, Status::NotSupported)
        {
            shared.log(name_of(rq.op()), rq.sector().bytes(), status);
        }
        rq.complete(result);
    }
}

/// Memory for a write of `len` bytes, or for a part of it while memory is short: of whole blocks of a device, because a smaller buffer has
/// a power of two of at least [`LEAST_BOUNCE`] bytes.
fn bounce_buffer(len: usize) -> Option<Buffer> {
    let parts = iter::successors(Some(len), |len| {
        let less = len.next_power_of_two() / 2;
        (less >= LEAST_BOUNCE).then_some(less)
    });
    parts.into_iter().find_map(Buffer::try_alloc)
}

fn call_len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX).min(MAX_CALL_BYTES)
}

fn fallocate(file: Fd, mode: i32, offset: u64, len: u64) -> squeue::Entry {
    let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
    opcode::Fallocate::new(file, len).offset(offset).mode(mode).build()
}

fn name_of(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "write zeroes",
    }
}

impl OperationOwner<ReactorCore> for FileRequest {
    fn request(&self) -> Option<&Request> {
        Some(&self.job.as_ref()?.rq)
    }

    fn complete(mut self: Box<Self>, core: &Rc<ReactorCore>, result: i32) {
        let Some(job) = self.job.take() else { return };
        if job.shared.blocks {
            core.free_worker();
        }
        let op = job.rq.op();
        if let Ok(count) = u32::try_from(result) {
            let ended = if op.has_data() { self.progress(&job, count) } else { Some(Ok(())) };
            self.job = Some(job);
            return match ended {
                Some(result) => self.finish(result),
                None => self.go_on(core),
            };
        }
        let errno = -result;
        if matches!(errno, libc::EINTR | libc::EAGAIN) && self.retries < MAX_RETRIES {
            self.retries += 1;
            self.job = Some(job);
            return self.go_on(core);
        }
        let unknown = matches!(errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOTTY);
        if op == Op::Discard && job.shared.kind == Kind::Device && unknown {
            job.shared.ring_discard.store(false, Relaxed);
            return discard_by_ioctl(job.shared, job.rq);
        }
        // Through the page cache, a failed synchronous write may have consumed the error report of another write.
        let fua = op == Op::Write && job.rq.flags().contains(Flags::FUA);
        if op == Op::Flush || fua && job.shared.direct.is_none() {
            job.shared.flush_failed.store(true, Relaxed);
        }
        self.job = Some(job);
        self.finish(Err(Status::from_errno(errno)));
    }
}

/// Discards in the pool, on a kernel whose ring cannot.
fn discard_by_ioctl(shared: Arc<ShardHandle<SharedFile>>, rq: Request) {
    let (offset, len) = (rq.sector().bytes(), rq.len().bytes());
    let device = Arc::clone(&shared);
    let work = blocking::run(move || ioctl::discard(device.file.fd().as_fd(), offset, len));
    let wait = async move {
        let result = match work.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Status::from_errno(error.raw_os_error().unwrap_or(libc::EIO))),
            Err(crate::ReceiveError) => Err(Status::Resource),
        };
        if let Err(status) = result {
            shared.log("discard", offset, status);
        }
        rq.complete(result);
    };
    reactor::spawn(wait).detach();
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::task::{Context, Waker};

    use ashlar_block::bio::{Bio, Segments};
    use ashlar_block::buffer;
    use ashlar_block::gateway::Gateway;
    use ashlar_block::units::{Sector, Sectors};

    use super::*;
    use crate::{OpenOptions, Reactor, open};

    /// The bytes that a list refers to.
    fn bytes(iov: &[libc::iovec]) -> Vec<u8> {
        let piece = |piece: &libc::iovec| {
            // SAFETY: the tests below list parts of live, initialised arrays.
            unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
        };
        iov.iter().flat_map(piece).copied().collect()
    }

    #[test]
    fn a_list_advances_by_any_count_to_the_bytes_that_are_left() {
        let all: Vec<u8> = (0..12).collect();
        let parts = [&all[..4], &all[4..5], &all[5..12]].map(|part| {
            // With an extra byte between, so that no part continues another.
            let mut own = part.to_vec();
            own.push(0xff);
            own
        });
        for count in 0..=12 {
            let mut one = FileRequest::default();
            for part in &parts {
                append(&mut one.iov, part.as_ptr().cast_mut(), part.len() - 1);
            }
            one.advance(count);
            assert_eq!(bytes(&one.iov), all[count..]);
            assert!(one.iov.iter().all(|piece| piece.iov_len > 0));
        }
    }

    #[test]
    fn a_write_that_is_bounced_needs_little_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        Reactor::new(Default::default()).unwrap().block_on(async {
            for (longest, expected) in
                [(64 << 10, Ok(())), (4096, Ok(())), (0, Err(Status::Resource))]
            {
                std::fs::write(&path, vec![0; 1 << 20]).unwrap();
                let device = open(&path, &OpenOptions::default()).unwrap();
                if device.driver().shared.direct.is_none() {
                    return eprintln!("no direct I/O in {}", dir.path().display());
                }
                let disk = Gateway::new(Arc::new(device));
                // At odd addresses, in pieces of which none is a block.
                let data: Vec<u8> = (0..400 << 10).map(|n: u32| (n / 512 + n) as u8).collect();
                let mut parts: Vec<_> = data
                    .chunks(1000)
                    .map(|part| {
                        let mut buffer = Buffer::alloc(part.len() + 1);
                        buffer.as_mut_slice()[1..].copy_from_slice(part);
                        buffer
                    })
                    .collect();
                let pieces = parts.iter_mut().map(|part| part.segment(1..part.len()));
                let write = disk.submit(Bio::write(Sector(8), pieces.collect::<Segments>()));
                buffer::limit_blocks(longest);
                let written = write.await;
                buffer::limit_blocks(usize::MAX);
                assert_eq!(written, expected, "blocks of {longest}");
                let stored = std::fs::read(&path).unwrap();
                let is_there = stored[4096..][..data.len()] == data;
                assert!(is_there == written.is_ok() && stored[..4096] == [0; 4096]);
            }
        });
    }

    #[test]
    fn pieces_that_continue_each_other_become_one() {
        let all: Vec<u8> = (0..9).collect();
        let mut iov = Vec::new();
        for range in [0..3, 3..3, 3..7, 8..9] {
            append(&mut iov, all[range.clone()].as_ptr().cast_mut(), range.len());
        }
        assert_eq!((iov.len(), bytes(&iov)), (2, vec![0, 1, 2, 3, 4, 5, 6, 8]));
    }

    #[test]
    fn after_a_failed_flush_all_flushes_fail() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        std::fs::write(&path, [0; 4096]).unwrap();
        Reactor::new(Default::default()).unwrap().block_on(async {
            let device = open(&path, &OpenOptions::default()).unwrap();
            let shared = device.driver().shared.handle_clone();
            let disk = Gateway::new(Arc::new(device));
            disk.flush().await.unwrap();
            shared.flush_failed.store(true, Relaxed);
            assert_eq!(disk.flush().await, Err(Status::Io));
            disk.read(Sector(0), Sectors(1)).await.unwrap();
        });
    }

    #[test]
    fn direct_reads_use_registered_memory_while_there_is_some() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let all: Vec<u8> = (0..4_u32 << 20).map(|n| (n / 512 + n) as u8).collect();
        std::fs::write(&path, &all).unwrap();
        Reactor::new(Default::default()).unwrap().block_on(async {
            let device = open(&path, &OpenOptions::default()).unwrap();
            if device.driver().shared.direct.is_none() {
                return eprintln!("no direct I/O in {}", dir.path().display());
            }
            let disk = Gateway::new(Arc::new(device));
            let core = reactor::current();
            if matches!(*core.ring(), crate::ring::Ring::Threads(_)) {
                assert!(core.take_fixed(4096).is_none());
                return eprintln!("threads have no registered memory");
            }
            let free = || {
                // More blocks than there are: a block that is given out twice must not make this endless.
                let taken: Vec<_> =
                    std::iter::from_fn(|| core.take_fixed(4096)).take(10_000).collect();
                taken.len()
            };
            let before = free();
            let mut read = std::pin::pin!(disk.read(Sector(8), Sectors(8)));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(read.as_mut().poll(&mut cx).is_pending());
            ashlar_block::plug::flush_current();
            assert_eq!(free(), before - 1);
            assert!(read.await.unwrap().as_slice() == &all[4096..8192]);
            assert_eq!(free(), before);
            // Far more at a time than there is memory for, in pieces that merge and in others.
            let long = (0..4).cycle().take(64).map(|n| (n << 20, 1 << 20));
            let short = (0..1000).rev().map(|n| (n << 12, 1 << 12));
            let all = Arc::new(all);
            let reads = long.chain(short).map(|(at, len): (usize, usize)| {
                let (disk, all) = (disk.clone(), Arc::clone(&all));
                let (sector, sectors) = (at as u64 / 512, len as u64 / 512);
                reactor::spawn(async move {
                    let read = disk.read(Sector(sector), Sectors(sectors)).await.unwrap();
                    assert!(read.as_slice() == &all[at..at + len], "{len} at {at}");
                })
            });
            for read in reads.collect::<Vec<_>>() {
                read.await;
            }
            assert_eq!(free(), before);
        });
    }

    #[test]
    fn devices_discard_by_ioctl_where_the_ring_cannot() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&path).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            return eprintln!("no loop device to test on");
        };
        let name = String::from_utf8(made.stdout).unwrap();
        Reactor::new(Default::default()).unwrap().block_on(async {
            let device = open(name.trim().as_ref(), &OpenOptions::default()).unwrap();
            device.driver().shared.ring_discard.store(false, Relaxed);
            let disk = Gateway::new(Arc::new(device));
            let discarded = disk.submit(Bio::discard(Sector(8), Sectors(16))).await;
            if !disk.disk().limits().max_hw_discard.is_zero() {
                discarded.unwrap();
                let read = disk.read(Sector(0), Sectors(32)).await.unwrap();
                let expected: Vec<u8> =
                    (0..32).flat_map(|s| [u8::from(!(8..24).contains(&s)); 512]).collect();
                assert!(read.as_slice() == expected);
            }
        });
        let detached = Command::new("losetup").args(["--detach", name.trim()]).status();
        assert!(detached.is_ok_and(|status| status.success()));
    }
}
