//! The mirror: copies of its first leg that are made while I/O continues.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{device, disks, disks_with, gateway, media, stamped, table, write};
use ashlar_block::{Bio, Flags, Gateway, Limits, Op, Runtime, Sector, Sectors, Status};
use ashlar_dm::Device;
use ashlar_sim::{DiscardReads, Media, Oracle, Sim, SimRuntime, Stop, Value, Workload, seeds};

/// Three windows and a part of one; regions do not divide it.
const LEN: u64 = 3 * 16_384 + 1000;
const DISK: u64 = LEN + 64;

fn lines(region: u64) -> String {
    format!("0 {LEN} mirror core 1 {region} 2 d0 16 d1 32\n")
}

/// Two disks that return zeroes where they were discarded: else each might return something of its own.
fn legs() -> Vec<Media> {
    let media = media(2, DISK);
    media.iter().for_each(|disk| disk.set_discard_reads(DiscardReads::Zeroes));
    media
}

async fn until_synced(device: &Device) {
    let all = format!(" {0}/{0} ", LEN.div_ceil(1024));
    while !device.status().contains(&all) {
        SimRuntime.sleep(Duration::from_millis(1)).await;
    }
}

async fn says(device: &Device, message: &str) -> Result<String, String> {
    device.message(Sector(0), &[message]).await.map_err(|error| error.to_string())
}

fn same(media: &[Media]) -> bool {
    let [first, second] = media else { return false };
    first.peek_range(Sector(16), Sectors(LEN)) == second.peek_range(Sector(32), Sectors(LEN))
}

/// Writes what was there before the mirror, to its first leg.
async fn fill(media: &[Media]) {
    let old = gateway_of(media, 0);
    for at in (0..LEN).step_by(1024) {
        write(&old, 16 + at, 1024.min(LEN - at), 1, Flags::empty()).await;
    }
    old.flush().await.expect("a flush");
}

fn gateway_of(media: &[Media], index: usize) -> Gateway {
    disks(media).0[index].clone()
}

#[test]
fn every_table_is_printed_as_it_was_given_and_the_status_is_the_kernels() {
    let (sim, media) = (Sim::new(1), media(3, DISK));
    sim.block_on(async {
        for (text, status) in [
            ("0 64 mirror core 2 16 nosync 2 d0 0 d1 8\n", "0 64 mirror 2 d0 d1 4/4 1 AA 1 core\n"),
            (
                "0 63 mirror core 2 16 nosync 3 d0 0 d1 8 d2 1 1 handle_errors\n",
                "0 63 mirror 3 d0 d1 d2 4/4 1 AAA 1 core\n",
            ),
            (
                "0 64 mirror core 1 16 1 d0 0 2 handle_errors keep_log\n",
                "0 64 mirror 1 d0 4/4 1 A 1 core\n",
            ),
        ] {
            let device = device(&sim, &disks(&media), text).await;
            assert_eq!((&*device.table(), &*device.status()), (text, status));
        }
    });
}

#[test]
fn a_table_that_the_kernel_would_refuse_is_refused_with_the_reason() {
    let (sim, media) = (Sim::new(1), media(2, DISK));
    sim.block_on(async {
        for (args, why) in [
            ("disk 2 d0 16 2 d0 0 d1 0", "only core"),
            ("core 3 16 sync x 2 d0 0 d1 0", "1 or 2 arguments"),
            ("core 2 16 maybe 2 d0 0 d1 0", "neither sync nor nosync"),
            ("core 1 24 2 d0 0 d1 0", "a power of two"),
            ("core 1 1 2 d0 0 d1 0", "a power of two"),
            ("core 1 128 2 d0 0 d1 0", "no longer than the piece"),
            ("core 1 16 0", "1 to 9 legs"),
            ("core 1 16 10 d0 0", "1 to 9 legs"),
            ("core 1 16 2 d0 0", "the device is missing"),
            ("core 1 16 2 d0 0 d1 0 1 bright", "no feature 'bright'"),
            ("core 1 16 2 d0 0 d1 0 1", "a feature is missing"),
            ("core 1 16 2 d0 0 d1 0 0 more", "one argument too many"),
        ] {
            let text = format!("0 64 mirror {args}");
            let error = table(&sim, &disks(&media), &text).await.err().expect(args);
            assert!(error.to_string().contains(why), "{args}: {error}");
        }
    });
}

