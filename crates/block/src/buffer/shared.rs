//! Copies of memory that others access at the same time: a thread with another segment of the same bytes, the kernel
//! with an operation in flight, or a process that maps the memory too.
//!
//! Rust defines concurrent accesses only if all of them are atomic. Therefore each byte here is an **atomic** of its own,
//! loaded and stored relaxed: a byte that is read while it is written has its old value or the new one, and no access
//! orders any other. They are bytes because segments begin and end anywhere, and atomics of different sizes must not
//! race either.
//!
//! On x86-64 the string instructions of the processor move the bytes. Inline assembly may do to memory what Rust code
//! could do; here this is a relaxed load and a relaxed store of each byte, in any order, and the processor does just that:
//! it moves bytes or whole cache lines, never a part of a byte. From 4 KiB on they are as fast as memcpy (which uses them
//! itself) and twice as fast as a loop over atomic words; a copy of 512 bytes takes some 10 ns longer than memcpy.
//! Elsewhere, and under Miri, a loop over the bytes does the same.

use std::sync::atomic::AtomicU8;

/// Copies `from` to `to`.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn copy(from: &[AtomicU8], to: &[AtomicU8]) {
    assert_eq!(from.len(), to.len(), "a copy to memory of another length");
    bytes::copy(from, to);
}

/// Sets all bytes to zero.
#[inline]
pub fn zero(to: &[AtomicU8]) {
    bytes::zero(to);
}

/// Copies `from` to memory that only the caller accesses.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn load(from: &[AtomicU8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "a copy to memory of another length");
    bytes::load(from, to);
}

/// Copies bytes that do not change meanwhile.
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn store(from: &[u8], to: &[AtomicU8]) {
    assert_eq!(from.len(), to.len(), "a copy to memory of another length");
    bytes::store(from, to);
}

/// By string instructions. The callers' slices have the same length.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod bytes {
    use std::arch::asm;
    use std::sync::atomic::AtomicU8;

    #[inline]
    pub(super) fn copy(from: &[AtomicU8], to: &[AtomicU8]) {
        // SAFETY: both are valid for atomic accesses, and `to` for stores through a shared reference.
        unsafe { move_bytes(from.as_ptr().cast(), to.as_ptr().cast_mut().cast(), to.len()) }
    }

    #[inline]
    pub(super) fn load(from: &[AtomicU8], to: &mut [u8]) {
        // SAFETY: as in copy(); `to` is borrowed exclusively.
        unsafe { move_bytes(from.as_ptr().cast(), to.as_mut_ptr(), to.len()) }
    }

    #[inline]
    pub(super) fn store(from: &[u8], to: &[AtomicU8]) {
        // SAFETY: as in copy().
        unsafe { move_bytes(from.as_ptr(), to.as_ptr().cast_mut().cast(), to.len()) }
    }

    #[inline]
    pub(super) fn zero(to: &[AtomicU8]) {
        // SAFETY: `rep stosb` writes just these bytes, which are valid for stores through a shared reference. The direction
        // flag is clear on entry to inline assembly, and no flag is changed.
        unsafe {
            asm!(
                "rep stosb",
                inout("rcx") to.len() => _,
                inout("rdi") to.as_ptr() => _,
                in("al") 0_u8,
                options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    /// `len` bytes at `from` are valid for loads and those at `to` for stores, of relaxed atomic bytes.
    #[inline]
    unsafe fn move_bytes(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: `rep movsb` reads and writes just these bytes (the caller's promise); flags as in zero().
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// By a loop over the bytes.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod bytes {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    pub(super) fn copy(from: &[AtomicU8], to: &[AtomicU8]) {
        from.iter().zip(to).for_each(|(from, to)| to.store(from.load(Relaxed), Relaxed));
    }

    pub(super) fn load(from: &[AtomicU8], to: &mut [u8]) {
        from.iter().zip(to).for_each(|(from, to)| *to = from.load(Relaxed));
    }

    pub(super) fn store(from: &[u8], to: &[AtomicU8]) {
        from.iter().zip(to).for_each(|(from, to)| to.store(*from, Relaxed));
    }

    pub(super) fn zero(to: &[AtomicU8]) {
        to.iter().for_each(|to| to.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    fn atomics(bytes: impl IntoIterator<Item = u8>) -> Vec<AtomicU8> {
        bytes.into_iter().map(AtomicU8::new).collect()
    }

    fn values(of: &[AtomicU8]) -> Vec<u8> {
        of.iter().map(|byte| byte.load(Relaxed)).collect()
    }

    #[test]
    fn copies_of_every_small_length_touch_just_their_bytes() {
        let numbers: Vec<u8> = (1..=40).collect();
        for start in 0..8 {
            for len in 0..=32 {
                let range = start..start + len;
                let mut expected = vec![255; 40];
                expected[range.clone()].copy_from_slice(&numbers[range.clone()]);

                let to = atomics([255; 40]);
                copy(&atomics(1..=40)[range.clone()], &to[range.clone()]);
                assert_eq!(values(&to), expected);
                let to = atomics([255; 40]);
                store(&numbers[range.clone()], &to[range.clone()]);
                assert_eq!(values(&to), expected);
                let mut plain = [255; 40];
                load(&atomics(1..=40)[range.clone()], &mut plain[range.clone()]);
                assert_eq!(plain[..], expected);

                zero(&to[range.clone()]);
                expected[range].fill(0);
                expected.iter_mut().for_each(|byte| *byte = if *byte == 0 { 0 } else { 255 });
                assert_eq!(values(&to), expected);
            }
        }
    }

    #[test]
    #[should_panic(expected = "another length")]
    fn memory_of_another_length_is_refused() {
        copy(&atomics([1; 3]), &atomics([2; 4]));
    }
}
