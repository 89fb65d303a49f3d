//! Execution of the commands.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::volumes::{Resizer, Volumes, refused as not_opened};
use crate::dataset::{self, NewVolume};
use crate::ffi::kernel::{ParameterError, StartError, Zfs};
use crate::ffi::{Library, LoadError, files};
use crate::pool::{self, Import, Locks, NewLeaf, NewPool};
use crate::protocol::{Command, PoolStatus, Refusal, Reply};
use crate::zvol::{SharedMemory, Window};

/// A worker's state: empty, with libzpool, or with libzpool and a pool.
#[derive(Default)]
pub(super) struct Worker {
    /// The result of loading libzpool before the first command.
    loaded: Option<Result<Library, LoadError>>,
    started: Option<StartedLibrary>,
}

struct StartedLibrary {
    zfs: Zfs,
    volumes: Volumes,
    /// The name of its pool.
    pool: Option<String>,
    /// The last status that was read successfully.
    status: Option<PoolStatus>,
    /// The locks of its disks.
    locks: Option<Locks>,
}

impl Worker {
    /// Loads libzpool now. [`Command::Start`] reports a failure.
    pub(super) fn load(&mut self) {
        self.loaded = Some(Library::open());
    }

    /// Executes a command.
    ///
    /// # Errors
    /// The reason, in ZFS's words.
    pub(super) fn run(
        &mut self,
        command: Command,
        descriptor: Option<OwnedFd>,
    ) -> Result<Reply, Refusal> {
        let Self { loaded, started } = self;
        match (command, started) {
            (Command::Start { .. }, Some(_)) => {
                Err(Refusal::invalid("the worker is started already"))
            }
            (Command::Start { parameters }, started @ None) => {
                let (own, parameters) = super::parameters::split(parameters);
                let library = loaded.take().unwrap_or_else(Library::open).map_err(|error| {
                    let hint = error.hint();
                    Refusal::new("cannot start ZFS", error, Errno::NOENT).with_hint(hint)
                })?;
                // Used until the process exits.
                let library: &'static Library = Box::leak(Box::new(library));
                let release = library.release().to_string();
                let volumes = Volumes::new(own)?;
                let zfs = Zfs::start(library, &parameters).map_err(|error| match error {
                    StartError::Load(error) => {
                        let hint = error.hint();
                        Refusal::new("cannot start ZFS", error, Errno::NOENT).with_hint(hint)
                    }
                    StartError::Parameter(error) => parameter_refused(&error),
                })?;
                *started =
                    Some(StartedLibrary { zfs, volumes, pool: None, status: None, locks: None });
                Ok(Reply::Started { release })
            }
            (command, Some(started)) => started.run(command, descriptor),
            (_, None) => Err(Refusal::invalid("the worker is not started")),
        }
    }

    /// Closes its volumes and exports its pool.
    ///
    /// # Errors
    /// The pool cannot be exported: its state is as after a power failure.
    pub(super) fn end(self) -> Result<(), String> {
        let Some(mut started) = self.started else { return Ok(()) };
        if let Some(pool) = &started.pool {
            // Closing would wait for the disks forever; flushed data is on them.
            if let Err(refusal) = pool::check_condition(&started.zfs, pool, false) {
                std::mem::forget(started);
                return Err(refusal.to_string());
            }
        }
        started.volumes.close_all();
        if let Some(pool) = started.pool.take() {
            pool::export(&started.zfs, &pool).map_err(|refusal| refusal.to_string())?;
        }
        Ok(())
    }
}

fn parameter_refused(error: &ParameterError) -> Refusal {
    let errno = match error {
        ParameterError::Unknown(_) => Errno::NOENT,
        ParameterError::TooLarge { .. } | ParameterError::Ignored { .. } => Errno::RANGE,
    };
    Refusal::new("cannot set parameter", error, errno)
}

/// What a command requires of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PoolRequirement {
    /// Nothing: the state of the pool does not matter.
    Nothing,
    /// The disks must work.
    Disks,
    /// The pool must be writable.
    Writing,
}

fn wants(command: &Command) -> PoolRequirement {
    match command {
        Command::Start { .. }
        | Command::Share { .. }
        | Command::SetParameter { .. }
        | Command::CreatePool { .. }
        | Command::Part { .. }
        | Command::ImportPool { .. }
        | Command::PoolStatus
        | Command::Window { .. }
        | Command::Attach { .. } => PoolRequirement::Nothing,
        Command::ExportPool
        | Command::List { .. }
        | Command::Open { .. }
        | Command::Reopen { .. }
        | Command::Close { .. } => PoolRequirement::Disks,
        Command::DestroyPool
        | Command::AddVdevs { .. }
        | Command::AttachDisk { .. }
        | Command::ChangeLeaf { .. }
        | Command::ClearErrors { .. }
        | Command::Scrub(_)
        | Command::SetPool { .. }
        | Command::CreateVolume { .. }
        | Command::SetProperty { .. }
        | Command::Inherit { .. }
        | Command::Rename { .. }
        | Command::Destroy { .. }
        | Command::Snapshot { .. }
        | Command::Clone { .. }
        | Command::Rollback { .. }
        | Command::Promote { .. }
        | Command::WritePlainly { .. } => PoolRequirement::Writing,
    }
}

