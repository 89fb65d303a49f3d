//! Load: jobs that each keep a number of I/Os in flight, on reactors or in a simulation.
//!
//! On a device that completes an I/O in the submission, such as RAM, a job never has more than one I/O in flight,
//! whatever its depth. Its tasks still take turns, each with its own buffer, so the depth affects the caches.

use std::cell::Cell;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;

use ashlar_block::{Bio, BioResult, Buffer, Gateway, Runtime, Sector, Status};
use ashlar_engine::{Engine, EngineRuntime, now_ns, yield_now};
use ashlar_sim::Sim;

use crate::common::{Outcome, block_on, cpu_time};

/// I/Os of a job between two reads of the clock.
const LOOK: u64 = 16;
const SECTOR: u64 = 512;

/// The order of a job's I/Os.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Order {
    Random,
    /// Each job starts at a different position, and wraps around.
    Sequential,
}

/// When a job ends.
#[derive(Clone, Copy)]
pub(crate) enum JobEnd {
    Passed(Duration),
    /// When the job has moved this many bytes.
    Moved(u64),
}

/// What a job does.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) write: bool,
    pub(crate) bytes: u64,
    pub(crate) depth: usize,
    pub(crate) order: Order,
    /// The part of the device that all jobs share, in bytes.
    pub(crate) span: Range<u64>,
    pub(crate) until: JobEnd,
}

impl Load {
    /// Random I/Os of 4 KiB, 32 in flight.
    pub(crate) fn random(write: bool, span: Range<u64>, run: Duration) -> Self {
        let until = JobEnd::Passed(run);
        Self { write, bytes: 4096, depth: 32, order: Order::Random, span, until }
    }
}

/// The result of jobs.
#[derive(Clone, Copy)]
pub(crate) struct Score {
    /// I/Os per second.
    pub(crate) iops: f64,
    /// Bytes per second.
    pub(crate) rate: f64,
    /// Nanoseconds of CPU time per I/O; in a simulation including the simulator's.
    pub(crate) cpu_ns: f64,
}

impl Score {
    /// The score of `done` I/Os of `bytes` in this time, with this CPU time.
    pub(crate) fn new(done: u64, bytes: u64, time: Duration, cpu: Duration) -> Self {
        let (done, time) = (done as f64, time.as_secs_f64());
        Self {
            iops: done / time,
            rate: done * bytes as f64 / time,
            cpu_ns: cpu.as_nanos() as f64 / done,
        }
    }
}

/// Starts all jobs at the same time, once all have allocated their memory.
struct Start {
    missing: AtomicUsize,
    /// The start time on the runtime's clock, and the CPU time used by then.
    begun: OnceLock<(u64, Duration)>,
}

impl Start {
    fn of(jobs: usize) -> Arc<Self> {
        Arc::new(Self { missing: AtomicUsize::new(jobs), begun: OnceLock::new() })
    }

    async fn wait(&self, runtime: &dyn Runtime) -> u64 {
        self.missing.fetch_sub(1, Relaxed);
        while self.missing.load(Relaxed) > 0 {
            yield_now().await;
        }
        self.begun.get_or_init(|| (runtime.now_ns(), cpu_time())).0
    }

    fn score(&self, now_ns: u64, loads: Loads<'_>, done: u64) -> Score {
        let (begun_ns, cpu) = self.begun.get().copied().unwrap_or_default();
        let bytes = loads.first().map_or(0, |(_, load)| load.bytes);
        Score::new(done, bytes, Duration::from_nanos(now_ns - begun_ns), cpu_time() - cpu)
    }
}

/// A running job.
struct Job {
    disk: Gateway,
    load: Load,
    runtime: Arc<dyn Runtime>,
    end_ns: u64,
    started: Cell<u64>,
    state: Cell<u64>,
    running: Cell<usize>,
    failed: Cell<BioResult>,
    waiter: Cell<Option<Waker>>,
}

