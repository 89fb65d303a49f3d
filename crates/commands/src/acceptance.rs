//! Whether disks and an assembled stack are what the user wants served.

use std::path::PathBuf;

use ashlar_disks::written_elsewhere;
use ashlar_md::AssembleError;
use ashlar_stack::assemble::{Failure, Nothing, ProbedDisk, Refused, RefusedDisk, Stack};
use ashlar_stack::incremental::may_wait;
use ashlar_stack::outsiders::{DeviceClass, RefusedOutsider};
use ashlar_stack::signature::{UNRAID, Usage};

use crate::error::{Error, Result};

/// Refuses a disk that is an image in another format, or a file that describes an array, unless its raw bytes are wanted (`raw`): a client
/// that writes to them as if they were the disk ruins the image.
///
/// # Errors
/// The disk is such an image or file.
pub fn refuse_image(disk: &ProbedDisk, raw: bool) -> Result<()> {
    let mut found = disk.contents.iter().flat_map(|contents| &contents.foreign);
    if found.clone().any(|found| found.name == UNRAID) && !raw {
        let why = "it is the configuration of an Unraid array, and no disk of it";
        let hint = "each data disk has a file system of its own: name these disks, with --read-only, since a write makes the parity wrong; \
                    ashlar does not use that parity";
        return Err(Error::new("cannot serve", disk.disk.path.display(), why).hint(hint));
    }
    match found.find(|found| found.usage == Usage::Image) {
        Some(image) if !raw => {
            let why = format!("it is not raw: {image}");
            let hint = "qemu-nbd serves the disk that is in it; --raw serves the file as it is";
            Err(Error::new("cannot serve", disk.disk.path.display(), why).hint(hint))
        }
        Some(_) | None => Ok(()),
    }
}

/// Refuses a file that the user has called a backup of mdadm, and that is not one: served as a volume it would be of no use, and the array
/// would be read without what the user believes to be there.
///
/// # Errors
/// The first such file.
pub fn check_backups(probed: &[ProbedDisk], backups: &[PathBuf]) -> Result<()> {
    let is_wrong =
        |disk: &&ProbedDisk| backups.contains(&disk.disk.path) && !disk.is_reshape_backup();
    let Some(ProbedDisk { disk, contents }) = probed.iter().find(is_wrong) else { return Ok(()) };
    let why = match contents {
        Ok(_) => "it does not begin with the header that mdadm writes".to_owned(),
        Err(status) => format!("it cannot be read: {status}"),
    };
    let error = Error::new("cannot use as backup file", disk.path.display(), why);
    Err(error.hint(
        "name the file that mdadm --grow was given as --backup-file, or leave the option out",
    ))
}

/// The options of the user that say what may be missing. Advice repeats the options that must stay, and suggests none that is
/// set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// How arrays start.
    pub md: ashlar_md::Options,
    /// Whether arrays may wait for their members.
    pub incremental: bool,
    /// Whether devices are served as they are.
    pub whole: bool,
    /// Whether logical volumes may lack physical volumes.
    pub partial: bool,
}

impl Asked {
    /// The option that starts arrays without members.
    pub fn run(&self) -> &'static str {
        if self.md.read_only { "--run --read-only" } else { "--run" }
    }

    /// The option that serves what starts.
    fn incremental(&self) -> &'static str {
        if self.md.read_only { "--incremental --read-only" } else { "--incremental" }
    }

    /// The options that start arrays whose parity is unsure.
    fn force(&self) -> &'static str {
        match (self.md.run, self.md.read_only) {
            (true, true) => "--force, beside --run and --read-only,",
            (true, false) => "--force, beside --run,",
            (false, true) => "--force --run --read-only",
            (false, false) => "--force --run",
        }
    }
}

