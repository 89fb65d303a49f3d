//! Threads for operations on files, where there is no io_uring.
//!
//! One pool serves all rings of the process. It has as many threads as operations were in flight at a time; idle ones stay.
//!
//! The operations of a descriptor form a lane. A lane has at most [`LANE_THREADS`] operations at a time, and all together have
//! [`THREADS`]; but a lane may always have one. So a file that does not answer holds back no operation on another file, however
//! many of its own wait. Lanes take turns.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use ashlar_block::sync::lock;
use io_uring::opcode;
use io_uring::types::FsyncFlags;

use super::inbox::{Inbox, returned};
use super::sqe::Sqe;

/// The most operations of a descriptor at a time: the depth of its queue, as the device sees it.
const LANE_THREADS: usize = 16;
/// The most operations at a time, but for the first of each lane.
const THREADS: usize = 64;

struct Job {
    sqe: Sqe,
    inbox: Arc<Inbox>,
}

// SAFETY: the memory that the entry names is not accessed by any thread but the one that executes it (see `Ring::push`).
unsafe impl Send for Job {}

/// The operations of a descriptor.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<Job>,
    /// Those that have been admitted, and have not ended.
    running: usize,
}

struct State {
    /// A lane exists while it has operations.
    lanes: BTreeMap<RawFd, Lane>,
    /// The lanes with operations that wait, each once.
    turns: VecDeque<RawFd>,
    /// What has been admitted, for the next thread.
    admitted: VecDeque<Job>,
    /// Operations that have been admitted, and have not ended.
    running: usize,
    threads: usize,
    /// Threads that wait for work, or are about to continue.
    idle: usize,
}

static STATE: Mutex<State> = Mutex::new(State::new());
static WORK: Condvar = Condvar::new();

impl State {
    const fn new() -> Self {
        Self {
            lanes: BTreeMap::new(),
            turns: VecDeque::new(),
            admitted: VecDeque::new(),
            running: 0,
            threads: 0,
            idle: 0,
        }
    }

    fn add(&mut self, job: Job) {
        let fd = job.sqe.fd;
        let lane = self.lanes.entry(fd).or_default();
        if lane.waiting.is_empty() {
            self.turns.push_back(fd);
        }
        lane.waiting.push_back(job);
    }

    /// Admits what may begin; returns how many these are.
    fn admit(&mut self) -> usize {
        let before = self.running;
        loop {
            let may_begin = |fd: &RawFd| {
                let running = self.lanes.get(fd).map_or(0, |lane| lane.running);
                running == 0 || running < LANE_THREADS && self.running < THREADS
            };
            let Some(place) = self.turns.iter().position(may_begin) else { break };
            let Some(fd) = self.turns.remove(place) else { break };
            let Some(lane) = self.lanes.get_mut(&fd) else { break };
            let Some(job) = lane.waiting.pop_front() else { break };
            if !lane.waiting.is_empty() {
                self.turns.push_back(fd);
            }
            lane.running += 1;
            self.running += 1;
            self.admitted.push_back(job);
        }
        self.running - before
    }

    /// An admitted operation has ended: returns how many others may begin, for which its thread is one.
    fn end(&mut self, fd: RawFd) -> usize {
        self.running -= 1;
        if let Some(lane) = self.lanes.get_mut(&fd) {
            lane.running -= 1;
            if lane.running == 0 && lane.waiting.is_empty() {
                self.lanes.remove(&fd);
            }
        }
        self.admit()
    }

    /// Takes an operation back that no thread has begun: returns how many others may begin, for which its thread is one. `None` if
    /// there is no such operation.
    fn cancel(&mut self, is_it: impl Fn(&Job) -> bool) -> Option<usize> {
        if let Some(place) = self.admitted.iter().position(&is_it) {
            return self.admitted.remove(place).map(|job| self.end(job.sqe.fd));
        }
        for (fd, lane) in &mut self.lanes {
            let Some(place) = lane.waiting.iter().position(&is_it) else { continue };
            lane.waiting.remove(place);
            // The lane stays: where one operation waits, another one runs.
            if lane.waiting.is_empty() {
                self.turns.retain(|other| other != fd);
            }
            return Some(0);
        }
        None
    }

