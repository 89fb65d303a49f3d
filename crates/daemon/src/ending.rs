//! The daemon's shutdown: the requests for it, what it waits for, and its time limit.
//!
//! A separate thread receives the signals, so that a stuck reactor cannot prevent a forced shutdown.
//!
//! | request | effect |
//! |---|---|
//! | SIGHUP | begins the end, and never forces it: a terminal that is closed may send several |
//! | SIGTERM, SIGINT, `Stop` | the first begins the end |
//! | a second signal, `Stop` with force | forces it: stops waiting for clients |
//! | a third signal | ends the process at once |
//! | a signal less than [`SAME`] after the last step | nothing: it is the same request |
//!
//! Programs send one request several times: timeout(1) signals its child and then the group of processes, and ^C reaches a
//! daemon from the terminal and again from the program that started it. Only a user who has seen that the daemon still
//! runs asks for more. Signals that arrive while the step is taken, or while the process is stopped, are not counted either.
//!
//! Effect of a forced shutdown on writes in flight: an array still completes the writes that it has begun, because its copies
//! only agree once all writes have ended; clients get no more replies. The daemon abandons a device that takes longer than
//! [`STEP`], and after [`LIMIT`] the process exits in any case. To an array both are like a power cut: its superblocks say
//! active and its bitmap marks the writes in flight, so its next start resyncs the copies. Flushed data is on the disks.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ashlar_block::sync::lock;
use ashlar_client::stop::Stop;
use ashlar_engine::signal::{self, Signal};
use ashlar_engine::{ThreadPanic, sleep};
use ashlar_stack::assemble::Stack;
use futures_util::future::{Either, select};

use crate::cleanup_helper::CleanupHelper;
use crate::error::{Error, FAILURE, PANICKED, Result};

/// How long a device may take to stop after the end is forced.
const STEP: Duration = Duration::from_secs(2);
/// How long the process may continue after the end is forced.
const LIMIT: Duration = Duration::from_secs(10);
/// How long to wait for clients after a thread has panicked, which no longer answers its clients.
const WITHOUT_A_THREAD: Duration = Duration::from_secs(10);
/// How long after a request signals count as the same one.
const SAME: Duration = Duration::from_secs(1);
/// How long writing a log line may delay the end.
const LOG_PATIENCE: Duration = Duration::from_millis(500);
/// How long the end may be delayed before this is logged.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// How long a device may take to stop before the daemon reports it to callers: a stop without trouble prints nothing.
const BRIEF: Duration = Duration::from_secs(1);

/// What the end is waiting for.
#[derive(Clone, Default)]
pub(crate) enum Obstacle {
    /// Nothing slow.
    #[default]
    Nothing,
    /// Clients of a front end, with its words for them: who they are may change while they are waited for.
    Clients(Arc<dyn Fn() -> String + Send + Sync>),
    /// A device that is stopping, since then.
    Device(String, Instant),
}

/// See the module text.
#[derive(Clone, Default)]
pub(crate) struct Ending(Arc<State>);

#[derive(Default)]
struct State {
    signals: Vec<Signal>,
    wanted: Stop,
    forced: Stop,
    draining: Stop,
    panicked: Stop,
    over: Stop,
    requests: Mutex<Requests>,
    code: AtomicU8,
    /// See [`Ending::keep_threads`].
    keeps_threads: AtomicBool,
    waiting: Mutex<Obstacle>,
    helper: OnceLock<Arc<CleanupHelper>>,
    failure: Mutex<Option<String>>,
    /// Waits until the log is written.
    written: OnceLock<fn()>,
}

/// How far the requests for the end have come.
#[derive(Default)]
struct Requests {
    stage: Stage,
    /// When it was reached.
    since: Option<Instant>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    #[default]
    Serving,
    Asked,
    Forced,
    /// The process exits.
    Abandoned,
}

impl Requests {
    /// Takes note of a request that reaches `stage` by itself.
    fn reach(&mut self, stage: Stage, now: Instant) {
        if stage > self.stage {
            *self = Self { stage, since: Some(now) };
        }
    }

