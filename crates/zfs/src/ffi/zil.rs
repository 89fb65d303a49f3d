//! The intent log of a volume (sys/zil.h, sys/dmu.h).
//!
//! Records have their on-disk layout, so it is the same in all releases; the in-memory structure
//! before them, and the one for dmu_sync(), are the same from 2.1 to 2.4. The tests in `layout`
//! compare them with the installed headers.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::dmu::{Api, DATA_OBJECT, DmuBuf, Objset, RawDnode, RawObjset, RawTx, Sync, check_io};
use super::symbols;
use super::transaction::Transaction;
use crate::zvol::freed::FreedRanges;
use crate::zvol::range::{RangeGuard, RangeLocks};
use crate::zvol::turns::Turns;

/// `zilog_t`
type RawLog = *mut c_void;
/// `itx_t`
type RawItx = *mut c_void;
/// `zil_get_data_t`
type GetData = unsafe extern "C" fn(
    *mut c_void,
    u64,
    *mut WriteRecord,
    *mut u8,
    *mut c_void,
    *mut c_void,
) -> c_int;
/// `TX_WRITE`
pub(super) const TX_WRITE: u64 = 9;
/// `TX_TRUNCATE`
pub(super) const TX_TRUNCATE: u64 = 10;

symbols! {
    /// Functions of the intent log.
    Zil {
        /// The last argument (counters, may be null) exists since 2.2.
        zil_open: fn(RawObjset, GetData, *mut c_void) -> RawLog;
        zil_close: fn(RawLog);
        zil_itx_create: fn(u64, usize) -> RawItx;
        /// The last argument (the reason) exists since 2.4.
        zil_itx_destroy: fn(RawItx, c_int);
        zil_itx_assign: fn(RawLog, RawItx, RawTx);
        /// Has a result since 2.4.
        zil_commit: fn(RawLog, u64) -> c_int;
        zil_max_copied_data: fn(RawLog) -> u64;
        dmu_sync: fn(*mut c_void, u64, unsafe extern "C" fn(*mut Zgd, c_int), *mut Zgd) -> c_int;
    }
}

/// `itx_t`: a record in memory, up to its `lr_t`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Itx {
    /// Two list links.
    pub(crate) node: [*mut c_void; 2],
    /// Passed to the callback for data.
    pub(crate) private: *mut c_void,
    /// `itx_wr_state_t`
    pub(crate) write_state: u32,
    /// Set by zil_itx_create(), and left set: a single list keeps the order of overlapping writes.
    pub(crate) sync: u8,
    /// Called when the record is persistent.
    pub(crate) callback: *mut c_void,
    /// For the callback.
    pub(crate) callback_data: *mut c_void,
    /// The allocated size.
    pub(crate) size_bytes: usize,
    /// Object number.
    pub(crate) object: u64,
    /// Generation.
    pub(crate) generation: u64,
}

/// `lr_t`: the start of every record.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RecordHeader {
    /// `TX_WRITE`, ...
    pub(crate) kind: u64,
    /// The length, including the data after the record.
    pub(crate) len_bytes: u64,
    /// Its transaction group.
    pub(crate) group: u64,
    /// Its sequence number.
    pub(crate) sequence: u64,
}

/// `lr_write_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct WriteRecord {
    /// Common part.
    pub(crate) header: RecordHeader,
    /// The object.
    pub(crate) object: u64,
    /// Offset in the object.
    pub(crate) offset_bytes: u64,
    /// Length.
    pub(crate) len_bytes: u64,
    /// No longer used: 0.
    pub(crate) block_offset: u64,
    /// `blkptr_t`: location of the data, for an indirect record.
    pub(crate) block_pointer: [u64; 16],
}

/// `lr_truncate_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct TruncateRecord {
    /// Common part.
    pub(crate) header: RecordHeader,
    /// The object.
    pub(crate) object: u64,
    /// Offset in the object.
    pub(crate) offset_bytes: u64,
    /// Length.
    pub(crate) len_bytes: u64,
}

