//! Plans the devices that LVM would make of a volume group, with the same names and tables.
//!
//! A [`Plan`] lists each device after the devices it is made of. Most are tables in the device
//! mapper's text format; RAID and thin volumes name their parts, because their metadata must be
//! read first.
//!
//! An unusable volume (of an unknown kind, or on a missing physical volume) is refused by name; the
//! others are planned anyway.
//!
//! ```text
//! origin with snapshots    vg-lv-real (its segments)   vg-snap-cow (the store)
//!                          vg-snap    snapshot over vg-lv-real and vg-snap-cow
//!                          vg-lv      snapshot-origin over vg-lv-real, after all its snapshots
//! while merging            vg-lv      snapshot-merge over vg-lv-real and vg-snap-cow
//! while extents move       vg-pvmove0 mirror of the old place and the new one, below what is there
//! ```
//!
//! Source: LVM2 `lib/activate/dev_manager.c`, and `dmsetup table` for LVM's devices.

mod planner;

use ashlar_block::Sectors;
use ashlar_dm::text::Line;
use thiserror::Error;

pub use self::planner::plan;
use crate::metadata::RaidLevel;
use crate::uuid::Uuid;

/// How to activate.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// Also activate volumes with parts on missing physical volumes: I/O to these parts fails.
    pub partial: bool,
    /// Write nothing. A merge does not continue, and its origin shows the result of the merge.
    pub read_only: bool,
}

/// A device to make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedDevice {
    /// Its name in the device mapper: `vg-lv`, `vg-lv-real`. Dashes in names are doubled.
    pub name: String,
    /// The logical volume, for a volume that users see; `None` for components.
    pub volume: Option<String>,
    /// The UUID of that volume.
    pub uuid: Option<Uuid>,
    /// Its size.
    pub size: Sectors,
    /// Whether it is read-only.
    pub read_only: bool,
    /// What it is made of.
    pub made_of: DeviceSource,
}

/// What a device is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceSource {
    /// A table of the device mapper; it names earlier devices and physical volumes.
    Table(Vec<Line>),
    /// Legs of a RAID with dm-raid's metadata.
    Raid(RaidParts),
    /// A pool of thin volumes, which is not a device.
    ThinPool {
        /// The device with the kernel's tree.
        metadata: String,
        /// The device with the data.
        data: String,
        /// The allocation unit.
        chunk: Sectors,
    },
    /// A thin volume.
    Thin {
        /// Its pool, which comes earlier.
        pool: String,
        /// Its device ID in the pool's tree.
        device_id: u32,
        /// The device with the data of unwritten blocks.
        external_origin: Option<String>,
    },
}

/// The supported RAID levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RaidKind {
    /// Striped.
    Raid0,
    /// Copies.
    Raid1,
    /// Striped copies, in md's near layout.
    Raid10,
    /// Parity in each row, in this layout of md's. LVM's raid4 is one, with parity first.
    Raid5(u32),
    /// Two kinds of parity in each row, in this layout of md's.
    Raid6(u32),
}

/// The numbers of the layouts are those of dm-raid (`raid_types` in the kernel's `dm-raid.c`).
const RAID_KINDS: [(RaidLevel, RaidKind); 21] = [
    (RaidLevel::Raid0, RaidKind::Raid0),
    (RaidLevel::Raid0Meta, RaidKind::Raid0),
    (RaidLevel::Raid1, RaidKind::Raid1),
    (RaidLevel::Raid10, RaidKind::Raid10),
    (RaidLevel::Raid10Near, RaidKind::Raid10),
    (RaidLevel::Raid4, RaidKind::Raid5(4)),
    (RaidLevel::Raid5, RaidKind::Raid5(2)),
    (RaidLevel::Raid5N, RaidKind::Raid5(5)),
    (RaidLevel::Raid5La, RaidKind::Raid5(0)),
    (RaidLevel::Raid5Ls, RaidKind::Raid5(2)),
    (RaidLevel::Raid5Ra, RaidKind::Raid5(1)),
    (RaidLevel::Raid5Rs, RaidKind::Raid5(3)),
    (RaidLevel::Raid6, RaidKind::Raid6(8)),
    (RaidLevel::Raid6Zr, RaidKind::Raid6(8)),
    (RaidLevel::Raid6Nr, RaidKind::Raid6(9)),
    (RaidLevel::Raid6Nc, RaidKind::Raid6(10)),
    (RaidLevel::Raid6N6, RaidKind::Raid6(5)),
    (RaidLevel::Raid6Ls6, RaidKind::Raid6(18)),
    (RaidLevel::Raid6Rs6, RaidKind::Raid6(19)),
    (RaidLevel::Raid6La6, RaidKind::Raid6(16)),
    (RaidLevel::Raid6Ra6, RaidKind::Raid6(17)),
];

/// The parts of a RAID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RaidParts {
    /// The level.
    pub kind: RaidKind,
    /// For each leg, the device with superblock and bitmap and the one with data; `None` if missing.
    pub legs: Vec<(Option<String>, Option<String>)>,
    /// Stripe size; `None` for RAID 1.
    pub stripe: Option<Sectors>,
    /// Number of copies of RAID 10.
    pub copies: Option<u32>,
}

/// Why a volume is unusable.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    /// It uses an unsupported feature.
    #[error("{0}")]
    Unsupported(String),
    /// It is on a missing physical volume.
    #[error("it needs the physical volume {0}, which is missing, and partial activation is off")]
    Missing(Uuid),
    /// It is made of a refused volume.
    #[error("it is made of {part}, which cannot be used: {why}")]
    Part {
        /// That volume.
        part: String,
        /// Why that volume is refused.
        why: Box<Refusal>,
    },
}

/// The devices of a group.
#[derive(Clone, Default, Debug)]
pub struct Plan {
    /// The devices, each after the devices it is made of.
    pub devices: Vec<PlannedDevice>,
    /// The visible volumes without a device.
    pub refused: Vec<(String, Refusal)>,
    /// Messages to the user about volumes with a device.
    pub notes: Vec<(String, String)>,
}

/// The device mapper's name for a volume of a group: dashes within names are doubled.
pub fn dm_name(group: &str, volume: &str, layer: Option<&str>) -> String {
    let double = |name: &str| name.replace('-', "--");
    let layer = layer.map(|layer| format!("-{layer}")).unwrap_or_default();
    format!("{}-{}{layer}", double(group), double(volume))
}

impl DeviceSource {
    /// The names of devices it uses; for tables among other words.
    pub fn parts(&self) -> Vec<&str> {
        match self {
            Self::Table(lines) => {
                lines.iter().flat_map(|line| line.args.iter().map(String::as_str)).collect()
            }
            Self::Raid(raid) => {
                let legs = raid.legs.iter().flat_map(|(meta, data)| [meta, data]);
                legs.flatten().map(String::as_str).collect()
            }
            Self::ThinPool { metadata, data, .. } => vec![metadata, data],
            Self::Thin { pool, external_origin, .. } => [Some(pool), external_origin.as_ref()]
                .into_iter()
                .flatten()
                .map(String::as_str)
                .collect(),
        }
    }
}
