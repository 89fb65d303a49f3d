//! The targets for fault tests: delay and flakey, in virtual time.

use std::time::Duration;

use crate::common::{device, disks, gateway, media, stamped};
use ashlar_block::{Bio, Buffer, Flags, Gateway, Runtime, Sector, Sectors, Status};
use ashlar_dm::target::MessageError;
use ashlar_sim::{Sim, SimRuntime};

const DISK: u64 = 4096;
const MS: u64 = 1_000_000;

/// Maximum time of a command of the simulated disk itself.
const DISK_MS: u64 = 2;

async fn took_ms<T>(sim: &Sim, io: impl Future<Output = T>) -> u64 {
    let began = sim.now_ns();
    io.await;
    (sim.now_ns() - began) / MS
}

async fn read(volume: &Gateway) -> Result<Vec<u8>, Status> {
    Ok(volume.read(Sector(0), Sectors(8)).await?.as_slice().to_vec())
}

async fn write(volume: &Gateway, generation: u8) -> Result<(), Status> {
    let mut data = Buffer::from_slice(&stamped(0, 8, generation));
    let result = volume.write(Sector(0), &mut data, Flags::empty()).await;
    assert_eq!(data.as_slice(), stamped(0, 8, generation), "the submitter's bytes");
    result
}

#[test]
fn delays_are_those_of_the_class_and_of_the_last_message() {
    let cases = [
        ("d0 0 50", [50, 50, 50]),
        ("d0 0 50 d0 0 70", [50, 70, 70]),
        ("d0 0 0 d0 0 70 d0 0 90", [0, 70, 90]),
    ];
    for (args, want) in cases {
        let (sim, media) = (Sim::new(1), media(1, DISK));
        sim.block_on(async {
            let text = format!("0 64 delay {args}\n");
            let device = device(&sim, &disks(&media), &text).await;
            assert_eq!(device.table(), text);
            let volume = gateway(&device);
            let check = async |want: [u64; 3]| {
                let times = [
                    took_ms(&sim, read(&volume)).await,
                    took_ms(&sim, write(&volume, 1)).await,
                    took_ms(&sim, volume.flush()).await,
                ];
                for (time, want) in times.into_iter().zip(want) {
                    assert!((want..want + DISK_MS).contains(&time), "{args}: {times:?}");
                }
            };
            check(want).await;
            for (message, want, table) in [
                (&["delay", "10"][..], [10, 10, 10], None),
                (&["delay", "0", "20"], [0, 20, 20], None),
                (&["delay", "1", "20", "30"], [1, 20, 30], Some("d0 0 1 d0 0 20 d0 0 30")),
            ] {
                device.message(Sector(0), message).await.expect("it is known");
                check(want).await;
                if let Some(table) = table {
                    assert_eq!(device.table(), format!("0 64 delay {table}\n"));
                }
            }
            for wrong in [&["delay"][..], &["delay", "x"], &["delay", "1", "2", "3", "4"]] {
                let error = device.message(Sector(0), wrong).await.expect_err("wrong");
                assert!(matches!(error, MessageError::Invalid(_)), "{error}");
            }
            for unknown in [&[][..], &["x"]] {
                let error = device.message(Sector(0), unknown).await.expect_err("unknown");
                assert!(matches!(error, MessageError::Unknown { .. }), "{error}");
            }
            assert!(device.message(Sector(64), &["delay", "1"]).await.is_err());
        });
    }
}

#[test]
fn delayed_io_is_counted_by_class_and_all_of_it_waits_at_the_same_time() {
    let (sim, media) = (Sim::new(1), media(1, DISK));
    sim.block_on(async {
        let device = device(&sim, &disks(&media), "0 64 delay d0 0 50").await;
        let volume = gateway(&device);
        let began = sim.now_ns();
        let all: Vec<_> = (0..5)
            .map(|i| {
                let volume = volume.clone();
                sim.start(async move {
                    match i {
                        0 => volume.flush().await,
                        1 | 2 => write(&volume, 1).await,
                        _ => read(&volume).await.map(drop),
                    }
                })
            })
            .collect();
        SimRuntime.sleep(Duration::from_millis(10)).await;
        assert_eq!(device.status(), "0 64 delay 2 2 1\n");
        for io in all {
            io.await.expect("an I/O");
        }
        assert!((50..50 + DISK_MS).contains(&((sim.now_ns() - began) / MS)));
        assert_eq!(device.status(), "0 64 delay 0 0 0\n");
    });
}

#[test]
fn writes_and_flushes_may_go_to_other_devices() {
    let (sim, media) = (Sim::new(1), media(3, DISK));
    sim.block_on(async {
        let text = "0 64 delay d0 0 0 d1 8 0 d2 16 0\n";
        let volume = gateway(&device(&sim, &disks(&media), text).await);
        write(&volume, 1).await.expect("a write");
        assert_eq!(read(&volume).await, Ok(vec![0; 4096]));
        volume.flush().await.expect("a flush");
        assert_eq!(media[1].peek_durable(Sector(8)), stamped(0, 1, 1)[..]);
        assert_eq!(media[2].log().len(), 1);
    });
}

/// The effect of a feature on reads or writes while it is down.
enum FaultEffect {
    Fails,
    /// The next read returns this.
    Passes(fn(Vec<u8>) -> Vec<u8>),
}

