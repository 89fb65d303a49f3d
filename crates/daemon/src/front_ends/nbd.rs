//! The NBD servers.

use std::collections::HashMap;
use std::io;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::pin::pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use ashlar_block::sync::lock;
use ashlar_block::{ByteVolume, LocalFuture};
use ashlar_client::interface::front_ends::{
    ConnectionLimits, NbdClient, PlaceStatus, ThreadConnections, VolumeClients,
};
use ashlar_client::interface::{Sample, ThreadSample};
use ashlar_disks::options::{Bytes, Listen, Mode, OptionValue, some_parsed};
use ashlar_dm::snapshot::Changes;
use ashlar_engine::net::BoundSocket;
use ashlar_engine::socket_file::SocketFile;
use ashlar_engine::{Engine, activation};
use ashlar_export::nbd::budget::{Budget, MIN_BUDGET_BYTES};
use ashlar_export::nbd::clients::Origin;
use ashlar_export::nbd::context::{CHANGED_CONTEXT, ChangeMap, ChangeMaps};
use ashlar_export::nbd::export::{Export, Exports};
use ashlar_export::nbd::listen::{self, Tls, listen};
use ashlar_export::nbd::placement::Placement;
use ashlar_export::nbd::tls::{Credentials, ServerTls};
use ashlar_stack::devices::{Device, Devices};
use ashlar_stack::snapshots::Snapshots;
use futures_util::future::{Either, select};

use super::{FrontEnd, FrontEndOptions, Parts, Place, Server, served};
use crate::ending::Ending;
use crate::error::{Error, Result};
use crate::options::options;

/// The least memory for the requests of all clients, bytes.
const MIN_MEMORY_BYTES: u64 = MIN_BUDGET_BYTES as u64;

/// Permissions of the Unix sockets, unless others are given: their users can write to the volumes.
const DEFAULT_MODE: Mode = Mode(0o600);

options! {
    /// The options of the NBD servers.
    #[allow(rustdoc::broken_intra_doc_links)]
    pub struct NbdOptions {
        /// Listen for NBD clients: unix:PATH or tcp:HOST:PORT (may be repeated); sockets that a service manager has
        /// made for the daemon (LISTEN_FDS) are served, too
        #[arg(long, value_name = "ADDRESS", help_heading = "Clients")]
        pub nbd: Vec<Listen>,

        /// Permissions of the NBD server's Unix sockets, in octal: users that may write to a socket can read
        /// and write the volumes [default: 600]
        #[arg(long, value_name = "MODE", help_heading = "Clients")]
        #[serde(deserialize_with = "some_parsed")]
        pub nbd_mode: Option<Mode>,

        /// NBD clients that are served at a time at each address; others are refused [default: 256]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Clients", hide_short_help = true)]
        pub nbd_max_connections: Option<u16>,

        /// Close NBD connections without requests after so many seconds, 0 for never. A client with a
        /// mounted file system may have none for long [default: 0]
        #[arg(long, value_name = "SECONDS", help_heading = "Clients", hide_short_help = true)]
        pub nbd_idle_timeout: Option<u32>,

        /// Memory for the requests of all NBD clients together, at least 64M: while it is short, requests wait, and clients
        /// that do not take their replies are dropped. Of it, each client with TLS has 256K, and all of them at most a
        /// quarter [default: a quarter of what is available, at most 1G]
        #[arg(long, value_name = "SIZE", value_parser = memory, help_heading = "Clients", hide_short_help = true)]
        pub nbd_memory: Option<Bytes>,

        /// TLS of NBD clients: off, on for those that ask for it, or require: clients without it get no answer
        /// [default: off]
        #[arg(long, value_name = "WHEN", help_heading = "Clients", hide_short_help = true)]
        #[serde(deserialize_with = "some_parsed")]
        pub tls: Option<TlsUse>,

        /// The directory of the server's certificate, with the names of QEMU, nbdkit and libnbd: ca-cert.pem,
        /// server-cert.pem, server-key.pem, ca-crl.pem; or keys.psk instead of them
        #[arg(long, value_name = "DIRECTORY", help_heading = "Clients", hide_short_help = true)]
        pub tls_dir: Option<PathBuf>,

        /// The file of the keys that clients prove to have, instead of certificates: lines of USER:KEY, the key in
        /// hexadecimal digits, as from psktool
        #[arg(long, value_name = "FILE", help_heading = "Clients", hide_short_help = true)]
        pub tls_psk: Option<PathBuf>,

        /// Refuse NBD clients that have no certificate of the CA in ca-cert.pem
        #[arg(long, help_heading = "Clients", hide_short_help = true)]
        pub tls_verify_peer: bool,
    }
}

/// Whether NBD clients use TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsUse {
    /// They may not.
    Off,
    /// They may.
    On,
    /// They must.
    Require,
}