#[test]
fn the_legs_are_the_same_at_the_end_whatever_is_written_while_they_are_copied() {
    let mut busy = 0;
    for seed in seeds(15) {
        let (sim, media) = (Sim::new(seed), legs());
        let mut rng = sim.rng();
        let oracle = Oracle::new(seed, Value::Zeroes);
        sim.block_on(async {
            let device = device(&sim, &disks(&media), &lines(1024)).await;
            let volume = gateway(&device);
            let work = Workload { ios: 2, ..Workload::over(0..LEN) };
            let done = Rc::new(Cell::new(false));
            let work = {
                let (done, volume, oracle) = (done.clone(), volume.clone(), oracle.clone());
                let mut rng = rng.fork();
                let device = Arc::clone(&device);
                sim.start(async move {
                    let mut rounds = 0;
                    let all = format!(" {0}/{0} ", LEN.div_ceil(1024));
                    while !device.status().contains(&all) {
                        work.run(&volume, &oracle, &mut rng).await.expect("what was written");
                        rounds += 1;
                    }
                    work.run(&volume, &oracle, &mut rng).await.expect("what was written");
                    work.verify(&volume, &oracle).await.expect("what was written");
                    done.set(true);
                    rounds
                })
            };
            while !done.get() {
                SimRuntime.sleep(Duration::from_micros(rng.below(3000))).await;
                match rng.below(6) {
                    0 => {
                        device.suspend(rng.chance(1, 2)).await.expect("it suspends");
                        device.resume().await.expect("it resumes");
                    }
                    1 => {
                        says(&device, "pause").await.expect("it pauses");
                        assert_eq!(says(&device, "is_paused").await.as_deref(), Ok("1"));
                        SimRuntime.sleep(Duration::from_micros(rng.below(3000))).await;
                        says(&device, "resume").await.expect("it resumes");
                    }
                    _ => {}
                }
            }
            busy += work.await;
            volume.flush().await.expect("a flush");
            says(&device, "verify").await.expect("all is copied");
        });
        assert!(same(&media), "seed {seed}: the legs differ");
    }
    assert!(busy > 22, "{busy} rounds were written meanwhile: the test tests nothing");
}

#[test]
fn what_was_flushed_is_on_the_first_leg_whenever_the_power_fails_and_on_all_once_it_is_verified() {
    let (mut early, mut late) = (0, 0);
    for seed in seeds(25) {
        let (sim, media) = (Sim::new(seed), legs());
        let oracle = Oracle::new(seed, Value::Zeroes);
        let work = Workload::over(0..LEN);
        let mut rng = sim.rng();
        let steps = rng.below(3000);
        let verified = Rc::new(Cell::new(false));
        let cut = async {
            let device = device(&sim, &disks(&media), &lines(1024)).await;
            let volume = gateway(&device);
            let watch = async {
                until_synced(&device).await;
                says(&device, "verify").await.expect("all is copied");
                verified.set(true);
                std::future::pending::<()>().await;
            };
            let write = async {
                loop {
                    work.run(&volume, &oracle, &mut rng).await.expect("what was written");
                }
            };
            futures_util::future::join(watch, write).await;
        };
        let never: Option<((), ())> = sim.block_on_until(
            async {
                cut.await;
                unreachable!("it writes forever")
            },
            Stop::AfterSteps(steps),
        );
        assert!(never.is_none());
        sim.power_cut();
        oracle.power_cut();
        *(if verified.get() { &mut late } else { &mut early }) += 1;
        // The leg that counts: after a `verify` its user continues with the other one alone.
        let leg = if verified.get() { "d1 32" } else { "d0 16" };
        let sim = Sim::new(seed + 1_000_000);
        sim.block_on(async {
            let text = format!("0 {LEN} linear {leg}");
            let volume = gateway(&device(&sim, &disks(&media), &text).await);
            let result = work.verify(&volume, &oracle).await;
            result.unwrap_or_else(|error| panic!("seed {seed}, {leg}: {error}"));
        });
    }
    assert!(early > 2 && late > 2, "{early} cuts were early and {late} late");
}

