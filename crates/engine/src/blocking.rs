//! Blocking work off the reactors: a bounded pool of named threads.
//!
//! Used for calls without an asynchronous form (ioctls, opening files, libraries). A thread starts when work waits and
//! no thread is idle, up to a limit, and ends after idling. Work is taken in FIFO order.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ashlar_block::sync::lock;

use crate::oneshot::{self, Receiver};

/// The most threads.
const MAX_THREADS: usize = 16;
/// How long a thread waits for more work before it ends.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    started: u64,
}

/// Jobs run outside the lock, so the counts are right even after a panic.
static QUEUE: Mutex<Queue> =
    Mutex::new(Queue { jobs: VecDeque::new(), threads: 0, idle: 0, started: 0 });
static WORK: Condvar = Condvar::new();

/// Runs `work` on a thread of the pool. Ends with its result, or [`ReceiveError`](crate::ReceiveError)
/// if it panicked. Dropping the future does not stop the work.
pub fn run<T, F>(work: F) -> Receiver<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let mut queue = lock(&QUEUE);
    queue.jobs.push_back(Box::new(move || sender.send(work())));
    // Every idle thread takes one job; more jobs than that need more threads.
    if queue.jobs.len() > queue.idle && queue.threads < MAX_THREADS {
        let name = format!("ashlar-block-{}", queue.started);
        match thread::Builder::new().name(name).spawn(serve) {
            Ok(_) => {
                queue.threads += 1;
                queue.started += 1;
            }
            // Without any thread the work would never run; dropping it tells the caller.
            Err(error) if queue.threads == 0 => {
                tracing::error!(%error, "no thread for blocking work");
                let given_up = queue.jobs.pop_back();
                drop(queue);
                drop(given_up);
                return receiver;
            }
            Err(error) => tracing::warn!(%error, "fewer threads for blocking work"),
        }
    }
    drop(queue);
    WORK.notify_one();
    receiver
}

fn serve() {
    let mut queue = lock(&QUEUE);
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("blocking work panicked");
            }
            queue = lock(&QUEUE);
            continue;
        }
        queue.idle += 1;
        let (woken, wait) = WORK.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
        queue = woken;
        queue.idle -= 1;
        if wait.timed_out() && queue.jobs.is_empty() {
            queue.threads -= 1;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reactor, ReceiveError};

    #[test]
    fn results_come_back_and_panics_are_told() {
        let reactor = Reactor::new(Default::default()).unwrap();
        reactor.block_on(async {
            let name = run(|| thread::current().name().map(str::to_owned)).await.unwrap();
            assert!(name.unwrap().starts_with("ashlar-block-"));
            assert_eq!(run(|| panic!("on purpose")).await, Err::<(), _>(ReceiveError));
        });
    }

    #[test]
    fn more_work_than_threads_is_done_by_few_threads() {
        let reactor = Reactor::new(Default::default()).unwrap();
        reactor.block_on(async {
            let all: Vec<_> = (0..100)
                .map(|i| {
                    run(move || {
                        thread::sleep(Duration::from_millis(1));
                        i
                    })
                })
                .collect();
            for (i, one) in all.into_iter().enumerate() {
                assert_eq!(one.await, Ok(i));
            }
        });
        assert!(lock(&QUEUE).threads <= MAX_THREADS);
    }
}
