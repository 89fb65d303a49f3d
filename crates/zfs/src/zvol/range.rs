//! Range locks: writes to a range exclude everything else that touches it.
//!
//! Fair by order of arrival: a request waits for earlier requests that it conflicts with, whether
//! they have locked their range or still wait. So no request starves, and a thread only waits for
//! older requests than its own.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The ranges of a volume that are locked or waited for.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    table: Mutex<Table>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    /// In order of arrival. One per running request, so a linear scan is enough.
    entries: Vec<Entry>,
    next_ticket: u64,
    waiting: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ticket: u64,
    start: u64,
    end: u64,
    exclusive: bool,
}

impl Entry {
    fn conflicts(&self, other: &Self) -> bool {
        (self.exclusive || other.exclusive) && self.start < other.end && other.start < self.end
    }
}

/// A locked range; any thread may drop it.
#[derive(Debug)]
pub(crate) struct RangeGuard {
    locks: Arc<RangeLocks>,
    ticket: u64,
}

impl RangeLocks {
    /// Waits until the range has no writer.
    pub(crate) fn read(self: &Arc<Self>, offset_bytes: u64, len_bytes: u64) -> RangeGuard {
        self.enter(offset_bytes, len_bytes, false)
    }

    /// Waits until the range has no user.
    pub(crate) fn write(self: &Arc<Self>, offset_bytes: u64, len_bytes: u64) -> RangeGuard {
        self.enter(offset_bytes, len_bytes, true)
    }

    fn enter(self: &Arc<Self>, offset_bytes: u64, len_bytes: u64, exclusive: bool) -> RangeGuard {
        let mut table = self.table();
        let mine = Entry {
            ticket: table.next_ticket,
            start: offset_bytes,
            end: offset_bytes.saturating_add(len_bytes),
            exclusive,
        };
        table.next_ticket += 1;
        table.entries.push(mine);
        while table.must_wait(&mine) {
            table.waiting += 1;
            table = self.released.wait(table).unwrap_or_else(PoisonError::into_inner);
            table.waiting -= 1;
        }
        RangeGuard { locks: Arc::clone(self), ticket: mine.ticket }
    }

    /// A panic cannot leave the table inconsistent.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn must_wait(&self, mine: &Entry) -> bool {
        let before = self.entries.iter().take_while(|entry| entry.ticket < mine.ticket);
        before.into_iter().any(|entry| entry.conflicts(mine))
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut table = self.locks.table();
        table.entries.retain(|entry| entry.ticket != self.ticket);
        let waiting = table.waiting;
        drop(table);
        if waiting > 0 {
            self.locks.released.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn readers_share_and_writers_do_not() {
        let locks = Arc::new(RangeLocks::default());
        let first = locks.read(0, 100);
        let second = locks.read(50, 100);
        let apart = locks.write(150, 10);
        let got = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _writer = locks.write(90, 20);
                got.store(1, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(got.load(Ordering::SeqCst), 0);
            drop(first);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(got.load(Ordering::SeqCst), 0);
            drop(second);
        });
        assert_eq!(got.load(Ordering::SeqCst), 1);
        drop(apart);
        assert!(locks.table().entries.is_empty());
    }

    #[test]
    fn a_reader_does_not_overtake_a_writer_that_waits() {
        let locks = Arc::new(RangeLocks::default());
        let order = Mutex::new(Vec::new());
        let first = locks.read(0, 10);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _guard = locks.write(0, 10);
                order.lock().unwrap().push("writer");
            });
            while locks.table().waiting == 0 {
                std::thread::yield_now();
            }
            scope.spawn(|| {
                let _guard = locks.read(0, 10);
                order.lock().unwrap().push("reader");
            });
            while locks.table().waiting < 2 {
                std::thread::yield_now();
            }
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), ["writer", "reader"]);
    }

    /// Each cell counts its users, to check the locks.
    #[test]
    fn many_threads_never_meet_in_a_range_that_is_written() {
        const CELLS: usize = 64;
        const WRITER: u32 = 1 << 16;
        let locks = Arc::new(RangeLocks::default());
        let users: Vec<AtomicU32> = (0..CELLS).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (locks, users) = (&locks, &users);
                scope.spawn(move || {
                    let mut random = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                    for _ in 0..2000 {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let start = (random % CELLS as u64) as usize;
                        let end = (start + 1 + (random >> 20) as usize % 16).min(CELLS);
                        let exclusive = random >> 63 == 0;
                        let (offset, len) = (start as u64, (end - start) as u64);
                        let guard = if exclusive {
                            locks.write(offset, len)
                        } else {
                            locks.read(offset, len)
                        };
                        let weight = if exclusive { WRITER } else { 1 };
                        for cell in &users[start..end] {
                            let before = cell.fetch_add(weight, Ordering::SeqCst);
                            assert!(
                                before < WRITER && (!exclusive || before == 0),
                                "{before:#x} users"
                            );
                        }
                        for cell in &users[start..end] {
                            cell.fetch_sub(weight, Ordering::SeqCst);
                        }
                        drop(guard);
                    }
                });
            }
        });
    }
}
