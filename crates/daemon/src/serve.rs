//! The daemon: assembles, serves, and stops cleanly.
//!
//! # Threads
//!
//! The main thread's reactor runs the control socket, the signals and the start and end of arrays; each further thread
//! has a reactor that serves the mount and NBD clients. An I/O stays on one thread.
//!
//! # The start
//!
//! The daemon opens the disks, listens on its sockets and mounts, starts the threads, and only then reads the first byte of a
//! disk, in the sandbox ([`crate::confinement`]): steps that need rights come before input that may be hostile. Clients wait
//! meanwhile ([`crate::places`]). A start that fails ends the mount and removes the sockets. The daemon answers a request to stop
//! once everything is assembled, since half of an array cannot be stopped.
//!
//! # The end
//!
//! ```text
//! serving --signal, Stop, unmounted--> draining --unmounted--> stopping --> exit 0 (1 if not clean)
//!                                         |                       |
//!                                         +----second signal------+--> stopping within a limit --> exit 1
//! ```
//!
//! Requests to stop, and the effects of a forced shutdown: `ending.rs`. The daemon abandons a pool that blocks this:
//! `pools_end.rs`. A panic of a thread begins the shutdown, too, and the process exits with 101.
//!
//! Draining: the daemon answers the requests that NBD clients have sent, and unmounts, which the kernel refuses while the
//! mount is in use. A daemon that died below a mounted loop device would lose acknowledged data in that file system's
//! cache, so the daemon keeps serving until the mount is unused.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use ashlar_client::access::Access;
use ashlar_client::varlink_server;
use ashlar_commands::acceptance::{check_backups, check_started, refuse_image};
use ashlar_commands::background::Background;
use ashlar_control::console::{Console, LogPlace};
use ashlar_disks::options::{BackEnd, ReAddPolicy};
use ashlar_disks::{self as disks, Identity, Opener};
use ashlar_engine::arenas::Arenas;
use ashlar_engine::net::Socket;
use ashlar_engine::{Engine, ReactorConfig, memory, spawn};
use ashlar_stack::assemble::{
    self, MembershipError, ProbedDisk, Refused, Stack, assemble, probe_all,
};
use ashlar_stack::incremental::Collector;
use ashlar_stack::outsiders::{DeviceClass, RefusedOutsider};
use ashlar_view::attributes::{AttributeError, Attributes};
use ashlar_zfs::client::Launcher;
use futures_util::future::select;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::announcement::announcement;
use crate::array_end::ArrayEnd;
use crate::clients::Clients;
use crate::config::{Config, PARAMETERS};
use crate::confinement::Confinement;
#[cfg(debug_assertions)]
use crate::defect;
use crate::ending::Ending;
use crate::error::{Error, FAILURE, Result};
use crate::front_ends::{FrontEnds, Page, Parts};
use crate::incremental::log_notes;
use crate::machine::{Machine, ThisMachine};
use crate::places::Places;
use crate::scrubs::Scrubs;
use crate::service::Service;
use crate::stopping::Farewells;
use crate::{absent, balance, copies_end, filling, notify, pools_end, returns, watch};

/// The parts of a daemon that are made from its configuration before it touches any disk.
struct Means<'a> {
    config: &'a Config,
    access: Access,
    opener: Opener,
    /// Where clients wait.
    places: Places,
    confinement: Confinement,
    /// The files and devices behind the disks' paths.
    identities: HashMap<String, Identity>,
    /// The disks that were absent at the start.
    absent: Vec<PathBuf>,
    /// The command that waits until everything is served.
    background: Option<Background>,
    console: &'a mut dyn Console,
}

/// Selects the disks to use.
pub type Filter<'a> = &'a dyn Fn(&ProbedDisk) -> bool;