#[test]
fn flakey_is_good_and_bad_in_turns_and_bad_is_what_the_features_say() {
    let same: fn(Vec<u8>) -> Vec<u8> = |data| data;
    let byte_9: fn(Vec<u8>) -> Vec<u8> = |mut data| {
        data[8] = 77;
        data
    };
    // Features, features as printed, reads, writes.
    let cases = [
        ("", "2 error_reads error_writes", FaultEffect::Fails, FaultEffect::Fails),
        ("1 error_reads", "1 error_reads", FaultEffect::Fails, FaultEffect::Passes(same)),
        ("1 ERROR_writes", "1 error_writes", FaultEffect::Passes(same), FaultEffect::Fails),
        (
            "1 drop_writes",
            "1 drop_writes",
            FaultEffect::Passes(same),
            FaultEffect::Passes(|_| stamped(0, 8, 1)),
        ),
        (
            "5 corrupt_bio_byte 9 r 77 0",
            "5 corrupt_bio_byte 9 r 77 0",
            FaultEffect::Passes(byte_9),
            FaultEffect::Passes(same),
        ),
        (
            "5 corrupt_bio_byte 9 w 77 1",
            "5 corrupt_bio_byte 9 w 77 1",
            FaultEffect::Passes(same),
            FaultEffect::Passes(byte_9),
        ),
        // Only writes with FUA, which do not occur here; only bios with that many bytes.
        (
            "5 corrupt_bio_byte 9 w 77 131072",
            "5 corrupt_bio_byte 9 w 77 131072",
            FaultEffect::Passes(same),
            FaultEffect::Passes(same),
        ),
        (
            "5 corrupt_bio_byte 4097 r 77 0",
            "5 corrupt_bio_byte 4097 r 77 0",
            FaultEffect::Passes(same),
            FaultEffect::Passes(same),
        ),
    ];
    for (features, printed, reads, writes) in cases {
        let (sim, media) = (Sim::new(1), media(1, DISK));
        sim.block_on(async {
            let text = format!("0 64 flakey d0 0 3 2 {features}");
            let device = device(&sim, &disks(&media), &text).await;
            let words = format!("0 64 flakey d0 0 3 2 {printed}\n");
            assert_eq!(device.table(), words);
            let volume = gateway(&device);
            for second in 0..15u64 {
                let now = Duration::from_nanos(sim.now_ns());
                let then = Duration::from_millis(second * 1000 + 500);
                SimRuntime.sleep(then - now).await;
                let down = second % 5 >= 3;
                assert_eq!(
                    write(&volume, 1).await.is_err(),
                    down && matches!(writes, FaultEffect::Fails)
                );
                if !down {
                    assert_eq!(read(&volume).await, Ok(stamped(0, 8, 1)), "{text}");
                    volume.flush().await.expect("a flush");
                    continue;
                }
                media[0].poke(Sector(0), &stamped(0, 8, 1));
                match &reads {
                    FaultEffect::Fails => {
                        assert_eq!(read(&volume).await, Err(Status::Io), "{text}")
                    }
                    FaultEffect::Passes(bad) => {
                        assert_eq!(read(&volume).await, Ok(bad(stamped(0, 8, 1))), "{text}");
                    }
                }
                let result = write(&volume, 2).await;
                let stored = media[0].peek_range(Sector(0), Sectors(8));
                match &writes {
                    FaultEffect::Fails => {
                        assert_eq!((result, stored), (Err(Status::Io), stamped(0, 8, 1)));
                        assert_eq!(volume.flush().await, Err(Status::Io), "{text}");
                    }
                    FaultEffect::Passes(bad) => {
                        assert_eq!((result, stored), (Ok(()), bad(stamped(0, 8, 2))), "{text}");
                        volume.flush().await.expect("a flush");
                    }
                }
                media[0].poke(Sector(0), &stamped(0, 8, 1));
            }
        });
    }
}

#[test]
fn random_corruption_changes_one_byte_as_often_as_it_should() {
    for (feature, reading) in [("random_read_corrupt", true), ("random_write_corrupt", false)] {
        let (sim, media) = (Sim::new(1), media(1, DISK));
        let mut changed = 0;
        sim.block_on(async {
            let text = format!("0 64 flakey d0 0 0 1 2 {feature} 250000000\n");
            let device = device(&sim, &disks(&media), &text).await;
            assert_eq!(device.table(), text);
            let volume = gateway(&device);
            for _ in 0..400 {
                media[0].poke(Sector(0), &stamped(0, 8, 1));
                if !reading {
                    write(&volume, 1).await.expect("a write");
                }
                let data = read(&volume).await.expect("a read");
                let wrong = data.iter().zip(stamped(0, 8, 1)).filter(|(a, b)| *a != b).count();
                assert!(wrong <= 1);
                changed += wrong;
            }
        });
        // A quarter, minus those where the new byte equals the old one.
        assert!((60..140).contains(&changed), "{feature}: {changed} of 400");
    }
}

#[test]
fn a_dropped_write_never_touches_the_device() {
    let (sim, media) = (Sim::new(1), media(1, DISK));
    sim.block_on(async {
        let text = "0 64 flakey d0 0 0 1 1 drop_writes";
        let volume = gateway(&device(&sim, &disks(&media), text).await);
        write(&volume, 1).await.expect("it says so");
        volume.submit(Bio::write_zeroes(Sector(0), Sectors(8))).await.expect("it says so");
        volume.submit(Bio::discard(Sector(0), Sectors(8))).await.expect("it says so");
        volume.flush().await.expect("it says so");
    });
    assert_eq!(media[0].log(), []);
}
