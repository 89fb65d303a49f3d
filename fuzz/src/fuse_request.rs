//! FUSE requests from a hostile kernel: each is answered exactly once (those without a reply never) with a bounded,
//! well-formed reply, and the volume contains what the accepted requests wrote.
//!
//! Input: a sequence of messages to a session in which everything is already open. Each begins with four bytes: how it
//! is built (the flags below, with a node in the upper bits), opcode, length of the arguments, and length of the
//! payload in units of 32 bytes. Arguments follow, then the payload.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "an operation that is added falls under the strictest check here"
)]

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::byte_volume::Holes;
use ashlar_block::{BlockDevice, Buffer, ByteVolume, Disk, Features, Gateway, Limits, Sectors};
use ashlar_export::fuse::job::JobReply;
use ashlar_export::fuse::request::{Operation, Request};
use ashlar_export::fuse::session::{Action, Session};
use ashlar_export::fuse::tree::{Access, Entry, Namespace, Owner};
use rustix::io::Errno;

use crate::memory::{Memory, block_on};

/// The arguments are the whole message, including header and length.
const RAW: u8 = 1;
/// The arguments keep their length. Otherwise they are padded with zeroes.
const SHORT: u8 = 2;
/// The first argument is a handle among the few that may be open.
const KNOWN_HANDLE: u8 = 4;
/// The request is plausible on the volume: it has the volume's handle, a position and a length up to about the volume's
/// size, and the payload's length or a supported mode.
const ON_VOLUME: u8 = 8;

const UNIQUE: u64 = 0x0102_0304_0506_0708;
const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// Not a whole number of blocks of 4 KiB.
const VOLUME: usize = 65_536 + 512;
/// Space for INIT's reply or the description of an entry or a file system.
const STRUCTURES: usize = 256;

const LOOKUP: u32 = 1;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const WRITE: u32 = 16;
const OPENDIR: u32 = 27;
const FALLOCATE: u32 = 43;
/// Supported modes of FALLOCATE: PUNCH_HOLE and ZERO_RANGE, with and without KEEP_SIZE.
const MODES: [u64; 3] = [0x03, 0x10, 0x11];

/// The paths that the session looks up, parents first, and the opcode and flags to open them. Nodes count from 2,
/// handles from 1.
const TREE: [(u64, &str, u32, u32); 6] = [
    (1, "d", OPENDIR, 0),
    (1, "v", OPEN, 2),
    (1, "l", LOOKUP, 0),
    (2, "r", OPEN, 0),
    (2, "w", OPEN, 1),
    (2, "b", OPEN, 2),
];

/// The volume's handle.
const VOLUME_HANDLE: u64 = 2;

/// The opcodes for opcode bytes below 192: some more often than others.
const OPCODES: [u32; 24] = [
    26, LOOKUP, 2, 42, 3, SETATTR, 5, OPEN, 15, 15, 15, WRITE, WRITE, WRITE, 20, FALLOCATE,
    FALLOCATE, 39, OPENDIR, 28, 44, 44, 18, 17,
];

/// The volume's initial contents: without zeroes, and different in each sector.
fn contents() -> Vec<u8> {
    (0..VOLUME).map(|at| (at % 251 + 1) as u8).collect()
}

struct Tree(Arc<ByteVolume>);

impl Namespace for Tree {
    fn lookup(&self, path: &str) -> Option<Entry> {
        Some(match path {
            "d" => Entry::Directory,
            "v" => Entry::Volume(Arc::clone(&self.0)),
            "l" => Entry::Symlink("v".into()),
            "d/r" => Entry::Attribute(Access::ReadOnly),
            "d/w" => Entry::Attribute(Access::WriteOnly),
            "d/b" => Entry::Attribute(Access::ReadWrite),
            _ => return None,
        })
    }

