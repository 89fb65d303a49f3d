//! Pools of ZFS: where their members are gathered, and their volumes made into devices.
//!
//! What is on a pool only OpenZFS knows, in a worker process ([`ashlar_zfs::client`]), which opens the members by their paths: so
//! they must be disks of the user's. A volume is a device like others, and looked into; a pool that cannot be had is
//! refused by name.
//!
//! Pools change while they are served: [`Pools::follow`] makes devices of what is new and takes away what is gone.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ashlar_block::BlockDevice;
use ashlar_zfs::client::pool::Visible;
use ashlar_zfs::client::zvol::MINORS;
use ashlar_zfs::client::{CallError, Parameters, Pool, Zvol};
use ashlar_zfs::ondisk::config::{self, Health};
use ashlar_zfs::ondisk::label::DeviceLabels;
use ashlar_zfs::protocol::{Command, ImportConfig};

use crate::attributes::AttributeError;
use crate::devices::{Device, Devices, Kind};

/// How pools are imported.
#[derive(Clone, Debug)]
pub struct Options {
    /// OpenZFS's module parameters.
    pub parameters: Arc<Parameters>,
    /// Also pools that another host has used last.
    pub force: bool,
}

/// A pool that was not imported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedPool {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The names of its members.
    pub below: Vec<String>,
}

/// A member of a pool at hand.
struct Member {
    /// The name of its device.
    device: String,
    /// Where the worker can open it.
    path: String,
    depth: usize,
    labels: Box<DeviceLabels>,
}

/// The members that were found.
#[derive(Default)]
pub(crate) struct Members {
    all: Vec<Member>,
    /// The pools that were tried.
    tried: BTreeSet<u64>,
}

/// A pool that may be imported.
pub(crate) struct Ready {
    pool: config::Pool,
    pub(crate) depth: usize,
    pub(crate) below: Vec<String>,
    /// Where its members are.
    paths: Vec<String>,
}

impl Members {
    /// Takes in a device that has labels.
    ///
    /// # Errors
    /// No worker could open it.
    pub(crate) fn add(
        &mut self,
        device: &Device,
        depth: usize,
        labels: &DeviceLabels,
    ) -> Result<(), String> {
        let path = Path::new(&device.path);
        let path = match (&device.kind, std::fs::canonicalize(path)) {
            (Kind::Disk, Ok(path)) => path,
            (Kind::Disk, Err(error)) => {
                return Err(format!("cannot be opened by a worker: {error}"));
            }
            // The kernel's own device of the partition, if the disk is none of images.
            (Kind::Partition(_), Ok(path)) if path.starts_with("/dev") => path,
            (Kind::Partition(_) | Kind::Array | Kind::Logical | Kind::Zvol, _) => {
                let why = "is part of a ZFS pool, which can only be imported from disks: this device is inside of others";
                return Err(why.to_owned());
            }
        };
        let (device, path) = (device.name.clone(), path.display().to_string());
        self.all.push(Member { device, path, depth, labels: Box::new(labels.clone()) });
        Ok(())
    }

    /// A pool that was not tried: with all its members, or with `any` whatever there is.
    pub(crate) fn next(&mut self, any: bool) -> Option<Ready> {
        let devices: Vec<config::Device<'_>> = self
            .all
            .iter()
            .map(|member| config::Device { path: &member.path, labels: &member.labels })
            .collect();
        let pools = config::pools(&devices).pools;
        let pool = pools.into_iter().find(|pool| {
            !self.tried.contains(&pool.guid) && (any || pool.health == Health::Online)
        })?;
        self.tried.insert(pool.guid);
        let members = || pool.devices.iter().filter_map(|index| self.all.get(*index));
        let below = members().map(|member| member.device.clone()).collect();
        let depth = members().map(|member| member.depth).max().unwrap_or(0);
        let paths = self.all.iter().map(|member| member.path.clone()).collect();
        Some(Ready { pool, depth, below, paths })
    }
}

/// A pool that is served.
pub struct Served {
    /// The pool.
    pub pool: Pool,
    /// The names of its members.
    pub below: Vec<String>,
    read_only: bool,
}

/// A volume that has become a device.
pub struct Opened {
    /// The name of the device.
    pub device: String,
    /// It is to be looked into.
    pub may_hold_others: bool,
}

/// What became of the devices of a pool.
#[derive(Default)]
pub struct Followed {
    /// The new ones.
    pub opened: Vec<Opened>,
    /// Volumes that could not be opened, and why.
    pub failed: Vec<(String, CallError)>,
}

/// The pools that are served.
#[derive(Default)]
pub struct Pools {
    served: RwLock<Vec<Arc<Served>>>,
    /// Minor numbers of volumes.
    minors: Mutex<BTreeSet<u32>>,
    parameters: Arc<Parameters>,
}

