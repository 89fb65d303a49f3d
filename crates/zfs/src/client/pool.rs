//! A pool: its worker, and its open volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ashlar_block::device::BlockDevice;
use ashlar_block::units::Sectors;
use ashlar_engine::blocking;
use thiserror::Error;

use super::memory;
use super::parameters::Parameters;
use super::part::DiskPart;
use super::worker::{CallError, CallResult, Launcher, Worker, not_asked};
use super::zvol::Zvol;
use crate::protocol::{Command, Dataset, PoolStatus, Reply};

/// The state of a pool that waits for its disks.
const SUSPENDED: &str = "SUSPENDED";

/// Why a pool could not be started.
#[derive(Debug, Error)]
pub enum PoolError {
    /// Its worker cannot be started.
    #[error("cannot start a worker: {0}")]
    Spawn(#[from] io::Error),
    /// Its worker failed or refused.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl PoolError {
    /// The remedy.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Spawn(_) => None,
            Self::Call(error) => error.hint(),
        }
    }
}

/// A volume or snapshot that must be a device, according to its properties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VisibleDataset {
    /// Full name.
    pub dataset: String,
    /// Whether it may be probed: it is not a snapshot, and `volmode` is not `dev`.
    pub may_hold_others: bool,
}

/// Changes of a pool's devices.
#[derive(Default)]
pub struct Changes {
    /// The datasets to open.
    pub new: Vec<VisibleDataset>,
    /// The volumes whose dataset is gone, or is no longer visible.
    pub gone: Vec<Arc<Zvol>>,
}

/// A pool imported in a worker.
pub struct Pool {
    worker: Arc<Worker>,
    parameters: Arc<Parameters>,
    name: String,
    release: String,
    volumes: Mutex<BTreeMap<String, Arc<Zvol>>>,
    /// Held because other pools share their files, and the locks on these.
    _parts: Vec<DiskPart>,
}

impl Pool {
    /// Starts a worker that creates or imports a pool: `command` is [`Command::CreatePool`] or
    /// [`Command::ImportPool`]. `parts` are the members that are parts of files, and with `launcher`, which starts the worker
    /// in a sandbox, all members.
    ///
    /// # Errors
    /// [`PoolError`]; the worker has exited then.
    pub async fn start(
        name: &str,
        command: Command,
        parts: Vec<DiskPart>,
        parameters: Arc<Parameters>,
        launcher: Option<&Arc<dyn Launcher>>,
    ) -> Result<Self, PoolError> {
        let read_only = matches!(command, Command::ImportPool { read_only: true, .. });
        let told: io::Result<Vec<_>> = parts.iter().map(|part| part.command(read_only)).collect();
        let told = told?;
        let worker = Arc::new(match launcher.cloned() {
            None => Worker::spawn()?,
            Some(launcher) => {
                let launched = blocking::run(move || Worker::launched_by(&*launcher)).await;
                launched.map_err(|_| io::Error::from(io::ErrorKind::Interrupted))??
            }
        });
        let started = async {
            let start = Command::Start { parameters: parameters.of_worker() };
            let Reply::Started { release } = worker.call(start).await? else {
                return Err(not_asked());
            };
            if !worker.is_confined()
                && let Some((share, file)) = memory::share()
                && let Err(error) = worker.call_with(share, file).await
            {
                tracing::warn!(%error, "a worker does not map our memory: writes take longer");
            }
            for (part, file) in told {
                let Reply::Done = worker.call_with(part, file).await? else {
                    return Err(not_asked());
                };
            }
            worker.run(command).await?;
            Ok(release)
        };
        match started.await {
            Ok(release) => {
                let volumes = Mutex::default();
                let name = name.to_owned();
                Ok(Self { worker, parameters, name, release, volumes, _parts: parts })
            }
            Err(error) => {
                stop(&worker).await;
                Err(error.into())
            }
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The OpenZFS release of its worker.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Its worker.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    fn volumes(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Zvol>>> {
        // A panic cannot leave the map inconsistent.
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the worker a command.
    ///
    /// # Errors
    /// The worker refused, or has exited.
    pub async fn call(&self, command: Command) -> CallResult {
        self.worker.call(command).await
    }

    /// As [`Self::call`], for a command without a reply value.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn run(&self, command: Command) -> Result<(), CallError> {
        self.worker.run(command).await
    }

    /// Its state.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn status(&self) -> Result<PoolStatus, CallError> {
        let Reply::Pool(status) = self.call(Command::PoolStatus).await? else {
            return Err(not_asked());
        };
        Ok(status)
    }

    /// Whether its disks have failed and OpenZFS blocks all its I/O. It stays suspended: ashlar
    /// does not resume pools.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn is_suspended(&self) -> Result<bool, CallError> {
        Ok(self.status().await?.state == SUSPENDED)
    }

    /// The datasets below `root`, or all.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn datasets(&self, root: Option<String>) -> Result<Vec<Dataset>, CallError> {
        let Reply::Datasets { datasets } = self.call(Command::List { root }).await? else {
            return Err(not_asked());
        };
        Ok(datasets)
    }

