//! A reactor's way to the kernel: an io_uring, or, where that is refused, [threads] that do the same.

mod cqe;
mod inbox;
mod kernel;
mod pool;
mod sqe;
#[cfg(test)]
mod tests;
mod threads;

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use io_uring::squeue;

pub(crate) use cqe::Completion;
use kernel::KernelRing;
pub(crate) use sqe::STREAM;
use threads::ThreadsRing;

/// The variable of the environment that chooses the [`BackEnd`] where the program does not: `uring` or `threads`.
const VARIABLE: &str = "ASHLAR_IO";

/// How the reactors of this process reach the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum BackEnd {
    /// io_uring, or threads where the kernel refuses it.
    Auto,
    /// io_uring.
    Uring,
    /// Threads and epoll.
    Threads,
}

/// A text is no [`BackEnd`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is neither auto, uring nor threads")]
pub struct BadBackEnd(String);

impl FromStr for BackEnd {
    type Err = BadBackEnd;

    fn from_str(text: &str) -> Result<Self, BadBackEnd> {
        match text {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "threads" => Ok(Self::Threads),
            _ => Err(BadBackEnd(text.to_owned())),
        }
    }
}

/// The one that was chosen for the process, then the one that the last reactor has.
static CHOSEN: AtomicU8 = AtomicU8::new(BackEnd::Auto as u8);
static USED: AtomicU8 = AtomicU8::new(BackEnd::Auto as u8);

fn load(from: &AtomicU8) -> BackEnd {
    match from.load(Relaxed) {
        1 => BackEnd::Uring,
        2 => BackEnd::Threads,
        _ => BackEnd::Auto,
    }
}

impl BackEnd {
    /// Chooses the one of all reactors that are created from now on.
    pub fn choose(self) {
        CHOSEN.store(self as u8, Relaxed);
    }

    /// `io_uring`, `threads`, or `auto`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "io_uring",
            Self::Threads => "threads",
        }
    }

    fn chosen() -> Self {
        static FROM_ENVIRONMENT: OnceLock<BackEnd> = OnceLock::new();
        let chosen = load(&CHOSEN);
        if chosen != Self::Auto {
            return chosen;
        }
        *FROM_ENVIRONMENT.get_or_init(|| {
            let text = std::env::var(VARIABLE).unwrap_or_default();
            text.parse().unwrap_or_else(|error| {
                if !text.is_empty() {
                    tracing::warn!(variable = VARIABLE, %error, "ignored");
                }
                Self::Auto
            })
        })
    }

    /// The one that reactors have; `Auto` before there was one.
    pub fn used() -> Self {
        load(&USED)
    }
}

/// What io_urings the process may have: any, restricted ones, no more than it has.
static RINGS: AtomicU8 = AtomicU8::new(ANY);
const ANY: u8 = 0;
const RESTRICTED: u8 = 1;
const ENDED: u8 = 2;

/// From now on the kernel refuses new io_urings of this process all but what reactors need: they open no file and connect no socket.
/// For a process that is about to enter a sandbox whose filter of system calls does not see what a ring does. Network disks
/// can no longer be connected to.
pub fn restrict_rings() {
    RINGS.fetch_max(RESTRICTED, Relaxed);
}

/// From now on new reactors have threads: a filter of system calls refuses further io_urings.
pub fn end_rings() {
    RINGS.store(ENDED, Relaxed);
}

/// See the module text. Entries are queued with [`Ring::push`]. They reach the kernel at [`Ring::flush`] (no waiting, and
/// completions are not run) or at [`Ring::enter`] (which also runs deferred work and may wait).
#[expect(clippy::large_enum_variant, reason = "a reactor has one, behind a reference count")]
pub(crate) enum Ring {
    Kernel(KernelRing),
    Threads(ThreadsRing),
}

impl Ring {
    /// A ring with room for `entries` submissions; `plain`: only with features of Linux 5.11.
    ///
    /// # Errors
    /// Those of io_uring_setup(2), explained, where threads may not stand for it; too few descriptors.
    pub(crate) fn new(entries: u32, plain: bool) -> io::Result<Self> {
        let made = Self::with(BackEnd::chosen(), entries, plain)?;
        let used = match made {
            Self::Kernel(_) => BackEnd::Uring,
            Self::Threads(_) => BackEnd::Threads,
        };
        // The disks' reactors were made before.
        if RINGS.load(Relaxed) != ENDED {
            USED.store(used as u8, Relaxed);
        }
        Ok(made)
    }

