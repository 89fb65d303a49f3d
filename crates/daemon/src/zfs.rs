//! Served pools: passes clients' commands to a pool's worker, and updates the devices.

use std::sync::Arc;

use ashlar_client::interface::{PoolStatus, Zfs, ZfsReply, refused, reply};
use ashlar_control::varlink::Reply;
use ashlar_stack::devices::Device;
use ashlar_stack::pools::ServedPool;
use ashlar_zfs::client::{CallError, Zvol};
use ashlar_zfs::protocol::{Command, Dataset, Reply as PoolReply};
use serde_json::{Value, json};

use crate::clients::HiddenDevices;
use crate::service::Service;

/// Advice about a volume in use.
const IN_USE: &str = "unmount it, or end what has it open";
/// Advice about a pool whose disks have failed.
const SUSPENDED: &str = "what was flushed is on its disks: stop the daemon, and import it again";

/// The path of the datasets in a reply.
const DATASETS: &str = "/reply/datasets";
/// The most datasets in one part of a reply: each has about 3 KiB of properties.
const BATCH: usize = 64;

/// A volume that is closed during an operation on its dataset.
struct ClosedVolume {
    zvol: Arc<Zvol>,
    /// The name of its dataset afterwards; `None` if it is destroyed.
    becomes: Option<String>,
}

/// Splits a reply with a long list of datasets into several: messages are bounded, pools are not.
pub(crate) fn in_parts(reply: Reply) -> Vec<Reply> {
    let datasets = reply.parameters.pointer(DATASETS).and_then(Value::as_array);
    let Some(all) = datasets.filter(|all| all.len() > BATCH) else { return vec![reply] };
    let last = all.len().div_ceil(BATCH) - 1;
    let part = |(index, part): (usize, &[Value])| {
        let reply = Reply::ok(json!({ "reply": { "reply": "datasets", "datasets": part } }));
        if index < last { reply.continues() } else { reply }
    };
    all.chunks(BATCH).enumerate().map(part).collect()
}

fn not_done(error: &CallError) -> Reply {
    refused(error, error.hint())
}

/// The open volumes at and below the dataset `name`, which will be renamed to `new_name`.
fn at(served: &ServedPool, name: &str, new_name: Option<&String>) -> Vec<ClosedVolume> {
    let mut all = Vec::new();
    for zvol in served.pool.opened() {
        let dataset = zvol.dataset();
        let Some(rest) = dataset.strip_prefix(name) else { continue };
        if rest.is_empty() || rest.starts_with(['/', '@']) {
            all.push(ClosedVolume { zvol, becomes: new_name.map(|new| format!("{new}{rest}")) });
        }
    }
    all
}

/// The open snapshots that move to the clone `name` when it is promoted: they must be closed meanwhile.
///
/// # Errors
/// The clone or its origin cannot be listed.
async fn promoted(served: &ServedPool, name: &str) -> Result<Vec<ClosedVolume>, Reply> {
    let clone = listed(served, name).await?;
    let origin = clone.iter().find(|dataset| dataset.name == name);
    let origin = origin.and_then(|clone| clone.properties.get("origin"));
    let Some((volume, _)) = origin.and_then(|origin| origin.value.split_once('@')) else {
        return Ok(Vec::new());
    };
    let origins = listed(served, volume).await?;
    let made_at = |name: &str| {
        let dataset = origins.iter().find(|dataset| dataset.name == name)?;
        dataset.properties.get("createtxg")?.value.parse::<u64>().ok()
    };
    let last = origin.and_then(|origin| made_at(&origin.value));
    let mut all = Vec::new();
    for zvol in served.pool.opened() {
        let dataset = zvol.dataset();
        let Some((of, tag)) = dataset.split_once('@') else { continue };
        if of == volume && made_at(&dataset) <= last {
            all.push(ClosedVolume { becomes: Some(format!("{name}@{tag}")), zvol });
        }
    }
    Ok(all)
}

/// The datasets at and below `root`.
///
/// # Errors
/// There is no `root`, or the worker is dead.
async fn listed(served: &ServedPool, root: &str) -> Result<Vec<Dataset>, Reply> {
    let list = Command::List { root: Some(root.to_owned()) };
    let reply = served.pool.call(list).await.map_err(|error| not_done(&error))?;
    if let PoolReply::Datasets { datasets } = reply { Ok(datasets) } else { Ok(Vec::new()) }
}

