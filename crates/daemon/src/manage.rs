//! Changes of running arrays that clients request: members, size, bitmap.
//!
//! The daemon opens and locks a disk to be added as at the start, and refuses it if it is known to contain anything else. It
//! finds a member by its path, by its name under `sys/block`, or because the given path is the file or device that was
//! opened for it. (After a disk failed, another may have appeared under its path.)

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use ashlar_block::{Gateway, Presence, Sectors};
use ashlar_client::interface::{
    DoneReply, Grow, Manage, ManageAction, SizeReply, refused, refused_by, reply,
};
use ashlar_client::passed_files::PassedFiles;
use ashlar_control::varlink::Reply;
use ashlar_disks::{self as disks, Identity};
use ashlar_md::ondisk;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{AddOptions, AddOutcome, GrowOptions, Index, ManageError, MemberStatus, Need};
use ashlar_stack::arrays::Volume;
use ashlar_stack::assemble::Disk;
use ashlar_stack::canary::{Rule, broken};
use ashlar_stack::devices::{Device, Role};
use ashlar_stack::incremental::Turn;
use ashlar_stack::probe::{Contents, Md, probe};
use ashlar_stack::wipe;
use serde_json::Value;
use uuid::Uuid;

use crate::claimed::Claimed;
use crate::service::Service;

pub(crate) fn not_done(error: &ManageError) -> Reply {
    refused(error, None)
}

impl Service {
    /// Changes members.
    pub(crate) async fn manage(&self, at: &Manage, passed: &PassedFiles) -> Result<Value, Reply> {
        let turn = &self.turn().await?;
        let volume = &self.volume(&at.name)?;
        let done = match at.action {
            ManageAction::Add => self.add(turn, volume, at, passed).await?,
            ManageAction::ReAdd => self.re_add(turn, volume, at, passed).await?,
            ManageAction::Fail => self.fail(turn, volume, &at.disk).await?,
            ManageAction::Remove => self.remove(turn, volume, &at.disk).await?,
            ManageAction::Replace => self.replace(turn, volume, at).await?,
        };
        for line in &done {
            tracing::debug!(array = volume.name.device(), "{line}");
        }
        reply(DoneReply { done })
    }

    /// Changes the size or the bitmap.
    pub(crate) async fn grow(&self, at: &Grow) -> Result<Value, Reply> {
        let turn = self.turn().await?;
        let array = self.volume(&at.name)?.view;
        if let Some(text) = &at.bitmap {
            let wanted = match text.as_str() {
                "none" => NewBitmap::None,
                "internal" => NewBitmap::Internal { chunk: at.bitmap_chunk },
                "lockless" => NewBitmap::Lockless,
                _ => return Err(Reply::invalid_parameter("bitmap")),
            };
            array.set_bitmap(&turn, wanted).await.map_err(|error| not_done(&error))?;
        }
        if let Some(wanted) = at.raid_devices {
            array.grow_devices(&turn, wanted).await.map_err(|error| not_done(&error))?;
        }
        if let Some(text) = &at.size {
            let kib = |text: &str| text.parse::<u64>().ok()?.checked_mul(2).map(Sectors);
            let size = match text.as_str() {
                "max" => None,
                text => Some(kib(text).ok_or_else(|| Reply::invalid_parameter("size"))?),
            };
            let options = GrowOptions {
                assume_clean: at.assume_clean == Some(true),
                force: at.force == Some(true),
            };
            array.grow_size(&turn, size, options).await.map_err(|error| not_done(&error))?;
        }
        reply(SizeReply { size: array.status().size.bytes() })
    }

    async fn add(
        &self,
        turn: &Turn,
        volume: &Volume,
        at: &Manage,
        passed: &PassedFiles,
    ) -> Result<Vec<String>, Reply> {
        let (array, uuid) = (&volume.view, volume.view.status().uuid);
        let new = self.open(turn, Some(volume), &at.disk, passed).await?;
        let contents = new.contents().await?;
        if at.force != Some(true) {
            check_free(&new.path, &contents, uuid)?;
            new.refuse_rivals(&contents).await?;
        }
        let (path, naming) = (new.path.clone(), self.naming(&new));
        let mut claim = self.claim(turn, new, uuid)?;
        let added = if at.force == Some(true) && !is_only_member(&contents, uuid) {
            let wiped = wipe::ranges(claim.gateway()).await;
            let wiped =
                wiped.map_err(|status| refused(format!("cannot read {path}: {status}"), None))?;
            array.add_over(turn, &mut claim, options(at), wiped).await
        } else {
            array.add(turn, &mut claim, options(at)).await
        };
        let added = added.map_err(|error| not_done(&error))?;
        let done = match added {
            AddOutcome::Spare(_) => format!("added {path}"),
            AddOutcome::Returned(_) => format!("re-added {path}"),
        };
        Ok(std::iter::once(done).chain(naming).collect())
    }

