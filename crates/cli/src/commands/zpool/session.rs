//! Access to pools: through a running daemon, or on disks that the command opens.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use ashlar_engine::Reactor;
use ashlar_host::client::Client;
use ashlar_host::disks::{self, Access};
use ashlar_host::error::{Error, Result};
use ashlar_stack::assemble::Disk;
use ashlar_stack::pool_members::{Found, members_on};
use ashlar_stack::probe::probe;
use ashlar_zfs::client::{CallError, Part, Pool, PoolError};
use ashlar_zfs::ondisk::config;
use ashlar_zfs::protocol::{Command, Dataset, ImportConfig, PoolStatus, Reply};
use clap::Args;

use crate::commands::Daemon;

/// Where the pool is.
#[derive(Args, Debug)]
pub(crate) struct Where {
    /// Import the pool for this command from these disks, or those in a directory, separated by
    /// commas or as repeated options [default: the pool of a running daemon]
    #[arg(short = 'd', long, value_name = "DISK", value_delimiter = ',')]
    devices: Vec<PathBuf>,

    #[command(flatten)]
    daemon: Daemon,
}

/// Import mode.
#[derive(Clone, Copy, Default)]
pub(crate) struct How {
    /// Import without writing.
    pub(crate) read_only: bool,
    /// Import even if another host used the pool last.
    pub(crate) force: bool,
}

impl How {
    /// For reading.
    pub(crate) const READ: Self = Self { read_only: true, force: false };
    /// For changes.
    pub(crate) const WRITE: Self = Self { read_only: false, force: false };
}

