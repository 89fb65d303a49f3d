//! Front ends: the ways in which clients reach volumes, or read about them.
//!
//! A front end begins as a [`Place`], which its options make before the daemon reads the first byte of a disk; early clients wait
//! there. [`crate::config::Config`] has the list of them. Each starts once everything is assembled.
//!
//! A front end keeps no list of devices. [`FrontEnds`] follows the registry's log ([`ashlar_stack::changes`]) and passes each
//! change of a volume to each front end. The registry may change on any thread; front ends get the changes on the main thread,
//! before the reply to the call that made the change, and otherwise as soon as the main thread runs.

pub(crate) mod metrics;
pub(crate) mod mount;
mod namespace;
pub(crate) mod nbd;
pub(crate) mod ublk;
pub(crate) mod vhost_user;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use ashlar_block::sync::lock;
use ashlar_block::{ByteVolume, LocalFuture};
use ashlar_client::interface::Sample;
use ashlar_client::interface::front_ends::{PlaceStatus, VolumeClients};
use ashlar_engine::socket_file::SocketFile;
use ashlar_engine::{Engine, ReceiveError, Receiver};
use ashlar_stack::canary::{Rule, broken};
use ashlar_stack::changes::{Change, Changes};
use ashlar_stack::devices::{Device, Devices, Role};
use ashlar_view::attributes::Attributes;

use crate::cleanup_helper::{CleanupHelper, CleanupTasks};
use crate::ending::{Ending, Obstacle};
use crate::error::{self, FAILURE, PANICKED};

/// The parts of a daemon that front ends use.
pub(crate) struct Parts<'a> {
    /// The threads that serve.
    pub(crate) engine: &'a Engine,
    pub(crate) devices: &'a Arc<Devices>,
    pub(crate) attributes: &'a Arc<Attributes>,
    pub(crate) ending: &'a Ending,
}

/// Makes the metrics at this moment; `None`, which is logged, only for a defect.
pub(crate) type Page = Rc<dyn Fn() -> LocalFuture<'static, Option<String>>>;

/// The options of a front end.
pub(crate) trait FrontEndOptions {
    /// Checks the values.
    ///
    /// # Errors
    /// The message about the first invalid value.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Checks that what it needs is available, before any disk is touched.
    ///
    /// # Errors
    /// What is missing, and an option that avoids it.
    fn check_surroundings(&self) -> error::Result<()> {
        Ok(())
    }

    /// Whether clients can reach volumes by it.
    fn serves(&self) -> bool;

    /// Whether programs on this machine write to the volumes through its page cache.
    fn has_writers_here(&self) -> bool {
        false
    }

    /// Makes its place, if the configuration has it; `read_only` if writes to the volumes are refused.
    ///
    /// # Errors
    /// It cannot be made.
    fn bind(&self, read_only: bool) -> error::Result<Option<Box<dyn Place>>>;
}

/// Where the clients of a front end wait until it starts. Dropping it removes it.
pub(crate) trait Place {
    /// The files of its sockets.
    fn files(&mut self) -> Vec<&mut SocketFile> {
        Vec::new()
    }

    /// The memory that its clients may take, bytes.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// Whether its clients pass memory of theirs, which takes addresses in this process.
    fn has_foreign_memory(&self) -> bool {
        false
    }

