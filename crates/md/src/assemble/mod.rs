//! Groups devices into arrays, and decides whether an array may start.
//!
//! The rules are mdadm's. The member with the highest event count is the freshest, and its superblock
//! determines the slots and the failed members. A member more than one event behind is stale and
//! left out; a member that continued without the others is an error. An array starts by itself if every
//! member that the freshest one knew as working is present; it starts with fewer only on request
//! ([`Options::run`]), and never with too few to hold all data.
//!
//! The rebuild of a member continues, spares are spares again. An array that was not
//! stopped cleanly starts, and its copies may differ until a resync, in the places that the bitmap marks.
//!
//! Arrays that this version cannot run safely are refused with the reason: arrays with a journal, of a cluster. Arrays under reshape are only
//! read ([`reshape`]).

use std::collections::BTreeMap;

use ashlar_block::Sectors;
use uuid::Uuid;

use crate::bitmap::{self, Bitmap};
use crate::membership::rdev::{Rdev, State};
use crate::membership::slots::Place;
use crate::ondisk::{Features, Level, MdadmUuid, Role, Superblock, ppl};
use crate::personality::{Personality, PersonalityError};
use crate::probe::Candidate;

pub(crate) mod elsewhere;
mod error;
mod invalid_logs;
mod join;
mod odd;
mod place;
mod replay;
pub(crate) mod reshape;
mod trust;

pub use elsewhere::wait_for_others;
pub use error::AssembleError;
use invalid_logs::{InvalidLogs, plan_array};
use join::{join, load_bitmap};
use odd::{check_same_roles, disagreement, is_impossible, is_rebuilt, leave_out_odd};
use odd::{leave_out_unrecordable, left_out};
use place::place_of;
pub(crate) use replay::ParityBlock;
pub use reshape::BackupFile;
use trust::{in_sync_to, suspect_slots};

/// How to assemble.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// Start with fewer members than last time (`mdadm --run`).
    pub run: bool,
    /// Read only; nothing is written to the members.
    pub read_only: bool,
    /// Start although data recovered for a missing member may be wrong (`mdadm --force`).
    pub force: bool,
}

/// An array that may start.
pub struct Plan {
    pub(crate) personality: Personality,
    pub(crate) members: Vec<(Rdev, Place)>,
    /// In the order of the members.
    pub(crate) superblocks: Vec<Superblock>,
    pub(crate) freshest: Box<Superblock>,
    pub(crate) read_only: bool,
    /// How far copies are the same.
    pub(crate) in_sync_to: Sectors,
    /// Whether reads use parity beyond that, too: the array lacks a member, and the user has forced its start.
    pub(crate) forced: bool,
    pub(crate) bitmap: Option<Bitmap>,
    /// The parity that partial parity logs give.
    pub(crate) replayed: Vec<ParityBlock>,
    /// The reshape that is under way.
    pub(crate) reshape: Option<Box<reshape::Reshaping>>,
    /// Notes for the user: members left out, and why.
    pub notes: Vec<String>,
}

/// The candidates of each array, by UUID.
pub fn group(candidates: Vec<Candidate>) -> BTreeMap<Uuid, Vec<Candidate>> {
    let mut arrays: BTreeMap<Uuid, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        arrays.entry(candidate.sb.set_uuid).or_default().push(candidate);
    }
    arrays
}

/// Decides which candidates, all of one array, become members, and whether the array may start.
///
/// # Errors
/// See [`AssembleError`].
pub async fn plan(candidates: Vec<Candidate>, options: &Options) -> Result<Plan, AssembleError> {
    plan_with_backups(candidates, &[], options).await
}