/// Accessible pools.
pub(crate) enum Session {
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
pub(crate) struct Labelled {
    /// The disks with members.
    pub(crate) disks: Vec<Disk>,
    members: Vec<Found>,
}

/// The error for a command that a worker refused.
pub(crate) fn refused(error: &CallError) -> Error {
    let failed = Error::failed(error);
    match error.hint() {
        Some(hint) => failed.hint(hint),
        None => failed,
    }
}

/// The error for a pool that cannot be imported.
pub(crate) fn not_had(error: &PoolError) -> Error {
    let failed = Error::failed(error);
    match error.hint() {
        Some(hint) => failed.hint(hint),
        None => failed,
    }
}

fn not_asked() -> Error {
    Error::failed("the worker of the pool answers what it was not asked")
}

/// The pool of a dataset.
pub(crate) fn pool_of(dataset: &str) -> &str {
    dataset.split(['/', '@']).next().unwrap_or(dataset)
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

/// The disks among `named` that have ZFS labels, or partitions with such labels.
///
/// # Errors
/// One cannot be opened or read.
pub(crate) async fn labelled(named: &[PathBuf], access: Access) -> Result<Labelled> {
    let mut found = Labelled { disks: Vec::new(), members: Vec::new() };
    for path in expand(named)? {
        let disk = disks::open(&path, Access::Look, true)?;
        let members = members_on(&path, &disk.gateway).await;
        let members = members.map_err(|error| Error::new("cannot read", path.display(), error))?;
        if members.is_empty() {
            continue;
        }
        if access == Access::Write {
            disks::refuse_rivals(&disk, probe(&disk.gateway).await.as_ref()).await?;
        }
        let disk = if access == Access::Look { disk } else { disks::open(&path, access, true)? };
        found.disks.push(disk);
        found.members.extend(members);
    }
    Ok(found)
}

impl Labelled {
    /// The pools on them.
    pub(crate) fn pools(&self) -> config::Found {
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
    pub(crate) fn import(
        &self,
        pool: &config::Pool,
        How { read_only, force }: How,
    ) -> Result<(Command, Vec<Part>)> {
        let place_of = |index: usize| self.members.get(index).map(|found| &found.place);
        let path_of = |index| place_of(index).map_or_else(String::new, |place| place.path.clone());
        let config = pool.import_config(&path_of);
        let config = config.map_err(|why| Error::failed(format_args!("cannot import: {why}")))?;
        let config = ImportConfig::from(&config);
        let import =
            Command::ImportPool { config, name: None, read_only, force, missing_log: false };
        let places = pool.devices.iter().filter_map(|index| place_of(*index));
        Ok((import, places.filter_map(|place| place.part.clone()).collect()))
    }
}

impl Where {
    /// The disks named on the command line.
    pub(crate) fn devices(&self) -> &[PathBuf] {
        &self.devices
    }

    /// Adds those of `names` that are disks, not pool names. A directory with disks is distinguished from a pool of the
    /// same name by a slash.
    pub(crate) fn with_named(mut self, names: Vec<String>) -> (Self, Vec<String>) {
        let is_disk = |name: &String| {
            name.contains('/') || Path::new(name).metadata().is_ok_and(|found| !found.is_dir())
        };
        let (disks, names): (Vec<_>, Vec<_>) = names.into_iter().partition(is_disk);
        self.devices.extend(disks.into_iter().map(PathBuf::from));
        (self, names)
    }

    /// Sends one command to the pool of a dataset.
    ///
    /// # Errors
    /// As [`Self::with`]; the pool refuses.
    pub(crate) fn change(&self, dataset: &str, command: Command) -> Result<ExitCode> {
        let pool = pool_of(dataset);
        self.with(Some(pool), How::WRITE, |session| session.run(pool, command))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Calls `work` with a pool, or with all of them. Pools that were imported for it are exported, even after an
    /// error.
    ///
    /// # Errors
    /// Those of the work; there is no such pool; it cannot be imported or exported.
    pub(crate) fn with<T>(
        &self,
        pool: Option<&str>,
        how: How,
        work: impl FnOnce(&mut Session) -> Result<T>,
    ) -> Result<T> {
        if self.devices.is_empty() {
            let client = self.daemon.connect().map_err(|error| {
                error.hint("name its disks with --devices, or start a daemon with ashlar serve")
            })?;
            return work(&mut Session::Daemon(client));
        }
        let mut session = Session::import(&self.devices, pool, how)?;
        let done = work(&mut session);
        let ended = session.end();
        let done = done?;
        ended.map(|()| done)
    }
}

impl Session {
    fn import(disks: &[PathBuf], wanted: Option<&str>, how: How) -> Result<Self> {
        let access = if how.read_only { Access::Read } else { Access::Write };
        let reactor = disks::reactor()?;
        let (pools, disks) = reactor.block_on(async {
            let disks = labelled(disks, access).await?;
            let mut found = disks.pools().pools;
            found.retain(|pool| {
                wanted.is_none_or(|name| pool.name == name || pool.guid.to_string() == name)
            });
            if let (Some(name), true) = (wanted, found.is_empty()) {
                let error = Error::failed(format_args!("cannot open '{name}': no such pool"));
                return Err(error.hint("name all of its disks with --devices"));
            }
            let mut imports = Vec::new();
            for pool in found {
                let import = disks.import(&pool, how)?;
                imports.push((pool.name, import));
            }
            let mut pools: Vec<Pool> = Vec::new();
            for (name, (import, parts)) in imports {
                match Pool::start(&name, import, parts, Arc::default()).await {
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

    fn end(self) -> Result<()> {
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
    pub(crate) fn pools(&mut self) -> Result<Vec<String>> {
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
    pub(crate) fn call(&mut self, pool: &str, command: Command) -> Result<Reply> {
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
    pub(crate) fn run(&mut self, pool: &str, command: Command) -> Result<()> {
        let Reply::Done = self.call(pool, command)? else { return Err(not_asked()) };
        Ok(())
    }

    /// A pool's state.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) fn status(&mut self, pool: &str) -> Result<PoolStatus> {
        let Reply::Pool(status) = self.call(pool, Command::PoolStatus)? else {
            return Err(not_asked());
        };
        Ok(status)
    }

    /// The state of the pools of these names, or of all.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) fn statuses(&mut self, names: &[String]) -> Result<Vec<PoolStatus>> {
        let names = if names.is_empty() { self.pools()? } else { names.to_vec() };
        names.iter().map(|name| self.status(name)).collect()
    }

    /// The datasets at and below `root`.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) fn datasets(&mut self, root: &str) -> Result<Vec<Dataset>> {
        let list = Command::List { root: Some(root.to_owned()) };
        let Reply::Datasets { datasets } = self.call(pool_of(root), list)? else {
            return Err(not_asked());
        };
        Ok(datasets)
    }
}

/// The absolute path of a disk for a pool.
///
/// # Errors
/// It does not exist.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    std::fs::canonicalize(path).map_err(|error| Error::new("cannot open", path.display(), error))
}