    /// The stage that a signal asks for; `None` if it is the same request as the last one.
    fn next(&self, now: Instant) -> Option<Stage> {
        if self.since.is_some_and(|since| now.saturating_duration_since(since) < SAME) {
            return None;
        }
        match self.stage {
            Stage::Serving => Some(Stage::Asked),
            Stage::Asked => Some(Stage::Forced),
            Stage::Forced | Stage::Abandoned => Some(Stage::Abandoned),
        }
    }
}

/// Logs on another thread: a log that nothing reads must not block the end.
fn say(log: impl FnOnce() + Send + 'static) {
    let (said, saying) = mpsc::channel();
    let log = move || {
        log();
        said.send(())
    };
    if thread::Builder::new().name("ashlar-log".to_owned()).spawn(log).is_ok() {
        // Whether or not the line was written, the end continues.
        let (Ok(()) | Err(_)) = saying.recv_timeout(LOG_PATIENCE);
    }
}

fn say_same() {
    say(|| tracing::info!("a signal within a second of the last one is the same request"));
}

impl Ending {
    /// Blocks the signals that end the daemon: they wait until [`Self::listen`]. Must be called before any other thread is
    /// started.
    ///
    /// # Errors
    /// Those of pthread_sigmask(3) and sigaction(2).
    pub(crate) fn block() -> io::Result<Self> {
        let mut signals = vec![Signal::TERM, Signal::INT];
        if !signal::is_ignored(Signal::HUP)? {
            signals.push(Signal::HUP);
        }
        signal::block(&signals)?;
        Ok(Self(Arc::new(State { signals, ..State::default() })))
    }

    /// Receives the signals on a separate thread.
    ///
    /// # Errors
    /// That of starting a thread.
    pub(crate) fn listen(&self) -> io::Result<()> {
        let hearing = self.clone();
        let hear = move || {
            loop {
                if let Err(error) = hearing.hear() {
                    return tracing::error!(%error, "waiting for signals");
                }
            }
        };
        thread::Builder::new().name("ashlar-signals".to_owned()).spawn(hear).map(drop)
    }

    /// Sets the cleanup helper, which cleans up when the process exits at once.
    pub(crate) fn cleaned_up_by(&self, helper: &Arc<CleanupHelper>) {
        // There is one.
        let (Ok(()) | Err(_)) = self.0.helper.set(Arc::clone(helper));
    }

    /// Has the process wait until the log is written, before it exits at once.
    pub(crate) fn log_is_written_by(&self, written: fn()) {
        // There is one.
        let (Ok(()) | Err(_)) = self.0.written.set(written);
    }

    /// Waits for a signal, and takes the step that it asks for; then receives those that belong to the same request.
    fn hear(&self) -> io::Result<()> {
        let is_hup = |number| number == Signal::HUP.as_raw();
        let number = signal::receive(&self.0.signals)?;
        if is_hup(number) {
            self.0.wanted.stop();
            return Ok(());
        }
        let next = lock(&self.0.requests).next(Instant::now());
        match next {
            None => {
                say_same();
                return Ok(());
            }
            Some(Stage::Serving | Stage::Asked) => self.ask(),
            Some(Stage::Forced) => self.force(),
            Some(Stage::Abandoned) => {
                self.abandon("a third signal: what was not stopped is left as it is");
            }
        }
        // The clock alone is not enough: a stopped process receives a signal long after it was sent.
        let (heard, mut is_said) = (Instant::now(), false);
        while let Some(number) =
            signal::receive_within(&self.0.signals, SAME.saturating_sub(heard.elapsed()))?
        {
            if !is_hup(number) && !std::mem::replace(&mut is_said, true) {
                say_same();
            }
        }
        Ok(())
    }

    /// Begins the end.
    pub(crate) fn ask(&self) {
        lock(&self.0.requests).reach(Stage::Asked, Instant::now());
        self.0.wanted.stop();
    }

