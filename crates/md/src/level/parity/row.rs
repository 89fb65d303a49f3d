//! Blocks of a row: read, and recovered from one another.

use ashlar_block::{Bio, Buffer, Sector, Sectors, Status, rate_limited};
use ashlar_parity::Block;
use smallvec::SmallVec;

use super::Parity;
use crate::core::ppl::{self, Ppl};
use crate::core::{Part, Source};
use crate::level::parts::Parts;
use crate::membership::rdev::Rdev;
use crate::membership::slots::Index;
use crate::raid5::Row;

/// The same range of all members within a row, by slot.
pub(super) struct Blocks {
    pub(super) row: Row,
    /// Where it begins in the members' data areas.
    pub(super) at: Sector,
    pub(super) len: Sectors,
    /// What was read, or recovered.
    pub(super) old: SmallVec<[Option<Buffer>; 8]>,
    /// What cannot be read, or must not be used.
    pub(super) lost: SmallVec<[bool; 8]>,
    /// Members that returned an error, and which.
    pub(super) failed: SmallVec<[(usize, Index, Status); 2]>,
}

impl Blocks {
    /// The bytes of a slot.
    ///
    /// # Errors
    /// [`Status::Io`] if they are not known: a defect.
    pub(super) fn known(&self, slot: usize) -> Result<&[u8], Status> {
        self.old[slot].as_ref().map(Buffer::as_slice).ok_or(Status::Io)
    }

    /// Memory for a block.
    pub(super) fn memory(&self) -> Result<Buffer, Status> {
        Buffer::try_alloc(self.len.bytes() as usize).ok_or(Status::Resource)
    }

    /// The slots with data, in the order of the row.
    pub(super) fn data(&self) -> impl Iterator<Item = usize> + use<> {
        let row = self.row;
        (0..row.data_disks()).map(move |index| row.data(index))
    }

    /// The whole range of the blocks.
    pub(super) fn whole(&self) -> Part {
        Part { into: Sectors::ZERO, len: self.len }
    }

    /// The member that holds or gets the block of a slot.
    pub(super) fn of<'a>(&self, index: Index, rdev: &'a Rdev) -> Source<'a> {
        Source { index, rdev, at: self.at }
    }
}

/// See [`ordered`].
pub(super) type Ordered<T> = SmallVec<[Option<T>; 8]>;

/// Blocks of data in the order that sums have them.
pub(super) fn ordered<T>(row: &Row, data: impl Iterator<Item = T>) -> Ordered<T> {
    let mut ordered = Ordered::new();
    for (index, block) in data.enumerate() {
        let place = row.exponent(row.data(index)).map_or(index, usize::from);
        if ordered.len() <= place {
            ordered.resize_with(place + 1, || None);
        }
        ordered[place] = Some(block);
    }
    ordered
}

impl Parity {
    /// The blocks of a range within one chunk. Nothing is read yet.
    pub(super) fn blocks(&self, at: Sector, len: Sectors) -> Blocks {
        let disks = self.geometry.disks();
        let mut old = SmallVec::new();
        old.resize_with(disks, || None);
        Blocks {
            row: self.geometry.row_at(at),
            at,
            len,
            old,
            lost: (0..disks).map(|slot| self.source(slot, at, len).is_none()).collect(),
            failed: SmallVec::new(),
        }
    }

    /// Reads the blocks of some slots that were not read yet; whether all could be read. Those that cannot are lost.
    ///
    /// # Errors
    /// There was no memory.
    pub(super) async fn read_blocks(
        &self,
        blocks: &mut Blocks,
        slots: impl Iterator<Item = usize>,
    ) -> Result<bool, Status> {
        let unread: SmallVec<[usize; 8]> =
            slots.filter(|slot| blocks.old[*slot].is_none()).collect();
        // Taken before the members are read.
        let replayed = self.core.ppl().and_then(Ppl::replayed);
        let mut parts = Parts::default();
        let mut all = true;
        for slot in unread.iter().copied() {
            let Some((index, rdev)) = self.source(slot, blocks.at, blocks.len) else {
                blocks.lost[slot] = true;
                all = false;
                continue;
            };
            let mut block = blocks.memory()?;
            parts.push(index, rdev.submit(Bio::read(blocks.at, [block.whole()])));
            blocks.old[slot] = Some(block);
        }
        parts.end().await;
        let slots = unread.iter().copied().filter(|slot| !blocks.lost[*slot]);
        let slots: SmallVec<[usize; 8]> = slots.collect();
        for (slot, (index, result)) in slots.into_iter().zip(parts.results()) {
            let Some(rdev) = self.core.members.get(index) else { continue };
            let read = match result {
                Ok(()) => self.core.is_current(index, rdev).await,
                Err(status) => {
                    rdev.count_read_error();
                    Err(status)
                }
            };
            if let Err(status) = read {
                blocks.old[slot] = None;
                if status == Status::Resource {
                    return Err(status);
                }
                let (array, member, sector) = (self.core.name(), rdev.path(), blocks.at);
                rate_limited!(warn, array, member, %sector, %status, "read error in the rest of a row");
                blocks.lost[slot] = true;
                blocks.failed.push((slot, index, status));
                all = false;
            }
        }
        for (replayed, slot) in
            replayed.iter().flat_map(|new| unread.iter().map(move |slot| (new, slot)))
        {
            if let Some(block) = &mut blocks.old[*slot] {
                ppl::lay_over(replayed, *slot, blocks.at, block);
            }
        }
        Ok(all)
    }

