//! What to trust in an array that was not stopped cleanly: how far copies are the same, or parity fits its row.

use ashlar_block::Sectors;

use crate::ondisk::Superblock;
use crate::personality::Personality;

/// How far copies are the same.
pub(super) fn in_sync_to(
    freshest: &Superblock,
    personality: &Personality,
    present: &[bool],
    notes: &mut Vec<String>,
) -> Sectors {
    if let Personality::Parity(_) = personality {
        let is_forced = !suspect_slots(freshest, personality, present).is_empty();
        return trusted_to(freshest, is_forced, notes);
    }
    let alone = !personality.is_redundant() || !has_two_copies(personality, present);
    if freshest.is_clean() || alone {
        return Sectors::MAX;
    }
    notes.push(
        "the array was not stopped cleanly: until a resync the first copy of everything is read"
            .into(),
    );
    freshest.resync_offset
}

/// How far parity can be trusted, in the members' sectors.
fn trusted_to(freshest: &Superblock, is_forced: bool, notes: &mut Vec<String>) -> Sectors {
    if freshest.is_clean() {
        return Sectors::MAX;
    }
    let from = freshest.resync_offset;
    if is_forced {
        notes.push(format!(
            "the array was not stopped cleanly and a member is missing: data recovered for it may be wrong from \
             sector {from} of the members on, where writes were under way"
        ));
        return from;
    }
    notes.push(format!(
        "the array was not stopped cleanly: parity is not used from sector {from} of the members on"
    ));
    from
}

/// Whether some chunk has two copies on present members, which could differ.
fn has_two_copies(personality: &Personality, present: &[bool]) -> bool {
    let here = |slot: usize| present[slot];
    (0..present.len()).any(|slot| here(slot) && personality.shares_data(slot, here))
}

/// The slots without a member in sync whose data would be recovered from parity that may be wrong. As in the kernel, a member that has
/// nothing but parity is not missed.
pub(super) fn suspect_slots(
    freshest: &Superblock,
    personality: &Personality,
    in_sync: &[bool],
) -> Vec<usize> {
    match personality {
        Personality::Parity(geometry) if !freshest.is_clean() => {
            let lacks = |slot: &usize| !in_sync[*slot] && geometry.holds_data(*slot);
            (0..in_sync.len()).filter(lacks).collect()
        }
        Personality::Linear { .. }
        | Personality::Raid0(_)
        | Personality::Raid1 { .. }
        | Personality::Raid10(_)
        | Personality::Parity(_) => Vec::new(),
    }
}
