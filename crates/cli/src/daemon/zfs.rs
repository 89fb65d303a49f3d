//! Pools that are served: what a client asks of one goes to its worker, and the devices follow.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::BlockDevice;
use ashlar_engine::sleep;
use ashlar_stack::devices::{Device, Kind};
use ashlar_stack::pools::Served;
use ashlar_zfs::client::{CallError, Zvol};
use ashlar_zfs::protocol::{Command, Reply as PoolReply};
use serde_json::Value;

use super::control::{Service, refused};
use super::export;
use super::interface::{PoolStatus, Zfs, ZfsReply};
use super::manage::reply;
use super::varlink::Reply;

/// How often, and after how long each time, a file is looked for that is about to be closed.
const RELEASES: u32 = 20;
const RELEASE: Duration = Duration::from_millis(50);
/// What to do about a volume in use.
const IN_USE: &str = "unmount it, or end what has it open";

fn not_done(error: &CallError) -> Reply {
    refused(error, error.hint())
}

impl Service {
    /// The pools, for `Status`.
    pub(super) fn pool_statuses(&self) -> Vec<PoolStatus> {
        let all = self.stack.pools.all();
        let status = |served: &Arc<Served>| PoolStatus {
            name: served.pool.name().to_owned(),
            pid: served.pool.worker().pid(),
            release: served.pool.release().to_owned(),
            ended: served.pool.worker().end(),
        };
        all.iter().map(status).collect()
    }

    /// Has a pool do something.
    pub(super) async fn zfs(&self, Zfs { pool, command }: Zfs) -> Result<Value, Reply> {
        // One change of what there is at a time, and none once the daemon is about to end.
        let collector = self.collector.lock().await;
        if self.draining.is_stopped() {
            return Err(refused("the daemon is about to end", None));
        }
        let found = self.stack.pools.find(&pool);
        let Some(served) = found.filter(|served| served.pool.name() == pool) else {
            let why = format!("cannot open '{pool}': no such pool");
            return Err(refused(why, Some("ashlar status shows what is served")));
        };
        let reply = self.carry_out(&served, command).await;
        drop(collector);
        reply
    }

    async fn carry_out(&self, served: &Arc<Served>, command: Command) -> Result<Value, Reply> {
        let done = match &command {
            Command::List { .. } | Command::PoolStatus => {
                let reply = served.pool.call(command).await.map_err(|error| not_done(&error))?;
                return self::reply(ZfsReply { reply });
            }
            Command::Scrub(_)
            | Command::SetPool { .. }
            | Command::CreateVolume { .. }
            | Command::SetProperty { .. }
            | Command::Inherit { .. }
            | Command::Snapshot { .. }
            | Command::Clone { .. }
            | Command::Promote { .. } => served.pool.run(command).await,
            // Its I/O waits meanwhile.
            Command::Rollback { .. } => served.pool.run(command).await,
            Command::Rename { from, .. } => {
                self.close_below(served, from, "cannot rename").await?;
                served.pool.run(command).await
            }
            Command::Destroy { name, .. } => {
                self.close_below(served, name, "cannot destroy").await?;
                served.pool.run(command).await
            }
            Command::ExportPool => return self.export_pool(served).await,
            Command::Start { .. }
            | Command::SetParameter { .. }
            | Command::CreatePool { .. }
            | Command::ImportPool { .. }
            | Command::Open { .. }
            | Command::Close { .. }
            | Command::Attach { .. }
            | Command::WritePlainly { .. } => return Err(Reply::invalid_parameter("command")),
        };
        // What was refused may have been half done, and its volumes closed.
        self.follow(served).await;
        done.map_err(|error| not_done(&error))?;
        self::reply(ZfsReply { reply: PoolReply::Done })
    }

    /// Closes a volume and what is below it, unless one of these is in use.
    async fn close_below(&self, served: &Served, name: &str, what: &str) -> Result<(), Reply> {
        let is_meant = |dataset: &str| {
            let rest = dataset.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
        };
        let mut meant = served.pool.opened();
        meant.retain(|zvol| is_meant(&zvol.dataset()));
        if let Err(busy) = self.hide(&meant).await {
            let why = format!("{what} '{name}': dataset is busy: {busy}");
            return Err(refused(why, Some(IN_USE)));
        }
        for zvol in meant {
            let (_, closed) = self.stack.pools.close(served, &zvol, &self.stack.devices).await;
            if let Err(error) = closed {
                tracing::error!(volume = zvol.dataset(), %error, "not closed in good order");
            }
        }
        Ok(())
    }

