//! A reliable, ordered stream of bytes in both directions, as one end of a connection sees it: a client or a server.
//!
//! Memory belongs to an operation until that ends, so that a completion-based engine can pass it to the kernel. Both halves take `&self`:
//! one receive and one send may be in flight at the same time.

use std::io;

use ashlar_block::Segment;
use ashlar_engine::ChunkList;
use ashlar_engine::net::Socket;
use rustix::net::Shutdown;

/// See the module text. Calls that are interrupted are repeated.
pub trait Stream {
    /// Receives at least one byte into `into`, from its start, and ends with the count; 0 is the end of the stream. `into` is not
    /// empty. Dropping the future may lose what was received.
    ///
    /// # Errors
    /// The connection failed.
    fn recv(&self, into: Segment) -> impl Future<Output = io::Result<usize>>;

    /// Fills all of `into`. Dropping the future may lose what was received.
    ///
    /// # Errors
    /// `UnexpectedEof` if the stream ends early; the connection failed.
    fn recv_exact(&self, into: Segment) -> impl Future<Output = io::Result<()>>;

    /// Sends all of `from`, in order, in as few system calls as possible, and returns the list for reuse.
    ///
    /// # Errors
    /// The connection failed; an unknown part may have been sent.
    fn send(&self, from: Box<ChunkList>) -> impl Future<Output = (io::Result<()>, Box<ChunkList>)>;

    /// Ends one direction or both, also for a task that uses it now. One that has ended already stays so.
    fn end(&self, how: Shutdown);
}

impl<S: Stream> Stream for &S {
    fn recv(&self, into: Segment) -> impl Future<Output = io::Result<usize>> {
        S::recv(self, into)
    }

    fn recv_exact(&self, into: Segment) -> impl Future<Output = io::Result<()>> {
        S::recv_exact(self, into)
    }

    fn send(&self, from: Box<ChunkList>) -> impl Future<Output = (io::Result<()>, Box<ChunkList>)> {
        S::send(self, from)
    }

    fn end(&self, how: Shutdown) {
        S::end(self, how);
    }
}

impl Stream for Socket {
    async fn recv(&self, mut into: Segment) -> io::Result<usize> {
        loop {
            match Self::recv(self, into).await {
                (Err(error), same) if error.kind() == io::ErrorKind::Interrupted => into = same,
                (result, _) => return result,
            }
        }
    }

    async fn recv_exact(&self, into: Segment) -> io::Result<()> {
        Self::recv_exact(self, into).await.0
    }

    async fn send(&self, from: Box<ChunkList>) -> (io::Result<()>, Box<ChunkList>) {
        self.send_vectored(from).await
    }

    fn end(&self, how: Shutdown) {
        let (Ok(()) | Err(_)) = rustix::net::shutdown(self, how);
    }
}
