//! Access to ZFS pools: through a running daemon, or on disks that this process opens.

mod create;
mod labels;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ashlar_client::client::Client;
use ashlar_disks::{self as disks, Access, Opener};
use ashlar_engine::Reactor;
use ashlar_stack::assemble::Disk;
use ashlar_stack::pool_members::{FoundMember, members_on};
use ashlar_stack::probe::probe;
use ashlar_zfs::client::{CallError, DiskPart, Pool, PoolError};
use ashlar_zfs::ondisk::config;
use ashlar_zfs::ondisk::label::PoolState;
use ashlar_zfs::protocol::{
    Command, Dataset, ImportConfig, PoolStatus, Reply, ScanStatus, VdevStatus,
};

pub use self::create::{NewDisks, NewPool, NewPoolProperties, PoolLayout, absolute};
pub use self::labels::clear_labels;
use crate::error::{Error, Result};

/// How often the state of a pool is read.
const POLL: Duration = Duration::from_millis(200);

/// Time limit for the start of a resilver: OpenZFS starts it in the next transaction group, after at most 5 s.
const RESILVER_START: Duration = Duration::from_secs(10);

/// How a pool is imported.
#[derive(Clone, Copy, Default)]
pub struct ImportMode {
    /// Import without writing.
    pub read_only: bool,
    /// Import even if another host used the pool last.
    pub force: bool,
    /// Import for writing even if log devices are missing. An import for reading loses nothing without them.
    pub missing_log: bool,
}

impl ImportMode {
    /// For reading.
    pub const READ: Self = Self { read_only: true, force: false, missing_log: false };
    /// For changes.
    pub const WRITE: Self = Self { read_only: false, force: false, missing_log: false };
}

/// Accessible pools.
pub enum Session {
    /// Pools of a daemon.
    Daemon(Client),
    /// Pools imported by this process, and their disks, which are locked.
    Here {
        /// The reactor that talks to the workers.
        reactor: Reactor,
        /// The pools.
        pools: Vec<Pool>,
        /// Their disks.
        _disks: Vec<Disk>,
    },
}

/// Disks, and the pool members on them.
pub struct LabelledDisks {
    /// The disks with members.
    pub disks: Vec<Disk>,
    members: Vec<FoundMember>,
}

/// The error for a command that a worker refused.
pub fn refused(error: &CallError) -> Error {
    let failed = Error::failed(error);
    match error.hint() {
        Some(hint) => failed.hint(hint),
        None => failed,
    }
}

/// The error for a pool that cannot be imported.
pub fn not_had(error: &PoolError) -> Error {
    let failed = Error::failed(error);
    match error.hint() {
        Some(hint) => failed.hint(hint),
        None => failed,
    }
}

fn not_asked() -> Error {
    Error::failed("the worker of the pool sent an unexpected answer")
}

/// The pool of a dataset.
pub fn pool_of(dataset: &str) -> &str {
    dataset.split(['/', '@']).next().unwrap_or(dataset)
}

/// The pool of a snapshot.
///
/// # Errors
/// It is not the name of one.
pub fn pool_of_snapshot(name: &str) -> Result<&str> {
    match name.split_once('@') {
        Some((volume, _)) => Ok(pool_of(volume)),
        None => Err(Error::usage(format!("`{name}` is not a snapshot: POOL/VOLUME@SNAPSHOT"))),
    }
}

/// The pool that these datasets are in, if there is one dataset.
pub fn only_pool_of(datasets: &[String]) -> Option<&str> {
    match datasets {
        [name] => Some(pool_of(name)),
        [] | [_, _, ..] => None,
    }
}

/// The disks for `named`: a directory stands for all files in it.
fn expand(named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut disks = Vec::new();
    for path in named {
        if !path.is_dir() {
            disks.push(path.clone());
            continue;
        }
        let failed = |error| Error::new("cannot look into", path.display(), error);
        let mut inside = Vec::new();
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_file() || matches!(disks::identity(&path), Some(disks::Identity::Device(_)))
            {
                inside.push(path);
            }
        }
        inside.sort_unstable();
        disks.extend(inside);
    }
    Ok(disks)
}

/// Refuses a disk on another machine: the worker of a pool opens disks itself.
fn refuse_network(path: &Path) -> Result<()> {
    if !disks::is_on_network(path) {
        return Ok(());
    }
    let why = "OpenZFS's library knows only files and block devices";
    let error = Error::new("cannot have a pool on", path.display(), why);
    Err(error.hint("ashlar serve --whole URI --mount DIR makes it the file DIR/dev/NAME"))
}

/// The disks among `named` that have ZFS labels, or partitions with such labels.
///
/// # Errors
/// One cannot be opened or read.
pub async fn labelled(named: &[PathBuf], access: Access) -> Result<LabelledDisks> {
    let mut found = LabelledDisks { disks: Vec::new(), members: Vec::new() };
    for path in expand(named)? {
        refuse_network(&path)?;
        let disk = Opener::new(Access::Look).one(&path)?;
        let members = members_on(&path, &disk.gateway).await;
        let members = members.map_err(|error| Error::new("cannot read", path.display(), error))?;
        if members.is_empty() {
            continue;
        }
        if access == Access::Write {
            let contents = probe(&disk.gateway).await;
            disks::refuse_rivals(&disk, contents.as_ref()).await?;
            disks::refuse_outsider(&disk, contents.as_ref())?;
        }
        let disk = if access == Access::Look { disk } else { Opener::new(access).one(&path)? };
        found.disks.push(disk);
        found.members.extend(members);
    }
    Ok(found)
}

