//! The kernel's uses of a disk: of a device and its partitions, or of the loop devices over an image.
//!
//! `/proc` and sysfs show the uses, as far as they are visible to this process. Whether a device is used at all, in any
//! namespace, is tested by opening it with O_EXCL: a mount, swap space, and each device made of it have claimed it or a
//! partition of it, and then the kernel refuses with EBUSY (open(2)).
//!
//! Only the file system of the image itself is asked, which has responded before: an unresponsive server of FUSE or NFS elsewhere
//! on the machine would keep the whole process from ending.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use ashlar_client::disk_path::{Identity, identity};
use ashlar_engine::file::{device_writer, loop_backing_file};
use rustix::fs::{Mode, OFlags, major, minor};
use rustix::io::Errno;

/// How the kernel uses the device or image: mounted, as swap, or as part of another device; for an image through a loop
/// device. `None` if no use is visible.
pub(crate) fn user(disk: Identity) -> Option<String> {
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
pub(crate) fn is_claimed(path: &Path) -> bool {
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
    let all = entries("/sys/block").filter_map(|directory| {
        let name = fs::read_to_string(directory.join("loop/backing_file")).ok()?;
        Some((directory, PathBuf::from(name.trim_end_matches('\n'))))
    });
    let all: Vec<(PathBuf, PathBuf)> = all.collect();
    // Most machines have none: then no other process's mounts need to be read.
    let namespaces: Vec<Vec<Mount>> = match all.as_slice() {
        [] => Vec::new(),
        [..] => namespaces().map(|(_, mountinfo)| Mount::all(&mountinfo)).collect(),
    };
    let deadline = Instant::now() + PATIENCE;
    all.into_iter().filter_map(move |(directory, name)| {
        if !may_be_on_the_file_system_of(&file, &name, &namespaces) {
            return None;
        }
        let device = Device::at(&directory)?;
        (backing_file(device.node(), name, deadline)? == file).then_some(device)
    })
}

/// How long the file systems of all files behind loop devices may take to say which files these are.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long each may take in any case.
const LEAST_PATIENCE: Duration = Duration::from_millis(50);

/// The file behind a loop device, attached by `name`; `None` if its file system does not respond in time.
///
/// The kernel asks the file system, which may wait for its server without limit, and another mount namespace may hide
/// the server: so a separate thread asks.
fn backing_file(node: PathBuf, name: PathBuf, deadline: Instant) -> Option<Identity> {
    let shown = node.display().to_string();
    let (say, said) = mpsc::channel();
    let ask = move || {
        let file = match open(&node, OFlags::empty()) {
            Ok(node) => {
                loop_backing_file(node.as_fd()).ok().map(|(dev, ino)| Identity::File(dev, ino))
            }
            // Without permission to open it, only the file name given at attachment is known.
            Err(_) => identity(&name),
        };
        // The receiver may have stopped waiting.
        let (Ok(()) | Err(_)) = say.send(file);
    };
    thread::Builder::new().name("ashlar-loop".to_owned()).spawn(ask).ok()?;
    let left = deadline.saturating_duration_since(Instant::now()).max(LEAST_PATIENCE);
    // The file system of the wanted file has responded before.
    said.recv_timeout(left).unwrap_or_else(|_| {
        tracing::debug!(device = shown, "the file system behind a loop device does not respond");
        None
    })
}

/// A mount, as mountinfo shows it (proc(5)).
#[derive(Debug)]
struct Mount {
    place: PathBuf,
    /// `major:minor`.
    number: String,
    kind: String,
}

impl Mount {
    fn all(mountinfo: &str) -> Vec<Self> {
        mountinfo.lines().filter_map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        let (fields, source) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(2);
        let (number, _, place) = (fields.next()?, fields.next()?, fields.next()?);
        let kind = source.split(' ').next()?;
        Some(Self { place: unescaped(place), number: number.to_owned(), kind: kind.to_owned() })
    }

    /// The mount that `path` is on: of those on one place, the last.
    fn of<'a>(path: &Path, all: &'a [Self]) -> Option<&'a Self> {
        let above = all.iter().filter(|mount| path.starts_with(&mount.place));
        above.max_by_key(|mount| mount.place.as_os_str().len())
    }

    /// Whether stat(2) may show other device numbers of its files than mountinfo.
    fn has_other_numbers(&self) -> bool {
        ["bcachefs", "btrfs", "overlay"].contains(&self.kind.as_str())
    }

    /// Whether a process or another machine serves its files, and may not respond.
    fn has_server(&self) -> bool {
        const KINDS: [&str; 15] = [
            "9p", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "gpfs", "lustre", "nfs",
            "nfs4", "orangefs", "smb3", "vboxsf", "virtiofs",
        ];
        // Also fuseblk and fuse.sshfs.
        self.kind.starts_with("fuse") || KINDS.contains(&self.kind.as_str())
    }
}