    /// Opens a volume or snapshot as `device` with minor number `minor`.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn open(
        &self,
        dataset: &str,
        read_only: bool,
        device: &str,
        minor: u32,
    ) -> Result<Arc<Zvol>, CallError> {
        let open = Command::Open { name: dataset.to_owned(), read_only };
        let Reply::Opened(opened) = self.call(open).await? else { return Err(not_asked()) };
        let worker = Arc::clone(&self.worker);
        let (named, parameters) = ((device, minor), &self.parameters);
        let zvol = Zvol::new(worker, dataset, opened, read_only, named, parameters);
        let zvol = Arc::new(zvol);
        self.volumes().insert(dataset.to_owned(), Arc::clone(&zvol));
        Ok(zvol)
    }

    /// The open volumes.
    pub fn opened(&self) -> Vec<Arc<Zvol>> {
        self.volumes().values().cloned().collect()
    }

    /// The open volume of this dataset.
    pub fn find(&self, dataset: &str) -> Option<Arc<Zvol>> {
        self.volumes().get(dataset).cloned()
    }

    /// Compares the open volumes with the datasets, and updates the size of devices and their `readonly` state.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn changes(&self) -> Result<Changes, CallError> {
        let datasets = self.datasets(None).await?;
        let visible = visible(&datasets);
        for zvol in self.opened() {
            let Some(dataset) = datasets.iter().find(|dataset| dataset.name == zvol.dataset())
            else {
                continue;
            };
            let property = |name| dataset.properties.get(name).map(|found| found.value.as_str());
            if let Some(bytes) = property("volsize").and_then(|size| size.parse().ok()) {
                zvol.disk().set_capacity(Sectors::from_bytes_floor(bytes));
            }
            let read_only = zvol.is_for_reading() || property("readonly") == Some("on");
            if dataset.kind == "volume" && read_only != zvol.disk().is_read_only() {
                self.follow_readonly(&zvol, read_only).await?;
            }
        }
        let wanted: BTreeSet<&str> = visible.iter().map(|one| one.dataset.as_str()).collect();
        let gone = self
            .opened()
            .into_iter()
            .filter(|zvol| !wanted.contains(zvol.dataset().as_str()))
            .collect();
        let opened = self.volumes();
        let new =
            visible.iter().filter(|one| !opened.contains_key(&one.dataset)).cloned().collect();
        Ok(Changes { new, gone })
    }

    async fn follow_readonly(&self, zvol: &Zvol, read_only: bool) -> Result<(), CallError> {
        let Some(volume) = zvol.number() else { return Ok(()) };
        if read_only {
            // New writes are refused here and do not fail in the worker.
            zvol.disk().set_read_only(true);
        }
        let reopen = Command::Reopen { volume };
        let Reply::Opened(opened) = self.call(reopen).await? else { return Err(not_asked()) };
        zvol.follow(&opened);
        Ok(())
    }

    /// Ends the I/O of an open volume: I/O in flight completes, new I/O fails.
    ///
    /// # Errors
    /// As [`Self::call`]; the worker has not closed the volume, and it stays in use.
    pub async fn close(&self, zvol: &Zvol) -> Result<(), CallError> {
        self.shut(zvol).await?;
        self.volumes().remove(&zvol.dataset());
        Ok(())
    }

    /// As [`Self::close`], but the volume can be opened again with [`Self::reopen`].
    ///
    /// # Errors
    /// As [`Self::close`].
    pub async fn shut(&self, zvol: &Zvol) -> Result<(), CallError> {
        let Some(volume) = zvol.shut() else { return Ok(()) };
        let closed = self.run(Command::Close { volume }).await;
        if closed.is_err() {
            zvol.reopen(volume);
        }
        closed
    }

    /// Opens a shut volume again as the same device; its dataset may have been renamed to `dataset`.
    ///
    /// # Errors
    /// As [`Self::call`]; the volume stays shut.
    pub async fn reopen(&self, zvol: &Arc<Zvol>, dataset: &str) -> Result<(), CallError> {
        let open = Command::Open { name: dataset.to_owned(), read_only: zvol.is_for_reading() };
        let Reply::Opened(opened) = self.call(open).await? else { return Err(not_asked()) };
        let mut volumes = self.volumes();
        volumes.remove(&zvol.dataset());
        zvol.rename(dataset);
        zvol.follow(&opened);
        zvol.reopen(opened.volume);
        volumes.insert(dataset.to_owned(), Arc::clone(zvol));
        Ok(())
    }

    /// Forgets a shut volume whose dataset is gone.
    pub fn forget(&self, zvol: &Zvol) {
        self.volumes().remove(&zvol.dataset());
    }

    /// Marks the pool destroyed, and ends the worker. Volumes must be closed.
    ///
    /// # Errors
    /// As [`Self::call`]; the pool stays imported.
    pub async fn destroy(&self) -> Result<(), CallError> {
        self.run(Command::DestroyPool).await?;
        stop(&self.worker).await;
        Ok(())
    }

    /// Closes all volumes, writes everything out, releases the disks, and ends the worker. All
    /// steps run even if one fails.
    ///
    /// # Errors
    /// The first error.
    pub async fn export(&self) -> Result<(), CallError> {
        let mut result = Ok(());
        for zvol in self.opened() {
            let closed = self.close(&zvol).await;
            result = result.and(closed);
        }
        let exported = self.run(Command::ExportPool).await;
        stop(&self.worker).await;
        result.and(exported)
    }
}

