//! The protocol: the effect of each request and its reply.
//!
//! A [`Session`] is sans-io. [`Session::handle`] takes a parsed request and returns an [`Action`]: a finished reply, or
//! a [`Job`] that the server runs as a task. It is shared by all reactor threads that serve a mount; locks are held for
//! table look-ups only, never while the [`Namespace`] is called and never across an await.
//!
//! Decisions, with their reasons:
//! - **Volumes are opened with FOPEN_DIRECT_IO.** The kernel caches no pages of them, so the FUSE view is coherent with
//!   NBD and vhost-user clients of the same volume, a loop device on top does not cache everything twice, and writeback
//!   cannot wait for memory that we need to make progress. O_DIRECT on the file (loop's `--direct-io=on`) works, and
//!   writes run in parallel. Shared mmap works where the kernel allows it on such files (7.39, Linux 6.6).
//! - **O_DSYNC and O_SYNC writes are FUA writes.** On files without page cache the kernel sends no
//!   FSYNC after them, only the open flags in the WRITE.
//! - **PUNCH_HOLE zeroes**, unless the user says otherwise. `fallocate(2)` promises that a hole reads as zeroes; loop's
//!   write-zeroes rely on it, and loop's discards are indistinguishable from it. So a hole is a discard where discarded ranges read as
//!   zeroes (image files), else a fast write-zeroes, and EOPNOTSUPP where zeroing would take as long as writing (then loop
//!   falls back by itself, and fstrim gets the error instead of running for hours). See decision 2 in docs/decisions.
//! - **Truncation to another size is EINVAL**, but for O_TRUNC, which leaves the size and zeroes what its opener then goes past
//!   ([`super::emptied`]). Ignoring it, as block devices do, would be silent corruption: cp leaves holes in a file that it believes to be
//!   empty. The kernel sends the truncation of an open(2) after its OPEN, by the same thread and without a handle. (It could be
//!   told to send O_TRUNC with the OPEN; then it sets the file's size to 0 until it asks again, and other clients' reads end there.)
//! - **LSEEK, FLUSH, ACCESS, xattrs are ENOSYS**: the kernel then does by itself what we would answer (data everywhere;
//!   no flush on close; `default_permissions`) and does not ask again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use ashlar_block::bio::Flags;
use ashlar_block::byte_volume::{ByteVolume, Holes, OpenVolume};
use rustix::io::Errno;

use super::abi::{self, falloc, fopen, init};
use super::emptied::Emptied;
use super::job::{Job, Task};
use super::reply::{self, DirectoryList};
use super::request::{Operation, Request, RequestError};
use super::tree::{Entry, Namespace, Nodes, Owner, child_path, inode_number};
use super::work::Work;

/// Seconds for which the kernel may cache the result of a look-up.
const VALID_SECONDS: u64 = 1;
/// The longest text that one write may store in an attribute, bytes (in sysfs: a page).
const ATTRIBUTE_MAX: usize = 4096;
/// The most asynchronous requests that the kernel may have in flight (its default is 12). It counts those of all volumes together, also
/// those that wait for a volume's rate limits: this is enough for eight loop devices, which have 128 each.
const MAX_BACKGROUND: u16 = 1024;

/// The result of a request.
pub enum Action {
    /// Write these bytes as the reply.
    Reply(Vec<u8>),
    /// Write no reply.
    Silent,
    /// Run this job, and write its result as the reply.
    Run(Job),
}

/// An open file or directory.
enum Handle {
    /// With this file's opener: one of its flushes reports what the volume lost, once.
    Volume { volume: Arc<OpenVolume>, writer: Option<Writer>, emptied: OnceLock<Arc<Emptied>> },
    /// `text` is the result of the last read from offset 0; reads at other offsets continue in it.
    Attribute { path: Arc<str>, text: Mutex<Option<String>> },
    /// `names` is the result of the last listing from offset 0.
    Directory { path: Arc<str>, names: Mutex<Vec<String>> },
}

/// Who opened a volume for writing.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Writer {
    node: u64,
    pid: u32,
}

impl Handle {
    fn is_volume(&self) -> bool {
        matches!(self, Self::Volume { .. })
    }

