//! Whether the task of a target (a merge, the recovery of a mirror) runs: one word, so that a caller that wants the task and the ending
//! task cannot miss each other.
//!
//! ```text
//!   idle -- begin --> running -- end --> told to end
//!    ^                   |                    |
//!    +------ ended ------+--------------------+
//! ```
//!
//! A task that was told to end does so, even if a caller wants one again meanwhile: the task may
//! have checked already. That caller waits for the end, and starts a new task.
//!
//! Besides, users can have the task wait between two steps: the messages `pause`, `resume` and `is_paused`, which is answered
//! with 1 or 0.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};

use ashlar_block::sync::until;
use event_listener::Event;

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const TOLD_TO_END: u8 = 2;

/// See the module text.
#[derive(Default)]
pub(crate) struct Task {
    state: AtomicU8,
    idle: Event,
    paused: AtomicBool,
    /// What the task shall do has changed, or something else that it or its target's I/O waits for.
    pub(crate) changed: Event,
}

impl Task {
    /// Whether there is a task, told to end or not.
    pub(crate) fn is_running(&self) -> bool {
        self.state.load(SeqCst) != IDLE
    }

    /// For the task: whether to continue.
    pub(crate) fn goes_on(&self) -> bool {
        self.state.load(SeqCst) == RUNNING
    }

    /// Waits until a task runs that was not told to end. True if the caller must start it now.
    pub(crate) async fn begin(&self) -> bool {
        loop {
            let listener = self.idle.listen();
            match self.state.compare_exchange(IDLE, RUNNING, SeqCst, SeqCst) {
                Ok(_) => return true,
                Err(RUNNING) => return false,
                Err(_) => listener.await,
            }
        }
    }

    /// Tells the task to end, if there is one.
    pub(crate) fn end(&self) {
        self.state.compare_exchange(RUNNING, TOLD_TO_END, SeqCst, SeqCst).ok();
        self.changed.notify(usize::MAX);
    }

    /// For the task: whether to wait before the next step.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(SeqCst)
    }

    /// Handles the messages about pauses; `None` for others.
    pub(crate) fn answer(&self, words: &[&str]) -> Option<String> {
        match words {
            ["pause" | "resume"] => {
                self.paused.store(words == ["pause"], SeqCst);
                self.changed.notify(usize::MAX);
                Some(String::new())
            }
            ["is_paused"] => Some(u8::from(self.is_paused()).to_string()),
            _ => None,
        }
    }

    /// Tells the task to end, and waits for it.
    pub(crate) async fn stop(&self) {
        self.end();
        until(&self.idle, || !self.is_running()).await;
    }

    /// Called by the task at its end.
    pub(crate) fn ended(&self) {
        self.state.store(IDLE, SeqCst);
        self.idle.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use futures_util::FutureExt;

    use super::*;

    /// The interleaving that once stalled a merge forever: the task has seen that it must end when
    /// it is wanted again.
    #[test]
    fn a_task_that_saw_its_end_is_followed_by_a_new_one() {
        let task = Task::default();
        assert_eq!(task.begin().now_or_never(), Some(true));
        assert!(task.goes_on());
        task.end();
        assert!(!task.goes_on());
        let mut again = pin!(task.begin());
        assert_eq!((&mut again).now_or_never(), None, "there is one, but it ends");
        task.ended();
        assert_eq!(again.now_or_never(), Some(true));
        assert!(task.goes_on());
    }

    /// All orders in which two users end the task and want one again, and tasks take their steps:
    /// at the end one task runs, and there are never two.
    #[test]
    fn in_every_order_whoever_wants_a_task_gets_one_and_there_is_but_one() {
        for order in 0..3_u32.pow(9) {
            let task = Task::default();
            assert_eq!(task.begin().now_or_never(), Some(true));
            // The task checks, and if it must end, it ends in a separate step.
            let (mut runs, mut ends) = (1, false);
            let mut users = [0, 1].map(|_| Box::pin(end_and_begin(&task)).fuse());
            let mut steps: Vec<usize> =
                (0..9).map(|n| (order / 3_u32.pow(n) % 3) as usize).collect();
            // Whatever the order, in the end all get their turns.
            steps.extend([0, 1, 2].repeat(6));
            let mut told = 0;
            for step in steps {
                match step {
                    2 if ends => {
                        (runs, ends) = (runs - 1, false);
                        task.ended();
                    }
                    2 => ends = runs > 0 && !task.goes_on(),
                    user => {
                        if let Some(start) = (&mut users[user]).now_or_never() {
                            told += 1;
                            runs += u32::from(start);
                        }
                    }
                }
                assert!(runs <= 1, "order {order}: two tasks");
            }
            assert_eq!((told, runs, task.goes_on()), (2, 1, true), "order {order}");
        }
    }

    async fn end_and_begin(task: &Task) -> bool {
        task.end();
        // Lets the others run.
        let mut before = true;
        poll_fn(|_| if std::mem::take(&mut before) { Poll::Pending } else { Poll::Ready(()) })
            .await;
        task.begin().await
    }
}
