//! `vgcfgrestore` of a group whose volumes are in use: what a copy of a description may do to them.
//!
//! The change itself is one like any other ([`super::change`]). But a copy may say anything, while commands make only changes of a
//! few kinds. What clients read and write must stay where it is:
//!
//! | a volume | is |
//! |---|---|
//! | in both, with the same contents | left alone, even if a snapshot of it comes or goes |
//! | in both, elsewhere, or of another size | closed, and gets its new table; refused if something is made of it |
//! | only in the group | closed, and retired |
//! | only in the copy | made; nothing is written to it |
//!
//! A snapshot has state in memory that its table does not change, so it must be the same in both. One that comes
//! back is asked about, because its origin may have been written since; it is refused if its space has another user now, because a
//! store that looks empty is written to before the commit.

use std::collections::HashMap;

use ashlar_lvm::VolumeGroup;
use ashlar_lvm::activate::{DeviceSource, PlannedDevice, dm_name};
use ashlar_lvm::command::restoring::{KnownPhysical, RestoredGroup, user_of_space};
use ashlar_lvm::command::{Question, Restore};
use ashlar_lvm::group::GroupSurvey;

use super::active::LiveDevice;
use super::difference::Renames;
use super::{Change, Site, VolumeGroups};
use crate::devices::Role;

/// Devices by their names in a plan.
struct Devices<'a>(HashMap<&'a str, &'a PlannedDevice>);

impl<'a> Devices<'a> {
    fn of(all: impl Iterator<Item = &'a PlannedDevice>) -> Self {
        Self(all.map(|planned| (planned.name.as_str(), planned)).collect())
    }

    /// Where the contents of a device are, down to the physical volumes: the same for a volume with snapshots as for one without.
    fn contents(&self, planned: &PlannedDevice) -> String {
        let part = |name: &str| {
            let lower = self.0.get(name).map(|lower| format!("({})", self.contents(lower)));
            lower.unwrap_or_else(|| name.to_owned())
        };
        let parts = |names: Vec<&str>| names.into_iter().map(part).collect::<Vec<_>>().join(" ");
        match &planned.made_of {
            DeviceSource::Table(lines) => {
                if let [line] = &lines[..]
                    && line.kind == "snapshot-origin"
                    && let Some(real) = line.args.first().and_then(|real| self.0.get(real.as_str()))
                {
                    return self.contents(real);
                }
                let line = |line: &ashlar_dm::text::Line| {
                    let args = parts(line.args.iter().map(String::as_str).collect());
                    format!("{} {} {} {args}", line.start, line.len, line.kind)
                };
                lines.iter().map(line).collect::<Vec<_>>().join("\n")
            }
            DeviceSource::Raid(raid) => {
                let parts = parts(planned.made_of.parts());
                format!("{:?} {:?} {:?} {parts}", raid.kind, raid.stripe, raid.copies)
            }
            DeviceSource::ThinPool { chunk, .. } => {
                format!("pool {chunk} {}", parts(planned.made_of.parts()))
            }
            DeviceSource::Thin { device_id, .. } => {
                format!("thin {device_id} {}", parts(planned.made_of.parts()))
            }
        }
    }

    /// Whether it is made of nothing but tables.
    fn is_mapped(&self, planned: &PlannedDevice) -> bool {
        let lower = planned.made_of.parts().into_iter().filter_map(|name| self.0.get(name));
        matches!(planned.made_of, DeviceSource::Table(_))
            && lower.into_iter().all(|it| self.is_mapped(it))
    }
}

impl VolumeGroups {
    /// Checks that the physical volumes of a copy are there, and belong to its group or to none.
    pub(super) fn check_members(
        &self,
        restore: &Restore,
        group: &str,
        found: &GroupSurvey,
        site: &Site<'_>,
    ) -> Result<(), String> {
        let path = |device: &String| site.devices.find(device).map(|device| device.path);
        let paths = self.physical.iter().map(|it| path(&it.device).unwrap_or_default());
        let paths: Vec<String> = paths.collect();
        let known = self.physical.iter().zip(&paths);
        let known = known.map(|(it, path)| KnownPhysical { label: &it.pv.label, path });
        let known: Vec<KnownPhysical<'_>> = known.collect();
        let copy = restore.read(group).map_err(|error| error.to_string())?;
        let restored = RestoredGroup::new(copy.group, found, &known);
        restored.map(drop).map_err(|error| error.to_string())
    }