/// The same with backup files of mdadm, which may be of other arrays: what a reshape was moving in place is read from them.
///
/// # Errors
/// See [`AssembleError`].
pub async fn plan_with_backups(
    mut candidates: Vec<Candidate>,
    backups: &[BackupFile],
    options: &Options,
) -> Result<Plan, AssembleError> {
    let first = newest(&candidates).ok_or(AssembleError::NoMembers)?.sb.clone();
    for candidate in &candidates {
        check_same_array(candidate, &first)?;
    }
    if let Some(under_way) = first.reshape {
        check_supported(&first, options)?;
        return reshape::plan(candidates, (&first, under_way), backups, options).await;
    }
    let notes = reshape::end_reshapes(&mut candidates, &first, options)?;
    plan_array(candidates, notes, options).await
}

/// Decides it for an array that has one map. `notes` say which devices were left out before.
async fn plan_members(
    mut candidates: Vec<Candidate>,
    mut notes: Vec<String>,
    options: &Options,
    logs: &mut InvalidLogs,
) -> Result<Plan, AssembleError> {
    if options.run {
        leave_out_odd(&mut candidates, &mut notes);
    }
    let newest = newest(&candidates).ok_or(AssembleError::NoMembers)?;
    let (mut freshest, freshest_path) = (newest.sb.clone(), newest.path.clone());
    check_supported(&freshest, options)?;
    check_same_roles(&candidates, newest)?;
    take_back_spares(&mut freshest, &candidates);
    let here: Vec<u32> = candidates.iter().map(|candidate| candidate.sb.dev_number).collect();
    let mut others = Vec::new();
    let mut slots: Vec<Option<Candidate>> = Vec::new();
    slots.resize_with(freshest.raid_disks as usize, || None);
    let mut beside = Vec::new();
    for mut candidate in candidates {
        let place = match place_of(&candidate, &freshest, &freshest_path, options)? {
            Ok(place) => place,
            Err(note) => {
                notes.push(left_out(&candidate, &note, &freshest, &here));
                others.push(candidate);
                continue;
            }
        };
        if let Err(error) = candidate.sb.follow(&freshest) {
            notes.push(format!("{} left out: {error}", candidate.path));
            others.push(candidate);
            continue;
        }
        let Place::Slot(slot) = place else {
            beside.push((candidate, place));
            continue;
        };
        let Some(place) = slots.get_mut(slot) else { continue };
        let Some(other) = place.take() else {
            *place = Some(candidate);
            continue;
        };
        let (kept, replaced) = if has_replaced(&candidate, &other) {
            (candidate, other)
        } else if has_replaced(&other, &candidate) {
            (other, candidate)
        } else {
            return Err(same_slot(&other, &candidate, slot as u16));
        };
        notes.push(format!("{} left out: {} has replaced it", replaced.path, kept.path));
        others.push(replaced);
        *place = Some(kept);
    }
    if !options.run {
        check_not_split(&slots, &others)?;
    }
    drop_doubles(&slots, &mut beside, &mut notes);

    if !options.read_only {
        leave_out_unrecordable(&freshest, &mut slots, &mut beside, &mut notes);
        finish_replacements(&mut slots, &mut beside, &mut notes);
    }
    let personality = Personality::new(&freshest, slots.len(), || {
        let sizes: Option<Vec<Sectors>> =
            slots.iter().map(|c| c.as_ref().map(|c| c.sb.data_size)).collect();
        // Without all sizes there is no map; report the missing members instead.
        sizes.ok_or_else(|| not_enough(slots.iter().map(Option::is_some), &notes))
    })?;
    let in_slots = slots.into_iter().zip(0..).filter_map(|(c, slot)| Some((c?, Place::Slot(slot))));
    let mut members = Vec::new();
    for (candidate, place) in in_slots.chain(beside) {
        match join(&candidate, place, &freshest, options, logs.are_ignored).await {
            Ok(Ok(rdev)) => members.push((rdev, place, candidate.sb)),
            Ok(Err(note)) => notes.push(format!("{} left out: {note}", candidate.path)),
            // The array can start without a spare.
            Err(error) if place == Place::Spare => notes.push(format!("no spare: {error}")),
            Err(AssembleError::BadBlocks { path, why })
                if options.read_only || options.run && personality.is_redundant() =>
            {
                notes.push(format!("{path} left out: {why}"));
                logs.left_out.get_or_insert((path, why));
            }
            Err(error) if options.run && personality.is_redundant() && is_impossible(&error) => {
                notes.push(format!("{} left out: {error}", candidate.path));
            }
            Err(error) => return Err(error),
        }
    }
    let in_slot = |slot| {
        let here = move |(_, place, _): &&(Rdev, Place, _)| matches!(place, Place::Slot(s) | Place::Replacement(s) if *s == slot);
        members.iter().filter(here).map(|(rdev, ..)| rdev)
    };
    let disks = personality.disks();
    let is_here = |slot| in_slot(slot).next().is_some() || is_rebuilt(&others, slot, &freshest);
    let here: Vec<bool> = (0..disks).map(is_here).collect();
    let in_sync: Vec<bool> = (0..disks).map(|slot| in_slot(slot).any(Rdev::is_in_sync)).collect();
    let (found, replayed) = replay::apply_logs(&freshest, &personality, &members, &mut notes).await;
    check_enough(&found, &personality, &here, &in_sync, options, &notes)?;
    let in_sync_to = in_sync_to(&found, &personality, &in_sync, &mut notes);
    let bitmap = load_bitmap(&freshest, &personality, &members, in_sync_to, &mut notes).await;
    let is_lockless = bitmap.as_ref().is_some_and(|bitmap| bitmap.kind() == bitmap::Kind::Lockless);
    if is_lockless && freshest.level.has_parity() && !options.read_only {
        return Err(AssembleError::OnlyRead("parity and a lockless bitmap"));
    }
    if bitmap.as_ref().is_some_and(|bitmap| !bitmap.was_stale()) {
        let returns = |sb: &Superblock| sb.features.contains(Features::RECOVERY_BITMAP);
        let returning = members.iter().filter(|(rdev, _, sb)| !rdev.is_in_sync() && returns(sb));
        returning.for_each(|(rdev, ..)| {
            rdev.set(State::RETURNS);
        });
    }
    let (members, superblocks) =
        members.into_iter().map(|(rdev, place, sb)| ((rdev, place), *sb)).unzip();
    let read_only = options.read_only;
    let forced = !suspect_slots(&found, &personality, &in_sync).is_empty();
    Ok(Plan {
        personality,
        members,
        superblocks,
        freshest,
        read_only,
        in_sync_to,
        forced,
        bitmap,
        replayed,
        reshape: None,
        notes,
    })
}

