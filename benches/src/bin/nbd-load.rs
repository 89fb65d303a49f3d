//! A client that loads an NBD server at a constant queue depth, and prints how many requests the server answered in a second.
//!
//! Usage: `nbd-load SOCKET EXPORT read|write|randread|randwrite BLOCK_BYTES DEPTH SECONDS`
//!
//! fio's `nbd` engine makes two `sendto`, two `recvfrom` and a `poll` for each request, and is at the limit of its processor
//! before a fast server is. This client sends all requests that it may send in one `write`, and reads all replies that
//! have come in one `read`: what it measures is the server. It is for `benches/exports.py`, which runs it beside fio.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ashlar_export::nbd::transmission::{Command, Header, REQUEST_LEN};
use ashlar_export::nbd::wire::{
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, INIT_PASSWD, OPT_EXPORT_NAME, OPTS_MAGIC,
    SIMPLE_REPLY_MAGIC,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of a simple reply without its payload: magic, error, cookie.
const REPLY_BYTES: usize = 16;

/// What the client asks for.
struct Load {
    command: Command,
    is_random: bool,
    block_bytes: u32,
    depth: u64,
    run: Duration,
}

impl Load {
    fn parse(words: [&str; 4]) -> Outcome<Self> {
        let [pattern, block_bytes, depth, seconds] = words;
        let (is_random, command) = match pattern {
            "read" => (false, Command::Read),
            "write" => (false, Command::Write),
            "randread" => (true, Command::Read),
            "randwrite" => (true, Command::Write),
            other => return Err(format!("unknown pattern {other}").into()),
        };
        let load = Self {
            command,
            is_random,
            block_bytes: block_bytes.parse()?,
            depth: depth.parse()?,
            run: Duration::try_from_secs_f64(seconds.parse()?)?,
        };
        if load.block_bytes == 0 || load.depth == 0 || load.run.is_zero() {
            return Err("block, depth and seconds must not be 0".into());
        }
        Ok(load)
    }
}

/// Offsets, one after the other or anywhere (xorshift64: the client must cost nothing).
struct Offsets {
    blocks: u64,
    next: u64,
    is_random: bool,
}

impl Offsets {
    fn block(&mut self) -> u64 {
        if !self.is_random {
            self.next = (self.next + 1) % self.blocks;
            return self.next;
        }
        self.next ^= self.next << 13;
        self.next ^= self.next >> 7;
        self.next ^= self.next << 17;
        self.next % self.blocks
    }
}

/// A connection in its transmission phase.
struct Connection {
    stream: UnixStream,
    export_bytes: u64,
}

impl Connection {
    /// Opens the export with `EXPORT_NAME`, which every server knows; replies are simple then.
    fn open(path: &str, export: &str) -> Outcome<Self> {
        let mut stream = UnixStream::connect(path)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        let magics = [INIT_PASSWD, OPTS_MAGIC].map(u64::to_be_bytes).concat();
        if greeting[..16] != magics[..] || greeting[17] & 3 != 3 {
            return Err("the server does not speak the fixed newstyle without zeroes".into());
        }
        let flags = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        let mut option = flags.to_be_bytes().to_vec();
        option.extend(OPTS_MAGIC.to_be_bytes());
        option.extend(OPT_EXPORT_NAME.to_be_bytes());
        option.extend(u32::try_from(export.len())?.to_be_bytes());
        option.extend(export.as_bytes());
        stream.write_all(&option)?;
        let mut size = [0; 10];
        stream.read_exact(&mut size)?;
        let export_bytes = u64::from_be_bytes(*size.first_chunk().ok_or("no size")?);
        Ok(Self { stream, export_bytes })
    }

    /// Keeps `load.depth` requests in flight, and returns how many were answered.
    fn run(&mut self, load: &Load) -> Outcome<u64> {
        let block = usize::try_from(load.block_bytes)?;
        let blocks = self.export_bytes / u64::from(load.block_bytes);
        if blocks == 0 {
            return Err("the export is shorter than a block".into());
        }
        let mut offsets =
            Offsets { blocks, next: 0x9e37_79b9_7f4a_7c15, is_random: load.is_random };
        let (sent, received) = if load.command == Command::Write { (block, 0) } else { (0, block) };
        let reply = REPLY_BYTES + received;
        let depth = usize::try_from(load.depth)?;
        let request = REQUEST_LEN + sent;
        // The payloads are filled once; a batch overwrites the headers alone.
        let mut out = vec![0x5a; depth * request];
        let mut replies = vec![0; depth * reply];
        let good = [SIMPLE_REPLY_MAGIC, 0].map(u32::to_be_bytes).concat();
        let (mut filled, mut answered, mut free) = (0, 0, depth);
        let (mut in_flight, mut in_time) = (0, 0);
        let end = Instant::now() + load.run;
        loop {
            if Instant::now() < end {
                in_time = answered;
            } else if in_flight == 0 {
                return Ok(in_time);
            } else {
                // What is under way is waited for: some servers do not survive a client that leaves before its replies.
                free = 0;
            }
            for batch in out.chunks_exact_mut(request).take(free) {
                let header = Header {
                    flags: 0,
                    number: load.command as u16,
                    cookie: answered,
                    offset: offsets.block() * u64::from(load.block_bytes),
                    length: load.block_bytes,
                };
                batch[..header.encode().len()].copy_from_slice(&header.encode());
            }
            self.stream.write_all(&out[..free * request])?;
            in_flight += free;
            match self.stream.read(&mut replies[filled..])? {
                0 => return Err("the server closed the connection".into()),
                read => filled += read,
            }
            let whole = filled / reply;
            for one in replies.chunks_exact(reply).take(whole) {
                if one[..8] != good[..] {
                    return Err("a request failed, or its reply is not understood".into());
                }
            }
            replies.copy_within(whole * reply..filled, 0);
            filled -= whole * reply;
            answered += u64::try_from(whole)?;
            in_flight -= whole;
            free = whole;
        }
    }

    /// Disconnects cleanly.
    fn close(mut self) -> Outcome<()> {
        let number = Command::Disc as u16;
        let header = Header { flags: 0, number, cookie: 0, offset: 0, length: 0 };
        Ok(self.stream.write_all(&header.encode())?)
    }
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [socket, export, load @ ..] = &words[..] else {
        return Err("usage: nbd-load SOCKET EXPORT PATTERN BLOCK_BYTES DEPTH SECONDS".into());
    };
    let load = Load::parse(load.try_into().map_err(|_| "four words are needed after EXPORT")?)?;
    let mut connection = Connection::open(socket, export)?;
    let answered = connection.run(&load)?;
    connection.close()?;
    println!("{:.0}", answered as f64 / load.run.as_secs_f64());
    Ok(())
}