/// Waits for a worker to exit, in a blocking thread.
async fn stop(worker: &Arc<Worker>) {
    let stopping = Arc::clone(worker);
    if blocking::run(move || stopping.stop()).await.is_err() {
        tracing::error!(pid = worker.pid(), "the worker of a pool was not waited for");
    }
}

/// The `datasets` that are devices, according to the properties `volmode` and `snapdev` (`man 7 zfsprops`).
pub fn visible(datasets: &[Dataset]) -> Vec<VisibleDataset> {
    let property = |dataset: &Dataset, name: &str| {
        dataset.properties.get(name).map(|property| property.value.clone())
    };
    let volumes: BTreeMap<&str, &Dataset> = datasets
        .iter()
        .filter(|one| one.kind == "volume")
        .map(|one| (one.name.as_str(), one))
        .collect();
    let mut visible = Vec::new();
    for dataset in datasets {
        let volume = match dataset.name.split_once('@') {
            None => volumes.get(dataset.name.as_str()),
            Some((volume, _)) => {
                let volume = volumes.get(volume);
                volume.filter(|volume| property(volume, "snapdev").as_deref() == Some("visible"))
            }
        };
        let Some(volume) = volume else { continue };
        let mode = property(volume, "volmode");
        if mode.as_deref() != Some("none") {
            let may_hold_others = mode.as_deref() != Some("dev") && dataset.kind == "volume";
            visible.push(VisibleDataset { dataset: dataset.name.clone(), may_hold_others });
        }
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Property;

    fn dataset(name: &str, kind: &str, properties: &[(&str, &str)]) -> Dataset {
        let property =
            |value: &str| Property { value: value.to_owned(), source: "local".to_owned() };
        let properties =
            properties.iter().map(|(name, value)| ((*name).to_owned(), property(value))).collect();
        Dataset { name: name.to_owned(), kind: kind.to_owned(), properties }
    }

    #[test]
    fn volumes_are_seen_as_their_properties_say() {
        let datasets = [
            dataset("t", "filesystem", &[]),
            dataset("t@s", "snapshot", &[]),
            dataset("t/a", "volume", &[("volmode", "default"), ("snapdev", "hidden")]),
            dataset("t/a@s", "snapshot", &[]),
            dataset("t/b", "volume", &[("volmode", "dev"), ("snapdev", "visible")]),
            dataset("t/b@s", "snapshot", &[]),
            dataset("t/c", "volume", &[("volmode", "none"), ("snapdev", "visible")]),
            dataset("t/c@s", "snapshot", &[]),
        ];
        let seen: Vec<_> =
            visible(&datasets).into_iter().map(|one| (one.dataset, one.may_hold_others)).collect();
        let expected = [("t/a", true), ("t/b", false), ("t/b@s", false)];
        assert_eq!(seen, expected.map(|(name, others)| (name.to_owned(), others)));
    }
}
