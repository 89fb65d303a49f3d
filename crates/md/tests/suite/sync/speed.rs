//! The speed of a sync.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Bio, Buffer, Runtime, Sector, Sectors};
use ashlar_md::Array;
use ashlar_md::{SyncAction, SyncRequest};
use ashlar_sim::{Media, Model, Sim, SimDisk, SimRuntime};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;

use crate::common::{DATA, Shape, disks, gateway, make, media, start, write};
use crate::sync::world::{RUN, edit, fill, raid1, raid10, start_on};

const SECOND: u64 = 1_000_000_000;

async fn time(sim: &Sim, work: impl Future<Output = ()>) -> f64 {
    let begin = sim.now_ns();
    work.await;
    (sim.now_ns() - begin) as f64 / SECOND as f64
}

/// Starts an array that needs a resync.
async fn start_unsynced(sim: &Sim, media: &[Media]) -> Arc<Array> {
    media.iter().for_each(|medium| edit(medium, |sb| sb.resync_offset = Sectors::ZERO));
    start_on(sim, media).await
}

#[test]
fn a_sync_takes_the_time_that_its_highest_speed_allows() {
    let media = media(2, Sectors(20 * 2048));
    let sim = Sim::new(1);
    fill(&sim, &raid1(2), &media);
    sim.block_on(async {
        let array = start_unsynced(&sim, &media).await;
        array.sync_settings().set_speed_max_kib(Some(1000));
        let kib = array.personality().size().0 / 2;
        let took = time(&sim, array.sync_ended()).await;
        let expected = kib as f64 / 1000.0;
        // No wait follows the last window.
        assert!((expected - 1.2..expected + 0.2).contains(&took), "{took} s of {expected}");
        array.stop().await.unwrap();
    });
}

#[test]
fn progress_and_speed_can_be_followed() {
    let media = media(2, Sectors(64 * 2048));
    let sim = Sim::new(2);
    fill(&sim, &raid1(2), &media);
    sim.block_on(async {
        let array = start_unsynced(&sim, &media).await;
        array.sync_settings().set_speed_max_kib(Some(2048));
        sim.runtime().sleep(Duration::from_secs(10)).await;
        let status = array.sync_status();
        assert_eq!((status.action, status.total), (SyncAction::Resync, array.personality().size()));
        assert!((19 * 2048..22 * 2048).contains(&status.done.0), "{status:?}");
        assert!((1900..2300).contains(&status.speed_kib), "{status:?}");
        let eta = status.eta.unwrap();
        assert!((18..24).contains(&eta.as_secs()), "{status:?}");
        // A changed setting takes effect at once.
        array.sync_settings().set_speed_max_kib(None);
        assert!(time(&sim, array.sync_ended()).await < 1.5);
        let status = array.sync_status();
        assert_eq!((status.action, status.total), (SyncAction::Idle, Sectors::ZERO));
    });
}

#[test]
fn a_sync_goes_at_its_lowest_speed_while_there_is_regular_io() {
    let media = media(2, Sectors(64 * 2048));
    let sim = Sim::new(3);
    fill(&sim, &raid1(2), &media);
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        let volume = gateway(&array);
        array.sync_settings().set_speed_min_kib(Some(2048));
        array.request_sync(SyncRequest::Check).unwrap();
        for _ in 0..500 {
            sim.runtime().sleep(Duration::from_millis(20)).await;
            write(&volume, 77, 8, 3).await.unwrap();
        }
        // The windows in flight at the first write, and ten seconds.
        let done = array.sync_status().done.0 / 2048;
        assert!((18..48).contains(&done), "{done} MiB");
        assert!(time(&sim, array.sync_ended()).await < 1.0, "the array is idle");
    });
}

#[test]
fn writes_have_their_turn_while_an_array_is_synced() {
    let media = media(2, Sectors(256 * 2048));
    let sim = Sim::new(4);
    sim.block_on(async {
        let disks: Vec<SimDisk> = media
            .iter()
            .enumerate()
            .map(|(n, m)| {
                SimDisk::with(format!("d{n}"), m.clone(), Model::hdd().limits(), Model::hdd())
            })
            .collect();
        make(&raid1(2), &disks).await;
        let array = start(&sim, &disks, &RUN).await.unwrap();
        let volume = gateway(&array);
        array.request_sync(SyncRequest::Check).unwrap();
        let mut slowest = 0.0_f64;
        while array.sync_status().action == SyncAction::Check {
            slowest =
                slowest.max(time(&sim, async { write(&volume, 77, 8, 3).await.unwrap() }).await);
            sim.runtime().sleep(Duration::from_millis(200)).await;
        }
        // Sixteen windows of a mebibyte at 180 MB/s take 93 ms.
        assert!(slowest < 0.3, "a write took {slowest} s");
    });
}

/// Sequential write speed of a disk in bytes per second.
fn sequential(model: Model, len: Sectors) -> f64 {
    let sim = Sim::new(9);
    let disk = SimDisk::with("d", Media::new(len), model.limits(), model);
    sim.block_on(async {
        let gateway = disk.gateway();
        let took = time(&sim, async {
            let mut flights = FuturesUnordered::new();
            let mut at = 0;
            while at < len.0 {
                let gateway = &gateway;
                flights.push(async move {
                    let mut data = Buffer::zeroed(1 << 20);
                    gateway.submit(Bio::write_from(Sector(at), &mut data)).await
                });
                at += 2048;
                if flights.len() == 16 {
                    flights.next().await.unwrap().unwrap();
                }
            }
            while let Some(done) = flights.next().await {
                done.unwrap();
            }
        });
        len.bytes() as f64 / took.await
    })
}

