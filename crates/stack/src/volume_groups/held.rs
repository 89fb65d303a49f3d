//! Groups that other hosts may be writing to: exported ones, those with another host's system ID, and those that hosts share through a
//! lock manager ([`ashlar_lvm::metadata::HeldElsewhere`]).
//!
//! They are read. ashlar writes to their volumes only if the user says that no other host does, and never to their metadata: LVM on
//! the other host would not know about it.

use ashlar_lvm::VolumeGroup;
use ashlar_lvm::group::Group;

use super::{Site, VolumeGroups};
use crate::refusals::{Refusal, Refused};

impl VolumeGroups {
    /// Decides whether a group is activated. Returns messages about its devices.
    ///
    /// # Errors
    /// It is not used.
    pub(crate) fn admit(
        &mut self,
        group: &Group,
        site: &Site<'_>,
    ) -> Result<Vec<(String, String)>, Refusal> {
        let vg = &group.metadata.group;
        let Some(held) = vg.held_elsewhere(&site.others.local) else { return Ok(Vec::new()) };
        let devices = group.members.iter().filter_map(|member| self.physical.get(member.index()?));
        let below: Vec<String> = devices.map(|physical| physical.device.clone()).collect();
        let (name, state) = (vg.name.clone(), held.state());
        let what = match (site.options.read_only, site.others.force) {
            (true, _) => "it is only read",
            (false, true) => "it is writable because of ashlar serve --force",
            (false, false) => {
                let why = format!("it {state}: another host may be writing to it");
                self.refused.insert(vg.id, held);
                return Err(Refusal { what: Refused::Group, name, why, hint: None, below });
            }
        };
        let text =
            format!("volume group {name} {state}: another host may be writing to it; {what}");
        Ok(below.into_iter().map(|device| (device, text.clone())).collect())
    }

    /// Refuses to change a group that is not this host's.
    ///
    /// # Errors
    /// LVM's reason.
    pub(super) fn refuse_held(vg: &VolumeGroup, site: &Site<'_>) -> Result<(), String> {
        match vg.held_elsewhere(&site.others.local) {
            Some(held) => Err(format!("{held}; {}", held.way_out())),
            None => Ok(()),
        }
    }
}
