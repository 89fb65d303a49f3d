//! What the TLS library reads and writes instead of a socket: records in memory.

use std::io::{self, Read, Write};

use ashlar_block::Segment;
use ashlar_block::buffer::{Buffer, shared};

/// How much is received at a time, bytes.
const INPUT: usize = 128 << 10;
/// How much is sent at a time, bytes.
const OUTPUT: usize = 128 << 10;
/// The memory of a session for what is received and sent, until the connection ends, bytes.
pub const SESSION_BYTES: usize = INPUT + OUTPUT;
/// The most data in a record, bytes.
pub(super) const RECORD: usize = 16 << 10;
/// The longest record: what ciphers of TLS 1.2 add to its data, rounded up, bytes.
const SEALED: usize = RECORD + 512;

/// See the module text.
#[derive(Debug)]
pub(super) struct Records {
    input: Segment,
    start: usize,
    end: usize,
    /// The peer has ended its half of the connection.
    has_ended: bool,
    output: Segment,
    /// What of the output is sent at the moment, or was sent; the rest up to `sealed` follows.
    taken: usize,
    sealed: usize,
}

impl Records {
    /// `None`: out of memory.
    pub(super) fn new() -> Option<Self> {
        let input = Buffer::try_zeroed(INPUT)?.into_whole();
        let output = Buffer::try_zeroed(OUTPUT)?.into_whole();
        Some(Self { input, start: 0, end: 0, has_ended: false, output, taken: 0, sealed: 0 })
    }

    /// Where the next receive goes; the library has taken all of the former one.
    pub(super) fn room(&self) -> Segment {
        debug_assert!(self.start == self.end, "what was received is lost");
        self.input.clone()
    }

    /// Takes note of `count` bytes in the room; 0 is the end of the stream.
    pub(super) fn received(&mut self, count: usize) {
        (self.start, self.end, self.has_ended) = (0, count, count == 0);
    }

    /// Whether the peer has ended its half, and the library has taken all that came before.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended && self.start == self.end
    }

    /// Whether the record of a further [`RECORD`] bytes fits.
    pub(super) fn has_room(&self) -> bool {
        OUTPUT - self.sealed >= SEALED
    }

    /// Takes what is to be sent; `None` if nothing is. [`Self::sent`] follows.
    pub(super) fn take_output(&mut self) -> Option<Segment> {
        let output = self.has_output().then(|| self.output.slice(self.taken..self.sealed));
        self.taken = self.sealed;
        output
    }

    /// What was taken is sent: its memory may be used again, unless more was written meanwhile, which is after it.
    pub(super) fn sent(&mut self) {
        if !self.has_output() {
            (self.taken, self.sealed) = (0, 0);
        }
    }

    /// Whether something is to be sent.
    pub(super) fn has_output(&self) -> bool {
        self.taken < self.sealed
    }
}

impl Read for Records {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = to.len().min(self.end - self.start);
        if count == 0 && !self.has_ended && !to.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        shared::load(&self.input.bytes()[self.start..self.start + count], &mut to[..count]);
        self.start += count;
        Ok(count)
    }
}

impl Write for Records {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let count = from.len().min(OUTPUT - self.sealed);
        if count == 0 && !from.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let to = self.sealed..self.sealed + count;
        shared::store(&from[..count], &self.output.bytes()[to]);
        self.sealed += count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