/// The freshest candidate: the first with the highest event count, among those whose superblock
/// claims a slot, if any. (A spare's count means nothing.)
fn newest(candidates: &[Candidate]) -> Option<&Candidate> {
    let key = |c: &&Candidate| (matches!(c.sb.role(), Role::Active(_)), c.sb.events);
    candidates.iter().rev().max_by_key(key)
}

/// If power failed while a spare was put into a slot, its own superblock may still say spare. It has
/// no data of the slot, so it stays a spare.
fn take_back_spares(freshest: &mut Superblock, candidates: &[Candidate]) {
    for Candidate { sb, .. } in candidates {
        let current = sb.events.saturating_add(1) >= freshest.events;
        let same = |other: &&Candidate| other.sb.dev_number == sb.dev_number;
        let alone = candidates.iter().filter(same).count() == 1;
        if current
            && alone
            && sb.role() == Role::Spare
            && let Some(role @ Role::Active(_)) = freshest.roles.get_mut(sb.dev_number as usize)
        {
            *role = Role::Spare;
        }
    }
}

/// Complete replacements take their slots now. If the old members stayed until recovery replaces them,
/// a block that was being written at a crash could read differently before and after that.
fn finish_replacements(
    slots: &mut [Option<Candidate>],
    beside: &mut Vec<(Candidate, Place)>,
    notes: &mut Vec<String>,
) {
    let done = |(candidate, place): &mut (Candidate, Place)| {
        matches!(place, Place::Replacement(_)) && candidate.sb.recovery_offset.is_none()
    };
    let done: Vec<_> = beside.extract_if(.., done).collect();
    for (candidate, place) in done {
        let Place::Replacement(slot) = place else { continue };
        let Some(place) = slots.get_mut(slot) else { continue };
        if let Some(old) = place {
            notes.push(format!("{} left out: {} has replaced it", old.path, candidate.path));
        }
        *place = Some(candidate);
    }
}

