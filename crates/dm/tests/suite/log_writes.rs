//! The log of writes contains the durable data, in the order in which it became durable.

use std::collections::BTreeMap;

use crate::common::{device, disks, disks_with, gateway, media, stamped};
use ashlar_block::{Bio, Buffer, Flags, Gateway, Limits, Sector, Sectors, Status};
use ashlar_dm::target::MessageError;
use ashlar_dm::target::log_writes::format::{
    DISCARD, FLUSH, FUA, MARK, METADATA, Record, Super, records,
};
use ashlar_sim::{DiscardReads, Media, Rng, Sim, seeds};

const DISK: u64 = 512;
const LOG: u64 = 1 << 15;

fn log_of(medium: &Media) -> Vec<u8> {
    medium.peek_range(Sector::ZERO, medium.capacity())
}

/// Applies an entry.
fn replay(record: &Record<'_>, size: usize, device: &mut [u8]) {
    let start = record.entry.sector.get() as usize * size;
    let len = record.entry.nr_sectors.get() as usize * size;
    if record.entry.flags.get() & DISCARD != 0 {
        device[start..start + len].fill(0);
    } else if record.entry.flags.get() & MARK == 0 {
        device[start..start + len].copy_from_slice(record.data);
    }
}

async fn write(volume: &Gateway, at: u64, len: u64, generation: u8, flags: Flags) {
    let mut data = Buffer::from_slice(&stamped(at, len, generation));
    volume.write(Sector(at), &mut data, flags).await.expect("a write");
}

#[test]
fn replayed_to_each_mark_it_gives_what_the_device_held_at_that_mark() {
    for seed in seeds(25) {
        for block in [512, 4096] {
            let sim = Sim::new(seed);
            let media = [media(1, DISK), media(1, LOG)].concat();
            media[0].set_discard_reads(DiscardReads::Zeroes);
            let mut rng = sim.rng();
            let mut marks = BTreeMap::new();
            sim.block_on(async {
                let disks =
                    disks_with(&media, |_, limits| Limits { logical_block_bytes: block, ..limits });
                let device = device(&sim, &disks, "0 512 log-writes d0 d1").await;
                assert_eq!(device.table(), "0 512 log-writes d0 d1\n");
                let volume = gateway(&device);
                for step in 0..8 {
                    let tasks: Vec<_> = (0..4)
                        .map(|task| {
                            let (volume, rng) = (volume.clone(), rng.fork());
                            let area = task * DISK / 4..(task + 1) * DISK / 4;
                            sim.start(work(volume, rng, area, u64::from(block) / 512))
                        })
                        .collect();
                    for task in tasks {
                        task.await;
                    }
                    volume.flush().await.expect("a flush");
                    let mark = format!("step {step}");
                    assert_eq!(device.message(Sector(0), &["mark", &mark]).await, Ok("".into()));
                    marks.insert(mark, log_of(&media[0]));
                }
            });
            let log = log_of(&media[1]);
            assert_eq!(Super::parse(&log).expect("a super").sector_size.get(), block);
            let mut replayed = vec![0; DISK as usize * 512];
            for record in records(&log) {
                let record = record.expect("a record");
                replay(&record, block as usize, &mut replayed);
                if record.entry.flags.get() & MARK != 0 {
                    let name = std::str::from_utf8(record.data).expect("a name");
                    let want = marks.remove(name).expect("a mark of ours");
                    assert!(replayed == want, "seed {seed}: {name}");
                }
            }
            assert_eq!(marks.len(), 0, "seed {seed}: {:?}", marks.keys());
        }
    }
}

/// Random changes of one area, one after the other.
async fn work(volume: Gateway, mut rng: Rng, area: std::ops::Range<u64>, unit: u64) {
    for _ in 0..10 {
        let blocks = (area.end - area.start) / unit;
        let at = rng.below(blocks);
        let len = (1 + rng.below((blocks - at).min(40))) * unit;
        let at = area.start + at * unit;
        match rng.below(6) {
            0 => volume.submit(Bio::discard(Sector(at), Sectors(len))).await.expect("a discard"),
            1 => volume.submit(Bio::write_zeroes(Sector(at), Sectors(len))).await.expect("zeroes"),
            2 => volume.flush().await.expect("a flush"),
            3 => write(&volume, at, len, rng.below(256) as u8, Flags::FUA | Flags::META).await,
            _ => write(&volume, at, len, rng.below(256) as u8, Flags::empty()).await,
        }
    }
}