    /// Takes volumes away from clients, all of them or none: whoever has one open keeps it.
    ///
    /// # Errors
    /// Who uses one.
    async fn hide(&self, zvols: &[Arc<Zvol>]) -> Result<(), String> {
        let mut hidden: Vec<Device> = Vec::new();
        let mut busy = None;
        for zvol in zvols {
            let all = self.stack.devices.all();
            let Some(device) = all.iter().find(|device| device.name == zvol.disk().name()) else {
                continue;
            };
            if let Some(above) = all.iter().find(|above| above.below.contains(&device.name)) {
                busy = Some(format!("{} is made of '{}'", above.export_name(), zvol.dataset()));
                break;
            }
            let device = device.clone();
            drop(all);
            self.stack.devices.remove(&device.path);
            drop(self.exports.remove(device.export_name()));
            hidden.push(device);
            if let Some(device) = hidden.last()
                && self.is_used(device).await
            {
                busy = Some(format!("'{}' is open", zvol.dataset()));
                break;
            }
        }
        let Some(busy) = busy else { return Ok(()) };
        for device in hidden {
            self.serve(&device);
            self.stack.devices.put_back(device);
        }
        Err(busy)
    }

    /// Whether a client has a device open that new ones do not find any more.
    async fn is_used(&self, device: &Device) -> bool {
        // The tree of attributes that is kept has it no more.
        drop(self.attributes.lookup(""));
        for _ in 0..RELEASES {
            if Arc::strong_count(&device.bytes) == 1 {
                return false;
            }
            // That a file was closed the kernel tells when it has the time.
            sleep(RELEASE).await;
        }
        true
    }

    async fn export_pool(&self, served: &Arc<Served>) -> Result<Value, Reply> {
        let devices = &self.stack.devices;
        if let Err(busy) = self.hide(&served.pool.opened()).await {
            let why = format!("cannot export '{}': pool is busy: {busy}", served.pool.name());
            return Err(refused(why, Some(IN_USE)));
        }
        let (_, exported) = self.stack.pools.export(served, devices).await;
        for member in served.below.iter().filter_map(|name| devices.find(name)) {
            // With it goes its lock.
            devices.remove(&member.path);
            self.identities.borrow_mut().remove(&member.path);
        }
        // The tree of attributes that is kept holds no disk any more.
        drop(self.attributes.lookup(""));
        exported.map_err(|error| not_done(&error))?;
        self::reply(ZfsReply { reply: PoolReply::Done })
    }

    /// Serves what has come to be, and does not serve what is gone.
    async fn follow(&self, served: &Served) {
        let changes = match served.pool.changes().await {
            Ok(changes) => changes,
            Err(error) => {
                return tracing::error!(pool = served.pool.name(), %error, "not followed");
            }
        };
        for zvol in changes.gone {
            // As with the kernel: who has a volume open keeps it, whatever volmode and snapdev say now.
            if let Err(busy) = self.hide(std::slice::from_ref(&zvol)).await {
                tracing::warn!(volume = zvol.dataset(), busy, "served until it is not in use");
                continue;
            }
            let (_, closed) = self.stack.pools.close(served, &zvol, &self.stack.devices).await;
            if let Err(error) = closed {
                tracing::error!(volume = zvol.dataset(), %error, "not closed in good order");
            }
        }
        let opened = self.stack.pools.open_new(served, changes.new, &self.stack.devices).await;
        for (dataset, error) in opened.failed {
            tracing::error!(dataset, %error, "not served");
        }
        let known = self.exports.list();
        let volumes = self.stack.devices.volumes();
        for device in volumes.iter().filter(|device| device.kind == Kind::Zvol) {
            if !known.iter().any(|export| export.name() == device.export_name()) {
                self.serve(device);
            }
        }
    }

    /// Shows a device to NBD clients.
    fn serve(&self, device: &Device) {
        if let Err(error) = export(device).and_then(|export| self.exports.add(export)) {
            tracing::error!(device = device.name, %error, "not served to NBD clients");
        }
    }
}
