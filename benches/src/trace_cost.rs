//! The cost of trace points: random reads of 4 KiB without a reader, again without one (which shows the noise), with a
//! reader that only counts events, and with the rings of `ashlar trace`, drained as the daemon does.
//!
//! A build with the feature `no-trace-points` has only the rows without a reader: compared with the usual build, they
//! show the cost of a trace point without a reader (docs/internals/tracing.md).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ashlar_block::disk::DeviceNumber;
use ashlar_block::trace::{Event, HAS_POINTS, Reader, Watch, watch};
use ashlar_block::{Gateway, Sectors};
use ashlar_engine::{Engine, now_ns, wall_clock};
use ashlar_plot::trace::{Categories, Host, Session, ThreadIdentity};

use crate::common::{Files, Outcome, Settings, open_disk};
use crate::devices::HollowMember;
use crate::load::{Load, on_engine};
use crate::report::{Grid, Unit};

const BYTES: u64 = 1 << 30;
const ROWS: [&str; 4] =
    ["no reader", "no reader, again", "a reader that counts", "the rings of ashlar trace"];
/// Rows that need no trace points.
const WITHOUT_READER: usize = 2;

/// The daemon's values: how often records are drained, how old they are then, and how many at a time.
const INTERVAL: Duration = Duration::from_millis(10);
const SETTLED_NS: u64 = 1_000_000;
const BATCH: usize = 8192;

/// The minimal reader.
#[derive(Default)]
struct Count(AtomicU64);

impl Reader for Count {
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// The totals from the rings.
#[derive(Default)]
struct Sums {
    taken: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
}

/// A running trace. A thread drains its records until this is dropped.
struct Taker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn who() -> ThreadIdentity {
    let pid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    ThreadIdentity { pid, name: "bench".to_owned() }
}

impl Taker {
    fn start(device: DeviceNumber, sums: &Arc<Sums>) -> Self {
        let host = Host { clock: now_ns, wall_clock, who };
        let mut session = Session::start(vec![device], Categories::all(), host);
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, sums) = (Arc::clone(&stop), Arc::clone(sums));
        let thread = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                thread::sleep(INTERVAL);
                let until_ns = now_ns().saturating_sub(SETTLED_NS);
                loop {
                    let (bytes, count) = session.take(until_ns, BATCH);
                    sums.taken.fetch_add(count as u64, Relaxed);
                    sums.bytes.fetch_add(bytes.len() as u64, Relaxed);
                    if count < BATCH {
                        break;
                    }
                }
            }
            sums.lost.fetch_add(session.lost(), Relaxed);
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the thread that takes records out has failed");
        }
    }
}

/// The reader while a row is measured.
enum Watching {
    Nobody,
    Counting { _watch: Watch },
    Tracing { _taker: Taker },
}

/// Prints the table.
///
/// # Errors
/// An I/O failed, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    let files = Files::make(1, BYTES)?;
    let (count, sums) = (Arc::new(Count::default()), Arc::new(Sums::default()));
    let columns = ["file", "hollow"];
    let rows = if HAS_POINTS { &ROWS[..] } else { &ROWS[..WITHOUT_READER] };
    let watching = |row, disk: &Gateway| match row {
        2 => Watching::Counting { _watch: watch(Arc::<Count>::clone(&count)) },
        3 => Watching::Tracing { _taker: Taker::start(disk.disk().number(), &sums) },
        _ => Watching::Nobody,
    };
    let grid = Grid::measure(&columns, rows, Unit::Kiops, settings.rounds, |_, row, column| {
        let engine = Engine::start(1)?;
        let disk = match column {
            0 => open_disk(&files.paths()[0], true),
            _ => HollowMember::gateway("hollow", Sectors::from_bytes_floor(BYTES))?,
        };
        // Beyond the part that a hollow disk stores.
        let load = Load::random(false, 2 << 20..BYTES, settings.run);
        let watching = watching(row, &disk);
        let score = on_engine(&engine, &[(&disk, load)]);
        drop(watching);
        score
    })?;
    let build = if HAS_POINTS { "with" } else { "WITHOUT" };
    grid.print(&format!(
        "Random reads of 4 KiB, depth 32, one thread: a build {build} trace points"
    ))?;
    grid.print_cpu();
    for row in 1..rows.len() {
        grid.print_ratio(row, 0, None);
    }
    if HAS_POINTS {
        println!("  the reader that counts saw {} events", count.0.load(Relaxed));
        let Sums { taken, bytes, lost } = &*sums;
        let megabytes = bytes.load(Relaxed) as f64 / 1e6;
        let (taken, lost) = (taken.load(Relaxed), lost.load(Relaxed));
        println!(
            "  the rings gave {taken} records ({megabytes:.0} MB of blktrace's), {lost} were lost"
        );
    }
    Ok(())
}
