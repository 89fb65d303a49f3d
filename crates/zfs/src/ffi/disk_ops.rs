//! Works around a bug of libzpool 2.4.

use std::ffi::c_void;

use super::{Library, LoadError};

/// Adds a missing function to `vdev_disk_ops`: since 2.4, the allocation of a log block asks a vdev
/// how much data fits in an allocated size, and `vdev_disk_ops` in user space (the end of
/// module/zfs/vdev_file.c) lacks that function, unlike `vdev_file_ops`. Without it, a null pointer
/// is called. All our vdevs have the type `disk`, and so do all that kernels create on devices.
///
/// Does nothing unless the table looks exactly as in the buggy release: so it becomes inactive when
/// the bug is fixed.
///
/// # Errors
/// The table cannot be written.
pub(super) fn complete(library: &Library) -> Result<(), LoadError> {
    /// The fields `vdev_op_psize_to_asize`, `vdev_op_asize_to_psize` and `vdev_op_min_asize` of sys/vdev_impl.h.
    const FIRST: usize = 4;
    let (table, _) = library.variable("vdev_disk_ops")?;
    let Ok((to_psize, _)) = library.variable("vdev_default_psize") else { return Ok(()) };
    let (to_asize, _) = library.variable("vdev_default_asize")?;
    let (min_asize, _) = library.variable("vdev_default_min_asize")?;
    let fields = table.cast::<*mut c_void>().wrapping_add(FIRST);
    // SAFETY: the table has more than twenty such fields in each release, and nothing else runs yet.
    let there = unsafe { *fields.cast::<[*mut c_void; 3]>() };
    if there != [to_asize, std::ptr::null_mut(), min_asize] {
        return Ok(());
    }
    let missing = fields.wrapping_add(1);
    // SAFETY: the argument is valid. The call does not fail on Linux.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.unsigned_abs() as usize;
    let page = missing.cast::<c_void>().wrapping_byte_sub(missing.addr() % page_bytes);
    // SAFETY: the page is the library's relocated data; no code relies on it being read-only.
    if unsafe { libc::mprotect(page, page_bytes, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        return Err(LoadError::Unknown {
            path: library.path().to_string_lossy().into_owned(),
            why: format!("vdev_disk_ops: {}", std::io::Error::last_os_error()),
        });
    }
    // SAFETY: it is a field of that table, which is writable now, and the function has the right type.
    unsafe { *missing = to_psize };
    Ok(())
}