    fn list(&self, path: &str) -> Vec<String> {
        let names: &[&str] = match path {
            "" => &["d", "v", "l", "gone"],
            "d" => &["r", "w", "b", "a/b", ""],
            _ => &[],
        };
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn read(&self, path: &str) -> Result<String, Errno> {
        if path == "d/w" { Err(Errno::IO) } else { Ok("value\n".to_owned()) }
    }

    fn write(&self, path: &str, text: &str) -> Result<(), Errno> {
        assert!(path.starts_with("d/") && text.len() <= 4096);
        Ok(())
    }
}

/// The next message, and its separate payload.
fn next<'a>(input: &mut &'a [u8]) -> Option<(Vec<u8>, &'a [u8])> {
    let (&[how, opcode, arguments, payload], rest) = input.split_first_chunk::<4>()?;
    let (arguments, rest) = rest.split_at(rest.len().min(arguments.into()));
    let (payload, rest) = rest.split_at(rest.len().min(usize::from(payload) * 32));
    *input = rest;
    if how & RAW != 0 {
        return Some((arguments.to_vec(), payload));
    }
    let opcode = match opcode {
        0..192 => OPCODES[usize::from(opcode) % OPCODES.len()],
        192.. => u32::from(opcode - 192),
    };
    let mut arguments = arguments.to_vec();
    if how & SHORT == 0 {
        arguments.resize(arguments.len().max(if opcode == SETATTR { 88 } else { 40 }), 0);
    }
    let words = arguments.as_chunks_mut::<8>().0;
    if how & KNOWN_HANDLE != 0
        && let Some(handle) = words.first_mut()
    {
        *handle = u64::from(handle[0] % 16).to_ne_bytes();
    }
    if how & ON_VOLUME != 0
        && let Some([handle, position, length, more, ..]) = words.get_mut(..4)
    {
        *handle = VOLUME_HANDLE.to_ne_bytes();
        for word in [position, &mut *length] {
            *word = (u64::from_ne_bytes(*word) % (VOLUME as u64 * 9 / 8)).to_ne_bytes();
        }
        match opcode {
            WRITE => *length = (payload.len() as u64).to_ne_bytes(),
            FALLOCATE => *more = MODES[usize::from(more[0]) % MODES.len()].to_ne_bytes(),
            _ => {}
        }
    }
    Some((message(opcode, u64::from(how >> 4), &arguments, payload.len()), payload))
}

fn message(opcode: u32, node: u64, arguments: &[u8], payload: usize) -> Vec<u8> {
    let mut message = vec![0; IN_HEADER];
    message[0..4].copy_from_slice(&((IN_HEADER + arguments.len() + payload) as u32).to_ne_bytes());
    message[4..8].copy_from_slice(&opcode.to_ne_bytes());
    message[8..16].copy_from_slice(&UNIQUE.to_ne_bytes());
    message[16..24].copy_from_slice(&node.to_ne_bytes());
    message.extend_from_slice(arguments);
    message
}

/// Looks up and opens all paths.
fn open(session: &Session<Tree>) {
    let call = |message: &[u8]| {
        let request = Request::parse(message, 0).expect("a request");
        let Action::Reply(reply) = session.handle(&request, &[]) else { panic!("no reply") };
        assert!(body(&reply, 0, UNIQUE).is_some());
    };
    for (node, (parent, name, opcode, flags)) in (2..).zip(TREE) {
        call(&message(LOOKUP, parent, format!("{name}\0").as_bytes(), 0));
        if opcode != LOOKUP {
            call(&message(opcode, node, &u64::from(flags).to_ne_bytes(), 0));
        }
    }
}

/// Checks the header of a reply; returns the rest if it reports success.
fn body(head: &[u8], data: usize, unique: u64) -> Option<&[u8]> {
    let word = |at| u32::from_ne_bytes(head[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(word(0) as usize, head.len() + data);
    assert_eq!(head[8..16], unique.to_ne_bytes());
    let error = word(4) as i32;
    assert!((-4095..=0).contains(&error), "errno {error}");
    assert!(error == 0 || head.len() + data == OUT_HEADER);
    (error == 0).then_some(&head[OUT_HEADER..])
}

/// Checks that entries of a listing are inside it, advance, and have plain names.
fn check_listing(mut rest: &[u8], offset: u64, plus: bool) {
    let mut last = offset;
    while !rest.is_empty() {
        let entry = &rest[if plus { 128 } else { 0 }..];
        let long = |at: usize| u64::from_ne_bytes(entry[at..at + 8].try_into().expect("8 bytes"));
        let namelen = (long(16) & 0xffff_ffff) as usize;
        assert!(long(8) > last, "the offsets of a listing do not increase");
        last = long(8);
        let name = &entry[24..24 + namelen];
        assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0));
        rest = &rest[(rest.len() - entry.len() + 24 + namelen).next_multiple_of(8)..];
    }
}

