//! Arrays under reshape, which are only read: each side of the position becomes an array of its own, on the same members.
//!
//! Nothing is written, and the reshape does not continue. A side that is empty needs no members. The data that the kernel was
//! moving in place when it stopped is not on the members: it comes from mdadm's backup, or the array starts only with `--force`.
//!
//! Source of the facts: the kernel's `raid5_run` and mdadm's `Grow_restart`.

use std::ops::Range;

use ashlar_block::{Buffer, Gateway, Sector, Sectors, Status};

use super::place::{check_current, check_slot};
use super::{AssembleError, Options, Plan, not_enough, plan_array};
use crate::ondisk::reshape_backup::{BEFORE_END, HEADER, ReshapeBackup, Section};
use crate::ondisk::{Features, Level, Reshape, Role, Superblock};
use crate::personality::{Personality, PersonalityError, parity_level};
use crate::probe::{Candidate, read_around};
use crate::raid10;
use crate::reshape::{ReshapePosition, ReshapeStatus, Side};

/// How long before the superblocks a backup may have been written, in seconds; mdadm's limits.
const OLDER: u64 = 2 * 60 * 60;
/// How long after them.
const YOUNGER: u64 = 10 * 60;
/// The longest backup that is read into memory. mdadm saves a few rows, or a few MiB.
const MOST_SAVED: Sectors = Sectors(1 << 19);
/// The room of a superblock of version 1.
const BLOCK: Sectors = Sectors(8);

/// What makes a plan one of an array under reshape.
pub(crate) struct Reshaping {
    pub(crate) status: ReshapeStatus,
    /// The side that this plan is.
    pub(crate) side: Side,
    /// The plan of the other side; `None` if that is empty.
    pub(crate) other: Option<Plan>,
    /// The array's size: the smaller one of both sides.
    pub(crate) size: Sectors,
    /// What is read from a backup.
    pub(crate) saved: Vec<Saved>,
}

/// A part of the array that is read from a backup.
pub(crate) struct Saved {
    pub(crate) range: Range<Sector>,
    /// Its bytes, in buffers of [`Self::PIECE`].
    pub(crate) data: Vec<Buffer>,
}

impl Saved {
    pub(crate) const PIECE: Sectors = Sectors(2048);

    async fn read(gateway: &Gateway, section: &Section) -> Result<Self, Status> {
        let Section { range, at } = section;
        let (mut data, mut done, len) = (Vec::new(), Sectors::ZERO, range.end - range.start);
        while done < len {
            let piece = Self::PIECE.min(len - done);
            data.push(Buffer::from_slice(&read_around(gateway, *at + done, piece).await?));
            done += piece;
        }
        Ok(Self { range: range.clone(), data })
    }
}

/// Where the data lies that has not moved yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FarSide {
    /// Where the old map says.
    Old,
    /// There, unless the kernel has moved some of it without recording that (B0 in docs/upstream.md).
    Unsure,
    /// What was being moved lies only in a backup.
    Critical,
}

/// The reshape that the freshest superblock records.
struct Facts<'a> {
    freshest: &'a Superblock,
    reshape: Reshape,
    position: ReshapePosition,
    old_disks: u32,
    /// The copies behind each other of RAID 10's layouts, before and after.
    far_copies: [u8; 2],
    /// What both sides use of each member.
    used: Sectors,
}

