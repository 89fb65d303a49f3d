//! Two hosts with one set of members: what one writes, the other does not overwrite.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Gateway, Runtime, Sector, Sectors, Status};
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap};
use ashlar_md::{AddOptions, Array, AssembleError, ManageError, Options, probe, wait_for_others};
use ashlar_sim::{Media, Model, Sim, SimDisk, SimRuntime};
use futures_util::future::{join, join_all};

use crate::common::{
    Shape, candidates, disks, disks_with_timeout, gateway, make_with, media, spec, stamped, start,
    took, write,
};

const DISK: Sectors = Sectors(4096);
const RW: Options = Options { run: false, read_only: false, force: false };
const RUN: Options = Options { run: true, read_only: false, force: false };
/// Longer than an array stays active, and than it keeps marks, after its last write.
const CALM: Duration = Duration::from_secs(15);

fn shapes() -> [Shape; 3] {
    [
        Shape::new(Level::Raid1, None, 0, 2),
        Shape::new(Level::Raid10, Some(0x102), 4, 4),
        Shape::new(Level::Raid10, Some(0x201), 4, 3),
    ]
}

/// What a host sees of the disks.
struct Host {
    array: Arc<Array>,
    volume: Gateway,
}

impl Host {
    async fn start(sim: &Sim, media: &[Media]) -> Self {
        let disks = shared(media);
        let array = start(sim, &disks, &RW).await.unwrap();
        let volume = gateway(&array);
        Self { array, volume }
    }
}

fn shared(media: &[Media]) -> Vec<SimDisk> {
    let disks = disks(media);
    disks.iter().for_each(|disk| disk.disk().set_shared(true));
    disks
}

/// Runs with a new array of each shape, with and without a bitmap.
fn on_arrays(work: impl AsyncFn(&Sim, &[Media])) {
    for (seed, shape) in (1..).zip(shapes()) {
        for has_bitmap in [false, true] {
            let media = media(shape.members, DISK);
            let sim = Sim::new(seed);
            sim.block_on(async {
                let mut spec = spec(&shape, &vec![DISK; shape.members]);
                if has_bitmap {
                    spec.bitmap = NewBitmap::Internal { chunk: None };
                }
                make_with(&spec, &disks(&media)).await;
                work(&sim, &media).await;
            });
        }
    }
}

/// The sectors that have changed, for each member.
fn changes(media: &[Media], before: &[Media]) -> Vec<Vec<Range<u64>>> {
    media.iter().zip(before).map(|(now, before)| now.differences(before)).collect()
}

#[test]
fn of_two_hosts_that_start_a_clean_array_the_first_to_write_keeps_it() {
    // Whether the first writer is still active when the other one writes.
    for wait in [Duration::ZERO, CALM] {
        on_arrays(async |sim, media| {
            let (one, other) = (Host::start(sim, media).await, Host::start(sim, media).await);
            write(&one.volume, 0, 64, 1).await.unwrap();
            SimRuntime.sleep(wait).await;
            let before: Vec<Media> = media.iter().map(Media::copy).collect();
            for _ in 0..2 {
                assert_eq!(write(&other.volume, 0, 64, 2).await, Err(Status::Conflict));
            }
            let (wait, changes) = (wait, changes(media, &before));
            assert!(
                changes.iter().all(Vec::is_empty),
                "the other host has written: {wait:?} {changes:?}"
            );
            write(&one.volume, 64, 64, 3).await.unwrap();
            assert_eq!(one.array.degraded(), 0);
            let data = one.volume.read(Sector(0), Sectors(128)).await.unwrap();
            assert!(data.as_slice() == [stamped(0, 64, 1), stamped(64, 64, 3)].concat());
            assert!(other.array.stop().await.is_err());
            one.array.stop().await.unwrap();
            let data = Host::start(sim, media).await.volume.read(Sector(0), Sectors(64)).await;
            assert!(data.unwrap().as_slice() == stamped(0, 64, 1));
        });
    }
}

