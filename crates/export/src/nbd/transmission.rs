//! Requests: parsing and checking, before anything is executed.
//!
//! The rules are a table with one row for each command; [`judge`] applies them to all in the same order: is the command
//! known, may it write, was it offered, are its flags known, is its range within the export and its payload within the
//! limit.

use super::errno::Errno;
use super::info::ExportInfo;
use ashlar_nbd::wire::{
    CMD_BLOCK_STATUS, CMD_CACHE, CMD_DISC, CMD_FLAG_DF, CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA,
    CMD_FLAG_NO_HOLE, CMD_FLAG_REQ_ONE, CMD_FLUSH, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES,
    FLAG_HAS_FLAGS, FLAG_READ_ONLY, FLAG_SEND_CACHE, FLAG_SEND_DF, FLAG_SEND_FAST_ZERO,
    FLAG_SEND_FLUSH, FLAG_SEND_FUA, FLAG_SEND_TRIM, FLAG_SEND_WRITE_ZEROES, MAX_PAYLOAD,
};
pub use ashlar_nbd::wire::{Header, REQUEST_LEN};

/// A command type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Command {
    /// Read data from the export.
    Read = CMD_READ,
    /// Write the data that follow the header to the export.
    Write = CMD_WRITE,
    /// End the connection.
    Disc = CMD_DISC,
    /// Write everything acknowledged so far to stable storage.
    Flush = CMD_FLUSH,
    /// The range's data is no longer needed.
    Trim = CMD_TRIM,
    /// The range will be read soon.
    Cache = CMD_CACHE,
    /// Write zeroes to the range.
    WriteZeroes = CMD_WRITE_ZEROES,
    /// The allocation of the range.
    BlockStatus = CMD_BLOCK_STATUS,
}

/// The meaning of offset and length for a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extent {
    /// Both reserved: must be zero.
    Reserved,
    /// A range whose length is also the length of a payload, in either direction.
    Payload,
    /// A range of any length.
    Effect,
}

/// The rules for a command.
struct Rule {
    command: Command,
    word: &'static str,
    /// The transmission flag that offers it.
    offered_by: u16,
    /// The command flags it accepts, each with the transmission flag that offers it.
    flags: &'static [(u16, u16)],
    extent: Extent,
    writes: bool,
    /// The error for a range that exceeds the export.
    past_the_end: Errno,
}

/// By the protocol FUA is valid with every command, and has no effect on commands that do not write.
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

/// The rules as a Markdown table, for the format's document.
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

/// What the client of a connection may request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Size of the export, bytes.
    pub size: u64,
    /// The transmission flags sent to the client.
    pub flags: u16,
    /// Whether replies are structured.
    pub structured: bool,
    /// Whether `BLOCK_STATUS` was negotiated.
    pub block_status: bool,
}

impl Terms {
    /// The terms for `export` after a handshake.
    pub const fn new(export: &ExportInfo, structured: bool, block_status: bool) -> Self {
        Self {
            size: export.size,
            flags: export.transmission_flags(structured),
            structured,
            block_status,
        }
    }
}

/// A valid request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The command.
    pub command: Command,
    /// Copied into the reply.
    pub cookie: u64,
    /// Byte position; the range is within the export.
    pub offset: u64,
    /// Bytes; not zero except for `DISC` and `FLUSH`.
    pub length: u32,
    /// `CMD_FLAG_*` bits, all known to the command.
    pub flags: u16,
}

/// The verdict on a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Execute it. A `Write`'s `length` bytes of payload follow.
    Run(Request),
    /// Answer with this error.
    Refuse {
        /// For the reply.
        error: Errno,
        /// A message for a person.
        message: &'static str,
        /// Bytes of payload that follow and must be skipped, at most [`MAX_PAYLOAD`].
        skip: u32,
    },
    /// Close the connection: the payload is too long to be worth skipping.
    Disconnect,
}

/// Checks a request.
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

/// The command, or the error for the request.
fn object(header: &Header, terms: &Terms) -> Result<Command, (Errno, &'static str)> {
    let rule = RULES.get(usize::from(header.number)).ok_or((Errno::Inval, "unknown command"))?;
    if rule.command == Command::Disc {
        return Ok(rule.command);
    }
    if rule.writes && terms.flags & FLAG_READ_ONLY != 0 {
        return Err((Errno::Perm, "the export is read-only"));
    }
    let negotiated = rule.command != Command::BlockStatus || terms.block_status;
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
        // Only reads get here. Structured replies have a specific error for this.
        let error = if terms.structured { Errno::Overflow } else { Errno::Inval };
        return Err((error, "longer than the maximum payload"));
    }
    Ok(rule.command)
}

#[cfg(test)]
#[path = "transmission_tests.rs"]
mod tests;
