//! Buffers and transactions of a volume (sys/dmu.h).
//!
//! A transaction is assigned before anything changes in it and always ends; buffers are always released.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::null_mut;

use rustix::io::Errno;

use super::dmu::{Boolean, DATA_OBJECT, DmuBuf, Objset, RawTx, check_io};
use super::memory::{Direction, LocalRanges, Segments};

/// `TXG_WAIT`, from 2.4 on `DMU_TX_WAIT`: wait for a transaction group with room.
const WAIT: u64 = 1;
/// `DMU_READ_PREFETCH`
const PREFETCH: u32 = 0;
/// Maximum size of one transaction: half of `DMU_MAX_ACCESS`.
pub(crate) const MAX_TRANSACTION_BYTES: u64 = 32 << 20;

impl Objset {
    /// Copies a range to the segments, in one piece.
    ///
    /// # Errors
    /// EIO: it cannot be read. Errors of the segments' memory.
    pub(crate) fn read(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        segments: &mut Segments,
    ) -> Result<(), Errno> {
        let buffers = self.hold(offset_bytes, len_bytes, true)?;
        let mut local = LocalRanges::with_capacity(buffers.as_slice().len());
        for part in buffers.parts(offset_bytes, len_bytes) {
            // SAFETY: the buffers are held, so their data does not move; the caller has locked the
            // range, so nothing writes there. The kernel only reads it.
            unsafe { local.push(part.data, part.len_bytes) };
        }
        segments.transfer(&mut local, Direction::ToPeer).map_err(|short| short.errno)
    }

    /// Begins a transaction.
    pub(crate) fn begin(&self) -> Draft<'_> {
        // SAFETY: the objset is owned longer than the transaction lives.
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

/// A transaction that collects its planned changes. Dropping it aborts it.
pub(crate) struct Draft<'a> {
    objset: &'a Objset,
    raw: RawTx,
}

impl<'a> Draft<'a> {
    /// Announces a write to a range.
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

    /// Announces that a range will be freed; the transaction as a whole must free space.
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

    /// Waits for a transaction group with room for it.
    ///
    /// # Errors
    /// ENOSPC: the pool is full. EIO: a block that it needs cannot be read.
    pub(crate) fn assign(self) -> Result<Transaction<'a>, Errno> {
        // SAFETY: the transaction is not assigned yet.
        check_io(unsafe { (self.objset.api().dmu.dmu_tx_assign)(self.raw, WAIT) })?;
        let assigned = std::mem::ManuallyDrop::new(self);
        Ok(Transaction { objset: assigned.objset, raw: assigned.raw })
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // SAFETY: the transaction is not assigned.
        unsafe { (self.objset.api().dmu.dmu_tx_abort)(self.raw) };
    }
}

/// A transaction in an open transaction group. Dropping it commits it: its group may be written then.
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
        // SAFETY: the transaction is assigned.
        unsafe { (self.objset.api().dmu.dmu_tx_get_txg)(self.raw) }
    }

    /// Copies data from the segments to a range announced in the draft.
    ///
    /// # Errors
    /// EIO: a partially overwritten block cannot be read. Errors of the segments' memory: the
    /// blocks not reached keep their contents, or, before 2.3, become zeroes; nothing else is
    /// changed.
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
            // SAFETY: the buffer is held, and the transaction is assigned and includes the range.
            // From here on, the data belongs to this transaction; the caller has locked the range,
            // so no other code uses it.
            unsafe {
                if part.is_whole {
                    (dmu.dmu_buf_will_fill)(part.buffer, self.raw, 1);
                } else {
                    (dmu.dmu_buf_will_dirty)(part.buffer, self.raw);
                }
                // Only now: both calls may have moved the data.
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
        // SAFETY: the buffer is held and announced to be filled. If its old contents cannot be
        // kept, it has none: it is zeroed.
        unsafe {
            if !is_filled && !undo {
                std::ptr::write_bytes((*buffer).data, 0, (*buffer).size_bytes as usize);
            }
            (api.dmu.dmu_buf_fill_done)(buffer, self.raw, Boolean::from(undo));
        }
    }

    /// Writes a range announced in the draft.
    pub(crate) fn write_here(&self, offset_bytes: u64, data: &[u8]) {
        // SAFETY: the dnode is held, and the transaction is assigned and includes the range.
        unsafe {
            let (data, len_bytes) = (data.as_ptr().cast(), data.len() as u64);
            let write = self.objset.api().dmu.dmu_write_by_dnode;
            write(self.objset.dnode(), offset_bytes, len_bytes, data, self.raw, PREFETCH);
        }
    }

    /// Frees a range announced in the draft. Partial blocks at its ends are zeroed.
    ///
    /// # Errors
    /// The object does not exist.
    pub(crate) fn free(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
        // SAFETY: the transaction is assigned and includes the range.
        check_io(unsafe {
            let free = self.objset.api().dmu.dmu_free_range;
            free(self.objset.raw(), DATA_OBJECT, offset_bytes, len_bytes, self.raw)
        })
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        // SAFETY: it is assigned, and all its changes were announced.
        unsafe { (self.objset.api().dmu.dmu_tx_commit)(self.raw) };
    }
}

/// Held buffers of consecutive blocks.
struct Buffers<'a> {
    objset: &'a Objset,
    list: *mut *mut DmuBuf,
    count: c_int,
}

/// The part of a buffer that is in a range.
struct BufferPart<'a> {
    buffer: *mut DmuBuf,
    /// Start of the part, in the buffer's current data.
    data: *mut u8,
    skip_bytes: usize,
    len_bytes: usize,
    is_whole: bool,
    held: PhantomData<&'a DmuBuf>,
}

impl Buffers<'_> {
    fn as_slice(&self) -> &[*mut DmuBuf] {
        // SAFETY: libzpool made an array with this many entries.
        unsafe { std::slice::from_raw_parts(self.list, usize::try_from(self.count).unwrap_or(0)) }
    }

    fn parts(&self, offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = BufferPart<'_>> {
        let end = offset_bytes + len_bytes;
        self.as_slice().iter().map(move |buffer| {
            // SAFETY: held buffers are valid.
            let DmuBuf { offset_bytes: base, size_bytes, data, .. } =
                unsafe { std::ptr::read(*buffer) };
            let (start, stop) = (base.max(offset_bytes), (base + size_bytes).min(end));
            let (skip_bytes, len_bytes) = ((start - base) as usize, (stop - start) as usize);
            BufferPart {
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
        // SAFETY: they are held with this tag, and nothing uses them.
        unsafe {
            (self.objset.api().dmu.dmu_buf_rele_array)(self.list, self.count, self.objset.tag())
        };
    }
}
