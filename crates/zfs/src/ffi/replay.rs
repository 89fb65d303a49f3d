//! Replays intent logs (sys/zil.h, sys/zil_impl.h, sys/zio.h, sys/abd.h).
//!
//! `zil_replay()` would replay a log, too, but then empties it: even if a block of the log, or one
//! that a record points to, could not be read, or a record could not be applied. It reports such a
//! failure only as a line in the kernel's log. So this module walks the chain with `zil_parse()`,
//! and empties the log only when all its records are applied. Records applied before a failure are
//! applied again the next time; from the same state and in the same order, the result is the same.
//!
//! libzpool *claims* a log when the pool is imported: it walks the chain to its end (a block that
//! was never written, so that its checksum is wrong), and stores the sequence number of the last
//! record in the header. After that, a chain that ends before that record is damaged.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use rustix::io::Errno;
use thiserror::Error;

use super::dmu::{Boolean, DATA_OBJECT, Objset, RawObjset};
use super::symbols;
use super::zil::{RecordHeader, TX_TRUNCATE, TX_WRITE, TruncateRecord, WriteRecord};

/// `zilog_t`
type RawLog = *mut c_void;
/// `blkptr_t`
type BlockPointer = [u64; 16];
/// `zil_parse_blk_func_t`
type BlockFunction = unsafe extern "C" fn(RawLog, *const BlockPointer, *mut c_void, u64) -> c_int;
/// `zil_parse_lr_func_t`
type RecordFunction = unsafe extern "C" fn(RawLog, *const RecordHeader, *mut c_void, u64) -> c_int;

symbols! {
    /// Functions for walking a log.
    Walk {
        zil_parse: fn(RawLog, BlockFunction, RecordFunction, *mut c_void, u64, Boolean) -> c_int;
        /// Has a result since 2.2.
        zil_destroy: fn(RawLog, Boolean);
        /// The flags had 32 bits up to 2.1; they take 8 bytes of the stack anyway.
        zio_read: fn(*mut c_void, *mut c_void, *const BlockPointer, *mut c_void, u64, *mut c_void, *mut c_void, c_int, u64, *const Bookmark) -> *mut c_void;
        zio_wait: fn(*mut c_void) -> c_int;
        abd_get_from_buf: fn(*mut c_void, usize) -> *mut c_void;
        abd_free: fn(*mut c_void);
        dmu_objset_id: fn(RawObjset) -> u64;
        spa_first_txg: fn(*mut c_void) -> u64;
        spa_config_enter: fn(*mut c_void, c_int, *const c_void, c_int);
        spa_config_exit: fn(*mut c_void, c_int, *const c_void);
        /// With a configuration lock held.
        vdev_lookup_top: fn(*mut c_void, u64) -> *mut c_void;
        vdev_is_dead: fn(*mut c_void) -> Boolean;
    }
}

/// `zbookmark_phys_t`: identifies a block in a pool's error list.
#[repr(C)]
pub(crate) struct Bookmark {
    objset: u64,
    object: u64,
    level: i64,
    block: u64,
}

/// The start of `zilog_t`: the same from 2.1 to 2.4, and checked against values known from elsewhere.
#[repr(C)]
pub(crate) struct LogHead {
    /// `kmutex_t`
    lock: [u64; 6],
    pool: *mut c_void,
    spa: *mut c_void,
    pub(crate) header: *const LogHeader,
    pub(crate) objset: RawObjset,
}

/// The on-disk `zil_header_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct LogHeader {
    /// The transaction group in which the log was claimed. Records of earlier groups are already in
    /// the volume. 0: not claimed.
    pub(crate) claim_group: u64,
    /// The sequence number of the last applied record.
    pub(crate) replayed_sequence: u64,
    /// The first block.
    pub(crate) first: BlockPointer,
    /// The last claimed block.
    pub(crate) claimed_block: u64,
    /// [`REPLAY_NEEDED`], [`SEQUENCE_VALID`]
    pub(crate) flags: u64,
    /// The last claimed record, if [`SEQUENCE_VALID`].
    pub(crate) claimed_sequence: u64,
    padding: [u64; 3],
}

