//! One window of a resync, a recovery, a check or a repair. The caller has raised the barrier over it; the rows are locked against reads that
//! recover a block.

use std::ops::Range;

use ashlar_block::{BioResult, Buffer, Sectors, Status, rate_limited};
use futures_util::future::join_all;
use smallvec::SmallVec;

use super::Parity;
use super::liar::liar;
use super::row::{Blocks, ordered};
use crate::core::{Part, Source};
use crate::level::{PAGE, Piece, Rebuild, RebuildTarget, Trouble};
use crate::membership::rdev::Rdev;
use crate::membership::slots::Place;

/// What is done about parity that does not fit.
#[derive(Clone, Copy)]
enum Aim<'a> {
    /// It is made right. The data are what their members have.
    Resync,
    /// It is counted, and made right if `repair`. What a member cannot return is recovered first.
    Check { repair: bool, mismatch: &'a dyn Fn(Sectors) },
}

impl Parity {
    /// Makes the parity of pieces fit their data.
    pub(super) async fn resync(&self, pieces: Vec<Piece>) -> Result<Sectors, Trouble> {
        let pieces = pieces.into_iter().map(|piece| self.compare(piece, Aim::Resync));
        sum(join_all(pieces).await)
    }

    /// Compares the parity of pieces with their data.
    pub(super) async fn check(
        &self,
        pieces: Vec<Piece>,
        repair: bool,
        mismatch: &dyn Fn(Sectors),
    ) -> Result<Sectors, Trouble> {
        let aim = Aim::Check { repair, mismatch };
        let pieces = pieces.into_iter().map(|piece| self.compare(piece, aim));
        sum(join_all(pieces).await)
    }

    async fn compare(&self, piece: Piece, aim: Aim<'_>) -> Result<Sectors, Trouble> {
        let _row = self.rows.entry(self.row_of(piece.at)).windows().await;
        let mut blocks = self.blocks(piece.at, piece.len);
        let absent = |slot: usize| {
            let mut here = self.core.members.both(slot).filter(|(_, rdev)| !rdev.is_faulty());
            here.all(|(_, rdev)| !rdev.holds(piece.end()))
        };
        if (0..self.geometry.disks()).any(absent) {
            // What is missing can be recovered, and there is nothing to compare that with.
            return Ok(piece.len);
        }
        let present: SmallVec<[usize; 8]> =
            (0..self.geometry.disks()).filter(|slot| !blocks.lost[*slot]).collect();
        self.read_blocks(&mut blocks, present.into_iter()).await.map_err(Trouble::Incomplete)?;
        self.note_errors(&blocks).await.map_err(Trouble::Incomplete)?;
        let wrong: SmallVec<[usize; 2]> = blocks.data().filter(|slot| blocks.lost[*slot]).collect();
        if !wrong.is_empty() {
            match aim {
                Aim::Resync => return self.give_up(&blocks, &wrong).map(|()| piece.len),
                // Nothing says what they were, as in a resync; that one is still to come.
                Aim::Check { .. } if self.core.is_suspect(&(piece.at..piece.end())) => {
                    return Ok(piece.len);
                }
                Aim::Check { .. } => {
                    self.restore(&mut blocks).await.map_err(Trouble::Incomplete)?;
                    self.overwrite(&mut blocks, &wrong).await.map_err(Trouble::Incomplete)?;
                }
            }
        }
        self.fit(&mut blocks, aim).await.map_err(Trouble::Incomplete)?;
        Ok(piece.len)
    }

    /// Counts and corrects parity that does not fit the data, which are all known.
    async fn fit(&self, blocks: &mut Blocks, aim: Aim<'_>) -> BioResult {
        let made = self.make_sums(blocks)?;
        let mut result = Ok(());
        let mut differing: SmallVec<[Part; 4]> = SmallVec::new();
        let mut liars: SmallVec<[(usize, Part); 2]> = SmallVec::new();
        let mut into = Sectors::ZERO;
        // Counted as in the kernel: the whole page of a row in which P or Q differ.
        while into < blocks.len {
            let edge = (blocks.at + into + Sectors(1)).round_up(PAGE) - blocks.at;
            let part = Part { into, len: edge.min(blocks.len) - into };
            into = part.end();
            let bytes = part.into.bytes() as usize..part.end().bytes() as usize;
            let fits = |(slot, made): &(usize, Buffer)| {
                let old = blocks.old[*slot].as_ref().filter(|_| !blocks.lost[*slot]);
                old.is_none_or(|old| {
                    old.as_slice()[bytes.clone()] == made.as_slice()[bytes.clone()]
                })
            };
            if made.iter().all(fits) {
                continue;
            }
            if let Aim::Check { repair, mismatch } = aim {
                mismatch(part.len);
                if let Some((slot, right)) = self.find_liar(blocks, &bytes)?
                    && repair
                    && self.core.parity.repairs_liars()
                {
                    if let Some(block) = &mut blocks.old[slot] {
                        block.as_mut_slice()[bytes].copy_from_slice(&right);
                    }
                    liars.push((slot, part));
                    continue;
                }
            }
            match differing.last_mut() {
                Some(last) if last.end() == part.into => last.len += part.len,
                Some(_) | None => differing.push(part),
            }
        }
        for (slot, part) in liars {
            let Some(data) = blocks.old[slot].as_mut().map(Buffer::whole) else { continue };
            for (index, rdev) in self.core.members.both(slot).filter(|(_, rdev)| !rdev.is_faulty())
            {
                result = result.and(self.core.put(blocks.of(index, rdev), part, &data).await);
            }
        }
        let is_repair = !matches!(aim, Aim::Check { repair: false, .. });
        for (slot, mut sums) in made {
            let data = sums.whole();
            for (index, rdev) in self.core.members.both(slot).filter(|(_, rdev)| !rdev.is_faulty())
            {
                let target = blocks.of(index, rdev);
                if blocks.lost[slot] {
                    // It could not be read, which a check corrects, too.
                    result = result.and(self.core.overwrite(target, blocks.whole(), &data).await);
                    continue;
                }
                for part in differing.iter().filter(|_| is_repair) {
                    result = result.and(self.core.put(target, *part, &data).await);
                }
            }
        }
        result
    }

