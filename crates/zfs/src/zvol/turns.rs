//! Commits of an intent log, one at a time.
//!
//! From 2.2 on, libzpool fills log blocks without its lock, so of two commits the later block can
//! be filled first. An indirect record in it has its block written; the records for that block in
//! the earlier log block are then left out (EALREADY), and a thread that waits only for the earlier
//! log block learns that its data is safe before the later one is.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// A thread that arrives while a commit runs waits for the next commit, which serves all waiting threads.
#[derive(Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    begun: u64,
    is_running: bool,
    /// Result of the last finished commit.
    result: Result<(), Errno>,
}

impl Default for State {
    fn default() -> Self {
        Self { begun: 0, is_running: false, result: Ok(()) }
    }
}

impl State {
    fn ended(&self) -> u64 {
        self.begun - u64::from(self.is_running)
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits with `commit`, or waits for a commit of another thread that began after this call.
    ///
    /// # Errors
    /// Those of the commit.
    pub(crate) fn commit(&self, commit: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let mut state = self.lock();
        let turn = state.begun + 1;
        while state.is_running && state.ended() < turn {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended() >= turn {
            return state.result;
        }
        state.begun += 1;
        state.is_running = true;
        drop(state);
        let result = commit();
        let mut state = self.lock();
        state.is_running = false;
        state.result = result;
        drop(state);
        self.ended.notify_all();
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    /// Each thread increments the count to commit, and must find it committed.
    #[test]
    fn one_commits_at_a_time_and_for_all_who_came_before_it_began() {
        let (turns, busy) = (Turns::default(), AtomicBool::new(false));
        let (logged, committed, commits) =
            (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let mine = logged.fetch_add(1, Ordering::SeqCst) + 1;
                        let commit = || {
                            assert!(!busy.swap(true, Ordering::SeqCst), "two at a time");
                            let reached = logged.load(Ordering::SeqCst);
                            std::thread::sleep(Duration::from_micros(20));
                            committed.fetch_max(reached, Ordering::SeqCst);
                            commits.fetch_add(1, Ordering::SeqCst);
                            busy.store(false, Ordering::SeqCst);
                            Ok(())
                        };
                        turns.commit(commit).unwrap();
                        assert!(committed.load(Ordering::SeqCst) >= mine, "told too early");
                    }
                });
            }
        });
        let commits = commits.into_inner();
        assert!(commits < 1600, "nobody's was for two: {commits}");
    }

    #[test]
    fn a_failure_is_told_to_all_it_was_for_and_to_nobody_else() {
        let turns = Turns::default();
        let (go_on, waiting) = (AtomicBool::new(false), AtomicU64::new(0));
        let wait = || {
            while !go_on.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| turns.commit(wait));
            while !turns.lock().is_running {
                std::thread::yield_now();
            }
            let others = [0; 3].map(|_| {
                scope.spawn(|| {
                    waiting.fetch_add(1, Ordering::SeqCst);
                    turns.commit(|| Err(Errno::IO))
                })
            });
            while waiting.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
            go_on.store(true, Ordering::SeqCst);
            assert_eq!(first.join().unwrap(), Ok(()));
            for other in others {
                assert_eq!(other.join().unwrap(), Err(Errno::IO));
            }
        });
        assert_eq!(turns.commit(|| Ok(())), Ok(()));
    }
}
