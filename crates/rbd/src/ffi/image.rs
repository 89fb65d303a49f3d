//! Open images: their I/O, lock and watch.
//!
//! # Memory and threads
//!
//! librbd gets a reference to each operation ([`Operation`]), which owns the memory of the I/O, the array that describes it, and a
//! reference to the image. librbd's callback, on one of its own threads, gives it back, exactly once. So the memory is
//! valid until then, whatever happens to the request meanwhile, and an image with operations is not closed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use ashlar_block::Segment;
use ashlar_engine::Receiver;
use ashlar_engine::oneshot::{self, Sender};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::declarations::{
    CompletionHandle, ImageHandle, LOCK_MODE_EXCLUSIVE, RbdFunctions, RbdImageInfo,
    WRITE_ZEROES_THICK,
};
use super::{CallError, IoContext, check, text};
use crate::closing::{self, Counted};
use crate::uri::Uri;

/// The most owners of a lock that are asked for.
const MAX_OWNERS: usize = 8;

/// How an image is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// For reading. librbd leaves no trace in the cluster, so this works with the right to read only; and it is not told of
    /// changes.
    Read,
    Write,
}

/// What librbd says about an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageInfo {
    pub(crate) size_bytes: u64,
    pub(crate) object_bytes: u64,
    /// So many bytes go to an object, then so many to the next one, and after so many objects again to the first one.
    pub(crate) stripe_unit_bytes: u64,
    pub(crate) stripe_count: u64,
    /// `RBD_FEATURE_*`
    pub(crate) features: u64,
}

impl ImageInfo {
    /// Whether it has the feature `exclusive-lock` (`RBD_FEATURE_EXCLUSIVE_LOCK`).
    pub(crate) fn has_exclusive_lock(&self) -> bool {
        self.features & 1 << 2 != 0
    }
}

/// The memory of an operation.
pub(crate) type Memory = SmallVec<[Segment; 2]>;

/// An operation on a range in bytes; a flush is of the whole image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Read,
    Write,
    Discard,
    WriteZeroes { keep_allocated: bool },
    Flush,
}

/// What is called after a change of an image, on a thread of librbd.
type Watcher = Box<dyn Fn() + Send + Sync>;

/// A watch, and its number.
struct Watch {
    /// As [`Box::into_raw`] gave it.
    watcher: *mut Watcher,
    number: u64,
}

/// An open image. It is closed, on a thread of its own, when the last reference to it is dropped.
pub(crate) struct Image {
    handle: ImageHandle,
    io: Arc<IoContext>,
    watch: Option<Watch>,
    /// The size that librbd told last.
    size_bytes: AtomicU64,
    /// Once it is about to be closed.
    closing: OnceLock<Counted>,
}

// SAFETY: the functions of librbd may be called on any thread, several at a time (it locks); the watcher is `Send` and `Sync`.
unsafe impl Send for Image {}
// SAFETY: as above; the watch changes with `&mut self` only.
unsafe impl Sync for Image {}

impl Image {
    /// Opens an image, or a snapshot of it. Blocks.
    ///
    /// # Errors
    /// ENOENT: the image, namespace or snapshot does not exist; ESHUTDOWN: the cluster refuses this client; others of librbd.
    pub(crate) fn open(
        io: IoContext,
        image: &str,
        snapshot: Option<&str>,
        mode: Mode,
    ) -> Result<Self, CallError> {
        let rbd = &io.connection().libraries().rbd;
        let name = text(image)?;
        let snapshot = snapshot.map(text).transpose()?;
        let snapshot = snapshot.as_ref().map_or(ptr::null(), |snapshot| snapshot.as_ptr());
        let mut handle = ptr::null_mut();
        let (call, open) = match mode {
            Mode::Read => ("rbd_open_read_only", rbd.rbd_open_read_only),
            Mode::Write => ("rbd_open", rbd.rbd_open),
        };
        // SAFETY: the context is valid, and lives as long as the image; the strings and the place for the handle live
        // through the call.
        check(call, unsafe { open(io.handle(), name.as_ptr(), &raw mut handle, snapshot) })?;
        let (io, size_bytes) = (Arc::new(io), AtomicU64::new(0));
        Ok(Self { handle, io, watch: None, size_bytes, closing: OnceLock::new() })
    }

    /// It is closed once its operations have ended, which [`closing::wait_for`] this URI waits for.
    pub(crate) fn end_soon(&self, uri: &Uri) {
        self.closing.get_or_init(|| Counted::new(uri.to_string()));
    }

