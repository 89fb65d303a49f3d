//! Stream sockets, Unix and TCP.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::{Duration, Instant};

use io_uring::{opcode, types};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    socket_with, sockopt,
};

use crate::chunk_list::ChunkList;
use crate::fd::{Bytes, Fd};
use crate::op::{NewFd, Op, Payload};
use crate::socket_file::{self, SocketFile};
use crate::timer::sleep;

/// Idle time after which the kernel probes a TCP client.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// The interval between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered probes that end the connection.
const KEEPALIVE_COUNT: u32 = 6;

/// The pause after an accept(2) that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens, on which no reactor accepts connections yet: they wait.
pub struct BoundSocket {
    /// Declared before the socket, so that the file is removed while the socket still listens: no process takes it for
    /// a stale one.
    file: Option<SocketFile>,
    fd: OwnedFd,
    tcp: bool,
}

impl BoundSocket {
    /// Listens on a Unix socket whose file gets exactly the permissions `mode`, whatever the umask: a client needs
    /// write permission. The file belongs to `group`, if there is one, before a client can connect. A stale socket of a
    /// process that is gone is replaced. Dropping the socket removes its file, unless another socket has taken its place.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens there or the path is not a socket; others of bind(2), and of chown(2): only root
    /// may choose a group that the process does not have.
    pub fn unix(path: impl AsRef<Path>, mode: u32, group: Option<u32>) -> io::Result<Self> {
        let (fd, file) = socket_file::listen(path.as_ref(), mode, group)?;
        Ok(Self { file: Some(file), fd, tcp: false })
    }

    /// Listens on a TCP address.
    ///
    /// # Errors
    /// Those of bind(2).
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { file: None, fd: TcpListener::bind(address)?.into(), tcp: true })
    }

    /// A socket that already listens; its file, if it has one, is another process's.
    ///
    /// # Errors
    /// When it is not a socket.
    pub fn listening(fd: OwnedFd) -> io::Result<Self> {
        let family = sockopt::socket_domain(&fd)?;
        let tcp = family == AddressFamily::INET || family == AddressFamily::INET6;
        Ok(Self { file: None, fd, tcp })
    }

    /// A Unix socket that already listens, at `file`: dropping it removes the file.
    pub fn with_file(fd: OwnedFd, file: SocketFile) -> Self {
        Self { file: Some(file), fd, tcp: false }
    }

    /// The path of a Unix socket that has one.
    pub fn path(&self) -> Option<PathBuf> {
        let address = SocketAddrUnix::try_from(rustix::net::getsockname(&self.fd).ok()?).ok()?;
        Some(OsStr::from_bytes(address.path_bytes()?).into())
    }

    /// The TCP address it is bound to (port 0 replaced by the port that the kernel chose).
    ///
    /// # Errors
    /// Not a TCP socket, or those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        local_addr(&self.fd)
    }

    /// Takes the file of a Unix socket: from now on dropping that removes it, even if the socket still listens.
    pub fn take_file(&mut self) -> Option<SocketFile> {
        self.file.take()
    }

    /// The file of a Unix socket.
    pub fn file_mut(&mut self) -> Option<&mut SocketFile> {
        self.file.as_mut()
    }
}

fn local_addr(fd: impl AsFd) -> io::Result<SocketAddr> {
    let address = rustix::net::getsockname(fd)?;
    SocketAddr::try_from(address).map_err(io::Error::from)
}

/// A listening socket on a reactor.
pub struct Listener {
    /// Declared before the socket, as in [`BoundSocket`].
    #[expect(dead_code, reason = "removes the file at the end")]
    file: Option<SocketFile>,
    fd: Fd,
    tcp: bool,
}

impl From<BoundSocket> for Listener {
    /// Accepts connections on the current reactor.
    ///
    /// # Panics
    /// On a thread without a reactor.
    fn from(BoundSocket { file, fd, tcp }: BoundSocket) -> Self {
        Self { file, fd: Fd::new(fd), tcp }
    }
}

