//! The intent log of a volume (sys/zil.h, sys/dmu.h).
//!
//! Records have the layout that they have on disk, so it is that of all releases; the structure in memory in front of
//! them, and the one that dmu_sync() takes, are the same from 2.1 to 2.4. The tests of `layout` compare them with the
//! installed headers.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::dmu::{Api, DATA_OBJECT, DmuBuf, Objset, RawDnode, RawObjset, RawTx, Sync, check_io};
use super::symbols;
use super::transaction::Transaction;
use crate::zvol::freed::Freed;
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
        /// The last argument (counters, may be null) since 2.2.
        zil_open: fn(RawObjset, GetData, *mut c_void) -> RawLog;
        zil_close: fn(RawLog);
        zil_itx_create: fn(u64, usize) -> RawItx;
        /// The last argument (why) since 2.4.
        zil_itx_destroy: fn(RawItx, c_int);
        zil_itx_assign: fn(RawLog, RawItx, RawTx);
        /// A result since 2.4.
        zil_commit: fn(RawLog, u64) -> c_int;
        zil_max_copied_data: fn(RawLog) -> u64;
        dmu_sync: fn(*mut c_void, u64, unsafe extern "C" fn(*mut Zgd, c_int), *mut Zgd) -> c_int;
    }
}

/// `itx_t`: a record in memory, up to its `lr_t`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Itx {
    /// Two links of a list.
    pub(crate) node: [*mut c_void; 2],
    /// What the callback for data gets.
    pub(crate) private: *mut c_void,
    /// `itx_wr_state_t`
    pub(crate) write_state: u32,
    /// Made true by zil_itx_create(), and left so: one list keeps the order of overlapping writes.
    pub(crate) sync: u8,
    /// Called when it is persistent.
    pub(crate) callback: *mut c_void,
    /// For the callback.
    pub(crate) callback_data: *mut c_void,
    /// What was allocated.
    pub(crate) size_bytes: usize,
    /// Object number.
    pub(crate) object: u64,
    /// Generation.
    pub(crate) generation: u64,
}

/// `lr_t`: what every record begins with.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RecordHeader {
    /// `TX_WRITE`, ...
    pub(crate) kind: u64,
    /// With what follows.
    pub(crate) len_bytes: u64,
    /// The transaction group that it is in.
    pub(crate) group: u64,
    /// Its number.
    pub(crate) sequence: u64,
}

/// `lr_write_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct WriteRecord {
    /// Common part.
    pub(crate) header: RecordHeader,
    /// Which object.
    pub(crate) object: u64,
    /// Where in it.
    pub(crate) offset_bytes: u64,
    /// How much.
    pub(crate) len_bytes: u64,
    /// Not used any more: 0.
    pub(crate) block_offset: u64,
    /// `blkptr_t`: where the data is, of an indirect record.
    pub(crate) block_pointer: [u64; 16],
}

/// `lr_truncate_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct TruncateRecord {
    /// Common part.
    pub(crate) header: RecordHeader,
    /// Which object.
    pub(crate) object: u64,
    /// Where in it.
    pub(crate) offset_bytes: u64,
    /// How much.
    pub(crate) len_bytes: u64,
}

/// `zgd_t`: what dmu_sync() is about.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Zgd {
    /// The log block that waits for it.
    pub(crate) log_block: *mut c_void,
    /// Where the block pointer is put.
    pub(crate) block_pointer: *mut [u64; 16],
    /// The buffer.
    pub(crate) buffer: *mut c_void,
    /// The range lock: ours is in [`Granted`].
    pub(crate) range: *mut c_void,
    /// Not used.
    pub(crate) private: *mut c_void,
}

/// How the data of a write gets into the log: `itx_wr_state_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteState {
    /// The block itself is written, and the record points to it.
    Indirect = 0,
    /// The record has it from the beginning.
    Copied = 1,
    /// The record gets it when the log is committed, if it ever is.
    NeedCopy = 2,
}

/// The log of a volume that is open for writing.
pub(crate) struct Log {
    raw: NonNull<c_void>,
    /// Its address is what libzpool gives back to [`get_data`].
    source: Box<Source>,
    freed: Freed,
    /// Some record was [`WriteState::Indirect`]: commits take turns from then on.
    has_pointed: AtomicBool,
    turns: Turns,
}

/// Where [`get_data`] gets a record's data from.
struct Source {
    api: Arc<Api>,
    objset: RawObjset,
    dnode: RawDnode,
    block_bytes: u64,
    locks: Arc<RangeLocks>,
}

