//! Opening: direct or buffered, claimed and locked, so that a disk is not opened twice by accident.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use ashlar_block::disk::Disk;
use ashlar_block::limits::Limits;
use ashlar_block::sync::sharded_arc::ShardedArc;
use ashlar_block::units::Sectors;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use thiserror::Error;

use super::holders::{self, Process};
use super::probe::{self, DirectAlign};
use super::{FileDevice, FileDriver, Kind, SharedFile, ioctl, lock};
use crate::files::RingFile;
use crate::runtime::EngineRuntime;

/// How to open a device.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Read-only: no claim, and a lock that other readers may share.
    pub read_only: bool,
    /// Bypass the page cache where the file system allows it.
    pub direct: bool,
    /// Take the advisory lock. Without it, two writers can destroy everything: only for looking at disks that are in
    /// use.
    pub lock: bool,
    /// Logical block size of an image, bytes (512 or 4096). A device reports its own.
    pub image_block_bytes: u32,
    /// Name of the disk; by default the last part of the path.
    pub name: Option<String>,
}

impl Default for OpenOptions {
    /// Read-write, direct, locked, blocks of 512 bytes.
    fn default() -> Self {
        Self { read_only: false, direct: true, lock: true, image_block_bytes: 512, name: None }
    }
}

/// Why a device could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A system call failed.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Another process holds the lock.
    #[error("{path}: in use by {user}", path = path.display(), user = locker(holder.as_ref()))]
    InUse {
        /// The path.
        path: PathBuf,
        /// The process. `None` if it is not visible, or has ended: the kernel keeps the lock until it has finished the
        /// process's I/O.
        holder: Option<Process>,
    },
    /// The kernel uses the device, or another process has claimed it.
    #[error("{path}: in use by {user}", path = path.display(), user = claimer(holder.as_ref()))]
    Claimed {
        /// The path.
        path: PathBuf,
        /// A process that has it open for writing; not necessarily the one that claimed it.
        holder: Option<Process>,
    },
    /// Neither a regular file nor a block device.
    #[error("{path}: neither a file nor a block device", path = .0.display())]
    NotADisk(PathBuf),
    /// An impossible block size.
    #[error("{path}: a logical block of {bytes} bytes is not possible", path = path.display())]
    BlockSize {
        /// The path.
        path: PathBuf,
        /// The requested size.
        bytes: u32,
    },
}

impl OpenError {
    /// Whether the user of the disk is not visible: another user's process, a device in another namespace, or a process
    /// that has ended while the kernel still does its I/O.
    pub fn has_unseen_user(&self) -> bool {
        matches!(self, Self::InUse { holder: None, .. } | Self::Claimed { holder: None, .. })
    }

    /// Whether the user of the disk may be about to end: it finishes the work of a daemon that has died.
    pub fn has_finishing_user(&self) -> bool {
        let (Self::InUse { holder, .. } | Self::Claimed { holder, .. }) = self else {
            return false;
        };
        holder.as_ref().is_some_and(Process::is_finisher)
    }
}

fn locker(holder: Option<&Process>) -> String {
    match holder {
        Some(process) if process.command == "ashlar" => format!("another {process}"),
        Some(process) => format!("{process}, which has locked it"),
        None => "another ashlar (or another program that locks its disk images)".to_owned(),
    }
}

fn claimer(holder: Option<&Process>) -> String {
    match holder {
        Some(process) => process.to_string(),
        None => "the system: mounted, swapped to, or part of an array or volume group".to_owned(),
    }
}

/// A descriptor of a disk, open, claimed and locked.
struct OpenDisk {
    fd: OwnedFd,
    stat: Stat,
    kind: Kind,
    asked_direct: bool,
    locked: bool,
}

/// Opens a disk image or a block device. Blocks (briefly), so a reactor runs it in the [pool](crate::blocking::run).
///
/// # Errors
/// See [`OpenError`].
pub fn open(path: &Path, options: &OpenOptions) -> Result<FileDevice, OpenError> {
    device(open_disk(path, options)?, path, options)
}

