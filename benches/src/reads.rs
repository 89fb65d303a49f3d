//! Reads in one process: the engine compared with fio on one file, and RAID1 and RAID10 compared with the bare file.
//!
//! Each round runs every configuration; the tables give medians, and the median of the ratios to the first row of the
//! same round. The page-cache table measures only CPU time.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ashlar_block::{Bio, Buffer, Gateway, Sector};
use ashlar_engine::fd::Fd;
use ashlar_engine::{EngineRuntime, Reactor, ReactorConfig, spawn};
use ashlar_md::ondisk::Level;

use crate::arrays::{self, Recipe};
use crate::common::{Files, Outcome, Settings, cpu_time, median, open_disk};
use crate::report::record;

const BLOCK: u64 = 4096;
const DEPTH: usize = 32;
const FILE_BYTES: u64 = 1 << 30;

#[derive(Clone, Copy, PartialEq)]
enum Order {
    Random,
    Sequential,
}

/// The common settings of a table's configurations.
#[derive(Clone, Copy)]
struct Job<'a> {
    path: &'a Path,
    order: Order,
    direct: bool,
    run: Duration,
}

/// I/Os per second, and nanoseconds of our CPU time per I/O.
#[derive(Clone, Copy)]
struct Score {
    iops: f64,
    cpu_ns: f64,
}

/// The position of a task's next read.
struct Places {
    blocks: u64,
    order: Order,
    state: Cell<u64>,
    done: Cell<u64>,
    end: Instant,
}

impl Places {
    fn next(&self) -> Option<u64> {
        let done = self.done.get();
        if done.is_multiple_of(64) && Instant::now() >= self.end {
            return None;
        }
        self.done.set(done + 1);
        let state = self.state.get();
        match self.order {
            Order::Sequential => {
                self.state.set(state + 1);
                Some(state % self.blocks)
            }
            Order::Random => {
                let mut x = state;
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                self.state.set(x);
                Some(x % self.blocks)
            }
        }
    }
}

