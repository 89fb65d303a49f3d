//! The block devices of a stack: disks, and the devices made of them.
//!
//! Devices may be added while the stack runs, always after the devices below them, so the
//! reverse order is the order to stop in.
//!
//! A device has one use. Whoever wants it for an array or a group claims it first, before it waits for anything: the registry
//! refuses a second [`Claim`]. A claim that was not kept leaves the device as it was.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use ashlar_block::disk::DiskEvent;
use ashlar_block::io_max::VolumeLimit;
use ashlar_block::{BlockDevice, ByteVolume, Gateway, Runtime};
use ashlar_dm::snapshot::{Status, StatusLine};
use ashlar_zfs::client::Zvol;
use event_listener::EventListener;
use uuid::Uuid;

use crate::canary::{Rule, broken};
use crate::changes::{Change, Changes, Log};
use crate::names::{ArrayName, partition_suffix, unique_name};
use crate::partitions::Entry;

mod claim;
mod limits;

pub use claim::Claim;
use limits::Limits;

/// What a device is, with what makes it.
#[derive(Clone)]
pub enum Kind {
    /// One of the user's disks.
    Disk,
    /// A partition of another device.
    Partition(Entry),
    /// An md array.
    Array,
    /// A logical volume, or a component of one.
    Logical(Arc<ashlar_dm::Device>),
    /// A volume of a ZFS pool, or a snapshot of one.
    Zvol(Arc<Zvol>),
}

impl Kind {
    /// The type of logical volumes.
    pub const LOGICAL: &'static str = "lvm";

    /// Whether it is one of the user's disks.
    pub const fn is_disk(&self) -> bool {
        matches!(self, Self::Disk)
    }

    /// Whether it is one of the user's disks, or a partition.
    pub const fn is_disk_or_partition(&self) -> bool {
        matches!(self, Self::Disk | Self::Partition(_))
    }

    /// Whether it is an md array.
    pub const fn is_array(&self) -> bool {
        matches!(self, Self::Array)
    }

    /// Whether it is a logical volume, or a component of one.
    pub const fn is_logical(&self) -> bool {
        matches!(self, Self::Logical(_))
    }

    /// Whether it is a volume of a ZFS pool.
    pub const fn is_zvol(&self) -> bool {
        matches!(self, Self::Zvol(_))
    }

    /// The type, as `lsblk` names it; for an array, `lsblk` shows the level instead.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Partition(_) => "part",
            Self::Array => "md",
            Self::Logical(_) => Self::LOGICAL,
            Self::Zvol(_) => "zvol",
        }
    }
}

/// The one use of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A volume: it is exported as it is.
    Volume,
    /// It is a member of the array with this identity, which runs or waits.
    Member(Uuid),
    /// It was made a member of an array, and no array here has it: it was left out, or removed.
    Former,
    /// It has partitions.
    Partitioned,
    /// A holder has it: what the device is to it, `part of a volume group`, and the word for that in metrics.
    Held(&'static str, &'static str),
    /// None: its contents cannot be used.
    Refused,
}

impl Role {
    /// Whether it is or was a member of an array.
    pub const fn is_of_md(self) -> bool {
        matches!(self, Self::Member(_) | Self::Former)
    }

    /// Whether nothing has it.
    pub fn is_free(self) -> bool {
        let has_none = matches!(self, Self::Former | Self::Refused);
        has_none || matches!(self, Self::Member(_)) && broken(Rule::OneUse)
    }

    /// Whether a device with this use can be claimed for another one: nothing has it, or it is a failed member that returns to its
    /// array.
    fn may_become(self, wanted: Self) -> bool {
        self.is_free()
            || matches!((self, wanted), (Self::Member(has), Self::Member(wants)) if has == wants)
    }
}

/// A device and its names.
#[derive(Clone)]
pub struct Device {
    /// The path that the user gave, or its path in `/dev`. Unique.
    pub path: String,
    /// Its name under `sys/block` and `dev`, unique among devices.
    pub name: String,
    /// Other names below `dev`: `md/data`, `mapper/vg-lv`.
    pub links: Vec<String>,
    /// Its kind.
    pub kind: Kind,
    /// Its use.
    pub role: Role,
    /// The names of the devices it is made of.
    pub below: Vec<String>,
    /// What distinguishes its data from those of all other devices, whatever their names are: `md-` or `lvm-` and a UUID, `zvol-` and
    /// a number. `None` for disks and partitions, and for components of others.
    pub id: Option<String>,
    /// Its bytes, for exports: all of them must share this.
    pub bytes: Arc<ByteVolume>,
}

