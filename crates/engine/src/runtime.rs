//! Several reactors: starting them, and their interface to the block layers.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc::{self, SyncSender};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ashlar_block::device::LocalFuture;
use ashlar_block::runtime::Runtime;

use crate::compute;
use crate::handle::Handle;
use crate::oneshot::{self, ReceiveError, Receiver, Sender};
use crate::reactor::{self, Reactor, ReactorConfig};
use crate::timer;

/// The panic of a reactor's thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadPanic {
    /// The thread's name.
    pub thread: String,
    /// The panic's message.
    pub message: String,
}

/// Reactor threads.
pub struct Engine {
    handles: Vec<Handle>,
    /// Dropping one ends its reactor.
    stops: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    /// One for each thread; cancelled when that thread ends normally.
    panics: Vec<Receiver<ThreadPanic>>,
}

impl Engine {
    /// Starts `count` reactors, on threads named [`Self::thread_name`].
    ///
    /// # Errors
    /// Those of [`Reactor::new`] and of starting threads; reactors that were already started are ended.
    pub fn start(count: usize) -> io::Result<Self> {
        Self::with_config(count, ReactorConfig::default())
    }

    /// As [`Self::start`], with settings.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn with_config(count: usize, config: ReactorConfig) -> io::Result<Self> {
        let mut engine = Self {
            handles: Vec::new(),
            stops: Vec::new(),
            threads: Vec::new(),
            panics: Vec::new(),
        };
        for index in 0..count {
            let (stop, stopped) = oneshot::channel();
            let (panicked, panics) = oneshot::channel();
            let (started, handle) = mpsc::sync_channel(1);
            let thread = Self::thread_name(index);
            let name = thread.clone();
            let body = move || {
                if let Some(message) = serve(config, &started, stopped) {
                    panicked.send(ThreadPanic { thread: name, message });
                }
            };
            engine.threads.push(thread::Builder::new().name(thread).spawn(body)?);
            engine.stops.push(stop);
            engine.panics.push(panics);
            let ended = |_| io::Error::other("a reactor thread ended as it started");
            engine.handles.push(handle.recv().map_err(ended)??);
        }
        Ok(engine)
    }

    /// The name of the thread of one of [`Self::handles`].
    pub fn thread_name(index: usize) -> String {
        format!("ashlar-{index}")
    }

    /// The reactors, in order.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Ends when a reactor's thread has panicked outside of its tasks, with the thread and the message. (A task's panic
    /// reaches the task that awaits it, and leaves the thread running.) Only the first call's future reports panics;
    /// those of later calls never end.
    ///
    /// The tasks of that thread are no longer run or dropped, and its operations are neither awaited nor
    /// forgotten: to the rest of the process they stay in flight, because an interrupted write must not look like one
    /// that has ended. Work sent to its handle ends with [`ReceiveError`].
    pub fn panicked(&mut self) -> impl Future<Output = ThreadPanic> + use<> {
        let mut all = std::mem::take(&mut self.panics);
        poll_fn(move |cx| {
            for panics in &mut all {
                if let Poll::Ready(Ok(panicked)) = Pin::new(panics).poll(cx) {
                    return Poll::Ready(panicked);
                }
            }
            Poll::Pending
        })
    }

    /// Ends all reactors: drops their tasks and waits for their I/O in flight.
    pub fn shutdown(self) {}
}

impl Drop for Engine {
    fn drop(&mut self) {
        if thread::panicking() {
            // The process is about to end, and the work on these reactors has not been stopped: their tasks must not be
            // dropped one by one where others can see it. They run on until the process ends.
            std::mem::forget(std::mem::take(&mut self.stops));
            return;
        }
        self.stops.clear();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a reactor thread panicked");
            }
        }
    }
}

/// A reactor's thread; returns the message of its panic.
fn serve(
    config: ReactorConfig,
    started: &SyncSender<io::Result<Handle>>,
    stopped: Receiver<()>,
) -> Option<String> {
    let (reactor, handle) = match Reactor::new(config) {
        Ok(reactor) => (Some(reactor), Ok(Handle::current())),
        Err(error) => (None, Err(error)),
    };
    if started.send(handle).is_err() {
        tracing::debug!("nobody waits for the reactor");
        return None;
    }
    let reactor = reactor?;
    // Broken state is never used again: the reactor is abandoned.
    match catch_unwind(AssertUnwindSafe(|| reactor.block_on(stopped))) {
        // Stopped by a message or by dropping the engine: the same.
        Ok(Ok(()) | Err(ReceiveError)) => None,
        Err(payload) => {
            reactor.abandon();
            Some(message(&*payload))
        }
    }
}

/// The message of a panic.
fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

/// The reactors as a [`Runtime`] for the block layers.
#[derive(Clone, Copy, Default, Debug)]
pub struct EngineRuntime;

impl Runtime for EngineRuntime {
    fn now_ns(&self) -> u64 {
        timer::now_ns()
    }

    fn wall_clock(&self) -> Duration {
        timer::wall_clock()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<'static, ()> {
        Box::pin(timer::sleep(duration))
    }

    fn spawn(&self, task: LocalFuture<'static, ()>) {
        reactor::spawn(task).detach();
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send>) -> LocalFuture<'static, ()> {
        let ended = compute::run(work);
        Box::pin(async move {
            // A caller that waits for a result sees that it is missing.
            let (Ok(()) | Err(ReceiveError)) = ended.await;
        })
    }
}
