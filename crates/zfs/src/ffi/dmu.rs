//! The DMU: objsets of volumes (sys/dmu.h, sys/dnode.h, sys/dsl_prop.h, sys/zap.h, sys/spa.h).
//!
//! The types enforce libzpool's rules: an objset is owned as long as it is used.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::io::Errno;

use super::replay::Walk;
use super::zil::Zil;
use super::{Library, LoadError, Release, check, symbols};

/// `objset_t`
pub(crate) type RawObjset = *mut c_void;
/// `dnode_t`
pub(crate) type RawDnode = *mut c_void;
/// `dmu_tx_t`
pub(crate) type RawTx = *mut c_void;
/// Identifies a hold to libzpool: any address.
pub(crate) type Tag = *const c_void;
/// `boolean_t`
pub(crate) type Boolean = c_int;

/// `DMU_OST_ZVOL`
const OBJSET_OF_ZVOL: c_int = 3;
/// The object with a volume's data: `ZVOL_OBJ`.
pub(crate) const DATA_OBJECT: u64 = 1;
/// The object with a volume's properties: `ZVOL_ZAP_OBJ`.
const PROPERTY_OBJECT: u64 = 2;
/// `ZIO_PRIORITY_SYNC_READ`
const PRIORITY_SYNC_READ: c_int = 0;
/// `ECKSUM` of libspl, which is EBADE.
const CHECKSUM_ERROR: c_int = libc::EBADE;

/// `dmu_buf_t`; the structure has further, private fields.
#[repr(C)]
pub(crate) struct DmuBuf {
    object: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) size_bytes: u64,
    pub(crate) data: *mut u8,
}

/// `dmu_object_info_t`
#[derive(Default)]
#[repr(C)]
pub(crate) struct ObjectInfo {
    pub(crate) data_block_bytes: u32,
    metadata_block_bytes: u32,
    kind: c_int,
    bonus_kind: c_int,
    bonus_bytes: u64,
    indirection: u8,
    checksum: u8,
    compress: u8,
    block_pointers: u8,
    padding: [u8; 4],
    dnode_bytes: u64,
    physical_blocks_512: u64,
    /// The end of the last block ever written.
    pub(crate) max_offset_bytes: u64,
    fill_count: u64,
}

