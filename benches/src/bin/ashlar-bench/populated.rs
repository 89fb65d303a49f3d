//! A btrfs file system with a benchmark's files, in an image file. It needs root.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use ashlar_commands::error::{Error, Result};

use crate::loops::{LoopDevice, MountedFileSystem};
use crate::program::run;

/// Jobs that write concurrently.
const JOBS: u32 = 4;
/// One of this many files is removed.
const REMOVED: usize = 16;

/// The image file, removed when dropped.
pub(crate) struct Image {
    path: PathBuf,
    /// The mount point.
    at: PathBuf,
    what: String,
}

impl Image {
    /// Creates the image, sparse and of `bytes`, and a file system with `files` files of each job.
    ///
    /// The size decides how files lie there. For each piece of a file that is written and not allocated yet btrfs reserves
    /// 256 KiB of metadata, and a small part of the free space is there for reservations. Where they need more, it allocates
    /// the pieces before their neighbours are written: on a disk that the files nearly fill almost every random write is an
    /// extent of its own, on a large one a file is one extent.
    ///
    /// # Errors
    /// One of the programs failed, or there is no permission to mount.
    pub(crate) fn make(dir: Option<&Path>, bytes: u64, files: u32, csum: &str) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            let error = Error::usage("making a file system and mounting it takes root");
            return Err(
                error.hint("with --image FILE one that exists is taken, on models of disks")
            );
        }
        let dir = dir.map_or_else(std::env::temp_dir, Path::to_owned);
        let path = dir.join(format!("ashlar-bench-{}.img", std::process::id()));
        let failed = |error| Error::new("cannot make the image", path.display(), error);
        let at = path.with_extension("mnt");
        let what = format!("{} files", files * JOBS);
        // Never overwrite an existing file.
        let file = File::create_new(&path).map_err(failed)?;
        let image = Self { path: path.clone(), at, what };
        fs::create_dir(&image.at).map_err(failed)?;
        file.set_len(bytes).map_err(|error| failed(error).hint("--size says how large"))?;
        run("mkfs.btrfs", &["-q", "--csum", csum, &path.to_string_lossy()])?;
        let device = LoopDevice::attach(&path, false)?;
        let mounted = image.mount(&device)?;
        populate(mounted.path(), files)?;
        mounted.end()?;
        device.end()?;
        Ok(image)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts the device that it is attached to.
    ///
    /// # Errors
    /// Mounting failed.
    pub(crate) fn mount(&self, device: &LoopDevice) -> Result<MountedFileSystem> {
        device.mount("btrfs", "rw", &self.at)
    }

    /// A description of its contents.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path).and_then(|()| fs::remove_dir(&self.at)) {
            tracing::warn!(path = %self.path.display(), %error, "the image could not be removed");
        }
    }
}

/// Writes the files below `at`, and removes some.
fn populate(at: &Path, files: u32) -> Result<()> {
    let directory = format!("--directory={}", at.to_string_lossy());
    let (files, jobs) = (format!("--nrfiles={files}"), format!("--numjobs={JOBS}"));
    run(
        "fio",
        &[
            "--name=scrub-populate",
            &directory,
            &files,
            "--openfiles=16",
            "--filesize=2k-512k",
            "--readwrite=randwrite",
            "--ioengine=libaio",
            "--fallocate=none",
            &jobs,
        ],
    )?;
    let failed = |error| Error::new("cannot remove files", at.display(), error);
    let mut names = fs::read_dir(at)
        .and_then(|all| {
            all.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>()
        })
        .map_err(failed)?;
    // Sorting by hash gives a random order that is the same each time.
    names.sort_by_key(|path| {
        let name = path.file_name().map(|name| name.as_encoded_bytes().to_owned());
        ashlar_btrfs::csum::ChecksumKind::Xxhash64
            .compute(&name.unwrap_or_default())
            .as_bytes()
            .to_owned()
    });
    for path in names.iter().take(names.len() / REMOVED) {
        fs::remove_file(path).map_err(failed)?;
    }
    run("sync", &["-f", &at.to_string_lossy()]).map(drop)
}