impl StartedLibrary {
    fn pool(&self) -> Result<&str, Refusal> {
        self.pool.as_deref().ok_or_else(|| Refusal::invalid("the worker has no pool"))
    }

    /// The status of its pool. libzpool cannot describe a suspended pool before its disks are back:
    /// then the last known status is returned.
    fn status(&mut self) -> Result<PoolStatus, Refusal> {
        let pool = self.pool()?;
        let suspended = pool::check_condition(&self.zfs, pool, false);
        let status = match (suspended, &self.status) {
            (Err(refusal), Some(known)) if refusal.errno == Errno::AGAIN.raw_os_error() => {
                return Ok(pool::suspended(known.clone()));
            }
            (suspended, _) => suspended.and_then(|()| pool::status(&self.zfs, pool))?,
        };
        self.status = Some(status.clone());
        Ok(status)
    }

    fn refuse_open_volumes(&self, verb: &str) -> Result<(), Refusal> {
        let pool = self.pool()?;
        match self.volumes.open_below(pool)[..] {
            [ref open, ..] => Err(Refusal::new(
                format_args!("cannot {verb} '{pool}'"),
                format_args!("pool is busy: '{open}' is open"),
                Errno::BUSY,
            )
            .with_hint("close its volumes first")),
            [] => Ok(()),
        }
    }

    fn refuse_second_pool(&self) -> Result<(), Refusal> {
        match &self.pool {
            Some(pool) => Err(Refusal::invalid(format!("the worker has a pool already: '{pool}'"))),
            None => Ok(()),
        }
    }

