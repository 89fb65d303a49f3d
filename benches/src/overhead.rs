//! The cost of md itself: CPU time per I/O on arrays, compared with one of their members. Hollow members move no data, so
//! only the block layer and md take time; those that are queues also have a plug and deadlines, as files have.
//!
//! Each job has its own thread. Marks of a bitmap are set in the first round; later rounds find them set.

use ashlar_block::Sectors;
use ashlar_engine::Engine;
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::NewBitmap;

use crate::arrays::{self, Recipe};
use crate::common::{Outcome, Settings};
use crate::devices::HollowMember;
use crate::load::{JobEnd, Load, Order, on_engine};
use crate::report::{Grid, Unit};

const BYTES: u64 = 4 << 30;
const ROWS: [&str; 9] = [
    "a member",
    "RAID0 of 2",
    "RAID1 of 2",
    "RAID10 n2 of 4",
    "RAID1 of 2, bitmap",
    "RAID10 n2 of 4, bitmap",
    "a queue",
    "RAID1 of 2 queues",
    "RAID10 n2 of 4 queues",
];
/// The first row whose members are queues.
const QUEUES: usize = 6;
const COLUMNS: [&str; 6] =
    ["read, 1", "read, 2", "read, 4 threads", "write, 1", "write, 2", "write, 4 threads"];
const THREADS: [usize; 3] = [1, 2, 4];

/// Prints the tables.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    table(settings, "random 4 KiB", 4096, Order::Random)?;
    table(settings, "sequential 128 KiB", 128 << 10, Order::Sequential)
}

fn table(settings: Settings, title: &str, bytes: u64, order: Order) -> Outcome {
    let member = |row| {
        let make = if row < QUEUES { HollowMember::gateway } else { HollowMember::queued };
        make("hollow", Sectors::from_bytes_floor(BYTES))
    };
    let grid = Grid::measure(&COLUMNS, &ROWS, Unit::Kiops, settings.rounds, |_, row, column| {
        let members = (0..4).map(|_| member(row)).collect::<Outcome<Vec<_>>>()?;
        let threads = THREADS[column % THREADS.len()];
        let engine = Engine::start(threads)?;
        let (level, count) = match row {
            0 | 6 => (None, 1),
            1 => (Some(Level::Raid0), 2),
            2 | 4 | 7 => (Some(Level::Raid1), 2),
            _ => (Some(Level::Raid10), 4),
        };
        let bitmap = match row {
            4 | 5 => NewBitmap::Internal { chunk: None },
            _ => NewBitmap::None,
        };
        let disk = match level {
            None => members[0].clone(),
            Some(level) => {
                let recipe = Recipe { bitmap, ..Recipe::clean(level) };
                arrays::on(&engine, recipe, members[..count].to_vec())?
            }
        };
        let load = Load {
            write: column >= THREADS.len(),
            bytes,
            depth: 32,
            order,
            // Beyond the superblock of the bare member.
            span: 2 << 20..BYTES / 2,
            until: JobEnd::Passed(settings.run),
        };
        on_engine(&engine, &vec![(&disk, load); threads])
    })?;
    grid.print(&format!("{title} on hollow disks, depth 32 for each thread"))?;
    grid.print_cpu();
    Ok(())
}
