//! Windows and their parts.

use std::ops::Range;

use ashlar_block::{Sector, Sectors};

use super::Engine;
use crate::barrier;
use crate::bitmap;
use crate::level::Piece;
use crate::personality::Personality;

/// The shortest window: 1 MiB.
pub(super) const WINDOW: Sectors = Sectors(2048);
/// The shortest window over rows, however many members there are: 64 KiB.
const LEAST_ROW_WINDOW: Sectors = Sectors(128);
/// The longest window.
const MAX_WINDOW: Sectors = Sectors(8 * 2048);

/// Everything must be synced.
pub(super) const ALL: bitmap::Step = bitmap::Step { needed: true, run: Sectors::MAX };

/// The pieces of a range of sync space for whose first sector `needed` says so.
pub(super) fn pieces(
    personality: &Personality,
    range: Range<Sector>,
    needed: impl Fn(Sector) -> bitmap::Step,
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let step = needed(at);
        let run = personality.chunk_left(at).min(step.run).min(range.end - at);
        // A bitmap that ends before the array is impossible, but must not cause an endless loop.
        let len = if run.is_zero() { range.end - at } else { run };
        if step.needed {
            pieces.push(Piece { at, len });
        }
        at += len;
    }
    pieces
}

impl Engine {
    /// The longest window over rows of members: all of them are read, so that it takes as much memory as a window of other levels.
    fn row_window(&self) -> Sectors {
        let members = self.core.personality().disks().next_power_of_two() as u64;
        Sectors((WINDOW.0 * 2 / members).max(LEAST_ROW_WINDOW.0))
    }

    /// The longest window of a recovery, which counts members' sectors.
    pub(super) fn member_window_len(&self) -> Sectors {
        match self.core.personality() {
            Personality::Parity(_) => self.row_window(),
            Personality::Linear { .. }
            | Personality::Raid0(_)
            | Personality::Raid1 { .. }
            | Personality::Raid10(_) => WINDOW,
        }
    }

    /// Members that a window of a sync reads: what its memory is a multiple of.
    pub(super) fn window_width(&self) -> u64 {
        match self.core.personality() {
            Personality::Parity(geometry) => geometry.disks() as u64,
            Personality::Linear { .. }
            | Personality::Raid0(_)
            | Personality::Raid1 { .. }
            | Personality::Raid10(_) => 1,
        }
    }

    /// The longest window of a sync over array sectors: long enough that each member gets long I/Os,
    /// and never longer than a barrier's unit.
    pub(super) fn window_len(&self) -> Sectors {
        let stripes = match self.core.personality() {
            Personality::Linear { .. } | Personality::Raid0(_) | Personality::Raid1 { .. } => 1,
            Personality::Parity(_) => return self.row_window(),
            Personality::Raid10(geometry) if geometry.is_plain_mirror() => 1,
            Personality::Raid10(geometry) => geometry.disks().next_power_of_two() as u64,
        };
        Sectors(WINDOW.0 * stripes).min(MAX_WINDOW).min(barrier::UNIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_what_is_needed_cut_at_chunks() {
        let personality = Personality::Raid10(
            crate::raid10::Geometry::new(0x102, 4, Sectors(16), Sectors(1024)).unwrap(),
        );
        let found = |needed: &dyn Fn(Sector) -> bitmap::Step| {
            let pieces = pieces(&personality, Sector(8)..Sector(72), needed);
            pieces.iter().map(|piece| (piece.at.0, piece.len.0)).collect::<Vec<_>>()
        };
        assert_eq!(found(&|_| ALL), [(8, 8), (16, 16), (32, 16), (48, 16), (64, 8)]);
        let step = |at: Sector| bitmap::Step {
            needed: (20..68).contains(&(at.0 / 4 * 4)),
            run: Sectors(4 - at.0 % 4),
        };
        let quarters: Vec<(u64, u64)> = (20..68).step_by(4).map(|at| (at, 4)).collect();
        assert_eq!(found(&step), quarters);
        assert_eq!(found(&|_| bitmap::Step { needed: false, run: Sectors(5) }), []);
    }
}