    /// Forces the end: the process ends within [`LIMIT`].
    pub(crate) fn force(&self) {
        self.ask();
        lock(&self.0.requests).reach(Stage::Forced, Instant::now());
        if self.0.forced.is_stopped() {
            return;
        }
        self.fail(FAILURE);
        self.0.forced.stop();
        let ending = self.clone();
        let limit = move || {
            thread::sleep(LIMIT);
            ending.abandon("the forced shutdown timed out: what was not stopped is left as it is");
        };
        // Without a thread there is no time limit, only a third signal.
        if let Err(error) = thread::Builder::new().name("ashlar-limit".to_owned()).spawn(limit) {
            tracing::error!(%error, "no thread for the limit of the end");
        }
        say(|| tracing::warn!("the end is forced"));
    }

    /// Exits the process.
    fn abandon(&self, why: &str) -> ! {
        let (ending, why) = (self.clone(), why.to_owned());
        say(move || {
            let waits_for = ending.waits_for().join(", ");
            tracing::error!(waits_for, "{why}");
        });
        if let Some(helper) = self.0.helper.get() {
            helper.clear_away();
        }
        if let Some(written) = self.0.written.get() {
            written();
        }
        std::process::exit(self.code().into());
    }

    /// Handles the panic of a serving thread: the end begins, and waits for clients only briefly.
    pub(crate) async fn without(&self, panicked: ThreadPanic) {
        let ThreadPanic { thread, message: panic } = panicked;
        tracing::error!(thread, panic, "a thread that serves has panicked: stopping");
        self.panic();
        sleep(WITHOUT_A_THREAD).await;
        self.force();
    }

    /// Begins the end after a panic that has already been logged.
    pub(crate) fn panic(&self) {
        self.fail(PANICKED);
        self.0.panicked.stop();
        self.0.wanted.stop();
    }

    /// Sets the exit code, unless it is already higher.
    pub(crate) fn fail(&self, code: u8) {
        self.0.code.fetch_max(code, Ordering::SeqCst);
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.0.code.load(Ordering::SeqCst)
    }

    /// The threads that do the I/O have commands in flight that only the end of the process ends, so they are not waited for.
    pub(crate) fn keep_threads(&self) {
        self.0.keeps_threads.store(true, Ordering::SeqCst);
    }

    /// Whether the process must end with its threads.
    pub(crate) fn keeps_threads(&self) -> bool {
        self.0.keeps_threads.load(Ordering::SeqCst)
    }

    /// Ends when the end is requested.
    pub(crate) fn wanted(&self) -> Stop {
        self.0.wanted.clone()
    }

    /// Ends when the end is forced.
    pub(crate) fn forced(&self) -> Stop {
        self.0.forced.clone()
    }

    /// Ends when the end has begun: nothing is started any more.
    pub(crate) fn draining(&self) -> Stop {
        self.0.draining.clone()
    }

    /// Ends when a serving thread or task has panicked.
    pub(crate) fn panicked(&self) -> Stop {
        self.0.panicked.clone()
    }

    /// Ends when everything is stopped, as far as possible.
    pub(crate) fn over(&self) -> Stop {
        self.0.over.clone()
    }

