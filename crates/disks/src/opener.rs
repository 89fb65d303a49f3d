//! Opens disks, each at most once, with what stands between them and their users.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ashlar_block::Gateway;
use ashlar_client::disk_path::{Access, Identity, NetworkDisk, RAM, identity};
use ashlar_control::error::{Error, Result};
use ashlar_engine::file::{self, Kind, OpenError, OpenOptions};
use ashlar_engine::{RamDevice, blocking};
use ashlar_stack::assemble::Disk;

use crate::asking::asked;
use crate::decorators::Decorators;
use crate::failure::{OpenFailure, open_error};
use crate::{kernel_use, network};

/// How often to try to open a disk that an ended process still holds.
const RETRY: Duration = Duration::from_millis(20);

/// What an attempt to open a disk leads to.
type Attempted<T> = std::result::Result<T, OpenFailure>;

/// How disks are opened, and what stands between them and their users.
#[derive(Clone, Debug)]
pub struct Opener {
    /// What the process may do with them.
    pub access: Access,
    /// Whether with direct I/O where possible, or through the page cache.
    pub direct: bool,
    /// What stands between them and their users.
    pub decorators: Arc<Decorators>,
}

/// The disks that could be opened, and the paths of those that are absent, with the error.
pub struct Opened {
    /// The disks.
    pub disks: Vec<Disk>,
    /// The paths, and why each could not be opened.
    pub absent: Vec<(PathBuf, Error)>,
}

impl Opener {
    /// For a command: with direct I/O where possible, and the decorators of this process.
    pub fn new(access: Access) -> Self {
        Self { access, direct: true, decorators: Decorators::of_process() }
    }

    /// Opens all disks of a command.
    ///
    /// # Errors
    /// One of them cannot be opened, or is given twice.
    pub fn all(&self, paths: &[PathBuf]) -> Result<Vec<Disk>> {
        check_twice(paths)?;
        self.decorators.check(paths)?;
        paths.iter().map(|path| self.one(path)).collect()
    }

    /// Opens the disks of a daemon, which has checked what decorates them, without those that are absent: files and devices that do not
    /// exist, disks on the network that cannot be reached. `to_read` is the advice for a disk that can be read, and not written to.
    ///
    /// # Errors
    /// One cannot be opened for another reason, or is given twice.
    pub fn present(&self, paths: &[PathBuf], to_read: &str) -> Result<Opened> {
        check_twice(paths)?;
        let mut opened = Opened { disks: Vec::new(), absent: Vec::new() };
        for path in paths {
            match patiently(path, || self.attempt(path)) {
                Ok(disk) => opened.disks.push(disk),
                Err(failed) if failed.is_absent => opened.absent.push((path.clone(), failed.error)),
                Err(failed) if failed.is_only_readable => return Err(failed.error.hint(to_read)),
                Err(failed) => return Err(failed.error),
            }
        }
        Ok(opened)
    }

    /// Opens those of `paths` that can be opened, or of all block devices if `paths` is empty.
    pub fn openable(&self, paths: &[PathBuf]) -> Vec<Disk> {
        let all = if paths.is_empty() { all_block_devices() } else { paths.to_vec() };
        all.iter().filter_map(|path| self.one(path).ok()).collect()
    }

