//! The engine: one reactor for each thread, and the devices that are real.
//!
//! # Theory
//!
//! A [`Reactor`] is a thread's loop over four things: a FIFO of runnable tasks, an ordered map of
//! timers, an io_uring, and a mailbox for other threads. One **turn**:
//!
//! 1. take the mail, which makes tasks runnable or calls closures;
//! 2. wake the tasks whose timers are over;
//! 3. run at most `task_budget` tasks, each once, in the order in which they became runnable; what
//!    they submit goes to the kernel every `submit_every` entries;
//! 4. with no task left, flush the block layer's plug (which may make tasks runnable);
//! 5. with still no task left and no mail, sleep in the kernel until a completion or the first
//!    deadline; otherwise just submit the rest, and let the kernel post what is ready;
//! 6. handle the completions, each of which wakes a task or calls its owner.
//!
//! So nothing starves: a busy task is run once per turn like every other, and completions, mail and
//! timers are looked at every turn.
//!
//! **An operation** is in flight from its submission until the kernel's completion, and during that
//! time its slot in the reactor's table owns everything the kernel may touch. A future that is
//! dropped leaves an orphan: its memory is freed at the completion, never before. A reactor that
//! ends drops its tasks, cancels what waits, and stays until the last completion; if one does not
//! come within 30 seconds its memory is leaked. One whose thread panics is abandoned as it is, and the engine
//! tells ([`Engine::panicked`]). States and transitions: the table in `op.rs`.
//!
//! **Threads** share nothing but mailboxes. Tasks, operations, sockets and descriptors stay on their
//! reactor's thread; wakers go anywhere, and a wake-up from elsewhere is mail. No wake-up is lost:
//! the argument, and its loom model, are in `doorbell.rs`. Devices are shared, and submit to the
//! ring of the thread that calls them.
//!
//! **Ordering**: entries of one thread reach the kernel in order but run in any; who needs an order
//! awaits. Completions are handled in the order in which the kernel posted them.
//!
//! **Durability** is what the kernel makes of it: a flush is fdatasync(2), FUA is RWF_DSYNC. A failed
//! flush is final, since the kernel forgets the pages it could not write: every later flush of that
//! device fails, so that nobody takes lost data for durable by asking twice.
//!
//! # What is assumed of the kernel
//!
//! Linux 5.11 or newer with io_uring allowed (better from 6.1 on: deferred task work; discards of
//! block devices through the ring from 6.12 on). That every operation submitted completes exactly
//! once; that memory is not touched after the completion; that closing a ring's descriptor ends what
//! is in flight on it. That O_DIRECT transfers end at a block boundary or at the end of the file.
//! That OFD locks exclude each other between all openings of a file on one machine.

pub mod blocking;
mod compute;
mod doorbell;
mod executor;
pub mod fd;
pub mod file;
mod files;
mod mailbox;
pub mod memory;
pub mod modelled;
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
mod timer;
mod vectored;

pub use async_task::Task;
pub use file::{FileDevice, FileDriver, OpenError, OpenOptions, open};
pub use modelled::{ModelledDevice, modelled};
pub use null::NullDevice;
pub use oneshot::{Cancelled, Receiver};
pub use op::Op;
pub use ram::RamDevice;
pub use reactor::{Reactor, ReactorConfig, spawn, yield_now};
pub use runtime::{Engine, EngineRuntime, Handle, Panicked};
pub use timer::{Sleep, now_ns, sleep, timeout, wall_clock};
pub use vectored::{Chunk, Vectored};
