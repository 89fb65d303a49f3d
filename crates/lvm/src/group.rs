//! The volume groups on a set of physical volumes.
//!
//! Each physical volume may have another version of its group's text: among all texts of one group
//! UUID, the one with the highest sequence number is current. Volumes with an older text are stale,
//! after a crash or an absence; volumes that were not given are missing. Groups are distinguished
//! by UUID; two groups may have the same name. Where the power failed while physical volumes moved between two groups, they have moved
//! ([`crate::interrupted`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::interrupted::{has_moved, rest};
use crate::metadata::{Metadata, MetadataError, PvFlag, VgFlag};
use crate::pv::PvOnDisk;
use crate::uuid::Uuid;

/// A volume group, and its members among the given physical volumes.
#[derive(Clone, Debug)]
pub struct Group {
    /// The newest text; without the physical volumes that another group has taken.
    pub metadata: Arc<Metadata>,
    /// For each physical volume of the group, in order: its index among the given ones, or that it is missing.
    pub members: Vec<MemberState>,
    /// Given physical volumes whose text says that they belong to the group, although the newest
    /// text no longer lists them.
    pub outdated: Vec<usize>,
    /// Whether its newest text still lists physical volumes that another group has taken. The next commit completes this.
    pub has_given: bool,
}

/// A physical volume of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// The given volume with this index, up to date.
    Present(usize),
    /// The given volume with this index; its metadata is older than the newest text, and the next
    /// commit updates it. Its data is valid.
    Stale(usize),
    /// The given volume with this index, but the group was changed while the volume was missing:
    /// its data may be outdated. `vgextend --restoremissing` accepts it again.
    Returned(usize),
    /// The volume was not given.
    Missing,
}

/// The groups on a set of physical volumes, and the other volumes.
#[derive(Debug, Default)]
pub struct GroupSurvey {
    /// The groups, sorted by name and UUID.
    pub groups: Vec<Group>,
    /// Given physical volumes without a group.
    pub free: Vec<usize>,
    /// Given physical volumes that are marked as used, or whose metadata is unreadable, and that no
    /// text lists: other volumes of their group are needed.
    pub orphans: Vec<usize>,
    /// Given physical volumes with an unusable text, and the error. They may still be in a group.
    pub damaged: Vec<(usize, MetadataError)>,
    /// Given physical volumes with the UUID of an earlier one. It is unknown which of them is the copy.
    pub duplicates: Vec<usize>,
}

/// Why a name does not say which group is meant.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NameError {
    /// No group has it.
    #[error("Volume group \"{0}\" not found")]
    NotFound(String),
    /// More than one group has it.
    #[error("There are {} volume groups \"{name}\": {}", .ids.len(), .ids.join(", "))]
    Ambiguous {
        /// The name.
        name: String,
        /// Their UUIDs.
        ids: Vec<String>,
    },
}

/// The only group with this name or UUID.
///
/// # Errors
/// No group has it, or several have.
pub fn named<'a>(groups: &'a [Group], name: &str) -> Result<&'a Group, NameError> {
    let is = |group: &&Group| {
        let group = &group.metadata.group;
        group.name == name || group.id.to_string() == name
    };
    let found: Vec<&Group> = groups.iter().filter(is).collect();
    match found[..] {
        [group] => Ok(group),
        [] => Err(NameError::NotFound(name.to_owned())),
        [..] => {
            let ids = found.iter().map(|group| group.metadata.group.id.to_string());
            Err(NameError::Ambiguous { name: name.to_owned(), ids: ids.collect() })
        }
    }
}

impl MemberState {
    /// The index of the given physical volume, whatever its state; `None` if it is missing.
    pub fn index(self) -> Option<usize> {
        match self {
            Self::Present(index) | Self::Stale(index) | Self::Returned(index) => Some(index),
            Self::Missing => None,
        }
    }

