//! Reads: from the least busy member, and the handling of read errors.

use ashlar_block::{Bio, BioResult, Buffer, Flags, Sector, Sectors, Status, rate_limited};
use smallvec::SmallVec;

use crate::array::Array;
use crate::canary::{Rule, broken};
use crate::copies::Source;
use crate::members::Index;
use crate::rdev::{Rdev, State};

/// Sectors of a correction: a page, as in md.
const CORRECTION: Sectors = Sectors(8);

/// Members' copies of a piece that could not be read, for a correction.
type Bad = SmallVec<[(Index, Sector); 2]>;

impl Array {
    /// A read within one chunk.
    ///
    /// Rare cases are in separate, boxed futures, so that this one stays small: each read creates one.
    pub(crate) async fn read_chunk(&self, bio: Bio) -> BioResult {
        let failed = {
            let _pass = match self.barrier.try_wait_read(bio.sector) {
                Some(pass) => pass,
                None => Box::pin(self.barrier.wait_read(bio.sector)).await,
            };
            match self.best_copy(&bio) {
                None => None,
                Some(copy) => {
                    if copy.rdev.is_write_mostly() {
                        Box::pin(self.behind.clear_of(bio.sector, bio.end())).await;
                    }
                    let _reading = copy.rdev.reading(copy.at, bio.len);
                    let part = Bio { sector: copy.at, ..bio.clone() };
                    match self.read_from(copy.index, copy.rdev, bio.sector, part).await {
                        Ok(()) => return Ok(()),
                        Err(status) => Some((copy.index, status)),
                    }
                }
            }
        };
        Box::pin(self.read_failed(bio, failed)).await
    }

    /// Reads from a member, and checks that its disk has lost no writes.
    async fn read_from(&self, index: Index, rdev: &Rdev, from: Sector, part: Bio) -> BioResult {
        rdev.submit_from(&self.disk, from, part).await?;
        self.is_current(index, rdev).await
    }

    /// Continues a read that no single copy could serve, or that failed on a member.
    #[cold]
    async fn read_failed(&self, bio: Bio, failed: Option<(Index, Status)>) -> BioResult {
        if let Some((index, status)) = failed {
            if !self.is_worth_another_copy(&bio, status) {
                return Err(status);
            }
            let member = self.members.get(index).map_or("", Rdev::path);
            let (array, sector) = (self.disk.name(), bio.sector);
            rate_limited!(warn, array, member, %sector, %status, "read error, trying the other copies");
            // Superblock writes must not be abandoned halfway.
            self.finish(move |array| async move { array.count_read_error(index, status).await })
                .await?;
        }
        self.read_again(&bio, failed.map(|(index, _)| index)).await
    }

    fn is_worth_another_copy(&self, bio: &Bio, status: Status) -> bool {
        status.is_retryable_elsewhere() && !bio.flags.contains(Flags::RAHEAD)
    }

    /// Counts a read error of a member. A member with too many recent errors fails if others have its
    /// data; a failfast member fails at the first error.
    async fn count_read_error(&self, index: Index, why: Status) -> BioResult {
        let Some(rdev) = self.members.get(index) else { return Ok(()) };
        rdev.count_read_error();
        rdev.read_errors().record(self.runtime.now_ns());
        let too_many = rdev.read_errors().exceeded(self.max_read_errors());
        if (too_many || rdev.state().contains(State::FAILFAST)) && self.may_correct() {
            self.fail_member(rdev, why).await?;
        }
        Ok(())
    }

    /// Reads piece by piece, each from a copy that can return it, and writes the piece back to the copies
    /// that could not. `failed` is the member that could not read it all.
    async fn read_again(&self, bio: &Bio, failed: Option<Index>) -> BioResult {
        let block = self.disk.limits().logical_block();
        // Where copies may differ, the copy that a block is read from must not depend on its
        // neighbours.
        let unit = if self.is_unsynced() { block } else { CORRECTION };
        let mut at = bio.sector;
        while at < bio.end() {
            let aligned_end = (at + Sectors(1)).round_up(unit);
            let len = Sectors::min(aligned_end - at, bio.end() - at);
            let len = len.round_up(block).min(bio.end() - at);
            // Copies that lack different blocks of a piece may have all of it together.
            let one_has_it = self.sources(at).iter().any(|copy| copy.can_read(len));
            let len = if one_has_it { len } else { len.min(block) };
            self.read_piece(&bio.slice_to(at, len, at), failed).await?;
            at += len;
        }
        Ok(())
    }

