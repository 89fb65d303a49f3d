//! Finds the pools on a set of devices and their health, and makes the configuration for libzpool
//! to import one.
//!
//! A label describes only its own top-level vdev. So a pool is assembled from the newest label of
//! each top-level vdev; the newest label overall determines their number.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::label::{DeviceLabels, Label, Member, PoolState};
use super::nvlist::{NvList, Value};
use super::vdev::{DisuseReason, Vdev, VdevKind};

/// Maximum number of top-level vdevs: limits the memory for vdevs that a label only counts.
const MAX_TOP_LEVEL: u64 = 4096;
/// Prefix for the path of a missing leaf. Nothing can be opened there, whatever exists at the
/// original path: a disk that the user did not name is not touched.
const NOT_HERE: &str = "/dev/null";

/// A device with labels.
#[derive(Clone, Copy)]
pub struct Device<'a> {
    /// The path that the user gave.
    pub path: &'a str,
    /// Its labels.
    pub labels: &'a DeviceLabels,
}

/// ZFS members among some devices.
#[derive(Clone, Debug, Default)]
pub struct PoolSurvey {
    /// Pools, in the order of their first devices.
    pub pools: Vec<Pool>,
    /// Hot spares and caches, which do not record their pool. Indices of the devices.
    pub kept: Vec<(usize, PoolState)>,
    /// Devices that were removed from their pool, or never completely added: indices.
    pub released: Vec<usize>,
    /// Devices with traces of ZFS, but no usable label: indices.
    pub damaged: Vec<usize>,
}

/// A pool, as described by its labels.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub guid: u64,
    /// Whether it was exported cleanly.
    pub state: PoolState,
    /// Its version: 5000 since there are feature flags.
    pub version: u64,
    /// Transaction group of the newest label.
    pub txg: u64,
    /// Transaction group of the newest uberblock, and its time, seconds since 1970.
    pub uberblock: Option<(u64, u64)>,
    /// ID of the host that last used it, if that host had one.
    pub hostid: Option<u64>,
    /// Name of the host that last used it.
    pub hostname: Option<String>,
    /// Features required even for reading.
    pub features_for_read: Vec<String>,
    /// The top-level vdevs, by index.
    pub vdevs: Vec<Node>,
    /// Its health.
    pub health: Health,
    /// Messages to the user.
    pub problems: Vec<String>,
    /// Indices of its devices.
    pub devices: Vec<usize>,
    /// Members that exist twice: the pool must not be used then.
    copies: Vec<String>,
    /// The configuration, with the paths of the labels.
    config: NvList,
}

/// A vdev of a pool, and its state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Its name in `zpool status`; for a present leaf, its path.
    pub name: String,
    /// Its type.
    pub kind: VdevKind,
    /// Its identity.
    pub guid: u64,
    /// Whether it is a log device.
    pub is_log: bool,
    /// Index of its device, for a present leaf.
    pub device: Option<usize>,
    /// Its health.
    pub health: Health,
    /// Its defect.
    pub problem: Option<String>,
    /// Its children.
    pub children: Vec<Node>,
}

/// The health of a vdev or a pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// Everything is present.
    Online,
    /// All data is present, but not all redundancy.
    Degraded,
    /// Data is missing.
    Unavailable,
}

/// Why a pool cannot be imported.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ImportRefusal {
    /// It was destroyed.
    #[error("pool {0} was destroyed")]
    Destroyed(String),
    /// Two devices have the same identity, and it is unknown which is the copy.
    #[error("pool {name} cannot be used: {}", .copies.join("; "))]
    Copies {
        /// The pool's name.
        name: String,
        /// The duplicates.
        copies: Vec<String>,
    },
    /// Data is missing.
    #[error("pool {name} is not complete: {}", .problems.join("; "))]
    Incomplete {
        /// The pool's name.
        name: String,
        /// The missing parts.
        problems: Vec<String>,
    },
}

/// A member of a pool: the label of a device.
struct PresentMember<'a> {
    index: usize,
    path: &'a str,
    labels: &'a DeviceLabels,
    label: &'a Label,
    member: &'a Member,
}

