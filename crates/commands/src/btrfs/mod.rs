//! Finds the devices of a btrfs file system and opens it: disks themselves, or devices on them (partitions, arrays, logical volumes).

mod counters;
pub mod listing;
mod looking;
pub mod restore;
pub mod scrub;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ashlar_btrfs::error::OpenError;
use ashlar_btrfs::units::DevId;
use ashlar_btrfs::volume::{self, FileSystem, OpenOptions, Source};
use ashlar_disks::sandbox::Sandbox;
use ashlar_disks::{self as disks, Access, Opener};
use ashlar_engine::signal::{self, Signal};
use ashlar_md::AssembleError;
use ashlar_stack::assemble::{Options, Others, Refusal, Refused, Stack, assemble, probe_all};
use ashlar_stack::devices::Device;
use ashlar_stack::outsiders::RefusedOutsider;
use uuid::Uuid;

pub use self::counters::{DeviceCounters, device_counters};
pub use self::looking::{LookedAt, LookedThrough, look_through};
use crate::error::{Error, Result};
use crate::lvm::local_system_ids;

/// The signals on which work on a file system stops cleanly.
const SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Blocks SIGINT, SIGTERM and SIGHUP, which [`restore`] and [`scrub`] wait for. The caller has started no thread yet.
///
/// # Errors
/// That of the system call.
pub fn block_signals() -> Result<()> {
    signal::block(&SIGNALS).map_err(|error| Error::plain("cannot block signals", error))
}

/// Which devices, and how they are opened.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Image files or block devices: those of the file system, or those of the arrays, partitions and volume groups below
    /// it.
    pub devices: Vec<PathBuf>,
    /// Open the file system although devices are missing.
    pub degraded: bool,
    /// Also use devices that missed transactions.
    pub stale: bool,
    /// The UUID of the file system, if the devices have several.
    pub fsid: Option<Uuid>,
    /// Use only these arrays, partitions and logical volumes, by any of their names; all of them if this is empty.
    pub on: Vec<String>,
}

/// Whether a device is given as a UUID, not as a path.
pub fn is_uuid(device: &Path) -> bool {
    uuid(device).is_some()
}

fn uuid(device: &Path) -> Option<Uuid> {
    let text = device.to_str().filter(|_| !device.exists())?;
    Uuid::try_parse(text).ok()
}

/// The UUID of a file system: it is given, or its devices are, which are read without locks, in `sandbox`.
///
/// # Errors
/// There is no file system on the devices, or more than one.
pub async fn fsid_of(devices: &[PathBuf], sandbox: Sandbox) -> Result<Uuid> {
    if let [one] = devices
        && let Some(uuid) = uuid(one)
    {
        return Ok(uuid);
    }
    let devices = devices.to_vec();
    Selection { devices, degraded: true, stale: true, ..Selection::default() }
        .identify(sandbox)
        .await
}

/// An open file system, and the stack below it.
pub struct OpenFileSystem {
    /// The file system.
    pub fs: Arc<FileSystem>,
    stack: Stack,
}

impl Selection {
    /// Opens the file system; from the opening of the devices on in `sandbox`.
    ///
    /// # Errors
    /// The devices cannot be opened, or do not belong to one file system.
    pub async fn open(&self, access: Access, sandbox: Sandbox) -> Result<OpenFileSystem> {
        let opener = Opener::new(access);
        let opened = opener.all(&self.devices)?;
        let others = Others { local: local_system_ids(), force: false };
        sandbox.enter()?;
        let writable = access == Access::Write;
        let options = Options {
            md: ashlar_md::Options { run: self.degraded, read_only: !writable, force: false },
            partial: self.degraded,
            others,
            ..Options::default()
        };
        let stack = assemble(&probe_all(opened).await, options, &disks::runtime()).await;
        opener.decorators.maps.keep_members(&stack);
        let found = self.open_on(&stack, writable).await;
        match found {
            Ok(fs) => Ok(OpenFileSystem { fs, stack }),
            Err(error) => stop(&stack).await.and(Err(error)),
        }
    }

    /// Identifies the file system on the devices, which are read without locks.
    ///
    /// # Errors
    /// There is no file system, or more than one.
    async fn identify(&self, sandbox: Sandbox) -> Result<Uuid> {
        let opened = Opener::new(Access::Look).all(&self.devices)?;
        sandbox.enter()?;
        let md = ashlar_md::Options { run: true, read_only: true, force: false };
        let options = Options { md, partial: true, ..Options::default() };
        let stack = assemble(&probe_all(opened).await, options, &disks::runtime()).await;
        let found = self.find(&stack).await.map(|(fsid, _)| fsid);
        stop(&stack).await.and(found)
    }

    /// The devices of the selected file system.
    pub async fn find(&self, stack: &Stack) -> Result<(Uuid, Vec<Device>)> {
        let mut found: Vec<(Uuid, Device)> = Vec::new();
        for device in self.among(stack)? {
            if let Some(fsid) = volume::identify(device.gateway()).await {
                found.push((fsid, device));
            }
        }
        if let Some(wanted) = self.fsid {
            found.retain(|(fsid, _)| *fsid == wanted);
        }
        let Some(first) = found.first().map(|(fsid, _)| *fsid) else {
            return Err(self.nothing(stack));
        };
        if let Some((other, _)) = found.iter().find(|(fsid, _)| *fsid != first) {
            let why = format!("there are {first} and {other}");
            let error = Error::new("more than one btrfs file system", self.given(), why);
            return Err(error.hint("choose one with --fsid"));
        }
        Ok((first, found.into_iter().map(|(_, device)| device).collect()))
    }

