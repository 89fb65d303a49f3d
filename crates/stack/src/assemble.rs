//! From disks to running volumes.
//!
//! Assembly does not change the contents of volumes. Arrays write their superblocks with their first write; but in
//! writable groups, stores of new snapshots get their headers, and started merges continue:
//! so a stack must be stopped, not dropped.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use ashlar_block::{Gateway, Runtime, Status};
use ashlar_md::Candidate;
use ashlar_md::ondisk::ArrayEvents;
use thiserror::Error;

use crate::arrays::Arrays;
use crate::builder::Builder;
use crate::devices::{Device, Devices, Role};
pub use crate::findings::{DeviceProbe, Failure, Note, Options, Others};
use crate::names::Names;
use crate::outsiders::RefusedOutsider;
use crate::pools::Pools;
use crate::probe::{Contents, Md, probe_readable};
pub use crate::refusals::{Refusal, Refused};
use crate::volume_groups::{COMPONENT, FREE, VolumeGroups};

/// An open disk.
pub struct Disk {
    /// The path that the user gave.
    pub path: PathBuf,
    /// The device.
    pub gateway: Gateway,
}

/// A disk and its contents.
pub struct ProbedDisk {
    /// The disk.
    pub disk: Disk,
    /// Its contents, or why they cannot be read.
    pub contents: Result<Contents, Status>,
}

/// The result of an assembly.
pub struct Stack {
    /// All devices.
    pub devices: Arc<Devices>,
    /// The arrays.
    pub arrays: Arc<Arrays>,
    /// The arrays that did not start.
    pub failures: Vec<Failure>,
    /// Messages to the user.
    pub notes: Vec<Note>,
    /// The probed devices, in order.
    pub probes: Vec<DeviceProbe>,
    /// The devices that are not used, because something else than ashlar writes to them.
    pub refused_outsiders: Vec<RefusedOutsider>,
    /// The volume groups, pools and volumes that are not used.
    pub(crate) refusals: Vec<Refusal>,
    /// The pools of ZFS.
    pub pools: Arc<Pools>,
    /// The devices of which too much cannot be read.
    pub(crate) unreadable: BTreeSet<String>,
    /// The names in use.
    pub(crate) names: Names,
    /// The physical volumes that were found.
    pub(crate) groups: VolumeGroups,
    /// Whether a volume group is in use, in which volumes can be made.
    has_group: bool,
}

/// Why there is nothing to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nothing {
    /// What cannot be used, as its user knows it.
    pub shown: String,
    /// Why.
    pub why: String,
    /// Whether it is a volume that cannot be made.
    pub is_volume: bool,
}

/// A disk that cannot be used for anything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedDisk {
    /// The path that the user gave, or the name of an array.
    pub path: String,
    /// Why.
    pub why: String,
    /// Whether it is one of the user's disks: not a partition or an array.
    pub is_disk: bool,
    /// Whether it is a member of an array, with a damaged md superblock.
    pub is_member: bool,
    /// Whether it cannot be read, or a part of it that may say whose it is.
    pub is_unreadable: bool,
    /// Whether all else can be served without it: its array runs without it and was allowed to, or it cannot be read and there is
    /// something else.
    pub is_left_out: bool,
}

/// Whether an array needs a disk that cannot be used.
#[derive(PartialEq, Eq)]
enum Need {
    None,
    Some,
    /// The disk is not a member of an array.
    Unknown,
    /// The array runs without the disk, but the disk has changes that the others lack: the event counts.
    Fresher {
        member: u64,
        array: u64,
    },
}

/// Why a disk is not a member of an array.
#[derive(Debug, Error)]
pub enum MembershipError {
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

impl ProbedDisk {
    /// Whether it is mdadm's backup of what a reshape moves in place.
    pub fn is_reshape_backup(&self) -> bool {
        self.contents.as_ref().is_ok_and(Contents::is_reshape_backup)
    }