/// The text names none.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not off, on or require")]
pub struct BadTlsUse(String);

impl FromStr for TlsUse {
    type Err = BadTlsUse;

    fn from_str(text: &str) -> std::result::Result<Self, BadTlsUse> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            "require" => Ok(Self::Require),
            _ => Err(BadTlsUse(text.to_owned())),
        }
    }
}

impl OptionValue for TlsUse {}

impl NbdOptions {
    /// The settings of each listener.
    fn listener(&self) -> listen::Config {
        let default = listen::Config::default();
        let idle = self.nbd_idle_timeout.filter(|seconds| *seconds > 0);
        listen::Config {
            max_connections: self.nbd_max_connections.map_or(default.max_connections, usize::from),
            idle: idle.map(|seconds| Duration::from_secs(seconds.into())),
            ..default
        }
    }

    /// Where the credentials for TLS are; `None` if clients have no TLS.
    ///
    /// # Errors
    /// The message for the user: the options do not go together.
    fn credentials(&self) -> std::result::Result<Option<Credentials>, &'static str> {
        let (dir, psk) = (self.tls_dir.clone(), self.tls_psk.clone());
        let has_credentials = dir.is_some() || psk.is_some() || self.tls_verify_peer;
        match (self.tls, dir, psk) {
            (None, ..) if has_credentials => {
                Err("tls_dir, tls_psk and tls_verify_peer need tls = \"require\" or \"on\"")
            }
            (None | Some(TlsUse::Off), ..) => Ok(None),
            (Some(_), Some(_), Some(_)) => Err("tls_dir and tls_psk exclude each other"),
            (Some(_), _, Some(_)) if self.tls_verify_peer => Err(
                "tls_verify_peer is for certificates: with tls_psk each client proves that it has a key",
            ),
            (Some(_), Some(dir), None) => Ok(Some(Credentials::Directory(dir))),
            (Some(_), None, Some(psk)) => Ok(Some(Credentials::Keys(psk))),
            (Some(_), None, None) => Err("tls needs tls_dir or tls_psk"),
        }
    }

    /// Reads the credentials for TLS.
    ///
    /// # Errors
    /// They cannot be used.
    fn tls(&self) -> Result<Tls> {
        let credentials = self.credentials().map_err(|why| Error::plain("cannot use TLS", why))?;
        let Some(credentials) = credentials else { return Ok(Tls::default()) };
        let server = ServerTls::load(&credentials, self.tls_verify_peer)
            .map_err(|why| Error::plain("cannot use the credentials for TLS", why))?;
        Ok(Tls::new(server, self.tls == Some(TlsUse::Require)))
    }

    /// The memory budget that all listeners share.
    fn budget(&self) -> Budget {
        let bytes = self.nbd_memory.map(|bytes| usize::try_from(bytes.0).unwrap_or(usize::MAX));
        bytes.map_or_else(Budget::default, Budget::new)
    }
}

impl FrontEndOptions for NbdOptions {
    fn check(&self) -> std::result::Result<(), String> {
        if self.nbd_max_connections == Some(0) {
            return Err("nbd_max_connections must not be 0".to_owned());
        }
        self.credentials()?;
        let memory = self.nbd_memory.map_or(Ok(()), |bytes| enough(bytes).map(|_| ()));
        memory.map_err(|why| format!("nbd_memory: {why}"))
    }

    fn serves(&self) -> bool {
        !self.nbd.is_empty()
    }

    /// Listens for clients: at the addresses given, and on the sockets of the service manager.
    ///
    /// # Errors
    /// An address cannot be listened at; the credentials for TLS cannot be used.
    fn bind(&self, read_only: bool) -> Result<Option<Box<dyn Place>>> {
        let tls = self.tls()?;
        let passed = activation::sockets().map_err(|why| {
            let error = Error::plain("cannot use the sockets of the service manager", why);
            error.hint("a socket unit for ashlar has ListenStream=, and not Accept=yes")
        })?;
        let passed = passed.into_iter().map(|bound| Ok((address_of(&bound), bound)));
        let Mode(mode) = self.nbd_mode.unwrap_or(DEFAULT_MODE);
        let own = self.nbd.iter().map(|address| {
            let failed = |why| Error::new("cannot listen for NBD clients", address, why);
            let bound = bind_at(address, mode).map_err(failed)?;
            Ok((with_port(address, &bound), bound))
        });
        let sockets: Vec<(Listen, BoundSocket)> = passed.chain(own).collect::<Result<_>>()?;
        if !tls.proves_clients() {
            let why = match self.tls {
                None | Some(TlsUse::Off) => "there is neither authentication nor encryption",
                Some(TlsUse::On) => "TLS is not required",
                Some(TlsUse::Require) => "no certificate is asked of clients",
            };
            sockets.iter().for_each(|(_, bound)| warn_of_strangers(bound, read_only, why));
        }
        let (limits, budget) = (self.listener(), self.budget().into());
        Ok(Some(Box::new(WaitingNbd { sockets, limits, tls, budget })))
    }
}

