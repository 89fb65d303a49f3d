//! What images hold.

use ashlar_block::bio::Flags;
use ashlar_block::{Bio, Buffer, Features, Sector, Sectors, Status};

use crate::cluster::Cluster;
use crate::disk_checks::{Change, Random, compare, run, share, write};
use crate::kit::{OtherClient, open, try_open, until};

/// Changes of any sectors, and discards of whole units.
fn change(unit: u64, random: &mut Random, part: u64) -> (Sector, Sectors, Change) {
    let start = random.below(2047);
    let len = 1 + random.below(2047 - start).min(300);
    let first = part * 2048;
    let change = match random.below(7) {
        0 => Change::Zero(Flags::empty()),
        1 => Change::Zero(Flags::NOUNMAP),
        2 => {
            // Of those that begin in this part.
            let start = first.next_multiple_of(unit) + start % 1024 / unit * unit;
            return (Sector(start), Sectors(unit), Change::Discard);
        }
        3 => Change::Write(Flags::FUA),
        _ => Change::Write(Flags::empty()),
    };
    (Sector(first + start), Sectors(len), change)
}

#[test]
fn an_image_holds_what_was_written() {
    let cluster = Cluster::shared();
    for (seed, options) in [
        &[][..],
        // A discard's units are no larger than objects.
        &["--object-size", "64K"],
        &["--stripe-unit", "16K", "--stripe-count", "3"],
        &["--image-feature", "layering"],
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("held{seed}");
        cluster.rbd(&[&["create", "--size", "8M", &name], options].concat());
        let uri = cluster.uri(&format!("rbd/{name}"));
        let disk = open(&uri);
        let unit = u64::from(disk.disk().limits().discard_granularity_bytes) / 512;
        run(compare(&disk, seed as u64 + 1, |random, part| change(unit, random, part)));
    }
}

#[test]
fn an_images_limits_are_librbds() {
    let cluster = Cluster::shared();
    let disk = open(&cluster.image("limits", "64M"));
    let limits = *disk.disk().limits();
    assert_eq!(disk.capacity(), Sectors(64 << 11));
    assert_eq!((limits.logical_block_bytes, limits.io_opt_bytes), (512, 4 << 20));
    assert_eq!((limits.discard_granularity_bytes, limits.discard_alignment_bytes), (65536, 0));
    assert_eq!(limits.features, Features::WRITE_CACHE | Features::FAST_ZERO);
    assert_eq!(disk.disk().io_timeout_ms(), Some(60_000));
    assert_eq!(disk.disk().name(), "limits");
    cluster.rbd(&["create", "--size", "1M", "--object-size", "4K", "small"]);
    let striped = ["--stripe-unit", "16K", "--stripe-count", "3", "striped"];
    cluster.rbd(&[&["create", "--size", "8M"], &striped[..]].concat());
    let striped = *open(&cluster.uri("rbd/striped")).disk().limits();
    assert_eq!((striped.discard_granularity_bytes, striped.io_opt_bytes), (3 << 16, 3 << 14));
    let small = *open(&cluster.uri("rbd/small")).disk().limits();
    assert_eq!((small.discard_granularity_bytes, small.io_opt_bytes), (4096, 4096));
}

#[test]
fn nothing_beyond_the_end_is_read_or_written() {
    let cluster = Cluster::shared();
    // The last 465 bytes are no block.
    let uri = cluster.image("end", "1000401B");
    run(async {
        let disk = open(&uri);
        assert_eq!(disk.capacity(), Sectors(1953));
        let mut data = Buffer::from_slice(&[7; 512]);
        disk.submit(Bio::write_from(Sector(1952), &mut data)).await.unwrap();
        assert_eq!(disk.read(Sector(1952), Sectors(1)).await.unwrap().as_slice(), [7; 512]);
        for sector in [1946, 1953] {
            assert!(write(&disk, sector, 1).await.is_err());
            assert!(disk.read(Sector(sector), Sectors(8)).await.is_err());
        }
        assert_eq!(disk.read(Sector(1952), Sectors(1)).await.unwrap().as_slice(), [7; 512]);
    });
}

#[test]
fn a_discard_takes_whole_units_and_write_zeroes_takes_all() {
    let uri = Cluster::shared().image("units", "8M");
    run(async {
        let disk = open(&uri);
        let byte =
            async |sector: u64| disk.read(Sector(sector), Sectors(1)).await.unwrap().as_slice()[0];
        for sector in (0..512).step_by(8) {
            write(&disk, sector, 5).await.unwrap();
        }
        disk.submit(Bio::discard(Sector(8), Sectors(300))).await.unwrap();
        assert_eq!(
            [byte(8).await, byte(128).await, byte(255).await, byte(256).await],
            [5, 0, 0, 5]
        );
        disk.submit(Bio::write_zeroes(Sector(8), Sectors(3))).await.unwrap();
        assert_eq!([byte(7).await, byte(8).await, byte(10).await, byte(11).await], [5, 0, 0, 5]);
    });
}

