//! Changes that clients request of the physical volumes of served groups: `vgcreate`, `vgextend`, `vgreduce`, `vgremove`; and of
//! their sizes: `pvresize`.

use std::path::Path;
use std::sync::Arc;

use ashlar_block::{Gateway, Sectors};
use ashlar_client::interface::{LvmMembers, LvmReply, refused, refused_by, reply};
use ashlar_client::passed_files::PassedFiles;
use ashlar_commands::lvm::{archive, make_physical, new_uuid, refuse_foreign};
use ashlar_control::varlink::Reply;
use ashlar_disks::{self as disks, Identity};
use ashlar_lvm::change::Author;
use ashlar_lvm::command::{Command, Effect, LayoutOptions, Membership, NewGroup, Question};
use ashlar_lvm::format::{Layout, plan};
use ashlar_lvm::{VolumeGroup, read_pv};
use ashlar_stack::devices::{Device, Role};
use ashlar_stack::incremental::Turn;
use ashlar_stack::probe::probe;
use ashlar_stack::volume_groups::{PHYSICAL, PlannedResize, Request, new_member};
use serde_json::Value;

use crate::clients::ClosedDevices;
use crate::error::Error;
use crate::groups::{apply, in_use, sure};
use crate::incremental::log_notes;
use crate::manage::{NewDisk, is_a_disk_now};
use crate::service::Service;

/// A device that is to join a group.
struct Candidate {
    /// The path as the user gave it.
    path: String,
    place: Place,
    gateway: Gateway,
    /// Whether it is a physical volume already.
    is_physical: bool,
}

/// Where a candidate comes from.
enum Place {
    /// It is a free physical volume, on the device of this name.
    Known(String),
    /// It was a volume of this name, which no client can open now.
    Volume(String, ClosedDevices),
    /// A disk that the daemon did not have.
    New(NewDisk),
}

impl Service {
    /// Changes the physical volumes of a group.
    pub(crate) async fn lvm_members(
        &self,
        at: LvmMembers,
        passed: &PassedFiles,
    ) -> Result<Value, Reply> {
        let mut turn = self.turn().await?;
        let done = match &at.command {
            Membership::Create(new) => self.create_group(&mut turn, &at, new, passed).await,
            Membership::Extend { physical, layout } => {
                self.extend_group(&mut turn, &at, (physical, *layout), passed).await
            }
            Membership::Reduce { physical } => self.reduce_group(&mut turn, &at, physical).await,
            Membership::Resize { physical, sectors } => {
                self.resize_physical(&mut turn, &at, physical, sectors.map(Sectors)).await
            }
            Membership::Remove { force } => self.remove_group(&mut turn, &at, *force).await,
        };
        log_notes(&turn.take_notes());
        done
    }

    async fn create_group(
        &self,
        turn: &mut Turn,
        at: &LvmMembers,
        new: &NewGroup,
        passed: &PassedFiles,
    ) -> Result<Value, Reply> {
        let name = &at.group;
        if turn.has_group(name) {
            let why = format!("A volume group called {name} already exists.");
            return Err(refused(why, None));
        }
        let mut group = VolumeGroup::new(name, new_uuid(), Sectors(new.extent_sectors));
        (group.max_lv, group.max_pv, group.tags) = (new.max_lv, new.max_pv, new.tags.clone());
        group.check().map_err(|error| refused(format!("Cannot make VG: {name}: {error}"), None))?;
        let archives =
            self.machine.archives(at.archive != Some(false), &at.line).map_err(refused_by)?;
        archives.before_in_task(None).await.map_err(refused_by)?;
        let candidates = self.candidates(turn, &at.directory, &new.physical, passed).await?;
        if let Err(why) = check(&candidates, &group, new.layout.into()).await {
            return give_up(candidates, why);
        }
        let (joining, mut done) = self.format(turn, candidates, new.layout.into()).await?;
        let header = archive::header(format!("Write from {}.", at.line));
        let created = turn.create_group(group, &joining, header).await;
        let metadata = created.map_err(|why| refused(why, None))?;
        warn_if_failed(archives.after_in_task(&metadata).await);
        done.push(format!("  Volume group \"{name}\" successfully created"));
        reply(LvmReply { notes: Vec::new(), questions: Vec::new(), done })
    }

