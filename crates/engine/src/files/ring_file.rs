//! A file for use by all reactors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ashlar_block::sync::lock;
use io_uring::{squeue, types};
use rustix::fs::{Mode, OFlags};

use super::Place;
use crate::mailbox::{Mailbox, Message};
use crate::reactor::{self, ReactorCore};
use crate::sys::checked;

/// How an entry names its file: a number, and the kind of number.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) number: types::Fd,
    pub(crate) flags: squeue::Flags,
}

static NEXT_ID: AtomicUsize = AtomicUsize::new(0);

/// A file for use by all reactors.
pub(crate) struct RingFile {
    fd: OwnedFd,
    id: usize,
    /// The reactors whose rings have registered it.
    known_to: Mutex<Vec<Arc<Mailbox>>>,
}

impl RingFile {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Self { fd, id, known_to: Mutex::new(Vec::new()) }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The file's number in `core`'s ring; registers the file at its first use.
    pub(crate) fn target(&self, core: &ReactorCore) -> Target {
        let place = *core.files.borrow_mut().place(self.id);
        let place = if place == Place::Unknown { self.register(core) } else { place };
        match place {
            // Slots are below the table's size, which is small.
            Place::Slot(slot) => {
                Target { number: types::Fd(slot as i32), flags: squeue::Flags::FIXED_FILE }
            }
            Place::Unregistered | Place::Unknown => {
                let number = types::Fd(self.fd.as_raw_fd());
                Target { number, flags: squeue::Flags::empty() }
            }
        }
    }

    #[cold]
    fn register(&self, core: &ReactorCore) -> Place {
        let mut files = core.files.borrow_mut();
        let mut place = Place::Unregistered;
        // Locked first: a file that is closed meanwhile is not registered, or is forgotten by this ring, too.
        let mut known_to = lock(&self.known_to);
        if let Some(slot) = files.free.pop() {
            match core.ring().register_file(slot, Some(self.fd.as_fd())) {
                Ok(()) => place = Place::Slot(slot),
                Err(error) => {
                    tracing::debug!(%error, "file not registered with the ring");
                    files.free.push(slot);
                }
            }
        }
        *files.place(self.id) = place;
        known_to.push(Arc::clone(&core.mailbox));
        place
    }
}

impl RingFile {
    /// Closes the file: later operations fail.
    ///
    /// # Errors
    /// There is no descriptor left for the moment: the file stays open.
    pub(crate) fn close(&self) -> io::Result<()> {
        let nowhere = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let mut known_to = lock(&self.known_to);
        // SAFETY: dup3 replaces the file behind a number that this value owns, and still owns afterwards.
        checked(unsafe { libc::dup3(nowhere.as_raw_fd(), self.fd.as_raw_fd(), libc::O_CLOEXEC) })?;
        tell(&mut known_to, self.id, forget);
        Ok(())
    }
}

impl Drop for RingFile {
    fn drop(&mut self) {
        let id = self.id;
        tell(self.known_to.get_mut().unwrap_or_else(PoisonError::into_inner), id, release);
    }
}

/// Has reactors do `work` for the file `id`.
fn tell(reactors: &mut Vec<Arc<Mailbox>>, id: usize, work: fn(&ReactorCore, usize)) {
    for mailbox in reactors.drain(..) {
        let call = move || work(&reactor::current(), id);
        // A reactor that has ended has closed its ring, and with it the files.
        let (Ok(()) | Err(_)) = reactor::send(&mailbox, Message::Call(Box::new(call)));
    }
}

/// Empties the slot of file `id`, which stays taken: entries that name it may be on their way.
fn forget(core: &ReactorCore, id: usize) {
    let mut files = core.files.borrow_mut();
    let place = std::mem::replace(files.place(id), Place::Unregistered);
    if let Place::Slot(slot) = place
        && let Err(error) = core.ring().register_file(slot, None)
    {
        tracing::warn!(%error, "file stays registered with the ring");
    }
}

/// Frees the slot of file `id`.
fn release(core: &ReactorCore, id: usize) {
    let mut files = core.files.borrow_mut();
    let place = std::mem::replace(files.place(id), Place::Unknown);
    if let Place::Slot(slot) = place {
        match core.ring().register_file(slot, None) {
            Ok(()) => files.free.push(slot),
            // The slot stays taken: two files must not use it.
            Err(error) => tracing::warn!(%error, "file stays registered with the ring"),
        }
    }
}
