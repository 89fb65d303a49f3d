//! The tree of virtual devices: in a label, the tree of one top-level vdev, down to the leaves,
//! which are disks and files.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::nvlist::NvList;

/// A virtual device, as described by a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vdev {
    /// Its type.
    pub kind: VdevKind,
    /// Its index among its parent's children.
    pub id: u64,
    /// Its identity; zero for a hole.
    pub guid: u64,
    /// Its path when the label was written: leaves only.
    pub path: Option<String>,
    /// Its sectors have 2^`ashift` bytes: top-level vdevs only.
    pub ashift: Option<u64>,
    /// Allocatable bytes: top-level vdevs only.
    pub asize_bytes: Option<u64>,
    /// Whether it is a log device.
    pub is_log: bool,
    /// Why it was not in use, if the label records it.
    pub out_of_use: Option<DisuseReason>,
    /// Its children.
    pub children: Vec<Vdev>,
}

/// The type of a vdev.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VdevKind {
    /// A block device.
    Disk,
    /// A file.
    File,
    /// Each child has all data.
    Mirror,
    /// RAID-Z: data and parity.
    Raidz {
        /// Number of children that may fail.
        parity: u64,
    },
    /// RAID-Z with distributed spares.
    Draid {
        /// Number of children that may fail.
        parity: u64,
        /// Data blocks per group.
        data: u64,
        /// Number of spares.
        spares: u64,
    },
    /// A mirror of a child and its replacement.
    Replacing,
    /// A mirror of a child and its hot spare.
    Spare,
    /// A distributed spare.
    DraidSpare,
    /// A removed vdev, whose data was moved to others.
    Indirect,
    /// The index of a removed vdev.
    Hole,
    /// The index of an unknown vdev.
    Missing,
    /// Another type.
    Other(String),
}

/// Why a leaf was not in use when the label was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DisuseReason {
    /// The administrator took it offline.
    Offline,
    /// It had failed.
    Faulted,
    /// It was removed.
    Removed,
}

/// A required field of a vdev is missing.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("a vdev has no usable {0:?}")]
pub struct VdevError(pub &'static str);

impl Vdev {
    /// The vdev that `list` describes, with its descendants.
    ///
    /// # Errors
    /// A field that every vdev has is missing.
    pub fn parse(list: &NvList) -> Result<Self, VdevError> {
        let number = |name: &'static str| list.number(name).ok_or(VdevError(name));
        let is = |name| list.number(name).is_some_and(|number| number != 0);
        let kind = match list.text("type").ok_or(VdevError("type"))? {
            "disk" => VdevKind::Disk,
            "file" => VdevKind::File,
            "mirror" => VdevKind::Mirror,
            // Missing in pools from before RAID-Z2.
            "raidz" => VdevKind::Raidz { parity: list.number("nparity").unwrap_or(1) },
            "draid" => VdevKind::Draid {
                parity: number("nparity")?,
                data: number("draid_ndata")?,
                spares: number("draid_nspares")?,
            },
            "replacing" => VdevKind::Replacing,
            "spare" => VdevKind::Spare,
            "dspare" => VdevKind::DraidSpare,
            "indirect" => VdevKind::Indirect,
            "hole" => VdevKind::Hole,
            "missing" => VdevKind::Missing,
            other => VdevKind::Other(other.to_owned()),
        };
        let children = list.lists("children").unwrap_or_default();
        let out_of_use = if is("faulted") {
            Some(DisuseReason::Faulted)
        } else if is("removed") {
            Some(DisuseReason::Removed)
        } else {
            is("offline").then_some(DisuseReason::Offline)
        };
        Ok(Self {
            kind,
            id: number("id")?,
            guid: number("guid")?,
            path: list.text("path").map(str::to_owned),
            ashift: list.number("ashift"),
            asize_bytes: list.number("asize"),
            is_log: is("is_log"),
            out_of_use,
            children: children.iter().map(Self::parse).collect::<Result<_, _>>()?,
        })
    }

    /// The vdev with this GUID, among this one and its descendants.
    pub fn find(&self, guid: u64) -> Option<&Self> {
        if self.guid == guid {
            return Some(self);
        }
        self.children.iter().find_map(|child| child.find(guid))
    }

    /// Its name in `zpool status`: `mirror-0`, `raidz2-1`; for a leaf, the last component of its path.
    pub fn name(&self) -> String {
        let last = self.path.as_deref().and_then(|path| path.rsplit('/').next());
        match (&self.kind, last) {
            (
                VdevKind::Disk | VdevKind::File | VdevKind::DraidSpare | VdevKind::Other(_),
                Some(last),
            ) => last.to_owned(),
            (VdevKind::Disk | VdevKind::File, None) => self.guid.to_string(),
            (VdevKind::Draid { parity, data, spares }, _) => {
                format!("draid{parity}:{data}d:{}c:{spares}s-{}", self.children.len(), self.id)
            }
            (kind, _) => format!("{kind}-{}", self.id),
        }
    }
}

impl VdevKind {
    /// How many of `children` may be lost without data loss.
    pub fn spare_children(&self, children: usize) -> usize {
        match self {
            Self::Mirror | Self::Replacing | Self::Spare => children.saturating_sub(1),
            Self::Raidz { parity } | Self::Draid { parity, .. } => {
                usize::try_from(*parity).unwrap_or(0).min(children)
            }
            Self::Disk
            | Self::File
            | Self::DraidSpare
            | Self::Indirect
            | Self::Hole
            | Self::Missing
            | Self::Other(_) => 0,
        }
    }
}

impl fmt::Display for VdevKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Disk => "disk",
            Self::File => "file",
            Self::Mirror => "mirror",
            Self::Raidz { parity } => return write!(f, "raidz{parity}"),
            Self::Draid { parity, .. } => return write!(f, "draid{parity}"),
            Self::Replacing => "replacing",
            Self::Spare => "spare",
            Self::DraidSpare => "dspare",
            Self::Indirect => "indirect",
            Self::Hole => "hole",
            Self::Missing => "missing",
            Self::Other(name) => name,
        };
        f.write_str(name)
    }
}
