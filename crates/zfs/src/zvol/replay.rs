//! Doing again what the intent log says was done: what was flushed before a crash.

use rustix::io::Errno;

use super::io::MAX_FREE_BLOCKS;
use crate::ffi::dmu::Objset;
use crate::ffi::zil::{Replay, Replayed, mark_replayed, replay_log};

/// Replays the log of an objset, whose pool is writable. Its range is used by nobody else yet.
///
/// # Errors
/// Why a record could not be done again; the log is empty nevertheless, as with OpenZFS.
pub(crate) fn replay(objset: &Objset) -> Result<(), Errno> {
    let mut replayer = Replayer { objset, records: 0, failure: None };
    replay_log(objset, &mut replayer);
    if replayer.records > 0 {
        tracing::info!(records = replayer.records, "log replayed");
    }
    replayer.failure.map_or(Ok(()), Err)
}

struct Replayer<'a> {
    objset: &'a Objset,
    records: u64,
    /// Of the last record: libzpool tries each a second time.
    failure: Option<Errno>,
}

impl Replay for Replayer<'_> {
    fn replay(&mut self, record: Replayed<'_>) -> Result<(), Errno> {
        let done = match record {
            Replayed::Write { offset_bytes, data } => self.write(offset_bytes, data),
            Replayed::Truncate { offset_bytes, len_bytes } => {
                self.truncate(offset_bytes, len_bytes)
            }
        };
        self.failure = done.err();
        self.records += u64::from(done.is_ok());
        done
    }

    fn refuse(&mut self, errno: Errno) {
        self.failure = Some(errno);
    }
}

impl Replayer<'_> {
    fn write(&self, offset_bytes: u64, data: &[u8]) -> Result<(), Errno> {
        let tx = self.objset.begin().write(offset_bytes, data.len() as u64).assign()?;
        tx.write_here(offset_bytes, data);
        mark_replayed(self.objset, &tx);
        Ok(())
    }

    /// The kernel's records are of any length, so it takes more than one transaction. That the record is done is noted in the
    /// last: freeing twice is as good as once.
    fn truncate(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
        let written_end_bytes = self.objset.written_end_bytes()?;
        let end_bytes = offset_bytes.saturating_add(len_bytes).min(written_end_bytes);
        let most_bytes = u64::from(self.objset.block_bytes()) * MAX_FREE_BLOCKS;
        let mut at_bytes = offset_bytes;
        while at_bytes < end_bytes {
            let piece_bytes = (end_bytes - at_bytes).min(most_bytes - at_bytes % most_bytes);
            let tx = self.objset.begin().free(at_bytes, piece_bytes).assign()?;
            tx.free(at_bytes, piece_bytes)?;
            at_bytes += piece_bytes;
            if at_bytes == end_bytes {
                mark_replayed(self.objset, &tx);
            }
        }
        Ok(())
    }
}
