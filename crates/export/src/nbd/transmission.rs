//! Requests: parsing and judging, before anything is done.
//!
//! The rules are a table with one row for each command; [`judge`] applies them in one order, the
//! same for all: is the command known, may it write, was it offered, are its flags known, is its
//! range within the export and its payload within the limit.

use super::errno::Errno;
use super::info::ExportInfo;
use super::wire::{
    CMD_FLAG_DF, CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CMD_FLAG_REQ_ONE,
    FLAG_HAS_FLAGS, FLAG_READ_ONLY, FLAG_SEND_CACHE, FLAG_SEND_DF, FLAG_SEND_FAST_ZERO,
    FLAG_SEND_FLUSH, FLAG_SEND_FUA, FLAG_SEND_TRIM, FLAG_SEND_WRITE_ZEROES, Fields, MAX_PAYLOAD,
    REQUEST_MAGIC,
};

/// Bytes of a request without its payload.
pub const REQUEST_LEN: usize = 28;

/// A request as it came.
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
    /// The header at the front of 28 bytes; `None` for a wrong magic, after which nothing that
    /// follows can be trusted to be a request.
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

    /// The request as bytes: what a client sends.
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

/// A type of request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Command {
    /// Data from the export.
    Read = 0,
    /// Data, which follows the header, to the export.
    Write = 1,
    /// The polite end.
    Disc = 2,
    /// Everything acknowledged so far to stable storage.
    Flush = 3,
    /// The range's data is not needed any more.
    Trim = 4,
    /// The range will be read soon.
    Cache = 5,
    /// Zeroes to the range.
    WriteZeroes = 6,
    /// What the range is made of.
    BlockStatus = 7,
}

/// What offset and length mean to a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extent {
    /// Both reserved: must be zero.
    Reserved,
    /// A range with as many bytes of payload, one way or the other.
    Payload,
    /// A range of any length.
    Effect,
}

/// The rules for a command.
struct Rule {
    command: Command,
    word: &'static str,
    /// Transmission flag that offers it.
    offered_by: u16,
    /// Command flags that it knows, each with the transmission flag that offers it.
    flags: &'static [(u16, u16)],
    extent: Extent,
    writes: bool,
    /// The error for a range that is not within the export.
    past_the_end: Errno,
}

/// FUA is valid with every command, by the protocol, and means nothing to those that do not write.
const FUA: (u16, u16) = (CMD_FLAG_FUA, FLAG_SEND_FUA);
const DF: (u16, u16) = (CMD_FLAG_DF, FLAG_SEND_DF);
const NO_HOLE: (u16, u16) = (CMD_FLAG_NO_HOLE, FLAG_SEND_WRITE_ZEROES);
const FAST_ZERO: (u16, u16) = (CMD_FLAG_FAST_ZERO, FLAG_SEND_FAST_ZERO);
const REQ_ONE: (u16, u16) = (CMD_FLAG_REQ_ONE, FLAG_HAS_FLAGS);

#[rustfmt::skip]
const RULES: [Rule; 8] = [
    Rule { command: Command::Read, word: "READ", offered_by: FLAG_HAS_FLAGS, flags: &[FUA, DF],
           extent: Extent::Payload, writes: false, past_the_end: Errno::Inval },
    Rule { command: Command::Write, word: "WRITE", offered_by: FLAG_HAS_FLAGS, flags: &[FUA],
           extent: Extent::Payload, writes: true, past_the_end: Errno::NoSpc },
    Rule { command: Command::Disc, word: "DISC", offered_by: FLAG_HAS_FLAGS, flags: &[FUA],
           extent: Extent::Reserved, writes: false, past_the_end: Errno::Inval },
    Rule { command: Command::Flush, word: "FLUSH", offered_by: FLAG_SEND_FLUSH, flags: &[FUA],
           extent: Extent::Reserved, writes: false, past_the_end: Errno::Inval },
    Rule { command: Command::Trim, word: "TRIM", offered_by: FLAG_SEND_TRIM, flags: &[FUA],
           extent: Extent::Effect, writes: true, past_the_end: Errno::Inval },
    Rule { command: Command::Cache, word: "CACHE", offered_by: FLAG_SEND_CACHE, flags: &[FUA],
           extent: Extent::Effect, writes: false, past_the_end: Errno::Inval },
    Rule { command: Command::WriteZeroes, word: "WRITE_ZEROES", offered_by: FLAG_SEND_WRITE_ZEROES,
           flags: &[FUA, NO_HOLE, FAST_ZERO],
           extent: Extent::Effect, writes: true, past_the_end: Errno::NoSpc },
    Rule { command: Command::BlockStatus, word: "BLOCK_STATUS", offered_by: FLAG_HAS_FLAGS,
           flags: &[FUA, REQ_ONE],
           extent: Extent::Effect, writes: false, past_the_end: Errno::Inval },
];

