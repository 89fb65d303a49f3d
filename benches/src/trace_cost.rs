//! What trace points cost: random reads of 4 KiB without a reader, with one that counts events, and again
//! without one, which is the noise to compare with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ashlar_block::Sectors;
use ashlar_block::trace::{Event, Reader, watch};
use ashlar_engine::Engine;

use crate::common::{Files, Outcome, Settings, open_disk};
use crate::devices::Hollow;
use crate::load::{Load, Order, Until, on_engine};
use crate::report::{Grid, Unit};

const BYTES: u64 = 1 << 30;
const ROWS: [&str; 3] = ["no reader", "no reader, again", "a reader that counts"];

/// The least that a reader can do.
#[derive(Default)]
struct Count(AtomicU64);

impl Reader for Count {
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// Prints the table.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    let files = Files::make(1, BYTES)?;
    let count = Arc::new(Count::default());
    let columns = ["file", "hollow"];
    let grid = Grid::measure(&columns, &ROWS, Unit::Kiops, settings.rounds, |_, row, column| {
        let engine = Engine::start(1)?;
        let disk = match column {
            0 => open_disk(&files.paths()[0], true),
            _ => Hollow::gateway("hollow", Sectors::from_bytes_floor(BYTES))?,
        };
        let load = Load {
            write: false,
            bytes: 4096,
            depth: 32,
            order: Order::Random,
            // Past what a hollow disk keeps.
            span: 2 << 20..BYTES,
            until: Until::Passed(settings.run),
        };
        let reader = (row == 2).then(|| watch(Arc::<Count>::clone(&count)));
        let score = on_engine(&engine, &[(&disk, load)]);
        drop(reader);
        score
    })?;
    grid.print("Random reads of 4 KiB, depth 32, one thread");
    grid.print_cpu();
    grid.print_ratio(1, 0, None);
    grid.print_ratio(2, 0, None);
    println!("  the reader saw {} events", count.0.load(Relaxed));
    Ok(())
}
