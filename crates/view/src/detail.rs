//! A description of an array: the text of `mdadm --detail`, and the same as data.
//!
//! The daemon sends [`Detail`] over its control socket; the command line prints it.

use std::fmt;

use ashlar_md::ondisk::text::{CTime, human_size};
use ashlar_md::ondisk::{Level, MdadmUuid, Version};
use ashlar_md::{ArrayState, ArrayStatus, MemberStatus};
use ashlar_stack::arrays::{Volume, WaitingArray, WaitingMember};
use ashlar_stack::names::ArrayName;
use serde::{Deserialize, Serialize};

use crate::scan::layout_name;

use crate::progress::{Progress, Step, detail_names, last_name};
use crate::snapshot::Snapshot;

/// The state of an array that does not run.
pub const INACTIVE: &str = "inactive";

/// The contents of `md detail`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Detail {
    /// The device: `/dev/md0`.
    pub device: String,
    /// The link to it with the array's name: `/dev/md/data`.
    #[serde(default)]
    pub alias: Option<String>,
    /// Metadata version.
    pub version: String,
    /// Creation time, seconds since 1970.
    pub created: u64,
    /// Level: `raid10`.
    pub level: String,
    /// Size in KiB.
    pub size_kib: u64,
    /// The used size of each member, in KiB; none for levels where members may differ.
    pub used_dev_size_kib: Option<u64>,
    /// Members of a complete array.
    pub raid_devices: usize,
    /// The array's number in 0.90 superblocks.
    #[serde(default)]
    pub preferred_minor: Option<u32>,
    /// Time of the last superblock update, seconds since 1970.
    pub updated: u64,
    /// Location of the write-intent bitmap: `Internal`.
    pub intent_bitmap: Option<String>,
    /// `clean` or `active`, then defects and the running operation: `clean, degraded, recovering`.
    pub state: String,
    /// Members present: working, failed and spare.
    pub total_devices: usize,
    /// Members in sync.
    pub active_devices: usize,
    /// Members that have not failed.
    pub working_devices: usize,
    /// Members that have failed.
    pub failed_devices: usize,
    /// Members that are not in sync, but have not failed: spares and those being rebuilt.
    pub spare_devices: usize,
    /// Layout: `near=2`.
    pub layout: Option<String>,
    /// Chunk size in KiB.
    pub chunk_kib: Option<u64>,
    /// How redundancy is kept consistent: `resync` or `bitmap`.
    pub consistency_policy: String,
    /// The array's current operation, as in `sync_action`.
    pub sync_action: String,
    /// Progress of that operation.
    pub sync: Option<DetailSync>,
    /// The reshape that was interrupted.
    #[serde(default)]
    pub reshape: Option<DetailReshape>,
    /// Whether an operation runs or is about to run, so that a client can wait for it.
    pub sync_busy: bool,
    /// The current or last operation, as in `sync_action`; `none` if there was none.
    pub last_sync_action: String,
    /// Sectors in which the last check found differences.
    pub mismatch_count: u64,
    /// Name in the superblock: `host:0`.
    pub name: String,
    /// Identity, as mdadm prints it.
    pub uuid: String,
    /// Event count.
    pub events: u64,
    /// The slots.
    pub members: Vec<DetailMember>,
    /// Messages of the assembly.
    pub notes: Vec<String>,
}

/// A reshape that was interrupted, and does not continue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DetailReshape {
    /// Percent of the data that it has moved.
    pub percent: u64,
    /// Its position, in KiB of the array.
    pub position_kib: u64,
    /// How many members it adds.
    pub delta_devices: i32,
    /// The layout that it leads to, if that is another one.
    pub new_layout: Option<String>,
    /// The chunk size in KiB that it leads to, if that is another one.
    pub new_chunk_kib: Option<u64>,
}

impl DetailReshape {
    fn of(status: &ArrayStatus) -> Option<Self> {
        let reshape = status.reshape?;
        let layout = layout_name(status.level, reshape.new_layout);
        Some(Self {
            percent: reshape.position.percent(status.size),
            position_kib: reshape.position.at.0 / 2,
            delta_devices: reshape.delta_disks,
            new_layout: layout.filter(|_| reshape.new_layout != reshape.old_layout),
            new_chunk_kib: Some(reshape.new_chunk.0 / 2)
                .filter(|_| reshape.new_chunk != reshape.old_chunk),
        })
    }

