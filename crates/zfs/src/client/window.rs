//! A window: memory that this process shares with a worker in a sandbox, for the data of one thread's requests.
//!
//! The data of a write are copied to it before the request is sent, those of a read from it after the request has ended. A
//! request that finds no room waits until others have ended. The worker may change the memory at any time: its bytes are
//! accessed by atomic loads and stores, and never trusted.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::task::{Poll, Waker};

use ashlar_block::bio::Op;
use ashlar_block::buffer::{ForeignMemory, shared};
use ashlar_block::request::Request;
use ashlar_engine::memfd::Memfd;

use super::worker::Worker;
use crate::protocol::{Command, MAX_REQUEST_BYTES, RemoteSegment};

/// The size of a window: room for two of the largest requests.
const WINDOW_BYTES: usize = 2 * MAX_REQUEST_BYTES as usize;
/// Ranges begin at multiples of this.
const ALIGN_BYTES: usize = 4096;

thread_local! {
    /// This thread's windows, by the worker's number.
    static WINDOWS: RefCell<HashMap<u32, Weak<Window>>> = RefCell::default();
}

/// See the module text.
pub(super) struct Window {
    memory: ForeignMemory,
    file: OwnedFd,
    address: u64,
    free: RefCell<FreeRanges>,
    /// Senders that wait for room.
    waiting: RefCell<Vec<Waker>>,
}

impl Window {
    /// This thread's window for a worker.
    ///
    /// # Errors
    /// There is no memory or address space.
    pub(super) fn of(worker: &Worker) -> io::Result<Rc<Self>> {
        WINDOWS.with_borrow_mut(|windows| {
            if let Some(window) = windows.get(&worker.pid()).and_then(Weak::upgrade) {
                return Ok(window);
            }
            windows.retain(|_, window| window.strong_count() > 0);
            let Memfd { memory, file, address } = Memfd::new(c"ashlar-window", WINDOW_BYTES)?;
            let free = RefCell::new(FreeRanges::new(WINDOW_BYTES));
            let window = Rc::new(Self { memory, file, address, free, waiting: RefCell::default() });
            windows.insert(worker.pid(), Rc::downgrade(&window));
            Ok(window)
        })
    }

    /// The command that passes it to the worker for one channel, with its descriptor; and its number there.
    ///
    /// # Errors
    /// Those of dup(2).
    pub(super) fn command(&self) -> io::Result<(Command, OwnedFd, u32)> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let window = LAST.fetch_add(1, Relaxed);
        let (address, len_bytes) = (self.address, WINDOW_BYTES as u64);
        let file = self.file.as_fd().try_clone_to_owned()?;
        Ok((Command::Window { window, address, len_bytes }, file, window))
    }

    /// Takes room for a request's data, and copies the data of a write; `None` without room.
    pub(super) fn enter(self: &Rc<Self>, request: &Request) -> Option<Room> {
        let len = usize::try_from(request.len().bytes()).ok()?;
        let start = self.free.borrow_mut().take(len)?.start;
        let room = Room { window: Rc::clone(self), range: start..start + len };
        if request.op() == Op::Write {
            room.move_data(request, shared::copy);
        }
        Some(room)
    }

    /// Waits until a request gives its room back.
    pub(super) async fn room_given(&self) {
        let mut is_waiting = false;
        poll_fn(|context| {
            if is_waiting {
                return Poll::Ready(());
            }
            is_waiting = true;
            self.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// The room of a request in a window, until it is dropped.
pub(super) struct Room {
    window: Rc<Window>,
    /// Bytes of the window.
    range: Range<usize>,
}

impl Room {
    /// Copies the data of a read that succeeded to its segments.
    pub(super) fn read(&self, request: &Request) {
        self.move_data(request, |ours, theirs| shared::copy(theirs, ours));
    }

    /// Where the worker finds the data.
    pub(super) fn segment(&self) -> RemoteSegment {
        RemoteSegment {
            address: self.window.address + self.range.start as u64,
            len_bytes: self.range.len() as u64,
        }
    }

    fn move_data(&self, request: &Request, copy: impl Fn(&[AtomicU8], &[AtomicU8])) {
        let mut at = self.range.start;
        for segment in request.segments() {
            // A range that was taken is within the memory.
            let theirs = self.window.memory.segment(at..at + segment.len());
            let Some(theirs) = theirs else { return };
            copy(segment.bytes(), theirs.bytes());
            at += segment.len();
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.window.free.borrow_mut().give(self.range.clone());
        for waker in self.window.waiting.take() {
            waker.wake();
        }
    }
}

/// The free ranges of a window, in order, without neighbours that touch.
struct FreeRanges(Vec<Range<usize>>);

impl FreeRanges {
    fn new(len: usize) -> Self {
        Self(std::iter::once(0..len).collect())
    }

    /// The first free range of this length.
    fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let len = len.next_multiple_of(ALIGN_BYTES);
        let index = self.0.iter().position(|free| free.end - free.start >= len)?;
        let free = &mut self.0[index];
        let taken = free.start..free.start + len;
        free.start += len;
        if free.start == free.end {
            self.0.remove(index);
        }
        Some(taken)
    }

    fn give(&mut self, range: Range<usize>) {
        let range = range.start..range.end.next_multiple_of(ALIGN_BYTES);
        let index = self.0.partition_point(|free| free.start < range.start);
        self.0.insert(index, range);
        // With the one behind, then with the one before.
        for first in [index, index.wrapping_sub(1)] {
            if let Some([before, behind]) =
                self.0.get_mut(first..).and_then(|rest| rest.first_chunk_mut())
                && before.end == behind.start
            {
                before.end = behind.end;
                self.0.remove(first + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a map of pages: ranges in use never overlap, and all that is given back is one range again.
    #[test]
    fn ranges_do_not_overlap_and_join_again() {
        let pages = 64;
        let mut free = FreeRanges::new(pages * ALIGN_BYTES);
        let mut used = vec![false; pages];
        let mut taken: Vec<Range<usize>> = Vec::new();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % below
        };
        let pages_of =
            |range: &Range<usize>| range.start / ALIGN_BYTES..range.end.div_ceil(ALIGN_BYTES);
        for _ in 0..20_000 {
            if next(2) == 0 && !taken.is_empty() {
                let range = taken.swap_remove(next(taken.len()));
                used[pages_of(&range)].fill(false);
                free.give(range);
            } else {
                let len = 1 + next(12 * ALIGN_BYTES);
                let need = len.div_ceil(ALIGN_BYTES);
                let fits = used.chunk_by(|a, b| a == b).any(|run| !run[0] && run.len() >= need);
                match free.take(len) {
                    Some(range) => {
                        let range = range.start..range.start + len;
                        assert!(used[pages_of(&range)].iter().all(|used| !used));
                        used[pages_of(&range)].fill(true);
                        taken.push(range);
                    }
                    None => assert!(!fits),
                }
            }
        }
        for range in taken {
            free.give(range);
        }
        assert_eq!(free.take(pages * ALIGN_BYTES), Some(0..pages * ALIGN_BYTES));
    }
}
