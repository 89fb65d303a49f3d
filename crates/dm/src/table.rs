//! A table: adjacent pieces, each with its target.

use std::fmt;

use ashlar_block::{
    Bio, BioResult, Disk, Extents, Features, Limits, Op, Sector, Sectors, Status, gateway, trace,
};
use futures_util::future::join_all;
use thiserror::Error;
use tracing::warn;

use crate::snapshot::Changes;
use crate::target::{
    Arguments, Context, Target, TargetError, TargetParameters, construct, type_names, zero,
};
use crate::text::Line;

/// Why a table cannot be loaded. Pieces are counted from 1.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LoadError {
    /// The table is empty.
    #[error("the table is empty: a device has at least one piece")]
    Empty,
    /// A piece has no sectors.
    #[error("piece {piece} is empty: give it a length")]
    EmptyPiece {
        /// The piece.
        piece: usize,
    },
    /// A piece does not start where the previous one ends, or the first one not at 0.
    #[error("piece {piece} starts at {start}, but must at {want}: pieces are adjacent")]
    NotAdjacent {
        /// The piece.
        piece: usize,
        /// Its start.
        start: Sector,
        /// The required start.
        want: Sector,
    },
    /// The device would be larger than the addressable maximum.
    #[error("piece {piece} ends beyond 2^64 bytes")]
    TooLarge {
        /// The piece.
        piece: usize,
    },
    /// The type is unknown.
    #[error("piece {piece}: there is no target '{kind}', only {}", names())]
    UnknownType {
        /// The piece.
        piece: usize,
        /// The type.
        kind: String,
    },
    /// The target cannot be constructed.
    #[error("piece {piece}: {kind}: {error}")]
    Target {
        /// The piece.
        piece: usize,
        /// The type.
        kind: String,
        /// The reason.
        error: TargetError,
    },
    /// A block would be in two pieces, one of which cannot process a part of it.
    #[error("piece {piece} does not begin on a block of {block} sectors, which its device wants")]
    Unaligned {
        /// The piece, or one more than there are if the last block is incomplete.
        piece: usize,
        /// The required block size.
        block: Sectors,
    },
    /// The device is in use with another logical block size.
    #[error("device {device} has blocks of {now} bytes, the table needs {wanted}: recreate it")]
    BlockSize {
        /// The device.
        device: String,
        /// Its logical block size.
        now: u32,
        /// Logical block size of the table.
        wanted: u32,
    },
}

fn names() -> String {
    type_names().collect::<Vec<_>>().join(", ")
}

struct Piece {
    start: Sector,
    end: Sector,
    target: Box<dyn Target>,
}

/// Pieces that cover `[0, capacity)` without gaps.
pub struct Table {
    /// Ascending; at least one.
    pieces: Box<[Piece]>,
    limits: Limits,
}