/// The rules as a table in Markdown, for the format's document.
pub fn command_table() -> String {
    let mut table = String::from(
        "| type | command | flags | offset, length | past the end |\n|---|---|---|---|---|\n",
    );
    for rule in &RULES {
        let flags: Vec<_> = rule.flags.iter().map(|(flag, _)| flag_word(*flag)).collect();
        let extent = match rule.extent {
            Extent::Reserved => "zero",
            Extent::Payload => "1 byte to 32 MiB",
            Extent::Effect => "any but empty",
        };
        let past = match rule.extent {
            Extent::Reserved => "",
            Extent::Payload | Extent::Effect if rule.past_the_end == Errno::NoSpc => "ENOSPC",
            Extent::Payload | Extent::Effect => "EINVAL",
        };
        let number = rule.command as u16;
        table +=
            &format!("| {number} | {} | {} | {extent} | {past} |\n", rule.word, flags.join(", "));
    }
    table
}

const fn flag_word(flag: u16) -> &'static str {
    match flag {
        CMD_FLAG_FUA => "FUA",
        CMD_FLAG_NO_HOLE => "NO_HOLE",
        CMD_FLAG_DF => "DF",
        CMD_FLAG_REQ_ONE => "REQ_ONE",
        CMD_FLAG_FAST_ZERO => "FAST_ZERO",
        _ => "?",
    }
}

/// What the connection may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Bytes of the export.
    pub size: u64,
    /// Transmission flags as the client was told.
    pub flags: u16,
    /// Whether replies are structured.
    pub structured: bool,
    /// Whether `BLOCK_STATUS` was negotiated.
    pub allocation: bool,
}

impl Terms {
    /// The terms for `export` after a handshake.
    pub const fn new(export: &ExportInfo, structured: bool, allocation: bool) -> Self {
        Self {
            size: export.size,
            flags: export.transmission_flags(structured),
            structured,
            allocation,
        }
    }
}

/// A request that may be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What to do.
    pub command: Command,
    /// Copied into the reply.
    pub cookie: u64,
    /// Byte position; with `length` within the export.
    pub offset: u64,
    /// Bytes; not zero except for `DISC` and `FLUSH`.
    pub length: u32,
    /// `CMD_FLAG_*` bits, all known to the command.
    pub flags: u16,
}

/// What to do with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Carry it out. A `Write`'s `length` bytes of payload follow.
    Run(Request),
    /// Answer with this error.
    Refuse {
        /// For the reply.
        error: Errno,
        /// For a person.
        message: &'static str,
        /// Bytes of payload that follow and are to be thrown away, at most [`MAX_PAYLOAD`].
        skip: u32,
    },
    /// Close: so much payload follows that skipping it would serve nobody.
    Disconnect,
}

/// Judges a request.
pub fn judge(header: &Header, terms: &Terms) -> Verdict {
    let write = header.number == Command::Write as u16;
    if write && header.length > MAX_PAYLOAD {
        return Verdict::Disconnect;
    }
    match object(header, terms) {
        Ok(command) => {
            let Header { cookie, offset, length, flags, .. } = *header;
            Verdict::Run(Request { command, cookie, offset, length, flags })
        }
        Err((error, message)) => {
            Verdict::Refuse { error, message, skip: if write { header.length } else { 0 } }
        }
    }
}

/// The command, or what is wrong with the request.
fn object(header: &Header, terms: &Terms) -> Result<Command, (Errno, &'static str)> {
    let rule = RULES.get(usize::from(header.number)).ok_or((Errno::Inval, "unknown command"))?;
    if rule.command == Command::Disc {
        return Ok(rule.command);
    }
    if rule.writes && terms.flags & FLAG_READ_ONLY != 0 {
        return Err((Errno::Perm, "the export is read-only"));
    }
    let negotiated = rule.command != Command::BlockStatus || terms.allocation;
    if terms.flags & rule.offered_by == 0 || !negotiated {
        return Err((Errno::Inval, "command was not negotiated"));
    }
    let offered = |(_, by): &&(u16, u16)| terms.flags & by != 0;
    let known = rule.flags.iter().filter(offered).fold(0, |known, (flag, _)| known | flag);
    if header.flags & !known != 0 {
        return Err((Errno::Inval, "unknown command flag"));
    }
    if rule.extent == Extent::Reserved {
        let zero = header.offset == 0 && header.length == 0;
        return zero
            .then_some(rule.command)
            .ok_or((Errno::Inval, "offset and length must be zero"));
    }
    if header.length == 0 {
        return Err((Errno::Inval, "length is zero"));
    }
    let end = header.offset.checked_add(u64::from(header.length));
    if end.is_none_or(|end| end > terms.size) {
        return Err((rule.past_the_end, "range is not within the export"));
    }
    if rule.extent == Extent::Payload && header.length > MAX_PAYLOAD {
        // Only reads come here. With chunks the protocol has a word for it.
        let error = if terms.structured { Errno::Overflow } else { Errno::Inval };
        return Err((error, "longer than the maximum payload"));
    }
    Ok(rule.command)
}

#[cfg(test)]
#[path = "transmission_tests.rs"]
mod tests;
