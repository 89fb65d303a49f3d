//! Members at different distances: which of them are read, and how long a read waits for one.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Gateway, Runtime, Sector, Sectors};
use ashlar_md::ondisk::Level;
use ashlar_md::{Array, Options};
use ashlar_sim::{Media, Model, Sim, SimRuntime};
use futures_util::future::join_all;

use crate::common::{
    DATA, Shape, disks_with_timeout, gateway, make, media, stamped, start, took, write,
};

const DISK: Sectors = Sectors(4096);
const TIMEOUT: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);
/// A deadline is noticed a 32nd late; the rest is for what the members that answer do.
const NOTICED: Duration = Duration::from_millis(10_500);

/// An array of members with these times of a read.
struct World {
    media: Vec<Media>,
    array: Arc<Array>,
    volume: Gateway,
}

fn on_members(shape: &Shape, read_us: &[u64], work: impl AsyncFn(&World)) {
    let media = media(shape.members, DISK);
    let sim = Sim::new(7);
    sim.block_on(async {
        let model =
            |at: usize| Model { read_ns: read_us[at] * 1000, jitter_percent: 20, ..Model::nvme() };
        let disks = disks_with_timeout(&media, TIMEOUT, model);
        make(shape, &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        let volume = gateway(&array);
        write(&volume, 0, 512, 1).await.unwrap();
        work(&World { media, array, volume }).await;
    });
}

impl World {
    /// Reads, eight at a time; returns how many each member got.
    async fn reads(&self, rounds: u64) -> Vec<u64> {
        self.media.iter().for_each(Media::clear_log);
        for round in 0..rounds {
            let reads = (0..8).map(|part| {
                let at = Sector((part * 56 + round * 8) % 504);
                self.volume.read(at, Sectors(8))
            });
            for data in join_all(reads).await {
                assert_eq!(data.unwrap().len(), 4096);
            }
        }
        self.media.iter().map(|medium| medium.counts().reads).collect()
    }

    /// As the daemon does, each second.
    async fn seconds(&self, count: u64) {
        for _ in 0..count {
            self.reads(1).await;
            self.array.balance_reads();
            SimRuntime.sleep(SECOND).await;
        }
    }
}

fn mirror(members: usize) -> Shape {
    Shape::new(Level::Raid1, None, 0, members)
}

#[test]
fn reads_prefer_the_near_members() {
    let raid10 = Shape::new(Level::Raid10, Some(0x102), 4, 4);
    let cases: [(Shape, &[u64], &[usize]); 4] = [
        (mirror(2), &[100, 10_000], &[0]),
        (mirror(3), &[50_000, 100, 120], &[1, 2]),
        (raid10, &[100, 2_000, 2_000, 100], &[0, 3]),
        // Local disks differ so much, too.
        (mirror(2), &[10, 80], &[0, 1]),
    ];
    for (shape, read_us, near) in cases {
        on_members(&shape, read_us, async |world| {
            let unknown = world.reads(20).await;
            assert!(unknown.iter().all(|reads| *reads > 20), "{shape:?} {unknown:?}");
            world.seconds(3).await;
            let reads = world.reads(50).await;
            for (slot, reads) in reads.iter().enumerate() {
                assert_eq!(*reads > 0, near.contains(&slot), "{shape:?} {read_us:?} {reads:?}");
            }
        });
    }
}

#[test]
fn a_far_member_is_read_if_no_other_can_be() {
    on_members(&mirror(2), &[100, 10_000], async |world| {
        world.seconds(3).await;
        world.media[0].kill();
        let data = world.volume.read(Sector(0), Sectors(64)).await.unwrap();
        assert!(data.as_slice() == stamped(0, 64, 1));
        assert_eq!(world.reads(10).await, [0, 80]);
    });
}

#[test]
fn a_member_that_becomes_slow_is_left_and_one_that_becomes_fast_is_read_again() {
    on_members(&mirror(2), &[100, 100], async |world| {
        world.seconds(3).await;
        assert!(world.reads(10).await[1] > 10);
        world.media[1].slow_down(100);
        world.seconds(6).await;
        assert_eq!(world.reads(10).await[1], 0);
        world.media[1].slow_down(1);
        world.seconds(6).await;
        assert!(world.reads(10).await[1] > 10);
    });
}

#[test]
fn a_silent_member_is_left_long_before_its_deadline() {
    on_members(&mirror(2), &[100, 100], async |world| {
        world.seconds(3).await;
        world.media[1].fall_silent();
        let waiting = world.volume.read(Sector(0), Sectors(8));
        world.array.balance_reads();
        // The probe is one read that is not answered; clients' reads continue in the task of this one.
        let clients = async {
            SimRuntime.sleep(SECOND).await;
            world.array.balance_reads();
            for _ in 0..50 {
                let read =
                    took(async { drop(world.volume.read(Sector(64), Sectors(8)).await.unwrap()) });
                assert!(read.await < Duration::from_millis(1));
                world.array.balance_reads();
            }
        };
        let (first, ()) = futures_util::future::join(waiting, clients).await;
        assert!(first.unwrap().as_slice() == stamped(0, 8, 1));
    });
}

#[test]
fn an_array_that_is_not_read_probes_no_member() {
    on_members(&mirror(2), &[100, 100], async |world| {
        world.seconds(3).await;
        world.media.iter().for_each(Media::clear_log);
        world.array.balance_reads();
        SimRuntime.sleep(SECOND).await;
        let probes: u64 = world.media.iter().map(|medium| medium.counts().reads).sum();
        for _ in 0..5 {
            world.array.balance_reads();
            SimRuntime.sleep(SECOND).await;
        }
        assert_eq!(world.media.iter().map(|medium| medium.counts().reads).sum::<u64>(), probes);
    });
}

#[test]
fn a_hedged_read_waits_no_longer_than_the_bound_for_a_silent_member() {
    on_members(&mirror(2), &[100, 100], async |world| {
        world.media[1].fall_silent();
        world.array.members().set_read_hedge_us(5_000);
        let reads = took(async {
            // Together and of the same sectors, so that each member is read.
            let reads = (0..8).map(|_| world.volume.read(Sector(0), Sectors(64)));
            for data in join_all(reads).await {
                assert!(data.unwrap().as_slice() == stamped(0, 64, 1));
            }
        });
        let reads = reads.await;
        assert!(reads > Duration::from_millis(4) && reads < Duration::from_millis(8), "{reads:?}");
        assert_eq!(world.array.degraded(), 0);
        // The client has its data, but the member still has to answer in time.
        SimRuntime.sleep(NOTICED).await;
        assert_eq!(world.array.degraded(), 1);
    });
}

#[test]
fn an_error_before_and_after_the_bound_of_a_hedged_read_is_corrected_or_noted() {
    for (read_us, is_late) in [([100, 100], false), ([20_000, 100], true)] {
        on_members(&mirror(2), &read_us, async |world| {
            let [first, _] = &world.media[..] else { unreachable!() };
            world.array.members().set_read_hedge_us(5_000);
            first.fail_reads(DATA..DATA + 64);
            for _ in 0..8 {
                let reads = (0..2).map(|_| world.volume.read(Sector(0), Sectors(64)));
                for data in join_all(reads).await {
                    assert!(data.unwrap().as_slice() == stamped(0, 64, 1));
                }
            }
            SimRuntime.sleep(SECOND).await;
            let (seen, corrected) = world.array.members().member(0).unwrap().errors();
            assert!(seen > 0, "{is_late}");
            assert_eq!(corrected > 0, !is_late);
        });
    }
}

#[test]
fn without_another_copy_a_hedged_read_waits() {
    on_members(&mirror(2), &[20_000, 100], async |world| {
        world.array.members().set_read_hedge_us(1_000);
        world.media[1].kill();
        let data = world.volume.read(Sector(0), Sectors(64)).await.unwrap();
        assert!(data.as_slice() == stamped(0, 64, 1));
        let read = took(async { drop(world.volume.read(Sector(0), Sectors(64)).await.unwrap()) });
        assert!(read.await > Duration::from_millis(10));
    });
}
