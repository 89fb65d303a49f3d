//! Sending work to a reactor from other threads.

use std::future::Future;
use std::sync::Arc;

use crate::mailbox::{Mailbox, Message};
use crate::oneshot::{self, Receiver};
use crate::reactor::{self, Reactor};

/// A reactor as other threads see it.
#[derive(Clone)]
pub struct Handle {
    mailbox: Arc<Mailbox>,
}

impl Handle {
    /// The current thread's reactor.
    ///
    /// # Panics
    /// On a thread without one.
    pub fn current() -> Self {
        Self { mailbox: Arc::clone(&reactor::current().mailbox) }
    }

    /// Whether this is the current thread's reactor.
    pub fn is_current(&self) -> bool {
        reactor::try_current().is_some_and(|core| Arc::ptr_eq(&core.mailbox, &self.mailbox))
    }

    /// Calls `make` on the reactor's thread and runs the future it returns there. Ends with its output, or with
    /// [`ReceiveError`] if the reactor ended or the future panicked before. Dropping the result does not stop the future.
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
        if let Err(refused) = reactor::send(&self.mailbox, Message::Call(Box::new(call))) {
            // Dropping the closure drops the sender, which tells the receiver.
            drop(refused);
        }
        receiver
    }
}

impl Reactor {
    /// A handle for other threads.
    pub fn handle(&self) -> Handle {
        Handle { mailbox: Arc::clone(self.mailbox()) }
    }
}