/// `ZIL_REPLAY_NEEDED`
const REPLAY_NEEDED: u64 = 1;
/// `ZIL_CLAIM_LR_SEQ_VALID`
const SEQUENCE_VALID: u64 = 2;
/// `TX_CI`: case-insensitive names, which volumes do not have.
const CASE_INSENSITIVE: u64 = 1 << 63;
/// `SPA_MAXBLOCKSIZE`
const MAX_BLOCK_BYTES: u64 = 16 << 20;
/// `ZIO_PRIORITY_SYNC_READ`
const PRIORITY_SYNC_READ: c_int = 0;
/// `ZIO_FLAG_CANFAIL`: a failure is returned, and does not suspend the pool.
const CAN_FAIL: u64 = 1 << 7;
/// `SCL_STATE` of sys/spa.h: protects the states of vdevs.
const CONFIG_STATE: c_int = 0x02;
/// `RW_READER` of sys/zfs_context.h.
const READER: c_int = 0;
/// `ZB_ZIL_LEVEL`
const LOG_LEVEL: i64 = -2;

/// Why a log was not replayed. It is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ReplayError {
    /// EIO: a block of the log, or one that a record points to, cannot be read or is damaged.
    #[error("the intent log cannot be read: {0}")]
    Unreadable(Errno),
    /// ENOSPC, EIO, ...: a record cannot be applied. ENOTSUP, EINVAL: it is invalid.
    #[error("the intent log cannot be replayed: {0}")]
    Record(Errno),
    /// libzpool stores the header elsewhere.
    #[error("this build of libzpool keeps intent logs in a way that is not known here")]
    Unknown,
}

impl ReplayError {
    /// The best matching errno.
    pub(crate) fn errno(self) -> Errno {
        match self {
            // libzpool reports a wrong checksum as EBADE.
            Self::Unreadable(Errno::BADE) | Self::Record(Errno::BADE) => Errno::IO,
            Self::Unreadable(errno) | Self::Record(errno) => errno,
            Self::Unknown => Errno::NOTSUP,
        }
    }
}

/// A log record to replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplayRecord<'a> {
    /// A write; a whole block if the log points to it.
    Write { offset_bytes: u64, data: &'a [u8] },
    /// A freed range.
    Truncate { offset_bytes: u64, len_bytes: u64 },
}

/// Applies log records.
pub(crate) trait Replay {
    /// Applies a record.
    ///
    /// # Errors
    /// It cannot be applied: it is tried once more, and then the replay stops.
    fn replay(&mut self, record: ReplayRecord<'_>) -> Result<(), Errno>;
}

/// The log's header.
fn header(objset: &Objset) -> Result<LogHeader, ReplayError> {
    let dmu = &objset.api().dmu;
    // SAFETY: the objset is owned, and has a log as long as it is. The log is not used unless the
    // fields around the header have the expected values.
    unsafe {
        let log = (dmu.dmu_objset_zil)(objset.raw()).cast::<LogHead>();
        let known = [(*log).pool, (*log).spa, (*log).objset];
        let expected =
            [(dmu.dmu_objset_pool)(objset.raw()), (dmu.dmu_objset_spa)(objset.raw()), objset.raw()];
        if known == expected { Ok(*(*log).header) } else { Err(ReplayError::Unknown) }
    }
}

/// The number of records that are not in the volume yet; for a log with an unreadable end, the
/// records before that.
///
/// # Errors
/// [`ReplayError::Unknown`].
pub(crate) fn pending_records(objset: &Objset) -> Result<u64, ReplayError> {
    let header = header(objset)?;
    let walk = &objset.api().walk;
    let first_group = match header.claim_group {
        // SAFETY: the objset is owned, and so its pool is held.
        0 => unsafe { (walk.spa_first_txg)((objset.api().dmu.dmu_objset_spa)(objset.raw())) },
        claimed => claimed,
    };
    let mut counting = RecordCount { objset, header, records: 0 };
    // SAFETY: as above; the argument is used only during the call.
    unsafe {
        let log = (objset.api().dmu.dmu_objset_zil)(objset.raw());
        let check = check_block::<RecordCount<'_>>;
        (walk.zil_parse)(log, check, count, (&raw mut counting).cast(), first_group, 1);
    }
    Ok(counting.records)
}

struct RecordCount<'a> {
    objset: &'a Objset,
    header: LogHeader,
    records: u64,
}