    fn write(&self, raid_devices: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |key: &str, value: &dyn fmt::Display| writeln!(f, "{key:>18} : {value}");
        if self.delta_devices != 0 {
            let before = raid_devices as i64 - i64::from(self.delta_devices);
            let delta = self.delta_devices;
            line("Delta Devices", &format_args!("{delta}, ({before}->{raid_devices})"))?;
        }
        if let Some(layout) = &self.new_layout {
            line("New Layout", layout)?;
        }
        if let Some(kib) = self.new_chunk_kib {
            line("New Chunksize", &format_args!("{kib}K"))?;
        }
        writeln!(f)
    }
}

/// A resync, recovery, check or repair under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DetailSync {
    /// mdadm's word: `Rebuild`, `Resync` or `Check`.
    pub kind: String,
    /// Percent done, rounded as mdadm does.
    pub percent: u64,
    /// KiB done.
    pub done_kib: u64,
    /// KiB in total.
    pub total_kib: u64,
    /// KiB per second.
    pub speed_kib: u64,
    /// Seconds left at this speed.
    pub seconds_left: Option<u64>,
}

impl DetailSync {
    fn new(progress: &Progress) -> Option<Self> {
        let Step::Running(run) = progress.step else { return None };
        Some(Self {
            kind: detail_names(progress.action).1.to_owned(),
            percent: run.per_mille() / 10,
            done_kib: run.done.0 / 2,
            total_kib: run.total.0 / 2,
            speed_kib: run.speed_kib,
            seconds_left: run.left.map(|left| left.as_secs()),
        })
    }
}

/// A slot of an array.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DetailMember {
    /// Number in the superblock; none for an empty slot.
    pub number: Option<u32>,
    /// The slot; none for a spare or a member that failed.
    pub slot: Option<u16>,
    /// `active sync`, `spare rebuilding`, `spare`, `faulty`, `removed`.
    pub state: String,
    /// Whether it is to replace the member in its slot.
    pub replacement: bool,
    /// The device.
    pub path: Option<String>,
    /// Read errors seen.
    pub read_errors: u64,
    /// Sectors rewritten after a read error.
    pub corrected: u64,
}

impl DetailMember {
    /// Whether it is a spare without other flags: mdadm counts only these.
    fn is_plain_spare(&self) -> bool {
        matches!(self.state.as_str(), "spare" | "spare rebuilding")
    }
}

impl Detail {
    /// Describes this array, which is at `device`.
    pub fn new(array: &Snapshot, device: impl Into<String>) -> Self {
        let status = &array.status;
        let here = || status.members.iter().filter(|member| member.path.is_some());
        let failed_devices = here().filter(|member| member.faulty).count();
        let active_devices = here().filter(|member| member.in_sync).count();
        let working_devices = here().count() - failed_devices;
        let redundant = status.level.is_redundant();
        let kib = |sectors: ashlar_block::Sectors| sectors.0 / 2;
        Self {
            device: device.into(),
            alias: None,
            version: status.version.to_string(),
            created: status.ctime.seconds,
            level: status.level.to_string(),
            size_kib: kib(status.size),
            used_dev_size_kib: redundant.then(|| kib(status.used_dev_size)),
            raid_devices: status.raid_disks,
            preferred_minor: status.preferred_minor,
            updated: status.utime.seconds,
            intent_bitmap: array.bitmap.as_ref().map(|_| "Internal".to_owned()),
            state: state(status, &array.progress),
            total_devices: here().count(),
            active_devices,
            working_devices,
            failed_devices,
            spare_devices: working_devices - active_devices,
            layout: layout_name(status.level, status.layout),
            chunk_kib: Some(kib(status.chunk)).filter(|kib| *kib != 0),
            consistency_policy: array.consistency_policy().to_owned(),
            sync_action: array.progress.action.name().to_owned(),
            sync: DetailSync::new(&array.progress),
            reshape: DetailReshape::of(status),
            sync_busy: array.progress.busy,
            last_sync_action: last_name(&array.progress).to_owned(),
            mismatch_count: array.progress.mismatches.0,
            name: status.set_name.clone(),
            uuid: MdadmUuid(status.uuid).to_string(),
            events: status.events,
            members: members(status),
            notes: status.notes.clone(),
        }
    }
}

/// The path of the link with the array's name, if it has one.
fn link(name: &ArrayName) -> Option<String> {
    name.alias.as_ref().map(|_| name.path())
}

impl Detail {
    /// Describes a running array.
    pub fn of(volume: &Volume) -> Self {
        let device = format!("/dev/{}", volume.name.device());
        Self { alias: link(&volume.name), ..Self::new(&Snapshot::of(&volume.view), device) }
    }

