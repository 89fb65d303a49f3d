//! The daemon: assembles, serves, and stops in good order.
//!
//! # Threads
//!
//! The main thread's reactor has the control socket, the signals and the arrays' start and end; each
//! further thread has a reactor that serves the mount and NBD clients, with no hop between threads
//! on the way of an I/O.
//!
//! # The end
//!
//! ```text
//! serving --signal, Stop, unmounted--> draining --unmounted--> stopping --> exit 0 (1 if not clean)
//!                                         |
//!                                         +--second signal--> detached --> stopping --> exit 1
//! ```
//!
//! A pool that keeps this waiting is given up: [`pools_end`].
//!
//! Draining: NBD clients get answers to what they have asked, and the mount is ended, which the kernel
//! refuses while it is used. A daemon that died below a mounted loop device would take acknowledged
//! data of that file system's cache with it, so this one serves on until the mount is free.

pub(crate) mod control;
mod incremental;
pub(crate) mod interface;
mod manage;
mod namespace;
mod notify;
mod pools_end;
mod stop;
mod trace;
mod users;
pub(crate) mod varlink;
mod watch;
mod zfs;

use std::collections::HashMap;
use std::fs::Permissions;
use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ashlar_engine::net::Listener;
use ashlar_engine::signal::{self, Signal, Signals};
use ashlar_engine::{Cancelled, Engine, Handle, ReactorConfig, Receiver, sleep, spawn};
use ashlar_export::fuse::dev::KernelDev;
use ashlar_export::fuse::mount::{Mount, MountError, MountOptions, mount};
use ashlar_export::fuse::server as fuse;
use ashlar_export::fuse::session::Session;
use ashlar_export::fuse::tree::Owner;
use ashlar_export::nbd::export::{Export, ExportError, Exports};
use ashlar_export::nbd::listen::{self, listen};
use ashlar_stack::assemble::{self, NotAMember, Probed, Stack, assemble, probe_all};
use ashlar_stack::attributes::{AttributeError, Attributes};
use ashlar_stack::devices::{Device, Kind};
use ashlar_stack::graph::human_size;
use ashlar_stack::incremental::Collector;
use ashlar_stack::pools;
use ashlar_stack::spec::Listen;
use ashlar_zfs::client::Parameters;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::lock::Mutex;
use futures_util::stream::FuturesUnordered;

use crate::client;
use crate::commands::serve::check_started;
use crate::disks::{self, Access};
use crate::error::{Error, FAILURE, Result};
use crate::models::Models;
use crate::output;
use namespace::View;
use stop::Stop;

/// How often a busy mount is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// How long it may be busy before the users are named.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where ZFS's module parameters are.
const PARAMETERS: &str = "sys/module/zfs/parameters/";

/// What to serve and how.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) disks: Vec<PathBuf>,
    pub(crate) mount: Option<PathBuf>,
    pub(crate) allow_other: bool,
    pub(crate) nbd: Vec<Listen>,
    pub(crate) read_only: bool,
    pub(crate) buffered: bool,
    pub(crate) run: bool,
    pub(crate) incremental: bool,
    /// Whether disks and arrays are served as they are, whatever is on them.
    pub(crate) whole: bool,
    pub(crate) partial: bool,
    /// Whether pools are imported that another host has used last.
    pub(crate) force: bool,
    pub(crate) threads: usize,
    pub(crate) spin: Duration,
    pub(crate) control: Option<PathBuf>,
    pub(crate) models: Arc<Models>,
    pub(crate) set: Vec<(String, String)>,
}

impl Config {
    fn access(&self) -> Access {
        if self.read_only { Access::Read } else { Access::Write }
    }

    /// How pools are imported: with the module parameters among the settings.
    fn pools(&self) -> Result<pools::Options> {
        let parameters = Parameters::default();
        for (path, value) in &self.set {
            let Some(name) = path.trim_matches('/').strip_prefix(PARAMETERS) else { continue };
            let failed = |why: &str| {
                Error::new("cannot set", path, why).hint("see the [set] table of the configuration")
            };
            let value = value.parse().map_err(|_| failed("it is not a number"))?;
            match parameters.set(name, value) {
                Ok(_) => {}
                Err(None) => return Err(failed("no such attribute")),
                Err(Some(max)) => {
                    return Err(failed(&format!("out of range: 0 to {max} is possible here")));
                }
            }
        }
        Ok(pools::Options { parameters: Arc::new(parameters), force: self.force })
    }
}

