//! `pvmove`.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{CommandError, Effect, PolicyName, Result, VolumeIndex, index_at};
use crate::alloc::PvPart;
use crate::change::Author;
use crate::metadata::VolumeGroup;
use crate::moving::NewMove;

/// A physical volume, or ranges of its extents, as users give it: `PATH[:FIRST[-LAST]]...`, or `PATH[:FIRST+COUNT]...`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhysicalPart {
    /// Its path.
    pub path: String,
    /// First extents and ends, exclusive; none: all.
    pub ranges: Vec<(u32, u32)>,
}

/// `pvmove`: the extents of a physical volume go to others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// What is left.
    pub from: PhysicalPart,
    /// The only volume whose extents move; `None`: all.
    pub volume: Option<String>,
    /// Where they go; none: all others.
    pub to: Vec<PhysicalPart>,
    /// The allocation policy; `None`: normal.
    pub policy: Option<PolicyName>,
}

impl FromStr for PhysicalPart {
    type Err = String;

    /// A path may have colons: the ranges are at its end.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (mut path, mut ranges) = (text, Vec::new());
        while let Some((rest, last)) = path.rsplit_once(':')
            && last.starts_with(|first: char| first.is_ascii_digit())
        {
            let range = range(last).ok_or_else(|| format!("'{last}' is not a range of extents"))?;
            ranges.insert(0, range);
            path = rest;
        }
        if path.is_empty() {
            return Err("a physical volume has a path".to_owned());
        }
        Ok(Self { path: path.to_owned(), ranges })
    }
}

/// `FIRST`, `FIRST-LAST` or `FIRST+COUNT`.
fn range(text: &str) -> Option<(u32, u32)> {
    let (first, end) = match text.split_once(['-', '+']) {
        None => (text.parse().ok()?, text.parse::<u32>().ok()?.checked_add(1)?),
        Some((first, last)) if text.contains('-') => {
            (first.parse().ok()?, last.parse::<u32>().ok()?.checked_add(1)?)
        }
        Some((first, count)) => {
            let first: u32 = first.parse().ok()?;
            (first, first.checked_add(count.parse().ok()?)?)
        }
    };
    (first < end).then_some((first, end))
}

impl PhysicalPart {
    fn resolve(&self, group: &VolumeGroup, physical: VolumeIndex<'_>) -> Result<PvPart> {
        let pv = index_at(group, &self.path, physical)?;
        Ok(PvPart { pv, ranges: self.ranges.iter().map(|(first, end)| *first..*end).collect() })
    }
}

impl Move {
    pub(super) fn apply(
        &self,
        group: &mut VolumeGroup,
        physical: VolumeIndex<'_>,
        author: &mut Author<'_>,
    ) -> Result<Effect> {
        let from = self.from.resolve(group, physical)?;
        if group.moves().any(|moving| moving.source() == Some(from.pv)) {
            return Err(CommandError::IsMoving { path: self.from.path.clone() });
        }
        let to = self.to.iter().map(|part| part.resolve(group, physical));
        let to: Vec<PvPart> = to.collect::<Result<_>>()?;
        if to.iter().any(|part| part.pv == from.pv) {
            return Err(CommandError::MoveToItself { path: self.from.path.clone() });
        }
        let policy = self.policy.map(PolicyName::policy).unwrap_or_default();
        let new = NewMove { from, volume: self.volume.clone(), to, policy };
        let moved = group.start_move(&new, author);
        let (_, left_out) = moved.map_err(|error| CommandError::Move { error })?;
        let notes = left_out.iter().map(|line| format!("  {line}")).collect();
        Ok(Effect { notes, ..Effect::default() })
    }
}

/// Ends the moves from a physical volume, or all.
pub(super) fn abort(
    from: Option<&str>,
    group: &mut VolumeGroup,
    physical: VolumeIndex<'_>,
) -> Result<Effect> {
    let from = from.map(|path| index_at(group, path, physical)).transpose()?;
    let is_meant = |source: Option<usize>| from.is_none() || source == from;
    let moves = group.moves().filter(|moving| is_meant(moving.source()));
    let names: Vec<String> = moves.map(|moving| moving.name().to_owned()).collect();
    for name in &names {
        group.end_move(name).map_err(|error| CommandError::Move { error })?;
    }
    Ok(Effect::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_path_with_ranges_at_its_end() {
        let part = |path: &str, ranges: &[(u32, u32)]| {
            Ok(PhysicalPart { path: path.to_owned(), ranges: ranges.to_vec() })
        };
        for (text, want) in [
            ("/dev/sda", part("/dev/sda", &[])),
            ("/dev/sda:0-3", part("/dev/sda", &[(0, 4)])),
            ("a.img:7", part("a.img", &[(7, 8)])),
            ("a.img:7+2:20-21", part("a.img", &[(7, 9), (20, 22)])),
            ("dir:x/a.img", part("dir:x/a.img", &[])),
            ("dir:x/a.img:1-1", part("dir:x/a.img", &[(1, 2)])),
            ("a:3-2", Err("'3-2' is not a range of extents".to_owned())),
            ("a:3+0", Err("'3+0' is not a range of extents".to_owned())),
            ("a:3-x", Err("'3-x' is not a range of extents".to_owned())),
            ("a:4294967295", Err("'4294967295' is not a range of extents".to_owned())),
            (":3", Err("a physical volume has a path".to_owned())),
            ("", Err("a physical volume has a path".to_owned())),
        ] {
            assert_eq!(text.parse(), want, "{text}");
        }
    }
}
