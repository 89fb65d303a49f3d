//! Why a disk was not opened.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use ashlar_client::disk_path::Access;
use ashlar_control::error::Error;
use ashlar_engine::file::OpenError;
use ashlar_stack::names::parse_array_name;
use rustix::io::Errno;

/// How long to wait for the kernel to finish the I/O of a killed process: some tenths of a second as measured, and more
/// on a slow disk.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait for the worker of a ZFS pool to export it after its daemon has died.
const WORKER_PATIENCE: Duration = Duration::from_secs(30);

/// Why a disk was not opened.
pub(crate) struct OpenFailure {
    pub(crate) error: Error,
    /// It may be free within this time. It is in use, but no living process or visible use is the cause: the kernel keeps locks and
    /// claims of a killed process until it has finished the process's I/O in flight. Or its user finishes the work of a daemon that
    /// has died.
    pub(crate) left: Option<Duration>,
    /// It does not exist, or cannot be reached: it may be there later.
    pub(crate) is_absent: bool,
    /// It can be read, but not written to, as was asked for.
    pub(crate) is_only_readable: bool,
}

impl OpenFailure {
    /// A failure that another attempt does not change.
    pub(crate) fn certain(error: Error) -> Self {
        Self { error, left: None, is_absent: false, is_only_readable: false }
    }

    /// The disk at `path` was not opened with this access because of `error`.
    pub(crate) fn of(error: &OpenError, path: &Path, access: Access) -> Self {
        let is_only_readable = access == Access::Write && is_only_readable(path, error);
        let unseen = error.has_unseen_user().then_some(PATIENCE);
        let left = unseen.or_else(|| error.has_finishing_user().then_some(WORKER_PATIENCE));
        let is_absent = is_absent(error);
        let mut failed = open_error(error);
        if is_only_readable {
            failed = failed.hint("it can be read: its mode, or its file system, refuses writes");
        } else if is_absent && is_array(path) {
            failed = failed.hint(
                "ashlar makes no devices in /dev: name the array's disks; ashlar serve DISK... --mount DIR makes it a file in DIR/dev",
            );
        }
        Self { error: failed, left, is_absent, is_only_readable }
    }

    /// The disk is absent.
    pub(crate) fn absent(error: Error) -> Self {
        Self { error, left: None, is_absent: true, is_only_readable: false }
    }
}

/// Whether a disk could not be opened because it is not there.
fn is_absent(error: &OpenError) -> bool {
    let OpenError::Io { source, .. } = error else { return false };
    let code = source.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM))
}

/// Whether a path is where the kernel would have an array.
fn is_array(path: &Path) -> bool {
    path.starts_with("/dev") && path.to_str().is_some_and(|text| parse_array_name(text).is_some())
}

/// Whether a disk that could not be opened for writing can be opened for reading.
fn is_only_readable(path: &Path, error: &OpenError) -> bool {
    let OpenError::Io { source, .. } = error else { return false };
    let code = source.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::ACCESS | Errno::PERM | Errno::ROFS)) && File::open(path).is_ok()
}

/// The message for a disk that was not opened.
pub(crate) fn open_error(error: &OpenError) -> Error {
    let failed = Error::plain("cannot open", error);
    match error {
        OpenError::InUse { .. } | OpenError::Claimed { .. } if error.has_finishing_user() => {
            failed.hint("it exports a ZFS pool of a daemon that has died: wait for its end")
        }
        OpenError::InUse { holder: Some(process), .. } if process.command != "ashlar" => {
            failed.hint("end that program first")
        }
        OpenError::InUse { .. } => {
            failed.hint("a running daemon has it: see ashlar status; ashlar stop ends it")
        }
        OpenError::Claimed { .. } => failed.hint("unmount it or stop what uses it first"),
        OpenError::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            failed.hint("run as root, or as a user who may read and write the disks")
        }
        OpenError::Io { .. } | OpenError::NotADisk(_) | OpenError::BlockSize { .. } => failed,
    }
}