/// A walk of the log of an objset.
trait LogWalk {
    fn objset(&self) -> &Objset;
}

impl LogWalk for RecordCount<'_> {
    fn objset(&self) -> &Objset {
        self.objset
    }
}

/// Ends the walk at a block whose vdev is missing: libzpool would suspend the pool for it, although the read may fail.
///
/// # Safety
/// Only for `zil_parse()`, whose argument is a `T`.
unsafe extern "C" fn check_block<T: LogWalk>(
    _: RawLog,
    block: *const BlockPointer,
    walking: *mut c_void,
    _: u64,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let (block, walking) = unsafe { (&*block, &*walking.cast::<T>()) };
    if is_reachable(walking.objset(), block) { 0 } else { Errno::NXIO.raw_os_error() }
}

/// Whether a vdev with a copy of a block of the log can be read. A log block has two copies at most: the third `dva_t` may
/// have another meaning.
fn is_reachable(objset: &Objset, block: &BlockPointer) -> bool {
    let walk = &objset.api().walk;
    let copies = block.as_chunks::<2>().0.iter().take(2).filter(|[size, at]| size | at != 0);
    let tag: *const c_void = (&raw const *objset).cast();
    // SAFETY: the objset is owned, and so its pool is held. The lock is held while the vdevs are looked at.
    unsafe {
        let spa = (objset.api().dmu.dmu_objset_spa)(objset.raw());
        (walk.spa_config_enter)(spa, CONFIG_STATE, tag, READER);
        let found = copies.map(|[size, _]| (walk.vdev_lookup_top)(spa, size >> 32 & 0xff_ffff));
        let is_here =
            found.into_iter().any(|vdev| !vdev.is_null() && (walk.vdev_is_dead)(vdev) == 0);
        (walk.spa_config_exit)(spa, CONFIG_STATE, tag);
        is_here
    }
}