/// Serves until told to stop. With `rename` the first array gets that name; with `filter` only members of arrays are
/// served, and only those it selects. The caller has started no thread yet. Returns the exit code of the process.
///
/// # Errors
/// It could not start, and volumes are unchanged; or not everything was stopped cleanly.
pub fn serve(
    config: &Config,
    rename: Option<&str>,
    filter: Option<Filter<'_>>,
    console: &mut dyn Console,
) -> Result<ExitCode> {
    config.io.unwrap_or(BackEnd::Auto).choose();
    open_log(config, console)?;
    let mut background = config.background.then(Background::begin).transpose()?;
    if let Some(background) = &mut background {
        background.keeps_stderr = config.log == Some(LogPlace::Stderr);
    }
    background.as_ref().map_or(Ok(()), Background::leave_directory)?;
    // Before any other thread is started, so that all of them inherit the blocked signals.
    let deaf = |error| Error::plain("cannot wait for signals", error);
    let ending = Ending::block().map_err(deaf)?;
    raise_open_files();
    serve_writers(config);
    Arenas::serve_buffers();
    let opener = config.opener();
    if !config.incremental {
        opener.decorators.check(&config.disks)?;
    }
    let mut confinement = Confinement::of(config);
    if !confinement.is_on() {
        ending.listen().map_err(deaf)?;
    }
    let mut pools = config.pools()?;
    let others = config.others();
    let access = config.check_surroundings()?;
    let (disks, absent) = absent::open(config, &opener)?;
    let identity = |path: &PathBuf| Some((path.display().to_string(), disks::identity(path)?));
    let identities: HashMap<_, _> = config.disks.iter().filter_map(identity).collect();
    let mut places = Places::make(config, &access)?;
    if let Some(helper) = places.keep(confinement.is_on())? {
        ending.cleaned_up_by(&helper);
        pools.launcher = confinement.is_on().then_some(helper as Arc<dyn Launcher>);
    }
    notify::connect();
    if confinement.is_on() {
        confinement.show(places.reads());
    }
    // Inside, the limits of control groups cannot be read.
    let threads = config.threads();
    confinement.confine_files(places.memory_bytes(), places.have_foreign_memory())?;
    // Only from now on do threads begin inside.
    ending.log_is_written_by(console.hand_over_log());
    if confinement.is_on() {
        ending.listen().map_err(deaf)?;
    }
    let reactor = disks::reactor()?;
    let reactors = ReactorConfig { spin: config.spin(), ..ReactorConfig::default() };
    let engine = Engine::with_config(threads, reactors);
    let mut engine = engine.map_err(disks::no_io_uring)?;
    confinement.seal()?;
    let result = reactor.block_on(async {
        let mut probed = probe_all(disks).await;
        check_backups(&probed, &config.backup_file)?;
        probed.retain(|disk| filter.is_none_or(|wanted| wanted(disk)));
        for disk in &probed {
            if !config.read_only && !config.whole {
                disks::refuse_rivals(&disk.disk, disk.contents.as_ref()).await?;
            }
            match disk.candidate() {
                Ok(_) => {}
                Err(_) if config.backup_file.contains(&disk.disk.path) => {}
                // A disk that is not a member is itself a volume, unless arrays were requested.
                Err(MembershipError::Foreign(_))
                    if filter.is_none() && !disk.disk.gateway.capacity().is_zero() =>
                {
                    refuse_image(disk, config.raw)?;
                }
                // Its array may run without it, or access is read-only: the other disks may suffice.
                Err(MembershipError::Damaged(_) | MembershipError::Unreadable(_)) => {}
                Err(why) => {
                    return Err(Error::new("cannot serve", disk.disk.path.display(), why));
                }
            }
        }
        let options = assemble::Options {
            md: config.md(),
            rename: rename.map(str::to_owned),
            whole: config.whole,
            partial: config.partial,
            others,
            pools: Some(pools),
        };
        let mut stack = assemble(&probed, options.clone(), &disks::runtime()).await;
        // Drop the references, so that disks are free when they are released later.
        drop(probed);
        opener.decorators.maps.keep_members(&stack);
        log_findings(&stack, config.run);
        let accepted = accept(config, &mut stack, options);
        let stack = Arc::new(stack);
        let (begun, forced) = (ending.draining(), ending.forced());
        let giving_up = spawn(pools_end::give_up(Arc::clone(&stack), begun, forced));
        let farewells = Farewells::default();
        let served = match accepted {
            Ok(collector) => {
                let panicked = engine.panicked();
                let watching = ending.clone();
                spawn(async move { watching.without(panicked.await).await }).detach();
                let console = &mut *console;
                let means = Means {
                    config,
                    access,
                    opener,
                    places,
                    confinement,
                    identities,
                    absent,
                    background,
                    console,
                };
                run(means, &engine, &stack, collector, &ending, &farewells).await
            }
            // Waiting clients get the error now: a device may be slow to stop.
            Err(error) => {
                drop(places);
                Err(error)
            }
        };
        ending.draining().stop();
        // In any case all assembled devices are stopped cleanly: a merge may be running. Arrays are stopped
        // before the threads, which may be in the middle of a write: otherwise the copies would differ.
        let stopped = ending.stop(&stack).await;
        giving_up.cancel().await;
        let result = served.and(stopped).map_err(|error| error.code_at_least(ending.code()));
        ending.finish(&result);
        farewells.said().await;
        if let Err(error) = &result
            && ending.forced().is_stopped()
        {
            // Devices that did not stop keep threads busy: do not wait for them.
            console.complain(error);
            std::process::exit(error.exit_code().into());
        }
        if ending.keeps_threads() {
            std::process::exit(ending.code().into());
        }
        engine.shutdown();
        result.map(|()| ExitCode::from(ending.code()))
    });
    drop(reactor);
    result
}

