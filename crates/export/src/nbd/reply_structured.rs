//! Structured reply chunks.
//!
//! Each of our replies is one chunk with `DONE` set, but for several metadata contexts one chunk for each: a read's data is complete
//! before the header is sent, so no error can occur after it.

use std::ops::Range;

use super::block_status::Extent;
use super::errno::Errno;
use ashlar_nbd::wire::{
    MAX_STRING, REPLY_FLAG_DONE, REPLY_TYPE_BLOCK_STATUS, REPLY_TYPE_ERROR, REPLY_TYPE_NONE,
    REPLY_TYPE_OFFSET_DATA, STRUCTURED_REPLY_MAGIC,
};

/// Bytes of a chunk's header.
pub const HEADER_LEN: usize = 20;
/// Where the header has its flags.
const FLAGS: Range<usize> = 4..6;
/// Bytes before the data of a read: header and offset.
pub const OFFSET_DATA_LEN: usize = HEADER_LEN + 8;

/// The header of a chunk that ends its reply.
fn header(cookie: u64, kind: u16, payload_len: u32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    header[FLAGS].copy_from_slice(&REPLY_FLAG_DONE.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..].copy_from_slice(&payload_len.to_be_bytes());
    header
}

/// Success without a payload.
pub fn none(cookie: u64) -> [u8; HEADER_LEN] {
    header(cookie, REPLY_TYPE_NONE, 0)
}

/// The header for `len` bytes (at most [`ashlar_nbd::wire::MAX_PAYLOAD`], so that the sum fits) read at `offset`.
pub fn offset_data(cookie: u64, offset: u64, len: u32) -> [u8; OFFSET_DATA_LEN] {
    let mut bytes = [0; OFFSET_DATA_LEN];
    bytes[..HEADER_LEN].copy_from_slice(&header(cookie, REPLY_TYPE_OFFSET_DATA, len + 8));
    bytes[HEADER_LEN..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

/// Failure, with a message for a person (truncated to the longest string allowed).
pub fn error(cookie: u64, error: Errno, message: &str) -> Vec<u8> {
    let message = &message.as_bytes()[..message.floor_char_boundary(MAX_STRING)];
    // At most 4096: fits both fields.
    let len = message.len() as u16;
    let mut bytes = header(cookie, REPLY_TYPE_ERROR, 6 + u32::from(len)).to_vec();
    bytes.extend(error.code().to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend(message);
    bytes
}

/// The status of consecutive `extents` (at least one, at most
/// [`super::block_status::MAX_EXTENTS`]) in the metadata context `context`. The chunk of the last context ends the reply.
pub fn block_status(cookie: u64, context: u32, extents: &[Extent], is_last: bool) -> Vec<u8> {
    debug_assert!(!extents.is_empty());
    // MAX_EXTENTS keeps the length far below u32::MAX.
    let payload_len = 4 + 8 * extents.len() as u32;
    let mut bytes = header(cookie, REPLY_TYPE_BLOCK_STATUS, payload_len).to_vec();
    if !is_last {
        bytes[FLAGS].fill(0);
    }
    bytes.extend(context.to_be_bytes());
    for extent in extents {
        bytes.extend(extent.length.to_be_bytes());
        bytes.extend(extent.state.to_be_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_nbd::wire::Fields;

    /// Checks the header and returns type and payload.
    fn chunk(bytes: &[u8], cookie: u64) -> (u16, &[u8]) {
        let mut fields = Fields(bytes);
        assert_eq!(fields.u32(), Some(STRUCTURED_REPLY_MAGIC));
        assert_eq!(fields.u16(), Some(REPLY_FLAG_DONE));
        let kind = fields.u16().unwrap();
        assert_eq!(fields.u64(), Some(cookie));
        assert_eq!(fields.counted().map(<[u8]>::len), Some(bytes.len() - HEADER_LEN));
        (kind, &bytes[HEADER_LEN..])
    }

    #[test]
    fn success_has_no_payload() {
        assert_eq!(chunk(&none(5), 5), (REPLY_TYPE_NONE, &[][..]));
    }

    #[test]
    fn read_data_is_announced_with_its_offset() {
        let mut bytes = offset_data(6, 0x1_0000_0001, 3).to_vec();
        bytes.extend(b"abc");
        let (kind, payload) = chunk(&bytes, 6);
        assert_eq!(kind, REPLY_TYPE_OFFSET_DATA);
        assert_eq!(payload, [0, 0, 0, 1, 0, 0, 0, 1, b'a', b'b', b'c']);
    }

    #[test]
    fn an_error_carries_its_message_cut_between_characters() {
        let bytes = error(7, Errno::Io, "no");
        let (kind, payload) = chunk(&bytes, 7);
        assert_eq!((kind, payload), (REPLY_TYPE_ERROR, &[0, 0, 0, 5, 0, 2, b'n', b'o'][..]));
        let two_bytes_each = "\u{e9}".repeat(MAX_STRING / 2 + 1);
        let odd = format!("a{two_bytes_each}");
        let bytes = error(7, Errno::Io, &odd);
        let (_, payload) = chunk(&bytes, 7);
        assert_eq!(payload.len() - 6, MAX_STRING - 1);
        assert!(std::str::from_utf8(&payload[6..]).is_ok());
    }

    #[test]
    fn extents_follow_their_context() {
        let extents = [Extent { length: 512, state: 0 }, Extent { length: 1024, state: 3 }];
        let first = block_status(8, 2, &extents, false);
        assert_eq!(first[FLAGS], [0, 0]);
        let bytes = block_status(8, 1, &extents, true);
        let (kind, payload) = chunk(&bytes, 8);
        assert_eq!(kind, REPLY_TYPE_BLOCK_STATUS);
        assert_eq!(payload, [0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 3]);
    }
}
