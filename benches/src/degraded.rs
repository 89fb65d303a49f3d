//! Arrays with parity that lack members: recovery, compared with the members alone, and random reads of 4 KiB, whose cost for the members is
//! counted.
//!
//! A recovery is as fast as its slowest member allows: one that is read, or the one that is rebuilt. That member alone, sequentially, 1 MiB at
//! depth 16, is what recoveries are compared with, in the same round. All members of a column are alike but for one, which is slow, so that the
//! others never are the limit. Virtual time has no noise: one round is enough, and the processor takes no time there. In the RAM it does.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::stats::GroupTotals;
use ashlar_block::{BlockDevice, Gateway, Runtime, Sectors};
use ashlar_engine::{Engine, EngineRuntime};
use ashlar_md::ondisk::Level;
use ashlar_md::{AddOptions, Array, SyncRequest};
use ashlar_sim::{Media, Model, Sim, SimDisk};
use uuid::Uuid;

use crate::arrays::{self, Recipe};
use crate::common::{Outcome, Settings, block_on, median};
use crate::devices::{limited_ram, ram};
use crate::load::{JobEnd, Load, Order, Score, in_sim, on_engine};
use crate::report::{Grid, Unit, record};
use crate::rows;

/// Of each member in virtual time, and in RAM that is held to a rate.
const SIM_BYTES: u64 = 1 << 30;
const LIMITED_BYTES: u64 = 192 << 20;

/// Arrays that lack members, and how many.
#[derive(Clone, Copy)]
struct Shape {
    level: Level,
    members: usize,
    lacks: usize,
}

const RECOVERIES: [&str; 4] = [
    "slowest member alone",
    "recovery, RAID5 of 4",
    "recovery, RAID6 of 6",
    "recovery of two, RAID6 of 6",
];
const RECOVERED: [Shape; 3] = [
    Shape { level: Level::Raid5, members: 4, lacks: 1 },
    Shape { level: Level::Raid6, members: 6, lacks: 1 },
    Shape { level: Level::Raid6, members: 6, lacks: 2 },
];

/// What the members of a column are.
#[derive(Clone, Copy)]
struct Speeds<S> {
    /// All but the first, and but those that are rebuilt.
    most: S,
    first: S,
    rebuilt: S,
}

/// Which member is slower than the others.
const SLOW: [&str; 3] = ["one read", "those rebuilt", "none"];

fn speeds<S: Copy>(column: usize, most: S, slow: S) -> Speeds<S> {
    match column {
        0 => Speeds { most, first: slow, rebuilt: most },
        1 => Speeds { most, first: most, rebuilt: slow },
        _ => Speeds { most: slow, first: slow, rebuilt: slow },
    }
}

/// Prints the tables.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    recovery(settings)?;
    reads(settings)
}

fn recovery(settings: Settings) -> Outcome {
    let of_sim = |most: Model, slow: Model, title: &str| {
        let grid = Grid::measure(&SLOW, &RECOVERIES, Unit::Megabytes, 1, |round, row, column| {
            let speeds = speeds(column, most, slow);
            let disk = |model: Model| {
                let media = Media::new(Sectors::from_bytes_floor(SIM_BYTES));
                Ok(SimDisk::with("sim", media, model.limits(), model).gateway())
            };
            let alone = |model: Model, load: Load| {
                let sim = Sim::new(round as u64);
                in_sim(&sim, &[(&disk(model)?, load)])
            };
            let recovery = |shape: Shape| {
                let sim = Sim::new(round as u64);
                let disks = disks(shape, speeds, disk)?;
                sim.block_on(recovered(shape, disks, sim.runtime()))
            };
            cell(row, speeds, SIM_BYTES, alone, recovery)
        })?;
        print(&grid, title)
    };
    of_sim(
        Model::nvme(),
        Model::sata_ssd(),
        "Recovery, NVMe disks, a SATA SSD is slower, virtual time",
    )?;
    of_sim(
        Model::sata_ssd(),
        Model::hdd(),
        "Recovery, SATA SSDs, a hard disk is slower, virtual time",
    )?;
    let rounds = settings.rounds;
    let grid = Grid::measure(&SLOW, &RECOVERIES, Unit::Megabytes, rounds, |_, row, column| {
        let speeds = speeds(column, 600_000_000, 200_000_000);
        let disk = |rate: u64| limited_ram(LIMITED_BYTES, rate);
        let engine = Engine::start(1)?;
        let alone = |rate: u64, load: Load| on_engine(&engine, &[(&disk(rate)?, load)]);
        let recovery = |shape: Shape| {
            let disks = disks(shape, speeds, disk)?;
            let done = engine.handles()[0].spawn_on(move || async move {
                recovered(shape, disks, Arc::new(EngineRuntime)).await
            });
            block_on(done)?
        };
        cell(row, speeds, LIMITED_BYTES, alone, recovery)
    })?;
    print(&grid, "Recovery, RAM of 600 MB/s, of 200 MB/s is slower")
}

