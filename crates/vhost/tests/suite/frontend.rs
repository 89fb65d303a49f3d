//! A front end with its guest, written by hand: it says whatever a test wants.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use ashlar_engine::net::{readable_until, receive_with_files, send_with_files};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

pub(crate) const GET_FEATURES: u32 = 1;
pub(crate) const SET_FEATURES: u32 = 2;
pub(crate) const SET_OWNER: u32 = 3;
pub(crate) const SET_MEM_TABLE: u32 = 5;
pub(crate) const SET_VRING_NUM: u32 = 8;
pub(crate) const SET_VRING_ADDR: u32 = 9;
pub(crate) const SET_VRING_BASE: u32 = 10;
pub(crate) const GET_VRING_BASE: u32 = 11;
pub(crate) const SET_VRING_KICK: u32 = 12;
pub(crate) const SET_VRING_CALL: u32 = 13;
pub(crate) const SET_VRING_ERR: u32 = 14;
pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
pub(crate) const SET_VRING_ENABLE: u32 = 18;
pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
pub(crate) const GET_CONFIG: u32 = 24;
pub(crate) const GET_INFLIGHT_FD: u32 = 31;
pub(crate) const SET_INFLIGHT_FD: u32 = 32;
pub(crate) const RESET_DEVICE: u32 = 34;

pub(crate) const NEED_REPLY: u32 = 8;
pub(crate) const MEMORY_BYTES: usize = 8 << 20;
/// The front end's address of the guest's byte 0.
pub(crate) const USER: u64 = 0x7f00_0000_0000;
pub(crate) const QUEUE_SIZE: u16 = 64;
/// A queue's share of the guest's memory.
const QUEUE_BYTES: u64 = 0x10000;
const AVAILABLE_AT: u64 = 0x4000;
const USED_AT: u64 = 0x8000;
const HEADERS_AT: u64 = 0xc000;
/// Where data are.
pub(crate) const DATA_AT: u64 = 0x10_0000;

pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

const PATIENCE: Duration = Duration::from_secs(60);

/// Where the guest's memory begins in its file. What precedes it, and what follows it, is not the guest's.
const FILE_AT: u64 = 4096;
const FILE_BYTES: usize = MEMORY_BYTES + 2 * FILE_AT as usize;
const CANARY: u8 = 0xc5;

/// The memory of a guest, which outlives connections.
pub(crate) struct Guest {
    mapping: MmapRegion<()>,
    pub(crate) file: OwnedFd,
}

impl Guest {
    pub(crate) fn new() -> Arc<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("guest", flags).unwrap();
        ftruncate(&file, FILE_BYTES as u64).unwrap();
        for at in [0, FILE_AT + MEMORY_BYTES as u64] {
            pwrite(&file, &[CANARY; FILE_AT as usize], at).unwrap();
        }
        let copy = FileOffset::new(file.try_clone().unwrap().into(), FILE_AT);
        Arc::new(Self { mapping: MmapRegion::from_file(copy, MEMORY_BYTES).unwrap(), file })
    }

    /// Whether the bytes of its file that are not its memory are as they were.
    pub(crate) fn is_alone(&self) -> bool {
        [0, FILE_AT + MEMORY_BYTES as u64].into_iter().all(|at| {
            let mut bytes = [0; FILE_AT as usize];
            pread(&self.file, &mut bytes, at).unwrap();
            bytes == [CANARY; FILE_AT as usize]
        })
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        self.mapping.as_volatile_slice().write_slice(bytes, at as usize).unwrap();
    }

    pub(crate) fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mapping.as_volatile_slice().read_slice(&mut bytes, at as usize).unwrap();
        bytes
    }

    pub(crate) fn load(&self, at: u64) -> u16 {
        self.mapping.as_volatile_slice().load(at as usize, Acquire).unwrap()
    }

    pub(crate) fn store(&self, at: u64, value: u16) {
        self.mapping.as_volatile_slice().store(value, at as usize, Release).unwrap();
    }

    /// Forgets all rings.
    pub(crate) fn clear(&self) {
        self.put(0, &vec![0; DATA_AT as usize]);
    }
}

/// The connection.
pub(crate) struct Client {
    pub(crate) socket: UnixStream,
    pub(crate) guest: Arc<Guest>,
}