    async fn extend_group(
        &self,
        turn: &mut Turn,
        at: &LvmMembers,
        (physical, layout): (&[String], LayoutOptions),
        passed: &PassedFiles,
    ) -> Result<Value, Reply> {
        // All refusals that are possible before anything is written.
        let trial = turn.prepare_extend(&at.group, &[]).map_err(|why| refused(why, None))?;
        let candidates = self.candidates(turn, &at.directory, physical, passed).await?;
        if let Err(why) = check(&candidates, &trial.before.group, layout.into()).await {
            return give_up(candidates, why);
        }
        let name = trial.before.group.name.clone();
        let (joining, mut done) = self.format(turn, candidates, layout.into()).await?;
        let change = turn.prepare_extend(&at.group, &joining);
        let change = change.map_err(|why| refused(why, None))?;
        let keep = (&*at.line, at.archive != Some(false));
        let applied = apply(&*self.machine, turn, change, keep).await;
        sure(applied)?;
        done.push(format!("  Volume group \"{name}\" successfully extended"));
        reply(LvmReply { notes: Vec::new(), questions: Vec::new(), done })
    }

    async fn reduce_group(
        &self,
        turn: &mut Turn,
        at: &LvmMembers,
        physical: &[String],
    ) -> Result<Value, Reply> {
        let mut leaving: Vec<(String, String)> = Vec::new();
        for path in physical {
            let device = self.device_at(Some(&at.directory), path).await;
            leaving.push((device.unwrap_or_default(), path.clone()));
        }
        let planned = turn.prepare_reduce(&at.group, &leaving);
        let (change, gone) = planned.map_err(|why| refused(why, None))?;
        let name = change.before.group.name.clone();
        if gone.is_empty() {
            let done = vec!["  No physical volumes are unused".to_owned()];
            return reply(LvmReply { notes: Vec::new(), questions: Vec::new(), done });
        }
        let path = |device: &String| {
            let given = leaving.iter().find(|(leaves, _)| leaves == device);
            let known = || self.stack.devices.find(device).map(|device| device.path);
            given.map(|(_, path)| path.clone()).or_else(known).unwrap_or_else(|| device.clone())
        };
        let line = |device| format!("  Removed \"{}\" from volume group \"{name}\"", path(device));
        let done = gone.iter().map(line).collect();
        let keep = (&*at.line, at.archive != Some(false));
        let applied = apply(&*self.machine, turn, change, keep).await;
        sure(applied)?;
        reply(LvmReply { notes: Vec::new(), questions: Vec::new(), done })
    }

    async fn resize_physical(
        &self,
        turn: &mut Turn,
        at: &LvmMembers,
        path: &str,
        size: Option<Sectors>,
    ) -> Result<Value, Reply> {
        let device = self.device_at(Some(&at.directory), path).await.unwrap_or_default();
        let planned = turn.prepare_resize(&at.group, (&device, path), size);
        let PlannedResize { change, question } = planned.map_err(|why| refused(why, None))?;
        if let Some(question) = question.filter(|_| at.confirmed != Some(true)) {
            let questions = vec![question];
            return reply(LvmReply { notes: Vec::new(), questions, done: Vec::new() });
        }
        let extents = |group: &VolumeGroup| group.pvs.iter().map(|pv| u64::from(pv.pe_count)).sum();
        let before: u64 = extents(&change.before.group);
        let keep = (&*at.line, at.archive != Some(false));
        let applied = sure(apply(&*self.machine, turn, change, keep).await)?;
        let notes = match extents(&applied.metadata.group) == before {
            true => vec![format!(
                "  {path} has as many extents as before; a file or disk that has grown is larger for the daemon once it is \
                 started again"
            )],
            false => Vec::new(),
        };
        let done = vec![format!("  Physical volume \"{path}\" changed")];
        reply(LvmReply { notes, questions: Vec::new(), done })
    }