fn check_supported(sb: &Superblock, options: &Options) -> Result<(), AssembleError> {
    match sb.level {
        Level::Linear | Level::Raid0 | Level::Raid1 | Level::Raid10 => {}
        Level::Raid4 | Level::Raid5 | Level::Raid6 => {}
        Level::Multipath | Level::Faulty | Level::Other(_) => {
            return Err(PersonalityError::Level(sb.level).into());
        }
    }
    let has = |feature| sb.features.intersects(feature);
    if has(Features::CLUSTERED) {
        return Err(AssembleError::Unsupported("belongs to a cluster"));
    }
    if has(Features::JOURNAL) {
        return Err(AssembleError::Unsupported("has a journal"));
    }
    let may_log = sb.level == Level::Raid5 && sb.raid_disks as usize <= ppl::MAX_MEMBERS;
    if sb.ppl.is_some() && !may_log && !options.read_only {
        return Err(AssembleError::OnlyRead(
            "a partial parity log for another level or more than 64 members",
        ));
    }
    if sb.is_big_endian && !options.read_only {
        return Err(AssembleError::OnlyRead("superblocks of a big-endian machine"));
    }
    if sb.events > u64::MAX / 2 {
        return Err(AssembleError::Unsupported("has an impossible count of events"));
    }
    if !Features::all().contains(sb.features) {
        return Err(AssembleError::Unsupported(
            "has features that this version of ashlar does not know",
        ));
    }
    Ok(())
}

/// A device of another array must never decide about this one, even if it is fresher.
fn check_same_array(candidate: &Candidate, freshest: &Superblock) -> Result<(), AssembleError> {
    if candidate.sb.set_uuid == freshest.set_uuid {
        return Ok(());
    }
    Err(AssembleError::OtherArray {
        path: candidate.path.clone(),
        found: MdadmUuid(candidate.sb.set_uuid),
        wanted: MdadmUuid(freshest.set_uuid),
    })
}

/// Equally fresh members must agree on the array's parameters.
fn check_same_shape(
    candidate: &Candidate,
    freshest: &Superblock,
    freshest_path: &str,
) -> Result<(), AssembleError> {
    match disagreement(&candidate.sb, freshest) {
        Some(what) => Err(AssembleError::Disagree {
            path: candidate.path.clone(),
            freshest: freshest_path.to_owned(),
            what,
        }),
        None => Ok(()),
    }
}

/// Leaves out a spare or an incomplete replacement whose number another device has, for example because it got it in the spare's
/// absence: superblocks record roles by number, so it would get the other device's role.
fn drop_doubles(
    slots: &[Option<Candidate>],
    beside: &mut Vec<(Candidate, Place)>,
    notes: &mut Vec<String>,
) {
    let mut taken: Vec<u32> = slots.iter().flatten().map(|c| c.sb.dev_number).collect();
    beside.sort_by_key(|(_, place)| *place == Place::Spare);
    beside.retain(|(Candidate { path, sb, .. }, place)| {
        let is_beside = *place == Place::Spare || sb.recovery_offset.is_some();
        let double = is_beside && taken.contains(&sb.dev_number);
        if double {
            let number = sb.dev_number;
            notes.push(format!("{path} left out: another member has its number {number}; add it"));
        }
        taken.push(sb.dev_number);
        !double
    });
}