fn print(grid: &Grid<'_>, title: &str) -> Outcome {
    grid.print(title)?;
    for row in 1..RECOVERIES.len() {
        grid.print_ratio(row, 0, Some(0.9));
    }
    Ok(())
}

/// The members, and behind them as many spares as members are to be lost.
fn disks<S: Copy>(
    shape: Shape,
    speeds: Speeds<S>,
    disk: impl Fn(S) -> Outcome<Gateway>,
) -> Outcome<Vec<Gateway>> {
    let speed = |number: usize| match number {
        0 => speeds.first,
        number if number < shape.members => speeds.most,
        _ => speeds.rebuilt,
    };
    (0..shape.members + shape.lacks).map(|number| disk(speed(number))).collect()
}

fn cell<S: Copy>(
    row: usize,
    speeds: Speeds<S>,
    bytes: u64,
    alone: impl Fn(S, Load) -> Outcome<Score>,
    recovery: impl Fn(Shape) -> Outcome<Score>,
) -> Outcome<Score> {
    if row > 0 {
        return recovery(RECOVERED[row - 1]);
    }
    // The rest is what arrays do not use either.
    let span = 0..bytes - (16 << 20);
    let load = |write: bool| {
        let (span, until) = (span.clone(), JobEnd::Moved(span.end));
        Load { write, bytes: 1 << 20, depth: 16, order: Order::Sequential, span, until }
    };
    let mut slowest = alone(speeds.rebuilt, load(true))?;
    for read in [speeds.first, speeds.most] {
        let read = alone(read, load(false))?;
        if read.rate < slowest.rate {
            slowest = read;
        }
    }
    Ok(slowest)
}

/// The array without its last members, which are removed from it.
async fn lacking(
    shape: Shape,
    members: &[Gateway],
    runtime: Arc<dyn Runtime>,
) -> Outcome<Arc<Array>> {
    let array = arrays::make(Recipe::clean(shape.level), members, runtime).await?;
    array.request_sync(SyncRequest::Frozen)?;
    let slots = shape.members - shape.lacks..shape.members;
    let lost: Vec<_> = array.members().placed().map(|(index, _)| index).collect();
    for index in lost.into_iter().skip(slots.start) {
        array.fail(index).await?;
        array.remove(index).await?;
    }
    if array.degraded() != shape.lacks {
        return Err(format!("the array lacks {} members", array.degraded()).into());
    }
    Ok(array)
}

