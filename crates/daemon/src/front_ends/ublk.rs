//! Volumes as block devices of this machine, by the kernel's driver ublk.
//!
//! A volume gets a device when it is offered, and the device stays until nobody uses it: a file system that is mounted on it
//! would lose unwritten data. After `kill -9` it waits for the next daemon with the same data, whatever the volume's name is then.
//!
//! A process outside the sandbox controls the driver: a second cleanup helper, since the driver's commands may wait for I/O.
//! The daemon gets the file of each device from it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ashlar_block::sync::lock;
use ashlar_block::{ByteVolume, LocalFuture};
use ashlar_client::interface::front_ends::{PlaceStatus, UblkDevice};
use ashlar_disks as disks;
use ashlar_engine::{BackEnd, Handle, Task, sleep, spawn};
use ashlar_stack::devices::{Device, Devices, Kind};
use ashlar_ublk::{Channel, Config, Control, Server, identity_of};
use futures_util::future::{Either, select};
use futures_util::lock::Mutex as AsyncMutex;

use super::{FrontEnd, FrontEndOptions, Parts, Place};
use crate::cleanup_helper::{CleanupHelper, CleanupTasks};
use crate::ending::{Ending, Obstacle};
use crate::error::{Error, FAILURE, Result};
use crate::options::options;

/// How often a device that is in use is looked at when the daemon ends.
const RETRY: Duration = Duration::from_millis(200);

options! {
    /// The option of block devices.
    #[allow(rustdoc::broken_intra_doc_links)]
    pub struct UblkOptions {
        /// Make a block device of each volume
        ///
        /// They are /dev/ublkb0 and so on, by the kernel's driver ublk_drv. This needs root, or
        /// a /dev/ublk-control that the user may open
        #[arg(long, help_heading = "Clients")]
        pub ublk: bool,
    }
}

impl FrontEndOptions for UblkOptions {
    fn serves(&self) -> bool {
        self.ublk
    }

    fn has_writers_here(&self) -> bool {
        self.ublk
    }

    fn bind(&self, _: bool) -> Result<Option<Box<dyn Place>>> {
        if !self.ublk {
            return Ok(None);
        }
        let failed = |why: &dyn std::fmt::Display| {
            let error = Error::plain("cannot make block devices", why);
            error.hint("modprobe ublk_drv as root; --mount DIR serves volumes as files without it")
        };
        if BackEnd::used() == BackEnd::Threads {
            return Err(failed(&"ublk needs io_uring"));
        }
        Control::open().map_err(|why| failed(&why))?;
        let tasks = CleanupTasks { ublk: true, ..CleanupTasks::default() };
        Ok(Some(Box::new(WaitingUblk(CleanupHelper::start(tasks)?))))
    }
}

/// The process that controls the driver.
struct WaitingUblk(Arc<CleanupHelper>);

impl Place for WaitingUblk {
    fn start(self: Box<Self>, daemon: &Parts<'_>) -> Result<Box<dyn FrontEnd>> {
        let this = Ublk {
            channel: self.0,
            devices: Arc::clone(daemon.devices),
            threads: daemon.engine.handles().into(),
            state: Arc::default(),
            abandoned: Arc::default(),
        };
        for device in daemon.devices.volumes() {
            let offered = this.offer(&device);
            offered.map_err(|why| Error::new("cannot make a block device", &device.name, why))?;
        }
        Ok(Box::new(this))
    }
}

/// The device of a volume.
struct Served {
    name: String,
    volume: Arc<ByteVolume>,
    /// Locked while the device starts or changes.
    server: Arc<AsyncMutex<Option<Server>>>,
    /// Its path, once it is there.
    path: Arc<Mutex<Option<String>>>,
    _starting: Task<()>,
}

#[derive(Default)]
struct State {
    /// By the names of devices.
    served: HashMap<String, Served>,
    /// Devices whose volume was withdrawn.
    ending: Vec<Task<()>>,
}

/// See the module text.
struct Ublk {
    channel: Arc<dyn Channel>,
    devices: Arc<Devices>,
    threads: Arc<[Handle]>,
    state: Arc<Mutex<State>>,
    /// Set when the end is forced: from then on no request ends here.
    abandoned: Arc<AtomicBool>,
}

/// What distinguishes the data of a device from those of all others; `None` if nothing does for longer than this process lives.
async fn data_of(device: &Device, devices: &Devices) -> Option<String> {
    let (mut at, mut places) = (device.clone(), String::new());
    while let Kind::Partition(entry) = &at.kind {
        places += &format!(" at {}", entry.start.0);
        at = devices.find(at.below.first()?)?;
    }
    let data = match &at.kind {
        Kind::Disk => disks::identity_in_task(Path::new(&at.path)).await.ok()??.to_string(),
        Kind::Partition(_) | Kind::Array | Kind::Logical(_) | Kind::Zvol(_) => at.id?,
    };
    Some(data + &places)
}

