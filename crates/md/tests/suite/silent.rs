//! Members that do not answer: each I/O of the array ends within their deadline.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Bio, Buffer, Flags, Gateway, Op, Presence, Runtime, Sector, Sectors, Status};
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap};
use ashlar_md::{AddOptions, AddOutcome, Array, ArrayStatus, ManageError, Options};
use ashlar_sim::{Media, Model, Sim, SimDisk, SimRuntime};
use futures_util::future::{FutureExt, join, join_all};
use uuid::Uuid;

use crate::common::{
    DATA, Shape, candidates, disks_with_timeout, gateway, make, make_with, media, spec, stamped,
    start, took, write,
};

const DISK: Sectors = Sectors(4096);
const TIMEOUT: Duration = Duration::from_secs(10);
/// A deadline is noticed a 32nd late; the rest is for what the members that answer do.
const NOTICED: Duration = Duration::from_millis(10_500);

fn disks(media: &[Media]) -> Vec<SimDisk> {
    disks_with_timeout(media, TIMEOUT, |_| Model::nvme())
}

fn shapes() -> Vec<Shape> {
    let raid1 = [2, 3].map(|members| Shape::new(Level::Raid1, None, 0, members));
    let raid10 = [(0x102, 4), (0x201, 3), (0x1_0201, 4)];
    let raid10 =
        raid10.map(|(layout, members)| Shape::new(Level::Raid10, Some(layout), 4, members));
    raid1.into_iter().chain(raid10).collect()
}

struct World {
    media: Vec<Media>,
    disks: Vec<SimDisk>,
    array: Arc<Array>,
    volume: Gateway,
}