/// Recovers the last members of an array onto its spares, which are behind the members.
async fn recovered(shape: Shape, disks: Vec<Gateway>, runtime: Arc<dyn Runtime>) -> Outcome<Score> {
    let (members, spares) = disks.split_at(shape.members);
    let array = lacking(shape, members, Arc::clone(&runtime)).await?;
    for (number, spare) in spares.iter().enumerate() {
        let options = AddOptions {
            device_uuid: Uuid::new_v4(),
            write_mostly: None,
            failfast: None,
            spare_only: true,
        };
        array.add(spare.clone(), &format!("spare{number}"), options).await?;
    }
    array.sync_settings().set_speed_max_kib(Some(u64::from(u32::MAX)));
    let begun_ns = runtime.now_ns();
    array.request_sync(SyncRequest::Idle)?;
    array.sync_ended().await;
    let time = Duration::from_nanos(runtime.now_ns() - begun_ns);
    if array.degraded() > 0 {
        return Err("the recovery did not come to its end".into());
    }
    let parities = if shape.level == Level::Raid6 { 2 } else { 1 };
    let data = (shape.members - parities) as u64;
    let bytes = array.disk().capacity().bytes() / data;
    array.stop().await?;
    Ok(Score::new(bytes >> 20, 1 << 20, time, Duration::ZERO))
}

const READS: [&str; 5] = [
    "RAID5 of 4",
    "RAID5 of 4 without one",
    "RAID6 of 6",
    "RAID6 of 6 without one",
    "RAID6 of 6 without two",
];
const READ: [Shape; 5] = [
    Shape { level: Level::Raid5, members: 4, lacks: 0 },
    Shape { level: Level::Raid5, members: 4, lacks: 1 },
    Shape { level: Level::Raid6, members: 6, lacks: 0 },
    Shape { level: Level::Raid6, members: 6, lacks: 1 },
    Shape { level: Level::Raid6, members: 6, lacks: 2 },
];

fn reads(settings: Settings) -> Outcome {
    let mut counted: Vec<[Vec<f64>; 2]> = vec![Default::default(); READ.len()];
    let columns = ["read 4 KiB"];
    let grid = Grid::measure(&columns, &READS, Unit::Kiops, settings.rounds, |_, row, _| {
        let (members, shape) = (ram(READ[row].members, rows::BYTES)?, READ[row]);
        let engine = Engine::start(1)?;
        let its_members = members.clone();
        let array = block_on(engine.handles()[0].spawn_on(move || async move {
            lacking(shape, &its_members, Arc::new(EngineRuntime)).await
        }))??;
        let load = Load::random(false, 0..rows::BYTES / 2, settings.run);
        let read = |disk: &Gateway| disk.disk().stats().totals().read;
        let sum = |of: fn(GroupTotals) -> u64| members.iter().map(|disk| of(read(disk))).sum();
        let commands = || -> u64 { sum(|read| read.ios) };
        let sectors = || -> u64 { sum(|read| read.sectors) };
        let disk = Gateway::new(array);
        rows::fill(&engine, &disk)?;
        let before = [commands(), sectors()];
        let asked = || disk.disk().stats().totals().read.ios;
        let before_asked = asked();
        let score = on_engine(&engine, &[(&disk, load)])?;
        let reads = (asked() - before_asked) as f64;
        counted[row][0].push((commands() - before[0]) as f64 / reads);
        counted[row][1].push((sectors() - before[1]) as f64 / 2.0 / reads);
        Ok(score)
    })?;
    grid.print("Random reads of 4 KiB of arrays that lack members, depth 32, RAM disks")?;
    grid.print_cpu();
    grid.print_ratio(1, 0, None);
    grid.print_ratio(3, 2, None);
    grid.print_ratio(4, 2, None);
    println!("\nReads of members for a read of 4 KiB: how many, and KiB of all together");
    let mut rows = Vec::new();
    for (name, [commands, kib]) in READS.into_iter().zip(counted) {
        let (commands, kib) = (median(commands), median(kib));
        println!("  {name:44} {commands:12.3} {kib:12.2}");
        rows.push((name, vec![commands, kib]));
    }
    record("Reads of members for a read of 4 KiB", "of one read", &["commands", "KiB"], &rows)
}