/// The memory for the requests of all clients, as a number of bytes.
///
/// # Errors
/// The message for the user: it is not a number, or not enough.
fn memory(text: &str) -> std::result::Result<Bytes, String> {
    text.parse::<Bytes>().map_err(|error| error.to_string()).and_then(enough)
}

fn enough(bytes: Bytes) -> std::result::Result<Bytes, String> {
    let least = MIN_MEMORY_BYTES >> 20;
    let is_enough = bytes.0 >= MIN_MEMORY_BYTES;
    is_enough.then_some(bytes).ok_or_else(|| format!("at least {least}M are needed"))
}

/// An exported volume.
struct ExportedVolume {
    name: String,
    volume: Weak<ByteVolume>,
}

/// The sockets, on which clients wait.
struct WaitingNbd {
    sockets: Vec<(Listen, BoundSocket)>,
    limits: listen::Config,
    tls: Tls,
    /// The memory for requests and for TLS: how much there is, /proc says.
    budget: Arc<Budget>,
}

impl Place for WaitingNbd {
    fn files(&mut self) -> Vec<&mut SocketFile> {
        self.sockets.iter_mut().filter_map(|(_, bound)| bound.file_mut()).collect()
    }

    fn memory_bytes(&self) -> u64 {
        self.budget.limit_bytes() as u64
    }

    fn reads(&self) -> Vec<PathBuf> {
        let Some(server) = self.tls.server() else { return Vec::new() };
        if let Some(file) = server.leads_away() {
            let (file, place) = (file.display(), server.place().display());
            tracing::warn!(
                %file,
                "it is a link that leads out of {place}: after a renewal, which the sandbox hides then, restart the daemon, or put a copy there"
            );
        }
        vec![server.place().to_owned()]
    }

    /// Exports all volumes. Connections are spread over the threads, which also accept them: those of each address on one thread.
    fn start(self: Box<Self>, daemon: &Parts<'_>) -> Result<Box<dyn FrontEnd>> {
        let Self { sockets, limits, tls, budget } = *self;
        let threads = daemon.engine.handles();
        let this = Nbd {
            addresses: sockets.iter().map(|(address, _)| address.to_string()).collect(),
            most_connections: limits.max_connections,
            exports: Arc::default(),
            devices: Arc::downgrade(daemon.devices),
            exported: Mutex::default(),
            placement: Placement::on(threads),
            servers: Mutex::default(),
        };
        for device in daemon.devices.volumes() {
            let offered = this.offer(&device);
            offered.map_err(|why| Error::new("cannot export", &device.name, why))?;
        }
        for ((address, bound), thread) in sockets.into_iter().zip(threads.iter().cycle()) {
            let (limits, budget) = (limits, Arc::clone(&budget));
            let (exports, placement) = (Arc::clone(&this.exports), Arc::clone(&this.placement));
            let stop = daemon.ending.draining();
            let tls = tls.clone();
            let server = thread.spawn_on(move || {
                listen(bound.into(), exports, budget, placement, limits, tls, stop)
            });
            lock(&this.servers).push((address, server));
        }
        Ok(Box::new(this))
    }
}

/// See the module text.
struct Nbd {
    addresses: Vec<String>,
    /// The most connections that each address serves.
    most_connections: usize,
    exports: Arc<Exports>,
    devices: Weak<Devices>,
    /// By the names of devices.
    exported: Mutex<HashMap<String, ExportedVolume>>,
    placement: Arc<Placement>,
    servers: Mutex<Vec<(Listen, Server)>>,
}

impl FrontEnd for Nbd {
    fn offer(&self, device: &Device) -> std::result::Result<(), String> {
        let (name, volume) = (device.export_name(), &device.bytes);
        let mut exported = lock(&self.exported);
        if let Some(known) = exported.get(&device.name) {
            if known.name == name && std::ptr::eq(known.volume.as_ptr(), Arc::as_ptr(volume)) {
                return Ok(());
            }
            drop(self.exports.remove(&known.name));
            exported.remove(&device.name);
        }
        let export = Export::new(name, Arc::clone(volume)).map_err(|error| error.to_string())?;
        let (devices, of) = (Weak::clone(&self.devices), device.name.clone());
        let changes = move || match devices.upgrade() {
            Some(devices) => change_maps(&devices, &of),
            None => Vec::new(),
        };
        let export = export.with_changes(ChangeMaps::new(changes));
        self.exports.add(export).map_err(|error| error.to_string())?;
        let new = ExportedVolume { name: name.to_owned(), volume: Arc::downgrade(volume) };
        exported.insert(device.name.clone(), new);
        Ok(())
    }

