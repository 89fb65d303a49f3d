//! Pools: the functions of libzpool that create, import, describe and scrub them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::{Duration, Instant};
use std::{ptr, slice, thread};

use rustix::io::Errno;

use super::kernel::{TAG, Zfs, written};
use super::nvlist::{Nvlist, c_string, nvlist_t};
use super::{Release, check, symbols};
use crate::protocol::NvMap;

/// How long closed objects may stay busy before the pool counts as busy, and the poll interval.
const CLOSING: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(5);

/// sys/spa.h. Opaque.
#[repr(C)]
pub(crate) struct spa_t {
    _opaque: [u8; 0],
}

symbols! {
    /// sys/spa.h, sys/vdev.h; the features' functions from zfeature_common.h, the name checks from zfs_namecheck.h.
    SpaFunctions {
        spa_create: fn(*const c_char, *mut nvlist_t, *mut nvlist_t, *mut nvlist_t, *mut c_void) -> c_int;
        spa_destroy: fn(*const c_char) -> c_int;
        spa_import: fn(*mut c_char, *mut nvlist_t, *mut nvlist_t, u64) -> c_int;
        spa_tryimport: fn(*mut nvlist_t) -> *mut nvlist_t;
        spa_export: fn(*const c_char, *mut *mut nvlist_t, c_int, c_int) -> c_int;
        spa_evicting_os_wait: fn(*mut spa_t);
        spa_get_stats: fn(*const c_char, *mut *mut nvlist_t, *mut c_char, usize) -> c_int;
        spa_open: fn(*const c_char, *mut *mut spa_t, *const c_void) -> c_int;
        spa_close: fn(*mut spa_t, *const c_void);
        spa_scan: fn(*mut spa_t, c_int) -> c_int;
        spa_scan_stop: fn(*mut spa_t) -> c_int;
        spa_scrub_pause_resume: fn(*mut spa_t, c_int) -> c_int;
        spa_prop_set: fn(*mut spa_t, *mut nvlist_t) -> c_int;
        /// Up to 2.2 it makes the list, from 2.3 on it adds to a given one.
        spa_prop_get: fn(*mut spa_t, *mut c_void) -> c_int;
        /// Up to 2.1 without the last argument.
        spa_vdev_add: fn(*mut spa_t, *mut nvlist_t, c_int) -> c_int;
        spa_vdev_attach: fn(*mut spa_t, u64, *mut nvlist_t, c_int, c_int) -> c_int;
        spa_vdev_detach: fn(*mut spa_t, u64, u64, c_int) -> c_int;
        spa_vdev_state_enter: fn(*mut spa_t, c_int);
        spa_vdev_state_exit: fn(*mut spa_t, *mut c_void, c_int) -> c_int;
        spa_lookup_by_guid: fn(*mut spa_t, u64, c_int) -> *mut c_void;
        vdev_online: fn(*mut spa_t, u64, u64, *mut c_int) -> c_int;
        vdev_offline: fn(*mut spa_t, u64, u64) -> c_int;
        vdev_clear: fn(*mut spa_t, *mut c_void);
        spa_writeable: fn(*mut spa_t) -> c_int;
        spa_suspended: fn(*mut spa_t) -> c_int;
        spa_maxblocksize: fn(*mut spa_t) -> c_int;
        pool_namecheck: fn(*const c_char, *mut c_int, *mut c_char) -> c_int;
        entity_namecheck: fn(*const c_char, *mut c_int, *mut c_char) -> c_int;
        dataset_nestcheck: fn(*const c_char) -> c_int;
    }
}

/// zfeature_info_t of zfeature_common.h, the same from 2.1 to 2.4.
#[repr(C)]
struct FeatureInfo {
    number: c_int,
    name: *const c_char,
    guid: *const c_char,
    description: *const c_char,
    flags: c_int,
    supported: c_int,
    kind: c_int,
    depends: *const c_int,
}

