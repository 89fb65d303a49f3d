//! Integration tests of the contract, in one program: a module for each subject.

mod buffer_threads;
mod byte_volume;
mod common;
mod deadlines;
mod gateway;
mod limiter;
mod limits;
mod losses;
mod merging;
mod read_memory;
mod standing;
mod tracing;
