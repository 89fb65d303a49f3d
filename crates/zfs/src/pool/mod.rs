//! Pools, in the worker: create, import, describe, scrub, export.

mod create;
mod device;
mod import;
mod lock;
mod properties;
mod status;
mod vdevs;

use rustix::io::Errno;

use crate::ffi::kernel::Zfs;
use crate::protocol::{Refusal, Scrub};
use crate::refusal::{name_words, pool_words};

pub(crate) use create::{NewPool, create};
pub(crate) use import::{Import, import};
pub(crate) use lock::{Locks, lock_whole_of};
pub(crate) use properties::set;
pub(crate) use status::{children, list, number, status, suspended, text};
pub(crate) use vdevs::{NewLeaf, add, attach, change_leaf, clear};

/// Refuses commands that would block forever on a pool whose disks failed, and changes of a
/// read-only pool: libzpool would wait in the first case and abort the process in the second.
///
/// # Errors
/// The pool is suspended, or it is read-only and `changes` is set.
pub(crate) fn check_condition(zfs: &Zfs, name: &str, changes: bool) -> Result<(), Refusal> {
    let condition = zfs
        .pool_condition(name)
        .map_err(|errno| Refusal::of_pool(format_args!("cannot open '{name}'"), errno))?;
    if condition.is_suspended {
        return Err(Refusal::of_pool(format_args!("cannot use '{name}'"), Errno::AGAIN));
    }
    if changes && !condition.is_writable {
        return Err(Refusal::of_pool(format_args!("cannot change '{name}'"), Errno::ROFS)
            .with_hint("export it, and import it so that it can be written"));
    }
    Ok(())
}

/// Exports a pool. All written data is on its disks then.
///
/// # Errors
/// A volume is open, or the disks fail.
pub(crate) fn export(zfs: &Zfs, name: &str) -> Result<(), Refusal> {
    zfs.export_pool(name).map_err(|errno| {
        let refusal = Refusal::of_pool(format_args!("cannot export '{name}'"), errno);
        match errno {
            Errno::BUSY => refusal.with_hint("close its volumes first"),
            _ => refusal,
        }
    })
}

/// Marks a pool destroyed, and releases it.
///
/// # Errors
/// A volume is open, or the disks fail.
pub(crate) fn destroy(zfs: &Zfs, name: &str) -> Result<(), Refusal> {
    zfs.destroy_pool(name)
        .map_err(|errno| Refusal::of_pool(format_args!("cannot destroy '{name}'"), errno))
}

/// Starts, pauses or ends a scrub.
///
/// # Errors
/// There is no scrub to pause or end, or a resilver is running.
pub(crate) fn scrub(zfs: &Zfs, name: &str, what: Scrub) -> Result<(), Refusal> {
    let (result, verb) = match what {
        Scrub::Start => (zfs.start_scrub(name), "scrub"),
        Scrub::Pause => (zfs.pause_scrub(name), "pause scrubbing"),
        Scrub::Stop => (zfs.stop_scrub(name), "cancel scrubbing"),
    };
    result.map_err(|errno| {
        let why = match (errno, what) {
            (Errno::NOENT, _) => "there is no active scrub".to_owned(),
            (Errno::BUSY, Scrub::Start) => "currently scrubbing or resilvering".to_owned(),
            (Errno::BUSY, Scrub::Pause) => "scrub is paused".to_owned(),
            (errno, _) => pool_words(errno),
        };
        let refusal = Refusal::new(format_args!("cannot {verb} {name}"), why, errno);
        match (errno, what) {
            (Errno::BUSY, Scrub::Start) => refusal.with_hint("wait for it, or stop it first"),
            (Errno::BUSY, Scrub::Pause) => refusal.with_hint("start the scrub to resume it"),
            _ => refusal,
        }
    })
}

/// Names with another meaning in pool descriptions. Existing pools with these names can be
/// imported, but none created.
fn is_reserved(name: &str) -> bool {
    ["mirror", "raidz", "draid", "spare"].iter().any(|prefix| name.starts_with(prefix))
        || name == "log"
}

/// Checks a new name for a pool.
fn check_new_name(zfs: &Zfs, name: &str, what: &str) -> Result<(), Refusal> {
    let refused = |why: String| Refusal::new(what, why, Errno::INVAL);
    zfs.check_pool_name(name).map_err(|bad| refused(name_words(bad.rule, bad.character)))?;
    if is_reserved(name) {
        return Err(refused("name is reserved".to_owned()));
    }
    Ok(())
}