/// `zgd_t`: the state of a dmu_sync().
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Zgd {
    /// The log block that waits for it.
    pub(crate) log_block: *mut c_void,
    /// Destination for the block pointer.
    pub(crate) block_pointer: *mut [u64; 16],
    /// The buffer.
    pub(crate) buffer: *mut c_void,
    /// The range lock: ours is in [`LogBlockWrite`].
    pub(crate) range: *mut c_void,
    /// Not used.
    pub(crate) private: *mut c_void,
}

/// How the data of a write gets into the log: `itx_wr_state_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteState {
    /// dmu_sync() writes the block itself, and the record points to it.
    Indirect = 0,
    /// The record has the data from its creation.
    Copied = 1,
    /// The record gets the data when the log is committed.
    NeedCopy = 2,
}

/// The log of a volume that is open for writing.
pub(crate) struct Log {
    raw: NonNull<c_void>,
    /// Its address is passed by libzpool to [`get_data`].
    source: Box<Source>,
    freed: FreedRanges,
    /// There was a [`WriteState::Indirect`] record: since then, commits take turns.
    has_pointed: AtomicBool,
    turns: Turns,
}

/// The source of the data for [`get_data`].
struct Source {
    api: Arc<Api>,
    objset: RawObjset,
    dnode: RawDnode,
    block_bytes: u64,
    locks: Arc<RangeLocks>,
}

// SAFETY: libzpool locks its structures; they are not bound to a thread.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl std::marker::Sync for Log {}

impl Log {
    /// Opens the log. It must be dropped before the objset.
    pub(crate) fn open(objset: &Objset, locks: &Arc<RangeLocks>) -> Result<Self, Errno> {
        let api = Arc::clone(objset.api());
        // SAFETY: the objset is owned; it has no log open, because an owner opens only one.
        let raw = unsafe { (api.zil.zil_open)(objset.raw(), get_data, null_mut()) };
        let source = Box::new(Source {
            objset: objset.raw(),
            dnode: objset.dnode(),
            block_bytes: u64::from(objset.block_bytes()),
            locks: Arc::clone(locks),
            api,
        });
        Ok(Self {
            raw: NonNull::new(raw).ok_or(Errno::IO)?,
            source,
            freed: FreedRanges::default(),
            has_pointed: AtomicBool::new(false),
            turns: Turns::default(),
        })
    }

    fn zil(&self) -> &Zil {
        &self.source.api.zil
    }

    /// Waits until all logged records are on stable storage.
    ///
    /// # Errors
    /// EIO: they are not (from 2.4 on; earlier releases wait for the pool to come back).
    pub(crate) fn commit(&self) -> Result<(), Errno> {
        if self.has_pointed.load(Ordering::Acquire) {
            self.turns.commit(|| self.commit_now())
        } else {
            self.commit_now()
        }
    }

    fn commit_now(&self) -> Result<(), Errno> {
        let reach = self.freed.reach().map(|reach| (reach, self.sync()));
        // SAFETY: the log is open.
        let code = unsafe { (self.zil().zil_commit)(self.raw.as_ptr(), DATA_OBJECT) };
        match self.source.api.release {
            super::Release::V2_1 | super::Release::V2_2 | super::Release::V2_3 => {}
            super::Release::V2_4 => check_io(code)?,
        }
        if let Some((reach, before)) = reach {
            match (before, self.sync()) {
                // The commit did nothing.
                (Sync::Disabled, _) | (_, Sync::Disabled) => {}
                (Sync::Standard | Sync::Always, Sync::Standard | Sync::Always) => {
                    self.freed.committed(reach);
                }
            }
        }
        Ok(())
    }

    fn sync(&self) -> Sync {
        // SAFETY: the objset is owned.
        unsafe { self.source.api.sync_of(self.source.objset) }
    }

    /// Whether a part of a range was freed since the last commit: then a write there must not have
    /// a [`WriteState::Indirect`] record.
    pub(crate) fn is_freed(&self, tx: &Transaction<'_>, offset_bytes: u64, len_bytes: u64) -> bool {
        self.freed.overlaps(offset_bytes, len_bytes, tx.group())
    }