    /// What failed while stopping, once it is over.
    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.0.failure).clone()
    }

    /// Records that the end is over, with this result.
    pub(crate) fn finish<T>(&self, result: &Result<T>) {
        *lock(&self.0.failure) = result.as_ref().err().map(ToString::to_string);
        self.0.over.stop();
    }

    /// Records what the end waits for.
    pub(crate) fn wait_for(&self, obstacle: Obstacle) {
        *lock(&self.0.waiting) = obstacle;
    }

    /// A description of what the end waits for.
    pub(crate) fn waits_for(&self) -> Vec<String> {
        let waiting = lock(&self.0.waiting).clone();
        match waiting {
            Obstacle::Nothing => Vec::new(),
            Obstacle::Clients(words) => vec![words()],
            Obstacle::Device(name, _) => vec![format!("{name} is being stopped")],
        }
    }

    /// A description of what delays the end at `now`: as [`Self::waits_for`], without a device that has just begun to stop.
    pub(crate) fn delayed_by(&self, now: Instant) -> Vec<String> {
        if let Obstacle::Device(_, since) = &*lock(&self.0.waiting)
            && now.duration_since(*since) < BRIEF
        {
            return Vec::new();
        }
        self.waits_for()
    }

    /// Stops all devices and exports all pools.
    ///
    /// # Errors
    /// Some could not be marked clean, flushed or exported.
    pub(crate) async fn stop(&self, stack: &Stack) -> Result<()> {
        let limit = |name: &str| {
            self.wait_for(Obstacle::Device(name.to_owned(), Instant::now()));
            let forced = self.forced();
            let limit = async move {
                forced.await;
                sleep(STEP).await;
            };
            Box::pin(limit) as ashlar_block::LocalFuture<'static, ()>
        };
        let mut stopping = pin!(stack.stop_within(&limit));
        let stopped = match select(&mut stopping, pin!(sleep(PATIENCE))).await {
            Either::Left((stopped, _)) => stopped,
            Either::Right(_) => {
                let all = stack.pools.all();
                let pools: Vec<&str> = all.iter().map(|served| served.pool.name()).collect();
                if pools.is_empty() {
                    let waits_for = self.waits_for().join(", ");
                    tracing::warn!(waits_for, "still stopping; send a second signal to force it");
                } else {
                    let pools = pools.join(", ");
                    tracing::warn!(pools, "still being exported; send a second signal to force it");
                }
                stopping.await
            }
        };
        stopped.map_err(|failed| {
            let all: Vec<String> = failed.iter().map(ToString::to_string).collect();
            let is_pool = |wanted: bool| failed.iter().any(|not| not.is_pool == wanted);
            let hint = match (is_pool(true), is_pool(false)) {
                (true, false) => "what was written to its volumes since their last flush may be lost",
                (true, true) => {
                    "the copies of arrays may differ: the next start needs a resync; what was written to pools since the last flush may be lost"
                }
                (false, _) => "the copies may differ: the next start needs a resync",
            };
            self.fail(FAILURE);
            Error::plain("not stopped cleanly", all.join(", ")).hint(hint)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stop that takes as long as a few writes to a slow disk is not a delay to report to a caller.
    #[test]
    fn callers_are_told_of_a_device_only_once_its_stop_takes_long() {
        let (ending, begun) = (Ending::default(), Instant::now());
        ending.wait_for(Obstacle::Device("md0".to_owned(), begun));
        assert_eq!(ending.delayed_by(begun + BRIEF / 2), Vec::<String>::new());
        assert_eq!(ending.delayed_by(begun + BRIEF), ["md0 is being stopped"]);
        assert_eq!(ending.waits_for(), ["md0 is being stopped"]);

        ending.wait_for(Obstacle::Clients(Arc::new(|| "NBD clients at [::1]:7".to_owned())));
        assert_eq!(ending.delayed_by(begun), ["NBD clients at [::1]:7"]);
    }

    #[test]
    fn a_signal_soon_after_a_step_asks_for_no_other() {
        let (mut requests, begun) = (Requests::default(), Instant::now());
        assert_eq!(requests.next(begun), Some(Stage::Asked));
        for (stage, next) in [(Stage::Asked, Stage::Forced), (Stage::Forced, Stage::Abandoned)] {
            let at = begun + SAME * 2 * stage as u32;
            requests.reach(stage, at);
            // A step that was taken before is not taken anew.
            requests.reach(stage, at + SAME / 2);
            requests.reach(Stage::Asked, at + SAME / 2);
            for soon in [Duration::ZERO, SAME - Duration::from_nanos(1)] {
                assert_eq!(requests.next(at + soon), None, "{stage:?}");
            }
            assert_eq!(requests.next(at + SAME), Some(next));
        }
    }
}