/// Runs with an active array of each shape.
fn on_arrays(shapes: &[Shape], work: impl AsyncFn(&World)) {
    for (seed, shape) in (1..).zip(shapes) {
        let media = media(shape.members, DISK);
        let sim = Sim::new(seed);
        sim.block_on(async {
            let disks = disks(&media);
            make(shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            write(&volume, 0, 64, 1).await.unwrap();
            work(&World { media, disks, array, volume }).await;
        });
    }
}

#[test]
fn a_member_that_falls_silent_fails_within_its_deadline() {
    let kinds = ["write", "fua", "read", "flush", "discard"];
    for kind in kinds {
        on_arrays(&shapes(), async |World { media, array, volume, .. }| {
            media[1].fall_silent();
            let io = async || {
                let mut data = Buffer::from_slice(&stamped(0, 64, 2));
                match kind {
                    "write" => volume.write(Sector(0), &mut data, Flags::empty()).await,
                    "fua" => volume.write(Sector(0), &mut data, Flags::FUA).await,
                    "flush" => volume.flush().await,
                    "discard" => volume.submit(Bio::discard(Sector(128), Sectors(64))).await,
                    // Together and of the same sectors, so that each member is read.
                    _ => {
                        let reads = (0..8).map(|_| volume.read(Sector(0), Sectors(64)));
                        for got in join_all(reads).await {
                            assert!(got.unwrap().as_slice() == stamped(0, 64, 1));
                        }
                        Ok(())
                    }
                }
            };
            let first = took(async { io().await.unwrap() }).await;
            // Discards, whose length does not tell how long they take, have more time, and fail no member.
            let most = if kind == "discard" { NOTICED * 10 } else { NOTICED };
            assert!(first < most, "{kind}: {first:?}");
            assert_eq!(array.degraded(), usize::from(kind != "discard"), "{kind}");
            if kind != "discard" {
                let second = took(async { io().await.unwrap() }).await;
                assert!(second < Duration::from_millis(100), "{kind}: {second:?}");
                let stopped = took(async { array.stop().await.unwrap() }).await;
                assert!(stopped < Duration::from_millis(100), "{kind}: {stopped:?}");
            }
        });
    }
}

#[test]
fn stop_ends_within_the_deadline_of_a_silent_member() {
    on_arrays(&shapes(), async |World { media, array, .. }| {
        media[0].fall_silent();
        let stopped = took(async { array.stop().await.unwrap() }).await;
        assert!(stopped < NOTICED, "{stopped:?}");
        assert_eq!(array.degraded(), 1);
    });
}

#[test]
fn stop_ends_when_no_member_answers() {
    on_arrays(&shapes(), async |World { media, array, volume, .. }| {
        media.iter().for_each(Media::fall_silent);
        let mut data = Buffer::from_slice(&stamped(0, 64, 2));
        let io = volume.write(Sector(0), &mut data, Flags::empty());
        let (io, stopped) =
            join(io, async { took(async { assert!(array.stop().await.is_err()) }).await }).await;
        assert!(io.is_err());
        // One deadline for the write, and one each for a flush and superblocks.
        assert!(stopped < NOTICED * 4, "{stopped:?}");
    });
}

/// The member answers late, with other data than what was then read from another member.
#[test]
fn a_late_answer_does_not_change_what_was_read_from_another_member() {
    on_arrays(&shapes()[..1], async |World { media, array, volume, .. }| {
        media[1].poke(Sector(DATA), &stamped(0, 64, 9));
        media[1].fall_silent();
        // Of two reads, each member gets one.
        let mut data = [Buffer::alloc(64 * 512), Buffer::alloc(64 * 512)];
        let reads = data.each_mut().map(|data| volume.submit(Bio::read_into(Sector(0), data)));
        assert_eq!(join_all(reads).await, [Ok(()), Ok(())]);
        assert_eq!(array.degraded(), 1);
        media[1].clear_log();
        media[1].answer();
        SimRuntime.sleep(TIMEOUT).await;
        assert!(media[1].log().iter().any(|late| (late.op, late.result) == (Op::Read, Ok(()))));
        assert!(data.iter().all(|data| data.as_slice() == stamped(0, 64, 1)));
    });
}

#[test]
fn the_last_copy_stays_though_it_is_silent() {
    on_arrays(&shapes()[..1], async |World { media, array, volume, .. }| {
        media[1].kill();
        write(volume, 0, 64, 2).await.unwrap();
        media[0].fall_silent();
        let waited = took(async {
            assert_eq!(write(volume, 0, 64, 3).await, Err(Status::Timeout));
            assert!(volume.read(Sector(0), Sectors(8)).await.is_err());
        });
        assert!(waited.await < NOTICED * 4);
        assert_eq!(array.degraded(), 1);
        media[0].answer();
        SimRuntime.sleep(Duration::from_secs(1)).await;
        write(volume, 0, 64, 4).await.unwrap();
        let got = volume.read(Sector(0), Sectors(64)).await.unwrap();
        assert!(got.as_slice() == stamped(0, 64, 4));
    });
}

fn options() -> AddOptions {
    let device_uuid = Uuid::from_u128(9);
    AddOptions { device_uuid, write_mostly: None, failfast: None, spare_only: false }
}

/// A member that must stay may still execute a write that it has not answered: after its data were copied as well, and then
/// the copies differ again.
#[test]
fn copies_are_the_same_only_when_a_member_that_stays_has_answered_every_write() {
    on_arrays(&shapes()[..1], async |World { media, disks, array, volume }| {
        media[1].kill();
        write(volume, 0, 64, 2).await.unwrap();
        media[0].hang_nth_command(0);
        assert_eq!(write(volume, 0, 64, 3).await, Err(Status::Timeout));
        array.remove(1).await.unwrap();
        media[1].heal();
        array.add(disks[1].gateway(), "d1", options()).await.unwrap();
        array.sync_ended().await;
        assert_eq!(array.degraded(), 0);
        assert!(array.is_unsynced(), "d0 may still execute the write");
        array.stop().await.unwrap();
        let found = candidates(disks).await;
        assert!(found.iter().all(|candidate| candidate.sb.resync_offset.is_zero()), "recorded");
    });
}

/// As above; the array continues, and the resync begins by itself.
#[test]
fn a_late_write_of_a_member_that_stays_is_copied_to_the_others() {
    for bitmap in [NewBitmap::None, NewBitmap::Internal { chunk: Some(4096) }] {
        let media = media(2, DISK);
        let sim = Sim::new(9);
        sim.block_on(async {
            let disks = disks(&media);
            let shape = &shapes()[0];
            let spec = CreateSpec { bitmap, ..spec(shape, &[DISK; 2]) };
            make_with(&spec, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            media[1].kill();
            write(&volume, 0, 64, 2).await.unwrap();
            // Its bitmap is marked.
            SimRuntime.sleep(Duration::from_millis(100)).await;
            write(&volume, 0, 64, 2).await.unwrap();
            media[0].hang_nth_command(0);
            assert_eq!(write(&volume, 0, 64, 3).await, Err(Status::Timeout), "{bitmap:?}");
            array.remove(1).await.unwrap();
            media[1].heal();
            array.add(disks[1].gateway(), "d1", options()).await.unwrap();
            array.sync_ended().await;
            assert!(media[1].peek_range(Sector(DATA), Sectors(64)) == stamped(0, 64, 2));
            assert_eq!((array.degraded(), array.is_unsynced()), (0, true));
            // Marks are cleared meanwhile, where they may be.
            SimRuntime.sleep(Duration::from_secs(60)).await;
            media[0].answer();
            SimRuntime.sleep(Duration::from_secs(5)).await;
            assert!(!array.is_unsynced());
            for medium in &media {
                let data = medium.peek_range(Sector(DATA), Sectors(64));
                assert!(data == stamped(0, 64, 3), "{bitmap:?}");
            }
        });
    }
}

/// What it was sent before could still happen, on top of what a rebuild writes.
#[test]
fn a_member_comes_back_only_when_it_has_answered_everything() {
    on_arrays(&shapes()[..1], async |World { media, disks, array, volume }| {
        media[1].hang_nth_command(0);
        write(volume, 0, 64, 2).await.unwrap();
        assert_eq!((array.degraded(), disks[1].disk().presence()), (1, Presence::Silent));
        array.remove(1).await.unwrap();
        let early = array.add(disks[1].gateway(), "d1", options()).await;
        assert!(matches!(early, Err(ManageError::Misfit { .. })), "{early:?}");
        media[1].answer();
        SimRuntime.sleep(Duration::from_secs(1)).await;
        let late = array.add(disks[1].gateway(), "d1", options()).await;
        assert!(matches!(late, Ok(AddOutcome::Spare(_) | AddOutcome::Returned(_))), "{late:?}");
        SimRuntime.sleep(Duration::from_secs(5)).await;
        assert_eq!(array.degraded(), 0);
        assert!(media[0].peek_range(Sector(DATA), Sectors(64)) == stamped(0, 64, 2));
        assert!(media[1].peek_range(Sector(DATA), Sectors(64)) == stamped(0, 64, 2));
    });
}

/// Such a member may come back; one that refused a write, or that a user failed, is not trusted again.
#[test]
fn only_a_member_whose_device_went_away_is_lost() {
    type Fault = fn(&Media);
    let refuse: Fault = |media| media.fail_nth_write(0);
    for (fault, is_lost) in
        [(Media::kill as Fault, true), (Media::fall_silent, true), (refuse, false)]
    {
        on_arrays(&shapes()[..1], async |World { media, array, volume, .. }| {
            let member = async || array.status().await.members[1].clone();
            fault(&media[1]);
            write(volume, 0, 64, 2).await.unwrap();
            assert_eq!((member().await.faulty, member().await.lost), (true, is_lost));
            let (Ok(()) | Err(_)) = array.fail(1).await;
            assert!(!member().await.lost, "the user wants it to stay away");
        });
    }
    on_arrays(&shapes()[..1], async |World { array, .. }| {
        array.fail(1).await.unwrap();
        assert!(!array.status().await.members[1].lost);
    });
}

/// A member that was removed is not shown again while the superblocks wait for another one.
#[test]
fn a_refreshed_status_has_the_present_members() {
    on_arrays(&shapes(), async |World { media, array, .. }| {
        array.fail(1).await.unwrap();
        let failed = array.status().await;
        assert!(failed.members.iter().any(|member| member.index == Some(1) && member.faulty));
        array.remove(1).await.unwrap();
        media[0].fall_silent();
        // The array would be clean, but for that member.
        SimRuntime.sleep(TIMEOUT / 2).await;
        assert!(array.status().now_or_never().is_none(), "the superblocks wait for no member");
        let mut status = failed.clone();
        array.refresh(&mut status);
        let others = |status: &ArrayStatus| {
            let others = status.members.iter().filter(|it| it.index.is_some_and(|it| it != 1));
            others
                .map(|it| (it.index, it.slot, it.path.clone(), it.device_uuid))
                .collect::<Vec<_>>()
        };
        assert!(status.members.iter().all(|member| member.index != Some(1)), "{status:?}");
        assert_eq!(others(&status), others(&failed));
        assert_eq!(status.members.len(), failed.members.len());
        assert_eq!(status.degraded, 1);
    });
}
