//! The simulator itself: a run is a function of its seed, and its watchdogs work.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use ashlar_block::{Bio, Buffer, Disk, Driver, Flags, Gateway, Limits, Queue, Request, Runtime};
use ashlar_block::{Sector, Sectors, Status};
use ashlar_sim::{Sim, SimDisk, SimRuntime, Stop};

/// The ends of the tasks of a small concurrent workload, in order, and the digest of the run.
fn course(seed: u64) -> (Vec<(u64, u64)>, u64) {
    let sim = Sim::new(seed);
    let gateway = SimDisk::new("d", Sectors(1 << 20)).gateway();
    let ends = Rc::new(RefCell::new(Vec::new()));
    sim.block_on(async {
        for task in 0..20 {
            let (gateway, ends) = (gateway.clone(), Rc::clone(&ends));
            sim.spawn(async move {
                let mut data = Buffer::zeroed(4096);
                gateway.write(Sector(task * 1000), &mut data, Flags::empty()).await.unwrap();
                SimRuntime.sleep(Duration::from_micros(10)).await;
                gateway.read(Sector(task * 1000), Sectors(8)).await.unwrap();
                ends.borrow_mut().push((task, SimRuntime.now_ns()));
            });
        }
    });
    sim.run_until_idle();
    while ends.borrow().len() < 20 {
        sim.run_for(Duration::from_micros(10));
        sim.run_until_idle();
    }
    (ends.take(), sim.fingerprint())
}

#[test]
fn the_same_seed_takes_the_same_course_and_others_take_others() {
    let mut orders = std::collections::BTreeSet::new();
    let mut fingerprints = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let (first, second) = (course(seed), course(seed));
        assert_eq!(first, second);
        orders.insert(first.0.iter().map(|(task, _)| *task).collect::<Vec<_>>());
        fingerprints.insert(first.1);
    }
    assert_eq!(fingerprints.len(), 20);
    assert!(orders.len() > 15, "only {} orders", orders.len());
}

#[test]
fn sleepers_wake_in_the_order_of_their_times() {
    let sim = Sim::new(3);
    let woken = Rc::new(RefCell::new(Vec::new()));
    for ms in [30u64, 10, 20, 0] {
        let woken = Rc::clone(&woken);
        sim.spawn(async move {
            SimRuntime.sleep(Duration::from_millis(ms)).await;
            woken.borrow_mut().push((ms, SimRuntime.now_ns()));
        });
    }
    sim.run_for(Duration::from_secs(1));
    assert_eq!(woken.take(), [(0, 0), (10, 10_000_000), (20, 20_000_000), (30, 30_000_000)]);
    assert_eq!(sim.now_ns(), 1_000_000_000);
}

#[test]
fn a_run_can_be_stopped_at_any_step_and_time() {
    let total = {
        let sim = Sim::new(1);
        sim.block_on(SimRuntime.sleep(Duration::from_secs(1)));
        sim.steps()
    };
    for steps in 0..total {
        let sim = Sim::new(1);
        let sleep = SimRuntime.sleep(Duration::from_secs(1));
        assert!(sim.block_on_until(sleep, Stop::AfterSteps(steps)).is_none());
        assert_eq!(sim.steps(), steps);
    }
    let sim = Sim::new(1);
    let sleep = SimRuntime.sleep(Duration::from_secs(1));
    assert!(sim.block_on_until(sleep, Stop::AtNs(999_999_999)).is_none());
    let sleep = SimRuntime.sleep(Duration::from_secs(1));
    assert!(sim.block_on_until(sleep, Stop::AtNs(1_000_000_000)).is_some());
}

/// The text of the panic that `f` ends with.
fn panic_of(f: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("a panic");
    payload.downcast_ref::<String>().cloned().unwrap_or_default()
}

/// A driver that never completes the second request that it gets.
struct ForgetfulDriver(std::sync::atomic::AtomicU32);

impl Driver for ForgetfulDriver {
    fn queue_rq(&self, rq: Request) {
        if self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1 {
            std::mem::forget(rq);
        } else {
            rq.complete(Ok(()));
        }
    }
}

#[test]
fn a_lost_completion_is_a_deadlock_that_names_the_seed() {
    let text = panic_of(|| {
        let sim = Sim::new(4711);
        let disk = Disk::new("d", Sectors(1000), Limits::default());
        let queue = Queue::new(disk, ForgetfulDriver(0.into()));
        let gateway = Gateway::new(std::sync::Arc::new(queue));
        sim.block_on(async {
            for _ in 0..3 {
                gateway.read(Sector(0), Sectors(8)).await.unwrap();
            }
        });
    });
    assert!(text.contains("deadlock") && text.contains("4711"), "{text}");
}

