//! Opening disks: image files or block devices, each at most once.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ashlar_block::{Gateway, Runtime, Status};
use ashlar_client::disk_path::{NetworkDisk, RAM};
use ashlar_engine::file::{Kind, OpenError, OpenOptions};
use ashlar_engine::{EngineRuntime, RamDevice, Reactor, blocking, timeout};
use ashlar_stack::assemble::Disk;
use ashlar_stack::outsiders::{DeviceClass, Outsider};
use ashlar_stack::owners;
use ashlar_stack::probe::Contents;
use rustix::io::Errno;

use crate::acceptance::written_elsewhere;
use crate::error::{Error, Result};

mod failure;
mod kernel_use;
mod lending;
pub(crate) mod maps;
mod network;

use failure::{OpenFailure, open_error};

pub use ashlar_client::disk_path::{
    Access, Identity, absolute, device_number, identity, may_exist,
};
pub(crate) use ashlar_client::disk_path::{
    identity_of, in_directory, is_no_file, is_on_network, is_ram, is_same,
};
pub use lending::lending_client;
pub use maps::{MappedDisk, mapped_disks, use_maps};

/// How long a file system may take to answer a reactor's task.
const ANSWER: Duration = Duration::from_secs(10);
/// The most questions that wait for file systems at a time.
const MOST_ASKED: usize = 8;
/// How often to check this.
const RETRY: Duration = Duration::from_millis(20);

/// Opens `paths`.
///
/// # Errors
/// One of them cannot be opened, or is given twice.
pub fn open_all(paths: &[PathBuf], access: Access) -> Result<Vec<Disk>> {
    open_all_with(paths, access, true)
}

/// As [`open_all`], with direct I/O where possible, or through the page cache.
///
/// # Errors
/// As there.
pub(crate) fn open_all_with(paths: &[PathBuf], access: Access, direct: bool) -> Result<Vec<Disk>> {
    check_twice(paths)?;
    maps::check(paths)?;
    paths.iter().map(|path| open(path, access, direct)).collect()
}

/// The disks that could be opened, and the paths of those that are absent, with the error.
pub(crate) struct Opened {
    pub(crate) disks: Vec<Disk>,
    pub(crate) absent: Vec<(PathBuf, Error)>,
}

/// As [`open_all_with`], but without disks that are absent: files and devices that do not exist, disks on the network that cannot be
/// reached. `to_read` is the advice for a disk that can be read, and not written to.
///
/// # Errors
/// One cannot be opened for another reason, or is given twice.
pub(crate) fn open_present(
    paths: &[PathBuf],
    access: Access,
    direct: bool,
    to_read: &str,
) -> Result<Opened> {
    check_twice(paths)?;
    let mut opened = Opened { disks: Vec::new(), absent: Vec::new() };
    for path in paths {
        match patiently(path, || try_open(path, access, direct)) {
            Ok(disk) => opened.disks.push(disk),
            Err(failed) if failed.is_absent => opened.absent.push((path.clone(), failed.error)),
            Err(failed) if failed.is_only_readable => return Err(failed.error.hint(to_read)),
            Err(failed) => return Err(failed.error),
        }
    }
    Ok(opened)
}

/// Opens one disk, with direct I/O where possible, or through the page cache. If a process that has just ended still
/// holds it, waits for it up to 5 s, and for the worker of a pool up to 30 s.
///
/// # Errors
/// It cannot be opened.
pub fn open(path: &Path, access: Access, direct: bool) -> Result<Disk> {
    patiently(path, || try_open(path, access, direct)).map_err(|failed| failed.error)
}

