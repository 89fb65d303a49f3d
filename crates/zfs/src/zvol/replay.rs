//! Replay of the intent log: the data flushed before a crash.

use std::borrow::Cow;

use rustix::io::Errno;

use super::io::MAX_FREE_BLOCKS;
use crate::ffi::dmu::Objset;
use crate::ffi::replay::{
    Replay, ReplayError, ReplayRecord, discard_log, pending_records, replay_log,
};

/// Clients write in sectors of this size.
const SECTOR_BYTES: u64 = 512;
/// Alignment of libzpool's splits.
const CUT_BYTES: u64 = 8;

/// Replays the log of an objset, whose pool is writable, and empties it; with `zil_replay_disable`,
/// the log is only emptied. The objset must not be in use yet.
///
/// # Errors
/// The log cannot be read to its end, or a record could not be applied. The log is unchanged.
pub(crate) fn replay(objset: &Objset) -> Result<(), ReplayError> {
    if objset.api().is_replay_disabled() {
        let records = pending_records(objset)?;
        if records > 0 {
            tracing::warn!(records, "zil_replay_disable: the log of a volume is discarded");
        }
        discard_log(objset);
        return Ok(());
    }
    let mut replayer = Replayer { objset, records: 0, begun: Piece::default() };
    replay_log(objset, &mut replayer)?;
    if !replayer.begun.data.is_empty() {
        tracing::info!(
            offset_bytes = replayer.begun.offset_bytes,
            "the log ends within a sector, which stays as it was"
        );
    }
    if replayer.records > 0 {
        tracing::info!(records = replayer.records, "log replayed");
    }
    Ok(())
}

/// Warns that a volume lacks flushed data: its log is not replayed.
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
    /// A sector of which only the first part was seen.
    begun: Piece<'a>,
}

impl Replay for Replayer<'_> {
    fn replay(&mut self, record: ReplayRecord<'_>) -> Result<(), Errno> {
        match record {
            ReplayRecord::Write { offset_bytes, data } => {
                let joined = join(&self.begun, Piece { offset_bytes, data: Cow::Borrowed(data) });
                self.write(&joined.stray)?;
                self.write(&joined.whole)?;
                self.begun = joined.begun.into_owned();
            }
            ReplayRecord::Truncate { offset_bytes, len_bytes } => {
                self.write(&self.begun)?;
                self.truncate(offset_bytes, len_bytes)?;
                self.begun = Piece::default();
            }
        }
        self.records += 1;
        Ok(())
    }
}

/// Data, and its offset.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Piece<'a> {
    offset_bytes: u64,
    data: Cow<'a, [u8]>,
}

impl Piece<'_> {
    fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.data.len() as u64
    }

    fn into_owned(self) -> Piece<'static> {
        Piece { offset_bytes: self.offset_bytes, data: Cow::Owned(self.data.into_owned()) }
    }
}

/// The writes for a record.
struct JoinedWrites<'a> {
    /// The first part of a sector that this record does not continue. This should not happen, but
    /// the data must not be lost.
    stray: Piece<'a>,
    whole: Piece<'a>,
    /// This record's part of the sector that it ends in. It is written with the rest, which the
    /// next record has.
    begun: Piece<'a>,
}

