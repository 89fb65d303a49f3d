//! Members of ZFS pools: devices with labels, and the places where the worker of a pool opens them.
//!
//! A disk that the user named has a path. A partition of a disk has none, unless the kernel made a
//! device for it; the worker opens it as a part of its disk. A device inside other devices exists
//! only in this process. A worker in a sandbox opens nothing, and gets all members as open files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ashlar_block::{Gateway, Sector, Sectors, Status};
use ashlar_zfs::client::DiskPart;
use ashlar_zfs::ondisk::config::{self, Health, ImportRefusal, Node};
use ashlar_zfs::ondisk::label::DeviceLabels;
use ashlar_zfs::ondisk::vdev::VdevKind;
use ashlar_zfs::protocol::ImportConfig;

use crate::claim::{self, Claim};
use crate::devices::{Device, Devices, Kind, Role};
use crate::names::partition_suffix;
use crate::owners;
use crate::partitions::Partition;
use crate::probe::probe;

/// The use of a member.
pub(crate) const MEMBER: Role = Role::Held("a member of a ZFS pool", "pool-member");

/// Where a worker finds a member.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its path in the pool's configuration.
    pub path: String,
    /// The part, if it is a part of a disk.
    pub part: Option<DiskPart>,
}

/// A pool member found on a disk.
pub struct FoundMember {
    /// Its location.
    pub place: Place,
    /// Its labels.
    pub labels: Box<DeviceLabels>,
}

/// The pool members on the disk at `path`: the disk itself, or its partitions.
///
/// # Errors
/// The disk cannot be read, or not be opened as a part.
pub async fn members_on(path: &Path, gateway: &Gateway) -> Result<Vec<FoundMember>, MembersError> {
    let contents = probe(gateway).await?;
    let claim = claim::read(gateway, &contents, false).await?.claim;
    let path = std::fs::canonicalize(path)?;
    if matches!(claim, Claim::Member(_))
        && owners::of_claim(gateway, &contents, &claim).await?.is_none()
    {
        // The labels belong to the contents of the array: one leg of a mirror must not be written alone.
        return Ok(Vec::new());
    }
    let Claim::Table(table) = claim else {
        let place = Place { path: path.display().to_string(), part: None };
        return Ok(contents
            .zfs
            .into_iter()
            .map(|labels| FoundMember { place: place.clone(), labels })
            .collect());
    };
    let mut found = Vec::new();
    for entry in table.entries {
        let name = format!(
            "{}{}",
            path.display(),
            partition_suffix(&path.to_string_lossy(), entry.number)
        );
        let partition = Partition::new(&*name, gateway.clone(), entry.start, entry.len);
        let contents = probe(&Gateway::new(Arc::new(partition))).await?;
        if let Some(labels) = contents.zfs {
            let place = part(name, &path, entry.start, entry.len)?;
            found.push(FoundMember { place, labels });
        }
    }
    Ok(found)
}

