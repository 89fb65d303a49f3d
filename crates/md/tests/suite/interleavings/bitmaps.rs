//! Bitmaps that are added, removed and changed at bad moments.

use std::time::Duration;

use ashlar_block::{Limits, Sectors};
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{AddOptions, Candidate, GrowOptions, SyncRequest, probe};
use ashlar_sim::{Media, Model, Sim, SimDisk};
use uuid::Uuid;

use crate::common::{differing, disks, gateway, make_with, media, start, write};
use crate::interleavings::world::{
    DISK, INTERNAL, LEN, RUN, begin, check, cut, flushed, lose, mirror, with_bitmap,
};
use crate::sync::world::{edit, superblock};

/// A write is only in the caches, then a bitmap is added. It had no marks; a power cut left the write on
/// one member and not on the other, and the resync skipped it.
#[test]
fn what_was_written_before_a_bitmap_came_is_durable_or_marked() {
    for first in [0, 1] {
        let media = media(2, DISK);
        let sim = Sim::new(1);
        let left = sim.block_on(async {
            let array = begin(&sim, &mirror(2), &media).await;
            write(&gateway(&array), 0, 64, 2).await.unwrap();
            array.set_bitmap(INTERNAL).await.unwrap();
            cut(&media)
        });
        drop(sim);
        lose(&left[first]);
        let sim = Sim::new(1);
        sim.block_on(async {
            let array = start(&sim, &disks(&left), &RUN).await.unwrap();
            array.sync_ended().await;
            assert!(!array.is_unsynced());
            let differ = differing(&array, &left, LEN).await;
            assert!(differ.is_empty(), "d{first} lost its cache: copies of {differ:?} differ");
            array.stop().await.unwrap();
        });
    }
}

/// A member is re-added, to copy what the bitmap marks. Before that is done, the bitmap is removed and a
/// new one without marks is added: the member counted as rebuilt, but lacked the data.
#[test]
fn a_member_that_returns_gets_what_it_lacks_though_the_bitmap_is_another_one_by_then() {
    for between in [NewBitmap::Lockless, INTERNAL] {
        let media = media(2, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            let array = begin(&sim, &with_bitmap(mirror(2)), &media).await;
            array.fail(1).await.unwrap();
            array.remove(1).await.unwrap();
            flushed(&array, 0, 256, 2).await;
            array.request_sync(SyncRequest::Frozen).unwrap();
            let gateway = disks(&media)[1].gateway();
            let sb = probe(&gateway).await.unwrap().unwrap();
            let candidate = Candidate { gateway, path: "d1".into(), sb };
            let options = AddOptions {
                device_uuid: Uuid::nil(),
                write_mostly: None,
                failfast: None,
                spare_only: false,
            };
            array.re_add(candidate, options).await.unwrap();
            array.set_bitmap(NewBitmap::None).await.unwrap();
            array.set_bitmap(between).await.unwrap();
            array.request_sync(SyncRequest::Idle).unwrap();
            array.sync_ended().await;
            assert_eq!(array.degraded(), 0);
            // The member on the second disk is in the second slot again, as `differing` expects.
            let differ = differing(&array, &media, LEN).await;
            assert!(differ.is_empty(), "{between:?}: copies of {differ:?} differ");
            check(&array, 0, 256, 2, "after the recovery").await;
            array.stop().await.unwrap();
        });
    }
}

/// A bitmap covers the whole array, whose last sectors may be less than a block and are not usable. A
/// resync never reached the end of the last chunk, and restarted forever.
#[test]
fn a_resync_ends_in_an_array_that_ends_within_a_block() {
    let model = Model::nvme();
    let limits = Limits { logical_block_bytes: 4096, ..model.limits() };
    let on = |media: &[Media]| -> Vec<SimDisk> {
        let with = |(i, medium): (usize, &Media)| {
            SimDisk::with(format!("d{i}"), medium.clone(), limits, model)
        };
        media.iter().enumerate().map(with).collect()
    };
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let mut spec = with_bitmap(mirror(2));
        spec.size = Some(Sectors(1024));
        make_with(&spec, &on(&media)).await;
    });
    drop(sim);
    for medium in &media {
        let at = superblock(medium).bitmap_start().unwrap();
        let mut bitmap = medium.peek(at);
        bitmap[40..48].copy_from_slice(&1017u64.to_le_bytes());
        medium.poke(at, &bitmap);
        edit(medium, |sb| sb.size = Sectors(1017));
    }
    let sim = Sim::new(1);
    let left = sim.block_on(async {
        let array = start(&sim, &on(&media), &RUN).await.unwrap();
        assert_eq!(array.personality().size(), Sectors(1017));
        assert_eq!(array.bitmap().unwrap().size(), Sectors(1017));
        write(&gateway(&array), 0, 8, 2).await.unwrap();
        write(&gateway(&array), 1008, 8, 2).await.unwrap();
        cut(&media)
    });
    drop(sim);
    let sim = Sim::new(1);
    sim.set_time_limit(Duration::from_secs(100));
    sim.block_on(async {
        let array = start(&sim, &on(&left), &RUN).await.unwrap();
        array.sync_ended().await;
        assert!(!array.is_unsynced());
        assert_eq!(array.bitmap().unwrap().needed_chunks(), 0);
        check(&array, 0, 8, 2, "after the resync").await;
        array.stop().await.unwrap();
    });
}

/// An array has grown, and its larger bitmap could not be written: no write could begin any more,
/// although the member worked again.
#[test]
fn writes_go_on_after_a_larger_bitmap_could_not_be_written() {
    let mut failed = 0;
    for nth in 0..16 {
        let media = media(2, DISK);
        let sim = Sim::new(nth);
        sim.block_on(async {
            let mut spec = with_bitmap(mirror(2));
            spec.size = Some(Sectors(1024));
            let array = begin(&sim, &spec, &media).await;
            array.fail(1).await.unwrap();
            media[0].fail_nth_write(nth);
            let grown = array.grow_size(Some(Sectors(2048)), GrowOptions::default()).await;
            failed += u32::from(grown.is_err());
            media[0].heal();
            for sector in [0, 512] {
                let written = write(&gateway(&array), sector, 8, 2).await;
                assert_eq!(written, Ok(()), "write {nth} failed, {grown:?}");
            }
            check(&array, 0, 8, 2, "after the write").await;
            array.stop().await.unwrap();
        });
    }
    assert!(failed > 2, "{failed} failed");
}
