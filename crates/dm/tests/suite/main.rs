//! Integration tests of the device mapper, in one program: a module per subject.

mod common;
mod faults;
mod live;
mod log_writes;
mod mapping;
mod mirror;
mod snapshot;
mod thin;
mod tracing;