    /// Describes an array that does not run, from its superblocks.
    pub fn waiting(array: &WaitingArray) -> Self {
        let here = array.members.len();
        let member = |member: &WaitingMember| DetailMember {
            number: Some(member.number),
            slot: None,
            state: "spare".to_owned(),
            replacement: false,
            path: Some(member.path.clone()),
            read_errors: 0,
            corrected: 0,
        };
        Self {
            device: format!("/dev/{}", array.name.device()),
            alias: link(&array.name),
            version: array.version.to_string(),
            created: 0,
            level: array.level.to_string(),
            size_kib: 0,
            used_dev_size_kib: None,
            raid_devices: array.raid_disks as usize,
            preferred_minor: None,
            updated: 0,
            intent_bitmap: None,
            state: INACTIVE.to_owned(),
            total_devices: here,
            active_devices: 0,
            working_devices: here,
            failed_devices: 0,
            spare_devices: here,
            layout: None,
            chunk_kib: None,
            consistency_policy: "none".to_owned(),
            sync_action: "idle".to_owned(),
            sync: None,
            reshape: None,
            sync_busy: false,
            last_sync_action: "none".to_owned(),
            mismatch_count: 0,
            name: array.set_name.clone(),
            uuid: MdadmUuid(array.uuid).to_string(),
            events: array.events,
            members: array.members.iter().map(member).collect(),
            notes: Vec::new(),
        }
    }

    /// Whether the superblocks are of version 0.90.
    fn is_old(&self) -> bool {
        self.version == Version::V0_90.to_string()
    }

    /// The text for an array that does not run.
    fn write_inactive(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.device)?;
        let mut line = |key: &str, value: &dyn fmt::Display| writeln!(f, "{key:>18} : {value}");
        line("Version", &self.version)?;
        line("Raid Level", &self.level)?;
        line("Total Devices", &self.total_devices)?;
        line("Persistence", &"Superblock is persistent\n")?;
        line("State", &self.state)?;
        line("Working Devices", &format_args!("{}\n", self.working_devices))?;
        line("Name", &self.name)?;
        line("UUID", &self.uuid)?;
        line("Events", &format_args!("{}\n", self.events))?;
        writeln!(f, "    Number   Major   Minor   RaidDevice\n")?;
        for member in &self.members {
            let path = member.path.as_deref().unwrap_or_default();
            writeln!(f, "       -   {0:>5}    {0:>5}        -        {path}", 0)?;
        }
        Ok(())
    }
}

fn state(status: &ArrayStatus, progress: &Progress) -> String {
    let dirty = match status.state {
        ArrayState::Active => true,
        // As the kernel says of it, which is not being written.
        ArrayState::ReadAuto => false,
        ArrayState::Inactive | ArrayState::ReadOnly | ArrayState::Clean => status.unsynced,
    };
    let mut state = if dirty { "active" } else { "clean" }.to_owned();
    if status.degraded > 0 {
        state += ", degraded";
    }
    let waits = match progress.step {
        Step::None => return state,
        Step::Running(_) => "",
        Step::Pending => " (PENDING)",
    };
    state + ", " + detail_names(progress.action).0 + waits
}

/// The members in mdadm's order: each slot and its replacement, then the others by number.
fn members(status: &ArrayStatus) -> Vec<DetailMember> {
    let removed = |slot: usize| DetailMember {
        number: None,
        slot: Some(slot as u16),
        state: "removed".to_owned(),
        replacement: false,
        path: None,
        read_errors: 0,
        corrected: 0,
    };
    let placed = |member: &&MemberStatus| member.index.is_some() && !member.faulty;
    let mut rows = Vec::new();
    for slot in 0..status.raid_disks {
        let here = status.members.iter().filter(|m| m.slot == Some(slot as u16)).filter(placed);
        let (replacements, members): (Vec<_>, Vec<_>) = here.partition(|m| m.replacement);
        if members.is_empty() {
            rows.push(removed(slot));
        }
        rows.extend(members.into_iter().chain(replacements).map(|m| row(status, m)));
    }
    let beside = status.members.iter().filter(|m| m.index.is_some());
    let mut beside: Vec<&MemberStatus> = beside.filter(|m| m.faulty || m.slot.is_none()).collect();
    beside.sort_by_key(|member| member.dev_number);
    rows.extend(beside.into_iter().map(|member| row(status, member)));
    rows
}

