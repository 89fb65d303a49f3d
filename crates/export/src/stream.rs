//! A connection, as a protocol's server sees it: it looks for more requests before it waits.

use std::io;

use ashlar_block::Segment;
use ashlar_engine::net::Socket;
use ashlar_nbd::stream::Stream;

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