/// A pool feature of this release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Feature {
    /// The name for users.
    pub(crate) name: String,
    /// The name on disk.
    pub(crate) guid: String,
}

/// Import flags (ZFS_IMPORT_* of sys/fs/zfs.h).
pub(crate) mod import_flag {
    /// Import although another host used it last.
    pub(crate) const ANY_HOST: u64 = 2;
    /// Import without a missing log device.
    pub(crate) const MISSING_LOG: u64 = 4;
}

/// POOL_SCAN_SCRUB of pool_scan_func_t, sys/fs/zfs.h.
const SCAN_SCRUB: c_int = 1;
/// POOL_SCRUB_PAUSE of pool_scrub_cmd_t, sys/fs/zfs.h.
const SCRUB_PAUSE: c_int = 1;

/// A pool held open.
pub(super) struct OpenPool<'a> {
    zfs: &'a Zfs,
    pub(super) spa: *mut spa_t,
}

impl Drop for OpenPool<'_> {
    fn drop(&mut self) {
        // SAFETY: it was opened with this tag.
        unsafe { (self.zfs.spa.spa_close)(self.spa, TAG) };
    }
}

/// A violated naming rule: a number of namecheck_err_t (zfs_namecheck.h), and the offending character.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadName {
    pub(crate) rule: c_int,
    pub(crate) character: char,
}

impl Zfs {
    /// Creates a pool from the vdevs that `root` describes.
    ///
    /// # Errors
    /// Those of `spa_create`.
    pub(crate) fn create_pool(
        &self,
        name: &str,
        root: &NvMap,
        properties: &NvMap,
    ) -> Result<(), Errno> {
        let name = c_string(name)?;
        let root = Nvlist::of(self.nv, root)?;
        let properties = Nvlist::of(self.nv, properties)?;
        // SAFETY: lists and name are valid; the function keeps none of them. The fourth argument is
        // for file systems, which user space does not have; the fifth is for encryption.
        check(unsafe {
            (self.spa.spa_create)(
                name.as_ptr(),
                root.as_ptr(),
                properties.as_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        })
    }

    /// Destroys a pool.
    ///
    /// # Errors
    /// Those of `spa_destroy`.
    pub(crate) fn destroy_pool(&self, name: &str) -> Result<(), Errno> {
        let name = c_string(name)?;
        self.conditions.forget(&name);
        // SAFETY: the name is valid.
        check(unsafe { (self.spa.spa_destroy)(name.as_ptr()) })
    }

    /// Imports a pool. The list that libzpool fills in is returned in any case.
    ///
    /// # Errors
    /// Those of `spa_import`.
    pub(crate) fn import_pool(
        &self,
        name: &str,
        config: &NvMap,
        properties: &NvMap,
        flags: u64,
    ) -> (Result<(), Errno>, NvMap) {
        let prepared = || {
            Ok((c_string(name)?, Nvlist::of(self.nv, config)?, Nvlist::of(self.nv, properties)?))
        };
        let (name, config, properties) = match prepared() {
            Ok(prepared) => prepared,
            Err(errno) => return (Err(errno), NvMap::new()),
        };
        // SAFETY: as above; the name is not modified, though it is not `const`.
        let result = check(unsafe {
            (self.spa.spa_import)(
                name.as_ptr().cast_mut(),
                config.as_ptr(),
                properties.as_ptr(),
                flags,
            )
        });
        (result, config.to_map())
    }

    /// The description of a pool as if it were imported; `None` without such a pool.
    ///
    /// # Errors
    /// `EINVAL`: a text has a zero byte.
    pub(crate) fn try_import_pool(&self, config: &NvMap) -> Result<Option<NvMap>, Errno> {
        let config = Nvlist::of(self.nv, config)?;
        // SAFETY: as above; this owns the returned list.
        let found = unsafe { (self.spa.spa_tryimport)(config.as_ptr()) };
        if found.is_null() {
            return Ok(None);
        }
        // SAFETY: no other code has it.
        Ok(Some(unsafe { Nvlist::owned(self.nv, found) }.to_map()))
    }

    /// Writes everything out and releases a pool.
    ///
    /// libzpool evicts closed objects in background tasks, and they count as open until then;
    /// `spa_export` waits for these tasks only if the pool is writable (`spa_export_common`,
    /// module/zfs/spa.c). So this function waits for them.
    ///
    /// # Errors
    /// Those of `spa_export`: `EBUSY` if an object of the pool is open.
    pub(crate) fn export_pool(&self, name: &str) -> Result<(), Errno> {
        let c_name = c_string(name)?;
        self.conditions.forget(&c_name);
        let deadline = Instant::now() + CLOSING;
        loop {
            let pool = self.open_pool(name)?;
            // SAFETY: the pool is open.
            unsafe { (self.spa.spa_evicting_os_wait)(pool.spa) };
            drop(pool);
            // SAFETY: the name is valid; no configuration is requested.
            let result = unsafe { (self.spa.spa_export)(c_name.as_ptr(), ptr::null_mut(), 0, 0) };
            match check(result) {
                // A task may start another.
                Err(Errno::BUSY) if Instant::now() < deadline => thread::sleep(INTERVAL),
                result => return result,
            }
        }
    }

    /// A pool's configuration and statistics.
    ///
    /// # Errors
    /// Those of `spa_get_stats`.
    pub(crate) fn pool_stats(&self, name: &str) -> Result<NvMap, Errno> {
        let name = c_string(name)?;
        let mut config = ptr::null_mut();
        // SAFETY: the function writes the list's address; no alternate root is requested.
        let result = check(unsafe {
            (self.spa.spa_get_stats)(name.as_ptr(), &raw mut config, ptr::null_mut(), 0)
        });
        if config.is_null() {
            result?;
            return Ok(NvMap::new());
        }
        // SAFETY: no other code has it, even after an error.
        let config = unsafe { Nvlist::owned(self.nv, config) }.to_map();
        result.map(|()| config)
    }

    pub(super) fn open_pool(&self, name: &str) -> Result<OpenPool<'_>, Errno> {
        let name = c_string(name)?;
        // SAFETY: the name is valid.
        let spa = written(|spa| unsafe { (self.spa.spa_open)(name.as_ptr(), spa, TAG) })?;
        Ok(OpenPool { zfs: self, spa })
    }

