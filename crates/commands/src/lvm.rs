//! Changes of volume groups, both by the daemon and by a command on disks that no daemon has.
//!
//! Such a command works in a [`Session`], which has its disks; it changes a [`Draft`] of a group, and speaks through a
//! [`Dialogue`].

pub mod archive;
mod devices;
mod dialogue;
mod draft;
mod groups;
mod handing_over;
mod members;
mod moving;
pub mod names;
mod physical;
#[cfg(test)]
mod power_cuts;
mod regrouping;
mod resizing;
mod session;
mod system_id;

use std::fmt::Display;

use ashlar_block::{ByteVolume, Gateway, Sectors};
use ashlar_lvm::Uuid;
use ashlar_lvm::command::Command;
use ashlar_lvm::format::{Layout, format_pv};
use ashlar_lvm::report::long;
use ashlar_stack::probe::{Contents, Md, file_system_bytes};
use ashlar_stack::signature::Signature;
use ashlar_stack::wipe;

pub use self::devices::Volumes;
pub use self::dialogue::Dialogue;
pub use self::draft::Draft;
pub use self::groups::Groups;
pub use self::moving::{MoveObserver, MoveProgress, SIGNALS, block_signals};
pub use self::physical::OverwritePermission;
pub use self::regrouping::Moved;
pub use self::session::{Pv, Session, only_group, with_named, with_session};
pub use self::system_id::local_system_ids;
use crate::error::{Error, Result};

/// Refuses to reduce a volume to `size` if its file system needs more, unless the command is forced.
///
/// # Errors
/// It needs more, or cannot be read.
pub async fn refuse_to_cut(
    gateway: &Gateway,
    volume: &str,
    size: Sectors,
    command: &Command,
) -> Result<()> {
    if matches!(command, Command::Resize(resize) if resize.force) {
        return Ok(());
    }
    let found = file_system_bytes(gateway).await;
    let found = found.map_err(|status| Error::new("cannot read the volume", volume, status))?;
    match found {
        Some((kind, bytes)) if bytes > size.bytes() => {
            let needed = long(Sectors::from_bytes_ceil(bytes));
            let text = format!(
                "Logical volume {volume} NOT reduced: its {kind} file system has {needed}, more than {}",
                long(size)
            );
            Err(Error::failed(text).hint("reduce the file system first: forced, this destroys it"))
        }
        Some(_) | None => Ok(()),
    }
}

/// The name of LVM's signature.
const LVM: &str = "LVM2_member";

/// Refuses a device on which there is something other than, with `is_physical`, a physical volume.
///
/// # Errors
/// There is.
pub fn refuse_foreign(path: &str, contents: &Contents, is_physical: bool) -> Result<()> {
    let is_other = |found: &&Signature| !is_physical || found.name != LVM;
    let others = contents.foreign.iter().filter(is_other).count();
    let has_md = !matches!(contents.md, Md::None) || !contents.other_md.is_empty();
    if others == 0 && !has_md {
        return Ok(());
    }
    let found = contents.claims().join(", ");
    let text = format!("Cannot use {path}: there is something on it");
    Err(Error::plain(text, found).hint("pvcreate --force overwrites it"))
}

/// Makes a physical volume of a device that was checked; `path` is its name for the user.
///
/// # Errors
/// It cannot be written, or has no room.
pub async fn make_physical(
    path: &str,
    gateway: &Gateway,
    uuid: Uuid,
    layout: &Layout,
) -> Result<()> {
    let failed = |why: &dyn Display| Error::new("Cannot make a physical volume", path, why);
    let ranges = wipe::ranges(gateway).await.map_err(|status| failed(&status))?;
    let wiped = ByteVolume::new(gateway.clone()).wipe(&ranges).await;
    wiped.map_err(|status| failed(&status))?;
    format_pv(gateway, uuid, layout).await.map(drop).map_err(|error| failed(&error))
}

/// A new identity. Only bytes of the random UUIDs that are fully random are used.
pub fn new_uuid() -> Uuid {
    const FIXED: [usize; 2] = [6, 8];
    let mut random = [0; 32];
    let bytes = std::iter::repeat_with(uuid::Uuid::new_v4).flat_map(|number| {
        let bytes = number.into_bytes().into_iter().enumerate();
        bytes.filter(|(at, _)| !FIXED.contains(at)).map(|(_, byte)| byte)
    });
    random.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    Uuid::from_random(random)
}
