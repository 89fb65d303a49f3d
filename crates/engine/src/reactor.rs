//! The reactor: one thread's tasks, timers, ring and mailbox, and the turn that drives them.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use ashlar_block::Segment;
use ashlar_block::shard::OwnShard;
use async_task::Task;
use io_uring::{opcode, squeue, types};

use crate::executor::Tasks;
use crate::files::FileTable;
use crate::fixed::FixedMemory;
use crate::mailbox::{Mailbox, Message};
use crate::op::{self, IGNORED, OpTable, OperationOwner, Outcome};
use crate::ring::{Completion, Ring, STREAM};
use crate::timer::{self, Timers};

/// How long an ending reactor waits for operations in flight before it leaks them.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// How long an ending reactor waits between two looks for tasks that other threads are about to hand over.
const TASKS_PAUSE: Duration = Duration::from_millis(1);

/// The least number of threads that the kernel is asked for beyond its default.
const MIN_WORKERS: u32 = 16;

/// The settings of a reactor.
#[derive(Clone, Copy, Debug)]
pub struct ReactorConfig {
    /// Size of the submission queue, entries. The kernel rounds it up to a power of two.
    pub entries: u32,
    /// Enter the kernel as soon as this many entries are queued, not only at the end of a turn.
    /// 2 to 4 keep a disk's queue depth steady; a large number batches more.
    pub submit_every: u32,
    /// How many tasks run between two looks at the completions.
    pub task_budget: u32,
    /// How many files to register with the ring; further files are used by descriptor.
    pub registered_files: u32,
    /// Poll for completions this long before sleeping, if the last wait was about as short: waking a processor takes
    /// longer than many an I/O, above all in a virtual machine.
    pub spin: Duration,
    /// Set the ring up as on Linux 5.11, without features of newer kernels: for tests, and to find out whether those
    /// features cause a fault.
    pub plain_ring: bool,
}

impl Default for ReactorConfig {
    fn default() -> Self {
        Self {
            spin: Duration::ZERO,
            entries: 512,
            submit_every: 4,
            task_budget: 128,
            registered_files: 256,
            plain_ring: false,
        }
    }
}

/// State that the reactor's handles, tasks and operations share on its thread.
pub(crate) struct ReactorCore {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) ops: RefCell<OpTable<Self>>,
    pub(crate) files: RefCell<FileTable>,
    ring: RefCell<Ring>,
    /// After the ring, which uses it; `None` if the kernel refused.
    fixed: OnceCell<Option<FixedMemory>>,
    harvest: RefCell<Vec<Completion>>,
    /// Polls since the plug was flushed.
    polls: Cell<u32>,
    /// How long the last wait was, nanoseconds.
    last_wait_ns: Cell<u64>,
    /// Operations that may block a thread of the kernel.
    blocking: Cell<u32>,
    /// How many of them the kernel was asked to have threads for.
    workers: Cell<u32>,
    config: ReactorConfig,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<ReactorCore>>> = const { RefCell::new(None) };
}

/// The current thread's reactor.
///
/// # Panics
/// On a thread without one.
pub(crate) fn current() -> Rc<ReactorCore> {
    try_current().expect("not on a reactor's thread")
}

/// The current thread's reactor, if it has one.
pub(crate) fn try_current() -> Option<Rc<ReactorCore>> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Makes a task of `future` on the current reactor. Dropping the [`Task`] cancels it; after `detach()` it runs on.
///
/// # Panics
/// On a thread without a reactor.
pub fn spawn<F>(future: F) -> Task<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    current().spawn(future)
}

/// Sends a message to a reactor.
///
/// # Errors
/// Returns the message when the reactor has ended, and a call also when it is about to end.
pub(crate) fn send(target: &Arc<Mailbox>, message: Message) -> Result<(), Message> {
    if target.post(message)? {
        wake(target);
    }
    Ok(())
}

/// Wakes a reactor that sleeps.
fn wake(target: &Arc<Mailbox>) {
    if !wake_by_ring(target) {
        target.wake_by_event();
    }
}

/// Asks this thread's ring to post a wake-up into the ring behind `target`. False if this thread or the target cannot;
/// then the caller must use the eventfd.
fn wake_by_ring(target: &Arc<Mailbox>) -> bool {
    let Some(core) = try_current().filter(|_| target.ring() >= 0) else { return false };
    core.post_wake_up(target);
    true
}

/// The owner of a reactor: created, run and dropped on one thread, which has no other reactor.
pub struct Reactor {
    core: Rc<ReactorCore>,
    /// Reads the mailbox's eventfd forever.
    _wake_up: Task<()>,
    /// Dropped last, when all tasks are gone.
    _shard: Option<OwnShard>,
}