    async fn re_add(
        &self,
        turn: &Turn,
        volume: &Volume,
        at: &Manage,
        passed: &PassedFiles,
    ) -> Result<Vec<String>, Reply> {
        let status = volume.view.status();
        // A member that failed need not be removed first: it gets its new membership in one step.
        let failed = self.member(volume, &status.members, &at.disk).await.ok();
        let failed = failed.filter(|member| member.faulty);
        let new = match failed.and_then(|member| member.path.as_deref()) {
            Some(path) => self.open_failed(path, &at.disk, passed).await?,
            None => self.open(turn, Some(volume), &at.disk, passed).await?,
        };
        let contents = new.contents().await?;
        new.refuse_rivals(&contents).await?;
        let Md::Member(sb) = contents.md else {
            let why = format!("re-adding {} to {} is not possible", new.path, status.name);
            return Err(refused(
                why,
                Some("it is not a member of an array: add it with ashlar md add"),
            ));
        };
        let (path, naming) = (new.path.clone(), self.naming(&new));
        let mut claim = self.claim(turn, new, status.uuid)?;
        let failed = failed.map(index_of);
        let added = volume.view.re_add(turn, &mut claim, sb, options(at), failed).await;
        added.map_err(|error| not_done(&error))?;
        Ok(std::iter::once(format!("re-added {path}")).chain(naming).collect())
    }

    /// What the user has to do for the next start, if this disk was not in the daemon's configuration when it started.
    fn naming(&self, new: &NewDisk) -> Option<String> {
        let is_new = new.name.is_none() && !self.identities.borrow().contains_key(&new.path);
        is_new.then(|| is_a_disk_now(&new.path))
    }

    /// Re-adds the disks on the network that an array was started without because they are out of date: they were offline when
    /// the previous daemon ended.
    pub(crate) async fn re_add_left_out(&self, volume: &Volume) {
        let uuid = volume.view.status().uuid;
        let is_far = |held: &Device| {
            held.role == Role::Former && disks::is_on_network(Path::new(&held.path))
        };
        for held in self.stack.devices.all().into_iter().filter(is_far) {
            let Ok(turn) = self.turn().await else { return };
            // One that is in use, or of another array, was not left out here.
            let opened =
                self.open(&turn, Some(volume), &held.path, &PassedFiles::by_daemon()).await;
            let Ok(new) = opened else { continue };
            let Ok(Contents { md: Md::Member(sb), .. }) = new.contents().await else { continue };
            if sb.set_uuid != uuid || sb.role() == ondisk::Role::Spare {
                continue;
            }
            let (name, member) = (volume.name.device(), held.path);
            let options = AddOptions { device_uuid: Uuid::new_v4(), ..AddOptions::default() };
            let Ok(mut claim) = self.claim(&turn, new, uuid) else { continue };
            match volume.view.re_add(&turn, &mut claim, sb, options, None).await {
                Ok(_) => {
                    let what = "was out of date: copying what the bitmap marks";
                    tracing::info!(array = name, member, "{what}");
                }
                Err(error) => tracing::warn!(array = name, member, %error, "is not re-added"),
            }
        }
    }

    async fn fail(&self, turn: &Turn, volume: &Volume, disk: &str) -> Result<Vec<String>, Reply> {
        let mut done = Vec::new();
        for (index, path) in self.chosen(volume, disk, false).await? {
            let failed = volume.view.fail(turn, index).await;
            failed.map_err(|error| {
                let awaits_resync = matches!(error, ManageError::Needed { why: Need::Resync, .. });
                let hint = format!("ashlar md wait {} waits for its end", volume.name.device());
                refused(&error, awaits_resync.then_some(hint.as_str()))
            })?;
            done.push(format!("set {path} faulty in /dev/{}", volume.name.device()));
        }
        Ok(done)
    }