    /// The devices that may contain the file system.
    ///
    /// # Errors
    /// A selected device does not exist.
    fn among(&self, stack: &Stack) -> Result<Vec<Device>> {
        let mut volumes = stack.devices.volumes();
        let is_called = |device: &Device, name: &String| {
            [&device.path, &device.name].contains(&name) || device.links.contains(name)
        };
        for name in &self.on {
            if !volumes.iter().any(|device| is_called(device, name)) {
                let there: Vec<&str> = volumes.iter().map(Device::export_name).collect();
                let why = format!("there are {}", there.join(", "));
                return Err(Error::new("no such device", name, why));
            }
        }
        if !self.on.is_empty() {
            volumes.retain(|device| self.on.iter().any(|name| is_called(device, name)));
        }
        Ok(volumes)
    }

    async fn open_on(&self, stack: &Stack, writable: bool) -> Result<Arc<FileSystem>> {
        let (_, devices) = self.find(stack).await?;
        self.open_devices(&devices, stack, writable).await
    }

    /// Opens the file system on these devices of the stack.
    ///
    /// # Errors
    /// Those of [`FileSystem::open`].
    pub async fn open_devices(
        &self,
        devices: &[Device],
        stack: &Stack,
        writable: bool,
    ) -> Result<Arc<FileSystem>> {
        let given = self.given();
        let source = |device: &Device| Source {
            name: device.path.clone(),
            gateway: device.gateway().clone(),
        };
        let sources = devices.iter().map(source).collect();
        let options = OpenOptions { degraded: self.degraded, writable, stale: self.stale };
        let fs = FileSystem::open(sources, options, disks::runtime()).await.map_err(|error| {
            let hint = if matches!(error, OpenError::Twice { .. }) {
                Some("--on chooses one of several volumes")
            } else if matches!(error, OpenError::Missing { .. }) {
                Some("give them too, or --degraded opens it without them")
            } else if matches!(error, OpenError::Stale { .. }) {
                Some("leave it out and say --degraded, or --stale uses it as it is")
            } else if matches!(error, OpenError::ReadOnlyFeatures(_)) {
                Some("ashlar btrfs scrub start --readonly reads it")
            } else {
                None
            };
            let error = Error::new("cannot open the file system", given, error);
            match hint {
                Some(hint) => error.hint(hint),
                None => error,
            }
        })?;
        if writable {
            refuse_reused(&fs, stack)?;
        }
        Ok(fs)
    }

    fn given(&self) -> String {
        let all: Vec<String> = self.devices.iter().map(|path| path.display().to_string()).collect();
        all.join(" ")
    }

    /// The error when no file system was found, and perhaps why.
    fn nothing(&self, stack: &Stack) -> Error {
        let none = |why: String| Error::new("no btrfs file system", self.given(), why);
        let superblock = || none("no superblock of it is found".into());
        if let Some(group) = stack.refusals(Refused::Group).next() {
            let Refusal { name, why, .. } = group;
            let what = "ashlar btrfs scrub start --readonly reads it";
            let why = format!("volume group {name} is not used: {why}; {what}");
            return superblock().hint(why);
        }
        if let Some(RefusedOutsider { shown, outsider, .. }) = stack.refused_outsiders.first() {
            let what = "ashlar btrfs scrub start --readonly reads it";
            return superblock().hint(format!("{shown} is not used: it {outsider}; {what}"));
        }
        let Some(failure) = stack.failures.first() else {
            return superblock().hint("ashlar scan shows what there is");
        };
        let error = none(format!("{failure}: {}", failure.error));
        if matches!(failure.error, AssembleError::NeedsRun { .. }) {
            return error.hint("--degraded starts it without the others");
        }
        error
    }
}

impl OpenFileSystem {
    /// The devices of the file system, with their numbers there.
    pub(crate) fn devices(&self) -> Vec<(DevId, Device)> {
        let all = self.stack.devices.all();
        let here = self.fs.devices().iter();
        let found = here.filter_map(|device| {
            let on = all.iter().find(|it| it.path == device.name)?;
            Some((device.devid, on.clone()))
        });
        found.collect()
    }

    /// Whether the file system is directly on the only disk that was given.
    pub(crate) fn is_on_one_disk(&self) -> bool {
        self.stack.devices.all().len() == 1
    }

    /// Releases the devices.
    ///
    /// # Errors
    /// An array below could not be stopped cleanly.
    pub async fn close(self) -> Result<()> {
        drop(self.fs);
        stop(&self.stack).await
    }
}

/// Refuses a device whose first superblock is gone and that has a signature of something else: it was reused after it
/// had been part of the file system, and must not be changed back.
fn refuse_reused(fs: &FileSystem, stack: &Stack) -> Result<()> {
    for device in fs.devices().iter().filter(|device| device.is_by_backup()) {
        let all = stack.devices.all();
        let name = all.iter().find(|it| it.path == device.name).map(|it| it.name.as_str());
        let probe = stack.probes.iter().find(|probe| Some(probe.name.as_str()) == name);
        let Some(Ok(contents)) = probe.map(|probe| &probe.contents) else { continue };
        if let Some(other) = contents.foreign.iter().find(|it| it.name != "btrfs") {
            let why = format!("its first btrfs superblock is gone, and there is {other}");
            let error = Error::new("not to be repaired", &device.name, why);
            return Err(error.hint(
                "if it still belongs to the file system, erase the other signature with wipefs",
            ));
        }
    }
    Ok(())
}

async fn stop(stack: &Stack) -> Result<()> {
    stack.stop().await.map_err(|failed| {
        let all: Vec<String> = failed.iter().map(ToString::to_string).collect();
        Error::plain("cannot stop what the file system is on", all.join(", "))
    })
}
