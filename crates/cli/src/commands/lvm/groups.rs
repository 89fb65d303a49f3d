//! The physical volumes and groups that reports are about: of the daemon or on disks.

use std::path::PathBuf;

use ashlar_host::error::Result;
use ashlar_host::lvm::{Groups, with_named};

use super::{Devices, session};

/// The groups on these disks, or if there are none, those of the daemon.
///
/// # Errors
/// They cannot be read.
pub(super) fn read(from: &Devices, disks: &[PathBuf]) -> Result<Groups> {
    if disks.is_empty() {
        return Groups::served(from.connect()?.groups()?);
    }
    session::looking(disks, async |session| Ok(Groups::on_disks(session)))
}

/// As [`read`], where physical volumes that are named without `--devices` are looked at themselves, unless the daemon has
/// them.
///
/// # Errors
/// They cannot be read.
pub(super) fn read_with(from: &Devices, names: &[String]) -> Result<Groups> {
    if from.devices.is_empty() {
        let served = read(from, &[]);
        let has = |groups: &Groups| names.iter().any(|name| groups.path(name).is_some());
        if names.is_empty() || served.as_ref().is_ok_and(has) {
            return served;
        }
    }
    read(from, &with_named(&from.devices, names))
}
