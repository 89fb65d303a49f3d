//! What sysfs reports about a block device (Documentation/ABI/stable/sysfs-block).

use std::fs;
use std::path::{Path, PathBuf};

/// The directory of a block device and of its queue (a partition uses its disk's queue).
pub(super) struct BlockDir {
    device: PathBuf,
    queue: PathBuf,
}

impl BlockDir {
    /// The directory of the device numbered `major:minor`, if sysfs is mounted.
    pub(super) fn of(major: u32, minor: u32) -> Option<Self> {
        Self::at(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}")))
    }

    fn at(device: &Path) -> Option<Self> {
        // Resolve the link first: `..` of the link is a different directory than `..` of its target.
        let device = fs::canonicalize(device).ok()?;
        let queues = [device.join("queue"), device.join("../queue")];
        let queue = queues.into_iter().find(|queue| queue.is_dir())?;
        Some(Self { device, queue })
    }

    fn read(path: &Path) -> Option<String> {
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    }

    /// A numeric attribute of the queue.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        Self::read(&self.queue.join(name))?.parse().ok()
    }

    /// A text attribute of the queue.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        Self::read(&self.queue.join(name))
    }

    /// A numeric attribute of the device itself (partitions differ from their disk).
    pub(super) fn device_number(&self, name: &str) -> Option<u64> {
        Self::read(&self.device.join(name))?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_has_the_queue_of_its_disk_and_its_own_alignment() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("devices/vda");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("vda1")).unwrap();
        fs::write(disk.join("queue/discard_max_bytes"), "1048576\n").unwrap();
        fs::write(disk.join("queue/write_cache"), "write back\n").unwrap();
        fs::write(disk.join("discard_alignment"), "0\n").unwrap();
        fs::write(disk.join("vda1/discard_alignment"), "512\n").unwrap();
        std::os::unix::fs::symlink(disk.join("vda1"), dir.path().join("254:1")).unwrap();
        let part = BlockDir::at(&dir.path().join("254:1")).unwrap();
        assert_eq!(part.number("discard_max_bytes"), Some(1 << 20));
        assert_eq!(part.text("write_cache").as_deref(), Some("write back"));
        assert_eq!(part.device_number("discard_alignment"), Some(512));
        assert_eq!(part.number("no_such_thing"), None);
        assert!(BlockDir::at(&dir.path().join("1:1")).is_none());
    }
}