    /// Reads one piece; where copies are the same, first from the copy that failed, since most of it is
    /// likely good.
    async fn read_piece(&self, piece: &Bio, failed: Option<Index>) -> BioResult {
        let mut bad = Bad::new();
        let mut last = Status::Io;
        let pass = self.barrier.wait_read(piece.sector).await;
        let mut order = self.sources(piece.sector);
        order.retain(|copy| copy.can_read(piece.len));
        if !self.is_unsynced() {
            order.sort_by_key(|copy| Some(copy.index) != failed);
        }
        for Source { index, rdev, at } in order {
            if rdev.is_write_mostly() {
                self.behind.clear_of(piece.sector, piece.end()).await;
            }
            let part = Bio { sector: at, ..piece.clone() };
            match self.read_from(index, rdev, piece.sector, part).await {
                Ok(()) => {
                    if bad.is_empty() || !self.may_correct() {
                        return Ok(());
                    }
                    drop(pass);
                    let piece = piece.clone();
                    let corrected =
                        self.finish(move |array| async move { array.correct(&piece, bad).await });
                    if let Err(status) = corrected.await {
                        // The data that was read is good anyway.
                        rate_limited!(warn, array = self.disk.name(), %status, "read error not corrected");
                    }
                    return Ok(());
                }
                Err(status) => {
                    last = status;
                    bad.push((index, at));
                }
            }
        }
        Err(last)
    }

    /// Overwrites the copies of a piece that could not be read from one that can, and reads them back.
    ///
    /// The barrier keeps regular writes out meanwhile, and the piece is read again from a good copy
    /// under it: the data read before may already be old.
    async fn correct(&self, piece: &Bio, bad: Bad) -> BioResult {
        let _writing = self.write_start().await?;
        let _raised = match broken(Rule::CorrectionsRaise) {
            false => Some(self.barrier.raise(piece.sector, piece.len).await),
            true => None,
        };
        let Some(mut data) = self.read_good(piece, &bad).await else { return Ok(()) };
        // The caller gets the data that are on disk now.
        let mut rest = data.as_slice();
        for segment in &piece.segments {
            let (part, more) = rest.split_at(segment.len());
            segment.copy_from(part);
            rest = more;
        }
        let mut check = Buffer::alloc(data.len());
        for (index, sector) in bad {
            let Some(rdev) = self.members.get(index).filter(|rdev| !rdev.is_faulty()) else {
                continue;
            };
            let mut rewritten = rdev.submit(Bio::write_from(sector, &mut data)).await;
            if rewritten.is_ok() {
                rewritten = rdev.submit(Bio::read_into(sector, &mut check)).await;
            }
            match rewritten {
                Ok(()) => {
                    rdev.count_corrected(piece.len);
                    rate_limited!(warn, array = self.disk.name(), member = rdev.path(), %sector, "read error corrected");
                }
                // The copy can be neither read nor written. If the member holds the last copy of other
                // data, it stays.
                Err(status) => {
                    self.fail_member(rdev, status).await?;
                }
            }
        }
        Ok(())
    }

    /// The piece from a copy that is not among the bad ones.
    async fn read_good(&self, piece: &Bio, bad: &Bad) -> Option<Buffer> {
        let mut data = Buffer::alloc(piece.len.bytes() as usize);
        for copy in self.sources(piece.sector) {
            if bad.contains(&(copy.index, copy.at)) || !copy.can_read(piece.len) {
                continue;
            }
            let read = copy.rdev.submit(Bio::read_into(copy.at, &mut data)).await;
            if read.is_ok() && self.is_current(copy.index, copy.rdev).await.is_ok() {
                return Some(data);
            }
        }
        None
    }
}