#[test]
fn a_disk_that_hangs_is_a_deadlock() {
    let text = panic_of(|| {
        let sim = Sim::new(4712);
        let disk = SimDisk::new("d", Sectors(1000));
        disk.media().hang_nth_command(1);
        sim.block_on(async {
            disk.gateway().read(Sector(0), Sectors(8)).await.unwrap();
            disk.gateway().read(Sector(0), Sectors(8)).await.unwrap();
        });
    });
    assert!(text.contains("deadlock") && text.contains("4712"), "{text}");
}

#[test]
fn a_disk_that_takes_too_long_trips_the_time_limit() {
    let text = panic_of(|| {
        let sim = Sim::new(4712);
        sim.set_time_limit(Duration::from_secs(60));
        let disk = SimDisk::new("d", Sectors(1000));
        disk.media().slow_down(100_000_000);
        sim.block_on(disk.gateway().read(Sector(0), Sectors(8))).unwrap();
    });
    assert!(text.contains("still running") && text.contains("4712"), "{text}");
}

/// A silent disk does nothing, and does it all when it answers; what it held when the power fails may have happened.
#[test]
fn a_silent_disk_holds_its_commands_until_it_answers() {
    let mut survived = [false; 2];
    for seed in 0..40 {
        let sim = Sim::new(seed);
        let disk = SimDisk::new("d", Sectors(1000));
        let media = disk.media().clone();
        let write = |at, byte| {
            let gateway = disk.gateway();
            sim.start(async move {
                let mut data = Buffer::from_slice(&[byte; 512]);
                gateway.write(Sector(at), &mut data, Flags::FUA).await
            })
        };
        let first = write(0, 1);
        sim.block_on_until(SimRuntime.sleep(Duration::from_nanos(1)), Stop::AtNs(0));
        media.fall_silent();
        sim.run_for(Duration::from_secs(60));
        assert_eq!((media.peek(Sector(0)), media.counts().writes), ([0; 512], 0));
        media.answer();
        assert_eq!(sim.block_on(first), Ok(()));
        assert_eq!(sim.block_on(write(1, 2)), Ok(()));
        media.fall_silent();
        let _held = write(2, 3);
        sim.run_for(Duration::from_secs(60));
        sim.power_cut();
        assert_eq!(media.peek(Sector(0)), [1; 512]);
        survived[usize::from(media.peek(Sector(2)) == [3; 512])] = true;
    }
    assert_eq!(survived, [true; 2]);
}

#[test]
fn a_task_that_never_lets_time_pass_is_caught() {
    let text = panic_of(|| {
        let sim = Sim::new(4713);
        sim.block_on(std::future::poll_fn::<(), _>(|cx| {
            cx.waker().wake_by_ref();
            std::task::Poll::Pending
        }));
    });
    assert!(text.contains("spins") && text.contains("4713"), "{text}");
}

#[test]
fn a_simulation_that_failed_leaves_the_thread_usable() {
    panic_of(|| {
        let sim = Sim::new(1);
        let gateway = SimDisk::new("d", Sectors(1000)).gateway();
        let mut data = Buffer::zeroed(512);
        let bio = Bio::write_from(Sector(0), &mut data);
        sim.block_on(async {
            let _in_flight = gateway.submit(bio);
            SimRuntime.sleep(Duration::from_nanos(1)).await;
            panic!("{}", "on purpose");
        });
    });
    let sim = Sim::new(2);
    let gateway = SimDisk::new("d", Sectors(1000)).gateway();
    sim.block_on(async { gateway.read(Sector(0), Sectors(1)).await.unwrap() });
}

#[test]
fn a_dead_disk_is_offline_and_a_healed_one_has_its_contents() {
    let sim = Sim::new(1);
    let disk = SimDisk::new("d", Sectors(1000));
    let gateway = disk.gateway();
    sim.block_on(async {
        let mut data = Buffer::from_slice(&[7; 512]);
        gateway.write(Sector(5), &mut data, Flags::empty()).await.unwrap();
        disk.media().kill();
        assert_eq!(gateway.read(Sector(5), Sectors(1)).await.unwrap_err(), Status::Offline);
        assert_eq!(gateway.flush().await, Err(Status::Offline));
        disk.media().heal();
        assert_eq!(gateway.read(Sector(5), Sectors(1)).await.unwrap().as_slice(), [7; 512]);
    });
}