impl Pools {
    pub(crate) fn new(options: Option<&Options>) -> Self {
        let parameters = options.map(|options| Arc::clone(&options.parameters));
        Self { parameters: parameters.unwrap_or_default(), ..Self::default() }
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Served>> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The pool of that name, or of a dataset.
    pub fn find(&self, name: &str) -> Option<Arc<Served>> {
        let pool = name.split(['/', '@']).next().unwrap_or(name);
        self.all().into_iter().find(|served| served.pool.name() == pool)
    }

    /// Imports a pool; its name.
    ///
    /// # Errors
    /// Why that was not done.
    pub(crate) async fn import(
        &self,
        ready: &Ready,
        read_only: bool,
        force: bool,
    ) -> Result<Arc<Served>, RefusedPool> {
        let name = ready.pool.name.clone();
        let refused = |why: String, hint: Option<&str>| RefusedPool {
            name: name.clone(),
            why,
            hint: hint.map(str::to_owned),
            below: ready.below.clone(),
        };
        let path_of = |index: usize| ready.paths.get(index).cloned().unwrap_or_default();
        let config =
            ready.pool.import_config(&path_of).map_err(|why| refused(why.to_string(), None))?;
        if self.find(&name).is_some() {
            return Err(refused("a pool of that name is served already".to_owned(), None));
        }
        let config = ImportConfig::from(&config);
        let import =
            Command::ImportPool { config, name: None, read_only, force, missing_log: false };
        let pool = Pool::start(&name, import, Arc::clone(&self.parameters)).await;
        let pool = pool.map_err(|error| refused(error.to_string(), error.hint()))?;
        let served = Arc::new(Served { pool, below: ready.below.clone(), read_only });
        self.served.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&served));
        Ok(served)
    }

    /// Makes devices of volumes of a pool that are to be seen and are none yet.
    pub async fn open_new(
        &self,
        served: &Served,
        new: Vec<Visible>,
        devices: &Devices,
    ) -> Followed {
        let mut followed = Followed::default();
        for visible in new {
            match self.open(served, &visible, devices).await {
                Ok(opened) => followed.opened.push(opened),
                Err(error) => followed.failed.push((visible.dataset, error)),
            }
        }
        followed
    }

    async fn open(
        &self,
        served: &Served,
        visible: &Visible,
        devices: &Devices,
    ) -> Result<Opened, CallError> {
        let minor = self.give_minor();
        let device = format!("zd{minor}");
        match served.pool.open(&visible.dataset, served.read_only, &device, minor).await {
            Ok(zvol) => {
                devices.add_zvol(&zvol, &served.below);
                Ok(Opened { device, may_hold_others: visible.may_hold_others })
            }
            Err(error) => {
                self.minors().remove(&minor);
                Err(error)
            }
        }
    }

    /// Ends the I/O of a volume, and takes its device away; that as it was.
    ///
    /// # Errors
    /// It was not closed in good order; it is closed all the same.
    pub async fn close(
        &self,
        served: &Served,
        zvol: &Zvol,
        devices: &Devices,
    ) -> (Option<Device>, Result<(), CallError>) {
        let device = devices.find(zvol.disk().name());
        if let Some(device) = &device {
            devices.remove(&device.path);
        }
        let closed = served.pool.close(zvol).await;
        self.minors().remove(&zvol.disk().number().minor);
        (device, closed)
    }

    /// Lets go of a pool, whose devices are taken away; those as they were.
    ///
    /// # Errors
    /// It was not exported in good order; it is not served any more all the same.
    pub async fn export(
        &self,
        served: &Arc<Served>,
        devices: &Devices,
    ) -> (Vec<Device>, Result<(), CallError>) {
        let (mut all, mut result) = (Vec::new(), Ok(()));
        for zvol in served.pool.opened() {
            let (device, closed) = self.close(served, &zvol, devices).await;
            all.extend(device);
            result = result.and(closed);
        }
        let exported = served.pool.export().await;
        let mut pools = self.served.write().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|other| !Arc::ptr_eq(other, served));
        (all, result.and(exported))
    }

    fn minors(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.minors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_minor(&self) -> u32 {
        let mut minors = self.minors();
        // The numbers have no end, and finitely many are taken.
        let free = (0..)
            .step_by(MINORS as usize)
            .find(|minor| !minors.contains(minor))
            .unwrap_or_default();
        minors.insert(free);
        free
    }

    /// The value of a module parameter.
    pub(crate) fn parameter(&self, name: &str) -> String {
        self.parameters.get(name).unwrap_or_default().to_string()
    }

    /// Sets a module parameter.
    pub(crate) async fn set_parameter(&self, name: &str, value: u64) -> Result<(), AttributeError> {
        let too_large = |max| {
            AttributeError::Invalid(format!("{value} is out of range: 0 to {max} is possible here"))
        };
        let set = self.parameters.set(name, value);
        let of_worker = set.map_err(|max| max.map_or(AttributeError::NotFound, too_large))?;
        if of_worker {
            for served in self.all() {
                let command = Command::SetParameter { name: name.to_owned(), value };
                let told = served.pool.run(command).await;
                told.map_err(|error| {
                    AttributeError::Busy(format!("{}: {error}", served.pool.name()))
                })?;
            }
        }
        Ok(())
    }
}