    /// The data chunk that alone makes a part of a row wrong, as its slot, and what it should be.
    fn find_liar(
        &self,
        blocks: &Blocks,
        range: &Range<usize>,
    ) -> Result<Option<(usize, Vec<u8>)>, Status> {
        // Outdated parity after a crash would make the newest data look wrong.
        let is_suspect = self.core.is_suspect(&(blocks.at..blocks.at + blocks.len));
        if is_suspect || blocks.lost.contains(&true) {
            return Ok(None);
        }
        let found = liar(blocks, range)?;
        if let Some((slot, _)) = &found {
            let sector = blocks.at + Sectors::from_bytes_floor(range.start as u64);
            let member = self.core.members.in_sync(*slot).map_or("", Rdev::path);
            rate_limited!(warn, array = self.core.name(), member, %sector, "the block of this member does not fit the rest of its row");
        }
        Ok(found)
    }

    /// The parity of blocks whose data are all known.
    fn make_sums(&self, blocks: &Blocks) -> Result<SmallVec<[(usize, Buffer); 2]>, Status> {
        let row = blocks.row;
        let data: Result<Vec<&[u8]>, Status> =
            blocks.data().map(|slot| blocks.known(slot)).collect();
        let ordered = ordered(&row, data?.into_iter());
        let mut p = blocks.memory()?;
        let mut q = row.q.map(|_| blocks.memory()).transpose()?;
        let of_q = q.as_mut().map(Buffer::as_mut_slice);
        ashlar_parity::pq(&ordered, Some(p.as_mut_slice()), of_q).map_err(|_| Status::Io)?;
        let q = row.q.zip(q);
        Ok([(row.p, p)].into_iter().chain(q).collect())
    }

    /// Lists data that no member can return, in a row whose parity may be wrong, as bad blocks, and the parity with them: no later read recovers the
    /// data from it. If a member has no bad block log, the row still needs a resync.
    fn give_up(&self, blocks: &Blocks, wrong: &[usize]) -> Result<(), Trouble> {
        let statuses = blocks.failed.iter().map(|(.., status)| *status);
        if let Some(status) = statuses.clone().find(|status| !status.is_of_medium()) {
            return Err(Trouble::Incomplete(status));
        }
        let row = &blocks.row;
        let slots = wrong.iter().copied().chain([row.p]).chain(row.q);
        let targets: Vec<Source<'_>> = slots
            .flat_map(|slot| self.core.members.both(slot))
            .filter(|(_, rdev)| !rdev.is_faulty())
            .map(|(index, rdev)| blocks.of(index, rdev))
            .collect();
        if !targets.iter().all(|target| target.rdev.bad_blocks().has_log()) {
            return Err(Trouble::Incomplete(Status::Medium));
        }
        for target in targets {
            if !self.core.note_bad(target, blocks.whole()) {
                return Err(Trouble::Incomplete(Status::Medium));
            }
        }
        rate_limited!(error, array = self.core.name(), sector = %blocks.at, "data cannot be read, and their parity may be wrong");
        Ok(())
    }

    /// Counts errors of members while blocks were read.
    async fn note_errors(&self, blocks: &Blocks) -> BioResult {
        for (_, index, status) in &blocks.failed {
            self.core.note_error(*index, *status).await?;
        }
        Ok(())
    }

    /// Writes what was recovered over what members could not return.
    async fn overwrite(&self, blocks: &mut Blocks, slots: &[usize]) -> BioResult {
        let mut result = Ok(());
        let whole = blocks.whole();
        for slot in slots {
            let Some(data) = blocks.old[*slot].as_mut().map(Buffer::whole) else { continue };
            for (index, rdev) in self.core.members.both(*slot).filter(|(_, rdev)| !rdev.is_faulty())
            {
                result =
                    result.and(self.core.overwrite(blocks.of(index, rdev), whole, &data).await);
            }
        }
        result
    }

