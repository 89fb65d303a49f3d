//! Task queues: the threads for the I/O of all volumes of a worker.
//!
//! As in OpenZFS's zvol: `zvol_threads` threads in `zvol_num_taskqs` queues. Volume, part of the
//! volume and hardware queue determine the queue of a request; so few threads share a queue's lock.
//! The DMU blocks, so a thread does one request at a time. Of the idle threads, the one that was
//! busy last is woken: its data is still in the processor's caches, and a load for two threads
//! wakes no more than two.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// Requests of one volume that are closer than this use the same queue: `ZVOL_TASKQ_OFFSET_SHIFT`.
const OFFSET_SHIFT: u32 = 29;
/// Default number of threads on a machine with fewer processors.
const DEFAULT_THREADS: u32 = 32;
/// Maximum of threads, and of hardware queues.
const MAX_THREADS: u32 = 1024;

/// OpenZFS's module parameters for threads; 0 means automatic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Parameters {
    /// `zvol_threads`: number of requests that run at a time.
    pub threads: u32,
    /// `zvol_num_taskqs`: number of queues.
    pub taskqs: u32,
    /// `zvol_blk_mq_threads`: number of hardware queues per volume.
    pub hardware_queues: u32,
    /// `zvol_request_sync`: the receiving thread executes requests.
    pub is_synchronous: bool,
}

/// The numbers that result from [`Parameters`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    taskqs: u32,
    threads_per_taskq: u32,
    hardware_queues: u32,
}

impl Parameters {
    fn shape(&self, processors: u32) -> Shape {
        let threads = match self.threads {
            0 => processors.max(DEFAULT_THREADS),
            threads => threads.min(MAX_THREADS),
        };
        let taskqs = match self.taskqs {
            0 => {
                let mut taskqs = 1 + processors / 6;
                while taskqs * taskqs > threads {
                    taskqs -= 1;
                }
                taskqs
            }
            taskqs => taskqs.min(processors),
        };
        let hardware_queues = match self.hardware_queues {
            0 => processors,
            queues => queues.min(MAX_THREADS),
        };
        Shape { taskqs, threads_per_taskq: threads.div_ceil(taskqs), hardware_queues }
    }
}

/// A task for a queue.
pub trait Task: Send + 'static {
    /// Executes the task.
    fn run(self);
}

/// The queues and their threads. When dropped, the threads finish the queued tasks and exit.
pub struct TaskQueues<T: Task> {
    queues: Box<[Arc<Queue<T>>]>,
    threads: Vec<JoinHandle<()>>,
    hardware_queues: u32,
    is_synchronous: AtomicBool,
}

struct Queue<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    tasks: VecDeque<T>,
    /// Waiting threads; the one that was busy last is at the end. A thread removed from this list is woken.
    idle: Vec<Thread>,
    is_closing: bool,
}

impl<T> Queue<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Task> TaskQueues<T> {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(parameters: &Parameters) -> std::io::Result<Self> {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let shape = parameters.shape(u32::try_from(processors).unwrap_or(u32::MAX));
        let new = || Queue {
            state: Mutex::new(State {
                tasks: VecDeque::new(),
                idle: Vec::new(),
                is_closing: false,
            }),
        };
        let mut started = Self {
            queues: (0..shape.taskqs).map(|_| Arc::new(new())).collect(),
            threads: Vec::new(),
            hardware_queues: shape.hardware_queues,
            is_synchronous: AtomicBool::new(parameters.is_synchronous),
        };
        for (number, queue) in started.queues.iter().enumerate() {
            for _ in 0..shape.threads_per_taskq {
                let queue = Arc::clone(queue);
                let thread = thread::Builder::new().name(format!("zvol-{number}"));
                started.threads.push(thread.spawn(move || work(&queue))?);
            }
        }
        Ok(started)
    }

    /// The number of hardware queues per volume.
    pub fn hardware_queues(&self) -> u32 {
        self.hardware_queues
    }

    /// Changes `zvol_request_sync`, from the next request on.
    pub fn set_synchronous(&self, is_synchronous: bool) {
        self.is_synchronous.store(is_synchronous, Ordering::Relaxed);
    }

    /// Executes a task now, or passes it to a thread of the queue that is determined by volume,
    /// offset and hardware queue.
    pub fn dispatch(&self, task: T, volume: u64, offset_bytes: u64, hardware_queue: u32) {
        if self.is_synchronous.load(Ordering::Relaxed) {
            task.run();
            return;
        }
        let hash = hash(volume, offset_bytes >> OFFSET_SHIFT, hardware_queue);
        let queue = &self.queues[(hash % self.queues.len() as u64) as usize];
        let mut state = queue.state();
        state.tasks.push_back(task);
        let idle = state.idle.pop();
        drop(state);
        if let Some(idle) = idle {
            idle.unpark();
        }
    }
}

