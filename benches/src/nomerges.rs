//! What merging costs where it gains nothing, and gains where it does: reads of 4 KiB with each value of `nomerges`, from a
//! device that takes no time, from a file and from a zvol.
//!
//! The patterns: one sequential stream; four of them on one thread, whose bios meet at the queue, where `nomerges` 1
//! (QUEUE_FLAG_NOXMERGES) merges with the last request only; and random reads, for which nothing can be merged. The last row of the file has the queue send its requests only at the end of the reactor's turn, not after a few that found nothing to
//! merge with: what waiting would gain or lose.
//!
//! The zvol is left out where there is no libzpool.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ashlar_block::{Disk, Gateway, Limits, Queue, Sectors};
use ashlar_engine::{Engine, ReactorConfig};
use ashlar_zfs::client::{Pool, Zvol};
use ashlar_zfs::protocol::{Command, NewVdev, VdevClass, VdevKind};
use rustix::param::clock_ticks_per_second;

use crate::common::{Files, Outcome, Settings, block_on, open_disk};
use crate::devices::NullDriver;
use crate::load::{JobEnd, Load, Loads, Order, Score, on_engine};
use crate::report::{Grid, Unit};

/// The part of each device that is read.
const SPAN: u64 = 256 << 20;
const BYTES: u64 = 4096;
/// I/Os in flight, over all streams.
const DEPTH: usize = 32;
const STREAMS: u64 = 4;
const VOLBLOCKSIZE: u64 = 16 << 10;
/// The disk of the pool, sparse: a small pool throttles writers.
const POOL_BYTES: u64 = 64 << 30;

const COLUMNS: [&str; 3] = ["sequential", "4 streams", "random"];
const NOMERGES: [(&str, u64); 3] = [("nomerges 2", 2), ("nomerges 1", 1), ("nomerges 0", 0)];
const LATE: &str = "nomerges 0, sent at the end of the turn";

/// The loads of a column.
fn loads(column: usize, settings: Settings) -> Vec<Load> {
    let streams = if column == 1 { STREAMS } else { 1 };
    let load = |stream| Load {
        write: false,
        bytes: BYTES,
        depth: DEPTH / streams as usize,
        order: if column == 2 { Order::Random } else { Order::Sequential },
        span: SPAN / streams * stream..SPAN / streams * (stream + 1),
        until: JobEnd::Passed(settings.run),
    };
    (0..streams).map(load).collect()
}

/// A device, and the CPU time in seconds that others use for it.
struct Subject<'a> {
    disk: Gateway,
    others: &'a dyn Fn() -> f64,
}

/// Measures a device; returns the grid with the rows.
fn measure<'a>(
    name: &str,
    rows: &'a [&'a str],
    subject: &Subject<'_>,
    settings: Settings,
) -> Outcome<Grid<'a>> {
    let run = |_, row: usize, column| -> Outcome<Score> {
        let nomerges = NOMERGES.get(row).map_or(0, |(_, value)| *value);
        subject.disk.disk().set_nomerges(nomerges)?;
        let steady = ReactorConfig::default();
        let late = ReactorConfig { submit_every: 1 << 20, ..steady };
        let engine = Engine::with_config(1, if row < NOMERGES.len() { steady } else { late })?;
        let loads = loads(column, settings);
        let loads: Vec<_> = loads.into_iter().map(|load| (&subject.disk, load)).collect();
        let loads: Loads<'_> = &loads;
        let before = (subject.others)();
        let score = on_engine(&engine, loads)?;
        let others = (subject.others)() - before;
        let done = score.iops * settings.run.as_secs_f64();
        Ok(Score { cpu_ns: score.cpu_ns + others * 1e9 / done, ..score })
    };
    let grid = Grid::measure(&COLUMNS, rows, Unit::Kiops, settings.rounds, run)?;
    grid.print(&format!("Reads of 4 KiB, depth {DEPTH}, one thread: {name}"))?;
    grid.print_cpu();
    grid.record_cpu(&format!("CPU time of these: {name}"))?;
    (1..rows.len()).for_each(|row| grid.print_ratio(row, 0, None));
    Ok(grid)
}