    /// A pool's properties: each name with a list of `value` and `source`.
    ///
    /// # Errors
    /// Those of `spa_prop_get`.
    pub(crate) fn pool_properties(&self, name: &str) -> Result<NvMap, Errno> {
        let pool = self.open_pool(name)?;
        let get = self.spa.spa_prop_get;
        if self.library().release() >= Release::V2_3 {
            let list = Nvlist::new(self.nv);
            // SAFETY: pool and list are valid.
            check(unsafe { get(pool.spa, list.as_ptr().cast()) })?;
            Ok(list.to_map())
        } else {
            // SAFETY: the function writes the address of a list, which this owns then.
            let list = written::<nvlist_t>(|list| unsafe { get(pool.spa, list.cast()) })?;
            // SAFETY: no other code has it.
            Ok(unsafe { Nvlist::owned(self.nv, list) }.to_map())
        }
    }

    /// Sets properties of a pool.
    ///
    /// # Errors
    /// Those of `spa_prop_set`.
    pub(crate) fn set_pool_properties(&self, name: &str, properties: &NvMap) -> Result<(), Errno> {
        let pool = self.open_pool(name)?;
        let properties = Nvlist::of(self.nv, properties)?;
        // SAFETY: pool and list are valid.
        check(unsafe { (self.spa.spa_prop_set)(pool.spa, properties.as_ptr()) })
    }

