//! Parsing of requests: from the bytes of `/dev/fuse` to an [`Operation`].
//!
//! Pure, and total: any bytes give a request, or a [`RequestError`] that says how to answer.

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::abi::{self, opcode};

/// One request from the kernel.
#[derive(Debug, PartialEq)]
pub struct Request<'a> {
    /// The request's identifier, for the reply.
    pub unique: u64,
    /// The node it refers to.
    pub node: u64,
    /// The thread that asks; 0 if this process cannot know it.
    pub pid: u32,
    /// The operation.
    pub op: Operation<'a>,
}

/// The operation of a request. Handles (`fh`) are those that OPEN and OPENDIR returned.
#[derive(Debug, PartialEq)]
pub enum Operation<'a> {
    /// Version and feature negotiation; the first request of a mount.
    Init {
        /// Protocol version of the kernel.
        version: (u32, u32),
        /// What the kernel offers (`FUSE_*` INIT flags, both words).
        flags: u64,
        /// The kernel's readahead window, bytes.
        max_readahead: u32,
    },
    /// Find a name in a directory.
    Lookup {
        /// The name, without NUL.
        name: &'a [u8],
    },
    /// The kernel dropped references; no reply.
    Forget {
        /// How many.
        lookups: u64,
    },
    /// The same for many nodes; no reply.
    BatchForget {
        /// Pairs of node id and count, in wire format.
        list: ForgetPairs<'a>,
    },
    /// Attributes of a node.
    GetAttr,
    /// Change attributes of a node.
    SetAttr {
        /// Whether the mode or the owner should change.
        owner_or_mode: bool,
        /// The new size.
        size: Option<u64>,
        /// The handle through which the size is changed. `None` for the truncation of an open(2).
        fh: Option<u64>,
    },
    /// Target of a symlink.
    ReadLink,
    /// Open a file.
    Open {
        /// `open(2)` flags.
        flags: u32,
    },
    /// Read from a file.
    Read {
        /// Handle.
        fh: u64,
        /// Byte position.
        offset: u64,
        /// Bytes requested.
        size: u32,
    },
    /// Write to a file; the payload follows the arguments.
    Write {
        /// Handle.
        fh: u64,
        /// Byte position.
        offset: u64,
        /// Bytes of payload.
        size: u32,
        /// Whether the file was opened with O_DSYNC or O_SYNC.
        sync: bool,
    },
    /// Make a file's writes durable.
    Fsync {
        /// Handle.
        fh: u64,
    },
    /// A descriptor was closed.
    Flush,
    /// The last descriptor of a handle was closed.
    Release {
        /// Handle.
        fh: u64,
    },
    /// Space management.
    Fallocate {
        /// Handle.
        fh: u64,
        /// Byte position.
        offset: u64,
        /// Bytes.
        length: u64,
        /// `FALLOC_FL_*`.
        mode: u32,
    },
    /// An ioctl on an open file.
    Ioctl {
        /// Handle.
        fh: u64,
        /// The command.
        cmd: u32,
        /// Space for the answer, bytes.
        out_size: u32,
    },
    /// Open a directory.
    OpenDir,
    /// List a directory.
    ReadDir {
        /// Handle.
        fh: u64,
        /// Where to continue: 0 or the `off` of an entry.
        offset: u64,
        /// Space for entries, bytes.
        size: u32,
        /// Whether each entry is looked up as well (READDIRPLUS).
        plus: bool,
    },
    /// A directory handle was closed.
    ReleaseDir {
        /// Handle.
        fh: u64,
    },
    /// Make a directory durable.
    FsyncDir,
    /// Size and block size.
    StatFs,
    /// Create, remove or rename something (any of those opcodes).
    ChangeTree,
    /// A process stopped waiting for an earlier request.
    Interrupt,
    /// The mount ends.
    Destroy,
    /// Any opcode that this server does not know or does not implement.
    Unknown(u32),
}

/// The pairs of a BATCH_FORGET.
#[derive(Debug, PartialEq, Clone, Copy)]
pub struct ForgetPairs<'a>(&'a [u8]);

impl ForgetPairs<'_> {
    /// Node ids and how many references of each are dropped.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0
            .chunks_exact(size_of::<abi::ForgetOne>())
            .filter_map(|one| abi::ForgetOne::read_from_bytes(one).ok())
            .map(|one| (one.nodeid, one.nlookup))
    }
}

/// Bytes that are not a FUSE request.
#[derive(Debug, Error, PartialEq)]
#[error("malformed FUSE request (opcode {opcode}): {reason}")]
pub struct RequestError {
    /// The request to answer, if the header could be read and a reply is due.
    pub unique: Option<u64>,
    /// The opcode, 0 if unknown.
    pub opcode: u32,
    /// What is wrong.
    pub reason: &'static str,
}

/// The fixed structure at the start of a message's arguments.
fn fixed<T: FromBytes + KnownLayout + Immutable>(args: &[u8]) -> Result<(T, &[u8]), &'static str> {
    T::read_from_prefix(args).map_err(|_| "too short")
}

/// A NUL-terminated name.
fn name(args: &[u8]) -> Result<&[u8], &'static str> {
    let end = args.iter().position(|&b| b == 0).ok_or("name without end")?;
    if end == 0 { Err("empty name") } else { Ok(&args[..end]) }
}

fn init(args: &[u8]) -> Result<Operation<'_>, &'static str> {
    let (init, rest) = fixed::<abi::InitIn>(args)?;
    let mut flags = u64::from(init.flags);
    if flags & abi::init::INIT_EXT != 0 {
        let (upper, _) = fixed::<u32>(rest)?;
        flags |= u64::from(upper) << 32;
    }
    Ok(Operation::Init {
        version: (init.major, init.minor),
        flags,
        max_readahead: init.max_readahead,
    })
}

