//! The uses of devices by volume groups.

use crate::devices::Role;

/// The use of a physical volume.
pub const PHYSICAL: Role = Role::Held("part of a volume group", "physical-volume");
/// The use of a component of a logical volume.
pub const COMPONENT: Role = Role::Held("part of a logical volume", "component");
