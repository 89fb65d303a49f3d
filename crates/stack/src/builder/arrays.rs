//! Arrays: their members, and their start.

use std::sync::Arc;

use ashlar_block::disk::DeviceNumber;
use ashlar_block::{ByteVolume, Gateway};
use ashlar_md::ondisk::Superblock;
use ashlar_md::{Array, AssembleError, BackupFile, Candidate, Plan, plan_with_backups};
use uuid::Uuid;

use super::Builder;
use crate::arrays::Volume;
use crate::devices::{Device, Role};
use crate::findings::Failure;
use crate::names::{ArrayName, Names, wanted_name};
use crate::probe::Contents;
use crate::view::ArrayView;

impl Builder {
    /// Keeps mdadm's backup of what a reshape moves in place.
    pub(super) fn keep_backup(&mut self, device: &Device) {
        let role = Role::Held("the backup of an array", "reshape-backup");
        self.devices.set_role(&device.name, role);
        let (gateway, path) = (device.gateway().clone(), device.path.clone());
        self.backups.push(BackupFile { gateway, path });
    }

    /// Adds a member of an array to the present ones, unless the array runs.
    pub(super) async fn join_array(
        &mut self,
        device: &Device,
        contents: &Contents,
        depth: usize,
        sb: Box<Superblock>,
    ) {
        self.devices.set_role(&device.name, Role::Former);
        if contents.foreign.iter().any(|found| found.name == "LVM2_member") {
            self.groups.look_inside(device, sb.set_uuid).await;
        }
        if let Some(volume) = self.arrays.of(sb.set_uuid) {
            let array = volume.name.device();
            let text = format!("is a member of {array}, which runs without it");
            return self.note(&device.name, text);
        }
        let members = self.members.entry(sb.set_uuid).or_default();
        members.depth = members.depth.max(depth);
        let is_unsure = contents.hidden_owner(self.options.whole).is_some();
        if is_unsure && !self.options.md.read_only {
            members.unsure.insert(device.path.clone());
        }
        let (gateway, path) = (device.gateway().clone(), device.path.clone());
        members.candidates.push(Candidate { gateway, path, sb });
    }

    /// Starts all arrays whose members are all present, or with `any` one that may lack some. Returns whether there was one.
    pub(super) async fn start_arrays(&mut self, any: bool) -> bool {
        if any { self.start_incomplete().await } else { self.start_complete().await }
    }

    /// Names the arrays that have members, in the order of [`Self::uuids`]: the name of an array
    /// does not depend on which arrays start, or when.
    fn name_arrays(&mut self) {
        self.keep_names_from_arrays();
        for uuid in self.uuids() {
            let Some(first) = self.members.get(&uuid).and_then(|m| m.candidates.first()) else {
                continue;
            };
            if !self.names.has(uuid) {
                let renamed = self.options.rename.take();
                let wanted = renamed.unwrap_or_else(|| wanted_name(&first.sb));
                self.names.of(uuid, &wanted);
            }
        }
    }

    /// Starts all arrays whose members are all present. Returns whether there was one.
    async fn start_complete(&mut self) -> bool {
        self.name_arrays();
        let options = ashlar_md::Options { run: false, ..self.options.md };
        let mut found = false;
        for uuid in self.uuids() {
            // The error is asked for again when no more members can arrive.
            found |= self.try_start(uuid, &options).await;
        }
        found
    }

    /// Starts one array that lacks members but may start. Returns whether there was one; if not,
    /// the remaining arrays become failures.
    async fn start_incomplete(&mut self) -> bool {
        let options = self.options.md;
        let (mut able, mut failed) = (Vec::new(), Vec::new());
        for uuid in self.uuids() {
            let Some(members) = self.members.get(&uuid) else { continue };
            match plan_with_backups(members.usable(), &self.backups, &options).await {
                Ok(_) => able.push(uuid),
                Err(error) => failed.push((uuid, error)),
            }
        }
        let mut order = Vec::new();
        for uuid in &able {
            order.push((able.len() > 1 && !self.holds_a_member(*uuid).await, *uuid));
        }
        // Among equals, take the array whose members are nearest to the disks.
        if let Some((_, uuid)) = order.into_iter().min_by_key(|(last, _)| *last) {
            return self.try_start(uuid, &options).await;
        }
        for (uuid, error) in failed {
            self.fail(uuid, error);
        }
        false
    }

