//! `lvchange`, `vgchange` and `pvchange`, as far as they change the description of a group.

use serde::{Deserialize, Serialize};

use super::{CommandError, Effect, Result, VolumeIndex, index_at};
use crate::attributes::Tagged;
use crate::metadata::VolumeGroup;

/// `--addtag` and `--deltag`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TagChange {
    /// What gets and loses tags.
    pub of: TagOwners,
    /// The tags that are removed first.
    pub remove: Vec<String>,
    /// The tags that are added.
    pub add: Vec<String>,
}

/// What has tags.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TagOwners {
    /// The group.
    Group,
    /// Logical volumes; none: all that users see.
    Volumes(Vec<String>),
    /// The physical volumes at these paths.
    Physical(Vec<String>),
}

/// `pvchange --allocatable`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllocatableChange {
    /// The paths of the physical volumes.
    pub physical: Vec<String>,
    /// Whether new extents may be placed there.
    pub allocatable: bool,
}

fn physical_changed(path: &str) -> String {
    format!("  Physical volume \"{path}\" changed")
}

impl TagChange {
    pub(super) fn apply(
        &self,
        group: &mut VolumeGroup,
        physical: VolumeIndex<'_>,
    ) -> Result<Effect> {
        let mut done = Vec::new();
        let mut change = |group: &mut VolumeGroup, of: Tagged<'_>, line: String| {
            done.push(line);
            let changed = group.change_tags(of, &self.remove, &self.add);
            changed.map_err(CommandError::change("Cannot change the tags"))
        };
        let name = group.name.clone();
        match &self.of {
            TagOwners::Group => {
                let line = format!("  Volume group \"{name}\" successfully changed");
                change(group, Tagged::Group, line)?;
            }
            TagOwners::Volumes(volumes) => {
                let mut volumes = volumes.clone();
                if volumes.is_empty() {
                    volumes = group.visible_names();
                }
                for volume in volumes {
                    if group.lv(&volume).is_none() {
                        return Err(CommandError::NotFound { group: name, volume });
                    }
                    let line = format!("  Logical volume {name}/{volume} changed.");
                    change(group, Tagged::Volume(&volume), line)?;
                }
            }
            TagOwners::Physical(paths) => {
                for path in paths {
                    let index = index_at(group, path, physical)?;
                    change(group, Tagged::Physical(index), physical_changed(path))?;
                }
            }
        }
        Ok(Effect { done, ..Effect::default() })
    }
}

impl AllocatableChange {
    pub(super) fn apply(
        &self,
        group: &mut VolumeGroup,
        physical: VolumeIndex<'_>,
    ) -> Result<Effect> {
        let mut done = Vec::new();
        for path in &self.physical {
            let index = index_at(group, path, physical)?;
            let changed = group.set_allocatable(index, self.allocatable);
            let changed = changed.map_err(CommandError::change("Cannot change the volume"))?;
            let word = if self.allocatable { "allocatable" } else { "unallocatable" };
            done.push(match changed {
                true => physical_changed(path),
                false => format!("  Physical volume \"{path}\" is already {word}."),
            });
        }
        Ok(Effect { done, ..Effect::default() })
    }
}
