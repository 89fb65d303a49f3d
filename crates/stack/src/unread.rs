//! The probed parts of a device that cannot be read, and what they may hide.
//!
//! A sector that cannot be read says nothing about the others. But a signature may be in it: of an owner that must keep others from
//! writing to the device. Which one depends on the place: an md superblock has four places, LVM's label and a partition table are
//! in the first sectors, which are the place of a superblock, too. ZFS writes its label four times, so that one part that cannot be
//! read hides no pool.

use std::fmt;
use std::ops::Range;

use ashlar_block::{Gateway, Presence, Sector, Sectors, Status};
use ashlar_md::ondisk::Version;
use ashlar_md::ondisk::superblock_1::BLOCK_SIZE;
use ashlar_zfs::ondisk::layout::{LABEL_BYTES, LABELS, label_offset};

use crate::signature::Image;

/// What is read at a time where a larger part cannot be read: a superblock of md, a physical block of most disks.
const STEP: Sectors = Sectors(8);
/// Reads that may fail in one of the probed parts before the rest of it counts as unreadable: a disk may take seconds for each.
const MOST_FAILURES: usize = 16;
/// The first bytes, where LVM's label and partition tables are.
const FIRST_BYTES: Range<u64> = 0..2048;

/// See the module text. At least one part cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unread {
    /// In bytes, ascending.
    ranges: Vec<Range<u64>>,
    status: Status,
    /// The device's size.
    size: Sectors,
}

impl Unread {
    /// The error of the first read that failed.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The owner whose signature may be in these parts; with `whole`, only arrays count as owners.
    pub fn hidden_owner(&self, whole: bool) -> Option<&'static str> {
        let superblocks = Version::ALL.iter().filter_map(|v| v.super_offset(self.size));
        if superblocks.map(|at| at.bytes()).any(|at| self.touches(&(at..at + BLOCK_SIZE as u64))) {
            return Some("an md superblock");
        }
        if whole {
            return None;
        }
        if self.touches(&FIRST_BYTES) {
            return Some("a partition table or an LVM label");
        }
        let label = |index| {
            let at = label_offset(self.size.bytes(), index)?;
            Some(at..at + LABEL_BYTES as u64)
        };
        // Of an old pool, a later owner may have left the labels at one end.
        let ends = [0..LABELS / 2, LABELS / 2..LABELS];
        let is_lost =
            |mut end: Range<usize>| end.all(|n| label(n).is_some_and(|l| self.touches(&l)));
        ends.into_iter().any(is_lost).then_some("labels of ZFS")
    }

    fn touches(&self, range: &Range<u64>) -> bool {
        self.ranges.iter().any(|lost| lost.start < range.end && range.start < lost.end)
    }
}

impl fmt::Display for Unread {
    /// `cannot be read at 0x1000 to 0x2000: critical medium error`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot be read at ")?;
        for (n, Range { start, end }) in self.ranges.iter().enumerate() {
            let separator = if n == 0 { "" } else { ", " };
            write!(f, "{separator}{start:#x} to {end:#x}")?;
        }
        write!(f, ": {}", self.status)
    }
}

/// The parts of a device that may contain signatures, as far as they can be read, and those that cannot.
///
/// # Errors
/// Nothing can be read, or the device does not answer.
pub(crate) async fn read_image(gateway: &Gateway) -> Result<(Image, Option<Unread>), Status> {
    let size = gateway.capacity();
    let block = gateway.disk().limits().logical_block();
    let mut image = Image::new(size.bytes());
    let (mut ranges, mut first, mut is_any) = (Vec::new(), None, false);
    for range in Image::wanted(size.bytes()) {
        let from = Sector::from_bytes_floor(range.start).round_down(block);
        let end = from + (Sectors::from_bytes_ceil(range.end) - Sectors(from.0));
        let status = match gateway.read(from, end - from).await {
            Ok(buffer) => {
                image.add(from.bytes(), buffer.as_slice().to_vec());
                is_any = true;
                continue;
            }
            Err(status) => status,
        };
        first.get_or_insert(status);
        let Pieces { parts, lost } = read_pieces(gateway, from, end, status).await?;
        is_any |= !parts.is_empty();
        for (at, bytes) in parts {
            image.add(at, bytes);
        }
        ranges.extend(lost);
    }
    match first {
        None => Ok((image, None)),
        Some(status) if !is_any => Err(status),
        // A second attempt may have read all.
        Some(_) if ranges.is_empty() => Ok((image, None)),
        Some(status) => Ok((image, Some(Unread { ranges, status, size }))),
    }
}

/// A part of a device in pieces: offsets in bytes with what was read there, and the ranges of bytes that cannot be read.
#[derive(Default)]
struct Pieces {
    parts: Vec<(u64, Vec<u8>)>,
    lost: Vec<Range<u64>>,
}

/// Reads a part of a device block by block, after a read of all of it failed with `status`.
///
/// # Errors
/// The device does not answer: each further read might wait until its deadline.
async fn read_pieces(
    gateway: &Gateway,
    from: Sector,
    end: Sector,
    status: Status,
) -> Result<Pieces, Status> {
    let mut pieces = Pieces::default();
    let step = gateway.disk().limits().logical_block().max(STEP);
    let (mut at, mut failures, mut status) = (from, 0, Some(status));
    while at < end {
        if let Some(status) = status.take()
            && (!is_of_the_medium(status) || gateway.disk().presence() != Presence::Answering)
        {
            return Err(status);
        }
        let len = if failures < MOST_FAILURES { step.min(end - at) } else { end - at };
        let next = at + len;
        let read = match failures < MOST_FAILURES {
            true => gateway.read(at, len).await,
            false => Err(Status::Medium),
        };
        match read {
            Ok(buffer) => match pieces.parts.last_mut() {
                Some((start, bytes)) if *start + bytes.len() as u64 == at.bytes() => {
                    bytes.extend_from_slice(buffer.as_slice());
                }
                Some(_) | None => pieces.parts.push((at.bytes(), buffer.as_slice().to_vec())),
            },
            Err(why) => {
                (failures, status) = (failures + 1, Some(why));
                match pieces.lost.last_mut() {
                    Some(lost) if lost.end == at.bytes() => lost.end = next.bytes(),
                    Some(_) | None => pieces.lost.push(at.bytes()..next.bytes()),
                }
            }
        }
        at = next;
    }
    Ok(pieces)
}

/// Whether an error concerns the sectors that were asked for, and not the device.
const fn is_of_the_medium(status: Status) -> bool {
    match status {
        Status::Medium | Status::Io | Status::Protection | Status::Target => true,
        Status::NotSupported
        | Status::Timeout
        | Status::NoSpace
        | Status::Transport
        | Status::Resource
        | Status::Again
        | Status::Offline
        | Status::Invalid
        | Status::Conflict
        | Status::ReadOnly => false,
    }
}