    fn rbd(&self) -> &'static RbdFunctions {
        &self.io.connection().libraries().rbd
    }

    /// The context that it was opened with.
    pub(crate) fn io(&self) -> &IoContext {
        &self.io
    }

    /// Asks for size and features. Blocks.
    ///
    /// # Errors
    /// Those of librbd.
    pub(crate) fn info(&self) -> Result<ImageInfo, CallError> {
        let mut info = RbdImageInfo {
            size: 0,
            obj_size: 0,
            num_objs: 0,
            order: 0,
            block_name_prefix: [0; 24],
            parent_pool: 0,
            parent_name: [0; 96],
        };
        let rbd = self.rbd();
        // SAFETY: the image is open, and the struct has the length that is passed.
        let stat = unsafe { (rbd.rbd_stat)(self.handle, &raw mut info, size_of::<RbdImageInfo>()) };
        check("rbd_stat", stat)?;
        self.size_bytes.store(info.size, Relaxed);
        Ok(ImageInfo {
            size_bytes: info.size,
            object_bytes: info.obj_size,
            stripe_unit_bytes: self.number("rbd_get_stripe_unit", rbd.rbd_get_stripe_unit)?,
            stripe_count: self.number("rbd_get_stripe_count", rbd.rbd_get_stripe_count)?,
            features: self.number("rbd_get_features", rbd.rbd_get_features)?,
        })
    }

    fn number(
        &self,
        call: &'static str,
        function: unsafe extern "C" fn(ImageHandle, *mut u64) -> c_int,
    ) -> Result<u64, CallError> {
        let mut number = 0;
        // SAFETY: the image is open, and the place is valid.
        check(call, unsafe { function(self.handle, &raw mut number) })?;
        Ok(number)
    }

    /// Asks for the size, in bytes. Blocks.
    ///
    /// # Errors
    /// Those of librbd.
    pub(crate) fn ask_size(&self) -> Result<u64, CallError> {
        let size = self.number("rbd_get_size", self.rbd().rbd_get_size)?;
        self.size_bytes.store(size, Relaxed);
        Ok(size)
    }

    /// The size in bytes that librbd told last.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Relaxed)
    }

    /// Takes the exclusive lock, and does not give it up when others ask. Blocks: for about 28 s if the owner does not answer,
    /// after which the cluster refuses that owner.
    ///
    /// # Errors
    /// EROFS: another client has it, and keeps it.
    pub(crate) fn lock(&self) -> Result<(), CallError> {
        // SAFETY: the image is open.
        let locked = unsafe { (self.rbd().rbd_lock_acquire)(self.handle, LOCK_MODE_EXCLUSIVE) };
        check("rbd_lock_acquire", locked)
    }

    /// The clients that have the exclusive lock. Blocks.
    ///
    /// # Errors
    /// ENOENT: none has it.
    pub(crate) fn owners(&self) -> Result<Vec<String>, CallError> {
        let rbd = self.rbd();
        let mut owners: [*mut c_char; MAX_OWNERS] = [ptr::null_mut(); MAX_OWNERS];
        let (mut mode, mut count) = (0, MAX_OWNERS);
        // SAFETY: the image is open, and the array has the length that is passed.
        let got = unsafe {
            let places = owners.as_mut_ptr();
            (rbd.rbd_lock_get_owners)(self.handle, &raw mut mode, places, &raw mut count)
        };
        check("rbd_lock_get_owners", got)?;
        let found = owners.iter().take(count).map(|owner| {
            // SAFETY: the call has set as many strings as it told.
            unsafe { CStr::from_ptr(*owner) }.to_string_lossy().into_owned()
        });
        let found = found.collect();
        // SAFETY: these are the strings of the call; they are not used after.
        unsafe { (rbd.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(found)
    }

    /// Has `watcher` called after each change of the image, on a thread of librbd: it must not wait. Blocks.
    ///
    /// # Errors
    /// Those of librbd.
    pub(crate) fn watch(&mut self, watcher: Watcher) -> Result<(), CallError> {
        let watcher = Box::into_raw(Box::new(watcher));
        let mut number = 0;
        // SAFETY: the image is open; the watcher lives until the watch has ended.
        let watching = unsafe {
            (self.rbd().rbd_update_watch)(self.handle, &raw mut number, changed, watcher.cast())
        };
        if let Err(error) = check("rbd_update_watch", watching) {
            // SAFETY: librbd did not take it.
            drop(unsafe { Box::from_raw(watcher) });
            return Err(error);
        }
        self.watch = Some(Watch { watcher, number });
        Ok(())
    }

    /// Begins an operation. Ends with what librbd says: 0, the number of bytes read, or a negative errno.
    pub(crate) fn submit(
        self: &Arc<Self>,
        command: Command,
        offset: u64,
        len: u64,
        segments: Memory,
    ) -> Receiver<isize> {
        let (done, result) = oneshot::channel();
        let rbd = self.rbd();
        let mut pieces: SmallVec<[libc::iovec; 2]> = SmallVec::new();
        for (index, segment) in segments.iter().enumerate() {
            match pieces.last_mut() {
                Some(piece) if segments[index - 1].is_followed_by(segment) => {
                    piece.iov_len += segment.len();
                }
                _ => pieces.push(libc::iovec {
                    iov_base: segment.as_ptr().cast(),
                    iov_len: segment.len(),
                }),
            }
        }
        let operation = Operation { image: Arc::clone(self), segments, pieces, done };
        let operation = Box::into_raw(Box::new(operation));
        let mut completion = ptr::null_mut();
        // SAFETY: the place for the completion is valid; the operation lives until the callback takes it back.
        let created = unsafe {
            (rbd.rbd_aio_create_completion)(operation.cast(), ended, &raw mut completion)
        };
        if created < 0 {
            // SAFETY: librbd did not take it.
            unsafe { Box::from_raw(operation) }.end(created as isize);
            return result;
        }
        // SAFETY: as above, and nothing else uses it before librbd has it. An operation begins with its array in place.
        let (pieces, count) = unsafe { ((*operation).pieces.as_ptr(), (*operation).pieces.len()) };
        // At most as many as a request's segments, which the disk's limits bound.
        let count = count as c_int;
        let handle = self.handle;
        // SAFETY: the image is open, and stays so while the operation lives, as do the array and the memory that it
        // describes. Others may change the memory of a write meanwhile: librbd copies it (and if it is set not to, what
        // it sends and its checksum may differ, which the OSD refuses).
        let begun = unsafe {
            match command {
                Command::Read => (rbd.rbd_aio_readv)(handle, pieces, count, offset, completion),
                Command::Write => (rbd.rbd_aio_writev)(handle, pieces, count, offset, completion),
                Command::Discard => (rbd.rbd_aio_discard)(handle, offset, len, completion),
                Command::WriteZeroes { keep_allocated } => {
                    let flags = if keep_allocated { WRITE_ZEROES_THICK } else { 0 };
                    let len = len as usize;
                    (rbd.rbd_aio_write_zeroes)(handle, offset, len, completion, flags, 0)
                }
                Command::Flush => (rbd.rbd_aio_flush)(handle, completion),
            }
        };
        if begun < 0 {
            // SAFETY: librbd has refused the operation, and does not call back.
            unsafe {
                (rbd.rbd_aio_release)(completion);
                Box::from_raw(operation).end(begun as isize);
            }
        }
        result
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let counted = self.closing.take().unwrap_or_else(|| Counted::new(String::new()));
        let closing =
            Closing { handle: self.handle, watch: self.watch.take(), io: Arc::clone(&self.io) };
        closing::on_thread(counted, move || closing.close());
    }
}

/// An image that nothing uses. Dropping it leaves it open: that happens only if no thread can be started.
struct Closing {
    handle: ImageHandle,
    watch: Option<Watch>,
    io: Arc<IoContext>,
}

// SAFETY: as for `Image`.
unsafe impl Send for Closing {}

impl Closing {
    /// Closes the image, which releases its lock. Blocks, without OSDs for as long as the option `rados_osd_op_timeout` allows.
    fn close(self) {
        let rbd = &self.io.connection().libraries().rbd;
        if let Some(Watch { watcher, number }) = self.watch {
            // SAFETY: the image is open, and the watch has this number.
            let ended = unsafe { (rbd.rbd_update_unwatch)(self.handle, number) };
            match check("rbd_update_unwatch", ended) {
                // SAFETY: librbd calls the watcher no more, and does not call it now: the call waits for that.
                Ok(()) => drop(unsafe { Box::from_raw(watcher) }),
                Err(error) => tracing::debug!(?error, "closing an image"),
            }
        }
        // SAFETY: the image is open, has no operations, and is not used after this.
        if let Err(error) = check("rbd_close", unsafe { (rbd.rbd_close)(self.handle) }) {
            tracing::debug!(?error, "closing an image");
        }
    }
}

/// An operation, while librbd has it.
struct Operation {
    image: Arc<Image>,
    segments: Memory,
    pieces: SmallVec<[libc::iovec; 2]>,
    done: Sender<isize>,
}

impl Operation {
    fn end(self, result: isize) {
        let Self { image, segments, done, .. } = self;
        // Before the submitter knows: it may then use the memory, or end the process once it has dropped the image.
        drop((segments, image));
        done.send(result);
    }
}

/// The end of an operation, on a thread of librbd. (A panic here ends the process.)
extern "C" fn ended(completion: CompletionHandle, operation: *mut c_void) {
    // SAFETY: this is the operation that the completion was created with; librbd calls back once.
    let operation = unsafe { Box::from_raw(operation.cast::<Operation>()) };
    let rbd = operation.image.rbd();
    // SAFETY: the completion is valid, and has ended. It is not used after it is released.
    let result = unsafe {
        let result = (rbd.rbd_aio_get_return_value)(completion);
        (rbd.rbd_aio_release)(completion);
        result
    };
    operation.end(result);
}

/// A change of an image, on a thread of librbd. (A panic here ends the process.)
extern "C" fn changed(watcher: *mut c_void) {
    // SAFETY: this is the watcher of a watch that has not ended.
    let watcher = unsafe { &*watcher.cast::<Watcher>() };
    watcher();
}

/// The errno of an operation's result; `None` if it succeeded.
pub(crate) fn errno(result: isize) -> Option<Errno> {
    let number = c_int::try_from(-result).unwrap_or(c_int::MAX);
    (result < 0).then(|| Errno::from_raw_os_error(number.min(4095)))
}
