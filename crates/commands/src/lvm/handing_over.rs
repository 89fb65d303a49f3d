//! `vgexport` and `vgimport`: groups that go from one host to another; and what makes them complete again: `vgreduce --removemissing`,
//! `vgextend --restoremissing`, `vgck --updatemetadata`.

use ashlar_lvm::group::MemberState;
use ashlar_lvm::metadata::HeldElsewhere;

use super::archive::Archives;
use super::session::Session;
use crate::error::{Error, Result};

impl Session {
    /// Marks a group as one that another host may import.
    ///
    /// # Errors
    /// The group is as it was, unless the message says that this is not known.
    pub async fn export_group(&mut self, name: &str, archives: &Archives) -> Result<()> {
        let mut draft = self.draft(name).await?;
        let failed = |error| Error::new("Cannot export VG", name, error);
        draft.group.export().map_err(failed)?;
        // Whoever imports it gives it an own one.
        draft.group.system_id = None;
        self.commit(draft, &[], archives).await
    }

    /// Makes an exported group this host's.
    ///
    /// # Errors
    /// As for [`Self::export_group`].
    pub async fn import_group(&mut self, name: &str, archives: &Archives) -> Result<()> {
        match self.group(name)?.metadata.group.held_elsewhere(&self.local) {
            Some(HeldElsewhere::Exported(_)) => {}
            Some(held) => return Err(Error::failed(&held).hint(held.way_out())),
            None => {
                let text = format!("Volume group \"{name}\" is not exported");
                return Err(Error::failed(text));
            }
        }
        // The mark may be what shows that it took physical volumes of another group, whose text still lists them: that is completed first.
        let given = self.found.groups.iter().filter(|group| group.has_given);
        let given: Vec<String> = given.map(|group| group.metadata.group.id.to_string()).collect();
        if !given.is_empty() {
            let found = self.group(name)?;
            let draft = self.draft_with(found, self.all_members(found)?).await?;
            self.commit(draft, &[], archives).await?;
        }
        for giver in given {
            let draft = self.draft(&giver).await?;
            self.commit(draft, &[], archives).await?;
        }
        let found = self.group(name)?;
        let mut draft = self.draft_with(found, self.all_members(found)?).await?;
        let failed = |error| Error::new("Cannot import VG", name, error);
        draft.group.import().map_err(failed)?;
        draft.group.system_id.clone_from(&self.local.own);
        self.commit(draft, &[], archives).await
    }

    /// Removes the missing physical volumes from a group, with `force` also the logical volumes on them. Returns the lines to
    /// print once the session has ended.
    ///
    /// # Errors
    /// As for [`Self::export_group`].
    pub async fn remove_missing(
        &mut self,
        name: &str,
        force: bool,
        archives: &Archives,
    ) -> Result<Vec<String>> {
        let found = self.group(name)?;
        self.refuse_held(&found.metadata.group)?;
        let usable: Vec<bool> = found.members.iter().map(|it| it.usable().is_some()).collect();
        if found.is_complete() && !found.has_given {
            return Ok(vec![format!("  Volume group \"{name}\" is already consistent.")]);
        }
        let present = found.members.iter().filter_map(|member| member.usable()).collect();
        // Those that are there, and were missing when the group was changed.
        let returned: Vec<usize> = found
            .members
            .iter()
            .filter(|member| member.usable().is_none())
            .filter_map(|member| member.index())
            .collect();
        let mut draft = self.draft_with(found, present).await?;
        let removed = draft.group.remove_missing(&usable, force).map_err(|error| {
            let error = Error::new("Cannot remove missing physical volumes of VG", name, error);
            match returned.is_empty() {
                true => error,
                false => {
                    error.hint("vgextend --restoremissing takes back those that are here again")
                }
            }
        })?;
        self.commit(draft, &[], archives).await?;
        self.release(&returned).await?;
        let line = |volume| format!("  Logical volume \"{volume}\" successfully removed.");
        let mut lines: Vec<String> = removed.iter().map(line).collect();
        lines.push(format!("  Wrote out consistent volume group {name}."));
        Ok(lines)
    }

    /// Has the physical volumes at these paths be in their group again, although it was changed while they were missing. What is on
    /// them stays as it is.
    ///
    /// # Errors
    /// As for [`Self::export_group`].
    pub async fn restore_missing(
        &mut self,
        name: &str,
        physical: &[String],
        archives: &Archives,
    ) -> Result<()> {
        let found = self.group(name)?;
        self.refuse_held(&found.metadata.group)?;
        let failed = |why: &dyn std::fmt::Display| Error::new("Cannot extend VG", name, why);
        let members: Option<Vec<usize>> = found.members.iter().map(|it| it.index()).collect();
        let members = members.ok_or_else(|| failed(&"other physical volumes are missing"))?;
        let mut draft = self.draft_with(found, members).await?;
        for path in physical {
            let index = self.pv(path);
            let is = |member: &MemberState| matches!(member, MemberState::Returned(returned) if Some(*returned) == index);
            let at = found.members.iter().position(is);
            let at = at.ok_or_else(|| {
                Error::failed(format_args!("PV {path} was not missing in VG {name}"))
            })?;
            draft.group.restore_physical(at);
        }
        if let Some(why) = draft.group.write_refusal() {
            return Err(failed(&why));
        }
        self.commit(draft, &[], archives).await
    }

    /// Writes the description of a group to all of its physical volumes, and frees those that were removed from the group while
    /// they were missing.
    ///
    /// # Errors
    /// As for [`Self::export_group`].
    pub async fn update_metadata(&mut self, name: &str, archives: &Archives) -> Result<()> {
        let outdated = self.group(name)?.outdated.clone();
        let draft = self.draft(name).await?;
        self.commit(draft, &[], archives).await?;
        self.release(&outdated).await
    }
}
