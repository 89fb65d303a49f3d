//! Buffers: reference-counted, page-aligned, pooled memory for data in flight.
//!
//! The submitter of an I/O owns its [`Buffer`]. Bios carry [`Segment`]s, cheap
//! counted references to a part of it, which can be sliced and cloned (a mirrored write sends the
//! same segments to every member). A driver reaches the bytes through a raw pointer or the copying
//! methods; all other code only through the `Buffer`, and only **while no segment of it is alive**:
//! this enforces "the buffer belongs to the driver until its completion arrives" without a
//! borrow that spans an await. The check is one atomic load.
//!
//! Memory comes from lists of free blocks, one set per thread, in classes of powers of two from
//! 4 KiB; it is 4096-aligned (which satisfies O_DIRECT on all known devices). A recycled block keeps
//! its old contents: a reader that got fewer bytes than requested must not look at the rest.
//! The allocator makes blocks, or a [`Source`]: for memory that another process can see, or in huge pages.
//!
//! # Why safe code cannot cause undefined behaviour
//!
//! A block of memory is in one of two states, told apart by the count of references to it.
//!
//! - **No segment is alive.** Only the `Buffer` reaches the bytes, as a slice under the rules of any borrow: a new segment
//!   needs `&mut Buffer`, so none can be made while a slice exists. The check of the count has acquire ordering and pairs
//!   with the release in the drop of a segment: what a driver wrote has happened before.
//! - **A segment is alive.** No slice exists. All access is by **atomic bytes** ([`shared`]): [`Segment::bytes`] is the
//!   memory as `&[AtomicU8]`, and the copying methods move bytes by relaxed loads and stores, at the speed of memcpy. So
//!   several threads may fill and copy out clones of one segment at once; a byte then has one of the values that were
//!   stored in it. A system call uses the memory by its address ([`Segment::as_ptr`]), and its driver keeps the segment until
//!   the kernel has finished. To the language the kernel accesses atomic bytes too.
//!
//! **A segment may be abandoned**: the driver of a write that reached its deadline keeps it (`Segment::leave`). Its
//! memory must keep its contents, since the device may still read them. So at its next use the `Buffer` leaves that
//! memory to the segment and continues with a copy. Otherwise a device that fails would cost the owner its buffer.
//!
//! Whether the values make sense is up to the layers: they divide a read by `split_to` and `slice`, and never give the
//! same range to two reads. A mistake there mixes data, but breaks no rule of the language.
//!
//! Memory of another owner ([`ForeignMemory`]) has only segments and never a slice: its other side may change it at any time.
//!
//! The one place of this crate with `unsafe`. Miri runs its tests (`make soak`).
#![allow(unsafe_code)]

mod foreign;
pub mod shared;
#[cfg(test)]
mod tests;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};
use std::sync::{Arc, OnceLock};

use crate::canary::broken;

pub use foreign::ForeignMemory;

/// Alignment of every buffer's first byte.
pub const BUFFER_ALIGN: usize = 4096;
const MIN_CLASS_SHIFT: u32 = 12;
const CLASSES: usize = 12; // 4 KiB .. 8 MiB
/// The sizes in bytes of blocks that are kept.
pub const BLOCK_SIZES: [usize; CLASSES] = {
    let mut sizes = [1 << MIN_CLASS_SHIFT; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        sizes[class] = sizes[class - 1] * 2;
        class += 1;
    }
    sizes
};
/// Free memory in bytes that a thread keeps for each class.
const KEEP_PER_CLASS_BYTES: usize = 8 << 20;

/// A source of memory for buffers other than the allocator.
///
/// # Safety
/// A block from [`Source::take`] has the length asked for, is initialised, readable, writable and aligned to
/// [`BUFFER_ALIGN`], and belongs to the caller alone until [`Source::give`].
pub unsafe trait Source: fmt::Debug + Send + Sync {
    /// A block of one of [`BLOCK_SIZES`]; `None` if none is left.
    fn take(&self, len: usize) -> Option<NonNull<u8>>;

