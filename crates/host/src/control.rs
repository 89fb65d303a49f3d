//! The control socket: varlink on the main reactor.
//!
//! [`Service::call`] answers one message; [`serve`] transfers them. A peer that sends invalid varlink loses its
//! connection and affects no other; we buffer at most one message for it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ashlar_engine::net::{Listener, Socket};
use ashlar_engine::{sleep, spawn};
use ashlar_stack::arrays::Volume;
use ashlar_stack::assemble::Stack;
use ashlar_stack::attributes::{AttributeError, Attributes, Found};
use ashlar_stack::detail::{Detail, INACTIVE};
use ashlar_stack::devices::Kind;
use ashlar_stack::incremental::Collector;
use ashlar_stack::names::ArrayName;
use futures_util::lock::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::access::{self, Refusals};
use crate::clients::Clients;
use crate::disks::{Access, Identity};
use crate::ending::Ending;
use crate::interface::{
    self, ArrayReference, Entry, EntryKind, ModelStatus, Setting, TreePath, VolumeStatus,
};
use crate::jobs::Speeds;
use crate::models::Models;
use crate::stopping::Farewells;
use crate::varlink::{Call, Frames, MAX_CALL, Reply, encode};
use crate::{stopping, trace, zfs};

/// The most concurrent connections; more are closed at once.
const MAX_CONNECTIONS: usize = 64;
/// Pause after an accept that failed for lack of a resource.
const RETRY: Duration = Duration::from_millis(100);

/// The state behind the control socket.
pub(crate) struct Service {
    pub(crate) stack: Arc<Stack>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) mount: Option<String>,
    pub(crate) nbd: Vec<String>,
    pub(crate) clients: Arc<Clients>,
    /// The access mode for disks.
    pub(crate) access: Access,
    /// Whether disks are opened for direct I/O.
    pub(crate) direct: bool,
    /// The device models of disks.
    pub(crate) models: Arc<Models>,
    /// Collects members of waiting arrays. Its lock is held during each change of the stack.
    pub(crate) collector: Arc<Mutex<Collector>>,
    /// Attributes to set once they exist, with their values.
    pub(crate) deferred: RefCell<Vec<(String, String)>>,
    /// The files and devices behind the disks' paths.
    pub(crate) identities: RefCell<HashMap<String, Identity>>,
    /// The daemon's end, which `Stop` begins. Once it has begun no array is started any more.
    pub(crate) ending: Ending,
    /// The speed of merges.
    pub(crate) speeds: RefCell<Speeds>,
    /// The callers waiting for the result of the end.
    pub(crate) farewells: Farewells,
}

impl Service {
    /// The encoded reply to a call, if one is due.
    async fn answer(&self, call: Call) -> Option<Vec<u8>> {
        let (oneway, more) = (call.oneway, call.more);
        let reply = self.call(call).await;
        // Clients find what the reply tells of.
        self.clients.front_ends.follow();
        let replies = if more { zfs::in_parts(reply) } else { vec![reply] };
        (!oneway).then(|| replies.iter().flat_map(encode).collect())
    }

    async fn call(&self, call: Call) -> Reply {
        let Some((interface, method)) = call.method.rsplit_once('.') else {
            return Reply::method_not_found(&call.method);
        };
        let result = match (interface, method) {
            ("org.varlink.service", "GetInfo") => nothing(&call.parameters).map(|()| info()),
            ("org.varlink.service", "GetInterfaceDescription") => describe(call.parameters),
            (interface::NAME, "Status") => {
                nothing(&call.parameters).map(|()| json!({ "status": self.status() }))
            }
            (interface::NAME, "Detail") => parse(call.parameters).and_then(|at| self.detail(&at)),
            (interface::NAME, "Get") => parse(call.parameters).and_then(|at| self.get(&at)),
            (interface::NAME, "Set") => match parse(call.parameters) {
                Ok(at) => self.set(&at).await,
                Err(error) => Err(error),
            },
            (interface::NAME, "Manage") => match parse(call.parameters) {
                Ok(at) => self.manage(&at).await,
                Err(error) => Err(error),
            },
            (interface::NAME, "Grow") => match parse(call.parameters) {
                Ok(at) => self.grow(&at).await,
                Err(error) => Err(error),
            },
            (interface::NAME, "Attach") => match parse(call.parameters) {
                Ok(at) => self.attach(&at).await,
                Err(error) => Err(error),
            },
            (interface::NAME, "Detach") => match parse(call.parameters) {
                Ok(at) => self.detach(&at).await,
                Err(error) => Err(error),
            },
            (interface::NAME, "StartWaiting") => match nothing(&call.parameters) {
                Ok(()) => self.start_waiting().await,
                Err(error) => Err(error),
            },
            (interface::NAME, "Zfs") => match parse(call.parameters) {
                Ok(at) => self.zfs(at).await,
                Err(error) => Err(error),
            },
            (interface::NAME, "Lvm") => match parse(call.parameters) {
                Ok(at) => self.lvm(at).await,
                Err(error) => Err(error),
            },
            (interface::NAME, "LvmMembers") => match parse(call.parameters) {
                Ok(at) => self.lvm_members(at).await,
                Err(error) => Err(error),
            },
            (interface::NAME, "Activate") => match parse(call.parameters) {
                Ok(at) => self.activate(&at).await,
                Err(error) => Err(error),
            },
            (interface::NAME, "Groups") => match nothing(&call.parameters) {
                Ok(()) => self.groups().await,
                Err(error) => Err(error),
            },
            (interface::NAME, "Jobs") => match nothing(&call.parameters) {
                Ok(()) => self.jobs().await,
                Err(error) => Err(error),
            },
            (interface::NAME, "ControlJob") => match parse(call.parameters) {
                Ok(at) => self.control_job(&at).await,
                Err(error) => Err(error),
            },
            (interface::NAME, "Trace") => Err(Reply::expected_more()),
            (interface::NAME, "List") => parse(call.parameters).and_then(|at| self.list(&at)),
            (interface::NAME, "Stop") => stopping::begin(&self.ending, call.parameters),
            ("org.varlink.service" | interface::NAME, _) => {
                Err(Reply::method_not_found(&call.method))
            }
            (other, _) => Err(Reply::interface_not_found(other)),
        };
        result.map_or_else(|error| error, Reply::ok)
    }

