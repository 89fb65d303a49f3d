//! Changes of groups whose volumes are in use.
//!
//! [`VolumeGroups::prepare`] refuses what can be refused, and changes nothing. [`VolumeGroups::apply`] then does these steps:
//!
//! | step | what happens | a crash leaves | after a failure |
//! |---|---|---|---|
//! | 1 | new devices are made on extents that were free, and zeroed durably | the old group | they are retired |
//! | 2 | devices whose tables change get the new ones loaded, and are suspended with a flush: later I/O is held | the old group | they resume with the old tables |
//! | 3 | new snapshots start: from now on changes of their origins make exceptions; a mirror says that its legs are equal, durably | the old group | the snapshots are retired |
//! | 4 | the metadata is committed ([`ashlar_lvm::commit`]) | the old or the new group | as above, or see below |
//! | 5 | the suspended devices resume with the new tables | the new group | the device stays suspended |
//! | 6 | removed devices are retired: none of their I/O is left when their extents become free | the new group | the group is not changed any more |
//!
//! A snapshot shows its origin at the moment of step 2 or 3: writes that were acknowledged before are in it, a write in flight is in it
//! as a whole or not at all, and its first write after step 4 is a copy that the committed metadata knows.
//!
//! If it is unknown whether the commit took place, the volumes continue in a way that is right in both cases
//! ([`Command::is_safe_ahead`]), and the group refuses further changes: extents might be used twice.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use ashlar_block::{BlockDevice, ByteVolume, Flags, Gateway};
use ashlar_dm::Device as Mapped;
use ashlar_lvm::activate::{Plan, PlannedDevice, dm_name};
use ashlar_lvm::change::Author;
use ashlar_lvm::command::{Command, Effect, Zeroes};
use ashlar_lvm::commit::{CommitError, CommitResult, Member, commit};
use ashlar_lvm::group::{GroupSurvey, MemberState, named};
use ashlar_lvm::metadata::Header;
use ashlar_lvm::{Metadata, PhysicalVolume, Uuid, VolumeGroup};

use super::activation::end;
use super::active::{Active, LiveDevice, Numbers, links};
use super::difference::{Difference, Renames};
use super::put_off::later;
use super::{COMPONENT, Change, ChangeResult, PresentVolume, Request, Site, VolumeGroups};
use crate::canary::{Rule, broken};
use crate::devices::{MappedNames, Role};

impl VolumeGroups {
    /// The devices of a group that may be changed.
    ///
    /// # Errors
    /// It has none, or it is unknown whether they are as the metadata says.
    pub(super) fn changeable(&self, group: &VolumeGroup) -> Result<&Active, String> {
        let VolumeGroup { id, name, .. } = group;
        let inactive = || match self.refused.get(id) {
            Some(held) => held.to_string(),
            None => format!("{name} is not active"),
        };
        let active = self.active.get(id).ok_or_else(inactive)?;
        match &active.unsure {
            Some(why) => Err(format!("{name} cannot be changed until it is served again: {why}")),
            None => Ok(active),
        }
    }

