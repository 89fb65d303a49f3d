//! Members whose superblocks are wrong. With [`Options::run`](super::Options::run) a redundant array may
//! start without them: the kernel leaves these devices out, too.

use super::error::AssembleError;
use crate::ondisk::{Level, Role, Superblock};
use crate::probe::Candidate;

/// The first property of the array in which two superblocks differ.
pub(super) fn disagreement(sb: &Superblock, other: &Superblock) -> Option<&'static str> {
    // A member that is behind may have missed a change of the size, or of the number of mirrors.
    let is_as_fresh = sb.events == other.events;
    let same_size = sb.level == Level::Raid0 || !is_as_fresh || sb.size == other.size;
    let may_have_grown = sb.level == Level::Raid1 && !is_as_fresh;
    let same_number = may_have_grown || sb.raid_disks == other.raid_disks;
    let facts = [
        ("metadata version", sb.version == other.version),
        ("level", sb.level == other.level),
        ("layout", sb.layout == other.layout),
        ("chunk size", sb.chunk == other.chunk),
        ("number of members", same_number),
        ("size", same_size),
    ];
    facts.iter().find(|(_, same)| !same).map(|(what, _)| *what)
}

/// Leaves out members that contradict more than half of all equally fresh members. Without such a
/// majority it is unknown which are right: then all stay, and the disagreement is an error.
pub(super) fn leave_out_odd(candidates: &mut Vec<Candidate>, notes: &mut Vec<String>) {
    let is_active = |c: &&Candidate| matches!(c.sb.role(), Role::Active(_));
    let most = candidates.iter().filter(is_active).map(|c| c.sb.events).max().unwrap_or(0);
    let is_fresh = |c: &&Candidate| is_active(c) && c.sb.events.saturating_add(1) >= most;
    let fresh: Vec<&Candidate> = candidates.iter().filter(is_fresh).collect();
    let agrees = |one: &Candidate, other: &Candidate| disagreement(&one.sb, &other.sb).is_none();
    let leads = |one: &&&Candidate| {
        fresh.iter().filter(|other| agrees(one, other)).count() * 2 > fresh.len()
    };
    let Some(leader) = fresh.iter().find(leads).map(|leader| leader.sb.clone()) else { return };
    candidates.retain(|candidate| {
        let odd = is_fresh(&candidate).then(|| disagreement(&candidate.sb, &leader)).flatten();
        if let Some(what) = odd {
            let path = &candidate.path;
            notes.push(format!("{path} left out: most members know another {what} of the array"));
        }
        odd.is_none()
    });
}

/// Whether the error concerns a single member, and is permanent.
pub(super) fn is_impossible(error: &AssembleError) -> bool {
    match error {
        AssembleError::Misaligned { .. }
        | AssembleError::BadBlocks { .. }
        | AssembleError::Read { .. } => true,
        AssembleError::NoMembers
        | AssembleError::OtherArray { .. }
        | AssembleError::Unsupported(_)
        | AssembleError::Disagree { .. }
        | AssembleError::SameMember { .. }
        | AssembleError::SameSlot { .. }
        | AssembleError::SplitBrain { .. }
        | AssembleError::NotEnough { .. }
        | AssembleError::NeedsRun { .. }
        | AssembleError::ReadOnlyMember(_)
        | AssembleError::UsedElsewhere(_)
        | AssembleError::Personality(_) => false,
    }
}