/// Opens the log: by default a daemon in the background uses the system's.
///
/// # Errors
/// The log that the user has chosen cannot be opened.
fn open_log(config: &Config, console: &mut dyn Console) -> Result<()> {
    match &config.log {
        Some(place) => console.open_log(place, config.background),
        None if config.background => {
            if let Err(error) = console.open_log(&LogPlace::Syslog, true) {
                tracing::warn!(
                    "{error}: this daemon will have no log; use --log FILE to log to a file"
                );
            }
            Ok(())
        }
        None => Ok(()),
    }
}

/// Raises the limit of open files as far as the process may: each disk and each client takes one.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if limit.current != raised.current
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::debug!(%error, ?limit, "cannot raise the limit of open files");
    }
}

/// Asks the kernel not to let this daemon wait for its own clients when memory is short: docs/memory.md. Called before any other
/// thread is started, so that all of them inherit it.
fn serve_writers(config: &Config) {
    if config.has_writers_here()
        && let Err(error) = memory::keep_program()
    {
        tracing::debug!(%error, "the program is not kept in memory");
    }
    let Err(error) = memory::serve_writers() else { return };
    if config.has_writers_here() && memory::left_in_groups().is_some() {
        tracing::warn!(
            %error,
            "writers to the mount in the same memory limit can bring this daemon to a stop: give it CAP_SYS_RESOURCE, or a limit of its own"
        );
    } else {
        tracing::debug!(%error, "when memory is short, this daemon may wait for its own clients");
    }
}

/// Checks whether the stack is what the user requested; returns the collector of later members.
///
/// # Errors
/// A requested disk or array cannot be served.
fn accept(config: &Config, stack: &mut Stack, options: assemble::Options) -> Result<Collector> {
    if config.incremental {
        let collector = Collector::new(stack, options, disks::runtime());
        check_started(stack, &config.asked())?;
        return Ok(collector);
    }
    check_started(stack, &config.asked())?;
    Ok(Collector::new(stack, options, disks::runtime()))
}

/// Logs the notes about the devices, and the arrays that did not start although others are served.
fn log_findings(stack: &Stack, run: bool) {
    log_notes(&stack.notes);
    for disk in stack.refused(run).iter().filter(|disk| disk.is_left_out) {
        let what = if disk.is_unreadable { "left out" } else { "left out of its array" };
        tracing::warn!(disk = disk.path, "{what}");
    }
    for failure in stack.failures.iter().filter(|failure| failure.is_nested) {
        tracing::error!(error = %failure.error, "cannot start: {failure}");
    }
    let deeper = |refused: &&RefusedOutsider| refused.class == DeviceClass::Made;
    for refused in stack.refused_outsiders.iter().filter(deeper) {
        tracing::error!(device = refused.shown, "{refused}");
    }
    for volume in stack.refusals(Refused::Volume) {
        tracing::error!(volume = volume.name, error = volume.why, "cannot start a logical volume");
    }
    for pool in stack.refusals(Refused::Pool) {
        tracing::error!(pool = pool.name, error = pool.why, "cannot import a pool");
    }
}

/// Gives volumes their rate limits, also those that come later.
fn limit(config: &Config, stack: &Stack) {
    let volumes = stack.devices.volumes();
    for limit in &config.limit {
        if !volumes.iter().any(|volume| volume.is_named(|name| limit.is_for(name))) {
            let volume = limit.volume();
            tracing::warn!(volume, "no volume has this name; one that gets it later is limited");
        }
    }
    stack.devices.limit(config.limit.clone(), disks::runtime());
}

