//! Writes with and without a write-intent bitmap: random, 4 KiB, depth 32, RAID1 of two.
//!
//! Each bitmap starts without marks, so they are set during the run and cleared every five seconds, as in normal use.
//! With 64 KiB per mark (mdadm would choose 64 MiB) there are 8,192 of them to set. A lockless bitmap counts everything
//! as written before.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Gateway, Sectors};
use ashlar_engine::{Engine, EngineRuntime};
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_sim::{Sim, SimDisk};

use crate::arrays::{self, Recipe};
use crate::common::{Files, Outcome, Settings, block_on};
use crate::devices::ram;
use crate::load::{JobEnd, Load, Order, in_sim, on_engine};
use crate::report::{Grid, Unit};

const ROWS: [&str; 4] = ["no bitmap", "internal", "internal, 64 KiB to a mark", "lockless"];
const BITMAPS: [NewBitmap; 4] = [
    NewBitmap::None,
    NewBitmap::Internal { chunk: None },
    NewBitmap::Internal { chunk: Some(64 << 10) },
    NewBitmap::Lockless,
];
const COLUMNS: [&str; 3] = ["RAM", "files", "NVMe, virtual"];
const BYTES: u64 = 1 << 30;
const SIM_RUN: Duration = Duration::from_millis(250);

/// Prints the table.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    let files = Files::make(2, BYTES)?;
    let load = Load::random(true, 0..BYTES / 2, settings.run);
    let rams = ram(2, BYTES)?;
    let fill = Load {
        bytes: 1 << 20,
        order: Order::Sequential,
        until: JobEnd::Moved(BYTES / 2),
        ..load.clone()
    };
    on_engine(&Engine::start(1)?, &[(&rams[0], fill.clone()), (&rams[1], fill)])?;
    let grid =
        Grid::measure(&COLUMNS, &ROWS, Unit::Kiops, settings.rounds, |round, row, column| {
            let recipe = Recipe { bitmap: BITMAPS[row], ..Recipe::clean(Level::Raid1) };
            if column == 2 {
                let sim = Sim::new(round as u64);
                let disk = |name| SimDisk::new(name, Sectors::from_bytes_floor(BYTES)).gateway();
                let members = [disk("sim0"), disk("sim1")];
                let array = sim.block_on(arrays::make_unmarked(recipe, &members, sim.runtime()))?;
                let load = Load { until: JobEnd::Passed(SIM_RUN), ..load.clone() };
                return in_sim(&sim, &[(&Gateway::new(array), load)]);
            }
            let members = if column == 0 { rams.clone() } else { files.disks() };
            let engine = Engine::start(1)?;
            let array = block_on(engine.handles()[0].spawn_on(move || async move {
                arrays::make_unmarked(recipe, &members, Arc::new(EngineRuntime)).await
            }))??;
            on_engine(&engine, &[(&Gateway::new(array), load.clone())])
        })?;
    grid.print("Random writes of 4 KiB, depth 32, RAID1 of two")?;
    grid.print_cpu();
    for bitmap in 1..ROWS.len() {
        grid.print_ratio(bitmap, 0, Some(0.9));
    }
    Ok(())
}
