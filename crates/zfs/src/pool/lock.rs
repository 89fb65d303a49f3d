//! The worker's lock on a pool's disks.
//!
//! The process that started the worker has locked the disks, but its locks end when it exits, and
//! the worker still writes then: it finishes its requests and exports the pool. So the worker holds
//! a separate lock (flock(2), which does not conflict with the other kind) until it exits, and a
//! worker that starts meanwhile waits for it.

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

/// Time limit for another worker to exit, and the poll interval.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// Locks, held until dropped.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    files: Vec<OwnedFd>,
}

impl Locks {
    /// Locks the disks at `paths`, against all other workers, or with `read_only` only against
    /// writing ones. Paths that cannot be opened are skipped: the disk is missing, or libzpool
    /// reports the reason.
    ///
    /// # Errors
    /// EBUSY: another process holds a lock, and keeps it.
    pub(crate) fn take(paths: &[PathBuf], read_only: bool, what: &str) -> Result<Self, Refusal> {
        let deadline = Instant::now() + PATIENCE;
        let (mut files, mut seen) = (Vec::new(), BTreeSet::new());
        for path in paths.iter().filter(|path| !is_part(path)) {
            let Ok(file) = File::open(path) else { continue };
            // libzpool refuses a disk that is listed twice.
            if file.metadata().is_ok_and(|about| !seen.insert((about.dev(), about.ino()))) {
                continue;
            }
            let file = OwnedFd::from(file);
            lock(&file, path, read_only, what, deadline)?;
            files.push(file);
        }
        Ok(Self { files })
    }

    /// Holds these locks, too.
    pub(crate) fn add(&mut self, other: Self) {
        self.files.extend(other.files);
    }
}

/// Locks the file that contains the part at `path`. The descriptor came from the process that
/// started the worker, and all its workers with parts of the file share the same open file
/// description, which owns the lock: so they share the lock.
///
/// # Errors
/// See [`Locks::take`].
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