    async fn remove_group(
        &self,
        turn: &mut Turn,
        at: &LvmMembers,
        force: bool,
    ) -> Result<Value, Reply> {
        let keep = at.archive != Some(false);
        let mut author = Author { creation: archive::creation(), new_uuid: &mut new_uuid };
        let command = Command::Remove { volumes: Vec::new() };
        let trial = turn.prepare_extend(&at.group, &[]).map_err(|why| refused(why, None))?;
        let (name, visible) = {
            let group = &trial.before.group;
            (group.name.clone(), group.visible().into_iter().filter(|seen| *seen).count())
        };
        let (mut done, mut last) = (Vec::new(), Arc::clone(&trial.before));
        if !trial.before.group.lvs.is_empty() {
            if !force && at.confirmed != Some(true) {
                let text = format!(
                    "Do you really want to remove volume group \"{name}\" containing {visible} logical volumes?"
                );
                let refusal = format!("Volume group \"{name}\" not removed");
                let questions = vec![Question { text, refusal }];
                return reply(LvmReply { notes: Vec::new(), questions, done });
            }
            let change = self.with_devices(Some(&at.directory), |physical| {
                let request = Request { group: &at.group, command: &command, physical };
                turn.prepare(&request, &mut author)
            });
            let change = change.await.map_err(|why| refused(why, None))?;
            let Effect { done: removed, .. } = change.effect.clone();
            let shut = self.shut(&change.shut, in_use).await?;
            let applied = apply(&*self.machine, turn, change, (&at.line, keep)).await;
            shut.into_iter().for_each(ClosedDevices::reopen);
            last = sure(applied)?.metadata;
            done.extend(removed);
        }
        let archives = self.machine.archives(keep, &at.line).map_err(refused_by)?;
        archives.before_in_task(Some(&last)).await.map_err(refused_by)?;
        turn.remove_group(&at.group).await.map_err(|why| refused(why, None))?;
        done.push(format!("  Volume group \"{name}\" successfully removed"));
        reply(LvmReply { notes: Vec::new(), questions: Vec::new(), done })
    }

    /// The devices at `paths`, which are free, and which no client can open now.
    async fn candidates(
        &self,
        turn: &Turn,
        directory: &Path,
        paths: &[String],
        passed: &PassedFiles,
    ) -> Result<Vec<Candidate>, Reply> {
        let mut all: Vec<Candidate> = Vec::new();
        let mut places = Vec::new();
        for path in paths {
            let found = match self.place(directory, path).await {
                Ok(place) => {
                    let is_same =
                        |(other, known): (&String, &(Option<Identity>, Option<String>))| {
                            other == path
                                || (known.0.is_some() && known.0 == place.0)
                                || (known.1.is_some() && known.1 == place.1)
                        };
                    let is_known = paths.iter().zip(&places).any(is_same);
                    places.push(place);
                    match is_known {
                        true => Err(refused(format!("{path} is named twice"), None)),
                        false => self.candidate(turn, directory, path, passed).await,
                    }
                }
                Err(why) => Err(why),
            };
            match found {
                Ok(found) => all.push(found),
                Err(why) => return give_up(all, why),
            }
        }
        Ok(all)
    }

    /// The name of the device at a path that a user gave in a directory; otherwise the file or device that is there.
    async fn place(
        &self,
        directory: &Path,
        path: &str,
    ) -> Result<(Option<Identity>, Option<String>), Reply> {
        let device = self.device_at(Some(directory), path).await;
        let identity = match &device {
            Some(_) => None,
            None => self.identity(&disks::in_directory(directory, path)).await?,
        };
        Ok((identity, device))
    }

    async fn candidate(
        &self,
        turn: &Turn,
        directory: &Path,
        path: &str,
        passed: &PassedFiles,
    ) -> Result<Candidate, Reply> {
        let device = self.device_at(Some(directory), path).await;
        let Some(device) = device.and_then(|name| self.stack.devices.find(&name)) else {
            let whole = disks::in_directory(directory, path).display().to_string();
            self.refuse_namesake(&whole)?;
            let new = self.open_new(&whole, passed).await?;
            let gateway = new.gateway.clone();
            new.refuse_rivals(&new.contents().await?).await?;
            let is_physical = examine(path, &gateway).await?;
            let (path, place) = (path.to_owned(), Place::New(new));
            return Ok(Candidate { path, place, gateway, is_physical });
        };
        let Device { name, role, .. } = &device;
        let gateway = device.gateway().clone();
        match *role {
            PHYSICAL => {
                let free = turn.has_free_physical(name, path);
                free.map_err(|why| refused(why, None))?;
                let (path, place) = (path.to_owned(), Place::Known(name.clone()));
                Ok(Candidate { path, place, gateway, is_physical: true })
            }
            Role::Volume => {
                let shut = self.clients.shut(name, path).await;
                let shut =
                    shut.map_err(|busy| refused(format!("Cannot use {path}: {busy}"), None))?;
                match examine(path, &gateway).await {
                    Ok(is_physical) => {
                        let (path, place) = (path.to_owned(), Place::Volume(name.clone(), shut));
                        Ok(Candidate { path, place, gateway, is_physical })
                    }
                    Err(why) => {
                        shut.reopen();
                        Err(why)
                    }
                }
            }
            Role::Member(_) | Role::Former | Role::Partitioned | Role::Held(..) | Role::Refused => {
                let why = "is used by an array or has partitions, or cannot be read";
                Err(refused(format!("Cannot use {path}: it {why}"), None))
            }
        }
    }