    fn withdraw(&self, name: &str) {
        if let Some(known) = lock(&self.exported).remove(name) {
            drop(self.exports.remove(&known.name));
        }
    }

    /// A client learns the size when it connects: the protocol's extension for later sizes is not final.
    fn resized(&self, _: &Device) {}

    fn place(&self, places: &mut PlaceStatus) {
        places.nbd.clone_from(&self.addresses);
    }

    fn clients(&self, volume: &ByteVolume, clients: &mut VolumeClients) {
        let client = |(origin, count): (Origin, usize)| NbdClient {
            peer: origin.to_string(),
            connections: count as u64,
        };
        clients.nbd_clients = self.exports.clients_of(volume).into_iter().map(client).collect();
    }

    fn sample(&self, sample: &mut Sample) {
        let connections = self.placement.connections().into_iter().enumerate();
        let thread = |(index, count)| ThreadSample {
            name: Engine::thread_name(index),
            connections: ThreadConnections { nbd_connections: count as u64 },
        };
        sample.threads = connections.map(thread).collect();
        let has_address = !self.addresses.is_empty();
        let nbd_connections_limit = has_address.then_some(self.most_connections as u64);
        sample.limits = ConnectionLimits { nbd_connections_limit };
    }

    fn drain<'a>(&'a self, ending: &'a Ending) -> LocalFuture<'a, ()> {
        let servers = std::mem::take(&mut *lock(&self.servers));
        let servers: Vec<(String, Server)> =
            servers.into_iter().map(|(address, server)| (address.to_string(), server)).collect();
        let addresses: Vec<&str> = servers.iter().map(|(address, _)| &**address).collect();
        let clients = format!("NBD clients at {}", addresses.join(", "));
        Box::pin(async move {
            let served = pin!(served("NBD", servers, clients, ending));
            if let Either::Right(_) = select(served, ending.forced()).await {
                match self.exports.clients() {
                    // The servers only had to learn of the shutdown.
                    0 => {}
                    clients => {
                        tracing::error!(clients, "forced shutdown with NBD clients connected");
                    }
                }
            }
        })
    }
}

/// The snapshots of which the device `of` can tell what has changed since: itself, and all that have the same origin.
fn change_maps(devices: &Devices, of: &str) -> Vec<ChangeMap> {
    let all = devices.all();
    let Some(device) = all.iter().find(|device| device.name == of) else { return Vec::new() };
    let family = Snapshots::among(&all).family(device);
    let own = family.iter().find(|(other, _)| other.name == of);
    let own = own.map(|(_, changes)| changes.clone());
    let map = |(other, since): (&Device, Changes)| {
        if other.name == of {
            return ChangeMap::new(CHANGED_CONTEXT, move |at, len| since.same(at, len));
        }
        let name = format!("{CHANGED_CONTEXT}:{}", other.export_name());
        let own = own.clone();
        ChangeMap::new(name, move |at, len| {
            let same = since.same(at, len);
            // What both share with the origin they share with each other.
            match &own {
                Some(own) => same.and(&own.same(at, len)),
                None => same,
            }
        })
    };
    family.into_iter().map(map).collect()
}

/// The address of a socket that the service manager has made.
fn address_of(bound: &BoundSocket) -> Listen {
    match bound.local_addr() {
        Ok(address) => Listen::Tcp(address.to_string()),
        // An abstract name is rare, and shown as no path.
        Err(_) => Listen::Unix(bound.path().unwrap_or_default()),
    }
}

/// The address of a socket; the kernel may have chosen its port.
fn with_port(address: &Listen, bound: &BoundSocket) -> Listen {
    if let Listen::Tcp(place) = address
        && let Some(host) = place.strip_suffix(":0")
        && let Ok(at) = bound.local_addr()
    {
        return Listen::Tcp(format!("{host}:{}", at.port()));
    }
    address.clone()
}

/// Listens at `address`, with `mode` if it is a Unix socket.
///
/// # Errors
/// Those of bind(2); a host that has no address.
fn bind_at(address: &Listen, mode: u32) -> io::Result<BoundSocket> {
    match address {
        Listen::Unix(path) => BoundSocket::unix(path, mode, None),
        Listen::Tcp(host) => {
            let first = host.to_socket_addrs()?.next();
            BoundSocket::tcp(first.ok_or(io::ErrorKind::AddrNotAvailable)?)
        }
    }
}

/// Warns about an address that other machines may reach.
fn warn_of_strangers(bound: &BoundSocket, read_only: bool, why: &str) {
    let Ok(address) = bound.local_addr() else { return };
    if !address.ip().to_canonical().is_loopback() {
        let may = if read_only { "read" } else { "read and write" };
        tracing::warn!(
            %address,
            "every machine that reaches this address can {may} the volumes: {why}"
        );
    }
}
