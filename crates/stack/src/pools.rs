//! Served ZFS pools, and the devices of their volumes.
//!
//! Only OpenZFS knows the contents of a pool: a worker process ([`ashlar_zfs::client`]) opens the
//! members itself, see [`crate::pool_members`]. A volume is a device like others, and probed; a
//! pool that cannot be imported is refused by name.
//!
//! Pools change while they are served: [`Pools::open_new`] adds devices of new volumes,
//! [`Pools::close`] and [`Pools::forget`] end those of removed ones.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ashlar_block::BlockDevice;
use ashlar_zfs::client::pool::VisibleDataset;
use ashlar_zfs::client::zvol::MINORS;
use ashlar_zfs::client::{CallError, Launcher, Parameters, Pool, Zvol};
use ashlar_zfs::ondisk::config::Health;
use ashlar_zfs::protocol::Command;
use futures_util::lock::Mutex as AsyncMutex;

use crate::devices::Devices;
use crate::pool_members::ReadyPool;
use crate::refusals::{Refusal, Refused};

/// How pools are imported.
#[derive(Clone, Debug)]
pub struct Options {
    /// OpenZFS's module parameters.
    pub parameters: Arc<Parameters>,
    /// Also import pools that another host used last.
    pub force: bool,
    /// Also import pools for writing whose log devices are missing: what was only in the log is lost.
    pub missing_log: bool,
    /// Starts the workers of a process in a sandbox, in sandboxes of their own.
    pub launcher: Option<Arc<dyn Launcher>>,
}

/// A served pool.
pub struct ServedPool {
    /// The pool.
    pub pool: Pool,
    /// The names of its members.
    pub below: Vec<String>,
    /// Its health at import.
    pub health: Health,
    /// Serializes changes of the pool; held until the worker has answered. If the pool's disks have
    /// failed, that may be never.
    pub turn: AsyncMutex<()>,
    read_only: bool,
}

/// A volume with a new device.
pub struct PoolVolume {
    /// The name of the device.
    pub device: String,
    /// Whether it is to be probed.
    pub may_hold_others: bool,
}

/// Changes of a pool's devices.
#[derive(Default)]
pub struct DeviceChanges {
    /// The new devices.
    pub opened: Vec<PoolVolume>,
    /// Volumes that could not be opened, and why.
    pub failed: Vec<(String, CallError)>,
}

/// The served pools.
#[derive(Default)]
pub struct Pools {
    served: RwLock<Vec<Arc<ServedPool>>>,
    /// Minor numbers of volumes.
    minors: Mutex<BTreeSet<u32>>,
    /// OpenZFS's module parameters.
    pub parameters: Arc<Parameters>,
    /// Held while a parameter is set.
    pub setting: AsyncMutex<()>,
}

impl Pools {
    pub(crate) fn new(options: Option<&Options>) -> Self {
        let parameters = options.map(|options| Arc::clone(&options.parameters));
        Self { parameters: parameters.unwrap_or_default(), ..Self::default() }
    }

    /// All served pools.
    pub fn all(&self) -> Vec<Arc<ServedPool>> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The pool with this name, or of the dataset with this name.
    pub fn find(&self, name: &str) -> Option<Arc<ServedPool>> {
        let pool = name.split(['/', '@']).next().unwrap_or(name);
        self.all().into_iter().find(|served| served.pool.name() == pool)
    }

    /// Imports a pool and returns it.
    ///
    /// # Errors
    /// The reason.
    pub(crate) async fn import(
        &self,
        ready: &ReadyPool,
        read_only: bool,
        options: &Options,
    ) -> Result<Arc<ServedPool>, Refusal> {
        let name = ready.name().to_owned();
        let refused = |why: String, hint: Option<&str>| Refusal {
            what: Refused::Pool,
            name: name.clone(),
            why,
            hint: hint.map(str::to_owned),
            below: ready.below.clone(),
        };
        let config = ready.config().map_err(|why| refused(why.to_string(), None))?;
        if self.find(&name).is_some() {
            return Err(refused("a pool of that name is served already".to_owned(), None));
        }
        // An import for reading loses nothing: the log is as it was.
        let missing_log = options.missing_log || read_only;
        let force = options.force;
        let import = Command::ImportPool { config, name: None, read_only, force, missing_log };
        let parts = ready.parts.clone();
        let (parameters, launcher) = (Arc::clone(&self.parameters), options.launcher.as_ref());
        let pool = Pool::start(&name, import, parts, parameters, launcher).await;
        let pool = pool.map_err(|error| refused(error.to_string(), error.hint()))?;
        let (below, health) = (ready.below.clone(), ready.health().min(Health::Degraded));
        let turn = AsyncMutex::new(());
        let served = Arc::new(ServedPool { pool, below, health, turn, read_only });
        self.served.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&served));
        Ok(served)
    }

    /// Makes devices for the visible volumes in `new`.
    pub async fn open_new(
        &self,
        served: &ServedPool,
        new: Vec<VisibleDataset>,
        devices: &Devices,
    ) -> DeviceChanges {
        let mut followed = DeviceChanges::default();
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
        served: &ServedPool,
        visible: &VisibleDataset,
        devices: &Devices,
    ) -> Result<PoolVolume, CallError> {
        let (minor, device) = self.give_minor(devices);
        match served.pool.open(&visible.dataset, served.read_only, &device, minor).await {
            Ok(zvol) => {
                devices.add_zvol(&zvol, &served.below);
                Ok(PoolVolume { device, may_hold_others: visible.may_hold_others })
            }
            Err(error) => {
                self.minors().remove(&minor);
                Err(error)
            }
        }
    }

    /// Ends the I/O of a volume whose device was removed.
    ///
    /// # Errors
    /// See [`Pool::close`]: a volume that is not closed stays in use.
    pub async fn close(&self, served: &ServedPool, zvol: &Zvol) -> Result<(), CallError> {
        served.pool.close(zvol).await?;
        self.minors().remove(&zvol.disk().number().minor);
        Ok(())
    }

    /// Forgets a closed volume whose dataset and device are gone.
    pub fn forget(&self, served: &ServedPool, zvol: &Zvol) {
        served.pool.forget(zvol);
        self.minors().remove(&zvol.disk().number().minor);
    }

    /// Exports a pool and removes its devices.
    ///
    /// # Errors
    /// The export failed; the pool is no longer served anyway.
    pub async fn export(
        &self,
        served: &Arc<ServedPool>,
        devices: &Devices,
    ) -> Result<(), CallError> {
        let opened = served.pool.opened();
        for device in opened.iter().filter_map(|zvol| devices.find(zvol.disk().name())) {
            devices.remove(&device.path);
        }
        let exported = served.pool.export().await;
        for zvol in opened {
            self.minors().remove(&zvol.disk().number().minor);
        }
        let mut pools = self.served.write().unwrap_or_else(PoisonError::into_inner);
        pools.retain(|other| !Arc::ptr_eq(other, served));
        exported
    }

    fn minors(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.minors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A free minor number and its name. A disk may already have a volume's name.
    fn give_minor(&self, devices: &Devices) -> (u32, String) {
        let mut minors = self.minors();
        let is_free =
            |(minor, name): &(u32, String)| !minors.contains(minor) && devices.find(name).is_none();
        let mut all = (0..).step_by(MINORS as usize).map(|minor| (minor, format!("zd{minor}")));
        // The numbers have no end, and finitely many are taken.
        let (minor, name) = all.find(is_free).unwrap_or_default();
        minors.insert(minor);
        (minor, name)
    }
}
