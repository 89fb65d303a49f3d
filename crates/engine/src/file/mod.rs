//! Files and block devices as the bottom of the stack.
//!
//! [`open`] detects what a path is and what it can do; the device it returns is a [`Queue`] over
//! [`FileDriver`], which turns each request into one operation of the ring.

mod extents;
mod holders;
mod ioctl;
mod lock;
mod open;
mod probe;
mod request;
mod sysfs;

use std::future::ready;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ashlar_block::bio::Op;
use ashlar_block::device::LocalFuture;
use ashlar_block::extent::Extents;
use ashlar_block::queue::{Driver, Queue, ReadMemory};
use ashlar_block::request::{Request, RequestId};
use ashlar_block::status::Status;
use ashlar_block::sync::sharded_arc::ShardedArc;
use ashlar_block::units::{Sector, Sectors};
use rustix::fs::OFlags;

pub use holders::{FINISHER, Process, device_writer};
pub use ioctl::loop_backing_file;
pub use open::{OpenError, OpenOptions, adopt, open, open_to_lend};

use crate::files::RingFile;
use crate::{blocking, reactor};
use probe::DirectAlign;

/// A file or block device.
pub type FileDevice = Queue<FileDriver>;

/// What kind of file a path is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file: a disk image.
    Image,
    /// A block device.
    Device,
}

/// Shared by the driver and the requests in flight.
struct SharedFile {
    file: RingFile,
    path: PathBuf,
    kind: Kind,
    /// The alignment O_DIRECT requires; `None` when the page cache is used.
    direct: Option<DirectAlign>,
    /// A system call on it may block, though it says not to: the ring uses a thread for each operation.
    blocks: bool,
    /// The ring discards on this device; otherwise the ioctl does, in the pool.
    ring_discard: AtomicBool,
    /// A flush has failed. Earlier writes may be lost, and the kernel reports that only once: so every later flush
    /// fails too, until the device is reopened.
    flush_failed: AtomicBool,
    errors: AtomicU64,
    locked: bool,
    /// The file was closed before its last user is gone.
    closed: AtomicBool,
}

impl SharedFile {
    /// Logs a failed I/O: the first, then at every power of two.
    fn log(&self, what: &str, offset: u64, status: Status) {
        let count = self.errors.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            let path = self.path.display();
            tracing::error!(%path, what, offset, %status, errors = count, "I/O failed");
        }
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // The rings may hold the file open a little longer; they must not hold its lock too.
        if self.locked
            && !self.closed.load(Ordering::Relaxed)
            && let Err(error) = lock::release(self.file.fd())
        {
            tracing::warn!(path = %self.path.display(), %error, "unlocking");
        }
    }
}

/// The driver of one file or block device. Requests must be submitted on a reactor's thread.
pub struct FileDriver {
    shared: ShardedArc<SharedFile>,
}

impl FileDriver {
    /// Whether the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.shared.direct.is_some()
    }

    /// What kind of file the path is.
    pub fn kind(&self) -> Kind {
        self.shared.kind
    }

    /// The path it was opened with.
    pub fn path(&self) -> &std::path::Path {
        &self.shared.path
    }
}

impl Driver for FileDriver {
    fn queue_rq(&self, rq: Request) {
        request::start(self.shared.handle(), rq);
    }

    fn abort(&self, id: RequestId) {
        reactor::current().cancel_request(id);
    }

    /// Only direct I/O moves data to the memory that a request names.
    fn read_memory(&self, len: usize) -> ReadMemory {
        let fixed = self.shared.direct.and_then(|_| reactor::current().take_fixed(len));
        fixed.map_or(ReadMemory::Queue, ReadMemory::Driver)
    }

    fn lend(&self) -> io::Result<OwnedFd> {
        let fd = self.shared.file.fd().try_clone()?;
        if self.shared.kind == Kind::Image {
            let flags = rustix::fs::fcntl_getfl(&fd)?;
            rustix::fs::fcntl_setfl(&fd, flags - OFlags::DIRECT)?;
        }
        Ok(fd)
    }

    /// Holes of an image, by lseek(2). A device tells nothing.
    fn extents(&self, at: Sector, len: Sectors) -> LocalFuture<'_, Result<Extents, Status>> {
        if self.shared.kind == Kind::Device {
            return Box::pin(ready(Ok(Extents::data(at, len))));
        }
        let shared = self.shared.handle_clone();
        let found = blocking::run(move || extents::find(shared.file.fd().as_fd(), at, len));
        Box::pin(async { found.await.unwrap_or(Err(Status::Resource)) })
    }

    fn release(&self) {
        if self.shared.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.shared.file.close() {
            self.shared.closed.store(false, Ordering::Relaxed);
            tracing::warn!(path = %self.path().display(), %error, "stays open and locked");
        }
    }

    /// A flush of the page cache writes back as much as others have written.
    fn is_slow(&self, op: Op) -> bool {
        match op {
            Op::Discard | Op::WriteZeroes => true,
            Op::Flush => self.shared.direct.is_none(),
            Op::Read | Op::Write => false,
        }
    }
}