impl Table {
    /// Constructs the targets of `lines` on the devices that they name.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub async fn load(lines: &[Line], context: &Context<'_>) -> Result<Self, LoadError> {
        let mut targets = Vec::with_capacity(lines.len());
        let mut at = Sector::ZERO;
        for (index, line) in lines.iter().enumerate() {
            let piece = index + 1;
            if line.start != at {
                return Err(LoadError::NotAdjacent { piece, start: line.start, want: at });
            }
            at = end_of(piece, at, line.len)?;
            let parameters =
                TargetParameters { len: line.len, args: Arguments::new(&line.args), context };
            let kind = &line.kind;
            let made = construct(kind, parameters)
                .ok_or_else(|| LoadError::UnknownType { piece, kind: kind.clone() })?;
            let failed = |error| LoadError::Target { piece, kind: kind.clone(), error };
            targets.push((line.len, made.await.map_err(failed)?));
        }
        Self::of(targets)
    }

    /// A table of existing targets, with the lengths of their pieces.
    ///
    /// # Errors
    /// There are no targets, or the lengths are invalid.
    pub fn of(targets: Vec<(Sectors, Box<dyn Target>)>) -> Result<Self, LoadError> {
        if targets.is_empty() {
            return Err(LoadError::Empty);
        }
        let mut pieces = Vec::with_capacity(targets.len());
        let mut start = Sector::ZERO;
        for (index, (len, target)) in targets.into_iter().enumerate() {
            let end = end_of(index + 1, start, len)?;
            pieces.push(Piece { start, end, target });
            start = end;
        }
        let limits = stack(&pieces)?;
        Ok(Self { pieces: pieces.into(), limits })
    }

    /// A table in place of `old`, on which all I/O fails.
    pub(crate) fn failing(old: &Self) -> Self {
        let (start, end) = (Sector::ZERO, old.capacity().as_end());
        let piece = Piece { start, end, target: Box::new(zero::Nothing::<false>) };
        Self { pieces: [piece].into(), limits: old.limits }
    }

    /// The size of the device.
    pub fn capacity(&self) -> Sectors {
        let end = self.pieces.last().map_or(Sector::ZERO, |piece| piece.end);
        end - Sector::ZERO
    }

    /// The combined limits of targets and lower devices.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The target that contains `sector`.
    pub fn target(&self, sector: Sector) -> Option<&dyn Target> {
        Some(&*self.piece(sector)?.target)
    }

    pub(crate) fn targets(&self) -> impl Iterator<Item = &dyn Target> {
        self.pieces.iter().map(|piece| &*piece.target)
    }

    /// The output of `dmsetup status`: a line per piece.
    pub fn status(&self) -> String {
        self.describe(|target| target.status())
    }

    fn describe(&self, words: impl Fn(&dyn Target) -> String) -> String {
        let line = |piece: &Piece| {
            let (len, kind) = (piece.end - piece.start, piece.target.type_name());
            // As in dmsetup: the blank is always there.
            format!("{} {len} {kind} {}\n", piece.start, words(&*piece.target))
        };
        self.pieces.iter().map(line).collect()
    }

    #[inline]
    fn piece(&self, sector: Sector) -> Option<&Piece> {
        match &*self.pieces {
            [only] => (sector < only.end).then_some(only),
            pieces => pieces.get(pieces.partition_point(|piece| piece.end <= sector)),
        }
    }

    /// The copies of a range that a read can name: the most that a part of it has.
    pub(crate) fn copies(&self, at: Sector, len: Sectors) -> u16 {
        let end = (at + len).min(self.capacity().as_end());
        let first = self.pieces.partition_point(|piece| piece.end <= at);
        let pieces = self.pieces[first..].iter().take_while(|piece| piece.start < end);
        let of_piece = |piece: &Piece| {
            let (from, to) = (at.max(piece.start), end.min(piece.end));
            piece.target.copies((from - piece.start).as_end(), to - from)
        };
        pieces.map(of_piece).max().unwrap_or(1)
    }

    /// What is known of a range without reading it, which may be less than the range.
    pub(crate) async fn extents(&self, at: Sector, len: Sectors) -> Result<Extents, Status> {
        // A table that was loaded meanwhile may end earlier.
        let end = at.checked_add(len).ok_or(Status::Io)?.min(self.capacity().as_end());
        let mut extents = Extents::new(at);
        while extents.end() < end {
            let at = extents.end();
            let piece = self.piece(at).ok_or(Status::Io)?;
            let to = end.min(piece.end);
            let found = piece.target.extents((at - piece.start).as_end(), to - at).await?;
            extents.append(&found.moved_to(at), to);
            if extents.end() < to {
                // The target answered for less, or there is no room.
                break;
            }
        }
        Ok(extents)
    }

    /// Where a snapshot that is one of the targets may differ from its origin.
    pub(crate) fn changes(&self) -> Option<Changes> {
        self.targets().find_map(Target::changes)
    }

    /// Whether a device below may still execute a change that it did not answer in time.
    pub(crate) fn holds_changes(&self) -> bool {
        let mut holds = false;
        for piece in &self.pieces {
            piece.target.iterate_devices(&mut |device| holds |= device.holds_changes());
        }
        holds
    }

    /// Maps a bio. Trace points fire for `disk`, the device of this table.
    pub(crate) async fn submit(&self, disk: &Disk, bio: Bio) -> BioResult {
        if bio.op == Op::Flush {
            return Box::pin(self.flush(disk, bio)).await;
        }
        // A held bio may be beyond the end of a table that was loaded meanwhile.
        if bio.end() > self.capacity().as_end() {
            return Err(Status::Io);
        }
        match self.piece(bio.sector) {
            Some(piece) if piece.takes(&bio) == bio.len => piece.submit(disk, bio).await,
            Some(_) => Box::pin(self.submit_split(disk, bio)).await,
            None => Err(Status::Io),
        }
    }

    /// Sends a flush to every target.
    pub(crate) async fn flush(&self, disk: &Disk, bio: Bio) -> BioResult {
        self.flush_all(disk, &bio).await.into_iter().collect()
    }

    /// The same, before a suspension: an error of a target that had already lost everything is
    /// ignored. A target that loses everything in this flush returns an error, so that the loss is
    /// noticed.
    pub(crate) async fn settle(&self, disk: &Disk) -> BioResult {
        let lost: Vec<bool> = self.targets().map(|target| target.is_lost()).collect();
        let results = self.flush_all(disk, &Bio::flush()).await;
        let targets = self.targets().zip(lost);
        let mut failed = targets.zip(results).filter_map(|((target, lost), result)| {
            let status = result.err()?;
            if !lost {
                return Some(status);
            }
            let kind = target.type_name();
            warn!(device = disk.name(), kind, %status, "what is lost anyway cannot be flushed");
            None
        });
        failed.next().map_or(Ok(()), Err)
    }

    async fn flush_all(&self, disk: &Disk, bio: &Bio) -> Vec<BioResult> {
        let flushes = self.pieces.iter().map(|piece| {
            piece.trace(disk, bio, Sector::ZERO);
            piece.target.submit(bio.clone())
        });
        join_all(flushes).await
    }

    /// Submits the parts of a bio that is in several pieces, or too long for its target. As in the
    /// gateway: started parts are waited for, and after an error no more are started.
    async fn submit_split(&self, disk: &Disk, mut bio: Bio) -> BioResult {
        if bio.is_refusable()
            && let Some(piece) = self.piece(bio.sector)
        {
            // By the first part, or not at all.
            let len = piece.takes(&bio);
            trace::split(disk, &bio, len);
            let first = bio.split_front(len);
            piece.submit(disk, first).await?;
            bio = bio.insisting();
        }
        let mut rest = Some(bio);
        let next = || {
            let mut bio = rest.take()?;
            let piece = self.piece(bio.sector)?;
            let len = piece.takes(&bio);
            if len == bio.len {
                return Some(piece.submit(disk, bio));
            }
            trace::split(disk, &bio, len);
            let front = bio.split_front(len);
            rest = Some(bio);
            Some(piece.submit(disk, front))
        };
        gateway::windowed(std::iter::from_fn(next), gateway::SPLIT_WINDOW).await
    }
}

