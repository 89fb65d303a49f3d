//! The directory of a mount, before anything is served there.

use std::io;
use std::path::Path;

use ashlar_export::fuse::mount::{self, MountError};

use crate::error::{Error, Result};

/// Checks in advance, as far as possible, that `path` can be a mount point.
///
/// # Errors
/// It cannot.
pub(crate) fn check(path: &Path) -> Result<()> {
    mount::check(path).map_err(cannot_mount)
}

/// The failure to mount, with advice.
pub(crate) fn cannot_mount(error: MountError) -> Error {
    let hint = if let MountError::MountPoint { path, source } = &error
        && source.kind() == io::ErrorKind::NotFound
    {
        format!("make the directory first: mkdir -p {}", path.display())
    } else {
        "--nbd ADDRESS serves the volumes without a mount".into()
    };
    Error::plain("cannot mount", error).hint(hint)
}
