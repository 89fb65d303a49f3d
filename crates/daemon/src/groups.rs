//! Changes of volume groups that clients request, and what clients see of groups.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::Path;

use ashlar_client::interface::{
    Activate, ActivateReply, GroupsReply, Lvm, LvmReply, refused, refused_by, reply,
};
use ashlar_commands::lvm::{archive, new_uuid, refuse_to_cut};
use ashlar_control::varlink::Reply;
use ashlar_disks::{self as disks, Identity};
use ashlar_lvm::change::Author;
use ashlar_lvm::command::Command;
use ashlar_stack::devices::Device;
use ashlar_stack::incremental::Turn;
use ashlar_stack::volume_groups::{Change, ChangeResult, Request};
use serde_json::Value;

use crate::clients::ClosedDevices;
use crate::error::Error;
use crate::incremental::log_notes;
use crate::machine::Machine;
use crate::service::Service;

/// The hint if a volume is in use.
const IN_USE: &str = "disconnect its NBD clients, and close or unmount what uses it in the mount";

/// The refusal because of a volume that is in use.
pub(crate) fn in_use(name: &str, busy: &str) -> String {
    format!("Logical volume {name} in use: {busy}")
}

/// Refuses a change that may not last.
pub(crate) fn sure(applied: Result<ChangeResult, String>) -> Result<ChangeResult, Reply> {
    let applied = applied.map_err(|why| refused(why, None))?;
    match &applied.unsure {
        Some(why) => {
            let hint = "restart the daemon: it then reads the group as it is on the disks";
            Err(refused(why, Some(hint)))
        }
        None => Ok(applied),
    }
}

/// Applies a planned change that `command` asked for, and archives the metadata before and after.
///
/// # Errors
/// The reason.
pub(crate) async fn apply(
    machine: &dyn Machine,
    turn: &mut Turn,
    change: Change,
    (command, keep): (&str, bool),
) -> Result<ChangeResult, String> {
    let text = |error: Error| error.into_parts().0;
    let archives = machine.archives(keep, command).map_err(text)?;
    archives.before_in_task(Some(&change.before)).await.map_err(text)?;
    let header = archive::header(format!("Write from {command}."));
    let applied = turn.apply(change, header).await?;
    for (pv, status) in &applied.stale {
        tracing::warn!("PV {pv} still has the old metadata: {status}");
    }
    for note in &applied.notes {
        tracing::error!("{note}");
    }
    if let Err(error) = archives.after_in_task(&applied.metadata).await {
        tracing::warn!("{}", text(error));
    }
    Ok(applied)
}

impl Service {
    /// The volume groups.
    pub(crate) async fn groups(&self) -> Result<Value, Reply> {
        let (physical, groups) = self.turns.look().await.groups();
        reply(GroupsReply { physical, groups })
    }

    /// Changes a volume group.
    pub(crate) async fn lvm(&self, at: Lvm) -> Result<Value, Reply> {
        let mut turn = self.turn().await?;
        let mut author = Author { creation: archive::creation(), new_uuid: &mut new_uuid };
        let change = self.with_devices(None, |physical| {
            let request = Request { group: &at.group, command: &at.command, physical };
            turn.prepare(&request, &mut author)
        });
        let change = change.await.map_err(|why| refused(why, None))?;
        let effect = change.effect.clone();
        if let Some((volume, size)) = &effect.reduces {
            let name = format!("{}/{volume}", change.before.group.name);
            let devices = self.stack.devices.volumes();
            if let Some(device) = devices.iter().find(|device| device.export_name() == name) {
                let cut = refuse_to_cut(device.gateway(), &name, *size, &at.command).await;
                cut.map_err(refused_by)?;
            } else if !matches!(&at.command, Command::Resize(resize) if resize.force) {
                let why = format!(
                    "Logical volume {name} NOT reduced: it is not active, and its file system is not known"
                );
                return Err(refused(why, Some("activate it first, or use --force")));
            }
        }
        if at.confirmed != Some(true) && !effect.questions.is_empty() {
            let (notes, questions) = (effect.notes, effect.questions);
            return reply(LvmReply { notes, questions, done: Vec::new() });
        }
        let open = Cell::new(None);
        let busy = |name: &str, busy: &str| {
            open.set(Some(name.to_owned()));
            match &at.command {
                Command::Restore(_) => {
                    format!("The copy has not, or has elsewhere, what is in use: {busy}")
                }
                Command::Create(_)
                | Command::Resize(_)
                | Command::Remove { .. }
                | Command::Rename { .. }
                | Command::Merge { .. }
                | Command::Move(_)
                | Command::AbortMove { .. }
                | Command::RenameGroup { .. }
                | Command::Tag(_)
                | Command::Allocatable(_) => in_use(name, busy),
            }
        };
        let shut = self.shut(&change.shut, busy).await;
        let (change, shut) = match (shut, open.take(), &effect.merges_into) {
            (Ok(shut), _, _) => (change, shut),
            // As in LVM: the merge begins at the next activation, when no client has the volumes open.
            (Err(_), Some(open), Some(origin)) => {
                let is_origin = open == format!("{}/{origin}", change.before.group.name);
                let which = if is_origin { "origin" } else { "snapshot" };
                let reason = format!("Delaying merge since {which} is open.");
                let later = turn.put_off(change, &reason);
                (later.map_err(|why| refused(why, None))?, Vec::new())
            }
            (Err(busy), _, _) => return Err(busy),
        };
        let (notes, done) = (effect.notes, change.effect.done.clone());
        let keep = at.archive != Some(false);
        let applied = apply(&*self.machine, &mut turn, change, (&at.line, keep)).await;
        // Clients can no longer find devices that were removed.
        shut.into_iter().for_each(ClosedDevices::reopen);
        turn.hide_put_off();
        log_notes(&turn.take_notes());
        sure(applied)?;
        reply(LvmReply { notes, questions: Vec::new(), done })
    }