impl Device {
    /// The device.
    pub fn gateway(&self) -> &Gateway {
        self.bytes.gateway()
    }

    /// The volume of a pool that it is, if it is one.
    pub const fn zvol(&self) -> Option<&Arc<Zvol>> {
        if let Kind::Zvol(zvol) = &self.kind { Some(zvol) } else { None }
    }

    /// Whether it is a snapshot that is invalid: all its I/O fails.
    pub(crate) fn is_invalid_snapshot(&self) -> bool {
        let Kind::Logical(mapped) = &self.kind else { return false };
        let line = mapped.status().parse();
        line.is_ok_and(|line: StatusLine| !line.is_merge && line.status == Status::Invalid)
    }

    /// Whether one of its names below `dev` is such a name.
    pub fn is_named(&self, is_such: impl Fn(&str) -> bool) -> bool {
        self.links.iter().chain([&self.name]).any(|name| is_such(name))
    }

    /// Its name for NBD clients: `md/data`, `vg/lv`, or its name under `dev`.
    pub fn export_name(&self) -> &str {
        self.links.last().unwrap_or(&self.name)
    }
}

/// The names of a device of the device mapper, and of the devices that it is made of.
pub(crate) struct MappedNames {
    pub(crate) name: String,
    pub(crate) links: Vec<String>,
    pub(crate) below: Vec<String>,
}

/// See the module text.
#[derive(Default)]
pub struct Devices {
    table: RwLock<Vec<Device>>,
    log: Arc<Log>,
    limits: OnceLock<Limits>,
}

impl Devices {
    /// Whether the device of this name is one of the user's disks, or a partition of one.
    pub(crate) fn is_users(&self, name: &str) -> bool {
        self.read(|table| is_users(table, name))
    }

    /// Adds a disk; returns its name.
    pub(crate) fn add_disk(&self, path: &str, gateway: Gateway, role: Role) -> String {
        self.add(|table| disk(table, path, gateway, role))
    }

    /// Adds a partition of `lower`; `make` gets its name and makes the device. Returns the name.
    pub(crate) fn add_partition(
        &self,
        lower: &Device,
        entry: Entry,
        make: impl FnOnce(&str) -> Gateway,
    ) -> String {
        self.add(|table| {
            let wanted = format!("{}{}", lower.name, partition_suffix(&lower.name, entry.number));
            let name = free(wanted, |name| table.iter().any(|device| device.name == name));
            let (path, links) = partition_places(table, lower, entry.number);
            let bytes = Arc::new(ByteVolume::new(make(&name)));
            Device {
                path,
                name,
                links,
                kind: Kind::Partition(entry),
                role: Role::Volume,
                below: vec![lower.name.clone()],
                id: None,
                bytes,
            }
        })
    }

    /// Adds a running array, made of the devices with these paths.
    pub(crate) fn add_array(
        &self,
        name: &ArrayName,
        uuid: Uuid,
        bytes: &Arc<ByteVolume>,
        members: &[String],
    ) {
        self.add(|table| {
            let member = |device: &&Device| members.contains(&device.path);
            let below = table.iter().filter(member).map(|device| device.name.clone()).collect();
            Device {
                path: format!("/dev/{}", name.device()),
                name: name.device(),
                links: name.alias.iter().map(|alias| format!("md/{alias}")).collect(),
                kind: Kind::Array,
                role: Role::Volume,
                below,
                id: Some(format!("md-{uuid}")),
                bytes: Arc::clone(bytes),
            }
        });
    }

