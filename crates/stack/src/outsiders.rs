//! Devices that belong to something that ashlar does not run: legs of firmware RAIDs and of DRBD, devices of bcache and of VMFS.
//!
//! What is in front of such metadata looks like a disk of its own: a leg of a mirror has the mirror's partition table and file systems.
//! A write to it would make the copies differ, or change data that a cache or another host has in memory, and nothing would report
//! it. So ashlar reads such a device, and writes to it only if the user says so.
//!
//! [`crate::signature`] knows where the signatures are. A member of an md array counts as a member: the metadata of a former owner may
//! lie behind its data.

use std::fmt;

use crate::devices::{Device, Kind};
use crate::probe::{Contents, Md};
use crate::signature::Signature;

/// What a device is, as far as that says which metadata it may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceClass {
    /// A whole disk or image.
    Disk,
    /// A partition.
    Partition,
    /// An array, a logical volume, a volume of a pool.
    Made,
}

impl From<&Kind> for DeviceClass {
    fn from(kind: &Kind) -> Self {
        match (kind.is_disk(), kind.is_disk_or_partition()) {
            (true, _) => Self::Disk,
            (false, true) => Self::Partition,
            (false, false) => Self::Made,
        }
    }
}

/// Who else writes to a device, and where its signature says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outsider {
    user: User,
    signature: Signature,
}

/// A kind of outsiders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum User {
    /// The firmware of a controller, with such metadata.
    Firmware(&'static str),
    Drbd,
    Bcache,
    Vmfs,
}

/// A device that is not used, because something else than ashlar writes to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedOutsider {
    /// The name of the device.
    pub device: String,
    /// What users call it: the path of a disk, `vg/data`, `disk.img1`.
    pub shown: String,
    /// What it is.
    pub class: DeviceClass,
    /// Who writes to it.
    pub outsider: Outsider,
}

impl RefusedOutsider {
    pub(crate) fn new(device: &Device, outsider: Outsider) -> Self {
        let class = DeviceClass::from(&device.kind);
        let shown = match class {
            DeviceClass::Disk => device.path.clone(),
            DeviceClass::Partition | DeviceClass::Made => device.export_name().to_owned(),
        };
        Self { device: device.name.clone(), shown, class, outsider }
    }
}

impl fmt::Display for RefusedOutsider {
    /// For the log, where the device is named beside it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = "use ashlar serve --read-only to read it, ashlar serve --force to write to it";
        write!(f, "is not used: it {}; {ways}", self.outsider)
    }
}

impl User {
    fn of(signature: &Signature) -> Option<Self> {
        Some(match signature.name {
            "ddf_raid_member" => Self::Firmware("DDF"),
            "isw_raid_member" => Self::Firmware("Intel's, IMSM"),
            "adaptec_raid_member" => Self::Firmware("Adaptec's"),
            "hpt37x_raid_member" | "hpt45x_raid_member" => Self::Firmware("HighPoint's"),
            "lsi_mega_raid_member" => Self::Firmware("LSI's"),
            "nvidia_raid_member" => Self::Firmware("NVIDIA's"),
            "promise_fasttrack_raid_member" => Self::Firmware("Promise's"),
            "drbd" => Self::Drbd,
            "bcache" => Self::Bcache,
            "VMFS_volume_member" => Self::Vmfs,
            _ => return None,
        })
    }

    /// Whether it uses devices of this class. Firmware knows disks only: at the end of the last partition is the end of its disk, and a copy
    /// of a disk in a volume is in no controller. In a volume that ashlar makes, a client may have made a cache or VMFS, which is the
    /// client's then; but DRBD lies on volumes.
    fn uses(self, class: DeviceClass) -> bool {
        match (self, class) {
            (Self::Firmware(_), DeviceClass::Disk) | (Self::Drbd, _) => true,
            (Self::Firmware(_), DeviceClass::Partition | DeviceClass::Made) => false,
            (Self::Bcache | Self::Vmfs, DeviceClass::Disk | DeviceClass::Partition) => true,
            (Self::Bcache | Self::Vmfs, DeviceClass::Made) => false,
        }
    }

    /// Whether its data is not where users of the plain device look, so that it may be served whole.
    const fn is_apart(self) -> bool {
        match self {
            Self::Bcache | Self::Vmfs => true,
            Self::Firmware(_) | Self::Drbd => false,
        }
    }
}

impl Outsider {
    /// Who uses a device of this class with these contents. With `whole`, the device is wanted as it is, unless it is the leg of a mirror.
    pub fn of(contents: &Contents, class: DeviceClass, whole: bool) -> Option<Self> {
        if !matches!(contents.md, Md::None) {
            return None;
        }
        contents.foreign.iter().find_map(|signature| {
            let user = User::of(signature)?;
            let is_it = user.uses(class) && !(whole && user.is_apart());
            is_it.then_some(Self { user, signature: *signature })
        })
    }

    /// What removes a signature that is no longer true.
    pub fn removal(&self) -> String {
        let name = self.signature.name;
        format!("if it is a remnant of a former use, remove it with wipefs -a -t {name}")
    }
}

impl fmt::Display for Outsider {
    /// The sentence begins with the device.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Signature { name, offset, .. } = self.signature;
        let at = format!("{name} at {offset:#x}");
        match self.user {
            User::Firmware(format) => write!(
                f,
                "is a member of a firmware RAID ({format}; {at}), whose other members would miss writes to it"
            ),
            User::Drbd => write!(
                f,
                "is a backing device of DRBD ({at}), whose other hosts would miss writes to it"
            ),
            User::Bcache => {
                write!(f, "is a device of bcache ({at}), whose cache would not see writes to it")
            }
            User::Vmfs => {
                write!(f, "is a device of VMFS ({at}), whose hosts would not see writes to it")
            }
        }
    }
}