    /// Opens one disk. If a process that has just ended still holds it, waits for it up to 5 s, and for the worker of a pool up to 30 s.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn one(&self, path: &Path) -> Result<Disk> {
        patiently(path, || self.attempt(path)).map_err(|failed| failed.error)
    }

    /// As [`Self::one`], without waiting and for a reactor's task: neither a file system nor connecting to a network disk holds up the
    /// thread's other work.
    ///
    /// # Errors
    /// As there, and as [`asked`].
    pub async fn in_task(&self, path: &Path) -> Result<Disk> {
        let opener = self.clone();
        if NetworkDisk::at(path).is_none() {
            let opened = asked(path, move |path| opener.attempt(path)).await?;
            return opened.map_err(|failed| failed.error);
        }
        let wanted = path.to_owned();
        let opened = blocking::run(move || opener.undecorated(&wanted)).await;
        let opened = opened.map_err(|why| Error::new("cannot open", path.display(), why))?;
        let (opener, disk) = (self.clone(), opened.map_err(|failed| failed.error)?);
        asked(path, move |_| opener.decorators.over(disk)).await?
    }

    /// Uses a disk that a client has passed.
    ///
    /// # Errors
    /// It is not a disk, is in use, or was not opened with this access; or as [`asked`].
    pub async fn adopt(&self, fd: OwnedFd, path: &Path) -> Result<Disk> {
        let device = file::adopt(fd, path, &self.options()).map_err(|why| open_error(&why))?;
        let disk = Disk { path: path.to_owned(), gateway: Gateway::new(Arc::new(device)) };
        if !self.decorators.are_for_lent() {
            return Ok(disk);
        }
        let opener = self.clone();
        asked(path, move |_| opener.decorators.over_lent(disk)).await?
    }

    /// Opens a disk for a daemon in its sandbox, as the daemon would; waits as [`Self::one`] does.
    ///
    /// # Errors
    /// As there; or the daemon would not see what stands between the disk and its users.
    pub(crate) fn lend(&self, path: &Path) -> Result<OwnedFd> {
        self.decorators.may_lend(path)?;
        let open = || self.attempt_with(path, |options| file::open_to_lend(path, options));
        patiently(path, open).map_err(|failed| failed.error)
    }

    /// Opens a disk, without waiting.
    fn attempt(&self, path: &Path) -> Attempted<Disk> {
        let disk = self.undecorated(path)?;
        self.decorators.over(disk).map_err(OpenFailure::certain)
    }

    fn undecorated(&self, path: &Path) -> Attempted<Disk> {
        if let Some(size) = path.to_str().and_then(|text| text.strip_prefix(RAM)) {
            return open_ram(path, size).map_err(OpenFailure::certain);
        }
        if let Some(disk) = NetworkDisk::at(path) {
            return network::open(disk, self.access);
        }
        let device = self.attempt_with(path, |options| {
            let device = file::open(path, options)?;
            let kind = device.driver().kind();
            Ok((device, kind))
        })?;
        Ok(Disk { path: path.to_owned(), gateway: Gateway::new(Arc::new(device)) })
    }

    fn options(&self) -> OpenOptions {
        OpenOptions {
            read_only: self.access != Access::Write,
            lock: self.access != Access::Look,
            direct: self.direct,
            ..OpenOptions::default()
        }
    }

    /// Opens a file or device by `open`, unless the kernel uses it.
    fn attempt_with<T>(
        &self,
        path: &Path,
        open: impl FnOnce(&OpenOptions) -> std::result::Result<(T, Kind), OpenError>,
    ) -> Attempted<T> {
        let kernel_user = || identity(path).and_then(kernel_use::user);
        let in_use = |user: String| {
            let failed = Error::new("in use by the kernel", path.display(), user);
            OpenFailure::certain(failed.hint("unmount it or stop what uses it first"))
        };
        let (opened, kind) = match open(&self.options()) {
            Ok(opened) => opened,
            Err(error) => {
                if matches!(error, OpenError::Claimed { .. })
                    && let Some(user) = kernel_user()
                {
                    return Err(in_use(user));
                }
                return Err(OpenFailure::of(&error, path, self.access));
            }
        };
        // The engine has claimed a device that it may write to. But it cannot see that an image is used by a loop device,
        // and it does not claim devices for readers, since that would exclude other readers.
        let is_device = kind == Kind::Device;
        let is_safe = self.access == Access::Look || (self.access == Access::Write && is_device);
        if !is_safe && let Some(user) = kernel_user() {
            return Err(in_use(user));
        }
        if !is_safe && is_device && kernel_use::is_claimed(path) {
            let claimed = OpenError::Claimed { path: path.to_owned(), holder: None };
            return Err(OpenFailure::certain(open_error(&claimed)));
        }
        Ok(opened)
    }
}

