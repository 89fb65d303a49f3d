//! Opening disks: image files or block devices, each at most once.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ashlar_block::{Gateway, Runtime, Status};
use ashlar_engine::file::{OpenError, OpenOptions};
use ashlar_engine::{EngineRuntime, RamDevice, Reactor};
use ashlar_stack::assemble::Disk;
use ashlar_stack::owners;
use ashlar_stack::probe::Contents;
use rustix::io::Errno;

use crate::error::{Error, Result};

/// How disks are opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// To look at, even when somebody uses them.
    Look,
    /// To read from, with nobody writing.
    Read,
    /// To write to, with nobody else using them.
    Write,
}

/// Opens `paths`.
///
/// # Errors
/// One of them cannot be opened, or is there twice.
pub(crate) fn open_all(paths: &[PathBuf], access: Access) -> Result<Vec<Disk>> {
    open_all_with(paths, access, true)
}

/// As [`open_all`], with direct I/O where it can be had or through the page cache.
///
/// # Errors
/// As there.
pub(crate) fn open_all_with(paths: &[PathBuf], access: Access, direct: bool) -> Result<Vec<Disk>> {
    check_twice(paths)?;
    paths.iter().map(|path| open(path, access, direct)).collect()
}

/// Opens one disk, with direct I/O where it can be had or through the page cache.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn open(path: &Path, access: Access, direct: bool) -> Result<Disk> {
    if let Some(size) = path.to_str().and_then(|text| text.strip_prefix(RAM)) {
        return open_ram(path, size);
    }
    // The engine refuses a device that is in use; it cannot see that an image is, below a loop device.
    if access != Access::Look
        && let Some(user) = kernel_user(path)
    {
        let failed = Error::new("in use by the kernel", path.display(), user);
        return Err(failed.hint("unmount it or stop what uses it first"));
    }
    let options = OpenOptions {
        read_only: access != Access::Write,
        lock: access != Access::Look,
        direct,
        ..OpenOptions::default()
    };
    let device = ashlar_engine::file::open(path, &options).map_err(|error| open_error(&error))?;
    Ok(Disk { path: path.to_owned(), gateway: Gateway::new(Arc::new(device)) })
}

/// What a path begins with that stands for a RAM disk.
const RAM: &str = "ram:";

/// Refuses a disk with two owners, to be written to: see [`owners`].
///
/// # Errors
/// It has two, or cannot be read.
pub(crate) async fn refuse_rivals(
    disk: &Disk,
    contents: std::result::Result<&Contents, &Status>,
) -> Result<()> {
    // What cannot be read is reported by those that need it.
    let Ok(contents) = contents else { return Ok(()) };
    let path = disk.path.display();
    match owners::rivals(&disk.gateway, contents).await {
        Ok(None) => Ok(()),
        Ok(Some(rivals)) => Err(Error::new("cannot use", path, &rivals).hint(rivals.way_out())),
        Err(status) => Err(Error::new("cannot read", path, status)),
    }
}

/// A RAM disk: for tests and measurements, and gone with the process.
fn open_ram(path: &Path, size: &str) -> Result<Disk> {
    let failed = |why: String| Error::new("cannot make a RAM disk", path.display(), why);
    let size = crate::units::size(size).map_err(failed)?;
    let device = RamDevice::new("ram", size).map_err(|error| failed(error.to_string()))?;
    Ok(Disk { path: path.to_owned(), gateway: Gateway::new(Arc::new(device)) })
}

fn open_error(error: &OpenError) -> Error {
    let failed = Error::plain("cannot open", error);
    match error {
        OpenError::InUse(_) => {
            failed.hint("a running daemon has it: see ashlar status; ashlar stop ends it")
        }
        OpenError::Claimed(_) => failed.hint("unmount it or stop what uses it first"),
        OpenError::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            failed.hint("reading disks and writing to them takes the right to do so: run as root?")
        }
        OpenError::Io { .. } | OpenError::NotADisk(_) | OpenError::BlockSize { .. } => failed,
    }
}