    async fn remove(&self, turn: &Turn, volume: &Volume, disk: &str) -> Result<Vec<String>, Reply> {
        let mut done = Vec::new();
        for (index, path) in self.chosen(volume, disk, true).await? {
            if !broken(Rule::AnswersComeLast) {
                volume.view.remove(turn, index).await.map_err(|error| not_done(&error))?;
            }
            done.push(format!("hot removed {path} from /dev/{}", volume.name.device()));
        }
        Ok(done)
    }

    async fn replace(
        &self,
        turn: &Turn,
        volume: &Volume,
        at: &Manage,
    ) -> Result<Vec<String>, Reply> {
        let members = volume.view.status().members;
        let device = volume.name.device();
        let old = self.member(volume, &members, &at.disk).await?;
        let with = match &at.with {
            Some(with) => Some(self.member(volume, &members, with).await?),
            None => None,
        };
        let number = old.dev_number;
        let (index, with_index) = (index_of(old), with.map(index_of));
        let replaced = volume.view.replace(turn, index, with_index).await;
        replaced.map_err(|error| not_done(&error))?;
        let path = |member: &MemberStatus| member.path.clone().unwrap_or_default();
        let mut done = vec![format!(
            "Marked {} (device {number} in /dev/{device}) for replacement",
            path(old)
        )];
        done.extend(with.map(|with| {
            format!("Marked {} in /dev/{device} as replacement for device {number}", path(with))
        }));
        Ok(done)
    }

    /// The members that the user selected: one, or with a keyword all that have failed or whose devices no longer exist. The
    /// list may be empty.
    async fn chosen(
        &self,
        volume: &Volume,
        disk: &str,
        failed: bool,
    ) -> Result<Vec<(Index, String)>, Reply> {
        let members = volume.view.status().members;
        let mut gone = HashSet::new();
        if disk == "detached" {
            for path in members.iter().filter_map(|member| member.path.as_ref()) {
                // A device whose file system does not respond may still exist.
                let Ok(now) = self.machine.identity(Path::new(path)).await else { continue };
                if now.is_none() || now.as_ref() != self.identities.borrow().get(path) {
                    gone.insert(path.clone());
                }
            }
        }
        let is_gone =
            |member: &MemberStatus| member.path.as_ref().is_some_and(|path| gone.contains(path));
        let is_chosen: &dyn Fn(&MemberStatus) -> bool = match disk {
            "failed" if failed => &|member| member.faulty,
            "detached" if failed => &is_gone,
            "detached" => &|member| !member.faulty && is_gone(member),
            _ => {
                let member = self.member(volume, &members, disk).await?;
                return Ok(vec![(index_of(member), member.path.clone().unwrap_or_default())]);
            }
        };
        let chosen = members.iter().filter(|member| is_chosen(member));
        Ok(chosen.filter_map(|member| Some((member.index?, member.path.clone()?))).collect())
    }

