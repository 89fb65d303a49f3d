//! Reads one mirror of the file system's space, and rebuilds from parity what no device stores.
//!
//! Mirrors of parity rows beyond the first are numbered as in the kernel (`fs/btrfs/raid56.c`):
//!
//! | mirror | considered lost, besides the requested bytes |
//! |---|---|
//! | 2 | nothing: rebuild from P |
//! | 3 (RAID6) | P: rebuild from Q |
//! | 4 and up (RAID6) | another data stripe each: rebuild from P and Q |
//!
//! What cannot be read is also considered lost, as long as there is parity for it.
//!
//! A device may have several copies of each place (a RAID1 below the file system). A plain read shows
//! one of them; [`FileSystem::legs`] names all, so that a reader with a checksum can try every
//! combination. A rebuild from parity reads its row plainly: a wrong copy in another column is
//! found and repaired by the scrub of that column's device.

use ashlar_block::{CopyNumber, Sectors};
use ashlar_parity::Block;
use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};

use crate::chunk_map::Row;
use crate::error::ReadError;
use crate::ondisk::chunk::{Chunk, Profile, STRIPE_LEN};
use crate::units::{Leg, Logical, MirrorNum, Physical};
use crate::volume::FileSystem;

/// A part of one parity row, as wide as the row and at most [`STRIPE_LEN`] long.
struct RowPart<'a> {
    chunk: &'a Chunk,
    /// The chunk's stripes in the order data, P, Q.
    columns: Row,
    /// Offset from the start of each stripe.
    offset: u64,
    len: u64,
}

impl FileSystem {
    /// The ways to read bytes that are in one chunk, in the order in which to try them: of each
    /// mirror the plain read, then every copy that its device has below.
    pub fn legs(&self, start: Logical, len: u64) -> impl Iterator<Item = Leg> {
        let mirrors = self.chunks().get(start).map_or(1, |chunk| chunk.mirrors());
        (1..=mirrors).flat_map(move |mirror| self.legs_of(start, len, MirrorNum(mirror)))
    }

    /// Those of one mirror. The device is asked for its copies only once the plain read was not enough.
    pub(crate) fn legs_of(
        &self,
        start: Logical,
        len: u64,
        mirror: MirrorNum,
    ) -> impl Iterator<Item = Leg> {
        let copies = move || {
            let copies = self.copies(start, len, mirror);
            (1..=copies).filter(move |_| copies > 1)
        };
        let copies = std::iter::once_with(copies).flatten();
        let named = copies.map(move |copy| Leg { mirror, copy: CopyNumber(copy) });
        std::iter::once(mirror.into()).chain(named)
    }

    /// How many copies of a mirror its devices have: the most that a part of it has. It counts
    /// them where the chunk has the bytes; a device's copies are the same where the RAID stripe
    /// tree has them.
    fn copies(&self, start: Logical, len: u64, mirror: MirrorNum) -> u16 {
        let (mut done, mut most) = (0, 1);
        while done < len {
            let place = start
                .checked_add(done)
                .and_then(|at| self.chunks().get(at).and_then(|chunk| chunk.locate(at, mirror)));
            // A mirror that is rebuilt from parity has no place.
            let Some(place) = place else { break };
            let part = place.len.min(len - done);
            if let Some(device) = self.device(place.devid) {
                let (at, part) = (place.at.sector(), Sectors::from_bytes_floor(part));
                most = most.max(device.gateway.copies(at, part));
            }
            done += part;
        }
        most
    }

    /// Reads a stored mirror, or rebuilds it from parity.
    ///
    /// # Errors
    /// The address is in no chunk, the mirror's device is missing or failed or has no such copy, or a
    /// row has lost more than its parity can restore.
    pub async fn read_mirror(
        &self,
        start: Logical,
        len: u64,
        leg: impl Into<Leg>,
    ) -> Result<Vec<u8>, ReadError> {
        let Leg { mirror, copy } = leg.into();
        let mut all = Vec::new();
        while (all.len() as u64) < len {
            let done = all.len() as u64;
            let at = start.checked_add(done).ok_or(ReadError::Unmapped(start))?;
            let chunk = self.chunks().get(at).ok_or(ReadError::Unmapped(at))?;
            match chunk.locate(at, mirror) {
                Some(location) => {
                    let part = location.len.min(len - done);
                    let bytes = self.read_device(location.devid, location.at, part, copy).await?;
                    all.extend_from_slice(bytes.as_slice());
                }
                None => all.extend(self.rebuild(chunk, at, len - done, mirror).await?),
            }
        }
        Ok(all)
    }

