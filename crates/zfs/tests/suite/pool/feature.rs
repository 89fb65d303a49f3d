//! Writes a feature that no release knows into a pool.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use super::Zpool;

/// Its name.
pub(crate) const FEATURE: &str = "org.example:unknown";
/// The lists of features required for writing, and of those required even for reading.
pub(crate) const FOR_WRITING: &CStr = c"features_for_write";
pub(crate) const FOR_READING: &CStr = c"features_for_read";

struct FeatureRequest<'a> {
    zpool: &'a Zpool,
    spa: *mut c_void,
    list: &'static CStr,
}

/// Writes what feature_enable_sync() and feature_sync() write. Since 2.4, these functions require a
/// lock of the pool.
///
/// # Safety
/// Called by libzpool as a sync task, with the argument from [`use_feature`].
unsafe extern "C" fn enable_and_use(enabling: *mut c_void, tx: *mut c_void) {
    const DIRECTORY: u64 = 1;
    let guid = CString::new(FEATURE).unwrap();
    let text = b"for a test\0";
    let uses = 1_u64;
    // SAFETY: guaranteed by the caller; sys/spa.h and sys/zap.h.
    unsafe {
        let FeatureRequest { zpool, spa, list } = &*enabling.cast::<FeatureRequest<'_>>();
        let objset =
            zpool.get::<unsafe extern "C" fn(*mut c_void) -> *mut c_void>("spa_meta_objset")(*spa);
        type Lookup =
            unsafe extern "C" fn(*mut c_void, u64, *const c_char, u64, u64, *mut c_void) -> c_int;
        type Update = unsafe extern "C" fn(
            *mut c_void,
            u64,
            *const c_char,
            c_int,
            u64,
            *const c_void,
            *mut c_void,
        ) -> c_int;
        let lookup: Lookup = zpool.get("zap_lookup");
        let update: Update = zpool.get("zap_update");
        let object = |name: &CStr| {
            let mut object = 0_u64;
            let to = (&raw mut object).cast();
            assert_eq!(lookup(objset, DIRECTORY, name.as_ptr(), 8, 1, to), 0);
            object
        };
        let descriptions = object(c"feature_descriptions");
        let len = text.len() as u64;
        let code = update(objset, descriptions, guid.as_ptr(), 1, len, text.as_ptr().cast(), tx);
        assert_eq!(code, 0);
        let code = update(objset, object(list), guid.as_ptr(), 8, 1, (&raw const uses).cast(), tx);
        assert_eq!(code, 0);
    }
}

/// Makes an imported pool use [`FEATURE`].
pub(crate) fn use_feature(zpool: &Zpool, name: &str, list: &'static CStr) {
    let name = CString::new(name).unwrap();
    let tag = c"test".as_ptr().cast::<c_void>();
    // SAFETY: functions of sys/spa.h and sys/dsl_synctask.h; the pool is open meanwhile, and the
    // call waits for the task.
    unsafe {
        let mut spa = null_mut();
        let open: unsafe extern "C" fn(*const c_char, *mut *mut c_void, *const c_void) -> c_int =
            zpool.get("spa_open");
        assert_eq!(open(name.as_ptr(), &raw mut spa, tag), 0);
        let mut enabling = FeatureRequest { zpool, spa, list };
        type Task = unsafe extern "C" fn(*mut c_void, *mut c_void);
        let run: unsafe extern "C" fn(
            *const c_char,
            *const c_void,
            Task,
            *mut c_void,
            c_int,
            c_int,
        ) -> c_int = zpool.get("dsl_sync_task");
        let code = run(name.as_ptr(), null(), enable_and_use, (&raw mut enabling).cast(), 5, 0);
        assert_eq!(code, 0, "dsl_sync_task");
        zpool.get::<unsafe extern "C" fn(*mut c_void, *const c_void)>("spa_close")(spa, tag);
    }
}
