//! A discard of any length as one range per member and zone.
//!
//! The chunks of a zone go to its members in turn, row by row, so the range of a discard on one member
//! is contiguous: whole rows, with the first row entered at the member where the discard begins
//! and the last row left where it ends. A discard that spans zones is split at the zones' ends,
//! because each zone has its own members and its own place on them.
//!
//! ```text
//! zone, 3 members     a  b  c        discard of chunks 1 (its second half) to 6:
//!               row   0 (1) 2          a: row 1 to row 2
//!                     3  4  5          b: middle of row 0 to row 1
//!                     6  7  8          c: row 0 to row 1
//! ```

use ashlar_block::units::Sectors;

use super::zones::{Strip, Zone, Zones};
use super::{MemberRange, Span};

/// The member ranges that together hold exactly the array sectors of `span`. No range is empty,
/// no two overlap, and in one zone each member has at most one. The part of `span` beyond the
/// array's end is ignored.
pub fn plan(zones: &Zones, span: Span) -> impl Iterator<Item = MemberRange> + '_ {
    let end = span.end().min(zones.size().as_end());
    zones.zones().iter().flat_map(move |zone| {
        let piece = Span::between(span.start.max(zone.span.start), end.min(zone.span.end()));
        in_zone(zones, zone, piece)
    })
}

/// The ranges of a `piece` that lies within `zone`.
fn in_zone<'a>(
    zones: &'a Zones,
    zone: &'a Zone,
    piece: Span,
) -> impl Iterator<Item = MemberRange> + 'a {
    // An empty piece may lie outside the zone and must not be mapped.
    let edges = (!piece.is_empty())
        .then(|| (zones.strip(zone, piece.start), zones.strip(zone, piece.end())));
    edges.into_iter().flat_map(move |(first, last)| {
        zone.members().zip(0u64..).filter_map(move |(disk, slot)| {
            let from = edge_on(first, slot, zones.chunk());
            let to = edge_on(last, slot, zones.chunk());
            let span = Span::between(zone.dev_start + from, zone.dev_start + to);
            (!span.is_empty()).then_some(MemberRange { disk, span })
        })
    })
}

/// The length of the member's part of the zone before `edge`.
fn edge_on(edge: Strip, slot: u64, chunk: Sectors) -> Sectors {
    let before = edge.row * chunk.0;
    Sectors(match slot.cmp(&edge.slot) {
        core::cmp::Ordering::Less => before + chunk.0,
        core::cmp::Ordering::Equal => before + edge.offset,
        core::cmp::Ordering::Greater => before,
    })
}
