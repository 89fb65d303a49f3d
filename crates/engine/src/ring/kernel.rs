//! One io_uring: set-up with fallback to older kernels, submission policy, harvest.
//!
//! Entries are queued with [`KernelRing::push`]. They reach the kernel at [`KernelRing::flush`] (no waiting, and completions are
//! not run) or at [`KernelRing::enter`] (which also runs the kernel's deferred work and may wait). An entry that finds the
//! queue full waits in a backlog: no entry is ever refused, and the layers above bound the number of operations in
//! flight (queue depth, sockets, volumes).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};

use super::Completion;

/// `IORING_ENTER_GETEVENTS` of the kernel's `include/uapi/linux/io_uring.h`.
const ENTER_GETEVENTS: u32 = 1;

/// All that reactors have a ring do. Nothing among it opens a file, makes a socket or connects one.
const OPERATIONS: [u8; 16] = [
    opcode::Read::CODE,
    opcode::ReadFixed::CODE,
    opcode::Readv::CODE,
    opcode::Write::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::UringCmd16::CODE,
    opcode::Recv::CODE,
    opcode::Send::CODE,
    opcode::SendMsg::CODE,
    opcode::Accept::CODE,
    opcode::Shutdown::CODE,
    opcode::PollAdd::CODE,
    opcode::AsyncCancel::CODE,
    opcode::MsgRingData::CODE,
];

/// The registrations of a ring in use, `enum io_uring_register_op` of the kernel's `include/uapi/linux/io_uring.h`: buffers, files
/// (registered, updated, unregistered) and the number of workers.
const REGISTRATIONS: [u8; 6] = [0, 3, 6, 13, 15, 19];

/// The features the ring was set up with, newest kernel first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// SINGLE_ISSUER, DEFER_TASKRUN (6.1): completions run when we enter, in our order.
    Deferred,
    /// COOP_TASKRUN (5.19): completions run at any of our system calls, without interrupting us.
    Cooperative,
    /// No features (5.11, for EXT_ARG).
    Plain,
}

pub(crate) struct KernelRing {
    uring: IoUring,
    backlog: VecDeque<squeue::Entry>,
    queued: u32,
    probe: Probe,
}

