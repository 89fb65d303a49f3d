//! Which pools a set of devices has, how whole they are, and what libzpool must be told to import one.
//!
//! A label describes its own top-level vdev. So a pool is put together of the newest label of each of these; how many there must
//! be says the newest label of all.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::label::{DeviceLabels, Label, Member, PoolState};
use super::nvlist::{NvList, Value};
use super::vdev::{OutOfUse, Vdev, VdevKind};

/// The most top-level vdevs that a pool is taken to have: places that a label only counts cost memory.
const MAX_TOP_LEVEL: u64 = 4096;
/// In front of the path of a leaf that is not here. Nothing can be opened there, whatever the machine has where the leaf was: a
/// disk that the user did not name is not touched.
const NOT_HERE: &str = "/dev/null";

/// A device with labels.
#[derive(Clone, Copy)]
pub struct Device<'a> {
    /// What the user calls it.
    pub path: &'a str,
    /// Its labels.
    pub labels: &'a DeviceLabels,
}

/// What devices have of ZFS.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Pools, in the order of their first devices.
    pub pools: Vec<Pool>,
    /// Hot spares and caches: they do not say of which pool. Indices of the devices.
    pub kept: Vec<(usize, PoolState)>,
    /// Devices that were taken out of their pool, or never taken in to the end: indices.
    pub released: Vec<usize>,
    /// Devices with something of ZFS, but no label that can be used: indices.
    pub damaged: Vec<usize>,
}

/// A pool as its labels tell of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub guid: u64,
    /// Whether it was closed in order.
    pub state: PoolState,
    /// Its version: 5000 since features have names.
    pub version: u64,
    /// Transaction group of the newest label.
    pub txg: u64,
    /// Transaction group of the newest uberblock, and when that was written, seconds since 1970.
    pub uberblock: Option<(u64, u64)>,
    /// Number of the host that had it, if that had one.
    pub hostid: Option<u64>,
    /// Name of the host that had it.
    pub hostname: Option<String>,
    /// Features without which it cannot even be read.
    pub features_for_read: Vec<String>,
    /// The top-level vdevs, in the order of their places.
    pub vdevs: Vec<Node>,
    /// How whole it is.
    pub health: Health,
    /// What the user should know.
    pub problems: Vec<String>,
    /// Indices of its devices.
    pub devices: Vec<usize>,
    /// Members that are there twice: why the pool must not be used.
    copies: Vec<String>,
    /// The configuration, with the paths of the labels.
    config: NvList,
}

/// A vdev of a pool, and what became of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// What `zpool status` calls it; of a leaf that is here its path.
    pub name: String,
    /// What it is.
    pub kind: VdevKind,
    /// Its identity.
    pub guid: u64,
    /// Whether it holds nothing but the intent log.
    pub is_log: bool,
    /// Index of the device that it is, of a leaf that is here.
    pub device: Option<usize>,
    /// How whole it is.
    pub health: Health,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// What it is made of.
    pub children: Vec<Node>,
}

/// How whole a vdev or a pool is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// All of it is here.
    Online,
    /// All data is here, but not everything that guards it.
    Degraded,
    /// Data is missing.
    Unavailable,
}

/// Why a pool cannot be imported.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ImportRefused {
    /// It was destroyed.
    #[error("pool {0} was destroyed")]
    Destroyed(String),
    /// Of two devices with one identity nobody can say which is the copy.
    #[error("pool {name} cannot be used: {}", .copies.join("; "))]
    Copies {
        /// The pool's name.
        name: String,
        /// Which.
        copies: Vec<String>,
    },
    /// Data would be missing.
    #[error("pool {name} is not complete: {}", .problems.join("; "))]
    Incomplete {
        /// The pool's name.
        name: String,
        /// What is missing.
        problems: Vec<String>,
    },
}

/// A member of a pool: the label of a device.
struct Present<'a> {
    index: usize,
    path: &'a str,
    labels: &'a DeviceLabels,
    label: &'a Label,
    member: &'a Member,
}

