//! The members of an array on disks: finding them, changing their superblocks, and trying to start the array.

use std::path::PathBuf;

use ashlar_disks::{self as disks, Access, Opener};
use ashlar_md::ondisk::Version;
use ashlar_md::ondisk::create::full_name;
use ashlar_md::ondisk::homehost::with_host;
use ashlar_md::update::Update;
use ashlar_md::{AssembleError, Candidate};
use ashlar_stack::arrays::Volume;
use ashlar_stack::assemble::{Failure, MembershipError, Options, ProbedDisk, assemble, probe_all};
use ashlar_stack::names::short_name;
use uuid::Uuid;

use super::homehost;
use crate::acceptance::{Asked, check_backups, check_started};
use crate::error::{Error, Result};

/// Which array is meant; all of them if nothing is given.
#[derive(Clone, Debug, Default)]
pub struct MemberFilter {
    /// Its UUID.
    pub uuid: Option<Uuid>,
    /// Its name, with or without its host.
    pub name: Option<String>,
}

impl MemberFilter {
    /// Whether `probed` may belong to the array.
    pub fn accepts(&self, probed: &ProbedDisk) -> bool {
        if probed.is_reshape_backup() {
            // It is used if it is of the array.
            return true;
        }
        let Ok(candidate) = probed.candidate() else {
            return self.uuid.is_none() && self.name.is_none();
        };
        let sb = &candidate.sb;
        let named = |name: &String| *name == sb.name || name == short_name(&sb.name);
        self.uuid.is_none_or(|uuid| uuid == sb.set_uuid) && self.name.as_ref().is_none_or(named)
    }
}

/// Why `--force` does not do what mdadm's does: an old member would decide what is read of all that was written without it.
const NOT_FORCED: &str = "name the disks with the missing members, too; --force takes no members that are out of date or have failed, \
     since they lack what was written without them: mdadm --assemble --force takes them, and what it loses is only to be had \
     again from copies of the disks";

fn no_member() -> Error {
    Error::usage("no member of that array among the devices")
}

/// The members of the selected arrays among these devices, or among all block devices if `devices` is empty.
///
/// # Errors
/// There is no member.
pub async fn find_members(among: &[PathBuf], filter: &MemberFilter) -> Result<Vec<PathBuf>> {
    let probed = probe_all(Opener::new(Access::Look).openable(among)).await;
    let members = probed.iter().filter(|probed| probed.candidate().is_ok());
    let selected = members.filter(|probed| filter.accepts(probed));
    let found: Vec<PathBuf> = selected.map(|probed| probed.disk.path.clone()).collect();
    if found.is_empty() { Err(Error::failed("no arrays found")) } else { Ok(found) }
}

/// Starts the selected array, which changes nothing on the disks. `backups` are files that mdadm was given as `--backup-file`. The array
/// gets the name `rename`, or keeps its own. Returns lines about it, and about disks that it leaves out.
///
/// # Errors
/// A device cannot be opened or is not a member, a file is not a backup, or the array does not start.
pub async fn try_to_assemble(
    devices: &[PathBuf],
    backups: &[PathBuf],
    filter: &MemberFilter,
    rename: Option<String>,
    md: ashlar_md::Options,
) -> Result<Vec<String>> {
    let access = if md.read_only { Access::Read } else { Access::Write };
    let all = [devices, backups].concat();
    let mut probed = probe_all(Opener::new(access).all(&all)?).await;
    check_backups(&probed, backups)?;
    probed.retain(|disk| filter.accepts(disk));
    for disk in probed.iter().filter(|disk| !disk.is_reshape_backup()) {
        match disk.candidate() {
            // The array may start without it.
            Ok(_) | Err(MembershipError::Damaged(_) | MembershipError::Unreadable(_)) => {}
            Err(why) => return Err(Error::plain(disk.disk.path.display(), why)),
        }
    }
    if probed.iter().all(ProbedDisk::is_reshape_backup) {
        return Err(no_member());
    }
    let options = Options { md, rename, whole: true, ..Options::default() };
    let stack = assemble(&probed, options, &disks::runtime()).await;
    let lacks = |failure: &Failure| matches!(failure.error, AssembleError::NotEnough { .. });
    let is_forced = md.force && stack.failures.iter().any(lacks);
    check_started(&stack, &Asked { md, ..Asked::default() }).map_err(|error| match is_forced {
        true => error.hint(NOT_FORCED),
        false => error,
    })?;
    let mut lines: Vec<String> = stack.arrays.running().iter().flat_map(start_lines).collect();
    let refused = stack.refused(md.run);
    lines.extend(refused.iter().map(|disk| format!("{} left out: {}", disk.path, disk.why)));
    Ok(lines)
}