/// Fails if a disk or array that the user named does not work, unless the options allow the daemon to start without it: an array
/// on disks or their partitions did not start, its name is taken, or, unless access is read-only, a device is damaged and no
/// array runs without it. Fails also if there is nothing to serve, and a reason for that.
///
/// # Errors
/// The first failure, with advice.
pub fn check_started(stack: &Stack, asked: &Asked) -> Result<()> {
    let md = asked.md;
    let arrays = stack.arrays.running();
    let mut volumes = stack.devices.volumes();
    let has_none = volumes.is_empty() && stack.pools.all().is_empty();
    let is_empty = has_none && stack.arrays.waiting().is_empty();
    // The disks that the user named, and their partitions, must work; a failure deeper inside must not hide its neighbours.
    let is_named = |refused: &&RefusedOutsider| refused.class != DeviceClass::Made || is_empty;
    if let Some(refused) = stack.refused_outsiders.iter().find(is_named) {
        let RefusedOutsider { shown, outsider, .. } = refused;
        return Err(written_elsewhere(shown, outsider).hint(format_args!(
            "use --read-only to read the data without changes, or --force to write to it; {}",
            outsider.removal()
        )));
    }
    volumes.retain(|device| !device.kind.is_array());
    if let Some(disk) = volumes.iter().find(|d| arrays.iter().any(|v| v.name.device() == d.name)) {
        let why = "it is not a member of an array but has the name of one: rename the file";
        return Err(Error::new("cannot serve", &disk.name, why));
    }
    // With read-only access everything usable is served, if there is anything.
    let is_enough = md.read_only && !has_none;
    let mut refused = if is_enough { Vec::new() } else { stack.refused(md.run) };
    let unreadable: Vec<String> = refused
        .extract_if(.., |disk| disk.is_left_out)
        .filter(|disk| disk.is_unreadable)
        .map(|disk| disk.path)
        .collect();
    // Devices on the user's disks, which may be served without them.
    let goes_on = |device: &RefusedDisk| asked.incremental && !is_empty && !device.is_disk;
    if let Some(disk) = refused.into_iter().find(|device| !goes_on(device)) {
        return Err(refused_device(disk, !is_empty, asked));
    }
    if let Some(group) = stack.refusals(Refused::Group).next() {
        let error = Error::new("cannot serve the volume group", &group.name, &group.why);
        return Err(error.hint(
            "use --read-only to read the data without changes, or, if no other host uses the group, --force to write to its volumes",
        ));
    }
    if let Some(pool) = stack.refusals(Refused::Pool).next() {
        let error = Error::plain("cannot serve a pool", &pool.why);
        return Err(match &pool.hint {
            Some(hint) => error.hint(hint),
            None => error.hint("use --whole to serve its disks as they are"),
        });
    }
    // A failed array deeper inside must not keep the others from being served: it is logged.
    let is_wanted = |failure: &&Failure| !failure.is_nested || is_empty;
    let failed: Vec<&Failure> = stack.failures.iter().filter(is_wanted).collect();
    if !failed.is_empty() {
        return Err(not_started(&failed, &unreadable, !is_empty, asked));
    }
    match stack.why_nothing().filter(|_| is_empty) {
        Some(nothing) => Err(nothing_served(&nothing, asked)),
        None => Ok(()),
    }
}

/// The error for a device that cannot be used. `others` says whether there is something else to serve.
fn refused_device(device: RefusedDisk, others: bool, asked: &Asked) -> Error {
    let advice = match device.is_member {
        _ if device.is_unreadable && asked.md.read_only => None,
        _ if device.is_unreadable => Some("use --read-only to serve what can be read"),
        true if asked.md.run && asked.md.read_only => None,
        true if asked.md.run => Some("use --read-only to leave it out"),
        true if asked.md.read_only => {
            Some("use --run --read-only to start a redundant array without it")
        }
        true => {
            Some("use --run to start a redundant array without it, or --read-only to leave it out")
        }
        false if asked.whole => None,
        false => Some(whole(asked)),
    };
    let goes_on = (others && !device.is_disk && !asked.incremental)
        .then(|| format!("use {} to serve the others", asked.incremental()));
    let error = Error::new("cannot serve", device.path, device.why);
    let hints: Vec<String> = advice.map(str::to_owned).into_iter().chain(goes_on).collect();
    if hints.is_empty() { error } else { error.hint(hints.join("; ")) }
}

fn whole(asked: &Asked) -> &'static str {
    match asked.md.read_only {
        true => "use --whole --read-only to serve it as it is, whatever is on it",
        false => "use --whole to serve it as it is, whatever is on it",
    }
}

