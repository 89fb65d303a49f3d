//! The scheduler: local tasks on virtual time, in an order that the seed chooses.
//!
//! One step is the first of these that is possible:
//! 1. poll a runnable task, chosen at random (so interleavings vary with the seed);
//! 2. flush the plugs (as a reactor does when it has no runnable task);
//! 3. let the time jump to the next timer or device event, and fire it.
//!
//! If none is possible before the main future has ended, it will never end: that is a deadlock (a
//! lost wake-up or completion), and the simulation panics naming the seed.

mod tasks;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ashlar_block::{LocalFuture, RequestId, Runtime, clock, plug};
use async_task::{Runnable, Task};

pub use self::tasks::{JoinHandle, SimRuntime, start};
use crate::media::Media;
use crate::rng::{Rng, mix};

/// Polls without progress of time after which a simulation counts as spinning forever.
const MAX_STEPS_AT_ONE_TIME: u64 = 20_000_000;
/// Default limit of a simulation's virtual time.
const DEFAULT_LIMIT: Duration = Duration::from_secs(100 * 86_400);
/// Within this time a disk that was silent answers all that it held.
const MAX_LATE_NS: u64 = 10_000_000;

/// An event at a given time: the end of a command.
pub(crate) trait Event {
    /// Its time has come.
    fn fire(self: Box<Self>);
    /// The simulation ends before its time.
    fn cut(self: Box<Self>);
    /// The command is cancelled, without effect.
    fn cancel(self: Box<Self>);
    /// The request that it ends.
    fn request(&self) -> Option<RequestId>;
}

enum DueAction {
    Wake(Waker),
    Event(Box<dyn Event>),
}

pub(crate) struct SchedulerCore {
    seed: u64,
    rng: RefCell<Rng>,
    now_ns: Cell<u64>,
    limit_ns: Cell<u64>,
    steps: Cell<u64>,
    steps_now: Cell<u64>,
    fingerprint: Cell<u64>,
    ready: Arc<Mutex<Vec<Runnable>>>,
    tasks: RefCell<BTreeMap<u64, Task<()>>>,
    due: RefCell<BTreeMap<(u64, u64), DueAction>>,
    events: Cell<usize>,
    next_id: Cell<u64>,
    media: RefCell<Vec<Media>>,
    /// The ends of commands whose disks are silent.
    held: RefCell<Vec<(Media, Box<dyn Event>)>>,
    stopping: Cell<bool>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<SchedulerCore>>> = const { RefCell::new(None) };
}

/// The simulation that runs on this thread.
///
/// # Panics
/// When no simulation runs.
pub(crate) fn current() -> Rc<SchedulerCore> {
    try_current().expect("a simulation runs on this thread")
}

/// The simulation that runs on this thread, if there is one.
pub(crate) fn try_current() -> Option<Rc<SchedulerCore>> {
    CURRENT.with_borrow(Clone::clone)
}

impl SchedulerCore {
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    pub(crate) fn rng<T>(&self, f: impl FnOnce(&mut Rng) -> T) -> T {
        f(&mut self.rng.borrow_mut())
    }

    /// Whether the simulation is shutting down: devices must not do anything.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Remembers a medium in use, so that a power cut affects it.
    pub(crate) fn attach(&self, media: &Media) {
        let mut all = self.media.borrow_mut();
        if !all.iter().any(|m| m.is_same(media)) {
            all.push(media.clone());
        }
    }

    fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    pub(crate) fn at(&self, at_ns: u64, event: Box<dyn Event>) {
        let key = (at_ns.max(self.now_ns()), self.next_id());
        self.events.set(self.events.get() + 1);
        self.due.borrow_mut().insert(key, DueAction::Event(event));
    }

    /// Holds the end of a command until its disk answers.
    pub(crate) fn hold(&self, media: &Media, event: Box<dyn Event>) {
        self.held.borrow_mut().push((media.clone(), event));
    }

    /// The disk answers what it was silent about, in any order.
    pub(crate) fn release(&self, media: &Media) {
        let all = std::mem::take(&mut *self.held.borrow_mut());
        let (ours, others) = all.into_iter().partition(|(held, _)| held.is_same(media));
        *self.held.borrow_mut() = others;
        let ours: Vec<(Media, Box<dyn Event>)> = ours;
        for (_, event) in ours {
            let later_ns = self.rng(|rng| rng.below(MAX_LATE_NS));
            self.at(self.now_ns() + later_ns, event);
        }
    }

    /// Removes and returns the held command of a request.
    pub(crate) fn take_held(&self, id: RequestId) -> Option<Box<dyn Event>> {
        let mut held = self.held.borrow_mut();
        let place = held.iter().position(|(_, event)| event.request() == Some(id))?;
        Some(held.swap_remove(place).1)
    }

    /// Mixes an event into the fingerprint.
    pub(crate) fn note(&self, what: u64) {
        self.fingerprint.set(mix(self.fingerprint.get() ^ what).wrapping_add(self.now_ns()));
    }

