//! Reads of arrays whose copies may differ.

use ashlar_block::{Sector, Sectors};
use ashlar_md::{Options, SyncRequest};
use ashlar_sim::Sim;

use crate::common::{DATA, disks, media, stamped, start};
use crate::interleavings::world::{DISK, LEN, RUN, begin, cut, flushed, mirror, read};
use crate::sync::world::{edit, fill, raid1, replacement};

/// Copies differ since a crash, and a block of the first one is bad: a read that contains the block came
/// entirely from the second copy, a read beside it from the first.
#[test]
fn what_a_read_returns_of_copies_that_differ_does_not_depend_on_its_length() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    let left = sim.block_on(async {
        let array = begin(&sim, &mirror(2), &media).await;
        media[0].fail_writes(DATA + 24..DATA + 32);
        flushed(&array, 24, 8, 1).await;
        cut(&media)
    });
    drop(sim);
    left[1].poke(Sector(DATA), &stamped(0, 128, 7));
    for medium in &left {
        edit(medium, |sb| sb.resync_offset = Sectors::ZERO);
    }
    let sim = Sim::new(1);
    sim.block_on(async {
        let options = Options { run: true, read_only: true, force: false };
        let array = start(&sim, &disks(&left), &options).await.unwrap();
        assert!(array.is_unsynced());
        let mut pieces = Vec::new();
        for at in (0..128).step_by(8) {
            pieces.extend(read(&array, at, 8).await);
        }
        assert!(pieces[..24 * 512] == stamped(0, 24, 1));
        assert!(pieces[24 * 512..32 * 512] == stamped(24, 8, 7));
        let whole = read(&array, 0, 128).await;
        let differ: Vec<u64> = (0..128)
            .filter(|at| {
                let bytes = *at as usize * 512..(*at as usize + 1) * 512;
                whole[bytes.clone()] != pieces[bytes]
            })
            .collect();
        assert!(differ.is_empty(), "{differ:?} read differently by length");
    });
}

/// A replacement was complete, and power failed before it took its slot, with writes in flight. Until
/// the resync the member that it replaces was read; then it took the slot, and its copy became the first.
#[test]
fn a_replacement_that_takes_its_slot_after_a_crash_does_not_change_what_is_read() {
    let mut media = media(2, DISK);
    let sim = Sim::new(1);
    fill(&sim, &raid1(2), &media);
    drop(sim);
    replacement(&mut media, 0);
    let all = media[0].peek_range(Sector(DATA), Sectors(DISK.0 - DATA));
    media[2].poke(Sector(DATA), &all);
    edit(&media[2], |sb| sb.recovery_offset = None);
    for medium in &media {
        edit(medium, |sb| sb.resync_offset = Sectors::ZERO);
    }
    // What the crash left of writes in flight.
    media[0].poke(Sector(DATA), &stamped(0, 64, 5));
    media[1].poke(Sector(DATA + 32), &stamped(32, 64, 6));
    media[2].poke(Sector(DATA + 8), &stamped(8, 128, 7));
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = start(&sim, &disks(&media), &RUN).await.unwrap();
        array.request_sync(SyncRequest::Frozen).unwrap();
        assert!(array.is_unsynced());
        let before = read(&array, 0, LEN).await;
        array.request_sync(SyncRequest::Idle).unwrap();
        array.sync_ended().await;
        assert!(!array.is_unsynced());
        let after = read(&array, 0, LEN).await;
        let changed: Vec<u64> = (0..LEN)
            .filter(|at| {
                let bytes = *at as usize * 512..(*at as usize + 1) * 512;
                before[bytes.clone()] != after[bytes]
            })
            .collect();
        assert!(changed.is_empty(), "{changed:?} changed without a write");
        array.stop().await.unwrap();
    });
}