impl<'a> Facts<'a> {
    fn of(freshest: &'a Superblock, reshape: Reshape) -> Result<Self, AssembleError> {
        let refused = |why| Err(AssembleError::Reshape(why));
        if !freshest.level.has_parity() && freshest.level != Level::Raid10 {
            return refused("arrays of its level cannot be reshaped");
        }
        if reshape.new_level != freshest.level {
            return refused("it leads to another level");
        }
        let old_disks = i64::from(freshest.raid_disks) - i64::from(reshape.delta_disks);
        let Some(old_disks) = u32::try_from(old_disks).ok().filter(|disks| *disks > 0) else {
            return refused("the superblocks give an impossible number of members before it");
        };
        let unit = freshest.chunk.0.max(reshape.new_chunk.0);
        if !freshest.chunk.0.is_power_of_two() || !reshape.new_chunk.0.is_power_of_two() {
            return refused("a chunk size is not a power of two");
        }
        let mut far_copies = [1; 2];
        if freshest.level == Level::Raid10 {
            let layouts = [freshest.layout, reshape.new_layout].map(raid10::Layout::from_bits);
            let [Ok(before), Ok(after)] = layouts else {
                return refused("one of its layouts is invalid");
            };
            if [before, after].iter().any(|layout| layout.far > 1 && !layout.offset) {
                return refused("Linux reshapes no far layout");
            }
            far_copies = [before.far, after.far];
        }
        let position =
            ReshapePosition { at: reshape.position, backwards: is_backwards(freshest, reshape) };
        let used = freshest.size.round_down(Sectors(unit));
        let facts = Self { freshest, reshape, position, old_disks, far_copies, used };
        let is_aligned = |row: Sectors| reshape.position.is_aligned(row);
        if freshest.level.has_parity() && !facts.row(Side::After).is_some_and(is_aligned) {
            return refused("its position is not at the start of a row");
        }
        Ok(facts)
    }

    fn disks(&self, side: Side) -> u32 {
        match side {
            Side::Before => self.old_disks,
            Side::After => self.freshest.raid_disks,
        }
    }

    /// The larger one of both chunk sizes.
    fn unit(&self) -> Sectors {
        Sectors(self.freshest.chunk.0.max(self.reshape.new_chunk.0))
    }

    /// The data of a row of `unit` on each member, of a level with parity.
    fn row(&self, side: Side) -> Option<Sectors> {
        let parities = parity_level(self.freshest.level)?.parities() as u32;
        let data_disks = self.disks(side).checked_sub(parities).filter(|disks| *disks > 0)?;
        self.unit().0.checked_mul(data_disks.into()).map(Sectors)
    }

    /// Whether each row takes the place of one with as much data.
    fn is_in_place(&self) -> bool {
        self.row(Side::Before) == self.row(Side::After)
    }

