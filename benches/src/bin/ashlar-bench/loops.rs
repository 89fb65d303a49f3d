//! Loop devices and mounts, released when dropped. They need root.

use std::fs;
use std::path::{Path, PathBuf};

use ashlar_commands::error::{Error, Result};
use ashlar_terminal as output;

use crate::program::run;

/// A loop device.
pub(crate) struct LoopDevice {
    name: String,
}

impl LoopDevice {
    /// Attaches a loop device to a file, with direct I/O: otherwise it has one read in flight at a time, and reads may
    /// be served from memory.
    ///
    /// # Errors
    /// No loop device is available.
    pub(crate) fn attach(file: &Path, read_only: bool) -> Result<Self> {
        let access: &[&str] = if read_only { &["--read-only"] } else { &[] };
        let file = file.to_string_lossy();
        let args = [&["--find", "--show", "--direct-io=on"], access, &[&*file]].concat();
        Ok(Self { name: run("losetup", &args)?.trim().to_owned() })
    }

    /// Its path, such as `/dev/loop0`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Mounts the file system on it.
    ///
    /// # Errors
    /// Mounting failed.
    pub(crate) fn mount(&self, kind: &str, options: &str, at: &Path) -> Result<MountedFileSystem> {
        run("mount", &["-t", kind, "-o", options, &self.name, &at.to_string_lossy()])?;
        Ok(MountedFileSystem { at: at.to_owned() })
    }

    /// Detaches it.
    ///
    /// # Errors
    /// It is in use.
    pub(crate) fn end(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        match std::mem::take(&mut self.name) {
            name if name.is_empty() => Ok(()),
            name => run("losetup", &["--detach", &name]).map(drop),
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            output::report(&error);
        }
    }
}

/// A mounted file system.
pub(crate) struct MountedFileSystem {
    at: PathBuf,
}

impl MountedFileSystem {
    /// The mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.at
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// It is in use.
    pub(crate) fn end(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        let at = std::mem::take(&mut self.at);
        if at.as_os_str().is_empty() {
            return Ok(());
        }
        run("umount", &[&at.to_string_lossy()]).map(drop)
    }
}

impl Drop for MountedFileSystem {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            output::report(&error);
        }
    }
}

/// Drops the kernel's page cache.
///
/// # Errors
/// The permission is missing.
pub(crate) fn drop_caches() -> Result<()> {
    const PATH: &str = "/proc/sys/vm/drop_caches";
    fs::write(PATH, "3").map_err(|error| Error::new("cannot drop caches", PATH, error))
}
