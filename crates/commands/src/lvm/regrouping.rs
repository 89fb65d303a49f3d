//! `vgsplit` and `vgmerge`: physical volumes that go from one group to another, with the logical volumes on them.
//!
//! Two groups change, one after the other. In between, the group that is written first is exported, so that no host uses a physical volume
//! in two groups. After a crash the physical volumes have moved if one of them has the new text ([`ashlar_lvm::group`]); then the next
//! change of the groups completes the move.

use ashlar_lvm::VolumeGroup;
use ashlar_lvm::metadata::is_valid_name;

use super::archive::Archives;
use super::draft::Draft;
use super::new_uuid;
use super::session::Session;
use crate::error::{Error, Result};

/// What goes into another group.
pub enum Moved<'a> {
    /// The physical volumes at these paths.
    Physical(&'a [String]),
    /// Those that the logical volume of this name needs.
    Volume(&'a str),
}

impl Session {
    /// Moves physical volumes, and the logical volumes on them, from the group `name` to the group `to`, which is made if it does not
    /// exist. Returns whether it existed.
    ///
    /// # Errors
    /// The groups are as they were, unless the message says otherwise.
    pub async fn split_group(
        &mut self,
        name: &str,
        to: &str,
        moved: Moved<'_>,
        archives: &Archives,
    ) -> Result<bool> {
        let mut from = self.draft(name).await?;
        let name = from.group.name.clone();
        let failed = |why: &dyn std::fmt::Display| Error::new("Cannot split VG", &name, why);
        if name == to {
            return Err(Error::failed(format_args!("Duplicate volume group name \"{to}\"")));
        }
        let exists = self.found.groups.iter().any(|group| group.metadata.group.name == to);
        let mut into = match exists {
            true => self.draft(to).await?,
            false if !is_valid_name(to) => {
                let why = format!("\"{to}\" is not a name for a volume group");
                return Err(failed(&why));
            }
            false => {
                let group = VolumeGroup::new(to, new_uuid(), from.group.extent_size);
                Draft::of(None, group, Vec::new())
            }
        };
        let goes = match moved {
            Moved::Volume(volume) => from.group.needed_by(volume).ok_or_else(|| {
                let text = format!("Failed to find logical volume \"{name}/{volume}\"");
                Error::failed(text)
            })?,
            Moved::Physical(paths) => {
                let mut goes = vec![false; from.members.len()];
                for path in paths {
                    let index = self.pv(path);
                    let at = from.members.iter().position(|member| Some(*member) == index);
                    match at.and_then(|at| goes.get_mut(at)) {
                        Some(goes) => *goes = true,
                        None => {
                            let text = format!(
                                "Physical volume \"{path}\" not found in volume group \"{name}\""
                            );
                            return Err(Error::failed(text));
                        }
                    }
                }
                goes
            }
        };
        if goes.iter().all(|goes| *goes) {
            let hint =
                "vgrename gives the whole group another name, vgmerge merges it into another group";
            return Err(failed(&"no physical volume would be left").hint(hint));
        }
        let (rest, part) = from.group.split(&goes).map_err(|error| failed(&error))?;
        into.group.merge(part).map_err(|error| failed(&error))?;
        let members = std::mem::take(&mut from.members);
        for (index, goes) in members.into_iter().zip(goes) {
            if goes { into.members.push(index) } else { from.members.push(index) }
        }
        from.group = rest;
        from.group.check().map_err(|error| failed(&error))?;
        // Both are archived before the first is written.
        archives.before(self.group(&name).ok().map(|group| &*group.metadata))?;
        self.write_both(into, from, to, archives).await.map_err(|error| {
            error.hint(format_args!(
                "if {to} has the physical volumes now, vgimport {to} completes what was begun"
            ))
        })?;
        Ok(exists)
    }

    /// Writes `first`, whose name is `to`, as an exported group, then `second`, and removes the mark.
    async fn write_both(
        &mut self,
        mut first: Draft,
        second: Draft,
        to: &str,
        archives: &Archives,
    ) -> Result<()> {
        let failed = |error| Error::new("Cannot change VG", to, error);
        first.group.receive();
        self.commit(first, &[], archives).await?;
        self.commit(second, &[], archives).await?;
        let found = self.group(to)?;
        let mut draft = self.draft_with(found, self.all_members(found)?).await?;
        draft.group.import().map_err(failed)?;
        self.commit(draft, &[], archives).await
    }

    /// Moves all volumes of the group `name` to the group `to`.
    ///
    /// # Errors
    /// As for [`Self::split_group`].
    pub async fn merge_groups(&mut self, to: &str, name: &str, archives: &Archives) -> Result<()> {
        let mut into = self.draft(to).await?;
        let mut from = self.draft(name).await?;
        let failed = |error| Error::new("Cannot merge VG", name, error);
        if into.group.id == from.group.id {
            return Err(Error::failed(format_args!("Duplicate volume group name \"{name}\"")));
        }
        into.group.merge(from.group.clone()).map_err(failed)?;
        into.members.extend(&from.members);
        archives.before(self.group(to).ok().map(|group| &*group.metadata))?;
        from.group.export().map_err(failed)?;
        self.commit(from, &[], archives).await?;
        self.commit(into, &[], archives).await.map_err(|error| {
            error.hint(format_args!(
                "if {name} is still there, vgimport {name} takes back what was begun"
            ))
        })
    }
}
