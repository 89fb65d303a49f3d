//! The speed of libzpool alone, for comparison with a volume's I/O path.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::Volume;
use crate::ffi::transaction::MAX_TRANSACTION_BYTES;

impl Volume {
    /// Writes the whole volume with a plain loop of `dmu_write_by_dnode()`, one transaction per
    /// write: no range locks, no log, no other process. This destroys its data. Returns the
    /// duration.
    ///
    /// There must be no other writer.
    ///
    /// # Errors
    /// EINVAL: the write size is 0, or larger than a transaction. ENXIO: closed. EROFS, ENOSPC, EIO
    /// as for writes.
    pub fn write_plainly(&self, write_bytes: u32) -> Result<Duration, Errno> {
        let gate = self.live();
        let live = gate.as_ref().ok_or(Errno::NXIO)?;
        if live.log.is_none() {
            return Err(Errno::ROFS);
        }
        let write_bytes = u64::from(write_bytes);
        if !(1..=MAX_TRANSACTION_BYTES).contains(&write_bytes) {
            return Err(Errno::INVAL);
        }
        let data: Vec<u8> = (0..write_bytes).map(|at| (at / 7) as u8).collect();
        let begun = Instant::now();
        for offset_bytes in (0..self.volsize_bytes() / write_bytes).map(|at| at * write_bytes) {
            let tx = live.objset.begin().write(offset_bytes, write_bytes).assign()?;
            tx.write_here(offset_bytes, &data);
        }
        Ok(begun.elapsed())
    }
}
