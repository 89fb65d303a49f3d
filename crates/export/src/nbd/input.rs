//! Bytes received but not consumed yet.
//!
//! One receive takes many requests. The amount requested adapts: it doubles while receives come back full and falls to
//! [`MIN_WINDOW`] after a large payload, since bytes of the next payload that are received here must be copied, while
//! the rest goes straight into the payload's buffer.

use std::io;

use ashlar_block::buffer::{Buffer, Segment};

use super::end::Disconnect;
use super::handshake::MAX_MESSAGE;
use crate::stream::TryRecv;

/// Size of the receive buffer, bytes.
const CAPACITY: usize = 128 << 10;
/// The least that a receive asks for, bytes: 146 requests without payload.
const MIN_WINDOW: usize = 4 << 10;
/// The payload size from which copying costs more than another system call.
const LARGE_PAYLOAD: usize = 32 << 10;

// An incomplete message leaves room for more of it.
const _: () = assert!(CAPACITY > MAX_MESSAGE);

/// The receiving end of a connection.
pub(crate) struct Input<'a, S> {
    stream: &'a S,
    buffer: Buffer,
    start: usize,
    end: usize,
    window: usize,
}

impl<'a, S: TryRecv> Input<'a, S> {
    /// `None`: out of memory.
    pub(crate) fn new(stream: &'a S) -> Option<Self> {
        let buffer = Buffer::try_alloc(CAPACITY)?;
        Some(Self { stream, buffer, start: 0, end: 0, window: MIN_WINDOW })
    }

    /// As [`Self::new`], with what another one has received and not consumed.
    pub(crate) fn resume(stream: &'a S, received: &[u8]) -> Option<Self> {
        let mut input = Self::new(stream)?;
        input.buffer.as_mut_slice()[..received.len()].copy_from_slice(received);
        input.end = received.len();
        Some(input)
    }

    /// The bytes received but not consumed.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer.as_slice()[self.start..self.end]
    }

    /// Whether no bytes are left.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Consumes `n` bytes of [`Self::bytes`].
    pub(crate) fn consume(&mut self, n: usize) {
        self.start += n;
        debug_assert!(self.start <= self.end);
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Receives more; `false` is the end of the stream. At most [`MAX_MESSAGE`] bytes may be left
    /// unconsumed.
    pub(crate) async fn fill(&mut self) -> io::Result<bool> {
        let room = self.room();
        let n = self.stream.recv(room).await?;
        Ok(self.filled(n))
    }

    /// As [`Self::fill`], with what has arrived already; `None` if nothing has.
    pub(crate) fn try_fill(&mut self) -> io::Result<Option<bool>> {
        let room = self.room();
        let received = self.stream.try_recv(room)?;
        Ok(received.map(|n| self.filled(n)))
    }

    /// Where the next receive goes.
    fn room(&mut self) -> Segment {
        if CAPACITY - self.end < self.window {
            let (start, end) = (self.start, self.end);
            self.buffer.as_mut_slice().copy_within(start..end, 0);
            (self.start, self.end) = (0, end - start);
        }
        let limit = CAPACITY.min(self.end + self.window);
        self.buffer.segment(self.end..limit)
    }

    /// Takes note of `n` bytes in the room; whether there were any.
    fn filled(&mut self, n: usize) -> bool {
        self.end += n;
        if n == self.window {
            self.window = (2 * self.window).min(CAPACITY);
        }
        n > 0
    }

    /// Fills `payload` with the next bytes; with `try_first` it does not wait if they have all arrived.
    pub(crate) async fn payload(
        &mut self,
        mut payload: Buffer,
        try_first: bool,
    ) -> Result<Buffer, Disconnect> {
        let len = payload.len();
        let mut here = len.min(self.end - self.start);
        payload.as_mut_slice()[..here].copy_from_slice(&self.bytes()[..here]);
        self.consume(here);
        while try_first && here < len {
            match self.stream.try_recv(payload.segment(here..len))? {
                Some(0) => return Err(Disconnect::Truncated),
                Some(n) => here += n,
                None => break,
            }
        }
        if here < len {
            match self.stream.recv_exact(payload.segment(here..len)).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(Disconnect::Truncated);
                }
                result => result?,
            }
        }
        if len >= LARGE_PAYLOAD {
            self.window = MIN_WINDOW;
        }
        Ok(payload)
    }

    /// Discards the next `len` bytes.
    pub(crate) async fn skip(&mut self, mut len: usize) -> Result<(), Disconnect> {
        loop {
            let n = len.min(self.end - self.start);
            self.consume(n);
            len -= n;
            if len == 0 {
                return Ok(());
            }
            if !self.fill().await? {
                return Err(Disconnect::Truncated);
            }
        }
    }
}
