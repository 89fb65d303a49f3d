//! The pool of the measurement: its disks (temporary files, or disks that were named), its worker, its volumes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ashlar_block::Gateway;
use ashlar_commands::error::{Error, Result};
use ashlar_commands::pools::{ImportMode, absolute, labelled, not_had, refused};
use ashlar_disks::{Access, Opener};
use ashlar_stack::assemble::Disk;
use ashlar_stack::probe::probe;
use ashlar_zfs::client::{DiskPart, Pool, Zvol};
use ashlar_zfs::protocol::{Command, NewVdev, Reply, VdevClass, VdevKind};
use rustix::fs::{Advice, fadvise};

use super::cpu::CpuTime;

/// Sparse files, removed when dropped.
pub(super) struct Files(Vec<PathBuf>);

impl Files {
    /// Creates `count` files in `dir`.
    ///
    /// # Errors
    /// A file cannot be created.
    pub(super) fn make(dir: Option<&Path>, count: usize, size_bytes: u64) -> Result<Self> {
        let dir = dir.map_or_else(std::env::temp_dir, Path::to_owned);
        let mut files = Self(Vec::new());
        for number in 0..count {
            let path = dir.join(format!("ashlar-bench-{}-{number}.img", std::process::id()));
            let failed =
                |error| Error::new("cannot make the file of a pool", path.display(), error);
            let file = File::create_new(&path).map_err(failed)?;
            files.0.push(path.clone());
            file.set_len(size_bytes).map_err(failed)?;
        }
        Ok(files)
    }

    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.0
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for path in &self.0 {
            if let Err(error) = fs::remove_file(path) {
                tracing::warn!(path = %path.display(), %error, "the file of a pool could not be removed");
            }
        }
    }
}

/// A directory for sockets and a mount, removed when dropped.
pub(super) struct Directory(PathBuf);

impl Directory {
    /// Makes it in `dir`, with an empty directory `mnt`.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn make(dir: Option<&Path>) -> Result<Self> {
        let dir = absolute(&dir.map_or_else(std::env::temp_dir, Path::to_owned))?;
        let path = dir.join(format!("ashlar-bench-{}", std::process::id()));
        let failed = |error| Error::new("cannot make the directory", path.display(), error);
        fs::create_dir(&path).map_err(failed)?;
        let this = Self(path.clone());
        fs::create_dir(path.join("mnt")).map_err(failed)?;
        Ok(this)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Not recursively: there may still be a mount in it.
        let log = fs::remove_file(self.0.join("log"));
        let removed = fs::remove_dir(self.0.join("mnt")).and_then(|()| fs::remove_dir(&self.0));
        if let Err(error) = removed {
            tracing::warn!(path = %self.0.display(), %error, ?log, "a directory could not be removed");
        }
    }
}

/// A pool in its worker, and its disks, which are locked.
pub(super) struct Site {
    pool: Pool,
    paths: Vec<PathBuf>,
    tunables: Vec<(String, u64)>,
    disks: Vec<Disk>,
}

impl Site {
    /// Creates a pool on `paths`: of mirrors of two disks, or of single disks.
    ///
    /// # Errors
    /// A disk is not empty or cannot be opened; there is no libzpool; a tunable does not exist.
    pub(super) async fn make(
        paths: &[PathBuf],
        is_mirrored: bool,
        tunables: &[(String, u64)],
    ) -> Result<Self> {
        let disks = Opener::new(Access::Write).all(paths)?;
        for disk in &disks {
            refuse_used(disk).await?;
        }
        let paths: Vec<PathBuf> = paths.iter().map(|path| absolute(path)).collect::<Result<_>>()?;
        let (kind, disks_of_vdev) =
            if is_mirrored { (VdevKind::Mirror, 2) } else { (VdevKind::Single, 1) };
        let vdevs = paths.chunks(disks_of_vdev).map(|paths| NewVdev {
            kind,
            class: VdevClass::Normal,
            paths: paths.to_vec(),
        });
        let create = Command::CreatePool {
            name: format!("ashlar-bench-{}", std::process::id()),
            vdevs: vdevs.collect(),
            properties: BTreeMap::new(),
            dataset_properties: BTreeMap::from([("compression".to_owned(), "off".to_owned())]),
            force: false,
            wiped: Vec::new(),
        };
        let name = format!("ashlar-bench-{}", std::process::id());
        let pool = start(&name, create, Vec::new(), tunables).await?;
        Ok(Self { pool, paths, tunables: tunables.to_vec(), disks })
    }

    /// The release of OpenZFS.
    pub(super) fn release(&self) -> &str {
        self.pool.release()
    }

    /// The processor time that this process and the worker have used.
    pub(super) fn cpu_time(&self) -> Result<CpuTime> {
        Ok(CpuTime::of(std::process::id())? + CpuTime::of(self.pool.worker().pid())?)
    }

    fn dataset(&self, volblocksize_bytes: u64) -> String {
        format!("{}/v{volblocksize_bytes}", self.pool.name())
    }