/// # Safety
/// Only for `zil_parse()`, called by [`pending_records`].
unsafe extern "C" fn count(
    _log: RawLog,
    record: *const RecordHeader,
    counting: *mut c_void,
    first_group: u64,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let (record, counting) = unsafe { (&*record, &mut *counting.cast::<RecordCount<'_>>()) };
    counting.records += u64::from(is_pending(record, &counting.header, first_group));
    0
}

/// Whether a record is not in the volume yet, neither from before the crash nor from an interrupted replay.
fn is_pending(record: &RecordHeader, header: &LogHeader, first_group: u64) -> bool {
    record.sequence > header.replayed_sequence && record.group >= first_group
}

/// Discards a log.
pub(crate) fn discard_log(objset: &Objset) {
    // SAFETY: the objset is owned, its pool is writable, and the log is not open.
    unsafe {
        (objset.api().walk.zil_destroy)((objset.api().dmu.dmu_objset_zil)(objset.raw()), 0);
    }
    objset.wait_synced();
}

/// Replays a log, then empties it. The log must not be open.
///
/// # Errors
/// [`ReplayError`]; the log is unchanged.
pub(crate) fn replay_log(objset: &Objset, to: &mut dyn Replay) -> Result<(), ReplayError> {
    let header = header(objset)?;
    let walk = &objset.api().walk;
    // SAFETY: the objset is owned.
    let log = unsafe { (objset.api().dmu.dmu_objset_zil)(objset.raw()) };
    if header.flags & REPLAY_NEEDED == 0 {
        // SAFETY: as above, and the pool is writable. The first block is kept for later records.
        unsafe { (walk.zil_destroy)(log, 1) };
        return Ok(());
    }
    let mut replaying =
        ReplayRun { objset, to, header, last_sequence: 0, data: Vec::new(), failure: None };
    let argument = (&raw mut replaying).cast();
    // SAFETY: as above; the argument is used only during the call.
    let code = unsafe {
        (walk.zil_parse)(
            log,
            check_block::<ReplayRun<'_>>,
            replay_one,
            argument,
            header.claim_group,
            1,
        )
    };
    let ReplayRun { last_sequence, failure, .. } = replaying;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let is_end_known = header.flags & SEQUENCE_VALID != 0;
    match super::check(code) {
        // Logs from before 2010 do not record their end.
        Err(Errno::BADE | Errno::NOENT) if !is_end_known => {}
        Err(errno) => return Err(ReplayError::Unreadable(errno)),
        Ok(()) if is_end_known && last_sequence < header.claimed_sequence => {
            return Err(ReplayError::Unreadable(Errno::BADE));
        }
        Ok(()) => {}
    }
    discard_log(objset);
    Ok(())
}

/// A running replay.
struct ReplayRun<'a> {
    objset: &'a Objset,
    to: &'a mut dyn Replay,
    header: LogHeader,
    /// The sequence number of the last record seen.
    last_sequence: u64,
    /// A write's data, in the byte order of the volume. Reused for the next record.
    data: Vec<u8>,
    failure: Option<ReplayError>,
}

impl LogWalk for ReplayRun<'_> {
    fn objset(&self) -> &Objset {
        self.objset
    }
}

/// # Safety
/// Only for `zil_parse()`, called by [`replay_log`].
unsafe extern "C" fn replay_one(
    _log: RawLog,
    record: *const RecordHeader,
    replaying: *mut c_void,
    first_group: u64,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let replaying = unsafe { &mut *replaying.cast::<ReplayRun<'_>>() };
    // SAFETY: a record has its stated length: zil_parse() has checked it against the block.
    let (header, words) = unsafe {
        let header = *record;
        let words = (header.len_bytes / size_of::<u64>() as u64) as usize;
        (header, std::slice::from_raw_parts(record.cast::<u64>(), words))
    };
    if is_pending(&header, &replaying.header, first_group)
        && let Err(failure) = replaying.replay(&header, words)
    {
        replaying.failure = Some(failure);
        return failure.errno().raw_os_error();
    }
    replaying.last_sequence = header.sequence;
    0
}

impl ReplayRun<'_> {
    fn replay(&mut self, header: &RecordHeader, words: &[u64]) -> Result<(), ReplayError> {
        let mut data = std::mem::take(&mut self.data);
        let record = match header.kind & !CASE_INSENSITIVE {
            TX_WRITE => {
                let read = |pointer: &BlockPointer, data: &mut [u8]| self.read(pointer, data);
                let is_swapped = is_foreign(&self.header.first);
                let offset_bytes = write_of(words, is_swapped, &mut data, read)?;
                ReplayRecord::Write { offset_bytes, data: &data }
            }
            TX_TRUNCATE => truncation_of(words)?,
            _ => return Err(ReplayError::Record(Errno::NOTSUP)),
        };
        let done = self.to.replay(record).or_else(|_| {
            // Freed space is available when the free is on disk.
            self.objset.wait_synced();
            self.to.replay(record)
        });
        self.data = data;
        done.map_err(ReplayError::Record)
    }

    /// Reads the block that a record points to.
    fn read(&self, pointer: &BlockPointer, data: &mut [u8]) -> Result<(), Errno> {
        let (walk, dmu) = (&self.objset.api().walk, &self.objset.api().dmu);
        // SAFETY: the objset is owned, and so its pool is held; buffer, pointer and bookmark live
        // until the read has ended, because the call waits for it. There is no callback.
        let code = unsafe {
            let bookmark = Bookmark {
                objset: (walk.dmu_objset_id)(self.objset.raw()),
                object: DATA_OBJECT,
                level: LOG_LEVEL,
                block: 0,
            };
            let spa = (dmu.dmu_objset_spa)(self.objset.raw());
            let buffer = (walk.abd_get_from_buf)(data.as_mut_ptr().cast(), data.len());
            let len_bytes = data.len() as u64;
            let zio = (walk.zio_read)(
                null_mut(),
                spa,
                pointer,
                buffer,
                len_bytes,
                null_mut(),
                null_mut(),
                PRIORITY_SYNC_READ,
                CAN_FAIL,
                &raw const bookmark,
            );
            let code = (walk.zio_wait)(zio);
            (walk.abd_free)(buffer);
            code
        };
        super::check(code)
    }
}