#[test]
fn a_leg_that_fails_is_left_and_its_failures_are_no_failures_of_the_mirror() {
    for (fails, health) in [(0..LEN + 64, "AS"), (LEN + 31..LEN + 64, "AS")] {
        let (sim, media) = (Sim::new(1), media(2, DISK));
        sim.block_on(async {
            fill(&media).await;
            media[1].fail_writes(fails);
            let device = device(&sim, &disks(&media), &lines(1024)).await;
            let volume = gateway(&device);
            while says(&device, "has_failed").await.as_deref() == Ok("0") {
                SimRuntime.sleep(Duration::from_millis(1)).await;
            }
            assert!(
                device.status().ends_with(&format!(" 1 {health} 1 core\n")),
                "{}",
                device.status()
            );
            write(&volume, 0, 8, 2, Flags::FUA).await;
            write(&volume, LEN - 8, 8, 2, Flags::empty()).await;
            volume.flush().await.expect("the first leg has it");
            let read = volume.read(Sector(LEN - 8), Sectors(8)).await.expect("a read");
            assert_eq!(read.as_slice(), stamped(LEN - 8, 8, 2));
            let error = says(&device, "verify").await.expect_err("a leg has failed");
            assert!(error.contains("not in sync"), "{error}");
        });
    }
}

