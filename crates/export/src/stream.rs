//! A connection, as seen by a protocol's server.
//!
//! Memory is passed as segments, owned by the operation until it ends, so that a completion-based engine can pass it to
//! the kernel. Both halves take `&self`: one receive and one send may be in flight at the same time.

use std::future::Future;
use std::io;

use ashlar_block::buffer::Segment;
use ashlar_engine::ChunkList;
use ashlar_engine::net::Socket;

/// A reliable, ordered stream of bytes in both directions.
pub trait Stream {
    /// Receives at least one byte into `into`, from its start, and ends with the count; 0 is the end
    /// of the stream. `into` is not empty. Dropping the future may lose what was received.
    ///
    /// # Errors
    /// The connection failed.
    fn recv(&self, into: Segment) -> impl Future<Output = io::Result<usize>>;

    /// As [`Self::recv`], of what has arrived already; `None` if nothing has. Not while another receive is in flight.
    ///
    /// # Errors
    /// The connection failed.
    fn try_recv(&self, into: Segment) -> io::Result<Option<usize>>;

    /// Fills all of `into`. Dropping the future may lose what was received.
    ///
    /// # Errors
    /// `UnexpectedEof` if the stream ends early; the connection failed.
    fn recv_exact(&self, into: Segment) -> impl Future<Output = io::Result<()>>;

    /// Sends all bytes of `from`, in order, in as few system calls as possible.
    ///
    /// # Errors
    /// The connection failed; an unknown part may have been sent.
    fn send(&self, from: Vec<Segment>) -> impl Future<Output = io::Result<()>>;
}

impl Stream for Socket {
    async fn recv(&self, into: Segment) -> io::Result<usize> {
        loop {
            let (received, _) = self.recv(into.clone()).await;
            match received {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn try_recv(&self, into: Segment) -> io::Result<Option<usize>> {
        self.try_recv(into)
    }

    async fn recv_exact(&self, into: Segment) -> io::Result<()> {
        self.recv_exact(into).await.0
    }

    async fn send(&self, mut from: Vec<Segment>) -> io::Result<()> {
        if from.len() == 1 {
            return self.send_all(from.remove(0)).await.0;
        }
        let mut chunks = ChunkList::new();
        from.into_iter().for_each(|segment| chunks.push_segment(segment));
        self.send_vectored(chunks).await.0
    }
}
