//! Reads, writes, flushes and discards of a volume.
//!
//! A request is one unit: its range is locked once, and each of its transactions is as large as
//! allowed. Acknowledged data is in an open transaction group and in the log's list; before a
//! flush, nothing more is promised.

use rustix::io::Errno;

use super::log::{LogShape, log_write};
use super::{LiveVolume, Volume};
use crate::ffi::dmu::Sync;
use crate::ffi::memory::Segments;
use crate::ffi::transaction::MAX_TRANSACTION_BYTES;
use crate::ffi::zil::Log;

/// Maximum of blocks freed in one transaction: `zvol_max_discard_blocks`. 16 indirect blocks hold
/// their pointers.
pub(crate) const MAX_FREE_BLOCKS: u64 = 16384;

impl LiveVolume {
    /// The log of a writable volume.
    fn log(&self) -> Result<&Log, Errno> {
        self.log.as_ref().ok_or(Errno::ROFS)
    }

    fn must_commit(&self, fua: bool) -> bool {
        match self.objset.sync() {
            Sync::Standard => fua,
            Sync::Always => true,
            Sync::Disabled => false,
        }
    }
}

impl Volume {
    /// Reads from `offset_bytes` into the segments.
    ///
    /// # Errors
    /// EIO: beyond the end, or the data is damaged. ENXIO: closed. Errors of the segments' memory.
    pub fn read(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        segments: &mut Segments,
    ) -> Result<(), Errno> {
        let gate = self.live();
        let live = gate.as_ref().ok_or(Errno::NXIO)?;
        let end_bytes = self.end_of(offset_bytes, len_bytes)?;
        let _range = self.locks.read(offset_bytes, len_bytes);
        for (offset_bytes, len_bytes) in pieces(offset_bytes, end_bytes, MAX_TRANSACTION_BYTES) {
            live.objset.read(offset_bytes, len_bytes, segments)?;
        }
        Ok(())
    }

    /// Writes the segments from `offset_bytes` on; with `fua`, the data is on stable storage when this returns.
    ///
    /// # Errors
    /// EIO: beyond the end, or a partially written block cannot be read. ENOSPC: the pool is full.
    /// EROFS: not writable. ENXIO: closed. Errors of the segments' memory. Parts of the range may
    /// be written then.
    pub fn write(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        segments: &mut Segments,
        fua: bool,
    ) -> Result<(), Errno> {
        let gate = self.live();
        let live = gate.as_ref().ok_or(Errno::NXIO)?;
        let log = live.log()?;
        let end_bytes = self.end_of(offset_bytes, len_bytes)?;
        let must_commit = live.must_commit(fua);
        let shape = LogShape::of(&live.objset, log, must_commit);
        let range = self.locks.write(offset_bytes, len_bytes);
        for (offset_bytes, len_bytes) in pieces(offset_bytes, end_bytes, MAX_TRANSACTION_BYTES) {
            let tx = live.objset.begin().write(offset_bytes, len_bytes).assign()?;
            tx.write(offset_bytes, len_bytes, segments)?;
            log_write(log, &tx, &shape, offset_bytes, len_bytes);
        }
        drop(range);
        if must_commit {
            log.commit()?;
        }
        Ok(())
    }

    /// Waits until every acknowledged write is on stable storage. With `sync=disabled`, it does not wait.
    ///
    /// # Errors
    /// EIO: the log cannot be written. ENXIO: closed.
    pub fn flush(&self) -> Result<(), Errno> {
        let gate = self.live();
        match &gate.as_ref().ok_or(Errno::NXIO)?.log {
            // The log checks sync=disabled itself.
            Some(log) => log.commit(),
            None => Ok(()),
        }
    }

    /// Frees the whole blocks of a range; they read as zeroes then. Partial blocks at its ends stay unchanged.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> Result<(), Errno> {
        let gate = self.live();
        let live = gate.as_ref().ok_or(Errno::NXIO)?;
        let end_bytes = self.end_of(offset_bytes, len_bytes)?;
        let block_bytes = u64::from(live.objset.block_bytes());
        self.free(
            live,
            offset_bytes.next_multiple_of(block_bytes),
            end_bytes & !(block_bytes - 1),
            fua,
        )
    }

    /// Makes a range read as zeroes: whole blocks are freed, partial blocks at its ends are zeroed.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> Result<(), Errno> {
        let gate = self.live();
        let live = gate.as_ref().ok_or(Errno::NXIO)?;
        self.free(live, offset_bytes, self.end_of(offset_bytes, len_bytes)?, fua)
    }

    /// Record and free are in one transaction, so a transaction group has both or neither: OpenZFS
    /// frees in transactions after that of the record, and a crash between them brings the data
    /// back.
    fn free(
        &self,
        live: &LiveVolume,
        start_bytes: u64,
        end_bytes: u64,
        fua: bool,
    ) -> Result<(), Errno> {
        let log = live.log()?;
        if start_bytes < end_bytes {
            let _range = self.locks.write(start_bytes, end_bytes - start_bytes);
            // The range is locked, so nothing is written beyond the current end of the data.
            let end_bytes = end_bytes.min(live.objset.written_end_bytes()?);
            let most_bytes = u64::from(live.objset.block_bytes()) * MAX_FREE_BLOCKS;
            for (offset_bytes, len_bytes) in pieces(start_bytes, end_bytes, most_bytes) {
                let tx = live.objset.begin().free(offset_bytes, len_bytes).assign()?;
                tx.free(offset_bytes, len_bytes)?;
                log.truncate(&tx, offset_bytes, len_bytes);
            }
        }
        if live.must_commit(fua) {
            log.commit()?;
        }
        Ok(())
    }

    /// The end of a range; fails if it is beyond the volume's end.
    fn end_of(&self, offset_bytes: u64, len_bytes: u64) -> Result<u64, Errno> {
        let end_bytes = offset_bytes.checked_add(len_bytes).ok_or(Errno::IO)?;
        if end_bytes > self.volsize_bytes() {
            return Err(Errno::IO);
        }
        Ok(end_bytes)
    }
}

/// Splits a range into pieces of at most `most_bytes`, at multiples of `most_bytes`.
fn pieces(start_bytes: u64, end_bytes: u64, most_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut offset_bytes = start_bytes;
    std::iter::from_fn(move || {
        if offset_bytes >= end_bytes {
            return None;
        }
        let next_bytes = (offset_bytes + 1).next_multiple_of(most_bytes).min(end_bytes);
        let piece = (offset_bytes, next_bytes - offset_bytes);
        offset_bytes = next_bytes;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_up_the_range() {
        for (start, end, most) in
            [(0, 0, 4), (0, 4, 4), (3, 5, 4), (1, 20, 4), (8, 9, 4), (7, 7, 4)]
        {
            let pieces: Vec<_> = pieces(start, end, most).collect();
            let mut at = start;
            for (offset, len) in pieces {
                assert!(offset == at && len > 0 && offset / most == (offset + len - 1) / most);
                at += len;
            }
            assert_eq!(at, end);
        }
    }
}