    /// The index of the given physical volume, if its data is usable.
    pub fn usable(self) -> Option<usize> {
        match self {
            Self::Present(index) | Self::Stale(index) => Some(index),
            Self::Returned(_) | Self::Missing => None,
        }
    }
}

impl Group {
    /// Whether the given physical volume with this index is one of its members.
    pub fn has_member(&self, index: usize) -> bool {
        self.members.iter().any(|member| member.index() == Some(index))
    }

    /// Whether it belongs to another host.
    pub fn is_exported(&self) -> bool {
        self.metadata.group.flags.contains(&VgFlag::Exported)
    }

    /// Whether all physical volumes are present with valid data.
    pub fn is_complete(&self) -> bool {
        self.members.iter().all(|member| member.usable().is_some())
    }

    /// The UUIDs of unusable physical volumes.
    pub fn missing(&self) -> impl Iterator<Item = Uuid> {
        let members = self.metadata.group.pvs.iter().zip(&self.members);
        members.filter(|(_, member)| member.usable().is_none()).map(|(pv, _)| pv.id)
    }

    /// The index of the first unusable physical volume that a logical volume needs. A redundant
    /// volume may run without it; this checks all parts.
    pub fn needs_missing(&self, lv: &str) -> Option<usize> {
        let group = &self.metadata.group;
        let mut seen = std::collections::HashSet::new();
        let mut work = vec![lv];
        while let Some(name) = work.pop() {
            let Some(lv) = group.lv(name).filter(|_| seen.insert(name)) else { continue };
            let unusable = |pv: usize| self.members.get(pv).is_none_or(|m| m.usable().is_none());
            let missing = lv.pv_extents().map(|on| on.pv).find(|pv| unusable(*pv));
            if missing.is_some() {
                return missing;
            }
            work.extend(lv.parts());
        }
        None
    }
}

/// The parsed text of a physical volume: see [`PvOnDisk::metadata`].
pub type Text = Result<Option<Arc<Metadata>>, MetadataError>;

/// Assembles groups from physical volumes.
pub fn assemble(pvs: &[&PvOnDisk]) -> GroupSurvey {
    let text = |pv: &&PvOnDisk| Ok(pv.metadata()?.map(Arc::new));
    let texts: Vec<Text> = pvs.iter().map(text).collect();
    let read: Vec<(&PvOnDisk, &Text)> = pvs.iter().copied().zip(&texts).collect();
    assemble_read(&read)
}

/// The same, for callers that cache the parsed texts.
pub fn assemble_read(pvs: &[(&PvOnDisk, &Text)]) -> GroupSurvey {
    let mut found = GroupSurvey::default();
    let mut by_uuid: HashMap<Uuid, usize> = HashMap::new();
    let mut own: Vec<Option<(Uuid, u32)>> = vec![None; pvs.len()];
    let mut newest: BTreeMap<(String, Uuid), &Arc<Metadata>> = BTreeMap::new();
    for (index, (pv, text)) in pvs.iter().enumerate() {
        if by_uuid.contains_key(&pv.label.uuid) {
            found.duplicates.push(index);
            continue;
        }
        by_uuid.insert(pv.label.uuid, index);
        match text {
            Ok(Some(metadata)) => {
                let (id, seqno) = (metadata.group.id, metadata.group.seqno);
                own[index] = Some((id, seqno));
                // A group may have been renamed: the UUID identifies it.
                let older = newest.iter().find(|((_, other), _)| *other == id);
                let older = older.map(|(key, old)| (key.clone(), old.group.seqno));
                if older.as_ref().is_some_and(|(_, old)| *old >= seqno) {
                    continue;
                }
                if let Some((key, _)) = older {
                    newest.remove(&key);
                }
                newest.insert((metadata.group.name.clone(), id), metadata);
            }
            Ok(None) => {}
            Err(error) => found.damaged.push((index, error.clone())),
        }
    }
    let mut in_a_group = vec![false; pvs.len()];
    let newest = newest.into_values().map(|metadata| (Arc::clone(metadata), false)).collect();
    for (metadata, has_given) in complete_moves(newest, pvs, &by_uuid, &mut own) {
        let group = gather(metadata, has_given, &by_uuid, &own, &mut in_a_group);
        found.groups.push(group);
    }
    for (index, (pv, _)) in pvs.iter().enumerate() {
        let damaged = found.damaged.iter().any(|(other, _)| *other == index);
        if in_a_group[index] || damaged || found.duplicates.contains(&index) {
            continue;
        }
        // Without a text, only the label's mark shows that it is used.
        if own[index].is_none() && (pv.label.is_used() || pv.is_mute()) {
            found.orphans.push(index);
        } else {
            found.free.push(index);
        }
    }
    found
}

