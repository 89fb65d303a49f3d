//! An array in words: the text of `mdadm --detail`, and the same as data.
//!
//! The daemon sends [`Detail`] over its control socket; the command line prints it.

use std::fmt;

use ashlar_md::ondisk::text::{CTime, human_size};
use ashlar_md::ondisk::{Level, MdadmUuid};
use ashlar_md::{ArrayState, ArrayStatus, MemberStatus};
use serde::{Deserialize, Serialize};

use crate::attributes::md::policy;
use crate::scan::layout_name;

/// What `md detail` tells of an array.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Detail {
    /// The device: `/dev/md0`.
    pub device: String,
    /// Metadata version.
    pub version: String,
    /// When it was made, seconds since 1970.
    pub created: u64,
    /// Level: `raid10`.
    pub level: String,
    /// Size in KiB.
    pub size_kib: u64,
    /// What is used of each member, in KiB; none for levels where that may differ.
    pub used_dev_size_kib: Option<u64>,
    /// Members of a complete array.
    pub raid_devices: usize,
    /// When the superblocks were written, seconds since 1970.
    pub updated: u64,
    /// `clean`, `active`, and what is wrong: `clean, degraded`.
    pub state: String,
    /// Members that are here: working, failed, and spare ones.
    pub total_devices: usize,
    /// Members in sync.
    pub active_devices: usize,
    /// Members that have not failed.
    pub working_devices: usize,
    /// Members that have failed.
    pub failed_devices: usize,
    /// Layout: `near=2`.
    pub layout: Option<String>,
    /// Chunk size in KiB.
    pub chunk_kib: Option<u64>,
    /// How copies are kept the same: `resync`.
    pub consistency_policy: String,
    /// Name in the superblock: `host:0`.
    pub name: String,
    /// Identity, as mdadm prints it.
    pub uuid: String,
    /// Event count.
    pub events: u64,
    /// The slots.
    pub members: Vec<DetailMember>,
    /// What the assembly had to say.
    pub notes: Vec<String>,
}

/// A slot of an array.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DetailMember {
    /// Number in the superblock; none for an empty slot.
    pub number: Option<u32>,
    /// The slot; none for a member that failed.
    pub slot: Option<u16>,
    /// `active sync`, `faulty`, `removed`.
    pub state: String,
    /// The device.
    pub path: Option<String>,
    /// Read errors seen.
    pub read_errors: u64,
    /// Sectors rewritten after a read error.
    pub corrected: u64,
}

impl Detail {
    /// Tells of the array with this status, which is at `device`.
    pub fn new(status: &ArrayStatus, device: impl Into<String>) -> Self {
        let here = || status.members.iter().filter(|member| member.path.is_some());
        let failed_devices = here().filter(|member| member.faulty).count();
        let redundant = status.level.is_redundant();
        let kib = |sectors: ashlar_block::Sectors| sectors.0 / 2;
        Self {
            device: device.into(),
            version: status.version.to_string(),
            created: status.ctime.seconds,
            level: status.level.to_string(),
            size_kib: kib(status.size),
            used_dev_size_kib: redundant.then(|| kib(status.used_dev_size)),
            raid_devices: status.raid_disks,
            updated: status.utime.seconds,
            state: state(status),
            total_devices: here().count(),
            active_devices: here().filter(|member| member.in_sync).count(),
            working_devices: here().count() - failed_devices,
            failed_devices,
            layout: layout_name(status.level, status.layout),
            chunk_kib: Some(kib(status.chunk)).filter(|kib| *kib != 0),
            consistency_policy: policy(status.level).to_owned(),
            name: status.set_name.clone(),
            uuid: MdadmUuid(status.uuid).to_string(),
            events: status.events,
            members: members(status),
            notes: status.notes.clone(),
        }
    }
}

fn state(status: &ArrayStatus) -> String {
    let dirty = status.state == ArrayState::Active || status.unsynced;
    let mut state = if dirty { "active" } else { "clean" }.to_owned();
    if status.degraded > 0 {
        state += ", degraded";
    }
    state
}

/// As mdadm lists them: all slots, then the members that failed.
fn members(status: &ArrayStatus) -> Vec<DetailMember> {
    let row = |member: &MemberStatus, slot, state| DetailMember {
        number: Some(member.dev_number),
        slot,
        state,
        path: member.path.clone(),
        read_errors: member.read_errors,
        corrected: member.corrected,
    };
    let removed = |member: &MemberStatus| DetailMember {
        number: None,
        slot: member.slot,
        state: "removed".to_owned(),
        path: None,
        read_errors: 0,
        corrected: 0,
    };
    let slots = status.members.iter().map(|member| {
        if member.path.is_none() || member.faulty {
            return removed(member);
        }
        let mut state = if member.in_sync { "active sync" } else { "spare rebuilding" }.to_owned();
        if member.write_mostly {
            state += " writemostly";
        }
        state += &member.slot.and_then(|slot| copy_set(status, slot)).unwrap_or_default();
        row(member, member.slot, state)
    });
    let faulty = status.members.iter().filter(|member| member.faulty);
    slots.chain(faulty.map(|member| row(member, None, "faulty".to_owned()))).collect()
}

