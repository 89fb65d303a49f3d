//! What the rate limits of a volume let pass, and when, on virtual time.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ashlar_block::byte_volume::Holes;
use ashlar_block::limiter::{Delays, Direction, Limiter};
use ashlar_block::{Buffer, ByteVolume, Flags, Limits, LocalFuture, Sectors, Status};
use ashlar_sim::{Media, Model, Rng, Sim, SimDisk, seeds};
use futures_util::future::{Either, join, join_all, select};

const SECOND_NS: u64 = 1_000_000_000;

fn limited(sim: &Sim, text: &str) -> Rc<Limiter> {
    let limiter = Limiter::default();
    limiter.set(&text.parse().unwrap(), &sim.runtime());
    Rc::new(limiter)
}

/// What became of a request, in the order in which they came.
#[derive(Clone, Copy, Debug)]
struct Fate {
    came_ns: u64,
    bytes: u64,
    /// When it passed, or was dropped.
    left_ns: u64,
    passed: bool,
}

/// A limit by its definition: whether a request for `tokens` may pass at `now_ns` after those that have passed.
///
/// Over any time that ends now, what was taken and what this one needs is no more than a burst and what the rate brings.
fn conforms((rate, burst): (u64, u64), passed: &[(u64, u64)], tokens: u64, now_ns: u64) -> bool {
    let needs = u128::from(tokens.min(burst));
    let mut taken = 0;
    passed.iter().rev().all(|(at_ns, tokens)| {
        taken += u128::from(*tokens);
        let brought = u128::from(rate) * u128::from(now_ns - at_ns);
        (taken + needs) * 1_000_000_000 <= u128::from(burst) * 1_000_000_000 + brought
    })
}

/// Requests that come at random times, some of which are dropped after a while, until all have left.
fn run(sim: &Sim, rng: &mut Rng, text: &str) -> Vec<Fate> {
    let limiter = limited(sim, text);
    let fates: Rc<RefCell<Vec<Fate>>> = Rc::default();
    let mut came_ns = 0;
    let tasks: Vec<_> = (0..1 + rng.below(40))
        .map(|_| {
            came_ns += rng.below(4) * rng.below(300_000_000);
            let (gap, bytes) = (Duration::from_nanos(came_ns), rng.below(20_000));
            let patience = rng.chance(1, 4).then(|| Duration::from_nanos(rng.below(SECOND_NS)));
            let (limiter, fates, runtime) = (Rc::clone(&limiter), Rc::clone(&fates), sim.runtime());
            sim.start(async move {
                runtime.sleep(gap).await;
                let came_ns = runtime.now_ns();
                let index = fates.borrow().len();
                fates.borrow_mut().push(Fate { came_ns, bytes, left_ns: 0, passed: false });
                let passing = pin!(limiter.pass(Direction::Write, bytes));
                let passed = match patience {
                    Some(patience) => {
                        let ended = select(passing, runtime.sleep(patience)).await;
                        matches!(ended, Either::Left(_))
                    }
                    None => {
                        passing.await;
                        true
                    }
                };
                let left_ns = runtime.now_ns();
                fates.borrow_mut()[index] = Fate { came_ns, bytes, left_ns, passed };
            })
        })
        .collect();
    sim.block_on(join_all(tasks));
    let (reads, writes) = limiter.delays();
    assert_eq!((reads, writes.waiting), (Delays::default(), 0));
    fates.take()
}

#[test]
fn as_much_passes_as_each_limit_allows_and_not_a_nanosecond_later() {
    for seed in seeds(400) {
        let sim = Sim::new(seed);
        let mut rng = sim.rng();
        let rate = |rng: &mut Rng, most| rng.chance(3, 4).then(|| 1 + rng.below(most));
        let (bytes, requests) = (rate(&mut rng, 100_000), rate(&mut rng, 50));
        let burst_ms = 1 + rng.below(1500);
        let word = |rate: Option<u64>| rate.map_or_else(|| "max".to_owned(), |n| n.to_string());
        let (wbps, wiops) = (word(bytes), word(requests));
        let text = format!("wbps={wbps} wiops={wiops} burst_ms={burst_ms}");
        let fates = run(&sim, &mut rng, &text);
        let limit = |rate: Option<u64>| rate.map(|rate| (rate, (rate * burst_ms / 1000).max(1)));
        let (mut passed_bytes, mut passed_requests) = (Vec::new(), Vec::new());
        // Those before it have left.
        let mut free_ns = 0;
        for fate in &fates {
            let may_pass_at = |now_ns: u64| {
                limit(bytes).is_none_or(|it| conforms(it, &passed_bytes, fate.bytes, now_ns))
                    && limit(requests).is_none_or(|it| conforms(it, &passed_requests, 1, now_ns))
            };
            let first_ns = fate.came_ns.max(free_ns);
            if fate.passed {
                assert!(fate.left_ns >= first_ns, "in order: {text}: {fates:?}");
                assert!(may_pass_at(fate.left_ns), "too early: {text}: {fate:?} in {fates:?}");
                let is_late = fate.left_ns > first_ns && may_pass_at(fate.left_ns - 1);
                assert!(!is_late, "too late: {text}: {fate:?} in {fates:?}");
                passed_bytes.push((fate.left_ns, fate.bytes));
                passed_requests.push((fate.left_ns, 1));
            } else if fate.left_ns > first_ns {
                assert!(!may_pass_at(fate.left_ns - 1), "kept: {text}: {fate:?} in {fates:?}");
            }
            free_ns = free_ns.max(fate.left_ns);
        }
    }
}

