//! The memory of libzpool's buffers: data, and metadata as it is on disk. See [`super::files`] for how it comes to be ours.
//!
//! In the kernel it comes from slabs of each size, here libzpool asks malloc(3) (lib/libspl/include/umem.h). That is made for many small things:
//! aligned pieces of many sizes leave gaps that no other fits into, each thread has its own heap to leave them in, so that
//! most buffers were new memory, a page fault for every 4 KiB of what is written.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use ashlar_engine::slabs::Slabs;

use super::surroundings::arc_free_memory;

/// Buffers below have parts of pages. They are few: metadata that was compressed.
const SMALLEST_BYTES: usize = 4096;
/// The largest block of a pool: `SPA_MAXBLOCKSIZE`.
const LARGEST_BYTES: usize = 16 << 20;
/// Address space for each size: more than the ARC takes.
const REGION_BYTES: usize = 64 << 30;
/// What is kept for buffers to come, as a share of what the ARC may take.
const KEEP_OF_ARC: usize = 4;
/// What the ARC may take of the machine's memory if nobody sets it: libzpool's own default.
const ARC_OF_MEMORY: usize = 4;
/// What smaller buffers are aligned to: `SPA_MINBLOCKSIZE`.
const SMALL_ALIGN: usize = 512;
/// The ARC's own buffers of this size and more are made of single pages, if any: `zfs_abd_scatter_min_size`.
const LEAST_SCATTERED_BYTES: usize = 1536;
/// `zfs_abd_scatter_enabled`
static ARE_SCATTERED: AtomicBool = AtomicBool::new(true);

/// Four for each power of two, as far as they are whole pages.
fn sizes() -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut power = SMALLEST_BYTES;
    while power < LARGEST_BYTES {
        let quarters = (4..8).map(|quarters| power / 4 * quarters);
        sizes.extend(quarters.filter(|size| size.is_multiple_of(SMALLEST_BYTES)));
        power *= 2;
    }
    sizes.push(LARGEST_BYTES);
    sizes
}

/// `None` if there is not so much address space: a limit of the process (ulimit -v), or a kernel that promises no more than it has.
fn slabs() -> Option<&'static Slabs> {
    static SLABS: OnceLock<Option<Slabs>> = OnceLock::new();
    let make = || match Slabs::private(&sizes(), REGION_BYTES, keep_bytes(0)) {
        Ok(slabs) => Some(slabs),
        Err(errno) => {
            tracing::warn!(%errno, "no slabs: buffers come from the heap, which is slower");
            None
        }
    };
    SLABS.get_or_init(make).as_ref()
}

/// What is kept with an ARC of at most `arc_max_bytes`; 0 is libzpool's default.
fn keep_bytes(arc_max_bytes: u64) -> usize {
    if arc_max_bytes > 0 {
        return usize::try_from(arc_max_bytes).unwrap_or(usize::MAX) / KEEP_OF_ARC;
    }
    usize::try_from(arc_free_memory()).unwrap_or(usize::MAX) / ARC_OF_MEMORY / KEEP_OF_ARC
}

/// `zfs_arc_max` was set.
pub(super) fn follow_arc_max(arc_max_bytes: u64) {
    if let Some(slabs) = slabs() {
        slabs.set_keep_bytes(keep_bytes(arc_max_bytes));
    }
}

/// `zfs_abd_scatter_enabled` was set.
pub(super) fn set_scattered(are_scattered: bool) {
    ARE_SCATTERED.store(are_scattered, Ordering::Relaxed);
}

/// How the allocator aligns a buffer that is not of a slab.
fn layout(len: usize) -> Option<Layout> {
    let align = if len.is_multiple_of(SMALLEST_BYTES) { SMALLEST_BYTES } else { SMALL_ALIGN };
    Layout::from_size_align(len.max(1), align).ok()
}

fn alloc(len: usize) -> *mut c_void {
    if len >= SMALLEST_BYTES
        && let Some(block) = slabs().and_then(|slabs| slabs.take(len))
    {
        return block.as_ptr().cast();
    }
    let Some(layout) = layout(len) else { return null_mut() };
    // SAFETY: the layout has a size.
    let buffer: *mut c_void = unsafe { std::alloc::alloc(layout) }.cast();
    if buffer.is_null() {
        // Nobody who asks for a buffer is ready to get none.
        std::alloc::handle_alloc_error(layout);
    }
    buffer
}