impl LabelledDisks {
    /// The pools on them.
    pub fn pools(&self) -> config::PoolSurvey {
        let devices: Vec<config::Device<'_>> = self
            .members
            .iter()
            .map(|found| config::Device { path: &found.place.path, labels: &found.labels })
            .collect();
        config::pools(&devices)
    }

    /// The worker's command to import one of the pools, and the disks and partitions that are its members.
    ///
    /// # Errors
    /// It cannot be imported.
    pub fn import(
        &self,
        pool: &config::Pool,
        ImportMode { read_only, force, missing_log }: ImportMode,
    ) -> Result<(Command, Vec<DiskPart>)> {
        let place_of = |index: usize| self.members.get(index).map(|found| &found.place);
        let path_of = |index| place_of(index).map_or_else(String::new, |place| place.path.clone());
        let config = pool.import_config(&path_of);
        let config = config.map_err(|why| Error::failed(format_args!("cannot import: {why}")))?;
        let config = ImportConfig::from(&config);
        let missing_log = missing_log || read_only;
        let import = Command::ImportPool { config, name: None, read_only, force, missing_log };
        let places = pool.devices.iter().filter_map(|index| place_of(*index));
        Ok((import, places.filter_map(|place| place.part.clone()).collect()))
    }
}

impl Session {
    /// Imports the pool `wanted`, by its name or number, from `disks`, or all pools on them. A directory stands for
    /// the disks in it.
    ///
    /// # Errors
    /// A disk cannot be opened; there is no such pool; it cannot be imported.
    pub fn import(disks: &[PathBuf], wanted: Option<&str>, mode: ImportMode) -> Result<Self> {
        let access = if mode.read_only { Access::Read } else { Access::Write };
        let reactor = disks::reactor()?;
        let (pools, disks) = reactor.block_on(async {
            let disks = labelled(disks, access).await?;
            let mut found = disks.pools().pools;
            found.retain(|pool| match wanted {
                Some(name) => pool.name == name || pool.guid.to_string() == name,
                // A destroyed pool is no reason to refuse the others.
                None => pool.state != PoolState::Destroyed,
            });
            if let (Some(name), true) = (wanted, found.is_empty()) {
                let error = Error::failed(format_args!("cannot open '{name}': no such pool"));
                return Err(error.hint("name all of its disks with --devices"));
            }
            let mut imports = Vec::new();
            for pool in found {
                let import = disks.import(&pool, mode)?;
                imports.push((pool.name, import));
            }
            let mut pools: Vec<Pool> = Vec::new();
            for (name, (import, parts)) in imports {
                match Pool::start(&name, import, parts, Arc::default(), None).await {
                    Ok(pool) => pools.push(pool),
                    Err(error) => {
                        // All or none.
                        for pool in pools {
                            if let Err(error) = pool.export().await {
                                tracing::error!(pool = pool.name(), %error, "not exported");
                            }
                        }
                        return Err(not_had(&error));
                    }
                }
            }
            Ok((pools, disks.disks))
        })?;
        Ok(Self::Here { reactor, pools, _disks: disks })
    }

    /// Exports the pools that [`Self::import`] imported.
    ///
    /// # Errors
    /// One cannot be exported.
    pub fn end(self) -> Result<()> {
        let Self::Here { reactor, pools, _disks: disks } = self else { return Ok(()) };
        let mut result = Ok(());
        for pool in pools {
            let exported = reactor.block_on(pool.export());
            result = result.and(exported.map_err(|error| refused(&error)));
        }
        drop(disks);
        result
    }

