//! The status of a running array (`md detail`, `proc/mdstat`, the attributes in `sys`).

use ashlar_block::Sectors;
use uuid::Uuid;

use crate::array::Array;
use crate::barrier::BarrierTotals;
use crate::membership::rdev::{Rdev, State};
use crate::membership::slots::{Index, Members, Place};
use crate::ondisk::{Level, Superblock, Timestamp, Version};
use crate::personality::Personality;
use crate::reshape::ReshapeStatus;

/// The kernel's `array_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArrayState {
    /// Stopped.
    Inactive,
    /// Read-only.
    ReadOnly,
    /// Clean; neither syncs nor superblock updates write to its members until a client's first write makes it active.
    /// (A write to a RAID 0 does not change this state.)
    ReadAuto,
    /// No write under way, and the superblocks say so. If the array is [unsynced](Array::is_unsynced), copies may still
    /// differ: the superblocks record up to where they are the same.
    Clean,
    /// Writes under way.
    Active,
}

impl ArrayState {
    /// The kernel's word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inactive => "inactive",
            Self::ReadOnly => "readonly",
            Self::ReadAuto => "read-auto",
            Self::Clean => "clean",
            Self::Active => "active",
        }
    }
}

/// A slot of an array, or a replacement, spare or failed member.
#[derive(Clone, Default, Debug)]
pub struct MemberStatus {
    /// The member's index in the array; `None` for an empty slot.
    pub index: Option<Index>,
    /// Its slot; `None` for a spare or a member that failed and was replaced.
    pub slot: Option<u16>,
    /// Whether it will replace the member of its slot.
    pub replacement: bool,
    /// Its path; `None` for an empty slot.
    pub path: Option<String>,
    /// Whether it is in sync.
    pub in_sync: bool,
    /// Whether it failed.
    pub faulty: bool,
    /// Whether it failed because its device did not answer or was offline: it may return.
    pub lost: bool,
    /// Write-mostly: read only if no other in-sync member has the block.
    pub write_mostly: bool,
    /// Failfast: failed I/O on it is not retried.
    pub failfast: bool,
    /// Whether it will be replaced once there is a spare.
    pub want_replacement: bool,
    /// How much of it has been rebuilt; [`Sectors::MAX`] for all.
    pub recovered: Sectors,
    /// Where its data begins.
    pub data_offset: Sectors,
    /// The size of its data area.
    pub data_size: Sectors,
    /// Its number in the superblocks.
    pub dev_number: u32,
    /// Its identity.
    pub device_uuid: Uuid,
    /// Read errors seen.
    pub read_errors: u64,
    /// Sectors rewritten after a read error.
    pub corrected: u64,
}

impl MemberStatus {
    /// Whether it is in no slot and has not failed.
    pub fn is_spare(&self) -> bool {
        self.slot.is_none() && self.index.is_some() && !self.faulty
    }

    /// A slot without a member.
    pub fn empty(slot: usize) -> Self {
        Self { slot: Some(slot as u16), ..Self::default() }
    }

    fn of(index: Index, rdev: &Rdev, place: Place, device_uuid: Uuid) -> Self {
        let state = rdev.state();
        let (read_errors, corrected) = rdev.errors();
        let slot = match place {
            Place::Slot(slot) | Place::Replacement(slot) => Some(slot as u16),
            Place::Spare => None,
        };
        Self {
            index: Some(index),
            slot,
            replacement: matches!(place, Place::Replacement(_)),
            path: Some(rdev.path().to_owned()),
            in_sync: rdev.is_in_sync(),
            faulty: rdev.is_faulty(),
            lost: state.contains(State::FAULTY | State::LOST),
            write_mostly: state.contains(State::WRITE_MOSTLY),
            failfast: state.contains(State::FAILFAST),
            want_replacement: state.contains(State::WANT_REPLACEMENT),
            recovered: rdev.recovered(),
            data_offset: rdev.data_offset(),
            data_size: rdev.data_size(),
            dev_number: rdev.number(),
            device_uuid,
            read_errors,
            corrected,
        }
    }
}

/// The present status of an array.
#[derive(Clone, Debug)]
pub struct ArrayStatus {
    /// `md0`.
    pub name: String,
    /// Identity.
    pub uuid: Uuid,
    /// Name in the superblock, usually `host:name`.
    pub set_name: String,
    /// Metadata version.
    pub version: Version,
    /// The array's number in 0.90 superblocks.
    pub preferred_minor: Option<u32>,
    /// Level.
    pub level: Level,
    /// The superblock's layout word.
    pub layout: u32,
    /// Chunk size, zero for a level without chunks.
    pub chunk: Sectors,
    /// Members of a complete array.
    pub raid_disks: usize,
    /// Slots without a working member.
    pub degraded: usize,
    /// Size of the array.
    pub size: Sectors,
    /// The size that the array uses of each member.
    pub used_dev_size: Sectors,
    /// State.
    pub state: ArrayState,
    /// Whether copies may differ: the array was not stopped cleanly, or a write failed on a member that
    /// holds a last copy and so never fails.
    pub unsynced: bool,
    /// Event count.
    pub events: u64,
    /// Sectors from the superblock to the bitmap, if there is one.
    pub bitmap_offset: Option<i32>,
    /// Whether it has a partial parity log.
    pub has_ppl: bool,
    /// The reshape that is under way. Layout and chunk size are those before it, the number of members is that after it.
    pub reshape: Option<ReshapeStatus>,
    /// When it was created.
    pub ctime: Timestamp,
    /// When the superblocks were last written.
    pub utime: Timestamp,
    /// The slots in order, then replacements, spares and failed members.
    pub members: Vec<MemberStatus>,
    /// Notes of the assembly.
    pub notes: Vec<String>,
}

