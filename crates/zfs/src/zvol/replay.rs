//! Doing again what the intent log says was done: what was flushed before a crash.

use rustix::io::Errno;

use super::io::MAX_FREE_BLOCKS;
use crate::ffi::dmu::Objset;
use crate::ffi::replay::{Replay, ReplayError, Replayed, discard_log, pending_records, replay_log};

/// Replays the log of an objset, whose pool is writable, and empties it; with `zil_replay_disable` it is only emptied. The objset is
/// used by nobody else yet.
///
/// # Errors
/// It cannot be read to its end, or a record could not be done. The log stays as it is.
pub(crate) fn replay(objset: &Objset) -> Result<(), ReplayError> {
    if objset.api().is_replay_disabled() {
        let records = pending_records(objset)?;
        if records > 0 {
            tracing::warn!(
                records,
                "zil_replay_disable: what the log of a volume says is given up"
            );
        }
        discard_log(objset);
        return Ok(());
    }
    let mut replayer = Replayer { objset, records: 0 };
    replay_log(objset, &mut replayer)?;
    if replayer.records > 0 {
        tracing::info!(records = replayer.records, "log replayed");
    }
    Ok(())
}

/// Tells that a volume is not as it was when it was flushed last: its log is not replayed.
pub(crate) fn warn_of_pending(objset: &Objset, name: &str) {
    match pending_records(objset) {
        Ok(0) => {}
        Ok(records) => tracing::warn!(
            volume = name,
            records,
            "its intent log is not replayed: what was flushed last is missing"
        ),
        Err(error) => tracing::warn!(volume = name, %error, "its intent log is not looked at"),
    }
}

struct Replayer<'a> {
    objset: &'a Objset,
    records: u64,
}

impl Replay for Replayer<'_> {
    fn replay(&mut self, record: Replayed<'_>) -> Result<(), Errno> {
        match record {
            Replayed::Write { offset_bytes, data } => self.write(offset_bytes, data),
            Replayed::Truncate { offset_bytes, len_bytes } => {
                self.truncate(offset_bytes, len_bytes)
            }
        }?;
        self.records += 1;
        Ok(())
    }
}

impl Replayer<'_> {
    fn write(&self, offset_bytes: u64, data: &[u8]) -> Result<(), Errno> {
        let tx = self.objset.begin().write(offset_bytes, data.len() as u64).assign()?;
        tx.write_here(offset_bytes, data);
        Ok(())
    }

    /// The kernel's records are of any length, so it takes more than one transaction: freeing twice is as good as once.
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
        }
        Ok(())
    }
}