/// A path in mountinfo, which has spaces and the like as three octal digits behind a backslash.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, behind)) = rest.split_first() {
        let code = behind.get(..3).filter(|_| *byte == b'\\');
        let code = code.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*byte));
        rest = if code.is_some() { &behind[3..] } else { behind };
    }
    OsString::from_vec(bytes).into()
}

/// Whether the file called `name`, in one of these mount namespaces, may be on the file system of `file`. Compares texts, and
/// asks no file system: its server may not respond. (`name` is behind a loop device, which belongs to no namespace.)
fn may_be_on_the_file_system_of(file: &Identity, name: &Path, namespaces: &[Vec<Mount>]) -> bool {
    let Identity::File(device, _) = file else { return false };
    let number = format!("{}:{}", major(*device), minor(*device));
    let on: Vec<&Mount> = namespaces.iter().filter_map(|all| Mount::of(name, all)).collect();
    let is_its = |mount: &&Mount| mount.number == number || mount.has_other_numbers();
    on.iter().any(is_its) || !on.iter().any(|mount| mount.has_server())
}

/// The mountinfo of this mount namespace, and of all others that are visible, with a process of each.
fn namespaces() -> impl Iterator<Item = (Option<u32>, String)> {
    let mounts = |process: &Path| fs::read_to_string(process.join("mountinfo")).ok();
    let own = Path::new("/proc/self");
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace(own).into_iter().collect();
    let others = entries("/proc").filter_map(move |process| {
        let pid: u32 = process.file_name()?.to_str()?.parse().ok()?;
        if !seen.insert(namespace(&process)?) {
            return None;
        }
        Some((Some(pid), mounts(&process)?))
    });
    mounts(own).map(|own| (None, own)).into_iter().chain(others)
}

/// Where a device is mounted, in this mount namespace or any other that is visible.
fn mounted(number: &str, node: &Path) -> Option<String> {
    namespaces().find_map(|(process, mounts)| {
        let place = mounts.lines().find_map(|line| mount_point(line, number, node))?;
        Some(match process {
            None => place.to_owned(),
            Some(pid) => format!("{place} in the mount namespace of process {pid}"),
        })
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

    const OWN: &str = "\
22 1 98:0 / / rw - ext4 /dev/vda rw
23 22 0:40 / /mnt/a\\040b rw shared:1 - fuse.ashlar ashlar rw
24 22 0:41 / /mnt/nfs rw - nfs4 server:/ rw
25 24 98:1 / /mnt/nfs/local rw - xfs /dev/vdb rw
26 22 0:42 / /btrfs rw - btrfs /dev/vdc rw
27 26 0:43 / /btrfs rw - fuseblk /dev/vdd rw
";

    #[test]
    fn a_file_system_with_a_server_is_asked_only_for_its_own_files() {
        let own = Mount::all(OWN);
        let elsewhere = Mount::all("30 1 0:44 / / rw - fuse ashlar rw\n");
        let device = |major, minor| Identity::File(rustix::fs::makedev(major, minor), 7);
        let (local, hung, nfs) = (device(98, 0), device(0, 40), device(0, 41));
        let asked = |file: &Identity, name: &str, namespaces: &[Vec<Mount>]| {
            may_be_on_the_file_system_of(file, Path::new(name), namespaces)
        };
        let own = [own];
        for name in ["/mnt/a b/dev/md0", "/mnt/nfs/x (deleted)", "/btrfs/x"] {
            assert!(!asked(&local, name, &own), "{name}");
        }
        // Local file systems are asked in any case.
        for name in ["/x", "/mnt/a bc", "/mnt/nfs/local/x", "/btrfsx"] {
            assert!(asked(&local, name, &own) && asked(&device(0, 50), name, &own), "{name}");
        }
        assert!(asked(&hung, "/mnt/a b/dev/md0", &own) && !asked(&hung, "/mnt/nfs/x", &own));
        assert!(asked(&nfs, "/mnt/nfs/x", &own));
        // A name means something else elsewhere: there it may have a server.
        let both = [Mount::all(OWN), elsewhere];
        assert!(asked(&local, "/x", &both) && !asked(&device(0, 50), "/x", &both));
        assert!(asked(&device(0, 44), "/x", &both) && asked(&local, "/x", &[]));
        let btrfs = [Mount::all("26 0 0:42 / / rw - btrfs /dev/vdc rw"), Mount::all(OWN)];
        assert!(asked(&device(0, 50), "/mnt/nfs/x", &btrfs), "its numbers tell nothing");
    }
}
