//! Buffers and transactions of a volume (sys/dmu.h).
//!
//! A transaction is assigned before anything changes in it and always ends; buffers are released.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::null_mut;

use rustix::io::Errno;

use super::dmu::{Boolean, DATA_OBJECT, DmuBuf, Objset, RawTx, check_io};
use super::memory::{Direction, LocalRanges, Segments};

/// `TXG_WAIT`, from 2.4 on `DMU_TX_WAIT`: waits for a transaction group that has room.
const WAIT: u64 = 1;
/// `DMU_READ_PREFETCH`
const PREFETCH: u32 = 0;
/// The most that one transaction takes: half of `DMU_MAX_ACCESS`.
pub(crate) const MAX_TRANSACTION_BYTES: u64 = 32 << 20;

impl Objset {
    /// Moves a range to the segments, in one piece.
    ///
    /// # Errors
    /// EIO: it cannot be read. Those of the segments' memory.
    pub(crate) fn read(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        segments: &mut Segments,
    ) -> Result<(), Errno> {
        let buffers = self.hold(offset_bytes, len_bytes, true)?;
        let mut local = LocalRanges::with_capacity(buffers.as_slice().len());
        for part in buffers.parts(offset_bytes, len_bytes) {
            // SAFETY: the buffers are held, so their data stays where it is; the range is locked by the caller, so nobody
            // writes there. The kernel only reads it.
            unsafe { local.push(part.data, part.len_bytes) };
        }
        segments.transfer(&mut local, Direction::ToPeer).map_err(|short| short.errno)
    }

    /// Begins a transaction.
    pub(crate) fn begin(&self) -> Draft<'_> {
        // SAFETY: the objset is owned longer than the transaction lasts.
        let raw = unsafe { (self.api().dmu.dmu_tx_create)(self.raw()) };
        Draft { objset: self, raw }
    }

    fn hold(&self, offset_bytes: u64, len_bytes: u64, read: bool) -> Result<Buffers<'_>, Errno> {
        let mut list = null_mut();
        let mut count = 0;
        // SAFETY: the dnode is held longer than the buffers; the places for the results are valid.
        check_io(unsafe {
            let (list, count) = (&raw mut list, &raw mut count);
            let hold = self.api().dmu.dmu_buf_hold_array_by_dnode;
            hold(
                self.dnode(),
                offset_bytes,
                len_bytes,
                Boolean::from(read),
                self.tag(),
                count,
                list,
                PREFETCH,
            )
        })?;
        Ok(Buffers { objset: self, list, count })
    }
}

/// A transaction that is told what will change. Dropped, it never was.
pub(crate) struct Draft<'a> {
    objset: &'a Objset,
    raw: RawTx,
}

impl<'a> Draft<'a> {
    /// A range will be written.
    pub(crate) fn write(self, offset_bytes: u64, len_bytes: u64) -> Self {
        debug_assert!(len_bytes <= MAX_TRANSACTION_BYTES);
        // SAFETY: the transaction is not assigned, and the dnode is held.
        unsafe {
            let (hold, dnode) =
                (self.objset.api().dmu.dmu_tx_hold_write_by_dnode, self.objset.dnode());
            hold(self.raw, dnode, offset_bytes, len_bytes as c_int);
        }
        self
    }

    /// A range will be freed; all in all that gives space back.
    pub(crate) fn free(self, offset_bytes: u64, len_bytes: u64) -> Self {
        // SAFETY: the transaction is not assigned, and the dnode is held.
        unsafe {
            let (hold, dnode) =
                (self.objset.api().dmu.dmu_tx_hold_free_by_dnode, self.objset.dnode());
            hold(self.raw, dnode, offset_bytes, len_bytes);
            (self.objset.api().dmu.dmu_tx_mark_netfree)(self.raw);
        }
        self
    }

    /// Waits for a transaction group that takes it.
    ///
    /// # Errors
    /// ENOSPC: the pool is full. EIO: what must be read for it cannot be.
    pub(crate) fn assign(self) -> Result<Transaction<'a>, Errno> {
        // SAFETY: it is not assigned yet.
        check_io(unsafe { (self.objset.api().dmu.dmu_tx_assign)(self.raw, WAIT) })?;
        let assigned = std::mem::ManuallyDrop::new(self);
        Ok(Transaction { objset: assigned.objset, raw: assigned.raw })
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // SAFETY: it is not assigned.
        unsafe { (self.objset.api().dmu.dmu_tx_abort)(self.raw) };
    }
}

/// A transaction in an open transaction group. Dropped, it is committed: its group may go to disk.
pub(crate) struct Transaction<'a> {
    objset: &'a Objset,
    raw: RawTx,
}

