//! Members whose superblocks are wrong. With [`Options::run`](super::Options::run) a redundant array may
//! start without them: the kernel leaves these devices out, too.

use super::error::AssembleError;
use crate::membership::slots::Place;
use crate::ondisk::fields::{MAX_ROLES, in_use};
use crate::ondisk::{Level, Role, Superblock, Version};
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
        ("reshape", !is_as_fresh || sb.reshape.is_some() == other.reshape.is_some()),
    ];
    facts.iter().find(|(_, same)| !same).map(|(what, _)| *what)
}

/// The first property in which two superblocks contradict each other: also which members are active, where version 0.90 says it.
/// (With 1.x a round that was tried twice may leave members that differ in that. 0.90 records only failures, and the kernel
/// counts an event for each change.)
fn contradiction(sb: &Superblock, other: &Superblock) -> Option<&'static str> {
    let same = |(one, other): (&Role, &Role)| {
        one == other || *one == Role::Faulty || *other == Role::Faulty
    };
    let compared = sb.version == Version::V0_90 && sb.events == other.events;
    let same_roles = !compared || sb.roles.iter().zip(&other.roles).all(same);
    disagreement(sb, other).or_else(|| (!same_roles).then_some("active members"))
}

/// Whether one of these members was being rebuilt in a slot: it was left out to be read from, as it does not have all data yet, but is not
/// missing.
pub(super) fn is_rebuilt(others: &[Candidate], slot: usize, freshest: &Superblock) -> bool {
    others.iter().any(|Candidate { sb, .. }| {
        let is_fresh = sb.events.saturating_add(1) >= freshest.events;
        let role = freshest.role_of(sb.dev_number);
        let is_its = matches!(role, Role::Active(its) if usize::from(its) == slot);
        sb.recovery_offset.is_some() && is_fresh && is_its && sb.role() == role
    })
}

/// The note that a device is left out because of `why`, and which member has its slot since, if that one is not among those `here`, by
/// their numbers: it was added while the array ran, and its user may not know that it must be named.
pub(super) fn left_out(
    candidate: &Candidate,
    why: &str,
    freshest: &Superblock,
    here: &[u32],
) -> String {
    let Candidate { path, sb, .. } = candidate;
    let note = format!("{path} left out: {why}");
    let Role::Active(slot) = sb.role() else { return note };
    let has_it = |(_, role): &(u32, &Role)| **role == Role::Active(slot);
    match (0..).zip(&freshest.roles).find(has_it) {
        Some((number, _)) if !here.contains(&number) => format!(
            "{note}, and the member that was added in its place (number {number}) is not among the devices"
        ),
        Some(_) | None => note,
    }
}

/// Equally fresh members of version 0.90 must agree on which members are active: an update counts an event, so nothing says which of
/// them is right.
pub(super) fn check_same_roles(
    candidates: &[Candidate],
    newest: &Candidate,
) -> Result<(), AssembleError> {
    let is_active = |c: &&Candidate| matches!(c.sb.role(), Role::Active(_));
    let compared = |c: &&Candidate| c.sb.version == newest.sb.version && is_active(c);
    let same_shape = |c: &&Candidate| disagreement(&c.sb, &newest.sb).is_none();
    for candidate in candidates.iter().filter(compared).filter(same_shape) {
        if let Some(what) = contradiction(&candidate.sb, &newest.sb) {
            let (path, freshest) = (candidate.path.clone(), newest.path.clone());
            return Err(AssembleError::Disagree { path, freshest, what });
        }
    }
    Ok(())
}

/// Leaves out members whose superblock has no room for the roles of the others, and spares for whose role the others' superblocks have
/// no room: the table of roles is as long as the highest number in use requires. (The kernel leaves out only numbers
/// that no superblock can have, and writes over what follows a superblock.)
pub(super) fn leave_out_unrecordable(
    freshest: &Superblock,
    slots: &mut [Option<Candidate>],
    beside: &mut Vec<(Candidate, Place)>,
    notes: &mut Vec<String>,
) {
    // Numbers begin at 0.
    let mut used = in_use(&freshest.roles);
    let mut room = MAX_ROLES;
    let mut fits = |Candidate { path, sb, .. }: &Candidate| {
        let (number, own) = (sb.dev_number, sb.room());
        let fits = (number as usize) < room.min(own) && used <= own;
        if fits {
            used = used.max(number as usize + 1);
            room = room.min(own);
        } else if used <= own {
            let room = room.min(own);
            notes.push(format!(
                "{path} left out: it has the number {number}, and the superblocks have room for {room} members"
            ));
        } else {
            notes.push(format!(
                "{path} left out: its superblock has room for {own} members, and must list {used}"
            ));
        }
        fits
    };
    for slot in slots {
        slot.take_if(|candidate| !fits(candidate));
    }
    beside.retain(|(candidate, _)| fits(candidate));
}

/// Leaves out members that contradict more than half of all equally fresh members. Without such a
/// majority it is unknown which are right: then all stay, and the disagreement is an error.
pub(super) fn leave_out_odd(candidates: &mut Vec<Candidate>, notes: &mut Vec<String>) {
    let is_active = |c: &&Candidate| matches!(c.sb.role(), Role::Active(_));
    let most = candidates.iter().filter(is_active).map(|c| c.sb.events).max().unwrap_or(0);
    let is_fresh = |c: &&Candidate| is_active(c) && c.sb.events.saturating_add(1) >= most;
    let fresh: Vec<&Candidate> = candidates.iter().filter(is_fresh).collect();
    let agrees = |one: &Candidate, other: &Candidate| contradiction(&one.sb, &other.sb).is_none();
    let leads = |one: &&&Candidate| {
        fresh.iter().filter(|other| agrees(one, other)).count() * 2 > fresh.len()
    };
    let Some(leader) = fresh.iter().find(leads).map(|leader| leader.sb.clone()) else { return };
    candidates.retain(|candidate| {
        let odd = is_fresh(&candidate).then(|| contradiction(&candidate.sb, &leader)).flatten();
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
        | AssembleError::OnlyRead(_)
        | AssembleError::Reshape(_)
        | AssembleError::CriticalSection { .. }
        | AssembleError::DirtyDegraded { .. }
        | AssembleError::NeedsRun { .. }
        | AssembleError::ReadOnlyMember(_)
        | AssembleError::UsedElsewhere(_)
        | AssembleError::Personality(_) => false,
    }
}
