//! Which of the devices at hand make an array, and whether it may start.
//!
//! The rules are mdadm's. The member with the highest event count is the freshest, and what it says
//! holds: which slot is whose, and who has failed. A member more than one event behind is stale and
//! left out; one that went on without the others is an error. An array starts by itself if every member that the freshest one knew as working is here;
//! it starts with fewer only when asked ([`Options::run`]), and never with too few to hold all data.
//!
//! What this version cannot do safely is refused with the reason: arrays being reshaped, with a
//! journal, of a cluster; members with known bad blocks; and arrays that were not stopped cleanly
//! (their copies may differ until a resync), unless they are only read or have one copy left.

use std::collections::BTreeMap;

use ashlar_block::{Gateway, Sectors, Status};
use thiserror::Error;
use uuid::Uuid;

use crate::badblocks::BadBlocks;
use crate::bitmap::Bitmap;
use crate::members::Place;
use crate::ondisk::{Features, Level, MdadmUuid, Role, Superblock, bitmap_super};
use crate::personality::Personality;
use crate::probe::{has_bad_blocks, read_bitmap};
use crate::raid0::{Zones, ZonesError};
use crate::raid10::geometry::{Geometry, GeometryError};
use crate::rdev::{NewRdev, Rdev, State};

/// A device with a superblock.
pub struct Candidate {
    /// The device.
    pub gateway: Gateway,
    /// Its path, for messages.
    pub path: String,
    /// Its superblock.
    pub sb: Box<Superblock>,
}

/// How to assemble.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// Start with fewer members than last time (`mdadm --run`).
    pub run: bool,
    /// Only read; nothing at all is written.
    pub read_only: bool,
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
    pub(crate) bitmap: Option<Bitmap>,
    /// What the user should know: members left out, and why.
    pub notes: Vec<String>,
}

/// Why an array does not start. Nothing was changed.
#[derive(Debug, Error)]
pub enum AssembleError {
    /// There is nothing to assemble.
    #[error("no member devices given")]
    NoMembers,
    /// Devices of several arrays.
    #[error("{path} belongs to another array ({found}, not {wanted})")]
    OtherArray {
        /// The device.
        path: String,
        /// Its array.
        found: MdadmUuid,
        /// The array being assembled.
        wanted: MdadmUuid,
    },
    /// Not a level of ours.
    #[error("level {0} is not supported: only raid0, raid1 and raid10 can be assembled")]
    Level(Level),
    /// Something of the array that this version does not know how to handle safely.
    #[error("the array {0}; let the kernel finish or remove that first")]
    Unsupported(&'static str),
    /// Members that are equally fresh and say different things.
    #[error("{path} and {freshest} disagree about the array's {what}, and neither is older")]
    Disagree {
        /// One of them.
        path: String,
        /// The other.
        freshest: String,
        /// What about.
        what: &'static str,
    },
    /// One device, or a copy of it, twice.
    #[error("{first} and {second} are the same member (device UUID {uuid}): leave one out")]
    SameMember {
        /// One of them.
        first: String,
        /// The other.
        second: String,
        /// Their UUID.
        uuid: MdadmUuid,
    },
    /// Two devices that both claim a slot.
    #[error("{first} and {second} both claim slot {slot}: leave one out")]
    SameSlot {
        /// One of them.
        first: String,
        /// The other.
        second: String,
        /// The slot.
        slot: u16,
    },
    /// Both ran without the other since they were together.
    #[error(
        "{first} and {second} were each used without the other, so each has changes that the other \
         lacks: leave one out, or use --run to take {first} alone"
    )]
    SplitBrain {
        /// The one that went further.
        first: String,
        /// The other.
        second: String,
    },
    /// A member whose data no I/O of whole blocks can reach.
    #[error("the data of {path} begins at sector {data_offset}, within a block of {block} sectors")]
    Misaligned {
        /// The member.
        path: String,
        /// Where its data begins.
        data_offset: Sectors,
        /// Its logical block.
        block: Sectors,
    },
    /// Fewer members than the level can do with.
    #[error(
        "not enough members to start the array: {present} of {wanted}, missing slots {missing}"
    )]
    NotEnough {
        /// Members here and usable.
        present: usize,
        /// Members of a complete array.
        wanted: usize,
        /// The slots without one, and why devices at hand were left out.
        missing: String,
    },
    /// Fewer members than last time.
    #[error(
        "only {present} of the {expected} members that worked last time are usable; --run starts the \
         array degraded; missing slots {missing}"
    )]
    NeedsRun {
        /// Members here and usable.
        present: usize,
        /// Members that the freshest one knew as working.
        expected: usize,
        /// The slots without one, and why devices at hand were left out.
        missing: String,
    },
    /// A member has ranges that cannot be read.
    #[error(
        "{0} has known bad blocks, which this version does not honour when writing: \
         serve the array --read-only"
    )]
    BadBlocks(String),
    /// A member that cannot be written, for an array that should be.
    #[error("{0} cannot be written: serve the array --read-only")]
    ReadOnlyMember(String),
    /// The numbers make no RAID 0.
    #[error(transparent)]
    Zones(#[from] ZonesError),
    /// The numbers make no RAID 10.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A member cannot be read.
    #[error("cannot read {path}: {status}")]
    Read {
        /// The member.
        path: String,
        /// Why.
        status: Status,
    },
}

