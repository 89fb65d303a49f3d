//! The volume group and its physical volumes.

use std::collections::{HashMap, HashSet};

use ashlar_block::{Sector, Sectors};

use super::flags::{FlagSet, PvFlag, VgFlag};
use super::logical_volume::{Allocation, LogicalVolume};
use super::segment::{PvExtents, Snapshot};
use super::shared_volume::SharedVolume;
use crate::text::Section;
use crate::uuid::Uuid;

/// A volume group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeGroup {
    /// Its name; not unique among the groups that a host sees.
    pub name: String,
    /// Its identity.
    pub id: Uuid,
    /// Change counter: of two texts, the one with the higher number is current.
    pub seqno: u32,
    /// Whether it is readable, writable, resizable, shared, exported.
    pub flags: FlagSet<VgFlag>,
    /// Tags.
    pub tags: Vec<String>,
    /// The host that owns the group, if any.
    pub system_id: Option<String>,
    /// The lock manager of a shared group.
    pub lock_type: Option<String>,
    /// The allocation unit.
    pub extent_size: Sectors,
    /// Maximum number of logical volumes; 0: unlimited.
    pub max_lv: u32,
    /// Maximum number of physical volumes; 0: unlimited.
    pub max_pv: u32,
    /// Allocation policy; `None`: normal.
    pub allocation: Option<Allocation>,
    /// Maximum number of used metadata areas; 0: all.
    pub metadata_copies: u32,
    /// The physical volumes; areas refer to them by index.
    pub pvs: Vec<PhysicalVolume>,
    /// The logical volumes, including hidden ones.
    pub lvs: Vec<SharedVolume>,
    /// As parsed, without its volumes, with unknown fields.
    pub(super) kept: Section,
}

/// A physical volume of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PhysicalVolume {
    /// UUID, as in the label.
    pub id: Uuid,
    /// Its device when the text was written. Only a hint.
    pub device: Option<String>,
    /// Whether it is allocatable, or was missing.
    pub flags: FlagSet<PvFlag>,
    /// Tags.
    pub tags: Vec<String>,
    /// The device's size when it joined the group.
    pub dev_size: Option<Sectors>,
    /// First sector of the first extent.
    pub pe_start: Sector,
    /// Number of extents.
    pub pe_count: u32,
    /// Space for a boot loader.
    pub bootloader: Option<Bootloader>,
    pub(super) kept: Section,
}

/// Space for a boot loader on a physical volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bootloader {
    /// First sector.
    pub start: Sector,
    /// Size in sectors.
    pub size: Sectors,
}

/// A snapshot: its hidden volume, and the segment with origin and store.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotOf<'a> {
    /// The hidden volume.
    pub lv: &'a LogicalVolume,
    /// Origin, exception store, chunk size.
    pub snapshot: &'a Snapshot,
}

impl VolumeGroup {
    /// An empty group, as `vgcreate` makes it.
    pub fn new(name: impl Into<String>, id: Uuid, extent_size: Sectors) -> Self {
        Self {
            name: name.into(),
            id,
            seqno: 0,
            flags: FlagSet::new([VgFlag::Resizeable, VgFlag::Read, VgFlag::Write]),
            tags: Vec::new(),
            system_id: None,
            lock_type: None,
            extent_size,
            max_lv: 0,
            max_pv: 0,
            allocation: None,
            metadata_copies: 0,
            pvs: Vec::new(),
            lvs: Vec::new(),
            kept: Section::default(),
        }
    }

    /// The logical volume with this name.
    pub fn lv(&self, name: &str) -> Option<&LogicalVolume> {
        self.lvs.iter().find(|lv| lv.name == name).map(|lv| &**lv)
    }

    /// The logical volume with this name.
    pub fn lv_mut(&mut self, name: &str) -> Option<&mut LogicalVolume> {
        self.lvs.iter_mut().find(|lv| lv.name == name).map(|lv| &mut **lv)
    }

    /// Its configuration profile.
    pub fn profile(&self) -> Option<&str> {
        self.kept.str("profile")
    }

