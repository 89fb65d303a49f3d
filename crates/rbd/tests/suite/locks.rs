//! The exclusive lock: the client that has it, and what a client sees that loses it.

use std::time::{Duration, Instant};

use ashlar_block::{Bio, Buffer, Presence, Sector, Sectors, Status, plug};
use ashlar_rbd::OpenError;

use crate::cluster::Cluster;
use crate::disk_checks::{run, write};
use crate::kit::{OtherClient, open, refused, try_open, until_free};

const LOCK: &str = "image.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)";

#[test]
fn an_image_that_another_client_has_locked_is_not_written() {
    let cluster = Cluster::shared();
    let uri = cluster.image("locked", "8M");
    let mut other = OtherClient::new(cluster, "locked");
    assert_eq!(other.ask(LOCK), "None");
    let error = refused(&uri, false);
    assert!(matches!(error, OpenError::Locked(_)), "{error}");
    let owner = other.ask("[o['owner'] for o in image.lock_get_owners()][0]");
    let owner = owner.trim_matches('\'');
    assert_eq!(error.to_string(), format!("{owner} has the exclusive lock of the image"));
    assert!(error.hint().is_some_and(|hint| hint.contains("half a minute")));
    try_open(&uri, true).unwrap();
    other.end();
    open(&uri);
}

#[test]
fn a_disk_keeps_others_out_until_it_is_closed() {
    let cluster = Cluster::shared();
    let uri = cluster.image("ours", "8M");
    let disk = open(&uri);
    // Also one with the same connection.
    assert!(matches!(refused(&uri, false), OpenError::Locked(_)));
    let mut other = OtherClient::new(cluster, "ours");
    assert_eq!(other.ask(LOCK), "ReadOnlyImage");
    assert_eq!(other.ask("image.write(b'x', 0)"), "ReadOnlyImage");
    other.end();
    run(async { write(&disk, 0, 1).await.unwrap() });
    drop(disk);
    until_free(cluster, "ours");
    run(async {
        let disk = open(&uri);
        assert_eq!(disk.read(Sector(0), Sectors(1)).await.unwrap().as_slice(), [1; 512]);
    });
}

#[test]
fn a_released_disk_is_closed_and_can_be_opened_again() {
    let cluster = Cluster::shared();
    let uri = cluster.image("released", "8M");
    run(async {
        let disk = open(&uri);
        let write_is_offline = async || {
            assert_eq!(write(&disk, 0, 2).await, Err(Status::Offline));
            assert_eq!(disk.flush().await, Err(Status::Offline));
        };
        // It ends as it would have.
        let mut data = Buffer::from_slice(&[1; 4096]);
        let in_flight = disk.submit(Bio::write_from(Sector(0), &mut data));
        plug::flush_current();
        disk.release();
        write_is_offline().await;
        assert_eq!(in_flight.await, Ok(()));
        until_free(cluster, "released");
        let again = open(&uri);
        assert_eq!(again.read(Sector(0), Sectors(1)).await.unwrap().as_slice(), [1; 512]);
        // Opening waits until the former one is closed.
        again.release();
        again.release();
        let third = open(&uri);
        assert_eq!(write(&third, 0, 3).await, Ok(()));
        write_is_offline().await;
    });
}

#[test]
fn the_lock_of_a_dead_client_is_waited_for() {
    let cluster = Cluster::shared();
    let uri = cluster.image("orphan", "8M");
    let mut other = OtherClient::new(cluster, "orphan");
    assert_eq!(other.ask(LOCK), "None");
    assert_eq!(other.ask("image.write(b'x', 0)"), "1");
    other.kill();
    let since = Instant::now();
    run(async {
        let disk = open(&uri);
        write(&disk, 0, 2).await.unwrap();
    });
    assert!(since.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_disk_whose_lock_was_broken_is_gone_until_it_is_opened_again() {
    let cluster = Cluster::shared();
    // The cluster will refuse the connection, which this process has one of for each configuration: other tests need theirs.
    let conf = cluster.conf().with_file_name("alone.conf");
    std::fs::copy(cluster.conf(), &conf).unwrap();
    let shared = cluster.image("fenced", "8M");
    let uri = shared.replace("/ceph.conf", "/alone.conf");
    assert!(uri != shared && conf.exists());
    run(async {
        let disk = open(&uri);
        write(&disk, 0, 1).await.unwrap();
        let mut other = OtherClient::new(cluster, "fenced");
        let broken = "[image.lock_break(rbd.RBD_LOCK_MODE_EXCLUSIVE, o['owner']) for o in image.lock_get_owners()]";
        assert_eq!(other.ask(broken), "[None]");
        assert_eq!(other.ask(LOCK), "None");
        assert_eq!(other.ask("image.write(b'x' * 4096, 0)"), "4096");
        assert_eq!(write(&disk, 0, 2).await, Err(Status::Offline));
        assert_eq!(disk.disk().presence(), Presence::Gone);
        assert_eq!(write(&disk, 0, 2).await, Err(Status::Offline));
        other.end();
        // While the old one is still open.
        let again = open(&uri);
        assert_eq!(again.read(Sector(0), Sectors(1)).await.unwrap().as_slice(), [b'x'; 512]);
        write(&again, 0, 3).await.unwrap();
        assert_eq!(write(&disk, 0, 4).await, Err(Status::Offline));
        assert_eq!(again.read(Sector(0), Sectors(1)).await.unwrap().as_slice(), [3; 512]);
    });
}