/// Interprets the words of a record or header; there may be too few.
fn whole<T: Copy>(words: &[u64]) -> Result<T, ReplayError> {
    if size_of_val(words) < size_of::<T>() {
        return Err(ReplayError::Record(Errno::INVAL));
    }
    // SAFETY: there are that many bytes, aligned for words, and records consist only of words.
    Ok(unsafe { *words.as_ptr().cast::<T>() })
}

/// The offset of a write; its data goes to `data`, with `read` if the record points to a block. All
/// words are in native byte order; for a record from a machine with the other byte order
/// (`is_swapped`), the data is not.
fn write_of(
    words: &[u64],
    is_swapped: bool,
    data: &mut Vec<u8>,
    read: impl FnOnce(&BlockPointer, &mut [u8]) -> Result<(), Errno>,
) -> Result<u64, ReplayError> {
    const FIXED_WORDS: usize = size_of::<WriteRecord>() / size_of::<u64>();
    let write: WriteRecord = whole(words)?;
    let (offset_bytes, len_bytes) = (write.offset_bytes, write.len_bytes);
    let refused = Err(ReplayError::Record(Errno::INVAL));
    if len_bytes > MAX_BLOCK_BYTES {
        return refused;
    }
    data.clear();
    if words.len() > FIXED_WORDS {
        for word in &words[FIXED_WORDS..] {
            let word = if is_swapped { word.swap_bytes() } else { *word };
            data.extend_from_slice(&word.to_ne_bytes());
        }
        if len_bytes > data.len() as u64 {
            return refused;
        }
        data.truncate(len_bytes as usize);
        return Ok(offset_bytes);
    }
    // The log points to the block: it is written as a whole.
    let block_bytes = logical_size_of(&write.block_pointer);
    let is_hole = is_hole(&write.block_pointer);
    if block_bytes > MAX_BLOCK_BYTES || (len_bytes > block_bytes && !is_hole) {
        return refused;
    }
    data.resize(block_bytes.max(len_bytes) as usize, 0);
    if !is_hole {
        read(&write.block_pointer, data).map_err(ReplayError::Unreadable)?;
    }
    Ok(if len_bytes < block_bytes {
        offset_bytes - offset_bytes % block_bytes
    } else {
        offset_bytes
    })
}

fn truncation_of(words: &[u64]) -> Result<ReplayRecord<'static>, ReplayError> {
    let truncate: TruncateRecord = whole(words)?;
    let (offset_bytes, len_bytes) = (truncate.offset_bytes, truncate.len_bytes);
    Ok(ReplayRecord::Truncate { offset_bytes, len_bytes })
}

/// The word of a block pointer with its properties (sys/spa.h), the property bit for data inside
/// the pointer, and the one for a block from a little-endian machine.
const PROPERTIES: usize = 6;
const EMBEDDED: u64 = 1 << 39;
const LITTLE_ENDIAN: u64 = 1 << 63;

