//! Whether a group is this host's to write: not if it was exported, if it has another host's system ID, or if hosts share it through locks.
//!
//! Sources: `vgexport(8)`, `lvmsystemid(7)`, `lvmlockd(8)`; the messages, and the order of the checks, are those of LVM's
//! `lib/metadata/metadata.c`.

use thiserror::Error;

use super::{VgFlag, VolumeGroup};

/// The most characters of a system ID (LVM's `NAME_LEN`).
const MAX_ID: usize = 128;

/// The system IDs of this host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SystemIds {
    /// Its own; many hosts have none.
    pub own: Option<String>,
    /// Others that it may use, too (`extra_system_ids`); they count only beside an own one, as in LVM.
    pub extra: Vec<String>,
}

/// Who, other than this host, may be writing to a group. The texts are LVM's.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum HeldElsewhere {
    /// The hosts of an old-style cluster.
    #[error("Cannot access clustered VG {0}")]
    Clustered(String),
    /// Hosts that share it through a lock manager.
    #[error("Cannot access VG {group} with lock type {lock_type} that requires lvmlockd")]
    Shared {
        /// The group.
        group: String,
        /// The kind of the lock manager: `sanlock`, `dlm`, `idm`.
        lock_type: String,
    },
    /// The host with this system ID.
    #[error("Cannot access VG {group} with system ID {id} with {}", local(own.as_ref()))]
    SystemId {
        /// The group.
        group: String,
        /// Its system ID.
        id: String,
        /// That of this host.
        own: Option<String>,
    },
    /// Whichever host imports it.
    #[error("Volume group {0} is exported")]
    Exported(String),
}

fn local(own: Option<&String>) -> String {
    match own {
        Some(own) => format!("local system ID {own}"),
        None => "unknown local system ID".to_owned(),
    }
}

impl SystemIds {
    /// Whether groups with this system ID are this host's.
    pub fn include(&self, id: &str) -> bool {
        let is_extra = || self.own.is_some() && self.extra.iter().any(|extra| extra == id);
        self.own.as_deref() == Some(id) || is_extra()
    }
}

/// The system ID that LVM makes of a text, such as a host's name: without characters that an ID cannot have. `None` if nothing
/// is left, or if the name does not identify a host (`localhost`).
pub fn system_id(text: &str) -> Option<String> {
    let is_allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+');
    let start = text.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let id: String = start.chars().filter(is_allowed).take(MAX_ID).collect();
    (!id.is_empty() && !id.starts_with("localhost")).then_some(id)
}

impl HeldElsewhere {
    /// What makes it another host's, as the end of a sentence that begins with the group.
    pub fn state(&self) -> String {
        match self {
            Self::Clustered(_) => "belongs to a cluster".to_owned(),
            Self::Shared { lock_type, .. } => {
                format!("is shared by hosts with the lock manager {lock_type}")
            }
            Self::SystemId { id, own: None, .. } => {
                format!("has the system ID {id}, and this host has none")
            }
            Self::SystemId { id, own: Some(own), .. } => {
                format!("has the system ID {id}, and this host has {own}")
            }
            Self::Exported(_) => "is exported".to_owned(),
        }
    }

    /// What makes it this host's, in words.
    pub fn way_out(&self) -> &'static str {
        match self {
            Self::Clustered(_) | Self::Shared { .. } => {
                "LVM changes it under the locks of its lock manager; see lvmlockd(8)"
            }
            Self::SystemId { .. } => {
                "the host with that system ID changes it; LVM's vgchange --systemid gives it another one, see lvmsystemid(7)"
            }
            Self::Exported(_) => "vgimport makes it this host's, on disks that no daemon serves",
        }
    }
}

impl VolumeGroup {
    /// Who else may be writing to it, as far as the group alone says.
    pub(crate) fn given_away(&self) -> Option<HeldElsewhere> {
        let name = || self.name.clone();
        if self.flags.contains(&VgFlag::Clustered) {
            return Some(HeldElsewhere::Clustered(name()));
        }
        if let Some(lock_type) = self.lock_manager() {
            let lock_type = lock_type.to_owned();
            return Some(HeldElsewhere::Shared { group: name(), lock_type });
        }
        self.flags.contains(&VgFlag::Exported).then(|| HeldElsewhere::Exported(name()))
    }