    /// Starts the threads that are missing.
    ///
    /// # Errors
    /// No thread could be started; there may be others.
    fn hire(&mut self) -> io::Result<()> {
        while self.threads < self.running {
            let name = format!("ashlar-io-{}", self.threads);
            thread::Builder::new().name(name).spawn(work)?;
            self.threads += 1;
        }
        Ok(())
    }
}

/// Has threads take `count` operations that have been admitted. They are woken once they can have the lock: one that has to wait
/// for it costs its waker as much again.
///
/// # Errors
/// There is no thread, and none could be started.
fn staff(mut state: MutexGuard<'_, State>, count: usize) -> io::Result<()> {
    let hired = state.hire();
    let (threads, woken) = (state.threads, count.min(state.idle));
    drop(state);
    (0..woken).for_each(|_| WORK.notify_one());
    // Where some are missing, others take the operations when their own have ended.
    if threads == 0 { hired } else { Ok(()) }
}

/// Has operations executed, which then are in the inbox. Where no thread can be started, they are executed at once.
///
/// # Safety
/// As `Ring::push`.
pub(super) unsafe fn execute_all(sqes: impl Iterator<Item = Sqe>, inbox: &Arc<Inbox>) {
    let mut state = lock(&STATE);
    sqes.for_each(|sqe| state.add(Job { sqe, inbox: Arc::clone(inbox) }));
    let count = state.admit();
    if let Err(error) = staff(state, count) {
        tracing::error!(%error, "no thread for operations on files");
        drop(run_admitted(lock(&STATE)));
    }
}

/// Cancels an operation that no thread has begun; false if it has begun or does not exist.
pub(super) fn cancel(user_data: u64, inbox: &Arc<Inbox>) -> bool {
    let is_it = |job: &Job| job.sqe.user_data == user_data && Arc::ptr_eq(&job.inbox, inbox);
    let mut state = lock(&STATE);
    let admitted = state.cancel(is_it);
    if let Some(others @ 1..) = admitted.map(|count| count.saturating_sub(1)) {
        let (Ok(()) | Err(_)) = staff(state, others);
    }
    admitted.is_some()
}