#[test]
fn an_array_that_another_host_writes_does_not_start() {
    on_arrays(async |sim, media| {
        let one = Host::start(sim, media).await;
        write(&one.volume, 0, 64, 1).await.unwrap();
        // All in one chunk: no new marks tell of it.
        let writes = async {
            for round in 0..400 {
                write(&one.volume, 0, 64, round as u8).await.unwrap();
                SimRuntime.sleep(Duration::from_millis(100)).await;
            }
        };
        let starts = async {
            for delay_ms in [1, 2_000, 3_500] {
                SimRuntime.sleep(Duration::from_millis(delay_ms)).await;
                let found = candidates(&shared(media)).await;
                let result = wait_for_others(&found, &sim.runtime()).await;
                assert!(matches!(result, Err(AssembleError::UsedElsewhere(_))), "{result:?}");
            }
        };
        futures_util::future::join(writes, starts).await;
    });
}

#[test]
fn an_array_whose_host_has_died_starts_after_a_while() {
    on_arrays(async |sim, media| {
        let one = Host::start(sim, media).await;
        write(&one.volume, 0, 64, 1).await.unwrap();
        let died: Vec<Media> = media.iter().map(Media::copy).collect();
        let found = candidates(&shared(&died)).await;
        assert!(found.iter().any(|candidate| !candidate.sb.is_clean()));
        wait_for_others(&found, &sim.runtime()).await.unwrap();
        let next = Host::start(sim, &died).await;
        write(&next.volume, 64, 64, 2).await.unwrap();
        next.array.stop().await.unwrap();
    });
}

#[test]
fn a_member_that_another_host_has_used_alone_fails_and_is_not_re_added() {
    let shape = Shape::new(Level::Raid1, None, 0, 2);
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        make_with(&spec(&shape, &[DISK; 2]), &disks(&media)).await;
        // One member is local; both hosts have the other.
        let here = disks(&media);
        here[1].disk().set_shared(true);
        let array = start(&sim, &here, &RW).await.unwrap();
        let volume = gateway(&array);
        write(&volume, 0, 64, 1).await.unwrap();
        SimRuntime.sleep(CALM).await;
        let there = shared(&media[1..]);
        let other = start(&sim, &there, &RUN).await.unwrap();
        write(&gateway(&other), 64, 64, 2).await.unwrap();
        write(&volume, 128, 64, 3).await.unwrap();
        assert_eq!(array.degraded(), 1);
        let status = array.status().await;
        let far = status.members.iter().find(|member| member.faulty).unwrap();
        assert!(!far.lost, "it does not come back by itself");
        other.stop().await.unwrap();
        array.remove(far.index.unwrap()).await.unwrap();
        let again = disks(&media).remove(1);
        let sb = probe(&again.gateway()).await.unwrap().unwrap();
        let candidate = ashlar_md::Candidate { gateway: again.gateway(), path: "d1".into(), sb };
        let added = array.re_add(candidate, AddOptions::default()).await;
        assert!(matches!(added, Err(ManageError::ReAdd { .. })), "{:?}", added.err());
    });
}

/// They would be missing after a crash of the other host, whose copies may differ.
#[test]
fn an_idle_host_that_stops_leaves_the_marks_of_another_one() {
    let shape = Shape::new(Level::Raid1, None, 0, 2);
    let (media, sim) = (media(2, DISK), Sim::new(1));
    sim.block_on(async {
        let bitmap = NewBitmap::Internal { chunk: None };
        make_with(&CreateSpec { bitmap, ..spec(&shape, &[DISK; 2]) }, &disks(&media)).await;
        let idle = Host::start(&sim, &media).await;
        idle.array.fail(1).await.unwrap();
        idle.array.remove(1).await.unwrap();
        write(&idle.volume, 0, 64, 1).await.unwrap();
        SimRuntime.sleep(Duration::from_secs(1)).await;
        let back = candidates(&shared(&media)).await.remove(1);
        idle.array.re_add(back, AddOptions::default()).await.unwrap();
        idle.array.sync_ended().await;
        SimRuntime.sleep(Duration::from_secs(1)).await;
        assert!(!idle.array.is_active() && idle.array.bitmap().unwrap().marked_chunks() > 0);
        let other = Host::start(&sim, &media).await;
        write(&other.volume, 1024, 64, 2).await.unwrap();
        let before: Vec<Media> = media.iter().map(Media::copy).collect();
        assert!(idle.array.stop().await.is_err());
        assert!(changes(&media, &before).iter().all(Vec::is_empty));
        other.array.stop().await.unwrap();
    });
}