    /// The superblock of a member as it would be if the array had only this side.
    ///
    /// # Errors
    /// The data would lie outside of the member.
    fn side(&self, sb: &Superblock, side: Side) -> Result<Superblock, &'static str> {
        let mut sb = sb.clone();
        let own = sb.reshape.take();
        sb.features -=
            Features::RESHAPE_ACTIVE | Features::RESHAPE_BACKWARDS | Features::NEW_OFFSET;
        // A bitmap counts the sectors of one side, and md reshapes no array with a partial parity log.
        (sb.bitmap_offset, sb.ppl) = (None, None);
        (sb.size, sb.raid_disks) = (self.used, self.disks(side));
        if side == Side::After {
            (sb.layout, sb.chunk) = (self.reshape.new_layout, self.reshape.new_chunk);
            let end = sb.data_limit();
            let moved = i64::from(own.map_or(0, |own| own.new_offset));
            let data = sb.data_offset.0.checked_add_signed(moved).map(Sector);
            let is_behind = sb.super_offset < sb.data_offset;
            let least = if is_behind { sb.super_offset + BLOCK } else { Sector::ZERO };
            let data = data.filter(|data| (least..=end).contains(data));
            let data = data.ok_or("its superblock puts the reshaped data outside of the device")?;
            (sb.data_offset, sb.data_size) = (data, end - data);
            sb.recovery_offset = sb.recovery_offset.filter(|done| !self.is_filled(*done));
        }
        for role in &mut sb.roles {
            if matches!(role, Role::Active(slot) if u32::from(*slot) >= sb.raid_disks) {
                *role = Role::Spare;
            }
        }
        Ok(sb)
    }

    /// Whether a member that a reshape fills from its start on has all that it must have by now. (Backwards, the kernel records what it
    /// has filled as if it had begun at the start.)
    fn is_filled(&self, done: Sectors) -> bool {
        let rows = self.row(Side::After).map(|row| self.position.at.0 / row.0);
        let filled = rows.and_then(|rows| rows.checked_mul(self.unit().0));
        !self.position.backwards && filled.is_some_and(|filled| done.0 >= filled)
    }

    /// The members of a side, and notes on devices that have to be left out.
    fn members(
        &self,
        candidates: &[Candidate],
        side: Side,
        notes: &mut Vec<String>,
    ) -> Vec<Candidate> {
        let mut members = Vec::new();
        for Candidate { gateway, path, sb } in candidates {
            let is_member = match sb.role() {
                Role::Active(slot) if u32::from(slot) >= self.disks(side) => continue,
                Role::Active(_) => self.check_member(sb),
                Role::Spare | Role::Faulty | Role::Journal => Ok(()),
            };
            match is_member.and_then(|()| Ok(self.side(sb, side)?)) {
                Ok(sb) => {
                    let (gateway, path) = (gateway.clone(), path.clone());
                    members.push(Candidate { gateway, path, sb: Box::new(sb) });
                }
                Err(why) => notes.push(format!("{path} left out: {why}")),
            }
        }
        members
    }

    /// Whether a member belongs to the array of the freshest member: without that one the members of a side would not know that they are
    /// old.
    fn check_member(&self, sb: &Superblock) -> Result<(), String> {
        check_current(sb, self.freshest)?;
        check_slot(sb, self.freshest.role_of(sb.dev_number))?;
        if sb.reshape.is_none() && self.position.at != self.start() {
            return Err("its superblock does not record the reshape".to_owned());
        }
        Ok(())
    }

    /// The position of a reshape that has moved nothing.
    fn start(&self) -> Sector {
        if !self.position.backwards {
            return Sector::ZERO;
        }
        let sizes = Side::BOTH.map(|side| self.map(side).map_or(Sectors::ZERO, |map| map.size()));
        sizes[0].min(sizes[1]).as_end()
    }

    /// The map of a side.
    fn map(&self, side: Side) -> Result<Personality, AssembleError> {
        let sb = self.side(self.freshest, side).map_err(AssembleError::Reshape)?;
        Personality::new(&sb, sb.raid_disks as usize, || {
            Err(PersonalityError::Level(self.freshest.level).into())
        })
    }

    /// Where the data lies that has not moved yet, by the rules with which the kernel continues a reshape.
    fn far_side(&self, candidates: &[Candidate]) -> FarSide {
        let is_used = |c: &&Candidate| {
            matches!(c.sb.role(), Role::Active(_)) && self.side(&c.sb, Side::After).is_ok()
        };
        let active = candidates.iter().filter(is_used);
        let moved = active.filter_map(|c| c.sb.reshape).map(|own| i128::from(own.new_offset));
        let backwards = self.position.backwards;
        // How far ahead of what they replace rows are written, at least.
        let ahead = moved.map(|moved| if backwards { moved } else { -moved }).min().unwrap_or(0);
        let unit = i128::from(self.unit().0);
        let Some((old, new)) = self.row(Side::Before).zip(self.row(Side::After)) else {
            // RAID 10 records the position before it writes over what lies beyond it, and needs room for that.
            let [before, after] = self.far_copies.map(i128::from);
            let before = before * i128::from(self.freshest.chunk.0);
            let needed = before.max(after * i128::from(self.reshape.new_chunk.0));
            return if ahead >= needed { FarSide::Old } else { FarSide::Critical };
        };
        if self.is_in_place() {
            return if ahead >= unit { FarSide::Unsure } else { FarSide::Critical };
        }
        let at = i128::from(self.position.at.0);
        let (old, new) = (i128::from(old.0) / unit, i128::from(new.0) / unit);
        let begins = |data_disks: i128| at / (data_disks * unit) * unit;
        let (read, written) = (begins(old), begins(new));
        let overlaps = if backwards { written + ahead <= read } else { written >= read + ahead };
        if overlaps {
            return FarSide::Critical;
        }
        // Near the start of the array Linux does not record what it moves: at the beginning of a grow, at the end of a shrink.
        let unrecorded = 2 * unit * old * new / (new - old).abs();
        let is_near = at <= unrecorded + unit * old.max(new);
        let overwrites = match backwards {
            true => ahead < at / old,
            false => unrecorded / new + unit - ahead > at / old,
        };
        if is_near && overwrites { FarSide::Unsure } else { FarSide::Old }
    }

    /// The message about the reshape to the user.
    fn describe(&self, size: Sectors) -> String {
        format!(
            "a reshape has moved {} % of the data, {} sector {} of the array: the array is only read, and the reshape does not continue",
            self.position.percent(size),
            if self.position.backwards { "down to" } else { "up to" },
            self.position.at
        )
    }

    /// What backups have of the part `far` of the array; `None` if there is no backup of this array.
    async fn backup_of(
        &self,
        candidates: &[Candidate],
        files: &[BackupFile],
        far: &Range<Sector>,
        options: &Options,
        notes: &mut Vec<String>,
    ) -> Option<Vec<Saved>> {
        // A file that the user names may be old if the user insists; a backup found on a member may not.
        let files =
            files.iter().map(|file| (&file.gateway, &file.path, Sector::ZERO, options.force));
        // On a new member, behind what it will get.
        let is_new = |c: &&Candidate| matches!(c.sb.role(), Role::Active(slot) if u32::from(slot) >= self.old_disks);
        let members = candidates.iter().filter(is_new).filter_map(|c| {
            let end = c.sb.data_offset.checked_add(self.freshest.size)?;
            Some((&c.gateway, &c.path, Sector(end.0.checked_sub(BEFORE_END.0)?), false))
        });
        for (gateway, path, at, may_be_old) in files.chain(members) {
            match self.backup(gateway, at, far, may_be_old).await {
                Ok(Some(saved)) => {
                    notes.push(format!("the data being moved is read from the backup on {path}"));
                    return Some(saved);
                }
                Ok(None) => {}
                Err(why) => notes.push(format!("the backup on {path} is not used: it {why}")),
            }
        }
        None
    }

    /// The backup that `gateway` has with its header at `at`: the part of the array that lies on the old side. `None` if it has none of
    /// this array.
    ///
    /// # Errors
    /// Why it cannot be used.
    async fn backup(
        &self,
        gateway: &Gateway,
        at: Sector,
        far: &Range<Sector>,
        may_be_old: bool,
    ) -> Result<Option<Vec<Saved>>, String> {
        let unreadable = |status: Status| format!("cannot be read: {status}");
        if gateway.capacity().as_end() < at + HEADER {
            return Ok(None);
        }
        let header = read_around(gateway, at, HEADER).await.map_err(unreadable)?;
        let Some(backup) = ReshapeBackup::parse(&header) else { return Ok(None) };
        if !backup.is_of(self.freshest.version, self.freshest.set_uuid) {
            return Err("belongs to another array".into());
        }
        let copy = backup.copy().filter(|copy| *copy + HEADER <= gateway.capacity().as_end());
        let copy = copy.ok_or("has its data outside of the file")?;
        let copy = read_around(gateway, copy, HEADER).await.map_err(unreadable)?;
        if !ReshapeBackup::is_copy(&header, &copy) {
            return Err("was being written when the reshape stopped".into());
        }
        let utime = self.freshest.utime.seconds;
        let fits = utime <= backup.mtime.saturating_add(OLDER)
            && utime.saturating_add(YOUNGER) >= backup.mtime;
        if !fits && !may_be_old {
            return Err(format!(
                "was written {} minutes {} the superblocks, so it may be of an earlier reshape",
                utime.abs_diff(backup.mtime) / 60,
                if utime > backup.mtime { "before" } else { "after" }
            ));
        }
        let next = if self.position.backwards { far.end.0 - 1 } else { far.start.0 };
        let next = Sector(next);
        if !backup.sections.iter().any(|section| section.range.contains(&next)) {
            return Err(format!("does not have sector {next} of the array, which was being moved"));
        }
        let lengths = backup.sections.iter().map(|section| section.range.end - section.range.start);
        if lengths.fold(Sectors::ZERO, |all, len| all + len) > MOST_SAVED {
            return Err(format!("has more than {} MiB", MOST_SAVED.bytes() >> 20));
        }
        let mut saved = Vec::new();
        for Section { range, at } in &backup.sections {
            if *at + (range.end - range.start) > gateway.capacity().as_end() {
                return Err("has its data outside of the file".into());
            }
            let part = range.start.max(far.start)..range.end.min(far.end);
            if part.start < part.end {
                let section = Section { at: *at + (part.start - range.start), range: part };
                saved.push(Saved::read(gateway, &section).await.map_err(unreadable)?);
            }
        }
        Ok(Some(saved))
    }
}