fn row(status: &ArrayStatus, member: &MemberStatus) -> DetailMember {
    let slot = member.slot.filter(|_| !member.faulty);
    let mut state = match (member.faulty, member.in_sync) {
        (true, _) => "faulty".to_owned(),
        (false, true) => "active sync".to_owned(),
        (false, false) => String::new(),
    };
    let mut add = |word: &str| {
        state += if state.is_empty() { "" } else { " " };
        state += word;
    };
    if member.in_sync
        && let Some(set) = slot.and_then(|slot| copy_set(status, slot))
    {
        add(&set);
    }
    let flags = [("writemostly", member.write_mostly), ("failfast", member.failfast)];
    flags.iter().filter(|(_, is)| *is).for_each(|(word, _)| add(word));
    if !member.faulty && !member.in_sync {
        add(if slot.is_some() { "spare rebuilding" } else { "spare" });
    }
    DetailMember {
        number: Some(member.dev_number),
        slot,
        state,
        replacement: member.replacement,
        path: member.path.clone(),
        read_errors: member.read_errors,
        corrected: member.corrected,
    }
}

/// The letter of the copy set of a RAID10 member: for near copies only, and only if each member
/// holds exactly one copy.
fn copy_set(status: &ArrayStatus, slot: u16) -> Option<String> {
    let (copies, far) = (status.layout & 255, status.layout >> 8 & 255);
    let plain = status.level == Level::Raid10 && far == 1;
    let fits =
        plain && (1..=26).contains(&copies) && (status.raid_disks as u32).is_multiple_of(copies);
    let letter = char::from(b'A' + (u32::from(slot) % copies.max(1)) as u8);
    fits.then(|| format!("set-{letter}"))
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.state == INACTIVE {
            return self.write_inactive(f);
        }
        let size = |kib: u64| format!("{kib}{}", human_size(kib.saturating_mul(1024)));
        writeln!(f, "{}:", self.device)?;
        let mut line = |key: &str, value: &dyn fmt::Display| writeln!(f, "{key:>18} : {value}");
        line("Version", &self.version)?;
        line("Creation Time", &CTime(self.created))?;
        line("Raid Level", &self.level)?;
        line("Array Size", &size(self.size_kib))?;
        if let Some(kib) = self.used_dev_size_kib {
            line("Used Dev Size", &size(kib))?;
        }
        line("Raid Devices", &self.raid_devices)?;
        line("Total Devices", &self.total_devices)?;
        if let Some(minor) = self.preferred_minor {
            line("Preferred Minor", &minor)?;
        }
        line("Persistence", &"Superblock is persistent\n")?;
        if let Some(bitmap) = &self.intent_bitmap {
            line("Intent Bitmap", &format_args!("{bitmap}\n"))?;
        }
        line("Update Time", &CTime(self.updated))?;
        line("State", &format_args!("{} ", self.state))?;
        line("Active Devices", &self.active_devices)?;
        line("Working Devices", &self.working_devices)?;
        line("Failed Devices", &self.failed_devices)?;
        line("Spare Devices", &format_args!("{}\n", self.spare_devices))?;
        if let Some(layout) = &self.layout {
            line("Layout", layout)?;
        }
        if let Some(kib) = self.chunk_kib {
            line("Chunk Size", &format_args!("{kib}K\n"))?;
        }
        line("Consistency Policy", &format_args!("{}\n", self.consistency_policy))?;
        if let Some(DetailSync { kind, percent, .. }) = &self.sync {
            line(&format!("{kind} Status"), &format_args!("{percent}% complete\n"))?;
        }
        if let Some(reshape) = &self.reshape {
            line("Reshape Status", &format_args!("{}% complete", reshape.percent))?;
            reshape.write(self.raid_devices, f)?;
        }
        let mut line = |key: &str, value: &dyn fmt::Display| writeln!(f, "{key:>18} : {value}");
        if self.is_old() {
            line("UUID", &self.uuid)?;
            let (high, low) = (self.events >> 32, self.events as u32);
            line("Events", &format_args!("{high}.{low}\n"))?;
        } else {
            line("Name", &self.name)?;
            line("UUID", &self.uuid)?;
            line("Events", &format_args!("{}\n", self.events))?;
        }
        writeln!(f, "    Number   Major   Minor   RaidDevice State")?;
        let mut in_slots = true;
        for member in &self.members {
            if in_slots && member.slot.is_none() {
                in_slots = false;
                writeln!(f)?;
            }
            let cell = |number: Option<u64>| number.map_or("-".to_owned(), |n| n.to_string());
            let (number, slot) =
                (cell(member.number.map(u64::from)), cell(member.slot.map(u64::from)));
            write!(f, "   {number:>5}   {0:>5}    {0:>5}    {slot:>5}      {1}", 0, member.state)?;
            match &member.path {
                Some(path) => writeln!(f, "   {path}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

mod brief;
#[cfg(test)]
mod tests;
