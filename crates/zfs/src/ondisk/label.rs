//! The contents of a label, and the four labels of a device.

use std::fmt;

use ashlar_block::{Gateway, Sector, Sectors, Status};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zerocopy::FromBytes;

use super::layout::{
    CHECKSUM_BYTES, ChecksumError, LABEL_BYTES, LABELS, PHYS_BYTES, PHYS_OFFSET, RING_OFFSET,
    RawLabel, label_offset, verify,
};
use super::nvlist::{NvList, NvListError};
use super::uberblock::{Ring, Uberblock};
use super::vdev::{Vdev, VdevError};

/// State of a pool, or the role of a device outside of a pool (`pool_state_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolState {
    /// In use, or left in use by a crash.
    Active,
    /// Exported cleanly.
    Exported,
    /// Destroyed; the data still exists.
    Destroyed,
    /// A hot spare.
    Spare,
    /// A cache.
    L2Cache,
}

/// The contents of a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// Version of the pool: 5000 since there are feature flags.
    pub version: u64,
    /// State of the pool, or role of the device.
    pub state: PoolState,
    /// GUID of this device's leaf.
    pub guid: u64,
    /// The pool; `None` for spares and caches, which several pools may share.
    pub member: Option<Member>,
    /// The whole configuration.
    pub config: NvList,
}

/// The pool, as described by a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// The pool's name.
    pub pool_name: String,
    /// The pool's identity.
    pub pool_guid: u64,
    /// Identity of the top-level vdev.
    pub top_guid: u64,
    /// Transaction group in which the label was written; zero on a device that was never completely added.
    pub txg: u64,
    /// ID of the host that used the pool; `None` if it had none.
    pub hostid: Option<u64>,
    /// That host's name.
    pub hostname: Option<String>,
    /// Number of top-level vdevs, including holes; missing in old pool versions.
    pub vdev_children: Option<u64>,
    /// Indices of top-level vdevs that are holes.
    pub holes: Vec<u64>,
    /// Features required even for reading.
    pub features_for_read: Vec<String>,
    /// The top-level vdev, and its descendants.
    pub vdev_tree: Vdev,
}

/// Why a label cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LabelError {
    /// There is no label.
    #[error("there is no label")]
    Absent,
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(Status),
    /// It is damaged, or was written for another location.
    #[error("its checksum is wrong")]
    Checksum,
    /// Its list is invalid.
    #[error(transparent)]
    NvList(#[from] NvListError),
    /// A required field is missing.
    #[error("it has no usable {0:?}")]
    Field(&'static str),
    /// A required field of a vdev is missing.
    #[error(transparent)]
    Vdev(#[from] VdevError),
}

/// One of a device's four labels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelCopy {
    /// Its contents.
    pub label: Result<Label, LabelError>,
    /// Its uberblocks.
    pub ring: Ring,
}

/// All labels of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceLabels {
    /// The labels, by location.
    pub copies: [LabelCopy; LABELS],
}

impl TryFrom<u64> for PoolState {
    type Error = LabelError;

    fn try_from(number: u64) -> Result<Self, LabelError> {
        match number {
            0 => Ok(Self::Active),
            1 => Ok(Self::Exported),
            2 => Ok(Self::Destroyed),
            3 => Ok(Self::Spare),
            4 => Ok(Self::L2Cache),
            _ => Err(LabelError::Field("state")),
        }
    }
}

impl From<PoolState> for u64 {
    fn from(state: PoolState) -> Self {
        match state {
            PoolState::Active => 0,
            PoolState::Exported => 1,
            PoolState::Destroyed => 2,
            PoolState::Spare => 3,
            PoolState::L2Cache => 4,
        }
    }
}

impl fmt::Display for PoolState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Exported => "exported",
            Self::Destroyed => "destroyed",
            Self::Spare => "spare",
            Self::L2Cache => "cache",
        })
    }
}

impl Label {
    /// The label whose configuration is `phys`, at `offset` bytes on its device.
    ///
    /// # Errors
    /// There is no label, or it is damaged.
    pub fn parse(phys: &[u8; PHYS_BYTES], offset: u64) -> Result<Self, LabelError> {
        verify(phys, offset).map_err(|error| match error {
            ChecksumError::Absent => LabelError::Absent,
            ChecksumError::Wrong => LabelError::Checksum,
        })?;
        Self::from_config(NvList::parse(&phys[..PHYS_BYTES - CHECKSUM_BYTES])?)
    }

    /// The label with this configuration.
    ///
    /// # Errors
    /// A field that every label has is missing.
    pub fn from_config(config: NvList) -> Result<Self, LabelError> {
        let number = |name: &'static str| config.number(name).ok_or(LabelError::Field(name));
        let (version, state) = (number("version")?, PoolState::try_from(number("state")?)?);
        let guid = number("guid")?;
        if guid == 0 {
            return Err(LabelError::Field("guid"));
        }
        let member = match state {
            PoolState::Spare | PoolState::L2Cache => None,
            PoolState::Active | PoolState::Exported | PoolState::Destroyed => {
                Some(Member::parse(&config)?)
            }
        };
        Ok(Self { version, state, guid, member, config })
    }

    /// Transaction group in which it was written; zero for spares and caches.
    pub fn txg(&self) -> u64 {
        self.member.as_ref().map_or(0, |member| member.txg)
    }

    /// The vdev's sector size as a power of two, if the label has it: a leaf uses that of its top-level vdev.
    fn ashift(&self) -> Option<u64> {
        match &self.member {
            Some(member) => member.vdev_tree.ashift,
            None => self.config.number("ashift"),
        }
    }
}