/// Which of the disks to use.
pub(crate) type Filter<'a> = &'a dyn Fn(&Probed) -> bool;

/// Serves until told to stop. With `rename` the first array gets that name; with `filter` only members
/// of arrays are served, and those for which it does not hold are left alone.
///
/// # Errors
/// It could not start; volumes hold what they did.
pub(crate) fn serve(
    config: Config,
    rename: Option<&str>,
    filter: Option<Filter<'_>>,
) -> Result<ExitCode> {
    let signals = [Signal::TERM, Signal::INT];
    // Before any thread is started, so that all of them leave the signals to us.
    signal::block(&signals).map_err(|error| Error::plain("cannot block signals", error))?;
    if !config.incremental {
        config.models.check(&config.disks)?;
    }
    let pools = config.pools()?;
    let disks = disks::open_all_with(&config.disks, config.access(), !config.buffered)?;
    let disks = disks.into_iter().map(|disk| config.models.wrap(disk)).collect();
    let reactor = disks::reactor()?;
    let result = reactor.block_on(async {
        let ends = Ends::listen(&signals);
        let ends = ends.map_err(|error| Error::plain("cannot wait for signals", error))?;
        let mut probed = probe_all(disks).await;
        probed.retain(|disk| filter.is_none_or(|wanted| wanted(disk)));
        for disk in &probed {
            if !config.read_only && !config.whole {
                disks::refuse_rivals(&disk.disk, disk.contents.as_ref()).await?;
            }
            match disk.candidate() {
                Ok(_) => {}
                // A disk that is no member is a volume itself, unless arrays were asked for.
                Err(NotAMember::Foreign(_))
                    if filter.is_none() && !disk.disk.gateway.capacity().is_zero() => {}
                // Who only reads wants what there is: the others may have it all. The log names it.
                Err(NotAMember::Damaged(_)) if filter.is_none() && config.read_only => {}
                Err(why) => {
                    let hint = "--read-only leaves out what is damaged";
                    let damaged = matches!(why, NotAMember::Damaged(_));
                    let error = Error::new("cannot serve", disk.disk.path.display(), why);
                    return Err(if damaged { error.hint(hint) } else { error });
                }
            }
        }
        let options = assemble::Options {
            md: ashlar_md::Options { run: config.run, read_only: config.read_only },
            rename: rename.map(str::to_owned),
            whole: config.whole,
            partial: config.partial,
            pools: Some(pools),
        };
        let mut stack = assemble(&probed, options.clone(), &disks::runtime()).await;
        // A disk that is let go of later must be free then.
        drop(probed);
        log_notes(&stack);
        let accepted = accept(&config, &mut stack, options);
        let stack = Arc::new(stack);
        let draining = Stop::default();
        let (begun, forced) = (draining.clone(), ends.second.clone());
        let giving_up = spawn(pools_end::give_up(Arc::clone(&stack), begun, forced));
        let (engine, served) = match accepted {
            Ok((engine, collector)) => {
                let served = run(&config, &engine, &stack, collector, &ends, &draining).await;
                (Some(engine), served)
            }
            Err(error) => (None, Err(error)),
        };
        draining.stop();
        // Whatever happened, what was assembled is stopped in good order: a merge may be under way, and
        // arrays before the threads that may still be in the middle of a write: its copies would differ.
        let stopped = stop_stack(&stack).await;
        giving_up.cancel().await;
        if let Some(engine) = engine {
            engine.shutdown();
        }
        let code = served?;
        stopped.map(|()| code)
    });
    drop(reactor);
    result
}

/// Whether the stack is what the user wants; the threads to serve it, and who takes in what comes later.
///
/// # Errors
/// Something that was named cannot be served.
fn accept(
    config: &Config,
    stack: &mut Stack,
    options: assemble::Options,
) -> Result<(Engine, Collector)> {
    if !config.incremental {
        check_started(stack, config.read_only)?;
    }
    let collector = Collector::new(stack, options, disks::runtime());
    check_started(stack, config.read_only)?;
    let reactors = ReactorConfig { spin: config.spin, ..ReactorConfig::default() };
    let engine = Engine::with_config(config.threads, reactors).map_err(disks::no_io_uring)?;
    Ok((engine, collector))
}

