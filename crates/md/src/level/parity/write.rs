//! Writes and flushes.
//!
//! The write begins in the [core](crate::core::Write): the superblocks say active, it passed the barrier, its marks are durable. Then it
//! becomes a write of each of its [rows](super::rows), which are cut into [cells](super::cells). For each cell the [plan](super::plan)
//! says what is read; data and parity go to the members together, failures are handled and recorded, and the write is acknowledged.
//!
//! A crash may leave a cell in which some members have what is new and others what was before. A complete array still returns the data of each
//! member; parity is made again by a resync. Until then nothing is recovered from it (see [`Core::is_suspect`](crate::core::Core::is_suspect)).

use ashlar_block::{Bio, BioResult, Buffer, Sector, Segment, Status, rate_limited};
use ashlar_parity::Change;
use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};

use super::Parity;
use super::cells::{Cell, cells};
use super::plan::{Facts, Modify, Plan};
use super::row::{Blocks, Ordered, ordered};
use super::rows::{RowResult, Waiting};
use crate::canary::{Rule, broken};
use crate::core::ppl::{Logged, Ppl, Update};
use crate::core::{Core, Write};
use crate::level::parts::Parts;
use crate::membership::slots::Index;
use crate::ondisk::ppl::{self, Entry};
use crate::raid5::{Held, Row};

/// What is written to the members of a slot.
type ForSlot = (usize, Buffer);

impl Parity {
    /// A write of any length.
    pub(super) async fn write(&self, bio: &Bio) -> BioResult {
        let write = self.begin(bio).await?;
        self.write_rows(bio, &write).await?;
        Self::end(write).await
    }

    /// Ends a change that all members have, or that is recorded as missing.
    pub(super) async fn end(write: Write<'_>) -> BioResult {
        match write.end() {
            Some(rest) => rest.await,
            None => Ok(()),
        }
    }

