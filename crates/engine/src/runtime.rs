//! Several reactors: starting them, talking to them, and what the block layers see of them.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ashlar_block::device::LocalFuture;
use ashlar_block::runtime::Runtime;

use crate::compute;
use crate::mailbox::{Mailbox, Message};
use crate::oneshot::{self, Cancelled, Receiver, Sender};
use crate::reactor::{self, Reactor, ReactorConfig};
use crate::timer;

/// A reactor as other threads see it.
#[derive(Clone)]
pub struct Handle {
    mailbox: Arc<Mailbox>,
}

impl Handle {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self { mailbox }
    }

    /// The current thread's reactor.
    ///
    /// # Panics
    /// On a thread without one.
    pub fn current() -> Self {
        Self::new(Arc::clone(&reactor::current().mailbox))
    }

    /// Whether this is the current thread's reactor.
    pub fn is_current(&self) -> bool {
        reactor::try_current().is_some_and(|core| Arc::ptr_eq(&core.mailbox, &self.mailbox))
    }

    /// Calls `make` on the reactor's thread and runs the future it returns there. Ends with its
    /// output, or [`Cancelled`] if the reactor ended, or the future panicked,
    /// before. Dropping the result does not stop the future.
    pub fn spawn_on<F, Fut>(&self, make: F) -> Receiver<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let call = move || {
            let future = make();
            reactor::spawn(async move { sender.send(future.await) }).detach();
        };
        if let Err(refused) = self.mailbox.send(Message::Call(Box::new(call))) {
            // Dropping the closure drops the sender, which tells the receiver.
            drop(refused);
        }
        receiver
    }
}

/// Reactor threads.
pub struct Engine {
    handles: Vec<Handle>,
    /// Dropping one ends its reactor.
    stops: Vec<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Starts `count` reactors, named `ashlar-0` and so on.
    ///
    /// # Errors
    /// Those of [`Reactor::new`] and of starting threads; the reactors started before are ended.
    pub fn start(count: usize) -> io::Result<Self> {
        Self::with_config(count, ReactorConfig::default())
    }

    /// As [`Self::start`], with knobs.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn with_config(count: usize, config: ReactorConfig) -> io::Result<Self> {
        let mut engine = Self { handles: Vec::new(), stops: Vec::new(), threads: Vec::new() };
        for index in 0..count {
            let (stop, stopped) = oneshot::channel();
            let (started, handle) = mpsc::sync_channel(1);
            let body = move || serve(config, &started, stopped);
            let thread = thread::Builder::new().name(format!("ashlar-{index}")).spawn(body)?;
            engine.threads.push(thread);
            engine.stops.push(stop);
            let ended = |_| io::Error::other("a reactor thread ended as it started");
            engine.handles.push(handle.recv().map_err(ended)??);
        }
        Ok(engine)
    }

    /// The reactors, in order.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Ends all reactors: their tasks are dropped, their I/O in flight is waited for.
    pub fn shutdown(self) {}
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stops.clear();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a reactor thread panicked");
            }
        }
    }
}

fn serve(config: ReactorConfig, started: &SyncSender<io::Result<Handle>>, stopped: Receiver<()>) {
    let (reactor, handle) = match Reactor::new(config) {
        Ok(reactor) => (Some(reactor), Ok(Handle::current())),
        Err(error) => (None, Err(error)),
    };
    if started.send(handle).is_err() {
        tracing::debug!("nobody waits for the reactor");
        return;
    }
    if let Some(reactor) = reactor {
        // Stopped by word or by the engine's end: the same.
        let (Ok(()) | Err(Cancelled)) = reactor.block_on(stopped);
    }
}

/// The reactors as the block layers' [`Runtime`].
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
            // Whoever waits for a result sees that there is none.
            let (Ok(()) | Err(Cancelled)) = ended.await;
        })
    }
}