impl Reactor {
    /// Sets up the current thread's reactor.
    ///
    /// # Errors
    /// Those of io_uring_setup(2) and eventfd(2); `AlreadyExists` on a thread that has a reactor.
    pub fn new(config: ReactorConfig) -> io::Result<Self> {
        if try_current().is_some() {
            let text = "this thread has a reactor already";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        let ring = Ring::new(config.entries, config.plain_ring)?;
        let mailbox = Arc::new(Mailbox::new()?);
        if ring.supports(opcode::MsgRingData::CODE) {
            mailbox.set_ring(ring.fd());
        }
        let files = FileTable::new(&ring, config.registered_files);
        let core = Rc::new(ReactorCore {
            mailbox,
            tasks: RefCell::default(),
            timers: RefCell::default(),
            ops: RefCell::default(),
            files: RefCell::new(files),
            ring: RefCell::new(ring),
            fixed: OnceCell::new(),
            harvest: RefCell::default(),
            polls: Cell::new(0),
            last_wait_ns: Cell::new(u64::MAX),
            blocking: Cell::new(0),
            workers: Cell::new(0),
            config,
        });
        CURRENT.set(Some(Rc::clone(&core)));
        let shard = OwnShard::take();
        tell_time();
        let wake_up = core.spawn(read_wake_ups(Rc::clone(&core)));
        Ok(Self { core, _wake_up: wake_up, _shard: shard })
    }

    pub(crate) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.core.mailbox
    }

    /// As [`spawn`].
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.core.spawn(future)
    }

    /// Leaves everything as it is: no task is dropped, no operation's memory freed. Later mail is refused.
    pub(crate) fn abandon(self) {
        std::mem::forget(self.core.mailbox.close());
        std::mem::forget(self);
    }

    /// Runs `future` until it ends, and all tasks meanwhile.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let alarm = Arc::new(MainWaker {
            woken: AtomicBool::new(true),
            mailbox: Arc::clone(&self.core.mailbox),
        });
        let waker = Waker::from(Arc::clone(&alarm));
        let mut cx = Context::from_waker(&waker);
        loop {
            if alarm.woken.swap(false, Ordering::AcqRel)
                && let Poll::Ready(output) = future.as_mut().poll(&mut cx)
            {
                // The future's last submissions must not wait for another turn.
                self.core.enter(None);
                return output;
            }
            self.core.turn(|| alarm.woken.load(Ordering::Acquire));
        }
    }
}

/// Wakes the future of block_on().
struct MainWaker {
    woken: AtomicBool,
    mailbox: Arc<Mailbox>,
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // On the reactor's own thread the flag is enough (it is awake, and looks before it sleeps).
        if !self.woken.swap(true, Ordering::AcqRel) && self.mailbox.ring_bell() {
            wake(&self.mailbox);
        }
    }
}

/// Keeps a read of the mailbox's eventfd pending; its completion wakes the reactor.
async fn read_wake_ups(core: Rc<ReactorCore>) {
    let mut counter = vec![0; 8];
    loop {
        let event = types::Fd(core.mailbox.event().as_raw_fd());
        let entry = opcode::Read::new(event, counter.as_mut_ptr(), 8).offset(STREAM).build();
        // SAFETY: the payload owns the eight bytes; the eventfd lives as long as the core, which the operation holds a
        // reference to.
        let (result, same) = unsafe { core.submit(entry, counter, None, true) }.await;
        if let Err(error) = result {
            tracing::error!(%error, "reading a reactor's eventfd");
            return;
        }
        counter = same;
    }
}

/// A wake-up posted into another reactor's ring; if posting fails, the eventfd is used.
struct PostedWakeUp(Arc<Mailbox>);

impl OperationOwner<ReactorCore> for PostedWakeUp {
    fn complete(self: Box<Self>, _: &Rc<ReactorCore>, result: i32) {
        if result < 0 {
            self.0.wake_by_event();
        }
    }
}

/// Mail that a reactor handles. When a call panics, what comes after it is mail again: an abandoned reactor must not drop it, and one
/// that ends must.
struct TakenMail<'a> {
    mailbox: &'a Mailbox,
    mail: std::vec::IntoIter<Message>,
}

impl Drop for TakenMail<'_> {
    fn drop(&mut self) {
        if !self.mail.as_slice().is_empty() {
            self.mailbox.put_back(std::mem::take(&mut self.mail));
        }
    }
}