    /// Plans a change.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub(crate) fn prepare(
        &self,
        request: &Request<'_>,
        author: &mut Author<'_>,
        site: &Site<'_>,
    ) -> Result<Change, String> {
        let found = self.found();
        let group = named(&found.groups, request.group).map_err(|error| error.to_string())?;
        let vg = &group.metadata.group;
        if let Command::RenameGroup { to } = request.command
            && found.groups.iter().any(|other| other.metadata.group.name == *to)
        {
            return Err(format!("New volume group \"{to}\" already exists"));
        }
        let physical = |path: &str| {
            let device = (request.physical)(path)?;
            let is = |member: &MemberState| {
                let physical = self.physical.get(member.usable()?)?;
                (physical.device == device).then_some(())
            };
            group.members.iter().position(|member| is(member).is_some())
        };
        let mut effect = Effect::default();
        let mut change = self.prepare_with(&found, vg.id, site, |after| {
            if let Command::Restore(restore) = request.command {
                self.check_members(restore, &vg.name, &found, site)?;
            }
            if let Command::Remove { volumes } = request.command {
                self.changeable(vg)?.end_invalid_merges(after, volumes);
            }
            let applied = request.command.apply(after, &physical, author);
            effect = applied.map_err(|error| error.to_string())?;
            Ok(())
        })?;
        let active = self.changeable(vg)?;
        let device_of = |volume: &str| {
            let live = active.find(&dm_name(&vg.name, volume, None))?;
            live.names.first().filter(|_| live.mapped.is_some()).cloned()
        };
        if let Command::Create(create) = request.command
            && let Some(origin) =
                create.origin.as_deref().filter(|origin| device_of(origin).is_none())
        {
            return Err(format!("{}/{origin} is not active", vg.name));
        }
        if let Some(origin) = effect.merges_into.as_deref() {
            match device_of(origin) {
                // The origin first, as LVM looks at them.
                Some(device) => change.shut.insert(0, device),
                None => {
                    let starts = "  Conversion starts after activation.".to_owned();
                    let later = later(&change.after.group, origin);
                    effect.done = [starts].into_iter().chain(later).collect();
                }
            }
        }
        if let Some(device) = effect.reduces.as_ref().and_then(|(volume, _)| device_of(volume))
            && let Some(above) =
                site.devices.all().iter().find(|other| other.below.contains(&device))
        {
            return Err(format!("{} is made of it", above.export_name()));
        }
        change.is_safe_ahead = request.command.is_safe_ahead(&effect);
        change.effect = effect;
        if matches!(request.command, Command::Restore(_)) {
            self.check_restored(&mut change, site)?;
        }
        Ok(change)
    }

    /// Plans the change of an active group that `change` makes to its description.
    ///
    /// # Errors
    /// It is refused: the reason.
    pub(super) fn prepare_with(
        &self,
        found: &GroupSurvey,
        id: Uuid,
        site: &Site<'_>,
        change: impl FnOnce(&mut VolumeGroup) -> Result<(), String>,
    ) -> Result<Change, String> {
        let group = found.groups.iter().find(|group| group.metadata.group.id == id);
        let group = group.ok_or("its volume group is not found any more")?;
        let (before, name) = (Arc::clone(&group.metadata), &group.metadata.group.name);
        let active = self.changeable(&before.group)?;
        if site.options.read_only {
            return Err(format!("{name} is served read-only"));
        }
        let present = self.writable_members(found, group, site)?;
        let mut after = Metadata::clone(&before);
        change(&mut after.group)?;
        let seqno = after.group.seqno.checked_add(1);
        after.group.seqno = seqno.ok_or("the volume group changed 2^32 times")?;
        after.group.check().map_err(|error| error.to_string())?;
        // Indices into the text change when a physical volume leaves.
        let index_of = |pv: &PhysicalVolume| {
            let is = |physical: &PresentVolume| physical.pv.label.uuid == pv.id;
            self.physical.iter().position(is)
        };
        let mut members: Vec<usize> = after.group.pvs.iter().filter_map(index_of).collect();
        let path = |at: usize| {
            let physical = self.physical.get(index_of(after.group.pvs.get(at)?)?)?;
            Some(format!("/dev/{}", physical.device))
        };
        let plan = active.plan(&after.group, site.options, &path);
        members.sort_unstable();
        let only = |these: &[usize], those: &[usize]| -> Vec<usize> {
            these.iter().filter(|index| !those.contains(index)).copied().collect()
        };
        let (joining, leaving) = (only(&members, &present), only(&present, &members));
        let renames = Renames::between(&before.group, &after.group);
        let difference = Difference::of(active, &renames, &plan)?;
        let gone = difference.gone.iter().filter_map(|name| active.find(name));
        let seen = gone.filter(|live| live.planned.volume.is_some());
        let shut = seen.flat_map(|live| live.names.clone()).collect();
        let effect = Effect::default();
        let is_safe_ahead = true;
        Ok(Change {
            id,
            before,
            after,
            members,
            joining,
            leaving,
            plan,
            difference,
            effect,
            shut,
            is_safe_ahead,
            puts_off: None,
            renewed: Vec::new(),
            verify: None,
        })
    }

    /// Applies a change that was prepared for the present state; `header` has its author and time. No client has the devices in
    /// [`Change::shut`] open, nor can open them, until this ends; after a success they exist no more, except for an
    /// origin.
    ///
    /// # Errors
    /// The group and its devices are as before, unless the text says that this is not known.
    pub(crate) async fn apply(
        &mut self,
        mut change: Change,
        header: Header,
        site: &Site<'_>,
    ) -> Result<ChangeResult, String> {
        change.after.set_header(header);
        let (joining, leaving) =
            (std::mem::take(&mut change.joining), std::mem::take(&mut change.leaving));
        let renewed = std::mem::take(&mut change.renewed);
        if !broken(Rule::PhysicalVolumesAreMarked) {
            self.mark(&joining, true, site).await?;
        }
        let mut applied = self.apply_text(change, site).await;
        match &mut applied {
            // If it is unknown which text is valid, they stay as both texts need them.
            Ok(applied) if applied.unsure.is_some() => {}
            Ok(applied) => {
                applied.notes.extend(self.release(&leaving, site).await);
                applied.volumes.extend(renewed);
            }
            Err(refused) if refused.is_uncertain => {}
            Err(_) => {
                if let Err(why) = self.mark(&joining, false, site).await {
                    tracing::error!("{why}");
                }
            }
        }
        applied.map_err(|refused| refused.why)
    }

    /// As [`Self::apply`], but for the labels of physical volumes.
    async fn apply_text(
        &mut self,
        change: Change,
        site: &Site<'_>,
    ) -> Result<ChangeResult, ChangeFailure> {
        let Change { id, before, after, plan, difference, is_safe_ahead, puts_off, .. } = change;
        let after = Arc::new(after);
        let Self { physical, active, numbers, .. } = self;
        let Some(active) = active.get_mut(&id) else {
            let why = format!("{} is not active", before.group.name);
            return Err(ChangeFailure { why, is_uncertain: false });
        };
        let made: HashSet<&String> = active.devices.iter().map(|live| &live.planned.name).collect();
        active.parts.thaw(&plan.devices, |planned| !made.contains(&planned.name));
        drop(made);
        let mut step = Step { active, site, group: &after.group.name, undo: UndoList::default() };
        let mut unsure = None;
        let done = async {
            step.make(&difference, &change.effect.zeroes, numbers).await?;
            if let Some(origin) = &change.effect.merges_into {
                // No I/O is in flight now that could make the snapshot invalid, unless the merge is put off.
                step.active.check_mergeable(&after.group, origin)?;
            }
            if let Some((name, at)) = &change.verify {
                let verified = step.mapped(name)?.message(*at, &["verify"]).await;
                verified.map_err(|error| format!("{name} cannot be relied upon: {error}"))?;
            }
            if broken(Rule::GroupsAreWritten) {
                return Ok(CommitResult::default());
            }
            match write(physical, &change.members, &after, site).await {
                Err(error @ CommitError::Uncertain { .. }) if is_safe_ahead => {
                    unsure = Some(error.to_string());
                    Ok(CommitResult::default())
                }
                Err(error @ CommitError::Uncertain { .. }) => {
                    unsure = Some(error.to_string());
                    Err(error.to_string())
                }
                done => done.map_err(|error| error.to_string()),
            }
        };
        let applied = match done.await {
            Ok(committed) => {
                let mut problems = step.resume().await;
                let renames = Renames::between(&before.group, &after.group);
                let (retired, volumes) = step.settle(&difference.gone, &renames, &plan).await;
                problems.extend(retired);
                if let Some(why) = problems.first() {
                    unsure.get_or_insert_with(|| why.clone());
                }
                let (metadata, stale, notes) = (after, committed.stale, problems);
                Ok(ChangeResult { metadata, stale, volumes, notes, unsure: unsure.clone() })
            }
            Err(why) => {
                step.undo().await;
                Err(ChangeFailure { why, is_uncertain: unsure.is_some() })
            }
        };
        if let Ok(ChangeResult { metadata, .. }) = &applied {
            active.put_off.extend(puts_off);
            active.keep_put_off(&metadata.group);
        }
        active.unsure = unsure;
        applied
    }
}

