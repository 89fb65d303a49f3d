//! Which block of a RAID 6 row is wrong: with P and Q the row can tell, if only one is.
//!
//! Facts: H. Peter Anvin, "The mathematics of RAID-6", section 4, which mdadm's raid6check follows.

use std::ops::Range;

use ashlar_block::Status;
use ashlar_parity::Block;
use smallvec::SmallVec;

use super::row::{Blocks, ordered};

/// The data chunk whose bytes `range` alone make both P and Q wrong, as its slot, and what they should be. `None` if more than one block
/// is wrong, or P or Q alone.
///
/// # Errors
/// [`Status::Io`]: blocks are not known, a defect.
pub(super) fn liar(
    blocks: &Blocks,
    range: &Range<usize>,
) -> Result<Option<(usize, Vec<u8>)>, Status> {
    let row = blocks.row;
    let Some(q) = row.q else { return Ok(None) };
    let of = |slot: usize| blocks.known(slot).map(|block| &block[range.clone()]);
    let (p, q) = (of(row.p)?, of(q)?);
    let slots: SmallVec<[usize; 8]> = blocks.data().collect();
    let data: SmallVec<[&[u8]; 8]> =
        slots.iter().map(|slot| of(*slot)).collect::<Result<_, _>>()?;
    let known = ordered(&row, data.iter().copied());
    let wrong = ashlar_parity::check(&known, Some(p), Some(q)).map_err(|_| Status::Io)?;
    if !(wrong.p && wrong.q) {
        return Ok(None);
    }
    let mut found = None;
    for (number, slot) in slots.iter().enumerate() {
        let mut right = vec![0; range.len()];
        let mut lost = Some(right.as_mut_slice());
        let blocks = data.iter().enumerate().map(|(other, block)| match other == number {
            true => Block::Lost(lost.take().unwrap_or_default()),
            false => Block::Known(block),
        });
        let mut taken = ordered(&row, blocks);
        ashlar_parity::recover(&mut taken, Some(Block::Known(p)), None).map_err(|_| Status::Io)?;
        drop(taken);
        let all = data.iter().enumerate().map(|(other, block)| match other == number {
            true => right.as_slice(),
            false => *block,
        });
        let fits = ashlar_parity::check(&ordered(&row, all), None, Some(q));
        if !fits.map_err(|_| Status::Io)?.q {
            if found.is_some() {
                return Ok(None);
            }
            found = Some((*slot, right));
        }
    }
    Ok(found)
}
