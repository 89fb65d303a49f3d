//! The vhost-user-blk devices: volumes as disks of virtual machines.
//!
//! Each volume has a socket of its own, because the protocol has no names: a machine gets the disk whose socket it opens. A socket that
//! is for one volume alone is made before the disks are read, and its front end waits; the others appear with their volumes. The cleanup
//! helper makes those, since the daemon may be in its sandbox, and a file system that does not respond must not keep a reactor.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU16;
use std::path::{self, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};

use ashlar_block::sync::lock;
use ashlar_block::{ByteVolume, LocalFuture};
use ashlar_client::interface::front_ends::{PlaceStatus, VhostUserClient, VolumeClients};
use ashlar_client::stop::Stop;
use ashlar_disks::options::{Mode, some_parsed};
use ashlar_engine::Handle;
use ashlar_engine::net::BoundSocket;
use ashlar_engine::socket_file::SocketFile;
use ashlar_stack::devices::Device;
use ashlar_vhost::{Config, Export, listen};
use futures_util::future::{Either, select};

use super::{FrontEnd, FrontEndOptions, Parts, Place, Server, served};
use crate::cleanup_helper::{CleanupHelper, CleanupTasks};
use crate::ending::Ending;
use crate::error::{Error, Result};
use crate::options::options;

mod pattern;

pub(crate) use pattern::SocketPattern;
use pattern::part_of;

/// Permissions of the sockets, unless others are given: their users can write to the volumes.
const DEFAULT_MODE: Mode = Mode(0o600);
/// The queues of a device, unless a number is given. QEMU wants one for each processor of its machine, and refuses a device that has
/// fewer; a queue that is not used costs nothing.
const DEFAULT_QUEUES: NonZeroU16 = NonZeroU16::new(64).unwrap();
/// The most queues of a device: a message has eight bits for their number.
const MAX_QUEUES: u16 = 256;

options! {
    /// The options of the vhost-user-blk devices.
    #[allow(rustdoc::broken_intra_doc_links)]
    pub struct VhostUserOptions {
        /// Serve virtual machines by vhost-user-blk: unix:PATH, the socket of the only volume, or unix:DIR/{}.sock, a
        /// socket for each volume, with its name for {}: md0, vg-lv
        #[arg(long, value_name = "ADDRESS", help_heading = "Clients")]
        #[serde(deserialize_with = "some_parsed")]
        pub vhost_user: Option<SocketPattern>,

        /// Permissions of these sockets, in octal: users that may write to a socket can read and write its volume
        /// [default: 600]
        #[arg(long, value_name = "MODE", requires = "vhost_user", help_heading = "Clients", hide_short_help = true)]
        #[serde(deserialize_with = "some_parsed")]
        pub vhost_user_mode: Option<Mode>,

        /// Queues that a machine may use for a volume, 1 to 256: QEMU needs as many as its machine has processors, or
        /// num-queues= [default: 64]
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_QUEUES)), requires = "vhost_user", help_heading = "Clients", hide_short_help = true)]
        pub vhost_user_queues: Option<u16>,
    }
}

impl FrontEndOptions for VhostUserOptions {
    fn check(&self) -> std::result::Result<(), String> {
        let is_possible =
            self.vhost_user_queues.is_none_or(|count| (1..=MAX_QUEUES).contains(&count));
        if !is_possible {
            return Err(format!("vhost_user_queues must be 1 to {MAX_QUEUES}"));
        }
        let needless = [
            ("vhost_user_mode", self.vhost_user_mode.is_some()),
            ("vhost_user_queues", self.vhost_user_queues.is_some()),
        ];
        let needless = needless.into_iter().find(|(_, is_given)| *is_given);
        match needless.filter(|_| self.vhost_user.is_none()) {
            Some((option, _)) => Err(format!("{option} needs vhost_user")),
            None => Ok(()),
        }
    }