/// A file that mdadm was given as `--backup-file`.
#[derive(Clone)]
pub struct BackupFile {
    /// The file.
    pub gateway: Gateway,
    /// Its path, for messages.
    pub path: String,
}

/// The plan of an array whose freshest superblock records a reshape. `backups` are files of this array or of others.
///
/// # Errors
/// The array would be written, the reshape is impossible, or one of its sides cannot start.
pub(super) async fn plan(
    candidates: Vec<Candidate>,
    (freshest, reshape): (&Superblock, Reshape),
    backups: &[BackupFile],
    options: &Options,
) -> Result<Plan, AssembleError> {
    if !options.read_only {
        return Err(AssembleError::OnlyRead("a reshape under way"));
    }
    let facts = Facts::of(freshest, reshape)?;
    check_same_reshape(&candidates, freshest, reshape)?;
    let (before, after) = (facts.map(Side::Before)?.size(), facts.map(Side::After)?.size());
    let size = before.min(after);
    let far = facts.position.range(Side::Before, size);
    let mut notes = vec![facts.describe(size)];
    let mut saved = Vec::new();
    let place = if far.is_empty() { FarSide::Old } else { facts.far_side(&candidates) };
    if place == FarSide::Critical {
        match facts.backup_of(&candidates, backups, &far, options, &mut notes).await {
            Some(found) => saved = found,
            None if options.force => notes.push(format!(
                "the data being moved at sector {} of the array is only in mdadm's backup file: reads there return wrong data, and no \
                 error",
                facts.position.at
            )),
            None => {
                let (at, why) = (facts.position.at, notes.split_off(1).join("; "));
                return Err(AssembleError::CriticalSection { at, why });
            }
        }
    }
    if place != FarSide::Old {
        // Also with a backup: mdadm 4.2 lets the kernel run before it has saved anything.
        notes.push(format!(
            "Linux may have moved more than the superblocks record: blocks {} sector {} of the array may have other blocks' data, \
             without an error",
            if facts.position.backwards { "below" } else { "from" },
            facts.position.at
        ));
    }
    let (mut plans, mut told) = ([None, None], [Vec::new(), Vec::new()]);
    for ((side, plan), told) in Side::BOTH.into_iter().zip(&mut plans).zip(&mut told) {
        if facts.position.range(side, size).is_empty() {
            continue;
        }
        let mut left_out = Vec::new();
        let members = facts.members(&candidates, side, &mut left_out);
        if members.is_empty() {
            return Err(not_enough((0..facts.disks(side)).map(|_| false), &left_out));
        }
        let made = plan.insert(plan_array(members, left_out, options).await?);
        *told = std::mem::take(&mut made.notes);
    }
    notes.extend(of_both(told, plans.iter().any(Option::is_none)));
    // The side with more members is the array that is shown.
    let [before, after] = plans;
    let (side, main, other) = match (before, after) {
        (Some(before), Some(after)) if facts.old_disks > freshest.raid_disks => {
            (Side::Before, before, Some(after))
        }
        (other, Some(after)) => (Side::After, after, other),
        (Some(before), None) => (Side::Before, before, None),
        (None, None) => return Err(AssembleError::Reshape("the array has no room for data")),
    };
    let status = ReshapeStatus {
        position: facts.position,
        raid_disks: freshest.raid_disks,
        delta_disks: reshape.delta_disks,
        old_layout: freshest.layout,
        new_layout: reshape.new_layout,
        old_chunk: freshest.chunk,
        new_chunk: reshape.new_chunk,
    };
    let reshaping = Reshaping { status, side, other, size, saved };
    Ok(Plan { notes, reshape: Some(Box::new(reshaping)), ..main })
}

