//! Datasets: the functions of libzpool that create, list, change and destroy volumes, snapshots and clones.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use rustix::io::Errno;

use super::dmu::ObjectInfo;
use super::kernel::{TAG, Zfs, written};
use super::nvlist::{Nvlist, c_string, nvlist_t};
use super::{Library, LoadError, Release, check, symbols};
use crate::protocol::{NvMap, NvValue};

/// sys/dmu.h. Opaque.
#[repr(C)]
pub(crate) struct objset_t {
    _opaque: [u8; 0],
}

/// sys/dmu.h. Opaque.
#[repr(C)]
pub(crate) struct dmu_tx_t {
    _opaque: [u8; 0],
}

type CreateCallback = unsafe extern "C" fn(*mut objset_t, *mut c_void, *mut c_void, *mut dmu_tx_t);
type FindCallback = unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int;

symbols! {
    /// sys/dmu.h, sys/zap.h, sys/dsl_dataset.h, sys/dsl_dir.h, sys/dsl_destroy.h, sys/dsl_prop.h;
    /// sys/txg.h for the last function.
    ObjsetFunctions {
        dmu_objset_create: fn(*const c_char, c_int, u64, *mut c_void, CreateCallback, *mut c_void) -> c_int;
        dmu_objset_find: fn(*const c_char, FindCallback, *mut c_void, c_int) -> c_int;
        dmu_objset_hold: fn(*const c_char, *const c_void, *mut *mut objset_t) -> c_int;
        dmu_objset_rele: fn(*mut objset_t, *const c_void);
        dmu_objset_own: fn(*const c_char, c_int, c_int, c_int, *const c_void, *mut *mut objset_t) -> c_int;
        dmu_objset_disown: fn(*mut objset_t, c_int, *const c_void);
        dmu_objset_type: fn(*mut objset_t) -> c_int;
        dmu_objset_stats: fn(*mut objset_t, *mut nvlist_t);
        dmu_objset_pool: fn(*mut objset_t) -> *mut c_void;
        dmu_object_info: fn(*mut objset_t, u64, *mut ObjectInfo) -> c_int;
        dmu_object_claim: fn(*mut objset_t, u64, c_int, c_int, c_int, c_int, *mut dmu_tx_t) -> c_int;
        dmu_free_long_range: fn(*mut objset_t, u64, u64, u64) -> c_int;
        dmu_tx_create: fn(*mut objset_t) -> *mut dmu_tx_t;
        dmu_tx_hold_zap: fn(*mut dmu_tx_t, u64, c_int, *const c_char);
        dmu_tx_mark_netfree: fn(*mut dmu_tx_t);
        dmu_tx_assign: fn(*mut dmu_tx_t, u64) -> c_int;
        dmu_tx_abort: fn(*mut dmu_tx_t);
        dmu_tx_commit: fn(*mut dmu_tx_t);
        dmu_tx_get_txg: fn(*mut dmu_tx_t) -> u64;
        zap_create_claim: fn(*mut objset_t, u64, c_int, c_int, c_int, *mut dmu_tx_t) -> c_int;
        zap_lookup: fn(*mut objset_t, u64, *const c_char, u64, u64, *mut c_void) -> c_int;
        zap_update: fn(*mut objset_t, u64, *const c_char, c_int, u64, *const c_void, *mut dmu_tx_t) -> c_int;
        dsl_prop_get_all: fn(*mut objset_t, *mut *mut nvlist_t) -> c_int;
        dsl_props_set: fn(*const c_char, c_int, *mut nvlist_t) -> c_int;
        dsl_prop_inherit: fn(*const c_char, *const c_char, c_int) -> c_int;
        dsl_prop_get_integer: fn(*const c_char, *const c_char, *mut u64, *mut c_char) -> c_int;
        dsl_dir_set_quota: fn(*const c_char, c_int, u64) -> c_int;
        dsl_dir_set_reservation: fn(*const c_char, c_int, u64) -> c_int;
        dsl_dir_activate_fs_ss_limit: fn(*const c_char) -> c_int;
        dsl_dir_rename: fn(*const c_char, *const c_char) -> c_int;
        dsl_dataset_set_refquota: fn(*const c_char, c_int, u64) -> c_int;
        dsl_dataset_set_refreservation: fn(*const c_char, c_int, u64) -> c_int;
        dsl_dataset_set_compression: fn(*const c_char, c_int, u64) -> c_int;
        dsl_dataset_snapshot: fn(*mut nvlist_t, *mut nvlist_t, *mut nvlist_t) -> c_int;
        dsl_dataset_rename_snapshot: fn(*const c_char, *const c_char, *const c_char, c_int) -> c_int;
        dsl_dataset_rollback: fn(*const c_char, *const c_char, *mut c_void, *mut nvlist_t) -> c_int;
        dsl_dataset_promote: fn(*const c_char, *mut c_char) -> c_int;
        dsl_destroy_head: fn(*const c_char) -> c_int;
        dsl_destroy_snapshots_nvl: fn(*mut nvlist_t, c_int, *mut nvlist_t) -> c_int;
        txg_wait_synced: fn(*mut c_void, u64);
    }
}