/// `BP_SHOULD_BYTESWAP()`: the block comes from a machine with the other byte order.
fn is_foreign(block_pointer: &BlockPointer) -> bool {
    (block_pointer[PROPERTIES] & LITTLE_ENDIAN != 0) != cfg!(target_endian = "little")
}

/// `BP_IS_HOLE()`: no data, and no address.
fn is_hole(block_pointer: &BlockPointer) -> bool {
    block_pointer[PROPERTIES] & EMBEDDED == 0 && block_pointer[..2] == [0, 0]
}

/// `BP_GET_LSIZE()`: for an embedded block pointer in bytes, else in sectors; minus one.
fn logical_size_of(block_pointer: &BlockPointer) -> u64 {
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

    /// A record followed by data, as the writer's words.
    fn write_record(data_words: usize, offset: u64, len: u64, properties: u64) -> Vec<u64> {
        let mut words = vec![0x0102_0304_0506_0708; 24 + data_words];
        words[..24].fill(0);
        (words[0], words[1], words[4], words[5], words[6]) =
            (TX_WRITE, 8 * words.len() as u64, DATA_OBJECT, offset, len);
        words[8] = 1;
        words[8 + PROPERTIES] = properties;
        words
    }

    type Write = (u64, Vec<u8>);

    fn replayed(words: &[u64], is_swapped: bool) -> Result<Write, ReplayError> {
        let mut data = vec![1, 2, 3];
        let offset_bytes = write_of(words, is_swapped, &mut data, |_, data| {
            data.fill(0x5a);
            Ok(())
        })?;
        Ok((offset_bytes, data))
    }

    #[test]
    fn a_record_with_data_is_replayed_as_it_is_in_either_byte_order() {
        let words = write_record(64, 4096, 512, 0);
        let there: Vec<u8> = words[24..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(replayed(&words, false), Ok((4096, there)));
        let turned: Vec<u8> =
            words[24..].iter().flat_map(|word| word.swap_bytes().to_ne_bytes()).collect();
        assert_eq!(replayed(&words, true), Ok((4096, turned)));
    }

    #[test]
    fn a_record_that_points_to_a_block_is_replayed_as_the_whole_block() {
        let words = write_record(0, 8192 + 512, 512, 7);
        assert_eq!(replayed(&words, false), Ok((8192, vec![0x5a; 4096])));
        let mut hole = write_record(0, 8192, 8192, 7);
        hole[8] = 0;
        assert_eq!(replayed(&hole, false), Ok((8192, vec![0; 8192])));
    }

    #[test]
    fn a_record_that_claims_more_than_it_has_is_refused() {
        for words in [
            write_record(64, 0, 513, 0),
            write_record(0, 0, 4097, 7),
            write_record(0, 0, 1, 0xffff),
            write_record(0, 0, 512, 0)[..23].to_vec(),
            write_record(1, u64::MAX, u64::MAX, 0),
        ] {
            assert_eq!(replayed(&words, false), Err(ReplayError::Record(Errno::INVAL)));
        }
    }

    #[test]
    fn a_block_that_cannot_be_read_is_told() {
        let words = write_record(0, 0, 512, 7);
        let failed = write_of(&words, false, &mut Vec::new(), |_, _| Err(Errno::BADE));
        assert_eq!(failed, Err(ReplayError::Unreadable(Errno::BADE)));
        assert_eq!(failed.unwrap_err().errno(), Errno::IO);
    }

    #[test]
    fn a_truncation_is_replayed_if_it_is_whole() {
        let words = [TX_TRUNCATE, 56, 0, 0, DATA_OBJECT, 65536, 32768];
        let expected = ReplayRecord::Truncate { offset_bytes: 65536, len_bytes: 32768 };
        assert_eq!(truncation_of(&words), Ok(expected));
        assert_eq!(truncation_of(&words[..6]), Err(ReplayError::Record(Errno::INVAL)));
    }
}