    /// Activates or deactivates volumes.
    pub(crate) async fn activate(&self, at: &Activate) -> Result<Value, Reply> {
        let Activate { group, volumes, active } = at;
        let mut turn = self.turn().await?;
        let change = turn.prepare_activation(group, volumes, *active);
        let change = change.map_err(|why| refused(why, None))?;
        let shut = self.shut(&change.shut, in_use).await?;
        let done = match active {
            true => turn.activate(change).await,
            false => turn.deactivate(change).await,
        };
        // Clients can no longer find devices that have stopped.
        shut.into_iter().for_each(ClosedDevices::reopen);
        log_notes(&turn.take_notes());
        done.map_err(|why| refused(why, None))?;
        reply(ActivateReply { active: turn.active_volumes(group) as u64 })
    }

    /// Prevents clients from opening the devices that a change needs exclusively; `busy` names the device in use, and its user.
    pub(crate) async fn shut(
        &self,
        devices: &[String],
        busy: impl Fn(&str, &str) -> String,
    ) -> Result<Vec<ClosedDevices>, Reply> {
        let mut all = Vec::new();
        for name in devices {
            let called = self.stack.devices.find(name);
            let called = called.map_or_else(|| name.clone(), |d| d.export_name().to_owned());
            match self.clients.shut(name, &called).await {
                Ok(shut) => all.push(shut),
                Err(user) => {
                    all.into_iter().for_each(ClosedDevices::reopen);
                    return Err(refused(busy(&called, &user), Some(IN_USE)));
                }
            }
        }
        Ok(all)
    }

    /// Calls `prepare` with the names of the devices at paths that a client gave, in `directory` if there is one; again for each path
    /// once its file system has been asked.
    pub(crate) async fn with_devices<T>(
        &self,
        directory: Option<&Path>,
        mut prepare: impl FnMut(&dyn Fn(&str) -> Option<String>) -> T,
    ) -> T {
        let mut asked: HashMap<String, Option<String>> = HashMap::new();
        loop {
            let unknown = RefCell::new(None);
            let prepared = prepare(&|path| match asked.get(path) {
                Some(found) => found.clone(),
                None => {
                    *unknown.borrow_mut() = Some(path.to_owned());
                    None
                }
            });
            let Some(path) = unknown.take() else { return prepared };
            let found = self.device_at(directory, &path).await;
            asked.insert(path, found);
        }
    }

    /// The name of the device at a path that a client gave, in `directory` if there is one.
    pub(crate) async fn device_at(&self, directory: Option<&Path>, path: &str) -> Option<String> {
        let inside = directory.map(|directory| disks::in_directory(directory, path));
        let inside = inside.as_deref().and_then(Path::to_str).filter(|inside| *inside != path);
        for path in [Some(path), inside].into_iter().flatten() {
            let wanted = self.seen(Path::new(path)).await;
            if let Some(found) = self.device_called(path, wanted.as_ref()) {
                return Some(found);
            }
        }
        None
    }

    /// The name of the device at a path where `wanted` is, as far as that is known.
    fn device_called(&self, path: &str, wanted: Option<&Identity>) -> Option<String> {
        let below_dev = path.strip_prefix("/dev/").unwrap_or(path);
        let all = self.stack.devices.all();
        let known = self.identities.borrow();
        // The path of a disk may come from a client that passed it, or may lead to another file by now; and its name is made of
        // the path.
        let is_another = |device: &Device| {
            let held = known.get(&device.path);
            device.kind.is_disk() && path != device.name && held.is_some() && wanted.is_some()
        };
        let is_named = |device: &Device| {
            device.path == path
                || device.name == below_dev
                || device.links.iter().any(|link| link == below_dev)
        };
        let is_it = |device: &&Device| wanted.is_some() && known.get(&device.path) == wanted;
        let found = all.iter().find(is_it);
        let found = found.or_else(|| all.iter().find(|it| is_named(it) && !is_another(it)));
        found.map(|device| device.name.clone())
    }
}