type CloneFunction = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;

/// [`ObjsetFunctions`], and functions with different names in different releases.
#[derive(Clone, Copy)]
pub(super) struct DslFunctions {
    pub(super) functions: ObjsetFunctions,
    /// `dmu_objset_clone` up to 2.3, `dsl_dataset_clone` from 2.4 on.
    clone: CloneFunction,
}

impl DslFunctions {
    pub(super) fn load(library: &Library) -> Result<Self, LoadError> {
        let clone = match library.release() {
            Release::V2_1 | Release::V2_2 | Release::V2_3 => "dmu_objset_clone",
            Release::V2_4 => "dsl_dataset_clone",
        };
        Ok(Self {
            functions: ObjsetFunctions::load(library)?,
            // SAFETY: the declaration follows sys/dmu.h and sys/dsl_dataset.h of these releases.
            clone: unsafe { library.symbol::<CloneFunction>(clone) }?,
        })
    }
}

/// DMU_OST_ZFS and DMU_OST_ZVOL of sys/fs/zfs.h.
pub(super) const OST_ZFS: c_int = 2;
pub(super) const OST_ZVOL: c_int = 3;
/// ZPROP_SRC_LOCAL and ZPROP_SRC_INHERITED of sys/fs/zfs.h.
const SOURCE_LOCAL: c_int = 0x8;
const SOURCE_INHERITED: c_int = 0x10;
/// DS_FIND_SNAPSHOTS and DS_FIND_CHILDREN of sys/dmu.h.
const FIND_SNAPSHOTS: c_int = 1;
const FIND_CHILDREN: c_int = 2;
/// ZFS_MAX_DATASET_NAME_LEN of sys/fs/zfs.h.
const MAX_NAME_BYTES: usize = 256;

/// The type of a dataset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// A volume, or a snapshot of one.
    Volume {
        /// Its size.
        volsize_bytes: u64,
        /// The size of its blocks.
        volblocksize_bytes: u32,
    },
    /// A file system, or a snapshot of one.
    FileSystem,
    /// Any other type.
    Other,
}

/// A description of a dataset.
pub(crate) struct Description {
    /// The type.
    pub(crate) shape: Shape,
    /// Properties: each name with a list of `value` and maybe `source`.
    pub(crate) properties: NvMap,
}

unsafe extern "C" fn collect(name: *const c_char, into: *mut c_void) -> c_int {
    // SAFETY: `dataset_names` passes a vector, and waits; the name is a valid string.
    unsafe {
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        (*into.cast::<Vec<String>>()).push(name);
    }
    0
}

/// A held object set, for reading its properties.
struct HeldObjset<'a> {
    zfs: &'a Zfs,
    objset: *mut objset_t,
}

impl Drop for HeldObjset<'_> {
    fn drop(&mut self) {
        // SAFETY: it was held with this tag.
        unsafe { (self.zfs.dsl.functions.dmu_objset_rele)(self.objset, TAG) };
    }
}

impl Zfs {
    /// Creates a clone of a snapshot.
    ///
    /// # Errors
    /// Those of `dsl_dataset_clone`.
    pub(crate) fn clone_snapshot(&self, snapshot: &str, name: &str) -> Result<(), Errno> {
        let (snapshot, name) = (c_string(snapshot)?, c_string(name)?);
        // SAFETY: the names are valid.
        check(unsafe { (self.dsl.clone)(name.as_ptr(), snapshot.as_ptr()) })
    }

    /// The names of a dataset and of its descendants, including snapshots if `snapshots`.
    ///
    /// # Errors
    /// Those of `dmu_objset_find`.
    pub(crate) fn dataset_names(&self, root: &str, snapshots: bool) -> Result<Vec<String>, Errno> {
        let root = c_string(root)?;
        let flags = FIND_CHILDREN | if snapshots { FIND_SNAPSHOTS } else { 0 };
        let mut names: Vec<String> = Vec::new();
        // SAFETY: `collect` is called with the address of `names`, and only before the function returns.
        check(unsafe {
            (self.dsl.functions.dmu_objset_find)(
                root.as_ptr(),
                collect,
                (&raw mut names).cast(),
                flags,
            )
        })?;
        Ok(names)
    }