/// Serves from the assembled stack until the end.
async fn run(
    means: Means<'_>,
    engine: &Engine,
    stack: &Arc<Stack>,
    collector: Collector,
    ending: &Ending,
    farewells: &Farewells,
) -> Result<()> {
    let Means {
        config,
        access,
        opener,
        places,
        confinement,
        identities,
        absent,
        background,
        console,
    } = means;
    let auto_extend = config.auto_extend().map_err(Error::usage)?;
    limit(config, stack);
    let attributes = Arc::new(Attributes::of(stack, disks::runtime()));
    let draining = ending.draining();
    let turns = attributes.turns(collector, move || draining.is_stopped());
    let mut deferred = Vec::new();
    for (path, value) in &config.set {
        let path = path.trim_matches('/');
        // Already set, before the import.
        if path.starts_with(PARAMETERS) {
            continue;
        }
        match attributes.write(path, value).await {
            Ok(()) => {}
            // The array may appear later.
            Err(AttributeError::NotFound) if config.incremental => {
                deferred.push((path.to_owned(), value.clone()));
            }
            Err(error) => {
                let hint = "see the [set] table of the configuration";
                return Err(Error::new("cannot set", path, error).hint(hint));
            }
        }
    }
    let devices = Arc::clone(&stack.devices);
    let parts = Parts { engine, devices: &devices, attributes: &attributes, ending };
    let (control, front_ends) = places.start(&parts)?;
    let machine = ThisMachine::default();
    let clients = Arc::new(Clients {
        runtime: Arc::clone(machine.runtime()),
        front_ends: FrontEnds::new(Arc::clone(&devices), front_ends),
        devices,
        arrays: Arc::clone(&stack.arrays),
        attributes: Arc::clone(&attributes),
    });
    let array_end = Arc::new(ArrayEnd { clients: Arc::clone(&clients) });
    array_end.begin();
    let service = Rc::new(Service {
        begun: Instant::now(),
        machine: Box::new(machine),
        stack: Arc::clone(stack),
        attributes,
        clients: Arc::clone(&clients),
        opener,
        confinement,
        turns,
        deferred: deferred.into(),
        identities: identities.into(),
        ending: ending.clone(),
        speeds: RefCell::default(),
        scrubs: Scrubs::new(Arc::clone(stack), config.access(), ending.clone()),
        farewells: farewells.clone(),
    });
    let admit = move |peer: &Socket| access.check(peer);
    let limits = varlink_server::Limits::default();
    let control = spawn(varlink_server::serve(control.into(), limits, admit, Rc::clone(&service)));
    let measured = Rc::clone(&service);
    let page: Page = Rc::new(move || {
        let service = Rc::clone(&measured);
        Box::pin(async move { service.metrics().await })
    });
    clients.front_ends.each(|front_end| front_end.begin(&page));
    let watch = spawn(watch::log_progress(Arc::clone(stack)));
    let balance = spawn(balance::balance_reads(Arc::clone(stack)));
    let ends = spawn(copies_end::record_ends(Rc::clone(&service)));
    let filling = spawn(filling::watch_snapshots(Rc::clone(&service), auto_extend));
    let re_adds = (config.readd.unwrap_or_default() == ReAddPolicy::Auto).then(|| {
        absent::take_when_there(&service, &absent);
        spawn(returns::re_add_members(Rc::clone(&service)))
    });
    let keeping = Arc::clone(&clients);
    let follower = spawn(async move { keeping.front_ends.keep_up().await });
    // The process that started this one may have ended, and its terminal may be closed.
    if let Err(error) = console.announce(&announcement(stack)) {
        tracing::warn!("{error}");
    }
    // If a stop was requested meanwhile, the waiting command gets the exit code.
    if let Some(background) = &background
        && !ending.wanted().is_stopped()
        && let Err(error) = background.ready("ready")
    {
        tracing::error!(%error, "the command that started this daemon has ended");
        ending.fail(FAILURE);
        ending.ask();
    }
    notify::notify("READY=1");
    #[cfg(debug_assertions)]
    defect::await_order(engine);

    let front_ends = &clients.front_ends;
    select(pin!(front_ends.ended(ending)), ending.wanted()).await;
    tracing::info!("stopping");
    notify::notify("STOPPING=1");
    ending.draining().stop();
    // Requests that wait for a limit would wait for as long as it wants.
    stack.devices.lift_limits();
    front_ends.drain(ending).await;
    control.cancel().await;
    service.scrubs.ended(ending.forced()).await;
    // An array that is just starting is stopped with the others.
    select(pin!(service.turns.look()), ending.forced()).await;
    ends.cancel().await;
    filling.cancel().await;
    follower.cancel().await;
    watch.cancel().await;
    balance.cancel().await;
    if let Some(re_adds) = re_adds {
        re_adds.cancel().await;
    }
    Ok(())
}
