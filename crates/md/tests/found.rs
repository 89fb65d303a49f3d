//! What the simulation found, each shown by itself.

#[path = "common/mod.rs"]
mod common;

use std::time::Duration;

use ashlar_block::{Runtime, Sector, Sectors};
use ashlar_md::ondisk::{Level, Superblock, Version};
use ashlar_md::{ArrayState, Options};
use ashlar_sim::{Sim, SimRuntime};

use common::{Shape, disks, gateway, make, media, start, write};

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
