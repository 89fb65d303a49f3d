//! Threads for operations on files, where there is no io_uring.
//!
//! One pool serves all rings of the process. It has as many threads as operations were in flight at a time, up to a limit; idle
//! ones stay.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use ashlar_block::sync::lock;
use io_uring::opcode;

use super::sqe::Sqe;
use super::threads::{Inbox, returned};

/// The most threads, but for those of [`add_threads`].
const THREADS: usize = 16;

struct Job {
    sqe: Sqe,
    inbox: Arc<Inbox>,
}

// SAFETY: the memory that the entry names is not accessed by any thread but the one that executes it (see `Ring::push`).
unsafe impl Send for Job {}

struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    limit: usize,
}

static STATE: Mutex<State> =
    Mutex::new(State { jobs: VecDeque::new(), threads: 0, idle: 0, limit: THREADS });
static WORK: Condvar = Condvar::new();

/// Has operations executed, which then are in the inbox. Where no thread can be started, they are executed at once.
///
/// # Safety
/// As `Ring::push`.
pub(super) unsafe fn execute_all(sqes: impl Iterator<Item = Sqe>, inbox: &Arc<Inbox>) {
    let mut state = lock(&STATE);
    let before = state.jobs.len();
    state.jobs.extend(sqes.map(|sqe| Job { sqe, inbox: Arc::clone(inbox) }));
    let added = state.jobs.len() - before;
    let woken = added.min(state.idle);
    for _ in 0..woken {
        WORK.notify_one();
    }
    while state.jobs.len() > state.idle && state.threads < state.limit {
        let name = format!("ashlar-io-{}", state.threads);
        if let Err(error) = thread::Builder::new().name(name).spawn(work) {
            if state.threads > 0 {
                break;
            }
            tracing::error!(%error, "no thread for operations on files");
            let jobs = std::mem::take(&mut state.jobs);
            drop(state);
            jobs.into_iter().for_each(Job::run);
            return;
        }
        state.threads += 1;
        state.idle += 1;
    }
}

/// Takes an operation back that no thread has begun; true if there was one.
pub(super) fn cancel(user_data: u64, inbox: &Arc<Inbox>) -> bool {
    let mut state = lock(&STATE);
    let is_it = |job: &Job| job.sqe.user_data == user_data && Arc::ptr_eq(&job.inbox, inbox);
    let place = state.jobs.iter().position(is_it);
    place.and_then(|place| state.jobs.remove(place)).is_some()
}

/// Lets the pool have more threads.
pub(super) fn add_threads(count: usize) {
    lock(&STATE).limit += count;
}

fn work() {
    let mut state = lock(&STATE);
    loop {
        // It counted as idle since it was started.
        let Some(job) = state.jobs.pop_front() else {
            state = wait(state);
            continue;
        };
        state.idle -= 1;
        drop(state);
        job.run();
        state = lock(&STATE);
        state.idle += 1;
    }
}

fn wait(state: MutexGuard<'_, State>) -> MutexGuard<'_, State> {
    WORK.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Job {
    fn run(self) {
        // SAFETY: the promise of `execute_all`.
        let result = unsafe { execute(&self.sqe) };
        self.inbox.post(self.sqe.user_data, returned(result));
    }
}

/// Executes an operation that blocks.
///
/// # Safety
/// As `Ring::push`.
unsafe fn execute(sqe: &Sqe) -> io::Result<i64> {
    // SAFETY: the operation is in flight.
    let fd = unsafe { sqe.fd() }.as_raw_fd();
    let one = libc::iovec { iov_base: sqe.memory(), iov_len: sqe.len as usize };
    let is_vectored = matches!(sqe.opcode, opcode::Readv::CODE | opcode::Writev::CODE);
    let (pieces, count) = if is_vectored {
        (sqe.memory::<libc::iovec>().cast_const(), sqe.len as i32)
    } else {
        (&raw const one, 1)
    };
    let (offset, flags) = (sqe.offset as i64, sqe.flags as i32);
    let call = || match sqe.opcode {
        opcode::Read::CODE | opcode::Readv::CODE => {
            // SAFETY: the caller's promise for the memory.
            unsafe { libc::preadv2(fd, pieces, count, offset, flags) as i64 }
        }
        opcode::Write::CODE | opcode::Writev::CODE => {
            // SAFETY: the caller's promise for the memory.
            unsafe { libc::pwritev2(fd, pieces, count, offset, flags) as i64 }
        }
        // SAFETY: no memory is named.
        opcode::Fsync::CODE => i64::from(unsafe { libc::fdatasync(fd) }),
        opcode::Fallocate::CODE => {
            // SAFETY: no memory is named.
            i64::from(unsafe { libc::fallocate(fd, sqe.len as i32, offset, sqe.address as i64) })
        }
        opcode::Connect::CODE => {
            let size = sqe.offset as libc::socklen_t;
            // SAFETY: the caller's promise for the address.
            i64::from(unsafe { libc::connect(fd, sqe.memory(), size) })
        }
        _ => {
            // SAFETY: errno is this thread's.
            unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
            -1
        }
    };
    crate::sys::uninterrupted(call)
}