/// Equally fresh members must agree on the reshape. (One that is an update behind may have an earlier position.)
fn check_same_reshape(
    candidates: &[Candidate],
    freshest: &Superblock,
    reshape: Reshape,
) -> Result<(), AssembleError> {
    let known = |sb: &Superblock, own: Reshape| {
        let leads_to = (own.new_level, own.new_layout, own.new_chunk, own.delta_disks);
        let from = (sb.level, sb.layout, sb.chunk, sb.raid_disks, sb.size);
        (from, leads_to, own.position, is_backwards(sb, own))
    };
    let wanted = known(freshest, reshape);
    for Candidate { path, sb, .. } in candidates {
        let is_current = matches!(sb.role(), Role::Active(_)) && sb.events == freshest.events;
        if is_current && sb.reshape.map(|own| known(sb, own)) != Some(wanted) {
            let (path, freshest) = (path.clone(), "the freshest member".to_owned());
            return Err(AssembleError::Disagree { path, freshest, what: "reshape" });
        }
    }
    Ok(())
}

/// Notes on both sides: what is said of one side alone says of which.
fn of_both([before, after]: [Vec<String>; 2], is_alone: bool) -> Vec<String> {
    if is_alone {
        return [before, after].concat();
    }
    let of_one = |notes: &[String], others: &[String], part: &str| {
        let alone = notes.iter().filter(|note| !others.contains(note));
        alone.map(|note| format!("for the part that {part}: {note}")).collect::<Vec<_>>()
    };
    let both = before.iter().filter(|note| after.contains(note)).cloned().collect();
    let old = of_one(&before, &after, "has not moved");
    [both, old, of_one(&after, &before, "has moved")].concat()
}