    /// Adds a device of the device mapper, or a component of one, made of the devices `below`.
    pub(crate) fn add_logical(
        &self,
        name: &str,
        links: Vec<String>,
        role: Role,
        below: Vec<String>,
        uuid: Option<ashlar_lvm::uuid::Uuid>,
        mapped: Arc<ashlar_dm::Device>,
    ) {
        let gateway = Gateway::new(Arc::clone(&mapped) as _);
        self.add(|table| {
            let is_link = |link: &str| table.iter().any(|d| d.links.iter().any(|l| l == link));
            Device {
                path: format!("/dev/{}", links.last().map_or(name, String::as_str)),
                name: name.to_owned(),
                links: links.iter().filter(|link| !is_link(link)).cloned().collect(),
                kind: Kind::Logical(mapped),
                role,
                below,
                id: uuid.map(|uuid| format!("lvm-{uuid}")),
                bytes: Arc::new(ByteVolume::new(gateway)),
            }
        });
    }

    /// Gives devices of the device mapper, and so their partitions, other links, or makes them of other devices. They come
    /// in the order in which they are given, with the devices made of them behind.
    pub(crate) fn set_logical(&self, all: Vec<MappedNames>) {
        let is_known = self.read(|table| {
            let places = table.iter().zip(0_usize..);
            let places: HashMap<&str, (usize, &Device)> =
                places.map(|(device, at)| (device.name.as_str(), (at, device))).collect();
            let found = |new: &MappedNames| {
                let (at, device) = places.get(new.name.as_str())?;
                (device.links == new.links && device.below == new.below).then_some(*at)
            };
            let places: Option<Vec<usize>> = all.iter().map(found).collect();
            places.is_some_and(|places| places.is_sorted())
        });
        if is_known {
            return;
        }
        self.change(|table, changed| {
            let sequence: Vec<String> = all.iter().map(|new| new.name.clone()).collect();
            for MappedNames { name, links, below } in all {
                let Some(at) = table.iter().rposition(|device| device.name == name) else {
                    continue;
                };
                let device = &mut table[at];
                if device.links == links && device.below == below {
                    continue;
                }
                changed.push(name.clone());
                device.below = below;
                let is_link = |link: &String| {
                    table.iter().any(|other| other.name != name && other.links.contains(link))
                };
                let path = format!("/dev/{}", links.last().unwrap_or(&name));
                let links = links.into_iter().filter(|link| !is_link(link)).collect();
                (table[at].path, table[at].links) = (path, links);
                let lower = table[at].clone();
                for at in 0..table.len() {
                    let Kind::Partition(entry) = &table[at].kind else { continue };
                    if table[at].below.contains(&lower.name) {
                        let number = entry.number;
                        changed.push(table[at].name.clone());
                        (table[at].path, table[at].links) = (String::new(), Vec::new());
                        (table[at].path, table[at].links) = partition_places(table, &lower, number);
                    }
                }
            }
            in_order(table, &sequence);
        });
    }

    /// Adds a zvol; `below` are the members of its pool.
    pub(crate) fn add_zvol(&self, zvol: &Arc<Zvol>, below: &[String]) {
        let gateway = Gateway::new(Arc::clone(zvol) as _);
        self.add(|_| {
            let link = zvol_link(zvol);
            Device {
                path: format!("/dev/{link}"),
                name: zvol.disk().name().to_owned(),
                links: vec![link],
                kind: Kind::Zvol(Arc::clone(zvol)),
                role: Role::Volume,
                below: below.to_vec(),
                id: Some(format!("zvol-{:x}", zvol.guid())),
                bytes: Arc::new(ByteVolume::new(gateway)),
            }
        });
    }

    /// Sets the use of the device with this name.
    pub(crate) fn set_role(&self, name: &str, role: Role) {
        self.change(|table, changed| {
            if let Some(device) = table.iter_mut().rfind(|device| device.name == name) {
                device.role = role;
                changed.push(name.to_owned());
            }
        });
    }

    /// The device for which `is_meant` holds, and its partitions.
    ///
    /// # Errors
    /// Another device is made of them: the name of that device.
    pub fn with_partitions(
        &self,
        is_meant: impl Fn(&Device) -> bool,
    ) -> Result<Vec<Device>, String> {
        let mut found: Vec<Device> = Vec::new();
        for device in self.all() {
            let is_above = found.iter().any(|found| device.below.contains(&found.name));
            if is_meant(&device) || is_above && matches!(device.kind, Kind::Partition(_)) {
                found.push(device);
            } else if is_above {
                return Err(device.export_name().to_owned());
            }
        }
        Ok(found)
    }

