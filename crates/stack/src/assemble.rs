//! From disks to running volumes.
//!
//! Assembly does not change the contents of volumes. Arrays write their superblocks with their first write; but in
//! writable groups, stores of new snapshots get their headers, and started merges continue:
//! so a stack must be stopped, not dropped.

use std::path::PathBuf;
use std::sync::Arc;

use ashlar_block::{Gateway, Runtime, Status};
use ashlar_md::ondisk::{Belonging, MdadmUuid};
use ashlar_md::{AssembleError, Candidate};
use thiserror::Error;
use uuid::Uuid;

use crate::arrays::Arrays;
use crate::attributes::{Attributes, Shown};
use crate::builder::Builder;
use crate::devices::{Device, Devices, Kind, Role};
use crate::names::{ArrayName, Names};
use crate::pools::{self, Pools, RefusedPool};
use crate::probe::{Contents, Md, probe};
use crate::volume_groups::{RefusedVolume, VolumeGroups};

/// A disk at hand.
pub struct Disk {
    /// Where the user has it.
    pub path: PathBuf,
    /// The device.
    pub gateway: Gateway,
}

/// A disk and what is on it.
pub struct Probed {
    /// The disk.
    pub disk: Disk,
    /// What is on it, or why that cannot be known.
    pub contents: Result<Contents, Status>,
}

/// How to assemble.
#[derive(Clone, Default, Debug)]
pub struct Options {
    /// How to assemble arrays.
    pub md: ashlar_md::Options,
    /// The name for the first array, instead of its superblock's.
    pub rename: Option<String>,
    /// Whether disks and arrays are used as they are: only members of arrays are looked for.
    pub whole: bool,
    /// Whether logical volumes are made that lack physical volumes: I/O fails where they were.
    pub partial: bool,
    /// How pools of ZFS are imported; `None`: not at all.
    pub pools: Option<pools::Options>,
}

/// What the user should know of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The name of the device.
    pub device: String,
    /// What there is to know.
    pub text: String,
}

/// What was found on a device of the stack.
pub struct Looked {
    /// The name of the device.
    pub name: String,
    /// What is on it, or why that cannot be known.
    pub contents: Result<Contents, Status>,
    /// The kind of the partition table that is used: `gpt`, `dos`.
    pub scheme: Option<&'static str>,
}

/// An array that could not be started.
pub struct Failure {
    /// What it would be called.
    pub name: ArrayName,
    /// Its name in the superblocks.
    pub set_name: String,
    /// Its identity.
    pub uuid: Uuid,
    /// Why.
    pub error: AssembleError,
    /// Its members, as far as they are there.
    pub candidates: Vec<Candidate>,
    /// Whether there are members that are no disks of the user's: something that lies deeper.
    pub is_nested: bool,
}

/// What was made of some disks.
pub struct Stack {
    /// All devices.
    pub devices: Arc<Devices>,
    /// The arrays.
    pub arrays: Arc<Arrays>,
    /// The arrays that did not start.
    pub failures: Vec<Failure>,
    /// What the user should know.
    pub notes: Vec<Note>,
    /// What is on the devices, in the order they were looked at.
    pub looked: Vec<Looked>,
    /// The logical volumes that could not be made.
    pub refused_volumes: Vec<RefusedVolume>,
    /// The pools of ZFS.
    pub pools: Arc<Pools>,
    /// The pools that could not be imported.
    pub refused_pools: Vec<RefusedPool>,
    /// The names that are given.
    pub(crate) names: Names,
    /// The physical volumes that were found.
    pub(crate) groups: VolumeGroups,
}

/// A disk that cannot be used for anything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedDisk {
    /// Where the user has it.
    pub path: String,
    /// Why.
    pub why: String,
    /// It is a member of an array, with a damaged md superblock.
    pub is_member: bool,
    /// The array that it is a member of runs without it, as it may.
    pub is_left_out: bool,
}

/// Whether an array needs a disk that cannot be used.
#[derive(PartialEq, Eq)]
enum Need {
    None,
    Some,
    /// It is no member of an array.
    Unknown,
    /// Its array runs without it, but it has changes that the others lack: counts of events.
    Fresher {
        member: u64,
        array: u64,
    },
}

/// A disk that is part of nothing.
#[derive(Debug, Error)]
pub enum NotAMember {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(Status),
    /// Its md superblock is damaged.
    #[error("{0}")]
    Damaged(ashlar_md::ondisk::SuperblockError),
    /// There is no md superblock.
    #[error("holds no array{}", found(.0))]
    Foreign(Vec<String>),
}

