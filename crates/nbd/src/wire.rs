//! The numbers of the protocol and the big-endian fields they travel in.
//!
//! Names are those of the NBD protocol document ("Values") without the `NBD_` prefix.

/// First magic of the greeting, ASCII `NBDMAGIC`.
pub const INIT_PASSWD: u64 = 0x4e42_444d_4147_4943;
/// Second magic of the greeting and first field of every option, ASCII `IHAVEOPT`.
pub const OPTS_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First field of every reply to an option.
pub const REP_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First field of every transmission request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First field of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First field of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag: options get replies. Client flag of the same bit: understood.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag: the 124 zeroes after `EXPORT_NAME` can be left out. Client flag of the same bit:
/// leave them out.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Transmission flag: always set.
pub const FLAG_HAS_FLAGS: u16 = 1 << 0;
/// Transmission flag: commands that write get `EPERM`.
pub const FLAG_READ_ONLY: u16 = 1 << 1;
/// Transmission flag: `FLUSH` may be sent.
pub const FLAG_SEND_FLUSH: u16 = 1 << 2;
/// Transmission flag: command flag `FUA` may be set.
pub const FLAG_SEND_FUA: u16 = 1 << 3;
/// Transmission flag: the medium rotates.
pub const FLAG_ROTATIONAL: u16 = 1 << 4;
/// Transmission flag: `TRIM` may be sent.
pub const FLAG_SEND_TRIM: u16 = 1 << 5;
/// Transmission flag: `WRITE_ZEROES` and its flag `NO_HOLE` may be sent.
pub const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Transmission flag: `READ` may carry `DF`; only with structured replies.
pub const FLAG_SEND_DF: u16 = 1 << 7;
/// Transmission flag: several connections see one cache, a flush on any covers all.
pub const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
/// Transmission flag: `CACHE` may be sent.
pub const FLAG_SEND_CACHE: u16 = 1 << 10;
/// Transmission flag: `WRITE_ZEROES` may carry `FAST_ZERO`.
pub const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

/// Command flag: the reply waits for the data to be on stable storage.
pub const CMD_FLAG_FUA: u16 = 1 << 0;
/// Command flag of `WRITE_ZEROES`: keep the range allocated.
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
/// Command flag of `READ`: at most one content chunk.
pub const CMD_FLAG_DF: u16 = 1 << 2;
/// Command flag of `BLOCK_STATUS`: exactly one extent.
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
/// Command flag of `WRITE_ZEROES`: fail rather than be as slow as a write.
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

/// Option: choose an export and begin transmission; the only one that cannot be answered with an error.
pub const OPT_EXPORT_NAME: u32 = 1;
/// Option: end the handshake.
pub const OPT_ABORT: u32 = 2;
/// Option: TLS from now on.
pub const OPT_STARTTLS: u32 = 5;
/// Option: choose an export, with information about it.
pub const OPT_GO: u32 = 7;
/// Option: structured replies.
pub const OPT_STRUCTURED_REPLY: u32 = 8;
/// Option: choose metadata contexts.
pub const OPT_SET_META_CONTEXT: u32 = 10;

/// The metadata context that tells of holes.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";

/// Reply to an option: done.
pub const REP_ACK: u32 = 1;
/// Reply to an option: an export.
pub const REP_SERVER: u32 = 2;
/// Reply to an option: information about an export.
pub const REP_INFO: u32 = 3;
/// Reply to an option: a metadata context.
pub const REP_META_CONTEXT: u32 = 4;
/// Bit of all error replies to options.
pub const REP_FLAG_ERROR: u32 = 1 << 31;
/// Error reply to an option: it is not known.
pub const REP_ERR_UNSUP: u32 = REP_FLAG_ERROR + 1;
/// Error reply to an option: the server's policy forbids it.
pub const REP_ERR_POLICY: u32 = REP_FLAG_ERROR + 2;
/// Error reply to an option: its data are invalid.
pub const REP_ERR_INVALID: u32 = REP_FLAG_ERROR + 3;
/// Error reply to an option: not without TLS.
pub const REP_ERR_TLS_REQD: u32 = REP_FLAG_ERROR + 5;
/// Error reply to an option: there is no such export.
pub const REP_ERR_UNKNOWN: u32 = REP_FLAG_ERROR + 6;
/// Error reply to an option: its data are too long.
pub const REP_ERR_TOO_BIG: u32 = REP_FLAG_ERROR + 9;