// SAFETY: libzpool locks its own structures; they belong to no thread.
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
            freed: Freed::default(),
            has_pointed: AtomicBool::new(false),
            turns: Turns::default(),
        })
    }

    fn zil(&self) -> &Zil {
        &self.source.api.zil
    }

    /// Waits until everything that was logged is on stable storage.
    ///
    /// # Errors
    /// EIO: it is not (from 2.4 on; before, this waits for the pool to come back).
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
                // It did nothing.
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

    /// Whether something of a range was freed since the last commit: no [`WriteState::Indirect`] record may be of a write there.
    pub(crate) fn is_freed(&self, tx: &Transaction<'_>, offset_bytes: u64, len_bytes: u64) -> bool {
        self.freed.overlaps(offset_bytes, len_bytes, tx.group())
    }

    /// The most data that a [`WriteState::Copied`] record has.
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
        // SAFETY: the record was made for a write, and is not given away yet.
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

    /// Makes a record for a write, with its data if it is to have it. It was written a moment ago, so that it cannot be read
    /// hardly happens: the record has no data then, and asks for it later.
    fn make_write(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        state: WriteState,
    ) -> (RawItx, WriteState) {
        let create = |data_bytes: u64| {
            // SAFETY: any size is good.
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
        // SAFETY: the record has room for the data; the dnode is held. A record that is not given away is destroyed.
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

    /// Counts data that the log will have, so that writers are slowed down in time.
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

    /// Adds a record of a range that was freed, with that range locked.
    pub(crate) fn truncate(&self, tx: &Transaction<'_>, offset_bytes: u64, len_bytes: u64) {
        // SAFETY: a record of that size is made; it is filled before it is given away.
        unsafe {
            let itx = (self.zil().zil_itx_create)(TX_TRUNCATE, size_of::<TruncateRecord>());
            let record = record_of::<TruncateRecord>(itx);
            (*record).object = DATA_OBJECT;
            (*record).offset_bytes = offset_bytes;
            (*record).len_bytes = len_bytes;
            (self.zil().zil_itx_assign)(self.raw.as_ptr(), itx, tx.raw());
        }
        // Without a record that points to a block nothing is left out. One that is before this one in the log is known of: it was
        // marked before it was added.
        if self.has_pointed.load(Ordering::Acquire) {
            self.freed.add(offset_bytes, len_bytes, tx.group());
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // SAFETY: it is open, and nobody writes to it any more. It is committed, which may call `get_data`; the source is
        // dropped after this.
        unsafe { (self.zil().zil_close)(self.raw.as_ptr()) };
    }
}

/// The record behind an `itx_t`.
fn record_of<T>(itx: RawItx) -> *mut T {
    itx.cast::<Itx>().wrapping_add(1).cast()
}

/// What is held while a block is written for the log. `zgd_t` comes first: its address is that of the whole.
#[repr(C)]
struct Granted {
    zgd: Zgd,
    api: Arc<Api>,
    range: RangeGuard,
}

/// `zvol_get_data()`: puts the data of a write into its log record, or has its block written and its place noted.
///
/// # Safety
/// As libzpool calls it: `source` is what the record was made with, `record` a copy of the record, `data` room for its data or
/// null, `log_block` and `zio` what dmu_sync() wants.
unsafe extern "C" fn get_data(
    source: *mut c_void,
    _generation: u64,
    record: *mut WriteRecord,
    data: *mut u8,
    log_block: *mut c_void,
    zio: *mut c_void,
) -> c_int {
    // SAFETY: the log is open, so its source is there.
    let source = unsafe { &*source.cast_const().cast::<Source>() };
    // SAFETY: libzpool's record, which nobody else uses now.
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
    // The whole block is locked: nobody may change it while it is written and its checksum computed.
    let block = offset & !(source.block_bytes - 1);
    let granted = Box::into_raw(Box::new(Granted {
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
    // SAFETY: the objset is owned as long as the log is open; the zgd lives until `granted_done`, which is called once: by
    // dmu_sync() if it began, else here.
    unsafe {
        let (dmu, tag) = (&source.api.dmu, zgd.cast_const().cast());
        let (objset, to) = (source.objset, &raw mut buffer);
        let mut code = match source.api.release {
            // Its dmu_sync() takes the data as it finds it; later ones read it.
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
            // The block was freed since, and the record of that may not be in this commit: to say nothing here would bring back
            // what was there before. A pointer to nothing makes zeroes of the record's range.
            record.block_pointer = [0; 16];
            return 0;
        }
        code
    }
}

/// The block was written, or not.
///
/// # Safety
/// `zgd` was made by [`get_data`]; this is its end.
unsafe extern "C" fn granted_done(zgd: *mut Zgd, _error: c_int) {
    // SAFETY: the caller's.
    unsafe {
        let granted = Box::from_raw(zgd.cast::<Granted>());
        if !granted.zgd.buffer.is_null() {
            (granted.api.dmu.dmu_buf_rele)(granted.zgd.buffer.cast(), zgd.cast_const().cast());
        }
    }
}
