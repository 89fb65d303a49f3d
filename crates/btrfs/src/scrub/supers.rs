//! Superblocks: each copy that a device has room for is read and checked; a bad one is rewritten
//! from the best one of the same device, unless it is a valid superblock of another file system or
//! device.

use ashlar_block::{Buffer, Flags, Sectors, Status};
use zerocopy::IntoBytes;

use super::counters::Tally;
use super::problem::{Problem, ProblemKind, Repair, Sink, SuperError};
use crate::ondisk::superblock::{OFFSETS, SUPERBLOCK_SIZE, Superblock};
use crate::units::Physical;
use crate::volume::{Device, FileSystem, Owner};

/// Reads the superblock at `at`, and checks that it belongs to this device.
async fn read(device: &Device, at: Physical) -> Result<Box<Superblock>, SuperError> {
    let (sector, len) = (at.sector(), Sectors::from_bytes_floor(SUPERBLOCK_SIZE as u64));
    let bytes = device.gateway.read(sector, len).await.map_err(SuperError::Read)?;
    let found = Superblock::parse(bytes.as_slice(), at).map_err(SuperError::Bad)?;
    let owner = Owner::of(&found);
    if owner != Owner::of(&device.superblock) {
        return Err(SuperError::Foreign { fsid: owner.fsid, device: owner.device });
    }
    Ok(found)
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
    let mut copies = Vec::new();
    for at in OFFSETS {
        if at.0 + SUPERBLOCK_SIZE as u64 > device.total_bytes {
            break;
        }
        copies.push((at, read(device, at).await));
    }
    let mut best: Option<Box<Superblock>> = None;
    for (_, copy) in &copies {
        if let Ok(copy) = copy
            && best.as_ref().is_none_or(|best| best.generation.get() < copy.generation.get())
        {
            best = Some(copy.clone());
        }
    }
    // If the device missed transactions, none of its superblocks is good.
    let best = best.filter(|best| best.generation.get() == wanted);
    for (at, copy) in copies {
        let error = match copy {
            Ok(copy) if copy.generation.get() == wanted => continue,
            Ok(copy) => SuperError::Generation { found: copy.generation.get(), wanted },
            Err(error) => error,
        };
        let repair = match &best {
            // This may be all that is left of another file system; a bad copy here does no harm.
            Some(_) if matches!(error, SuperError::Foreign { .. }) => Repair::Impossible,
            None => Repair::Impossible,
            Some(_) if read_only => Repair::NotTried,
            Some(best) => match write(fs, device, best, at).await {
                Ok(()) => Repair::Done,
                Err(status) => Repair::Failed(status),
            },
        };
        tally.count(|counters| counters.super_errors += 1);
        sink.problem(&Problem {
            devid: device.devid,
            physical: at,
            len: SUPERBLOCK_SIZE as u32,
            logical: None,
            mirror: None,
            kind: ProblemKind::Super(error),
            repair,
            tree: None,
        });
    }
}

/// Writes `best` to `at`, and reads it back.
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
    match read(device, at).await {
        Ok(back) if *back == copy => Ok(()),
        Ok(_) | Err(SuperError::Bad(_)) => Err(Status::Protection),
        Err(SuperError::Read(status)) => Err(status),
        Err(SuperError::Generation { .. } | SuperError::Foreign { .. }) => Err(Status::Protection),
    }
}