/// # Safety
/// [`alloc`] gave it for this length, and nobody uses it any more.
unsafe fn free(buffer: *mut c_void, len: usize) {
    let Some(memory) = NonNull::new(buffer.cast::<u8>()) else { return };
    // SAFETY: the caller's; which of the two it came from is told by where it is.
    unsafe {
        match slabs().filter(|slabs| slabs.owns(memory)) {
            Some(slabs) => slabs.give(memory),
            None => {
                if let Some(layout) = layout(len) {
                    std::alloc::dealloc(memory.as_ptr(), layout);
                }
            }
        }
    }
}

/// sys/zio.h.
#[unsafe(no_mangle)]
extern "C" fn zio_buf_alloc(len: usize) -> *mut c_void {
    alloc(len)
}

/// sys/zio.h.
///
/// # Safety
/// As for [`free`].
#[unsafe(no_mangle)]
unsafe extern "C" fn zio_buf_free(buffer: *mut c_void, len: usize) {
    // SAFETY: the caller's.
    unsafe { free(buffer, len) }
}

/// sys/zio.h: for data, which a dump of the kernel leaves out.
#[unsafe(no_mangle)]
extern "C" fn zio_data_buf_alloc(len: usize) -> *mut c_void {
    alloc(len)
}

/// sys/zio.h.
///
/// # Safety
/// As for [`free`].
#[unsafe(no_mangle)]
unsafe extern "C" fn zio_data_buf_free(buffer: *mut c_void, len: usize) {
    // SAFETY: the caller's.
    unsafe { free(buffer, len) }
}

/// sys/abd_impl.h: whether a buffer of the ARC is one piece of memory. From 2.3 on libzpool does not look at its own tunable.
#[unsafe(no_mangle)]
extern "C" fn abd_size_alloc_linear(len: usize) -> c_int {
    c_int::from(len < LEAST_SCATTERED_BYTES || !ARE_SCATTERED.load(Ordering::Relaxed))
}

/// By their names.
pub(super) fn replaced() -> [(&'static std::ffi::CStr, *const ()); 5] {
    [
        (c"abd_size_alloc_linear", abd_size_alloc_linear as *const ()),
        (c"zio_buf_alloc", zio_buf_alloc as *const ()),
        (c"zio_buf_free", zio_buf_free as *const ()),
        (c"zio_data_buf_alloc", zio_data_buf_alloc as *const ()),
        (c"zio_data_buf_free", zio_data_buf_free as *const ()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_all_lengths_are_aligned_and_their_own() {
        let lengths = [1, 512, 3584, 4096, 4608, 8192, 12 << 10, 128 << 10, (128 << 10) + 512]
            .into_iter()
            .chain([1 << 20, LARGEST_BYTES, LARGEST_BYTES + 4096]);
        let buffers: Vec<_> = lengths.map(|len| (alloc(len), len)).collect();
        for (number, (buffer, len)) in buffers.iter().enumerate() {
            let align = if len.is_multiple_of(4096) { 4096 } else { 512 };
            assert!(buffer.addr().is_multiple_of(align), "{len}");
            // SAFETY: a buffer of that length.
            unsafe { buffer.write_bytes(number as u8, *len) };
        }
        for (number, (buffer, len)) in buffers.into_iter().enumerate() {
            // SAFETY: written above.
            let bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), len) };
            assert!(bytes.iter().all(|byte| *byte == number as u8), "{len}");
            // SAFETY: from alloc(), for this length, and not used any more.
            unsafe { free(buffer, len) };
        }
    }

    #[test]
    fn every_size_has_at_most_a_quarter_more_than_what_is_asked() {
        let sizes = sizes();
        assert!(sizes.is_sorted() && sizes.first() == Some(&4096));
        assert!(sizes.windows(2).skip(2).all(|pair| pair[1] - pair[0] <= pair[0] / 2));
        assert!(
            sizes
                .windows(2)
                .filter(|pair| pair[0] >= 16384)
                .all(|pair| (pair[1] - pair[0]) * 4 <= pair[0])
        );
    }
}