    /// Begins a change, with its marks.
    pub(super) async fn begin(&self, bio: &Bio) -> Result<Write<'_>, Status> {
        if let Some(write) = self.core.try_begin(bio) {
            return Ok(write);
        }
        Box::pin(async {
            let mut write = self.core.begin(bio).await?;
            write.mark(bio).await?;
            Ok(write)
        })
        .await
    }

    /// Writes each row of a write that has begun.
    pub(super) async fn write_rows(&self, bio: &Bio, write: &Write<'_>) -> BioResult {
        let mut rows = self.geometry.split(bio.sector..bio.end()).peekable();
        let first = rows.next_if(|(_, range)| range.end == bio.end());
        let result = match first {
            Some((row, _)) => self.write_row(row, bio.clone()).await,
            None => {
                let rows = rows.map(|(row, range)| {
                    let part = bio.slice_to(range.start, range.end - range.start, range.start);
                    self.write_row(row, part)
                });
                let mut done = join_all(rows).await.into_iter();
                done.try_fold(true, |all, done| done.map(|one| all & one))
            }
        };
        if result != Ok(true) {
            write.failed();
        }
        result.map(|_| ())
    }

    /// A write of part of a row.
    async fn write_row(&self, row: u64, bio: Bio) -> RowResult {
        let entry = self.rows.entry(row);
        entry.write(row, bio, async |batch| self.perform(batch).await).await
    }

    /// Performs writes whose rows are held.
    async fn perform(&self, batch: &[Waiting]) -> SmallVec<[RowResult; 1]> {
        if let [write] = batch
            && let [cell] = &cells(&self.geometry, write.what.row, &[&write.what.bio])[..]
        {
            return smallvec![self.write_cell(cell).await];
        }
        Box::pin(self.perform_all(batch)).await
    }

    async fn perform_all(&self, batch: &[Waiting]) -> SmallVec<[RowResult; 1]> {
        let mut results: SmallVec<[RowResult; 1]> = smallvec![Ok(true); batch.len()];
        let mut rows: SmallVec<[u64; 1]> = batch.iter().map(|write| write.what.row).collect();
        rows.sort_unstable();
        rows.dedup();
        let rows = rows.into_iter().map(|row| async move {
            let numbers = 0..batch.len();
            let own: SmallVec<[usize; 4]> =
                numbers.filter(|number| batch[*number].what.row == row).collect();
            let bios: SmallVec<[&Bio; 4]> =
                own.iter().map(|number| &batch[*number].what.bio).collect();
            let cells = cells(&self.geometry, row, &bios);
            let done = join_all(cells.iter().map(|cell| self.write_cell(cell))).await;
            let each = cells.into_iter().zip(done);
            each.map(|(cell, result)| {
                let writes = cell.writes.into_iter().map(|write| own[write]);
                (writes.collect::<SmallVec<[usize; 4]>>(), result)
            })
            .collect::<Vec<_>>()
        });
        for (writes, result) in join_all(rows).await.into_iter().flatten() {
            for write in writes {
                results[write] = results[write].and_then(|all| Ok(all & result?));
            }
        }
        results
    }

    /// Writes a cell and its parity. Of an array with a partial parity log in parts, one after the other.
    async fn write_cell(&self, cell: &Cell) -> RowResult {
        let Some(ppl) = self.core.ppl().filter(|ppl| ppl.is_on()) else {
            return self.write_part(cell).await;
        };
        let mut all = true;
        for part in cell.loggable(ppl.max_parity()) {
            all &= Box::pin(self.write_part(&part)).await?;
        }
        Ok(all)
    }

    async fn write_part(&self, cell: &Cell) -> RowResult {
        let mut blocks = self.blocks(cell.at, cell.len);
        let mut data: SmallVec<[ForSlot; 4]> = SmallVec::new();
        for index in 0..blocks.row.data_disks() {
            data.extend(cell.copy(index)?.map(|copy| (blocks.row.data(index), copy)));
        }
        let sums = self.sums(cell, &mut blocks, &data).await?;
        // Until all members have what they take, or their failures are recorded.
        let _logged = self.log(cell, &blocks.row, &data, &sums).await?;
        let mended = self.mended(cell, &mut blocks);
        let has_all_sums = sums.len() == self.geometry.level().parities();
        let sent: SmallVec<[(usize, Segment); 4]> =
            data.into_iter().chain(sums).map(|(slot, block)| (slot, block.into_whole())).collect();
        let result = self.send(cell, &sent, has_all_sums).await;
        for (target, data) in &mended {
            let Some(rdev) = self.core.members.get(*target).filter(|rdev| !rdev.is_faulty()) else {
                continue;
            };
            let over = self.core.overwrite(blocks.of(*target, rdev), blocks.whole(), data).await;
            if let Err(status) = over {
                rate_limited!(warn, array = self.core.name(), %status, "read error not corrected");
            }
        }
        result
    }

    /// Reads what the parity of a cell depends on, and makes it.
    async fn sums(
        &self,
        cell: &Cell,
        blocks: &mut Blocks,
        data: &[ForSlot],
    ) -> Result<SmallVec<[ForSlot; 2]>, Status> {
        let row = blocks.row;
        let taken = |slot: &usize| self.core.members.both(*slot).any(|(_, rdev)| rdev.is_written());
        let parity: SmallVec<[usize; 2]> = [Some(row.p), row.q].into_iter().flatten().collect();
        let sums: SmallVec<[usize; 2]> = parity.iter().copied().filter(taken).collect();
        let indices = || (0..row.data_disks()).map(|index| (index, row.data(index)));
        let plan = loop {
            let lost = &blocks.lost;
            let count = |over: bool, gone: bool| {
                let all = indices();
                all.filter(|(index, slot)| cell.overwrites(*index) == over && lost[*slot] == gone)
                    .count()
            };
            let readable = |slots: &[usize]| slots.iter().filter(|slot| !lost[**slot]).count();
            let facts = Facts {
                overwritten: count(true, false),
                overwritten_lost: count(true, true),
                kept: count(false, false),
                kept_lost: count(false, true),
                sums: sums.len(),
                sums_read: readable(&sums),
                known_sums: readable(&parity),
                trusted: !self.core.is_suspect(&(cell.at..cell.at + cell.len)),
                modify: Modify::of(self.core.parity.rmw_level()),
            };
            let plan = facts.plan();
            let reads: SmallVec<[usize; 8]> = match plan {
                Plan::Nothing => break plan,
                Plan::Impossible => return Err(Status::Medium),
                Plan::Recover => {
                    self.restore(blocks).await?;
                    break plan;
                }
                Plan::Reconstruct => {
                    let kept = indices().filter(|(index, _)| !cell.overwrites(*index));
                    kept.map(|(_, slot)| slot).collect()
                }
                Plan::Modify => {
                    let changed = indices().filter(|(index, _)| cell.overwrites(*index));
                    changed.map(|(_, slot)| slot).chain(sums.iter().copied()).collect()
                }
            };
            let seen = blocks.failed.len();
            if self.read_blocks(blocks, reads.into_iter()).await? {
                break plan;
            }
            for (_, index, status) in blocks.failed.clone().into_iter().skip(seen) {
                self.core.note_error(index, status).await?;
            }
        };
        let mut made: SmallVec<[ForSlot; 2]> = SmallVec::new();
        match plan {
            Plan::Nothing | Plan::Impossible => {}
            Plan::Modify => {
                for slot in &sums {
                    made.push((*slot, blocks.old[*slot].take().ok_or(Status::Io)?));
                }
                let mut changes: SmallVec<[_; 8]> = SmallVec::new();
                for (_, slot) in indices() {
                    let new = data.iter().find(|(other, _)| *other == slot);
                    changes.push(match new {
                        Some((_, new)) => {
                            Some(Change { old: blocks.known(slot)?, new: new.as_slice() })
                        }
                        None => None,
                    });
                }
                let changes = ordered(&row, changes.into_iter()).into_iter();
                let ordered: Ordered<Change<'_>> = changes.map(Option::flatten).collect();
                let [p, q] = places(&row, &mut made);
                ashlar_parity::pq_delta(&ordered, p, q).map_err(|_| Status::Io)?;
            }
            Plan::Reconstruct | Plan::Recover => {
                for slot in &sums {
                    made.push((*slot, blocks.memory()?));
                }
                let mut all: SmallVec<[&[u8]; 8]> = SmallVec::new();
                for (_, slot) in indices() {
                    let new = data.iter().find(|(other, _)| *other == slot);
                    all.push(match new {
                        Some((_, new)) => new.as_slice(),
                        None => blocks.known(slot)?,
                    });
                }
                let [p, q] = places(&row, &mut made);
                let ordered = ordered(&row, all.into_iter());
                ashlar_parity::pq(&ordered, p, q).map_err(|_| Status::Io)?;
            }
        }
        Ok(made)
    }

    /// Logs what the parity of a cell is made of besides the data that are written, if rows are logged.
    async fn log(
        &self,
        cell: &Cell,
        row: &Row,
        data: &[ForSlot],
        sums: &[ForSlot],
    ) -> Result<Option<Logged>, Status> {
        let is_logged = self.core.ppl().is_some_and(Ppl::is_on);
        let Some((_, p)) = sums.iter().find(|(slot, _)| is_logged && *slot == row.p) else {
            return Ok(None);
        };
        let is_whole = data.len() == row.data_disks();
        let mut parity = None;
        if !is_whole {
            let mut kept = Buffer::try_alloc(p.len()).ok_or(Status::Resource)?;
            let new = data.iter().map(|(_, new)| new.as_slice());
            let all: SmallVec<[&[u8]; 8]> = [p.as_slice()].into_iter().chain(new).collect();
            ashlar_parity::xor(kept.as_mut_slice(), &all).map_err(|_| Status::Io)?;
            parity = Some(kept);
        }
        let (first, _) = data.first().ok_or(Status::Io)?;
        let entry = Entry {
            data_sector: self.array_sector(*first, cell),
            len: cell.len,
            chunks: data.len() as u32,
            is_whole,
            parity_slot: row.p as u32,
            checksum: parity.as_ref().map_or(0, |parity| ppl::crc(parity.as_slice())),
        };
        let update = Update {
            entries: smallvec![entry],
            parity: parity.map(Buffer::into_whole),
            slots: data.iter().chain(sums).fold(0, |slots, (slot, _)| slots | 1 << slot),
        };
        self.core.log(row.p, update).await
    }

    /// What members could not return and does not change, after it was recovered: it is written over.
    fn mended(&self, cell: &Cell, blocks: &mut Blocks) -> Vec<(Index, Segment)> {
        let mut mended = Vec::new();
        for (slot, index, status) in blocks.failed.clone() {
            let kept = blocks.row.index(slot).is_some_and(|data| !cell.overwrites(data));
            if kept
                && status.is_of_medium()
                && let Some(block) = blocks.old[slot].take()
            {
                mended.push((index, block.into_whole()));
            }
        }
        mended
    }

    /// Sends the blocks of a cell to their members. They are all that the cell needs, unless parity has no member that takes it.
    async fn send(
        &self,
        cell: &Cell,
        blocks: &[(usize, Segment)],
        has_all_sums: bool,
    ) -> RowResult {
        let mut parts = Parts::default();
        let mut sent: SmallVec<[&Segment; 8]> = SmallVec::new();
        let mut everywhere = has_all_sums;
        for (slot, block) in blocks {
            let before = parts.len();
            let bio = Bio::write(self.array_sector(*slot, cell), [block.clone()]);
            let bio = bio.with_flags(cell.flags);
            for (index, rdev) in self.core.members.both(*slot) {
                if let Some(io) = rdev.write(&self.core.disk, &bio, cell.at) {
                    parts.push(index, io);
                    sent.push(block);
                }
            }
            everywhere &= parts.len() > before;
        }
        parts.end().await;
        let plain = parts.results().all(|(index, result)| {
            let rdev = self.core.members.get(index);
            result.is_ok() && rdev.is_some_and(|rdev| rdev.bad_blocks().is_empty())
        });
        if everywhere && plain {
            return Ok(true);
        }
        let answers: Vec<_> = parts.results().zip(sent).collect();
        Box::pin(self.settle(cell, everywhere, answers)).await
    }

    /// The sector of the array whose data a slot has at a cell; of parity, the first one of the row.
    fn array_sector(&self, slot: usize, cell: &Cell) -> Sector {
        match self.geometry.unmap(slot, cell.at) {
            Held::Data(sector) => sector,
            Held::P | Held::Q | Held::Nothing => {
                self.geometry.data_of(&(cell.at..cell.at + cell.len)).start
            }
        }
    }

    /// Completes a write of a cell that some member did not take, that some slot has no member for, or that may have corrected bad
    /// blocks.
    #[cold]
    async fn settle(
        &self,
        cell: &Cell,
        everywhere: bool,
        answers: Vec<((Index, BioResult), &Segment)>,
    ) -> RowResult {
        let mut all = everywhere;
        let mut error = None;
        let is_refusal =
            |result: &BioResult| result.is_err_and(|status| !status.is_retryable_elsewhere());
        if answers.iter().all(|((_, result), _)| is_refusal(result))
            && let Some(((_, refused), _)) = answers.first()
        {
            return refused.map(|()| false);
        }
        for ((index, result), block) in answers {
            let Some(rdev) = self.core.members.get(index) else { continue };
            let Err(status) = result else {
                if !rdev.bad_blocks().is_empty() {
                    self.core.blocks_are_good(rdev, cell.at, cell.len);
                }
                continue;
            };
            if broken(Rule::FailedWritesFailMembers) {
                continue;
            }
            if Core::may_list(rdev, status) {
                let bio = Bio::write(cell.at, [block.clone()]).with_flags(cell.flags);
                if self.core.write_block_by_block(rdev, &bio, cell.at, status).await.is_ok() {
                    continue;
                }
            }
            all = false;
            error = self.core.misses_a_change(index, rdev, status).await.err().or(error);
        }
        if error.is_none() && !self.is_recoverable(cell) {
            error = Some(Status::Medium);
        }
        match error {
            Some(status) => Err(status),
            None => self.core.recorded().await.map(|()| all),
        }
    }

    /// Whether all data of a cell can be read, some of them from parity.
    fn is_recoverable(&self, cell: &Cell) -> bool {
        let slots = 0..self.geometry.disks();
        let lost = slots.filter(|slot| self.source(*slot, cell.at, cell.len).is_none()).count();
        lost <= self.geometry.level().parities()
    }

    /// Flushes all members. A member that cannot be flushed may have lost writes, so it fails.
    pub(super) async fn flush(&self) -> BioResult {
        // Keeps the array from being stopped meanwhile.
        let _hold = self.core.lifecycle.hold_open();
        let targets = self.core.members.placed().filter(|(_, rdev)| !rdev.is_faulty());
        let skipped = usize::from(broken(Rule::FlushReachesAll));
        let flushes = targets.skip(skipped).map(|(index, rdev)| (index, rdev.submit_flush()));
        let result = self.core.judge_flushes(flushes.collect()).await;
        result.and(self.core.recorded().await)
    }
}

/// The memory of P and of Q among the sums of a row.
fn places<'a>(row: &Row, made: &'a mut SmallVec<[ForSlot; 2]>) -> [Option<&'a mut [u8]>; 2] {
    let (mut p, mut q) = (None, None);
    for (slot, block) in made {
        if *slot == row.p {
            p = Some(block.as_mut_slice());
        } else {
            q = Some(block.as_mut_slice());
        }
    }
    [p, q]
}
