//! The NBD servers.

use std::collections::HashMap;
use std::io;
use std::net::ToSocketAddrs;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::options::Listen;
use ashlar_block::{ByteVolume, LocalFuture};
use ashlar_engine::net::Listener;
use ashlar_engine::{Engine, Handle, ReceiveError, Receiver};
use ashlar_export::nbd::budget::Budget;
use ashlar_export::nbd::export::{Export, Exports};
use ashlar_export::nbd::listen::listen;
use ashlar_stack::devices::{Device, Devices};
use futures_util::future::{Either, select};

use super::FrontEnd;
use crate::config::Config;
use crate::ending::{Ending, Obstacle};
use crate::error::{Error, FAILURE, PANICKED, Result};
use crate::stop::Stop;

/// A server on another thread: ends with its result.
type Server = Receiver<io::Result<()>>;

/// An exported volume.
struct ExportedVolume {
    name: String,
    volume: Weak<ByteVolume>,
}

/// See the module text.
#[derive(Default)]
pub(crate) struct Nbd {
    exports: Arc<Exports>,
    /// By the names of devices.
    exported: Mutex<HashMap<String, ExportedVolume>>,
    servers: Mutex<Vec<(Listen, Server)>>,
}

impl Nbd {
    /// Exports the volumes among `devices`, and listens.
    ///
    /// # Errors
    /// Two volumes have one name, or an address cannot be listened at.
    pub(crate) async fn start(
        engine: &Engine,
        config: &Config,
        devices: &Devices,
        ending: &Ending,
    ) -> Result<Self> {
        let this = Self::default();
        for device in devices.volumes() {
            let offered = this.offer(&device);
            offered.map_err(|why| Error::new("cannot export", &device.name, why))?;
        }
        let budget = Arc::new(config.nbd_options.budget());
        for (index, address) in config.nbd.iter().enumerate() {
            let handle = &engine.handles()[index % engine.handles().len()];
            let server = this.listen(handle, address, config, &budget, &ending.draining()).await?;
            lock(&this.servers).push((address.clone(), server));
        }
        Ok(this)
    }

    /// Serves clients on the reactor of `handle`.
    async fn listen(
        &self,
        handle: &Handle,
        address: &Listen,
        config: &Config,
        budget: &Arc<Budget>,
        stop: &Stop,
    ) -> Result<Server> {
        let bound = Stop::default();
        let (mode, read_only) = (config.nbd_options.mode(), config.read_only);
        let (limits, budget) = (config.nbd_options.listener(), Arc::clone(budget));
        let (tell, at, exports, stop) =
            (bound.clone(), address.clone(), Arc::clone(&self.exports), stop.clone());
        let server = handle.spawn_on(move || async move {
            let listener = bind(&at, mode, read_only)?;
            tell.stop();
            listen(listener, exports, budget, limits, stop).await
        });
        match select(bound, server).await {
            Either::Left(((), server)) => Ok(server),
            Either::Right((result, _)) => {
                let why = result.unwrap_or_else(gone).err().unwrap_or(io::ErrorKind::Other.into());
                Err(Error::new("cannot listen for NBD clients", address, why))
            }
        }
    }

    /// Waits until the servers have ended.
    async fn served(servers: Vec<(Listen, Server)>, ending: &Ending) {
        let addresses: Vec<String> =
            servers.iter().map(|(address, _)| address.to_string()).collect();
        if !servers.is_empty() {
            ending.wait_for(Obstacle::Clients(addresses.join(", ")));
        }
        for (address, server) in servers {
            match server.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::error!(%address, %error, "NBD server failed");
                    ending.fail(FAILURE);
                }
                Err(ReceiveError) => {
                    tracing::error!(%address, "NBD server panicked");
                    ending.fail(PANICKED);
                }
            }
        }
        ending.wait_for(Obstacle::Nothing);
    }
}

/// The data behind the locks is consistent whenever they are free.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server whose thread ended, or that panicked.
fn gone(cancelled: ReceiveError) -> io::Result<()> {
    Err(io::Error::other(cancelled))
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

    fn ended<'a>(&'a self, _: &'a Ending) -> LocalFuture<'a, ()> {
        Box::pin(std::future::pending())
    }

    fn drain<'a>(&'a self, ending: &'a Ending) -> LocalFuture<'a, ()> {
        let servers = std::mem::take(&mut *lock(&self.servers));
        Box::pin(async move {
            let served = pin!(Self::served(servers, ending));
            if let Either::Right(_) = select(served, ending.forced()).await {
                tracing::error!("ended by force while NBD clients were served");
            }
        })
    }
}

/// Listens at `address`, with `mode` if it is a Unix socket. Warns about an address that other machines may reach.
///
/// # Errors
/// Those of bind(2); a host that has no address.
fn bind(address: &Listen, mode: u32, read_only: bool) -> io::Result<Listener> {
    let host = match address {
        Listen::Unix(path) => return Listener::bind_unix(path, mode),
        Listen::Tcp(host) => host,
    };
    let first = host.to_socket_addrs()?.next();
    let listener = Listener::bind_tcp(first.ok_or(io::ErrorKind::AddrNotAvailable)?)?;
    let bound = listener.local_addr()?;
    if !bound.ip().to_canonical().is_loopback() {
        let may = if read_only { "read" } else { "read and write" };
        tracing::warn!(
            address = %bound,
            "every machine that reaches this address can {may} the volumes: there is neither \
             authentication nor encryption"
        );
    }
    Ok(listener)
}
