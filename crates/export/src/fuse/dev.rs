//! `/dev/fuse`, as the server sees it.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use ashlar_engine::fd::Fd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// A connection to the kernel. Reading and writing never wait; the reactor waits.
pub trait FuseDev: 'static {
    /// Reads one request, its first bytes into `head` and the rest into `body`; together they have room for the largest
    /// request.
    ///
    /// # Errors
    /// WouldBlock when there is no request; ENODEV once the mount is gone; those of `read(2)`.
    fn try_read(&self, head: &mut [u8], body: &mut [u8]) -> io::Result<usize>;

    /// Ends when [`Self::try_read`] may return something: a request, or the end of the mount.
    fn readable(&self) -> impl Future<Output = io::Result<()>>;

    /// Writes one reply, the concatenation of `parts`.
    ///
    /// # Errors
    /// ENOENT when no process waits for the request; ENODEV once the mount is gone; those of `writev(2)`.
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()>;
}

/// An open `/dev/fuse` on the current reactor.
pub struct KernelDev {
    fd: Fd,
}

impl KernelDev {
    /// Takes the descriptor that mounting returned, or a duplicate of it: several reactors may serve one mount, and the
    /// kernel gives each request to one of them.
    ///
    /// # Errors
    /// Those of `fcntl(2)`.
    ///
    /// # Panics
    /// On a thread without a reactor.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self { fd: Fd::new(fd) })
    }
}

impl FuseDev for KernelDev {
    fn try_read(&self, head: &mut [u8], body: &mut [u8]) -> io::Result<usize> {
        let mut parts = [IoSliceMut::new(head), IoSliceMut::new(body)];
        Ok(rustix::io::readv(&self.fd, &mut parts)?)
    }

    async fn readable(&self) -> io::Result<()> {
        self.fd.readable_alone().await
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        // The device accepts a reply as a whole or not at all.
        rustix::io::writev(&self.fd, parts)?;
        Ok(())
    }
}
