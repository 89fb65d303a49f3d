//! The control socket: a varlink service on the main reactor.

use std::io;

use ashlar_block::{ByteVolume, Presence};
use ashlar_client::interface::{
    self, ArrayReference, Entry, EntryKind, LimitedVolume, ModelStatus, Setting, SnapshotSample,
    TreePath, VolumeStatus, control_error,
};
use ashlar_client::passed_files::PassedFiles;
use ashlar_client::varlink_server::{Interface, nothing, parse};
use ashlar_control::varlink::{Call, Reply};
use ashlar_disks::options::BackEnd;
use ashlar_engine::net::Socket;
use ashlar_stack::devices::{Device, Kind, Role};
use ashlar_stack::names::ArrayName;
use ashlar_stack::snapshots::Snapshots;
use ashlar_view::attributes::{AttributeError, NodeKind};
use ashlar_view::detail::{Detail, INACTIVE};
use serde_json::{Value, json};

use crate::service::Service;
use crate::{metrics, stopping, trace, zfs};

impl Interface for Service {
    const NAME: &'static str = interface::NAME;
    const DESCRIPTION: &'static str = interface::DESCRIPTION;

    async fn answer(&self, method: &str, call: Call, passed: &PassedFiles) -> Option<Vec<Reply>> {
        let more = call.more;
        let reply = self.call(method, call, passed).await;
        // Clients find what the reply tells of.
        self.clients.front_ends.follow();
        Some(if more { zfs::in_parts(reply) } else { vec![reply] })
    }

    async fn take_over(&self, socket: &Socket, call: Call) -> io::Result<Option<Call>> {
        if trace::is_asked_for(&call) {
            return trace::stream(socket, &self.attributes, &self.ending, &self.farewells, call)
                .await
                .map(|()| None);
        }
        if stopping::is_asked_for(&call) {
            return stopping::follow(socket, &self.ending, &self.clients, &self.farewells, call)
                .await
                .map(|()| None);
        }
        Ok(Some(call))
    }
}

impl Service {
    async fn call(&self, method: &str, call: Call, passed: &PassedFiles) -> Reply {
        let result = match method {
            "Status" => nothing(&call.parameters).map(|()| json!({ "status": self.status() })),
            "Detail" => parse(call.parameters).and_then(|at| self.detail(&at)),
            "Get" => parse(call.parameters).and_then(|at| self.get(&at)),
            "Set" => match parse(call.parameters) {
                Ok(at) => self.set(&at).await,
                Err(error) => Err(error),
            },
            "Manage" => match parse(call.parameters) {
                Ok(at) => self.manage(&at, passed).await,
                Err(error) => Err(error),
            },
            "Grow" => match parse(call.parameters) {
                Ok(at) => self.grow(&at).await,
                Err(error) => Err(error),
            },
            "Attach" => match parse(call.parameters) {
                Ok(at) => self.attach(&at, passed).await,
                Err(error) => Err(error),
            },
            "Detach" => match parse(call.parameters) {
                Ok(at) => self.detach(&at).await,
                Err(error) => Err(error),
            },
            "StartWaiting" => match nothing(&call.parameters) {
                Ok(()) => self.start_waiting().await,
                Err(error) => Err(error),
            },
            "Zfs" => match parse(call.parameters) {
                Ok(at) => self.zfs(at).await,
                Err(error) => Err(error),
            },
            "Lvm" => match parse(call.parameters) {
                Ok(at) => self.lvm(at).await,
                Err(error) => Err(error),
            },
            "LvmMembers" => match parse(call.parameters) {
                Ok(at) => self.lvm_members(at, passed).await,
                Err(error) => Err(error),
            },
            "Activate" => match parse(call.parameters) {
                Ok(at) => self.activate(&at).await,
                Err(error) => Err(error),
            },
            "Groups" => match nothing(&call.parameters) {
                Ok(()) => self.groups().await,
                Err(error) => Err(error),
            },
            "Jobs" => match nothing(&call.parameters) {
                Ok(()) => self.jobs().await,
                Err(error) => Err(error),
            },
            "Metrics" => match nothing(&call.parameters) {
                Ok(()) => self.metrics_reply().await,
                Err(error) => Err(error),
            },
            "Sample" => match nothing(&call.parameters) {
                Ok(()) => self.sample_reply().await,
                Err(error) => Err(error),
            },
            "ControlJob" => match parse(call.parameters) {
                Ok(at) => self.control_job(&at).await,
                Err(error) => Err(error),
            },
            "FileSystem" => match parse(call.parameters) {
                Ok(at) => self.scrubs.file_system(&at).await,
                Err(error) => Err(error),
            },
            "Scrub" => match parse(call.parameters) {
                Ok(at) => self.scrubs.scrub(&at).await,
                Err(error) => Err(error),
            },
            "Trace" => Err(Reply::expected_more()),
            "List" => parse(call.parameters).and_then(|at| self.list(&at)),
            "Stop" => stopping::begin(&self.ending, &self.clients, call.parameters).await,
            _ => Err(Reply::method_not_found(&call.method)),
        };
        result.map_or_else(|error| error, Reply::ok)
    }