impl KernelRing {
    /// Sets a ring up with room for `entries` submissions and four times as many completions; `plain`: only with
    /// features of Linux 5.11; `restricted`: for good only for what reactors do.
    ///
    /// # Errors
    /// Those of io_uring_setup(2) for the plainest flags, explained, and `Unsupported` before Linux 5.11.
    pub(super) fn new(entries: u32, plain: bool, restricted: bool) -> io::Result<Self> {
        let build = |mode| {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(entries.saturating_mul(4)).setup_clamp();
            if restricted {
                builder.setup_r_disabled();
            }
            match mode {
                Mode::Deferred => {
                    builder.setup_single_issuer().setup_defer_taskrun();
                    builder.setup_taskrun_flag().setup_submit_all();
                }
                Mode::Cooperative => {
                    builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
                }
                Mode::Plain => {}
            }
            builder.build(entries).map(|uring| (uring, mode))
        };
        let built = if plain {
            build(Mode::Plain)
        } else {
            build(Mode::Deferred)
                .or_else(|_| build(Mode::Cooperative))
                .or_else(|_| build(Mode::Plain))
        };
        let (uring, mode) = built.map_err(explain)?;
        if !plain {
            say_mode_once(mode);
        }
        let params = uring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's io_uring is too old: Linux 5.11 or newer is needed",
            ));
        }
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        if restricted {
            restrict(&uring)?;
        }
        Ok(Self { uring, backlog: VecDeque::new(), queued: 0, probe })
    }

    /// Whether the kernel supports an opcode.
    pub(super) fn supports(&self, opcode: u8) -> bool {
        self.probe.is_supported(opcode)
    }

    /// The ring's own descriptor, the target of MSG_RING.
    pub(super) fn fd(&self) -> RawFd {
        self.uring.as_raw_fd()
    }

    /// Entries not yet submitted to the kernel.
    pub(super) fn queued(&self) -> u32 {
        self.queued
    }

    /// Queues an entry; the kernel sees it at the next [`Self::flush`] or [`Self::enter`].
    ///
    /// # Safety
    /// All memory that the entry names must stay valid, and its descriptor open, until the
    /// completion with the entry's user data has been harvested.
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) {
        self.queued += 1;
        // SAFETY: the caller's promise is push()'s requirement.
        let full =
            !self.backlog.is_empty() || unsafe { self.uring.submission().push(&entry) }.is_err();
        if full {
            self.backlog.push_back(entry);
        }
    }

    /// Moves entries from the backlog into the queue, as many as fit. Returns the queue's length.
    fn refill(&mut self) -> u32 {
        let mut queue = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the promise given to push() for this entry still holds: the entry is not complete.
            if unsafe { queue.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
        // At most the ring's size, a u32.
        queue.len() as u32
    }

    fn note_consumed(&mut self, consumed: io::Result<usize>) -> io::Result<()> {
        match consumed {
            Ok(count) => {
                self.queued = self.queued.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
                Ok(())
            }
            // EINTR and ETIME: we were woken; EAGAIN and EBUSY: the kernel lacks memory or room for completions, and
            // takes the rest after the next harvest.
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Submits queued entries to the kernel, without running completions.
    ///
    /// # Errors
    /// Those of io_uring_enter(2) that do not go away by waiting.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let count = self.refill();
        if count == 0 {
            return Ok(());
        }
        // SAFETY: no argument block is passed, and `count` entries are in the queue.
        let consumed = unsafe { self.uring.submitter().enter::<libc::sigset_t>(count, 0, 0, None) };
        self.note_consumed(consumed)
    }

    /// Submits queued entries and runs the kernel's deferred completions. With `wait`, sleeps until there is a
    /// completion or that time has passed (`None` inside: no limit).
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub(super) fn enter(&mut self, wait: Option<Option<Duration>>) -> io::Result<()> {
        let count = self.refill();
        let submitter = self.uring.submitter();
        let consumed = match wait {
            Some(Some(limit)) => {
                let limit = Timespec::from(limit);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
            Some(None) => submitter.submit_and_wait(1),
            None => {
                // SAFETY: as in flush().
                unsafe { submitter.enter::<libc::sigset_t>(count, 0, ENTER_GETEVENTS, None) }
            }
        };
        self.note_consumed(consumed)
    }

    /// Whether entering would do anything: submit entries or run completions.
    pub(super) fn has_work(&mut self) -> bool {
        if self.queued > 0 {
            return true;
        }
        let queue = self.uring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Whether completions are posted, or entering would post some.
    pub(super) fn has_completions(&mut self) -> bool {
        let queue = self.uring.submission();
        let deferred = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        deferred || !self.uring.completion().is_empty()
    }

    /// Moves all completions that the kernel has posted to `into`.
    pub(super) fn harvest(&mut self, into: &mut Vec<Completion>) {
        into.extend(self.uring.completion().map(|entry: cqueue::Entry| Completion {
            user_data: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        }));
    }

    /// Lets the kernel have `count` more threads for operations on files.
    ///
    /// # Errors
    /// Those of io_uring_register(2); unsupported before Linux 5.15.
    pub(super) fn add_workers(&self, count: u32) -> io::Result<()> {
        let submitter = self.uring.submitter();
        let mut limits = [0, 0];
        submitter.register_iowq_max_workers(&mut limits)?;
        submitter.register_iowq_max_workers(&mut [limits[0].saturating_add(count), 0])
    }

    /// Registers the `len` bytes at `start`, as memory number 0: the kernel pins their pages until the ring is closed.
    ///
    /// # Errors
    /// Those of io_uring_register(2); `Unsupported` on a kernel that would first wait until the ring is idle.
    ///
    /// # Safety
    /// The memory is writable, and neither freed nor used for anything else before the ring is closed.
    pub(super) unsafe fn register_memory(&self, start: *mut u8, len: usize) -> io::Result<()> {
        if !self.uring.params().is_feature_resource_tagging() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let memory = libc::iovec { iov_base: start.cast(), iov_len: len };
        // SAFETY: the caller's promise.
        unsafe { self.uring.submitter().register_buffers(&[memory]) }
    }

    /// Makes room for `count` registered files.
    ///
    /// # Errors
    /// Those of io_uring_register(2); unsupported before Linux 5.19.
    pub(super) fn register_table(&self, count: u32) -> io::Result<()> {
        self.uring.submitter().register_files_sparse(count)
    }

    /// Puts a file into slot `slot`, or empties the slot.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    pub(super) fn register_file(&self, slot: u32, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let fd = file.map_or(-1, |file| file.as_raw_fd());
        self.uring.submitter().register_files_update(slot, &[fd]).map(|_| ())
    }

    /// Makes the ring release all files and its table.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    pub(super) fn unregister_files(&self) -> io::Result<()> {
        self.uring.submitter().unregister_files()
    }
}

/// Allows a ring that is not enabled yet what reactors do, and enables it. With SINGLE_ISSUER the thread that enables it is its
/// issuer.
fn restrict(uring: &IoUring) -> io::Result<()> {
    let mut allowed: Vec<Restriction> = OPERATIONS.into_iter().map(Restriction::sqe_op).collect();
    allowed.extend(REGISTRATIONS.into_iter().map(Restriction::register_op));
    // Operations on files of FUSE are for a thread of the kernel.
    let flags = squeue::Flags::FIXED_FILE | squeue::Flags::ASYNC;
    allowed.push(Restriction::sqe_flags_allowed(flags.bits()));
    uring.submitter().register_restrictions(&mut allowed)?;
    uring.submitter().register_enable_rings()
}

/// Explains the usual cause of a refusal.
fn explain(error: io::Error) -> io::Error {
    let why = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "not permitted here (sysctl kernel.io_uring_disabled, or a container's seccomp filter)"
        }
        Some(libc::ENOSYS) => "not in this kernel (or hidden by a container's seccomp filter)",
        Some(libc::ENOMEM) => "no memory for the ring (limit of locked memory, ulimit -l)",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{why}: {error}"))
}

fn say_mode_once(mode: Mode) {
    use std::sync::Once;
    static SAID: Once = Once::new();
    SAID.call_once(|| match mode {
        Mode::Deferred => tracing::debug!("io_uring with deferred task work"),
        Mode::Cooperative => tracing::warn!(
            "io_uring without DEFER_TASKRUN (Linux 6.1): using COOP_TASKRUN, somewhat slower"
        ),
        Mode::Plain => tracing::warn!(
            "io_uring without COOP_TASKRUN (Linux 5.19): completions interrupt the reactors"
        ),
    });
}
