//! Sizes as commands take them, and the extents that they mean in a group.

use ashlar_block::Sectors;
use serde::{Deserialize, Serialize};

use super::CommandError;
use crate::metadata::VolumeGroup;
use crate::report::long;

/// The base of a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Base {
    /// All extents of the group.
    Group,
    /// The free extents.
    Free,
    /// The free extents of the named physical volumes.
    Named,
    /// The extents of the origin.
    Origin,
    /// The extents of the volume.
    Volume,
}

/// An amount of space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Amount {
    /// A size in sectors, to be rounded up to extents.
    Sectors(u64),
    /// This many extents.
    Extents(u32),
    /// This percentage of a base.
    Share(u32, Base),
}

/// Whether an amount is a size, or a change of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sign {
    /// The new size.
    Absolute,
    /// Added to the size.
    Plus,
    /// Taken from the size.
    Minus,
}

/// A new size of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewSize {
    /// Whether `amount` is relative to the present size.
    pub sign: Sign,
    /// The amount.
    pub amount: Amount,
}

/// A share of extents, rounded up or down.
pub(super) fn share(percent: u32, extents: u64, is_up: bool) -> u32 {
    let all = u64::from(percent).saturating_mul(extents);
    let share = if is_up { all.div_ceil(100) } else { all / 100 };
    u32::try_from(share).unwrap_or(u32::MAX)
}

/// The number of extents for a size; reports rounding up.
pub(super) fn of_size(
    group: &VolumeGroup,
    sectors: u64,
    notes: &mut Vec<String>,
) -> Result<u32, CommandError> {
    let extents = group.extents(Sectors(sectors)).ok_or(CommandError::TooLarge)?;
    if group.sectors(extents) != Sectors(sectors) {
        let rounded = long(group.sectors(extents));
        notes.push(format!("  Rounding up size to full physical extent {rounded}"));
    }
    Ok(extents)
}

/// The extents of a share of the group's, rounded up or down; `None` if the base is a volume.
pub(super) fn of_group(
    group: &VolumeGroup,
    percent: u32,
    base: Base,
    named: &[usize],
    is_up: bool,
) -> Option<u32> {
    let free = group.free_map();
    let all = group.pvs.iter().map(|pv| u64::from(pv.pe_count)).sum();
    let extents = match base {
        Base::Group => all,
        Base::Free => group.free_extents(),
        Base::Named if named.is_empty() => all,
        Base::Named => named.iter().map(|pv| free.on(*pv)).sum(),
        Base::Origin | Base::Volume => return None,
    };
    Some(share(percent, extents, is_up))
}

/// Rounds extents to whole rows of stripes, up or down.
pub(super) fn whole_rows(
    group: &VolumeGroup,
    extents: u32,
    stripes: u32,
    is_down: bool,
    notes: &mut Vec<String>,
) -> Result<u32, CommandError> {
    if extents.is_multiple_of(stripes) {
        return Ok(extents);
    }
    let rows = extents / stripes + u32::from(!is_down);
    let rounded = rows.checked_mul(stripes).ok_or(CommandError::TooLarge)?;
    let size = |extents| long(group.sectors(extents));
    let way = if is_down { "down" } else { "up" };
    notes.push(format!(
        "  Rounding size {} ({extents} extents) {way} to stripe boundary size {} ({rounded} extents).",
        size(extents),
        size(rounded)
    ));
    Ok(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_up_or_down() {
        assert_eq!(share(50, 7, false), 3);
        assert_eq!(share(50, 7, true), 4);
        assert_eq!(share(u32::MAX, u64::MAX, false), u32::MAX);
    }
}