    async fn run(&self, command: Command) -> Result<()> {
        self.pool.run(command).await.map_err(|error| refused(&error))
    }

    /// Creates the volume with blocks of this size.
    ///
    /// # Errors
    /// The pool refuses.
    pub(super) async fn make_volume(&self, volblocksize_bytes: u64, size_bytes: u64) -> Result<()> {
        let volblocksize = ("volblocksize".to_owned(), volblocksize_bytes.to_string());
        self.run(Command::CreateVolume {
            name: self.dataset(volblocksize_bytes),
            volsize_bytes: size_bytes,
            sparse: true,
            parents: false,
            properties: BTreeMap::from([volblocksize]),
        })
        .await
    }

    /// Opens the volume with blocks of this size.
    ///
    /// # Errors
    /// The pool refuses.
    pub(super) async fn open(&self, volblocksize_bytes: u64) -> Result<Volume> {
        let opened = self.pool.open(&self.dataset(volblocksize_bytes), false, "zd0", 0).await;
        let zvol = opened.map_err(|error| refused(&error))?;
        Ok(Volume { gateway: Gateway::new(Arc::clone(&zvol) as _), zvol })
    }

    /// Closes a volume.
    ///
    /// # Errors
    /// The worker has ended.
    pub(super) async fn close(&self, volume: Volume) -> Result<()> {
        self.pool.close(&volume.zvol).await.map_err(|error| refused(&error))
    }

    /// Writes all data to the disks: sets a property in a transaction group, and waits for it.
    ///
    /// # Errors
    /// The worker has ended.
    pub(super) async fn sync(&self) -> Result<()> {
        let comment = ("comment".to_owned(), "ashlar-bench zvol".to_owned());
        self.run(Command::SetPool { name: comment.0, value: comment.1 }).await
    }

    /// Writes the volume in a plain loop of libzpool's own calls; returns the nanoseconds.
    ///
    /// # Errors
    /// The worker refuses.
    pub(super) async fn write_plainly(&self, volume: &Volume, write_bytes: u32) -> Result<u64> {
        let command = Command::WritePlainly { name: volume.zvol.dataset(), write_bytes };
        let reply = self.pool.call(command).await.map_err(|error| refused(&error))?;
        let Reply::Took { nanoseconds } = reply else {
            return Err(Error::failed("the worker answers what it was not asked"));
        };
        Ok(nanoseconds)
    }

    /// Exports and imports the pool: afterwards neither libzpool nor the kernel has any of it in memory.
    ///
    /// # Errors
    /// It cannot be exported or imported. Volumes must be closed.
    pub(super) async fn forget(self) -> Result<Self> {
        let Self { pool, paths, tunables, disks } = self;
        let name = pool.name().to_owned();
        pool.export().await.map_err(|error| refused(&error))?;
        drop(pool);
        drop(disks);
        for path in &paths {
            forget_file(path).map_err(|error| Error::new("cannot flush", path.display(), error))?;
        }
        let found = labelled(&paths, Access::Write).await?;
        let pools = found.pools().pools;
        let mine = pools.iter().find(|pool| pool.name == name);
        let mine = mine.ok_or_else(|| Error::failed("the pool no longer exists"))?;
        let (import, parts) = found.import(mine, ImportMode::WRITE)?;
        let pool = start(&name, import, parts, &tunables).await?;
        let disks = found.disks;
        Ok(Self { pool, paths, tunables, disks })
    }

    /// Ends the worker; the pool is exported.
    ///
    /// # Errors
    /// It cannot be exported.
    pub(super) async fn end(self) -> Result<()> {
        self.pool.export().await.map_err(|error| refused(&error))
    }
}

/// An open volume.
pub(super) struct Volume {
    pub(super) zvol: Arc<Zvol>,
    pub(super) gateway: Gateway,
}

async fn start(
    name: &str,
    command: Command,
    parts: Vec<DiskPart>,
    tunables: &[(String, u64)],
) -> Result<Pool> {
    let pool = Pool::start(name, command, parts, Arc::default(), None).await;
    let pool = pool.map_err(|error| not_had(&error))?;
    for (name, value) in tunables {
        let set = Command::SetParameter { name: name.clone(), value: *value };
        pool.run(set).await.map_err(|error| refused(&error))?;
    }
    Ok(pool)
}

/// Refuses a disk that is not empty: the measurement would destroy its contents.
async fn refuse_used(disk: &Disk) -> Result<()> {
    let place = disk.path.display();
    let contents = probe(&disk.gateway).await;
    let contents = contents.map_err(|status| Error::new("cannot read", &place, status))?;
    let claims = contents.claims();
    if claims.is_empty() {
        return Ok(());
    }
    let error = Error::new("not empty", place, claims.join(", "));
    Err(error.hint("what is on a disk that is measured is lost: wipe it first if it may be"))
}

/// Drops a file from the kernel's page cache.
fn forget_file(path: &Path) -> std::io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(())
}
