//! `lvextend`, `lvreduce` and `lvresize`.

use ashlar_block::Sectors;
use serde::{Deserialize, Serialize};

use super::{
    Amount, Base, CommandError, Effect, NewSize, Question, Result, Sign, VolumeIndex, amount,
    indices, placement,
};
use crate::alloc::Wish;
use crate::metadata::VolumeGroup;
use crate::report::long;

/// Another size.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// The volume.
    pub volume: String,
    /// Its size.
    pub size: NewSize,
    /// The direction that the command is for.
    pub direction: Direction,
    /// Whether it may become smaller than what is in it.
    pub force: bool,
    /// The physical volumes for new extents; none: all.
    pub physical: Vec<String>,
}

/// Which sizes a command takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// `lvextend`.
    Extend,
    /// `lvreduce`.
    Reduce,
    /// `lvresize`: as the size says.
    Any,
}

impl Resize {
    pub(super) fn apply(
        &self,
        group: &mut VolumeGroup,
        physical: VolumeIndex<'_>,
    ) -> Result<Effect> {
        let mut effect = Effect::default();
        let name = &self.volume;
        let only = indices(group, &self.physical, physical)?;
        let Some(lv) = group.lv(name) else {
            let (group, volume) = (group.name.clone(), name.clone());
            return Err(CommandError::NotFound { group, volume });
        };
        let before = lv.extents();
        let policy = placement(lv.allocation.as_ref().or(group.allocation.as_ref()));
        // A new segment has the layout of the last one.
        let last = lv.segments.last().and_then(|segment| segment.kind.as_striped());
        let (stripes, stripe_size) = last.map_or((1, Sectors::ZERO), |striped| {
            (striped.areas.len(), striped.stripe_size.unwrap_or(Sectors::ZERO))
        });
        let stripes = u32::try_from(stripes).unwrap_or(1).max(1);
        let (wanted, is_share) = self.extents(group, before, &only, &mut effect.notes)?;
        let wrong =
            |wanted| CommandError::WrongDirection { wanted, before, direction: self.direction };
        let grows = match self.direction {
            Direction::Extend => true,
            Direction::Reduce => false,
            Direction::Any if wanted == before => {
                return Err(CommandError::SameSize { extents: wanted });
            }
            Direction::Any => wanted > before,
        };
        let after = match grows {
            true => {
                let by = wanted.checked_sub(before).filter(|by| *by > 0);
                let by = by.ok_or_else(|| wrong(wanted))?;
                let by = amount::whole_rows(group, by, stripes, is_share, &mut effect.notes)?;
                let wish = Wish { extents: by, stripes, stripe_size, policy, only };
                let what = "Cannot extend the volume";
                before + group.grow(name, &wish).map_err(CommandError::change(what))?
            }
            false => {
                let wanted = amount::whole_rows(group, wanted, stripes, false, &mut effect.notes)?;
                if wanted >= before {
                    return Err(wrong(wanted));
                }
                let what = "Cannot reduce the volume";
                group.shrink(name, wanted).map_err(CommandError::change(what))?;
                effect.reduces = Some((name.clone(), group.sectors(wanted)));
                let of = &group.name;
                effect.questions.push(Question {
                    text: format!("Do you really want to reduce {of}/{name}?"),
                    refusal: format!("Logical volume {of}/{name} NOT reduced."),
                });
                wanted
            }
        };
        let (of, size) = (&group.name, |extents| long(group.sectors(extents)));
        effect.done.push(format!(
            "  Size of logical volume {of}/{name} changed from {} ({before} extents) to {} ({after} \
             extents).\n  Logical volume {of}/{name} successfully resized.",
            size(before),
            size(after),
        ));
        Ok(effect)
    }

    /// The new number of extents, and whether it is a share.
    fn extents(
        &self,
        group: &VolumeGroup,
        before: u32,
        only: &[usize],
        notes: &mut Vec<String>,
    ) -> Result<(u32, bool)> {
        let NewSize { mut sign, amount } = self.size;
        // As in LVM: what is asked for is there, and no more is cut than that.
        let is_up = sign != Sign::Minus;
        let (extents, is_share) = match amount {
            Amount::Sectors(sectors) => (amount::of_size(group, sectors, notes)?, false),
            Amount::Extents(count) => (count, false),
            Amount::Share(percent, base) => {
                let of_volume = || {
                    let snapshot = group.snapshot_in(&self.volume);
                    let origin = snapshot.map(|found| &*found.snapshot.origin);
                    let extents = match (base, origin.and_then(|origin| group.lv(origin))) {
                        (Base::Volume, _) => before,
                        (Base::Origin, Some(origin)) => origin.extents(),
                        _ => return Err(CommandError::NoBase),
                    };
                    Ok(amount::share(percent, extents.into(), is_up))
                };
                let share = amount::of_group(group, percent, base, only, is_up);
                let share = share.map_or_else(of_volume, Ok)?;
                // In an extension a share of the free extents is added to the volume's size.
                let is_added = base == Base::Free && self.direction == Direction::Extend;
                if is_added && sign == Sign::Absolute {
                    sign = Sign::Plus;
                }
                (share, true)
            }
        };
        let all = match sign {
            Sign::Absolute => Some(extents),
            Sign::Plus => before.checked_add(extents),
            // As in LVM: more than there is leaves nothing, which is refused.
            Sign::Minus => Some(before.saturating_sub(extents)),
        };
        Ok((all.ok_or(CommandError::TooLarge)?, is_share))
    }
}
