//! The scheduler: local tasks on virtual time, in an order that the seed chooses.
//!
//! One step is the first of these that is possible:
//! 1. poll a runnable task, chosen at random (so interleavings vary with the seed);
//! 2. flush the plugs (as a reactor does when it has no runnable task);
//! 3. let the time jump to the next timer or device event, and fire it.
//!
//! If none is possible before the main future has ended, it will never end: that is a deadlock (a
//! lost wake-up or completion), and the simulation panics naming the seed.

pub(crate) mod core;
mod tasks;

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ashlar_block::{Runtime, clock, plug};

use self::core::SchedulerCore;
pub use self::core::Standing;
pub use self::tasks::{JoinHandle, SimRuntime, start};
use crate::media::Media;
use crate::rng::Rng;

struct MainWaker {
    woken: AtomicBool,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Relaxed);
    }
}

/// When [`Sim::block_on_until`] stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Before the first event later than this time (nanoseconds).
    AtNs(u64),
    /// After this many steps of the scheduler from now: can stop at any point of a run.
    AfterSteps(u64),
}

/// A simulation: the runtime of the current thread until it is dropped.
///
/// A run is a function of the seed: it does not depend on real time, threads or addresses.
pub struct Sim {
    core: Rc<SchedulerCore>,
}

impl Sim {
    /// Begins a simulation on this thread.
    ///
    /// # Panics
    /// When a simulation already runs on this thread.
    pub fn new(seed: u64) -> Self {
        Self { core: core::begin(seed) }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.core.seed
    }

    /// The runtime handle for the layers.
    pub fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(SimRuntime)
    }

    /// Virtual nanoseconds since the beginning.
    pub fn now_ns(&self) -> u64 {
        self.core.now_ns()
    }

    /// Steps of the scheduler so far.
    pub fn steps(&self) -> u64 {
        self.core.steps.get()
    }

    /// A digest of all events, their order and times: equal for two runs only if they took the same
    /// course.
    pub fn fingerprint(&self) -> u64 {
        self.core.fingerprint.get()
    }

    /// A generator for the test's choices; its draws do not affect the scheduler's.
    pub fn rng(&self) -> Rng {
        self.core.rng(Rng::fork)
    }

    /// Makes the simulation fail once it has taken this much virtual time (default: 100 days).
    pub fn set_time_limit(&self, limit: Duration) {
        self.core.limit_ns.set(limit.as_nanos() as u64);
    }

    /// Starts a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.core.spawn(Box::pin(task));
    }

    /// Starts a task whose result can be awaited.
    pub fn start<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        start(task)
    }

    /// Runs until `future` ends.
    ///
    /// # Panics
    /// When the future can never end (deadlock), spins, or exceeds the time limit; the message names the
    /// seed.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        match self.drive(pin!(future), None) {
            Some(value) => value,
            None => unreachable!("a run without a stop ends with its future"),
        }
    }

    /// Runs until `future` ends, or until the stop: then it drops the future and returns `None`; other
    /// tasks and I/O stay as they are.
    ///
    /// # Panics
    /// As [`Self::block_on`].
    pub fn block_on_until<T>(&self, future: impl Future<Output = T>, stop: Stop) -> Option<T> {
        self.drive(pin!(future), Some(stop))
    }

    /// Runs until no task can run and no I/O is in flight. Sleeping tasks continue to sleep.
    pub fn run_until_idle(&self) {
        while self.poll_ready(None) || plug::flush_current() || self.fire_until_event() {}
    }

    /// Lets virtual time pass.
    pub fn run_for(&self, duration: Duration) {
        self.block_on(SimRuntime.sleep(duration));
    }

    fn fire_until_event(&self) -> bool {
        self.core.events.get() > 0 && self.core.advance()
    }

    /// Polls one runnable task; the main future has the number after all others.
    fn poll_ready(&self, main: Option<&mut dyn FnMut()>) -> bool {
        let core = &self.core;
        let (ready, extra) = (core.with_ready(|r| r.len()), usize::from(main.is_some()));
        if ready + extra == 0 {
            return false;
        }
        core.count_step();
        let chosen = core.rng(|rng| rng.index(ready + extra));
        core.note(chosen as u64);
        match main {
            Some(poll) if chosen == ready => poll(),
            Some(_) | None => {
                let runnable = core.with_ready(|r| r.swap_remove(chosen));
                runnable.run();
            }
        }
        true
    }

    fn drive<T>(
        &self,
        mut future: Pin<&mut dyn Future<Output = T>>,
        stop: Option<Stop>,
    ) -> Option<T> {
        let _reminder = SeedReminder(self.core.seed);
        let core = &self.core;
        let main = Arc::new(MainWaker { woken: AtomicBool::new(true) });
        let waker = Waker::from(Arc::clone(&main));
        let first_step = core.steps.get();
        let mut out = None;
        loop {
            clock::set_now_ns(core.now_ns());
            if let Some(Stop::AfterSteps(n)) = stop
                && core.steps.get() - first_step >= n
            {
                return None;
            }
            let mut poll_main = || {
                main.woken.store(false, Relaxed);
                if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    out = Some(value);
                }
            };
            let runnable = main.woken.load(Relaxed).then_some(&mut poll_main as &mut dyn FnMut());
            if self.poll_ready(runnable) {
                if out.is_some() {
                    return out;
                }
                continue;
            }
            if plug::flush_current() {
                continue;
            }
            if let (Some(Stop::AtNs(stop_ns)), Some(due_ns)) = (stop, core.next_due_ns())
                && due_ns > stop_ns
            {
                return None;
            }
            core.count_step();
            assert!(
                core.advance(),
                "simulation with seed {}: deadlock at {} ns: the main future waits, no task can \
                 run, no timer and no I/O is pending",
                core.seed,
                core.now_ns()
            );
        }
    }

    /// The power fails now: all tasks are dropped, nothing in flight completes, and any part of the data
    /// that the disks had not made durable survives (see docs/internals/fault-model.md). Disks of a new
    /// simulation can use their [`Media`].
    pub fn power_cut(self) {
        for medium in self.take_media() {
            self.core.rng(|rng| medium.power_cut(rng));
        }
    }

    /// The process is killed now: all tasks are dropped; commands that the disks have received happen or
    /// not; acknowledged data stays in the disks' caches. The same as a drop.
    pub fn kill(self) {}

    fn take_media(&self) -> Vec<Media> {
        self.core.shut_down();
        let media = std::mem::take(&mut *self.core.media.borrow_mut());
        media.into_iter().map(Media::of).collect()
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        for medium in self.take_media() {
            self.core.rng(|rng| medium.settle(rng));
        }
        core::end();
    }
}

/// Prints the seed when a test fails within a simulation.
struct SeedReminder(u64);

impl Drop for SeedReminder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the simulation's seed: {}", self.0);
        }
    }
}

/// The simulated process stands still for `duration`, in the middle of this turn: the tasks that run until the next event see the
/// [`clock`] of before, and timers that end meanwhile wake their tasks late.
///
/// # Panics
/// When no simulation runs.
pub fn stand_still(duration: Duration, who: Standing) {
    core::current().stand_still(duration, who);
}