    /// What its lock manager needs to lock it.
    pub fn lock_args(&self) -> Option<&str> {
        self.kept.str("lock_args")
    }

    /// The index of the physical volume with this UUID.
    pub fn pv_index(&self, id: &Uuid) -> Option<usize> {
        self.pvs.iter().position(|pv| pv.id == *id)
    }

    /// The sectors of `extents`.
    pub fn sectors(&self, extents: u32) -> Sectors {
        // Both factors have 32 bits.
        Sectors(self.extent_size.0.saturating_mul(extents.into()))
    }

    /// The extents that hold `sectors`, rounded up; `None` on overflow.
    pub fn extents(&self, sectors: Sectors) -> Option<u32> {
        sectors.0.div_ceil(self.extent_size.0.max(1)).try_into().ok()
    }

    /// The size of a logical volume.
    pub fn size(&self, lv: &LogicalVolume) -> Sectors {
        self.sectors(lv.extents())
    }

    /// First sector of an extent on its physical volume; `None` if there is no such extent.
    pub fn extent_start(&self, on: PvExtents) -> Option<Sector> {
        let pv = self.pvs.get(on.pv).filter(|pv| on.start < pv.pe_count)?;
        pv.pe_start.checked_add(self.sectors(on.start))
    }

    /// All snapshots of the group.
    pub fn snapshots(&self) -> impl Iterator<Item = SnapshotOf<'_>> {
        self.lvs.iter().filter_map(|lv| {
            let snapshot = lv.segments.first()?.kind.as_snapshot()?;
            Some(SnapshotOf { lv, snapshot })
        })
    }

    /// The snapshots of a logical volume.
    pub fn snapshots_of<'a>(&'a self, origin: &'a str) -> impl Iterator<Item = SnapshotOf<'a>> {
        self.snapshots().filter(move |found| found.snapshot.origin == origin)
    }

    /// The snapshot whose store is the volume `cow`: users see the store as the snapshot.
    pub fn snapshot_in(&self, cow: &str) -> Option<SnapshotOf<'_>> {
        self.snapshots().find(|found| found.snapshot.cow == cow)
    }

    /// Whether it has pools of thin volumes.
    pub fn has_thin_pools(&self) -> bool {
        let mut segments = self.lvs.iter().flat_map(|lv| &lv.segments);
        segments.any(|segment| segment.kind.as_thin_pool().is_some())
    }

    /// The logical volumes that use the volume `name`.
    pub fn users_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a LogicalVolume> {
        self.lvs.iter().map(|lv| &**lv).filter(move |lv| lv.parts().any(|part| part == name))
    }

    /// Which volumes users see, in the order of the volumes: LVM's `lv_is_visible`, which depends
    /// on more than the flag. A hidden snapshot volume has the flag; its store does not have it,
    /// and is visible as the snapshot if its origin is visible, unless it is being merged.
    pub fn visible(&self) -> Vec<bool> {
        let flagged: HashMap<&str, bool> =
            self.lvs.iter().map(|lv| (lv.name.as_str(), lv.is_visible())).collect();
        let (mut ties, mut stores) = (HashSet::new(), HashMap::new());
        for SnapshotOf { lv, snapshot } in self.snapshots() {
            let origin = snapshot.origin.as_str();
            // The zeroes below a sparse volume are hidden, the volume is not.
            let seen = origin.contains("_vorigin") || flagged.get(origin) == Some(&true);
            ties.insert(lv.name.as_str());
            stores.insert(snapshot.cow.as_str(), seen && !snapshot.merging);
        }
        let is_seen = |lv: &LogicalVolume| {
            let name = lv.name.as_str();
            !ties.contains(name) && *stores.get(name).unwrap_or(&lv.is_visible())
        };
        self.lvs.iter().map(|lv| is_seen(lv)).collect()
    }

    /// The names of the volumes that users see.
    pub fn visible_names(&self) -> Vec<String> {
        let all = self.lvs.iter().zip(self.visible());
        all.filter(|(_, seen)| *seen).map(|(lv, _)| lv.name.clone()).collect()
    }

    /// Adds a logical volume. Its position in the text depends on whether users see it.
    pub fn add_lv(&mut self, lv: LogicalVolume) {
        self.lvs.push(lv.into());
    }

    /// Removes a logical volume. Volumes that use it must be removed, too.
    pub fn remove_lv(&mut self, name: &str) -> Option<LogicalVolume> {
        let at = self.lvs.iter().position(|lv| lv.name == name)?;
        Some(self.lvs.remove(at).into_volume())
    }

    /// A name with this prefix and the lowest free number, as in LVM: `lvol0`, `snapshot3`.
    pub fn free_name(&self, prefix: &str) -> String {
        let taken: HashSet<&str> = self.lvs.iter().map(|lv| lv.name.as_str()).collect();
        let names = (0_u64..).map(|number| format!("{prefix}{number}"));
        // There are fewer volumes than numbers.
        names.into_iter().find(|name| !taken.contains(name.as_str())).unwrap_or_default()
    }

    /// Why no host may change the group as it is; `None` if the host that it belongs to may. Whose it is says
    /// [`held_elsewhere`](Self::held_elsewhere).
    pub fn write_refusal(&self) -> Option<String> {
        let name = &self.name;
        let lv_flag = self.lvs.iter().find_map(|lv| lv.flags.unknown_status());
        let pv_flag = self.pvs.iter().find_map(|pv| pv.flags.unknown_status());
        if let Some(word) = self.flags.unknown_status().or(lv_flag).or(pv_flag) {
            return Some(format!(
                "volume group {name} has the status {word:?}, which is not known"
            ));
        }
        if let Some(held) = self.given_away() {
            return Some(held.to_string());
        }
        let writable = [VgFlag::Write, VgFlag::WriteLocked];
        if !writable.iter().any(|flag| self.flags.contains(flag)) {
            return Some(format!("volume group {name} is read-only; allow with vgchange -prw"));
        }
        let missing = self.pvs.iter().find(|pv| pv.flags.contains(&PvFlag::Missing));
        missing.map(|pv| {
            format!("physical volume {} of volume group {name} is marked as missing", pv.id)
        })
    }
}