    fn with_ready<T>(&self, f: impl FnOnce(&mut Vec<Runnable>) -> T) -> T {
        f(&mut self.ready.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn spawn(self: &Rc<Self>, future: LocalFuture<'static, ()>) {
        let id = self.next_id();
        let core = Rc::downgrade(self);
        let wrapped = async move {
            future.await;
            if let Some(core) = core.upgrade()
                && let Some(task) = core.tasks.borrow_mut().remove(&id)
            {
                task.detach();
            }
        };
        let ready = Arc::clone(&self.ready);
        let schedule =
            move |runnable| ready.lock().unwrap_or_else(PoisonError::into_inner).push(runnable);
        let (runnable, task) = async_task::spawn_local(wrapped, schedule);
        self.tasks.borrow_mut().insert(id, task);
        runnable.schedule();
    }

    fn count_step(&self) {
        self.steps.set(self.steps.get() + 1);
        self.steps_now.set(self.steps_now.get() + 1);
        assert!(
            self.steps_now.get() < MAX_STEPS_AT_ONE_TIME,
            "simulation with seed {}: spins at {} ns",
            self.seed,
            self.now_ns()
        );
    }

    /// Jumps to the next timer or event and fires it. False if neither is left.
    fn advance(&self) -> bool {
        let Some(((at_ns, _), due)) = self.due.borrow_mut().pop_first() else { return false };
        if at_ns > self.now_ns() {
            self.now_ns.set(at_ns);
            self.steps_now.set(0);
        }
        // After a stop the turns' clock is behind.
        clock::set_now_ns(self.now_ns());
        assert!(
            at_ns <= self.limit_ns.get(),
            "simulation with seed {}: still running after {at_ns} ns of its time",
            self.seed
        );
        match due {
            DueAction::Wake(waker) => waker.wake(),
            DueAction::Event(event) => {
                self.events.set(self.events.get() - 1);
                event.fire();
            }
        }
        true
    }

    /// Time passes in which no task runs. What is due meanwhile comes late.
    fn stand_still(&self, duration: Duration, who: Standing) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.now_ns.set(self.now_ns().saturating_add(ns));
        if who == Standing::Process {
            return;
        }
        let mut all = self.due.borrow_mut();
        for ((at_ns, id), due) in std::mem::take(&mut *all) {
            let still_ns = match &due {
                DueAction::Wake(_) => 0,
                DueAction::Event(_) => ns,
            };
            all.insert((at_ns.saturating_add(still_ns), id), due);
        }
    }

    fn next_due_ns(&self) -> Option<u64> {
        self.due.borrow().first_key_value().map(|((at_ns, _), _)| *at_ns)
    }

    /// Drops every task and everything in flight. Requests end with errors that no task sees.
    fn shut_down(&self) {
        self.stopping.set(true);
        loop {
            let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
            let runnables = self.with_ready(std::mem::take);
            if tasks.is_empty() && runnables.is_empty() {
                break;
            }
            // Dropping the handle cancels a task: it is scheduled once more to be dropped.
            drop(tasks);
            drop(runnables);
        }
        let due = std::mem::take(&mut *self.due.borrow_mut());
        for due in due.into_values() {
            match due {
                DueAction::Wake(waker) => drop(waker),
                DueAction::Event(event) => event.cut(),
            }
        }
        for (_, event) in std::mem::take(&mut *self.held.borrow_mut()) {
            event.cut();
        }
        while plug::flush_current() {}
        drop(self.with_ready(std::mem::take));
    }
}

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
        let core = Rc::new(SchedulerCore {
            seed,
            rng: RefCell::new(Rng::new(seed)),
            now_ns: Cell::new(0),
            limit_ns: Cell::new(DEFAULT_LIMIT.as_nanos() as u64),
            steps: Cell::new(0),
            steps_now: Cell::new(0),
            fingerprint: Cell::new(0),
            ready: Arc::new(Mutex::new(Vec::new())),
            tasks: RefCell::new(BTreeMap::new()),
            due: RefCell::new(BTreeMap::new()),
            events: Cell::new(0),
            next_id: Cell::new(0),
            media: RefCell::new(Vec::new()),
            held: RefCell::new(Vec::new()),
            stopping: Cell::new(false),
        });
        CURRENT.with_borrow_mut(|current| {
            assert!(current.is_none(), "a simulation runs on this thread already");
            *current = Some(Rc::clone(&core));
        });
        clock::set_now_ns(0);
        Self { core }
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
        std::mem::take(&mut *self.core.media.borrow_mut())
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        for medium in self.take_media() {
            self.core.rng(|rng| medium.settle(rng));
        }
        CURRENT.with_borrow_mut(|current| *current = None);
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

/// What stands still when the process does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The process alone (SIGSTOP, a debugger): devices continue, and the process finds their results afterwards.
    Process,
    /// The machine with its devices (a virtual machine that is paused): they take as long as ever, from then on.
    Machine,
}

/// The simulated process stands still for `duration`, in the middle of this turn: the tasks that run until the next event see the
/// [`clock`] of before, and timers that end meanwhile wake their tasks late.
///
/// # Panics
/// When no simulation runs.
pub fn stand_still(duration: Duration, who: Standing) {
    current().stand_still(duration, who);
}