/// Repeats an attempt as long as its failure may pass.
fn patiently<T>(path: &Path, attempt: impl Fn() -> Attempted<T>) -> Attempted<T> {
    let begun = Instant::now();
    let mut is_told = false;
    loop {
        match attempt() {
            Err(failed) if failed.left.is_some_and(|limit| begun.elapsed() < limit) => {}
            other => return other,
        }
        if !is_told {
            let path = path.display();
            tracing::info!(%path, "waiting for the I/O of an ended process to finish");
            is_told = true;
        }
        sleep(RETRY);
    }
}

/// The block devices of this machine, as mdadm finds them with --scan.
fn all_block_devices() -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
    // Two heading lines, then lines of major, minor, blocks and name.
    let name = |line: &str| Some(Path::new("/dev").join(line.split_whitespace().nth(3)?));
    table.lines().skip(2).filter_map(name).filter(|path| path.exists()).collect()
}

/// A RAM disk for tests and measurements; it disappears when the process ends.
fn open_ram(path: &Path, size: &str) -> Result<Disk> {
    let failed = |why: String| Error::new("cannot make a RAM disk", path.display(), why);
    let size = crate::size::size(size).map_err(failed)?;
    let device = RamDevice::new("ram", size).map_err(|error| failed(error.to_string()))?;
    Ok(Disk { path: path.to_owned(), gateway: Gateway::new(Arc::new(device)) })
}