    /// The maximum block size of a pool's volumes.
    ///
    /// # Errors
    /// The pool cannot be opened.
    pub(crate) fn max_block_bytes(&self, name: &str) -> Result<u64, Errno> {
        let pool = self.open_pool(name)?;
        // SAFETY: the pool is valid.
        let bytes = unsafe { (self.spa.spa_maxblocksize)(pool.spa) };
        Ok(u64::try_from(bytes).unwrap_or(0))
    }

    /// Starts a scrub, or resumes a paused one.
    ///
    /// # Errors
    /// Those of `spa_scan`.
    pub(crate) fn start_scrub(&self, name: &str) -> Result<(), Errno> {
        let pool = self.open_pool(name)?;
        // SAFETY: the pool is valid.
        match check(unsafe { (self.spa.spa_scan)(pool.spa, SCAN_SCRUB) }) {
            // Up to 2.1, this means that a paused scrub was resumed.
            Err(Errno::CANCELED) => Ok(()),
            result => result,
        }
    }

    /// Pauses a scrub.
    ///
    /// # Errors
    /// Those of `spa_scrub_pause_resume`.
    pub(crate) fn pause_scrub(&self, name: &str) -> Result<(), Errno> {
        let pool = self.open_pool(name)?;
        // SAFETY: the pool is valid.
        check(unsafe { (self.spa.spa_scrub_pause_resume)(pool.spa, SCRUB_PAUSE) })
    }

    /// Ends a scrub.
    ///
    /// # Errors
    /// Those of `spa_scan_stop`.
    pub(crate) fn stop_scrub(&self, name: &str) -> Result<(), Errno> {
        let pool = self.open_pool(name)?;
        // SAFETY: the pool is valid.
        check(unsafe { (self.spa.spa_scan_stop)(pool.spa) })
    }

    /// The features of this release.
    pub(crate) fn features(&self) -> Vec<Feature> {
        let Ok((table, size)) = self.library().variable("spa_feature_table") else {
            return Vec::new();
        };
        // SAFETY: the table has this many entries, and it and its strings are constant.
        let table = unsafe {
            slice::from_raw_parts(table.cast::<FeatureInfo>(), size / size_of::<FeatureInfo>())
        };
        // SAFETY: as above.
        let text = |text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        let known = |feature: &&FeatureInfo| !feature.name.is_null() && feature.supported != 0;
        table
            .iter()
            .filter(known)
            .map(|feature| Feature { name: text(feature.name), guid: text(feature.guid) })
            .collect()
    }

    /// Checks a pool's name.
    ///
    /// # Errors
    /// The violated rule.
    pub(crate) fn check_pool_name(&self, name: &str) -> Result<(), BadName> {
        self.check_name(self.spa.pool_namecheck, name)
    }

    /// Checks the name of a dataset or snapshot.
    ///
    /// # Errors
    /// The violated rule.
    pub(crate) fn check_entity_name(&self, name: &str) -> Result<(), BadName> {
        self.check_name(self.spa.entity_namecheck, name)
    }

    /// Whether a name has more components than datasets may be nested.
    pub(crate) fn is_nested_too_deep(&self, name: &str) -> bool {
        // SAFETY: the function only reads the name.
        c_string(name).is_ok_and(|name| unsafe { (self.spa.dataset_nestcheck)(name.as_ptr()) } != 0)
    }

    fn check_name(
        &self,
        check: unsafe extern "C" fn(*const c_char, *mut c_int, *mut c_char) -> c_int,
        name: &str,
    ) -> Result<(), BadName> {
        let (mut rule, mut character): (c_int, c_char) = (0, 0);
        let Ok(name) = c_string(name) else {
            return Err(BadName { rule: INVALID_CHARACTER, character: '\0' });
        };
        // SAFETY: the function reads the name, and writes rule and character.
        if unsafe { check(name.as_ptr(), &raw mut rule, &raw mut character) } == 0 {
            return Ok(());
        }
        Err(BadName { rule, character: char::from(character.cast_unsigned()) })
    }
}

/// NAME_ERR_INVALCHAR of zfs_namecheck.h.
const INVALID_CHARACTER: c_int = 3;
