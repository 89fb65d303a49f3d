//! Candidates that become members, and the bitmap that these have.

use ashlar_block::Sectors;

use super::{AssembleError, Options};
use crate::badblocks::BadBlocks;
use crate::bitmap::{self, ArrayFacts, Bitmap};
use crate::membership::rdev::{Rdev, State};
use crate::membership::slots::Place;
use crate::ondisk::Superblock;
use crate::personality::Personality;
use crate::probe::{Candidate, read_bad_blocks, read_whole_bitmap};

/// The candidate as a member, or a note on why it is left out.
pub(super) async fn join(
    candidate: &Candidate,
    place: Place,
    freshest: &Superblock,
    options: &Options,
    ignore_invalid_log: bool,
) -> Result<Result<Rdev, String>, AssembleError> {
    let Candidate { gateway, path, sb } = candidate;
    let block = gateway.disk().limits().logical_block();
    if !sb.data_offset.is_aligned(block) {
        let data_offset = Sectors(sb.data_offset.0);
        return Err(AssembleError::Misaligned { path: path.clone(), data_offset, block });
    }
    if !options.read_only && freshest.ppl.is_some() {
        // Its rows would not be logged.
        let Some(area) = sb.ppl_area() else {
            return Ok(Err("it has no partial parity log".into()));
        };
        if !area.start.is_aligned(block) {
            return Ok(Err(format!(
                "its partial parity log begins within one of its blocks, at sector {}",
                area.start
            )));
        }
    }
    if !options.read_only && gateway.disk().is_read_only() {
        return Err(AssembleError::ReadOnlyMember(path.clone()));
    }
    let bad = match read_bad_blocks(gateway, sb).await {
        Ok(Ok(bad)) => bad,
        Ok(Err(_)) if ignore_invalid_log => BadBlocks::none(),
        Ok(Err(why)) => return Err(AssembleError::BadBlocks { path: path.clone(), why }),
        Err(status) if options.read_only => return Ok(Err(status.to_string())),
        Err(status) => return Err(AssembleError::Read { path: path.clone(), status }),
    };
    let mut state = match place {
        Place::Slot(_) => State::empty(),
        Place::Replacement(_) => State::REPLACEMENT,
        Place::Spare => State::empty(),
    };
    let rebuilt = sb.recovery_offset.is_none() && place != Place::Spare;
    if rebuilt {
        state |= State::IN_SYNC;
    }
    let rdev = Rdev::new(gateway.clone(), path.clone(), sb, state, bad);
    if !rebuilt && !freshest.is_clean() {
        // It may lack writes that were under way, also in the rebuilt part.
        rdev.set_recovered(Sectors::ZERO);
        rdev.set_durably_recovered(Sectors::ZERO);
    }
    rdev.count_corrected(Sectors(sb.corrected_reads.into()));
    Ok(Ok(rdev))
}

/// The array's bitmap: a mark counts if any member in sync has it. Without a usable one (a note says
/// why) the whole array is resynced if needed, and the bitmap on the members goes out of date.
pub(super) async fn load_bitmap(
    freshest: &Superblock,
    personality: &Personality,
    members: &[(Rdev, Place, Box<Superblock>)],
    in_sync_to: Sectors,
    notes: &mut Vec<String>,
) -> Option<Bitmap> {
    if !personality.is_redundant() {
        return None;
    }
    let size = personality.sync_size();
    let with_bitmap = || {
        let all = members.iter().filter(|(_, place, _)| *place != Place::Spare);
        all.filter_map(|(rdev, _, sb)| Some((rdev, bitmap_area(rdev, sb)?, sb)))
    };
    let place = bitmap::Place {
        size,
        area: with_bitmap().map(|(_, area, _)| area).min()?,
        block: members.iter().map(|(rdev, ..)| rdev.limits().logical_block_bytes).max()?,
    };
    let in_sync = (0..personality.disks()).all(|slot| {
        let here =
            |place: &Place| matches!(place, Place::Slot(s) | Place::Replacement(s) if *s == slot);
        members.iter().any(|(rdev, place, _)| here(place) && rdev.is_in_sync())
    });
    let array = ArrayFacts {
        uuid: freshest.bitmap_uuid(),
        events: freshest.events,
        synced_to: in_sync_to.as_end(),
        complete: in_sync,
    };
    let mut found: Option<Bitmap> = None;
    for (rdev, _, sb) in with_bitmap().filter(|(rdev, ..)| rdev.is_in_sync()) {
        let bitmap = match read_whole_bitmap(rdev.gateway(), sb, place, array).await {
            Ok(bitmap) => bitmap,
            Err(why) => {
                notes.push(format!("the bitmap of {} is not used: {why}", rdev.path()));
                continue;
            }
        };
        found = Some(match found {
            Some(mut first) if !first.was_stale() && !bitmap.was_stale() => {
                first.absorb(&bitmap);
                first
            }
            Some(first) if !first.was_stale() => first,
            Some(_) | None => bitmap,
        });
    }
    found
}

/// Sectors from a member's bitmap to the next structure after it.
fn bitmap_area(rdev: &Rdev, sb: &Superblock) -> Option<Sectors> {
    let start = sb.bitmap_start()?;
    let behind = [
        Some(sb.data_offset),
        Some(sb.super_offset),
        sb.bad_block_log_start(),
        Some(rdev.gateway().capacity().as_end()),
    ];
    behind.into_iter().flatten().filter(|at| *at > start).min().map(|end| end - start)
}