/// Refuses paths that are the same disk.
fn check_twice(paths: &[PathBuf]) -> Result<()> {
    let mut seen: HashMap<Identity, &Path> = HashMap::new();
    for path in paths {
        // A path without identity is reported when it is opened.
        let Some(identity) = identity(path) else { continue };
        if let Some(first) = seen.insert(identity, path) {
            let why = format!("is the same as {}", first.display());
            return Err(Error::new("given twice", path.display(), why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::slice::from_ref;

    use ashlar_block::{Sector, Sectors};
    use ashlar_stack::assemble::probe_all;
    use ashlar_view::scan::scan;
    use tempfile::TempDir;

    use super::*;
    use crate::{Assignment, MapFile, Maps, Models, reactor, runtime};

    const MIB: usize = 1 << 20;

    /// An image of 4 MiB without a zero, and its path.
    fn image() -> (TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.img");
        fs::write(&path, vec![7; 4 * MIB]).unwrap();
        (directory, path)
    }

    /// A map that lists 4 KiB of an image as unread.
    fn map(at: usize) -> String {
        format!("0 +\n0 {at} +\n{at} 4096 -\n{} {} +\n", at + 4096, 4 * MIB - at - 4096)
    }

    /// An opener for reading, with a file that is the map of `disk`, and a model.
    fn opener(disk: &Path, map: Option<&Path>, model: Option<&str>) -> Opener {
        let map = map.map(|file| MapFile { disk: Some(disk.into()), file: file.into() });
        let model = model.map(|model| model.parse::<Assignment>().unwrap());
        let decorators = Decorators {
            maps: Maps::new(map.into_iter().collect()),
            models: Models::new(model.into_iter().collect()),
        };
        Opener { access: Access::Look, direct: true, decorators: Arc::new(decorators) }
    }

    /// Which MiB of an image begin with bytes that can be read.
    async fn readable(disk: &Disk) -> [bool; 4] {
        let mut found = [false; 4];
        for (mib, found) in found.iter_mut().enumerate() {
            let at = Sector((mib * MIB / 512) as u64);
            *found = disk.gateway.read(at, Sectors(1)).await.is_ok();
        }
        found
    }

    /// However a command or the daemon opens a disk, it sees all that was asked for.
    #[test]
    fn all_ways_to_open_a_disk_decorate_it() {
        let (directory, path) = image();
        let file = directory.path().join("of-disk");
        fs::write(&file, map(MIB)).unwrap();
        let opener = opener(&path, Some(&file), Some("custom:unreadable=2M+4K"));
        let paths = from_ref(&path);
        reactor().unwrap().block_on(async {
            let mut opened = opener.all(paths).unwrap();
            opened.extend(opener.openable(paths));
            opened.extend(opener.present(paths, "").unwrap().disks);
            opened.push(opener.one(&path).unwrap());
            opened.push(opener.in_task(&path).await.unwrap());
            assert_eq!(opened.len(), 5);
            for disk in &opened {
                assert_eq!(readable(disk).await, [true, false, false, true]);
            }
            let [known] = &opener.decorators.maps.known()[..] else { panic!("one map") };
            assert_eq!((&known.map, known.unread_bytes), (&file, 4096));
            let used = [(path.display().to_string(), "custom:unreadable=2M+4K".to_owned())];
            assert_eq!(opener.decorators.models.used(), used);
            drop(opened);
            assert!(opener.decorators.models.used().is_empty());
        });
    }

    /// What `ashlar scan` prints says so.
    #[test]
    fn a_scan_sees_what_decorates_its_disks() {
        let (directory, path) = image();
        let file = directory.path().join("of-disk");
        fs::write(&file, map(4096)).unwrap();
        let text = |opener: &Opener| {
            let opened = opener.all(from_ref(&path)).unwrap();
            reactor().unwrap().block_on(async {
                let probed = probe_all(opened).await;
                scan(&probed, Default::default(), &runtime()).await.to_text(1000)
            })
        };
        let unread = "cannot be read at 0x1000 to 0x2000";
        let plain = text(&opener(&path, None, None));
        assert!(!plain.contains(unread), "{plain}");
        for opener in
            [opener(&path, Some(&file), None), opener(&path, None, Some("custom:unreadable=4K+4K"))]
        {
            let text = text(&opener);
            assert!(text.contains(unread), "{text}");
        }
    }

    #[test]
    fn what_is_said_of_a_disk_is_said_of_one_of_the_command() {
        let (directory, path) = image();
        let other = directory.path().join("other");
        for (opener, what) in [
            (opener(&other, Some(&other), None), "a map for "),
            (opener(&path, None, Some("other=hdd")), "a model for "),
        ] {
            let error = opener.all(from_ref(&path)).err().unwrap().to_string();
            assert!(error.starts_with(what) && error.contains("other, which is not "), "{error}");
        }
    }

    /// A disk with a map is not lent; one without gets what the daemon has for it.
    #[test]
    fn a_lent_disk_has_what_its_daemon_decorates_it_with() {
        let (directory, path) = image();
        let file = directory.path().join("disk.map");
        let lender = opener(&path, None, None);
        let lent = lender.lend(&path).unwrap();
        let again = lent.try_clone().unwrap();
        fs::write(&file, map(MIB)).unwrap();
        for lender in [&lender, &opener(&path, Some(&file), None)] {
            let error = lender.lend(&path).unwrap_err().to_string();
            assert!(error.contains("cannot hand in: ") && error.contains("disk.map"), "{error}");
        }
        reactor().unwrap().block_on(async {
            let daemon = opener(&path, None, Some("custom:unreadable=2M+4K"));
            let disk = daemon.adopt(lent, &path).await.unwrap();
            assert_eq!(readable(&disk).await, [true, true, false, true]);
            // One that was given a map for it would serve what was not read as zeroes.
            let daemon = opener(&path, Some(&file), None);
            let error = daemon.adopt(again, &path).await.err().unwrap().to_string();
            assert!(error.contains("cannot use") && error.contains("disk.map"), "{error}");
        });
    }
}