/// A pool on a sparse file, which is removed at the end, with a volume that has data.
struct ZvolSite {
    file: PathBuf,
    pool: Pool,
    zvol: Arc<Zvol>,
}

impl ZvolSite {
    fn make() -> Outcome<Self> {
        let name = format!("ashlar-benches-{}", std::process::id());
        let file = std::env::temp_dir().join(format!("{name}.img"));
        fs::File::create_new(&file)?.set_len(POOL_BYTES)?;
        match Self::on(&file, &name) {
            Ok((pool, zvol)) => Ok(Self { file, pool, zvol }),
            Err(error) => {
                fs::remove_file(&file)?;
                Err(error)
            }
        }
    }

    fn on(file: &Path, name: &str) -> Outcome<(Pool, Arc<Zvol>)> {
        let (kind, class) = (VdevKind::Single, VdevClass::Normal);
        let create = Command::CreatePool {
            name: name.to_owned(),
            vdevs: vec![NewVdev { kind, class, paths: vec![file.to_owned()] }],
            properties: BTreeMap::new(),
            dataset_properties: BTreeMap::from([("compression".to_owned(), "off".to_owned())]),
            force: false,
            wiped: Vec::new(),
        };
        let pool = block_on(Pool::start(name, create, Vec::new(), Arc::default(), None))?;
        let volume = Command::CreateVolume {
            name: format!("{name}/v"),
            volsize_bytes: SPAN,
            sparse: true,
            parents: false,
            properties: BTreeMap::from([("volblocksize".to_owned(), VOLBLOCKSIZE.to_string())]),
        };
        block_on(pool.run(volume))?;
        let zvol = block_on(pool.open(&format!("{name}/v"), false, "zd0", 0))?;
        let disk = Gateway::new(Arc::clone(&zvol) as _);
        let (write, bytes, order) = (true, 1 << 20, Order::Sequential);
        let until = JobEnd::Moved(SPAN);
        let fill = Load { write, bytes, depth: 4, order, span: 0..SPAN, until };
        on_engine(&Engine::start(1)?, &[(&disk, fill)])?;
        Ok((pool, zvol))
    }

    /// Seconds of CPU time of the pool's process (proc_pid_stat(5), fields 14 and 15).
    fn cpu_time(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pool.worker().pid()));
        let stat = stat.unwrap_or_default();
        // The name, in parentheses, may contain any characters; the first field after it is field 3.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let ticks: f64 = fields.skip(11).take(2).filter_map(|it| it.parse::<f64>().ok()).sum();
        ticks / clock_ticks_per_second() as f64
    }
}

impl Drop for ZvolSite {
    fn drop(&mut self) {
        if let Err(error) = block_on(self.pool.export()) {
            eprintln!("the pool is not exported: {error}");
        }
        if let Err(error) = fs::remove_file(&self.file) {
            eprintln!("{}: {error}", self.file.display());
        }
    }
}

/// Prints the tables.
///
/// # Errors
/// An I/O failed, a file could not be made, or a reactor could not be started.
pub(crate) fn run(settings: Settings) -> Outcome {
    let rows = NOMERGES.map(|(name, _)| name);
    let nothing = || 0.0;
    let size = Sectors::from_bytes_floor(SPAN);
    let null = Queue::new(Disk::new("null", size, Limits::default()), NullDriver);
    let null = Subject { disk: Gateway::new(Arc::new(null)), others: &nothing };
    drop(measure("null", &rows, &null, settings)?);

    let files = Files::make(1, SPAN)?;
    let file = Subject { disk: open_disk(&files.paths()[0], true), others: &nothing };
    let with_late: Vec<&str> = rows.into_iter().chain([LATE]).collect();
    let grid = measure("file", &with_late, &file, settings)?;
    grid.print_ratio(rows.len(), rows.len() - 1, None);

    match ZvolSite::make() {
        Ok(site) => {
            let cpu_time = || site.cpu_time();
            let disk = Gateway::new(Arc::clone(&site.zvol) as _);
            drop(measure("zvol", &rows, &Subject { disk, others: &cpu_time }, settings)?);
        }
        Err(error) => println!("\nno zvol: {error}"),
    }
    Ok(())
}