    /// The disk as a member of an array.
    ///
    /// # Errors
    /// It is not a member.
    pub fn candidate(&self) -> Result<Candidate, MembershipError> {
        match &self.contents {
            Err(status) => Err(MembershipError::Unreadable(*status)),
            Ok(Contents { md: Md::Member(sb), .. }) => Ok(Candidate {
                gateway: self.disk.gateway.clone(),
                path: self.disk.path.display().to_string(),
                sb: sb.clone(),
            }),
            Ok(Contents { md: Md::Damaged(error), .. }) => {
                Err(MembershipError::Damaged(error.clone()))
            }
            Ok(contents @ Contents { md: Md::None, unread, .. }) => {
                match unread.as_ref().filter(|unread| unread.hidden_owner(true).is_some()) {
                    Some(unread) => Err(MembershipError::Unreadable(unread.status())),
                    None => Err(MembershipError::Foreign(contents.claims())),
                }
            }
        }
    }
}

/// Looks at all `disks`.
pub async fn probe_all(disks: Vec<Disk>) -> Vec<ProbedDisk> {
    let mut probed = Vec::new();
    for disk in disks {
        let contents = probe_readable(&disk.gateway).await;
        probed.push(ProbedDisk { disk, contents });
    }
    probed
}

/// Makes all devices that can be made of the disks in `probed`: see docs/internals/stack.md.
pub async fn assemble(
    probed: &[ProbedDisk],
    options: Options,
    runtime: &Arc<dyn Runtime>,
) -> Stack {
    let (devices, arrays) = (Arc::new(Devices::default()), Arc::new(Arrays::default()));
    let pools = Arc::new(Pools::new(options.pools.as_ref()));
    let mut builder = Builder::new(devices, arrays, pools, options, Arc::clone(runtime));
    for ProbedDisk { disk, contents } in probed {
        builder.add_disk(&disk.path.display().to_string(), &disk.gateway, contents);
    }
    builder.run().await;
    builder.settle();
    Stack {
        devices: builder.devices,
        arrays: builder.arrays,
        failures: builder.failures,
        notes: builder.notes,
        probes: builder.probes,
        refused_outsiders: builder.refused_outsiders,
        refusals: builder.refusals,
        pools: builder.pools,
        unreadable: builder.unreadable,
        names: builder.names,
        has_group: builder.groups.is_any_active(),
        groups: builder.groups,
    }
}

impl Stack {
    /// The user's disks, their partitions and the arrays on these that cannot be used for anything. With `run`, arrays may run without
    /// these members.
    pub fn refused(&self, run: bool) -> Vec<RefusedDisk> {
        let all = self.devices.all();
        let is_users = |name: &String| self.devices.is_users(name);
        let is_named = |device: &Device| {
            is_users(&device.name) || device.kind.is_array() && device.below.iter().all(is_users)
        };
        let refused = all.iter().filter(|device| device.role == Role::Refused && is_named(device));
        let refused = refused.cloned().map(|device| {
            let about = self.notes.iter().filter(|note| note.device == device.name);
            let mut why = about.map(|note| note.text.as_str()).collect::<Vec<_>>().join("; ");
            let is_unreadable = self.unreadable.contains(&device.name);
            let need = self.need(&device, run);
            if let Need::Fresher { member, array } = need {
                why += &format!("; it is fresher (events {member}) than the others ({array})");
            }
            let is_member = need != Need::Unknown;
            let is_left_out = need == Need::None || is_unreadable && self.is_anything();
            let is_disk = device.kind.is_disk();
            let path = if device.kind.is_array() { device.name } else { device.path };
            RefusedDisk { path, why, is_disk, is_member, is_unreadable, is_left_out }
        });
        refused.collect()
    }

    /// What of this kind is not used.
    pub fn refusals(&self, what: Refused) -> impl Iterator<Item = &Refusal> {
        self.refusals.iter().filter(move |refusal| refusal.what == what)
    }

    /// The physical volume on the device of this name: its UUID, and the name of its group if that can be read.
    pub fn physical_on(&self, device: &str) -> Option<(ashlar_lvm::Uuid, Option<&str>)> {
        self.groups.physical_on(device)
    }

    /// Why there is nothing to serve; `None` if the only reason is that no volume exists yet.
    pub fn why_nothing(&self) -> Option<Nothing> {
        if let Some(refused) = self.refusals(Refused::Volume).next() {
            let (shown, why) = (refused.name.clone(), refused.why.clone());
            return Some(Nothing { shown, why, is_volume: true });
        }
        if self.has_group {
            return None;
        }
        let mut notes = self.notes.iter().filter(|note| note.text != FREE);
        let of_unused = |note: &&Note| {
            let device = self.devices.find(&note.device);
            device.is_some_and(|device| !matches!(device.role, Role::Volume | COMPONENT))
        };
        let Note { shown, text, .. } = notes.find(of_unused)?;
        Some(Nothing { shown: shown.clone(), why: text.clone(), is_volume: false })
    }

    /// Whether there is something to serve, or may be when more members arrive.
    fn is_anything(&self) -> bool {
        let has_arrays = !self.failures.is_empty() || !self.arrays.waiting().is_empty();
        has_arrays || !self.devices.volumes().is_empty() || !self.pools.all().is_empty()
    }

    /// Whether an array needs a disk with a damaged md superblock. An array that runs without it
    /// does not, if it is complete or `run` is set.
    fn need(&self, device: &Device, run: bool) -> Need {
        let probe = self.probes.iter().rfind(|probe| probe.name == device.name);
        let Some(DeviceProbe { contents: Ok(Contents { md: Md::Damaged(error), .. }), .. }) = probe
        else {
            return Need::Unknown;
        };
        let running = self.arrays.running();
        let mut running = running.iter().map(|volume| volume.view.status());
        let Some(ArrayEvents { set_uuid, events }) = error.belongs else {
            // The disk's array is unknown: it may be any array that lacks a member.
            let lacks_one = run && running.any(|array| array.degraded > 0);
            return if lacks_one { Need::None } else { Need::Some };
        };
        match running.find(|array| array.uuid == set_uuid) {
            // This disk was written to after the others had dropped out: that data would be lost.
            Some(array) if events > array.events.saturating_add(1) => {
                Need::Fresher { member: events, array: array.events }
            }
            Some(array) if run || array.degraded == 0 => Need::None,
            Some(_) | None => Need::Some,
        }
    }
}