    fn hold(&self, name: &str) -> Result<HeldObjset<'_>, Errno> {
        let name = c_string(name)?;
        // SAFETY: the name is valid.
        let objset = written(|objset| unsafe {
            (self.dsl.functions.dmu_objset_hold)(name.as_ptr(), TAG, objset)
        })?;
        Ok(HeldObjset { zfs: self, objset })
    }

    /// The type and the properties of a dataset or snapshot.
    ///
    /// # Errors
    /// It does not exist, or cannot be read.
    pub(crate) fn describe(&self, name: &str) -> Result<Description, Errno> {
        let functions = &self.dsl.functions;
        let held = self.hold(name)?;
        // SAFETY: the object set is held; the list is not shared with other code.
        let properties = unsafe {
            let list = written(|list| (functions.dsl_prop_get_all)(held.objset, list))?;
            let list = Nvlist::owned(self.nv, list);
            (functions.dmu_objset_stats)(held.objset, list.as_ptr());
            list.to_map()
        };
        // SAFETY: the object set is held.
        let shape = match unsafe { (functions.dmu_objset_type)(held.objset) } {
            OST_ZFS => Shape::FileSystem,
            // SAFETY: the object set is held.
            OST_ZVOL => unsafe { self.volume_shape(held.objset) }?,
            _ => Shape::Other,
        };
        Ok(Description { shape, properties })
    }

    /// Sets numeric and text properties of a dataset, all in one transaction group; not those that
    /// [`Self::set_special`] sets.
    ///
    /// # Errors
    /// Those of `dsl_props_set`.
    pub(crate) fn set_dataset_properties(
        &self,
        name: &str,
        properties: &NvMap,
    ) -> Result<(), Errno> {
        let name = c_string(name)?;
        let list = Nvlist::of(self.nv, properties)?;
        // SAFETY: name and list are valid.
        check(unsafe {
            (self.dsl.functions.dsl_props_set)(name.as_ptr(), SOURCE_LOCAL, list.as_ptr())
        })
    }

    /// Does what a property needs in addition to, or instead of, [`Self::set_dataset_properties`];
    /// returns `true` if the property is set now.
    ///
    /// # Errors
    /// Those of the property's function: `ENOSPC` for a reservation that does not fit in the pool.
    pub(crate) fn set_special(
        &self,
        name: &str,
        property: &str,
        value: u64,
    ) -> Result<bool, Errno> {
        let name = c_string(name)?;
        let name = name.as_ptr();
        let functions = &self.dsl.functions;
        // SAFETY: the name is valid.
        unsafe {
            let (result, set) = match property {
                "quota" => ((functions.dsl_dir_set_quota)(name, SOURCE_LOCAL, value), true),
                "refquota" => {
                    ((functions.dsl_dataset_set_refquota)(name, SOURCE_LOCAL, value), true)
                }
                "reservation" => {
                    ((functions.dsl_dir_set_reservation)(name, SOURCE_LOCAL, value), true)
                }
                "refreservation" => {
                    ((functions.dsl_dataset_set_refreservation)(name, SOURCE_LOCAL, value), true)
                }
                "compression" => {
                    ((functions.dsl_dataset_set_compression)(name, SOURCE_LOCAL, value), false)
                }
                "filesystem_limit" | "snapshot_limit" if value != u64::MAX => {
                    ((functions.dsl_dir_activate_fs_ss_limit)(name), false)
                }
                _ => (0, false),
            };
            // The compression's function has nothing to do for most algorithms, and returns -1 then.
            if result == -1 { Ok(set) } else { check(result).map(|()| set) }
        }
    }

    /// Makes a property inherited.
    ///
    /// # Errors
    /// Those of `dsl_prop_inherit`.
    pub(crate) fn inherit_property(&self, name: &str, property: &str) -> Result<(), Errno> {
        let (name, property) = (c_string(name)?, c_string(property)?);
        // SAFETY: the names are valid.
        check(unsafe {
            (self.dsl.functions.dsl_prop_inherit)(
                name.as_ptr(),
                property.as_ptr(),
                SOURCE_INHERITED,
            )
        })
    }

    /// The effective value of a numeric property.
    ///
    /// # Errors
    /// Those of `dsl_prop_get_integer`.
    pub(crate) fn number_property(&self, name: &str, property: &str) -> Result<u64, Errno> {
        let (name, property) = (c_string(name)?, c_string(property)?);
        let mut value = 0;
        // SAFETY: the names are valid; the function writes a number; the source may be null.
        check(unsafe {
            (self.dsl.functions.dsl_prop_get_integer)(
                name.as_ptr(),
                property.as_ptr(),
                &raw mut value,
                ptr::null_mut(),
            )
        })?;
        Ok(value)
    }

    /// Takes snapshots, all in one transaction group.
    ///
    /// # Errors
    /// An errno, and the failed names, each with its errno.
    pub(crate) fn snapshot(&self, names: &[String]) -> Result<(), (Errno, NvMap)> {
        self.with_names(names, |functions, list, errors| {
            // SAFETY: the lists are valid; no properties.
            unsafe { (functions.dsl_dataset_snapshot)(list, ptr::null_mut(), errors) }
        })
    }

    /// Destroys snapshots, all in one transaction group.
    ///
    /// # Errors
    /// An errno, and the failed names, each with its errno.
    pub(crate) fn destroy_snapshots(&self, names: &[String]) -> Result<(), (Errno, NvMap)> {
        self.with_names(names, |functions, list, errors| {
            // SAFETY: the lists are valid; destruction is immediate, not deferred until the last clone is gone.
            unsafe { (functions.dsl_destroy_snapshots_nvl)(list, 0, errors) }
        })
    }

    fn with_names(
        &self,
        names: &[String],
        call: impl FnOnce(&ObjsetFunctions, *mut nvlist_t, *mut nvlist_t) -> c_int,
    ) -> Result<(), (Errno, NvMap)> {
        let map = names.iter().map(|name| (name.clone(), NvValue::Boolean)).collect();
        let list = Nvlist::of(self.nv, &map).map_err(|errno| (errno, NvMap::new()))?;
        let errors = Nvlist::new(self.nv);
        check(call(&self.dsl.functions, list.as_ptr(), errors.as_ptr()))
            .map_err(|errno| (errno, errors.to_map()))
    }

    /// Destroys a dataset without snapshots or descendants.
    ///
    /// # Errors
    /// Those of `dsl_destroy_head`.
    pub(crate) fn destroy_dataset(&self, name: &str) -> Result<(), Errno> {
        let name = c_string(name)?;
        // SAFETY: the name is valid.
        check(unsafe { (self.dsl.functions.dsl_destroy_head)(name.as_ptr()) })
    }

    /// Renames a dataset, with its descendants.
    ///
    /// # Errors
    /// Those of `dsl_dir_rename`.
    pub(crate) fn rename_dataset(&self, from: &str, to: &str) -> Result<(), Errno> {
        let (from, to) = (c_string(from)?, c_string(to)?);
        // SAFETY: the names are valid.
        check(unsafe { (self.dsl.functions.dsl_dir_rename)(from.as_ptr(), to.as_ptr()) })
    }

    /// Renames a snapshot of a dataset; `from` and `to` do not include the dataset's name.
    ///
    /// # Errors
    /// Those of `dsl_dataset_rename_snapshot`.
    pub(crate) fn rename_snapshot(&self, dataset: &str, from: &str, to: &str) -> Result<(), Errno> {
        let (dataset, from, to) = (c_string(dataset)?, c_string(from)?, c_string(to)?);
        // SAFETY: the names are valid.
        check(unsafe {
            (self.dsl.functions.dsl_dataset_rename_snapshot)(
                dataset.as_ptr(),
                from.as_ptr(),
                to.as_ptr(),
                0,
            )
        })
    }

    /// Rolls a dataset that is not open back to its last snapshot, which must be `snapshot`.
    ///
    /// # Errors
    /// Those of `dsl_dataset_rollback`: `EEXIST` if there is a newer snapshot, `EBUSY` if the dataset is open.
    pub(crate) fn rollback(&self, dataset: &str, snapshot: &str) -> Result<(), Errno> {
        let (dataset, snapshot) = (c_string(dataset)?, c_string(snapshot)?);
        let result = Nvlist::new(self.nv);
        // SAFETY: names and list are valid.
        check(unsafe {
            (self.dsl.functions.dsl_dataset_rollback)(
                dataset.as_ptr(),
                snapshot.as_ptr(),
                ptr::null_mut(),
                result.as_ptr(),
            )
        })
    }

    /// Promotes a clone: it takes over the data that it shares with its origin.
    ///
    /// # Errors
    /// Those of `dsl_dataset_promote`; for `EEXIST`, the name of the conflicting snapshot.
    pub(crate) fn promote(&self, name: &str) -> Result<(), (Errno, String)> {
        let name = c_string(name).map_err(|errno| (errno, String::new()))?;
        let mut conflict: [c_char; MAX_NAME_BYTES] = [0; MAX_NAME_BYTES];
        // SAFETY: the name is valid; the function writes a name of at most this length.
        let result = unsafe {
            (self.dsl.functions.dsl_dataset_promote)(name.as_ptr(), conflict.as_mut_ptr())
        };
        check(result).map_err(|errno| {
            // SAFETY: the array ends with a zero, at the latest the last byte, which is never written.
            let conflict = unsafe { CStr::from_ptr(conflict.as_ptr()) };
            (errno, conflict.to_string_lossy().into_owned())
        })
    }
}
