//! Changes of groups, as data: the request, the plan, the result.

use std::sync::Arc;

use ashlar_block::{Sector, Status};
use ashlar_lvm::activate::Plan;
use ashlar_lvm::command::{Command, Effect};
use ashlar_lvm::{Metadata, Uuid};

use super::difference::Difference;

/// A requested change.
pub struct Request<'a> {
    /// The name or UUID of the group.
    pub group: &'a str,
    /// The change.
    pub command: &'a Command,
    /// Returns the name of the device at a path that the user gave.
    pub physical: &'a dyn Fn(&str) -> Option<String>,
}

/// A change that can be applied.
pub struct Change {
    pub(super) id: Uuid,
    /// The present metadata.
    pub before: Arc<Metadata>,
    pub(super) after: Metadata,
    /// The physical volumes that get the new text, ascending.
    pub(super) members: Vec<usize>,
    /// Those of them that have not been in the group, and those that will be in it no more.
    pub(super) joining: Vec<usize>,
    pub(super) leaving: Vec<usize>,
    pub(super) plan: Plan,
    pub(super) difference: Difference,
    /// What else it does.
    pub effect: Effect,
    /// The names of the devices that no client may have open meanwhile.
    pub shut: Vec<String>,
    pub(super) is_safe_ahead: bool,
    /// The origin of a merge that is put off: the origin's next activation begins it.
    pub(super) puts_off: Option<Uuid>,
    /// The names of devices that will have other contents.
    pub(super) renewed: Vec<String>,
    /// The mirror whose legs must be equal, durably, before the commit: its device in the plan, and the sector of its line.
    pub(super) verify: Option<(String, Sector)>,
}

/// The result of a change.
pub struct ChangeResult {
    /// The new metadata.
    pub metadata: Arc<Metadata>,
    /// Physical volumes that still have the old metadata, and the errors.
    pub stale: Vec<(Uuid, Status)>,
    /// The names of volumes that are new, or have other contents.
    pub volumes: Vec<String>,
    /// Messages to the user.
    pub notes: Vec<String>,
    /// Why it is not known whether the change will last.
    pub unsure: Option<String>,
}
