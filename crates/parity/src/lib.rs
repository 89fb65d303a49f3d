//! Parity of RAID 4, 5 and 6 as Linux has it in md, dm-raid and btrfs, and recovery from it.
//!
//! # Theory
//!
//! The data blocks `D[i]` of a row are protected by P, and with RAID 6 also by Q. For each byte, in a
//! field of 256 elements whose element 2 generates all but zero (see the module `field`):
//!
//! ```text
//! P = sum of D[i]          Q = sum of 2^i * D[i]          (a sum is an exclusive or)
//! ```
//!
//! Here `i` is the *exponent* of a block, not the number of its member. Functions take the data of Q
//! as a slice whose index is the exponent; the entry of an exponent without a block is `None`, which
//! counts as zeroes (a "zero set") and costs no memory. So the caller alone knows an order:
//!
//! | format | exponents |
//! |---|---|
//! | md's own layouts | 0, 1, 2 ... for the data members from the one after Q, cyclically |
//! | md's DDF layouts | the number of the member; those of P and Q are `None` |
//! | btrfs | the number of the data stripe |
//!
//! What is lost is recovered thus, x and y being exponents, p and q being P and Q without the share of
//! the blocks that remain:
//!
//! | lost | recovered by |
//! |---|---|
//! | a data block, with or without Q | `D[x] = p`, then Q |
//! | P, Q, or both | their definition |
//! | a data block and P | `D[x] = q / 2^x`, then P |
//! | two data blocks | `D[x] = (2^y * p + q) / (2^x + 2^y)`, `D[y] = D[x] + p` |
//!
//! Sources: `lib/raid6`, `drivers/md/raid5.c` (`raid6_d0`, `set_syndrome_sources`) and
//! `fs/btrfs/raid56.c` of Linux; H. P. Anvin, "The mathematics of RAID-6".
//!
//! All blocks of a call have the same length in bytes, which may be any, even zero; multiples of 256 are
//! fastest. P and Q are made in one pass over memory, which sums a piece of all blocks in registers.
//! The version for the processor is chosen once per call; [`kind`] names it.

#![forbid(unsafe_code)]

mod field;
#[cfg(target_arch = "x86_64")]
mod gfni;
mod kernel;
#[cfg(test)]
mod tests;

use kernel::{Add, Compare, Nothing, Piece, Sink, Source, Write, WriteWith};
use thiserror::Error;

/// Exponents that Q can distinguish: 0 to 254.
pub const EXPONENTS: usize = field::ORDER;

/// Why parity cannot be computed or used. Nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ParityError {
    /// Blocks differ in length.
    #[error("a block has {found} bytes, but the blocks of its row have {wanted}")]
    Length {
        /// Its length in bytes.
        found: usize,
        /// The length of an earlier block.
        wanted: usize,
    },
    /// The row is too wide for Q.
    #[error("Q cannot protect {blocks} blocks, at most {EXPONENTS}")]
    Exponents {
        /// Number of blocks, counting those of zeroes.
        blocks: usize,
    },
    /// More data blocks are lost than parity is known.
    #[error("{lost} data blocks are lost, but only {parities} parity blocks are known")]
    TooManyLost {
        /// Number of lost data blocks.
        lost: usize,
        /// Number of known parity blocks.
        parities: usize,
    },
}

/// A new content of a block.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The content that P and Q protect.
    pub old: &'a [u8],
    /// The content that they are to protect.
    pub new: &'a [u8],
}

/// A block of a row from which something is lost.
#[derive(Debug)]
pub enum Block<'a> {
    /// Its content is known.
    Known(&'a [u8]),
    /// Its content is lost, and will be recovered into these bytes, whatever they are.
    Lost(&'a mut [u8]),
}

/// Which parity does not fit the data.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Mismatch {
    /// P was given, and some byte of it is wrong.
    pub p: bool,
    /// The same of Q.
    pub q: bool,
}

/// Writes the sum of the sources: P, the data block that P recovers, or a part of P. Without
/// sources it is zeroes.
///
/// # Errors
/// Lengths differ.
pub fn xor(sum: &mut [u8], sources: &[&[u8]]) -> Result<(), ParityError> {
    let len = length(sources, [Some(sum.len()), None])?;
    kernel::fold(sources, len, Write(sum), Nothing);
    Ok(())
}

/// Writes P, Q, or both, of the `data` in the order of their exponents.
///
/// # Errors
/// Lengths differ, or there are more than [`EXPONENTS`] for Q.
pub fn pq(
    data: &[Option<&[u8]>],
    p: Option<&mut [u8]>,
    q: Option<&mut [u8]>,
) -> Result<(), ParityError> {
    let len = row(data, [&p, &q].map(|block| block.as_ref().map(|block| block.len())))?;
    sums(data, len, p.map(Write), q.map(Write));
    Ok(())
}

