//! The choice of copies: which members hold a run of sectors, and in which order they are asked.
//!
//! Reads, named or not, resync, recovery and check all ask here. There are two rules:
//!
//! - Where copies are the same, a read goes to the member that costs least ([`Array::best_copy`]).
//! - Where copies may differ, the choice matters: reads return *the first readable copy*, block by
//!   block, and a sync must propagate that one. So both use [`first_copy`], whose result for a block
//!   does not depend on the length of the I/O that contains the block.
//!
//! I/O that passes the barrier asks after it has passed (see `members`).

use ashlar_block::stats::thread_shard;
use ashlar_block::{Bio, Sector, Sectors};
use smallvec::SmallVec;

use crate::array::Array;
use crate::canary::{Rule, broken};
use crate::members::Index;
use crate::rdev::Rdev;

/// A member's copy of a run of sectors.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) index: Index,
    pub(crate) rdev: &'a Rdev,
    /// Where the run begins in the member's data area.
    pub(crate) at: Sector,
}

/// The copies of a run on all members that have not failed, in their order of rank.
pub(crate) type Sources<'a> = SmallVec<[Source<'a>; 4]>;

impl Source<'_> {
    /// Whether the member can return the first `len` sectors of the run.
    pub(crate) fn can_read(&self, len: Sectors) -> bool {
        self.rdev.can_read(self.at, len)
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
pub(crate) fn first_copy(
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

impl Array {
    /// The copies of the run that begins at `sector`, on members that have not failed, in their order
    /// of rank: the map's order, but write-mostly members last, because with write-behind they may be
    /// behind.
    pub(crate) fn sources(&self, sector: Sector) -> Sources<'_> {
        let mut sources = Sources::new();
        let mut copies = self.personality.map(sector);
        copies.sort_by_key(|copy| self.members.counts_last(copy.disk));
        for copy in copies {
            for (index, rdev) in self.members.both(copy.disk) {
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
    /// of the least busy member. `None` if it cannot return all sectors: then the caller reads pieces.
    pub(crate) fn best_copy(&self, bio: &Bio) -> Option<Source<'_>> {
        if bio.end() > self.in_sync_to().as_end() && !broken(Rule::UnsyncedReadsFirst) {
            let (sources, block) = (self.sources(bio.sector), self.disk.limits().logical_block());
            let (first, run) = first_copy(&sources, Sectors::ZERO, bio.len, block);
            return first.filter(|_| run == bio.len).map(|first| sources[first]);
        }
        let shard = thread_shard();
        let mut best: Option<(u32, Source<'_>)> = None;
        // A plain loop, because reads spend their time here and iterator adapters keep extra state.
        for at in &self.personality.map(bio.sector) {
            for (index, rdev) in self.members.both(at.disk) {
                if !rdev.can_read(at.sector, bio.len) {
                    continue;
                }
                let cost = rdev.read_cost(shard, at.sector);
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, Source { index, rdev, at: at.sector }));
                }
            }
        }
        best.map(|(_, copy)| copy)
    }
}
