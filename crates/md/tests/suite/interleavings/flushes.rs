//! Flushes that fail, once, and lose the cached data.

use std::sync::Arc;

use ashlar_block::Status;
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::{CreateSpec, NewBitmap};
use ashlar_md::{Array, FlagChange, MemberFlag};
use ashlar_sim::Sim;

use crate::common::{Shape, differing, disks, gateway, make_with, media, start, write};
use crate::interleavings::world::{
    CHUNK, DISK, RUN, begin, begin_on, check, cut, flushed, mirror, plain, sleep_us, with_bitmap,
};

/// Before bitmap marks are cleared, all members are flushed. A member whose flush failed had lost its
/// cache, but stayed a member: the next flush, requested by a client, succeeded, although the data was
/// lost on the member that is read first.
#[test]
fn a_member_that_loses_its_cache_when_marks_are_to_go_fails() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    let left = sim.block_on(async {
        let array = begin(&sim, &with_bitmap(mirror(2)), &media).await;
        write(&gateway(&array), 0, 8, 2).await.unwrap();
        media[0].fail_nth_flush(0);
        // While writes continue, the array does not become idle and is not flushed for that.
        for _ in 0..40 {
            write(&gateway(&array), 3 * CHUNK, 8, 2).await.unwrap();
            sleep_us(100_000).await;
        }
        assert_eq!(media[0].counts().flushes, media[1].counts().flushes, "somebody else flushed");
        gateway(&array).flush().await.unwrap();
        check(&array, 0, 8, 2, "after the flush").await;
        check(&array, 3 * CHUNK, 8, 2, "after the flush").await;
        cut(&media)
    });
    drop(sim);
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = start(&sim, &disks(&left), &RUN).await.unwrap();
        check(&array, 0, 8, 2, "after the cut").await;
        check(&array, 3 * CHUNK, 8, 2, "after the cut").await;
        array.stop().await.unwrap();
    });
}

/// A RAID10 on three members, with a mark for each of its chunks if there is a bitmap.
fn three(bitmap: bool) -> CreateSpec {
    let mut spec = plain(&Shape::new(Level::Raid10, Some(0x102), 4, 3));
    if bitmap {
        spec.bitmap = NewBitmap::Internal { chunk: Some(4096) };
    }
    spec
}

/// A RAID10 on three members, one of which is missing: neither of the others may fail, and one chunk of
/// three is on both. One of them loses its cache in a flush, so the copies differ and a resync begins;
/// but with a bitmap it skipped chunks that were only marked dirty, and the copies counted as the same.
#[test]
fn what_a_member_that_has_to_stay_lost_in_a_flush_is_synced() {
    for bitmap in [false, true] {
        let media = media(3, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            make_with(&three(bitmap), &disks(&media)).await;
            let array = start(&sim, &disks(&media)[..2], &RUN).await.unwrap();
            flushed(&array, 0, 64, 1).await;
            write(&gateway(&array), 0, 8, 2).await.unwrap();
            media[0].fail_nth_flush(0);
            gateway(&array).flush().await.unwrap_err();
            array.sync_ended().await;
            assert!(!array.is_unsynced(), "bitmap {bitmap}: never synced");
            let differ = differing(&array, &media, 64).await;
            assert!(differ.is_empty(), "bitmap {bitmap}: copies of {differ:?} differ");
            assert_eq!(array.degraded(), 1);
        });
    }
}

/// The same when the array is flushed because it is idle: copies differed, and no client got an error,
/// because the next flush succeeded.
#[test]
fn what_a_member_that_has_to_stay_lost_as_the_array_became_clean_is_told_and_synced() {
    for bitmap in [false, true] {
        let media = media(3, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            make_with(&three(bitmap), &disks(&media)).await;
            let array = start(&sim, &disks(&media)[..2], &RUN).await.unwrap();
            flushed(&array, 0, 64, 1).await;
            write(&gateway(&array), 0, 8, 2).await.unwrap();
            media[0].fail_nth_flush(0);
            sleep_us(2_000_000).await;
            array.sync_ended().await;
            assert_eq!(array.degraded(), 1);
            let differ = differing(&array, &media, 64).await;
            assert!(differ.is_empty(), "bitmap {bitmap}: copies of {differ:?} differ");
            if gateway(&array).flush().await.is_ok() {
                check(&array, 0, 8, 2, "flushed, and nobody was told of a failure").await;
            }
            flushed(&array, 0, 8, 3).await;
            check(&array, 0, 8, 3, "after all").await;
        });
    }
}

/// A disk that fails a durable write has lost its cache, as one that fails a flush. The member must stay, so its array
/// lost acknowledged writes: the client's next flush succeeded nevertheless.
fn a_durable_write_loses_the_cache_of_the_only_member(
    spec: &CreateSpec,
    durable_write: impl AsyncFn(&Arc<Array>) -> bool,
) {
    let media = media(1, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let array = begin(&sim, spec, &media).await;
        let (client, other) = (gateway(&array), gateway(&array));
        // So that the array is clean and has no marks.
        sleep_us(5_000_000).await;
        write(&client, 0, 8, 2).await.unwrap();
        media[0].fail_nth_fua(0);
        assert!(!durable_write(&array).await, "the member did not refuse");
        check(&array, 0, 8, 1, "lost").await;
        for opener in [client, other] {
            assert_eq!(opener.flush().await, Err(Status::Io), "not told");
            assert_eq!(opener.flush().await, Ok(()), "told twice");
        }
        flushed(&array, 0, 8, 3).await;
        check(&array, 0, 8, 3, "after all").await;
    });
}

#[test]
fn clients_are_told_what_a_bitmap_write_lost() {
    a_durable_write_loses_the_cache_of_the_only_member(&with_bitmap(mirror(1)), async |array| {
        write(&gateway(array), 3 * CHUNK, 8, 2).await.is_ok()
    });
}

#[test]
fn clients_are_told_what_a_superblock_lost() {
    a_durable_write_loses_the_cache_of_the_only_member(&mirror(1), async |array| {
        let change = FlagChange { flag: MemberFlag::Failfast, on: true };
        array.set_flag(0, change).await.is_ok()
    });
}

/// Another opener of a member's disk gets the failed flush: the member lost its cache as well.
#[test]
fn a_member_fails_whose_disk_failed_the_flush_of_another_user() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        make_with(&mirror(2), &disks).await;
        let array = begin_on(&sim, &disks).await;
        write(&gateway(&array), 0, 8, 2).await.unwrap();
        media[0].fail_nth_flush(0);
        assert_eq!(disks[0].gateway().flush().await, Err(Status::Io));
        gateway(&array).flush().await.unwrap();
        assert_eq!(array.degraded(), 1);
        check(&array, 0, 8, 2, "after the flush").await;
    });
}