    fn check_surroundings(&self) -> Result<()> {
        let Some(pattern) = self.vhost_user.as_ref() else { return Ok(()) };
        let parent = pattern.path().parent().filter(|parent| !parent.as_os_str().is_empty());
        let Some(directory) = parent else { return Ok(()) };
        if directory.is_dir() {
            return Ok(());
        }
        let error =
            Error::new("cannot serve virtual machines", pattern, "there is no such directory");
        Err(error.hint(format!("make it first: mkdir -p {}", directory.display())))
    }

    fn serves(&self) -> bool {
        self.vhost_user.is_some()
    }

    fn bind(&self, _: bool) -> Result<Option<Box<dyn Place>>> {
        let Some(pattern) = self.vhost_user.clone() else { return Ok(None) };
        let failed = |why: io::Error| Error::new("cannot serve virtual machines", &pattern, why);
        // The cleanup helper is in another directory.
        let path = path::absolute(pattern.path()).map_err(failed)?;
        let Mode(mode) = self.vhost_user_mode.unwrap_or(DEFAULT_MODE);
        let only = match pattern.is_of_one() {
            true => Some(BoundSocket::unix(&path, mode, None).map_err(failed)?),
            false => None,
        };
        let queues = self.vhost_user_queues.unwrap_or(DEFAULT_QUEUES.get());
        let pattern = SocketPattern::of(path);
        Ok(Some(Box::new(WaitingVhostUser {
            only,
            maker: Maker { pattern, mode, helper: None },
            queues,
        })))
    }
}

/// Has the cleanup helper make sockets.
struct Maker {
    pattern: SocketPattern,
    mode: u32,
    helper: Option<Arc<CleanupHelper>>,
}

impl Maker {
    /// The socket of a volume. Dropping it removes its file.
    fn make(&self, part: &str) -> io::Result<BoundSocket> {
        let missing = || io::Error::other("there is no cleanup helper, which makes it");
        self.helper.as_ref().ok_or_else(missing)?.listen(part)
    }
}

/// The sockets before there are volumes.
struct WaitingVhostUser {
    /// The socket that is for one volume.
    only: Option<BoundSocket>,
    maker: Maker,
    queues: u16,
}

impl Place for WaitingVhostUser {
    fn files(&mut self) -> Vec<&mut SocketFile> {
        self.only.iter_mut().filter_map(BoundSocket::file_mut).collect()
    }

    fn leave_to(&self, tasks: &mut CleanupTasks) {
        tasks.sockets = Some((self.maker.pattern.clone(), self.maker.mode));
    }

    fn cleaned_up_by(&mut self, helper: &Arc<CleanupHelper>) {
        self.maker.helper = Some(Arc::clone(helper));
    }

    /// The memory of machines is theirs; here it has addresses only.
    fn has_foreign_memory(&self) -> bool {
        true
    }

    fn start(self: Box<Self>, daemon: &Parts<'_>) -> Result<Box<dyn FrontEnd>> {
        let Self { only, maker, queues } = *self;
        let this = VhostUser {
            maker,
            config: Config { queues, ..Config::default() },
            threads: daemon.engine.handles().into(),
            draining: daemon.ending.draining(),
            state: Mutex::new(State { only, ..State::default() }),
        };
        let volumes = daemon.devices.volumes();
        if this.maker.pattern.is_of_one() && volumes.len() > 1 {
            let why = format!("this is the socket of one volume, and there are {}", volumes.len());
            let error = Error::new("cannot serve virtual machines", &this.maker.pattern, why);
            return Err(error.hint("put {} into the name of the socket, as in unix:DIR/{}.sock"));
        }
        for device in volumes {
            let offered = this.offer(&device);
            offered
                .map_err(|why| Error::new("cannot serve virtual machines", &device.name, why))?;
        }
        Ok(Box::new(this))
    }
}

/// A volume that is served.
struct Served {
    path: PathBuf,
    /// Dropped with the volume, or when the end begins, so that the path is free at once.
    file: Option<SocketFile>,
    export: Arc<Export>,
    /// Ends the acceptance of connections.
    closed: Stop,
}