impl ReactorCore {
    /// A block of registered memory, for a read of `len` bytes.
    pub(crate) fn take_fixed(&self, len: usize) -> Option<Segment> {
        let register = || match FixedMemory::register(&self.ring.borrow()) {
            Ok(memory) => Some(memory),
            Err(error) => {
                tracing::debug!(%error, "no registered memory");
                None
            }
        };
        self.fixed.get_or_init(register).as_ref()?.take(len)
    }

    /// Whether a piece of memory is registered.
    pub(crate) fn is_fixed(&self, start: *mut u8, len: usize) -> bool {
        let fixed = self.fixed.get().and_then(Option::as_ref);
        fixed.is_some_and(|memory| memory.contains(start, len))
    }

    pub(crate) fn ring(&self) -> std::cell::Ref<'_, Ring> {
        self.ring.borrow()
    }

    /// Queues an entry, and enters the kernel if enough are queued.
    ///
    /// # Safety
    /// As [`Ring::push`].
    pub(crate) unsafe fn push(&self, entry: squeue::Entry) {
        let mut ring = self.ring.borrow_mut();
        // SAFETY: the caller's promise.
        unsafe { ring.push(entry) }
        if ring.queued() >= self.config.submit_every {
            check(ring.flush());
        }
    }

    /// Another operation begins that may block a thread of the kernel. It gets one of its own: the operations on other files
    /// that need such threads (fdatasync, fallocate) must not wait for a silent file.
    pub(crate) fn need_worker(&self) {
        self.blocking.set(self.blocking.get() + 1);
        if self.blocking.get() <= self.workers.get() {
            return;
        }
        let more = self.blocking.get().next_power_of_two().max(MIN_WORKERS);
        if let Err(error) = self.ring.borrow().add_workers(more - self.workers.get()) {
            tracing::debug!(%error, "threads of the kernel");
        }
        self.workers.set(more);
    }

    /// Such an operation has ended.
    pub(crate) fn free_worker(&self) {
        self.blocking.set(self.blocking.get().saturating_sub(1));
    }

    /// Submits queued entries now, not at the end of the turn.
    pub(crate) fn submit_queued(&self) {
        let mut ring = self.ring.borrow_mut();
        if ring.queued() > 0 {
            check(ring.flush());
        }
    }

    fn post_wake_up(&self, target: &Arc<Mailbox>) {
        let owner = Box::new(PostedWakeUp(Arc::clone(target)));
        let entry = opcode::MsgRingData::new(types::Fd(target.ring()), 0, IGNORED, None).build();
        // SAFETY: the entry names no memory. The target's ring may be closed by then, and its number may refer to
        // another file: that gives an error, or reaches another ring, which ignores the message.
        unsafe { self.submit_callback(entry, owner) };
        // Submitted at once: this thread's turn may be long.
        check(self.ring.borrow_mut().flush());
    }

    /// Enters the kernel to submit, to run completions or to sleep, if needed, and handles completions.
    fn enter(self: &Rc<Self>, wait: Option<Option<Duration>>) {
        {
            let mut ring = self.ring.borrow_mut();
            if wait.is_some() || ring.has_work() {
                check(ring.enter(wait));
            }
        }
        tell_time();
        let mut harvest = self.harvest.take();
        self.ring.borrow_mut().harvest(&mut harvest);
        for completion in harvest.drain(..) {
            let outcome = self.ops.borrow_mut().complete(completion);
            match outcome {
                Outcome::Wake(Some(waker)) => waker.wake(),
                Outcome::Call(owner, result) => owner.complete(self, result),
                Outcome::Discard(keep, result) => op::discard(keep, result),
                Outcome::Wake(None) | Outcome::Nothing => {}
            }
        }
        self.harvest.replace(harvest);
    }

    fn take_mail(&self) {
        let mail = self.mailbox.take().into_iter();
        let mut taken = TakenMail { mailbox: &self.mailbox, mail };
        for message in &mut taken.mail {
            match message {
                Message::Run(task) => self.tasks.borrow_mut().push(task),
                Message::Call(call) => call(),
            }
        }
    }

    fn next_task(&self) -> Option<async_task::Runnable> {
        self.tasks.borrow_mut().pop()
    }

    fn is_idle(&self) -> bool {
        self.tasks.borrow().is_idle()
    }

    /// Runs what is due and runnable, submits, sleeps if there is nothing to do (and `busy` says that the caller has
    /// nothing to do either), and handles completions.
    fn turn(self: &Rc<Self>, busy: impl Fn() -> bool) {
        self.take_mail();
        // By the time that was read after the last wait: a reactor with I/O has timers all the time.
        let due = self.timers.borrow_mut().expire(ashlar_block::clock::now_ns());
        due.into_values().for_each(Waker::wake);
        for _ in 0..self.config.task_budget {
            let Some(task) = self.next_task() else { break };
            task.run();
            self.polls.set(self.polls.get() + 1);
        }
        // The caller's poll.
        self.polls.set(self.polls.get() + 1);
        // No runnable task is left that could add to the plug, or it was held for long enough: tasks that wake themselves
        // must not hold back the I/O of others.
        if self.polls.get() >= self.config.task_budget || self.is_idle() && !busy() {
            self.polls.set(0);
            ashlar_block::plug::flush_current();
        }
        if self.is_idle() && !busy() && self.mailbox.fall_asleep() {
            let start = timer::now_ns();
            let limit = self.timers.borrow().time_left(start);
            self.enter(if self.spin(start) { None } else { Some(limit) });
            self.last_wait_ns.set(timer::now_ns() - start);
            self.mailbox.wake_up();
        } else {
            self.enter(None);
        }
    }

    /// Polls for completions for a while; returns whether there are some. (Mail makes a completion too: the doorbell is
    /// Asleep, so senders wake the ring.)
    fn spin(&self, start_ns: u64) -> bool {
        // It is worth waiting a little longer than a completion takes, but not waiting in vain.
        const WORTH: u64 = 4;
        let spin_ns = u64::try_from(self.config.spin.as_nanos()).unwrap_or(u64::MAX);
        if self.last_wait_ns.get() > spin_ns.saturating_mul(WORTH) {
            return false;
        }
        let mut ring = self.ring.borrow_mut();
        check(ring.flush());
        // Reading the clock costs more than a look; pauses leave a hyperthread's resources to its twin.
        const LOOKS: u32 = 16;
        while timer::now_ns() - start_ns <= spin_ns {
            for _ in 0..LOOKS {
                if ring.has_completions() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }

    /// Drops the mail and all runnable tasks.
    fn drop_runnable(&self, mail: Vec<Message>) {
        for message in mail {
            match message {
                Message::Run(task) => self.tasks.borrow_mut().push(task),
                Message::Call(call) => drop(call),
            }
        }
        while let Some(task) = self.next_task() {
            // A panic in one destructor must not keep the others from running.
            let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(task)));
            if dropped.is_err() {
                tracing::error!("a task panicked when it was dropped");
            }
        }
    }
}