/// The candidates of each array, by UUID.
pub fn group(candidates: Vec<Candidate>) -> BTreeMap<Uuid, Vec<Candidate>> {
    let mut arrays: BTreeMap<Uuid, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        arrays.entry(candidate.sb.set_uuid).or_default().push(candidate);
    }
    arrays
}

/// Decides which of the candidates, all of one array, make it, and whether it may start.
///
/// # Errors
/// See [`AssembleError`].
pub async fn plan(candidates: Vec<Candidate>, options: &Options) -> Result<Plan, AssembleError> {
    let newest = candidates.iter().rev().max_by_key(|c| c.sb.events);
    let newest = newest.ok_or(AssembleError::NoMembers)?;
    let (freshest, freshest_path) = (newest.sb.clone(), newest.path.clone());
    check_supported(&freshest)?;

    for candidate in &candidates {
        check_same_array(candidate, &freshest)?;
    }

    let (mut notes, mut others) = (Vec::new(), Vec::new());
    let mut slots: Vec<Option<Candidate>> = Vec::new();
    slots.resize_with(freshest.raid_disks as usize, || None);
    for candidate in candidates {
        let slot = match slot_of(&candidate, &freshest, &freshest_path)? {
            Ok(slot) => slot,
            Err(note) => {
                notes.push(format!("{} left out: {note}", candidate.path));
                others.push(candidate);
                continue;
            }
        };
        let Some(place) = slots.get_mut(usize::from(slot)) else { continue };
        if let Some(other) = place {
            return Err(same_slot(other, &candidate, slot));
        }
        *place = Some(candidate);
    }
    if !options.run {
        check_not_split(&slots, &others)?;
    }
    leave_out_bad_blocks(&mut slots, options, &mut notes).await?;
    if !options.read_only {
        check_bitmaps(&slots).await?;
    }

    let personality = personality(&freshest, &slots, &notes)?;
    let present: Vec<bool> = slots.iter().map(Option::is_some).collect();
    check_enough(&freshest, &personality, &present, options, &notes)?;
    let in_sync_to = in_sync_to(&freshest, &personality, &present, &mut notes);

    let mut members = Vec::new();
    let mut superblocks = Vec::new();
    for (slot, candidate) in slots.into_iter().enumerate() {
        let Some(Candidate { gateway, path, sb }) = candidate else { continue };
        let block = gateway.disk().limits().logical_block();
        if !sb.data_offset.is_aligned(block) {
            let data_offset = Sectors(sb.data_offset.0);
            return Err(AssembleError::Misaligned { path, data_offset, block });
        }
        if !options.read_only && gateway.disk().is_read_only() {
            return Err(AssembleError::ReadOnlyMember(path));
        }
        let rdev = Rdev::new(gateway, NewRdev::of(&sb, path, State::IN_SYNC, BadBlocks::none()));
        rdev.count_corrected(Sectors(sb.corrected_reads.into()));
        members.push((rdev, Place::Slot(slot)));
        superblocks.push(*sb);
    }
    let read_only = options.read_only;
    Ok(Plan {
        personality,
        members,
        superblocks,
        freshest,
        read_only,
        in_sync_to,
        bitmap: None,
        notes,
    })
}