    /// The member that the user named.
    pub(crate) async fn member<'a>(
        &self,
        volume: &Volume,
        members: &'a [MemberStatus],
        disk: &str,
    ) -> Result<&'a MemberStatus, Reply> {
        let wanted = self.seen(Path::new(disk)).await;
        let is_meant = |member: &&MemberStatus| {
            let path = member.path.as_deref();
            path.is_some_and(|path| self.is_called(path, disk, wanted.as_ref()))
        };
        members.iter().find(is_meant).ok_or_else(|| {
            let device = volume.name.device();
            refused(format!("{disk} does not appear to be a component of /dev/{device}"), None)
        })
    }

    /// Opens a disk that should become a member, or finds it among former members. `volume` is the array it is for, if
    /// that is running.
    pub(crate) async fn open(
        &self,
        _: &Turn,
        volume: Option<&Volume>,
        disk: &str,
        passed: &PassedFiles,
    ) -> Result<NewDisk, Reply> {
        let wanted = self.identity_with(disk, passed).await?;
        let same = |path: &str| self.is_opened_by(path, wanted.as_ref());
        // A device made of other devices has no file to compare.
        let is_lent = passed.identity(disk).is_some();
        let made = |held: &Device| !is_lent && !held.kind.is_disk() && held.path == disk;
        let held = self.stack.devices.all().into_iter().find(|held| same(&held.path) || made(held));
        let Some(held) = held else {
            self.refuse_namesake(disk)?;
            return self.open_new(disk, passed).await;
        };
        let use_and_hint = match held.role {
            Role::Former => None,
            Role::Member(_) if broken(Rule::OneUse) => None,
            Role::Member(uuid) => Some(self.member_of(uuid, volume, &held.path)),
            // It has no other use, and its contents are checked as those of any new disk.
            Role::Refused if is_free(&held, &self.stack.devices.all()) => None,
            Role::Refused => Some(("what is on it is damaged".to_owned(), None)),
            Role::Volume => {
                let hint = "leave it out of what is served at the start";
                Some((format!("it is served as the volume {}", held.name), Some(hint)))
            }
            Role::Partitioned => Some(("it has partitions".to_owned(), None)),
            Role::Held(what, _) => Some((format!("it is {what}"), None)),
        };
        if let Some((what, hint)) = use_and_hint {
            return Err(refused(format!("{disk} is in use: {what}"), hint));
        }
        self.take_held(held, wanted).await
    }

    /// Opens the disk of a failed member, known by `path`: the one that is open for it, unless the user names another by now.
    async fn open_failed(
        &self,
        path: &str,
        disk: &str,
        passed: &PassedFiles,
    ) -> Result<NewDisk, Reply> {
        let wanted = self.identity_with(disk, passed).await?;
        let held = self.stack.devices.all().into_iter().find(|held| held.path == path);
        let is_meant = |held: &Device| match &wanted {
            Some(wanted) => self.is_opened_by(path, Some(wanted)),
            // Named otherwise than by a path.
            None => disk != path || !held.kind.is_disk() || disks::is_on_network(Path::new(path)),
        };
        match held.filter(is_meant) {
            Some(held) => self.take_held(held, wanted).await,
            None => self.open_new(disk, passed).await,
        }
    }

    /// Takes a device that is held, or reopens it if that can bring it online again.
    async fn take_held(&self, held: Device, identity: Option<Identity>) -> Result<NewDisk, Reply> {
        let gateway = held.gateway().clone();
        // A cluster that refuses this client refuses it until the image is opened again.
        if disks::is_on_network(Path::new(&held.path))
            && gateway.disk().presence() == Presence::Gone
        {
            return self.open_new(&held.path, &PassedFiles::by_daemon()).await;
        }
        Ok(NewDisk { path: held.path, gateway, identity, name: Some(held.name) })
    }

    /// How a disk is in use that the array `uuid` has, and what helps to add it to `volume`.
    fn member_of(
        &self,
        uuid: Uuid,
        volume: Option<&Volume>,
        path: &str,
    ) -> (String, Option<&'static str>) {
        if let Some(other) = self.stack.arrays.waiting().into_iter().find(|it| it.uuid == uuid) {
            return (format!("it waits for the other members of {}", other.name.path()), None);
        }
        let Some(other) = self.stack.arrays.of(uuid) else {
            return ("it is a member of an array".to_owned(), None);
        };
        let ours = volume.is_some_and(|volume| Arc::ptr_eq(&other.view, &volume.view));
        let members = other.view.status().members;
        let failed = members.iter().any(|m| m.faulty && m.path.as_deref() == Some(path));
        let what = format!("it is a member of /dev/{}", other.name.device());
        (
            what,
            (ours && failed)
                .then_some("re-add it, which copies what it missed, or remove it first"),
        )
    }

    /// The file or device that a client passed by a path, or that is there.
    async fn identity_with(
        &self,
        path: &str,
        passed: &PassedFiles,
    ) -> Result<Option<Identity>, Reply> {
        match passed.identity(path) {
            Some(passed) => Ok(Some(passed)),
            None => self.identity(Path::new(path)).await,
        }
    }

    /// Opens a disk without waiting for it: that would block this thread's other work.
    pub(crate) async fn open_new(
        &self,
        path: &str,
        passed: &PassedFiles,
    ) -> Result<NewDisk, Reply> {
        let identity = self.identity_with(path, passed).await?;
        let Disk { gateway, .. } = self.open_or_take(Path::new(path), passed).await?;
        let former = self.former_path(identity.as_ref());
        let path = match former {
            // Another file may have the inode number of a deleted one now.
            Some(former) if self.seen(Path::new(&former)).await == identity => former,
            Some(_) | None => path.to_owned(),
        };
        Ok(NewDisk { path, gateway, identity, name: None })
    }

    /// The former path of a disk that the daemon has closed since: its users know it by that path.
    fn former_path(&self, identity: Option<&Identity>) -> Option<String> {
        let known = self.identities.borrow();
        let mut closed = known.iter().filter(|(path, _)| self.stack.devices.name(path).is_none());
        closed.find(|(_, known)| Some(*known) == identity).map(|(path, _)| path.clone())
    }

    /// Claims a disk for the array `uuid`.
    pub(crate) fn claim(
        &self,
        turn: &Turn,
        new: NewDisk,
        uuid: Uuid,
    ) -> Result<Claimed<'_>, Reply> {
        self.claim_as(turn, new, Role::Member(uuid))
    }

    /// Claims a disk for a use.
    pub(crate) fn claim_as(
        &self,
        turn: &Turn,
        new: NewDisk,
        role: Role,
    ) -> Result<Claimed<'_>, Reply> {
        let (path, devices) = (&new.path, &self.stack.devices);
        let claim = match &new.name {
            Some(name) => devices.claim(turn, name, role).map_err(|_| ()),
            None => devices.claim_new(turn, path, new.gateway, role).map_err(|_| ()),
        };
        let claim = claim.map_err(|()| refused(format!("{path} is in use"), None))?;
        Ok(Claimed::new(claim, new.identity, &self.identities))
    }
}