#[test]
fn what_is_not_flushed_waits_and_what_has_fua_does_not() {
    let (sim, media) = (Sim::new(1), [media(1, DISK), media(1, LOG)].concat());
    let flags = sim.block_on(async {
        let device = device(&sim, &disks(&media), "0 512 log-writes d0 d1").await;
        let volume = gateway(&device);
        write(&volume, 0, 1, 1, Flags::empty()).await;
        assert_eq!(device.status(), "0 512 log-writes 0 0\n");
        write(&volume, 8, 2, 2, Flags::FUA | Flags::META).await;
        assert_eq!(device.status(), "0 512 log-writes 1 3\n");
        volume.flush().await.unwrap();
        assert_eq!(device.status(), "0 512 log-writes 3 6\n");
        volume.submit(Bio::discard(Sector(0), Sectors(64))).await.unwrap();
        device.message(Sector(0), &["MARK", "x"]).await.unwrap();
        assert_eq!(device.status(), "0 512 log-writes 4 7\n");
        for wrong in [&["mark"][..], &["mark", "a", "b"], &[]] {
            let error = device.message(Sector(0), wrong).await.expect_err("wrong");
            assert!(matches!(error, MessageError::Invalid(_)));
        }
        let error = device.message(Sector(0), &["other", "b"]).await.expect_err("unknown");
        assert!(matches!(error, MessageError::Unknown { .. }));
        device.suspend(false).await.unwrap();
        let log = log_of(&media[1]);
        let all = records(&log).map(|record| record.unwrap().entry.flags.get());
        all.collect::<Vec<_>>()
    });
    assert_eq!(flags, [FUA | METADATA, 0, FLUSH, MARK, DISCARD]);
}

#[test]
fn a_flush_that_fails_leaves_its_writes_to_the_next_one() {
    let (sim, media) = (Sim::new(1), [media(1, DISK), media(1, LOG)].concat());
    sim.block_on(async {
        let device = device(&sim, &disks(&media), "0 512 log-writes d0 d1").await;
        let volume = gateway(&device);
        write(&volume, 0, 1, 1, Flags::empty()).await;
        media[0].fail_nth_flush(0);
        assert_eq!(volume.flush().await, Err(Status::Io));
        assert_eq!(device.status(), "0 512 log-writes 0 0\n");
        volume.flush().await.unwrap();
        assert_eq!(device.status(), "0 512 log-writes 2 3\n");
    });
}

#[test]
fn a_log_that_is_full_or_fails_ends_and_fails_no_io() {
    for full in [false, true] {
        let (sim, media) = (Sim::new(1), [media(1, DISK), media(1, LOG.min(64))].concat());
        sim.block_on(async {
            let device = device(&sim, &disks(&media), "0 512 log-writes d0 d1").await;
            let volume = gateway(&device);
            write(&volume, 0, 8, 1, Flags::FUA).await;
            if full {
                for at in 0..16 {
                    write(&volume, at * 8, 8, 2, Flags::FUA).await;
                }
            } else {
                media[1].kill();
                write(&volume, 0, 8, 2, Flags::FUA).await;
            }
            assert!(device.status().ends_with(" logging_disabled\n"), "{}", device.status());
            write(&volume, 0, 8, 3, Flags::FUA).await;
            volume.flush().await.unwrap();
            device.suspend(true).await.unwrap();
            let log = log_of(&media[1]);
            let read = records(&log).collect::<Result<Vec<_>, _>>().expect("a sound log");
            assert_eq!(read.len(), if full { 6 } else { 1 });
            assert_eq!(read[0].data, stamped(0, 8, 1));
        });
    }
}