fn check_supported(sb: &Superblock) -> Result<(), AssembleError> {
    if !matches!(sb.level, Level::Raid0 | Level::Raid1 | Level::Raid10) {
        return Err(AssembleError::Level(sb.level));
    }
    let has = |feature| sb.features.intersects(feature);
    if sb.reshape.is_some() || has(Features::RESHAPE_ACTIVE) {
        return Err(AssembleError::Unsupported("is being reshaped"));
    }
    if has(Features::CLUSTERED) {
        return Err(AssembleError::Unsupported("belongs to a cluster"));
    }
    if has(Features::JOURNAL) || has(Features::PPL) || has(Features::MULTIPLE_PPLS) {
        return Err(AssembleError::Unsupported("has a journal"));
    }
    if sb.events > u64::MAX / 2 {
        return Err(AssembleError::Unsupported("has an impossible count of events"));
    }
    if !Features::ALL.contains(sb.features) {
        return Err(AssembleError::Unsupported(
            "has features that nobody knew when this was written",
        ));
    }
    Ok(())
}

/// A device of another array must never decide about this one, however fresh it is.
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

/// Members that are equally fresh must agree about what the array is.
fn check_same_shape(
    candidate: &Candidate,
    freshest: &Superblock,
    freshest_path: &str,
) -> Result<(), AssembleError> {
    let sb = &candidate.sb;
    let same_size = sb.level == Level::Raid0 || sb.size == freshest.size;
    let facts = [
        ("metadata version", sb.version == freshest.version),
        ("level", sb.level == freshest.level),
        ("layout", sb.layout == freshest.layout),
        ("chunk size", sb.chunk == freshest.chunk),
        ("number of members", sb.raid_disks == freshest.raid_disks),
        ("size", same_size),
    ];
    match facts.iter().find(|(_, same)| !same) {
        Some((what, _)) => Err(AssembleError::Disagree {
            path: candidate.path.clone(),
            freshest: freshest_path.to_owned(),
            what,
        }),
        None => Ok(()),
    }
}

/// The slot of a candidate, or a note why it is not used.
fn slot_of(
    candidate: &Candidate,
    freshest: &Superblock,
    freshest_path: &str,
) -> Result<Result<u16, String>, AssembleError> {
    let events = candidate.sb.events;
    if events.saturating_add(1) < freshest.events {
        return Ok(Err(format!("it is out of date (events {events} of {})", freshest.events)));
    }
    check_same_shape(candidate, freshest, freshest_path)?;
    Ok(usable(&candidate.sb, freshest))
}

fn usable(sb: &Superblock, freshest: &Superblock) -> Result<u16, String> {
    let known = freshest.roles.get(sb.dev_number as usize).copied().unwrap_or(Role::Spare);
    let slot = match known {
        Role::Active(slot) => slot,
        Role::Faulty => return Err("the other members know it as failed".to_owned()),
        Role::Spare => return Err("it is a spare".to_owned()),
        Role::Journal => return Err("it is a journal".to_owned()),
    };
    if sb.role() != known {
        return Err("it and the freshest member disagree about its slot".to_owned());
    }
    if sb.features.contains(Features::REPLACEMENT) {
        return Err("it is a replacement that is not complete".to_owned());
    }
    match sb.recovery_offset {
        Some(done) => Err(format!("it was being rebuilt, {done} sectors are done")),
        None => Ok(slot),
    }
}