/// Executes what has been admitted.
fn run_admitted(mut state: MutexGuard<'static, State>) -> MutexGuard<'static, State> {
    while let Some(job) = state.admitted.pop_front() {
        let fd = job.sqe.fd;
        drop(state);
        job.run();
        state = lock(&STATE);
        if let others @ 1.. = state.end(fd).saturating_sub(1) {
            let (Ok(()) | Err(_)) = staff(state, others);
            state = lock(&STATE);
        }
    }
    state
}

fn work() {
    let mut state = lock(&STATE);
    loop {
        state = run_admitted(state);
        state.idle += 1;
        state = WORK.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        state.idle -= 1;
    }
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
    let is_data_only = sqe.flags & FsyncFlags::DATASYNC.bits() != 0;
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
        opcode::Fsync::CODE if is_data_only => i64::from(unsafe { libc::fdatasync(fd) }),
        // SAFETY: no memory is named.
        opcode::Fsync::CODE => i64::from(unsafe { libc::fsync(fd) }),
        opcode::Fallocate::CODE => {
            // SAFETY: no memory is named.
            i64::from(unsafe { libc::fallocate(fd, sqe.len as i32, offset, sqe.address as i64) })
        }
        _ => {
            // SAFETY: errno is this thread's.
            unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
            -1
        }
    };
    crate::sys::uninterrupted(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds `count` operations of a descriptor, with the user data `first`, `first + 1` and so on.
    fn add(state: &mut State, inbox: &Arc<Inbox>, fd: RawFd, first: u64, count: usize) {
        for user_data in first..first + count as u64 {
            let entry = opcode::Fsync::new(io_uring::types::Fd(fd)).build().user_data(user_data);
            state.add(Job { sqe: Sqe::read(&entry), inbox: Arc::clone(inbox) });
        }
        state.admit();
    }

    /// A thread takes what comes next: its descriptor and its user data.
    fn take(state: &mut State) -> Option<(RawFd, u64)> {
        state.admitted.pop_front().map(|job| (job.sqe.fd, job.sqe.user_data))
    }

    fn is_empty(state: &State) -> bool {
        state.lanes.is_empty() && state.turns.is_empty() && state.running == 0
    }

    #[test]
    fn a_lane_has_its_share_and_always_one() {
        let (mut state, inbox) = (State::new(), Arc::new(Inbox::new().unwrap()));
        // Lanes that take all threads, and one that comes later.
        let full = THREADS.div_ceil(LANE_THREADS) as RawFd;
        for fd in 0..full {
            add(&mut state, &inbox, fd, 0, 3 * LANE_THREADS);
            assert_eq!(state.lanes[&fd].running, LANE_THREADS);
        }
        assert_eq!(state.running, THREADS);
        add(&mut state, &inbox, full, 0, 2);
        assert_eq!((state.lanes[&full].running, state.running), (1, THREADS + 1));
        // Its second one waits while all together have as many as they may.
        assert_eq!(state.end(0), 0);
        assert_eq!((state.lanes[&full].running, state.running), (1, THREADS));
        // Its second one begins when the first has ended, though another lane has just taken the thread.
        assert_eq!(state.end(full), 2);
        assert_eq!((state.lanes[&0].running, state.lanes[&full].running), (LANE_THREADS, 1));
        assert_eq!(state.running, THREADS + 1);
        // All end.
        let (mut ended, mut running) = (2, Vec::new());
        while !is_empty(&state) {
            running.extend(state.lanes.iter().map(|(fd, lane)| (*fd, lane.running)));
            for (fd, count) in running.drain(..) {
                assert!(count <= LANE_THREADS);
                ended += (0..count).map(|_| state.end(fd)).count();
            }
        }
        assert_eq!(ended, full as usize * 3 * LANE_THREADS + 2);
    }

    #[test]
    fn lanes_take_turns() {
        let (mut state, inbox) = (State::new(), Arc::new(Inbox::new().unwrap()));
        for (fd, count) in [(7, 3), (8, 2)] {
            for user_data in 0..count {
                let entry = opcode::Fsync::new(io_uring::types::Fd(fd)).build();
                let sqe = Sqe::read(&entry.user_data(user_data));
                state.add(Job { sqe, inbox: Arc::clone(&inbox) });
            }
        }
        state.admit();
        let order: Vec<_> = std::iter::from_fn(|| take(&mut state)).collect();
        assert_eq!(order, [(7, 0), (8, 0), (7, 1), (8, 1), (7, 2)]);
    }

    #[test]
    fn what_has_not_begun_is_taken_back() {
        let (mut state, inbox) = (State::new(), Arc::new(Inbox::new().unwrap()));
        let count = LANE_THREADS + 2;
        add(&mut state, &inbox, 7, 0, count);
        assert_eq!(take(&mut state), Some((7, 0)));
        let is = |user_data| move |job: &Job| job.sqe.user_data == user_data;
        // Begun; admitted; waiting, twice; unknown.
        assert_eq!(state.cancel(is(0)), None);
        assert_eq!(state.cancel(is(1)), Some(1));
        assert_eq!(state.running, LANE_THREADS, "the next one has taken its place");
        let last = count as u64 - 1;
        let cancelled = [last, last, 99].map(|user_data| state.cancel(is(user_data)));
        assert_eq!(cancelled, [Some(0), None, None]);
        assert!(state.turns.is_empty());
        let left: Vec<_> = std::iter::from_fn(|| take(&mut state)).map(|it| it.1).collect();
        assert_eq!(left, (2..last).collect::<Vec<_>>());
        assert_eq!((0..LANE_THREADS).map(|_| state.end(7)).sum::<usize>(), 0);
        assert!(is_empty(&state));
    }
}