impl Member {
    fn parse(config: &NvList) -> Result<Self, LabelError> {
        let number = |name: &'static str| config.number(name).ok_or(LabelError::Field(name));
        let features = config.list("features_for_read").map(NvList::pairs).unwrap_or_default();
        let tree = config.list("vdev_tree").ok_or(LabelError::Field("vdev_tree"))?;
        Ok(Self {
            pool_name: config.text("name").ok_or(LabelError::Field("name"))?.to_owned(),
            pool_guid: number("pool_guid")?,
            top_guid: number("top_guid")?,
            txg: number("txg")?,
            hostid: config.number("hostid"),
            hostname: config.text("hostname").map(str::to_owned),
            vdev_children: config.number("vdev_children"),
            holes: config.numbers("hole_array").unwrap_or_default().to_vec(),
            features_for_read: features.iter().map(|(name, _)| name.clone()).collect(),
            vdev_tree: Vdev::parse(tree)?,
        })
    }
}

impl LabelCopy {
    /// The label in `bytes`, at `offset` bytes on its device. The uberblocks are found even if the
    /// configuration is damaged.
    pub fn parse(bytes: &[u8; LABEL_BYTES], offset: u64) -> Self {
        let Ok(raw) = RawLabel::ref_from_bytes(bytes) else {
            return Self::without(LabelError::Absent);
        };
        let label = Label::parse(&raw.phys, offset + PHYS_OFFSET as u64);
        let ashift = label.as_ref().ok().and_then(Label::ashift);
        let ring = Ring::parse(&raw.ring, offset + RING_OFFSET as u64, ashift);
        Self { label, ring }
    }

    fn without(why: LabelError) -> Self {
        Self { label: Err(why), ring: Ring::default() }
    }
}

impl DeviceLabels {
    /// The labels of a device of `device_bytes`; `read` returns the bytes of a label by its offset.
    pub fn parse<'a>(
        device_bytes: u64,
        read: impl Fn(u64) -> Option<&'a [u8; LABEL_BYTES]>,
    ) -> Self {
        let copy = |index| {
            let parsed = label_offset(device_bytes, index)
                .and_then(|offset| Some(LabelCopy::parse(read(offset)?, offset)));
            parsed.unwrap_or_else(|| LabelCopy::without(LabelError::Absent))
        };
        Self { copies: std::array::from_fn(copy) }
    }

    /// Reads the labels of a device; an unreadable label is an error value.
    pub async fn read(gateway: &Gateway) -> Self {
        let size = gateway.capacity().bytes();
        let mut copies = [const { None }; LABELS];
        for (index, copy) in copies.iter_mut().enumerate() {
            let Some(offset) = label_offset(size, index) else { continue };
            let len = Sectors::from_bytes_ceil(LABEL_BYTES as u64);
            let read = gateway.read(Sector::from_bytes_floor(offset), len).await;
            *copy = Some(match read {
                Ok(buffer) => match buffer.as_slice().first_chunk() {
                    Some(bytes) => LabelCopy::parse(bytes, offset),
                    None => LabelCopy::without(LabelError::Absent),
                },
                Err(status) => LabelCopy::without(LabelError::Unreadable(status)),
            });
        }
        Self { copies: copies.map(|copy| copy.unwrap_or(LabelCopy::without(LabelError::Absent))) }
    }

    /// Whether there is any trace of ZFS: a valid label, a damaged one, or an uberblock.
    pub fn is_any(&self) -> bool {
        self.copies.iter().any(|copy| {
            let has_label = match &copy.label {
                Ok(_) => true,
                Err(LabelError::Absent | LabelError::Unreadable(_)) => false,
                Err(
                    LabelError::Checksum
                    | LabelError::NvList(_)
                    | LabelError::Field(_)
                    | LabelError::Vdev(_),
                ) => true,
            };
            has_label || copy.ring.good + copy.ring.damaged > 0
        })
    }

    /// The valid label: the newest label of the vdev that the first usable label names, but not
    /// newer than the newest uberblock. Two labels are written before the uberblock and two after
    /// it, so a crash may leave labels that are newer.
    pub fn label(&self) -> Option<&Label> {
        let guid = self.sound().next()?.guid;
        let own = || self.sound().filter(|label| label.guid == guid);
        let newest = self.uberblock().map_or(u64::MAX, |uberblock| uberblock.txg);
        let settled = own().filter(|label| label.txg() <= newest);
        // The first of equally new labels.
        let best =
            settled.reduce(|best, label| if label.txg() > best.txg() { label } else { best });
        best.or_else(|| own().next())
    }

    /// The newest uberblock of the device.
    pub fn uberblock(&self) -> Option<&Uberblock> {
        self.copies.iter().filter_map(|copy| copy.ring.best.as_ref()).max_by_key(|best| best.age())
    }

    /// Descriptions of the labels' defects; empty on a device without labels.
    pub fn problems(&self) -> Vec<String> {
        if !self.is_any() {
            return Vec::new();
        }
        let mut problems = Vec::new();
        let counts = self.label().map(|label| label.guid);
        for (index, copy) in self.copies.iter().enumerate() {
            match &copy.label {
                Ok(label) if Some(label.guid) != counts => {
                    problems.push(format!("label {index} is of another vdev, {}", label.guid));
                }
                Ok(_) => {}
                Err(error) => problems.push(format!("label {index}: {error}")),
            }
            if copy.ring.damaged > 0 {
                let damaged = copy.ring.damaged;
                problems.push(format!("label {index}: {damaged} uberblocks have a wrong checksum"));
            }
        }
        problems
    }

    /// The usable labels.
    fn sound(&self) -> impl Iterator<Item = &Label> {
        self.copies.iter().filter_map(|copy| copy.label.as_ref().ok())
    }
}
