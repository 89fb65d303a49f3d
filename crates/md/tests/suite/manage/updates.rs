//! Changes of superblocks while the array does not run, and power cuts at every step.

use ashlar_block::BlockDevice;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::ondisk::{Features, Level, Role, Superblock};
use ashlar_md::update::{Update, UpdateError, update};
use ashlar_md::{AssembleError, group, plan};
use ashlar_sim::{Media, Sim, Stop};
use uuid::Uuid;

use crate::common::{Shape, candidates, disks, start};
use crate::manage::world::{LEN, RW, Recipe, check};
use crate::sync::world::edit;

const NEW: Uuid = Uuid::from_u128(0x1234_5678);

/// Media of a stopped array of three mirrors, one spare, and a bitmap.
fn stopped(bitmap: NewBitmap) -> Vec<Media> {
    let shape = Shape::new(Level::Raid1, None, 0, 3);
    let recipe = Recipe { spares: 1, extra: 0, ..Recipe::new(shape) }.bitmap(bitmap);
    let media = recipe.media();
    let sim = Sim::new(1);
    sim.block_on(async {
        let world = recipe.start(&sim, &media).await;
        world.array.sync_ended().await;
        world.array.stop().await.unwrap();
    });
    media
}

async fn superblocks(media: &[Media]) -> Vec<Superblock> {
    candidates(&disks(media)).await.into_iter().map(|candidate| *candidate.sb).collect()
}

fn found(media: &[Media]) -> Vec<Superblock> {
    Sim::new(2).block_on(superblocks(media))
}

/// Changes all superblocks; returns the changed ones.
fn changed(media: &[Media], change: &Update) -> Result<Vec<Superblock>, UpdateError> {
    let sim = Sim::new(2);
    sim.block_on(async {
        update(&candidates(&disks(media)).await, change).await?;
        Ok(superblocks(media).await)
    })
}

/// A check of a superblock after a change.
type SuperblockCheck = fn(&Superblock) -> bool;

#[test]
fn what_is_changed_is_on_every_member_and_the_array_starts_with_it() {
    let internal = NewBitmap::Internal { chunk: Some(1 << 16) };
    let name = Update::Name("other:name".to_owned());
    let cases: [(Update, SuperblockCheck); 8] = [
        (Update::Uuid(NEW), |sb| sb.set_uuid == NEW && sb.bitmap_offset.is_some()),
        (name, |sb| sb.name == "other:name"),
        (Update::HomeHost("box".to_owned()), |sb| sb.name == "box:0"),
        (Update::Resync, |sb| sb.resync_offset.is_zero()),
        (Update::DeviceSize, |sb| sb.data_size.0 == sb.device_size().0 - sb.data_offset.0),
        (Update::NoBitmap, |sb| sb.bitmap_offset.is_none()),
        (Update::NoBadBlockLog { force: false }, |sb| sb.bad_block_log.is_none()),
        (Update::BadBlockLog, |sb| sb.bad_block_log.is_some()),
    ];
    for (change, holds) in cases {
        let media = stopped(internal);
        let after = changed(&media, &change).unwrap();
        assert!(after.len() == 4 && after.iter().all(holds), "{change:?}: {after:#?}");
        let sim = Sim::new(3);
        sim.block_on(async {
            let array = start(&sim, &disks(&media), &RW).await.unwrap();
            let notes = array.status().await.notes;
            assert!(!notes.iter().any(|note| note.contains("bitmap")), "{change:?}: {notes:?}");
            // After `Resync` everything must be synced, regardless of the bitmap.
            assert_eq!(array.is_unsynced(), change == Update::Resync);
            media.iter().for_each(Media::clear_log);
            array.sync_ended().await;
            check(&array, 0, LEN, 1).await;
            array.stop().await.unwrap();
        });
    }
}

