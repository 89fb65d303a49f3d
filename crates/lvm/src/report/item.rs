//! The rows of reports: what fields are properties of.

use std::rc::Rc;

use super::fields::SECTIONS;
use super::{Field, FieldError, LvRow, Of, PvRow, Report, Row, Section, VgRow};
use crate::metadata::Segment;

/// A row of a report: a volume group, one of its logical volumes or a segment of that; or a physical volume, or extents of
/// it with the segment that uses them.
#[derive(Clone)]
pub struct Item {
    pub(super) vg: Option<VgRow>,
    pub(super) lv: Option<LvRow>,
    /// The index of a segment of the logical volume.
    segment: Option<usize>,
    pub(super) pv: Option<PvRow>,
    pub(super) piece: Option<Piece>,
}

/// Extents of a physical volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// The first.
    pub start: u32,
    /// How many.
    pub count: u32,
}

impl From<VgRow> for Item {
    fn from(vg: VgRow) -> Self {
        Self { vg: Some(vg), lv: None, segment: None, pv: None, piece: None }
    }
}

impl From<LvRow> for Item {
    fn from(lv: LvRow) -> Self {
        let vg = Some(VgRow(Rc::clone(&lv.facts)));
        Self { vg, lv: Some(lv), segment: None, pv: None, piece: None }
    }
}

impl From<PvRow> for Item {
    fn from(pv: PvRow) -> Self {
        let vg = match &pv {
            PvRow::Member { facts, .. } => Some(VgRow(Rc::clone(facts))),
            PvRow::Free(_) => None,
        };
        Self { vg, lv: None, segment: None, pv: Some(pv), piece: None }
    }
}

impl Row for Item {
    const SECTIONS: &'static [Section<Self>] = SECTIONS;
}

impl Item {
    /// The segment.
    pub(super) fn segment(&self) -> Option<&Segment> {
        self.lv.as_ref()?.lv()?.segments.get(self.segment?)
    }

    /// The segments of the logical volume.
    fn segments(self) -> Vec<Self> {
        let count = self.lv.as_ref().and_then(LvRow::lv).map_or(0, |lv| lv.segments.len());
        (0..count).map(|index| Self { segment: Some(index), ..self.clone() }).collect()
    }

    /// The extents of the physical volume: each run that a segment uses, and each that none uses.
    fn pieces(self) -> Vec<Self> {
        let piece = |start, count| Some(Piece { start, count });
        let Some(PvRow::Member { facts, index }) = &self.pv else {
            return vec![Self { piece: piece(0, 0), ..self }];
        };
        let group = facts.metadata();
        let mut used = Vec::new();
        for (lv_index, lv) in group.lvs.iter().enumerate() {
            for (segment_index, segment) in lv.segments.iter().enumerate() {
                let here = segment.pv_extents().filter(|on| on.pv == *index);
                used.extend(here.map(|on| (on.start, on.count, Some((lv_index, segment_index)))));
            }
        }
        let free = group.free_map();
        used.extend(free.ranges(*index).iter().map(|run| (run.start, run.end - run.start, None)));
        used.sort_unstable();
        let row = |(start, count, user): (u32, u32, Option<(usize, usize)>)| Self {
            lv: user.map(|(lv, _)| LvRow { facts: Rc::clone(facts), index: lv }),
            segment: user.map(|(_, segment)| segment),
            piece: piece(start, count),
            ..self.clone()
        };
        used.into_iter().map(row).collect()
    }
}

impl Report {
    /// Rows for what these fields are properties of, instead of the report's own: a row for each segment if there is a field
    /// of segments, as in LVM. Groups in a report are only expanded to volumes that users see.
    ///
    /// # Errors
    /// There are fields of logical and of physical volumes, in a report that is not about the latter.
    pub fn rows(
        &self,
        rows: Vec<Item>,
        fields: &[&'static Field<Item>],
    ) -> Result<Vec<Item>, FieldError> {
        let has = |wanted: &[Of]| {
            wanted.contains(&self.of) || fields.iter().any(|field| wanted.contains(&field.of))
        };
        let (of_lvs, of_pvs) = (has(&[Of::Lv, Of::Segment]), has(&[Of::Pv, Of::Piece]));
        if of_lvs && of_pvs && !matches!(self.of, Of::Pv | Of::Piece) {
            return Err(FieldError::Mixed(self.name));
        }
        let each = |rows: Vec<Item>, expand: &dyn Fn(Item) -> Vec<Item>| -> Vec<Item> {
            rows.into_iter().flat_map(expand).collect()
        };
        let group = |row: &Item| row.vg.clone().filter(|_| self.of == Of::Vg);
        Ok(if of_pvs {
            let rows = each(rows, &|row| match group(&row) {
                Some(vg) => vg.0.pvs().map(Item::from).collect(),
                None => vec![row],
            });
            if of_lvs || has(&[Of::Piece]) { each(rows, &Item::pieces) } else { rows }
        } else if of_lvs {
            let rows = each(rows, &|row| match group(&row) {
                Some(vg) => vg.0.lvs(false).map(Item::from).collect(),
                None => vec![row],
            });
            if has(&[Of::Segment]) { each(rows, &Item::segments) } else { rows }
        } else {
            rows
        })
    }
}