    fn status(&self) -> interface::Status {
        let running = self.stack.arrays.running();
        let volumes = running.iter().map(|volume| {
            let status = volume.view.status();
            VolumeStatus {
                name: volume.name.device(),
                alias: alias(&volume.name),
                level: status.level.to_string(),
                size: status.size.bytes(),
                state: status.state.name().to_owned(),
                raid_devices: status.raid_disks,
                degraded: status.degraded,
            }
        });
        let mut others = self.stack.devices.volumes();
        others.retain(|device| !device.kind.is_array());
        let others = others.into_iter().map(|device| VolumeStatus {
            alias: device.links.last().cloned(),
            level: device.kind.name().to_owned(),
            size: device.bytes.size_bytes(),
            name: device.name,
            state: match matches!(&device.kind, Kind::Zvol(zvol) if zvol.is_dead()) {
                true => "failed".to_owned(),
                false => "active".to_owned(),
            },
            raid_devices: 1,
            degraded: 0,
        });
        let waiting = self.stack.arrays.waiting().into_iter().map(|array| VolumeStatus {
            name: array.name.device(),
            alias: alias(&array.name),
            level: array.level.to_string(),
            size: 0,
            state: INACTIVE.to_owned(),
            raid_devices: array.raid_disks as usize,
            degraded: (array.raid_disks as usize).saturating_sub(array.members.len()),
        });
        let modelled = self.models.used().into_iter();
        interface::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            mount: self.mount.clone(),
            nbd: self.nbd.clone(),
            models: modelled.map(|(disk, model)| ModelStatus { disk, model }).collect(),
            pools: self.pool_statuses(),
            stopping: self.ending.draining().is_stopped().then(|| self.ending.waits_for()),
            volumes: volumes.chain(waiting).chain(others).collect(),
        }
    }

    /// The running array with this name.
    pub(crate) fn volume(&self, name: &str) -> Result<Volume, Reply> {
        let volume = self.stack.arrays.find(name);
        volume.ok_or_else(|| match self.stack.arrays.find_waiting(name) {
            Some(array) => refused(
                format_args!("{} is inactive: it waits for members", array.name.path()),
                Some("ashlar md incremental hands them in, or starts it with --run --scan"),
            ),
            None => control_error("NotFound", json!({ "path": name })),
        })
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
            Some(Found::Directory) => {}
            Some(Found::Attribute { .. } | Found::Symlink(_) | Found::Volume(_)) => {
                return Err(control_error("NotADirectory", json!({ "path": path })));
            }
            None => return Err(not_found()),
        }
        let entries = self.attributes.list(path).into_iter().filter_map(|name| {
            let below = if real.is_empty() { name.clone() } else { format!("{real}/{name}") };
            let kind = match self.attributes.lookup(&below)? {
                Found::Directory => EntryKind::Directory,
                Found::Symlink(_) => EntryKind::Symlink,
                Found::Attribute { readable: true, .. } => EntryKind::Attribute,
                Found::Attribute { readable: false, .. } => EntryKind::WriteOnly,
                Found::Volume(_) => EntryKind::Volume,
            };
            Some(Entry { name, kind })
        });
        Ok(json!({ "entries": entries.collect::<Vec<_>>() }))
    }
}

/// The other name of an array.
fn alias(name: &ArrayName) -> Option<String> {
    name.alias.as_ref().map(|alias| format!("md/{alias}"))
}

