//! A daemon on the simulated machine: from disks to a `Service` and the tasks beside it, as `serve::serve` and `serve::run`
//! make them, with a front end that only writes down what it offers.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ashlar_block::{LocalFuture, Runtime};
use ashlar_client::interface::NAME;
use ashlar_client::passed_files::PassedFiles;
use ashlar_client::varlink_server::Interface;
use ashlar_control::varlink::{Call, Reply, encode};
use ashlar_disks::{Access, Opener};
use ashlar_lvm::snapshots::AutoExtend;
use ashlar_sim::SimRuntime;
use ashlar_sim::scheduler::start;
use ashlar_stack::assemble::{Options, assemble, probe_all};
use ashlar_stack::devices::Device;
use ashlar_stack::incremental::Collector;
use ashlar_view::attributes::Attributes;
use futures_util::future::{Either, select};
use serde::Serialize;
use serde_json::Value;

use super::disks::{SimulatedDisk, SimulatedMachine};
use crate::array_end::ArrayEnd;
use crate::clients::Clients;
use crate::confinement::Confinement;
use crate::ending::Ending;
use crate::front_ends::{FrontEnd, FrontEnds};
use crate::machine::Machine;
use crate::scrubs::Scrubs;
use crate::service::Service;
use crate::{copies_end, filling, returns};

/// A call that takes longer hangs. Disks stop responding for a few seconds at most.
const PATIENCE: Duration = Duration::from_secs(300);

/// The volumes that clients of a front end find, by the names of their devices.
#[derive(Clone, Default)]
struct Offers(Arc<Mutex<BTreeSet<String>>>);

impl FrontEnd for Offers {
    fn offer(&self, device: &Device) -> Result<(), String> {
        self.0.lock().unwrap().insert(device.name.clone());
        Ok(())
    }

    fn withdraw(&self, name: &str) {
        self.0.lock().unwrap().remove(name);
    }

    fn resized(&self, _: &Device) {}

    fn ended<'a>(&'a self, _: &'a Ending) -> LocalFuture<'a, ()> {
        Box::pin(std::future::pending())
    }

    fn drain<'a>(&'a self, _: &'a Ending) -> LocalFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// See the module text.
pub(super) struct Daemon {
    pub(super) service: Rc<Service>,
    /// Why arrays did not start.
    pub(super) failures: Vec<String>,
    offers: Offers,
    /// The daemon holds it, and arrays refer to it.
    _array_end: Arc<ArrayEnd>,
}

impl Daemon {
    /// Starts with the disks at these paths.
    pub(super) async fn start(disks: &[Rc<SimulatedDisk>], paths: &[String]) -> Self {
        Self::start_with(disks, paths, ashlar_md::Options::default()).await
    }