/// Whether a reshape goes from the end of the array to its start.
fn is_backwards(sb: &Superblock, reshape: Reshape) -> bool {
    reshape.delta_disks < 0
        || reshape.delta_disks == 0 && sb.features.contains(Features::RESHAPE_BACKWARDS)
}

/// Members that do not yet record the end of a reshape, although the freshest one does: their data is where the reshape has put it. (The
/// kernel takes their data from the old place.) Returns notes on those that are left out.
///
/// # Errors
/// There is one, and the array would be written.
pub(super) fn end_reshapes(
    candidates: &mut Vec<Candidate>,
    freshest: &Superblock,
    options: &Options,
) -> Result<Vec<String>, AssembleError> {
    let mut notes = Vec::new();
    let is_behind = |sb: &Superblock| {
        let by_one = sb.events < freshest.events && sb.events.saturating_add(1) >= freshest.events;
        by_one && sb.reshape.is_some() && matches!(sb.role(), Role::Active(_))
    };
    if !options.read_only && candidates.iter().any(|candidate| is_behind(&candidate.sb)) {
        return Err(AssembleError::OnlyRead("members that do not yet record the end of a reshape"));
    }
    candidates.retain_mut(|Candidate { sb, path, .. }| {
        let Some(own) = sb.reshape.filter(|_| is_behind(sb)) else { return true };
        // At its start it may as well have been aborted.
        let facts = Facts::of(sb, own).ok().filter(|facts| facts.position.at != facts.start());
        let Some(ended) = facts.and_then(|facts| facts.side(sb, Side::After).ok()) else {
            let why = "it records a reshape that the freshest member does not";
            notes.push(format!("{path} left out: {why}"));
            return false;
        };
        **sb = ended;
        true
    });
    Ok(notes)
}