/// The letter of the copies that a member of a RAID10 with near copies only holds, where every member
/// holds one of them only.
fn copy_set(status: &ArrayStatus, slot: u16) -> Option<String> {
    let (copies, far) = (status.layout & 255, status.layout >> 8 & 255);
    let plain = status.level == Level::Raid10 && far == 1;
    let fits =
        plain && (1..=26).contains(&copies) && (status.raid_disks as u32).is_multiple_of(copies);
    let letter = char::from(b'A' + (u32::from(slot) % copies.max(1)) as u8);
    fits.then(|| format!(" set-{letter}"))
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        line("Persistence", &"Superblock is persistent\n")?;
        line("Update Time", &CTime(self.updated))?;
        line("State", &format_args!("{} ", self.state))?;
        line("Active Devices", &self.active_devices)?;
        line("Working Devices", &self.working_devices)?;
        line("Failed Devices", &self.failed_devices)?;
        line("Spare Devices", &"0\n")?;
        if let Some(layout) = &self.layout {
            line("Layout", layout)?;
        }
        if let Some(kib) = self.chunk_kib {
            line("Chunk Size", &format_args!("{kib}K\n"))?;
        }
        line("Consistency Policy", &format_args!("{}\n", self.consistency_policy))?;
        line("Name", &self.name)?;
        line("UUID", &self.uuid)?;
        line("Events", &format_args!("{}\n", self.events))?;
        writeln!(f, "    Number   Major   Minor   RaidDevice State")?;
        for (index, member) in self.members.iter().enumerate() {
            if member.slot.is_none() && index == self.raid_devices {
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

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_block::Sectors;
    use ashlar_md::ondisk::{Timestamp, Version};

    fn member(slot: u16, path: Option<&str>) -> MemberStatus {
        MemberStatus {
            path: path.map(str::to_owned),
            in_sync: path.is_some(),
            faulty: false,
            write_mostly: false,
            data_offset: Sectors(2048),
            data_size: Sectors(4096),
            dev_number: u32::from(slot),
            ..MemberStatus::empty(usize::from(slot))
        }
    }

    fn status() -> ArrayStatus {
        ArrayStatus {
            name: "md0".to_owned(),
            uuid: uuid::Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff),
            set_name: "host:0".to_owned(),
            version: Version::V1_2,
            level: Level::Raid10,
            layout: 0x102,
            chunk: Sectors(1024),
            raid_disks: 4,
            degraded: 2,
            size: Sectors(4_186_112),
            used_dev_size: Sectors(2_093_056),
            state: ArrayState::Clean,
            unsynced: false,
            events: 17,
            ctime: Timestamp::from_seconds(1_000_000_000),
            utime: Timestamp::from_seconds(1_000_000_001),
            members: vec![
                member(0, Some("a.img")),
                MemberStatus { in_sync: false, faulty: true, ..member(1, Some("b.img")) },
                member(2, None),
                member(3, Some("d.img")),
            ],
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_text_is_that_of_mdadm() {
        let expected = "\
/dev/md0:
           Version : 1.2
     Creation Time : Sun Sep  9 01:46:40 2001
        Raid Level : raid10
        Array Size : 2093056 (2044.00 MiB 2143.29 MB)
     Used Dev Size : 1046528 (1022.00 MiB 1071.64 MB)
      Raid Devices : 4
     Total Devices : 3
       Persistence : Superblock is persistent

       Update Time : Sun Sep  9 01:46:41 2001
             State : clean, degraded\u{20}
    Active Devices : 2
   Working Devices : 2
    Failed Devices : 1
     Spare Devices : 0

            Layout : near=2
        Chunk Size : 512K

Consistency Policy : resync

              Name : host:0
              UUID : 00112233:44556677:8899aabb:ccddeeff
            Events : 17

    Number   Major   Minor   RaidDevice State
       0       0        0        0      active sync set-A   a.img
       -       0        0        1      removed
       -       0        0        2      removed
       3       0        0        3      active sync set-B   d.img

       1       0        0        -      faulty   b.img
";
        assert_eq!(Detail::new(&status(), "/dev/md0").to_string(), expected);
    }

    #[test]
    fn json_goes_both_ways() {
        let detail = Detail::new(&status(), "/dev/md0");
        let text = serde_json::to_string(&detail).unwrap();
        assert_eq!(serde_json::from_str::<Detail>(&text).unwrap(), detail);
    }

    #[test]
    fn a_raid0_has_no_used_size_and_no_sets() {
        let raid0 = ArrayStatus { level: Level::Raid0, layout: 2, ..status() };
        let text = Detail::new(&raid0, "x").to_string();
        assert!(!text.contains("Used Dev Size") && !text.contains("set-"), "{text}");
        assert!(text.contains("Consistency Policy : none\n"), "{text}");
    }
}
