//! The measurement with a file system, as in the bug report: ext4 on the volume, through a loop device on ashlar's
//! mount, and the file read from the mounted snapshot. It needs root.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ashlar_block::byte_volume::{ByteVolume, Holes};
use ashlar_block::{Gateway, Sectors};
use ashlar_commands::error::{Error, Result};
use ashlar_disks as disks;
use ashlar_engine::{Engine, Receiver, blocking, wall_clock};
use ashlar_export::fuse::dev::KernelDev;
use ashlar_export::fuse::mount::{Mount, MountError, MountOptions, mount};
use ashlar_export::fuse::server;
use ashlar_export::fuse::session::Session;
use ashlar_export::fuse::tree::{Entry, Namespace, Owner};
use rustix::io::Errno;

use crate::loops::{LoopDevice, MountedFileSystem, drop_caches};
use crate::program::run;
use crate::readahead::PAGE;

/// Threads that serve the mount.
const THREADS: usize = 2;
/// How often unmounting is retried while the mount is in use, and the pause between tries.
const TRIES: u32 = 100;
const RETRY: Duration = Duration::from_millis(50);
/// The size of cat's reads.
const CAT_BYTES: usize = 128 << 10;

/// The volumes shown in the mount.
#[derive(Default)]
struct MountVolumes(Mutex<Vec<(&'static str, Arc<ByteVolume>)>>);

impl MountVolumes {
    fn with<T>(&self, look: impl FnOnce(&mut Vec<(&'static str, Arc<ByteVolume>)>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The mount's namespace.
struct View(Arc<MountVolumes>);

impl Namespace for View {
    fn lookup(&self, path: &str) -> Option<Entry> {
        if path.is_empty() {
            return Some(Entry::Directory);
        }
        self.0.with(|all| {
            let found = all.iter().find(|(name, _)| *name == path);
            found.map(|(_, volume)| Entry::Volume(Arc::clone(volume)))
        })
    }

    fn list(&self, path: &str) -> Vec<String> {
        if !path.is_empty() {
            return Vec::new();
        }
        self.0.with(|all| all.iter().map(|(name, _)| (*name).to_owned()).collect())
    }

    fn read(&self, _: &str) -> std::result::Result<String, Errno> {
        Err(Errno::NOENT)
    }
}

/// A mount with volumes, and a mount point for their file systems.
pub(crate) struct Site {
    dir: PathBuf,
    shown: Arc<MountVolumes>,
    mount: Mutex<Mount>,
    servers: Vec<Receiver<io::Result<()>>>,
    /// Dropped last: it serves until the mount has ended.
    _engine: Engine,
}

impl Site {
    /// Mounts an empty directory.
    ///
    /// # Errors
    /// There is no FUSE, or no permission to mount.
    pub(crate) fn new() -> Result<Arc<Self>> {
        if !rustix::process::geteuid().is_root() {
            let error =
                Error::usage("--mounted makes file systems and mounts them, which takes root");
            return Err(error.hint("without --mounted the volumes themselves are read"));
        }
        let dir = std::env::temp_dir().join(format!("ashlar-bench-{}", std::process::id()));
        for name in ["volumes", "mnt"] {
            let path = dir.join(name);
            let failed = |error| Error::new("cannot make the directory", path.display(), error);
            fs::create_dir_all(&path).map_err(failed)?;
        }
        let failed = |error: MountError| Error::plain("cannot mount", error);
        let shown = Arc::new(MountVolumes::default());
        let owner = Owner { uid: 0, gid: 0, since: wall_clock() };
        let session = Arc::new(Session::new(View(Arc::clone(&shown)), owner, Holes::Fast));
        let engine = Engine::start(THREADS).map_err(disks::no_io_uring)?;
        let options = MountOptions { allow_other: false };
        let (mount, fd) = mount(&dir.join("volumes"), options).map_err(failed)?;
        let mut servers = Vec::new();
        for handle in engine.handles() {
            let fd = fd.try_clone().map_err(|error| Error::plain("cannot mount", error))?;
            let session = Arc::clone(&session);
            servers.push(handle.spawn_on(move || async move {
                let dev = std::rc::Rc::new(KernelDev::new(fd)?);
                server::serve(dev, session, disks::runtime(), 0).await
            }));
        }
        Ok(Arc::new(Self { dir, shown, mount: Mutex::new(mount), servers, _engine: engine }))
    }

    /// Shows `volume` as `name`, in place of an earlier volume of that name.
    pub(crate) fn show(&self, name: &'static str, volume: &Gateway) {
        let volume = Arc::new(ByteVolume::new(volume.clone()));
        self.shown.with(|all| {
            all.retain(|(known, _)| *known != name);
            all.push((name, volume));
        });
    }

    /// Creates a file system on the volume `name`, and the file on it.
    ///
    /// # Errors
    /// One of the steps failed.
    pub(crate) async fn fill(self: &Arc<Self>, name: &'static str, file: Sectors) -> Result<()> {
        let this = Arc::clone(self);
        in_pool(move || {
            let volume = this.dir.join("volumes").join(name);
            let volume = volume.to_string_lossy();
            let options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
            run("mkfs.ext4", &["-q", "-F", "-E", options, &volume])?;
            let mounted = MountedVolume::new(&this.dir, name, false, Sectors::ZERO)?;
            let path = mounted.file();
            write_file(&path, file)
                .map_err(|error| Error::new("cannot write the file", path.display(), error))?;
            mounted.end()
        })
        .await
    }

    /// Reads the file on the volume `name` without caches; returns how long that took.
    ///
    /// # Errors
    /// One of the steps failed, or the file's contents are wrong.
    pub(crate) async fn read(
        self: &Arc<Self>,
        name: &'static str,
        file: Sectors,
        readahead: Sectors,
    ) -> Result<Duration> {
        let this = Arc::clone(self);
        in_pool(move || {
            let mounted = MountedVolume::new(&this.dir, name, true, readahead)?;
            let path = mounted.file();
            let failed = |error| Error::new("cannot read the file", path.display(), error);
            drop_caches()?;
            let begun = Instant::now();
            read_file(&path, file).map_err(failed)?;
            let took = begun.elapsed();
            mounted.end()?;
            Ok(took)
        })
        .await
    }

    /// Ends the mount.
    ///
    /// # Errors
    /// It is in use.
    pub(crate) async fn end(self: Arc<Self>) -> Result<()> {
        let this = Arc::clone(&self);
        in_pool(move || {
            let mut mount = this.mount.lock().unwrap_or_else(PoisonError::into_inner);
            // The kernel releases a loop device's file shortly after it was detached.
            let mut tries = TRIES;
            loop {
                match mount.unmount() {
                    Err(_) if tries > 1 => tries -= 1,
                    other => return other.map_err(|error| Error::plain("cannot unmount", error)),
                }
                std::thread::sleep(RETRY);
            }
        })
        .await?;
        self.shown.with(Vec::clear);
        Ok(())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // After an error a mount on it may still be in use.
        let mount = self.mount.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.shown.with(|all| !all.is_empty())
            && let Err(error) = mount.detach()
        {
            tracing::warn!(%error, "the mount could not be removed");
        }
        self.servers.clear();
        for name in ["volumes", "mnt", ""] {
            let path = self.dir.join(name);
            if let Err(error) = fs::remove_dir(&path) {
                tracing::warn!(path = %path.display(), %error, "the directory could not be removed");
            }
        }
    }
}

/// A volume's file system, mounted through a loop device, until [`Self::end`] or an error.
struct MountedVolume {
    // Dropped in this order.
    mounted: MountedFileSystem,
    device: LoopDevice,
}

impl MountedVolume {
    fn new(dir: &Path, name: &str, read_only: bool, readahead: Sectors) -> Result<Self> {
        let device = LoopDevice::attach(&dir.join("volumes").join(name), read_only)?;
        if !readahead.is_zero() {
            run("blockdev", &["--setra", &readahead.to_string(), device.name()])?;
        }
        let options = if read_only { "ro,noload" } else { "rw" };
        let mounted = device.mount("ext4", options, &dir.join("mnt"))?;
        Ok(Self { mounted, device })
    }

    /// The file on the file system.
    fn file(&self) -> PathBuf {
        self.mounted.path().join("dummy1")
    }

    fn end(self) -> Result<()> {
        self.mounted.end()?;
        self.device.end()
    }
}

/// Writes the file, each page with its number, and syncs it.
fn write_file(path: &Path, len: Sectors) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut buffer = vec![0; CAT_BYTES];
    for first in (0..len.bytes() / PAGE).step_by(CAT_BYTES / PAGE as usize) {
        for (page, number) in buffer.chunks_mut(PAGE as usize).zip(first..) {
            page.fill(number as u8);
            page[..8].copy_from_slice(&number.to_le_bytes());
        }
        file.write_all(&buffer)?;
    }
    file.sync_all()
}

/// Reads the file as cat does, and checks each page's number.
fn read_file(path: &Path, len: Sectors) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; CAT_BYTES];
    for first in (0..len.bytes() / PAGE).step_by(CAT_BYTES / PAGE as usize) {
        file.read_exact(&mut buffer)?;
        let mut pages = buffer.chunks(PAGE as usize).zip(first..);
        if !pages.all(|(page, number)| page.starts_with(&number.to_le_bytes())) {
            return Err(io::Error::other("it is not what was written"));
        }
    }
    Ok(())
}

/// Runs blocking work while the reactor continues.
async fn in_pool<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    blocking::run(work)
        .await
        .unwrap_or_else(|cancelled| Err(Error::plain("cannot continue", cancelled)))
}
