//! The bytes that a server sends, buffered.

use std::io;

use ashlar_block::Segment;
use ashlar_block::buffer::{Buffer, shared};

use crate::stream::Stream;

/// How much is received at a time, beside data that go to the memory of their request directly.
const CAPACITY: usize = 64 << 10;
/// Data of this length go to the memory of their request directly.
const LONG: usize = CAPACITY / 4;
/// How much is received at a time after such data: more like them are likely to follow, and what is received here is copied.
const HEADERS: usize = 512;

/// See the module text.
pub(crate) struct Input {
    memory: Segment,
    start: usize,
    end: usize,
    /// How much is received at a time, if it is more than what is needed.
    ahead: usize,
}

impl Input {
    pub(crate) fn new() -> Self {
        Self { memory: Buffer::zeroed(CAPACITY).into_whole(), start: 0, end: 0, ahead: CAPACITY }
    }

    /// Whether all that was received is used.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Receives until `count` bytes, at most [`CAPACITY`], are there.
    async fn need(&mut self, stream: &impl Stream, count: usize) -> io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start + count > CAPACITY {
            let mut left = vec![0; self.end - self.start];
            self.memory.slice(self.start..self.end).copy_to(&mut left);
            self.memory.slice(0..left.len()).copy_from(&left);
            (self.start, self.end) = (0, left.len());
        }
        while self.end - self.start < count {
            let until = (self.start + self.ahead.max(count)).min(CAPACITY);
            match stream.recv(self.memory.slice(self.end..until)).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.end += count,
            }
        }
        Ok(())
    }

    /// The next bytes.
    ///
    /// # Errors
    /// Those of receiving, and `UnexpectedEof`.
    pub(crate) async fn array<const N: usize>(
        &mut self,
        stream: &impl Stream,
    ) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.need(stream, N).await?;
        self.memory.slice(self.start..self.start + N).copy_to(&mut bytes);
        self.start += N;
        Ok(bytes)
    }

    /// The next `len` bytes, at most [`CAPACITY`].
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn bytes(&mut self, stream: &impl Stream, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.need(stream, len).await?;
        self.memory.slice(self.start..self.start + len).copy_to(&mut bytes);
        self.start += len;
        Ok(bytes)
    }

    /// Fills `memory` with the next bytes.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn fill(&mut self, stream: &impl Stream, memory: Segment) -> io::Result<()> {
        self.ahead = if memory.len() < LONG { CAPACITY } else { HEADERS };
        let here = memory.len().min(self.end - self.start);
        let from = self.memory.slice(self.start..self.start + here);
        shared::copy(from.bytes(), memory.slice(0..here).bytes());
        self.start += here;
        if here < memory.len() {
            // Small rests come together with what follows them.
            let rest = memory.slice(here..memory.len());
            if rest.len() >= LONG {
                return stream.recv_exact(rest).await;
            }
            self.need(stream, rest.len()).await?;
            let from = self.memory.slice(self.start..self.start + rest.len());
            shared::copy(from.bytes(), rest.bytes());
            self.start += rest.len();
        }
        Ok(())
    }
}