impl Transaction<'_> {
    pub(crate) fn raw(&self) -> RawTx {
        self.raw
    }

    /// Its group's number.
    pub(crate) fn group(&self) -> u64 {
        // SAFETY: it is assigned.
        unsafe { (self.objset.api().dmu.dmu_tx_get_txg)(self.raw) }
    }

    /// Moves data from the segments to a range that the draft was told of.
    ///
    /// # Errors
    /// EIO: a block that is overwritten in part cannot be read. Those of the segments' memory: the blocks that it did not come
    /// to keep what they had, or, with releases before 2.3, are zeroes; nothing else is changed.
    pub(crate) fn write(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        segments: &mut Segments,
    ) -> Result<(), Errno> {
        let dmu = &self.objset.api().dmu;
        let buffers = self.objset.hold(offset_bytes, len_bytes, false)?;
        let mut local = LocalRanges::with_capacity(buffers.as_slice().len());
        for part in buffers.parts(offset_bytes, len_bytes) {
            // SAFETY: the buffer is held, and the transaction is assigned and knows of the range. From here on the data is
            // this transaction's own; the range is locked by the caller, so nobody else uses it.
            unsafe {
                if part.is_whole {
                    (dmu.dmu_buf_will_fill)(part.buffer, self.raw, 1);
                } else {
                    (dmu.dmu_buf_will_dirty)(part.buffer, self.raw);
                }
                // Only now: both may have moved the data.
                local.push((*part.buffer).data.add(part.skip_bytes), part.len_bytes);
            }
        }
        let moved = segments.transfer(&mut local, Direction::FromPeer);
        let moved_bytes = moved.map_or_else(|short| short.moved_bytes, |()| len_bytes);
        let mut end_bytes = 0;
        for part in buffers.parts(offset_bytes, len_bytes) {
            end_bytes += part.len_bytes as u64;
            if part.is_whole {
                self.end_fill(part.buffer, end_bytes <= moved_bytes);
            }
        }
        moved.map_err(|short| short.errno)
    }

    fn end_fill(&self, buffer: *mut DmuBuf, is_filled: bool) {
        let api = self.objset.api();
        let undo = !is_filled && api.can_undo_fill();
        // SAFETY: the buffer is held and announced to be filled. One that cannot be left as it was has no content of its own:
        // it is made one.
        unsafe {
            if !is_filled && !undo {
                std::ptr::write_bytes((*buffer).data, 0, (*buffer).size_bytes as usize);
            }
            (api.dmu.dmu_buf_fill_done)(buffer, self.raw, Boolean::from(undo));
        }
    }

    /// Writes a range that the draft was told of.
    pub(crate) fn write_here(&self, offset_bytes: u64, data: &[u8]) {
        // SAFETY: the dnode is held, and the transaction is assigned and knows of the range.
        unsafe {
            let (data, len_bytes) = (data.as_ptr().cast(), data.len() as u64);
            let write = self.objset.api().dmu.dmu_write_by_dnode;
            write(self.objset.dnode(), offset_bytes, len_bytes, data, self.raw, PREFETCH);
        }
    }

    /// Frees a range that the draft was told of. Parts of blocks at its ends are zeroed.
    ///
    /// # Errors
    /// The object is not there.
    pub(crate) fn free(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
        // SAFETY: the transaction is assigned and knows of the range.
        check_io(unsafe {
            let free = self.objset.api().dmu.dmu_free_range;
            free(self.objset.raw(), DATA_OBJECT, offset_bytes, len_bytes, self.raw)
        })
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // SAFETY: it is assigned, and all that it changes is announced.
        unsafe { (self.objset.api().dmu.dmu_tx_commit)(self.raw) };
    }
}

/// Buffers of consecutive blocks, held.
struct Buffers<'a> {
    objset: &'a Objset,
    list: *mut *mut DmuBuf,
    count: c_int,
}

/// What of a buffer is in a range.
struct Part<'a> {
    buffer: *mut DmuBuf,
    /// Where it begins, as the buffer is now.
    data: *mut u8,
    skip_bytes: usize,
    len_bytes: usize,
    is_whole: bool,
    held: PhantomData<&'a DmuBuf>,
}

impl Buffers<'_> {
    fn as_slice(&self) -> &[*mut DmuBuf] {
        // SAFETY: libzpool made an array of so many.
        unsafe { std::slice::from_raw_parts(self.list, usize::try_from(self.count).unwrap_or(0)) }
    }

    fn parts(&self, offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = Part<'_>> {
        let end = offset_bytes + len_bytes;
        self.as_slice().iter().map(move |buffer| {
            // SAFETY: held buffers are valid.
            let DmuBuf { offset_bytes: base, size_bytes, data, .. } =
                unsafe { std::ptr::read(*buffer) };
            let (start, stop) = (base.max(offset_bytes), (base + size_bytes).min(end));
            let (skip_bytes, len_bytes) = ((start - base) as usize, (stop - start) as usize);
            Part {
                buffer: *buffer,
                data: data.wrapping_add(skip_bytes),
                skip_bytes,
                len_bytes,
                is_whole: len_bytes as u64 == size_bytes,
                held: PhantomData,
            }
        })
    }
}

impl Drop for Buffers<'_> {
    fn drop(&mut self) {
        // SAFETY: they are held with this tag, and nothing uses them any more.
        unsafe {
            (self.objset.api().dmu.dmu_buf_rele_array)(self.list, self.count, self.objset.tag())
        };
    }
}