/// A device whose superblock says that it is active and that all members in use have failed was used
/// without them. (If it records only some of them as failed, it is just out of date.)
fn check_not_split(slots: &[Option<Candidate>], others: &[Candidate]) -> Result<(), AssembleError> {
    let Some(first) = slots.iter().flatten().max_by_key(|c| c.sb.events) else { return Ok(()) };
    let failed_for =
        |sb: &Superblock, member: &Candidate| sb.role_of(member.sb.dev_number) == Role::Faulty;
    let split = others.iter().find(|other| {
        matches!(other.sb.role(), Role::Active(_))
            && slots.iter().flatten().all(|member| failed_for(&other.sb, member))
    });
    match split {
        Some(other) => {
            Err(AssembleError::SplitBrain { first: first.path.clone(), second: other.path.clone() })
        }
        None => Ok(()),
    }
}

/// Whether `new` took the place of `old`, which does not know that, although both have the same event count: the first try of a
/// round of superblocks still had both, the second one wrote only `new`. It is complete, and had every write that `old` had.
fn has_replaced(new: &Candidate, old: &Candidate) -> bool {
    let (new, old) = (&new.sb, &old.sb);
    new.role_of(old.dev_number) == Role::Faulty
        && matches!(old.role_of(new.dev_number), Role::Active(_))
}

fn same_slot(first: &Candidate, second: &Candidate, slot: u16) -> AssembleError {
    let (a, b) = (first.path.clone(), second.path.clone());
    let uuid = first.sb.device_uuid;
    if uuid == second.sb.device_uuid && !uuid.is_nil() {
        return AssembleError::SameMember { first: a, second: b, uuid: MdadmUuid(uuid) };
    }
    AssembleError::SameSlot { first: a, second: b, slot }
}

fn list(slots: impl Iterator<Item = usize>) -> String {
    slots.map(|slot| slot.to_string()).collect::<Vec<_>>().join(", ")
}

/// The missing slots, and which present devices were left out and why.
fn missing(slots: impl Iterator<Item = usize>, notes: &[String]) -> String {
    let mut text = list(slots);
    for note in notes {
        text += "; ";
        text += note;
    }
    text
}

fn not_enough(present: impl Iterator<Item = bool>, notes: &[String]) -> AssembleError {
    let present: Vec<bool> = present.collect();
    let missing = missing((0..present.len()).filter(|slot| !present[*slot]), notes);
    let here = present.iter().filter(|p| **p).count();
    AssembleError::NotEnough { present: here, wanted: present.len(), missing }
}

fn check_enough(
    freshest: &Superblock,
    personality: &Personality,
    present: &[bool],
    in_sync: &[bool],
    options: &Options,
    notes: &[String],
) -> Result<(), AssembleError> {
    if !personality.is_readable_with(|slot| in_sync[slot]) {
        return Err(not_enough(in_sync.iter().copied(), notes));
    }
    let unsure = suspect_slots(freshest, personality, in_sync);
    if !unsure.is_empty() && !options.force {
        return Err(AssembleError::DirtyDegraded { missing: missing(unsure.into_iter(), notes) });
    }
    let expected: Vec<usize> = freshest
        .roles
        .iter()
        .filter_map(|role| match role {
            Role::Active(slot) => Some(usize::from(*slot)),
            Role::Spare | Role::Faulty | Role::Journal => None,
        })
        .filter(|slot| *slot < present.len())
        .collect();
    let gone: Vec<usize> = expected.iter().copied().filter(|slot| !present[*slot]).collect();
    if !gone.is_empty() && !options.run {
        return Err(AssembleError::NeedsRun {
            present: present.iter().filter(|p| **p).count(),
            expected: expected.len(),
            missing: missing(gone.into_iter(), notes),
        });
    }
    Ok(())
}