#[test]
fn a_leg_that_fails_once_it_was_copied_is_noticed_before_it_is_relied_upon() {
    type Failing = (&'static str, fn(&Media), bool, char);
    let cases: [Failing; 3] = [
        ("a write", |disk| disk.fail_writes(32..40), true, 'D'),
        ("the flush of a client", |disk| disk.fail_nth_flush(0), true, 'F'),
        ("the last flush", |disk| disk.fail_nth_flush(0), false, 'F'),
    ];
    for (what, fail, io, health) in cases {
        let (sim, media) = (Sim::new(1), media(2, DISK));
        sim.block_on(async {
            fill(&media).await;
            let device = device(&sim, &disks(&media), &lines(1024)).await;
            let volume = gateway(&device);
            until_synced(&device).await;
            fail(&media[1]);
            if io {
                write(&volume, 0, 8, 2, Flags::empty()).await;
                volume.flush().await.expect("the first leg has it");
            }
            let error = says(&device, "verify").await.expect_err(what);
            assert!(error.contains("d1 has failed"), "{what}: {error}");
            assert!(device.status().ends_with(&format!(" 1 A{health} 1 core\n")), "{what}");
            // It gets no more I/O.
            let before = media[1].log().len();
            write(&volume, 8, 8, 2, Flags::FUA).await;
            volume.flush().await.expect("a flush");
            assert_eq!(media[1].log().len(), before, "{what}");
        });
    }
}

#[test]
fn a_failure_of_the_first_leg_is_the_clients_unless_another_one_has_the_data() {
    let (sim, media) = (Sim::new(1), media(2, DISK));
    sim.block_on(async {
        fill(&media).await;
        let device = device(&sim, &disks(&media), &lines(1024)).await;
        let volume = gateway(&device);
        says(&device, "pause").await.expect("it pauses");
        until_paused(&device).await;
        media[0].fail_reads(16 + LEN - 8..16 + LEN);
        assert!(volume.read(Sector(LEN - 8), Sectors(8)).await.is_err(), "it is not copied yet");
        says(&device, "resume").await.expect("it resumes");
        while says(&device, "has_failed").await.as_deref() == Ok("0") {
            SimRuntime.sleep(Duration::from_millis(1)).await;
        }
        media[0].fail_reads(16..24);
        let read = volume.read(Sector(0), Sectors(8)).await.expect("the other leg has it");
        assert_eq!(read.as_slice(), stamped(16, 8, 1));
        assert!(device.status().ends_with(" 1 RA 1 core\n"), "{}", device.status());
        media[0].fail_writes(16..24);
        let mut data = ashlar_block::Buffer::from_slice(&stamped(0, 8, 2));
        let write = volume.write(Sector(0), &mut data, Flags::empty()).await;
        assert!(write.is_err(), "the first leg did not take it");
    });
}

#[test]
fn a_mirror_that_waits_holds_no_writes() {
    for pause in [0, 200, 1000, 3000, 5000] {
        let (sim, media) = (Sim::new(1), legs());
        sim.block_on(async {
            let device = device(&sim, &disks(&media), &lines(1024)).await;
            SimRuntime.sleep(Duration::from_micros(pause)).await;
            says(&device, "pause").await.expect("it pauses");
            let volume = gateway(&device);
            for at in (0..LEN - 8).step_by(4096) {
                write(&volume, at, 8, 1, Flags::empty()).await;
            }
            assert_eq!(says(&device, "is_paused").await.as_deref(), Ok("1"));
            says(&device, "resume").await.expect("it resumes");
            until_synced(&device).await;
        });
        assert!(same(&media), "{pause}");
    }
}

/// Waits until nothing is being copied.
async fn until_paused(device: &Device) {
    let mut before = String::new();
    while before != device.status() {
        before = device.status();
        SimRuntime.sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn what_a_leg_cannot_do_is_not_supported_and_no_failure() {
    let (sim, media) = (Sim::new(1), media(2, DISK));
    sim.block_on(async {
        let no = |index, limits: Limits| match index {
            1 => Limits { max_hw_discard: Sectors(0), max_write_zeroes: Sectors(0), ..limits },
            _ => limits,
        };
        let text = format!("0 {LEN} mirror core 2 1024 nosync 2 d0 16 d1 32\n");
        let device = device(&sim, &disks_with(&media, no), &text).await;
        let volume = gateway(&device);
        let discard = volume.submit(Bio::discard(Sector(0), Sectors(8))).await;
        assert_eq!(discard, Err(Status::NotSupported));
        write(&volume, 0, 8, 1, Flags::empty()).await;
        volume.submit(Bio::write_zeroes(Sector(0), Sectors(8))).await.expect("by writing");
        assert!(device.status().ends_with(" 1 AA 1 core\n"));
    });
    assert!(same(&media));
}

#[test]
fn a_write_zeroes_that_may_be_refused_is_refused_by_all_legs_or_written() {
    for (refusing, expected) in [(vec![1], Ok(())), (vec![0, 1], Err(Status::NotSupported))] {
        let (sim, media) = (Sim::new(1), media(2, DISK));
        sim.block_on(async {
            let text = format!("0 {LEN} mirror core 2 1024 nosync 2 d0 16 d1 32\n");
            let device = device(&sim, &disks(&media), &text).await;
            let volume = gateway(&device);
            write(&volume, 0, 8, 1, Flags::empty()).await;
            refusing.iter().for_each(|leg: &usize| media[*leg].drop_support(Op::WriteZeroes));
            let zeroes = || Bio::write_zeroes(Sector(0), Sectors(8)).with_flags(Flags::FAST);
            assert_eq!(volume.submit(zeroes()).await, expected, "{refusing:?}");
            let held = if expected.is_ok() { vec![0; 4096] } else { stamped(0, 8, 1) };
            assert_eq!(volume.read(Sector(0), Sectors(8)).await.expect("a read").as_slice(), held);
            // From now on it is known, and no leg is asked.
            write(&volume, 0, 8, 2, Flags::empty()).await;
            let before = media[0].log().len();
            assert_eq!(volume.submit(zeroes()).await, Err(Status::NotSupported));
            assert_eq!(media[0].log().len(), before);
            assert!(device.status().ends_with(" 1 AA 1 core\n"));
        });
        assert!(same(&media));
    }
}

#[test]
fn a_device_that_is_made_suspended_begins_when_it_is_resumed() {
    let (sim, media) = (Sim::new(1), media(2, DISK));
    sim.block_on(async {
        fill(&media).await;
        let table = table(&sim, &disks(&media), &lines(1024)).await.expect("a table");
        let device = Device::suspended("dm-0", table, sim.runtime()).await;
        SimRuntime.sleep(Duration::from_millis(500)).await;
        assert!(media[1].log().is_empty(), "nothing is copied yet");
        // What others write to the first leg until then is copied, too.
        write(&gateway_of(&media, 0), 16, 8, 2, Flags::empty()).await;
        let read = {
            let volume = gateway(&device);
            sim.start(async move { volume.read(Sector(0), Sectors(8)).await })
        };
        SimRuntime.sleep(Duration::from_millis(1)).await;
        assert_eq!(device.held(), 1);
        device.resume().await.expect("it begins");
        assert_eq!(read.await.expect("a read").as_slice(), stamped(16, 8, 2));
        until_synced(&device).await;
        says(&device, "verify").await.expect("all is copied");
    });
    assert!(same(&media));
}
