//! Copies: which members hold a run of sectors, in which order they are asked, and what is done about one that cannot be
//! read.
//!
//! Reads, named or not, resync, recovery and check all ask here. There are two rules:
//!
//! - Where copies are the same, a read goes to the member that costs least ([`Mirrored::best_copy`]).
//! - Where copies may differ, the choice matters: reads return *the first readable copy*, block by
//!   block, and a sync must propagate that one. So both use [`first_copy`], whose result for a block
//!   does not depend on the length of the I/O that contains the block.
//!
//! I/O that passes the barrier asks after it has passed (see `membership::slots`).
//!
//! A block that its copy cannot return is [fetched](Mirrored::fetch) from the next readable copy, and written over the former
//! ([`Mirrored::repair`]), by a caller that has raised the barrier.

use ashlar_block::shard::thread_shard;
use ashlar_block::{Bio, BioResult, Sector, Sectors, Segment, Status, rate_limited};
use smallvec::SmallVec;

use super::mirror::Mirrored;
use crate::canary::{Rule, broken};
use crate::core::blocks::slice;
use crate::core::{Part, Source};
use crate::level::PAGE;
use crate::membership::rdev::Rdev;
use crate::membership::slots::Index;

/// The copies of a run on all members that have not failed, in their order of rank.
pub(super) type Sources<'a> = SmallVec<[Source<'a>; 4]>;

/// The result of reading a run, each block from the first readable copy.
#[derive(Default)]
pub(super) struct FetchResult {
    /// If one source returned everything, its index among the sources.
    pub(super) only: Option<usize>,
    /// Parts that one source (by index) could not return and another did.
    pub(super) bad: Vec<(usize, Part)>,
    /// Parts that no source could return, ascending; and why, if a member was read.
    pub(super) lost: Vec<(Part, Option<Status>)>,
    /// Sources whose device failed the reads, whatever the part.
    pub(super) gone: SmallVec<[(usize, Status); 4]>,
    /// The source of each error of a medium.
    errors: SmallVec<[usize; 4]>,
}

impl FetchResult {
    /// The parts that were read, of a run of `len` sectors.
    pub(super) fn good(&self, len: Sectors) -> SmallVec<[Part; 2]> {
        let mut good = SmallVec::new();
        let mut from = Sectors::ZERO;
        for lost in self.lost.iter().map(|(lost, _)| *lost).chain([Part { into: len, len }]) {
            if lost.into > from {
                good.push(Part { into: from, len: lost.into - from });
            }
            from = lost.end();
        }
        good
    }

