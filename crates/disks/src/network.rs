//! Disks on other machines, whose paths are URIs: exports of NBD servers, images of Ceph clusters.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use ashlar_block::Gateway;
use ashlar_client::disk_path::{Access, NetworkDisk};
use ashlar_control::error::Error;
use ashlar_nbd::ConnectError;
use ashlar_rbd::OpenError as RbdError;
use ashlar_stack::assemble::Disk;
use ashlar_stack::names::unique_name;

use crate::failure::OpenFailure;

/// Opens it. Blocks while it connects.
///
/// # Errors
/// The URI is invalid, or the disk cannot be opened.
pub(crate) fn open(disk: NetworkDisk<'_>, access: Access) -> Result<Disk, OpenFailure> {
    let read_only = access != Access::Write;
    let disk = match disk {
        NetworkDisk::Nbd(uri) => open_nbd(uri, read_only),
        NetworkDisk::Rbd(uri) => open_rbd(uri, read_only),
    }?;
    if !read_only && disk.gateway.disk().is_shared() {
        let disk = disk.path.display();
        tracing::warn!(%disk, "no lock keeps other hosts away: stop what uses it there first");
    }
    Ok(disk)
}

fn failed(uri: &str, why: impl Display) -> Error {
    Error::new("cannot open", uri, why)
}

fn open_nbd(uri: &str, read_only: bool) -> Result<Disk, OpenFailure> {
    let parsed = ashlar_nbd::Uri::parse(uri).map_err(|why| {
        let hint =
            "nbd://HOST[:PORT]/EXPORT, or nbd+unix:///EXPORT?socket=PATH; nbds for nbd with TLS";
        OpenFailure::certain(failed(uri, why).hint(hint))
    })?;
    let path = Path::new(uri);
    // As under sys/block.
    let name = unique_name(path, |_| false);
    let device = ashlar_nbd::open(&parsed, &name, read_only).map_err(|why| match why {
        ConnectError::Io { .. } | ConnectError::Silent(_) | ConnectError::Refused { .. } => {
            OpenFailure::absent(failed(uri, why))
        }
        ConnectError::Late(_) => {
            let hint = "it can be opened once the server has closed that connection; a restart of the server closes it";
            OpenFailure::absent(failed(uri, why).hint(hint))
        }
        ConnectError::Foreign(_)
        | ConnectError::Protocol(..)
        | ConnectError::Unsuitable(..)
        | ConnectError::Credentials(_)
        | ConnectError::Insecure(..) => OpenFailure::certain(failed(uri, why)),
    })?;
    Ok(Disk { path: path.to_owned(), gateway: Gateway::new(Arc::new(device)) })
}

fn open_rbd(uri: &str, read_only: bool) -> Result<Disk, OpenFailure> {
    let parsed = ashlar_rbd::Uri::parse(uri).map_err(|why| {
        let hint = "rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][?conf=FILE&id=USER]";
        OpenFailure::certain(failed(uri, why).hint(hint))
    })?;
    let device = ashlar_rbd::open(&parsed, read_only).map_err(|why| {
        let error = failed(uri, &why);
        let error = match why.hint() {
            Some(hint) => error.hint(hint),
            None => error,
        };
        match why {
            RbdError::Connect { .. } | RbdError::Silent(_) | RbdError::NoImage(_) => {
                OpenFailure::absent(error)
            }
            RbdError::Load(_)
            | RbdError::Configuration { .. }
            | RbdError::NoPool(_)
            | RbdError::Snapshot
            | RbdError::Locked(_)
            | RbdError::Objects(_)
            | RbdError::Call { .. }
            | RbdError::Thread(_) => OpenFailure::certain(error),
        }
    })?;
    Ok(Disk { path: uri.into(), gateway: Gateway::new(device) })
}
