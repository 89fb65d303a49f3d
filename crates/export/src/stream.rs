//! A connection, as a protocol's server sees it: it looks for more requests before it waits.

use std::io;

use ashlar_block::Segment;
use ashlar_engine::net::Socket;
use ashlar_nbd::stream::Stream;
use ashlar_nbd::tls::Channel;

/// A stream that tells what has arrived.
pub trait TryRecv: Stream {
    /// As [`Stream::recv`], of what has arrived already; `None` if nothing has. Not while another receive is in flight.
    ///
    /// # Errors
    /// The connection failed.
    fn try_recv(&self, into: Segment) -> io::Result<Option<usize>>;
}

impl TryRecv for Socket {
    fn try_recv(&self, into: Segment) -> io::Result<Option<usize>> {
        self.try_recv(into)
    }
}

impl<S: TryRecv> TryRecv for Channel<S> {
    fn try_recv(&self, into: Segment) -> io::Result<Option<usize>> {
        Self::try_recv(self, into, S::try_recv)
    }
}

impl<S: TryRecv> TryRecv for &S {
    fn try_recv(&self, into: Segment) -> io::Result<Option<usize>> {
        S::try_recv(self, into)
    }
}