    /// Takes a block back.
    ///
    /// # Safety
    /// [`Source::take`] of the same source returned the block, it is given back once, and it is no longer
    /// used.
    unsafe fn give(&self, block: NonNull<u8>);
}

static SOURCE: OnceLock<&'static dyn Source> = OnceLock::new();

/// A source of the larger blocks, and the size from which on it is asked.
static LARGE: OnceLock<(usize, &'static dyn Source)> = OnceLock::new();

/// Allocates buffers of up to 8 MiB from `source` while it has blocks; existing buffers are unaffected. It is asked before a
/// source of [`set_large_source`].
///
/// # Errors
/// A source was already set, and stays.
pub fn set_source(source: &'static dyn Source) -> Result<(), &'static dyn Source> {
    SOURCE.set(source)
}

/// Allocates buffers of `from_bytes` to 8 MiB from `source` while it has blocks; existing buffers are unaffected.
///
/// # Errors
/// A source of large blocks was already set, and stays.
pub fn set_large_source(
    from_bytes: usize,
    source: &'static dyn Source,
) -> Result<(), (usize, &'static dyn Source)> {
    LARGE.set((from_bytes, source))
}

/// An aligned block of initialised memory. Dropping it returns it to its source.
struct Block {
    ptr: NonNull<u8>,
    capacity: usize,
    /// The source that it came from; `None` for the allocator.
    source: Option<&'static dyn Source>,
}

// SAFETY: a Block is plain memory, owned by exactly one Block value.
unsafe impl Send for Block {}
// SAFETY: access to the memory goes through raw pointers under the rules in the module text.
unsafe impl Sync for Block {}

thread_local! {
    static FREE: RefCell<[Vec<Block>; CLASSES]> = const { RefCell::new([const { Vec::new() }; CLASSES]) };
}

#[cfg(any(test, feature = "testing"))]
thread_local! {
    static LONGEST: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

fn class_of(len: usize) -> (usize, usize) {
    let capacity = len.max(1 << MIN_CLASS_SHIFT).next_power_of_two();
    ((capacity.trailing_zeros() - MIN_CLASS_SHIFT) as usize, capacity)
}

impl Block {
    fn layout(capacity: usize) -> Layout {
        // Capacities are powers of two of at least a page, below isize::MAX by the check in take().
        Layout::from_size_align(capacity, BUFFER_ALIGN).expect("buffer capacity within isize")
    }

    /// `None` if out of memory.
    fn take(len: usize) -> Option<Self> {
        let (class, capacity) = class_of(len);
        #[cfg(any(test, feature = "testing"))]
        if capacity > LONGEST.get() {
            return None;
        }
        if class < CLASSES {
            let pooled = FREE.try_with(|free| free.borrow_mut()[class].pop());
            if let Ok(Some(block)) = pooled {
                return Some(block);
            }
            let large = LARGE.get().filter(|(from, _)| capacity >= *from);
            for source in SOURCE.get().into_iter().chain(large.map(|(_, source)| source)) {
                if let Some(ptr) = source.take(capacity) {
                    return Some(Self { ptr, capacity, source: Some(*source) });
                }
            }
        }
        // SAFETY: the layout has a non-zero size.
        let ptr = unsafe { alloc_zeroed(Self::layout(capacity)) };
        Some(Self { ptr: NonNull::new(ptr)?, capacity, source: None })
    }

    /// Whether it comes from where [`Block::take`] allocates first.
    fn is_current(&self) -> bool {
        SOURCE.get().is_none_or(|wanted| {
            self.source.is_some_and(|source| std::ptr::addr_eq(source, *wanted))
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in take(), by the source or with the same layout, and owned.
        unsafe {
            match self.source {
                Some(source) => source.give(self.ptr),
                None => dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)),
            }
        }
    }
}

/// For tests: from now on this thread gets no longer blocks, as if memory were short.
#[cfg(any(test, feature = "testing"))]
pub fn limit_blocks(bytes: usize) {
    LONGEST.set(bytes);
}

/// Memory in bytes that a buffer of `len` bytes takes.
pub fn footprint(len: usize) -> usize {
    class_of(len).1
}

/// Returns the free blocks that this thread keeps to their sources.
pub fn drop_kept() {
    // While the thread ends there is nothing to return.
    let kept = FREE.try_with(RefCell::take).unwrap_or_default();
    drop(kept);
}

/// The memory that segments refer to.
struct Inner {
    ptr: NonNull<u8>,
    owner: Owner,
    /// A segment was abandoned: the buffer does not wait for it.
    left: AtomicBool,
    /// The contents, for a buffer that only looks at them while such a segment is alive.
    copy: OnceLock<Box<Block>>,
}

impl Inner {
    fn new(ptr: NonNull<u8>, owner: Owner) -> Self {
        Self { ptr, owner, left: AtomicBool::new(false), copy: OnceLock::new() }
    }
}

enum Owner {
    /// A buffer's block; `None` once it is given back.
    Buffer(Option<Block>),
    /// It is dropped with the last reference to the memory.
    Other(#[expect(dead_code, reason = "kept for its drop")] Arc<dyn Send + Sync>),
}

// SAFETY: the owner may be dropped by any thread; the memory is accessed under the rules in the module text.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        let Owner::Buffer(block) = &mut self.owner else { return };
        let Some(block) = block.take() else { return };
        let (class, capacity) = class_of(block.capacity);
        if class >= CLASSES || !block.is_current() {
            return;
        }
        let mut block = Some(block);
        let kept = FREE.try_with(|free| {
            let list = &mut free.borrow_mut()[class];
            if (list.len() + 1) * capacity <= KEEP_PER_CLASS_BYTES.max(capacity) {
                list.extend(block.take());
            }
        });
        // Beyond the limit, or while the thread ends, the block returns to its source.
        if let (Some(block), Ok(()) | Err(_)) = (block, kept) {
            drop(block);
        }
    }
}

/// [`Buffer::try_alloc`] finds the memory that it asks for, unless a test [breaks](crate::canary) this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryIsThere;

/// Owned data memory; see the module text.
pub struct Buffer {
    inner: Arc<Inner>,
    len: usize,
}

impl Buffer {
    /// `len` bytes with unspecified (but initialised) contents.
    ///
    /// Aborts the process if out of memory. Use [`Self::try_alloc`] for sizes that a client chooses.
    pub fn alloc(len: usize) -> Self {
        Self::take(len).unwrap_or_else(|| handle_alloc_error(Block::layout(footprint(len))))
    }

    /// As [`Self::alloc`]; `None` if out of memory.
    pub fn try_alloc(len: usize) -> Option<Self> {
        if broken(MemoryIsThere) { None } else { Self::take(len) }
    }

    fn take(len: usize) -> Option<Self> {
        let block = Block::take(len)?;
        let ptr = block.ptr;
        Some(Self { inner: Arc::new(Inner::new(ptr, Owner::Buffer(Some(block)))), len })
    }

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buffer = Self::alloc(len);
        buffer.as_mut_slice().fill(0);
        buffer
    }

    /// As [`Self::zeroed`]; `None` if out of memory.
    pub fn try_zeroed(len: usize) -> Option<Self> {
        let mut buffer = Self::try_alloc(len)?;
        buffer.as_mut_slice().fill(0);
        Some(buffer)
    }

    /// A copy of `bytes`.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buffer = Self::alloc(bytes.len());
        buffer.as_mut_slice().copy_from_slice(bytes);
        buffer
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether no segment is alive.
    ///
    /// # Panics
    /// When one is, and no segment was abandoned: the I/O has not ended.
    fn is_unique(&self) -> bool {
        // No Weak references exist, so a count of one means that this is the only handle; no other
        // code can make a new one. Acquire pairs with the release in Segment's drop, so that the
        // driver's writes are visible.
        let unique = Arc::strong_count(&self.inner) == 1;
        fence(Ordering::Acquire);
        let left = || self.inner.left.load(Ordering::Relaxed);
        assert!(unique || left(), "buffer used while its I/O is in flight");
        unique
    }

    /// Copies the contents while segments are alive.
    #[cold]
    fn copy_to(&self, to: &mut [u8]) {
        let whole = Segment { inner: Arc::clone(&self.inner), offset: 0, len: to.len() as u32 };
        whole.copy_to(to);
    }

    /// Leaves the memory to segments that are alive, and continues with a copy.
    #[cold]
    fn leave_memory(&mut self) {
        let mut fresh = Self::alloc(self.len);
        self.copy_to(fresh.as_mut_slice());
        *self = fresh;
    }

    /// The copy that [`Self::as_slice`] looks at while segments are alive.
    #[cold]
    fn copied(&self) -> NonNull<u8> {
        let copy = || {
            let mut fresh = Self::alloc(self.len);
            self.copy_to(fresh.as_mut_slice());
            let Some(Inner { owner: Owner::Buffer(block), .. }) = Arc::get_mut(&mut fresh.inner)
            else {
                unreachable!("a new buffer has no segment")
            };
            Box::new(block.take().expect("a new buffer has its block"))
        };
        self.inner.copy.get_or_init(copy).ptr
    }

    /// The bytes.
    ///
    /// # Panics
    /// When a segment of this buffer is alive: the I/O has not ended.
    pub fn as_slice(&self) -> &[u8] {
        let ptr = if self.is_unique() { self.inner.ptr } else { self.copied() };
        // SAFETY: the memory is initialised, `len` is within the block, and no segment (the only
        // other way to it) exists; a new one needs `&mut self`, which this borrow excludes. The copy has no segments,
        // and lives as long as `inner`, which the borrow keeps from being replaced.
        unsafe { std::slice::from_raw_parts(ptr.as_ptr(), self.len) }
    }

    /// The bytes, mutable.
    ///
    /// # Panics
    /// When a segment of this buffer is alive: the I/O has not ended.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        if !self.is_unique() {
            self.leave_memory();
        }
        // SAFETY: as in as_slice().
        unsafe { std::slice::from_raw_parts_mut(self.inner.ptr.as_ptr(), self.len) }
    }

    /// Shortens the buffer to `len` bytes.
    ///
    /// # Panics
    /// When it is already shorter.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len);
        self.len = len;
    }

    /// The part `range` (bytes) as a segment for a bio. Takes `&mut self` so that no borrow of the
    /// bytes can be alive when one is made.
    ///
    /// # Panics
    /// When the range is not within the buffer.
    pub fn segment(&mut self, range: Range<usize>) -> Segment {
        assert!(range.start <= range.end && range.end <= self.len, "segment out of its buffer");
        // The end, which bounds the others: no sum of an offset and a length overflows.
        let end = u32::try_from(range.end).expect("buffers are below 4 GiB");
        let offset = range.start as u32;
        if self.inner.left.load(Ordering::Relaxed) {
            self.forget_left();
        }
        Segment { inner: Arc::clone(&self.inner), offset, len: end - offset }
    }

    /// Before the memory gets a new segment: abandoned segments must not share it.
    #[cold]
    fn forget_left(&mut self) {
        match Arc::get_mut(&mut self.inner) {
            Some(inner) => {
                inner.left = AtomicBool::new(false);
                inner.copy = OnceLock::new();
            }
            None => self.leave_memory(),
        }
    }

    /// The buffer as a segment, which keeps the memory.
    ///
    /// # Panics
    /// When the buffer has 4 GiB or more.
    pub fn into_whole(self) -> Segment {
        let len = u32::try_from(self.len).expect("buffers are below 4 GiB");
        Segment { inner: self.inner, offset: 0, len }
    }

    /// All of it as a segment.
    pub fn whole(&mut self) -> Segment {
        self.segment(0..self.len)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// A counted reference to a part of a [`Buffer`], or of [`ForeignMemory`].
#[derive(Clone)]
pub struct Segment {
    inner: Arc<Inner>,
    offset: u32,
    len: u32,
}

// One of them fits beside the length of a bio's list, in the place of the pointer to a longer list.
const _: () = assert!(size_of::<Segment>() == 16);

impl Segment {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Abandons the segment: its buffer does not wait for it, and continues with other memory.
    pub(crate) fn leave(&self) {
        self.inner.left.store(true, Ordering::Relaxed);
    }

    /// The part `range` of this segment (bytes from its start).
    ///
    /// # Panics
    /// When the range is not within the segment.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len());
        // Within u32, since both are bounded by self.len.
        Self {
            inner: Arc::clone(&self.inner),
            offset: self.offset + range.start as u32,
            len: (range.end - range.start) as u32,
        }
    }

    /// Splits off and returns the first `n` bytes.
    ///
    /// # Panics
    /// When it is shorter.
    pub fn split_to(&mut self, n: usize) -> Self {
        let front = self.slice(0..n);
        self.offset += n as u32;
        self.len -= n as u32;
        front
    }

    /// The address of the bytes, for system calls: the kernel may write them for a read bio, and read them for a write bio,
    /// until the driver drops the segment. Code of this process uses [`Self::bytes`].
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: offset is within the memory that `inner` keeps alive.
        unsafe { self.inner.ptr.as_ptr().add(self.offset as usize) }
    }

    /// The bytes, which others may access too; see [`shared`].
    #[inline]
    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the memory is initialised, within what `inner` keeps alive, and accessed only by atomic bytes while a
        // segment is alive (the module text).
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len()) }
    }

    /// Whether `other` follows this segment directly in memory, so that both can be one iovec.
    #[inline]
    pub fn is_followed_by(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) && self.offset + self.len == other.offset
    }

    /// Appends `other`, which must satisfy [`Self::is_followed_by`].
    pub fn extend(&mut self, other: &Self) {
        assert!(self.is_followed_by(other));
        self.len += other.len;
    }

    /// Copies the segment's first bytes out (a driver serving a write bio).
    ///
    /// # Panics
    /// When `to` is longer than the segment.
    pub fn copy_to(&self, to: &mut [u8]) {
        shared::load(&self.bytes()[..to.len()], to);
    }

    /// Fills the segment's first bytes (a driver serving a read bio).
    ///
    /// # Panics
    /// When `from` is longer than the segment.
    pub fn copy_from(&self, from: &[u8]) {
        shared::store(from, &self.bytes()[..from.len()]);
    }

    /// Fills the segment with zero bytes.
    pub fn fill_zero(&self) {
        shared::zero(self.bytes());
    }
}

/// Fills all of `segments`, in order, with the start of `from`.
///
/// # Panics
/// When `from` is shorter than they are.
pub fn scatter<'a>(mut from: &[u8], segments: impl IntoIterator<Item = &'a Segment>) {
    for segment in segments {
        let (part, rest) = from.split_at(segment.len());
        segment.copy_from(part);
        from = rest;
    }
}

/// Copies all of `segments`, in order, to the start of `to`.
///
/// # Panics
/// When `to` is shorter than they are.
pub fn gather<'a>(segments: impl IntoIterator<Item = &'a Segment>, mut to: &mut [u8]) {
    for segment in segments {
        let (part, rest) = to.split_at_mut(segment.len());
        segment.copy_to(part);
        to = rest;
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes at {})", self.len, self.offset)
    }
}