/// A device that takes itself for a member and all those that are used for failed ones has gone its
/// own way. (One that missed the failure of some is only out of date.)
fn check_not_split(slots: &[Option<Candidate>], others: &[Candidate]) -> Result<(), AssembleError> {
    let Some(first) = slots.iter().flatten().max_by_key(|c| c.sb.events) else { return Ok(()) };
    let failed_for = |sb: &Superblock, member: &Candidate| {
        sb.roles.get(member.sb.dev_number as usize) == Some(&Role::Faulty)
    };
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

fn same_slot(first: &Candidate, second: &Candidate, slot: u16) -> AssembleError {
    let (a, b) = (first.path.clone(), second.path.clone());
    let uuid = first.sb.device_uuid;
    if uuid == second.sb.device_uuid && !uuid.is_nil() {
        return AssembleError::SameMember { first: a, second: b, uuid: MdadmUuid(uuid) };
    }
    AssembleError::SameSlot { first: a, second: b, slot }
}

/// Members with bad blocks: for reading they are left out, for writing they are a reason to refuse.
async fn leave_out_bad_blocks(
    slots: &mut [Option<Candidate>],
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<(), AssembleError> {
    for place in slots {
        let Some(candidate) = place else { continue };
        let bad = has_bad_blocks(&candidate.gateway, &candidate.sb).await;
        if !options.read_only {
            let path = candidate.path.clone();
            match bad {
                Ok(false) => continue,
                Ok(true) => return Err(AssembleError::BadBlocks(path)),
                Err(status) => return Err(AssembleError::Read { path, status }),
            }
        }
        // A log that cannot be read may list anything.
        if bad.unwrap_or(true) {
            notes.push(format!("{} left out: it has known bad blocks", candidate.path));
            *place = None;
        }
    }
    Ok(())
}

/// A lockless bitmap says which parts were never written, and those are not copied to a new member.
async fn check_bitmaps(slots: &[Option<Candidate>]) -> Result<(), AssembleError> {
    for Candidate { gateway, path, sb } in slots.iter().flatten() {
        let bitmap = read_bitmap(gateway, sb).await;
        let bitmap = bitmap.map_err(|status| AssembleError::Read { path: path.clone(), status })?;
        if bitmap.is_some_and(|b| b.version.get() == bitmap_super::VERSION_LOCKLESS) {
            return Err(AssembleError::Unsupported(
                "has a lockless bitmap, which cannot be kept up yet (it can be read)",
            ));
        }
    }
    Ok(())
}

fn personality(
    sb: &Superblock,
    slots: &[Option<Candidate>],
    notes: &[String],
) -> Result<Personality, AssembleError> {
    let disks = slots.len();
    Ok(match sb.level {
        Level::Raid0 => {
            let sizes: Option<Vec<Sectors>> =
                slots.iter().map(|c| c.as_ref().map(|c| c.sb.data_size)).collect();
            // Without all sizes there is no map; check_enough's message is the better one.
            let sizes =
                sizes.ok_or_else(|| not_enough(slots.iter().map(Option::is_some), notes))?;
            // Without the feature nobody has said which layout it is, whatever the field holds.
            let known = sb.features.contains(Features::RAID0_LAYOUT);
            Personality::Raid0(Zones::new(&sizes, sb.chunk, if known { sb.layout } else { 0 })?)
        }
        Level::Raid10 => Personality::Raid10(Geometry::new(sb.layout, disks, sb.chunk, sb.size)?),
        Level::Raid1 => Personality::Raid1 { disks, size: sb.size },
        Level::Linear
        | Level::Raid4
        | Level::Raid5
        | Level::Raid6
        | Level::Multipath
        | Level::Faulty
        | Level::Other(_) => return Err(AssembleError::Level(sb.level)),
    })
}

fn list(slots: impl Iterator<Item = usize>) -> String {
    slots.map(|slot| slot.to_string()).collect::<Vec<_>>().join(", ")
}

/// The missing slots, and which devices at hand were left out and why.
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
    options: &Options,
    notes: &[String],
) -> Result<(), AssembleError> {
    if !personality.is_readable_with(|slot| present[slot]) {
        return Err(not_enough(present.iter().copied(), notes));
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

/// How far copies are the same.
fn in_sync_to(
    freshest: &Superblock,
    personality: &Personality,
    present: &[bool],
    notes: &mut Vec<String>,
) -> Sectors {
    let alone = !personality.is_redundant() || !has_two_copies(personality, present);
    if freshest.is_clean() || alone {
        return Sectors::MAX;
    }
    notes.push(
        "the array was not stopped cleanly: until a resync the first copy of everything is read"
            .into(),
    );
    freshest.resync_offset
}

/// Whether some chunk has two copies here, which could differ.
fn has_two_copies(personality: &Personality, present: &[bool]) -> bool {
    let here = |slot: usize| present[slot];
    (0..present.len()).any(|slot| here(slot) && personality.shares_data(slot, here))
}