impl Service {
    /// The pools, for `Status`.
    pub(crate) fn pool_statuses(&self) -> Vec<PoolStatus> {
        let all = self.stack.pools.all();
        let status = |served: &Arc<ServedPool>| PoolStatus {
            name: served.pool.name().to_owned(),
            pid: served.pool.worker().pid(),
            release: served.pool.release().to_owned(),
            ended: served.pool.worker().end(),
        };
        all.iter().map(status).collect()
    }

    /// Runs a client's command on a pool.
    pub(crate) async fn zfs(&self, Zfs { pool, command }: Zfs) -> Result<Value, Reply> {
        let pools = &self.stack.pools;
        let no_such_pool = || {
            let why = format!("cannot open '{pool}': no such pool");
            refused(why, Some("ashlar status shows what is served"))
        };
        let served = pools.find(&pool).filter(|served| served.pool.name() == pool);
        let served = served.ok_or_else(no_such_pool)?;
        if matches!(command, Command::List { .. } | Command::PoolStatus) {
            let reply = served.pool.call(command).await.map_err(|error| not_done(&error))?;
            return self::reply(ZfsReply { reply });
        }
        // One change of a pool at a time, and none once the daemon is about to end.
        let turn = served.turn.lock().await;
        if self.ending.draining().is_stopped() {
            return Err(refused("the daemon is about to end", None));
        }
        if !pools.all().iter().any(|other| Arc::ptr_eq(other, &served)) {
            return Err(no_such_pool());
        }
        let reply = self.carry_out(&served, command).await;
        drop(turn);
        reply
    }

    async fn carry_out(&self, served: &Arc<ServedPool>, command: Command) -> Result<Value, Reply> {
        let done = match &command {
            Command::Scrub(_)
            | Command::ChangeLeaf { .. }
            | Command::ClearErrors { .. }
            | Command::SetPool { .. }
            | Command::CreateVolume { .. }
            | Command::SetProperty { .. }
            | Command::Inherit { .. }
            | Command::Snapshot { .. }
            | Command::Clone { .. } => served.pool.run(command).await,
            // The volume's I/O waits meanwhile.
            Command::Rollback { .. } => served.pool.run(command).await,
            Command::Rename { from, to } => {
                let (what, shut) = (format!("cannot rename '{from}'"), at(served, from, Some(to)));
                self.while_shut(served, &what, shut, command).await?
            }
            Command::Destroy { name, .. } => {
                let (what, shut) = (format!("cannot destroy '{name}'"), at(served, name, None));
                self.while_shut(served, &what, shut, command).await?
            }
            Command::Promote { name } => {
                let shut = promoted(served, name).await?;
                let what = format!("cannot promote '{name}'");
                self.while_shut(served, &what, shut, command).await?
            }
            Command::ExportPool => return self.export_pool(served).await,
            Command::List { .. }
            | Command::PoolStatus
            | Command::Start { .. }
            | Command::Share { .. }
            | Command::SetParameter { .. }
            | Command::CreatePool { .. }
            | Command::DestroyPool
            // The daemon does not hold the new disks.
            | Command::AddVdevs { .. }
            | Command::AttachDisk { .. }
            | Command::Part { .. }
            | Command::ImportPool { .. }
            | Command::Open { .. }
            | Command::Reopen { .. }
            | Command::Close { .. }
            | Command::Window { .. }
            | Command::Attach { .. }
            | Command::WritePlainly { .. } => return Err(Reply::invalid_parameter("command")),
        };
        // A failed command may have been partly done.
        self.follow(served).await;
        done.map_err(|error| not_done(&error))?;
        self::reply(ZfsReply { reply: PoolReply::Done })
    }

    /// Runs a command during which the volumes in `shut` must not be in use: they are closed meanwhile. Those that
    /// still exist afterwards keep their devices. `what` says what cannot be done, for the error.
    ///
    /// # Errors
    /// A volume is in use. The inner error is the worker's.
    async fn while_shut(
        &self,
        served: &ServedPool,
        what: &str,
        shut: Vec<ClosedVolume>,
        command: Command,
    ) -> Result<Result<(), CallError>, Reply> {
        let zvols: Vec<Arc<Zvol>> = shut.iter().map(|shut| Arc::clone(&shut.zvol)).collect();
        let hidden = self.hide(&zvols).await.map_err(|busy| {
            let why = format!("{what}: dataset is busy: {busy}");
            refused(why, Some(IN_USE))
        })?;
        let done = async {
            for zvol in &zvols {
                served.pool.shut(zvol).await?;
            }
            served.pool.run(command).await
        };
        let done = done.await;
        for (hidden, ClosedVolume { zvol, becomes }) in hidden.into_iter().zip(shut) {
            let now = if done.is_ok() { becomes } else { Some(zvol.dataset()) };
            let is_there = match now {
                Some(_) if !zvol.is_shut() => true,
                Some(now) => self.reopen(served, &zvol, &now).await,
                None => false,
            };
            if is_there {
                self.show(hidden);
            } else {
                self.stack.pools.forget(served, &zvol);
            }
        }
        Ok(done)
    }

