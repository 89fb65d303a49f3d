//! The kernel's FUSE wire structures, protocol 7.31 to 7.45 (`include/uapi/linux/fuse.h`).
//!
//! All integers are in the machine's byte order: both ends of `/dev/fuse` are on one machine. Structures that a newer
//! protocol extended are declared with the length that every version since 7.31 understands; the rest of a longer
//! message is ignored. Sizes are asserted at compile time.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Protocol major version.
pub(crate) const MAJOR: u32 = 7;
/// The minor version we offer; the kernel uses the smaller of both.
pub(crate) const MINOR: u32 = 45;
/// The oldest minor version we serve (Linux 5.4).
pub(crate) const MINOR_OLDEST: u32 = 31;
/// Notifications, messages without a request: the code is in the place of a reply's error.
pub(crate) mod notify {
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const STORE: i32 = 4;
}

/// Node id of the mount's root directory.
pub(crate) const ROOT_ID: u64 = 1;

/// Operation codes; only those that this server uses.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
}

/// INIT flags, the second word (`flags2`) in the upper half.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Bits of [`SetAttrIn::valid`].
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const FH: u32 = 1 << 6;
}

/// Bits of [`OpenOut::open_flags`].
pub(crate) mod fopen {
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// `fallocate(2)` modes (`linux/falloc.h`).
pub(crate) mod falloc {
    pub(crate) const KEEP_SIZE: u32 = 0x01;
    pub(crate) const PUNCH_HOLE: u32 = 0x02;
    pub(crate) const ZERO_RANGE: u32 = 0x10;
}

/// `open(2)` flags as the kernel sends them.
pub(crate) mod oflag {
    use rustix::fs::OFlags;

    pub(crate) const ACCESS_MODE: u32 = OFlags::ACCMODE.bits();
    pub(crate) const RDONLY: u32 = OFlags::RDONLY.bits();
    pub(crate) const WRONLY: u32 = OFlags::WRONLY.bits();
    /// Also set in O_SYNC.
    pub(crate) const DSYNC: u32 = OFlags::DSYNC.bits();
}

/// File types in `st_mode`, and, shifted down by 12, in directory entries.
pub(crate) mod mode {
    pub(crate) const DIRECTORY: u32 = 0o040_000;
    pub(crate) const REGULAR: u32 = 0o100_000;
    pub(crate) const SYMLINK: u32 = 0o120_000;
}

/// `BLKGETSIZE64`: `_IOR(0x12, 114, size_t)`.
pub(crate) const BLKGETSIZE64: u32 = 2 << 30 | (size_of::<usize>() as u32) << 16 | 0x12 << 8 | 114;

/// Declares wire structures with the derives and the size assertion.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident = $size:literal { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    /// Precedes every request.
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    }
    /// Precedes every reply. `error` is 0 or a negative errno.
    OutHeader = 16 { len: u32, error: i32, unique: u64 }

    /// INIT before 7.36 ends here; `flags2` follows if INIT_EXT is set.
    InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, unused: [u32; 7],
    }
    Attr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    }
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    SetAttrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    }
    ForgetIn = 8 { nlookup: u64 }
    ForgetOne = 16 { nodeid: u64, nlookup: u64 }
    BatchForgetIn = 8 { count: u32, dummy: u32 }
    OpenIn = 8 { flags: u32, open_flags: u32 }
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32 }
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    ReadIn = 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteIn = 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteOut = 8 { size: u32, padding: u32 }
    /// Body of [`notify::STORE`], before the data.
    NotifyStoreOut = 24 { nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// Body of [`notify::INVAL_INODE`].
    NotifyInvalInodeOut = 24 { nodeid: u64, offset: i64, len: i64 }
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 }
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    /// A directory entry: followed by the name and zeroes up to a multiple of 8.
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
}

/// Length of a WRITE before its payload, bytes.
pub(crate) const WRITE_HEAD: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// The largest payload of a WRITE that we negotiate, bytes.
pub(crate) const MAX_WRITE: usize = 1 << 20;
/// The pages per request that we ask for: [`MAX_WRITE`] in pages of 4 KiB, and one more for data that begin within a
/// page, which the kernel otherwise splits at an odd position. Kernels grant 256 unless the sysctl
/// `fs.fuse.max_pages_limit` was raised.
pub(crate) const MAX_PAGES: u16 = 257;
/// The largest READ that is served, bytes. Mounts ask for `max_read=` of [`MAX_WRITE`]; this bounds the memory of a
/// request even if the kernel ignores that.
pub(crate) const MAX_READ: usize = 32 << 20;