impl Array {
    /// How often I/O waited for the array's own I/O, and that began, since the array started.
    pub fn barrier_totals(&self) -> BarrierTotals {
        self.core.barrier.totals()
    }

    /// The array's state, without waiting.
    pub fn state(&self) -> ArrayState {
        if self.is_stopped() {
            ArrayState::Inactive
        } else if self.core.disk.is_read_only() {
            ArrayState::ReadOnly
        } else if self.core.lifecycle.is_auto_read_only() {
            ArrayState::ReadAuto
        } else if self.is_active() {
            ArrayState::Active
        } else {
            ArrayState::Clean
        }
    }

    /// Slots without a working member.
    pub fn degraded(&self) -> usize {
        self.core.members.degraded()
    }

    /// The members.
    pub fn members(&self) -> &Members {
        &self.core.members
    }

    /// The level and its map.
    pub fn personality(&self) -> &Personality {
        self.core.personality()
    }

    /// The whole status. Waits for a superblock update that is under way.
    pub async fn status(&self) -> ArrayStatus {
        let superblocks = self.core.superblocks().await;
        let (any, reshape) = (superblocks.of(0), self.reshape());
        let uuid = |index| superblocks.of(index).map_or(Uuid::nil(), |sb| sb.device_uuid);
        let members = self.member_status(uuid);
        ArrayStatus {
            name: self.core.name().to_owned(),
            uuid: any.map_or(Uuid::nil(), |sb| sb.set_uuid),
            set_name: any.map_or_else(String::new, |sb| sb.name.clone()),
            version: any.map_or(Version::V1_2, |sb| sb.version),
            preferred_minor: any.and_then(Superblock::preferred_minor),
            level: self.core.personality().level(),
            layout: reshape.map_or(any.map_or(0, |sb| sb.layout), |reshape| reshape.old_layout),
            chunk: reshape.map_or(self.core.personality().chunk(), |reshape| reshape.old_chunk),
            raid_disks: reshape
                .map_or(self.core.members.slots(), |reshape| reshape.raid_disks as usize),
            degraded: self.degraded(),
            size: self.size(),
            used_dev_size: self.core.personality().used_dev_size(),
            state: self.state(),
            unsynced: self.is_unsynced(),
            events: superblocks.events(),
            bitmap_offset: any.and_then(|sb| sb.bitmap_offset),
            has_ppl: any.is_some_and(|sb| sb.ppl.is_some()),
            reshape: reshape.copied(),
            ctime: any.map_or(Timestamp::default(), |sb| sb.ctime),
            utime: any.map_or(Timestamp::default(), |sb| sb.utime),
            members,
            notes: self.notes.clone(),
        }
    }

    /// Brings an earlier status up to date without waiting for the superblocks: what they alone hold stays as it was.
    pub fn refresh(&self, status: &mut ArrayStatus) {
        let before = std::mem::take(&mut status.members);
        let known = |index| before.iter().find(|member| member.index == Some(index));
        status.members =
            self.member_status(|index| known(index).map_or(Uuid::nil(), |it| it.device_uuid));
        status.degraded = self.degraded();
        status.state = self.state();
        status.unsynced = self.is_unsynced();
    }

    /// The members, slot by slot, then replacements and spares. `uuid`: the identity of a member's device.
    fn member_status(&self, uuid: impl Fn(Index) -> Uuid) -> Vec<MemberStatus> {
        let members = &self.core.members;
        let mut status: Vec<_> = (0..members.slots()).map(MemberStatus::empty).collect();
        for (index, rdev) in members.iter() {
            let place = members.place(index);
            let member = MemberStatus::of(index, rdev, place, uuid(index));
            match place {
                Place::Slot(slot) => status[slot] = member,
                Place::Replacement(_) | Place::Spare => status.push(member),
            }
        }
        let others = self.other_side().into_iter().flat_map(|core| {
            core.members.iter().map(|(index, rdev)| (index, rdev, core.members.place(index)))
        });
        for (index, rdev, place) in others {
            let other = MemberStatus::of(index, rdev, place, rdev.device_uuid());
            let same = |member: &&mut MemberStatus| {
                member.index.is_some() && member.dev_number == other.dev_number
            };
            match status.iter_mut().find(same) {
                Some(member) => {
                    member.faulty |= other.faulty;
                    member.lost |= other.lost;
                    member.read_errors += other.read_errors;
                }
                // Its index would be one of the other side's.
                None => status.push(MemberStatus { index: None, ..other }),
            }
        }
        status
    }
}