/// The message about a disk that was added while the daemon runs.
pub(crate) fn is_a_disk_now(path: &str) -> String {
    format!("{path} is a disk of the daemon now: name it when it is started again.")
}

/// Whether a refused device can be a member: it is a disk or a partition of one, and no other device is built on it.
fn is_free(refused: &Device, all: &[Device]) -> bool {
    let is_disk =
        |name: &String| all.iter().any(|lower| lower.name == *name && lower.kind.is_disk());
    let is_above = |device: &Device| device.below.contains(&refused.name);
    (refused.kind.is_disk() || !refused.below.is_empty() && refused.below.iter().all(is_disk))
        && refused.kind.is_disk_or_partition()
        && !all.iter().any(is_above)
}

/// A disk to be added.
pub(crate) struct NewDisk {
    pub(crate) path: String,
    pub(crate) gateway: Gateway,
    /// The file or device that was opened, if it is known.
    pub(crate) identity: Option<Identity>,
    /// Its name, if the daemon has had it already.
    pub(crate) name: Option<String>,
}

impl NewDisk {
    pub(crate) async fn contents(&self) -> Result<Contents, Reply> {
        let contents = probe(&self.gateway).await;
        contents.map_err(|status| refused(format!("cannot read {}: {status}", self.path), None))
    }

    /// Refuses a disk that has two owners.
    pub(crate) async fn refuse_rivals(&self, contents: &Contents) -> Result<(), Reply> {
        let disk = Disk { path: self.path.clone().into(), gateway: self.gateway.clone() };
        disks::refuse_rivals(&disk, Ok(contents)).await.map_err(refused_by)
    }
}

/// The index of a member.
pub(crate) fn index_of(member: &MemberStatus) -> Index {
    // Only slots without a member lack one, and these cannot be found by path.
    member.index.unwrap_or(Index::MAX)
}

fn options(at: &Manage) -> AddOptions {
    AddOptions {
        device_uuid: Uuid::new_v4(),
        write_mostly: at.write_mostly,
        failfast: at.failfast,
        spare_only: at.spare == Some(true),
    }
}

/// Whether a disk contains only its former membership of the array `uuid`: signatures in its data area are part of the
/// array's data.
fn is_only_member(contents: &Contents, uuid: Uuid) -> bool {
    let is_ours = matches!(&contents.md, Md::Member(sb) if sb.set_uuid == uuid);
    is_ours && contents.remains().next().is_none()
}

/// Refuses a disk that contains anything besides its former membership of the array `uuid`.
fn check_free(path: &str, contents: &Contents, uuid: Uuid) -> Result<(), Reply> {
    let hint = Some("nothing was changed; --force overwrites what is there");
    match &contents.md {
        // Signatures in its data area are part of the array's data.
        Md::Member(sb) if sb.set_uuid == uuid => Ok(()),
        Md::None | Md::Member(_) | Md::Damaged(_)
            if !contents.is_empty() && !broken(Rule::OtherContentsAreKept) =>
        {
            let why = format!("{path} has {}", contents.claims().join(", "));
            Err(refused(why, hint))
        }
        Md::None | Md::Member(_) | Md::Damaged(_) => Ok(()),
    }
}
