//! The worker's own claim on a pool's disks.
//!
//! Whoever started the worker has locked the disks, but its locks end with it, and then the worker still writes: it finishes what
//! it has and exports. So the worker has a lock of its own (flock(2), which those of the other kind do not see) until it
//! ends, and a worker that comes meanwhile waits for it.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::ffi::files::is_part;
use crate::protocol::Refusal;

/// How long another worker may take to end, and how often it is looked for.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// Locks that last until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    _files: Vec<OwnedFd>,
}

impl Locks {
    /// Locks the disks at `paths`, against all others or against those that write. What cannot be opened is passed over: it is
    /// missing, or libzpool says why not.
    ///
    /// # Errors
    /// EBUSY: another process has one, and keeps it.
    pub(crate) fn take(paths: &[PathBuf], read_only: bool, what: &str) -> Result<Self, Refusal> {
        let deadline = Instant::now() + PATIENCE;
        let (mut files, mut seen) = (Vec::new(), BTreeSet::new());
        for path in paths.iter().filter(|path| !is_part(path)) {
            let Ok(file) = File::open(path) else { continue };
            // One that is there twice libzpool refuses.
            if file.metadata().is_ok_and(|about| !seen.insert((about.dev(), about.ino()))) {
                continue;
            }
            let file = OwnedFd::from(file);
            lock(&file, path, read_only, what, deadline)?;
            files.push(file);
        }
        Ok(Self { _files: files })
    }
}

/// Locks the file of which `path` is a part. The descriptor came from who started the worker, and all of its workers that have
/// parts of the file have the same open file, which is what a lock belongs to: they share it.
///
/// # Errors
/// As [`Locks::take`].
pub(crate) fn lock_whole_of(file: &OwnedFd, path: &Path, read_only: bool) -> Result<(), Refusal> {
    let what = format!("cannot use '{}'", path.display());
    lock(file, path, read_only, &what, Instant::now() + PATIENCE)
}

fn lock(
    file: &OwnedFd,
    path: &Path,
    read_only: bool,
    what: &str,
    deadline: Instant,
) -> Result<(), Refusal> {
    let operation = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => sleep(PAUSE),
            Err(errno) => {
                let why = format!("{} is in use by another process", path.display());
                let errno = if errno == Errno::WOULDBLOCK { Errno::BUSY } else { errno };
                return Err(Refusal::new(what, why, errno)
                    .with_hint("another ashlar has the pool: end it first"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_waits_for_the_end_of_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let paths = [directory.path().join("disk"), directory.path().join("missing")];
        std::fs::write(&paths[0], "").unwrap();
        let reader = Locks::take(&paths, true, "read").unwrap();
        drop(Locks::take(&paths, true, "read").unwrap());
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| Locks::take(&paths, false, "write").unwrap());
            sleep(4 * PAUSE);
            drop(reader);
        });
        assert!(begun.elapsed() >= 4 * PAUSE);
    }
}
