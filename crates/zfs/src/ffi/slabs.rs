//! The memory of libzpool's buffers: data, and metadata in its on-disk form. [`super::files`]
//! explains how the functions here replace libzpool's.
//!
//! In the kernel, this memory comes from slabs per size; here, libzpool calls malloc(3)
//! (lib/libspl/include/umem.h). malloc is made for many small objects: aligned pieces of many sizes
//! leave gaps that no other piece fits into, and each thread has its own heap for such gaps, so
//! most buffers were new memory, with a page fault for every 4 KiB of written data.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use ashlar_engine::slabs::Slabs;

use super::surroundings::arc_free_memory;

/// Smaller buffers take parts of pages. They are few: compressed metadata.
const SMALLEST_BYTES: usize = 4096;
/// The largest block of a pool: `SPA_MAXBLOCKSIZE`.
const LARGEST_BYTES: usize = 16 << 20;
/// Address space per size: more than the ARC's maximum.
const REGION_BYTES: usize = 64 << 30;
/// Memory kept for future buffers, as a fraction of the ARC's maximum.
const KEEP_OF_ARC: usize = 4;
/// Default maximum of the ARC, as a fraction of the machine's memory: libzpool's default.
const ARC_OF_MEMORY: usize = 4;
/// Alignment of smaller buffers: `SPA_MINBLOCKSIZE`.
const SMALL_ALIGN: usize = 512;
/// From this size on, the ARC's buffers may consist of single pages: `zfs_abd_scatter_min_size`.
const LEAST_SCATTERED_BYTES: usize = 1536;
/// `zfs_abd_scatter_enabled`
static ARE_SCATTERED: AtomicBool = AtomicBool::new(true);

/// Four sizes per power of two, if they are whole pages.
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

/// `None` if there is too little address space: a limit of the process (ulimit -v), or a kernel
/// without overcommit.
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

/// The memory kept for an ARC of at most `arc_max_bytes`; 0 means libzpool's default.
fn keep_bytes(arc_max_bytes: u64) -> usize {
    if arc_max_bytes > 0 {
        return usize::try_from(arc_max_bytes).unwrap_or(usize::MAX) / KEEP_OF_ARC;
    }
    usize::try_from(arc_free_memory()).unwrap_or(usize::MAX) / ARC_OF_MEMORY / KEEP_OF_ARC
}

/// Called when `zfs_arc_max` is set.
pub(super) fn follow_arc_max(arc_max_bytes: u64) {
    if let Some(slabs) = slabs() {
        slabs.set_keep_bytes(keep_bytes(arc_max_bytes));
    }
}

/// Called when `zfs_abd_scatter_enabled` is set.
pub(super) fn set_scattered(are_scattered: bool) {
    ARE_SCATTERED.store(are_scattered, Ordering::Relaxed);
}

/// The layout of a buffer that is not from a slab.
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
    // SAFETY: the layout is not empty.
    let buffer: *mut c_void = unsafe { std::alloc::alloc(layout) }.cast();
    if buffer.is_null() {
        // No caller handles a failed allocation.
        std::alloc::handle_alloc_error(layout);
    }
    buffer
}

/// # Safety
/// [`alloc`] returned it for this length, and it is no longer used.
unsafe fn free(buffer: *mut c_void, len: usize) {
    let Some(memory) = NonNull::new(buffer.cast::<u8>()) else { return };
    // SAFETY: guaranteed by the caller; the address determines which of the two it came from.
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
    // SAFETY: guaranteed by the caller.
    unsafe { free(buffer, len) }
}

/// sys/zio.h: for data, which kernel dumps leave out.
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
    // SAFETY: guaranteed by the caller.
    unsafe { free(buffer, len) }
}

/// sys/abd_impl.h: whether a buffer of the ARC is contiguous. From 2.3 on, libzpool ignores its tunable.
#[unsafe(no_mangle)]
extern "C" fn abd_size_alloc_linear(len: usize) -> c_int {
    c_int::from(len < LEAST_SCATTERED_BYTES || !ARE_SCATTERED.load(Ordering::Relaxed))
}

/// By name.
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
            // SAFETY: from alloc(), for this length, and no longer used.
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
