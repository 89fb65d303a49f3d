//! Messages from other threads to a reactor: the only place where threads of the engine meet.
//!
//! A short lock guards the list of messages; [`Doorbell`] tells whether the reactor sleeps. A sender wakes it through
//! an eventfd on which the reactor always has a read pending, or, if the sender is a reactor too, by MSG_RING: a
//! completion posted straight into the sleeper's ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};
use std::{io, mem};

use ashlar_block::sync::lock;
use async_task::Runnable;
use rustix::event::{EventfdFlags, eventfd};

use crate::doorbell::Doorbell;

/// A message to a reactor.
pub(crate) enum Message {
    /// Run a task of this reactor that was woken on another thread.
    Run(Runnable),
    /// Call a closure on the reactor's thread.
    Call(Box<dyn FnOnce() + Send>),
}

/// What a mailbox takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    All,
    /// Tasks only: the reactor is about to end.
    Tasks,
    /// The reactor has ended.
    Nothing,
}

struct List {
    messages: Vec<Message>,
    takes: Takes,
}

/// One reactor's mailbox, shared with everything that may wake its tasks.
pub(crate) struct Mailbox {
    list: Mutex<List>,
    bell: Doorbell,
    event: OwnedFd,
    /// The ring to wake with MSG_RING, or -1.
    ring: AtomicI32,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            list: Mutex::new(List { messages: Vec::new(), takes: Takes::All }),
            bell: Doorbell::default(),
            // Blocking, so that a read through the ring waits for the next wake-up.
            event: eventfd(0, EventfdFlags::CLOEXEC)?,
            ring: AtomicI32::new(-1),
        })
    }

    /// Adds a message. Returns whether the sender must wake the reactor.
    ///
    /// # Errors
    /// Returns the message when the reactor has ended, and a call also when it is about to end.
    pub(crate) fn post(&self, message: Message) -> Result<bool, Message> {
        {
            let mut list = lock(&self.list);
            match (list.takes, &message) {
                (Takes::All, _) | (Takes::Tasks, Message::Run(_)) => list.messages.push(message),
                (Takes::Tasks, Message::Call(_)) | (Takes::Nothing, _) => return Err(message),
            }
        }
        Ok(self.ring_bell())
    }

    /// Has the reactor run a turn, with or without mail. Returns whether the caller must wake it.
    pub(crate) fn ring_bell(&self) -> bool {
        self.bell.ring()
    }

    /// Wakes the reactor through its eventfd.
    pub(crate) fn wake_by_event(&self) {
        // A failure would leave the reactor asleep forever; an eventfd write fails only on a closed descriptor, and we
        // own it. EINTR is retried.
        while let Err(error) = rustix::io::write(&self.event, &1_u64.to_ne_bytes()) {
            assert!(error == rustix::io::Errno::INTR, "waking a reactor: {error}");
        }
    }

    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(crate) fn ring(&self) -> RawFd {
        self.ring.load(Ordering::Acquire)
    }

    pub(crate) fn set_ring(&self, ring: RawFd) {
        self.ring.store(ring, Ordering::Release);
    }

    /// Reactor: takes all mail. Without any it costs one load.
    pub(crate) fn take(&self) -> Vec<Message> {
        if self.bell.answer() { mem::take(&mut lock(&self.list).messages) } else { Vec::new() }
    }

    /// Reactor: puts mail that it has taken before what has come since.
    pub(crate) fn put_back(&self, mail: impl Iterator<Item = Message>) {
        drop(lock(&self.list).messages.splice(..0, mail));
        self.bell.ring();
    }

    /// Reactor: see [`Doorbell::fall_asleep`].
    pub(crate) fn fall_asleep(&self) -> bool {
        self.bell.fall_asleep()
    }

    /// Reactor: see [`Doorbell::wake_up`].
    pub(crate) fn wake_up(&self) {
        self.bell.wake_up();
    }

    /// Reactor, about to end: takes all mail, and refuses later calls. Tasks still come, because a task that another thread has woken is
    /// dropped by nobody but the reactor.
    pub(crate) fn refuse_calls(&self) -> Vec<Message> {
        self.take_and_limit(Takes::Tasks)
    }

    /// Reactor, ending: takes all mail and refuses later mail.
    pub(crate) fn close(&self) -> Vec<Message> {
        self.take_and_limit(Takes::Nothing)
    }

    fn take_and_limit(&self, takes: Takes) -> Vec<Message> {
        self.set_ring(-1);
        let mut list = lock(&self.list);
        list.takes = takes;
        mem::take(&mut list.messages)
    }
}
