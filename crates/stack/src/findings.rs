//! How a stack is assembled, and what is found out on the way.

use ashlar_block::Status;
use ashlar_lvm::metadata::SystemIds;
use ashlar_md::ondisk::MdadmUuid;
use ashlar_md::{AssembleError, Candidate};
use uuid::Uuid;

use crate::devices::Devices;
use crate::names::ArrayName;
use crate::pools;
use crate::probe::Contents;

/// How to assemble.
#[derive(Clone, Default, Debug)]
pub struct Options {
    /// How to assemble arrays.
    pub md: ashlar_md::Options,
    /// The name for the first array, instead of its superblock's.
    pub rename: Option<String>,
    /// Use disks and arrays whole: look only for members of arrays.
    pub whole: bool,
    /// Activate logical volumes that lack physical volumes: I/O to the missing parts fails.
    pub partial: bool,
    /// What becomes of devices and volume groups that others may be writing to.
    pub others: Others,
    /// How pools of ZFS are imported; `None`: not at all.
    pub pools: Option<pools::Options>,
}

/// What becomes of devices and volume groups that others may be writing to.
#[derive(Clone, Default, Debug)]
pub struct Others {
    /// The system IDs of this host, which say whose groups are.
    pub local: SystemIds,
    /// Whether they are written to nevertheless.
    pub force: bool,
}

/// A message to the user about a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The name of the device.
    pub device: String,
    /// Its name for users: that of a logical volume is `vg/data`, not `dm-2`.
    pub shown: String,
    /// The message.
    pub text: String,
}

impl Note {
    pub(crate) fn new(devices: &Devices, device: String, text: String) -> Self {
        let volume = devices.find(&device).filter(|found| found.kind.is_logical());
        let shown = volume.map_or_else(|| device.clone(), |found| found.export_name().to_owned());
        Self { device, shown, text }
    }
}

/// The result of a probe of a device of the stack.
pub struct DeviceProbe {
    /// The name of the device.
    pub name: String,
    /// The contents, or why they cannot be read.
    pub contents: Result<Contents, Status>,
    /// The kind of the partition table in use: `gpt`, `dos`.
    pub scheme: Option<&'static str>,
}

/// An array that could not be started.
pub struct Failure {
    /// The name it would have.
    pub name: ArrayName,
    /// Its name in the superblocks.
    pub set_name: String,
    /// Its identity.
    pub uuid: Uuid,
    /// Why.
    pub error: AssembleError,
    /// Its members, as far as they are present.
    pub candidates: Vec<Candidate>,
    /// Whether some members are neither the user's disks nor partitions of them, but devices made of these.
    pub is_nested: bool,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let uuid = MdadmUuid(self.uuid);
        match self.set_name.as_str() {
            "" => write!(f, "array {uuid}"),
            name => write!(f, "array {name} ({uuid})"),
        }
    }
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.shown, self.text)
    }
}