/// Tells the log what there is to know of the devices, and which arrays did not start although their
/// neighbours are served.
fn log_notes(stack: &Stack) {
    for note in &stack.notes {
        tracing::warn!(device = note.device, "{}", note.text);
    }
    for failure in stack.failures.iter().filter(|failure| failure.is_nested) {
        tracing::error!(error = %failure.error, "cannot start: {failure}");
    }
    for volume in &stack.refused_volumes {
        tracing::error!(volume = volume.name, error = volume.why, "cannot start a logical volume");
    }
    for pool in &stack.refused_pools {
        tracing::error!(pool = pool.name, error = pool.why, "cannot import a pool");
    }
}

/// Says what runs.
fn announce(stack: &Stack) -> Result<()> {
    let mut text = String::new();
    for volume in stack.arrays.running() {
        let status = volume.view.status();
        let alias = volume.name.alias.as_deref();
        let alias = alias.map_or(String::new(), |alias| format!(" (md/{alias})"));
        text += &format!(
            "{}{alias}: {} {}, {}, {} of {} devices\n",
            volume.name.device(),
            status.level,
            human_size(status.size.bytes()),
            status.state.name(),
            status.raid_disks - status.degraded,
            status.raid_disks,
        );
    }
    for array in stack.arrays.waiting() {
        text += &format!(
            "{}: {}, inactive, {} of {} devices\n",
            array.name.device(),
            array.level,
            array.members.len(),
            array.raid_disks,
        );
    }
    for served in stack.pools.all() {
        let (name, release) = (served.pool.name(), served.pool.release());
        text += &format!("{name}: zpool of {} devices, by OpenZFS {release}\n", served.below.len());
    }
    for device in stack.devices.volumes().iter().filter(|device| device.kind != Kind::Array) {
        let (kind, size) = (device.kind.name(), human_size(device.bytes.size_bytes()));
        text += &format!("{}: {kind} {size}\n", device.export_name());
    }
    output::print(&(text + "ready\n"))
}

/// From assembled to no longer served.
async fn run(
    config: &Config,
    engine: &Engine,
    stack: &Arc<Stack>,
    collector: Collector,
    ends: &Ends,
    draining: &Stop,
) -> Result<ExitCode> {
    let attributes = Arc::new(stack.attributes());
    let mut deferred = Vec::new();
    for (path, value) in &config.set {
        let path = path.trim_matches('/');
        // Known since before the import.
        if path.starts_with(PARAMETERS) {
            continue;
        }
        match attributes.write(path, value).await {
            Ok(()) => {}
            // The array may come.
            Err(AttributeError::NotFound) if config.incremental => {
                deferred.push((path.to_owned(), value.clone()));
            }
            Err(error) => {
                let hint = "see the [set] table of the configuration";
                return Err(Error::new("cannot set", path, error).hint(hint));
            }
        }
    }
    let identity = |path: &PathBuf| Some((path.display().to_string(), disks::identity(path)?));
    let identities: HashMap<_, _> = config.disks.iter().filter_map(identity).collect();
    let control = bind_control(config.control.as_deref())?;
    let exports = exports(stack)?;
    let mut servers = Vec::new();
    for (index, address) in config.nbd.iter().enumerate() {
        let handle = &engine.handles()[index % config.threads];
        servers.push((address, start_nbd(handle, address, &exports, draining).await?));
    }
    let mut mounted = match &config.mount {
        Some(path) => Some(Mounted::start(engine, path, config.allow_other, &attributes)?),
        None => None,
    };
    let service = Rc::new(control::Service {
        stack: Arc::clone(stack),
        attributes,
        mount: mounted.as_ref().map(|mounted| mounted.mount.path().display().to_string()),
        nbd: config.nbd.iter().map(Listen::to_string).collect(),
        exports,
        access: config.access(),
        direct: !config.buffered,
        models: Arc::clone(&config.models),
        collector: Mutex::new(collector),
        deferred: deferred.into(),
        identities: identities.into(),
        stop: ends.first.clone(),
        draining: draining.clone(),
    });
    let control = spawn(control::serve(control, Rc::clone(&service)));
    let watch = spawn(watch::log_progress(Arc::clone(stack)));
    announce(stack)?;
    notify::notify("READY=1");

    match &mut mounted {
        Some(mounted) => mounted.used_until(&ends.first).await,
        None => ends.first.clone().await,
    }
    tracing::info!("stopping");
    notify::notify("STOPPING=1");
    draining.stop();
    let mut code = ExitCode::SUCCESS;
    if let Some(mounted) = mounted
        && !mounted.end(&ends.second).await
    {
        code = ExitCode::from(FAILURE);
    }
    for (address, server) in servers {
        if let Err(error) = server.await.unwrap_or_else(gone) {
            tracing::error!(%address, %error, "NBD server failed");
            code = ExitCode::from(FAILURE);
        }
    }
    control.cancel().await;
    // An array that is just being started is stopped with the others.
    drop(service.collector.lock().await);
    watch.cancel().await;
    Ok(code)
}