    /// Reopens a closed volume; returns whether it is there.
    async fn reopen(&self, served: &ServedPool, zvol: &Arc<Zvol>, dataset: &str) -> bool {
        match served.pool.reopen(zvol, dataset).await {
            Ok(()) => true,
            // It has failed, and is listed as failed.
            Err(CallError::Dead(_)) => true,
            Err(error @ (CallError::Refused(_) | CallError::NotUnderstood(_))) => {
                tracing::warn!(dataset, %error, "not served any more");
                false
            }
        }
    }

    /// Hides volumes and their partitions from clients, all of them or none, unless one is in use.
    ///
    /// # Errors
    /// The user of a volume.
    async fn hide(&self, zvols: &[Arc<Zvol>]) -> Result<Vec<HiddenDevices>, String> {
        // Prevents new devices on them meanwhile.
        let turn = self.turns.take().await.map_err(|why| why.to_string())?;
        let mut all = Vec::new();
        for zvol in zvols {
            match self.hide_one(zvol).await {
                Ok(hidden) => all.push(hidden),
                Err(busy) => {
                    all.into_iter().for_each(|hidden| self.show(hidden));
                    return Err(busy);
                }
            }
        }
        drop(turn);
        Ok(all)
    }

    async fn hide_one(&self, zvol: &Arc<Zvol>) -> Result<HiddenDevices, String> {
        let is_meant =
            |device: &Device| device.zvol().is_some_and(|other| Arc::ptr_eq(other, zvol));
        self.clients.hide(is_meant, &zvol.dataset()).await
    }

    /// Shows a volume to clients again, under its present name.
    fn show(&self, hidden: HiddenDevices) {
        self.clients.show(hidden);
    }

    async fn export_pool(&self, served: &Arc<ServedPool>) -> Result<Value, Reply> {
        let (devices, pool) = (&self.stack.devices, &served.pool);
        // The export would wait until the daemon's end.
        if let Ok(true) = pool.is_suspended().await {
            let why = format!("cannot export '{}': pool I/O is currently suspended", pool.name());
            return Err(refused(why, Some(SUSPENDED)));
        }
        let hidden = self.hide(&pool.opened()).await.map_err(|busy| {
            let why = format!("cannot export '{}': pool is busy: {busy}", pool.name());
            refused(why, Some(IN_USE))
        })?;
        let exported = self.stack.pools.export(served, devices).await;
        drop(hidden);
        for member in served.below.iter().filter_map(|name| devices.find(name)) {
            // Removing the device releases its lock.
            devices.remove(&member.path);
            self.identities.borrow_mut().remove(&member.path);
        }
        // Refreshes the cached attribute tree, so that it no longer holds a disk.
        self.attributes.release_old();
        exported.map_err(|error| not_done(&error))?;
        self::reply(ZfsReply { reply: PoolReply::Done })
    }

    /// Serves new volumes, and stops serving those that are gone.
    async fn follow(&self, served: &ServedPool) {
        let changes = match served.pool.changes().await {
            Ok(changes) => changes,
            Err(error) => {
                return tracing::error!(pool = served.pool.name(), %error, "not followed");
            }
        };
        for zvol in changes.gone {
            // As in the kernel: a client that has a volume open keeps it, whatever volmode and snapdev are now.
            let hidden = match self.hide(std::slice::from_ref(&zvol)).await {
                Ok(hidden) => hidden,
                Err(busy) => {
                    tracing::warn!(volume = zvol.dataset(), busy, "served until it is not in use");
                    continue;
                }
            };
            if let Err(error) = self.stack.pools.close(served, &zvol).await {
                tracing::error!(volume = zvol.dataset(), %error, "not closed");
                hidden.into_iter().for_each(|hidden| self.show(hidden));
            }
        }
        let opened = self.stack.pools.open_new(served, changes.new, &self.stack.devices).await;
        for (dataset, error) in opened.failed {
            tracing::error!(dataset, %error, "not served");
        }
    }
}