    /// Makes physical volumes of the candidates, and adds them to the daemon. Returns the names of their devices with the
    /// users' paths, and lines for the user. After an error the finished ones stay, as free physical volumes.
    async fn format(
        &self,
        turn: &mut Turn,
        candidates: Vec<Candidate>,
        layout: Layout,
    ) -> Result<(Vec<(String, String)>, Vec<String>), Reply> {
        let (mut joining, mut done) = (Vec::new(), Vec::new());
        let mut left = candidates.into_iter();
        while let Some(candidate) = left.next() {
            match self.format_one(turn, candidate, &layout, &mut done).await {
                Ok(joins) => joining.push(joins),
                Err(why) => return give_up(left, why),
            }
        }
        Ok((joining, done))
    }

    async fn format_one(
        &self,
        turn: &mut Turn,
        candidate: Candidate,
        layout: &Layout,
        done: &mut Vec<String>,
    ) -> Result<(String, String), Reply> {
        let Candidate { path, gateway, is_physical, .. } = &candidate;
        if !is_physical {
            if let Err(error) = make_physical(path, gateway, new_uuid(), layout).await {
                return give_up([candidate], refused_by(error));
            }
            done.push(format!("  Physical volume \"{path}\" successfully created."));
        }
        let Candidate { path, place, .. } = candidate;
        let device = match place {
            Place::Known(device) => return Ok((device, path)),
            // It stays closed: it is no longer a volume.
            Place::Volume(device, _) => device,
            Place::New(new) => {
                done.push(format!("  {}", is_a_disk_now(&path)));
                let mut claim = self.claim_as(turn, new, PHYSICAL)?;
                claim.keep();
                claim.name().to_owned()
            }
        };
        let adopted = turn.adopt_physical(&device).await;
        adopted.map_err(|why| refused(format!("{path} cannot be read back: {why}"), None))?;
        Ok((device, path))
    }
}

/// Makes devices that will not join available to clients again.
fn give_up<T>(candidates: impl IntoIterator<Item = Candidate>, why: Reply) -> Result<T, Reply> {
    for candidate in candidates {
        if let Place::Volume(_, shut) = candidate.place {
            shut.reopen();
        }
    }
    Err(why)
}

/// Refuses a device that is neither empty nor a free physical volume; returns whether it is one.
async fn examine(path: &str, gateway: &Gateway) -> Result<bool, Reply> {
    let unreadable =
        |why: &dyn std::fmt::Display| refused(format!("cannot read {path}: {why}"), None);
    let contents = probe(gateway).await.map_err(|status| unreadable(&status))?;
    let physical = read_pv(gateway).await.map_err(|error| unreadable(&error))?;
    if let Some(physical) = &physical
        && (physical.label.is_used() || physical.texts().next().is_some())
    {
        let why = format!(
            "Physical volume '{path}' is in a volume group, or marked as used by one that is not here"
        );
        return Err(refused(why, None));
    }
    refuse_foreign(path, &contents, physical.is_some()).map_err(refused_by)?;
    Ok(physical.is_some())
}

/// Checks that the candidates have room and may join the group, before any of them is written to.
async fn check(candidates: &[Candidate], group: &VolumeGroup, layout: Layout) -> Result<(), Reply> {
    let mut group = group.clone();
    let mut areas = group.pvs.len();
    for Candidate { path, gateway, is_physical, .. } in candidates {
        if gateway.disk().is_read_only() {
            return Err(refused(format!("Cannot use {path}: it is read-only"), None));
        }
        let failed = |why: &dyn std::fmt::Display| {
            refused(format!("Cannot make a physical volume: {path}: {why}"), None)
        };
        let label = match is_physical {
            true => {
                let found = read_pv(gateway).await.map_err(|error| failed(&error))?;
                found.ok_or_else(|| failed(&"the label cannot be read"))?.label
            }
            false => plan(new_uuid(), gateway.capacity().bytes(), &layout)
                .map_err(|error| failed(&error))?,
        };
        areas += label.metadata_areas.len();
        let member =
            new_member(path, &label, group.extent_size).map_err(|why| refused(why, None))?;
        let added = group.add_physical(member);
        added.map_err(|error| {
            refused(format!("Cannot extend the volume group: {}: {error}", group.name), None)
        })?;
    }
    if areas == 0 {
        return Err(refused("None of the physical volumes has a metadata area", None));
    }
    Ok(())
}

fn warn_if_failed(kept: Result<(), Error>) {
    if let Err(error) = kept {
        tracing::warn!("{}", error.into_parts().0);
    }
}
