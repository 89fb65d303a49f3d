//! The CPU time of the device mapper on one and more threads: random I/O of 4 KiB through a linear device over a RAM
//! disk, compared with the same I/O of the RAM disk.
//!
//! All threads use one device, so the CPU time per I/O rises with what they contend for. A RAM disk ends an I/O within
//! its submission, so a thread has one in flight. In the second table each I/O waits for a turn of the reactor first,
//! so that a thread has 32 in flight.

use ashlar_block::Gateway;
use ashlar_engine::Engine;

use crate::common::{Outcome, Settings};
use crate::devices::{DeferredDisk, ram};
use crate::load::{JobEnd, Load, Order, on_engine};
use crate::mapped::Mapper;
use crate::report::{Grid, Unit};

/// Small enough for a processor's caches, so that the copy of the data does not hide the rest.
const BYTES: u64 = 4 << 20;
const THREADS: [usize; 3] = [1, 2, 4];
const COLUMNS: [&str; 3] = ["1 thread", "2 threads", "4 threads"];
const ROWS: [&str; 4] = ["reads, bare", "reads, linear", "writes, bare", "writes, linear"];

/// Prints the tables.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    table(settings, "one in flight on each thread", Gateway::clone)?;
    table(settings, "32 in flight on each thread", DeferredDisk::before)
}

fn table(settings: Settings, title: &str, front: fn(&Gateway) -> Gateway) -> Outcome {
    let disk = front(&ram(1, BYTES)?[0]);
    let grid = Grid::measure(&COLUMNS, &ROWS, Unit::Kiops, settings.rounds, |_, row, column| {
        let engine = Engine::start(THREADS[column])?;
        let subject = if row % 2 == 0 {
            disk.clone()
        } else {
            let mapper = Mapper::default();
            mapper.add("disk", &disk);
            mapper.map(&engine, "mapped", &format!("0 {} linear disk 0", disk.capacity()))?
        };
        let load = Load {
            write: row >= 2,
            bytes: 4096,
            depth: 32,
            order: Order::Random,
            span: 0..BYTES,
            until: JobEnd::Passed(settings.run),
        };
        on_engine(&engine, &vec![(&subject, load); THREADS[column]])
    })?;
    grid.print(&format!("Random I/O of 4 KiB on a RAM disk, {title}"))?;
    grid.print_cpu();
    Ok(())
}
