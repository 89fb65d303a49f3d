//! Stream sockets, Unix and TCP.

use std::fs;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::ptr;

use io_uring::{opcode, types};
use rustix::net::addr::SocketAddrArg;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};

use crate::fd::{Bytes, Fd};
use crate::op::NewFd;
use crate::vectored::Vectored;

/// A listening socket.
pub struct Listener {
    fd: Fd,
    tcp: bool,
    /// Removed at the end.
    path: Option<PathBuf>,
}

impl Listener {
    /// Listens on a Unix socket. A socket left behind by a process that is gone is replaced.
    ///
    /// # Errors
    /// `AddrInUse` if somebody listens there or the path is not a socket; others of bind(2).
    pub fn bind_unix(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            other => other?,
        };
        let fd = Fd::new(OwnedFd::from(listener));
        Ok(Self { fd, tcp: false, path: Some(path.to_owned()) })
    }

    /// Listens on a TCP address.
    ///
    /// # Errors
    /// Those of bind(2).
    pub fn bind_tcp(address: SocketAddr) -> io::Result<Self> {
        let fd = Fd::new(OwnedFd::from(TcpListener::bind(address)?));
        Ok(Self { fd, tcp: true, path: None })
    }

    /// Uses a socket that listens already (socket activation).
    ///
    /// # Errors
    /// When it is not a socket.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let family = rustix::net::sockopt::socket_domain(&fd)?;
        let tcp = family == AddressFamily::INET || family == AddressFamily::INET6;
        Ok(Self { fd: Fd::new(fd), tcp, path: None })
    }

    /// The TCP address it is bound to (with the port that the kernel chose for port 0).
    ///
    /// # Errors
    /// Not a TCP socket, or those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = rustix::net::getsockname(&self.fd)?;
        SocketAddr::try_from(address).map_err(io::Error::from)
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// Those of accept(2); `ConnectionAborted` and lack of descriptors pass, others do not.
    pub async fn accept(&self) -> io::Result<Socket> {
        let number = types::Fd(self.fd.as_fd().as_raw_fd());
        let entry = opcode::Accept::new(number, ptr::null_mut(), ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC)
            .build();
        // SAFETY: the entry names no memory.
        let (accepted, NewFd) = unsafe { self.fd.submit(entry, NewFd, true) }.await;
        let number = i32::try_from(accepted?).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made this descriptor for us; nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        if self.tcp {
            sockopt::set_tcp_nodelay(&fd, true)?;
        }
        Ok(Socket { fd: Fd::new(fd) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path
            && let Err(error) = fs::remove_file(path)
        {
            tracing::debug!(path = %path.display(), %error, "removing a socket");
        }
    }
}

/// Whether `path` is a socket that nobody listens on.
fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).is_err_and(refused)
}

/// A connected stream socket.
pub struct Socket {
    fd: Fd,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket {
    /// Takes a connected socket over.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd: Fd::new(fd) }
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// Those of socket(2) and connect(2).
    pub async fn connect_unix(path: impl AsRef<Path>) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path.as_ref())?;
        Self::connect(AddressFamily::UNIX, &address).await
    }

    /// Connects to a TCP address.
    ///
    /// # Errors
    /// Those of socket(2) and connect(2).
    pub async fn connect_tcp(address: SocketAddr) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = Self::connect(family, &address).await?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        Ok(socket)
    }

    async fn connect(family: AddressFamily, address: &impl SocketAddrArg) -> io::Result<Self> {
        let fd = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let fd = Fd::new(fd);
        let bytes = address_bytes(address);
        let number = types::Fd(fd.as_fd().as_raw_fd());
        let size = bytes.len() as libc::socklen_t;
        let entry = opcode::Connect::new(number, bytes.as_ptr().cast(), size).build();
        // SAFETY: the vector owns the address's bytes.
        let (connected, _) = unsafe { fd.submit(entry, bytes, true) }.await;
        connected?;
        Ok(Self { fd })
    }

    /// Receives what is there, up to `buf`'s length; 0 bytes is the end of the stream.
    pub async fn recv<B: Bytes>(&self, buf: B) -> (io::Result<usize>, B) {
        self.fd.recv(buf, 0, false).await
    }

    /// Fills `buf`. `UnexpectedEof` if the stream ends before (whatever came first is lost).
    pub async fn recv_exact<B: Bytes>(&self, mut buf: B) -> (io::Result<()>, B) {
        let (want, mut have) = (buf.span().1, 0);
        while have < want {
            let (got, same) = self.fd.recv(buf, have, true).await;
            buf = same;
            match got {
                Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), buf),
                Ok(count) => have += count,
                Err(error) if is_transient(&error) => {}
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Sends all of `buf`: at once what the socket has room for, the rest through the ring.
    pub async fn send_all<B: Bytes>(&self, mut buf: B) -> (io::Result<()>, B) {
        let (want, mut sent) = (buf.span().1, 0);
        if want > 0 {
            match self.fd.try_send(&mut buf, 0) {
                Ok(count) => sent = count,
                Err(error) if is_transient(&error) => {}
                Err(error) => return (Err(error), buf),
            }
        }
        while sent < want {
            let (done, same) = self.fd.send(buf, sent).await;
            buf = same;
            match done {
                Ok(count) => sent += count,
                Err(error) if is_transient(&error) => {}
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// As [`Self::send_all`] for `chunks`, in order; gives the list back to be used again.
    pub async fn send_vectored(
        &self,
        mut chunks: Box<Vectored>,
    ) -> (io::Result<()>, Box<Vectored>) {
        let (want, mut sent) = (chunks.len(), 0);
        if want > 0 {
            match self.fd.try_sendmsg(&mut chunks, 0) {
                Ok(count) => sent = count,
                Err(error) if is_transient(&error) => {}
                Err(error) => return (Err(error), chunks),
            }
        }
        while sent < want {
            let (done, same) = self.fd.sendmsg(chunks, sent).await;
            chunks = same;
            match done {
                Ok(count) => sent += count,
                Err(error) if is_transient(&error) => {}
                Err(error) => return (Err(error), chunks),
            }
        }
        (Ok(()), chunks)
    }

    /// shutdown(2); wakes whoever receives.
    ///
    /// # Errors
    /// `NotConnected` when the other side was faster.
    pub async fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.fd.shutdown(how).await.0.map(|_| ())
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// The bytes of a `sockaddr`.
fn address_bytes(address: &impl SocketAddrArg) -> Vec<u8> {
    let copy = |at: *const rustix::net::addr::SocketAddrOpaque, len: u32| {
        // SAFETY: SocketAddrArg promises `len` initialised bytes at `at` during the call.
        unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len as usize) }.to_vec()
    };
    // SAFETY: the pointer is used within the closure only.
    unsafe { address.with_sockaddr(copy) }
}