/// Why a change was not made.
struct ChangeFailure {
    why: String,
    /// Whether the new text may be valid nevertheless.
    is_uncertain: bool,
}

/// Whether it is unknown if a commit took place.
pub(super) const fn is_uncertain(done: &Result<CommitResult, CommitError>) -> bool {
    matches!(done, Err(CommitError::Uncertain { .. }))
}

/// Commits the metadata of a group to its members.
pub(super) async fn write(
    physical: &mut [PresentVolume],
    members: &[usize],
    metadata: &Arc<Metadata>,
    site: &Site<'_>,
) -> Result<CommitResult, CommitError> {
    let gateway = |index: &usize| {
        let device = site.devices.find(&physical[*index].device);
        device.map(|device| device.gateway().clone())
    };
    // A physical volume whose device is offline keeps the old metadata.
    let gateways: Vec<Option<Gateway>> = members.iter().map(gateway).collect();
    let pvs = physical.iter_mut().enumerate();
    let pvs = pvs.filter(|(index, _)| members.contains(index));
    let mut writing: Vec<Member<'_>> = gateways
        .iter()
        .zip(pvs)
        .filter_map(|(gateway, (_, physical))| {
            Some(Member { gateway: gateway.as_ref()?, pv: &mut physical.pv })
        })
        .collect();
    let done = commit(&mut writing, metadata).await;
    for index in members {
        let changed = &mut physical[*index];
        let is_stale = |committed: &CommitResult| {
            committed.stale.iter().any(|(stale, _)| *stale == changed.pv.label.uuid)
        };
        // What was just written need not be parsed.
        let is_new =
            done.as_ref().is_ok_and(|committed| !is_stale(committed)) && changed.pv.is_written();
        changed.text = match is_new {
            true => Ok(Some(Arc::clone(metadata))),
            false => changed.pv.metadata().map(|text| text.map(Arc::new)),
        };
    }
    done
}