/// Stops a device once nobody uses it.
async fn end(
    server: Arc<AsyncMutex<Option<Server>>>,
    ending: Option<&Ending>,
) -> std::io::Result<()> {
    let Some(server) = server.lock().await.take() else { return Ok(()) };
    while server.is_used().await? {
        if let Some(ending) = ending {
            let path = server.path().display().to_string();
            ending.wait_for(Obstacle::Clients(Arc::new(move || format!("users of {path}"))));
        }
        sleep(RETRY).await;
    }
    server.stop().await
}

impl FrontEnd for Ublk {
    fn offer(&self, device: &Device) -> std::result::Result<(), String> {
        let name = device.export_name().to_owned();
        let mut state = lock(&self.state);
        if let Some(known) = state.served.get_mut(&device.name) {
            if Arc::ptr_eq(&known.volume, &device.bytes) {
                known.name = name;
                return Ok(());
            }
            return Err(format!("its former volume {} is still in use", known.name));
        }
        let (server, path) = (Arc::new(AsyncMutex::new(None)), Arc::<Mutex<_>>::default());
        let starting = {
            let (channel, threads) = (Arc::clone(&self.channel), Arc::clone(&self.threads));
            let (device, devices, name) = (device.clone(), Arc::clone(&self.devices), name.clone());
            let (server, path) = (Arc::clone(&server), Arc::clone(&path));
            let abandoned = Arc::clone(&self.abandoned);
            spawn(async move {
                let mut place = server.lock().await;
                let (volume, config) = (&device.bytes, Config::default());
                let identity = identity_of(data_of(&device, &devices).await.as_deref());
                let started =
                    Server::start(channel, volume, identity, &threads, config, &abandoned);
                match started.await {
                    Ok(started) => {
                        let at = started.path().display().to_string();
                        tracing::info!(volume = name, device = at, "is a block device");
                        *lock(&path) = Some(at);
                        *place = Some(started);
                    }
                    Err(error) => {
                        tracing::error!(volume = name, %error, "cannot make a block device");
                    }
                }
            })
        };
        let volume = Arc::clone(&device.bytes);
        let served = Served { name, volume, server, path, _starting: starting };
        state.served.insert(device.name.clone(), served);
        Ok(())
    }

    fn withdraw(&self, name: &str) {
        let mut state = lock(&self.state);
        let Some(known) = state.served.remove(name) else { return };
        let ended = spawn(async move {
            let Served { name, server, _starting, .. } = known;
            if let Err(error) = end(server, None).await {
                tracing::error!(volume = name, %error, "stopping its block device");
            }
        });
        state.ending.push(ended);
    }

    fn resized(&self, device: &Device) {
        let state = lock(&self.state);
        let Some(known) = state.served.get(&device.name) else { return };
        let (server, volume, name) =
            (Arc::clone(&known.server), Arc::clone(&known.volume), known.name.clone());
        spawn(async move {
            let server = server.lock().await;
            let Some(server) = &*server else { return };
            if let Err(error) = server.resize(volume.gateway().capacity()).await {
                tracing::warn!(volume = name, %error, "its block device keeps its size");
            }
        })
        .detach();
    }

    fn place(&self, places: &mut PlaceStatus) {
        let state = lock(&self.state);
        let device = |served: &Served| {
            let path = lock(&served.path).clone()?;
            Some(UblkDevice { volume: served.name.clone(), path })
        };
        places.ublk = state.served.values().filter_map(device).collect();
        places.ublk.sort_by(|one, other| one.path.cmp(&other.path));
    }

    fn drain<'a>(&'a self, ending: &'a Ending) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            let stopping = async {
                let (served, withdrawn) = {
                    let mut state = lock(&self.state);
                    (std::mem::take(&mut state.served), std::mem::take(&mut state.ending))
                };
                for Served { name, server, _starting, .. } in served.into_values() {
                    if let Err(error) = end(server, Some(ending)).await {
                        tracing::error!(volume = name, %error, "stopping its block device");
                        ending.fail(FAILURE);
                    }
                }
                for ended in withdrawn {
                    ended.await;
                }
                ending.wait_for(Obstacle::Nothing);
            };
            if let Either::Right(_) = select(Box::pin(stopping), ending.forced()).await {
                self.abandoned.store(true, SeqCst);
                ending.keep_threads();
                tracing::error!(
                    "forced shutdown with block devices in use: they wait for the next daemon"
                );
            }
        })
    }
}