    fn is_of(&self, wanted: Writer) -> bool {
        matches!(self, Self::Volume { writer: Some(writer), .. } if *writer == wanted)
    }

    /// What the client did when it opened the volume with O_TRUNC.
    fn emptied(&self) -> Option<&Arc<Emptied>> {
        match self {
            Self::Volume { emptied, .. } => emptied.get(),
            Self::Attribute { .. } | Self::Directory { .. } => None,
        }
    }

    /// A job on its volume.
    fn job(&self, volume: &Arc<OpenVolume>, unique: u64, work: Work) -> Job {
        match self.emptied() {
            Some(emptied) => Job { unique, task: Task::Emptied(Arc::clone(emptied), work) },
            None => Job::on(volume, unique, work),
        }
    }
}

/// One mount's state.
pub struct Session<N> {
    namespace: N,
    owner: Owner,
    holes: Holes,
    nodes: Mutex<Nodes>,
    handles: Mutex<Handles>,
    next_handle: AtomicU64,
}

#[derive(Default)]
struct Handles {
    all: HashMap<u64, Arc<Handle>>,
    /// Whether volumes can no longer be opened.
    is_retired: bool,
}

type Answer = Result<Vec<u8>, Errno>;

/// The data behind a lock is consistent whenever the lock is free, even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<N: Namespace> Session<N> {
    /// A session for a mount that shows `namespace`; `holes` says what holes become.
    pub fn new(namespace: N, owner: Owner, holes: Holes) -> Self {
        Self {
            namespace,
            owner,
            holes,
            nodes: Mutex::new(Nodes::new()),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
        }
    }

    /// Handles a request. `payload` is the data of a WRITE.
    pub fn handle(&self, request: &Request<'_>, payload: &[u8]) -> Action {
        let (unique, node) = (request.unique, request.node);
        let answer = match &request.op {
            Operation::Init { version, flags, max_readahead } => {
                negotiate(unique, *version, *flags, *max_readahead)
            }
            Operation::Lookup { name } => self.lookup(unique, node, name),
            Operation::Forget { lookups } => {
                lock(&self.nodes).forget(node, *lookups);
                return Action::Silent;
            }
            Operation::BatchForget { list } => {
                let mut nodes = lock(&self.nodes);
                list.iter().for_each(|(node, lookups)| nodes.forget(node, lookups));
                return Action::Silent;
            }
            Operation::GetAttr => self.get_attr(unique, node),
            Operation::SetAttr { owner_or_mode: true, .. } => Err(Errno::PERM),
            Operation::SetAttr { owner_or_mode: false, size, fh } => {
                match self.set_size(request, *size, *fh) {
                    Ok(action) => return action,
                    Err(errno) => Err(errno),
                }
            }
            Operation::ReadLink => self.read_link(unique, node),
            Operation::Open { flags } => self.open(request, *flags),
            Operation::OpenDir => self.open_dir(unique, node),
            Operation::ReadDir { fh, offset, size, plus } => {
                self.read_dir(unique, *fh, *offset, *size, *plus)
            }
            Operation::Release { fh } | Operation::ReleaseDir { fh } => {
                lock(&self.handles).all.remove(fh);
                Ok(reply::ok(unique))
            }
            Operation::StatFs => {
                self.entry_at(node).map(|(_, entry)| reply::with(unique, &entry.statfs(), &[]))
            }
            Operation::FsyncDir | Operation::Destroy => Ok(reply::ok(unique)),
            Operation::ChangeTree => Err(Errno::PERM),
            Operation::Flush | Operation::Interrupt | Operation::Unknown(_) => Err(Errno::NOSYS),
            Operation::Read { fh, offset, size } => match self.read(unique, *fh, *offset, *size) {
                Ok(action) => return action,
                Err(errno) => Err(errno),
            },
            Operation::Write { fh, offset, size, sync } => {
                match self.write(unique, *fh, *offset, *size, *sync, payload) {
                    Ok(action) => return action,
                    Err(errno) => Err(errno),
                }
            }
            Operation::Fsync { fh } => match self.fsync(unique, *fh) {
                Ok(action) => return action,
                Err(errno) => Err(errno),
            },
            Operation::Fallocate { fh, offset, length, mode } => {
                match self.fallocate(unique, *fh, *offset, *length, *mode) {
                    Ok(action) => return action,
                    Err(errno) => Err(errno),
                }
            }
            Operation::Ioctl { fh, cmd, out_size } => self.ioctl(unique, *fh, *cmd, *out_size),
        };
        Action::Reply(answer.unwrap_or_else(|errno| reply::error(unique, errno)))
    }

    /// The notifications that a volume has another size now, each a message; none if the kernel does not know the volume.
    pub(crate) fn size_notices(&self, volume: &Arc<ByteVolume>) -> Vec<Vec<u8>> {
        let nodes = lock(&self.nodes).of(volume);
        let size = volume.size_bytes();
        nodes.into_iter().flat_map(|node| reply::size_notices(node, size)).collect()
    }

    /// Lets no volume be opened from now on, if none is open; returns whether that is so. Nothing that was written can then
    /// be lost when the session ends, even if the mount has copies.
    pub fn retire(&self) -> bool {
        let mut handles = lock(&self.handles);
        handles.is_retired = !handles.all.values().any(|handle| handle.is_volume());
        handles.is_retired
    }

    /// Handles bytes that are not a request.
    pub fn refuse(&self, malformed: &RequestError) -> Action {
        match malformed.unique {
            Some(unique) => Action::Reply(reply::error(unique, Errno::INVAL)),
            None => Action::Silent,
        }
    }

    fn path(&self, node: u64) -> Result<Arc<str>, Errno> {
        lock(&self.nodes).path(node).ok_or(Errno::STALE)
    }

    /// The entry at a path now. The root is a directory whatever the namespace says.
    fn entry(&self, path: &str) -> Result<Entry, Errno> {
        if path.is_empty() {
            return Ok(Entry::Directory);
        }
        self.namespace.lookup(path).ok_or(Errno::NOENT)
    }

    fn entry_at(&self, node: u64) -> Result<(Arc<str>, Entry), Errno> {
        let path = self.path(node)?;
        let entry = self.entry(&path)?;
        Ok((path, entry))
    }

    /// Counts a reference to `path` and returns its description.
    fn entry_out(&self, path: &str, entry: &Entry) -> abi::EntryOut {
        abi::EntryOut {
            nodeid: lock(&self.nodes).refer(path, entry),
            entry_valid: VALID_SECONDS,
            attr_valid: VALID_SECONDS,
            attr: entry.attr(path, &self.owner),
            ..Default::default()
        }
    }

    fn lookup(&self, unique: u64, parent: u64, name: &[u8]) -> Answer {
        let path = child_path(&self.path(parent)?, name).ok_or(Errno::NOENT)?;
        let entry = self.entry(&path)?;
        Ok(reply::with(unique, &self.entry_out(&path, &entry), &[]))
    }

    fn get_attr(&self, unique: u64, node: u64) -> Answer {
        let (path, entry) = self.entry_at(node)?;
        let attr = entry.attr(&path, &self.owner);
        let out = abi::AttrOut { attr_valid: VALID_SECONDS, attr, ..Default::default() };
        Ok(reply::with(unique, &out, &[]))
    }

    /// Changes nothing but the size, if that is given; the reply carries the attributes, which the kernel adopts.
    fn set_size(
        &self,
        request: &Request<'_>,
        size: Option<u64>,
        fh: Option<u64>,
    ) -> Result<Action, Errno> {
        let (unique, node) = (request.unique, request.node);
        let (_, entry) = self.entry_at(node)?;
        let unchanged = || self.get_attr(unique, node);
        match (entry, size) {
            (_, None) => {}
            (Entry::Volume(volume), Some(size)) if size == volume.size_bytes() => {
                let handle = fh.map(|fh| self.opened_handle(fh)).transpose()?;
                if let Some(emptied) = handle.as_deref().and_then(Handle::emptied) {
                    let task = Task::Extend(Arc::clone(emptied), unchanged()?);
                    return Ok(Action::Run(Job { unique, task }));
                }
            }
            (Entry::Volume(_), Some(0)) if fh.is_none() && self.empty(node, request.pid) => {}
            (Entry::Attribute(_), Some(0)) => {}
            (Entry::Directory, Some(_)) => return Err(Errno::ISDIR),
            (Entry::Volume(_) | Entry::Attribute(_) | Entry::Symlink(_), Some(_)) => {
                return Err(Errno::INVAL);
            }
        }
        unchanged().map(Action::Reply)
    }

    /// Empties a volume for the opener that the thread `pid` has made last; returns whether there is one.
    fn empty(&self, node: u64, pid: u32) -> bool {
        let wanted = Writer { node, pid };
        let handles = lock(&self.handles);
        let its = handles.all.iter().filter(|(_, handle)| handle.is_of(wanted));
        let Some((_, handle)) = its.max_by_key(|(fh, _)| **fh) else { return false };
        match &**handle {
            // A thread of another PID namespace has no number here.
            Handle::Volume { volume, emptied, .. } if pid != 0 => {
                emptied.get_or_init(|| Arc::new(Emptied::new(volume)));
                true
            }
            Handle::Volume { .. } | Handle::Attribute { .. } | Handle::Directory { .. } => false,
        }
    }

    fn read_link(&self, unique: u64, node: u64) -> Answer {
        match self.entry_at(node)?.1 {
            Entry::Symlink(target) => Ok(reply::bytes(unique, target.as_bytes())),
            Entry::Directory | Entry::Attribute(_) | Entry::Volume(_) => Err(Errno::INVAL),
        }
    }

    fn opened(&self, unique: u64, handle: Handle, open_flags: u32) -> Answer {
        let fh = self.next_handle.fetch_add(1, Relaxed);
        let mut handles = lock(&self.handles);
        if handles.is_retired && handle.is_volume() {
            return Err(Errno::NODEV);
        }
        handles.all.insert(fh, Arc::new(handle));
        Ok(reply::with(unique, &abi::OpenOut { fh, open_flags, backing_id: 0 }, &[]))
    }

    fn open(&self, request: &Request<'_>, flags: u32) -> Answer {
        let Request { unique, node, pid, .. } = *request;
        let (path, entry) = self.entry_at(node)?;
        let reads_only = flags & abi::oflag::ACCESS_MODE == abi::oflag::RDONLY;
        match entry {
            Entry::Volume(volume) => {
                // Root passes any mode check, so the mode alone does not protect a volume.
                if volume.gateway().disk().is_read_only() && !reads_only {
                    return Err(Errno::ROFS);
                }
                let open_flags = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
                let busy = || if volume.is_open() { Errno::BUSY } else { Errno::NODEV };
                let volume = volume.open().ok_or_else(busy)?;
                let (volume, emptied) = (Arc::new(volume), OnceLock::new());
                let writer = (!reads_only).then_some(Writer { node, pid });
                self.opened(unique, Handle::Volume { volume, writer, emptied }, open_flags)
            }
            Entry::Attribute(access) => {
                if !access.allows_open(flags) {
                    return Err(Errno::ACCESS);
                }
                let handle = Handle::Attribute { path, text: Mutex::new(None) };
                self.opened(unique, handle, fopen::DIRECT_IO)
            }
            Entry::Directory => Err(Errno::ISDIR),
            Entry::Symlink(_) => Err(Errno::LOOP),
        }
    }

    fn open_dir(&self, unique: u64, node: u64) -> Answer {
        match self.entry_at(node)? {
            (path, Entry::Directory) => {
                let handle = Handle::Directory { path, names: Mutex::new(Vec::new()) };
                self.opened(unique, handle, 0)
            }
            (_, Entry::Attribute(_) | Entry::Volume(_) | Entry::Symlink(_)) => Err(Errno::NOTDIR),
        }
    }

    fn opened_handle(&self, fh: u64) -> Result<Arc<Handle>, Errno> {
        lock(&self.handles).all.get(&fh).cloned().ok_or(Errno::BADF)
    }

    /// The volume that a handle is open on; `otherwise` for a handle on something else.
    fn volume(&self, fh: u64, otherwise: Errno) -> Result<Arc<OpenVolume>, Errno> {
        match &*self.opened_handle(fh)? {
            Handle::Volume { volume, .. } => Ok(Arc::clone(volume)),
            Handle::Attribute { .. } | Handle::Directory { .. } => Err(otherwise),
        }
    }

    fn read(&self, unique: u64, fh: u64, offset: u64, size: u32) -> Result<Action, Errno> {
        if size as usize > abi::MAX_READ {
            return Err(Errno::INVAL);
        }
        match &*self.opened_handle(fh)? {
            Handle::Volume { volume, .. } => {
                let len = u64::from(size).min(volume.size_bytes().saturating_sub(offset));
                if len == 0 {
                    return Ok(Action::Reply(reply::ok(unique)));
                }
                let work = Work::Read { offset, len: len as usize, has_passed: false };
                Ok(Action::Run(Job::on(volume, unique, work)))
            }
            Handle::Attribute { path, text } => {
                let fresh = if offset == 0 { Some(self.namespace.read(path)?) } else { None };
                let mut text = lock(text);
                if fresh.is_some() {
                    *text = fresh;
                }
                let bytes = text.as_deref().unwrap_or_default().as_bytes();
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                let end = start.saturating_add(size as usize).min(bytes.len());
                Ok(Action::Reply(reply::bytes(unique, &bytes[start..end])))
            }
            Handle::Directory { .. } => Err(Errno::ISDIR),
        }
    }

    fn write(
        &self,
        unique: u64,
        fh: u64,
        offset: u64,
        size: u32,
        sync: bool,
        payload: &[u8],
    ) -> Result<Action, Errno> {
        let handle = self.opened_handle(fh)?;
        match &*handle {
            Handle::Volume { volume, .. } => {
                let room = volume.size_bytes().saturating_sub(offset);
                let len = (payload.len() as u64).min(room);
                if size == 0 {
                    return Ok(Action::Reply(reply::written(unique, 0)));
                }
                if len == 0 {
                    return Err(Errno::NOSPC);
                }
                let flags = if sync { Flags::FUA | Flags::SYNC } else { Flags::empty() };
                let work = Work::Write { offset, len: len as usize, flags };
                Ok(Action::Run(handle.job(volume, unique, work)))
            }
            // As in sysfs, every write is a separate store, whatever the file position.
            Handle::Attribute { path, .. } => {
                if payload.len() > ATTRIBUTE_MAX {
                    return Err(Errno::TOOBIG);
                }
                let text = std::str::from_utf8(payload).map_err(|_| Errno::INVAL)?;
                let mut store = self.namespace.store(path, text.strip_suffix('\n').unwrap_or(text));
                // Most stores end at once.
                match store.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(stored) => {
                        stored.map(|()| Action::Reply(reply::written(unique, size)))
                    }
                    Poll::Pending => {
                        Ok(Action::Run(Job { unique, task: Task::Store(size, store) }))
                    }
                }
            }
            Handle::Directory { .. } => Err(Errno::ISDIR),
        }
    }

    fn fsync(&self, unique: u64, fh: u64) -> Result<Action, Errno> {
        Ok(match &*self.opened_handle(fh)? {
            Handle::Volume { volume, .. } => Action::Run(Job::on(volume, unique, Work::Flush)),
            Handle::Attribute { .. } | Handle::Directory { .. } => Action::Reply(reply::ok(unique)),
        })
    }

    fn fallocate(
        &self,
        unique: u64,
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<Action, Errno> {
        const PUNCH_HOLE: u32 = falloc::PUNCH_HOLE | falloc::KEEP_SIZE;
        const ZERO_RANGE_KEEP_SIZE: u32 = falloc::ZERO_RANGE | falloc::KEEP_SIZE;
        let handle = self.opened_handle(fh)?;
        let volume = self.volume(fh, Errno::OPNOTSUPP)?;
        let size = volume.size_bytes();
        let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
        // The rules of block devices (blkdev_fallocate): a range must start before the end, and only with KEEP_SIZE may
        // it reach past the end, where it is cut off.
        if offset >= size || length == 0 || (end > size && mode & falloc::KEEP_SIZE == 0) {
            return Err(Errno::INVAL);
        }
        let len = end.min(size) - offset;
        let work = match mode {
            PUNCH_HOLE => Work::PunchHole { offset, len, holes: self.holes },
            falloc::ZERO_RANGE | ZERO_RANGE_KEEP_SIZE => {
                Work::Zero { offset, len, flags: Flags::NOUNMAP }
            }
            // Includes preallocation: no volume can promise it.
            _ => return Err(Errno::OPNOTSUPP),
        };
        Ok(Action::Run(handle.job(&volume, unique, work)))
    }

    fn ioctl(&self, unique: u64, fh: u64, cmd: u32, out_size: u32) -> Answer {
        let volume = self.volume(fh, Errno::NOTTY)?;
        if cmd != abi::BLKGETSIZE64 || (out_size as usize) < size_of::<u64>() {
            return Err(Errno::NOTTY);
        }
        let size = volume.size_bytes().to_ne_bytes();
        Ok(reply::with(unique, &abi::IoctlOut::default(), &size))
    }

    /// Offset `n` is the number of the next entry; 0 and 1 are `.` and `..`.
    fn read_dir(&self, unique: u64, fh: u64, offset: u64, room: u32, plus: bool) -> Answer {
        let handle = self.opened_handle(fh)?;
        let Handle::Directory { path, names } = &*handle else { return Err(Errno::NOTDIR) };
        if offset == 0 {
            let fresh = self.namespace.list(path);
            *lock(names) = fresh;
        }
        let names = lock(names);
        let mut list = DirectoryList::new(room);
        for next in offset.saturating_add(1)..=u64::MAX {
            let name = match next {
                1 => ".",
                2 => "..",
                n => match usize::try_from(n - 3).ok().and_then(|n| names.get(n)) {
                    Some(name) => name,
                    None => break,
                },
            };
            if !list.fits(name.len(), plus) {
                break;
            }
            if next <= 2 {
                let ino = inode_number(if next == 1 { path } else { parent(path) });
                // Node id 0: no look-up is counted.
                let nothing = plus.then(abi::EntryOut::default);
                list.push(nothing.as_ref(), ino, abi::mode::DIRECTORY, next, name.as_bytes());
                continue;
            }
            // Skip entries that are gone meanwhile, or whose name is invalid.
            let Some(child) = child_path(path, name.as_bytes()) else { continue };
            let Ok(entry) = self.entry(&child) else { continue };
            let out = plus.then(|| self.entry_out(&child, &entry));
            list.push(out.as_ref(), inode_number(&child), entry.mode(), next, name.as_bytes());
        }
        Ok(list.finish(unique))
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The reply to INIT.
fn negotiate(unique: u64, (major, minor): (u32, u32), offered: u64, max_readahead: u32) -> Answer {
    let mut out = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..Default::default() };
    if major > abi::MAJOR {
        // The kernel tries again with our major version.
        return Ok(reply::with(unique, &out, &[]));
    }
    if major < abi::MAJOR || minor < abi::MINOR_OLDEST {
        tracing::error!(
            "this kernel speaks FUSE {major}.{minor}; Linux 5.4 (7.31) is the oldest served"
        );
        return Err(Errno::PROTO);
    }
    let wanted = init::ASYNC_READ
        | init::BIG_WRITES
        | init::DO_READDIRPLUS
        | init::READDIRPLUS_AUTO
        | init::ASYNC_DIO
        | init::PARALLEL_DIROPS
        | init::MAX_PAGES
        | init::INIT_EXT
        | init::DIRECT_IO_ALLOW_MMAP;
    let agreed = wanted & offered;
    out.minor = minor.min(abi::MINOR);
    out.max_readahead = max_readahead;
    out.flags = agreed as u32;
    out.flags2 = (agreed >> 32) as u32;
    out.max_background = MAX_BACKGROUND;
    out.congestion_threshold = MAX_BACKGROUND / 4 * 3;
    out.max_write = abi::MAX_WRITE as u32;
    out.time_gran = 1;
    out.max_pages = abi::MAX_PAGES;
    Ok(reply::with(unique, &out, &[]))
}