    /// The files and directories that it reads again while it serves.
    fn reads(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Adds what the cleanup helper is to end, besides the files.
    fn leave_to(&self, _tasks: &mut CleanupTasks) {}

    /// From now on the cleanup helper ends that.
    fn cleaned_up_by(&mut self, _helper: &Arc<CleanupHelper>) {}

    /// Serves the clients.
    ///
    /// # Errors
    /// It cannot serve them, or not all volumes.
    fn start(self: Box<Self>, daemon: &Parts<'_>) -> error::Result<Box<dyn FrontEnd>>;
}

/// A way in which clients reach volumes.
pub(crate) trait FrontEnd: Send + Sync {
    /// Lets clients find a volume under its present names, and no longer under earlier ones.
    ///
    /// # Errors
    /// The reason why they do not find it.
    fn offer(&self, device: &Device) -> Result<(), String>;

    /// Hides the volume on the device named `name` from clients. Those that have it open keep it.
    fn withdraw(&self, name: &str);

    /// Tells clients that a volume has another size.
    fn resized(&self, device: &Device);

    /// Begins what needs the whole daemon, which answers calls from now on.
    fn begin(&self, _page: &Page) {}

    /// Says where its clients find the volumes.
    fn place(&self, _places: &mut PlaceStatus) {}

    /// Says which clients have a volume.
    fn clients(&self, _volume: &ByteVolume, _clients: &mut VolumeClients) {}

    /// Fills its fields of a sample.
    fn sample(&self, _sample: &mut Sample) {}

    /// Ends when it is ended from outside, or has failed.
    fn ended<'a>(&'a self, _ending: &'a Ending) -> LocalFuture<'a, ()> {
        Box::pin(std::future::pending())
    }

    /// Ends it, once its clients have disconnected or the shutdown is forced.
    fn drain<'a>(&'a self, ending: &'a Ending) -> LocalFuture<'a, ()>;
}

/// A server on another thread: ends with its result.
pub(crate) type Server = Receiver<io::Result<()>>;

/// Waits until servers have ended, each with its address; `kind` is theirs in the log, and `clients` says for whom the daemon waits.
pub(crate) async fn served(
    kind: &'static str,
    servers: Vec<(String, Server)>,
    clients: String,
    ending: &Ending,
) {
    if !servers.is_empty() {
        ending.wait_for(Obstacle::Clients(Arc::new(move || clients.clone())));
    }
    for (address, server) in servers {
        match server.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(address, %error, "{kind} server failed");
                ending.fail(FAILURE);
            }
            Err(ReceiveError) => {
                tracing::error!(address, "{kind} server panicked");
                ending.fail(PANICKED);
            }
        }
    }
    ending.wait_for(Obstacle::Nothing);
}

/// All front ends of a daemon.
pub(crate) struct FrontEnds {
    devices: Arc<Devices>,
    all: Vec<Box<dyn FrontEnd>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The registry's generation that they know.
    generation: u64,
    /// The names of devices that a front end does not offer, though it should.
    refused: BTreeSet<String>,
}

impl FrontEnds {
    /// Front ends for the volumes among `devices`.
    pub(crate) fn new(devices: Arc<Devices>, all: Vec<Box<dyn FrontEnd>>) -> Self {
        Self { devices, all, state: Mutex::default() }
    }

    /// Calls `visit` for each.
    pub(crate) fn each(&self, visit: impl FnMut(&dyn FrontEnd)) {
        self.all.iter().map(|front_end| &**front_end).for_each(visit);
    }

    /// Passes all changes to the front ends.
    pub(crate) fn follow(&self) {
        if broken(Rule::FrontEndsAreTold) {
            return;
        }
        let mut state = lock(&self.state);
        let (changes, generation) = self.devices.changes_since(state.generation);
        if state.generation == generation {
            return;
        }
        state.generation = generation;
        let mut changed = match changes {
            Changes::Of(changes) => changes,
            Changes::Unknown => {
                let all = self.devices.all().into_iter();
                all.flat_map(|d| [(d.name.clone(), Change::Registered), (d.name, Change::Resized)])
                    .collect()
            }
        };
        let refused = std::mem::take(&mut state.refused);
        changed.extend(refused.iter().map(|name| (name.clone(), Change::Registered)));
        let mut offers = Vec::new();
        for (name, change) in changed {
            let device = self.devices.find(&name).filter(|device| device.role == Role::Volume);
            match (device, change) {
                (Some(device), Change::Registered) => offers.push(device),
                (Some(device), Change::Resized) => {
                    self.each(|front_end| front_end.resized(&device));
                }
                (None, Change::Registered) => {
                    self.each(|front_end| front_end.withdraw(&name));
                }
                // Its clients see their requests fail.
                (Some(_) | None, Change::Presence) | (None, Change::Resized) => {}
            }
        }
        // A second time, because a volume may get a name that another one releases.
        offers.retain(|device| self.offer(device).is_err());
        for device in offers {
            let Err(why) = self.offer(&device) else { continue };
            if !refused.contains(&device.name) {
                tracing::error!(device = device.name, why, "not served to all clients");
            }
            state.refused.insert(device.name);
        }
    }

    fn offer(&self, device: &Device) -> Result<(), String> {
        self.all.iter().map(|front_end| front_end.offer(device)).fold(Ok(()), Result::and)
    }

