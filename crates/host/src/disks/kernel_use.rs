//! The kernel's uses of a disk: of a device and its partitions, or of the loop devices over an image.
//!
//! `/proc` and sysfs show the uses, as far as they are visible to this process. Whether a device is used at all, in any
//! namespace, is tested by opening it with O_EXCL: a mount, swap space, and each device made of it have claimed it or a
//! partition of it, and then the kernel refuses with EBUSY (open(2)).

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use ashlar_engine::file::{device_writer, loop_backing_file};
use rustix::fs::{Mode, OFlags, major, minor};
use rustix::io::Errno;

use super::{Identity, identity};

/// How the kernel uses the device or image: mounted, as swap, or as part of another device; for an image through a loop
/// device. `None` if no use is visible.
pub(super) fn user(disk: Identity) -> Option<String> {
    match disk {
        Identity::Device(number) => {
            let device = Device::of(number)?;
            device.related().iter().find_map(Device::user)
        }
        Identity::File(..) => loop_devices(disk).find_map(|device| {
            let with_partitions = device.related();
            let known = with_partitions.iter().find_map(Device::user);
            let device = with_partitions.first()?;
            known.or_else(|| is_claimed(&device.node()).then(|| device.unknown_user()))
        }),
        // The kernel of this machine cannot see them.
        Identity::Export(_) | Identity::Image(_) => None,
    }
}

/// Whether the kernel or another process has claimed the device at `path`, or a partition of it.
pub(super) fn is_claimed(path: &Path) -> bool {
    // Another ashlar process that tests the device claims it for a moment: try again.
    (0..10).all(|turn| {
        if turn > 0 {
            sleep(Duration::from_millis(20));
        }
        open(path, OFlags::EXCL).is_err_and(|errno| errno == Errno::BUSY)
    })
}

/// Opens for reading: closing such a descriptor does not make udev probe the device again.
fn open(path: &Path, more: OFlags) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK | more;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from)
}

fn entries(directory: impl AsRef<Path>) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// A block device of the kernel's, by its directory in sysfs.
struct Device {
    directory: PathBuf,
    name: String,
    /// `major:minor`.
    number: String,
}

impl Device {
    /// The device with this number.
    fn of(number: u64) -> Option<Self> {
        Self::at(Path::new(&format!("/sys/dev/block/{}:{}", major(number), minor(number))))
    }

    fn at(directory: &Path) -> Option<Self> {
        let directory = directory.canonicalize().ok()?;
        let name = directory.file_name()?.to_str()?.to_owned();
        let number = fs::read_to_string(directory.join("dev")).ok()?.trim_end().to_owned();
        Some(Self { directory, name, number })
    }

    fn node(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    /// This device and those that overlap it: the partitions of a disk, the disk of a partition.
    fn related(self) -> Vec<Self> {
        let is_partition = |directory: &Path| directory.join("partition").exists();
        let disk = match is_partition(&self.directory) {
            true => self.directory.parent().and_then(Self::at),
            false => None,
        };
        let parts = entries(&self.directory).filter(|path| is_partition(path));
        let mut all: Vec<Self> = parts.filter_map(|path| Self::at(&path)).collect();
        all.splice(0..0, std::iter::once(self).chain(disk));
        all
    }

    /// The message when it is used, but not how.
    fn unknown_user(&self) -> String {
        let node = self.node();
        let process = match identity(&node) {
            Some(Identity::Device(number)) => device_writer(number),
            Some(Identity::File(..) | Identity::Export(_) | Identity::Image(_)) | None => None,
        };
        let by = process.map_or(String::new(), |process| format!(" by {process}"));
        format!("{} is in use{by}", node.display())
    }

    /// The use of this device itself.
    fn user(&self) -> Option<String> {
        let node = self.node();
        let shown = node.display();
        if let Some(place) = mounted(&self.number, &node) {
            return Some(format!("{shown} is mounted on {place}"));
        }
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        if swaps.lines().any(|line| line.split_whitespace().next().map(Path::new) == Some(&node)) {
            return Some(format!("{shown} is swap space in use"));
        }
        if entries(self.directory.join("holders")).next().is_some() {
            return Some(format!("{shown} is part of another device"));
        }
        // A file system on several devices is listed as mounted for only one of them.
        let is_btrfs =
            entries("/sys/fs/btrfs").any(|fs| fs.join("devices").join(&self.name).exists());
        is_btrfs.then(|| format!("{shown} is part of a mounted file system"))
    }
}

/// The loop devices over a file.
fn loop_devices(file: Identity) -> impl Iterator<Item = Device> {
    entries("/sys/block").filter_map(move |directory| {
        let name = fs::read_to_string(directory.join("loop/backing_file")).ok()?;
        let device = Device::at(&directory)?;
        let backing = match open(&device.node(), OFlags::empty()) {
            Ok(node) => {
                loop_backing_file(node.as_fd()).ok().map(|(dev, ino)| Identity::File(dev, ino))
            }
            // Without permission to open it, only the file name given at attachment is known.
            Err(_) => identity(Path::new(name.trim_end_matches('\n'))),
        };
        (backing? == file).then_some(device)
    })
}

/// Where a device is mounted, in this mount namespace or any other that is visible.
fn mounted(number: &str, node: &Path) -> Option<String> {
    let find = |process: &Path| {
        let mounts = fs::read_to_string(process.join("mountinfo")).ok()?;
        mounts.lines().find_map(|line| mount_point(line, number, node).map(str::to_owned))
    };
    let own = Path::new("/proc/self");
    if let Some(place) = find(own) {
        return Some(place);
    }
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace(own).into_iter().collect();
    entries("/proc").find_map(|process| {
        let pid: u32 = process.file_name()?.to_str()?.parse().ok()?;
        if !seen.insert(namespace(&process)?) {
            return None;
        }
        let place = find(&process)?;
        Some(format!("{place} in the mount namespace of process {pid}"))
    })
}

/// The mount point in a line of mountinfo (proc(5)), if it is for the device with this number or node: btrfs shows a
/// different number.
fn mount_point<'a>(line: &'a str, number: &str, node: &Path) -> Option<&'a str> {
    let (fields, source) = line.split_once(" - ")?;
    let mut fields = fields.split(' ');
    let is_number = fields.nth(2)? == number;
    let place = fields.nth(1)?;
    let is_source = source.split(' ').nth(1).map(Path::new) == Some(node);
    (is_number || is_source).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_number_and_by_source() {
        let line = "36 35 98:0 /a /mnt rw,noatime master:1 - ext3 /dev/vdb rw,errors=continue";
        let of = |number, node| mount_point(line, number, Path::new(node));
        assert_eq!(of("98:0", "/dev/other"), Some("/mnt"));
        assert_eq!(of("98:1", "/dev/vdb"), Some("/mnt"));
        assert_eq!(of("98:1", "/dev/vdb1"), None);
        assert_eq!(mount_point("", "98:0", Path::new("/dev/vdb")), None);
    }
}
