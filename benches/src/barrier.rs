//! The cost of the I/O barrier: begins and ends of I/Os on several threads, compared with barriers that use a lock.
//!
//! Each thread walks through 16 units of 64 MiB in steps of 64 KiB, starting in its own unit, like many sequential
//! readers of an array. An I/O ends as soon as it has begun, so this measures only the barrier. In the last two tables
//! one more thread raises and lowers the barrier without pause in one unit after the other, as a resync does.
//!
//! With `--nbd`, fio reads 4 KiB each through the NBD server (`behind_nbd`) from a disk that moves no data, with a barrier
//! before it: the smallest I/O that a real client can make, of which the barrier is the largest part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ashlar_block::{Sector, Sectors};
use ashlar_md::internals::barrier::{Barrier, UNIT};

use crate::arrays::DATA_OFFSET;
use crate::behind_nbd;
use crate::common::{Outcome, Settings, block_on, median};
use crate::devices::{ExtraBarrier, GuardedArray, HollowMember};
use crate::load::{JobEnd, Load, Order};
use crate::locked_barrier::LockedBarrier;
use crate::report::record;

/// Sectors of an I/O: 64 KiB.
const STEP: Sectors = Sectors(128);
const UNITS: u64 = 16;
const THREADS: [u64; 4] = [1, 2, 4, 40];
/// I/Os of a thread between two reads of the clock.
const BATCH: u64 = 256;

/// The begin and end of one I/O.
trait Subject: Sync {
    fn read(&self, at: Sector);
    fn write(&self, at: Sector);
    fn sync(&self, at: Sector);
}

impl Subject for Barrier {
    fn read(&self, at: Sector) {
        match self.try_wait_read(at, STEP) {
            Some(pass) => drop(pass),
            None => drop(block_on(self.wait_read(at, STEP))),
        }
    }

    fn write(&self, at: Sector) {
        match self.try_wait(at, STEP) {
            Some(pass) => drop(pass),
            None => drop(block_on(self.wait(at, STEP))),
        }
    }

    fn sync(&self, at: Sector) {
        drop(block_on(self.raise(at, STEP)));
    }
}

impl Subject for LockedBarrier {
    fn read(&self, at: Sector) {
        self.wait_read(at);
        self.allow(at);
    }

    fn write(&self, at: Sector) {
        self.wait(at);
        self.allow(at);
    }

    fn sync(&self, at: Sector) {
        self.raise(at);
        self.lower(at);
    }
}

type Io = fn(&dyn Subject, Sector);

#[derive(Clone, Copy)]
struct Job {
    title: &'static str,
    io: Io,
    sync: Resync,
}

/// Whether there is sync I/O, and whether it is what is measured.
#[derive(Clone, Copy, PartialEq)]
enum Resync {
    No,
    Beside,
    Counted,
}

/// Millions of I/Os per second, over all threads.
fn measure(subject: &dyn Subject, job: Job, threads: u64, run: Duration) -> f64 {
    let (stop, done) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let stopped = || stop.load(Ordering::Relaxed);
    let start = Instant::now();
    thread::scope(|scope| {
        for id in 0..threads {
            scope.spawn(move || {
                let mut at = id * UNIT.0;
                while !stopped() {
                    for _ in 0..BATCH {
                        (job.io)(subject, Sector(at % (UNITS * UNIT.0)));
                        at += STEP.0;
                    }
                    if job.sync != Resync::Counted {
                        done.fetch_add(BATCH, Ordering::Relaxed);
                    }
                }
            });
        }
        if job.sync != Resync::No {
            scope.spawn(move || {
                let mut at = 0;
                while !stopped() {
                    subject.sync(Sector(at % (UNITS * UNIT.0)));
                    at += STEP.0;
                    if job.sync == Resync::Counted {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        thread::sleep(run);
        stop.store(true, Ordering::Relaxed);
    });
    done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// Prints the tables.
///
/// # Errors
/// Those of [`record`].
pub(crate) fn run(settings: Settings) -> Outcome {
    let read: Io = |subject, at| subject.read(at);
    let write: Io = |subject, at| subject.write(at);
    let jobs = [
        Job { title: "reads", io: read, sync: Resync::No },
        Job { title: "writes", io: write, sync: Resync::No },
        Job { title: "writes beside a resync", io: write, sync: Resync::Beside },
        Job { title: "the raises of a resync beside writes", io: write, sync: Resync::Counted },
    ];
    for job in jobs {
        let barrier = Barrier::default();
        let (buckets, one) = (LockedBarrier::new(1024), LockedBarrier::new(1));
        let subjects: [(&str, &dyn Subject); 3] = [
            ("1,024 buckets, no lock", &barrier),
            ("1,024 buckets, one lock", &buckets),
            ("one bucket, one lock", &one),
        ];
        print!("{}, millions of begin and end per second\n  {:24}", job.title, "threads");
        THREADS.iter().for_each(|threads| print!(" {threads:>8}"));
        println!();
        // In rounds, so that other load on the machine affects all alike.
        let mut rates = [const { [const { Vec::new() }; THREADS.len()] }; 3];
        for _ in 0..settings.rounds {
            for (n, threads) in THREADS.into_iter().enumerate() {
                for ((_, subject), rates) in subjects.iter().zip(&mut rates) {
                    rates[n].push(measure(*subject, job, threads, settings.run));
                }
            }
        }
        let mut rows = Vec::new();
        for ((name, _), rates) in subjects.iter().zip(rates) {
            let medians = rates.map(median);
            print!("  {name:24}");
            medians.iter().for_each(|rate| print!(" {rate:>8.2}"));
            println!();
            rows.push((*name, medians.to_vec()));
        }
        let columns = THREADS.map(|threads| threads.to_string());
        let columns = columns.each_ref().map(String::as_str);
        record(job.title, "million I/Os per second", &columns, &rows)?;
        println!("  locks taken by the first: {}", barrier.lock_acquisitions());
    }
    Ok(())
}

/// Prints the tables with a client of the NBD server.
///
/// # Errors
/// A reactor or fio could not be started, or an I/O failed.
pub(crate) fn run_behind_nbd(settings: Settings) -> Outcome {
    let rows =
        ["no barrier", "1,024 buckets, no lock", "1,024 buckets, one lock", "one bucket, one lock"];
    let span = 0..UNITS * UNIT.bytes();
    let disk = HollowMember::gateway("hollow", Sectors(UNITS * UNIT.0) + DATA_OFFSET)?;
    let volumes = [
        ExtraBarrier::Nothing,
        ExtraBarrier::LockFree(Arc::default()),
        ExtraBarrier::Locked(LockedBarrier::new(1024)),
        ExtraBarrier::Locked(LockedBarrier::new(1)),
    ]
    .map(|barrier| GuardedArray::before(disk.clone(), barrier));
    let load = Load {
        write: false,
        bytes: 4 << 10,
        depth: 128,
        order: Order::Sequential,
        span,
        until: JobEnd::Passed(settings.run),
    };
    behind_nbd::tables("the barrier alone", &rows, &volumes, &load, settings, (1, 3))
}