    /// Rebuilds the bytes at `at` from the rest of their row, up to the end of their strip.
    async fn rebuild(
        &self,
        chunk: &Chunk,
        at: Logical,
        len: u64,
        mirror: MirrorNum,
    ) -> Result<Vec<u8>, ReadError> {
        let beyond = ReadError::Row(at);
        let parities = chunk.profile.parities();
        if parities == 0 || mirror.0 < 2 || mirror.0 > chunk.mirrors() {
            return Err(beyond);
        }
        let offset = at.0 - chunk.start.0;
        let (strip, within) = (offset / STRIPE_LEN, offset % STRIPE_LEN);
        let data = chunk.data_stripes();
        let (row, wanted) = (strip / data, (strip % data) as usize);
        let part = RowPart {
            chunk,
            columns: chunk.row(row),
            offset: row * STRIPE_LEN + within,
            len: len.min(STRIPE_LEN - within).min(chunk.length - offset),
        };
        // A row cut off by the end of its chunk has no parity.
        if part.offset + part.len > chunk.stripe_length() {
            return Err(beyond);
        }
        let mut lost: SmallVec<[usize; 4]> = smallvec![wanted];
        lost.extend(also_lost(chunk, wanted, mirror));
        // Q is only read if P is not enough.
        let spare_q = chunk.profile == Profile::Raid6 && mirror.0 == 2;
        let q = part.columns.len() - 1;
        let mut stripes = vec![vec![0; part.len as usize]; part.columns.len()];
        let is_read = |column: &usize| !(lost.contains(column) || spare_q && *column == q);
        let needed: SmallVec<[usize; 8]> = (0..part.columns.len()).filter(is_read).collect();
        let reads = join_all(needed.iter().map(|column| self.read_column(&part, *column))).await;
        for (column, read) in needed.into_iter().zip(reads) {
            match read {
                Ok(bytes) => stripes[column] = bytes,
                Err(_) => lost.push(column),
            }
        }
        if lost.len() > parities {
            return Err(beyond);
        }
        if spare_q && lost.len() == 2 {
            stripes[q] = self.read_column(&part, q).await.map_err(|_| beyond.clone())?;
        }
        let block = |(column, bytes)| match lost.contains(&column) {
            true if (column as u64) < data => Some(Block::Lost(bytes)),
            // Nobody wants lost parity.
            true => None,
            false if spare_q && column == q && lost.len() < 2 => None,
            false => Some(Block::Known(bytes)),
        };
        let slices = stripes.iter_mut().map(Vec::as_mut_slice);
        let mut blocks: SmallVec<[_; 8]> = slices.enumerate().map(block).collect();
        let q = if parities == 2 { blocks.pop().flatten() } else { None };
        let p = blocks.pop().flatten();
        ashlar_parity::recover(&mut blocks, p, q).map_err(|_| beyond)?;
        drop(blocks);
        Ok(stripes.swap_remove(wanted))
    }

    async fn read_column(&self, part: &RowPart<'_>, column: usize) -> Result<Vec<u8>, ReadError> {
        let stripe = &part.chunk.stripes[part.columns[column]];
        // The chunk was checked: its stripes do not exceed the address space.
        let at = Physical(stripe.offset.0 + part.offset);
        let bytes = self.read_device(stripe.devid, at, part.len, CopyNumber::ANY).await?;
        Ok(bytes.as_slice().to_vec())
    }
}

/// The column of the row that `mirror` considers lost besides `wanted`.
fn also_lost(chunk: &Chunk, wanted: usize, mirror: MirrorNum) -> Option<usize> {
    let data = chunk.data_stripes() as usize;
    match usize::from(mirror.0) {
        0..=2 => None,
        3 => Some(data),
        // Mirror 4 is the last of the other data stripes, and so on downwards.
        mirror => {
            let others = (0..data).filter(|column| *column != wanted);
            others.rev().nth(mirror - 4)
        }
    }
}