/// How an array can be started.
fn start_lines(volume: &Volume) -> Vec<String> {
    let status = volume.view.status();
    let working = status.raid_disks.saturating_sub(status.degraded);
    let out_of = match status.degraded {
        0 => String::new(),
        _ => format!(" (out of {})", status.raid_disks),
    };
    let drives = if working == 1 { "drive" } else { "drives" };
    let device = volume.name.device();
    let mut lines = vec![format!("/dev/{device} can be started with {working} {drives}{out_of}.")];
    lines.extend(status.notes);
    lines
}

/// A change of all superblocks of an array that nobody uses.
#[derive(Clone, Debug)]
pub struct UpdateOptions {
    /// mdadm's word for the change.
    pub what: String,
    /// The name or the number that the array is given, if the user has given one.
    pub array: Option<String>,
    /// The host that the array is given; by default this one.
    pub homehost: Option<String>,
}

/// Changes the superblocks on `devices`. Moves a new UUID or name out of `filter`, so that it no longer selects members.
/// Passes a new UUID to `tell` before writing it: if this is interrupted, the user needs the UUID to continue.
/// Returns the number of changed members, and their new values.
///
/// # Errors
/// There is no such change, no member, or a member cannot be changed.
pub async fn update(
    options: &UpdateOptions,
    devices: &[PathBuf],
    filter: &mut MemberFilter,
    tell: impl FnOnce(Uuid) -> Result<()>,
) -> Result<(usize, String)> {
    let is_named = filter.uuid.is_some();
    let mut update = options.parse(filter)?;
    let mut members: Vec<Candidate> = Vec::new();
    for probed in probe_all(Opener::new(Access::Write).all(devices)?).await {
        if filter.accepts(&probed) {
            let path = probed.disk.path.display();
            if let Ok(contents) = &probed.contents
                && let Some(unread) =
                    contents.unread.as_ref().filter(|u| u.hidden_owner(true).is_some())
            {
                return Err(Error::plain(path, unread));
            }
            members.push(probed.candidate().map_err(|why| Error::plain(path, why))?);
        }
    }
    let Some(first) = members.first() else { return Err(no_member()) };
    let has_host = first.sb.version == Version::V0_90;
    if let Update::Uuid(uuid) = &mut update
        && let Some(host) = homehost(options.homehost.as_deref())
        && has_host
        && !is_named
    {
        *uuid = with_host(*uuid, &host);
    }
    if has_host && matches!(update, Update::HomeHost(_)) {
        // It has another one from then on.
        filter.uuid = None;
    }
    if let Update::Uuid(uuid) = update {
        tell(uuid)?;
    }
    let changed = ashlar_md::update::update(&members, &update).await;
    changed.map_err(|error| Error::plain("cannot update", error))?;
    Ok((members.len(), update.describe().to_string()))
}

impl UpdateOptions {
    /// The change for mdadm's word.
    fn parse(&self, filter: &mut MemberFilter) -> Result<Update> {
        let what = self.what.as_str();
        let host = || homehost(self.homehost.as_deref());
        Ok(match what {
            "uuid" => Update::Uuid(filter.uuid.take().unwrap_or_else(Uuid::new_v4)),
            "name" => {
                let name = filter.name.take().or_else(|| self.array.clone());
                let name = name.ok_or_else(|| Error::usage("--update=name needs a --name"))?;
                Update::Name(full_name(host().as_deref(), &name))
            }
            "homehost" => {
                let missing = || Error::usage("no host name: give --homehost");
                Update::HomeHost(host().ok_or_else(missing)?)
            }
            "resync" => Update::Resync,
            "devicesize" => Update::DeviceSize,
            "no-bitmap" => Update::NoBitmap,
            "bbl" => Update::BadBlockLog,
            "no-bbl" => Update::NoBadBlockLog { force: false },
            "force-no-bbl" => Update::NoBadBlockLog { force: true },
            "super-minor" => {
                let number = self.array.as_deref().and_then(|name| name.parse().ok());
                let needs = || Error::usage("--update=super-minor needs the array's number");
                Update::PreferredMinor(
                    number.ok_or_else(|| needs().hint("name it first, as /dev/md0"))?,
                )
            }
            "sparc2.2" | "summaries" | "nodes" | "home-cluster" | "byteorder" | "ppl"
            | "no-ppl" | "layout-original" | "layout-alternate" | "layout-unspecified"
            | "metadata" | "revert-reshape" => {
                let why = format_args!("--update={what} is not supported; nothing was changed");
                return Err(Error::usage(why).hint("mdadm does it"));
            }
            _ => {
                let error = Error::usage(format_args!("--update={what}: no such change"));
                return Err(error.hint(
                    "uuid, name, homehost, resync, devicesize, no-bitmap, bbl, no-bbl, force-no-bbl or \
                     super-minor",
                ));
            }
        })
    }
}