    /// Gives the targets of a group what they lack.
    pub(super) async fn rebuild(&self, group: &Rebuild<'_>) -> Result<Sectors, Trouble> {
        let mapped = group.mapped.iter();
        let pieces = mapped.map(|mapped| self.rebuild_piece(&group.targets, mapped.piece));
        sum(join_all(pieces).await)
    }

    async fn rebuild_piece(
        &self,
        targets: &[RebuildTarget<'_>],
        piece: Piece,
    ) -> Result<Sectors, Trouble> {
        let _row = self.rows.entry(self.row_of(piece.at)).windows().await;
        let mut blocks = self.blocks(piece.at, piece.len);
        // A target may hold an earlier part of what it lacks, which is not to be read.
        let mut wanted: SmallVec<[(RebuildTarget<'_>, usize); 2]> = SmallVec::new();
        for target in targets {
            if let Place::Slot(slot) | Place::Replacement(slot) =
                self.core.members.place(target.index)
            {
                let mut others = self.core.members.both(slot);
                let readable = others.any(|(index, rdev)| {
                    index != target.index && rdev.can_read(piece.at, piece.len)
                });
                blocks.lost[slot] |= !readable;
                wanted.push((*target, slot));
            }
        }
        let slots: SmallVec<[usize; 2]> = wanted.iter().map(|(_, slot)| *slot).collect();
        match self.fill(&mut blocks, &slots).await {
            Ok(()) => {}
            Err(Status::Medium) => {
                self.note_errors(&blocks).await.map_err(Trouble::Incomplete)?;
                self.miss(&blocks, &wanted).await?;
                return Ok(piece.len);
            }
            Err(status) if status.is_gone() => return Err(Trouble::Failed(status)),
            Err(status) => return Err(Trouble::Incomplete(status)),
        }
        self.note_errors(&blocks).await.map_err(Trouble::Incomplete)?;
        for (target, slot) in &wanted {
            let data = blocks.old[*slot].as_mut().map(Buffer::whole);
            let data = data.ok_or(Trouble::Incomplete(Status::Io))?;
            let place = blocks.of(target.index, target.rdev);
            // The target lacks the data, and the failure cannot be recorded.
            let put = self.core.put(place, blocks.whole(), &data).await;
            put.map_err(Trouble::Incomplete)?;
        }
        let wrong: SmallVec<[usize; 2]> = blocks.failed.iter().map(|(slot, ..)| *slot).collect();
        if let Err(status) = self.overwrite(&mut blocks, &wrong).await {
            // The targets have what was read anyway.
            rate_limited!(warn, array = self.core.name(), %status, "read error not corrected");
        }
        Ok(piece.len)
    }

    /// Reads or recovers the blocks of some slots.
    ///
    /// # Errors
    /// [`Status::Medium`] if too much is lost, or it would have to be recovered from parity that may be wrong. The status of a member that does not
    /// answer and may be online again.
    async fn fill(&self, blocks: &mut Blocks, slots: &[usize]) -> BioResult {
        let readable: SmallVec<[usize; 2]> =
            slots.iter().copied().filter(|slot| !blocks.lost[*slot]).collect();
        self.read_blocks(blocks, readable.into_iter()).await?;
        if slots.iter().all(|slot| !blocks.lost[*slot]) {
            return Ok(());
        }
        let is_data = |slot: &usize| blocks.row.index(*slot).is_some();
        let lost_data = |blocks: &Blocks| blocks.data().any(|slot| blocks.lost[slot]);
        let suspect = self.core.is_suspect(&(blocks.at..blocks.at + blocks.len));
        if suspect && slots.iter().any(|slot| is_data(slot) && blocks.lost[*slot]) {
            return Err(Status::Medium);
        }
        if let Err(status) = self.restore(blocks).await {
            // A member that is away still has its data.
            let away = blocks.failed.iter().map(|(.., status)| *status).find(|one| one.may_pass());
            return Err(away.unwrap_or(status));
        }
        if suspect && lost_data(blocks) {
            return Err(Status::Medium);
        }
        let sums = self.make_sums(blocks)?;
        for (slot, made) in sums {
            if slots.contains(&slot) && blocks.lost[slot] {
                blocks.old[slot] = Some(made);
            }
        }
        Ok(())
    }

    /// What cannot be recovered is listed as bad on the targets that have a log. A target without a log would return wrong data there, so it
    /// fails.
    async fn miss(
        &self,
        blocks: &Blocks,
        targets: &[(RebuildTarget<'_>, usize)],
    ) -> Result<(), Trouble> {
        for (target, _) in targets {
            let place = blocks.of(target.index, target.rdev);
            if target.rdev.is_faulty() || self.core.note_bad(place, blocks.whole()) {
                continue;
            }
            let (member, sector) = (target.rdev.path(), blocks.at);
            rate_limited!(error, array = self.core.name(), member, %sector, "too much of a row is lost");
            let failed = self.core.fail_member(target.rdev, Status::Medium).await;
            failed.map_err(Trouble::Incomplete)?;
        }
        Ok(())
    }
}

fn sum(moved: Vec<Result<Sectors, Trouble>>) -> Result<Sectors, Trouble> {
    moved.into_iter().try_fold(Sectors::ZERO, |sum, moved| Ok(sum + moved?))
}