/// libzpool splits a write that does not fit in a log block, and not at sectors; after a crash the
/// second part may be missing. The write was not acknowledged, so it may be lost; but a disk never
/// has sectors that are half old and half new.
fn join<'a>(begun: &Piece<'a>, record: Piece<'a>) -> JoinedWrites<'a> {
    let goes_on = record.offset_bytes == begun.end_bytes();
    let (stray, mut whole) = if begun.data.is_empty() {
        (Piece::default(), record)
    } else if goes_on {
        let mut data = begun.data.to_vec();
        data.extend_from_slice(&record.data);
        let offset_bytes = begun.offset_bytes;
        (Piece::default(), Piece { offset_bytes, data: Cow::Owned(data) })
    } else {
        (begun.clone(), record)
    };
    let left_bytes = (whole.end_bytes() % SECTOR_BYTES).min(whole.data.len() as u64);
    // An end that is not a split is a client's: the FreeBSD kernel allows such writes on its character devices.
    if left_bytes == 0
        || !whole.end_bytes().is_multiple_of(CUT_BYTES)
        || !whole.offset_bytes.is_multiple_of(SECTOR_BYTES)
    {
        return JoinedWrites { stray, whole, begun: Piece::default() };
    }
    let offset_bytes = whole.end_bytes() - left_bytes;
    let cut = whole.data.len() - left_bytes as usize;
    let data = match &mut whole.data {
        Cow::Borrowed(data) => {
            let (before, left) = data.split_at(cut);
            *data = before;
            Cow::Borrowed(left)
        }
        Cow::Owned(data) => Cow::Owned(data.split_off(cut)),
    };
    JoinedWrites { stray, whole, begun: Piece { offset_bytes, data } }
}

impl Replayer<'_> {
    fn write(&self, piece: &Piece<'_>) -> Result<(), Errno> {
        if !piece.data.is_empty() {
            let len_bytes = piece.data.len() as u64;
            let tx = self.objset.begin().write(piece.offset_bytes, len_bytes).assign()?;
            tx.write_here(piece.offset_bytes, &piece.data);
        }
        Ok(())
    }

    /// The kernel's records have any length, so this may take several transactions: freeing twice is harmless.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset_bytes: u64, data: &[u8]) -> Piece<'static> {
        Piece { offset_bytes, data: Cow::Owned(data.to_vec()) }
    }

    /// The contents of a volume of 4 KiB, initially zeroes, after these records.
    fn replayed(records: &[Piece<'static>]) -> Vec<u8> {
        let mut volume = vec![0; 4096];
        let mut begun = Piece::default();
        for record in records {
            let joined = join(&begun, record.clone());
            for piece in [&joined.stray, &joined.whole] {
                let at = piece.offset_bytes as usize;
                volume[at..at + piece.data.len()].copy_from_slice(&piece.data);
            }
            begun = joined.begun;
        }
        volume
    }

    /// A write of two sectors, split once or twice at any word; some of its parts are in the log.
    /// Two writes precede it.
    #[test]
    fn no_sector_is_torn_wherever_a_write_is_cut() {
        let before = [piece(0, &[1; 4096]), piece(512, &[2; 1024])];
        let data: Vec<u8> = (0..1024).map(|at| 3 + (at % 200) as u8).collect();
        let cuts = || (0..=1024).step_by(8);
        for (first, second) in cuts().flat_map(|first| cuts().map(move |second| (first, second))) {
            if first > second {
                continue;
            }
            let parts = [0..first, first..second, second..1024];
            let parts = parts.map(|part| piece(1024 + part.start as u64, &data[part]));
            for count in 0..=3 {
                let records = before.iter().chain(&parts[..count]).cloned().collect::<Vec<_>>();
                let written = parts[..count].iter().map(|part| part.data.len()).sum::<usize>();
                let whole = written - written % 512;
                let mut expected = replayed(&before);
                expected[1024..1024 + whole].copy_from_slice(&data[..whole]);
                assert!(replayed(&records) == expected, "{first} {second} {count}");
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_done_as_it_is() {
        // A sector is begun, and the next record is elsewhere.
        let volume = replayed(&[piece(512, &[1; 520]), piece(2048, &[2; 512])]);
        assert!(volume[512..1032].iter().all(|byte| *byte == 1) && volume[1032] == 0);
        assert!(volume[2048..2560].iter().all(|byte| *byte == 2));
        // The end is not a possible split.
        let volume = replayed(&[piece(0, &[1; 100])]);
        assert_eq!(volume.iter().filter(|byte| **byte == 1).count(), 100);
        // The start is not a sector's, and nothing precedes it.
        let volume = replayed(&[piece(8, &[1; 16])]);
        assert_eq!(volume.iter().filter(|byte| **byte == 1).count(), 16);
    }
}