/// Runs 32 tasks of `task` for a while.
fn measure<F, T>(job: Job<'_>, config: ReactorConfig, make_task: impl FnOnce() -> T) -> Score
where
    F: Future<Output = ()> + 'static,
    T: Fn(Rc<Places>) -> F,
{
    measure_async(job, config, async || make_task())
}

/// As [`measure`], for tasks whose creation needs I/O.
fn measure_async<F, T>(
    job: Job<'_>,
    config: ReactorConfig,
    make_task: impl AsyncFnOnce() -> T,
) -> Score
where
    F: Future<Output = ()> + 'static,
    T: Fn(Rc<Places>) -> F,
{
    Reactor::new(config).expect("io_uring").block_on(async {
        let task = make_task().await;
        let start = Instant::now();
        let places = Rc::new(Places {
            // The size of the smallest device of any row.
            blocks: FILE_BYTES / 2 / BLOCK,
            order: job.order,
            state: Cell::new(if job.order == Order::Random { 0x9e37_79b9_7f4a_7c15 } else { 0 }),
            done: Cell::new(0),
            end: start + job.run,
        });
        let cpu = cpu_time();
        let tasks: Vec<_> = (0..DEPTH).map(|_| spawn(task(Rc::clone(&places)))).collect();
        for task in tasks {
            task.await;
        }
        let done = places.done.get() as f64;
        Score {
            iops: done / start.elapsed().as_secs_f64(),
            cpu_ns: (cpu_time() - cpu).as_nanos() as f64 / done,
        }
    })
}

/// Reads directly through the ring.
fn ring(job: Job<'_>, config: ReactorConfig) -> Score {
    measure(job, config, || {
        let flags = if job.direct { libc::O_DIRECT } else { 0 };
        let file = File::options().read(true).custom_flags(flags).open(job.path);
        let fd = Fd::new(file.expect("opening the file").into());
        move |places: Rc<Places>| {
            let fd = fd.clone();
            async move {
                let mut segment = Buffer::alloc(BLOCK as usize).whole();
                while let Some(block) = places.next() {
                    let (got, same) = fd.read(segment, Some(block * BLOCK)).await;
                    assert_eq!(got.expect("read"), BLOCK as usize);
                    segment = same;
                }
            }
        }
    })
}

/// Reads bios of `disk`.
async fn read_all(disk: Gateway, places: Rc<Places>) {
    let mut buffer = Buffer::alloc(BLOCK as usize);
    while let Some(block) = places.next() {
        let at = Sector(block * BLOCK / 512);
        disk.submit(Bio::read_into(at, &mut buffer)).await.expect("read");
    }
}

/// Reads through gateway, plug and driver.
fn queue(job: Job<'_>, nomerges: u64) -> Score {
    measure(job, ReactorConfig::default(), || {
        let disk = open_disk(job.path, job.direct);
        disk.disk().set_nomerges(nomerges).expect("0 to 2");
        move |places: Rc<Places>| read_all(disk.clone(), places)
    })
}

/// fio with io_uring; the CPU time is what it reports.
fn fio(job: Job<'_>) -> Option<Score> {
    let rw = if job.order == Order::Random { "randread" } else { "read" };
    let out = Command::new("fio")
        .args(["--name=fio", "--ioengine=io_uring", "--bs=4k", "--iodepth=32"])
        .args(["--time_based", "--thread", "--norandommap", "--output-format=terse"])
        .arg("--invalidate=0")
        .arg(format!("--rw={rw}"))
        .arg(format!("--direct={}", u8::from(job.direct)))
        .arg(format!("--size={}", FILE_BYTES / 2))
        .arg(format!("--runtime={}", job.run.as_secs_f64()))
        .arg(format!("--filename={}", job.path.display()))
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let line = text.lines().find(|line| line.contains(";fio"))?;
    let field = |i: usize| line.split(';').nth(i)?.trim_end_matches('%').parse::<f64>().ok();
    // Terse version 3: read IOPS is field 8 (from 1), user and system CPU are 88 and 89.
    let iops = field(7)?;
    let cpu = (field(87)? + field(88)?) / 100.0;
    Some(Score { iops, cpu_ns: cpu * 1e9 / iops })
}

type Runner<'a> = Box<dyn Fn() -> Option<Score> + 'a>;

fn table(title: &str, rounds: usize, mut runners: Vec<(&str, Runner<'_>)>) -> Outcome {
    let mut scores: Vec<(&str, Vec<Score>)> = runners.iter().map(|r| (r.0, vec![])).collect();
    for _ in 0..rounds {
        for ((_, run), (_, into)) in runners.iter_mut().zip(&mut scores) {
            into.extend(run());
        }
    }
    println!(
        "{title}\n  {:24} {:>8} {:>6} {:>10} {:>6}",
        "", "IOPS", "x 1st", "CPU ns/IO", "x 1st"
    );
    let first = scores[0].1.clone();
    let mut rows = Vec::new();
    for (name, all) in &scores {
        let ratio = |of: fn(&Score) -> f64| {
            median(all.iter().zip(&first).map(|(a, b)| of(a) / of(b)).collect())
        };
        let values = [
            median(all.iter().map(|s| s.iops / 1000.0).collect()),
            ratio(|s| s.iops),
            median(all.iter().map(|s| s.cpu_ns).collect()),
            ratio(|s| s.cpu_ns),
        ];
        let [kiops, of_first, cpu_ns, cpu_of_first] = values;
        println!("  {name:24} {kiops:>7.0}k {of_first:>6.2} {cpu_ns:>10.0} {cpu_of_first:>6.2}");
        rows.push((*name, values.to_vec()));
    }
    record(title, "", &["kIOPS", "x 1st", "CPU ns/IO", "CPU x 1st"], &rows)
}

/// The tables: title, order, and whether they use direct I/O.
const TABLES: [(&str, Order, bool); 3] = [
    ("random 4 KiB", Order::Random, true),
    ("sequential 4 KiB", Order::Sequential, true),
    ("random 4 KiB, page cache", Order::Random, false),
];

/// Prints the tables that compare the engine with fio.
///
/// # Errors
/// The files could not be made.
pub(crate) fn run(settings: Settings) -> Outcome {
    let (run, rounds) = (settings.run, settings.rounds);
    let files = Files::make(1, FILE_BYTES)?;
    let steady = ReactorConfig::default();
    let batched = ReactorConfig { submit_every: 1 << 20, ..steady };
    for (title, order, direct) in TABLES {
        let job = Job { path: &files.paths()[0], order, direct, run };
        let runners: Vec<(&str, Runner<'_>)> = vec![
            ("fio io_uring", Box::new(move || fio(job))),
            ("ring, submit every 4", Box::new(move || Some(ring(job, steady)))),
            ("ring, submit per turn", Box::new(move || Some(ring(job, batched)))),
            ("queue, no merges", Box::new(move || Some(queue(job, 2)))),
            ("queue", Box::new(move || Some(queue(job, 0)))),
        ];
        table(&format!("{title}, queue depth 32, one thread"), rounds, runners)?;
    }
    Ok(())
}

/// Prints the tables that compare arrays with the bare file.
///
/// # Errors
/// The files could not be made.
pub(crate) fn run_arrays(settings: Settings) -> Outcome {
    let (run, rounds) = (settings.run, settings.rounds);
    let files = Files::make(4, FILE_BYTES)?;
    for (title, order, direct) in TABLES {
        let job = Job { path: &files.paths()[0], order, direct, run };
        let all = files.paths();
        let runners: Vec<(&str, Runner<'_>)> = vec![
            ("bare file", Box::new(move || Some(queue(job, 0)))),
            ("raid1 of 2", Box::new(move || Some(array(job, Level::Raid1, &all[..2])))),
            ("raid10 n2 of 4", Box::new(move || Some(array(job, Level::Raid10, all)))),
        ];
        table(&format!("{title}, arrays beside the bare file"), rounds, runners)?;
    }
    Ok(())
}

/// Reads the first 512 MiB of an array on `members`.
fn array(job: Job<'_>, level: Level, members: &[PathBuf]) -> Score {
    measure_async(job, ReactorConfig::default(), async || {
        let disks: Vec<Gateway> = members.iter().map(|m| open_disk(m, job.direct)).collect();
        let array = arrays::make(Recipe::clean(level), &disks, Arc::new(EngineRuntime)).await;
        let array = array.expect("making an array");
        let volume = Gateway::new(array);
        move |places: Rc<Places>| read_all(volume.clone(), places)
    })
}
