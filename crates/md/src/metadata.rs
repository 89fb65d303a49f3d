//! Writes of metadata to members, within blocks that may hold other data.

use ashlar_block::{Bio, Flags, Gateway, Sector, Sectors, Status};

use crate::ondisk::Superblock;

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