/// What a change has begun, to be undone if it fails.
#[derive(Default)]
struct UndoList {
    /// The names of the devices that were made, in the plan.
    made: Vec<String>,
    /// The devices that were suspended, or have a table loaded, each after those that it is made of.
    held: Vec<HeldDevice>,
}

/// A device with another table.
struct HeldDevice {
    mapped: Arc<Mapped>,
    /// Whether it is read-only with that table.
    read_only: bool,
}

/// The steps of a change on the devices of a group.
struct Step<'a, 's> {
    active: &'a mut Active,
    site: &'a Site<'s>,
    group: &'a str,
    undo: UndoList,
}

impl Step<'_, '_> {
    /// Steps 1 to 3.
    async fn make(
        &mut self,
        difference: &Difference,
        zeroes: &[Zeroes],
        numbers: &mut Numbers,
    ) -> Result<(), String> {
        let (late, early): (Vec<_>, Vec<_>) =
            difference.new.iter().partition(|new| LiveDevice::is_snapshot(new));
        for planned in early {
            self.make_one(planned, numbers).await?;
            for Zeroes { device, bytes } in zeroes {
                if *device == planned.name {
                    self.zero(device, *bytes).await?;
                }
            }
        }
        for planned in &difference.changed {
            let mapped = self.mapped(&planned.name)?;
            let loaded = self.active.maker(self.site, numbers).load(planned, &mapped).await;
            let read_only = loaded.as_ref().is_ok_and(|locked| *locked || planned.read_only);
            self.undo.held.push(HeldDevice { mapped, read_only });
            loaded.map_err(|why| format!("{} cannot be changed: {why}", planned.name))?;
        }
        // Users of devices are suspended before these.
        for HeldDevice { mapped, .. } in self.undo.held.iter().rev() {
            let disk = mapped.disk();
            let failed = |status| format!("{} cannot be suspended: {status}", disk.name());
            mapped.suspend(!disk.is_read_only()).await.map_err(failed)?;
        }
        for planned in late {
            self.make_one(planned, numbers).await?;
        }
        Ok(())
    }