    /// Whether an array that may start is itself a member of an array that waits for it. To find
    /// out, the array is started read-only, for this one probe.
    async fn holds_a_member(&mut self, uuid: Uuid) -> bool {
        let Some(members) = self.members.get(&uuid) else { return false };
        let name = name_of(&mut self.names, uuid, &members.candidates);
        let options = ashlar_md::Options { run: true, read_only: true, force: true };
        let plan = plan_with_backups(members.usable(), &self.backups, &options).await;
        let Ok(plan) = plan else { return false };
        let array = Array::start(plan, &name.device(), Arc::clone(&self.runtime));
        let found = ashlar_md::probe(&Gateway::new(Arc::clone(&array) as _)).await;
        // Nothing was written, so nothing can fail.
        let (Ok(()) | Err(_)) = array.stop().await;
        matches!(found, Ok(Some(sb)) if self.members.contains_key(&sb.set_uuid))
    }

    /// The arrays that have members here, those nearest to the disks first.
    fn uuids(&self) -> Vec<Uuid> {
        let mut all: Vec<_> = self.members.iter().map(|(uuid, m)| (m.depth, *uuid)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, uuid)| uuid).collect()
    }

    /// Starts an array if that is possible. Returns whether it is done with: it runs, or is a failure, whatever else arrives.
    async fn try_start(&mut self, uuid: Uuid, options: &ashlar_md::Options) -> bool {
        let Some(members) = self.members.get(&uuid) else { return false };
        let name = name_of(&mut self.names, uuid, &members.candidates);
        let (candidates, depth) = (members.usable(), members.depth);
        let paths = candidates.iter().map(|member| member.path.clone()).collect::<Vec<_>>();
        let plan = match self.plan(candidates, options).await {
            Ok(plan) => plan,
            Err(error @ AssembleError::UsedElsewhere(_)) => {
                self.fail(uuid, error);
                return true;
            }
            Err(_) => return false,
        };
        self.take_members(uuid);
        let device = name.device();
        self.start(uuid, plan, name, &paths).await;
        self.add(device, depth + 1);
        true
    }

    /// The plan of an array that is to start.
    pub(crate) async fn plan(
        &self,
        candidates: Vec<Candidate>,
        options: &ashlar_md::Options,
    ) -> Result<Plan, AssembleError> {
        let plan = plan_with_backups(candidates.clone(), &self.backups, options).await?;
        if !options.read_only {
            ashlar_md::wait_for_others(&candidates, &self.runtime).await?;
        }
        Ok(plan)
    }

    /// Reserves the names of disks with an array's name. Not of volumes: their user must decide.
    fn keep_names_from_arrays(&mut self) {
        self.devices.read(|table| {
            for device in table {
                if device.kind.is_disk() && device.role != Role::Volume {
                    self.names.reserve(&device.name);
                }
            }
        });
    }

    /// Starts the array of `plan`; `members` are the paths of its members.
    pub(crate) async fn start(
        &mut self,
        uuid: Uuid,
        plan: Plan,
        name: ArrayName,
        members: &[String],
    ) -> Volume {
        self.groups.array_runs(uuid);
        let array = Array::start(plan, &name.device(), Arc::clone(&self.runtime));
        let bytes = Arc::new(ByteVolume::new(Gateway::new(Arc::clone(&array) as _)));
        bytes.gateway().disk().set_number(DeviceNumber::md(name.number));
        self.devices.add_array(&name, uuid, &bytes, members);
        let view = ArrayView::new(array, Arc::clone(&self.devices)).await;
        let volume = Volume { name, view, bytes };
        self.arrays.start(uuid, volume.clone());
        volume
    }

    /// Makes an array a failure, if it has members that it may start with.
    fn fail(&mut self, uuid: Uuid, error: AssembleError) {
        let candidates = self.take_members(uuid);
        let Some(first) = candidates.first() else { return };
        let set_name = first.sb.name.clone();
        let is_nested = candidates.iter().any(|candidate| {
            let device = self.devices.name(&candidate.path);
            device.is_some_and(|device| !self.devices.is_users(&device))
        });
        let name = name_of(&mut self.names, uuid, &candidates);
        self.failures.push(Failure { name, set_name, uuid, error, candidates, is_nested });
    }
}

/// The name of the array of these members.
fn name_of(names: &mut Names, uuid: Uuid, members: &[Candidate]) -> ArrayName {
    names.of(uuid, &members.first().map_or_else(String::new, |member| wanted_name(&member.sb)))
}
