//! Several pieces of memory that one call reads or writes.

use ashlar_block::buffer::{Segment, shared};

/// The most pieces in one system call (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// One piece of memory, owned while the kernel uses it.
enum Chunk {
    Bytes(Vec<u8>),
    Segment(Segment),
}

impl Chunk {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Segment(segment) => segment.len(),
        }
    }

    fn start(&mut self) -> *mut u8 {
        match self {
            Self::Bytes(bytes) => bytes.as_mut_ptr(),
            Self::Segment(segment) => segment.as_ptr(),
        }
    }
}

/// A place in a list; the default is its start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Position {
    chunk: usize,
    offset: usize,
}

/// A list of chunks with the arrays that the kernel needs; reusable, since it keeps its memory.
pub struct ChunkList {
    chunks: Vec<Chunk>,
    iov: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl ChunkList {
    /// An empty list.
    pub fn new() -> Box<Self> {
        // SAFETY: a msghdr of zero bytes is valid: no address, no data, no control message.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Self { chunks: Vec::new(), iov: Vec::new(), header })
    }

    /// A list of these bytes.
    pub fn of(bytes: Vec<u8>) -> Box<Self> {
        let mut list = Self::new();
        list.push_bytes(bytes);
        list
    }

    /// Appends bytes.
    pub fn push_bytes(&mut self, bytes: Vec<u8>) {
        self.chunks.push(Chunk::Bytes(bytes));
    }

    /// Appends a segment.
    pub fn push_segment(&mut self, segment: Segment) {
        self.chunks.push(Chunk::Segment(segment));
    }

    /// Removes all chunks.
    pub fn clear(&mut self) {
        self.iov.clear();
        self.chunks.clear();
    }

    /// The total length of all chunks.
    pub fn len(&self) -> usize {
        self.chunks.iter().map(Chunk::len).sum()
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        let mut rest = &mut bytes[..];
        for chunk in &self.chunks {
            let (part, more) = rest.split_at_mut(chunk.len());
            match chunk {
                Chunk::Bytes(bytes) => part.copy_from_slice(bytes),
                Chunk::Segment(segment) => segment.copy_to(part),
            }
            rest = more;
        }
        bytes
    }

    /// Copies the bytes from `at` on into `to`, as many as both have, and moves `at` behind them; how many it were.
    pub fn copy_part(&self, at: &mut Position, to: &mut [u8]) -> usize {
        let mut count = 0;
        while let Some(chunk) = self.chunks.get(at.chunk)
            && count < to.len()
        {
            let part = (chunk.len() - at.offset).min(to.len() - count);
            let (from, into) = (at.offset..at.offset + part, &mut to[count..count + part]);
            match chunk {
                Chunk::Bytes(bytes) => into.copy_from_slice(&bytes[from]),
                Chunk::Segment(segment) => shared::load(&segment.bytes()[from], into),
            }
            count += part;
            at.offset += part;
            if at.offset == chunk.len() {
                *at = Position { chunk: at.chunk + 1, offset: 0 };
            }
        }
        count
    }

    /// Whether it contains no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The chunk, if there is one only: a call that sends it needs no array.
    pub(crate) fn only(&mut self) -> Option<(*mut u8, usize)> {
        match &mut self.chunks[..] {
            [chunk] => Some((chunk.start(), chunk.len())),
            _ => None,
        }
    }

    /// The array for the bytes beyond the first `skip`, as many as one call takes.
    pub(crate) fn iov(&mut self, mut skip: usize) -> (*const libc::iovec, u32) {
        self.iov.clear();
        for chunk in &mut self.chunks {
            let len = chunk.len();
            if skip >= len {
                skip -= len;
                continue;
            }
            if self.iov.len() == MAX_PIECES {
                break;
            }
            // Inside the chunk's memory, since skip < len.
            let start = chunk.start().wrapping_add(skip);
            self.iov.push(libc::iovec { iov_base: start.cast(), iov_len: len - skip });
            skip = 0;
        }
        (self.iov.as_ptr(), self.iov.len() as u32)
    }

    /// As [`Self::iov`], in a message header for sendmsg.
    pub(crate) fn message(&mut self, skip: usize) -> *const libc::msghdr {
        let (iov, count) = self.iov(skip);
        self.header.msg_iov = iov.cast_mut();
        self.header.msg_iovlen = count as usize;
        &raw const self.header
    }
}
