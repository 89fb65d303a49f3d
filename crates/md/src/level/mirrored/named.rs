//! Reads that name their copy.
//!
//! A user with checksums of its own (a file system) reads each copy of a range and judges by itself.
//! Copies are numbered from 1 on over the members that hold the range, in their order of rank
//! ([`Mirrored::sources`]); a member that is itself a mirror counts with all of its copies. Numbers change
//! only when a member fails, is added, or was rebuilt that far.
//!
//! Such a read is answered by this copy or fails: no other copy is tried, nothing is rewritten, and an
//! error neither counts as a read error of the member nor fails it, because a scan of all copies must not
//! change the array. Known bad blocks fail with [`Status::Medium`] and are not read. The copy counts
//! nevertheless, so that its user finds it bad, and writes the range, which repairs it. A plain write goes
//! to all copies.
//!
//! The read passes the barrier, and waits for writes behind, like a plain read.

use ashlar_block::{Bio, BioResult, CopyNumber, Sector, Sectors, Status};
use futures_util::future::join_all;

use super::mirror::Mirrored;
use crate::core::Source;

impl Mirrored {
    /// The members that hold a range within one chunk, each with the number of its copies.
    fn holders(&self, at: Sector, len: Sectors) -> impl Iterator<Item = (Source<'_>, u16)> {
        let held =
            self.sources(at).into_iter().filter(move |source| source.rdev.holds(source.at + len));
        held.map(move |source| (source, source.rdev.copies(source.at, len)))
    }

    /// How many copies of a range a read can name: the most that one of its chunks has.
    pub(super) fn copies(&self, at: Sector, len: Sectors) -> u16 {
        let (mut at, end, mut most) = (at, at + len, 1);
        while at < end {
            let len = self.core.personality().chunk_left(at).min(end - at);
            let held = self.holders(at, len).map(|(_, copies)| copies);
            most = held.fold(0, u16::saturating_add).max(most);
            at += len;
        }
        most.min(CopyNumber::MAX.0)
    }

    /// A read of the copy that it names.
    pub(super) async fn read_named(&self, bio: Bio) -> BioResult {
        let _pass = self.core.barrier.wait_read(bio.sector, bio.len).await;
        let chunks = self.chunks(&bio).map(|chunk| self.read_named_chunk(chunk));
        join_all(chunks).await.into_iter().fold(Ok(()), BioResult::and)
    }

    async fn read_named_chunk(&self, bio: Bio) -> BioResult {
        let mut number = bio.copy.0;
        for (source, copies) in self.holders(bio.sector, bio.len) {
            if number > copies {
                number -= copies;
                continue;
            }
            let rdev = source.rdev;
            if rdev.is_write_mostly() {
                self.behind_ended(&bio).await;
            }
            if !rdev.can_read(source.at, bio.len) {
                return Err(Status::Medium);
            }
            rdev.note_read(source.at + bio.len);
            let part = Bio { sector: source.at, copy: CopyNumber(number), ..bio.clone() };
            return rdev.submit_from(&self.core.disk, bio.sector, part).await;
        }
        Err(Status::Invalid)
    }
}
