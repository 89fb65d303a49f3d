//! What the simulation found, each shown by itself.

#[path = "common/mod.rs"]
mod common;

use std::time::Duration;

use ashlar_block::{Bio, Op, Runtime, Sector, Sectors};
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::ondisk::{Level, Superblock, Version};
use ashlar_md::sync::Action;
use ashlar_md::{ArrayState, Options};
use ashlar_sim::{Sim, SimRuntime};
use futures_util::future::join;

use common::{DATA, Shape, disks, gateway, make, make_with, media, spec, start, write};

const DISK: Sectors = Sectors(600);
const SUPER: Sector = Sector(8);
const RUN: Options = Options { run: true, read_only: false };

/// A resync begins by marking the array clean, if nobody writes. When it came right after a recovery it
/// overtook a write that was waiting to make the array active, took the array for active already, and
/// so nobody ever looked whether it was idle.
#[test]
fn a_write_between_a_recovery_and_a_resync_leaves_an_array_that_becomes_clean() {
    let shape = Shape::new(Level::Raid1, None, 0, 3);
    for seed in 0..100 {
        let media = media(3, DISK);
        let sim = Sim::new(seed);
        sim.block_on(async {
            make(&shape, &disks(&media)).await;
            let array = start(&sim, &disks(&media), &RUN).await.unwrap();
            write(&gateway(&array), 0, 8, 1).await.unwrap();
        });
        sim.power_cut();
        // The last member is to be rebuilt, from copies that may differ.
        let sb = media[2].peek_range(SUPER, Sectors(8));
        let mut sb = Superblock::parse(Version::V1_2, &sb, DISK).unwrap();
        sb.recovery_offset = Some(Sectors::ZERO);
        media[2].poke(SUPER, &sb.encode(512).unwrap());
        let sim = Sim::new(seed);
        sim.block_on(async {
            let array = start(&sim, &disks(&media), &RUN).await.unwrap();
            assert!(array.is_unsynced());
            SimRuntime.sleep(Duration::from_micros(sim.rng().below(3000))).await;
            write(&gateway(&array), 16, 8, 2).await.unwrap();
            array.sync_ended().await;
            SimRuntime.sleep(Duration::from_secs(1)).await;
            assert_eq!(array.state(), ArrayState::Clean, "seed {seed}");
        });
    }
}

/// Nobody fails for a discard, and its chunks are to be synced; but the sync was not told.
#[test]
fn what_a_member_did_not_discard_is_synced_though_it_stays_a_member() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let mut spec = spec(&Shape::new(Level::Raid1, None, 0, 2), &[DISK; 2]);
        spec.bitmap = NewBitmap::Internal { chunk: None };
        make_with(&spec, &disks(&media)).await;
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
        media[1].fail_writes(DATA..DATA + 8);
        gateway(&array).submit(Bio::discard(Sector(0), Sectors(8))).await.unwrap();
        media[1].heal();
        SimRuntime.sleep(Duration::from_secs(1)).await;
        assert_eq!(array.degraded(), 0);
        assert_eq!(array.bitmap().unwrap().needed_chunks(), 0);
        assert_eq!(array.sync_status().last, Action::Resync);
    });
}

/// The last marks are taken away as an array stops. A member that died just then made the stop fail, and
/// the array was not clean.
#[test]
fn an_array_with_a_bitmap_stops_clean_whenever_a_member_dies() {
    for at in (0..4000).step_by(10) {
        let media = media(2, DISK);
        let sim = Sim::new(at);
        sim.block_on(async {
            let mut spec = spec(&Shape::new(Level::Raid1, None, 0, 2), &[DISK; 2]);
            spec.bitmap = NewBitmap::Internal { chunk: None };
            make_with(&spec, &disks(&media)).await;
            let array = start(&sim, &disks(&media), &RUN).await.unwrap();
            write(&gateway(&array), 0, 8, 1).await.unwrap();
            let dies = async {
                SimRuntime.sleep(Duration::from_micros(at)).await;
                media[1].kill();
            };
            let (stopped, ()) = join(array.stop(), dies).await;
            assert_eq!(stopped, Ok(()), "died after {at} us");
        });
    }
}

/// A resync that fails because a member cannot be flushed, which has to stay, took its own failure for
/// news and began again, for ever.
#[test]
fn a_resync_that_cannot_be_flushed_gives_up() {
    let shape = Shape::new(Level::Raid10, Some(0x102), 4, 3);
    let media = media(3, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        make(&shape, &disks(&media)).await;
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        write(&gateway(&array), 0, 8, 1).await.unwrap();
    });
    sim.power_cut();
    let sim = Sim::new(2);
    sim.set_time_limit(Duration::from_secs(5));
    sim.block_on(async {
        let array = start(&sim, &disks(&media)[1..], &RUN).await.unwrap();
        assert!(array.is_unsynced());
        media[1].drop_support(Op::Flush);
        array.sync_ended().await;
        assert!(array.is_unsynced());
    });
}
