//! Physical volumes that go from one group to another, with the logical volumes on them: `vgsplit`, `vgmerge`.

use std::collections::HashMap;

use crate::change::{ChangeError, Result};
use crate::metadata::{AreaVolume, SharedVolume, VolumeGroup};
use crate::report::long;

impl VolumeGroup {
    /// The group without the physical volumes that are `moved`, which says this of each in order, and a group of these alone. The second
    /// one has the same name and identity, for [`Self::merge`].
    ///
    /// # Errors
    /// A logical volume has extents on both sides, or cannot be moved: see [`ChangeError`].
    pub fn split(&self, moved: &[bool]) -> Result<(Self, Self)> {
        self.may_regroup()?;
        self.parts(moved)
    }

    /// The same, of a group that may be in any state.
    pub(crate) fn parts(&self, moved: &[bool]) -> Result<(Self, Self)> {
        let goes = |pv: usize| moved.get(pv).copied().unwrap_or(false);
        let sides = self.sides(&goes)?;
        let side = |wanted: bool| {
            let mut group = self.clone();
            let mut places = HashMap::new();
            for index in (0..self.pvs.len()).filter(|index| goes(*index) == wanted) {
                places.insert(index, places.len());
            }
            let mut index = 0..;
            group.pvs.retain(|_| index.next().is_some_and(|index| places.contains_key(&index)));
            group.lvs.retain(|lv| sides.get(&lv.name).copied().unwrap_or(false) == wanted);
            group.renumber(|index| places.get(&index).copied().unwrap_or(index));
            group
        };
        Ok((side(false), side(true)))
    }

    /// Adds all physical and logical volumes of another group.
    ///
    /// # Errors
    /// The groups do not go together: see [`ChangeError`].
    pub fn merge(&mut self, mut from: Self) -> Result<()> {
        self.may_regroup()?;
        from.may_regroup()?;
        let refuse = |why: String| Err(ChangeError::Refused(why));
        if self.extent_size != from.extent_size {
            let (ours, theirs) = (long(self.extent_size), long(from.extent_size));
            return refuse(format!("their extent sizes differ: {ours} and {theirs}"));
        }
        if self.max_pv != 0 && self.pvs.len() + from.pvs.len() > self.max_pv as usize {
            return Err(ChangeError::TooManyPhysical(self.max_pv));
        }
        let volumes = self.visible_names().len() + from.visible_names().len();
        if self.max_lv != 0 && volumes > self.max_lv as usize {
            return Err(ChangeError::TooMany(self.max_lv));
        }
        let before = self.pvs.len();
        from.renumber(|index| index + before);
        let Self { mut pvs, lvs, .. } = from;
        // The names of hidden snapshot volumes say nothing, and nothing refers to them.
        let (ties, others): (Vec<_>, Vec<_>) = lvs.into_iter().partition(ties_a_snapshot);
        if let Some(twice) = others.iter().find(|lv| self.lv(&lv.name).is_some()) {
            let (name, group) = (twice.name.clone(), self.name.clone());
            return Err(ChangeError::Exists { name, group });
        }
        let mut after = self.clone();
        after.pvs.append(&mut pvs);
        let first_tie = after.lvs.iter().position(ties_a_snapshot).unwrap_or(after.lvs.len());
        after.lvs.splice(first_tie..first_tie, others);
        for mut tie in ties {
            if after.lv(&tie.name).is_some() {
                tie.name = after.free_name("snapshot");
            }
            after.lvs.push(tie);
        }
        after.check().map_err(|error| ChangeError::Refused(error.to_string()))?;
        *self = after;
        Ok(())
    }

    /// Refuses a group whose volumes cannot go to another one.
    fn may_regroup(&self) -> Result<()> {
        self.may_change()?;
        self.refuse_unknown_segments()?;
        match self.moves().next() {
            Some(moving) => Err(ChangeError::Locked(moving.name().to_owned())),
            None => Ok(()),
        }
    }

    /// Which logical volumes go with the physical volumes of which `goes` says so. Volumes that are made of others are on one side with
    /// them; those without extents stay.
    fn sides(&self, goes: &impl Fn(usize) -> bool) -> Result<HashMap<String, bool>> {
        let both = |name: &str| {
            let why = "it has extents on physical volumes that would be in two groups";
            Err(ChangeError::NotSo { name: name.to_owned(), why })
        };
        let mut sides: HashMap<String, bool> = HashMap::new();
        for lv in &self.lvs {
            for on in lv.pv_extents() {
                let side = goes(on.pv);
                if *sides.entry(lv.name.clone()).or_insert(side) != side {
                    return both(&lv.name);
                }
            }
        }
        loop {
            let before = sides.len();
            for lv in &self.lvs {
                for part in lv.parts() {
                    match (sides.get(&lv.name).copied(), sides.get(part).copied()) {
                        (Some(a), Some(b)) if a != b => return both(&lv.name),
                        (Some(side), None) => drop(sides.insert(part.to_owned(), side)),
                        (None, Some(side)) => drop(sides.insert(lv.name.clone(), side)),
                        (Some(_), Some(_)) | (None, None) => {}
                    }
                }
            }
            if sides.len() == before {
                return Ok(sides);
            }
        }
    }

    /// Which physical volumes the volume `name` needs, those below it and its snapshots included; `None` if there is no such volume.
    pub fn needed_by(&self, name: &str) -> Option<Vec<bool>> {
        self.lv(name)?;
        let mut names = vec![name.to_owned()];
        let mut at = 0;
        while let Some(name) = names.get(at).cloned() {
            at += 1;
            let below = self.lv(&name).into_iter().flat_map(|lv| lv.parts().map(str::to_owned));
            let above = self.users_of(&name).map(|lv| lv.name.clone());
            for other in below.chain(above).collect::<Vec<_>>() {
                if !names.contains(&other) {
                    names.push(other);
                }
            }
        }
        let mut needed = vec![false; self.pvs.len()];
        for on in names.iter().filter_map(|name| self.lv(name)).flat_map(|lv| lv.pv_extents()) {
            if let Some(needed) = needed.get_mut(on.pv) {
                *needed = true;
            }
        }
        Some(needed)
    }

    /// Gives the physical volumes other indices in all areas.
    fn renumber(&mut self, to: impl Fn(usize) -> usize) {
        for segment in self.lvs.iter_mut().flat_map(|lv| &mut lv.segments) {
            for area in segment.areas_mut() {
                if let AreaVolume::Pv(at) = &mut area.on {
                    *at = to(*at);
                }
            }
        }
    }
}

fn ties_a_snapshot(lv: &SharedVolume) -> bool {
    lv.segments.iter().any(|segment| segment.kind.as_snapshot().is_some())
}