    /// Who, other than the host with these system IDs, may be writing to it; `None` if it is this host's.
    pub fn held_elsewhere(&self, local: &SystemIds) -> Option<HeldElsewhere> {
        let id = self.system_id.as_ref().filter(|id| !id.is_empty() && !local.include(id));
        match (self.given_away(), id) {
            (held @ Some(HeldElsewhere::Clustered(_) | HeldElsewhere::Shared { .. }), _) => held,
            (_, Some(id)) => {
                let (group, id, own) = (self.name.clone(), id.clone(), local.own.clone());
                Some(HeldElsewhere::SystemId { group, id, own })
            }
            (
                held @ (Some(HeldElsewhere::Exported(_) | HeldElsewhere::SystemId { .. }) | None),
                None,
            ) => held,
        }
    }

    /// The kind of the lock manager through which hosts share it.
    pub fn lock_manager(&self) -> Option<&str> {
        let named = self.lock_type.as_deref().filter(|lock| !matches!(*lock, "" | "none"));
        named.or_else(|| self.flags.contains(&VgFlag::Shared).then_some("unknown"))
    }
}

#[cfg(test)]
mod tests {
    use ashlar_block::Sectors;

    use super::*;
    use crate::Uuid;

    fn group() -> VolumeGroup {
        VolumeGroup::new("vg", Uuid::from_random([7; 32]), Sectors(8192))
    }

    fn told(group: &VolumeGroup, local: &SystemIds) -> Option<String> {
        group.held_elsewhere(local).map(|held| held.to_string())
    }

    #[test]
    fn each_reason_is_the_one_of_lvm_and_the_first_one_counts() {
        let none = SystemIds::default();
        let mut group = group();
        assert_eq!(told(&group, &none), None);
        group.flags.insert(VgFlag::Exported);
        assert_eq!(told(&group, &none).unwrap(), "Volume group vg is exported");
        group.system_id = Some("there".to_owned());
        assert_eq!(
            told(&group, &none).unwrap(),
            "Cannot access VG vg with system ID there with unknown local system ID"
        );
        group.lock_type = Some("sanlock".to_owned());
        assert_eq!(
            told(&group, &none).unwrap(),
            "Cannot access VG vg with lock type sanlock that requires lvmlockd"
        );
        group.flags.insert(VgFlag::Clustered);
        assert_eq!(told(&group, &none).unwrap(), "Cannot access clustered VG vg");
    }

    #[test]
    fn a_group_without_locks_and_with_an_id_of_this_host_is_its_own() {
        let mut group = group();
        (group.lock_type, group.system_id) = (Some("none".to_owned()), Some(String::new()));
        assert_eq!(told(&group, &SystemIds::default()), None);
        group.system_id = Some("here".to_owned());
        let extra = vec!["here".to_owned()];
        let own = |own: &str| Some(own.to_owned());
        assert_eq!(told(&group, &SystemIds { own: own("here"), extra: Vec::new() }), None);
        assert_eq!(told(&group, &SystemIds { own: own("x"), extra: extra.clone() }), None);
        let held = group.held_elsewhere(&SystemIds { own: own("x"), extra: Vec::new() }).unwrap();
        let refusal = "Cannot access VG vg with system ID here with local system ID x";
        assert_eq!(held.to_string(), refusal);
        assert_eq!(held.state(), "has the system ID here, and this host has x");
        assert!(told(&group, &SystemIds { own: None, extra }).unwrap().contains("unknown local"));
    }

    #[test]
    fn an_id_has_the_characters_that_lvm_leaves() {
        let cases = [
            ("nas.example.org", Some("nas.example.org")),
            ("-_nas 1\u{e9}/+", Some("nas1+")),
            ("localhost.localdomain", None),
            ("---", None),
            ("", None),
        ];
        for (text, id) in cases {
            assert_eq!(system_id(text).as_deref(), id, "{text}");
        }
        assert_eq!(system_id(&"a".repeat(200)).map(|id| id.len()), Some(128));
    }
}