impl Listener {
    /// As [`BoundSocket::unix`], without a group.
    ///
    /// # Errors
    /// As there.
    pub fn bind_unix(path: impl AsRef<Path>, mode: u32) -> io::Result<Self> {
        BoundSocket::unix(path, mode, None).map(Self::from)
    }

    /// As [`BoundSocket::tcp`].
    ///
    /// # Errors
    /// As there.
    pub fn bind_tcp(address: SocketAddr) -> io::Result<Self> {
        BoundSocket::tcp(address).map(Self::from)
    }

    /// As [`BoundSocket::local_addr`].
    ///
    /// # Errors
    /// As there.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        local_addr(&self.fd)
    }

    /// Waits for a connection, also after errors that may pass, such as a lack of descriptors: `passing` gets these.
    ///
    /// # Errors
    /// The listening socket can no longer be used.
    pub async fn next(&self, passing: impl Fn(&io::Error)) -> io::Result<Socket> {
        loop {
            match self.accept().await {
                Err(error) if is_passing(&error) => passing(&error),
                result => return result,
            }
            sleep(ACCEPT_PAUSE).await;
        }
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// Those of accept(2).
    pub async fn accept(&self) -> io::Result<Socket> {
        let number = types::Fd(self.fd.as_fd().as_raw_fd());
        let entry = opcode::Accept::new(number, ptr::null_mut(), ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC)
            .build();
        // SAFETY: the entry names no memory.
        let (accepted, NewFd) = unsafe { self.fd.submit(entry, NewFd, true) }.await;
        let number = i32::try_from(accepted?).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made this descriptor for us; no other code knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        // An error of one connection does not stop the listener.
        if !self.tcp {
            prepare_unix(&fd);
        } else if let Err(error) = prepare_tcp(&fd) {
            tracing::debug!(%error, "options of a TCP connection");
        }
        Ok(Socket { fd: Fd::new(fd) })
    }
}

/// Whether accepting may succeed later, because the listening socket itself is not at fault. accept(2) also returns
/// network errors of connections that are already gone.
fn is_passing(error: &io::Error) -> bool {
    let of_the_socket = [Errno::BADF, Errno::FAULT, Errno::INVAL, Errno::NOTSOCK, Errno::OPNOTSUPP];
    Errno::from_io_error(error).is_some_and(|errno| !of_the_socket.contains(&errno))
}

/// Lets a Unix socket hold several long messages: by default it holds one of 128 KiB and is writable again when three quarters
/// of that have been received, so sender and receiver would take turns. (Other than TCP's, its buffers do not grow by themselves.)
fn prepare_unix(fd: &impl AsFd) {
    const SEND_BUFFER_BYTES: usize = 1 << 20;
    // The kernel takes less than that if its limit (net.core.wmem_max) is lower.
    if let Err(error) = sockopt::set_socket_send_buffer_size(fd, SEND_BUFFER_BYTES) {
        tracing::debug!(%error, "the buffer of a Unix socket");
    }
}

