//! Which of the served devices are snapshots, or have one merged into them, and how full these are.
//!
//! All of it comes from the registry and from the devices' own status, so it is known while a change has the turn of the stack.

use std::collections::HashMap;

use ashlar_dm::snapshot::{Changes, Status, StatusLine};
use ashlar_lvm::report::Percent;
use ashlar_lvm::snapshots::used_percent;

use crate::devices::{Device, Kind};

/// The state of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotState {
    /// It can be read and written.
    Active,
    /// It is being merged into its origin.
    Merging,
    /// That has failed.
    MergeFailed,
    /// Its own writes found no room: it can still be read.
    Overflow,
    /// It lost data, and all its I/O fails.
    Invalid,
}

impl SnapshotState {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Active, Self::Merging, Self::MergeFailed, Self::Overflow, Self::Invalid];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Merging => "merging",
            Self::MergeFailed => "merge-failed",
            Self::Overflow => "overflow",
            Self::Invalid => "invalid",
        }
    }
}

/// A snapshot as the device shows it that is the snapshot, or into which it is merged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotUse {
    /// The name of the origin for clients: `vg/data`.
    pub origin: String,
    /// Its state.
    pub state: SnapshotState,
    /// The used part of its space, as `lvs` shows it, if it is known.
    pub percent: Option<Percent>,
    /// Bytes of its space in use with the metadata, if that is known.
    pub used_bytes: Option<u64>,
    /// Bytes of its space.
    pub size_bytes: u64,
}

/// See the module text.
pub struct Snapshots<'a> {
    by_name: HashMap<&'a str, &'a Device>,
    /// By the name of the device mapper.
    by_mapper: HashMap<&'a str, &'a Device>,
}

fn mapper_name(device: &Device) -> Option<&str> {
    device.links.iter().find_map(|link| link.strip_prefix("mapper/"))
}

impl<'a> Snapshots<'a> {
    /// Those among all devices of a registry.
    pub fn among(all: &'a [Device]) -> Self {
        let by_name = all.iter().map(|device| (device.name.as_str(), device)).collect();
        let by_mapper = all.iter().filter_map(|device| Some((mapper_name(device)?, device)));
        Self { by_name, by_mapper: by_mapper.collect() }
    }

    /// The name of the origin for the device mapper, and the device with the exceptions, if `device` is a snapshot, or if one is merged into it.
    fn layers(&self, device: &Device) -> Option<(&'a str, &'a Device)> {
        let below = || device.below.iter().filter_map(|name| self.by_name.get(name.as_str()));
        // A dash within the name of a volume is doubled: a single one begins the name of a layer.
        let layer = |of: &'a Device, name: &str| mapper_name(of)?.strip_suffix(name);
        let origin = below().find_map(|lower| layer(lower, "-real"))?;
        let cow = below().find(|lower| layer(lower, "-cow").is_some())?;
        Some((origin, cow))
    }

    /// The snapshots that have the same origin as `device`, or whose origin it is, with where they differ from the origin; `device` itself, if it is
    /// a snapshot.
    pub fn family(&self, device: &Device) -> Vec<(&'a Device, Changes)> {
        let own = match self.layers(device) {
            Some((origin, _)) => Some(origin),
            None => mapper_name(device),
        };
        let changes = |other: &'a Device| {
            let Kind::Logical(mapped) = &other.kind else { return None };
            let (origin, _) = self.layers(other)?;
            let changes = mapped.changes().filter(|_| Some(origin) == own)?;
            Some((other, changes))
        };
        let mut family: Vec<_> = self.by_name.values().copied().filter_map(changes).collect();
        family.sort_unstable_by_key(|(other, _)| other.export_name());
        family
    }

    /// What `device` says of a snapshot, if it is one, or if one is merged into it.
    pub fn of(&self, device: &Device) -> Option<SnapshotUse> {
        let Kind::Logical(mapped) = &device.kind else { return None };
        let (origin, cow) = self.layers(device)?;
        let StatusLine { is_merge, status } = mapped.status().parse().ok()?;
        let of = self.by_mapper.get(origin);
        // A read-only origin shows the result of a merge that does not run.
        let is_merge = is_merge || of.is_some_and(|of| of.name == device.name);
        let size_bytes = cow.bytes.size_bytes();
        let (state, used_bytes) = match status {
            Status::Valid(usage) if is_merge => {
                (SnapshotState::Merging, Some(usage.allocated.bytes()))
            }
            Status::Valid(usage) => (SnapshotState::Active, Some(usage.allocated.bytes())),
            Status::Overflow => (SnapshotState::Overflow, Some(size_bytes)),
            Status::Invalid => (SnapshotState::Invalid, Some(size_bytes)),
            Status::MergeFailed => (SnapshotState::MergeFailed, None),
            // Only while its table is loaded.
            Status::Unknown => return None,
        };
        let origin = of.map_or(origin, |of| of.export_name()).to_owned();
        Some(SnapshotUse { origin, state, percent: used_percent(status), used_bytes, size_bytes })
    }
}
