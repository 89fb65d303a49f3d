//! Reads of a RAID1 of two members compared with reads of one of them.
//!
//! Each row gets the same load: eight jobs on one reactor. "Both without md" runs half of the jobs on each member,
//! which is the possible maximum.

use std::time::Duration;

use ashlar_block::{Gateway, Sectors};
use ashlar_engine::Engine;
use ashlar_md::ondisk::Level;
use ashlar_sim::{Sim, SimDisk};

use crate::arrays::{self, Recipe};
use crate::common::{Files, Outcome, Settings};
use crate::load::{JobEnd, Load, Order, Score, in_sim, on_engine};
use crate::report::{Grid, Unit};

const ROWS: [&str; 3] = ["one member", "both without md", "RAID1"];
const COLUMNS: [&str; 4] = ["random 4K", "random 64K", "8 seq. 64K", "1 seq. 64K"];
const BYTES: u64 = 1 << 30;
const SIM_RUN: Duration = Duration::from_millis(100);

/// The jobs of a column, distributed over these disks in turn.
fn loads<'a>(column: usize, disks: &[&'a Gateway], run: Duration) -> Vec<(&'a Gateway, Load)> {
    let (bytes, depth, order, jobs) = match column {
        0 => (4 << 10, 16, Order::Random, 8),
        1 => (64 << 10, 16, Order::Random, 8),
        2 => (64 << 10, 16, Order::Sequential, 8),
        // Half of the depth on each disk.
        _ => (64 << 10, 128 / disks.len(), Order::Sequential, disks.len()),
    };
    let span = 0..BYTES / 2;
    let load = Load { write: false, bytes, depth, order, span, until: JobEnd::Passed(run) };
    disks.iter().cycle().take(jobs).map(|disk| (*disk, load.clone())).collect()
}

fn print(
    title: &str,
    rounds: usize,
    run: impl FnMut(usize, usize, usize) -> Outcome<Score>,
) -> Outcome {
    let grid = Grid::measure(&COLUMNS, &ROWS, Unit::Kiops, rounds, run)?;
    grid.print(title)?;
    grid.print_cpu();
    grid.print_ratio(1, 0, None);
    grid.print_ratio(2, 0, Some(1.8));
    grid.print_ratio(2, 1, None);
    Ok(())
}

/// Prints the tables.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    let recipe = Recipe::clean(Level::Raid1);
    print("Two NVMe disks in virtual time", settings.rounds, |round, row, column| {
        let sim = Sim::new(round as u64);
        let disk = |name| SimDisk::new(name, Sectors::from_bytes_floor(BYTES)).gateway();
        let disks = [disk("sim0"), disk("sim1")];
        let array = Gateway::new(sim.block_on(arrays::make(recipe, &disks, sim.runtime()))?);
        in_sim(&sim, &loads(column, &subjects(row, &disks, &array), SIM_RUN))
    })?;
    let files = Files::make(2, BYTES)?;
    print("Two files, direct I/O", settings.rounds, |_, row, column| {
        let disks = files.disks();
        let engine = Engine::start(1)?;
        let array = arrays::on(&engine, recipe, disks.clone())?;
        on_engine(&engine, &loads(column, &subjects(row, &disks, &array), settings.run))
    })
}

fn subjects<'a>(row: usize, disks: &'a [Gateway], array: &'a Gateway) -> Vec<&'a Gateway> {
    match row {
        0 => vec![&disks[0]],
        1 => disks.iter().collect(),
        _ => vec![array],
    }
}