    /// The maximum data of a [`WriteState::Copied`] record.
    pub(crate) fn max_copied_bytes(&self) -> u64 {
        // SAFETY: the log is open.
        unsafe { (self.zil().zil_max_copied_data)(self.raw.as_ptr()) }
    }

    /// Adds a record of a write.
    pub(crate) fn write(
        &self,
        tx: &Transaction<'_>,
        offset_bytes: u64,
        len_bytes: u64,
        state: WriteState,
    ) {
        if state == WriteState::Indirect && !self.has_pointed.load(Ordering::Relaxed) {
            self.has_pointed.store(true, Ordering::Release);
        }
        let (itx, state) = self.make_write(offset_bytes, len_bytes, state);
        let record = record_of::<WriteRecord>(itx);
        // SAFETY: the record was made for a write, and libzpool does not have it yet.
        unsafe {
            (*record).object = DATA_OBJECT;
            (*record).offset_bytes = offset_bytes;
            (*record).len_bytes = len_bytes;
            (*record).block_offset = 0;
            (*record).block_pointer = [0; 16];
            let head = itx.cast::<Itx>();
            (*head).write_state = state as u32;
            (*head).private = std::ptr::from_ref(&*self.source).cast_mut().cast();
            (self.zil().zil_itx_assign)(self.raw.as_ptr(), itx, tx.raw());
        }
    }

    /// Makes a record for a write, with its data if the state is Copied. The data was just written,
    /// so the read rarely fails; if it does, the record has no data, and asks for it later.
    fn make_write(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        state: WriteState,
    ) -> (RawItx, WriteState) {
        let create = |data_bytes: u64| {
            // SAFETY: any size is valid.
            unsafe {
                (self.zil().zil_itx_create)(
                    TX_WRITE,
                    size_of::<WriteRecord>() + data_bytes as usize,
                )
            }
        };
        if state != WriteState::Copied {
            return (create(0), state);
        }
        let itx = create(len_bytes);
        let Source { api, dnode, .. } = &*self.source;
        // SAFETY: the record has room for the data; the dnode is held. A record that is not passed
        // on is destroyed.
        unsafe {
            let data = record_of::<WriteRecord>(itx).add(1).cast::<c_void>();
            if (api.dmu.dmu_read_by_dnode)(*dnode, offset_bytes, len_bytes, data, api.no_prefetch())
                == 0
            {
                return (itx, state);
            }
            (api.zil.zil_itx_destroy)(itx, 0);
        }
        (create(0), WriteState::NeedCopy)
    }

    /// Counts data that will be in the log, so that libzpool throttles writers in time.
    pub(crate) fn count(&self, tx: &Transaction<'_>, len_bytes: u64) {
        let dmu = &self.source.api.dmu;
        // SAFETY: the objset is owned, and so its pool is held.
        unsafe {
            (dmu.dsl_pool_wrlog_count)(
                (dmu.dmu_objset_pool)(self.source.objset),
                len_bytes.cast_signed(),
                tx.group(),
            );
        }
    }

