//! The objects of a volume: created with it, read, and changed when it is resized.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use rustix::io::Errno;

use super::check;
use super::dmu::{DATA_OBJECT, ObjectInfo, Objset};
use super::dsl::{OST_ZFS, OST_ZVOL, ObjsetFunctions, Shape, dmu_tx_t, objset_t};
use super::kernel::{TAG, Zfs, written};
use super::nvlist::c_string;

/// The object of a volume with its size (ZVOL_ZAP_OBJ of sys/zvol.h).
const SIZE_OBJECT: u64 = 2;
/// The name of the size in it.
const SIZE: &CStr = c"size";
/// DMU_OT_ZVOL of sys/dmu.h.
const OT_ZVOL: c_int = 23;
/// DMU_OT_ZVOL_PROP of sys/dmu.h.
const OT_ZVOL_PROP: c_int = 24;
/// DMU_OT_NONE of sys/dmu.h.
const OT_NONE: c_int = 0;
/// DMU_OBJECT_END of sys/dmu.h.
const OBJECT_END: u64 = u64::MAX;
/// TXG_WAIT of sys/dmu.h, DMU_TX_WAIT since 2.4: wait for a transaction group with room.
const TX_WAIT: u64 = 1;

/// The kind of a new dataset.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NewDataset {
    /// A volume.
    Volume {
        /// Its size.
        volsize_bytes: u64,
        /// The size of its blocks.
        volblocksize_bytes: u32,
    },
    /// A parent for volumes. It lacks the objects of a file system, which only the kernel creates,
    /// so it cannot be mounted.
    Container,
}

struct Creation {
    functions: ObjsetFunctions,
    dataset: NewDataset,
}

/// Fills a new dataset, in the transaction that creates it. Nothing can fail here: the objects are
/// free, and the transaction has reserved what it needs.
unsafe extern "C" fn fill(
    objset: *mut objset_t,
    creation: *mut c_void,
    _credentials: *mut c_void,
    tx: *mut dmu_tx_t,
) {
    // SAFETY: `create_dataset` passes a `Creation`, and waits for this call.
    let Creation { functions, dataset } = unsafe { &*creation.cast::<Creation>() };
    let NewDataset::Volume { volsize_bytes, volblocksize_bytes } = *dataset else { return };
    // SAFETY: object set and transaction are valid for this call, and the size is 8 bytes.
    let results = unsafe {
        [
            (functions.dmu_object_claim)(
                objset,
                DATA_OBJECT,
                OT_ZVOL,
                volblocksize_bytes.cast_signed(),
                OT_NONE,
                0,
                tx,
            ),
            (functions.zap_create_claim)(objset, SIZE_OBJECT, OT_ZVOL_PROP, OT_NONE, 0, tx),
            (functions.zap_update)(
                objset,
                SIZE_OBJECT,
                SIZE.as_ptr(),
                8,
                1,
                (&raw const volsize_bytes).cast(),
                tx,
            ),
        ]
    };
    assert_eq!(results, [0; 3], "a new volume's objects");
}

impl Zfs {
    /// Creates a dataset. Its parent must exist.
    ///
    /// # Errors
    /// Those of `dmu_objset_create`.
    pub(crate) fn create_dataset(&self, name: &str, dataset: NewDataset) -> Result<(), Errno> {
        let name = c_string(name)?;
        let functions = self.dsl.functions;
        let mut creation = Creation { functions, dataset };
        let kind = match dataset {
            NewDataset::Volume { .. } => OST_ZVOL,
            NewDataset::Container => OST_ZFS,
        };
        // SAFETY: `fill` is called with the address of `creation`, and only before the function returns.
        check(unsafe {
            (functions.dmu_objset_create)(
                name.as_ptr(),
                kind,
                0,
                ptr::null_mut(),
                fill,
                (&raw mut creation).cast(),
            )
        })
    }