/// As [`open`], for another process that [adopts](adopt) the descriptor. The claim and the lock belong to the open file: they
/// last until each process has closed it.
///
/// # Errors
/// See [`OpenError`].
pub fn open_to_lend(path: &Path, options: &OpenOptions) -> Result<(OwnedFd, Kind), OpenError> {
    open_disk(path, options).map(|disk| (disk.fd, disk.kind))
}

/// Uses a descriptor that another process opened with [`open_to_lend`]: it must be a disk, with the access that is needed, and it
/// is locked as by [`open`]. That process has claimed a block device, which a descriptor does not show.
///
/// # Errors
/// See [`OpenError`].
pub fn adopt(fd: OwnedFd, path: &Path, options: &OpenOptions) -> Result<FileDevice, OpenError> {
    let io = |source: Errno| OpenError::Io { path: path.to_owned(), source: source.into() };
    let stat = rustix::fs::fstat(&fd).map_err(io)?;
    let kind = kind_of(&stat, path)?;
    let flags = rustix::fs::fcntl_getfl(&fd).map_err(io)?;
    let mode = flags & OFlags::RWMODE;
    let suffices = mode == OFlags::RDWR || (options.read_only && mode == OFlags::RDONLY);
    // A descriptor opened for appending ignores the offset of a write.
    if !suffices || flags.intersects(OFlags::PATH | OFlags::APPEND) {
        return Err(io(Errno::BADF));
    }
    let kept = flags - (OFlags::DIRECT | OFlags::NONBLOCK);
    let asked_direct =
        options.direct && rustix::fs::fcntl_setfl(&fd, kept | OFlags::DIRECT).is_ok();
    if !asked_direct {
        rustix::fs::fcntl_setfl(&fd, kept).map_err(io)?;
    }
    let locked = options.lock && lock::take(&fd, path, &stat, options.read_only)?;
    device(OpenDisk { fd, stat, kind, asked_direct, locked }, path, options)
}

fn open_disk(path: &Path, options: &OpenOptions) -> Result<OpenDisk, OpenError> {
    let block = options.image_block_bytes;
    if !matches!(block, 512 | 1024 | 2048 | 4096) {
        return Err(OpenError::BlockSize { path: path.to_owned(), bytes: block });
    }
    let io = |source: Errno| OpenError::Io { path: path.to_owned(), source: source.into() };
    let expected = kind_of(&rustix::fs::stat(path).map_err(io)?, path)?;
    let (fd, asked_direct) = open_fd(path, options, expected)?;
    let stat = rustix::fs::fstat(&fd).map_err(io)?;
    let kind = kind_of(&stat, path)?;
    if kind != expected {
        // The path was replaced meanwhile; the flags do not fit the new file.
        return Err(io(Errno::AGAIN));
    }
    let locked = options.lock && lock::take(&fd, path, &stat, options.read_only)?;
    Ok(OpenDisk { fd, stat, kind, asked_direct, locked })
}

fn device(disk: OpenDisk, path: &Path, options: &OpenOptions) -> Result<FileDevice, OpenError> {
    let OpenDisk { fd, stat, kind, asked_direct, locked } = disk;
    let block = options.image_block_bytes;
    let min_block = if kind == Kind::Image { block } else { 0 };
    let direct = if asked_direct { keep_direct(&fd, path, kind, min_block)? } else { None };
    if direct.is_none() {
        tracing::info!(path = %path.display(), "no direct I/O: using the page cache");
    }
    let (disk, read_only) = describe(path, options, &fd, &stat, kind, direct)
        .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
    disk.set_read_only(read_only);
    let shared = SharedFile {
        blocks: kind == Kind::Image && may_block(&fd),
        file: RingFile::new(fd),
        path: path.to_owned(),
        kind,
        direct,
        ring_discard: AtomicBool::new(true),
        flush_failed: AtomicBool::new(false),
        errors: AtomicU64::new(0),
        locked,
        closed: AtomicBool::new(false),
    };
    let driver = FileDriver { shared: ShardedArc::new(Arc::new(shared)) };
    Ok(FileDevice::with_deadline(disk, driver, Arc::new(EngineRuntime)))
}