impl PhysicalVolume {
    /// A physical volume that joins a group.
    pub fn new(id: Uuid, dev_size: Sectors, pe_start: Sector, pe_count: u32) -> Self {
        Self {
            id,
            device: None,
            flags: FlagSet::new([PvFlag::Allocatable]),
            tags: Vec::new(),
            dev_size: Some(dev_size),
            pe_start,
            pe_count,
            bootloader: None,
            kept: Section::default(),
        }
    }

    /// A new physical volume from its label, for a group with this extent size, with LVM's number
    /// of extents; `None` if there are too many.
    pub fn of_label(label: &crate::ondisk::PvLabel, extent_size: Sectors) -> Option<Self> {
        let dev_size = Sectors::from_bytes_floor(label.device_size);
        let start = Sector::from_bytes_floor(label.data_areas.first()?.offset);
        // The second metadata area is at the end of the device.
        let behind = label.metadata_areas.get(1).map_or(0, |area| area.size >> 9);
        let room = dev_size.0.saturating_sub(start.0).saturating_sub(behind);
        let count = room.checked_div(extent_size.0)?.try_into().ok()?;
        let mut pv = Self::new(label.uuid, dev_size, start, count);
        let areas = label.extension.as_ref().map(|extension| &extension.bootloader_areas);
        pv.bootloader = areas.and_then(|areas| areas.first()).map(|area| Bootloader {
            start: Sector::from_bytes_floor(area.offset),
            size: Sectors::from_bytes_floor(area.size),
        });
        Some(pv)
    }

    /// Whether new volumes may be placed on it.
    pub fn is_allocatable(&self) -> bool {
        self.flags.contains(&PvFlag::Allocatable) && !self.flags.contains(&PvFlag::Missing)
    }
}
