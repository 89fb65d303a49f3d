//! The cost of md itself: CPU time per random I/O of 4 KiB on arrays, compared with one of their members, on one
//! thread. Hollow members move no data, so only the block layer and md take time.

use std::sync::Arc;

use ashlar_block::{Gateway, Sectors};
use ashlar_engine::{Engine, EngineRuntime};
use ashlar_md::ondisk::Level;

use crate::arrays::{self, Recipe};
use crate::common::{Outcome, Settings, block_on};
use crate::devices::Hollow;
use crate::load::{Load, Order, Until, on_engine};
use crate::report::{Grid, Unit};

const BYTES: u64 = 4 << 30;
const ROWS: [&str; 4] = ["a member", "RAID0 of 2", "RAID1 of 2", "RAID10 n2 of 4"];

/// Prints the table.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    let grid = Grid::measure(
        &["reads", "writes"],
        &ROWS,
        Unit::Kiops,
        settings.rounds,
        |_, row, column| {
            let member = |_| Hollow::gateway("hollow", Sectors::from_bytes_floor(BYTES));
            let members = (0..4).map(member).collect::<Outcome<Vec<_>>>()?;
            let engine = Engine::start(1)?;
            let (level, count) = match row {
                0 => (None, 1),
                1 => (Some(Level::Raid0), 2),
                2 => (Some(Level::Raid1), 2),
                _ => (Some(Level::Raid10), 4),
            };
            let disk = match level {
                None => members[0].clone(),
                Some(level) => {
                    let (recipe, members) = (Recipe::clean(level), members[..count].to_vec());
                    let array = engine.handles()[0].spawn_on(move || async move {
                        arrays::make(recipe, &members, Arc::new(EngineRuntime)).await
                    });
                    Gateway::new(block_on(array)??)
                }
            };
            let load = Load {
                write: column == 1,
                bytes: 4096,
                depth: 32,
                order: Order::Random,
                // Beyond the superblock of the bare member.
                span: 2 << 20..BYTES / 2,
                until: Until::Passed(settings.run),
            };
            on_engine(&engine, &[(&disk, load)])
        },
    )?;
    grid.print("I/O of 4 KiB on hollow disks, depth 32, one thread")?;
    grid.print_cpu();
    Ok(())
}
