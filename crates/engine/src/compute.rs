//! CPU-bound work off the reactors: as many jobs at a time as there are processors, on threads of the pool for blocking
//! work, in FIFO order.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;

use ashlar_block::sync::lock;

use crate::blocking;
use crate::oneshot::{self, Receiver};

type Job = Box<dyn FnOnce() + Send>;

struct Queue {
    jobs: VecDeque<Job>,
    workers: usize,
}

/// Jobs run outside the lock, so the count is right even after a panic.
static QUEUE: Mutex<Queue> = Mutex::new(Queue { jobs: VecDeque::new(), workers: 0 });

/// One thread that takes jobs until the queue is empty.
struct Worker {
    is_counted: bool,
}

impl Worker {
    fn work(mut self) {
        loop {
            let mut queue = lock(&QUEUE);
            let Some(job) = queue.jobs.pop_front() else {
                // Under the same lock, so that a thread that adds a job sees whether a worker will take it.
                queue.workers -= 1;
                self.is_counted = false;
                return;
            };
            drop(queue);
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("computing work panicked");
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The pool had no thread for this worker.
        if self.is_counted {
            lock(&QUEUE).workers -= 1;
        }
    }
}

/// Runs `work` on another thread. Ends when the work has, with [`ReceiveError`](crate::ReceiveError) if it panicked.
pub(crate) fn run(work: Job) -> Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    let mut queue = lock(&QUEUE);
    queue.jobs.push_back(Box::new(move || {
        work();
        sender.send(());
    }));
    if queue.workers < thread::available_parallelism().map_or(1, usize::from) {
        queue.workers += 1;
        drop(queue);
        let worker = Worker { is_counted: true };
        drop(blocking::run(move || worker.work()));
        queue = lock(&QUEUE);
    }
    if queue.workers == 0 && !queue.jobs.is_empty() {
        // No thread could be started: do the work here.
        queue.workers += 1;
        drop(queue);
        Worker { is_counted: true }.work();
    }
    receiver
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{Reactor, ReceiveError};

    #[test]
    fn all_work_is_done_on_no_more_threads_than_processors() {
        let reactor = Reactor::new(Default::default()).unwrap();
        let (running, most, done) =
            <(Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        reactor.block_on(async {
            for _ in 0..50 {
                let all: Vec<_> = (0..20)
                    .map(|_| {
                        let (running, most, done) =
                            (Arc::clone(&running), Arc::clone(&most), Arc::clone(&done));
                        run(Box::new(move || {
                            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                            most.fetch_max(now, Ordering::SeqCst);
                            thread::yield_now();
                            done.fetch_add(1, Ordering::SeqCst);
                            running.fetch_sub(1, Ordering::SeqCst);
                        }))
                    })
                    .collect();
                for one in all {
                    assert_eq!(one.await, Ok(()));
                }
            }
            assert_eq!(run(Box::new(|| panic!("on purpose"))).await, Err(ReceiveError));
            assert_eq!(run(Box::new(|| {})).await, Ok(()));
        });
        let processors = thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(done.load(Ordering::SeqCst), 1000);
        assert!(most.load(Ordering::SeqCst) <= processors);
    }
}
