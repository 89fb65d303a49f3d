//! Writes of metadata to members, within blocks that may hold other data.

use std::ops::Range;

use ashlar_block::bio::Segments;
use ashlar_block::{Bio, Buffer, Flags, Gateway, Sector, Sectors, Status};

use crate::ondisk::Superblock;
use crate::ondisk::ppl::{HEADER, Log};

/// Writes bytes durably, completing their first and last logical block from the device.
///
/// # Errors
/// The device's.
pub(crate) async fn write_within(
    gateway: &Gateway,
    at: Sector,
    bytes: &[u8],
) -> Result<(), Status> {
    let block = gateway.disk().limits().logical_block();
    let from = at.round_down(block);
    let to = (at + Sectors::from_bytes_ceil(bytes.len() as u64)).round_up(block);
    let mut buffer = gateway.read(from, to - from).await?;
    let skip = (at - from).bytes() as usize;
    buffer.as_mut_slice()[skip..skip + bytes.len()].copy_from_slice(bytes);
    let bio = Bio::write_from(from, &mut buffer).with_flags(Flags::FUA | Flags::META);
    gateway.submit(bio).await
}

/// Writes a superblock durably to its place.
///
/// # Errors
/// The device's; [`Status::Invalid`] for a superblock that cannot be encoded.
pub(crate) async fn write_superblock(gateway: &Gateway, sb: &Superblock) -> Result<(), Status> {
    let block = gateway.disk().limits().logical_block_bytes;
    let bytes = sb.encode(block).map_err(|_| Status::Invalid)?;
    write_within(gateway, sb.super_offset, &bytes).await
}

/// Overwrites the area of a partial parity log, durably, with `log` alone, which has no partial parity, or with nothing.
///
/// # Errors
/// The device's, or that there is no memory.
pub(crate) async fn write_empty(
    gateway: &Gateway,
    area: Range<Sector>,
    log: Option<&Log>,
    signature: u32,
) -> Result<(), Status> {
    let mut len = area.end - area.start;
    let mut segments = Segments::new();
    if let Some(log) = log {
        segments.push(Buffer::from_slice(&log.encode(signature)).into_whole());
        len -= HEADER;
    }
    segments.extend(zeroes(len)?);
    gateway.submit(durable(area.start, segments)).await
}

/// A durable write of metadata.
pub(crate) fn durable(at: Sector, segments: Segments) -> Bio {
    Bio::write(at, segments).with_flags(Flags::FUA | Flags::META | Flags::SYNC)
}

/// The longest run of zeroes in memory.
const ZEROES: Sectors = Sectors(256);

/// Segments of zeroes, which share their memory.
///
/// # Errors
/// [`Status::Resource`]: there is no memory.
pub(crate) fn zeroes(len: Sectors) -> Result<Segments, Status> {
    let most = len.min(ZEROES).bytes() as usize;
    let memory = Buffer::try_zeroed(most).ok_or(Status::Resource)?.into_whole();
    let mut left = len.bytes() as usize;
    let mut segments = Segments::new();
    while left > 0 {
        let part = memory.slice(0..left.min(most));
        left -= part.len();
        segments.push(part);
    }
    Ok(segments)
}