    /// Adds a removed device, or a partition of one, again. The path of a zvol follows its name, which
    /// may have changed.
    pub fn put_back(&self, mut device: Device) {
        self.change(|table, changed| {
            changed.push(device.name.clone());
            self.watch(&device);
            if let Some(zvol) = device.zvol() {
                let link = zvol_link(zvol);
                (device.path, device.links) = (format!("/dev/{link}"), vec![link]);
            }
            let lower = table.iter().rfind(|lower| device.below.contains(&lower.name));
            if let (Kind::Partition(entry), Some(lower)) = (&device.kind, lower) {
                (device.path, device.links) = partition_places(table, lower, entry.number);
            }
            table.push(device);
        });
    }

    /// Forgets the device with this path.
    pub fn remove(&self, path: &str) {
        self.change(|table, changed| remove_where(table, changed, |device| device.path == path));
    }

    /// Forgets the device with this name, and its partitions.
    pub(crate) fn remove_name(&self, name: &str) {
        let name = name.to_owned();
        self.change(|table, changed| {
            if let Some(at) = table.iter().rposition(|device| device.name == name) {
                changed.push(table.remove(at).name);
            }
            let is_part = |device: &Device| matches!(device.kind, Kind::Partition(_));
            remove_where(table, changed, |device| is_part(device) && device.below.contains(&name));
        });
    }

    /// The name of the device with this path.
    pub fn name(&self, path: &str) -> Option<String> {
        self.read(|table| Some(table.iter().find(|device| device.path == path)?.name.clone()))
    }

    /// The device with this name; if a disk and an array share the name, the array.
    pub fn find(&self, name: &str) -> Option<Device> {
        self.read(|table| table.iter().rfind(|device| device.name == name).cloned())
    }

    /// The device that has this link: `md/data`.
    pub fn linked(&self, link: &str) -> Option<Device> {
        let has_link = |device: &&Device| device.links.iter().any(|own| own == link);
        self.read(|table| table.iter().find(has_link).cloned())
    }

    /// All devices, each after the devices it is made of.
    pub fn all(&self) -> Vec<Device> {
        self.read(<[Device]>::to_vec)
    }

    /// The devices that are exported as they are.
    pub fn volumes(&self) -> Vec<Device> {
        let is_volume = |device: &&Device| device.role == Role::Volume;
        self.read(|table| table.iter().filter(is_volume).cloned().collect())
    }

    /// Gives volumes rate limits by their names, those of now and those that are added later, before any client can open them. The
    /// later of two limits counts. A device with another use has no clients, so its limits have no effect. There is one set of
    /// limits: later calls have no effect.
    pub fn limit(&self, limits: Vec<VolumeLimit>, runtime: Arc<dyn Runtime>) {
        let limits = self.limits.get_or_init(|| Limits { limits, runtime });
        self.read(|table| table.iter().for_each(|device| limits.set(device)));
    }

    /// Ends the rate limits of all volumes.
    pub fn lift_limits(&self) {
        self.read(|table| table.iter().for_each(|device| device.bytes.limiter().lift()));
    }

    /// How often a device came, went, or got other names or another use.
    pub fn registered(&self) -> u64 {
        self.log.registered()
    }

    /// What has changed since `generation`, 0 for the beginning, and the present generation.
    pub fn changes_since(&self, generation: u64) -> (Changes, u64) {
        self.log.since(generation)
    }

    /// Ends with the next change.
    pub fn listen(&self) -> EventListener {
        self.log.listen()
    }

    /// Adds the device that `make` returns; `make` gets the existing devices. Returns its name.
    fn add(&self, make: impl FnOnce(&[Device]) -> Device) -> String {
        self.change(|table, changed| {
            let device = make(table);
            let name = device.name.clone();
            self.watch(&device);
            if let Some(limits) = self.limits.get() {
                limits.set(&device);
            }
            table.push(device);
            changed.push(name.clone());
            name
        })
    }