#[test]
fn a_silent_member_delays_the_first_write_by_one_deadline() {
    for shape in shapes() {
        let media = media(shape.members, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            let disks = disks_with_timeout(&media, Duration::from_secs(10), |_| Model::nvme());
            disks.iter().for_each(|disk| disk.disk().set_shared(true));
            make_with(&spec(&shape, &vec![DISK; shape.members]), &disks).await;
            let array = start(&sim, &disks, &RW).await.unwrap();
            media[1].fall_silent();
            let volume = gateway(&array);
            let took = took(async { write(&volume, 0, 64, 1).await.unwrap() }).await;
            // A deadline is noticed a 32nd late.
            assert!(took < Duration::from_millis(10_500), "{shape:?}: {took:?}");
            assert_eq!(array.degraded(), 1);
        });
    }
}

/// Has the second member fall silent after `phase` quarters of a second while the volume is written, and checks that no write
/// waits for two deadlines.
async fn check_waits(array: &Arc<Array>, media: &[Media], phase: u32) {
    let volume = gateway(array);
    let silent = async {
        SimRuntime.sleep(Duration::from_millis(3000) + Duration::from_millis(250) * phase).await;
        media[1].fall_silent();
    };
    let write = async |number: u32| {
        SimRuntime.sleep(Duration::from_millis(50) * number).await;
        took(async { write(&volume, 0, 64, 1).await.unwrap() }).await
    };
    let (_, waits) = join(silent, join_all((0..400).map(write))).await;
    let longest = waits.into_iter().max().unwrap();
    assert!(longest > Duration::from_secs(9), "none waited");
    // A deadline is noticed a 32nd late.
    assert!(longest < Duration::from_millis(10_500), "{phase}: {longest:?}");
    assert!(array.degraded() > 0);
}

/// Also one that comes while the superblocks are renewed, which reads them from the silent member first.
#[test]
fn no_write_waits_longer_than_the_deadline_of_a_silent_member() {
    for shape in shapes() {
        for phase in 0..8 {
            let media = media(shape.members, DISK);
            let sim = Sim::new(phase.into());
            sim.block_on(async {
                let disks = disks_with_timeout(&media, Duration::from_secs(10), |_| Model::nvme());
                disks.iter().for_each(|disk| disk.disk().set_shared(true));
                make_with(&spec(&shape, &vec![DISK; shape.members]), &disks).await;
                let array = start(&sim, &disks, &RW).await.unwrap();
                check_waits(&array, &media, phase).await;
            });
        }
    }
}

/// While a member is rebuilt from another one: the rebuild has all members flushed from time to time. (It is past the first
/// barrier unit of 64 MiB, which the writes hold up.)
#[test]
fn no_write_waits_for_a_checkpoint_that_waits_for_a_silent_member() {
    const LARGE: Sectors = Sectors(512 << 11);
    for phase in 1..3 {
        let media = media(4, LARGE);
        let sim = Sim::new(phase.into());
        sim.block_on(async {
            let disks = disks_with_timeout(&media, Duration::from_secs(10), |_| Model::nvme());
            let shape = Shape::new(Level::Raid10, Some(0x102), 64, 4);
            make_with(&spec(&shape, &[LARGE; 4]), &disks).await;
            let array = start(&sim, &disks[..3], &RUN).await.unwrap();
            array.sync_settings().set_speed_min_kib(Some(30 << 10));
            array.sync_settings().set_speed_max_kib(Some(30 << 10));
            array.add(disks[3].gateway(), "d3", AddOptions::default()).await.unwrap();
            check_waits(&array, &media, phase).await;
        });
    }
}
