//! Datasets, in the worker: volumes, their snapshots and clones, and their parents.

mod change;
mod create;
mod list;
mod properties;
mod reservation;

use rustix::io::Errno;

use crate::ffi::kernel::Zfs;
use crate::protocol::Refusal;
use crate::refusal::name_words;

pub(crate) use change::{destroy, promote, rename, rollback, snapshot};
pub(crate) use create::{NewVolume, clone, create, properties_of_new_container};
pub(crate) use list::list;
pub(crate) use properties::{Resize, apply, inherit, set};

/// The kind of dataset that a name must denote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NameKind {
    /// A volume or file system.
    Dataset,
    /// A snapshot.
    Snapshot,
}

/// Checks a dataset's name by the rules of ZFS, and that it is in this pool.
fn check_name(
    zfs: &Zfs,
    pool: &str,
    name: &str,
    named: NameKind,
    what: &str,
) -> Result<(), Refusal> {
    let refused = |why: String| Refusal::new(what, why, Errno::INVAL);
    match (named, name.contains('@')) {
        (NameKind::Dataset, true) => {
            return Err(refused("snapshot delimiter '@' is not expected here".into()));
        }
        (NameKind::Snapshot, false) => {
            return Err(refused("missing '@' delimiter in snapshot name".into()));
        }
        (NameKind::Dataset, false) | (NameKind::Snapshot, true) => {}
    }
    if name.contains('#') {
        return Err(refused("bookmark delimiter '#' is not expected here".into()));
    }
    if name.contains('%') {
        return Err(refused("invalid character '%' in name".into()));
    }
    zfs.check_entity_name(name).map_err(|bad| refused(name_words(bad.rule, bad.character)))?;
    let rest = name.strip_prefix(pool);
    if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@'])) {
        return Err(refused(format!("it is not in pool '{pool}'")));
    }
    Ok(())
}

/// Checks the name of a dataset to create.
fn check_new_name(zfs: &Zfs, pool: &str, name: &str, what: &str) -> Result<(), Refusal> {
    check_name(zfs, pool, name, NameKind::Dataset, what)?;
    if zfs.is_nested_too_deep(name) {
        return Err(Refusal::new(what, "maximum name nesting depth exceeded", Errno::INVAL));
    }
    Ok(())
}

/// The name without its last component.
fn parent(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(parent, _)| parent)
}