/// Checks the result of an operation on the volume.
fn check_done(op: &Operation<'_>, payload: &[u8], done: &JobReply, mirror: &mut [u8]) {
    let data = done.data.as_ref().map(Buffer::as_slice);
    let at = |offset: u64| usize::try_from(offset).expect("within the volume");
    let body = body(&done.head, data.map_or(0, <[u8]>::len), unique_of(done));
    match *op {
        Operation::Read { offset, size, .. } => {
            let data = data.expect("the volume can be read");
            assert!(!data.is_empty() && data.len() <= size as usize);
            assert_eq!(data, &mirror[at(offset)..][..data.len()], "read at {offset}");
        }
        Operation::Write { offset, .. } => {
            let body = body.expect("the volume can be written");
            let taken = u32::from_ne_bytes(body[..4].try_into().expect("four bytes")) as usize;
            assert!(taken <= payload.len());
            mirror[at(offset)..][..taken].copy_from_slice(&payload[..taken]);
        }
        Operation::Fallocate { offset, length, .. } if body.is_some() => {
            let end = offset.saturating_add(length).min(mirror.len() as u64);
            mirror[at(offset)..at(end)].fill(0);
        }
        Operation::Fallocate { .. } | Operation::Fsync { .. } => {}
        _ => panic!("{op:?} is nothing that a volume does"),
    }
}

fn unique_of(done: &JobReply) -> u64 {
    u64::from_ne_bytes(done.head[8..16].try_into().expect("8 bytes"))
}

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    let limits = Limits {
        max_write_zeroes: Sectors(64),
        features: Features::WRITE_CACHE,
        ..Limits::default()
    };
    let disk = Disk::new("md0", Sectors::from_bytes_floor(VOLUME as u64), limits);
    let ram = Memory::writable(disk, contents());
    let volume = Gateway::new(Arc::clone(&ram) as Arc<dyn BlockDevice>);
    let tree = Tree(Arc::new(ByteVolume::new(volume)));
    let owner = Owner { uid: 0, gid: 0, since: Duration::ZERO };
    let session = Session::new(tree, owner, Holes::Fast);
    open(&session);
    let mut mirror = contents();
    let mut accepted = false;
    let mut input = data;
    while let Some((message, payload)) = next(&mut input) {
        let request = match Request::parse(&message, payload.len()) {
            Ok(request) => request,
            Err(malformed) => {
                match (session.refuse(&malformed), malformed.unique) {
                    (Action::Reply(reply), Some(unique)) => {
                        assert!(body(&reply, 0, unique).is_none());
                    }
                    (Action::Silent, None) => {}
                    _ => panic!("{malformed}: the wrong answer"),
                }
                continue;
            }
        };
        let op = &request.op;
        let quiet = matches!(op, Operation::Forget { .. } | Operation::BatchForget { .. });
        match session.handle(&request, payload) {
            Action::Silent => assert!(quiet, "{op:?} is not answered"),
            Action::Run(job) => {
                let wanted = job.wants_payload();
                assert_eq!(wanted, matches!(op, Operation::Write { .. }));
                let segment = wanted.then(|| Buffer::from_slice(payload).whole());
                let done = block_on(job.run(segment));
                accepted = true;
                assert_eq!(unique_of(&done), request.unique);
                check_done(op, payload, &done, &mut mirror);
            }
            Action::Reply(reply) => {
                assert!(!quiet, "{op:?} is answered");
                let body = body(&reply, 0, request.unique);
                accepted |= body.is_some();
                let body = body.unwrap_or_default();
                let room = match *op {
                    Operation::ReadDir { offset, size, plus, .. } => {
                        check_listing(body, offset, plus);
                        size as usize
                    }
                    Operation::Read { size, .. } => size as usize,
                    _ => STRUCTURES,
                };
                assert!(body.len() <= room, "{} bytes of answer to {op:?}", body.len());
            }
        }
    }
    assert!(ram.holds(&mirror), "the volume is not what was written");
    accepted
}