/// Passes `count` requests of `bytes`, and returns when each passed, in ms.
async fn times(sim: &Sim, limiter: &Limiter, bytes: u64, count: usize) -> Vec<u64> {
    let all = (0..count).map(|_| async {
        limiter.pass(Direction::Write, bytes).await;
        sim.now_ns() / 1_000_000
    });
    join_all(all).await
}

#[test]
fn after_a_pause_a_burst_passes_at_once_and_no_more() {
    let sim = Sim::new(1);
    let limiter = limited(&sim, "wiops=10 burst_ms=300");
    sim.block_on(async {
        assert_eq!(times(&sim, &limiter, 0, 5).await, [0, 0, 0, 100, 200]);
        sim.runtime().sleep(Duration::from_secs(3600)).await;
        let begin = 3_600_200;
        assert_eq!(times(&sim, &limiter, 0, 5).await, [0, 0, 0, 100, 200].map(|ms| begin + ms));
    });
    let (_, writes) = limiter.delays();
    let time_ns = 2 * (100 + 200) * 1_000_000;
    assert_eq!(writes, Delays { waiting: 0, requests: 4, time_ns });
}

#[test]
fn a_request_larger_than_a_burst_waits_for_a_full_bucket_and_those_behind_it_for_the_rest() {
    let sim = Sim::new(1);
    let limiter = limited(&sim, "wbps=1000 burst_ms=100");
    sim.block_on(async {
        assert_eq!(times(&sim, &limiter, 50, 1).await, [0]);
        // Full again after 50 ms; then 400 are borrowed.
        assert_eq!(times(&sim, &limiter, 500, 1).await, [50]);
        assert_eq!(times(&sim, &limiter, 1, 1).await, [451]);
    });
}

#[test]
fn a_change_counts_at_once_for_those_that_wait() {
    for (change, expected) in [
        // Half of what was borrowed is left.
        ("wbps=60", [0, 30_500]),
        ("wbps=max", [0, 30_000]),
        ("wiops=max", [0, 60_000]),
    ] {
        let sim = Sim::new(2);
        let limiter = limited(&sim, "wbps=1 burst_ms=1");
        let ended = sim.block_on(async {
            let change = async {
                sim.runtime().sleep(Duration::from_secs(30)).await;
                limiter.set(&change.parse().unwrap(), &sim.runtime());
            };
            join(times(&sim, &limiter, 60, 2), change).await.0
        });
        assert_eq!(ended, expected, "{change}");
    }
}

#[test]
fn a_lower_limit_makes_those_that_wait_wait_longer() {
    let sim = Sim::new(2);
    let limiter = limited(&sim, "wiops=1 burst_ms=1");
    let runtime = sim.runtime();
    let ended = sim.block_on(async {
        let change = async {
            runtime.sleep(Duration::from_millis(500)).await;
            limiter.set(&"wbps=1".parse().unwrap(), &runtime);
        };
        join(times(&sim, &limiter, 20, 3), change).await.0
    });
    // The new bucket is full, and lends 19.
    assert_eq!(ended, [0, 1000, 21_000]);
}

#[test]
fn when_limits_are_lifted_all_pass_and_later_limits_do_not_count() {
    let sim = Sim::new(3);
    let limiter = limited(&sim, "wiops=1 riops=1 burst_ms=1");
    let runtime = sim.runtime();
    sim.block_on(async {
        let lift = async {
            runtime.sleep(Duration::from_millis(100)).await;
            limiter.lift();
            assert!(!limiter.is_on());
            limiter.set(&"wiops=2".parse().unwrap(), &runtime);
        };
        let (ended, ()) = join(times(&sim, &limiter, 0, 4), lift).await;
        assert_eq!(ended, [0, 100, 100, 100]);
        assert!(!limiter.is_on() && limiter.max().wiops() == Some(2));
        assert_eq!(times(&sim, &limiter, 0, 4).await, [100; 4]);
    });
}

