//! The messages of a front end: whatever they say, the session ends with the stream, and what it answers are whole answers, at most one for
//! each message.
//!
//! Input: pieces of the stream. Two bytes precede each: the descriptors that come with it (their kind in the lower three bits, their
//! number less one in the next two), and its length.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{BlockDevice, ByteVolume, Disk, Gateway, Limits, Sectors};
use ashlar_engine::fd::Fd;
use ashlar_engine::net::{Socket, send_with_files};
use ashlar_engine::{Reactor, timeout};
use ashlar_vhost::{Config, Export, testing};
use futures_util::future::join3;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pwrite;

use crate::memory::Memory;
use crate::vhost_guest;

pub(crate) const NOTHING: u8 = 0;
/// The guest's memory, with rings.
pub(crate) const MEMORY: u8 = 1;
/// An event descriptor, signalled.
pub(crate) const EVENT: u8 = 2;
pub(crate) const SOCKET: u8 = 3;
const ON_DISK: u8 = 4;
const SHORT: u8 = 5;
const PIPE: u8 = 6;

const HEADER_BYTES: usize = 12;
const MOST_BYTES: usize = 4096;
const MEMORY_BYTES: usize = 0x1_0000;
/// Much longer than any of it takes.
const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    /// It is never dropped: at the end of a thread it would need values of the thread that are gone.
    static REACTOR: &'static Reactor =
        Box::leak(Box::new(Reactor::new(Default::default()).expect("a reactor")));
}

fn memfd(len: usize, bytes: &[u8]) -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let file = file.expect("a memfd");
    ftruncate(&file, len as u64).expect("a longer memfd");
    assert_eq!(pwrite(&file, bytes, 0), Ok(bytes.len()));
    file
}

/// A descriptor of a kind; `None` for other kinds.
fn descriptor(kind: u8) -> Option<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Some(match kind {
        MEMORY => memfd(MEMORY_BYTES, &vhost_guest::memory(0, 64, false)),
        EVENT => eventfd(1, flags).expect("an event descriptor"),
        SOCKET => UnixStream::pair().expect("sockets").0.into(),
        ON_DISK => std::fs::File::open("/proc/self/exe").expect("this program").into(),
        SHORT => memfd(1, &[]),
        PIPE => rustix::pipe::pipe().expect("a pipe").0,
        _ => return None,
    })
}

async fn send(stream: UnixStream, mut input: &[u8]) {
    let waiting = Fd::new(stream.as_fd().try_clone_to_owned().expect("a descriptor"));
    while let [what, len, rest @ ..] = input {
        let (piece, behind) = rest.split_at(rest.len().min(usize::from(*len)));
        input = behind;
        let files: Vec<OwnedFd> =
            (0..=what >> 3 & 3).filter_map(|_| descriptor(what & 7)).collect();
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        let is_open = waiting.writable().await.is_ok();
        if !piece.is_empty() && (!is_open || send_with_files(&stream, piece, &files).is_err()) {
            break;
        }
    }
    let (Ok(()) | Err(_)) = stream.shutdown(Shutdown::Write);
}

async fn receive(socket: Socket) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let (count, part) = socket.recv(vec![0; 4096]).await;
        match count {
            Ok(0) | Err(_) => return all,
            Ok(count) => all.extend_from_slice(&part[..count]),
        }
    }
}

/// Checks answers; how many there are.
fn check(mut answers: &[u8], is_cut: bool) -> usize {
    let mut count = 0;
    while let Some(header) = answers.first_chunk::<HEADER_BYTES>() {
        let field = |at: usize| {
            header[at..at + 4].iter().rev().fold(0u32, |n, byte| n << 8 | u32::from(*byte))
        };
        let (number, flags, len) = (field(0), field(4), field(8) as usize);
        assert!((1..64).contains(&number) && flags == 5 && len <= MOST_BYTES, "{header:?}");
        count += 1;
        match answers.get(HEADER_BYTES + len..) {
            Some(rest) => answers = rest,
            None => break,
        }
    }
    assert!(is_cut || answers.is_empty(), "half an answer");
    count
}

/// Checks one input against the module text; returns whether it was answered.
pub fn run(data: &[u8]) -> bool {
    let disk = Disk::new("ram0", Sectors(64), Limits::default());
    let ram: Arc<dyn BlockDevice> = Memory::writable(disk, vec![7; 64 * 512]);
    let export = Export::new("ram0", ByteVolume::new(Gateway::new(ram)));
    let config = Config { queues: 2, ..Config::default() };
    let (theirs, ours) = UnixStream::pair().expect("sockets");
    let reading = theirs.try_clone().expect("a descriptor");
    let (result, answers) = REACTOR.with(|reactor| {
        reactor.block_on(async {
            let serving = async {
                let socket = Socket::from_fd(ours.into());
                let served = testing::serve(&export, &config, &socket).await;
                let (Ok(()) | Err(_)) = socket.shutdown(Shutdown::Both).await;
                served
            };
            let all = join3(serving, send(theirs, data), receive(Socket::from_fd(reading.into())));
            let ended = timeout(PATIENCE, all).await;
            let (result, (), answers) = ended.expect("the session does not end");
            (result, answers)
        })
    });
    let count = check(&answers, result.is_err());
    assert!(count <= data.len() / HEADER_BYTES, "{count} answers");
    count > 0
}
