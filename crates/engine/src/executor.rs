//! Tasks of one reactor: a FIFO of the runnable ones, and a register of all tasks.
//!
//! Tasks are not `Send`: they are polled and dropped only on their reactor's thread. Their wakers may move to other
//! threads; a wake-up from another thread is sent as mail. The register lets an ending reactor drop every task that
//! still waits.

mod spawn;

use std::collections::VecDeque;
use std::task::Waker;

use async_task::Runnable;
use slab::Slab;

/// The runnable tasks and the register of all tasks.
#[derive(Default)]
pub(crate) struct Tasks {
    ready: VecDeque<Runnable>,
    all: Slab<Option<Waker>>,
}

impl Tasks {
    pub(crate) fn push(&mut self, task: Runnable) {
        self.ready.push_back(task);
    }

    pub(crate) fn pop(&mut self) -> Option<Runnable> {
        self.ready.pop_front()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// The number of tasks whose futures are not dropped.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Wakers of every task that has not ended.
    pub(crate) fn wakers(&self) -> Vec<Waker> {
        self.all.iter().filter_map(|(_, waker)| waker.clone()).collect()
    }
}