symbols! {
    /// Functions of the DMU.
    Dmu {
        dmu_objset_own: fn(*const c_char, c_int, Boolean, Boolean, Tag, *mut RawObjset) -> c_int;
        dmu_objset_disown: fn(RawObjset, Boolean, Tag);
        dmu_objset_evict_dbufs: fn(RawObjset);
        dmu_objset_is_snapshot: fn(RawObjset) -> c_int;
        dmu_objset_fsid_guid: fn(RawObjset) -> u64;
        dmu_objset_pool: fn(RawObjset) -> *mut c_void;
        dmu_objset_spa: fn(RawObjset) -> *mut c_void;
        dmu_objset_syncprop: fn(RawObjset) -> c_int;
        dmu_objset_logbias: fn(RawObjset) -> c_int;
        dmu_objset_zil: fn(RawObjset) -> *mut c_void;
        dmu_object_info: fn(RawObjset, u64, *mut ObjectInfo) -> c_int;
        dsl_prop_get_integer: fn(*const c_char, *const c_char, *mut u64, *mut c_char) -> c_int;
        spa_has_slogs: fn(*mut c_void) -> Boolean;
        spa_writeable: fn(*mut c_void) -> Boolean;
        txg_wait_synced: fn(*mut c_void, u64);
        zap_lookup: fn(RawObjset, u64, *const c_char, u64, u64, *mut c_void) -> c_int;
        dnode_hold: fn(RawObjset, u64, Tag, *mut RawDnode) -> c_int;
        dnode_rele: fn(RawDnode, Tag);
        dmu_prefetch: fn(RawObjset, u64, i64, u64, u64, c_int);
        dmu_tx_create: fn(RawObjset) -> RawTx;
        dmu_tx_hold_write_by_dnode: fn(RawTx, RawDnode, u64, c_int);
        dmu_tx_hold_free_by_dnode: fn(RawTx, RawDnode, u64, u64);
        dmu_tx_mark_netfree: fn(RawTx);
        dmu_tx_assign: fn(RawTx, u64) -> c_int;
        dmu_tx_get_txg: fn(RawTx) -> u64;
        dmu_tx_commit: fn(RawTx);
        dmu_tx_abort: fn(RawTx);
        dmu_free_range: fn(RawObjset, u64, u64, u64, RawTx) -> c_int;
        dmu_buf_hold_array_by_dnode: fn(RawDnode, u64, u64, Boolean, Tag, *mut c_int, *mut *mut *mut DmuBuf, u32) -> c_int;
        dmu_buf_hold: fn(RawObjset, u64, u64, Tag, *mut *mut DmuBuf, u32) -> c_int;
        dmu_buf_hold_noread: fn(RawObjset, u64, u64, Tag, *mut *mut DmuBuf) -> c_int;
        dmu_buf_rele: fn(*mut DmuBuf, Tag);
        dmu_buf_rele_array: fn(*mut *mut DmuBuf, c_int, Tag);
        /// The third argument (whether the fill may fail) exists since 2.2.3.
        dmu_buf_will_fill: fn(*mut DmuBuf, RawTx, Boolean);
        /// The third argument (whether it failed) exists since 2.2.3. The result concerns cloned or
        /// directly written blocks.
        dmu_buf_fill_done: fn(*mut DmuBuf, RawTx, Boolean);
        dmu_buf_will_dirty: fn(*mut DmuBuf, RawTx);
        dmu_read_by_dnode: fn(RawDnode, u64, u64, *mut c_void, u32) -> c_int;
        /// The last argument exists since 2.4.
        dmu_write_by_dnode: fn(RawDnode, u64, u64, *const c_void, RawTx, u32);
        dsl_pool_wrlog_count: fn(*mut c_void, i64, u64);
    }
}

/// The functions of libzpool that a volume uses.
pub(crate) struct Api {
    pub(crate) dmu: Dmu,
    pub(crate) zil: Zil,
    pub(crate) walk: Walk,
    /// `zil_replay_disable`: discard logs instead of replaying them. A variable of libzpool, which
    /// does not read it itself.
    replay_disable: AtomicPtr<c_int>,
    pub(crate) release: Release,
}

impl Api {
    /// Looks up all functions.
    ///
    /// # Errors
    /// A symbol is missing: the library does not match its release.
    pub(crate) fn load(library: &Library) -> Result<Self, LoadError> {
        // SAFETY: an integer of module/zfs/zil.c.
        let replay_disable = unsafe { library.symbol::<*mut c_int>("zil_replay_disable")? };
        Ok(Self {
            dmu: Dmu::load(library)?,
            zil: Zil::load(library)?,
            walk: Walk::load(library)?,
            replay_disable: AtomicPtr::new(replay_disable),
            release: library.release(),
        })
    }

    /// The current value of `zil_replay_disable`: discard logs instead of replaying them.
    pub(crate) fn is_replay_disabled(&self) -> bool {
        let address = self.replay_disable.load(Ordering::Relaxed);
        // SAFETY: an integer of the library, which is loaded as long as its functions.
        unsafe { address.read_volatile() != 0 }
    }

    /// The current value of `sync`.
    ///
    /// # Safety
    /// The objset is owned.
    pub(super) unsafe fn sync_of(&self, objset: RawObjset) -> Sync {
        // SAFETY: guaranteed by the caller.
        Sync::from(unsafe { (self.dmu.dmu_objset_syncprop)(objset) })
    }

    /// `DMU_READ_NO_PREFETCH`
    pub(crate) fn no_prefetch(&self) -> u32 {
        match self.release {
            Release::V2_1 | Release::V2_2 | Release::V2_3 => 1,
            Release::V2_4 => 1 << 3,
        }
    }