    /// Reads what is needed to recover the data that are lost, and recovers them. What cannot be read meanwhile is lost, too; P is used
    /// rather than Q, as in Linux.
    ///
    /// # Errors
    /// [`Status::Medium`] if too much is lost.
    pub(super) async fn restore(&self, blocks: &mut Blocks) -> Result<(), Status> {
        let row = blocks.row;
        let parity = loop {
            let missing = blocks.data().filter(|slot| blocks.lost[*slot]).count();
            let known = [Some(row.p), row.q].into_iter().flatten();
            let parity: SmallVec<[usize; 2]> =
                known.filter(|slot| !blocks.lost[*slot]).take(missing).collect();
            if parity.len() < missing {
                return Err(Status::Medium);
            }
            let data = blocks.data().filter(|slot| !blocks.lost[*slot]);
            let needed: SmallVec<[usize; 8]> = data.chain(parity.iter().copied()).collect();
            if self.read_blocks(blocks, needed.into_iter()).await? {
                break parity;
            }
        };
        for slot in blocks.data() {
            if blocks.lost[slot] {
                blocks.old[slot] = Some(blocks.memory()?);
            }
        }
        let lost = &blocks.lost;
        let mut taken: Ordered<Block<'_>> = SmallVec::new();
        for (block, lost) in blocks.old.iter_mut().zip(lost) {
            taken.push(block.as_mut().map(|block| match lost {
                true => Block::Lost(block.as_mut_slice()),
                false => Block::Known(block.as_slice()),
            }));
        }
        let mut used = |slot: usize| taken[slot].take().filter(|_| parity.contains(&slot));
        let (p, q) = (used(row.p), row.q.and_then(used));
        let data = (0..row.data_disks()).map(|index| taken[row.data(index)].take());
        let mut ordered: Ordered<Block<'_>> =
            ordered(&row, data).into_iter().map(Option::flatten).collect();
        ashlar_parity::recover(&mut ordered, p, q).map_err(|_| Status::Medium)
    }

    /// Recovers what the member in `slot`, which holds data there, has in a range within one chunk, by `way`.
    ///
    /// # Errors
    /// [`Status::Medium`] if too much is lost.
    pub(super) async fn recover(
        &self,
        slot: usize,
        (at, len): (Sector, Sectors),
        way: &Way,
    ) -> Result<Buffer, Status> {
        let mut blocks = self.blocks(at, len);
        let row = blocks.row;
        let avoided = way.without.map(|index| row.data(index));
        let unused = [(row.p, way.p)].into_iter().chain(row.q.map(|q| (q, way.q)));
        let unused = unused.filter(|(_, used)| !used).map(|(slot, _)| slot);
        for slot in [slot].into_iter().chain(avoided).chain(unused) {
            blocks.lost[slot] = true;
        }
        self.restore(&mut blocks).await?;
        blocks.old[slot].take().ok_or(Status::Medium)
    }
}

/// Which blocks of a row may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Way {
    /// Whether P may be used.
    pub(super) p: bool,
    /// Whether Q may be used.
    pub(super) q: bool,
    /// A further data chunk of the row that must not be used, as its number in the row.
    pub(super) without: Option<usize>,
}

impl Way {
    /// All that can be read.
    pub(super) const fn any() -> Self {
        Self { p: true, q: true, without: None }
    }
}