pub(crate) fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in [request, 1 | flags, body.len() as u32] {
        bytes.extend_from_slice(&field.to_ne_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

pub(crate) fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

pub(crate) fn state(index: u16, number: u32) -> Vec<u8> {
    [u32::from(index), number].iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// All of the guest's memory.
pub(crate) fn table() -> Vec<u8> {
    let mut body = [1u32.to_ne_bytes(), [0; 4]].concat();
    body.extend(numbers(&[0, MEMORY_BYTES as u64, USER, FILE_AT]));
    body
}

impl Client {
    pub(crate) fn new(path: &Path, guest: &Arc<Guest>) -> Self {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, guest: Arc::clone(guest) }
    }

    /// A connection with these virtio features (of those offered), and all of the guest's memory.
    pub(crate) fn connect(path: &Path, guest: &Arc<Guest>, features: u64) -> Self {
        let mut client = Self::new(path, guest);
        client.negotiate(features);
        client.set_table();
        client
    }

    pub(crate) fn negotiate(&mut self, features: u64) {
        self.send(SET_OWNER, 0, &[], &[]);
        let offered = self.number(GET_FEATURES);
        self.send(SET_FEATURES, 0, &numbers(&[offered & (features | 1 << 30)]), &[]);
        let offered = self.number(GET_PROTOCOL_FEATURES);
        self.send(SET_PROTOCOL_FEATURES, 0, &numbers(&[offered]), &[]);
    }

    pub(crate) fn set_table(&mut self) {
        let file = self.guest.file.try_clone().unwrap();
        self.set(SET_MEM_TABLE, &table(), &[file.as_fd()]);
    }

    /// As [`Self::set_table`], without an answer.
    pub(crate) fn send_table(&mut self) {
        let file = self.guest.file.try_clone().unwrap();
        self.send(SET_MEM_TABLE, 0, &table(), &[file.as_fd()]);
    }

    pub(crate) fn send(&mut self, request: u32, flags: u32, body: &[u8], files: &[BorrowedFd<'_>]) {
        self.try_send(request, flags, body, files).unwrap();
    }

    fn try_send(
        &mut self,
        request: u32,
        flags: u32,
        body: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        send_with_files(&self.socket, &message(request, flags, body), files)
    }

    /// A request that is acknowledged.
    pub(crate) fn set(&mut self, request: u32, body: &[u8], files: &[BorrowedFd<'_>]) {
        self.send(request, NEED_REPLY, body, files);
        assert_eq!(self.reply(request).unwrap(), numbers(&[0]), "request {request}");
    }

    /// A request with an answer.
    pub(crate) fn ask(&mut self, request: u32, body: &[u8]) -> io::Result<Vec<u8>> {
        self.try_send(request, 0, body, &[])?;
        self.reply(request)
    }

    pub(crate) fn number(&mut self, request: u32) -> u64 {
        let body = self.ask(request, &[]).unwrap();
        u64::from_ne_bytes(body.try_into().unwrap())
    }

    pub(crate) fn reply(&mut self, request: u32) -> io::Result<Vec<u8>> {
        self.reply_with_files(request, &mut Vec::new())
    }

    pub(crate) fn reply_with_files(
        &mut self,
        request: u32,
        files: &mut Vec<OwnedFd>,
    ) -> io::Result<Vec<u8>> {
        let mut header = [0; 12];
        readable_until(self.socket.as_fd(), Some(Instant::now() + PATIENCE))?;
        let count = receive_with_files(&self.socket, &mut header, files)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.socket.read_exact(&mut header[count..])?;
        let field = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!((field(0), field(4)), (request, 5));
        let mut body = vec![0; field(8) as usize];
        self.socket.read_exact(&mut body)?;
        Ok(body)
    }

    /// Whether the device has closed the connection; what it sent before is skipped.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.socket.read_to_end(&mut Vec::new()) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    /// Starts a queue.
    pub(crate) fn start(&mut self, index: u16, base: u16) -> Ring {
        let ring = Ring::new(index, &self.guest, base);
        self.set(SET_VRING_NUM, &state(index, QUEUE_SIZE.into()), &[]);
        self.set(SET_VRING_BASE, &state(index, base.into()), &[]);
        self.set(SET_VRING_ADDR, &ring.addresses(), &[]);
        let number = numbers(&[index.into()]);
        self.set(SET_VRING_CALL, &number, &[ring.call.as_fd()]);
        self.set(SET_VRING_ERR, &number, &[ring.error.as_fd()]);
        self.set(SET_VRING_KICK, &number, &[ring.kick.as_fd()]);
        self.set(SET_VRING_ENABLE, &state(index, 1), &[]);
        ring
    }

    /// Starts a queue without the protocol's features: no answers, and nothing that enables it.
    pub(crate) fn start_plain(&mut self, index: u16) -> Ring {
        let ring = Ring::new(index, &self.guest, 0);
        self.send(SET_VRING_NUM, 0, &state(index, QUEUE_SIZE.into()), &[]);
        self.send(SET_VRING_ADDR, 0, &ring.addresses(), &[]);
        let number = numbers(&[index.into()]);
        self.send(SET_VRING_CALL, 0, &number, &[ring.call.as_fd()]);
        self.send(SET_VRING_KICK, 0, &number, &[ring.kick.as_fd()]);
        ring
    }

    /// Stops a queue; the index that its next connection begins with.
    pub(crate) fn stop(&mut self, index: u16) -> io::Result<u16> {
        let body = self.ask(GET_VRING_BASE, &state(index, 0))?;
        Ok(u16::from_ne_bytes([body[4], body[5]]))
    }
}

/// A part of a chain: its address, length and flags (without NEXT).
pub(crate) type Part = (u64, u32, u16);

/// A queue as its driver has it.
pub(crate) struct Ring {
    index: u16,
    guest: Arc<Guest>,
    pub(crate) kick: OwnedFd,
    pub(crate) call: OwnedFd,
    pub(crate) error: OwnedFd,
    available: u16,
    used: u16,
}

impl Ring {
    fn new(index: u16, guest: &Arc<Guest>, base: u16) -> Self {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let (kick, call, error) = (event(), event(), event());
        Self { index, guest: Arc::clone(guest), kick, call, error, available: base, used: base }
    }

    /// Where the ring begins in the guest: its descriptors.
    pub(crate) fn start(&self) -> u64 {
        u64::from(self.index) * QUEUE_BYTES
    }

    pub(crate) fn available_at(&self) -> u64 {
        self.start() + AVAILABLE_AT
    }

    pub(crate) fn used_at(&self) -> u64 {
        self.start() + USED_AT
    }

    fn addresses(&self) -> Vec<u8> {
        let mut body = state(self.index, 0);
        let user = |at: u64| USER + at;
        body.extend(numbers(&[
            user(self.start()),
            user(self.used_at()),
            user(self.available_at()),
            0,
        ]));
        body
    }

    pub(crate) fn put_descriptor(&self, number: u16, part: Part, next: u16) {
        self.put_entry(self.start() + 16 * u64::from(number), part, next);
    }

    pub(crate) fn put_entry(&self, at: u64, (address, len, flags): Part, next: u16) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.guest.put(at, &bytes);
    }

    /// Where the header of the request with this head is; its status follows.
    pub(crate) fn header_at(&self, head: u16) -> u64 {
        self.start() + HEADERS_AT + 32 * u64::from(head)
    }

    pub(crate) fn put_header(&self, head: u16, kind: u32, sector: u64) {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(sector.to_le_bytes());
        bytes.push(0xff);
        self.guest.put(self.header_at(head), &bytes);
    }

    pub(crate) fn status(&self, head: u16) -> u8 {
        self.guest.get(self.header_at(head) + 16, 1)[0]
    }

    /// A chain from `head` on, in consecutive descriptors.
    pub(crate) fn put_chain(&self, head: u16, parts: &[Part]) {
        for (number, (address, len, flags)) in (head..).zip(parts) {
            let is_last = usize::from(number - head) == parts.len() - 1;
            let flags = if is_last { *flags } else { flags | NEXT };
            self.put_descriptor(number, (*address, *len, flags), number + 1);
        }
    }

    /// A request with its header, `data` and its status.
    pub(crate) fn put_request(&self, head: u16, kind: u32, sector: u64, data: &[Part]) {
        self.put_header(head, kind, sector);
        let mut parts = vec![(self.header_at(head), 16, 0)];
        parts.extend(data);
        parts.push((self.header_at(head) + 16, 1, WRITE));
        self.put_chain(head, &parts);
    }

    /// Makes a chain available, without a signal.
    pub(crate) fn offer(&mut self, head: u16) {
        let slot = u64::from(self.available % QUEUE_SIZE);
        self.guest.put(self.available_at() + 4 + 2 * slot, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.guest.store(self.available_at() + 2, self.available);
    }

    /// Other event descriptors from now on; returns the former ones.
    pub(crate) fn replace_events(&mut self) -> (OwnedFd, OwnedFd) {
        let kick = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let kick = std::mem::replace(&mut self.kick, kick);
        let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        (kick, std::mem::replace(&mut self.call, call))
    }

    /// Continues a ring whose available index is `available`.
    pub(crate) fn resume(&mut self, available: u16) {
        self.available = available;
    }

    pub(crate) fn signal(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// The next request that was completed: its head and the bytes written.
    pub(crate) fn try_used(&mut self) -> Option<(u16, u32)> {
        if self.guest.load(self.used_at() + 2) == self.used {
            return None;
        }
        let slot = u64::from(self.used % QUEUE_SIZE);
        let element = self.guest.get(self.used_at() + 4 + 8 * slot, 8);
        self.used = self.used.wrapping_add(1);
        let field = |at: usize| u32::from_le_bytes(element[at..at + 4].try_into().unwrap());
        Some((field(0) as u16, field(4)))
    }

    /// Waits for the next completion.
    pub(crate) fn used(&mut self) -> (u16, u32) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(used) = self.try_used() {
                return used;
            }
            assert!(Instant::now() < deadline, "a request is not completed");
            // The device signals, unless it was told otherwise.
            let soon = Instant::now() + Duration::from_millis(10);
            if readable_until(self.call.as_fd(), Some(soon)).unwrap() {
                let (Ok(_) | Err(_)) = rustix::io::read(&self.call, &mut [0; 8]);
            }
        }
    }

    /// Executes one request; its status.
    pub(crate) fn execute(&mut self, kind: u32, sector: u64, data: &[Part]) -> u8 {
        self.put_request(0, kind, sector, data);
        self.offer(0);
        self.signal();
        assert_eq!(self.used().0, 0);
        self.status(0)
    }
}
