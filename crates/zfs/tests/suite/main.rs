//! Integration tests of ZFS, in one program: a module for each subject.

mod datasets;
mod disks;
mod features;
mod logs;
mod ondisk;
mod pool;
mod pools;
mod support;
mod volume;
mod volume_channel;
mod zdb;
mod zil;

/// Not a test: what the worker processes of the tests run.
#[test]
fn worker_process() {
    support::serve_as_worker();
}