/// Sets an accepted TCP connection up: small messages are sent at once, and a vanished peer is noticed after two
/// minutes, even when there is nothing to send to it.
fn prepare_tcp(fd: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(fd, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(fd, KEEPALIVE_COUNT)?;
    sockopt::set_socket_keepalive(fd, true)?;
    Ok(())
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
    /// Takes ownership of a connected socket.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd: Fd::new(fd) }
    }

    /// Gives the descriptor away; [`Self::from_fd`] on another reactor takes it up.
    ///
    /// # Errors
    /// An operation is in flight: the socket.
    pub fn into_fd(self) -> Result<OwnedFd, Self> {
        self.fd.into_fd().map_err(|fd| Self { fd })
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// Those of socket(2) and connect(2).
    pub async fn connect_unix(path: impl AsRef<Path>) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path.as_ref())?;
        let socket = Self::connect(AddressFamily::UNIX, &address).await?;
        prepare_unix(&socket);
        Ok(socket)
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

    /// Receives available data, up to `buf`'s length; 0 bytes is the end of the stream.
    pub async fn recv<B: Bytes>(&self, buf: B) -> (io::Result<usize>, B) {
        self.fd.recv(buf, 0, false).await
    }

    /// As [`Self::recv`], by a direct system call that does not wait; `None` if nothing has arrived.
    ///
    /// # Errors
    /// Those of recv(2).
    pub fn try_recv<B: Bytes>(&self, mut buf: B) -> io::Result<Option<usize>> {
        match self.fd.try_recv(&mut buf) {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// As [`Self::recv`], for a Unix socket whose peer may send descriptors: appends them to `files`, at most [`MAX_FILES`] at
    /// a time; the kernel drops more.
    pub async fn recv_with_files(
        &self,
        mut buf: Vec<u8>,
        files: &mut Vec<OwnedFd>,
    ) -> (io::Result<usize>, Vec<u8>) {
        loop {
            match receive_with_files(&self.fd, &mut buf, files) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => return (other, buf),
            }
            if let Err(error) = self.fd.readable().await {
                return (Err(error), buf);
            }
        }
    }

    /// Fills `buf`. `UnexpectedEof` if the stream ends early (the bytes before that are lost).
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

    /// Sends all of `buf`: first directly as much as the socket has room for, the rest through the ring.
    pub async fn send_all<B: Bytes>(&self, mut buf: B) -> (io::Result<()>, B) {
        let want = buf.span().1;
        let first = if want > 0 { self.fd.try_send(&mut buf, 0) } else { Ok(0) };
        send_rest(buf, want, first, |buf, sent| self.fd.send(buf, sent)).await
    }

    /// As [`Self::send_all`] for `chunks`, in order; returns the list for reuse.
    pub async fn send_vectored(
        &self,
        mut chunks: Box<ChunkList>,
    ) -> (io::Result<()>, Box<ChunkList>) {
        let want = chunks.len();
        let first = if want > 0 { self.fd.try_sendmsg(&mut chunks) } else { Ok(0) };
        send_rest(chunks, want, first, |chunks, sent| self.fd.sendmsg(chunks, sent)).await
    }

    /// shutdown(2); wakes tasks that are receiving.
    ///
    /// # Errors
    /// `NotConnected` if the other side disconnected first.
    pub async fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.fd.shutdown(how).await.0.map(|_| ())
    }
}

/// The most descriptors in one message.
pub const MAX_FILES: usize = 64;

/// Receives bytes that wait in a Unix socket, and descriptors that came with them, which are added to `files`.
///
/// # Errors
/// `WouldBlock` if nothing waits; others of recvmsg(2).
pub fn receive_with_files(
    fd: impl AsFd,
    buf: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(fd, &mut [IoSliceMut::new(buf)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            files.extend(descriptors);
        }
    }
    Ok(received.bytes)
}

/// Sends bytes and descriptors to a connected Unix socket, and waits until all are sent.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send_with_files(
    fd: impl AsFd,
    mut bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::other("too many descriptors"));
    }
    while !bytes.is_empty() {
        match sendmsg(&fd, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        // They went with the first byte.
        control.clear();
    }
    Ok(())
}

/// Waits until `fd` is readable, or closed; false if `deadline` comes first.
///
/// # Errors
/// Those of poll(2).
pub fn readable_until(fd: BorrowedFd<'_>, deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match poll(&mut polled, left.as_ref()) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Sends the rest of `want` bytes of `data` through the ring, after a direct attempt with the result `first`.
async fn send_rest<T: Payload>(
    mut data: T,
    want: usize,
    first: io::Result<usize>,
    send: impl Fn(T, usize) -> Op<T>,
) -> (io::Result<()>, T) {
    let (mut done, mut sent) = (first, 0);
    loop {
        match done {
            Ok(count) => sent += count,
            Err(error) if is_transient(&error) => {}
            Err(error) => return (Err(error), data),
        }
        if sent >= want {
            return (Ok(()), data);
        }
        (done, data) = send(data, sent).await;
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