fn found(claims: &[String]) -> String {
    if claims.is_empty() { String::new() } else { format!(" (found: {})", claims.join(", ")) }
}

impl Probed {
    /// The disk as a candidate for an array.
    ///
    /// # Errors
    /// It is none.
    pub fn candidate(&self) -> Result<Candidate, NotAMember> {
        match &self.contents {
            Err(status) => Err(NotAMember::Unreadable(*status)),
            Ok(Contents { md: Md::Member(sb), .. }) => Ok(Candidate {
                gateway: self.disk.gateway.clone(),
                path: self.disk.path.display().to_string(),
                sb: sb.clone(),
            }),
            Ok(Contents { md: Md::Damaged(error), .. }) => Err(NotAMember::Damaged(error.clone())),
            Ok(contents @ Contents { md: Md::None, .. }) => {
                Err(NotAMember::Foreign(contents.claims()))
            }
        }
    }
}

/// Looks at all `disks`.
pub async fn probe_all(disks: Vec<Disk>) -> Vec<Probed> {
    let mut probed = Vec::new();
    for disk in disks {
        let contents = probe(&disk.gateway).await;
        probed.push(Probed { disk, contents });
    }
    probed
}

/// Makes everything of the disks in `probed` that can be made: see docs/internals/stack.md.
pub async fn assemble(probed: &[Probed], options: Options, runtime: &Arc<dyn Runtime>) -> Stack {
    let (devices, arrays) = (Arc::new(Devices::default()), Arc::new(Arrays::default()));
    let pools = Arc::new(Pools::new(options.pools.as_ref()));
    let mut builder = Builder::new(devices, arrays, pools, options, Arc::clone(runtime));
    for Probed { disk, contents } in probed {
        builder.add_disk(&disk.path.display().to_string(), &disk.gateway, contents);
    }
    builder.run().await;
    let Builder {
        devices,
        arrays,
        pools,
        names,
        groups,
        failures,
        refused_volumes,
        refused_pools,
        notes,
        looked,
        ..
    } = builder;
    Stack {
        devices,
        arrays,
        failures,
        notes,
        looked,
        refused_volumes,
        pools,
        refused_pools,
        names,
        groups,
    }
}

impl Stack {
    /// The attributes of all devices.
    pub fn attributes(&self) -> Attributes {
        let (devices, arrays) = (Arc::clone(&self.devices), Arc::clone(&self.arrays));
        Attributes::new(Shown { devices, arrays, pools: Arc::clone(&self.pools) })
    }

    /// The disks of the user's that cannot be used for anything. With `run` arrays may do without such
    /// members.
    pub fn refused(&self, run: bool) -> Vec<RefusedDisk> {
        let mut refused = self.devices.all();
        refused.retain(|device| device.kind == Kind::Disk && device.role == Role::Refused);
        let refused = refused.into_iter().map(|device| {
            let about = self.notes.iter().filter(|note| note.device == device.name);
            let mut why = about.map(|note| note.text.as_str()).collect::<Vec<_>>().join("; ");
            let need = self.need(&device, run);
            if let Need::Fresher { member, array } = need {
                why += &format!("; it is fresher (events {member}) than the others ({array})");
            }
            let is_member = need != Need::Unknown;
            RefusedDisk { path: device.path, why, is_member, is_left_out: need == Need::None }
        });
        refused.collect()
    }

    /// Whether an array needs a disk with a damaged md superblock: one that runs without it does not, if it is
    /// complete or was told to.
    fn need(&self, device: &Device, run: bool) -> Need {
        let looked = self.looked.iter().rfind(|looked| looked.name == device.name);
        let Some(Looked { contents: Ok(Contents { md: Md::Damaged(error), .. }), .. }) = looked
        else {
            return Need::Unknown;
        };
        let running = self.arrays.running();
        let mut running = running.iter().map(|volume| volume.view.status());
        let Some(Belonging { set_uuid, events }) = error.belongs else {
            // Its array is not known: it may be one that lacks a member.
            let lacks_one = run && running.any(|array| array.degraded > 0);
            return if lacks_one { Need::None } else { Need::Some };
        };
        match running.find(|array| array.uuid == set_uuid) {
            // What was written to it since the others were left behind would be lost.
            Some(array) if events > array.events.saturating_add(1) => {
                Need::Fresher { member: events, array: array.events }
            }
            Some(array) if run || array.degraded == 0 => Need::None,
            Some(_) | None => Need::Some,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let uuid = MdadmUuid(self.uuid);
        match self.set_name.as_str() {
            "" => write!(f, "array {uuid}"),
            name => write!(f, "array {name} ({uuid})"),
        }
    }
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.device, self.text)
    }
}