/// A server whose thread ended, or that panicked.
fn gone(cancelled: Cancelled) -> io::Result<()> {
    Err(io::Error::other(cancelled))
}

/// The wishes to end: the first in good order, a second signal at once.
struct Ends {
    first: Stop,
    second: Stop,
}

impl Ends {
    /// Listens for `signals` for as long as the reactor runs.
    ///
    /// # Errors
    /// Those of signalfd(2).
    fn listen(signals: &[Signal]) -> io::Result<Self> {
        let signals = Signals::new(signals)?;
        let ends = Self { first: Stop::default(), second: Stop::default() };
        let (first, second) = (ends.first.clone(), ends.second.clone());
        let listen = async move {
            loop {
                if let Err(error) = signals.next().await {
                    tracing::error!(%error, "waiting for signals");
                    return;
                }
                if first.is_stopped() { second.stop() } else { first.stop() }
            }
        };
        spawn(listen).detach();
        Ok(ends)
    }
}

/// Listens at `path`, or where daemons do by default.
fn bind_control(path: Option<&Path>) -> Result<Listener> {
    let path = match path {
        Some(path) => path.to_owned(),
        None => client::default_path().ok_or_else(client::no_default_path)?,
    };
    let failed = |error: io::Error| {
        let in_use = error.kind() == io::ErrorKind::AddrInUse;
        let error = Error::new("cannot open the control socket", path.display(), error);
        let hint = if in_use {
            "another daemon listens there: give this one another --control PATH"
        } else {
            "--control PATH puts it elsewhere"
        };
        error.hint(hint)
    };
    let listener = Listener::bind_unix(&path).map_err(failed)?;
    // Whoever can write to the socket controls the daemon.
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// The volumes, as NBD clients see them.
fn exports(stack: &Stack) -> Result<Arc<Exports>> {
    let exports = Exports::new();
    for device in stack.devices.volumes() {
        let added = export(&device).and_then(|export| exports.add(export));
        added.map_err(|error| Error::new("cannot export", &device.name, error))?;
    }
    Ok(Arc::new(exports))
}

/// A volume, as NBD clients see it.
fn export(device: &Device) -> std::result::Result<Export, ExportError> {
    Export::new(device.export_name(), Arc::clone(&device.bytes))
}

/// A server on another thread: ends with its result.
type Server = Receiver<io::Result<()>>;

/// Serves NBD clients on the reactor of `handle`.
async fn start_nbd(
    handle: &Handle,
    address: &Listen,
    exports: &Arc<Exports>,
    stop: &Stop,
) -> Result<Server> {
    let bound = Stop::default();
    let (tell, at, exports, stop) =
        (bound.clone(), address.clone(), Arc::clone(exports), stop.clone());
    let server = handle.spawn_on(move || async move {
        let listener = match &at {
            Listen::Unix(path) => Listener::bind_unix(path)?,
            Listen::Tcp(host) => {
                let first = host.to_socket_addrs()?.next();
                Listener::bind_tcp(first.ok_or(io::ErrorKind::AddrNotAvailable)?)?
            }
        };
        tell.stop();
        listen(listener, exports, listen::Config::default(), stop).await
    });
    match select(bound, server).await {
        Either::Left(((), server)) => Ok(server),
        Either::Right((result, _)) => {
            let why = result.unwrap_or_else(gone).err().unwrap_or(io::ErrorKind::Other.into());
            Err(Error::new("cannot listen for NBD clients", address, why))
        }
    }
}

/// The mount and those who serve it.
struct Mounted {
    mount: Mount,
    servers: FuturesUnordered<Server>,
}

impl Mounted {
    /// Mounts on `path` and serves from every reactor of `engine`.
    fn start(
        engine: &Engine,
        path: &Path,
        allow_other: bool,
        attributes: &Arc<Attributes>,
    ) -> Result<Self> {
        let failed = |error: MountError| Error::plain("cannot mount", error);
        let view = View { attributes: Arc::clone(attributes) };
        let owner = Owner {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            since: ashlar_engine::wall_clock(),
        };
        let session = Arc::new(Session::new(view, owner));
        let (mount, fd) = mount(path, MountOptions { allow_other }).map_err(failed)?;
        let servers = FuturesUnordered::new();
        for handle in engine.handles() {
            let fd: io::Result<OwnedFd> = fd.try_clone();
            let fd = fd.map_err(|error| Error::new("cannot mount", path.display(), error))?;
            let session = Arc::clone(&session);
            servers.push(handle.spawn_on(move || async move {
                let dev = Rc::new(KernelDev::new(fd)?);
                fuse::serve(dev, session, disks::runtime()).await
            }));
        }
        Ok(Self { mount, servers })
    }

    /// Waits until somebody has unmounted it, or `end`.
    async fn used_until(&mut self, end: &Stop) {
        if let Either::Left((Some(Ok(Err(error))), _)) =
            select(self.servers.next(), end.clone()).await
        {
            tracing::error!(%error, "serving the mount failed");
        }
    }

    /// Ends it once nobody uses it, or at once when `forced`; false in the latter case.
    async fn end(mut self, forced: &Stop) -> bool {
        let path = self.mount.path().to_owned();
        let mut waited = Duration::ZERO;
        while let Err(error) = self.mount.unmount() {
            // Both are multiples of the same unit.
            if waited == PATIENCE {
                let users = users::users(&path).join(", ");
                tracing::error!(%error, users, "still serving; a second signal ends this by force");
            }
            waited += RETRY;
            if let Either::Right(_) = select(pin!(sleep(RETRY)), forced.clone()).await {
                tracing::error!(path = %path.display(), "ended by force while in use");
                if let Err(error) = self.mount.detach() {
                    tracing::error!(%error, "the mount is left behind");
                }
                return false;
            }
        }
        while let Some(ended) = self.servers.next().await {
            if let Err(error) = ended.unwrap_or_else(gone) {
                tracing::error!(%error, "serving the mount failed");
            }
        }
        true
    }
}

/// Stops all devices and exports all pools.
///
/// # Errors
/// Some could not be marked clean, flushed or exported.
async fn stop_stack(stack: &Stack) -> Result<()> {
    let mut stopping = pin!(stack.stop());
    let stopped = match select(&mut stopping, pin!(sleep(PATIENCE))).await {
        Either::Left((stopped, _)) => stopped,
        Either::Right(_) => {
            let pools: Vec<String> =
                stack.pools.all().iter().map(|served| served.pool.name().to_owned()).collect();
            if !pools.is_empty() {
                let pools = pools.join(", ");
                tracing::warn!(pools, "still being exported; a second signal ends this by force");
            }
            stopping.await
        }
    };
    stopped.map_err(|failed| {
        let names: Vec<&str> = failed.iter().map(|not| not.name.as_str()).collect();
        let why: Vec<&str> = failed.iter().map(|not| not.why.as_str()).collect();
        let hint = match (failed.iter().any(|not| not.is_pool), failed.iter().any(|not| !not.is_pool)) {
            (true, false) => "what was written to its volumes since their last flush may be lost",
            (true, true) => {
                "the copies of arrays may differ: the next start needs a resync; what was written to pools since the last flush may be lost"
            }
            (false, _) => "the copies may differ: the next start needs a resync",
        };
        Error::new("not stopped cleanly", names.join(", "), why.join(", ")).hint(hint)
    })
}
