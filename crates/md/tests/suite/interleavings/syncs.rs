//! Progress of syncs that is recorded too early.

use ashlar_block::Sectors;
use ashlar_sim::{Media, Sim};

use crate::common::{DATA, differing, disks, gateway, make_with, spec, start, write};
use crate::interleavings::world::{RUN, cut, lose, sleep_us, write_superblocks};
use crate::sync::world::{edit, raid1, superblock};

/// Sectors that the array uses of each member: many windows, so that a few of them cause no checkpoint.
const USED: u64 = 64 * 2048;

/// A member was rebuilt far when power failed with writes under way: it is rebuilt from the beginning. The
/// old position in its superblock came back step by step with the progress, before that was flushed; after
/// a second power cut the member was read where it had no data.
#[test]
fn a_recovery_that_begins_anew_claims_what_is_durable_only() {
    let disk = Sectors(DATA + USED);
    let media = [Media::new(disk), Media::noisy(disk, 9)];
    let sim = Sim::new(1);
    sim.block_on(async {
        make_with(&spec(&raid1(2), &[disk; 2]), &disks(&media)).await;
    });
    drop(sim);
    for medium in &media {
        edit(medium, |sb| sb.resync_offset = Sectors::ZERO);
    }
    edit(&media[1], |sb| sb.recovery_offset = Some(Sectors(USED / 4)));
    let sim = Sim::new(1);
    let left = sim.block_on(async {
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        let rebuilt_to = async |to: u64| {
            array.set_sync_bounds(Sectors::ZERO, Sectors(to)).unwrap();
            array.wake_sync();
            while array.members().get(1).unwrap().recovered() < Sectors(to) {
                sleep_us(1000).await;
            }
        };
        rebuilt_to(2048).await;
        write(&gateway(&array), 0, 8, 1).await.unwrap();
        // Long enough for the array to be clean.
        sleep_us(1_000_000).await;
        assert!(!array.is_active());
        rebuilt_to(6144).await;
        write_superblocks(&array, 0).await;
        cut(&media)
    });
    drop(sim);
    left.iter().for_each(lose);
    assert!(superblock(&left[1]).recovery_offset.is_some());
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = start(&sim, &disks(&left), &RUN).await.unwrap();
        array.sync_ended().await;
        assert_eq!(array.degraded(), 0);
        let differ = differing(&array, &left, USED).await;
        assert!(differ.is_empty(), "{} sectors differ, {:?}", differ.len(), differ.first());
        array.stop().await.unwrap();
    });
}