/// Sets the block layer's clock, once a turn.
fn tell_time() {
    ashlar_block::clock::set_now_ns(timer::now_ns());
}

/// The reactor cannot work without the ring: an error that is not about load means a bug or a broken kernel, and the
/// thread cannot continue.
fn check(entered: io::Result<()>) {
    if let Err(error) = entered {
        panic!("io_uring_enter: {error}");
    }
}

impl Drop for Reactor {
    /// Drops all tasks, cancels waits, issues plugged I/O, and returns when nothing is in flight. Operations
    /// that do not end in time, or should have ended before, are leaked with their memory and the ring.
    fn drop(&mut self) {
        let core = &self.core;
        core.drop_runnable(core.mailbox.refuse_calls());
        // Each waker makes its task runnable; dropping the Runnable drops the future. A task that another thread has just woken
        // comes by mail.
        let wakers = core.tasks.borrow().wakers();
        wakers.iter().for_each(Waker::wake_by_ref);
        drop(wakers);
        core.drop_runnable(core.mailbox.take());
        for key in core.ops.borrow().cancellable() {
            core.cancel(key);
        }
        let end = Instant::now() + DRAIN_LIMIT;
        loop {
            ashlar_block::plug::flush_current();
            // As long as there is a task, another thread is handing it over.
            let have_ended = core.tasks.borrow().len() == 0;
            if have_ended && core.ops.borrow().is_empty() {
                break;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || have_ended && core.ops.borrow().are_overdue() {
                let (operations, tasks) = (core.ops.borrow().len(), core.tasks.borrow().len());
                tracing::error!(
                    operations,
                    tasks,
                    "I/O of a thread never ended; leaking its memory"
                );
                std::mem::forget(Rc::clone(core));
                break;
            }
            // Mail wakes a reactor from its turns' sleep only.
            let wait = if have_ended { left } else { left.min(TASKS_PAUSE) };
            core.enter(Some(Some(wait)));
            core.drop_runnable(core.mailbox.take());
        }
        core.drop_runnable(core.mailbox.close());
        // The kernel ends a closed ring later, at a time of its choice. Until then the ring would keep the disks open,
        // and another process that opens one with O_EXCL would get EBUSY.
        core.files.borrow_mut().release_all(&core.ring());
        CURRENT.set(None);
    }
}
