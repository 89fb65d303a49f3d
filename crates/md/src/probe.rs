//! Reads a device's md superblock.

use ashlar_block::{Gateway, Sector, Sectors, Status};
use thiserror::Error;

use crate::badblocks::BadBlocks;
use crate::bitmap::{ArrayFacts, Bitmap, BitmapError, Place};
use crate::ondisk::bad_block_log::BadBlockLogError;
use crate::ondisk::bitmap_super::{self, BitmapSuper};
use crate::ondisk::probe::{ProbeResult, identify, probe_ranges};
use crate::ondisk::{Features, Superblock, SuperblockError};

/// A device with a superblock.
#[derive(Clone)]
pub struct Candidate {
    /// The device.
    pub gateway: Gateway,
    /// Its path, for messages.
    pub path: String,
    /// Its superblock.
    pub sb: Box<Superblock>,
}

/// Why a device's superblock cannot be used.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The device cannot be read.
    #[error("cannot read the superblock: {0}")]
    Read(#[from] Status),
    /// The superblock is damaged or impossible.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
}

/// Reads and identifies all md superblocks of a device.
///
/// # Errors
/// The device cannot be read.
pub async fn probe_all(gateway: &Gateway) -> Result<ProbeResult, Status> {
    let size = gateway.capacity();
    let block = gateway.disk().limits().logical_block();
    let mut read = Vec::new();
    for (offset, len) in probe_ranges(size) {
        let start = Sector::from_bytes_floor(offset);
        // Whole blocks around the range; with larger blocks, a 4 KiB range lies inside one.
        let from = start.round_down(block);
        let to = (start + Sectors::from_bytes_ceil(len as u64)).round_up(block).min(size.as_end());
        let buffer = gateway.read(from, to - from).await?;
        let skip = (start - from).bytes() as usize;
        read.push((offset, buffer, skip));
    }
    let views: Vec<(u64, &[u8])> =
        read.iter().map(|(offset, buffer, skip)| (*offset, &buffer.as_slice()[*skip..])).collect();
    Ok(identify(size, &views))
}

/// The superblock that md would use; `None` if the device has none.
///
/// # Errors
/// It has one that cannot be used, or cannot be read.
pub async fn probe(gateway: &Gateway) -> Result<Option<Box<Superblock>>, ProbeError> {
    let probed = probe_all(gateway).await?;
    match probed.preferred {
        Some(result) => Ok(Some(result?)),
        None => Ok(None),
    }
}

/// The member's bad blocks. Unless the superblock says that the log is in use, the list is empty
/// (the log's place may hold old data).
///
/// # Errors
/// Outer: the log cannot be read. Inner: it is invalid.
pub(crate) async fn read_bad_blocks(
    gateway: &Gateway,
    sb: &Superblock,
) -> Result<Result<BadBlocks, BadBlockLogError>, Status> {
    let (Some(place), Some(at)) = (sb.bad_block_log, sb.bad_block_log_start()) else {
        return Ok(Ok(BadBlocks::none()));
    };
    if !sb.features.contains(Features::BAD_BLOCKS) {
        return Ok(BadBlocks::empty(&place));
    }
    let log = read_around(gateway, at, place.len).await?;
    Ok(BadBlocks::from_log(&log, place.shift))
}

/// Why a member's bitmap is not used.
#[derive(Debug, Error)]
pub(crate) enum ReadBitmapError {
    /// It cannot be read.
    #[error("cannot read it: {0}")]
    Read(#[from] Status),
    /// It is not a bitmap of this array.
    #[error(transparent)]
    Bitmap(#[from] BitmapError),
}

/// Reads a member's whole bitmap.
///
/// # Errors
/// It cannot be read or used.
pub(crate) async fn read_whole_bitmap(
    gateway: &Gateway,
    sb: &Superblock,
    place: Place,
    array: ArrayFacts,
) -> Result<Bitmap, ReadBitmapError> {
    let at = sb.bitmap_start().ok_or(Status::Invalid)?;
    let first = read_around(gateway, at, Sectors::from_bytes_ceil(place.block.into())).await?;
    let len = Bitmap::length(&first, place)?;
    Ok(Bitmap::load(&read_around(gateway, at, len).await?, place, array)?)
}

/// The superblock of the member's bitmap; `None` if there is no bitmap, or none that md would use.
///
/// # Errors
/// It cannot be read.
pub(crate) async fn read_bitmap(
    gateway: &Gateway,
    sb: &Superblock,
) -> Result<Option<BitmapSuper>, Status> {
    let Some(at) = sb.bitmap_start() else { return Ok(None) };
    let len = Sectors::from_bytes_ceil(bitmap_super::SIZE as u64);
    Ok(BitmapSuper::parse(&read_around(gateway, at, len).await?).ok())
}

/// Reads sectors of any alignment.
pub(crate) async fn read_around(
    gateway: &Gateway,
    at: Sector,
    len: Sectors,
) -> Result<Vec<u8>, Status> {
    let block = gateway.disk().limits().logical_block();
    let (from, to) = (at.round_down(block), (at + len).round_up(block));
    let buffer = gateway.read(from, to - from).await?;
    Ok(buffer.as_slice()[(at - from).bytes() as usize..][..len.bytes() as usize].to_vec())
}
