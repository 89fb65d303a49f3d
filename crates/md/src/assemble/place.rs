//! The place of each candidate in an array, as the freshest member knows it.

use super::{AssembleError, Options, check_same_shape};
use crate::membership::slots::Place;
use crate::ondisk::{Features, Role, Superblock};
use crate::probe::Candidate;

/// The place of a candidate, or a note on why it is not used.
pub(super) fn place_of(
    candidate: &Candidate,
    freshest: &Superblock,
    freshest_path: &str,
    options: &Options,
) -> Result<Result<Place, String>, AssembleError> {
    let sb = &candidate.sb;
    let known = freshest.role_of(sb.dev_number);
    if sb.level.is_redundant() && sb.data_size < freshest.size {
        return Ok(Err("it is smaller than what the array uses of each member".to_owned()));
    }
    if known == Role::Spare && sb.role() == Role::Spare {
        return Ok(match options.read_only {
            true => Err("it is a spare".to_owned()),
            false if sb.version != freshest.version => {
                Err(format!("its superblock has version {}", sb.version))
            }
            false => Ok(Place::Spare),
        });
    }
    if let Err(why) = check_current(sb, freshest) {
        return Ok(Err(why));
    }
    check_same_shape(candidate, freshest, freshest_path)?;
    Ok(usable(sb, known, options))
}

/// Whether a member has missed no more than the last event.
pub(super) fn check_current(sb: &Superblock, freshest: &Superblock) -> Result<(), String> {
    if sb.events.saturating_add(1) < freshest.events {
        return Err(format!("it is out of date (events {} of {})", sb.events, freshest.events));
    }
    Ok(())
}

/// Whether a member has the slot that the freshest member knows it in.
pub(super) fn check_slot(sb: &Superblock, known: Role) -> Result<(), String> {
    if sb.role() != known {
        return Err("it and the freshest member disagree about its slot".to_owned());
    }
    Ok(())
}

/// The place of a member that has the array's data, or why it has none.
fn usable(sb: &Superblock, known: Role, options: &Options) -> Result<Place, String> {
    let slot = match known {
        Role::Active(slot) => usize::from(slot),
        Role::Faulty => return Err("the other members know it as failed".to_owned()),
        // Power failed when only its own superblock recorded the slot: it has no data of the slot.
        Role::Spare if sb.recovery_offset.is_some() && !options.read_only => {
            return Ok(Place::Spare);
        }
        Role::Spare => return Err("the other members know it as a spare".to_owned()),
        Role::Journal => return Err("it is a journal".to_owned()),
    };
    check_slot(sb, known)?;
    if let Some(done) = sb.recovery_offset.filter(|_| options.read_only) {
        return Err(format!("it was being rebuilt, {done} sectors are done"));
    }
    let replaces = sb.features.contains(Features::REPLACEMENT);
    Ok(if replaces { Place::Replacement(slot) } else { Place::Slot(slot) })
}