    /// The same, with options for arrays.
    pub(super) async fn start_with(
        disks: &[Rc<SimulatedDisk>],
        paths: &[String],
        md: ashlar_md::Options,
    ) -> Self {
        let machine = SimulatedMachine::new(disks);
        let runtime = Arc::clone(machine.runtime());
        let opener = Opener { access: Access::Write, direct: true, decorators: Arc::default() };
        let (mut opened, mut identities) = (Vec::new(), Vec::new());
        for path in paths {
            let disk = machine.open(Path::new(path), &opener).await;
            opened.push(disk.unwrap_or_else(|error| panic!("{error}")));
            let identity = machine
                .identity(Path::new(path))
                .await
                .ok()
                .flatten()
                .expect("a disk of the machine");
            identities.push((path.clone(), identity));
        }
        let probed = probe_all(opened).await;
        let options = Options { md, ..Options::default() };
        let mut stack = assemble(&probed, options.clone(), &runtime).await;
        drop(probed);
        let collector = Collector::new(&mut stack, options, Arc::clone(&runtime));
        let failures = stack.failures.iter().map(|failed| format!("{failed}: {}", failed.error));
        let failures = failures.collect();
        let (stack, ending) = (Arc::new(stack), Ending::default());
        let (attributes, devices) =
            (Arc::new(Attributes::of(&stack, Arc::clone(&runtime))), Arc::clone(&stack.devices));
        let draining = ending.draining();
        let turns = attributes.turns(collector, move || draining.is_stopped());
        let offers = Offers::default();
        let clients = Arc::new(Clients {
            runtime: Arc::clone(&runtime),
            front_ends: FrontEnds::new(Arc::clone(&devices), vec![Box::new(offers.clone())]),
            devices,
            arrays: Arc::clone(&stack.arrays),
            attributes: Arc::clone(&attributes),
        });
        let array_end = Arc::new(ArrayEnd { clients: Arc::clone(&clients) });
        let ender = Arc::downgrade(&array_end);
        clients.attributes.set_ender(Box::new(move |name, how, turn| {
            let (ender, name) = (ender.clone(), name.to_owned());
            // A task of its own, as on the daemon's main thread.
            Box::pin(start(async move {
                let ender = ender.upgrade().expect("a daemon");
                ender.end(&name, how, turn).await
            })) as LocalFuture<'static, _>
        }));
        let service = Rc::new(Service {
            begun: Instant::now(),
            machine: Box::new(machine),
            stack: Arc::clone(&stack),
            attributes,
            clients: Arc::clone(&clients),
            opener,
            confinement: Confinement::off(),
            turns,
            deferred: RefCell::default(),
            identities: RefCell::new(identities.into_iter().collect()),
            ending: ending.clone(),
            speeds: RefCell::default(),
            scrubs: Scrubs::new(stack, Access::Write, ending),
            farewells: Default::default(),
        });
        runtime.spawn(Box::pin(copies_end::record_ends(Rc::clone(&service))));
        let policy = AutoExtend::new(Some(60), Some(30)).expect("a policy");
        runtime.spawn(Box::pin(filling::watch_snapshots(Rc::clone(&service), policy)));
        runtime.spawn(Box::pin(returns::re_add_members(Rc::clone(&service))));
        runtime.spawn(Box::pin(async move { clients.front_ends.keep_up().await }));
        Self { service, failures, offers, _array_end: array_end }
    }

    /// The names of the devices that clients of the front end find.
    pub(super) fn offered(&self) -> BTreeSet<String> {
        self.offers.0.lock().unwrap().clone()
    }

    /// The reply to a call, which travels as bytes.
    ///
    /// # Panics
    /// There is no reply within [`PATIENCE`].
    pub(super) async fn call(&self, method: &str, parameters: impl Serialize) -> Reply {
        let parameters = serde_json::to_value(parameters).expect("parameters");
        let what = format!("{method} {parameters}");
        let Value::Object(parameters) = parameters else { panic!("{what}: no object") };
        let method = format!("{NAME}.{method}");
        let (oneway, more, upgrade, passed) = (false, false, false, Vec::new());
        let bytes = encode(&Call { method, parameters, oneway, more, passed, upgrade });
        let call: Call = serde_json::from_slice(&bytes[..bytes.len() - 1]).expect("a call");
        let method = call.method[NAME.len() + 1..].to_owned();
        let passed = PassedFiles::by_daemon();
        let replies = within(PATIENCE, self.answer(&method, call, &passed)).await;
        let replies = replies.unwrap_or_else(|| panic!("{what}: no reply after {PATIENCE:?}"));
        let volumes = self.service.stack.devices.volumes().into_iter().map(|device| device.name);
        let volumes: BTreeSet<String> = volumes.collect();
        assert_eq!(*self.offers.0.lock().unwrap(), volumes, "{what}: what clients find");
        replies.and_then(|mut all| all.pop()).unwrap_or_else(|| panic!("{what}: no reply"))
    }

    /// A large future, which those of the clients have not in them.
    fn answer<'a>(
        &'a self,
        method: &'a str,
        call: Call,
        passed: &'a PassedFiles,
    ) -> LocalFuture<'a, Option<Vec<Reply>>> {
        Box::pin(self.service.answer(method, call, passed))
    }

    /// Ends as a daemon does that is asked to: false if not everything was stopped cleanly.
    pub(super) async fn end(&self) -> bool {
        let Service { ending, turns, stack, .. } = &*self.service;
        ending.draining().stop();
        drop(turns.look().await);
        let stopped = within(PATIENCE, stack.stop()).await;
        stopped.unwrap_or_else(|| panic!("the end takes longer than {PATIENCE:?}")).is_ok()
    }
}

/// The result of `future`; `None` if it takes longer than `limit`.
async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    match select(pin!(future), SimRuntime.sleep(limit)).await {
        Either::Left((result, _)) => Some(result),
        Either::Right(_) => None,
    }
}