    fn run(&mut self, command: Command, descriptor: Option<OwnedFd>) -> Result<Reply, Refusal> {
        let zfs = &self.zfs;
        match wants(&command) {
            PoolRequirement::Nothing => {}
            PoolRequirement::Disks => pool::check_condition(zfs, self.pool()?, false)?,
            PoolRequirement::Writing => pool::check_condition(zfs, self.pool()?, true)?,
        }
        match command {
            Command::Start { .. } => return Err(Refusal::invalid("the worker is started already")),
            Command::Share { address, len_bytes } => {
                let Some(file) = descriptor else {
                    return Err(Refusal::invalid("memory of no file"));
                };
                let shared = SharedMemory::map(file, address, len_bytes);
                let refused = |errno| Refusal::new("cannot map the daemon's memory", errno, errno);
                self.volumes.share(shared.map_err(refused)?);
            }
            Command::SetParameter { name, value } => {
                if !self.volumes.set_parameter(&name, value)? {
                    zfs.set_parameter(&name, value).map_err(|error| parameter_refused(&error))?;
                }
            }
            Command::CreatePool { name, vdevs, properties, dataset_properties, force, wiped } => {
                self.refuse_second_pool()?;
                let new = NewPool {
                    name: &name,
                    vdevs: &vdevs,
                    properties: &properties,
                    dataset_properties: &dataset_properties,
                    force,
                    wiped: &wiped,
                };
                self.locks = Some(pool::create(zfs, &new)?);
                self.pool = Some(name);
                self.status()?;
            }
            Command::Part { path, offset_bytes, size_bytes, read_only } => {
                let Some(file) = descriptor else {
                    return Err(Refusal::invalid("a part of no file"));
                };
                pool::lock_whole_of(&file, &path, read_only)?;
                files::add_part(&path, file, offset_bytes, size_bytes);
            }
            Command::ImportPool { config, name, read_only, force, missing_log } => {
                self.refuse_second_pool()?;
                let import = Import {
                    config: &config.0,
                    name: name.as_deref(),
                    read_only,
                    force,
                    missing_log,
                };
                let (name, locks) = pool::import(zfs, &import)?;
                self.pool = Some(name);
                self.locks = Some(locks);
                self.status()?;
            }
            Command::ExportPool => {
                let pool = self.pool()?;
                self.refuse_open_volumes("export")?;
                pool::export(zfs, pool)?;
                (self.pool, self.status, self.locks) = (None, None, None);
            }
            Command::DestroyPool => {
                let pool = self.pool()?;
                self.refuse_open_volumes("destroy")?;
                pool::destroy(zfs, pool)?;
                (self.pool, self.status, self.locks) = (None, None, None);
            }
            Command::AddVdevs { vdevs, force, wiped } => {
                let locks = pool::add(zfs, self.pool()?, &vdevs, force, &wiped)?;
                self.locks.get_or_insert_default().add(locks);
            }
            Command::AttachDisk { leaf, path, replace, force, wiped } => {
                let new = NewLeaf { path: &path, replace, force, wiped: &wiped };
                let locks = pool::attach(zfs, self.pool()?, &leaf, &new)?;
                self.locks.get_or_insert_default().add(locks);
            }
            Command::ChangeLeaf { leaf, change } => {
                pool::change_leaf(zfs, self.pool()?, &leaf, change)?;
            }
            Command::ClearErrors { leaf } => pool::clear(zfs, self.pool()?, leaf.as_deref())?,
            Command::PoolStatus => return Ok(Reply::Pool(self.status()?)),
            Command::Scrub(what) => pool::scrub(zfs, self.pool()?, what)?,
            Command::SetPool { name, value } => pool::set(zfs, self.pool()?, &name, &value)?,
            Command::List { root } => {
                let datasets = dataset::list(zfs, self.pool()?, root.as_deref())?;
                return Ok(Reply::Datasets { datasets });
            }
            Command::CreateVolume { name, volsize_bytes, sparse, parents, properties } => {
                let new = NewVolume {
                    pool: self.pool()?,
                    name: &name,
                    volsize_bytes,
                    sparse,
                    parents,
                    properties: &properties,
                };
                dataset::create(zfs, &new)?;
            }
            Command::SetProperty { dataset, name, value } => {
                if name == "volsize" {
                    self.volumes.settle(zfs.library(), &dataset)?;
                }
                let resizer = Resizer { zfs, volumes: &self.volumes };
                dataset::set(zfs, self.pool()?, &dataset, (&name, &value), &resizer)?;
            }
            Command::Inherit { dataset, name } => {
                dataset::inherit(zfs, self.pool()?, &dataset, &name)?;
            }
            Command::Rename { from, to } => {
                if let [open, ..] = self.volumes.open_below(&from)[..] {
                    return Err(Refusal::new(
                        format_args!("cannot rename '{from}'"),
                        format_args!("dataset is busy: '{open}' is open"),
                        Errno::BUSY,
                    )
                    .with_hint("close it first"));
                }
                dataset::rename(zfs, self.pool()?, &from, &to)?;
            }
            Command::Destroy { name, recursive } => {
                if let [open, ..] = self.volumes.open_below(&name)[..] {
                    return Err(Refusal::new(
                        format_args!("cannot destroy '{name}'"),
                        format_args!("dataset is busy: '{open}' is open"),
                        Errno::BUSY,
                    )
                    .with_hint("close it first"));
                }
                dataset::destroy(zfs, self.pool()?, &name, recursive)?;
            }
            Command::Snapshot { names } => {
                for volume in names.iter().filter_map(|name| name.split('@').next()) {
                    self.volumes.settle(zfs.library(), volume)?;
                }
                dataset::snapshot(zfs, self.pool()?, &names)?;
            }
            Command::Clone { snapshot, name, properties } => {
                dataset::clone(zfs, self.pool()?, &snapshot, &name, &properties)?;
            }
            Command::Rollback { volume, snapshot } => {
                let pool = self.pool()?;
                self.volumes.settle(zfs.library(), &volume)?;
                let rollback = || dataset::rollback(zfs, pool, &volume, &snapshot);
                match self.volumes.find(&volume) {
                    Some(open) => open
                        .while_suspended(rollback)
                        .map_err(|error| not_opened(&volume, &error))??,
                    None => rollback()?,
                }
            }
            Command::Promote { name } => dataset::promote(zfs, self.pool()?, &name)?,
            Command::Open { name, read_only } => {
                let opened = self.volumes.open(zfs.library(), &name, read_only)?;
                return Ok(Reply::Opened(opened));
            }
            Command::Reopen { volume } => {
                return Ok(Reply::Opened(self.volumes.reopen(volume)?));
            }
            Command::Close { volume } => self.volumes.close(volume)?,
            Command::Window { window, address, len_bytes } => {
                let Some(file) = descriptor else {
                    return Err(Refusal::invalid("a window of no file"));
                };
                let refused = |errno| Refusal::new("cannot map a window", errno, errno);
                let mapped = Window::map(file, address, len_bytes).map_err(refused)?;
                self.volumes.add_window(window, mapped);
            }
            Command::Attach { volume, window } => {
                let channel = descriptor
                    .ok_or_else(|| Refusal::invalid("no data channel came with the command"))?;
                self.volumes.attach(volume, channel, window)?;
            }
            Command::WritePlainly { name, write_bytes } => {
                let nanoseconds = self.volumes.write_plainly(&name, write_bytes)?;
                return Ok(Reply::Took { nanoseconds });
            }
        }
        Ok(Reply::Done)
    }
}