    /// Whether a failed overwrite can leave a block unchanged. Early 2.2 cannot, and is not
    /// distinguishable from later 2.2.
    pub(super) fn can_undo_fill(&self) -> bool {
        match self.release {
            Release::V2_1 | Release::V2_2 => false,
            Release::V2_3 | Release::V2_4 => true,
        }
    }
}

/// Translates a result of libzpool for block I/O: a wrong checksum becomes an I/O error, an
/// exceeded quota becomes ENOSPC.
pub(crate) fn check_io(code: c_int) -> Result<(), Errno> {
    check(code).map_err(|errno| match errno.raw_os_error() {
        CHECKSUM_ERROR => Errno::IO,
        libc::EDQUOT => Errno::NOSPC,
        _ => errno,
    })
}

/// `sync` of a dataset: `zfs_sync_type_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sync {
    Standard,
    Always,
    Disabled,
}

impl From<c_int> for Sync {
    fn from(kind: c_int) -> Self {
        match kind {
            1 => Self::Always,
            2 => Self::Disabled,
            _ => Self::Standard,
        }
    }
}

/// The owned objset of a volume or of a snapshot of one, with its data object held.
pub(crate) struct Objset {
    api: Arc<Api>,
    raw: NonNull<c_void>,
    dnode: RawDnode,
    /// Its address identifies the owner.
    tag: Box<u8>,
    block_bytes: u32,
}

// SAFETY: libzpool locks its structures; they are not bound to a thread.
unsafe impl Send for Objset {}
// SAFETY: as above.
unsafe impl std::marker::Sync for Objset {}

impl Objset {
    /// Owns the objset of this name.
    ///
    /// # Errors
    /// ENOENT: it does not exist. EBUSY: it is owned. EINVAL: it is not a volume. EACCES: its key
    /// is not loaded. EROFS: a snapshot cannot be written.
    pub(crate) fn own(api: &Arc<Api>, name: &CStr, read_only: bool) -> Result<Self, Errno> {
        let tag = Box::new(0);
        let mut raw = null_mut();
        // SAFETY: a string and a place for the result; the tag lives as long as the objset is owned.
        check_io(unsafe {
            let (read_only, decrypt) = (Boolean::from(read_only), 1);
            (api.dmu.dmu_objset_own)(
                name.as_ptr(),
                OBJSET_OF_ZVOL,
                read_only,
                decrypt,
                tag_of(&tag),
                &raw mut raw,
            )
        })?;
        let mut objset = Self {
            api: Arc::clone(api),
            raw: NonNull::new(raw).ok_or(Errno::IO)?,
            dnode: null_mut(),
            tag,
            block_bytes: 0,
        };
        let info = objset.info()?;
        objset.block_bytes = info.data_block_bytes;
        if !objset.block_bytes.is_power_of_two() {
            return Err(Errno::IO);
        }
        let mut dnode = null_mut();
        // SAFETY: the objset is owned; the dnode is released before it.
        check_io(unsafe {
            (api.dmu.dnode_hold)(objset.raw(), DATA_OBJECT, objset.tag(), &raw mut dnode)
        })?;
        objset.dnode = dnode;
        Ok(objset)
    }

    pub(crate) fn api(&self) -> &Arc<Api> {
        &self.api
    }

    pub(crate) fn raw(&self) -> RawObjset {
        self.raw.as_ptr()
    }

    pub(crate) fn dnode(&self) -> RawDnode {
        self.dnode
    }

    pub(crate) fn tag(&self) -> Tag {
        tag_of(&self.tag)
    }

    /// `volblocksize`
    pub(crate) fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// What distinguishes the dataset from all others of its pool, whatever its name is: 56 random bits from its creation.
    pub(crate) fn fsid_guid(&self) -> u64 {
        // SAFETY: the objset is owned; the function reads its dataset.
        unsafe { (self.api.dmu.dmu_objset_fsid_guid)(self.raw()) }
    }

