//! The worker: the process that has a pool.

pub mod channel;
pub mod taskq;