/// Whether the file is on FUSE. The kernel says of such files that they do not block a submission, and they do, until
/// their server answers.
fn may_block(fd: &OwnedFd) -> bool {
    /// `FUSE_SUPER_MAGIC` of `include/uapi/linux/magic.h`.
    const FUSE: u64 = 0x6573_5546;
    // Their servers need not be able to answer this.
    rustix::fs::fstatfs(fd).map_or(true, |stat| stat.f_type as u64 == FUSE)
}

fn kind_of(stat: &Stat, path: &Path) -> Result<Kind, OpenError> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Kind::Image),
        FileType::BlockDevice => Ok(Kind::Device),
        FileType::Directory
        | FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::Unknown => Err(OpenError::NotADisk(path.to_owned())),
    }
}

/// Opens, with O_DIRECT if requested and accepted; returns whether it was.
fn open_fd(path: &Path, options: &OpenOptions, kind: Kind) -> Result<(OwnedFd, bool), OpenError> {
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if kind == Kind::Device && !options.read_only {
        // O_EXCL on a block device, without O_CREAT: claims it, against mounts and other claims.
        flags |= OFlags::EXCL;
    }
    let try_open = |flags| rustix::fs::open(path, flags, Mode::empty());
    let opened = if options.direct {
        match try_open(flags | OFlags::DIRECT) {
            Err(Errno::INVAL) => try_open(flags).map(|fd| (fd, false)),
            other => other.map(|fd| (fd, true)),
        }
    } else {
        try_open(flags).map(|fd| (fd, false))
    };
    opened.map_err(|errno| match errno {
        Errno::BUSY if kind == Kind::Device => {
            let number = rustix::fs::stat(path).ok().map(|stat| stat.st_rdev);
            let holder = number.and_then(holders::device_writer);
            OpenError::Claimed { path: path.to_owned(), holder }
        }
        source => OpenError::Io { path: path.to_owned(), source: source.into() },
    })
}

/// Direct I/O if it works in units of our block, else none. Images keep 512-byte blocks on any file system, since their
/// contents may have been made with this size.
fn keep_direct(
    fd: &OwnedFd,
    path: &Path,
    kind: Kind,
    block: u32,
) -> Result<Option<DirectAlign>, OpenError> {
    let align = probe::direct_align(fd.as_fd());
    let usable = align.filter(|align| kind == Kind::Device || align.offset <= block);
    if usable.is_none() {
        let io = |source: Errno| OpenError::Io { path: path.to_owned(), source: source.into() };
        let flags = rustix::fs::fcntl_getfl(fd).map_err(io)?;
        rustix::fs::fcntl_setfl(fd, flags - OFlags::DIRECT).map_err(io)?;
    }
    Ok(usable)
}

/// Size, limits and name; whether the disk is read-only.
fn describe(
    path: &Path,
    options: &OpenOptions,
    fd: &OwnedFd,
    stat: &Stat,
    kind: Kind,
    direct: Option<DirectAlign>,
) -> io::Result<(Disk, bool)> {
    let mut read_only = options.read_only;
    let (bytes, limits): (u64, Limits) = match kind {
        Kind::Image => {
            let bytes = u64::try_from(stat.st_size).unwrap_or(0);
            let block = options.image_block_bytes;
            (bytes, probe::image_limits(fd.as_fd(), stat, block, direct, !read_only))
        }
        Kind::Device => {
            read_only |= ioctl::is_read_only(fd.as_fd())?;
            (ioctl::size(fd.as_fd())?, probe::device_limits(fd.as_fd(), stat, direct)?)
        }
    };
    let block = u64::from(limits.logical_block_bytes);
    let capacity = Sectors::from_bytes_floor(bytes - bytes % block);
    let last_part = || path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let name = options.name.clone().unwrap_or_else(last_part);
    Ok((Disk::new(name, capacity, limits), read_only))
}
