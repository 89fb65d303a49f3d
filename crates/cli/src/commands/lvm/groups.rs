//! The physical volumes and groups that reports are about: of the daemon or on disks.

use std::path::PathBuf;

use ashlar_commands::lvm::{Groups, local_system_ids, with_named};
use ashlar_daemon::error::Result;
use ashlar_disks as disks;

use super::{Devices, session, warn};

/// The groups on these disks, or without disks those of the daemon. Warns of those that other hosts may be using.
///
/// # Errors
/// They cannot be read.
pub(super) fn read(from: &Devices, disks: &[PathBuf]) -> Result<Groups> {
    let local = local_system_ids();
    let groups = match disks.is_empty() {
        true => Groups::served(from.connect()?.groups()?)?,
        false => session::looking(disks, async |session| Ok(Groups::on_disks(session)))?,
    };
    for (name, held) in groups.held_elsewhere(&local) {
        warn(format_args!("VG {name} {}: another host may be writing to it", held.state()));
    }
    Ok(groups)
}

/// Where physical volumes that users name are changed.
pub(super) enum Place {
    /// In the daemon.
    Daemon(Groups),
    /// On these disks.
    Disks(Vec<PathBuf>),
}

/// Where the physical volumes with these names are changed: in the daemon if it has one of them, or on the disks that are given and
/// those with these names.
///
/// # Errors
/// There is no daemon, nor a disk with such a name.
pub(super) fn place(from: &Devices, names: &[String]) -> Result<Place> {
    if from.devices.is_empty() {
        let has = |groups: &Groups| names.iter().any(|name| groups.path(name).is_some());
        let is_here = names.iter().any(|name| disks::may_exist(name.as_ref()));
        match from.connect().and_then(|mut daemon| Groups::served(daemon.groups()?)) {
            Ok(served) if has(&served) || !is_here => return Ok(Place::Daemon(served)),
            Err(error) if !is_here => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(Place::Disks(with_named(&from.devices, names)))
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
