//! The tree of virtual devices: of a label that of one top-level vdev, from it down to the leaves, which are disks and files.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::nvlist::NvList;

/// A virtual device as a label tells of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vdev {
    /// What it is.
    pub kind: VdevKind,
    /// Its place among its parent's children.
    pub id: u64,
    /// Its identity; zero for a hole.
    pub guid: u64,
    /// Where it was when the label was written: of a leaf only.
    pub path: Option<String>,
    /// Its sectors have 2^`ashift` bytes: of a top-level vdev only.
    pub ashift: Option<u64>,
    /// Bytes that can be allocated: of a top-level vdev only.
    pub asize_bytes: Option<u64>,
    /// Whether it holds nothing but the intent log.
    pub is_log: bool,
    /// Why it was not in use, as far as the label knows.
    pub out_of_use: Option<OutOfUse>,
    /// What it is made of.
    pub children: Vec<Vdev>,
}

/// What a vdev is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VdevKind {
    /// A block device.
    Disk,
    /// A file.
    File,
    /// Each child has all.
    Mirror,
    /// RAID-Z: data, and so much parity.
    Raidz {
        /// Children that may fail.
        parity: u64,
    },
    /// RAID-Z with distributed spares.
    Draid {
        /// Children that may fail.
        parity: u64,
        /// Data blocks of a group.
        data: u64,
        /// Spares.
        spares: u64,
    },
    /// A mirror of a child and what takes its place.
    Replacing,
    /// A mirror of a child and the hot spare that helps out.
    Spare,
    /// A distributed spare.
    DraidSpare,
    /// What was removed; its data was moved to the others.
    Indirect,
    /// A place whose vdev was removed.
    Hole,
    /// A place whose vdev is not known.
    Missing,
    /// A kind without a name here.
    Other(String),
}

/// Why a leaf was not in use when the label was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutOfUse {
    /// The administrator took it offline.
    Offline,
    /// It had failed.
    Faulted,
    /// It was pulled out.
    Removed,
}

/// What a vdev must have and does not.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("a vdev has no usable {0:?}")]
pub struct VdevError(pub &'static str);

impl Vdev {
    /// The vdev that `list` describes, with all below it.
    ///
    /// # Errors
    /// Something that each vdev has is not there.
    pub fn parse(list: &NvList) -> Result<Self, VdevError> {
        let number = |name: &'static str| list.number(name).ok_or(VdevError(name));
        let is = |name| list.number(name).is_some_and(|number| number != 0);
        let kind = match list.text("type").ok_or(VdevError("type"))? {
            "disk" => VdevKind::Disk,
            "file" => VdevKind::File,
            "mirror" => VdevKind::Mirror,
            // Pools from before RAID-Z2 do not say it.
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
            Some(OutOfUse::Faulted)
        } else if is("removed") {
            Some(OutOfUse::Removed)
        } else {
            is("offline").then_some(OutOfUse::Offline)
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

    /// The vdev with this identity, among this one and all below it.
    pub fn find(&self, guid: u64) -> Option<&Self> {
        if self.guid == guid {
            return Some(self);
        }
        self.children.iter().find_map(|child| child.find(guid))
    }

    /// What `zpool status` calls it: `mirror-0`, `raidz2-1`; a leaf is called as the last part of its path.
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
    /// How many of `children` may be lost: the others have their data.
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
