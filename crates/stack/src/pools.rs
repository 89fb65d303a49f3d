//! Served ZFS pools, and the devices of their volumes.
//!
//! Only OpenZFS knows the contents of a pool: a worker process ([`ashlar_zfs::client`]) opens the members itself, see
//! [`crate::pool_members`]. A volume is a device like others, and probed; a pool that cannot be imported is refused by name.
//!
//! Pools change while they are served: [`Pools::open_new`] adds devices of new volumes, [`Pools::close`] and [`Pools::forget`]
//! end those of removed ones.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ashlar_block::BlockDevice;
use ashlar_zfs::client::pool::Visible;
use ashlar_zfs::client::zvol::MINORS;
use ashlar_zfs::client::{CallError, Parameters, Pool, Zvol};
use ashlar_zfs::ondisk::config::Health;
use ashlar_zfs::protocol::Command;
use futures_util::lock::Mutex as AsyncMutex;

use crate::attributes::AttributeError;
use crate::devices::Devices;
use crate::pool_members::Ready;

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

/// A pool that is served.
pub struct Served {
    /// The pool.
    pub pool: Pool,
    /// The names of its members.
    pub below: Vec<String>,
    /// How whole it was when it was imported.
    pub health: Health,
    /// Held for one change of the pool at a time, until its worker has answered: of a pool whose disks have failed
    /// that may be never.
    pub turn: AsyncMutex<()>,
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
    /// Held while a parameter is set.
    setting: AsyncMutex<()>,
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
        let name = ready.name().to_owned();
        let refused = |why: String, hint: Option<&str>| RefusedPool {
            name: name.clone(),
            why,
            hint: hint.map(str::to_owned),
            below: ready.below.clone(),
        };
        let config = ready.config().map_err(|why| refused(why.to_string(), None))?;
        if self.find(&name).is_some() {
            return Err(refused("a pool of that name is served already".to_owned(), None));
        }
        let import =
            Command::ImportPool { config, name: None, read_only, force, missing_log: false };
        let parts = ready.parts.clone();
        let pool = Pool::start(&name, import, parts, Arc::clone(&self.parameters)).await;
        let pool = pool.map_err(|error| refused(error.to_string(), error.hint()))?;
        let (below, health) = (ready.below.clone(), ready.health());
        let turn = AsyncMutex::new(());
        let served = Arc::new(Served { pool, below, health, turn, read_only });
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
        let (minor, device) = self.give_minor(devices);
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

    /// Ends the I/O of a volume whose device was taken away.
    ///
    /// # Errors
    /// As [`Pool::close`]: a volume that is not closed goes on.
    pub async fn close(&self, served: &Served, zvol: &Zvol) -> Result<(), CallError> {
        served.pool.close(zvol).await?;
        self.minors().remove(&zvol.disk().number().minor);
        Ok(())
    }

    /// Forgets a volume that was shut, and whose dataset is gone. Its device was taken away.
    pub fn forget(&self, served: &Served, zvol: &Zvol) {
        served.pool.forget(zvol);
        self.minors().remove(&zvol.disk().number().minor);
    }

    /// Lets go of a pool, whose devices are taken away.
    ///
    /// # Errors
    /// It was not exported in good order; it is not served any more all the same.
    pub async fn export(&self, served: &Arc<Served>, devices: &Devices) -> Result<(), CallError> {
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

    /// A minor number and the name that goes with it, which nobody has: a disk of the user's may be called like a volume.
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

    /// The value of a module parameter.
    pub(crate) fn parameter(&self, name: &str) -> String {
        self.parameters.get(name).unwrap_or_default().to_string()
    }

    /// Sets a module parameter, for all pools or for none.
    ///
    /// # Errors
    /// There is no such parameter, it cannot have the value, or the worker of a pool would not take it: the others have
    /// the one from before then.
    pub(crate) async fn set_parameter(&self, name: &str, value: u64) -> Result<(), AttributeError> {
        let too_large = |max| {
            AttributeError::Invalid(format!("{value} is out of range: 0 to {max} is possible here"))
        };
        // One at a time, so that all pools end with the same.
        let setting = self.setting.lock().await;
        let before = self.parameters.get(name).ok_or(AttributeError::NotFound)?;
        let checked = self.parameters.check(name, value);
        let of_worker = checked.map_err(|max| max.map_or(AttributeError::NotFound, too_large))?;
        if of_worker {
            let mut told = Vec::new();
            for served in self.all() {
                match tell(&served, name, value).await {
                    Ok(()) => told.push(served),
                    // It keeps nothing any more.
                    Err(CallError::Dead(_)) => {}
                    Err(error @ (CallError::Refused(_) | CallError::NotUnderstood(_))) => {
                        let mut why = format!("{}: {error}", served.pool.name());
                        for other in told {
                            if let Err(error) = tell(&other, name, before).await {
                                why += &format!("; {} has it already: {error}", other.pool.name());
                            }
                        }
                        return Err(AttributeError::Busy(why));
                    }
                }
            }
        }
        let set = self.parameters.set(name, value);
        drop(setting);
        set.map(|_| ()).map_err(|max| max.map_or(AttributeError::NotFound, too_large))
    }
}

/// Sets a module parameter of one pool's worker.
async fn tell(served: &Served, name: &str, value: u64) -> Result<(), CallError> {
    served.pool.run(Command::SetParameter { name: name.to_owned(), value }).await
}