/// Completes interrupted moves of physical volumes between two groups: in `own`, and in the texts, which say whether they lost some.
fn complete_moves(
    mut texts: Vec<(Arc<Metadata>, bool)>,
    pvs: &[(&PvOnDisk, &Text)],
    by_uuid: &HashMap<Uuid, usize>,
    own: &mut [Option<(Uuid, u32)>],
) -> Vec<(Arc<Metadata>, bool)> {
    let mut first: HashMap<Uuid, usize> = HashMap::new();
    let mut both = BTreeSet::new();
    for (at, (metadata, _)) in texts.iter().enumerate() {
        let group = &metadata.group;
        for pv in &group.pvs {
            let other = *first.entry(pv.id).or_insert(at);
            if other != at {
                both.extend([(other, at), (at, other)]);
            }
            let Some(&index) = by_uuid.get(&pv.id) else { continue };
            let Ok(Some(text)) = pvs[index].1 else { continue };
            if text.group.id != group.id && has_moved(&pv.id, text, metadata) {
                // Older than every text of its new group.
                own[index] = Some((group.id, 0));
            }
        }
    }
    for (from, to) in both {
        let (giver, taker) = (&texts[from].0, &texts[to].0);
        let group_of = |pv: &Uuid| Some(own[*by_uuid.get(pv)?]?.0);
        let owns = |pv: &Uuid| group_of(pv).map(|id| id == taker.group.id);
        if let Some(group) = rest(giver, taker, owns) {
            let mut left = Metadata::clone(giver);
            left.group = group;
            texts[from] = (Arc::new(left), true);
        }
    }
    texts.retain(|(metadata, has_given)| !has_given || !metadata.group.pvs.is_empty());
    texts
}

fn gather(
    metadata: Arc<Metadata>,
    has_given: bool,
    by_uuid: &HashMap<Uuid, usize>,
    own: &[Option<(Uuid, u32)>],
    in_a_group: &mut [bool],
) -> Group {
    let group = &metadata.group;
    let mut members = Vec::with_capacity(group.pvs.len());
    for pv in &group.pvs {
        let Some(&index) = by_uuid.get(&pv.id) else {
            members.push(MemberState::Missing);
            continue;
        };
        if own[index].is_some_and(|(id, _)| id != group.id) {
            // Its text says that it has joined another group since: its data belongs to that group.
            members.push(MemberState::Missing);
            continue;
        }
        in_a_group[index] = true;
        // A volume without used areas is never stale.
        let stale = own[index].is_some_and(|(_, seqno)| seqno != group.seqno);
        members.push(if pv.flags.contains(&PvFlag::Missing) {
            MemberState::Returned(index)
        } else if stale {
            MemberState::Stale(index)
        } else {
            MemberState::Present(index)
        });
    }
    let mut outdated = Vec::new();
    for (index, own) in own.iter().enumerate() {
        if own.is_some_and(|(id, _)| id == group.id) && !in_a_group[index] {
            in_a_group[index] = true;
            outdated.push(index);
        }
    }
    Group { metadata, members, outdated, has_given }
}
