//! The engine: reactors on io_uring, and the devices that are real.

pub mod blocking;
mod doorbell;
mod executor;
pub mod fd;
pub mod file;
mod files;
mod mailbox;
pub mod net;
pub mod null;
mod oneshot;
mod op;
pub mod ram;
mod reactor;
mod ring;
mod runtime;
pub mod signal;
mod timer;
mod vectored;

pub use async_task::Task;
pub use file::{FileDevice, FileDriver, OpenError, OpenOptions, open};
pub use null::NullDevice;
pub use oneshot::{Cancelled, Receiver};
pub use op::Op;
pub use ram::RamDevice;
pub use reactor::{Reactor, ReactorConfig, spawn, yield_now};
pub use runtime::{Engine, EngineRuntime, Handle};
pub use timer::{Sleep, now_ns, sleep, timeout, wall_clock};
pub use vectored::{Chunk, Vectored};
