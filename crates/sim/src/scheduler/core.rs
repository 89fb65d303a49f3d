//! What a simulation consists of: its tasks, its time, its media, and what happens when. Tasks, disks and media find it by the thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use ashlar_block::{LocalFuture, RequestId, clock, plug};
use async_task::{Runnable, Task};

use crate::rng::{Rng, mix};
use crate::state::SharedState;

/// Polls without progress of time after which a simulation counts as spinning forever.
const MAX_STEPS_AT_ONE_TIME: u64 = 20_000_000;
/// Default limit of a simulation's virtual time.
const DEFAULT_LIMIT: Duration = Duration::from_secs(100 * 86_400);
/// Within this time a disk that was silent answers all that it held.
const MAX_LATE_NS: u64 = 10_000_000;

/// What stands still when the process does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The process alone (SIGSTOP, a debugger): devices continue, and the process finds their results afterwards.
    Process,
    /// The machine with its devices (a virtual machine that is paused): they take as long as ever, from then on.
    Machine,
}

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

pub(super) enum DueAction {
    Wake(Waker),
    Event(Box<dyn Event>),
}

pub(crate) struct SchedulerCore {
    pub(super) seed: u64,
    rng: RefCell<Rng>,
    now_ns: Cell<u64>,
    pub(super) limit_ns: Cell<u64>,
    pub(super) steps: Cell<u64>,
    steps_now: Cell<u64>,
    pub(super) fingerprint: Cell<u64>,
    ready: Arc<Mutex<Vec<Runnable>>>,
    tasks: RefCell<BTreeMap<u64, Task<()>>>,
    pub(super) due: RefCell<BTreeMap<(u64, u64), DueAction>>,
    pub(super) events: Cell<usize>,
    next_id: Cell<u64>,
    pub(super) media: RefCell<Vec<SharedState>>,
    /// The ends of commands whose disks are silent.
    held: RefCell<Vec<(SharedState, Box<dyn Event>)>>,
    stopping: Cell<bool>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<SchedulerCore>>> = const { RefCell::new(None) };
}

/// Begins a simulation on this thread.
///
/// # Panics
/// When a simulation already runs on this thread.
pub(super) fn begin(seed: u64) -> Rc<SchedulerCore> {
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
    core
}

/// Ends it.
pub(super) fn end() {
    CURRENT.with_borrow_mut(|current| *current = None);
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
    pub(crate) fn attach(&self, medium: &SharedState) {
        let mut all = self.media.borrow_mut();
        if !all.iter().any(|other| Arc::ptr_eq(other, medium)) {
            all.push(Arc::clone(medium));
        }
    }

    pub(super) fn next_id(&self) -> u64 {
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
    pub(crate) fn hold(&self, medium: &SharedState, event: Box<dyn Event>) {
        self.held.borrow_mut().push((Arc::clone(medium), event));
    }

    /// The disk answers what it was silent about, in any order.
    pub(crate) fn release(&self, medium: &SharedState) {
        let all = std::mem::take(&mut *self.held.borrow_mut());
        let (ours, others) = all.into_iter().partition(|(held, _)| Arc::ptr_eq(held, medium));
        *self.held.borrow_mut() = others;
        let ours: Vec<(SharedState, Box<dyn Event>)> = ours;
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

    pub(super) fn with_ready<T>(&self, f: impl FnOnce(&mut Vec<Runnable>) -> T) -> T {
        f(&mut self.ready.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn spawn(self: &Rc<Self>, future: LocalFuture<'static, ()>) {
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

    pub(super) fn count_step(&self) {
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
    pub(super) fn advance(&self) -> bool {
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
    pub(super) fn stand_still(&self, duration: Duration, who: Standing) {
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

    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.due.borrow().first_key_value().map(|((at_ns, _), _)| *at_ns)
    }

    /// Drops every task and everything in flight. Requests end with errors that no task sees.
    pub(super) fn shut_down(&self) {
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