fn batch_forget(args: &[u8]) -> Result<Operation<'_>, &'static str> {
    let (batch, rest) = fixed::<abi::BatchForgetIn>(args)?;
    let bytes = (batch.count as usize)
        .checked_mul(size_of::<abi::ForgetOne>())
        .filter(|&bytes| bytes <= rest.len())
        .ok_or("fewer entries than announced")?;
    Ok(Operation::BatchForget { list: ForgetPairs(&rest[..bytes]) })
}

fn read_dir(args: &[u8], plus: bool) -> Result<Operation<'_>, &'static str> {
    let (read, _) = fixed::<abi::ReadIn>(args)?;
    Ok(Operation::ReadDir { fh: read.fh, offset: read.offset, size: read.size, plus })
}

fn set_attr(args: &[u8]) -> Result<Operation<'_>, &'static str> {
    use abi::fattr::{FH, GID, MODE, SIZE, UID};
    let (set, _) = fixed::<abi::SetAttrIn>(args)?;
    Ok(Operation::SetAttr {
        owner_or_mode: set.valid & (MODE | UID | GID) != 0,
        size: (set.valid & SIZE != 0).then_some(set.size),
        fh: (set.valid & FH != 0).then_some(set.fh),
    })
}

fn write(args: &[u8], payload: usize) -> Result<Operation<'_>, &'static str> {
    let (write, rest) = fixed::<abi::WriteIn>(args)?;
    if !rest.is_empty() || write.size as usize != payload {
        return Err("payload is not of the announced length");
    }
    let sync = write.flags & abi::oflag::DSYNC != 0;
    Ok(Operation::Write { fh: write.fh, offset: write.offset, size: write.size, sync })
}

fn operation(code: u32, args: &[u8], payload: usize) -> Result<Operation<'_>, &'static str> {
    if payload != 0 && code != opcode::WRITE {
        return Err("unexpected payload");
    }
    Ok(match code {
        opcode::INIT => init(args)?,
        opcode::LOOKUP => Operation::Lookup { name: name(args)? },
        opcode::FORGET => Operation::Forget { lookups: fixed::<abi::ForgetIn>(args)?.0.nlookup },
        opcode::BATCH_FORGET => batch_forget(args)?,
        opcode::GETATTR => Operation::GetAttr,
        opcode::SETATTR => set_attr(args)?,
        opcode::READLINK => Operation::ReadLink,
        opcode::OPEN => Operation::Open { flags: fixed::<abi::OpenIn>(args)?.0.flags },
        opcode::READ => {
            let (read, _) = fixed::<abi::ReadIn>(args)?;
            Operation::Read { fh: read.fh, offset: read.offset, size: read.size }
        }
        opcode::WRITE => write(args, payload)?,
        opcode::FSYNC => Operation::Fsync { fh: fixed::<abi::FsyncIn>(args)?.0.fh },
        opcode::FLUSH => Operation::Flush,
        opcode::RELEASE => Operation::Release { fh: fixed::<abi::ReleaseIn>(args)?.0.fh },
        opcode::FALLOCATE => {
            let (f, _) = fixed::<abi::FallocateIn>(args)?;
            Operation::Fallocate { fh: f.fh, offset: f.offset, length: f.length, mode: f.mode }
        }
        opcode::IOCTL => {
            let (ioctl, _) = fixed::<abi::IoctlIn>(args)?;
            Operation::Ioctl { fh: ioctl.fh, cmd: ioctl.cmd, out_size: ioctl.out_size }
        }
        opcode::OPENDIR => Operation::OpenDir,
        opcode::READDIR => read_dir(args, false)?,
        opcode::READDIRPLUS => read_dir(args, true)?,
        opcode::RELEASEDIR => Operation::ReleaseDir { fh: fixed::<abi::ReleaseIn>(args)?.0.fh },
        opcode::FSYNCDIR => Operation::FsyncDir,
        opcode::STATFS => Operation::StatFs,
        opcode::SYMLINK
        | opcode::MKNOD
        | opcode::MKDIR
        | opcode::UNLINK
        | opcode::RMDIR
        | opcode::RENAME
        | opcode::RENAME2
        | opcode::LINK
        | opcode::CREATE => Operation::ChangeTree,
        opcode::INTERRUPT => Operation::Interrupt,
        opcode::DESTROY => Operation::Destroy,
        other => Operation::Unknown(other),
    })
}

impl<'a> Request<'a> {
    /// Parses a message: `bytes` is its first part, and `payload` more bytes (the data of a WRITE, else 0) are stored
    /// elsewhere.
    ///
    /// # Errors
    /// [`RequestError`] for anything that is not exactly one request.
    pub fn parse(bytes: &'a [u8], payload: usize) -> Result<Self, RequestError> {
        let Ok((header, args)) = abi::InHeader::read_from_prefix(bytes) else {
            return Err(RequestError { unique: None, opcode: 0, reason: "no header" });
        };
        let expects_reply = !matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET);
        let malformed = |reason| RequestError {
            unique: expects_reply.then_some(header.unique),
            opcode: header.opcode,
            reason,
        };
        if bytes.len().checked_add(payload) != Some(header.len as usize) {
            return Err(malformed("length does not match"));
        }
        let op = operation(header.opcode, args, payload).map_err(malformed)?;
        Ok(Self { unique: header.unique, node: header.nodeid, pid: header.pid, op })
    }
}