/// The pools that `devices` have.
pub fn pools(devices: &[Device<'_>]) -> Found {
    let mut found = Found::default();
    let mut order: Vec<u64> = Vec::new();
    let mut members: BTreeMap<u64, Vec<Present<'_>>> = BTreeMap::new();
    for (index, Device { path, labels }) in devices.iter().enumerate() {
        match labels.label() {
            Some(label) => match &label.member {
                Some(member) if member.txg == 0 => found.released.push(index),
                Some(member) => {
                    let of_pool = members.entry(member.pool_guid).or_default();
                    if of_pool.is_empty() {
                        order.push(member.pool_guid);
                    }
                    of_pool.push(Present { index, path, labels, label, member });
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
    /// The pool that these devices are members of; `None` of none.
    fn of(present: &[Present<'_>]) -> Option<Self> {
        // Of equals the first: so the result does not depend on the order of what is the same.
        let newest = present
            .iter()
            .reduce(|best, other| if other.member.txg > best.member.txg { other } else { best })?;
        let tops = Top::collect(present, newest.member);
        let mut seen: BTreeMap<u64, Vec<&Present<'_>>> = BTreeMap::new();
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
        // Of copies one is in the tree, and the others were told of.
        for device in stray.filter(|device| seen[&device.label.guid].len() == 1) {
            problems.push(format!("{} was in this pool, and is not any more", device.path));
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

    /// What `spa_import` and `spa_tryimport` are to be told. `path_of` says where the device of an index can be opened: an
    /// absolute path. A leaf that is not here gets a path where nothing can be opened.
    ///
    /// # Errors
    /// The pool must not be imported, or cannot be.
    pub fn import_config(
        &self,
        path_of: &dyn Fn(usize) -> String,
    ) -> Result<NvList, ImportRefused> {
        let name = self.name.clone();
        if self.state == PoolState::Destroyed {
            return Err(ImportRefused::Destroyed(name));
        }
        if !self.copies.is_empty() {
            return Err(ImportRefused::Copies { name, copies: self.copies.clone() });
        }
        if self.health == Health::Unavailable {
            let problems = self.vdevs.iter().flat_map(Node::told).collect();
            return Err(ImportRefused::Incomplete { name, problems });
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

/// The pool lives if each top-level vdev does, those for the log apart: without them it lacks what was synced last.
fn root_health(vdevs: &[Node]) -> Health {
    let of =
        |vdev: &Node| if vdev.is_log { vdev.health.min(Health::Degraded) } else { vdev.health };
    vdevs.iter().map(of).max().unwrap_or(Health::Unavailable)
}

/// The place of a top-level vdev, and the label that tells of it.
enum Top<'a> {
    Known { config: &'a NvList, vdev: &'a Vdev, txg: u64 },
    Hole(u64),
    Missing(u64),
}

impl<'a> Top<'a> {
    /// All places: what is in each says the newest label that has something there.
    fn collect(present: &'a [Present<'a>], newest: &Member) -> Vec<Self> {
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
            // A vdev that was removed may still have a label.
            Some(Self::Known { .. }) | None if newest.holes.contains(&id) => Self::Hole(id),
            Some(top) => top,
            None => Self::Missing(id),
        };
        (0..count).map(place).collect()
    }

    fn node(&self, seen: &BTreeMap<u64, Vec<&Present<'_>>>) -> Node {
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

    /// What the import is told of it.
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
    /// A vdev of a top-level vdev whose newest label is of `txg`.
    fn of(vdev: &Vdev, txg: u64, is_log: bool, seen: &BTreeMap<u64, Vec<&Present<'_>>>) -> Self {
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
            // They have no device of their own.
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
                    (true, ..) => {
                        (Health::Unavailable, Some("is made of nothing known".to_owned()))
                    }
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

    /// Whether the device of that index is in it.
    fn has(&self, index: usize) -> bool {
        self.device == Some(index) || self.children.iter().any(|child| child.has(index))
    }

    /// The leaves that are here, with their devices.
    fn places(&self, places: &mut BTreeMap<u64, usize>) {
        places.extend(self.device.map(|device| (self.guid, device)));
        self.children.iter().for_each(|child| child.places(places));
    }

    /// What is wrong with it and what is below it, in words.
    pub fn told(&self) -> Vec<String> {
        let own = self.problem.iter().map(|problem| format!("{} {problem}", self.name));
        own.chain(self.children.iter().flat_map(Self::told)).collect()
    }
}

/// How a leaf is that is here: its label is of `own`, the newest label of its top-level vdev of `newest`.
fn leaf_health(out_of_use: Option<OutOfUse>, own: u64, newest: u64) -> (Health, Option<String>) {
    // An import forgets that a leaf had failed or was pulled out, not that it was taken offline.
    match out_of_use {
        Some(OutOfUse::Offline) => (Health::Unavailable, Some("was taken offline".to_owned())),
        Some(OutOfUse::Faulted) => (Health::Degraded, Some("had failed".to_owned())),
        Some(OutOfUse::Removed) | None if own < newest => {
            let problem = format!("was not there lately: its label is of txg {own}, not {newest}");
            (Health::Degraded, Some(problem))
        }
        Some(OutOfUse::Removed) | None => (Health::Online, None),
    }
}

/// The configuration of the pool: what is in the newest label, and all top-level vdevs.
fn config(newest: &Present<'_>, tops: &[Top<'_>]) -> NvList {
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

/// Gives each leaf the path at which it is now.
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
    // By these it would be looked for where it was.
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