impl Job {
    fn next(&self) -> Option<Sector> {
        let started = self.started.get();
        let over = match self.load.until {
            JobEnd::Passed(_) => {
                started.is_multiple_of(LOOK) && self.runtime.now_ns() >= self.end_ns
            }
            JobEnd::Moved(bytes) => started * self.load.bytes >= bytes,
        };
        if over || self.failed.get().is_err() {
            return None;
        }
        self.started.set(started + 1);
        let blocks = (self.load.span.end - self.load.span.start) / self.load.bytes;
        let mut x = self.state.get();
        let block = x % blocks;
        match self.load.order {
            Order::Sequential => x += 1,
            Order::Random => {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
        }
        self.state.set(x);
        Some(Sector((self.load.span.start + block * self.load.bytes) / SECTOR))
    }

    async fn keep_busy(self: Rc<Self>, mut buffer: Buffer) {
        while let Some(at) = self.next() {
            let bio = if self.load.write {
                Bio::write_from(at, &mut buffer)
            } else {
                Bio::read_into(at, &mut buffer)
            };
            if let Err(status) = self.disk.submit(bio).await {
                self.failed.set(Err(status));
            }
            yield_now().await;
        }
        self.running.set(self.running.get() - 1);
        if let Some(waiter) = self.waiter.take() {
            waiter.wake();
        }
    }
}

/// Runs the job `id` of `jobs` on the current reactor; returns its number of I/Os.
async fn job(
    disk: Gateway,
    load: Load,
    id: u64,
    jobs: u64,
    start: Arc<Start>,
    runtime: Arc<dyn Runtime>,
) -> Result<u64, Status> {
    let buffer = |_| Buffer::zeroed(load.bytes as usize);
    let buffers: Vec<Buffer> = (0..load.depth).map(buffer).collect();
    let begun_ns = start.wait(&*runtime).await;
    let end_ns = match load.until {
        JobEnd::Passed(time) => begun_ns + time.as_nanos() as u64,
        JobEnd::Moved(_) => u64::MAX,
    };
    let first = match load.order {
        Order::Sequential => (load.span.end - load.span.start) / load.bytes * id / jobs,
        Order::Random => 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(id + 1),
    };
    let job = Rc::new(Job {
        disk,
        end_ns,
        started: Cell::new(0),
        state: Cell::new(first),
        running: Cell::new(load.depth),
        failed: Cell::new(Ok(())),
        waiter: Cell::new(None),
        runtime: Arc::clone(&runtime),
        load,
    });
    for buffer in buffers {
        runtime.spawn(Box::pin(Rc::clone(&job).keep_busy(buffer)));
    }
    poll_fn(|cx| {
        job.waiter.set(Some(cx.waker().clone()));
        if job.running.get() == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    job.failed.get().map(|()| job.started.get())
}

/// Loads and their disks, which run at the same time.
pub(crate) type Loads<'a> = &'a [(&'a Gateway, Load)];

/// Runs jobs, distributed over the reactors in turn, and waits for all of them. The score assumes I/Os of the first
/// load's size.
///
/// # Errors
/// An I/O failed.
pub(crate) fn on_engine(engine: &Engine, loads: Loads<'_>) -> Outcome<Score> {
    let (start, jobs) = (Start::of(loads.len()), loads.len() as u64);
    let mut running = Vec::new();
    for ((id, (disk, load)), handle) in (0..).zip(loads).zip(engine.handles().iter().cycle()) {
        let (disk, load, start) = (Gateway::clone(disk), load.clone(), Arc::clone(&start));
        let runtime = Arc::new(EngineRuntime);
        running.push(handle.spawn_on(move || job(disk, load, id, jobs, start, runtime)));
    }
    let mut done = 0;
    for job in running {
        done += block_on(job)??;
    }
    Ok(start.score(now_ns(), loads, done))
}

/// Runs jobs in a simulation, in virtual time. As [`on_engine`].
///
/// # Errors
/// An I/O failed.
pub(crate) fn in_sim(sim: &Sim, loads: Loads<'_>) -> Outcome<Score> {
    let (start, jobs) = (Start::of(loads.len()), loads.len() as u64);
    let begin = |(id, (disk, load)): (u64, &(&Gateway, Load))| {
        let (disk, load) = (Gateway::clone(disk), load.clone());
        sim.start(job(disk, load, id, jobs, Arc::clone(&start), sim.runtime()))
    };
    let running: Vec<_> = (0..).zip(loads).map(begin).collect();
    let mut done = 0;
    for job in running {
        done += sim.block_on(job)?;
    }
    Ok(start.score(sim.now_ns(), loads, done))
}
