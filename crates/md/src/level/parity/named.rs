//! Reads that name their copy.
//!
//! A user with checksums of its own asks for each way to get a range, and judges by itself:
//!
//! | number | the range is |
//! |---|---|
//! | 1 | what its member has |
//! | 2 | recovered from P and the rest of the row |
//! | 3 (RAID 6) | recovered from Q and the rest of the row |
//! | 4 and on (RAID 6) | recovered from P, Q and the rest, but not from one of the other data chunks of the row, in their order |
//!
//! The last ones find what is right if another member of the row returns wrong data. A way that a missing member makes impossible
//! is left out, and later ones move up: to a user who counts what cannot be read, a degraded array is not damaged. A known bad block
//! counts, and fails with [`Status::Medium`]. Nothing is counted as an error of a member, and nothing is corrected.

use ashlar_block::buffer::scatter;
use ashlar_block::{Bio, BioResult, CopyNumber, Sector, Sectors, Status};
use futures_util::future::join_all;

use super::Parity;
use super::row::Way;
use crate::raid10::Location;

/// How a range within one chunk can be had.
enum NamedWay {
    /// From its member.
    Own,
    /// From others of the row.
    Recovered(Way),
}

impl Parity {
    /// In how many ways a range can be read: the most that one of its chunks has.
    pub(super) fn ways(&self, at: Sector, len: Sectors) -> u16 {
        let end = (at + len).min(self.geometry.size().as_end());
        let (mut at, mut most) = (at, 1);
        while at < end {
            let len = self.geometry.chunk_left(at).min(end - at);
            most = self.ways_in_chunk(self.geometry.map(at), len).count().max(most);
            at += len;
        }
        u16::try_from(most).map_or(CopyNumber::MAX.0, |most| most.min(CopyNumber::MAX.0))
    }

    /// The ways for a range within one chunk, in the order of the table, without those that lack a member.
    fn ways_in_chunk(&self, at: Location, len: Sectors) -> impl Iterator<Item = NamedWay> {
        let row = self.geometry.row_at(at.sector);
        let held = move |slot: usize| {
            self.core.members.both(slot).any(|(_, rdev)| rdev.holds(at.sector + len))
        };
        let own = row.index(at.disk);
        let others = (0..row.data_disks()).filter(move |index| Some(*index) != own);
        let missing = others.clone().filter(|index| !held(row.data(*index))).count();
        let has_p = held(row.p);
        let has_q = row.q.is_some_and(held);
        let recovered = |p, q, without| NamedWay::Recovered(Way { p, q, without });
        let of_member = held(at.disk).then_some(NamedWay::Own);
        let by_p = (has_p && missing == 0).then(|| recovered(true, false, None));
        let by_q = (has_q && missing == 0).then(|| recovered(false, true, None));
        let by_both = others
            .filter(move |index| has_p && has_q && missing == usize::from(!held(row.data(*index))));
        let by_both = by_both.map(move |index| recovered(true, true, Some(index)));
        of_member.into_iter().chain(by_p).chain(by_q).chain(by_both)
    }

    /// A read of the copy that it names.
    pub(super) async fn read_named(&self, bio: Bio) -> BioResult {
        let chunks = self.core.personality().chunks(&bio).map(|chunk| self.read_named_chunk(chunk));
        join_all(chunks).await.into_iter().fold(Ok(()), BioResult::and)
    }

    async fn read_named_chunk(&self, bio: Bio) -> BioResult {
        let at = self.geometry.map(bio.sector);
        let _pass = self.core.barrier.wait_read(bio.sector, bio.len).await;
        let number = usize::from(bio.copy.0).checked_sub(1).ok_or(Status::Invalid)?;
        let way = match self.ways_in_chunk(at, bio.len).nth(number) {
            Some(NamedWay::Own) => {
                let (_, rdev) = self.source(at.disk, at.sector, bio.len).ok_or(Status::Medium)?;
                let part = Bio { sector: at.sector, copy: CopyNumber::ANY, ..bio.clone() };
                return rdev.submit_from(&self.core.disk, bio.sector, part).await;
            }
            Some(NamedWay::Recovered(way)) => way,
            None if number == 0 => return Err(Status::Medium),
            None => return Err(Status::Invalid),
        };
        let _row = self.rows.entry(self.row_of(at.sector)).shared().await;
        let read = self.recover(at.disk, (at.sector, bio.len), &way).await?;
        scatter(read.as_slice(), &bio.segments);
        Ok(())
    }
}
