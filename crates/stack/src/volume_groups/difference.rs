//! How the devices of a changed group differ from those that exist.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use ashlar_lvm::activate::{DeviceSource, Plan, PlannedDevice, dm_name};
use ashlar_lvm::{LogicalVolume, Uuid, VolumeGroup};

use super::active::{Active, LiveDevice};

/// How the devices of a plan differ from those that exist.
#[derive(Default)]
pub(super) struct Difference {
    /// New devices, each after those that it is made of.
    pub(super) new: Vec<PlannedDevice>,
    /// Devices with another table.
    pub(super) changed: Vec<PlannedDevice>,
    /// The names of devices that the plan lacks.
    pub(super) gone: Vec<String>,
}

/// The names that devices get, by those that they have.
pub(super) struct Renames(Vec<(String, String)>);

impl Renames {
    pub(super) fn between(before: &VolumeGroup, after: &VolumeGroup) -> Self {
        let present: HashMap<&Uuid, &LogicalVolume> =
            after.lvs.iter().map(|lv| (&lv.id, &**lv)).collect();
        let renamed = before.lvs.iter().filter_map(|old| {
            let new = present.get(&old.id)?;
            if before.name == after.name && old.name == new.name {
                return None;
            }
            let (old, new) =
                (dm_name(&before.name, &old.name, None), dm_name(&after.name, &new.name, None));
            Some((old, new))
        });
        Self(renamed.collect())
    }

    /// The new name of a device, or a layer of one.
    pub(super) fn of(&self, name: &str) -> String {
        let renamed = self.0.iter().find_map(|(old, new)| {
            let rest = name.strip_prefix(old.as_str())?;
            // Dashes within a name are doubled: a single one begins the name of a layer.
            let is_layer = rest.starts_with('-') && !rest.starts_with("--");
            (rest.is_empty() || is_layer).then(|| format!("{new}{rest}"))
        });
        renamed.unwrap_or_else(|| name.to_owned())
    }

    /// What a device is made of, under the new names.
    fn made_of<'a>(&self, made_of: &'a DeviceSource) -> Cow<'a, DeviceSource> {
        if self.0.is_empty() {
            return Cow::Borrowed(made_of);
        }
        let mut made_of = made_of.clone();
        match &mut made_of {
            DeviceSource::Table(lines) => {
                for word in lines.iter_mut().flat_map(|line| &mut line.args) {
                    *word = self.of(word);
                }
            }
            DeviceSource::Raid(raid) => {
                let legs = raid.legs.iter_mut().flat_map(|(meta, data)| [meta, data]);
                legs.flatten().for_each(|name| *name = self.of(name));
            }
            DeviceSource::ThinPool { metadata, data, .. } => {
                (*metadata, *data) = (self.of(metadata), self.of(data));
            }
            DeviceSource::Thin { pool, external_origin, .. } => {
                *pool = self.of(pool);
                external_origin.iter_mut().for_each(|name| *name = self.of(name));
            }
        }
        Cow::Owned(made_of)
    }
}

impl Difference {
    /// A device that was planned before and does not exist could not be made, and is not tried again.
    pub(super) fn of(active: &Active, renames: &Renames, plan: &Plan) -> Result<Self, String> {
        let mut difference = Self::default();
        let live = active.devices.iter().map(|live| (renames.of(&live.planned.name), live));
        let live: HashMap<String, &LiveDevice> = live.collect();
        let earlier: HashSet<String> = active.planned.iter().map(|name| renames.of(name)).collect();
        for planned in &plan.devices {
            match live.get(&planned.name) {
                Some(live) => {
                    let PlannedDevice { size, read_only, made_of, .. } = &live.planned;
                    if *renames.made_of(made_of) != planned.made_of
                        || (*size, *read_only) != (planned.size, planned.read_only)
                    {
                        difference.changed.push(planned.clone());
                    }
                }
                None if earlier.contains(&planned.name) => {}
                None => difference.new.push(planned.clone()),
            }
        }
        let kept: HashSet<&String> = plan.devices.iter().map(|planned| &planned.name).collect();
        let is_kept = |live: &&LiveDevice| kept.contains(&renames.of(&live.planned.name));
        let gone = active.devices.iter().filter(|live| !is_kept(live));
        difference.gone = gone.map(|live| live.planned.name.clone()).collect();
        let all = difference.new.iter().chain(&difference.changed);
        if let Some(other) = all.into_iter().find(|p| !matches!(p.made_of, DeviceSource::Table(_)))
        {
            return Err(format!("{} cannot be changed while it is served", other.name));
        }
        Ok(difference)
    }
}
