//! Superblocks: each one that a device has room for is read and checked; a bad one is rewritten
//! from the best one of the same device, unless it is a valid superblock of another file system or
//! device. Where the device has several copies below the file system, each of them is checked.

use ashlar_block::{Buffer, CopyNumber, Flags, Sectors, Status};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use super::counters::Tally;
use super::problem::{Problem, ProblemKind, Repair, Sink, SuperError};
use crate::ondisk::superblock::{OFFSETS, SUPERBLOCK_SIZE, Superblock};
use crate::units::Physical;
use crate::volume::{Device, FileSystem, Owner};

/// A superblock.
const LEN: Sectors = Sectors::from_bytes_floor(SUPERBLOCK_SIZE as u64);

/// Reads a copy of the superblock at `at`, and checks that it belongs to this device.
async fn read(
    device: &Device,
    at: Physical,
    copy: CopyNumber,
) -> Result<Box<Superblock>, SuperError> {
    let bytes = device.gateway.read_copy(at.sector(), LEN, copy).await.map_err(SuperError::Read)?;
    let found = Superblock::parse(bytes.as_slice(), at).map_err(SuperError::Bad)?;
    let owner = Owner::of(&found);
    if owner != Owner::of(&device.superblock) {
        return Err(SuperError::Foreign { fsid: owner.fsid, device: owner.device });
    }
    Ok(found)
}

/// The copies of the superblock at `at`: the device, or each copy that it has below.
fn copies(device: &Device, at: Physical) -> SmallVec<[CopyNumber; 4]> {
    let copies: SmallVec<[CopyNumber; 4]> = device.gateway.alternates(at.sector(), LEN).collect();
    if copies.is_empty() { SmallVec::from_iter([CopyNumber::ANY]) } else { copies }
}

/// A copy went away with its member.
fn is_gone(copy: CopyNumber, read: &Result<Box<Superblock>, SuperError>) -> bool {
    copy != CopyNumber::ANY && matches!(read, Err(SuperError::Read(Status::Invalid)))
}

/// Scrubs the superblocks of a device.
pub(super) async fn scrub(
    fs: &FileSystem,
    device: &Device,
    read_only: bool,
    tally: &Tally,
    sink: &dyn Sink,
) {
    let wanted = fs.superblock().generation.get();
    let mut all = Vec::new();
    for at in OFFSETS {
        if at.0 + SUPERBLOCK_SIZE as u64 > device.total_bytes {
            break;
        }
        for copy in copies(device, at) {
            let read = read(device, at, copy).await;
            if !is_gone(copy, &read) {
                all.push((at, copy, read));
            }
        }
    }
    let mut best: Option<Box<Superblock>> = None;
    for (_, _, found) in &all {
        if let Ok(found) = found
            && best.as_ref().is_none_or(|best| best.generation.get() < found.generation.get())
        {
            best = Some(found.clone());
        }
    }
    // If the device missed transactions, none of its superblocks is good.
    let best = best.filter(|best| best.generation.get() == wanted);
    for same in all.chunk_by(|a, b| a.0 == b.0) {
        let at = same[0].0;
        let bad: Vec<(CopyNumber, SuperError)> = same
            .iter()
            .filter_map(|(_, copy, found)| match found {
                Ok(found) if found.generation.get() == wanted => None,
                Ok(found) => {
                    let found = found.generation.get();
                    Some((*copy, SuperError::Generation { found, wanted }))
                }
                Err(error) => Some((*copy, error.clone())),
            })
            .collect();
        let is_foreign = bad.iter().any(|(_, why)| matches!(why, SuperError::Foreign { .. }));
        let repair = match &best {
            _ if bad.is_empty() => continue,
            // This may be all that is left of another file system; a bad one here does no harm.
            Some(_) if is_foreign => Repair::Impossible,
            None => Repair::Impossible,
            Some(_) if read_only => Repair::NotTried,
            Some(best) => Repair::of_write(write(fs, device, best, at).await),
        };
        // If no copy is good, it is the superblock that is bad.
        let is_whole = bad.len() == same.len();
        let told = if is_whole { 1 } else { bad.len() };
        for (copy, error) in bad.into_iter().take(told) {
            tally.count(|counters| counters.super_errors += 1);
            sink.problem(&Problem {
                devid: device.devid,
                physical: at,
                len: SUPERBLOCK_SIZE as u32,
                logical: None,
                mirror: None,
                copy: if is_whole { CopyNumber::ANY } else { copy },
                kind: ProblemKind::Super(error),
                repair,
                tree: None,
            });
        }
    }
}

/// Writes `best` to `at`, and reads all copies back.
async fn write(
    fs: &FileSystem,
    device: &Device,
    best: &Superblock,
    at: Physical,
) -> Result<(), Status> {
    let mut copy = best.clone();
    if at == OFFSETS[0] && best.bytenr.get() != at.0 {
        // `fsync` records a log tree only in the first copies: take it from another device.
        let logged = |other: &&Device| {
            other.superblock.generation == best.generation && other.superblock.log_root.get() != 0
        };
        if let Some(other) = fs.devices().iter().find(logged) {
            copy.log_root = other.superblock.log_root;
            copy.log_root_level = other.superblock.log_root_level;
        }
    }
    copy.bytenr = at.0.into();
    let kind = copy.csum_kind();
    copy.csum = Default::default();
    let csum = copy.checksum(kind);
    copy.csum[..kind.size()].copy_from_slice(csum.as_bytes());
    let mut buffer = Buffer::from_slice(copy.as_bytes());
    device.gateway.write(at.sector(), &mut buffer, Flags::FUA).await?;
    for number in copies(device, at) {
        let back = read(device, at, number).await;
        match back {
            _ if is_gone(number, &back) => {}
            Ok(back) if *back == copy => {}
            Err(SuperError::Read(status)) => return Err(status),
            Ok(_)
            | Err(
                SuperError::Bad(_) | SuperError::Generation { .. } | SuperError::Foreign { .. },
            ) => return Err(Status::Protection),
        }
    }
    Ok(())
}
