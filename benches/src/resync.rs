//! The speed of a resync of an idle array, compared with the speed of its members.
//!
//! A whole array without a speed limit, including superblocks and checkpoints. The "slower member" is the one that
//! takes longer for its part: the first is read, the second written, alone and sequentially, 1 MiB at depth 16. With
//! files on one disk the two share the disk: there the row of both without md is the possible maximum, and the row with
//! depth 8 has as much in flight as md: 16 windows of 1 MiB, each of which is either read or written. Virtual time has
//! no noise: one round is enough.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ashlar_block::{BlockDevice, Gateway, Runtime, Sectors};
use ashlar_engine::{Engine, EngineRuntime};
use ashlar_md::Array;
use ashlar_md::ondisk::Level;
use ashlar_sim::{Media, Model, Sim, SimDisk};

use crate::arrays::{self, Recipe};
use crate::common::{Files, Outcome, Settings, block_on};
use crate::load::{JobEnd, Load, Order, Score, in_sim, on_engine};
use crate::report::{Grid, Unit};

const ROWS: [&str; 5] = [
    "slower member alone",
    "both without md",
    "both without md, depth 8",
    "resync, RAID1",
    "resync, RAID10 n2 of 4, a pair",
];
const COLUMNS: [&str; 4] = ["NVMe, SATA", "SATA, disk", "disk, NVMe", "two disks"];
const SIM_BYTES: u64 = 2 << 30;
const FILE_BYTES: u64 = 1 << 30;

fn models(column: usize) -> [Model; 2] {
    match column {
        0 => [Model::nvme(), Model::sata_ssd()],
        1 => [Model::sata_ssd(), Model::hdd()],
        2 => [Model::hdd(), Model::nvme()],
        _ => [Model::hdd(), Model::hdd()],
    }
}

/// Prints the tables.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    let grid = Grid::measure(&COLUMNS, &ROWS, Unit::Megabytes, 1, |round, row, column| {
        let disks = || {
            let disk = |model: Model| {
                let media = Media::new(Sectors::from_bytes_floor(SIM_BYTES));
                SimDisk::with("sim", media, model.limits(), model).gateway()
            };
            models(column).into_iter().cycle().map(disk).take(4).collect::<Vec<_>>()
        };
        let alone = |part: usize| {
            let sim = Sim::new(round as u64);
            let disks = disks();
            in_sim(&sim, &[(&disks[part], whole(part == 1, 16, SIM_BYTES))])
        };
        let both = |depth: usize| {
            let sim = Sim::new(round as u64);
            let disks = disks();
            let both = [
                (&disks[0], whole(false, depth, SIM_BYTES)),
                (&disks[1], whole(true, depth, SIM_BYTES)),
            ];
            in_sim(&sim, &both).map(half)
        };
        let resync = |level, members: usize| {
            let sim = Sim::new(round as u64);
            let disks = disks();
            let array = sim.block_on(start(level, disks[..members].to_vec(), sim.runtime()))?;
            let start_ns = sim.now_ns();
            sim.block_on(array.sync_ended());
            let time = Duration::from_nanos(sim.now_ns() - start_ns);
            resynced(&array, members, time)
        };
        cell(row, alone, both, resync)
    })?;
    print(&grid, "Resync of idle arrays, virtual time")?;
    grid.print_ratio(4, 0, Some(0.9));
    let files = Files::make(4, FILE_BYTES)?;
    let grid =
        Grid::measure(&["files"], &ROWS[..4], Unit::Megabytes, settings.rounds, |_, row, _| {
            let engine = Engine::start(1)?;
            let disks = files.disks();
            let alone = |part: usize| {
                on_engine(&engine, &[(&disks[part], whole(part == 1, 16, FILE_BYTES))])
            };
            let both = |depth: usize| {
                let both = [
                    (&disks[0], whole(false, depth, FILE_BYTES)),
                    (&disks[1], whole(true, depth, FILE_BYTES)),
                ];
                on_engine(&engine, &both).map(half)
            };
            let resync = |level, members: usize| {
                let disks = disks[..members].to_vec();
                let (array, time) = block_on(engine.handles()[0].spawn_on(move || async move {
                    let array = start(level, disks, Arc::new(EngineRuntime)).await?;
                    let begun = Instant::now();
                    array.sync_ended().await;
                    Outcome::Ok((array, begun.elapsed()))
                }))??;
                resynced(&array, members, time)
            };
            cell(row, alone, both, resync)
        })?;
    print(&grid, "Resync of idle arrays, files with direct I/O")
}

fn print(grid: &Grid<'_>, title: &str) -> Outcome {
    grid.print(title)?;
    grid.print_ratio(3, 0, Some(0.9));
    grid.print_ratio(3, 1, None);
    grid.print_ratio(3, 2, None);
    Ok(())
}

fn cell(
    row: usize,
    alone: impl Fn(usize) -> Outcome<Score>,
    both: impl Fn(usize) -> Outcome<Score>,
    resync: impl Fn(Level, usize) -> Outcome<Score>,
) -> Outcome<Score> {
    match row {
        0 => {
            let (first, second) = (alone(0)?, alone(1)?);
            Ok(if first.rate < second.rate { first } else { second })
        }
        1 => both(16),
        2 => both(8),
        3 => resync(Level::Raid1, 2),
        _ => resync(Level::Raid10, 4),
    }
}

/// Reads or writes of a whole disk, except for the rest that arrays do not use either.
fn whole(write: bool, depth: usize, bytes: u64) -> Load {
    let span = 0..bytes - (16 << 20);
    let until = JobEnd::Moved(span.end);
    Load { write, bytes: 1 << 20, depth, order: Order::Sequential, span, until }
}

/// The share of one of two loads that ran together.
fn half(score: Score) -> Score {
    Score { iops: score.iops / 2.0, rate: score.rate / 2.0, ..score }
}

async fn start(
    level: Level,
    disks: Vec<Gateway>,
    runtime: Arc<dyn Runtime>,
) -> Outcome<Arc<Array>> {
    let recipe = Recipe { assume_clean: false, ..Recipe::clean(level) };
    let array = arrays::make(recipe, &disks, runtime).await?;
    array.sync_settings().set_speed_max_kib(Some(u64::from(u32::MAX)));
    Ok(array)
}

/// The score of a resync per pair of members.
fn resynced(array: &Array, members: usize, time: Duration) -> Outcome<Score> {
    if array.is_unsynced() {
        return Err("the resync did not come to its end".into());
    }
    let bytes = array.disk().capacity().bytes() / (members as u64 / 2);
    Ok(Score::new(bytes >> 20, 1 << 20, time, Duration::ZERO))
}
