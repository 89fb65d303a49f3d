//! Whether disks and an assembled stack are what the user wants served.

use std::fmt::Display;

use ashlar_md::AssembleError;
use ashlar_stack::assemble::{ProbedDisk, Stack};
use ashlar_stack::outsiders::{DeviceClass, Outsider, RefusedOutsider};
use ashlar_stack::signature::Usage;

use crate::error::{Error, Result};

/// Refuses a disk that is an image in another format, unless its raw bytes are wanted (`raw`): a client that writes to
/// them as if they were the disk ruins the image.
///
/// # Errors
/// The disk is such an image.
pub(crate) fn refuse_image(disk: &ProbedDisk, raw: bool) -> Result<()> {
    let found = disk.contents.iter().flat_map(|contents| &contents.foreign);
    match found.into_iter().find(|found| found.usage == Usage::Image) {
        Some(image) if !raw => {
            let why = format!("it is not raw: {image}");
            let hint = "qemu-nbd serves the disk that is in it; --raw serves the file as it is";
            Err(Error::new("cannot serve", disk.disk.path.display(), why).hint(hint))
        }
        Some(_) | None => Ok(()),
    }
}

/// That a device is not written to, because something else than ashlar does.
pub(crate) fn written_elsewhere(device: impl Display, outsider: &Outsider) -> Error {
    Error::new("cannot write to", device, format!("it {outsider}"))
}

/// Fails if an array did not start, its name is taken, or, unless access is read-only, a disk is damaged and no array
/// runs without it.
///
/// # Errors
/// The first failure, with advice.
pub fn check_started(stack: &Stack, md: ashlar_md::Options) -> Result<()> {
    let arrays = stack.arrays.running();
    let mut volumes = stack.devices.volumes();
    let is_empty = volumes.is_empty();
    // What the user named, with its partitions, must work; what is deeper must not hide its neighbours.
    let is_named = |refused: &&RefusedOutsider| refused.class != DeviceClass::Made || is_empty;
    if let Some(refused) = stack.refused_outsiders.iter().find(is_named) {
        let RefusedOutsider { shown, outsider, .. } = refused;
        return Err(written_elsewhere(shown, outsider).hint(format_args!(
            "--read-only gives access to the data and changes nothing; --force has it written to; {}",
            outsider.removal()
        )));
    }
    volumes.retain(|device| !device.kind.is_array());
    if let Some(disk) = volumes.iter().find(|d| arrays.iter().any(|v| v.name.device() == d.name)) {
        let why = "it is no member of an array but has the name of one: rename the file";
        return Err(Error::new("cannot serve", &disk.name, why));
    }
    // With read-only access everything usable is served, if there is anything.
    let is_enough = md.read_only && !(is_empty && stack.pools.all().is_empty());
    let mut refused = if is_enough { Vec::new() } else { stack.refused(md.run) };
    let unreadable: Vec<String> = refused
        .extract_if(.., |disk| disk.is_left_out)
        .filter(|disk| disk.is_unreadable)
        .map(|disk| disk.path)
        .collect();
    if let Some(disk) = refused.into_iter().next() {
        let error = Error::new("cannot serve", disk.path, disk.why);
        return Err(match disk.is_member {
            _ if disk.is_unreadable && md.read_only => error,
            _ if disk.is_unreadable => error.hint("--read-only gives access to what can be read"),
            true if md.run => error.hint("--read-only leaves out what is damaged"),
            true => error.hint(
                "--run starts a redundant array without it; --read-only leaves out what is damaged",
            ),
            false => error.hint("--whole serves the disk as it is, whatever is on it"),
        });
    }
    if let Some(group) = stack.refused_groups.first() {
        let error = Error::new("cannot serve the volume group", &group.name, group.why());
        return Err(error.hint(
            "--read-only gives access to the data and changes nothing; if no other host uses it, --force has its volumes written to",
        ));
    }
    if let Some(pool) = stack.refused_pools.first() {
        let error = Error::plain("cannot serve a pool", &pool.why);
        return Err(match &pool.hint {
            Some(hint) => error.hint(hint),
            None => error.hint("--whole serves its disks as they are"),
        });
    }
    // A failed array inside another device must not keep the others from being served: it is logged.
    let Some(failure) = stack.failures.iter().find(|failure| !failure.is_nested) else {
        return Ok(());
    };
    let error = Error::new("cannot start", failure, &failure.error);
    Err(match failure.error {
        AssembleError::NeedsRun { .. } if !unreadable.is_empty() => {
            let disks = unreadable.join(", ");
            error.hint(format_args!("{disks} cannot be read: --run starts it without them"))
        }
        AssembleError::NeedsRun { .. } => {
            error.hint("if the others are gone for good, --run starts it without them")
        }
        AssembleError::SplitBrain { .. } => {
            error.hint("leave one out, or --run takes the one that went further")
        }
        AssembleError::CriticalSection { .. } => error.hint(
            "--backup-file=FILE gives that file, and --force serves the array without it",
        ),
        AssembleError::OnlyRead(_) => error.hint("--read-only serves it"),
        AssembleError::DirtyDegraded { .. } => error.hint(
            "with the missing members it starts by itself; --force serves it without them, and a file system with checksums \
             finds what is wrong",
        ),
        AssembleError::ReadOnlyMember(_) | AssembleError::UsedElsewhere(_) => {
            error.hint("--read-only gives access to the data and changes nothing")
        }
        AssembleError::BadBlocks { .. } if md.run => {
            error.hint("--read-only gives access to the data and changes nothing")
        }
        AssembleError::BadBlocks { .. } => error.hint(
            "--read-only gives access to the data and changes nothing; --run starts a redundant array \
             without that member",
        ),
        AssembleError::Disagree { .. } | AssembleError::Misaligned { .. } | AssembleError::Read { .. }
            if !md.run =>
        {
            error.hint("--run starts a redundant array without that member")
        }
        AssembleError::NoMembers
        | AssembleError::OtherArray { .. }
        | AssembleError::Unsupported(_)
        | AssembleError::Reshape(_)
        | AssembleError::Disagree { .. }
        | AssembleError::SameMember { .. }
        | AssembleError::SameSlot { .. }
        | AssembleError::Misaligned { .. }
        | AssembleError::NotEnough { .. }
        | AssembleError::Personality(_)
        | AssembleError::Read { .. } => error,
    })
}
