//! The volume groups that a set of physical volumes has.
//!
//! Each physical volume may know another state of its group: of all texts of one identity the one with the
//! highest sequence number counts. Volumes with an older one are stale, as a crash or an absence left them;
//! volumes that no one brought are missing. Groups are told apart by identity; two of one name are two.

use std::collections::{BTreeMap, HashMap};

use crate::metadata::{Metadata, MetadataError, PvFlag};
use crate::pv::PvOnDisk;
use crate::uuid::Uuid;

/// A volume group, and which of the given physical volumes are in it.
#[derive(Clone, Debug)]
pub struct Group {
    /// The newest text.
    pub metadata: Metadata,
    /// For each physical volume of the group, in its order: which of the given ones it is, or that it is
    /// missing.
    pub members: Vec<MemberState>,
    /// Given physical volumes that say they belong to the group, while the newest text has them no more.
    pub outdated: Vec<usize>,
}

/// A physical volume of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberState {
    /// It is the given one of this index, and up to date.
    Present(usize),
    /// It is the given one of this index; its own metadata is older than the newest text, and is brought up to
    /// date by the next commit. Its data is good.
    Stale(usize),
    /// It is the given one of this index, but the group was changed while it was missing: its data may be old.
    /// LVM takes it back with `vgextend --restoremissing`.
    Returned(usize),
    /// Not given.
    Missing,
}

/// What was found on a set of physical volumes.
#[derive(Debug, Default)]
pub struct Found {
    /// The groups, by name and identity.
    pub groups: Vec<Group>,
    /// Given physical volumes that belong to no group.
    pub free: Vec<usize>,
    /// Given physical volumes that are marked as used, or whose own metadata cannot be read, while no text
    /// has them: their group's other volumes are needed.
    pub orphans: Vec<usize>,
    /// Given physical volumes with a text that cannot be used, and why. They may be in a group all the same.
    pub damaged: Vec<(usize, MetadataError)>,
    /// Given physical volumes with the identity of an earlier one. Nobody can say which of them is the copy.
    pub duplicates: Vec<usize>,
}

impl MemberState {
    /// The index of the given physical volume whose data can be used.
    pub fn usable(self) -> Option<usize> {
        match self {
            Self::Present(index) | Self::Stale(index) => Some(index),
            Self::Returned(_) | Self::Missing => None,
        }
    }
}

impl Group {
    /// Whether all physical volumes are there with good data.
    pub fn is_complete(&self) -> bool {
        self.members.iter().all(|member| member.usable().is_some())
    }

    /// The identities of physical volumes that cannot be used.
    pub fn missing(&self) -> impl Iterator<Item = Uuid> {
        let members = self.metadata.group.pvs.iter().zip(&self.members);
        members.filter(|(_, member)| member.usable().is_none()).map(|(pv, _)| pv.id)
    }

    /// The first physical volume that a logical volume needs and that cannot be used, by index. A volume
    /// with redundancy may do without; this looks at all it is made of.
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

/// What the text of a physical volume says: see [`PvOnDisk::metadata`].
pub type Text = Result<Option<Metadata>, MetadataError>;

/// Makes groups of physical volumes.
pub fn assemble(pvs: &[&PvOnDisk]) -> Found {
    let texts: Vec<Text> = pvs.iter().map(|pv| pv.metadata()).collect();
    let read: Vec<(&PvOnDisk, &Text)> = pvs.iter().copied().zip(&texts).collect();
    assemble_read(&read)
}

/// The same, for those who keep what the texts say.
pub fn assemble_read(pvs: &[(&PvOnDisk, &Text)]) -> Found {
    let mut found = Found::default();
    let mut by_uuid: HashMap<Uuid, usize> = HashMap::new();
    let mut own: Vec<Option<(Uuid, u32)>> = vec![None; pvs.len()];
    let mut newest: BTreeMap<(String, Uuid), &Metadata> = BTreeMap::new();
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
                // A group may have been renamed: its identity is what counts.
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
    for (_, metadata) in newest {
        let group = gather(metadata.clone(), &by_uuid, &own, &mut in_a_group);
        found.groups.push(group);
    }
    for (index, (pv, _)) in pvs.iter().enumerate() {
        let damaged = found.damaged.iter().any(|(other, _)| *other == index);
        if in_a_group[index] || damaged || found.duplicates.contains(&index) {
            continue;
        }
        // Without a text of its own only the mark in the label says that it is used, if anything does.
        if own[index].is_none() && (pv.label.is_used() || pv.is_mute()) {
            found.orphans.push(index);
        } else {
            found.free.push(index);
        }
    }
    found
}

fn gather(
    metadata: Metadata,
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
            // It says that it went to another group since: what is on it is that one's.
            members.push(MemberState::Missing);
            continue;
        }
        in_a_group[index] = true;
        // A volume without areas in use is never behind.
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
    Group { metadata, members, outdated }
}