#[derive(Default)]
struct State {
    /// The socket that waits for its only volume.
    only: Option<BoundSocket>,
    /// By the names of devices.
    served: HashMap<String, Served>,
    /// All, also those whose volume was withdrawn: machines may still use it.
    servers: Vec<(String, Server)>,
    /// The thread of the next server.
    next: usize,
}

/// See the module text.
struct VhostUser {
    maker: Maker,
    config: Config,
    threads: Arc<[Handle]>,
    draining: Stop,
    state: Mutex<State>,
}

impl FrontEnd for VhostUser {
    fn offer(&self, device: &Device) -> std::result::Result<(), String> {
        let part = part_of(device.export_name());
        let (path, volume) = (self.maker.pattern.socket(&part), &device.bytes);
        let mut state = lock(&self.state);
        if let Some(known) = state.served.get(&device.name) {
            if known.path == path && std::ptr::eq(known.export.volume(), &**volume) {
                return Ok(());
            }
            known.closed.stop();
            state.served.remove(&device.name);
        }
        if let Some((other, _)) = state.served.iter().find(|(_, served)| served.path == path) {
            return Err(format!("{} is the socket of {other}", path.display()));
        }
        let mut bound = match state.only.take() {
            Some(only) => only,
            None => {
                let made = self.maker.make(&part);
                made.map_err(|why| format!("{}: {why}", path.display()))?
            }
        };
        let export = Arc::new(Export::new(device.export_name(), Arc::clone(volume)));
        let (closed, file) = (Stop::default(), bound.take_file());
        let thread = &self.threads[state.next % self.threads.len()];
        state.next += 1;
        let server = {
            let (export, threads) = (Arc::clone(&export), Arc::clone(&self.threads));
            let (config, closed, stop) =
                (self.config.clone(), closed.clone(), self.draining.clone());
            thread.spawn_on(move || listen(bound.into(), export, threads, config, closed, stop))
        };
        state.servers.push((path.display().to_string(), server));
        state.served.insert(device.name.clone(), Served { path, file, export, closed });
        Ok(())
    }

    /// Machines that are connected keep the volume; no other one finds its socket.
    fn withdraw(&self, name: &str) {
        if let Some(known) = lock(&self.state).served.remove(name) {
            known.closed.stop();
        }
    }

    fn resized(&self, device: &Device) {
        if let Some(known) = lock(&self.state).served.get(&device.name) {
            known.export.announce();
        }
    }

    fn place(&self, places: &mut PlaceStatus) {
        places.vhost_user = Some(self.maker.pattern.to_string());
    }

    fn clients(&self, volume: &ByteVolume, clients: &mut VolumeClients) {
        let state = lock(&self.state);
        let all = state.served.values();
        let of_it = all.filter(|served| std::ptr::eq(served.export.volume(), volume));
        let processes = of_it.flat_map(|served| served.export.front_ends());
        let client = |process| VhostUserClient { process: u64::try_from(process).unwrap_or(0) };
        clients.vhost_user_clients = processes.map(client).collect();
    }

    fn drain<'a>(&'a self, ending: &'a Ending) -> LocalFuture<'a, ()> {
        let mut state = lock(&self.state);
        state.served.values_mut().for_each(|served| served.file = None);
        let servers = std::mem::take(&mut state.servers);
        drop(state);
        Box::pin(async move {
            let machines = "virtual machines' requests".to_owned();
            let served = pin!(served("vhost-user", servers, machines, ending));
            if let Either::Right(_) = select(served, ending.forced()).await {
                let state = lock(&self.state);
                let machines: usize =
                    state.served.values().map(|served| served.export.front_ends().len()).sum();
                if machines > 0 {
                    tracing::error!(machines, "forced shutdown with virtual machines connected");
                }
            }
        })
    }
}
