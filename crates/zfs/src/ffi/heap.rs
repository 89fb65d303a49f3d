//! Settings of the C library's heap for libzpool's buffers.

use std::ffi::c_int;

/// Larger allocations get a separate mapping: the maximum that mallopt(3) accepts.
const MMAP_THRESHOLD_BYTES: c_int = 32 << 20;
/// Free memory at the end of a heap before it is returned to the kernel.
const TRIM_THRESHOLD_BYTES: c_int = 128 << 20;

/// Makes the heap keep freed memory. In the kernel, libzpool's buffers come from slabs; here they
/// come from malloc(3), which maps each block of 128 KiB or more separately and unmaps it when it
/// is freed, so that every page of the next block is a page fault and is zeroed: with blocks of 1
/// MiB, half of the time of reads and writes that miss the buffer cache.
///
/// Call it before there are other threads.
pub(crate) fn keep_freed() {
    let options = [
        (libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        (libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
    ];
    for (option, value) in options {
        // SAFETY: the call sets a number of the C library.
        if unsafe { libc::mallopt(option, value) } == 0 {
            eprintln!("the heap does not take option {option}");
        }
    }
}