#[test]
fn a_snapshot_stays_as_it_was_and_is_not_written() {
    let cluster = Cluster::shared();
    let uri = cluster.image("original", "8M");
    let snapshot = cluster.uri("rbd/original@before");
    run(async {
        let disk = open(&uri);
        write(&disk, 0, 1).await.unwrap();
        disk.flush().await.unwrap();
        cluster.rbd(&["snap", "create", "--no-progress", "original@before"]);
        write(&disk, 0, 2).await.unwrap();
        let error = crate::kit::refused(&snapshot, false);
        assert!(error.to_string().contains("a snapshot cannot be written"), "{error}");
        let old = try_open(&snapshot, true).unwrap();
        assert_eq!(old.disk().name(), "original@before");
        assert_eq!(write(&old, 0, 3).await, Err(Status::ReadOnly));
        assert_eq!(old.read(Sector(0), Sectors(1)).await.unwrap().as_slice(), [1; 512]);
        assert_eq!(disk.read(Sector(0), Sectors(1)).await.unwrap().as_slice(), [2; 512]);
    });
}

#[test]
fn an_image_is_read_while_another_client_has_its_lock() {
    let cluster = Cluster::shared();
    let uri = cluster.image("watched", "8M");
    run(async {
        let writer = open(&uri);
        write(&writer, 0, 9).await.unwrap();
        let reader = try_open(&uri, true).unwrap();
        assert_eq!(reader.read(Sector(0), Sectors(1)).await.unwrap().as_slice(), [9; 512]);
        assert_eq!(write(&reader, 0, 1).await, Err(Status::ReadOnly));
    });
}

#[test]
fn several_threads_share_a_disk() {
    share(&open(&Cluster::shared().image("threads", "16M")));
}

#[test]
fn a_reactor_that_ends_with_requests_in_flight_leaves_the_memory_to_librbd() {
    let uri = Cluster::shared().image("left", "8M");
    let disk = open(&uri);
    for round in 0..20_u64 {
        run(async {
            for part in 0..8 {
                let disk = disk.clone();
                let work = async move { write(&disk, round * 64 + part * 8, 1).await };
                ashlar_engine::spawn(work).detach();
            }
            ashlar_engine::yield_now().await;
            ashlar_engine::yield_now().await;
        });
    }
    run(async { disk.flush().await.unwrap() });
}

#[test]
fn a_resized_image_is_a_resized_disk() {
    let cluster = Cluster::shared();
    let uri = cluster.image("grown", "8M");
    let disk = open(&uri);
    for (size, sectors) in [("24M", Sectors(24 << 11)), ("4M", Sectors(4 << 11))] {
        cluster.rbd(&["resize", "--no-progress", "--allow-shrink", "--size", size, "grown"]);
        until("the disk has the new size", || disk.capacity() == sectors);
        run(async {
            let last = sectors.0 - 8;
            write(&disk, last, 3).await.unwrap();
            assert!(disk.read(Sector(last), Sectors(16)).await.is_err());
        });
    }
}

#[test]
fn an_image_in_a_namespace_is_another_one() {
    let cluster = Cluster::shared();
    cluster.rbd(&["namespace", "create", "rbd/team"]);
    cluster.rbd(&["create", "--size", "8M", "rbd/team/same"]);
    let outer = cluster.image("same", "4M");
    let inner = open(&cluster.uri("rbd/team/same"));
    run(async {
        let outer = open(&outer);
        write(&outer, 0, 1).await.unwrap();
        assert_eq!((outer.capacity(), inner.capacity()), (Sectors(4 << 11), Sectors(8 << 11)));
        assert_eq!(inner.read(Sector(0), Sectors(1)).await.unwrap().as_slice(), [0; 512]);
    });
}

#[test]
fn another_client_reads_what_a_disk_has_written() {
    let cluster = Cluster::shared();
    let uri = cluster.image("theirs", "8M");
    run(async {
        let disk = open(&uri);
        write(&disk, 8, b'x').await.unwrap();
        disk.flush().await.unwrap();
    });
    let mut other = OtherClient::new(cluster, "theirs");
    assert_eq!(other.ask("image.read(4095, 3)"), r"b'\x00xx'");
    other.end();
}
