//! The functions, as the headers of Ceph 16 declare them.

use std::ffi::{c_char, c_int, c_void};

use super::{Library, LoadError};

/// `rados_t`.
pub(crate) type RadosHandle = *mut c_void;
/// `rados_ioctx_t`.
pub(crate) type IoContextHandle = *mut c_void;
/// `rbd_image_t`.
pub(crate) type ImageHandle = *mut c_void;
/// `rbd_completion_t`.
pub(crate) type CompletionHandle = *mut c_void;
/// `rbd_callback_t`.
pub(crate) type CompletionCallback = extern "C" fn(CompletionHandle, *mut c_void);
/// `rbd_update_callback_t`.
pub(crate) type UpdateCallback = extern "C" fn(*mut c_void);

/// `RBD_LOCK_MODE_EXCLUSIVE` of `rbd_lock_mode_t`, a C enumeration.
pub(crate) const LOCK_MODE_EXCLUSIVE: c_int = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: write zeroes, do not deallocate.
pub(crate) const WRITE_ZEROES_THICK: c_int = 1;

/// `rbd_image_info_t`.
#[repr(C)]
pub(crate) struct RbdImageInfo {
    pub(crate) size: u64,
    pub(crate) obj_size: u64,
    pub(crate) num_objs: u64,
    pub(crate) order: c_int,
    pub(crate) block_name_prefix: [c_char; 24],
    pub(crate) parent_pool: i64,
    pub(crate) parent_name: [c_char; 96],
}
const _: () = assert!(size_of::<RbdImageInfo>() == 160);

/// Declares a table of functions and its loader. The functions are called as fields.
macro_rules! functions {
    ($(#[$about:meta])* $table:ident { $($name:ident: fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            pub(super) fn load(library: Library) -> Result<Self, LoadError> {
                Ok(Self {
                    // SAFETY: the declaration follows the library's header.
                    $($name: unsafe { library.function(stringify!($name)) }?,)*
                })
            }
        }
    };
}

functions! {
    /// `rados/librados.h`.
    RadosFunctions {
        rados_create2: fn(*mut RadosHandle, *const c_char, *const c_char, u64) -> c_int;
        rados_conf_read_file: fn(RadosHandle, *const c_char) -> c_int;
        rados_conf_parse_env: fn(RadosHandle, *const c_char) -> c_int;
        rados_conf_set: fn(RadosHandle, *const c_char, *const c_char) -> c_int;
        rados_conf_get: fn(RadosHandle, *const c_char, *mut c_char, usize) -> c_int;
        rados_connect: fn(RadosHandle) -> c_int;
        rados_shutdown: fn(RadosHandle);
        rados_ioctx_create: fn(RadosHandle, *const c_char, *mut IoContextHandle) -> c_int;
        rados_ioctx_set_namespace: fn(IoContextHandle, *const c_char);
        rados_ioctx_destroy: fn(IoContextHandle);
    }
}

functions! {
    /// `rbd/librbd.h`.
    RbdFunctions {
        rbd_open: fn(IoContextHandle, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        rbd_open_read_only: fn(IoContextHandle, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        rbd_close: fn(ImageHandle) -> c_int;
        rbd_stat: fn(ImageHandle, *mut RbdImageInfo, usize) -> c_int;
        rbd_get_size: fn(ImageHandle, *mut u64) -> c_int;
        rbd_get_stripe_unit: fn(ImageHandle, *mut u64) -> c_int;
        rbd_get_stripe_count: fn(ImageHandle, *mut u64) -> c_int;
        rbd_get_features: fn(ImageHandle, *mut u64) -> c_int;
        rbd_lock_acquire: fn(ImageHandle, c_int) -> c_int;
        rbd_lock_get_owners: fn(ImageHandle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
        rbd_lock_get_owners_cleanup: fn(*mut *mut c_char, usize);
        rbd_update_watch: fn(ImageHandle, *mut u64, UpdateCallback, *mut c_void) -> c_int;
        rbd_update_unwatch: fn(ImageHandle, u64) -> c_int;
        rbd_aio_create_completion: fn(*mut c_void, CompletionCallback, *mut CompletionHandle) -> c_int;
        rbd_aio_get_return_value: fn(CompletionHandle) -> isize;
        rbd_aio_release: fn(CompletionHandle);
        rbd_aio_readv: fn(ImageHandle, *const libc::iovec, c_int, u64, CompletionHandle) -> c_int;
        rbd_aio_writev: fn(ImageHandle, *const libc::iovec, c_int, u64, CompletionHandle) -> c_int;
        rbd_aio_discard: fn(ImageHandle, u64, u64, CompletionHandle) -> c_int;
        rbd_aio_write_zeroes: fn(ImageHandle, u64, usize, CompletionHandle, c_int, c_int) -> c_int;
        rbd_aio_flush: fn(ImageHandle, CompletionHandle) -> c_int;
    }
}