    /// As [`Self::new`], with this back end.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn with(chosen: BackEnd, entries: u32, plain: bool) -> io::Result<Self> {
        let rings = RINGS.load(Relaxed);
        match chosen {
            _ if rings == ENDED => ThreadsRing::new().map(Self::Threads),
            BackEnd::Threads => ThreadsRing::new().map(Self::Threads),
            BackEnd::Uring | BackEnd::Auto => {
                match KernelRing::new(entries, plain, rings == RESTRICTED) {
                    Err(error) if chosen == BackEnd::Auto && is_refusal(&error) => {
                        note_once(&error);
                        ThreadsRing::new().map(Self::Threads)
                    }
                    made => made.map(Self::Kernel),
                }
            }
        }
    }

    /// Whether the kernel supports an opcode.
    pub(crate) fn supports(&self, opcode: u8) -> bool {
        match self {
            Self::Kernel(ring) => ring.supports(opcode),
            Self::Threads(_) => false,
        }
    }

    /// The ring's own descriptor, the target of MSG_RING; -1 if it has none.
    pub(crate) fn fd(&self) -> RawFd {
        match self {
            Self::Kernel(ring) => ring.fd(),
            Self::Threads(_) => -1,
        }
    }

    /// Entries not yet submitted to the kernel.
    #[inline]
    pub(crate) fn queued(&self) -> u32 {
        match self {
            Self::Kernel(ring) => ring.queued(),
            Self::Threads(ring) => ring.queued(),
        }
    }

    /// Queues an entry; the kernel sees it at the next [`Self::flush`] or [`Self::enter`].
    ///
    /// # Safety
    /// All memory that the entry names must stay valid, and its descriptor open, until the completion with the entry's user data
    /// has been harvested; until then only the operation accesses the memory.
    #[inline]
    pub(crate) unsafe fn push(&mut self, entry: squeue::Entry) {
        match self {
            // SAFETY: the caller's promise.
            Self::Kernel(ring) => unsafe { ring.push(entry) },
            // SAFETY: the caller's promise.
            Self::Threads(ring) => unsafe { ring.push(&entry) },
        }
    }

    /// Submits queued entries, without running completions.
    ///
    /// # Errors
    /// Those of io_uring_enter(2) that do not go away by waiting.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => ring.flush(),
            Self::Threads(ring) => {
                ring.flush();
                Ok(())
            }
        }
    }

    /// Submits queued entries and runs deferred completions. With `wait`, sleeps until there is a completion or that time has passed
    /// (`None` inside: no limit).
    ///
    /// # Errors
    /// As [`Self::flush`]; those of epoll_wait(2).
    pub(crate) fn enter(&mut self, wait: Option<Option<Duration>>) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => ring.enter(wait),
            Self::Threads(ring) => ring.enter(wait),
        }
    }

    /// Whether entering would do anything: submit entries or run completions.
    pub(crate) fn has_work(&mut self) -> bool {
        match self {
            Self::Kernel(ring) => ring.has_work(),
            Self::Threads(ring) => ring.has_work(),
        }
    }

    /// Whether completions are posted, or entering would post some.
    pub(crate) fn has_completions(&mut self) -> bool {
        match self {
            Self::Kernel(ring) => ring.has_completions(),
            Self::Threads(ring) => ring.has_completions(),
        }
    }

    /// Moves all completions that are posted to `into`.
    pub(crate) fn harvest(&mut self, into: &mut Vec<Completion>) {
        match self {
            Self::Kernel(ring) => ring.harvest(into),
            Self::Threads(ring) => ring.harvest(into),
        }
    }

    /// Allows `count` more threads for operations on files that block.
    ///
    /// # Errors
    /// Those of io_uring_register(2); unsupported before Linux 5.15.
    pub(crate) fn add_workers(&self, count: u32) -> io::Result<()> {
        match self {
            Self::Kernel(ring) => ring.add_workers(count),
            // Each file has a thread for itself.
            Self::Threads(_) => Ok(()),
        }
    }

    /// Registers the `len` bytes at `start`, as memory number 0: the kernel pins their pages until the ring is closed.
    ///
    /// # Errors
    /// Those of io_uring_register(2); `Unsupported` on a kernel that would first wait until the ring is idle, and without io_uring.
    ///
    /// # Safety
    /// The memory is writable, and neither freed nor used for anything else before the ring is closed.
    pub(crate) unsafe fn register_memory(&self, start: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller's promise.
        self.kernel().and_then(|ring| unsafe { ring.register_memory(start, len) })
    }

    /// Makes room for `count` registered files.
    ///
    /// # Errors
    /// Those of io_uring_register(2); unsupported before Linux 5.19, and without io_uring.
    pub(crate) fn register_table(&self, count: u32) -> io::Result<()> {
        self.kernel()?.register_table(count)
    }

    /// Puts a file into slot `slot`, or empties the slot.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn register_file(&self, slot: u32, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.kernel()?.register_file(slot, file)
    }

    /// Makes the ring release all files and its table.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn unregister_files(&self) -> io::Result<()> {
        self.kernel()?.unregister_files()
    }

    fn kernel(&self) -> io::Result<&KernelRing> {
        match self {
            Self::Kernel(ring) => Ok(ring),
            Self::Threads(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Whether the kernel has no io_uring for this process. (Without memory for a ring, threads would hide what to do.)
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}

fn note_once(error: &io::Error) {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        // A daemon logs this, and a command does not: in a container every command would.
        tracing::info!(
            %error,
            "no io_uring: threads with epoll do its work, and small requests take more CPU time"
        );
    });
}