fn patiently<T>(
    path: &Path,
    attempt: impl Fn() -> std::result::Result<T, OpenFailure>,
) -> std::result::Result<T, OpenFailure> {
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

/// Opens a disk for a daemon in its sandbox, as the daemon would; waits as [`open`] does.
///
/// # Errors
/// As there.
fn open_to_lend(path: &Path, access: Access) -> Result<OwnedFd> {
    maps::refuse_passing(path)?;
    let opened = patiently(path, || {
        try_open_with(path, access, true, |options| {
            ashlar_engine::file::open_to_lend(path, options)
        })
    });
    opened.map_err(|failed| failed.error)
}

/// Uses a disk that a client has passed.
///
/// # Errors
/// It is not a disk, is in use, or was not opened with this access.
pub(crate) fn adopt(fd: OwnedFd, path: &Path, access: Access, direct: bool) -> Result<Disk> {
    let options = options(access, direct);
    let device = ashlar_engine::file::adopt(fd, path, &options).map_err(|why| open_error(&why))?;
    Ok(Disk { path: path.to_owned(), gateway: Gateway::new(Arc::new(device)) })
}

/// As [`open`], but without waiting.
///
/// # Errors
/// As there.
fn open_now(path: &Path, access: Access, direct: bool) -> Result<Disk> {
    try_open(path, access, direct).map_err(|failed| failed.error)
}

/// Runs `ask`, which waits for the file system of `path`, on a thread of the pool: the file system may have a server that never
/// responds, and no serving thread must wait for it.
///
/// # Errors
/// No answer came in time. It may still come: what `ask` returns then is dropped.
pub(crate) async fn asked<T, F>(path: &Path, ask: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Path) -> T + Send + 'static,
{
    asked_within(ANSWER, path, ask).await
}

async fn asked_within<T, F>(limit: Duration, path: &Path, ask: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(&Path) -> T + Send + 'static,
{
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    struct Place;
    impl Drop for Place {
        fn drop(&mut self) {
            ASKED.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let asking = async {
        // File systems that do not respond keep their threads: the pool needs others for its other work.
        while ASKED.load(Ordering::Relaxed) >= MOST_ASKED {
            ashlar_engine::sleep(RETRY).await;
        }
        ASKED.fetch_add(1, Ordering::Relaxed);
        let (place, wanted) = (Place, path.to_owned());
        blocking::run(move || {
            let answer = ask(&wanted);
            drop(place);
            answer
        })
        .await
    };
    match timeout(limit, pin!(asking)).await {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(why)) => Err(Error::new("cannot ask for", path.display(), why)),
        None => {
            let why = format!("no answer within {} s", limit.as_secs());
            let error = Error::new("its file system does not respond", path.display(), why);
            Err(error.hint("check the server of this mount: findmnt -T PATH shows it"))
        }
    }
}

/// As [`identity`], for a reactor's task.
///
/// # Errors
/// As [`asked`].
pub(crate) async fn identity_in_task(path: &Path) -> Result<Option<Identity>> {
    asked(path, identity).await
}

/// As [`open_now`], for a reactor's task: neither a file system nor connecting to a network disk holds up the thread's other work.
///
/// # Errors
/// As there, and as [`asked`].
pub(crate) async fn open_in_task(path: &Path, access: Access, direct: bool) -> Result<Disk> {
    if NetworkDisk::at(path).is_none() {
        return asked(path, move |path| open_now(path, access, direct)).await?;
    }
    let wanted = path.to_owned();
    let opened = blocking::run(move || open_now(&wanted, access, direct)).await;
    opened.unwrap_or_else(|why| Err(Error::new("cannot open", path.display(), why)))
}

/// Opens a disk; areas that its map lists as unread fail to be read.
fn try_open(path: &Path, access: Access, direct: bool) -> std::result::Result<Disk, OpenFailure> {
    let disk = try_open_whole(path, access, direct)?;
    maps::apply(disk).map_err(OpenFailure::certain)
}

fn try_open_whole(
    path: &Path,
    access: Access,
    direct: bool,
) -> std::result::Result<Disk, OpenFailure> {
    if let Some(size) = path.to_str().and_then(|text| text.strip_prefix(RAM)) {
        return open_ram(path, size).map_err(OpenFailure::certain);
    }
    if let Some(disk) = NetworkDisk::at(path) {
        return network::open(disk, access);
    }
    let device = try_open_with(path, access, direct, |options| {
        let device = ashlar_engine::file::open(path, options)?;
        let kind = device.driver().kind();
        Ok((device, kind))
    })?;
    Ok(Disk { path: path.to_owned(), gateway: Gateway::new(Arc::new(device)) })
}

fn options(access: Access, direct: bool) -> OpenOptions {
    OpenOptions {
        read_only: access != Access::Write,
        lock: access != Access::Look,
        direct,
        ..OpenOptions::default()
    }
}

/// Opens a file or device by `open`, unless the kernel uses it.
fn try_open_with<T>(
    path: &Path,
    access: Access,
    direct: bool,
    open: impl FnOnce(&OpenOptions) -> std::result::Result<(T, Kind), OpenError>,
) -> std::result::Result<T, OpenFailure> {
    let kernel_user = || identity(path).and_then(kernel_use::user);
    let in_use = |user: String| {
        let failed = Error::new("in use by the kernel", path.display(), user);
        OpenFailure::certain(failed.hint("unmount it or stop what uses it first"))
    };
    let (opened, kind) = match open(&options(access, direct)) {
        Ok(opened) => opened,
        Err(error) => {
            if matches!(error, OpenError::Claimed { .. })
                && let Some(user) = kernel_user()
            {
                return Err(in_use(user));
            }
            return Err(OpenFailure::of(&error, path, access));
        }
    };
    // The engine has claimed a device that it may write to. But it cannot see that an image is used by a loop device,
    // and it does not claim devices for readers, since that would exclude other readers.
    let is_device = kind == Kind::Device;
    let is_safe = access == Access::Look || (access == Access::Write && is_device);
    if !is_safe && let Some(user) = kernel_user() {
        return Err(in_use(user));
    }
    if !is_safe && is_device && kernel_use::is_claimed(path) {
        let claimed = OpenError::Claimed { path: path.to_owned(), holder: None };
        return Err(OpenFailure::certain(open_error(&claimed)));
    }
    Ok(opened)
}

/// The block devices of this machine, as mdadm finds them with --scan.
fn all_block_devices() -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
    // Two heading lines, then lines of major, minor, blocks and name.
    let name = |line: &str| Some(Path::new("/dev").join(line.split_whitespace().nth(3)?));
    table.lines().skip(2).filter_map(name).filter(|path| path.exists()).collect()
}

/// Opens those of `paths` that can be opened, or of all block devices if `paths` is empty, for looking only.
pub fn open_for_scan(paths: &[PathBuf]) -> Vec<Disk> {
    let all = if paths.is_empty() { all_block_devices() } else { paths.to_vec() };
    all.iter().filter_map(|path| open(path, Access::Look, true).ok()).collect()
}

/// Refuses a disk with two owners for writing: see [`owners`].
///
/// # Errors
/// It has two, or cannot be read.
pub async fn refuse_rivals(
    disk: &Disk,
    contents: std::result::Result<&Contents, &Status>,
) -> Result<()> {
    // Unreadable disks are reported by the code that needs them.
    let Ok(contents) = contents else { return Ok(()) };
    let path = disk.path.display();
    match owners::rivals(&disk.gateway, contents).await {
        Ok(None) => Ok(()),
        Ok(Some(rivals)) => Err(Error::new("cannot use", path, &rivals).hint(rivals.way_out())),
        Err(status) => Err(Error::new("cannot read", path, status)),
    }
}

/// Refuses to write to a disk that another program writes to: see [`ashlar_stack::outsiders`].
///
/// # Errors
/// Another program writes to it.
pub fn refuse_outsider(
    disk: &Disk,
    contents: std::result::Result<&Contents, &Status>,
) -> Result<()> {
    let Ok(contents) = contents else { return Ok(()) };
    match Outsider::of(contents, DeviceClass::Disk, false) {
        None => Ok(()),
        Some(outsider) => {
            Err(written_elsewhere(disk.path.display(), &outsider).hint(outsider.removal()))
        }
    }
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

/// Whether the file at `path` is one hole, so that it reads as zeroes.
pub fn is_all_hole(path: &Path) -> bool {
    let file = match File::open(path) {
        Ok(file) if file.metadata().is_ok_and(|metadata| metadata.is_file()) => file,
        Ok(_) | Err(_) => return false,
    };
    // ENXIO: no data at or after this position (lseek(2), SEEK_DATA).
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)) == Err(Errno::NXIO)
}

/// A reactor for this thread.
///
/// # Errors
/// io_uring was asked for and is not allowed, or there are no descriptors or memory left.
pub fn reactor() -> Result<Reactor> {
    Reactor::new(Default::default()).map_err(no_io_uring)
}

/// The error when no reactor can be created.
pub fn no_io_uring(error: std::io::Error) -> Error {
    Error::plain("cannot set up io_uring", error).hint(
        "io_uring needs Linux 5.11 or newer, and must be allowed (sysctl kernel.io_uring_disabled, \
         the seccomp profile of a container). Threads need no io_uring: set ASHLAR_IO=threads, or \
         run ashlar serve --io=threads",
    )
}

/// The runtime of the layers.
pub fn runtime() -> Arc<dyn Runtime> {
    Arc::new(EngineRuntime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, PoisonError, mpsc};

    /// These tests count the threads that wait.
    static ALONE: Mutex<()> = Mutex::new(());

    /// A file system that never answers has its deadline, and leaves threads of the pool to others.
    #[test]
    fn a_question_to_a_silent_file_system_has_a_deadline() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        reactor().unwrap().block_on(async {
            let (limit, path) = (Duration::from_millis(50), Path::new("/some/where"));
            let waiting = Arc::new(AtomicUsize::new(0));
            let mut answers = Vec::new();
            for _ in 0..MOST_ASKED + 2 {
                let (answer, answered) = mpsc::channel::<()>();
                answers.push(answer);
                let waiting = Arc::clone(&waiting);
                let asking = asked_within(limit, path, move |_| {
                    waiting.fetch_add(1, Ordering::Relaxed);
                    answered.recv()
                });
                let error = asking.await.unwrap_err().to_string();
                assert!(
                    error.contains("/some/where") && error.contains("does not respond"),
                    "{error}"
                );
            }
            let waiting = waiting.load(Ordering::Relaxed);
            assert!((1..=MOST_ASKED).contains(&waiting), "{waiting} threads wait");
            assert_eq!(blocking::run(|| 5).await.unwrap(), 5);
            answers.clear();
            assert_eq!(asked(path, |_| 6).await.unwrap(), 6);
        });
    }

    /// What waits holds up neither the reactor nor, once its answer comes, a later question.
    #[test]
    fn a_question_to_a_file_system_leaves_the_reactor_free() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        reactor().unwrap().block_on(async {
            let (answer, answered) = mpsc::channel();
            let path = Path::new("/some/where");
            let asking = asked(path, move |path| (path.to_owned(), answered.recv()));
            let mut asking = pin!(asking);
            assert!(timeout(Duration::from_millis(1), asking.as_mut()).await.is_none());
            answer.send(7).unwrap();
            assert_eq!(asking.await.unwrap(), (path.to_owned(), Ok(7)));
            for _ in 0..2 * MOST_ASKED {
                assert!(identity_in_task(Path::new("/proc/self")).await.unwrap().is_some());
            }
        });
    }
}
