//! Integration tests of ZFS, in one program: a module per subject.

mod datasets;
mod disks;
mod features;
mod logs;
mod ondisk;
mod pool;
mod pools;
mod support;
mod vdevs;
mod volume;
mod volume_channel;
mod zdb;
mod zil;

/// Not a test: the entry point of the tests' worker processes.
#[test]
fn worker_process() {
    support::serve_as_worker();
}