    /// The names of all pools.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn pools(&mut self) -> Result<Vec<String>> {
        Ok(match self {
            Self::Daemon(client) => {
                client.status()?.pools.into_iter().map(|pool| pool.name).collect()
            }
            Self::Here { pools, .. } => pools.iter().map(|pool| pool.name().to_owned()).collect(),
        })
    }

    /// Sends a command to a pool.
    ///
    /// # Errors
    /// There is no such pool, or it refused the command.
    pub fn call(&mut self, pool: &str, command: Command) -> Result<Reply> {
        match self {
            Self::Daemon(client) => client.zfs(pool, &command),
            Self::Here { reactor, pools, .. } => {
                let Some(pool) = pools.iter().find(|other| other.name() == pool) else {
                    return Err(Error::failed(format_args!("cannot open '{pool}': no such pool")));
                };
                reactor.block_on(pool.call(command)).map_err(|error| refused(&error))
            }
        }
    }

    /// As [`Self::call`], for a command without a result.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub fn run(&mut self, pool: &str, command: Command) -> Result<()> {
        let Reply::Done = self.call(pool, command)? else { return Err(not_asked()) };
        Ok(())
    }

    /// Destroys a pool that [`Self::import`] imported.
    ///
    /// # Errors
    /// A daemon serves it, or it refuses.
    pub fn destroy(&mut self, pool: &str) -> Result<()> {
        let Self::Here { reactor, pools, .. } = self else {
            let error = Error::failed(format_args!("cannot destroy '{pool}': a daemon serves it"));
            return Err(error.hint(format_args!(
                "type ashlar zpool export {pool}, and then ashlar zpool destroy --devices DISK,... {pool}"
            )));
        };
        let Some(at) = pools.iter().position(|other| other.name() == pool) else {
            return Err(Error::failed(format_args!("cannot open '{pool}': no such pool")));
        };
        reactor.block_on(pools[at].destroy()).map_err(|error| refused(&error))?;
        // There is nothing to export at the end.
        drop(pools.remove(at));
        Ok(())
    }

    /// A pool's state.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn status(&mut self, pool: &str) -> Result<PoolStatus> {
        let Reply::Pool(status) = self.call(pool, Command::PoolStatus)? else {
            return Err(not_asked());
        };
        Ok(status)
    }

    /// The state of the pools of these names, or of all.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn statuses(&mut self, names: &[String]) -> Result<Vec<PoolStatus>> {
        let names = if names.is_empty() { self.pools()? } else { names.to_vec() };
        names.iter().map(|name| self.status(name)).collect()
    }

    /// The datasets at and below `root`.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn datasets(&mut self, root: &str) -> Result<Vec<Dataset>> {
        let list = Command::List { root: Some(root.to_owned()) };
        let Reply::Datasets { datasets } = self.call(pool_of(root), list)? else {
            return Err(not_asked());
        };
        Ok(datasets)
    }

    /// Rolls a volume back to `snapshot`; with `recursive`, newer snapshots are destroyed first, the newest first.
    ///
    /// # Errors
    /// It is not a snapshot of a volume, or the pool refuses.
    pub fn roll_back(&mut self, snapshot: &str, recursive: bool) -> Result<()> {
        let pool = pool_of_snapshot(snapshot)?;
        let volume = snapshot.split('@').next().unwrap_or(snapshot);
        if recursive {
            let mut snapshots = self.datasets(volume)?;
            snapshots
                .retain(|dataset| dataset.name.split_once('@').is_some_and(|(of, _)| of == volume));
            let number =
                |dataset: &Dataset| dataset.properties.get("createtxg")?.value.parse::<u64>().ok();
            let ours = snapshots.iter().find(|dataset| dataset.name == snapshot);
            let Some(ours) = ours.and_then(number) else {
                let text = format!("cannot open '{snapshot}': dataset does not exist");
                return Err(Error::failed(text));
            };
            let numbered = snapshots.iter().filter_map(|one| Some((number(one)?, &one.name)));
            let mut newer: Vec<(u64, &String)> = numbered.filter(|(txg, _)| *txg > ours).collect();
            newer.sort_unstable();
            while let Some((_, name)) = newer.pop() {
                self.run(pool, Command::Destroy { name: name.clone(), recursive: false })?;
            }
        }
        let (volume, snapshot) = (volume.to_owned(), snapshot.to_owned());
        self.run(pool, Command::Rollback { volume, snapshot })
    }

    /// Waits until the resilver that a change of the devices of `pool` has started is finished, and a replaced
    /// device detached. One that is started later than in 10 s is not waited for: it runs when the pool is used.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn await_resilver(
        &mut self,
        pool: &str,
        before: Option<&ScanStatus>,
        mut progress: impl FnMut(&ScanStatus),
    ) -> Result<Option<ScanStatus>> {
        let mut patience = Instant::now() + RESILVER_START;
        loop {
            let status = self.status(pool)?;
            let is_new = status.scan.as_ref().is_some_and(|scan| {
                before.is_none_or(|old| old.start_time != scan.start_time || *old != *scan)
            });
            let replaces = |vdev: &VdevStatus| vdev.name.starts_with("replacing");
            let is_replacing = status
                .root
                .children
                .iter()
                .any(|top| replaces(top) || top.children.iter().any(replaces));
            match &status.scan {
                Some(scan) if scan.state == "scanning" => {
                    progress(scan);
                    patience = Instant::now() + RESILVER_START;
                }
                scan if (is_new && !is_replacing) || Instant::now() > patience => {
                    return Ok(scan.clone().filter(|_| is_new));
                }
                _ => {}
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits while a scrub of `pool` runs, and calls `progress` several times a second. Returns its result, or that of the last
    /// scrub; `None` if there was none.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn await_scrub(
        &mut self,
        pool: &str,
        mut progress: impl FnMut(&ScanStatus),
    ) -> Result<Option<ScanStatus>> {
        loop {
            let scan = self.status(pool)?.scan;
            match scan.filter(|scan| scan.state == "scanning") {
                Some(scan) => progress(&scan),
                None => return Ok(self.status(pool)?.scan),
            }
            std::thread::sleep(POLL);
        }
    }
}
