//! The cost of the device mapper: random reads of 4 KiB through linear and striped devices, compared with the same
//! reads of the bare file that they map.

use ashlar_block::{Gateway, Sectors};
use ashlar_engine::Engine;

use crate::common::{Files, Outcome, Settings, open_disk};
use crate::devices::HollowMember;
use crate::load::{Load, on_engine};
use crate::mapped::Mapper;
use crate::report::{Grid, Unit};

const BYTES: u64 = 1 << 30;
const ROWS: [&str; 3] = ["bare", "linear", "striped over both halves, 64 KiB"];

/// The device of a row over `disk`.
fn subject(engine: &Engine, row: usize, disk: &Gateway) -> Outcome<Gateway> {
    let mapper = Mapper::default();
    mapper.add("disk", disk);
    let sectors = disk.capacity().0;
    let table = match row {
        0 => return Ok(disk.clone()),
        1 => format!("0 {sectors} linear disk 0"),
        _ => format!("0 {sectors} striped 2 128 disk 0 disk {}", sectors / 2),
    };
    mapper.map(engine, "mapped", &table)
}

/// Prints the tables.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    let files = Files::make(1, BYTES)?;
    let grid = Grid::measure(
        &["file", "hollow"],
        &ROWS,
        Unit::Kiops,
        settings.rounds,
        |_, row, column| {
            let engine = Engine::start(1)?;
            let disk = match column {
                0 => open_disk(&files.paths()[0], true),
                _ => HollowMember::gateway("hollow", Sectors::from_bytes_floor(BYTES))?,
            };
            let disk = subject(&engine, row, &disk)?;
            // Beyond the part that a hollow disk stores.
            let load = Load::random(false, 2 << 20..BYTES, settings.run);
            on_engine(&engine, &[(&disk, load)])
        },
    )?;
    grid.print("Random reads of 4 KiB, depth 32, one thread")?;
    grid.print_cpu();
    // On a hollow disk, which takes no time itself, any layer costs more than that.
    grid.print_ratio_of(1, 0, &[0], Some(0.97));
    grid.print_ratio_of(2, 0, &[0], Some(0.97));
    Ok(())
}
