//! What can be said of a running array (`md detail`, `proc/mdstat`, the attributes in `sys`).

use ashlar_block::Sectors;
use uuid::Uuid;

use crate::array::Array;
use crate::ondisk::{Level, Timestamp, Version};
use crate::personality::Personality;

/// The kernel's `array_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArrayState {
    /// Stopped.
    Inactive,
    /// Only read.
    ReadOnly,
    /// No write under way, all copies the same.
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
            Self::Clean => "clean",
            Self::Active => "active",
        }
    }
}

/// A slot of an array.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// The slot.
    pub slot: u16,
    /// Its path; `None` for a slot without member.
    pub path: Option<String>,
    /// Whether it takes part.
    pub in_sync: bool,
    /// Whether it failed.
    pub faulty: bool,
    /// Whether it is read only when nobody else can be.
    pub write_mostly: bool,
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

/// An array, as it is now.
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
    /// Level.
    pub level: Level,
    /// The superblock's layout word.
    pub layout: u32,
    /// Chunk size, zero for a level without.
    pub chunk: Sectors,
    /// Members of a complete array.
    pub raid_disks: usize,
    /// Slots without a working member.
    pub degraded: usize,
    /// Size of the array.
    pub size: Sectors,
    /// What the array uses of each member.
    pub used_dev_size: Sectors,
    /// State.
    pub state: ArrayState,
    /// Whether copies may differ: the array was not stopped cleanly, or a write failed on a copy that
    /// had to stay.
    pub unsynced: bool,
    /// Event count.
    pub events: u64,
    /// When it was created.
    pub ctime: Timestamp,
    /// When the superblocks were last written.
    pub utime: Timestamp,
    /// By slot.
    pub members: Vec<MemberStatus>,
    /// Notes of the assembly.
    pub notes: Vec<String>,
}

impl Array {
    /// The array's state, without waiting.
    pub fn state(&self) -> ArrayState {
        if self.is_stopped() {
            ArrayState::Inactive
        } else if self.disk.is_read_only() {
            ArrayState::ReadOnly
        } else if self.is_active() {
            ArrayState::Active
        } else {
            ArrayState::Clean
        }
    }

    /// Slots without a working member.
    pub fn degraded(&self) -> usize {
        (0..self.members.len()).filter(|slot| self.in_sync(*slot).is_none()).count()
    }

    /// The level and its map.
    pub fn personality(&self) -> &Personality {
        &self.personality
    }

    /// Everything, as of now. Waits for a superblock update that is under way.
    pub async fn status(&self) -> ArrayStatus {
        let superblocks = self.superblocks.lock().await;
        let any = (0..self.members.len()).find_map(|slot| superblocks.of(slot));
        let members = self.members.iter().enumerate().map(|(slot, rdev)| {
            let sb = superblocks.of(slot);
            let (read_errors, corrected) = rdev.as_ref().map_or((0, 0), |r| r.errors());
            MemberStatus {
                slot: slot as u16,
                path: rdev.as_ref().map(|r| r.path().to_owned()),
                in_sync: rdev.as_ref().is_some_and(|r| r.is_in_sync()),
                faulty: rdev.as_ref().is_some_and(|r| r.is_faulty()),
                write_mostly: rdev.as_ref().is_some_and(|r| r.is_write_mostly()),
                data_offset: rdev.as_ref().map_or(Sectors::ZERO, |r| r.data_offset()),
                data_size: rdev.as_ref().map_or(Sectors::ZERO, |r| r.data_size()),
                dev_number: sb.map_or(0, |sb| sb.dev_number),
                device_uuid: sb.map_or(Uuid::nil(), |sb| sb.device_uuid),
                read_errors,
                corrected,
            }
        });
        let used_dev_size = match &self.personality {
            Personality::Raid0(_) => Sectors::ZERO,
            Personality::Raid1 { size, .. } => *size,
            Personality::Raid10(geometry) => geometry.used_dev_sectors(),
        };
        ArrayStatus {
            name: self.disk.name().to_owned(),
            uuid: any.map_or(Uuid::nil(), |sb| sb.set_uuid),
            set_name: any.map_or_else(String::new, |sb| sb.name.clone()),
            version: any.map_or(Version::V1_2, |sb| sb.version),
            level: self.personality.level(),
            layout: any.map_or(0, |sb| sb.layout),
            chunk: self.personality.chunk(),
            raid_disks: self.members.len(),
            degraded: self.degraded(),
            size: self.personality.size(),
            used_dev_size,
            state: self.state(),
            unsynced: self.is_unsynced(),
            events: superblocks.events(),
            ctime: any.map_or(Timestamp::default(), |sb| sb.ctime),
            utime: any.map_or(Timestamp::default(), |sb| sb.utime),
            members: members.collect(),
            notes: self.notes.clone(),
        }
    }
}