/// Why the members on a disk cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum MembersError {
    /// It cannot be read.
    #[error("{0}")]
    Read(#[from] Status),
    /// It cannot be opened again.
    #[error(transparent)]
    Open(#[from] std::io::Error),
}

/// A partition of the disk at `disk`: the kernel's device for it, or a part of the disk.
fn part(path: String, disk: &Path, start: Sector, len: Sectors) -> std::io::Result<Place> {
    if let Ok(path) = std::fs::canonicalize(&path)
        && path.starts_with("/dev")
    {
        return Ok(Place { path: path.display().to_string(), part: None });
    }
    let part = DiskPart::new(PathBuf::from(&path), disk, start.bytes(), len.bytes())?;
    Ok(Place { path, part: Some(part) })
}

/// The disk that a device is, or is a part of: with the part.
///
/// # Errors
/// The device is inside of others: why no pool is imported from it.
pub(crate) fn lower_disk(
    device: &Device,
    devices: &Devices,
) -> Result<(Device, Option<(Sector, Sectors)>), String> {
    let (mut lower, mut start, mut len) = (device.clone(), Sector(0), None);
    while let Kind::Partition(entry) = &lower.kind {
        start += Sectors(entry.start.0);
        len.get_or_insert(entry.len);
        lower = match lower.below.first().and_then(|name| devices.find(name)) {
            Some(lower) => lower,
            None => return Err("is a partition of an unknown disk".to_owned()),
        };
    }
    if !lower.kind.is_disk() {
        let why = "is part of a ZFS pool, which can only be imported from disks and their partitions: this device is inside others";
        return Err(why.to_owned());
    }
    Ok((lower, len.map(|len| (start, len))))
}

/// The place where a worker can open a device; a worker in a sandbox gets the open disk.
///
/// # Errors
/// The device cannot be opened: the reason.
fn place(device: &Device, devices: &Devices, is_confined: bool) -> Result<Place, String> {
    let failed = |error| format!("cannot be opened by a worker: {error}");
    let (lower, part_of) = lower_disk(device, devices)?;
    let disk = std::fs::canonicalize(&lower.path).map_err(failed)?;
    let path = match part_of {
        None => disk.clone(),
        Some(_) => {
            let name = Path::new(&device.path).file_name().unwrap_or_default();
            disk.with_file_name(name)
        }
    };
    let text = path.display().to_string();
    if is_confined {
        let file = lower.gateway().lend().map_err(failed)?;
        let (start, len) = part_of.unzip();
        let start_bytes = start.map_or(0, Sector::bytes);
        let part = DiskPart::of(path, file, start_bytes, len.map(Sectors::bytes));
        return Ok(Place { path: text, part: Some(part) });
    }
    match part_of {
        None => Ok(Place { path: text, part: None }),
        Some((start, len)) => part(text, &disk, start, len).map_err(failed),
    }
}

/// A present member of a pool.
struct Member {
    /// The name of its device.
    device: String,
    place: Place,
    depth: usize,
    labels: Box<DeviceLabels>,
}

/// The members found so far.
#[derive(Default)]
pub(crate) struct Members {
    all: Vec<Member>,
    /// The pools that the builder tried to import.
    tried: BTreeSet<u64>,
}

/// A pool that may be imported.
pub(crate) struct ReadyPool {
    pool: config::Pool,
    pub(crate) depth: usize,
    pub(crate) below: Vec<String>,
    /// The members that are parts of disks.
    pub(crate) parts: Vec<DiskPart>,
    /// The paths of all members.
    paths: Vec<String>,
}

impl ReadyPool {
    /// The pool's name.
    pub(crate) fn name(&self) -> &str {
        &self.pool.name
    }

    /// Its health.
    pub(crate) fn health(&self) -> Health {
        self.pool.health
    }

    /// Messages to the user about its members: damaged labels, disks that are no longer in the pool.
    pub(crate) fn problems(&self) -> &[String] {
        &self.pool.problems
    }

    /// The top-level vdevs of which no device has a label, each with what is wrong with it.
    pub(crate) fn missing(&self) -> Vec<String> {
        let missing = |vdev: &&Node| vdev.kind == VdevKind::Missing;
        self.pool.vdevs.iter().filter(missing).flat_map(Node::told).collect()
    }

    /// The configuration for the worker.
    ///
    /// # Errors
    /// The pool cannot be imported.
    pub(crate) fn config(&self) -> Result<ImportConfig, ImportRefusal> {
        let path_of = |index: usize| self.paths.get(index).cloned().unwrap_or_default();
        Ok(ImportConfig::from(&self.pool.import_config(&path_of)?))
    }
}

impl Members {
    /// Adds a device with labels.
    ///
    /// # Errors
    /// A worker cannot open it.
    pub(crate) fn add(
        &mut self,
        device: &Device,
        depth: usize,
        labels: &DeviceLabels,
        devices: &Devices,
        is_confined: bool,
    ) -> Result<(), String> {
        let place = place(device, devices, is_confined)?;
        let (device, labels) = (device.name.clone(), Box::new(labels.clone()));
        self.all.push(Member { device, place, depth, labels });
        Ok(())
    }

    /// The next untried pool: one with all members, or any if `any` is set.
    pub(crate) fn next(&mut self, any: bool) -> Option<ReadyPool> {
        let devices: Vec<config::Device<'_>> = self
            .all
            .iter()
            .map(|member| config::Device { path: &member.place.path, labels: &member.labels })
            .collect();
        let pools = config::pools(&devices).pools;
        let pool = pools.into_iter().find(|pool| {
            !self.tried.contains(&pool.guid) && (any || pool.health == Health::Online)
        })?;
        self.tried.insert(pool.guid);
        let members = || pool.devices.iter().filter_map(|index| self.all.get(*index));
        let below = members().map(|member| member.device.clone()).collect();
        let depth = members().map(|member| member.depth).max().unwrap_or(0);
        let parts = members().filter_map(|member| member.place.part.clone()).collect();
        let paths = self.all.iter().map(|member| member.place.path.clone()).collect();
        Some(ReadyPool { pool, depth, below, parts, paths })
    }
}
