//! `pvresize`: physical volumes whose devices have another size now, or that are to have one.

use ashlar_block::Sectors;
use ashlar_lvm::command::{resize_question, too_large};
use ashlar_lvm::format::{resized, write_label};

use super::archive::Archives;
use super::session::Session;
use crate::error::{Error, Result};

impl Session {
    /// Gives the physical volume at `path` the size of its device, or `size`.
    ///
    /// # Errors
    /// It cannot have that size, the user did not agree, or it cannot be written.
    pub async fn resize_physical(
        &mut self,
        path: &str,
        size: Option<Sectors>,
        archives: &Archives,
    ) -> Result<()> {
        let failed = |why: &dyn std::fmt::Display| {
            Error::new("Cannot resize the physical volume", path, why)
        };
        let device = self.find(path)?.gateway.capacity();
        let found = self.pv(path).and_then(|index| Some((index, self.pvs.get(index)?)));
        let Some((index, pv)) = found else {
            return Err(Error::failed(format_args!("No PV found on device {path}")));
        };
        let label = &pv.on_disk.label;
        let size = size.unwrap_or(device);
        if size > device {
            return Err(failed(&too_large(size, device)));
        }
        let questions: Vec<_> = resize_question(path, size, device).into_iter().collect();
        if let Some(group) = self.group_of(index) {
            let mut draft = self.draft(&group.metadata.group.name).await?;
            let at = draft.members.iter().position(|member| *member == index);
            let at = at.ok_or_else(|| failed(&"its data is outdated"))?;
            let to = draft.group.physical_size(at, label, size).map_err(|error| failed(&error))?;
            draft.group.resize_physical(at, to).map_err(|error| failed(&error))?;
            self.dialogue.confirm_all(&questions)?;
            self.commit(draft, &[], archives).await?;
        } else {
            if !self.found.free.contains(&index) {
                return Err(failed(&"it is a copy, or marked as used by a group that is not here"));
            }
            let label = resized(label, size.bytes()).map_err(|error| failed(&error))?;
            self.dialogue.confirm_all(&questions)?;
            if let Some(pv) = self.pvs.get_mut(index) {
                pv.on_disk.label = label;
                write_label(&pv.gateway, &pv.on_disk).await.map_err(|error| failed(&error))?;
            }
        }
        self.dialogue.tell(&[format!("  Physical volume \"{path}\" changed")])
    }
}