/// Speed of a sync of an idle array in bytes of one member per second.
fn sync_speed(shape: &Shape, models: &[Model], action: SyncAction, len: Sectors) -> f64 {
    let media = media(shape.members, len);
    let sim = Sim::new(8);
    let disks = |models: &[Model]| -> Vec<SimDisk> {
        let disk = |(n, (m, model)): (usize, (&Media, &Model))| {
            SimDisk::with(format!("d{n}"), m.clone(), model.limits(), *model)
        };
        media.iter().zip(models).enumerate().map(disk).collect()
    };
    sim.block_on(async {
        make(shape, &disks(models)).await;
        if action == SyncAction::Resync {
            media.iter().for_each(|medium| edit(medium, |sb| sb.resync_offset = Sectors::ZERO));
        }
        if action == SyncAction::Recover {
            edit(&media[1], |sb| sb.recovery_offset = Some(Sectors::ZERO));
        }
        let array = start(&sim, &disks(models), &RUN).await.unwrap();
        array.sync_settings().set_speed_max_kib(Some(100_000_000));
        if action == SyncAction::Check {
            array.request_sync(SyncRequest::Check).unwrap();
        }
        let took = time(&sim, array.sync_ended()).await;
        assert_eq!((array.sync_status().last, array.degraded()), (action, 0));
        assert!(!array.is_unsynced());
        array.personality().used_dev_size().bytes() as f64 / took
    })
}

#[test]
fn an_idle_array_is_synced_nearly_as_fast_as_its_slowest_member_is() {
    // A checkpoint takes long on a hard disk, so it gets a longer run.
    let (long, short) = (Sectors(512 * 2048), Sectors(128 * 2048));
    let (hdd, sata, nvme) = (Model::hdd(), Model::sata_ssd(), Model::nvme());
    let shapes = [
        ("raid1", raid1(2)),
        ("raid10 n2", raid10(0x102, 4, 512)),
        ("raid10 n2 on 3", raid10(0x102, 3, 512)),
        ("raid10 o2", raid10(0x1_0201, 4, 512)),
        ("raid10 f2", raid10(0x201, 4, 512)),
    ];
    for (what, model, len) in [("hdd", hdd, long), ("sata ssd", sata, short), ("nvme", nvme, short)]
    {
        let alone = sequential(model, len);
        for (name, shape) in &shapes {
            // Seeks between the parts of a member, or to rows of other members, are inherent in
            // the layout.
            if what == "hdd" && !["raid1", "raid10 n2"].contains(name) {
                continue;
            }
            for action in [SyncAction::Resync, SyncAction::Recover, SyncAction::Check] {
                let models = vec![model; shape.members];
                let part = sync_speed(shape, &models, action, len) / alone;
                println!("{what:9} {name:15} {:8} {part:.2}", action.name());
                assert!(part >= 0.9, "{what} {name} {action:?}: {part}");
            }
        }
    }
    // The slower of two members determines the speed.
    let alone = sequential(hdd, long);
    for action in [SyncAction::Resync, SyncAction::Recover, SyncAction::Check] {
        for models in [[hdd, nvme], [nvme, hdd]] {
            let part = sync_speed(&raid1(2), &models, action, long) / alone;
            println!("hdd + nvme raid1 {:8} {part:.2}", action.name());
            assert!(part >= 0.9, "{action:?}: {part}");
        }
    }
}

#[test]
fn a_clean_bitmap_makes_a_resync_short() {
    use ashlar_md::ondisk::create::NewBitmap;
    let media = media(2, Sectors(256 * 2048));
    let sim = Sim::new(5);
    sim.block_on(async {
        let new = disks(&media);
        let sizes = [media[0].capacity(), media[1].capacity()];
        let mut spec = crate::common::spec(&raid1(2), &sizes);
        spec.bitmap = NewBitmap::Internal { chunk: Some(1 << 20) };
        crate::common::make_with(&spec, &new).await;
        // All of a new bitmap is marked until the array is used.
        let array = start(&sim, &new, &RUN).await.unwrap();
        write(&gateway(&array), 0, 8, 0).await.unwrap();
        array.stop().await.unwrap();
        let array = start(&sim, &new, &RUN).await.unwrap();
        for at in [0, 100, 200] {
            write(&gateway(&array), at * 2048, 8, 1).await.unwrap();
        }
    });
    drop(sim);
    let sim = Sim::new(6);
    media.iter().for_each(Media::clear_log);
    sim.block_on(async {
        let array = start_on(&sim, &media).await;
        assert!(array.is_unsynced() && array.bitmap().is_some());
        array.sync_ended().await;
        assert!(!array.is_unsynced());
        let data = media[1]
            .log()
            .into_iter()
            .filter(|c| c.op == ashlar_block::Op::Write && c.ranges[0].start >= DATA);
        assert_eq!(data.map(|c| c.sectors()).sum::<u64>(), 3 * 2048);
    });
}

#[test]
fn a_throttled_sync_ends_at_once_when_it_is_told_to() {
    let media = media(2, Sectors(20 * 2048));
    let sim = Sim::new(7);
    fill(&sim, &raid1(2), &media);
    sim.block_on(async {
        let array = start_unsynced(&sim, &media).await;
        array.sync_settings().set_speed_max_kib(Some(1));
        array.sync_settings().set_speed_min_kib(Some(1));
        SimRuntime.sleep(Duration::from_secs(5)).await;
        assert_eq!(array.sync_status().action, SyncAction::Resync);
        let stop = array.stop();
        match select(std::pin::pin!(stop), SimRuntime.sleep(Duration::from_millis(50))).await {
            Either::Left((stopped, _)) => assert_eq!(stopped, Ok(())),
            Either::Right(_) => panic!("the stop waits for the sync"),
        }
    });
}
