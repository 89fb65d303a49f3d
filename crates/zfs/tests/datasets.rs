//! Volumes, snapshots and clones, made and changed by a worker process with libzpool.

mod support;

use support::{Disks, Worker, assert_clean};

/// Not a test: what the worker processes of the tests run.
#[test]
fn worker_process() {
    support::serve_as_worker();
}

#[test]
fn a_volume_is_made_and_there_after_the_export() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    worker.create_volume("tank/vol", 32 << 20, &[]);
    assert_eq!(worker.names(), ["tank", "tank/vol"]);
    assert_eq!(worker.number("tank/vol", "volsize"), 32 << 20);
    worker.export();
    assert_clean("tank", disks.path());
}