/// Parameters of a method.
pub(crate) fn parse<T: DeserializeOwned>(parameters: Map<String, Value>) -> Result<T, Reply> {
    serde_json::from_value(Value::Object(parameters)).map_err(|error| {
        // The message contains the parameter's name in backquotes, if it concerns one.
        let text = error.to_string();
        Reply::invalid_parameter(text.split('`').nth(1).unwrap_or(&text))
    })
}

/// Checks that a method without parameters got none.
fn nothing(parameters: &Map<String, Value>) -> Result<(), Reply> {
    parameters.keys().next().map_or(Ok(()), |name| Err(Reply::invalid_parameter(name)))
}

/// An error of our interface.
pub(crate) fn control_error(name: &str, parameters: Value) -> Reply {
    Reply::error(format!("{}.{name}", interface::NAME), parameters)
}

/// A refusal, with advice.
pub(crate) fn refused(reason: impl std::fmt::Display, hint: Option<&str>) -> Reply {
    refused_with(reason, hint, None)
}

/// A refusal that makes a command exit with this code.
pub(crate) fn refused_with(
    reason: impl std::fmt::Display,
    hint: Option<&str>,
    code: Option<u8>,
) -> Reply {
    let reason = reason.to_string();
    control_error("Refused", json!({ "reason": reason, "hint": hint, "code": code }))
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

fn info() -> Value {
    json!({
        "vendor": "ashlar",
        "product": "ashlar",
        "version": env!("CARGO_PKG_VERSION"),
        "url": "",
        "interfaces": ["org.varlink.service", interface::NAME],
    })
}

/// The interface that every varlink service has (varlink.org, "Service Interface").
const SERVICE_DESCRIPTION: &str = "\
# The interface every varlink service has.
interface org.varlink.service

method GetInfo() -> (
  vendor: string,
  product: string,
  version: string,
  url: string,
  interfaces: []string
)

method GetInterfaceDescription(interface: string) -> (description: string)

error InterfaceNotFound (interface: string)
error MethodNotFound (method: string)
error MethodNotImplemented (method: string)
error InvalidParameter (parameter: string)
";

fn describe(parameters: Map<String, Value>) -> Result<Value, Reply> {
    match parameters.get("interface").and_then(Value::as_str) {
        Some("org.varlink.service") => Ok(json!({ "description": SERVICE_DESCRIPTION })),
        Some(interface::NAME) => Ok(json!({ "description": interface::DESCRIPTION })),
        Some(other) => Err(Reply::interface_not_found(other)),
        None => Err(Reply::invalid_parameter("interface")),
    }
}

/// Answers all connections of those whom `access` allows that, forever.
pub(crate) async fn serve(listener: Listener, access: access::Access, service: Rc<Service>) {
    let refusals = Refusals::default();
    loop {
        match listener.accept().await {
            Ok(socket) => {
                if let Err(reply) = access.check(&socket) {
                    if let Some(refusal) = refusals.one_more() {
                        spawn(refusal.tell(socket, reply)).detach();
                    }
                    continue;
                }
                // Each connection holds a reference to the service, beside our own.
                if Rc::strong_count(&service) > MAX_CONNECTIONS {
                    tracing::warn!("too many control connections");
                    continue;
                }
                let service = Rc::clone(&service);
                spawn(async move { converse(&socket, &service).await }).detach();
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a control connection");
                sleep(RETRY).await;
            }
        }
    }
}

/// Serves one connection, until it ends.
async fn converse(socket: &Socket, service: &Service) {
    let mut frames = Frames::new(MAX_CALL);
    let mut buffer = vec![0; 4096];
    loop {
        loop {
            let message = match frames.next_message() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(error) => return tracing::info!(%error, "control connection dropped"),
            };
            let sent = match serde_json::from_slice::<Call>(&message) {
                Ok(call) if trace::is_asked_for(&call) => {
                    if let Err(error) = trace::stream(socket, service, call).await {
                        tracing::debug!(%error, "control connection lost");
                    }
                    return;
                }
                Ok(call) if stopping::is_asked_for(&call) => {
                    if let Err(error) = stopping::follow(socket, service, call).await {
                        tracing::debug!(%error, "control connection lost");
                    }
                    return;
                }
                Ok(call) => match service.answer(call).await {
                    Some(bytes) => socket.send_all(bytes).await.0,
                    None => Ok(()),
                },
                Err(error) => return tracing::info!(%error, "control connection dropped"),
            };
            if let Err(error) = sent {
                return tracing::debug!(%error, "control connection lost");
            }
        }
        let (received, same) = socket.recv(buffer).await;
        buffer = same;
        match received {
            Ok(0) => return,
            Ok(len) => frames.push(&buffer[..len]),
            Err(error) => return tracing::debug!(%error, "control connection lost"),
        }
    }
}
