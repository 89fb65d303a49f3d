//! The intent log records of a write: as in `zvol_log_write()` of OpenZFS 2.1 to 2.3.

use crate::ffi::dmu::Objset;
use crate::ffi::transaction::Transaction;
use crate::ffi::zil::{Log, WriteState};

/// Up to this block size, data goes into the log instead of its block: `zvol_immediate_write_sz`.
const IMMEDIATE_BYTES: u64 = 32 << 10;

/// The inputs for choosing a request's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogShape {
    /// `volblocksize`
    pub(crate) block_bytes: u64,
    /// `logbias=throughput`
    pub(crate) is_for_throughput: bool,
    /// Whether the pool has a log device.
    pub(crate) has_slog: bool,
    /// Whether the log is committed right after.
    pub(crate) must_commit: bool,
    /// The maximum data of a Copied record.
    pub(crate) max_copied_bytes: u64,
}

impl LogShape {
    /// The current values of the volume.
    pub(crate) fn of(objset: &Objset, log: &Log, must_commit: bool) -> Self {
        Self {
            block_bytes: u64::from(objset.block_bytes()),
            is_for_throughput: objset.is_for_throughput(),
            has_slog: objset.has_slog(),
            must_commit,
            max_copied_bytes: log.max_copied_bytes(),
        }
    }

    fn state(&self, len_bytes: u64) -> WriteState {
        let large = len_bytes >= self.block_bytes && self.block_bytes > IMMEDIATE_BYTES;
        if self.is_for_throughput || (large && !self.has_slog) {
            WriteState::Indirect
        // Next to indirect records, a Copied record would be replayed over a later write whose
        // record was left out because its block had already been written. A NeedCopy record gets
        // its data at the commit, so it includes that write.
        } else if self.must_commit && (self.block_bytes <= IMMEDIATE_BYTES || self.has_slog) {
            WriteState::Copied
        } else {
            WriteState::NeedCopy
        }
    }

    /// The records of a write in one transaction, with `state` where possible: an indirect record
    /// points to one block, and a record with data fits in a log block.
    fn records(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        state: WriteState,
    ) -> impl Iterator<Item = Record> {
        let shape = *self;
        let end_bytes = offset_bytes + len_bytes;
        let mut at_bytes = offset_bytes;
        std::iter::from_fn(move || {
            let left_bytes = end_bytes - at_bytes;
            if left_bytes == 0 {
                return None;
            }
            let record = match state {
                WriteState::Indirect => {
                    let to_end_of_block = shape.block_bytes - (at_bytes & (shape.block_bytes - 1));
                    (left_bytes.min(to_end_of_block), WriteState::Indirect)
                }
                WriteState::Copied if left_bytes <= shape.max_copied_bytes => {
                    (left_bytes, WriteState::Copied)
                }
                WriteState::Copied | WriteState::NeedCopy => (left_bytes, WriteState::NeedCopy),
            };
            let (len_bytes, state) = record;
            let offset_bytes = at_bytes;
            at_bytes += len_bytes;
            Some(Record { offset_bytes, len_bytes, state })
        })
    }
}

/// A record of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
    pub(crate) state: WriteState,
}

/// Logs a write, in its transaction; the caller has locked the range.
pub(crate) fn log_write(
    log: &Log,
    tx: &Transaction<'_>,
    shape: &LogShape,
    offset_bytes: u64,
    len_bytes: u64,
) {
    let mut in_log_bytes = 0;
    let mut state = shape.state(len_bytes);
    if state == WriteState::Indirect && log.is_freed(tx, offset_bytes, len_bytes) {
        // See `super::freed`.
        state = WriteState::NeedCopy;
    }
    for record in shape.records(offset_bytes, len_bytes, state) {
        log.write(tx, record.offset_bytes, record.len_bytes, record.state);
        match record.state {
            WriteState::Indirect => {}
            WriteState::Copied | WriteState::NeedCopy => in_log_bytes += record.len_bytes,
        }
    }
    if in_log_bytes > 0 {
        log.count(tx, in_log_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: LogShape = LogShape {
        block_bytes: 16 << 10,
        is_for_throughput: false,
        has_slog: false,
        must_commit: false,
        max_copied_bytes: 7680,
    };

    fn records(shape: LogShape, offset_bytes: u64, len_bytes: u64) -> Vec<(u64, u64, WriteState)> {
        let records = shape.records(offset_bytes, len_bytes, shape.state(len_bytes));
        records.map(|record| (record.offset_bytes, record.len_bytes, record.state)).collect()
    }

    #[test]
    fn data_that_nobody_waits_for_is_copied_later() {
        assert_eq!(records(SHAPE, 512, 1 << 20), [(512, 1 << 20, WriteState::NeedCopy)]);
    }

    #[test]
    fn data_that_somebody_waits_for_is_copied_now_if_it_fits() {
        let shape = LogShape { must_commit: true, ..SHAPE };
        assert_eq!(records(shape, 512, 7680), [(512, 7680, WriteState::Copied)]);
        assert_eq!(records(shape, 512, 8192), [(512, 8192, WriteState::NeedCopy)]);
    }

    #[test]
    fn a_record_that_points_to_data_is_about_one_block() {
        let shape = LogShape { is_for_throughput: true, ..SHAPE };
        let expected = [
            (8 << 10, 8 << 10, WriteState::Indirect),
            (16 << 10, 16 << 10, WriteState::Indirect),
            (32 << 10, 512, WriteState::Indirect),
        ];
        assert_eq!(records(shape, 8 << 10, (24 << 10) + 512), expected);
    }

    #[test]
    fn large_blocks_are_pointed_to_unless_there_is_a_log_device() {
        let shape = LogShape { block_bytes: 128 << 10, ..SHAPE };
        assert_eq!(records(shape, 0, 128 << 10), [(0, 128 << 10, WriteState::Indirect)]);
        assert_eq!(records(shape, 0, 64 << 10), [(0, 64 << 10, WriteState::NeedCopy)]);
        let shape = LogShape { has_slog: true, ..shape };
        assert_eq!(records(shape, 0, 128 << 10), [(0, 128 << 10, WriteState::NeedCopy)]);
    }
}
