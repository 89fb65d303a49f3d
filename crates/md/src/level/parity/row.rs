//! Recovery of a block from the rest of its row.

use ashlar_block::{Buffer, Sector, Sectors, Status};
use ashlar_parity::Block;
use futures_util::future::join_all;
use smallvec::SmallVec;

use super::ParityLevel;

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
    /// All that can be read, P rather than Q, as in Linux.
    pub(super) const fn any() -> Self {
        Self { p: true, q: true, without: None }
    }
}

impl ParityLevel {
    /// Recovers what the member in `slot`, which holds data there, has in a range within one chunk. A member that cannot be read counts as
    /// lost, too; what is lost is recovered as long as there is parity for it.
    ///
    /// # Errors
    /// [`Status::Medium`] if too much is lost.
    pub(super) async fn recover(
        &self,
        slot: usize,
        at: Sector,
        len: Sectors,
        way: &Way,
    ) -> Result<Buffer, Status> {
        let (row, disks) = (self.geometry.row_at(at), self.geometry.disks());
        let mut lost: Vec<bool> =
            (0..disks).map(|other| self.source(other, at, len).is_none()).collect();
        lost[slot] = true;
        if let Some(index) = way.without {
            lost[row.data(index)] = true;
        }
        lost[row.p] |= !way.p;
        if let Some(q) = row.q {
            lost[q] |= !way.q;
        }
        let data = || (0..self.geometry.data_disks()).map(|index| row.data(index));
        let mut blocks: Vec<Option<Buffer>> = Vec::new();
        blocks.resize_with(disks, || None);
        loop {
            let missing = data().filter(|slot| lost[*slot]).count();
            let parity: SmallVec<[usize; 2]> =
                [Some(row.p), row.q].into_iter().flatten().filter(|slot| !lost[*slot]).collect();
            let parity = parity.get(..missing).ok_or(Status::Medium)?;
            let needed = data().filter(|slot| !lost[*slot]).chain(parity.iter().copied());
            let unread: Vec<usize> = needed.filter(|slot| blocks[*slot].is_none()).collect();
            if unread.is_empty() {
                break;
            }
            let reads = unread.iter().map(|slot| self.read_member(*slot, at, len));
            for (slot, read) in unread.iter().zip(join_all(reads).await) {
                match read {
                    Ok(block) => blocks[*slot] = Some(block),
                    Err(Status::Resource) => return Err(Status::Resource),
                    Err(_) => lost[*slot] = true,
                }
            }
        }
        for slot in data().filter(|slot| lost[*slot]) {
            let block = Buffer::try_alloc(len.bytes() as usize).ok_or(Status::Resource)?;
            blocks[slot] = Some(block);
        }

        let mut taken: Vec<Option<Block<'_>>> = Vec::new();
        for (block, lost) in blocks.iter_mut().zip(&lost) {
            taken.push(block.as_mut().map(|block| match lost {
                true => Block::Lost(block.as_mut_slice()),
                false => Block::Known(block.as_slice()),
            }));
        }
        let p = taken[row.p].take();
        let q = row.q.and_then(|q| taken[q].take());
        // In the order that Q has, if there is one.
        let mut ordered: Vec<Option<Block<'_>>> = Vec::new();
        for (index, slot) in data().enumerate() {
            let place = row.exponent(slot).map_or(index, usize::from);
            if ordered.len() <= place {
                ordered.resize_with(place + 1, || None);
            }
            ordered[place] = taken[slot].take();
        }
        ashlar_parity::recover(&mut ordered, p, q).map_err(|_| Status::Medium)?;
        drop((taken, ordered));
        blocks.swap_remove(slot).ok_or(Status::Medium)
    }
}