    /// # Safety
    /// The object set is held, and a volume's.
    pub(super) unsafe fn volume_shape(&self, objset: *mut objset_t) -> Result<Shape, Errno> {
        let functions = &self.dsl.functions;
        let mut volsize_bytes = 0_u64;
        // SAFETY: guaranteed by the caller; the function writes one number of 8 bytes.
        check(unsafe {
            (functions.zap_lookup)(
                objset,
                SIZE_OBJECT,
                SIZE.as_ptr(),
                8,
                1,
                (&raw mut volsize_bytes).cast(),
            )
        })?;
        let mut info = ObjectInfo::default();
        // SAFETY: guaranteed by the caller; the function writes a description.
        check(unsafe { (functions.dmu_object_info)(objset, DATA_OBJECT, &raw mut info) })?;
        Ok(Shape::Volume { volsize_bytes, volblocksize_bytes: info.data_block_bytes })
    }

    /// Changes the size of a volume that is not open, and frees the blocks beyond.
    ///
    /// # Errors
    /// `EBUSY` if it is open; those of the transaction.
    pub(crate) fn resize_closed_volume(&self, name: &str, volsize_bytes: u64) -> Result<(), Errno> {
        let name = c_string(name)?;
        let functions = &self.dsl.functions;
        // SAFETY: the name is valid; opened writable, with decryption if the volume is encrypted.
        let objset = written(|objset| unsafe {
            (functions.dmu_objset_own)(name.as_ptr(), OST_ZVOL, 0, 1, TAG, objset)
        })?;
        // SAFETY: this owns the object set until it is disowned.
        unsafe {
            let result = self.resize_objset(objset, volsize_bytes);
            (functions.dmu_objset_disown)(objset, 1, TAG);
            result
        }
    }

    /// Changes the size of a volume that is open here, like [`Self::resize_closed_volume`]. There
    /// must be no I/O in flight.
    ///
    /// # Errors
    /// Those of the transaction.
    pub(crate) fn resize_owned_volume(
        &self,
        objset: &Objset,
        volsize_bytes: u64,
    ) -> Result<(), Errno> {
        // SAFETY: the object set is owned as long as the `Objset` exists.
        unsafe { self.resize_objset(objset.raw().cast(), volsize_bytes) }
    }

    /// Changes the size of a volume, and frees the blocks beyond. The size is on stable storage
    /// when this returns.
    ///
    /// # Safety
    /// The object set is a volume's, and owned by the caller; no I/O in flight goes beyond the new size.
    unsafe fn resize_objset(&self, objset: *mut objset_t, volsize_bytes: u64) -> Result<(), Errno> {
        let functions = &self.dsl.functions;
        // SAFETY: guaranteed by the caller; the transaction is committed or aborted exactly once.
        unsafe {
            let tx = (functions.dmu_tx_create)(objset);
            (functions.dmu_tx_hold_zap)(tx, SIZE_OBJECT, 1, ptr::null());
            // Resizing also makes room: so it may use space reserved for frees.
            (functions.dmu_tx_mark_netfree)(tx);
            if let Err(errno) = check((functions.dmu_tx_assign)(tx, TX_WAIT)) {
                (functions.dmu_tx_abort)(tx);
                return Err(errno);
            }
            let txg = (functions.dmu_tx_get_txg)(tx);
            let result = (functions.zap_update)(
                objset,
                SIZE_OBJECT,
                SIZE.as_ptr(),
                8,
                1,
                (&raw const volsize_bytes).cast(),
                tx,
            );
            (functions.dmu_tx_commit)(tx);
            (functions.txg_wait_synced)((functions.dmu_objset_pool)(objset), txg);
            check(result)?;
            // The volume has its new size now, even if freeing fails.
            let freed =
                (functions.dmu_free_long_range)(objset, DATA_OBJECT, volsize_bytes, OBJECT_END);
            if let Err(errno) = check(freed) {
                tracing::error!(%errno, volsize_bytes, "cannot free the data beyond the new end of a volume");
            }
            Ok(())
        }
    }
}
