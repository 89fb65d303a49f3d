//! OSDs that stop responding, die and return.

use std::time::{Duration, Instant};

use ashlar_block::{Presence, Sector, Sectors, Status};
use ashlar_engine::sleep;
use futures_util::future::join_all;

use crate::cluster::Cluster;
use crate::disk_checks::{run, write};
use crate::kit::open;

#[test]
fn a_silent_osd_makes_requests_late_and_loses_nothing() {
    let cluster = Cluster::start(&["--osds", "1", "--size", "1"]);
    let uri = cluster.image("silent", "8M");
    run(async {
        let disk = open(&uri);
        write(&disk, 0, 1).await.unwrap();
        disk.disk().set_io_timeout_ms(200).unwrap();
        cluster.verb("freeze-osd", &["0"]);
        let since = Instant::now();
        assert_eq!(write(&disk, 0, 2).await, Err(Status::Timeout));
        assert!(since.elapsed() < Duration::from_secs(3));
        assert_eq!(disk.disk().presence(), Presence::Silent);
        // It could overtake the late one.
        assert!(write(&disk, 0, 3).await.is_err());
        assert_eq!(disk.read(Sector(0), Sectors(1)).await.map(drop), Err(Status::Timeout));
        cluster.verb("thaw-osd", &["0"]);
        let since = Instant::now();
        while disk.disk().presence() != Presence::Answering {
            assert!(since.elapsed() < Duration::from_secs(10), "it does not respond again");
            sleep(Duration::from_millis(5)).await;
        }
        disk.disk().set_io_timeout_ms(30_000).unwrap();
        // The late one was executed; the refused one was not.
        assert_eq!(disk.read(Sector(0), Sectors(1)).await.unwrap().as_slice(), [2; 512]);
        write(&disk, 0, 4).await.unwrap();
        // What was past its deadline may have been lost: one flush reports that.
        assert!(disk.flush().await.is_err());
        assert_eq!(disk.flush().await, Ok(()));
    });
}

#[test]
fn writes_go_on_when_an_osd_is_killed() {
    let cluster = Cluster::start(&["--osds", "2", "--size", "2"]);
    let uri = cluster.image("killed", "8M");
    run(async {
        let disk = open(&uri);
        for round in 0..8_u8 {
            if round == 2 {
                cluster.verb("kill-osd", &["0"]);
            }
            let writes = (0..64).map(|part| write(&disk, part * 64, round));
            for result in join_all(writes).await {
                result.unwrap();
            }
        }
        disk.flush().await.unwrap();
        for part in 0..64 {
            let read = disk.read(Sector(part * 64), Sectors(8)).await.unwrap();
            assert_eq!(read.as_slice(), [7; 4096]);
        }
    });
}

#[test]
fn an_operation_without_any_osd_ends_when_the_configuration_says() {
    let options = ["--osds", "1", "--size", "1", "--conf", "rados_osd_op_timeout = 1"];
    let cluster = Cluster::start(&options);
    let uri = cluster.image("bounded", "8M");
    run(async {
        let disk = open(&uri);
        write(&disk, 0, 1).await.unwrap();
        cluster.verb("freeze-osd", &["0"]);
        let since = Instant::now();
        assert_eq!(write(&disk, 0, 2).await, Err(Status::Timeout));
        assert!(since.elapsed() < Duration::from_secs(10));
        cluster.verb("thaw-osd", &["0"]);
        let since = Instant::now();
        while write(&disk, 0, 3).await.is_err() {
            assert!(since.elapsed() < Duration::from_secs(10), "it does not respond again");
        }
        assert_eq!(disk.read(Sector(0), Sectors(1)).await.unwrap().as_slice(), [3; 512]);
    });
}