/// A silent difference between copies is gone after a requested resync.
#[test]
fn a_resync_goes_over_what_the_bitmap_takes_for_clean() {
    let media = stopped(NewBitmap::Internal { chunk: Some(1 << 16) });
    let at = ashlar_block::Sectors(crate::common::DATA + 4096).as_end();
    media[1].poke(at, &[7; 512]);
    changed(&media, &Update::Resync).unwrap();
    let sim = Sim::new(3);
    sim.block_on(async {
        let array = start(&sim, &disks(&media), &RW).await.unwrap();
        array.sync_ended().await;
        assert!(media[0].peek(at) == media[1].peek(at));
        array.stop().await.unwrap();
    });
}

#[test]
fn a_new_log_is_where_the_old_one_was_not_and_forgets_nothing() {
    let media = stopped(NewBitmap::None);
    changed(&media, &Update::NoBadBlockLog { force: false }).unwrap();
    let after = changed(&media, &Update::BadBlockLog).unwrap();
    let again = changed(&media, &Update::BadBlockLog).unwrap();
    assert_eq!(after, again);
}

/// Of the last member, too: the kernel does not take it with such a log.
#[test]
fn a_log_that_is_invalid_can_be_removed() {
    let media = stopped(NewBitmap::None);
    let last = &media[1..2];
    let sb = &found(last)[0];
    let at = sb.bad_block_log_start().unwrap();
    edit(&media[1], |sb| sb.features |= Features::BAD_BLOCKS);
    media[1].poke(at, &(300u64 << 10).to_le_bytes());
    let refused = changed(last, &Update::NoBadBlockLog { force: false }).unwrap_err();
    assert!(matches!(refused, UpdateError::Assemble(AssembleError::BadBlocks { .. })), "{refused}");
    let after = changed(last, &Update::NoBadBlockLog { force: true }).unwrap();
    assert_eq!(after[0].bad_block_log, None);
}

#[test]
fn what_a_superblock_cannot_have_changes_none() {
    let media = stopped(NewBitmap::Lockless);
    let before = found(&media);
    for change in [Update::PreferredMinor(3), Update::Name("x".repeat(32)), Update::Resync] {
        changed(&media, &change).unwrap_err();
    }
    assert_eq!(found(&media), before);
}

/// A half that lacks mirrors does not start by itself; repeating the change completes it.
#[test]
fn an_interrupted_change_of_the_uuid_is_completed_by_doing_it_again() {
    let mut halves = 0;
    for step in 0.. {
        let media = stopped(NewBitmap::Internal { chunk: Some(1 << 16) });
        let sim = Sim::new(4);
        let done = {
            let change = async {
                update(&candidates(&disks(&media)).await, &Update::Uuid(NEW)).await.unwrap();
            };
            sim.block_on_until(change, Stop::AfterSteps(step)).is_some()
        };
        sim.power_cut();
        let sim = Sim::new(5);
        sim.block_on(async {
            let arrays = group(candidates(&disks(&media)).await);
            if arrays.len() > 1 {
                halves += 1;
                for half in arrays.into_values() {
                    let active = |sb: &Superblock| matches!(sb.role(), Role::Active(_));
                    let mirrors = half.iter().filter(|member| active(&member.sb)).count();
                    match plan(half, &RW).await {
                        Ok(_) => {
                            assert_eq!(mirrors, 3, "step {step}: a part of the mirrors starts")
                        }
                        Err(AssembleError::NeedsRun { .. } | AssembleError::NotEnough { .. }) => {}
                        Err(error) => panic!("step {step}: {error}"),
                    }
                }
                let other = Update::Uuid(Uuid::from_u128(9));
                let error = update(&candidates(&disks(&media)).await, &other).await.unwrap_err();
                assert!(error.to_string().contains("interrupted"), "{error}");
            }
            update(&candidates(&disks(&media)).await, &Update::Uuid(NEW)).await.unwrap();
            let array = start(&sim, &disks(&media), &RW).await.unwrap();
            let status = array.status().await;
            assert!(status.uuid == NEW && status.degraded == 0 && status.notes.is_empty());
            check(&array, 0, LEN, 1).await;
            assert_eq!(array.disk().capacity(), status.size);
            array.stop().await.unwrap();
        });
        if done {
            break;
        }
    }
    assert!(halves > 2, "only {halves} cuts left two halves");
}
