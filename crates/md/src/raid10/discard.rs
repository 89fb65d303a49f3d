//! A long discard as one range per member and repetition.
//!
//! The ordinary path handles a discard like a write: one bio per chunk and copy. On 4 x 1.9 TB these
//! are millions of bios, and mkfs takes minutes. But the places of consecutive chunks are
//! consecutive (see [`geometry`](super::geometry)), so a run of whole chunks is, on each member,
//! one run of rows:
//!
//! ```text
//! n2, 3 members        0  0  1       discard of chunks 1 to 4, places 2 to 9:
//!                      1  2  2         first edge: row 0, member 2
//!                      3  3  4         last edge:  row 3, member 1
//!                      4  5  5       member 0: rows 1 to 3, member 1: 1 to 2, member 2: 0 to 2
//! ```
//!
//! A member before an edge's member has one row more before the edge. The far layout repeats this
//! for each repetition, `stride` further, for the member whose rows are repeated there. In the
//! offset layout the repetitions of a row follow it, so that a run of whole rows is one run with
//! all its repetitions; it needs edges at member 0, which the alignment below gives.
//!
//! Parts of *discard stripes* at the head and the tail take the ordinary path.
//! A stripe is `disks / near + disks % near` chunks. It does not depend on the far copies (a first
//! version in the kernel thought so, and also began in the wrong row on the members after the first;
//! it destroyed data: Launchpad bug 1907262). When the members are no multiple of the near copies a
//! stripe does not end with a row; that is harmless, since edges may lie within a row.
//!
//! This module does not know the members' data offsets: [`Rdev`](crate::Rdev) adds them.

use ashlar_block::units::{Sector, Sectors};

use super::geometry::{Edge, Geometry};
use crate::canary::{Rule, broken};
use crate::raid0::{MemberRange, Span};

/// How to perform a discard.
#[derive(Clone, Debug)]
pub enum DiscardPlan<'g> {
    /// Chunk by chunk, like a write: the discard is shorter than two stripes.
    Ordinary,
    /// The middle in member ranges, the ends chunk by chunk.
    Striped(StripedDiscard<'g>),
}

/// A discard of at least one whole stripe. Head, body and tail are adjacent, in this order, and
/// together are the discard.
#[derive(Clone, Debug)]
pub struct StripedDiscard<'g> {
    geometry: &'g Geometry,
    head: Span,
    body: Span,
    tail: Span,
}

/// Plans the discard of `span`, which must lie within the array (otherwise the plan is
/// [`DiscardPlan::Ordinary`], and the ordinary path reports the error).
pub fn plan(geometry: &Geometry, span: Span) -> DiscardPlan<'_> {
    let stripe = stripe(geometry);
    let twice = Sectors(stripe.0.saturating_mul(2));
    if span.len < twice || span.end() > geometry.size().as_end() {
        return DiscardPlan::Ordinary;
    }
    // At least two stripes long, so a whole stripe lies between the rounded ends.
    let (from, to) = if broken(Rule::DiscardsRoundInwards)
        && span.end().round_up(stripe) <= geometry.size().as_end()
    {
        (span.start.round_down(stripe), span.end().round_up(stripe))
    } else {
        (span.start.round_up(stripe), span.end().round_down(stripe))
    };
    DiscardPlan::Striped(StripedDiscard {
        geometry,
        head: Span::between(span.start, from),
        body: Span::between(from, to),
        tail: Span::between(to, span.end()),
    })
}

/// The unit to which the body of a discard is aligned. It ends with a chunk, and if the number of
/// members is a multiple of the near copies, with a row.
pub fn stripe(geometry: &Geometry) -> Sectors {
    let disks = geometry.disks() as u64;
    let near = geometry.near();
    Sectors((disks / near + disks % near) * geometry.chunk().0)
}

impl<'g> StripedDiscard<'g> {
    /// The part before the first whole stripe, for the ordinary path; may be empty.
    pub fn head(&self) -> Span {
        self.head
    }

    /// The whole stripes, at least one: the array sectors that [`ranges`](Self::ranges) cover.
    pub fn body(&self) -> Span {
        self.body
    }

    /// The part after the last whole stripe, for the ordinary path; may be empty.
    pub fn tail(&self) -> Span {
        self.tail
    }

    /// Number of ranges per member: one per repetition in the far layout, otherwise one.
    pub fn passes(&self) -> usize {
        let layout = self.geometry.layout();
        if layout.offset { 1 } else { usize::from(layout.far) }
    }

    /// The ranges of all passes, pass by pass. They do not overlap, none is empty, and together
    /// they are exactly all copies of the body.
    pub fn ranges(&self) -> impl Iterator<Item = MemberRange> + use<'g> {
        let this = self.clone();
        (0..self.passes()).flat_map(move |pass| this.pass(pass))
    }

    /// The ranges of one pass, at most one per member.
    pub fn pass(&self, pass: usize) -> impl Iterator<Item = MemberRange> + use<'g> {
        let geometry = self.geometry;
        let (first, last) = (geometry.edge(self.body.start), geometry.edge(self.body.end()));
        let shift = Sectors(pass as u64 * geometry.stride().0);
        (0..geometry.disks()).filter_map(move |disk| {
            let base = geometry.base_member(pass, disk);
            let span = Span::between(
                edge_on(geometry, first, base) + shift,
                edge_on(geometry, last, base) + shift,
            );
            (!span.is_empty()).then_some(MemberRange { disk, span })
        })
    }
}

/// Where, on member `base` of the base area, the rows behind `edge` begin.
fn edge_on(geometry: &Geometry, edge: Edge, base: usize) -> Sector {
    let row = edge.row + u64::from(base < edge.disk);
    Sector(row * geometry.chunk().0)
}
