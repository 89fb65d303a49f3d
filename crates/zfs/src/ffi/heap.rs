//! How the C library's heap is to treat libzpool's buffers.

use std::ffi::c_int;

/// Larger pieces get a mapping of their own: the most that mallopt(3) takes.
const MMAP_THRESHOLD_BYTES: c_int = 32 << 20;
/// What is free at the end of a heap before it goes back to the kernel.
const TRIM_THRESHOLD_BYTES: c_int = 128 << 20;

/// Has the heap keep what is freed. In the kernel libzpool's buffers come from slabs; here they come from malloc(3), which maps
/// each block of 128 KiB or more on its own and unmaps it when it is freed, so that every page of the next one is a fault and is
/// zeroed: with blocks of 1 MiB half of the time of reads and writes that miss the cache of buffers.
///
/// Before there are other threads.
pub(crate) fn keep_freed() {
    let options = [
        (libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES),
        (libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
    ];
    for (option, value) in options {
        // SAFETY: it sets a number of the C library.
        if unsafe { libc::mallopt(option, value) } == 0 {
            eprintln!("the heap does not take option {option}");
        }
    }
}