    /// Has the log note the events of a device.
    fn watch(&self, device: &Device) {
        let (name, log) = (device.name.clone(), Arc::downgrade(&self.log));
        device.gateway().disk().watch(move |event| {
            let change = match event {
                DiskEvent::Resized => Change::Resized,
                DiskEvent::Presence => Change::Presence,
            };
            if let Some(log) = log.upgrade() {
                log.note(&name, change);
            }
        });
    }

    /// Changes the table; `change` adds the names of devices that are new, gone, or have other names or another use.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Device>, &mut Vec<String>) -> T) -> T {
        let mut changed = Vec::new();
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut table, &mut changed);
        // Later changes come later in the log, too.
        for name in changed {
            self.log.note(&name, Change::Registered);
        }
        result
    }

    /// Calls `look` with all devices, each after the devices it is made of.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&[Device]) -> T) -> T {
        look(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A disk with a name that no device in the table has.
fn disk(table: &[Device], path: &str, gateway: Gateway, role: Role) -> Device {
    let taken = |name: &str| table.iter().any(|device| device.name == name);
    Device {
        path: path.to_owned(),
        name: unique_name(Path::new(path), taken),
        links: Vec::new(),
        kind: Kind::Disk,
        role,
        below: Vec::new(),
        id: None,
        bytes: Arc::new(ByteVolume::new(gateway)),
    }
}

/// Sorts devices so that each comes after those that it is made of, and those of `sequence` in that order; otherwise as
/// they are.
fn in_order(table: &mut Vec<Device>, sequence: &[String]) {
    let order: BTreeMap<&String, usize> = sequence.iter().zip(0..).collect();
    let mut waiting = std::mem::take(table);
    let mut left: BTreeSet<String> = waiting.iter().map(|device| device.name.clone()).collect();
    let mut next = 0;
    loop {
        let before = waiting.len();
        let mut later = Vec::new();
        for device in waiting {
            let turn = order.get(&device.name);
            let is_its_turn = turn.is_none_or(|turn| *turn == next);
            if is_its_turn && !device.below.iter().any(|below| left.contains(below)) {
                next += usize::from(turn.is_some());
                left.remove(&device.name);
                table.push(device);
            } else {
                later.push(device);
            }
        }
        // No device is made of itself, and a sequence has those below first: each round places one.
        if later.is_empty() || later.len() == before {
            table.extend(later);
            return;
        }
        waiting = later;
    }
}

fn remove_where(
    table: &mut Vec<Device>,
    changed: &mut Vec<String>,
    is_meant: impl Fn(&Device) -> bool,
) {
    for gone in table.extract_if(.., |device| is_meant(device)) {
        changed.push(gone.name);
    }
}

/// The name of a zvol below `dev`, after its own name.
fn zvol_link(zvol: &Zvol) -> String {
    format!("zvol/{}", zvol.dataset())
}

/// The path and the links of partition `number` of a device.
fn partition_places(table: &[Device], lower: &Device, number: u32) -> (String, Vec<String>) {
    let name_of = |name: &str| format!("{name}{}", partition_suffix(name, number));
    let path = free(name_of(&lower.path), |path| table.iter().any(|device| device.path == path));
    let is_link = |link: &String| table.iter().any(|device| device.links.contains(link));
    let links = lower.links.iter().map(|link| name_of(link));
    (path, links.filter(|link| !is_link(link)).collect())
}

/// [`Devices::is_users`] in a table in which each device is after the devices it is made of.
fn is_users(table: &[Device], name: &str) -> bool {
    let Some(at) = table.iter().rposition(|device| device.name == name) else { return false };
    match table[at].kind {
        Kind::Disk => true,
        Kind::Partition(_) => table[at].below.iter().all(|name| is_users(&table[..at], name)),
        Kind::Array | Kind::Logical(_) | Kind::Zvol(_) => false,
    }
}

/// `wanted`, or `wanted` with a number appended if it is `taken`.
fn free(wanted: String, taken: impl Fn(&str) -> bool) -> String {
    let numbered = (1..).map(|n: u64| format!("{wanted}#{n}"));
    // The numbers have no end, and finitely many names are taken.
    let mut all = std::iter::once(wanted.clone()).chain(numbered);
    all.find(|name| !taken(name)).unwrap_or_default()
}
