//! Arrays with parity on RAM disks, compared with a RAID0 over as many disks of data, and with a RAID1.
//!
//! One thread. Memory is the limit of all: a write of whole rows copies the data once, reads it for the parity, and writes a third more (RAID5)
//! or two thirds more (RAID6) than a RAID0 of three; a small write reads as many blocks as it writes. So whole rows are also written to members
//! that are the limit: then members with parity take nothing from the others.

use ashlar_block::Gateway;
use ashlar_engine::Engine;
use ashlar_md::ondisk::Level;

use crate::arrays::{self, Recipe};
use crate::common::{Outcome, Settings};
use crate::devices::{limited_ram, ram};
use crate::load::{JobEnd, Load, Order, on_engine};
use crate::report::{Grid, Unit};

/// Of each member.
pub(crate) const BYTES: u64 = 256 << 20;
/// What a member moves in a second where members, not memory, are the limit.
const MEMBER_RATE: u64 = 1_000_000_000;
const ROWS: [&str; 5] =
    ["RAID0 of 3", "RAID5 of 4", "RAID6 of 5", "RAID1 of 2", "RAID5 of 4, logged"];
/// The one with a partial parity log.
const LOGGED: usize = 4;
/// A row of three chunks of data.
const ROW_BYTES: u64 = 3 * (512 << 10);

/// Prints the tables.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    let columns = ["read 128 KiB", "write 128 KiB", "write rows"];
    let load = |column: usize| Load {
        write: column > 0,
        bytes: if column == 2 { ROW_BYTES } else { 128 << 10 },
        depth: 8,
        order: Order::Sequential,
        span: 0..BYTES / 2,
        until: JobEnd::Passed(settings.run),
    };
    let grid = table(settings, &columns, &ROWS, Unit::Megabytes, unlimited, load)?;
    grid.print("Arrays with parity, sequential, depth 8, RAM disks")?;
    grid.print_cpu();
    for row in [1, 2] {
        grid.print_ratio(row, 0, None);
    }
    grid.print_ratio(LOGGED, 1, None);
    let limited = |count: usize| -> Outcome<Vec<Gateway>> {
        (0..count).map(|_| limited_ram(BYTES, MEMBER_RATE)).collect()
    };
    let rows = |_| load(2);
    let grid = table(settings, &columns[2..], &ROWS[..3], Unit::Megabytes, limited, rows)?;
    grid.print("Arrays with parity, sequential, depth 8, RAM of 1 GB/s")?;
    grid.print_cpu();
    for row in [1, 2] {
        grid.print_ratio(row, 0, Some(0.8));
    }
    let columns = ["read 4 KiB", "write 4 KiB"];
    let load = |column: usize| Load {
        write: column > 0,
        bytes: 4096,
        depth: 32,
        order: Order::Random,
        span: 0..BYTES / 2,
        until: JobEnd::Passed(settings.run),
    };
    let grid = table(settings, &columns, &ROWS, Unit::Kiops, unlimited, load)?;
    grid.print("Arrays with parity, random, depth 32, RAM disks")?;
    grid.print_cpu();
    for row in [1, 2] {
        grid.print_ratio(row, 3, None);
    }
    grid.print_ratio(LOGGED, 1, None);
    Ok(())
}

/// Writes what is used once, so that no memory has to be found while it is measured, and reads find data and not the one page of zeroes.
pub(crate) fn fill(engine: &Engine, disk: &Gateway) -> Outcome {
    let span = 0..BYTES / 2;
    let until = JobEnd::Moved(span.end);
    let load =
        Load { write: true, bytes: 1 << 20, depth: 8, order: Order::Sequential, span, until };
    on_engine(engine, &[(disk, load)]).map(|_| ())
}

fn unlimited(count: usize) -> Outcome<Vec<Gateway>> {
    ram(count, BYTES)
}

fn table<'a>(
    settings: Settings,
    columns: &'a [&'a str],
    rows: &'a [&'a str],
    unit: Unit,
    disks: impl Fn(usize) -> Outcome<Vec<Gateway>>,
    load: impl Fn(usize) -> Load,
) -> Outcome<Grid<'a>> {
    Grid::measure(columns, rows, unit, settings.rounds, |_, row, column| {
        let (level, count) = [
            (Level::Raid0, 3),
            (Level::Raid5, 4),
            (Level::Raid6, 5),
            (Level::Raid1, 2),
            (Level::Raid5, 4),
        ][row];
        let members = disks(count)?;
        let engine = Engine::start(1)?;
        let recipe = Recipe { ppl: row == LOGGED, ..Recipe::clean(level) };
        let disk = arrays::on(&engine, recipe, members)?;
        fill(&engine, &disk)?;
        on_engine(&engine, &[(&disk, load(column))])
    })
}