/// The pools on `devices`.
pub fn pools(devices: &[Device<'_>]) -> PoolSurvey {
    let mut found = PoolSurvey::default();
    let mut order: Vec<u64> = Vec::new();
    let mut members: BTreeMap<u64, Vec<PresentMember<'_>>> = BTreeMap::new();
    for (index, Device { path, labels }) in devices.iter().enumerate() {
        match labels.label() {
            Some(label) => match &label.member {
                Some(member) if member.txg == 0 => found.released.push(index),
                Some(member) => {
                    let of_pool = members.entry(member.pool_guid).or_default();
                    if of_pool.is_empty() {
                        order.push(member.pool_guid);
                    }
                    of_pool.push(PresentMember { index, path, labels, label, member });
                }
                None => found.kept.push((index, label.state)),
            },
            None if labels.is_any() => found.damaged.push(index),
            None => {}
        }
    }
    found.pools = order.iter().filter_map(|guid| Pool::of(members.get(guid)?)).collect();
    found
}

impl Pool {
    /// The pool with these members; `None` without members.
    fn of(present: &[PresentMember<'_>]) -> Option<Self> {
        // The first of equally new labels.
        let newest = present
            .iter()
            .reduce(|best, other| if other.member.txg > best.member.txg { other } else { best })?;
        let tops = Top::collect(present, newest.member);
        let mut seen: BTreeMap<u64, Vec<&PresentMember<'_>>> = BTreeMap::new();
        for device in present {
            seen.entry(device.label.guid).or_default().push(device);
        }
        let copies = seen.iter().filter(|(_, devices)| devices.len() > 1).map(|(guid, devices)| {
            let paths: Vec<&str> = devices.iter().map(|device| device.path).collect();
            format!("{} are the same vdev {guid}, all but one of them copies", paths.join(" and "))
        });
        let copies: Vec<String> = copies.collect();
        let vdevs: Vec<Node> = tops.iter().map(|top| top.node(&seen)).collect();
        let mut problems = copies.clone();
        let stray =
            present.iter().filter(|device| !vdevs.iter().any(|vdev| vdev.has(device.index)));
        // Of several copies, one is in the tree, and the others were already reported.
        for device in stray.filter(|device| seen[&device.label.guid].len() == 1) {
            problems.push(format!("{} was in this pool, and no longer is", device.path));
        }
        for device in present {
            let of_labels = device.labels.problems().into_iter();
            problems.extend(of_labels.map(|problem| format!("{}: {problem}", device.path)));
        }
        let config = config(newest, &tops);
        let health = root_health(&vdevs);
        let uberblocks = present.iter().filter_map(|device| device.labels.uberblock());
        let uberblock = uberblocks.max_by_key(|uberblock| uberblock.age());
        Some(Self {
            name: newest.member.pool_name.clone(),
            guid: newest.member.pool_guid,
            state: newest.label.state,
            version: newest.label.version,
            txg: newest.member.txg,
            uberblock: uberblock.map(|uberblock| (uberblock.txg, uberblock.timestamp)),
            hostid: newest.member.hostid,
            hostname: newest.member.hostname.clone(),
            features_for_read: newest.member.features_for_read.clone(),
            vdevs,
            health,
            problems,
            devices: present.iter().map(|device| device.index).collect(),
            copies,
            config,
        })
    }

    /// Whether all that is missing may be log devices: of each unavailable top-level vdev there is no label, so only the
    /// pool's own configuration, which libzpool reads, says what it was.
    pub fn may_lack_only_logs(&self) -> bool {
        let is_available = |vdev: &Node| vdev.health != Health::Unavailable;
        let mut data = self.vdevs.iter().filter(|vdev| !vdev.is_log && vdev.kind != VdevKind::Hole);
        data.clone().any(is_available)
            && data.all(|vdev| is_available(vdev) || vdev.kind == VdevKind::Missing)
    }

    /// The configuration for `spa_import` and `spa_tryimport`. `path_of` returns the absolute path
    /// of the device with an index. A missing leaf gets a path where nothing can be opened.
    ///
    /// # Errors
    /// The pool must not be imported, or cannot be, whatever the vdevs without a label were.
    pub fn import_config(
        &self,
        path_of: &dyn Fn(usize) -> String,
    ) -> Result<NvList, ImportRefusal> {
        let name = self.name.clone();
        if self.state == PoolState::Destroyed {
            return Err(ImportRefusal::Destroyed(name));
        }
        if !self.copies.is_empty() {
            return Err(ImportRefusal::Copies { name, copies: self.copies.clone() });
        }
        if self.health == Health::Unavailable && !self.may_lack_only_logs() {
            let problems = self.vdevs.iter().flat_map(Node::told).collect();
            return Err(ImportRefusal::Incomplete { name, problems });
        }
        let mut config = self.config.clone();
        let mut places = BTreeMap::new();
        self.vdevs.iter().for_each(|vdev| vdev.places(&mut places));
        if let Some(Value::List(mut root)) = config.remove("vdev_tree") {
            root.lists_mut("children").into_iter().flatten().for_each(|vdev| {
                set_paths(vdev, &|guid| places.get(&guid).map(|device| path_of(*device)));
            });
            config.set("vdev_tree", Value::List(root));
        }
        Ok(config)
    }
}

/// A pool is available if each top-level vdev is, except for log devices: without them, only the
/// latest synchronous writes are missing.
fn root_health(vdevs: &[Node]) -> Health {
    let of =
        |vdev: &Node| if vdev.is_log { vdev.health.min(Health::Degraded) } else { vdev.health };
    vdevs.iter().map(of).max().unwrap_or(Health::Unavailable)
}

/// The index of a top-level vdev, and the label that describes it.
enum Top<'a> {
    Known { config: &'a NvList, vdev: &'a Vdev, txg: u64 },
    Hole(u64),
    Missing(u64),
}

impl<'a> Top<'a> {
    /// All top-level vdevs, each from the newest label that describes it.
    fn collect(present: &'a [PresentMember<'a>], newest: &Member) -> Vec<Self> {
        let mut known: BTreeMap<u64, Self> = BTreeMap::new();
        for device in present {
            let Some(config) = device.label.config.list("vdev_tree") else { continue };
            let (vdev, txg) = (&device.member.vdev_tree, device.member.txg);
            let is_newer = |top: &Self| matches!(top, Self::Known { txg: old, .. } if *old < txg);
            if known.get(&vdev.id).is_none_or(is_newer) {
                known.insert(vdev.id, Self::Known { config, vdev, txg });
            }
        }
        let last = known.keys().next_back().map_or(0, |last| last.saturating_add(1));
        let count = newest.vdev_children.unwrap_or(last).min(MAX_TOP_LEVEL);
        let place = |id| match known.remove(&id) {
            // A removed vdev may still have a label.
            Some(Self::Known { .. }) | None if newest.holes.contains(&id) => Self::Hole(id),
            Some(top) => top,
            None => Self::Missing(id),
        };
        (0..count).map(place).collect()
    }

    fn node(&self, seen: &BTreeMap<u64, Vec<&PresentMember<'_>>>) -> Node {
        let empty = |kind: VdevKind, id: &u64, health, problem: Option<&str>| Node {
            name: format!("{kind}-{id}"),
            kind,
            guid: 0,
            is_log: false,
            device: None,
            health,
            problem: problem.map(str::to_owned),
            children: Vec::new(),
        };
        match self {
            Self::Known { vdev, txg, .. } => Node::of(vdev, *txg, vdev.is_log, seen),
            Self::Hole(id) => empty(VdevKind::Hole, id, Health::Online, None),
            Self::Missing(id) => {
                let problem = "has no device here";
                empty(VdevKind::Missing, id, Health::Unavailable, Some(problem))
            }
        }
    }

    /// Its configuration for the import.
    fn config(&self) -> NvList {
        let empty = |kind: &str, id: u64| {
            NvList::default().with("type", kind).with("id", id).with("guid", 0)
        };
        match self {
            Self::Known { config, .. } => (*config).clone(),
            Self::Hole(id) => empty("hole", *id),
            Self::Missing(id) => empty("missing", *id),
        }
    }
}

