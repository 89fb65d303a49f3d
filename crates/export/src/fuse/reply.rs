//! Encoding of replies to `/dev/fuse`.
//!
//! Replies without bulk data are one byte vector, header included; the data of a READ is written from its own buffer
//! after [`header`].

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::abi;

/// Length of the header of a reply.
pub(crate) const HEADER: usize = size_of::<abi::OutHeader>();

/// The header of a successful reply followed by `payload` bytes.
pub(crate) fn header(unique: u64, payload: usize) -> [u8; HEADER] {
    // Payloads are bounded by the 32-bit sizes of the requests.
    let len = (HEADER + payload) as u32;
    zerocopy::transmute!(abi::OutHeader { len, error: 0, unique })
}

/// A reply of a structure, possibly followed by more bytes.
pub(crate) fn with<T: IntoBytes + Immutable + ?Sized>(
    unique: u64,
    body: &T,
    rest: &[u8],
) -> Vec<u8> {
    let body = body.as_bytes();
    let mut out = Vec::with_capacity(HEADER + body.len() + rest.len());
    out.extend_from_slice(&header(unique, body.len() + rest.len()));
    out.extend_from_slice(body);
    out.extend_from_slice(rest);
    out
}

/// A reply of plain bytes.
pub(crate) fn bytes(unique: u64, body: &[u8]) -> Vec<u8> {
    with(unique, body, &[])
}

/// Success without data.
pub(crate) fn ok(unique: u64) -> Vec<u8> {
    header(unique, 0).to_vec()
}

/// An error reply.
pub(crate) fn error(unique: u64, errno: Errno) -> Vec<u8> {
    let header = abi::OutHeader { len: HEADER as u32, error: -errno.raw_os_error(), unique };
    header.as_bytes().to_vec()
}

/// The notifications that the file `node` has `size` bytes now.
///
/// The kernel takes no size from the reply to a GETATTR if a write to the file has ended since it asked: while a file is written
/// to, it might not learn of its new end for long, and would read nothing there. It always takes the end of data that a notification has it
/// store in its page cache (`fuse_notify_store` in `fs/fuse/dev.c`): here one byte, the last, in a page that then still counts
/// as one to read, and is dropped again. That also has it ask for a size that became smaller.
pub(crate) fn size_notices(node: u64, size: u64) -> [Vec<u8>; 2] {
    let last = size.saturating_sub(1);
    let store = abi::NotifyStoreOut { nodeid: node, offset: last, size: 1, padding: 0 };
    let drop = abi::NotifyInvalInodeOut { nodeid: node, offset: last as i64, len: 1 };
    [
        notice(abi::notify::STORE, &[store.as_bytes(), &[0]].concat()),
        notice(abi::notify::INVAL_INODE, drop.as_bytes()),
    ]
}

fn notice(code: i32, body: &[u8]) -> Vec<u8> {
    let len = (HEADER + body.len()) as u32;
    let header = abi::OutHeader { len, error: code, unique: 0 };
    [header.as_bytes(), body].concat()
}

/// How many bytes of a WRITE were accepted.
pub(crate) fn written(unique: u64, size: u32) -> Vec<u8> {
    with(unique, &abi::WriteOut { size, padding: 0 }, &[])
}

/// The entries of a READDIR or READDIRPLUS reply, within the space the kernel offers.
pub(crate) struct DirectoryList {
    out: Vec<u8>,
    room: usize,
}

impl DirectoryList {
    pub(crate) fn new(room: u32) -> Self {
        // The kernel asks again for the rest; a huge space is not worth a huge reply.
        Self { out: Vec::new(), room: (room as usize).min(1 << 16) }
    }

    /// Whether an entry with a name of `name` bytes still fits.
    pub(crate) fn fits(&self, name: usize, plus: bool) -> bool {
        let entry = if plus { size_of::<abi::EntryOut>() } else { 0 };
        let size = (entry + size_of::<abi::Dirent>() + name).next_multiple_of(8);
        self.out.len() + size <= self.room
    }

    /// Adds an entry that [`Self::fits`]; `off` is where the listing continues after it. `entry` is the reply of a
    /// LOOKUP of the name, for READDIRPLUS.
    pub(crate) fn push(
        &mut self,
        entry: Option<&abi::EntryOut>,
        ino: u64,
        mode: u32,
        off: u64,
        name: &[u8],
    ) {
        if let Some(entry) = entry {
            self.out.extend_from_slice(entry.as_bytes());
        }
        let dirent = abi::Dirent { ino, off, namelen: name.len() as u32, kind: mode >> 12 };
        self.out.extend_from_slice(dirent.as_bytes());
        self.out.extend_from_slice(name);
        self.out.resize(self.out.len().next_multiple_of(8), 0);
    }

    /// The reply.
    pub(crate) fn finish(self, unique: u64) -> Vec<u8> {
        bytes(unique, &self.out)
    }
}