    /// Counts the read errors on the members.
    pub(super) fn count_errors(&self, sources: &[Source<'_>]) {
        self.errors.iter().for_each(|place| sources[*place].rdev.count_read_error());
    }
}

/// Whether the first sector of a range can be read, and for how many sectors that holds, in whole
/// blocks.
fn readable(rdev: &Rdev, at: Sector, len: Sectors, block: Sectors) -> (bool, Sectors) {
    let held = rdev.recovered().0.saturating_sub(at.0);
    let held = Sectors(held - held % block.0).min(len);
    if rdev.is_faulty() || held.is_zero() {
        return (false, len);
    }
    match rdev.bad_blocks().check(at + rdev.data_offset(), held) {
        None => (true, held),
        Some(bad) => {
            let before = bad.start - (at + rdev.data_offset());
            let before = Sectors(before.0 - before.0 % block.0);
            if before.is_zero() {
                let end = bad.start + bad.len - (at + rdev.data_offset());
                (false, end.round_up(block).min(len))
            } else {
                (true, before)
            }
        }
    }
}

/// The index of the first source that is readable at `into`, if any; and for how many sectors of
/// `len` that holds.
pub(super) fn first_copy(
    sources: &[Source<'_>],
    into: Sectors,
    len: Sectors,
    block: Sectors,
) -> (Option<usize>, Sectors) {
    let mut run = len;
    for (place, source) in sources.iter().enumerate() {
        let (can, same) = readable(source.rdev, source.at + into, len, block);
        run = run.min(same);
        if can {
            return (Some(place), run);
        }
    }
    (None, run)
}

impl Mirrored {
    /// The copies of the run that begins at `sector`, on members that have not failed, in their order
    /// of rank: the map's order, but write-mostly members last, because with write-behind they may be
    /// behind.
    pub(super) fn sources(&self, sector: Sector) -> Sources<'_> {
        let mut sources = Sources::new();
        let mut copies = self.core.personality().map(sector);
        copies.sort_by_key(|copy| self.core.members.counts_last(copy.disk));
        for copy in copies {
            for (index, rdev) in self.core.members.both(copy.disk) {
                let at = copy.sector;
                let seen = sources.iter().any(|other| other.index == index && other.at == at);
                if !rdev.is_faulty() && !seen {
                    sources.push(Source { index, rdev, at });
                }
            }
        }
        sources
    }

    /// The copy to read within one chunk: where copies may differ the first readable one, otherwise that
    /// of the least busy member. `None` if it cannot return all sectors: then the caller reads pieces. With `but`, the copy of another
    /// member that can be read instead.
    #[inline]
    pub(super) fn best_copy(
        &self,
        at: Sector,
        len: Sectors,
        but: Option<Index>,
    ) -> Option<Source<'_>> {
        if self.core.resync_offset.is_beyond(at + len) && !broken(Rule::UnsyncedReadsFirst) {
            let (sources, block) = (self.sources(at), self.core.disk.limits().logical_block());
            let (first, run) = first_copy(&sources, Sectors::ZERO, len, block);
            let first = first.filter(|_| run == len && but.is_none());
            return first.map(|first| sources[first]);
        }
        let shard = thread_shard();
        let mut best: Option<(u32, Source<'_>)> = None;
        // A plain loop, because reads spend their time here and iterator adapters keep extra state.
        for copy in &self.core.personality().map(at) {
            for (index, rdev) in self.core.members.both(copy.disk) {
                if !rdev.can_read(copy.sector, len) || Some(index) == but {
                    continue;
                }
                let cost = rdev.read_cost(shard, copy.sector);
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, Source { index, rdev, at: copy.sector }));
                }
            }
        }
        best.map(|(_, copy)| copy)
    }

    /// The smallest read after a read error.
    pub(super) fn smallest_read(&self) -> Sectors {
        let block = self.core.disk.limits().logical_block();
        // Where copies may differ, the source is chosen for each block separately.
        if self.core.resync_offset.is_unsynced() { block } else { Sectors(block.0.max(PAGE.0)) }
    }

    /// Reads a run of sectors into `data`, each block from the first source that can return it.
    pub(super) async fn fetch(&self, sources: &[Source<'_>], data: &Segment) -> FetchResult {
        let block = self.core.disk.limits().logical_block();
        let len = Sectors::from_bytes_floor(data.len() as u64);
        let mut fetched = FetchResult::default();
        let mut used: SmallVec<[usize; 4]> = SmallVec::new();
        let mut todo = vec![Part { into: Sectors::ZERO, len }];
        while let Some(part) = todo.pop() {
            let able: SmallVec<[(usize, Source<'_>); 4]> = sources
                .iter()
                .copied()
                .enumerate()
                .filter(|(place, _)| fetched.gone.iter().all(|(other, _)| other != place))
                .collect();
            let asked: SmallVec<[Source<'_>; 4]> = able.iter().map(|(_, source)| *source).collect();
            let (first, run) = first_copy(&asked, part.into, part.len, block);
            if run < part.len {
                todo.push(Part { into: part.into + run, len: part.len - run });
            }
            let part = Part { len: run, ..part };
            let Some((place, source)) = first.map(|first| able[first]) else {
                let gone = fetched.gone.last().map(|(_, status)| *status);
                fetched.lost.push((part, gone));
                continue;
            };
            match self.read_part(source, part, data).await {
                Ok(()) => used.push(place),
                Err(status) if !status.is_of_medium() => {
                    fetched.gone.push((place, status));
                    todo.push(part);
                }
                Err(_) if run > self.smallest_read() => {
                    let half = Sectors(run.0 / 2).round_up(self.smallest_read());
                    todo.push(Part { into: part.into + half, len: run - half });
                    todo.push(Part { into: part.into, len: half });
                }
                Err(status) => {
                    fetched.errors.push(place);
                    let others = able.iter().filter(|(other, _)| *other != place);
                    let others: SmallVec<[_; 4]> = others.copied().collect();
                    match self.read_elsewhere(&others, part, data).await {
                        Ok(other) => {
                            fetched.bad.push((place, part));
                            used.push(other);
                        }
                        Err(other) => {
                            let gone = fetched.gone.iter().map(|(_, status)| *status);
                            let all = [status].into_iter().chain(other).chain(gone);
                            fetched.lost.push((part, all.reduce(less_certain)));
                        }
                    }
                }
            }
        }
        let first = used.first().copied();
        fetched.only = first.filter(|first| used.iter().all(|place| place == first));
        fetched
    }

    /// Reads a block that its first source could not return. Returns the index of the source that
    /// could, or why none could.
    async fn read_elsewhere(
        &self,
        others: &[(usize, Source<'_>)],
        part: Part,
        data: &Segment,
    ) -> Result<usize, Option<Status>> {
        let mut error = None;
        for (place, source) in others {
            if !source.rdev.can_read(source.at + part.into, part.len) {
                continue;
            }
            match self.read_part(*source, part, data).await {
                Ok(()) => return Ok(*place),
                Err(status) => error = error.into_iter().chain([status]).reduce(less_certain),
            }
        }
        Err(error)
    }

    async fn read_part(
        &self,
        source: Source<'_>,
        part: Part,
        data: &Segment,
    ) -> Result<(), Status> {
        let result =
            source.rdev.submit(Bio::read(source.at + part.into, [slice(data, part)])).await;
        if let Err(status) = result {
            let (member, sector) = (source.rdev.path(), source.at + part.into);
            rate_limited!(warn, array = self.core.name(), member, %sector, %status, "read error");
        }
        result.and(self.core.is_current(source.index, source.rdev).await)
    }

    /// Writes data over the blocks that a source could not return, and reads them back. The caller has raised the barrier. A
    /// member that does not take or return them fails, unless it must stay.
    ///
    /// # Errors
    /// A member lacks the data but must stay, or its failure could not be recorded.
    pub(super) async fn repair(
        &self,
        sources: &[Source<'_>],
        fetched: &FetchResult,
        data: &Segment,
    ) -> BioResult {
        for (place, part) in &fetched.bad {
            let source = sources[*place];
            if !source.rdev.is_faulty() {
                self.core.overwrite(source, *part, data).await?;
            }
        }
        Ok(())
    }
}

/// Of two errors, the one after which the data may still exist.
fn less_certain(one: Status, other: Status) -> Status {
    if one == Status::Medium { other } else { one }
}