/// The output of `dmsetup table`: lines that produce this table again.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(|target| target.arguments()))
    }
}

impl Piece {
    /// How much of the start of `bio` the target accepts at once.
    #[inline]
    fn takes(&self, bio: &Bio) -> Sectors {
        let max = match bio.op {
            Op::Read | Op::Write | Op::Flush => self.target.max_io_len(),
            Op::Discard | Op::WriteZeroes => self.target.max_range_len(),
        };
        let left = bio.len.min(self.end - bio.sector);
        if max.is_zero() {
            return left;
        }
        left.min(Sectors(max.0 - (bio.sector - self.start).0 % max.0))
    }

    /// Fires the trace points of a bio that comes from sector `from` of the whole device.
    #[inline]
    fn trace(&self, disk: &Disk, bio: &Bio, from: Sector) {
        if trace::is_active() {
            self.target.remaps(bio, &mut |lower, bio| trace::remap(lower, bio, disk, from));
        }
    }

    #[inline]
    async fn submit(&self, disk: &Disk, mut bio: Bio) -> BioResult {
        let from = bio.sector;
        bio.sector = (from - self.start).as_end();
        self.trace(disk, &bio, from);
        let (op, sector) = (bio.op, bio.sector);
        let result = self.target.submit(bio).await;
        if let Err(status) = result
            && op.has_data()
        {
            self.target.failed(op, sector, status);
        }
        result
    }
}

fn end_of(piece: usize, start: Sector, len: Sectors) -> Result<Sector, LoadError> {
    if len.is_zero() {
        return Err(LoadError::EmptyPiece { piece });
    }
    let end = start.checked_add(len).filter(|end| end.0 <= u64::MAX >> 9);
    end.ok_or(LoadError::TooLarge { piece })
}

fn stack(pieces: &[Piece]) -> Result<Limits, LoadError> {
    let mut limits = Limits::stacking();
    let mut all_discard = true;
    let mut blocks = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let mut own = Limits::stacking();
        piece.target.stack_limits(&mut own);
        let own = own.finish_stacking();
        all_discard &= !own.max_hw_discard.is_zero();
        blocks.push(own.logical_block());
        limits.stack(&own, Sector::ZERO);
    }
    check_blocks(pieces, &blocks, limits.logical_block())?;
    let mut limits = limits.finish_stacking();
    if !all_discard {
        // As in the kernel: a device supports discards only if all pieces do.
        limits.max_hw_discard = Sectors::ZERO;
        limits.features -= Features::DISCARD_ZEROES;
    }
    // The gateways of lower devices split at their boundaries; this device only at its own.
    limits.chunk_sectors = Sectors::ZERO;
    // A later table may have a cache where this one has none: flushes must always be passed down.
    limits.features |= Features::WRITE_CACHE | Features::FUA;
    Ok(limits)
}

/// A block of the device may span several pieces only if each can process its part of it (the
/// kernel's `validate_hardware_logical_block_alignment`).
fn check_blocks(pieces: &[Piece], blocks: &[Sectors], block: Sectors) -> Result<(), LoadError> {
    // The part of the last block that the next piece must process.
    let mut rest = 0;
    for (index, (piece, own)) in pieces.iter().zip(blocks).enumerate() {
        let len = (piece.end - piece.start).0;
        if rest < len && !rest.is_multiple_of(own.0) {
            return Err(LoadError::Unaligned { piece: index + 1, block: *own });
        }
        let into = piece.end.0 % block.0;
        rest = if into == 0 { 0 } else { block.0 - into };
    }
    if rest != 0 {
        return Err(LoadError::Unaligned { piece: pieces.len() + 1, block });
    }
    Ok(())
}