/// The error for arrays that did not start, all of them. `others` says whether there is something else to serve.
fn not_started(failed: &[&Failure], unreadable: &[String], others: bool, asked: &Asked) -> Error {
    let told = failed.iter().map(|failure| format!("{failure}: {}", failure.error));
    let error = Error::plain("cannot start", told.collect::<Vec<_>>().join("; "));
    let advice = failed.iter().find_map(|failure| advice(&failure.error, unreadable, asked));
    let may_wait = |failure: &&Failure| may_wait(&failure.error);
    let goes_on = (others && !asked.incremental && failed.iter().all(may_wait)).then(|| {
        format!("use {} to serve what starts, and to add members later", asked.incremental())
    });
    let hints: Vec<String> = advice.into_iter().chain(goes_on).collect();
    if hints.is_empty() { error } else { error.hint(hints.join("; ")) }
}

/// What starts an array, if something does.
fn advice(error: &AssembleError, unreadable: &[String], asked: &Asked) -> Option<String> {
    let Asked { md, .. } = asked;
    let run = asked.run();
    let to_read = || {
        let hint = "use --read-only to read the data without changes";
        (!md.read_only).then(|| hint.to_owned())
    };
    let without = |member: &str| {
        (!md.run).then(|| format!("use {run} to start a redundant array without {member}"))
    };
    match error {
        AssembleError::NeedsRun { .. } if !unreadable.is_empty() => {
            let disks = unreadable.join(", ");
            Some(format!("{disks} cannot be read: use {run} to start it without them"))
        }
        AssembleError::NeedsRun { .. } => Some(format!(
            "name the disks with the others, too; if these are lost, use {run} to start it without them"
        )),
        AssembleError::SplitBrain { .. } => {
            Some(format!("leave one out, or use {run} to take the one that went further"))
        }
        AssembleError::CriticalSection { .. } => {
            let force = asked.force();
            Some(format!(
                "name that file with --backup-file=FILE, or use {force} to serve the array without it"
            ))
        }
        AssembleError::OnlyRead(_) => Some("use --read-only to serve it".to_owned()),
        AssembleError::NotEnough { .. } => {
            Some("name the disks with the missing members, too".to_owned())
        }
        AssembleError::DirtyDegraded { .. } => {
            let force = asked.force();
            Some(format!(
                "name the missing members, too; or use ashlar serve {force} to serve it without them, \
                 and a file system with checksums to find wrong data",
            ))
        }
        AssembleError::ReadOnlyMember(_) | AssembleError::UsedElsewhere(_) => to_read(),
        AssembleError::BadBlocks { .. } => {
            let wanted = [("--run", md.run), ("--read-only", md.read_only), ("--force", md.force)];
            let wanted: Vec<&str> =
                wanted.iter().filter(|(_, given)| !given).map(|(option, _)| *option).collect();
            let whole = format!(
                "use {} to read that member without its log if the others do not have its data, or \
                 ashlar md assemble --update=force-no-bbl to remove the log; blocks that it listed have an older content then",
                wanted.join(" ")
            );
            Some(without("that member").into_iter().chain([whole]).collect::<Vec<_>>().join("; "))
        }
        AssembleError::Disagree { .. }
        | AssembleError::Misaligned { .. }
        | AssembleError::Read { .. } => without("that member"),
        AssembleError::NoMembers
        | AssembleError::OtherArray { .. }
        | AssembleError::Unsupported(_)
        | AssembleError::Reshape(_)
        | AssembleError::SameMember { .. }
        | AssembleError::SameSlot { .. }
        | AssembleError::Personality(_) => None,
    }
}

/// There is nothing to serve although there are disks.
fn nothing_served(nothing: &Nothing, asked: &Asked) -> Error {
    let error = Error::new("there is nothing to serve", &nothing.shown, &nothing.why);
    match nothing.is_volume {
        true if asked.partial => error,
        true if asked.md.read_only => error.hint(
            "use --partial --read-only to serve volumes without the missing physical volumes",
        ),
        true => error.hint("use --partial to serve volumes without the missing physical volumes"),
        false if asked.whole => error,
        false => error.hint(whole(asked)),
    }
}