    async fn make_one(
        &mut self,
        planned: &PlannedDevice,
        numbers: &mut Numbers,
    ) -> Result<(), String> {
        let (name, held) = (&planned.name, LiveDevice::is_mirror(planned));
        let made = self.active.make(planned.clone(), self.group, held, self.site, numbers).await;
        let made = made.map_err(|why| format!("cannot make the device {name}: {why}"))?;
        // Clients see it once it is in the metadata.
        if let Some(new) = made {
            self.site.devices.set_role(&new.device, COMPONENT);
        }
        self.undo.made.push(name.clone());
        if held {
            let (mapped, read_only) = (self.mapped(name)?, planned.read_only);
            self.undo.held.push(HeldDevice { mapped, read_only });
        }
        Ok(())
    }

    async fn zero(&self, name: &str, bytes: u64) -> Result<(), String> {
        let volume = ByteVolume::new(Gateway::new(self.mapped(name)? as _));
        let len = bytes.min(volume.size_bytes());
        let zeroed = async {
            volume.write_zeroes(0, len, Flags::empty()).await?;
            volume.flush().await
        };
        zeroed.await.map_err(|status| format!("cannot write zeroes to {name}: {status}"))
    }

    /// The device that the plan calls `name`.
    fn mapped(&self, name: &str) -> Result<Arc<Mapped>, String> {
        let mapped = self.active.find(name).and_then(|live| live.mapped.clone());
        mapped.ok_or_else(|| format!("{name} has no device"))
    }

    /// Undoes what was begun.
    async fn undo(&mut self) {
        for name in std::mem::take(&mut self.undo.made).iter().rev() {
            if let Err(why) = self.retire(name).await {
                tracing::error!("{why}");
            }
        }
        for HeldDevice { mapped, .. } in &self.undo.held {
            mapped.clear().await;
            if let Err(status) = mapped.resume().await {
                tracing::error!(device = mapped.disk().name(), %status, "stays suspended");
            }
        }
    }

    /// Step 5; returns what failed.
    async fn resume(&self) -> Vec<String> {
        let mut failed = Vec::new();
        for HeldDevice { mapped, read_only } in &self.undo.held {
            let disk = mapped.disk();
            match mapped.resume().await {
                Ok(()) => disk.set_read_only(*read_only),
                Err(status) => failed.push(format!("{} stays suspended: {status}", disk.name())),
            }
        }
        failed
    }

    /// Step 6, and the names and uses of the devices as in the plan. Returns what failed, and the names of new volumes.
    async fn settle(
        &mut self,
        gone: &[String],
        renames: &Renames,
        plan: &Plan,
    ) -> (Vec<String>, Vec<String>) {
        let mut failed = Vec::new();
        for name in gone.iter().rev() {
            failed.extend(self.retire(name).await.err());
        }
        let Active { devices, parts, .. } = &mut *self.active;
        parts.rename(&|name| renames.of(name));
        let places = plan.devices.iter().zip(0_usize..);
        let places: HashMap<&str, (usize, &PlannedDevice)> =
            places.map(|(planned, at)| (planned.name.as_str(), (at, planned))).collect();
        for live in devices.iter_mut() {
            let name = renames.of(&live.planned.name);
            if let Some((_, planned)) = places.get(name.as_str()) {
                live.planned = PlannedDevice::clone(planned);
            }
        }
        devices.sort_by_key(|live| places.get(live.planned.name.as_str()).map(|(at, _)| *at));
        self.active.planned = plan.devices.iter().map(|planned| planned.name.clone()).collect();
        let (mut volumes, mut all) = (Vec::new(), Vec::new());
        let lower = self.active.lower();
        for live in &self.active.devices {
            let (Some(_), Some(name)) = (&live.mapped, live.names.first()) else { continue };
            let (name, below) = (name.clone(), lower.of(&live.planned));
            if self.undo.made.contains(&live.planned.name) && live.planned.volume.is_some() {
                volumes.push(name.clone());
            }
            all.push(MappedNames { name, links: links(&live.planned, self.group), below });
        }
        drop(lower);
        // An origin comes after its snapshots, whose stores its writes need: it is stopped before them.
        self.site.devices.set_logical(all);
        for name in &volumes {
            self.site.devices.set_role(name, Role::Volume);
        }
        (failed, volumes)
    }

    /// Ends a device, and forgets it.
    async fn retire(&mut self, name: &str) -> Result<(), String> {
        end(self.active, name, self.site).await
    }
}
