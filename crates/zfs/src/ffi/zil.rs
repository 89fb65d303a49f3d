//! The intent log of a volume (sys/zil.h, sys/dmu.h).
//!
//! Records have the layout that they have on disk, so it is that of all releases; the structure in memory in front of
//! them, and the one that dmu_sync() takes, are the same from 2.1 to 2.4. The tests of `layout` compare them with the
//! installed headers.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::io::Errno;

use super::dmu::{
    Api, Boolean, DATA_OBJECT, DmuBuf, Objset, RawDnode, RawObjset, RawTx, Transaction, check_io,
};
use super::symbols;
use crate::zvol::range::{RangeGuard, RangeLocks};

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
/// `zil_replay_func_t`
type ReplayOne = unsafe extern "C" fn(*mut c_void, *mut c_void, Boolean) -> c_int;

/// `TX_WRITE`
const TX_WRITE: u64 = 9;
/// `TX_TRUNCATE`
const TX_TRUNCATE: u64 = 10;
/// `SPA_MAXBLOCKSIZE`
const MAX_BLOCK_BYTES: u64 = 16 << 20;
/// Entries of a replay vector: more than any release has types (25 in 2.4).
const REPLAY_TYPES: usize = 64;

symbols! {
    /// Functions of the intent log.
    Zil {
        /// The last argument (counters, may be null) since 2.2.
        zil_open: fn(RawObjset, GetData, *mut c_void) -> RawLog;
        zil_close: fn(RawLog);
        /// No result before 2.2.
        zil_replay: fn(RawObjset, *mut c_void, *const ReplayOne);
        zil_replaying: fn(RawLog, RawTx) -> Boolean;
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
unsafe impl Sync for Log {}

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
        Ok(Self { raw: NonNull::new(raw).ok_or(Errno::IO)?, source })
    }

    fn zil(&self) -> &Zil {
        &self.source.api.zil
    }

    /// Waits until everything that was logged is on stable storage.
    ///
    /// # Errors
    /// EIO: it is not (from 2.4 on; before, this waits for the pool to come back).
    pub(crate) fn commit(&self) -> Result<(), Errno> {
        // SAFETY: the log is open.
        let code = unsafe { (self.zil().zil_commit)(self.raw.as_ptr(), DATA_OBJECT) };
        match self.source.api.release {
            super::Release::V2_1 | super::Release::V2_2 | super::Release::V2_3 => Ok(()),
            super::Release::V2_4 => check_io(code),
        }
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

    /// Adds a record of a range that was freed.
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
        }
        granted_done(zgd, code);
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

/// What a log says that was done, and is to be done again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Replayed<'a> {
    /// A write. Of a whole block if the log points to it.
    Write { offset_bytes: u64, data: &'a [u8] },
    /// A range that was freed.
    Truncate { offset_bytes: u64, len_bytes: u64 },
}

/// Who does again what the log says.
pub(crate) trait Replay {
    /// Does it, and calls [`mark_replayed`] in the same transaction.
    ///
    /// # Errors
    /// It cannot be done: the rest of the log is not looked at.
    fn replay(&mut self, record: Replayed<'_>) -> Result<(), Errno>;

    /// Learns of a record that nobody can make sense of.
    fn refuse(&mut self, errno: Errno);
}

/// Notes in the log's header, in this transaction, that the record at hand is done.
pub(crate) fn mark_replayed(objset: &Objset, tx: &Transaction<'_>) {
    let api = objset.api();
    // SAFETY: the objset is owned, and the transaction is assigned.
    let is_replaying =
        unsafe { (api.zil.zil_replaying)((api.dmu.dmu_objset_zil)(objset.raw()), tx.raw()) };
    debug_assert_ne!(is_replaying, 0, "records are only replayed while the log is");
}

/// Does again what the log says, if it says anything, and empties it. The log is not open.
pub(crate) fn replay_log(objset: &Objset, to: &mut dyn Replay) {
    let mut vector: [ReplayOne; REPLAY_TYPES] = [replay_unknown; REPLAY_TYPES];
    vector[TX_WRITE as usize] = replay_write;
    vector[TX_TRUNCATE as usize] = replay_truncate;
    let mut to = to;
    // SAFETY: the objset is owned, the pool is writable; the vector is longer than any release looks at. The argument is used
    // by the functions below, during this call.
    unsafe { (objset.api().zil.zil_replay)(objset.raw(), (&raw mut to).cast(), vector.as_ptr()) };
}

/// # Safety
/// As libzpool calls it, from [`replay_log`]: `to` is its argument.
unsafe fn hand_over(to: *mut c_void, record: Replayed<'_>) -> c_int {
    // SAFETY: the caller's.
    let to = unsafe { &mut *to.cast::<&mut dyn Replay>() };
    match to.replay(record) {
        Ok(()) => 0,
        Err(errno) => errno.raw_os_error(),
    }
}

/// # Safety
/// As [`hand_over`].
unsafe fn refuse(to: *mut c_void, errno: Errno) -> c_int {
    // SAFETY: the caller's.
    unsafe { &mut *to.cast::<&mut dyn Replay>() }.refuse(errno);
    errno.raw_os_error()
}

/// # Safety
/// As libzpool calls it.
unsafe extern "C" fn replay_unknown(
    to: *mut c_void,
    _record: *mut c_void,
    _swap: Boolean,
) -> c_int {
    // SAFETY: as libzpool calls this.
    unsafe { refuse(to, Errno::NOTSUP) }
}

/// # Safety
/// As libzpool calls it: `record` has its header's length, or is followed by the data of the block that it points to.
unsafe extern "C" fn replay_write(to: *mut c_void, record: *mut c_void, swap: Boolean) -> c_int {
    const FIXED_BYTES: u64 = size_of::<WriteRecord>() as u64;
    // SAFETY: libzpool's buffer holds the largest record and the largest block.
    let words = unsafe { &mut *record.cast::<[u64; size_of::<WriteRecord>() / 8]>() };
    native(words, swap);
    // SAFETY: of that size, and any bytes make one.
    let write = unsafe { *record.cast::<WriteRecord>() };
    let (mut offset_bytes, mut len_bytes) = (write.offset_bytes, write.len_bytes);
    let there_bytes = if write.header.len_bytes == FIXED_BYTES {
        // The log points to the block: it is written as a whole.
        let block_bytes = logical_size_of(&write.block_pointer);
        if len_bytes < block_bytes {
            offset_bytes -= offset_bytes % block_bytes;
            len_bytes = block_bytes;
        }
        // For a hole libzpool gives as many zeroes as the record wants.
        if is_hole(&write.block_pointer) { MAX_BLOCK_BYTES } else { block_bytes }
    } else {
        write.header.len_bytes.saturating_sub(FIXED_BYTES)
    };
    if len_bytes > there_bytes {
        // SAFETY: as libzpool calls this.
        return unsafe { refuse(to, Errno::INVAL) };
    }
    // SAFETY: the data follows the record, and is at least that long.
    unsafe {
        let data = std::slice::from_raw_parts(
            record.cast::<WriteRecord>().add(1).cast::<u8>(),
            len_bytes as usize,
        );
        hand_over(to, Replayed::Write { offset_bytes, data })
    }
}

/// # Safety
/// As libzpool calls it.
unsafe extern "C" fn replay_truncate(to: *mut c_void, record: *mut c_void, swap: Boolean) -> c_int {
    // SAFETY: libzpool's buffer holds the largest record.
    let words = unsafe { &mut *record.cast::<[u64; size_of::<TruncateRecord>() / 8]>() };
    native(words, swap);
    // SAFETY: of that size, and any bytes make one.
    let truncate = unsafe { *record.cast::<TruncateRecord>() };
    if truncate.header.len_bytes < size_of::<TruncateRecord>() as u64 {
        // SAFETY: as libzpool calls this.
        return unsafe { refuse(to, Errno::INVAL) };
    }
    let record =
        Replayed::Truncate { offset_bytes: truncate.offset_bytes, len_bytes: truncate.len_bytes };
    // SAFETY: as libzpool calls this.
    unsafe { hand_over(to, record) }
}

/// Records are in the byte order of who wrote them.
fn native(words: &mut [u64], swap: Boolean) {
    if swap != 0 {
        for word in words {
            *word = word.swap_bytes();
        }
    }
}

/// The word of a block pointer with its properties (sys/spa.h), and the property that says that the data is in the pointer.
const PROPERTIES: usize = 6;
const EMBEDDED: u64 = 1 << 39;

/// `BP_IS_HOLE()`: no data, and no address.
fn is_hole(block_pointer: &[u64; 16]) -> bool {
    block_pointer[PROPERTIES] & EMBEDDED == 0 && block_pointer[..2] == [0, 0]
}

/// `BP_GET_LSIZE()`: of an embedded block pointer in bytes, else in sectors, less one.
fn logical_size_of(block_pointer: &[u64; 16]) -> u64 {
    let properties = block_pointer[PROPERTIES];
    if properties & EMBEDDED != 0 {
        (properties & 0x1ff_ffff) + 1
    } else {
        ((properties & 0xffff) + 1) << 9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Seen(Vec<(u64, Vec<u8>)>, Vec<(u64, u64)>, Option<Errno>);

    impl Replay for Seen {
        fn replay(&mut self, record: Replayed<'_>) -> Result<(), Errno> {
            match record {
                Replayed::Write { offset_bytes, data } => {
                    self.0.push((offset_bytes, data.to_vec()))
                }
                Replayed::Truncate { offset_bytes, len_bytes } => {
                    self.1.push((offset_bytes, len_bytes))
                }
            }
            Ok(())
        }

        fn refuse(&mut self, errno: Errno) {
            self.2 = Some(errno);
        }
    }

    /// A record with room for data, as the words of its writer.
    fn write_record(reclen: u64, offset: u64, len: u64, properties: u64) -> Vec<u64> {
        let mut words = vec![0x5a5a_5a5a_5a5a_5a5a; 24 + 1024];
        words[..24].fill(0);
        (words[0], words[1], words[4], words[5], words[6]) =
            (TX_WRITE, reclen, DATA_OBJECT, offset, len);
        words[8] = 1;
        words[8 + PROPERTIES] = properties;
        words
    }

    fn replayed(mut words: Vec<u64>, swap: Boolean) -> (c_int, Seen) {
        let mut seen = Seen::default();
        let mut to: &mut dyn Replay = &mut seen;
        // SAFETY: a record with enough room behind it.
        let code = unsafe { replay_write((&raw mut to).cast(), words.as_mut_ptr().cast(), swap) };
        (code, seen)
    }

    #[test]
    fn a_record_with_data_is_replayed_as_it_is_in_either_byte_order() {
        let words = write_record(192 + 512, 4096, 512, 0);
        let swapped: Vec<u64> = words
            .iter()
            .enumerate()
            .map(|(at, word)| if at < 24 { word.swap_bytes() } else { *word })
            .collect();
        for (words, swap) in [(words, 0), (swapped, 1)] {
            let (code, seen) = replayed(words, swap);
            assert_eq!((code, seen.0), (0, vec![(4096, vec![0x5a; 512])]));
        }
    }

    #[test]
    fn a_record_that_points_to_a_block_is_replayed_as_the_whole_block() {
        let (code, seen) = replayed(write_record(192, 8192 + 512, 512, 7), 0);
        assert_eq!((code, seen.0), (0, vec![(8192, vec![0x5a; 4096])]));
    }

    #[test]
    fn a_record_that_claims_more_than_it_has_is_refused() {
        for words in [
            write_record(192 + 512, 0, 513, 0),
            write_record(192, 0, 4097, 7),
            write_record(64, 0, 512, 0),
            write_record(192 + 8, u64::MAX, u64::MAX, 0),
        ] {
            let (code, seen) = replayed(words, 0);
            assert_eq!((code, seen.0), (libc::EINVAL, Vec::new()));
        }
    }

    #[test]
    fn a_truncation_is_replayed_in_either_byte_order() {
        let words = [TX_TRUNCATE, 56, 0, 0, DATA_OBJECT, 65536, 32768];
        for (words, swap) in [(words, 0), (words.map(u64::swap_bytes), 1)] {
            let mut words = words;
            let mut seen = Seen::default();
            let mut to: &mut dyn Replay = &mut seen;
            // SAFETY: a whole record.
            let code =
                unsafe { replay_truncate((&raw mut to).cast(), words.as_mut_ptr().cast(), swap) };
            assert_eq!((code, seen.1), (0, vec![(65536, 32768)]));
        }
    }
}