    /// Adds a record of a freed range; the caller has locked the range.
    pub(crate) fn truncate(&self, tx: &Transaction<'_>, offset_bytes: u64, len_bytes: u64) {
        // SAFETY: a record of that size is made; it is filled before libzpool gets it.
        unsafe {
            let itx = (self.zil().zil_itx_create)(TX_TRUNCATE, size_of::<TruncateRecord>());
            let record = record_of::<TruncateRecord>(itx);
            (*record).object = DATA_OBJECT;
            (*record).offset_bytes = offset_bytes;
            (*record).len_bytes = len_bytes;
            (self.zil().zil_itx_assign)(self.raw.as_ptr(), itx, tx.raw());
        }
        // Without an indirect record, no record is left out. An indirect record before this one in
        // the log is known here: the flag was set before the record was added.
        if self.has_pointed.load(Ordering::Acquire) {
            self.freed.add(offset_bytes, len_bytes, tx.group());
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // SAFETY: it is open, and nothing writes to it. It is committed, which may call
        // `get_data`; the source is dropped after this.
        unsafe { (self.zil().zil_close)(self.raw.as_ptr()) };
    }
}

/// The record after an `itx_t`.
fn record_of<T>(itx: RawItx) -> *mut T {
    itx.cast::<Itx>().wrapping_add(1).cast()
}

/// Held while a block is written for the log. `zgd_t` comes first: its address is the address of the whole.
#[repr(C)]
struct LogBlockWrite {
    zgd: Zgd,
    api: Arc<Api>,
    range: RangeGuard,
}

/// `zvol_get_data()`: copies the data of a write into its log record, or has its block written and
/// its location stored.
///
/// # Safety
/// Only for libzpool: `source` is the log's source, `record` a copy of the record, `data` room for
/// its data or null, `log_block` and `zio` the arguments for dmu_sync().
unsafe extern "C" fn get_data(
    source: *mut c_void,
    _generation: u64,
    record: *mut WriteRecord,
    data: *mut u8,
    log_block: *mut c_void,
    zio: *mut c_void,
) -> c_int {
    // SAFETY: the log is open, so its source exists.
    let source = unsafe { &*source.cast_const().cast::<Source>() };
    // SAFETY: libzpool's record, which no other code uses now.
    let record = unsafe { &mut *record };
    let (offset, len) = (record.offset_bytes, record.len_bytes);
    if !data.is_null() {
        let _range = source.locks.read(offset, len);
        // SAFETY: libzpool made room for the data; the dnode is held as long as the log is open.
        return unsafe {
            let flags = source.api.no_prefetch();
            (source.api.dmu.dmu_read_by_dnode)(source.dnode, offset, len, data.cast(), flags)
        };
    }
    // The whole block is locked: it must not change while it is written and its checksum computed.
    let block = offset & !(source.block_bytes - 1);
    let granted = Box::into_raw(Box::new(LogBlockWrite {
        zgd: Zgd {
            log_block,
            block_pointer: &raw mut record.block_pointer,
            buffer: null_mut(),
            range: null_mut(),
            private: null_mut(),
        },
        api: Arc::clone(&source.api),
        range: source.locks.read(block, source.block_bytes),
    }));
    let zgd = granted.cast::<Zgd>();
    let mut buffer: *mut DmuBuf = null_mut();
    let mut was_freed = false;
    // SAFETY: the objset is owned as long as the log is open; the zgd lives until `granted_done`,
    // which is called exactly once: by dmu_sync() if it has started, else here.
    unsafe {
        let (dmu, tag) = (&source.api.dmu, zgd.cast_const().cast());
        let (objset, to) = (source.objset, &raw mut buffer);
        let mut code = match source.api.release {
            // In this release, dmu_sync() does not read the data; later releases do.
            super::Release::V2_1 => {
                (dmu.dmu_buf_hold)(objset, DATA_OBJECT, block, tag, to, source.api.no_prefetch())
            }
            super::Release::V2_2 | super::Release::V2_3 | super::Release::V2_4 => {
                (dmu.dmu_buf_hold_noread)(objset, DATA_OBJECT, block, tag, to)
            }
        };
        if code == 0 {
            (*zgd).buffer = buffer.cast();
            code = (source.api.zil.dmu_sync)(zio, record.header.group, granted_done, zgd);
            if code == 0 {
                return 0;
            }
            was_freed = code == libc::ENOENT;
        }
        granted_done(zgd, code);
        if was_freed {
            // The block was freed since, and the record of that may not be in this commit: without
            // this record, a replay would bring back older data. A pointer to a hole makes the
            // record's range zeroes.
            record.block_pointer = [0; 16];
            return 0;
        }
        code
    }
}

/// Completion of dmu_sync().
///
/// # Safety
/// `zgd` was made by [`get_data`]; this frees it.
unsafe extern "C" fn granted_done(zgd: *mut Zgd, _error: c_int) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let granted = Box::from_raw(zgd.cast::<LogBlockWrite>());
        if !granted.zgd.buffer.is_null() {
            (granted.api.dmu.dmu_buf_rele)(granted.zgd.buffer.cast(), zgd.cast_const().cast());
        }
    }
}