/// Information: size and transmission flags; sent in every `GO` and `INFO`.
pub const INFO_EXPORT: u16 = 0;
/// Information: the canonical name.
pub const INFO_NAME: u16 = 1;
/// Information: the description for people.
pub const INFO_DESCRIPTION: u16 = 2;
/// Information: the size constraints, that is the smallest, the preferred and the largest block.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Command: read.
pub const CMD_READ: u16 = 0;
/// Command: write.
pub const CMD_WRITE: u16 = 1;
/// Command: the client leaves.
pub const CMD_DISC: u16 = 2;
/// Command: make writes durable.
pub const CMD_FLUSH: u16 = 3;
/// Command: discard.
pub const CMD_TRIM: u16 = 4;
/// Command: read ahead.
pub const CMD_CACHE: u16 = 5;
/// Command: write zeroes.
pub const CMD_WRITE_ZEROES: u16 = 6;
/// Command: the status of extents.
pub const CMD_BLOCK_STATUS: u16 = 7;

/// Chunk of a structured reply: no content.
pub const REPLY_TYPE_NONE: u16 = 0;
/// Chunk of a structured reply: data at an offset.
pub const REPLY_TYPE_OFFSET_DATA: u16 = 1;
/// Chunk of a structured reply: zeroes at an offset.
pub const REPLY_TYPE_OFFSET_HOLE: u16 = 2;
/// Chunk of a structured reply: the status of extents.
pub const REPLY_TYPE_BLOCK_STATUS: u16 = 5;
/// Bit of all chunks that report an error.
pub const REPLY_TYPE_FLAG_ERROR: u16 = 1 << 15;
/// Chunk of a structured reply: an error, with a message.
pub const REPLY_TYPE_ERROR: u16 = REPLY_TYPE_FLAG_ERROR + 1;

/// Structured reply flag: last chunk of its reply.
pub const REPLY_FLAG_DONE: u16 = 1 << 0;

/// Longest string (export name, description, message) the protocol allows, bytes.
pub const MAX_STRING: usize = 4096;
/// Longest payload of a `READ` or `WRITE`, bytes: the default every client may count on.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// Reads big-endian fields from the front of a byte string. Every getter returns `None`, and takes nothing, when fewer
/// bytes are left than it needs.
#[derive(Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(front)
    }

    /// A 32-bit length and that many bytes.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let mut ahead = *self;
        let len = ahead.u32()?;
        let bytes = ahead.bytes(len)?;
        *self = ahead;
        Some(bytes)
    }

    /// The remaining bytes.
    pub const fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// `bytes` as a string of the protocol: UTF-8, no NUL, at most [`MAX_STRING`] bytes.
pub fn string(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > MAX_STRING || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

/// Bytes of a request without its payload.
pub const REQUEST_LEN: usize = 28;

/// A request as received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// `CMD_FLAG_*` bits.
    pub flags: u16,
    /// The type field.
    pub number: u16,
    /// Copied into the reply.
    pub cookie: u64,
    /// Byte position.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

impl Header {
    /// The header in the first 28 bytes; `None` for a wrong magic, after which the stream can no longer be parsed.
    pub fn parse(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let magic = fields.u32()?;
        let flags = fields.u16()?;
        let number = fields.u16()?;
        let header = Self {
            flags,
            number,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: fields.u32()?,
        };
        (magic == REQUEST_MAGIC).then_some(header)
    }

    /// The request as a client sends it.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_end_where_the_bytes_end() {
        let mut fields = Fields(&[0, 1, 0, 0, 0, 2, 9, 8, 7]);
        assert_eq!(fields.u16(), Some(1));
        assert_eq!(fields.counted(), Some(&[9, 8][..]));
        assert_eq!(fields.u16(), None);
        assert_eq!(fields.rest(), [7]);
    }

    #[test]
    fn a_counted_string_longer_than_its_frame_takes_nothing() {
        let mut fields = Fields(&[255, 255, 255, 255, 1]);
        assert_eq!(fields.counted(), None);
        assert_eq!(fields.rest().len(), 5);
    }

    #[test]
    fn strings_are_utf8_without_nul_and_bounded() {
        assert_eq!(string(b"md0"), Some("md0"));
        assert_eq!(string(b"a\0b"), None);
        assert_eq!(string(&[0xff]), None);
        assert_eq!(string(&[b'a'; MAX_STRING]).map(str::len), Some(MAX_STRING));
        assert_eq!(string(&[b'a'; MAX_STRING + 1]), None);
    }
}