impl Node {
    /// A vdev below a top-level vdev whose newest label has `txg`.
    fn of(
        vdev: &Vdev,
        txg: u64,
        is_log: bool,
        seen: &BTreeMap<u64, Vec<&PresentMember<'_>>>,
    ) -> Self {
        let children: Vec<Self> =
            vdev.children.iter().map(|child| Self::of(child, txg, is_log, seen)).collect();
        let (name, kind, guid) = (vdev.name(), vdev.kind.clone(), vdev.guid);
        let node = |health, problem| Self {
            name: name.clone(),
            kind: kind.clone(),
            guid,
            is_log,
            device: None,
            health,
            problem,
            children: Vec::new(),
        };
        match &vdev.kind {
            // They have no device.
            VdevKind::Indirect | VdevKind::Hole | VdevKind::DraidSpare => {
                node(Health::Online, None)
            }
            VdevKind::Disk | VdevKind::File => {
                match seen.get(&guid).and_then(|devices| devices.first()) {
                    Some(device) => {
                        let (health, problem) =
                            leaf_health(vdev.out_of_use, device.member.txg, txg);
                        let (name, device) = (device.path.to_owned(), Some(device.index));
                        Self { name, device, ..node(health, problem) }
                    }
                    None => node(Health::Unavailable, Some("is not here".to_owned())),
                }
            }
            VdevKind::Mirror
            | VdevKind::Raidz { .. }
            | VdevKind::Draid { .. }
            | VdevKind::Replacing
            | VdevKind::Spare
            | VdevKind::Missing
            | VdevKind::Other(_) => {
                let lost =
                    children.iter().filter(|child| child.health == Health::Unavailable).count();
                let may = vdev.kind.spare_children(children.len());
                let whole = children.iter().all(|child| child.health == Health::Online);
                let (health, problem) = match (children.is_empty(), lost > may, whole) {
                    (true, ..) => (Health::Unavailable, Some("has no known parts".to_owned())),
                    (false, true, _) => {
                        let problem = format!("{lost} of its {} parts are missing", children.len());
                        (Health::Unavailable, Some(problem))
                    }
                    (false, false, false) => (Health::Degraded, None),
                    (false, false, true) => (Health::Online, None),
                };
                Self { children, ..node(health, problem) }
            }
        }
    }