#[test]
fn volumes_on_one_disk_have_their_own_limits_and_delay_no_other() {
    let sim = Sim::new(4);
    let disk = SimDisk::new("d", Sectors(1 << 11));
    let volume = |text: Option<&str>| {
        let volume = ByteVolume::new(disk.gateway());
        if let Some(text) = text {
            volume.limiter().set(&text.parse().unwrap(), &sim.runtime());
        }
        volume
    };
    let [slow, fast, free] = [Some("wbps=20K"), Some("wbps=320K"), None].map(volume);
    let done = [0; 3].map(Cell::new);
    let (runtime, end_ns) = (sim.runtime(), 2 * SECOND_NS);
    let write = async |volume: &ByteVolume, done: &Cell<u64>| {
        while runtime.now_ns() < end_ns {
            let mut data = Buffer::try_zeroed(4096).unwrap();
            volume.write(0, [data.whole()], Flags::empty()).await.unwrap();
            done.set(done.get() + 1);
        }
    };
    let reads = Cell::new(0);
    sim.block_on(async {
        let read = async {
            while runtime.now_ns() < end_ns {
                let mut data = Buffer::try_zeroed(4096).unwrap();
                slow.read(0, [data.whole()]).await.unwrap();
                reads.set(reads.get() + 1);
            }
        };
        let writers = [&slow, &fast, &free].into_iter().zip(&done);
        let writers = join_all(writers.map(|(volume, done)| write(volume, done)));
        join(writers, read).await;
    });
    let [slow_writes, fast_writes, free_writes] = done.map(Cell::into_inner);
    // The last one begins before the end and passes at it.
    assert_eq!(slow_writes, 11);
    // With a burst of eight.
    assert_eq!(fast_writes, 168);
    assert!(free_writes > 1000 && reads.get() > 1000, "{free_writes} {reads:?}");
}

#[test]
fn what_counts_is_in_the_table() {
    type Work = for<'a> fn(&'a ByteVolume) -> LocalFuture<'a, ()>;
    let works: [(Work, [u64; 4]); 9] = [
        (|v| Box::pin(async { read(v, 0, 4096).await }), [4096, 1, 0, 0]),
        (|v| Box::pin(async { read(v, 3, 5).await }), [5, 1, 0, 0]),
        (
            |v| {
                Box::pin(async {
                    let mut data = Buffer::try_zeroed(4096).unwrap();
                    v.read_passed(3, [data.segment(0..5)]).await.unwrap();
                    // The volume may have become smaller since the read has passed.
                    let end = v.size_bytes();
                    assert_eq!(
                        v.read_passed(end, [data.segment(0..1)]).await,
                        Err(Status::Invalid)
                    );
                })
            },
            [0, 0, 0, 0],
        ),
        (|v| Box::pin(async { write(v, 0, 4096).await }), [0, 0, 4096, 1]),
        // It reads and writes a block.
        (|v| Box::pin(async { write(v, 3, 5).await }), [0, 0, 5, 1]),
        (
            |v| Box::pin(async { v.write_zeroes(1, 8192, Flags::empty()).await.unwrap() }),
            [0, 0, 0, 1],
        ),
        (|v| Box::pin(async { v.discard(0, 8192, Flags::empty()).await.unwrap() }), [0, 0, 0, 1]),
        (
            |v| {
                Box::pin(async {
                    let holes = Holes::Zero;
                    v.punch_hole(0, 8192, holes).await.unwrap();
                })
            },
            [0, 0, 0, 1],
        ),
        (|v| Box::pin(async { v.flush().await.unwrap() }), [0, 0, 0, 0]),
    ];
    async fn read(volume: &ByteVolume, at: u64, len: usize) {
        let mut data = Buffer::try_zeroed(len).unwrap();
        volume.read(at, [data.whole()]).await.unwrap();
    }
    async fn write(volume: &ByteVolume, at: u64, len: usize) {
        let mut data = Buffer::try_zeroed(len).unwrap();
        volume.write(at, [data.whole()], Flags::FUA).await.unwrap();
    }
    let words = ["rbps", "riops", "wbps", "wiops"];
    for (index, (work, expected)) in works.into_iter().enumerate() {
        for (word, expected) in words.iter().zip(expected) {
            let sim = Sim::new(5);
            let volume = ByteVolume::new(SimDisk::new("d", Sectors(1 << 11)).gateway());
            // A token takes a second, and a disk far less.
            let limits = format!("{word}=1 burst_ms=1").parse().unwrap();
            volume.limiter().set(&limits, &sim.runtime());
            let reads = word.starts_with('r');
            let direction = if reads { Direction::Read } else { Direction::Write };
            sim.block_on(async {
                work(&volume).await;
                volume.limiter().pass(direction, 1).await;
            });
            assert_eq!(sim.now_ns() / SECOND_NS, expected, "{word} of {index}");
        }
    }
}

#[test]
fn zeroes_count_as_bytes_where_they_are_written() {
    let sim = Sim::new(6);
    let limits = Limits { max_write_zeroes: Sectors::ZERO, ..Limits::default() };
    let media = Media::new(Sectors(1 << 11));
    let model = Model::nvme();
    let disk = SimDisk::with("d", media, limits, model);
    let volume = ByteVolume::new(disk.gateway());
    volume.limiter().set(&"wbps=1000".parse().unwrap(), &sim.runtime());
    sim.block_on(async {
        volume.write_zeroes(0, 4096, Flags::empty()).await.unwrap();
        let first_ns = sim.now_ns();
        volume.write_zeroes(0, 4096, Flags::empty()).await.unwrap();
        assert!(first_ns < SECOND_NS && sim.now_ns() > 4 * SECOND_NS);
    });
}
