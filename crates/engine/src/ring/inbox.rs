//! Where the threads of the pool post completions of a ring.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use ashlar_block::sync::lock;
use rustix::event::{EventfdFlags, eventfd};

use super::Completion;

/// What the threads of the pool have executed for a ring.
pub(super) struct Inbox {
    done: Mutex<Vec<Completion>>,
    /// Whether the reactor sleeps, or is about to.
    sleeps: AtomicBool,
    event: OwnedFd,
}

impl Inbox {
    /// # Errors
    /// No descriptors.
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { done: Mutex::default(), sleeps: AtomicBool::new(false), event })
    }

    /// Adds a completion, and wakes the reactor.
    pub(super) fn post(&self, user_data: u64, result: i32) {
        lock(&self.done).push(Completion::new(user_data, result));
        // Either the reactor sees the completion before it sleeps, or this thread sees that it sleeps.
        if self.sleeps.swap(false, SeqCst) {
            let (Ok(_) | Err(_)) = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Reactor: whether it sleeps, or is about to.
    pub(super) fn set_sleeps(&self, sleeps: bool) {
        self.sleeps.store(sleeps, SeqCst);
    }

    /// What becomes readable when a sleeping reactor is woken.
    pub(super) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Reactor: moves all completions to `into`.
    pub(super) fn harvest(&self, into: &mut Vec<Completion>) {
        into.append(&mut lock(&self.done));
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.done).is_empty()
    }
}

/// A result as io_uring posts it: a count, or minus an errno.
pub(super) fn returned(result: io::Result<i64>) -> i32 {
    match result {
        Ok(count) => i32::try_from(count).unwrap_or(i32::MAX),
        Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
    }
}