    /// Whether it contains the device with this index.
    fn has(&self, index: usize) -> bool {
        self.device == Some(index) || self.children.iter().any(|child| child.has(index))
    }

    /// The present leaves, with their devices.
    fn places(&self, places: &mut BTreeMap<u64, usize>) {
        places.extend(self.device.map(|device| (self.guid, device)));
        self.children.iter().for_each(|child| child.places(places));
    }

    /// Descriptions of the defects of it and its descendants.
    pub fn told(&self) -> Vec<String> {
        let own = self.problem.iter().map(|problem| format!("{} {problem}", self.name));
        own.chain(self.children.iter().flat_map(Self::told)).collect()
    }
}

/// The health of a present leaf: its label has transaction group `own`, the newest label of its
/// top-level vdev `newest`.
fn leaf_health(
    out_of_use: Option<DisuseReason>,
    own: u64,
    newest: u64,
) -> (Health, Option<String>) {
    // An import forgets that a leaf had failed or was removed, but not that it was taken offline.
    match out_of_use {
        Some(DisuseReason::Offline) => (Health::Unavailable, Some("was taken offline".to_owned())),
        Some(DisuseReason::Faulted) => (Health::Degraded, Some("had failed".to_owned())),
        Some(DisuseReason::Removed) | None if own < newest => {
            let problem = format!("missed transactions: its label is of txg {own}, not {newest}");
            (Health::Degraded, Some(problem))
        }
        Some(DisuseReason::Removed) | None => (Health::Online, None),
    }
}

/// The configuration of the pool: the fields of the newest label, and all top-level vdevs.
fn config(newest: &PresentMember<'_>, tops: &[Top<'_>]) -> NvList {
    const KEPT: [&str; 11] = [
        "version",
        "name",
        "state",
        "txg",
        "pool_guid",
        "errata",
        "comment",
        "compatibility",
        "hostid",
        "hostname",
        "hole_array",
    ];
    let label = &newest.label.config;
    let mut config = NvList::default();
    for name in KEPT {
        if let Some(value) = label.get(name) {
            config.set(name, value.clone());
        }
    }
    let root = NvList::default()
        .with("type", "root")
        .with("id", 0)
        .with("guid", newest.member.pool_guid)
        .with("children", tops.iter().map(Top::config).collect::<Vec<_>>());
    config.with("vdev_children", tops.len() as u64).with("vdev_tree", root)
}

/// Gives each leaf its current path.
fn set_paths(vdev: &mut NvList, path_of: &dyn Fn(u64) -> Option<String>) {
    if let Some(children) = vdev.lists_mut("children") {
        children.iter_mut().for_each(|child| set_paths(child, path_of));
        return;
    }
    let is_leaf = matches!(vdev.text("type"), Some("disk" | "file"));
    let Some(guid) = vdev.number("guid").filter(|_| is_leaf) else { return };
    let path = path_of(guid).unwrap_or_else(|| {
        let old = vdev.text("path").unwrap_or_default();
        format!("{NOT_HERE}/{}", old.trim_start_matches(NOT_HERE).trim_start_matches('/'))
    });
    vdev.set("path", Value::Text(path));
    // With these, libzpool would look for the leaf at its old location.
    for name in ["devid", "phys_path", "vdev_enc_sysfs_path"] {
        vdev.remove(name);
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Online => "online",
            Self::Degraded => "degraded",
            Self::Unavailable => "unavailable",
        })
    }
}