    /// Follows the registry, forever.
    pub(crate) async fn keep_up(&self) {
        loop {
            let changed = self.devices.listen();
            self.follow();
            changed.await;
        }
    }

    /// Ends when a front end is ended from outside, or has failed.
    pub(crate) async fn ended(&self, ending: &Ending) {
        let all = self.all.iter().map(|front_end| front_end.ended(ending));
        let never = Box::pin(std::future::pending()) as LocalFuture<'_, ()>;
        futures_util::future::select_all(all.chain([never])).await;
    }

    /// Ends all of them, the last one first.
    pub(crate) async fn drain(&self, ending: &Ending) {
        for front_end in self.all.iter().rev() {
            front_end.drain(ending).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use ashlar_block::{ByteVolume, Sectors};
    use ashlar_sim::SimDisk;
    use ashlar_stack::devices::Kind;
    use ashlar_stack::volume_groups::COMPONENT;

    use super::*;

    /// Records the changes that it gets. A volume's name may be taken.
    #[derive(Clone, Default)]
    struct OfferRecorder(Arc<Mutex<Offers>>);

    #[derive(Default)]
    struct Offers {
        /// Device and name.
        offered: Vec<(String, String)>,
        resized: Vec<String>,
    }

    impl FrontEnd for OfferRecorder {
        fn offer(&self, device: &Device) -> Result<(), String> {
            let mut all = self.0.lock().unwrap();
            all.offered.retain(|(known, _)| *known != device.name);
            if all.offered.iter().any(|(_, name)| name == device.export_name()) {
                return Err("taken".to_owned());
            }
            all.offered.push((device.name.clone(), device.export_name().to_owned()));
            all.offered.sort();
            Ok(())
        }

        fn withdraw(&self, name: &str) {
            self.0.lock().unwrap().offered.retain(|(known, _)| known != name);
        }

        fn resized(&self, device: &Device) {
            self.0.lock().unwrap().resized.push(device.name.clone());
        }

        fn ended<'a>(&'a self, _: &'a Ending) -> LocalFuture<'a, ()> {
            Box::pin(std::future::pending())
        }

        fn drain<'a>(&'a self, _: &'a Ending) -> LocalFuture<'a, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    fn volume(name: &str, link: &str) -> Device {
        let disk = SimDisk::new(name, Sectors(8));
        Device {
            path: format!("/dev/{name}"),
            name: name.to_owned(),
            links: vec![link.to_owned()],
            kind: Kind::Disk,
            role: Role::Volume,
            below: Vec::new(),
            id: None,
            bytes: Arc::new(ByteVolume::new(disk.gateway())),
        }
    }

    #[test]
    fn front_ends_are_told_what_came_went_and_got_another_name_or_size() {
        let (devices, written) = (Arc::new(Devices::default()), OfferRecorder::default());
        let front_ends = FrontEnds::new(Arc::clone(&devices), vec![Box::new(written.clone())]);
        let offered = || {
            front_ends.follow();
            let all = written.0.lock().unwrap();
            let all: Vec<String> =
                all.offered.iter().map(|(of, as_)| format!("{of}={as_}")).collect();
            all.join(" ")
        };
        devices.put_back(volume("dm-0", "a"));
        devices.put_back(volume("dm-1", "b"));
        devices.put_back(Device { role: COMPONENT, ..volume("dm-2", "c") });
        assert_eq!(offered(), "dm-0=a dm-1=b");
        // Their names change places.
        for (name, link) in [("dm-0", "b"), ("dm-1", "a")] {
            devices.remove(&format!("/dev/{name}"));
            devices.put_back(volume(name, link));
        }
        assert_eq!(offered(), "dm-0=b dm-1=a");
        // One that could not be offered is offered once its name is free.
        devices.put_back(volume("dm-3", "a"));
        assert_eq!(offered(), "dm-0=b dm-1=a");
        devices.remove("/dev/dm-1");
        assert_eq!(offered(), "dm-0=b dm-3=a");
        assert_eq!(written.0.lock().unwrap().resized, [""; 0]);
        for name in ["dm-2", "dm-3"] {
            devices.find(name).unwrap().gateway().disk().set_capacity(Sectors(16));
        }
        assert_eq!(offered(), "dm-0=b dm-3=a");
        assert_eq!(written.0.lock().unwrap().resized, ["dm-3"]);
    }
}