/// What tells one file or device from another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Identity {
    /// A device, by its number.
    Device(u64),
    /// A file, by its file system and inode.
    File(u64, u64),
}

/// The identity of what is at `path`; `None` if that cannot be looked at.
pub(crate) fn identity(path: &Path) -> Option<Identity> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(if metadata.file_type().is_block_device() {
        Identity::Device(metadata.rdev())
    } else {
        Identity::File(metadata.dev(), metadata.ino())
    })
}

/// What the kernel uses the device or image at `path` for, through a loop device too: `mounted` on such a
/// one, or part of something. `None` if for nothing that can be seen.
fn kernel_user(path: &Path) -> Option<String> {
    let wanted = identity(path)?;
    let names = match wanted {
        Identity::Device(number) => {
            let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
            vec![link.file_name()?.to_string_lossy().into_owned()]
        }
        Identity::File(..) => loop_devices(wanted),
    };
    names.into_iter().find_map(|name| {
        let device = format!("/dev/{name}");
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mounted = mounts.lines().find_map(|line| {
            let (source, rest) = line.split_once(' ')?;
            (source == device).then(|| rest.split(' ').next().unwrap_or_default().to_owned())
        });
        if let Some(at) = mounted {
            return Some(format!("{device} is mounted on {at}"));
        }
        let entries = |path: String| std::fs::read_dir(path).into_iter().flatten().flatten();
        if entries(format!("/sys/class/block/{name}/holders")).next().is_some() {
            return Some(format!("{device} is part of another device"));
        }
        // A file system of several devices is listed as mounted by one of them only.
        let is_btrfs = entries("/sys/fs/btrfs".to_owned())
            .any(|fs| fs.path().join("devices").join(&name).exists());
        is_btrfs.then(|| format!("{device} is part of a mounted file system"))
    })
}

/// The names of the loop devices on a file.
fn loop_devices(file: Identity) -> Vec<String> {
    let all = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let on_it = all.filter(|entry| {
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file"));
        backing.is_ok_and(|path| identity(Path::new(path.trim_end_matches('\n'))) == Some(file))
    });
    on_it.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Refuses paths that are the same file or device.
fn check_twice(paths: &[PathBuf]) -> Result<()> {
    let mut seen: HashMap<Identity, &Path> = HashMap::new();
    for path in paths {
        // What cannot be looked at is reported when it is opened.
        let Some(identity) = identity(path) else { continue };
        if let Some(first) = seen.insert(identity, path) {
            let why = format!("is the same as {}", first.display());
            return Err(Error::new("given twice", path.display(), why));
        }
    }
    Ok(())
}

/// Whether the file at `path` is one hole, so that it reads as zeroes everywhere.
pub(crate) fn is_all_hole(path: &Path) -> bool {
    let file = match File::open(path) {
        Ok(file) if file.metadata().is_ok_and(|metadata| metadata.is_file()) => file,
        Ok(_) | Err(_) => return false,
    };
    // ENXIO: no data at or behind this position (lseek(2), SEEK_DATA).
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)) == Err(Errno::NXIO)
}

/// A reactor for this thread.
///
/// # Errors
/// The kernel has no io_uring, or does not allow it.
pub(crate) fn reactor() -> Result<Reactor> {
    Reactor::new(Default::default()).map_err(no_io_uring)
}

/// What to say when there is no reactor to be had.
pub(crate) fn no_io_uring(error: std::io::Error) -> Error {
    Error::plain("cannot set up io_uring", error).hint(
        "Linux 5.11 or newer is needed, with io_uring allowed (sysctl kernel.io_uring_disabled, \
         and the seccomp profile of a container)",
    )
}

/// The runtime of the layers.
pub(crate) fn runtime() -> Arc<dyn Runtime> {
    Arc::new(EngineRuntime)
}
