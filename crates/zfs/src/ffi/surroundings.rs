//! libzpool's queries about the machine, answered here instead of by the library: see [`super::files`].
//!
//! libzpool's own answers are made for ztest (lib/libzpool/kernel.c, module/os/linux/zfs/arc_os.c).
//! It reads random numbers from /dev/urandom one at a time, and the ARC needs one for each buffer
//! that it adds or evicts, the allocator one for each block. Its free memory is a random number,
//! too, and zero in one of a hundred calls, so that buffers are evicted needlessly.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Random bytes stored per thread.
const STORE_BYTES: usize = 512;

thread_local! {
    /// Neither needs to be dropped, so threads of the library may use them until they exit.
    static STORE: RefCell<[u8; STORE_BYTES]> = const { RefCell::new([0; STORE_BYTES]) };
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// Fills `bytes` with random bytes.
fn fill(bytes: &mut [u8]) -> Result<(), Errno> {
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn random(bytes: &mut [u8]) -> Result<(), Errno> {
    if bytes.len() > STORE_BYTES {
        return fill(bytes);
    }
    STORE.with_borrow_mut(|store| {
        if LEFT.get() < bytes.len() {
            fill(store)?;
            LEFT.set(STORE_BYTES);
        }
        let left = LEFT.get() - bytes.len();
        // Each byte is used only once.
        bytes.copy_from_slice(&store[left..LEFT.get()]);
        LEFT.set(left);
        Ok(())
    })
}

/// sys/random.h. The kernel's are no better.
///
/// # Safety
/// `bytes` must be good for `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn random_get_pseudo_bytes(bytes: *mut u8, len: usize) -> c_int {
    // SAFETY: guaranteed by the caller, and all byte values are valid; zeroed first, because the
    // memory may be uninitialized.
    let bytes = unsafe {
        bytes.write_bytes(0, len);
        std::slice::from_raw_parts_mut(bytes, len)
    };
    random(bytes).map_or_else(Errno::raw_os_error, |()| 0)
}

/// sys/arc_impl.h: free memory. The ARC is limited only by `zfs_arc_max`.
#[unsafe(no_mangle)]
pub(super) extern "C" fn arc_free_memory() -> u64 {
    static MEMORY_BYTES: OnceLock<u64> = OnceLock::new();
    *MEMORY_BYTES.get_or_init(|| {
        let info = rustix::system::sysinfo();
        // Both have a pointer's width.
        (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
    })
}

/// sys/arc_impl.h: how much the ARC may grow, or must shrink if negative.
#[unsafe(no_mangle)]
extern "C" fn arc_available_memory() -> i64 {
    i64::MAX
}

/// By name.
pub(super) fn replaced() -> [(&'static std::ffi::CStr, *const ()); 3] {
    [
        (c"random_get_pseudo_bytes", random_get_pseudo_bytes as *const ()),
        (c"arc_free_memory", arc_free_memory as *const ()),
        (c"arc_available_memory", arc_available_memory as *const ()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_differ_and_none_is_left_out() {
        let mut seen = std::collections::BTreeSet::new();
        for len in [8; 1000] {
            let mut bytes = vec![0; len];
            random(&mut bytes).unwrap();
            assert!(seen.insert(bytes));
        }
        for len in [0, 1, 511, 512, 513, 5000] {
            let mut all = vec![0_u8; len];
            for _ in 0..40 {
                let mut bytes = vec![0; len];
                random(&mut bytes).unwrap();
                all.iter_mut().zip(bytes).for_each(|(all, byte)| *all |= byte);
            }
            assert!(all.iter().all(|byte| *byte != 0), "{len}");
        }
    }
}
