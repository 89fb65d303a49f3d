//! The texts of the scan commands.

use ashlar_block::Sectors;

use super::lv;
use crate::metadata::VgFlag;
use crate::report::{LvRow, PvRow, Units, VgRow};

/// What is shown of physical volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PvDetails {
    /// Group and sizes.
    All,
    /// The UUID too.
    Uuid,
    /// Only the device.
    Device,
}

/// A list of physical volumes, with sums.
pub fn pvscan(rows: &[PvRow], details: PvDetails) -> String {
    if rows.is_empty() {
        return "  No matching physical volumes found\n".to_owned();
    }
    let units = Units::default();
    let width = |of: fn(&PvRow) -> usize| rows.iter().map(of).max().unwrap_or(0);
    let device_width = width(|row| row.device().chars().count());
    let group_width = width(|row| row.group().map_or(0, |(group, _)| group.name.len())).max(13);
    let mut text = String::new();
    let (mut used, mut free) = ((0, Sectors::ZERO), (0, Sectors::ZERO));
    for row in rows {
        let sum = if row.group().is_some() { &mut used } else { &mut free };
        *sum = (sum.0 + 1, Sectors(sum.1.0.saturating_add(row.size().0)));
        if details == PvDetails::Device {
            text += &format!("  {}\n", row.device());
            continue;
        }
        let device = format!("{:device_width$}", row.device());
        let device = match details {
            PvDetails::Uuid => format!("{device} with UUID {} ", row.uuid()),
            PvDetails::All | PvDetails::Device => device,
        };
        let (size, left) = (units.long(row.size()), units.long(row.free()));
        text += &match row.group() {
            None => format!("  PV {device}      {:group_width$}   lvm2 [{size}]\n", ""),
            Some((group, _)) if group.flags.contains(&VgFlag::Exported) => {
                let group = &group.name;
                format!("  PV {device}    is in exported VG {group} [{size} / {left} free]\n")
            }
            Some((group, _)) => {
                let group = &group.name;
                format!("  PV {device}   VG {group:group_width$}   lvm2 [{size} / {left} free]\n")
            }
        };
    }
    let all = units.long(Sectors(used.1.0.saturating_add(free.1.0)));
    let (in_use, in_none) = (units.long(used.1), units.long(free.1));
    text + &format!(
        "  Total: {} [{all}] / in use: {} [{in_use}] / in no VG: {} [{in_none}]\n",
        rows.len(),
        used.0,
        free.0
    )
}

/// A list of groups.
pub fn vgscan(rows: &[VgRow]) -> String {
    let line = |row: &VgRow| {
        let group = row.group();
        let exported = if group.flags.contains(&VgFlag::Exported) { "exported " } else { "" };
        format!("  Found {exported}volume group \"{}\" using metadata type lvm2\n", group.name)
    };
    rows.iter().map(line).collect()
}

/// A list of logical volumes.
pub fn lvscan(rows: &[LvRow]) -> String {
    let line = |row: &LvRow| {
        let (group, lv) = (row.group(), row.lv()?);
        let is_active = row.state().is_some_and(|state| !state.is_invalid());
        let state = if is_active { "ACTIVE" } else { "inactive" };
        let role = match group.snapshot_in(&lv.name) {
            Some(_) => "Snapshot",
            None if group.snapshots_of(&lv.name).next().is_some() => "Original",
            None => "",
        };
        let (size, allocation) = (Units::default().long(row.size()), lv::allocation(lv));
        let path = format!("/dev/{}/{}", group.name, lv.name);
        Some(format!("  {state:8} {role:8} '{path}' [{size}] {allocation}\n"))
    };
    rows.iter().filter_map(line).collect()
}
