//! The engine: one reactor per thread, and the real devices.
//!
//! # Theory
//!
//! A [`Reactor`] is a thread's loop over four things: a FIFO of runnable tasks, an ordered map of timers, a ring,
//! and a mailbox for messages from other threads. One **turn**:
//!
//! 1. take the mail, which makes tasks runnable or calls closures;
//! 2. wake the tasks whose timers have expired;
//! 3. run at most `task_budget` tasks, each once, in the order in which they became runnable; their submissions go to
//!    the kernel every `submit_every` entries;
//! 4. if no task is left, or `task_budget` polls have passed since the last time, flush the block layer's plug (which may
//!    make tasks runnable);
//! 5. if still no task is left and there is no mail, sleep in the kernel until a completion or the first deadline;
//!    otherwise just submit the rest, and let the kernel post completions that are ready;
//! 6. handle the completions, each of which wakes a task or calls its owner.
//!
//! So nothing starves: a busy task runs once per turn like every other, and completions, mail and timers are checked
//! every turn.
//!
//! **An operation** is in flight from its submission until the kernel's completion. During that time its slot in the
//! reactor's table owns everything the kernel may touch. A dropped future leaves an orphan: its memory is freed at the
//! completion, never before. An ending reactor drops its tasks (one that another thread is waking comes by mail first),
//! cancels operations that wait, and stays until the last completion; memory of an operation that does not complete
//! within 30 seconds is leaked. A reactor whose thread panics is abandoned as it is, and the engine reports it
//! ([`Engine::panicked`]). States and transitions: the table in `op.rs`.
//!
//! **Threads** share nothing but mailboxes. Tasks, operations, sockets and descriptors stay on their reactor's thread;
//! wakers may go anywhere, and a wake-up from another thread is mail. No wake-up is lost: the argument, and its loom
//! model, are in `doorbell.rs`. Devices are shared, and submit to the ring of the thread that calls them.
//!
//! **Ordering**: entries of one thread reach the kernel in order but run in any order; a caller that needs an order
//! awaits. Completions are handled in the order in which the kernel posted them.
//!
//! **Durability** is the kernel's: a flush is fdatasync(2), FUA is RWF_DSYNC. A failed flush is final, since the kernel
//! drops the pages it could not write: every later flush of that device fails, so that a caller that flushes again does
//! not take lost data for durable.
//!
//! # Assumptions about the kernel
//!
//! Linux 5.11 or newer (better from 6.1 on: deferred task work; discards of block devices through the ring from 6.12 on).
//! The ring is an io_uring; where that is refused, threads and epoll execute the same entries (`ring/threads.rs`). Every
//! submitted operation completes exactly once. Memory is not touched after the completion. Closing a ring's descriptor ends the operations in flight on it. O_DIRECT transfers end at a block
//! boundary or at the end of the file. OFD locks exclude each other between all openings of a file on one machine.

pub mod accounts;
pub mod activation;
pub mod arenas;
pub mod blocking;
mod chunk_list;
mod compute;
mod doorbell;
mod executor;
pub mod fd;
pub mod file;
mod files;
mod fixed;
mod handle;
mod mailbox;
pub mod memfd;
pub mod memory;
pub mod net;
pub mod null;
pub mod oneshot;
mod op;
pub mod process;
pub mod ram;
mod reactor;
mod ring;
mod runtime;
pub mod signal;
pub mod slabs;
pub mod socket_file;
mod sys;
mod timer;

pub use ashlar_block::sync::yield_now;
pub use async_task::Task;
pub use chunk_list::{ChunkList, Position};
pub use file::{FileDevice, FileDriver, OpenError, OpenOptions, open};
pub use handle::Handle;
pub use null::NullDevice;
pub use oneshot::{ReceiveError, Receiver};
pub use op::Op;
pub use ram::RamDevice;
pub use reactor::{Reactor, ReactorConfig, spawn};
pub use ring::{BackEnd, end_rings, restrict_rings};
pub use runtime::{Engine, EngineRuntime, ThreadPanic};
pub use timer::{Sleep, now_ns, sleep, timeout, wall_clock};