/// Updates P, Q, or both, for changes of some blocks of a row, in the order of their exponents;
/// blocks that do not change are `None`.
///
/// # Errors
/// Lengths differ, or there are more than [`EXPONENTS`] for Q.
pub fn pq_delta(
    changes: &[Option<Change<'_>>],
    p: Option<&mut [u8]>,
    q: Option<&mut [u8]>,
) -> Result<(), ParityError> {
    let len = row(changes, [&p, &q].map(|block| block.as_ref().map(|block| block.len())))?;
    sums(changes, len, p.map(Add), q.map(Add));
    Ok(())
}

/// Compares P, Q, or both, with the `data` in the order of their exponents.
///
/// # Errors
/// Lengths differ, or there are more than [`EXPONENTS`] for Q.
pub fn check(
    data: &[Option<&[u8]>],
    p: Option<&[u8]>,
    q: Option<&[u8]>,
) -> Result<Mismatch, ParityError> {
    let len = row(data, [p, q].map(|block| block.map(<[u8]>::len)))?;
    let mut differs = Mismatch::default();
    let p = p.map(|p| Compare(p, &mut differs.p));
    let q = q.map(|q| Compare(q, &mut differs.q));
    sums(data, len, p, q);
    Ok(differs)
}

/// Recovers the lost blocks of a row; `data` are in the order of their exponents, and all are known
/// afterwards. A parity that is `None` is neither used nor written.
///
/// Known blocks are assumed to be right. If one data block is lost and both P and Q are known, P is
/// used, as in Linux.
///
/// # Errors
/// Lengths differ, there are more than [`EXPONENTS`] for Q, or too many are lost. Then `data` is
/// unchanged.
pub fn recover<'a>(
    data: &mut [Option<Block<'a>>],
    p: Option<Block<'a>>,
    q: Option<Block<'a>>,
) -> Result<(), ParityError> {
    let len = row(data, [&p, &q].map(|block| block.lengths()[0]))?;
    let ((known_p, lost_p), (known_q, lost_q)) = (split(p), split(q));
    let lost = data.iter().filter(|block| matches!(block, Some(Block::Lost(_)))).count();
    let parities = known_p.iter().chain(&known_q).count();
    if lost > parities {
        return Err(ParityError::TooManyLost { lost, parities });
    }
    // Without an entry, lost blocks do not count in the sums.
    match (take_lost(data), take_lost(data), known_p, known_q) {
        (Some((x, first)), Some((y, second)), Some(p), Some(q)) => {
            kernel::fold(data, len, WriteWith(first, p), WriteWith(second, q));
            kernel::solve(first, second, field::of_two(x, y));
            data[x] = Some(Block::Known(first));
            data[y] = Some(Block::Known(second));
        }
        (Some((x, block)), None, Some(p), _) => {
            kernel::fold(data, len, WriteWith(block, p), Nothing);
            data[x] = Some(Block::Known(block));
        }
        (Some((x, block)), None, None, Some(q)) => {
            kernel::fold(data, len, Nothing, WriteWith(block, q));
            kernel::scale(block, field::invert(field::power(x)));
            data[x] = Some(Block::Known(block));
        }
        // Nothing of the data is lost, or, as was checked above, too much.
        _ => {}
    }
    sums(data, len, lost_p.map(Write), lost_q.map(Write));
    Ok(())
}

/// The instructions that run on this processor: `avx512+gfni`, `avx2+gfni`, `avx2`, `neon` or `portable`.
pub fn kind() -> &'static str {
    kernel::kind()
}

/// Passes sums of the sources to their sinks.
fn sums<K: Sink>(sources: &[impl Source], len: usize, p: Option<K>, q: Option<K>) {
    match (p, q) {
        (Some(p), Some(q)) => kernel::fold(sources, len, p, q),
        (Some(p), None) => kernel::fold(sources, len, p, Nothing),
        (None, Some(q)) => kernel::fold(sources, len, Nothing, q),
        (None, None) => {}
    }
}

/// The known or the lost bytes of a block.
fn split(block: Option<Block<'_>>) -> (Option<&[u8]>, Option<&mut [u8]>) {
    match block {
        Some(Block::Known(bytes)) => (Some(bytes), None),
        Some(Block::Lost(bytes)) => (None, Some(bytes)),
        None => (None, None),
    }
}

/// Removes the first lost block from a row; returns its exponent, too.
fn take_lost<'a>(data: &mut [Option<Block<'a>>]) -> Option<(usize, &'a mut [u8])> {
    let lost = data.iter_mut().enumerate().find(|(_, block)| matches!(block, Some(Block::Lost(_))));
    lost.and_then(|(exponent, block)| Some((exponent, split(block.take()).1?)))
}

/// The length of all blocks of a row, with those of P and Q.
fn row(data: &[impl Source], parity: [Option<usize>; 2]) -> Result<usize, ParityError> {
    if parity[1].is_some() && data.len() > EXPONENTS {
        return Err(ParityError::Exponents { blocks: data.len() });
    }
    length(data, parity)
}

/// The length that all sources and others have.
fn length(sources: &[impl Source], others: [Option<usize>; 2]) -> Result<usize, ParityError> {
    let lengths = sources.iter().flat_map(Source::lengths).chain(others).flatten();
    let mut wanted = None;
    for found in lengths {
        let wanted = *wanted.get_or_insert(found);
        if found != wanted {
            return Err(ParityError::Length { found, wanted });
        }
    }
    Ok(wanted.unwrap_or(0))
}

impl Source for Option<Change<'_>> {
    fn lengths(&self) -> [Option<usize>; 2] {
        [self.map(|change| change.old.len()), self.map(|change| change.new.len())]
    }

    #[inline(always)]
    fn bytes<const N: usize>(&self, piece: Piece<N>) -> Option<[u8; N]> {
        self.map(|change| kernel::add(piece.of(change.old), piece.of(change.new)))
    }
}

impl Source for Option<Block<'_>> {
    fn lengths(&self) -> [Option<usize>; 2] {
        let len = |block: &Block<'_>| match block {
            Block::Known(bytes) => bytes.len(),
            Block::Lost(bytes) => bytes.len(),
        };
        [self.as_ref().map(len), None]
    }

    #[inline(always)]
    fn bytes<const N: usize>(&self, piece: Piece<N>) -> Option<[u8; N]> {
        match self {
            Some(Block::Known(bytes)) => Some(piece.of(bytes)),
            Some(Block::Lost(_)) | None => None,
        }
    }
}
