//! RAID 10: every chunk on several members, in one of three arrangements that can be combined.
//!
//! [`geometry`] is the address map, [`discard`] turns a long discard into one range per member and
//! pass, [`layout`] is the layout word of the superblock and draws the three arrangements. All of it
//! is pure: no I/O, no allocation after [`Geometry::new`].
//!
//! The one idea behind the map: number the copies of all chunks consecutively, each chunk `near`
//! times, and distribute them over the members row by row like RAID 0. That is the *base area*. A
//! layout with `far` copies repeats the base area (far) or each of its rows (offset), and every
//! repetition is the same rows with the members permuted. The permutations are a table.

pub mod discard;
pub mod geometry;
pub mod layout;

pub use discard::{DiscardPlan, StripedDiscard};
pub use geometry::{Copies, Geometry, GeometryError, Location};
pub use layout::{FarSets, Layout, LayoutError};

use ashlar_block::units::{Sector, Sectors};

/// Draws the first `rows` chunk rows of every area of the layout with this word, on `disks` members:
/// one line per row, with the number of the chunk that each member holds there.
///
/// # Errors
/// The reason, if such an array is impossible.
pub fn draw(layout: u32, disks: usize, rows: u64) -> Result<String, GeometryError> {
    let dev = Sectors(rows * u64::from(Layout::from_bits(layout)?.far));
    let geometry = Geometry::new(layout, disks, Sectors(1), dev)?;
    let mut text = String::new();
    for row in 0..dev.0 {
        for disk in 0..disks {
            let cell = match geometry.unmap(disk, Sector(row)) {
                Some(sector) => sector.0.to_string(),
                None => "-".into(),
            };
            text.push_str(&format!("{cell:>4}"));
        }
        text.push('\n');
    }
    Ok(text)
}