    /// Refuses what a restored description must not do to devices in use, and closes those that get other contents.
    pub(super) fn check_restored(
        &self,
        change: &mut Change,
        site: &Site<'_>,
    ) -> Result<(), String> {
        let (before, after) = (&change.before.group, &change.after.group);
        Self::refuse_held(after, site)?;
        if let Some(why) = after.write_refusal() {
            return Err(why);
        }
        check_settled(before, after)?;
        let active = self.changeable(before)?;
        let renames = Renames::between(before, after);
        let old = Devices::of(active.devices.iter().map(|live| &live.planned));
        let new = Devices::of(change.plan.devices.iter());
        for live in &active.devices {
            let Some(planned) = new.0.get(renames.of(&live.planned.name).as_str()) else {
                continue;
            };
            let (is_seen, stays_seen) = (live.planned.volume.is_some(), planned.volume.is_some());
            let attributes = |it: &PlannedDevice| (it.size, it.read_only, it.volume.is_some());
            if attributes(&live.planned) == attributes(planned)
                && old.contents(&live.planned) == new.contents(planned)
            {
                continue;
            }
            let refuse = |why: &str| {
                let (of, name) = (&before.name, live.planned.volume.as_ref());
                let name = name.map_or_else(|| planned.name.clone(), |name| format!("{of}/{name}"));
                Err(format!(
                    "{name} is not as the copy has it, and cannot be changed while it is active: {why}"
                ))
            };
            if is_seen != stays_seen {
                return refuse("it becomes a part of another volume, or is no longer one");
            }
            if !is_seen {
                // Those that are made of it tell.
                continue;
            }
            if LiveDevice::is_snapshot(&live.planned) || LiveDevice::is_snapshot(planned) {
                return refuse("it is a snapshot, or would become one");
            }
            if !old.is_mapped(&live.planned) || !new.is_mapped(planned) {
                return refuse("it is neither linear nor striped");
            }
            for name in &live.names {
                match site.devices.with_partitions(|device| device.name == *name) {
                    Ok(all) if all.iter().any(|device| device.role != Role::Volume) => {
                        return refuse("it has partitions, or is a physical volume");
                    }
                    Ok(_) => {}
                    Err(above) => return refuse(&format!("{above} is made of it")),
                }
            }
            change.shut.extend(live.names.iter().cloned());
            change.renewed.extend(live.names.iter().cloned());
        }
        for planned in change.difference.new.iter().filter(|new| LiveDevice::is_snapshot(new)) {
            let Some(name) = &planned.volume else { continue };
            let Some(found) = after.snapshot_in(name) else { continue };
            let (of, origin) = (&after.name, &found.snapshot.origin);
            if let Some(user) = user_of_space(before, after, name) {
                let why =
                    format!("the space of the snapshot {of}/{name} is in use by {of}/{user} now");
                return Err(why);
            }
            let id = after.lv(origin).map(|lv| lv.id);
            let Some(present) = before.lvs.iter().find(|lv| Some(lv.id) == id) else { continue };
            let device = active.find(&dm_name(&before.name, &present.name, None));
            if device.is_none_or(|live| live.mapped.is_none()) {
                return Err(format!("{of}/{} is not active", present.name));
            }
            change.effect.questions.push(Question {
                text: format!(
                    "Snapshot {of}/{name} does not know what was written to {of}/{origin} since it was \
                     removed. Do you really want to restore it?"
                ),
                refusal: format!("Volume group {of} not restored."),
            });
        }
        let refused = change.plan.refused.iter();
        let notes =
            refused.map(|(name, why)| format!("  {}/{name} cannot be used: {why}", after.name));
        change.effect.notes.extend(notes);
        Ok(())
    }
}

/// Refuses a description while, or of a time when, data was on its way from one place to another.
fn check_settled(before: &VolumeGroup, after: &VolumeGroup) -> Result<(), String> {
    let of = &before.name;
    if before.moves().next().is_some() {
        return Err(format!(
            "extents of {of} are being moved: wait until that has ended, or abort it with pvmove --abort"
        ));
    }
    if let Some(found) = before.snapshots().find(|found| found.snapshot.merging) {
        let snapshot = &found.snapshot.cow;
        return Err(format!("snapshot {of}/{snapshot} is being merged: wait until that has ended"));
    }
    let is_merging = after.snapshots().any(|found| found.snapshot.merging);
    if is_merging || after.moves().next().is_some() {
        let what =
            if is_merging { "a snapshot was being merged" } else { "extents were being moved" };
        return Err(format!(
            "the copy is of a time when {what}: what was done since would be lost, so it is restored only while no daemon \
             serves the group"
        ));
    }
    Ok(())
}