    /// `volsize`, as stored in the objset.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn volsize_bytes(&self) -> Result<u64, Errno> {
        let mut size = 0_u64;
        // SAFETY: `size` has room for the requested integer of 8 bytes.
        check_io(unsafe {
            let to = (&raw mut size).cast();
            (self.api.dmu.zap_lookup)(self.raw(), PROPERTY_OBJECT, c"size".as_ptr(), 8, 1, to)
        })?;
        Ok(size)
    }

    fn info(&self) -> Result<ObjectInfo, Errno> {
        let mut info = ObjectInfo::default();
        // SAFETY: the objset is owned; the function writes `info`.
        check_io(unsafe {
            (self.api.dmu.dmu_object_info)(self.raw(), DATA_OBJECT, &raw mut info)
        })?;
        Ok(info)
    }

    /// The end of the written data. Nothing beyond may be freed: libzpool looks up the indirect
    /// blocks of a freed range, and aborts the process if they are missing.
    ///
    /// # Errors
    /// It cannot be determined.
    pub(crate) fn written_end_bytes(&self) -> Result<u64, Errno> {
        Ok(self.info()?.max_offset_bytes)
    }

    pub(crate) fn is_snapshot(&self) -> bool {
        // SAFETY: the objset is owned.
        unsafe { (self.api.dmu.dmu_objset_is_snapshot)(self.raw()) != 0 }
    }

    pub(crate) fn is_pool_writable(&self) -> bool {
        // SAFETY: the objset is owned, and so its pool is held.
        unsafe { (self.api.dmu.spa_writeable)((self.api.dmu.dmu_objset_spa)(self.raw())) != 0 }
    }

    /// `readonly` of the dataset.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn is_set_read_only(&self, name: &CStr) -> Result<bool, Errno> {
        let mut value = 0;
        // SAFETY: strings, and a place for an integer; the source may be null.
        check_io(unsafe {
            (self.api.dmu.dsl_prop_get_integer)(
                name.as_ptr(),
                c"readonly".as_ptr(),
                &raw mut value,
                null_mut(),
            )
        })?;
        Ok(value != 0)
    }

    pub(crate) fn has_slog(&self) -> bool {
        // SAFETY: as in `is_pool_writable`.
        unsafe { (self.api.dmu.spa_has_slogs)((self.api.dmu.dmu_objset_spa)(self.raw())) != 0 }
    }

    /// The current value of `sync`.
    pub(crate) fn sync(&self) -> Sync {
        // SAFETY: the objset is owned.
        unsafe { self.api.sync_of(self.raw()) }
    }

    /// Whether `logbias=throughput` is set now.
    pub(crate) fn is_for_throughput(&self) -> bool {
        // SAFETY: the objset is owned.
        unsafe { (self.api.dmu.dmu_objset_logbias)(self.raw()) == 1 }
    }

    /// Starts reading a range into the cache.
    pub(crate) fn prefetch(&self, offset_bytes: u64, len_bytes: u64) {
        // SAFETY: the objset is owned.
        unsafe {
            (self.api.dmu.dmu_prefetch)(
                self.raw(),
                DATA_OBJECT,
                0,
                offset_bytes,
                len_bytes,
                PRIORITY_SYNC_READ,
            );
        }
    }

    /// Waits until all changes are on stable storage.
    pub(crate) fn wait_synced(&self) {
        // SAFETY: the objset is owned, and so its pool is held.
        unsafe { (self.api.dmu.txg_wait_synced)((self.api.dmu.dmu_objset_pool)(self.raw()), 0) };
    }
}

fn tag_of(tag: &u8) -> Tag {
    std::ptr::from_ref(tag).cast()
}

impl Drop for Objset {
    fn drop(&mut self) {
        // SAFETY: nothing borrows the objset: no buffers, no transaction, no log.
        unsafe {
            if !self.dnode.is_null() {
                (self.api.dmu.dnode_rele)(self.dnode, self.tag());
            }
            (self.api.dmu.dmu_objset_evict_dbufs)(self.raw());
            (self.api.dmu.dmu_objset_disown)(self.raw(), 1, self.tag());
        }
    }
}
