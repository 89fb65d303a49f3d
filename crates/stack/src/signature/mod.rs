//! Signatures of foreign data: the magic numbers of file systems, partition tables, volume
//! managers and encryption, found in bytes.
//!
//! Commands that destroy the contents of a disk check these first and refuse without `--force`. So a
//! doubtful match counts: a two-byte magic is enough, checksums are not verified. Names and offsets are
//! those of `wipefs(8)`, which the tests compare with; formats of disk images, which it does not
//! know, are named as by `qemu-img(1)`.

mod boot;
mod file_systems;
mod identity;
mod image;
mod magics;
mod raids;
mod room;
mod unraid;
mod volumes;

use std::fmt;

use serde::Serialize;

pub use identity::{Identity, identity};
pub use image::Image;
pub use room::file_system_bytes;
pub use unraid::UNRAID;

/// The type of mdadm's backup of what a reshape moves in place.
pub const RESHAPE_BACKUP: &str = "md_reshape_backup";

/// The type of a member of a ZFS pool.
pub const ZFS_MEMBER: &str = "zfs_member";

/// The kind of data that a signature belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Usage {
    /// A file system.
    FileSystem,
    /// A partition table.
    PartitionTable,
    /// Part of a volume group, pool or array.
    Member,
    /// An encrypted volume.
    Encrypted,
    /// Swap space, or a hibernated system in it.
    Swap,
    /// The changed blocks of a device-mapper snapshot.
    Snapshot,
    /// A copy of part of an array.
    Backup,
    /// A disk image in a hypervisor's format: these bytes are not what the guest sees.
    Image,
    /// It describes an array, but is not part of one.
    Configuration,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FileSystem => "file system",
            Self::PartitionTable => "partition table",
            Self::Member => "member",
            Self::Encrypted => "encrypted volume",
            Self::Swap => "swap space",
            Self::Snapshot => "snapshot store",
            Self::Backup => "backup",
            Self::Image => "disk image",
            Self::Configuration => "array configuration",
        })
    }
}

/// A detected signature.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
pub struct Signature {
    /// The type, as `wipefs` and `blkid` name it.
    #[serde(rename = "type")]
    pub name: &'static str,
    /// The kind of data.
    pub usage: Usage,
    /// The offset of the magic number, in bytes from the start of the device.
    pub offset: u64,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Avoids "LVM2_member member".
        let name = self.name.strip_suffix("_member").unwrap_or(self.name);
        write!(f, "{name} {} at {:#x}", self.usage, self.offset)
    }
}

/// All signatures in `image`, by ascending offset.
pub fn detect(image: &Image) -> Vec<Signature> {
    let mut found = Vec::new();
    magics::detect(image, &mut found);
    raids::detect(image, &mut found);
    file_systems::detect(image, &mut found);
    boot::detect(image, &mut found);
    volumes::detect(image, &mut found);
    unraid::detect(image, &mut found);
    found.sort_by_key(|signature| (signature.offset, signature.name));
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_or_tiny_or_random_device_shows_nothing_and_harms_nothing() {
        for size in [0, 1, 511, 512, 4096, 1 << 20] {
            let mut image = Image::new(size as u64);
            image.add(0, vec![0; size]);
            assert_eq!(detect(&image), []);
        }
        assert_eq!(detect(&Image::new(u64::MAX)), []);
        // A generator of bytes that repeat after 2^64 steps (Knuth's MMIX constants).
        let mut state = 1_u64;
        let mut byte = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        for size in (0..64).map(|n| n * 1531) {
            let mut image = Image::new(size as u64);
            image.add(0, (0..size).map(|_| byte()).collect());
            assert!(detect(&image).iter().all(|found| found.offset < size as u64));
        }
    }

    #[test]
    fn a_signature_reads_like_a_sentence() {
        let lvm = Signature { name: "LVM2_member", usage: Usage::Member, offset: 0x218 };
        assert_eq!(lvm.to_string(), "LVM2 member at 0x218");
        let ext = Signature { name: "ext4", usage: Usage::FileSystem, offset: 0x438 };
        assert_eq!(ext.to_string(), "ext4 file system at 0x438");
    }
}
