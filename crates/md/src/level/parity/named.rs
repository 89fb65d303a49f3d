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
//! fails with [`Status::Medium`], but counts: the numbers do not change. Nothing is counted as an error of a member, and nothing is corrected.

use ashlar_block::buffer::scatter;
use ashlar_block::{Bio, BioResult, CopyNumber, Sector, Sectors, Status};
use futures_util::future::join_all;

use super::Parity;
use super::row::Way;

impl Parity {
    /// In how many ways a range can be read.
    pub(super) fn ways(&self, at: Sector, len: Sectors) -> u16 {
        if len.is_zero() || at + len > self.geometry.size().as_end() {
            return 1;
        }
        let data_disks = self.geometry.data_disks();
        let ways = match self.geometry.level().parities() {
            1 => 2,
            _ => 3 + data_disks - 1,
        };
        u16::try_from(ways).map_or(CopyNumber::MAX.0, |ways| ways.min(CopyNumber::MAX.0))
    }

    /// A read of the copy that it names.
    pub(super) async fn read_named(&self, bio: Bio) -> BioResult {
        let chunks = self.core.personality().chunks(&bio).map(|chunk| self.read_named_chunk(chunk));
        join_all(chunks).await.into_iter().fold(Ok(()), BioResult::and)
    }

    async fn read_named_chunk(&self, bio: Bio) -> BioResult {
        if bio.copy.0 > self.ways(bio.sector, bio.len) {
            return Err(Status::Invalid);
        }
        let at = self.geometry.map(bio.sector);
        let _pass = self.core.barrier.wait_read(bio.sector, bio.len).await;
        let row = self.geometry.row_at(at.sector);
        let way = match bio.copy.0 {
            1 => {
                let (_, rdev) = self.source(at.disk, at.sector, bio.len).ok_or(Status::Medium)?;
                let part = Bio { sector: at.sector, copy: CopyNumber::ANY, ..bio.clone() };
                return rdev.submit_from(&self.core.disk, bio.sector, part).await;
            }
            2 => Way { p: true, q: false, without: None },
            3 => Way { p: false, q: true, without: None },
            number => {
                let own = row.index(at.disk).ok_or(Status::Invalid)?;
                let other = usize::from(number) - 4;
                let without = Some(other + usize::from(other >= own));
                Way { p: true, q: true, without }
            }
        };
        let _row = self.rows.entry(self.row_of(at.sector)).shared().await;
        let read = self.recover(at.disk, (at.sector, bio.len), &way).await?;
        scatter(read.as_slice(), &bio.segments);
        Ok(())
    }
}