impl<T: Task> Drop for TaskQueues<T> {
    fn drop(&mut self) {
        for queue in &self.queues {
            let mut state = queue.state();
            state.is_closing = true;
            state.idle.drain(..).for_each(|idle| idle.unpark());
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of a task queue panicked");
            }
        }
    }
}

fn work<T: Task>(queue: &Queue<T>) {
    let _abort = PanicAbort;
    let mut state = queue.state();
    loop {
        if let Some(task) = state.tasks.pop_front() {
            drop(state);
            task.run();
            state = queue.state();
        } else if state.is_closing {
            return;
        } else {
            let this = thread::current();
            state.idle.push(this.clone());
            // Wake-ups may be spurious, and a thread must not be in the list twice.
            while !state.is_closing && state.idle.iter().any(|idle| idle.id() == this.id()) {
                drop(state);
                thread::park();
                state = queue.state();
            }
        }
    }
}

/// A request without a reply would hang its volume, and an open transaction its pool. The daemon
/// can handle a worker that has exited.
struct PanicAbort;

impl Drop for PanicAbort {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

/// Every input bit affects every bit of the result (the finalizer of MurmurHash3).
fn hash(volume: u64, part: u64, hardware_queue: u32) -> u64 {
    let mut hash = volume;
    for word in [part, u64::from(hardware_queue)] {
        hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(word);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^= hash >> 33;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Condvar, mpsc};

    #[test]
    fn queues_are_computed_as_upstream_does() {
        let default = Parameters::default();
        let shapes = [4, 8, 16, 32, 64, 128].map(|processors| {
            let shape = default.shape(processors);
            (shape.taskqs, shape.threads_per_taskq)
        });
        assert_eq!(shapes, [(1, 32), (2, 16), (3, 11), (5, 7), (8, 8), (11, 12)]);
        let set =
            Parameters { threads: 5000, taskqs: 100, hardware_queues: 3, is_synchronous: false };
        let expected = Shape { taskqs: 4, threads_per_taskq: 256, hardware_queues: 3 };
        assert_eq!(set.shape(4), expected);
    }

    struct NameSender(mpsc::Sender<(usize, String)>, usize);

    impl Task for NameSender {
        fn run(self) {
            let name = thread::current().name().unwrap_or_default().to_owned();
            self.0.send((self.1, name)).unwrap();
        }
    }

    #[test]
    fn every_task_runs_and_the_rest_at_the_end() {
        let parameters = Parameters { threads: 4, ..Parameters::default() };
        let queues = TaskQueues::start(&parameters).unwrap();
        let (sender, results) = mpsc::channel();
        for number in 0..1000 {
            queues.dispatch(
                NameSender(sender.clone(), number),
                1,
                (number as u64) << OFFSET_SHIFT,
                0,
            );
        }
        drop(queues);
        drop(sender);
        let mut numbers: Vec<usize> = results.iter().map(|(number, _)| number).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..1000));
    }

    #[test]
    fn a_synchronous_request_runs_here() {
        let queues = TaskQueues::start(&Parameters::default()).unwrap();
        let (sender, results) = mpsc::channel();
        let here = thread::current().name().unwrap_or_default().to_owned();
        queues.dispatch(NameSender(sender.clone(), 0), 1, 0, 0);
        assert!(results.recv().unwrap().1.starts_with("zvol-"));
        queues.set_synchronous(true);
        queues.dispatch(NameSender(sender, 0), 1, 0, 0);
        assert_eq!(results.recv().unwrap().1, here);
    }

    struct Names(mpsc::Sender<thread::ThreadId>);

    impl Task for Names {
        fn run(self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    #[test]
    fn what_comes_one_at_a_time_is_done_by_one_thread() {
        let parameters = Parameters { threads: 8, taskqs: 1, ..Parameters::default() };
        let queues = TaskQueues::start(&parameters).unwrap();
        let (sender, results) = mpsc::channel();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            while queues.queues[0].state().idle.len() < 8 {
                thread::yield_now();
            }
            queues.dispatch(Names(sender.clone()), 1, 0, 0);
            seen.insert(results.recv().unwrap());
        }
        assert_eq!(seen.len(), 1);
    }

    struct Blocks(Arc<AtomicUsize>, Arc<(Mutex<bool>, Condvar)>);

    impl Task for Blocks {
        fn run(self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            let (open, changed) = &*self.1;
            drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        }
    }

    #[test]
    fn as_many_run_at_a_time_as_there_are_threads() {
        let parameters = Parameters { threads: 3, taskqs: 1, ..Parameters::default() };
        let queues = TaskQueues::start(&parameters).unwrap();
        let running = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        for _ in 0..5 {
            queues.dispatch(Blocks(Arc::clone(&running), Arc::clone(&gate)), 1, 0, 0);
        }
        while running.load(Ordering::SeqCst) < 3 {
            thread::yield_now();
        }
        thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(running.load(Ordering::SeqCst), 3);
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        drop(queues);
        assert_eq!(running.load(Ordering::SeqCst), 5);
    }
}