    fn status(&self) -> interface::Status {
        let front_ends = &self.clients.front_ends;
        let with_clients = |mut status: VolumeStatus, volume: &ByteVolume| {
            front_ends.each(|front_end| front_end.clients(volume, &mut status.clients));
            status
        };
        let running = self.stack.arrays.running();
        let volumes = running.iter().map(|volume| {
            let status = volume.view.status();
            let own = VolumeStatus {
                name: volume.name.device(),
                alias: alias(&volume.name),
                level: status.level.to_string(),
                size: status.size.bytes(),
                state: status.state.name().to_owned(),
                raid_devices: status.raid_disks,
                degraded: status.degraded,
                ..VolumeStatus::default()
            };
            with_clients(own, &volume.bytes)
        });
        let devices = self.stack.devices.all();
        let snapshots = Snapshots::among(&devices);
        let others = devices.iter();
        let others = others.filter(|it| it.role == Role::Volume && !it.kind.is_array());
        let others = others.map(|device| {
            let snapshot = snapshots.of(device).map(SnapshotSample::from);
            let lost = snapshot.as_ref().filter(|snapshot| snapshot.is_lost());
            let own = VolumeStatus {
                name: device.name.clone(),
                alias: device.links.last().cloned(),
                level: device.kind.name().to_owned(),
                size: device.bytes.size_bytes(),
                state: lost.map_or_else(|| state(device).to_owned(), |lost| lost.state.clone()),
                raid_devices: 1,
                snapshot,
                ..VolumeStatus::default()
            };
            with_clients(own, &device.bytes)
        });
        let limited = devices.iter().filter(|device| device.role == Role::Volume);
        let limited = limited.filter_map(|device| {
            let limiter = device.bytes.limiter();
            let limits = metrics::limits(limiter).filter(|_| !limiter.max().is_none())?;
            let volume = device.links.last().unwrap_or(&device.name).clone();
            Some(LimitedVolume { volume, limits })
        });
        let waiting = self.stack.arrays.waiting().into_iter().map(|array| VolumeStatus {
            name: array.name.device(),
            alias: alias(&array.name),
            level: array.level.to_string(),
            state: INACTIVE.to_owned(),
            raid_devices: array.raid_disks as usize,
            degraded: (array.raid_disks as usize).saturating_sub(array.members.len()),
            ..VolumeStatus::default()
        });
        let modelled = self.opener.decorators.models.used().into_iter();
        let mut status = interface::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            io: BackEnd::used().name().to_owned(),
            sandbox: self.confinement.status(),
            models: modelled.map(|(disk, model)| ModelStatus { disk, model }).collect(),
            limited: limited.collect(),
            pools: self.pool_statuses(),
            stopping: self.ending.draining().is_stopped().then(|| self.ending.waits_for()),
            volumes: volumes.chain(waiting).chain(others).collect(),
            ..interface::Status::default()
        };
        front_ends.each(|front_end| front_end.place(&mut status.places));
        status
    }

    fn detail(&self, ArrayReference { name }: &ArrayReference) -> Result<Value, Reply> {
        if let Some(array) = self.stack.arrays.find_waiting(name) {
            let detail = Detail::waiting(&array);
            return Ok(json!({ "detail": detail }));
        }
        let volume = self.volume(name)?;
        Ok(json!({ "detail": Detail::of(&volume) }))
    }

    fn get(&self, TreePath { path }: &TreePath) -> Result<Value, Reply> {
        match self.attributes.read(path) {
            Ok(value) => Ok(json!({ "value": value })),
            Err(error) => Err(attribute_error(path, &error)),
        }
    }

    async fn set(&self, Setting { path, value }: &Setting) -> Result<Value, Reply> {
        match self.attributes.write(path, value).await {
            Ok(()) => Ok(json!({})),
            Err(error) => Err(attribute_error(path, &error)),
        }
    }

    fn list(&self, TreePath { path }: &TreePath) -> Result<Value, Reply> {
        let not_found = || attribute_error(path, &AttributeError::NotFound);
        let real = self.attributes.resolve(path).ok_or_else(not_found)?;
        match self.attributes.lookup(&real) {
            Some(NodeKind::Directory) => {}
            Some(NodeKind::Attribute { .. } | NodeKind::Symlink(_) | NodeKind::Volume(_)) => {
                return Err(control_error("NotADirectory", json!({ "path": path })));
            }
            None => return Err(not_found()),
        }
        let entries = self.attributes.list(path).into_iter().filter_map(|name| {
            let below = if real.is_empty() { name.clone() } else { format!("{real}/{name}") };
            let kind = match self.attributes.lookup(&below)? {
                NodeKind::Directory => EntryKind::Directory,
                NodeKind::Symlink(_) => EntryKind::Symlink,
                NodeKind::Attribute { readable: true, .. } => EntryKind::Attribute,
                NodeKind::Attribute { readable: false, .. } => EntryKind::WriteOnly,
                NodeKind::Volume(_) => EntryKind::Volume,
            };
            Some(Entry { name, kind })
        });
        Ok(json!({ "entries": entries.collect::<Vec<_>>() }))
    }
}

/// The word for the state of a device that is not an array.
fn state(device: &Device) -> &'static str {
    match (&device.kind, device.gateway().disk().presence()) {
        (Kind::Zvol(zvol), _) if zvol.is_dead() => "failed",
        (_, Presence::Answering) => "active",
        (_, Presence::Silent) => "silent",
        (_, Presence::Gone) => "gone",
    }
}

/// The other name of an array.
fn alias(name: &ArrayName) -> Option<String> {
    name.alias.as_ref().map(|alias| format!("md/{alias}"))
}

fn attribute_error(path: &str, error: &AttributeError) -> Reply {
    let path_only = json!({ "path": path });
    match error {
        AttributeError::NotFound => control_error("NotFound", path_only),
        AttributeError::IsDirectory => control_error("IsDirectory", path_only),
        AttributeError::NotReadable | AttributeError::IsVolume => {
            control_error("NotReadable", path_only)
        }
        AttributeError::NotWritable => control_error("NotWritable", path_only),
        AttributeError::Invalid(reason) => {
            control_error("InvalidValue", json!({ "path": path, "reason": reason }))
        }
        AttributeError::Busy(reason) => {
            control_error("Busy", json!({ "path": path, "reason": reason }))
        }
    }
}
