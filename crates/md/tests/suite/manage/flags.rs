//! Flags of members.

use std::time::Duration;

use ashlar_block::{Op, Status};
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{ArrayState, FlagChange, ManageError, MemberFlag, Options, SyncRequest, probe};
use ashlar_sim::{Command, Media};

use crate::common::{DATA, SUPERBLOCK, Shape, all_clean, start, write};
use crate::manage::world::{RW, Recipe, World};

fn mirror() -> Recipe {
    Recipe::new(Shape::new(Level::Raid1, None, 0, 2))
}

#[test]
fn flags_are_in_the_superblock_before_the_word_is_answered() {
    mirror().run(async |_, world| {
        for on in [true, false, false] {
            let minus = if on { "" } else { "-" };
            for word in ["writemostly", "failfast", "write_error"] {
                world.array.set_member_state(1, &format!("{minus}{word}")).await.unwrap();
            }
            let member = world.member(1).await;
            assert_eq!((member.write_mostly, member.failfast), (on, on));
            let flags = probe(&world.disks[1].gateway()).await.unwrap().unwrap().flags;
            assert_eq!((flags.write_mostly, flags.failfast), (on, on));
            let other = probe(&world.disks[0].gateway()).await.unwrap().unwrap().flags;
            assert!(!other.write_mostly && !other.failfast);
        }
    });
}

#[test]
fn a_member_that_is_made_write_mostly_is_not_read_any_more() {
    mirror().run(async |_, world| {
        let on = FlagChange { flag: MemberFlag::WriteMostly, on: true };
        world.array.set_flag(0, on).await.unwrap();
        world.media.iter().for_each(Media::clear_log);
        for _ in 0..20 {
            world.check(0, 64, 1).await;
        }
        assert_eq!(world.media[0].counts().reads, 0);
        assert!(world.media[1].counts().reads > 0);
    });
}

#[test]
fn words_that_mean_nothing_are_refused() {
    mirror().run(async |_, world| {
        for word in ["", "spare", "in_sync ", "-faulty", "blocked", "replacement", "writemostly x"]
        {
            let refused = world.array.set_member_state(0, word).await;
            assert!(matches!(refused, Err(ManageError::Word(_))), "{word}: {refused:?}");
        }
        // Already true.
        world.array.set_member_state(0, "in_sync").await.unwrap();
        world.array.set_member_state(0, "-blocked").await.unwrap();
        // For a member that cannot be replaced, the kernel accepts it and does nothing.
        let spare = world.add(2).await.unwrap().index();
        world.array.set_member_state(spare, "want_replacement").await.unwrap();
        assert!(!world.member(2).await.want_replacement);
        let refused = world.array.set_member_state(spare, "in_sync").await;
        assert!(matches!(refused, Err(ManageError::Word(_))), "a spare holds nothing");
        let refused = world.array.set_member_state(0, "remove").await;
        assert!(matches!(refused, Err(ManageError::InUse(_))), "{refused:?}");
        world.array.set_member_state(spare, "remove").await.unwrap();
    });
}

#[test]
fn a_read_only_array_is_clean_syncs_nothing_and_can_be_written_again() {
    mirror().run(async |sim, world| {
        let array = &world.array;
        world.write(0, 64, 2).await;
        array.fail(1).await.unwrap();
        array.remove(1).await.unwrap();
        world.add(2).await.unwrap();
        // It is being rebuilt.
        while world.member(2).await.slot.is_none() {
            sim.runtime().sleep(Duration::from_micros(10)).await;
        }
        array.set_state("readonly\n").await.unwrap();
        assert_eq!(array.state(), ArrayState::ReadOnly);
        assert!(all_clean(&world.disks[..1]).await);
        assert_eq!(write(&world.volume(), 0, 8, 3).await, Err(Status::ReadOnly));
        array.sync_ended().await;
        assert_eq!(array.degraded(), 1, "nothing is rebuilt");
        assert!(matches!(array.fail(0).await, Err(ManageError::ReadOnly(_))));
        world.check(0, 64, 2).await;
        for word in ["suspended", "write-pending", "active-idle", "broken", "nonsense", ""] {
            let error = array.set_state(word).await.unwrap_err();
            assert!(matches!(error, ManageError::State { .. }), "{error}");
        }
        array.set_state("active").await.unwrap();
        world.write(0, 64, 3).await;
        world.settle().await;
        array.set_state("clean").await.unwrap();
        assert_eq!(array.state(), ArrayState::Clean);
    });
}

fn writes(world: &World) -> u64 {
    let written = |media: &Media| media.counts().writes + media.counts().flushes;
    world.media.iter().map(written).sum()
}

#[test]
fn a_read_auto_array_writes_nothing_before_its_first_write_which_finds_active_superblocks() {
    for bitmap in [NewBitmap::None, NewBitmap::Internal { chunk: Some(1 << 16) }] {
        mirror().bitmap(bitmap).run(async |sim, world| {
            let array = &world.array;
            array.fail(1).await.unwrap();
            array.remove(1).await.unwrap();
            world.add(2).await.unwrap();
            while world.member(2).await.slot.is_none() {
                sim.runtime().sleep(Duration::from_micros(10)).await;
            }
            array.set_state("read-auto\n").await.unwrap();
            assert_eq!((array.state(), array.state().name()), (ArrayState::ReadAuto, "read-auto"));
            assert!(all_clean(&world.disks[..1]).await);
            let before = writes(world);
            world.check(0, 64, 1).await;
            array.sync_ended().await;
            sim.runtime().sleep(Duration::from_secs(60)).await;
            assert_eq!((array.state(), array.degraded()), (ArrayState::ReadAuto, 1));
            assert_eq!(writes(world), before, "{bitmap:?}: written without a write");
            world.media.iter().for_each(Media::clear_log);
            write(&world.volume(), 0, 8, 3).await.unwrap();
            assert_eq!(array.state(), ArrayState::Active);
            for disk in [0, 2] {
                let log = world.media[disk].log();
                let at = |wanted: fn(u64) -> bool| {
                    let has = |c: &Command| c.op == Op::Write && wanted(c.ranges[0].start);
                    log.iter().position(has).unwrap_or_else(|| panic!("{disk}: {log:?}"))
                };
                let superblock = at(|sector| SUPERBLOCK.contains(&sector));
                let data = at(|sector| sector >= DATA);
                assert!(superblock < data, "{log:?}");
            }
            // The rebuild continues.
            world.settle().await;
        });
    }
}

#[test]
fn a_read_auto_array_has_no_marks_left_that_could_be_taken_away() {
    for bitmap in [NewBitmap::Internal { chunk: Some(1 << 16) }, NewBitmap::Lockless] {
        mirror().bitmap(bitmap).run(async |sim, world| {
            world.write(0, 64, 2).await;
            world.array.set_state("read-auto").await.unwrap();
            assert_eq!(world.array.bitmap().unwrap().marked_chunks(), 0, "{bitmap:?}");
            let before = writes(world);
            sim.runtime().sleep(Duration::from_secs(60)).await;
            assert_eq!(writes(world), before, "{bitmap:?}");
            assert!(all_clean(&world.disks[..2]).await);
        });
    }
}

#[test]
fn any_change_ends_the_read_auto_state_and_words_lead_in_and_out_of_it() {
    mirror().run(async |sim, world| {
        let array = &world.array;
        for (word, state) in [
            ("read-auto", ArrayState::ReadAuto),
            ("readonly", ArrayState::ReadOnly),
            ("read-auto", ArrayState::ReadAuto),
            ("read-auto", ArrayState::ReadAuto),
            ("clean", ArrayState::Clean),
            ("read-auto", ArrayState::ReadAuto),
            ("active", ArrayState::Clean),
        ] {
            array.set_state(word).await.unwrap();
            assert_eq!(array.state(), state, "{word}");
        }
        array.set_state("read-auto").await.unwrap();
        array.request_sync(SyncRequest::Check).unwrap();
        array.sync_ended().await;
        assert_eq!(array.state(), ArrayState::Clean);
        array.set_state("read-auto").await.unwrap();
        array.fail(1).await.unwrap();
        assert_eq!(array.state(), ArrayState::Clean);
        array.set_state("read-auto").await.unwrap();
        let started = writes(world);
        array.stop().await.unwrap();
        assert_eq!(writes(world), started, "it was clean");
        let read_only = Options { run: true, read_only: true, force: false };
        let array = start(sim, &world.disks[..1], &read_only).await.unwrap();
        let refused = array.set_state("read-auto").await;
        assert!(matches!(refused, Err(ManageError::ReadOnly(_))), "{refused:?}");
        array.stop().await.unwrap();
    });
}

#[test]
fn an_array_that_is_only_read_does_not_write_over_what_cannot_be_read() {
    for (word, state) in [("readonly", ArrayState::ReadOnly), ("read-auto", ArrayState::ReadAuto)] {
        mirror().run(async |_, world| {
            let array = &world.array;
            array.set_member_state(1, "failfast").await.unwrap();
            array.set_state(word).await.unwrap();
            let before = writes(world);
            for disk in 0..2 {
                world.media[disk].fail_reads(DATA..DATA + 64);
                world.check(0, 64, 1).await;
                world.media[disk].heal();
            }
            assert_eq!((array.state(), array.degraded()), (state, 0));
            assert_eq!(writes(world), before, "{word}");
        });
    }
}

#[test]
fn a_raid0_keeps_the_read_auto_state_because_it_has_no_other() {
    Recipe::new(Shape::new(Level::Raid0, None, 4, 2)).run(async |_, world| {
        world.array.set_state("read-auto").await.unwrap();
        world.write(0, 64, 2).await;
        assert_eq!(world.array.state(), ArrayState::ReadAuto);
        world.array.set_state("active").await.unwrap();
        assert_eq!(world.array.state(), ArrayState::Clean);
    });
}

#[test]
fn bad_blocks_that_a_user_adds_are_in_the_log_and_read_elsewhere() {
    mirror().run(async |sim, world| {
        let array = &world.array;
        for line in ["x", "1", "100 0", "1 1", "-300 8", "8000 8000"] {
            let error = array.add_bad_blocks(1, line).await.unwrap_err();
            assert!(matches!(error, ManageError::BadBlocks { .. }), "{line}: {error}");
        }
        array.add_bad_blocks(1, &format!("{DATA} 8\n")).await.unwrap();
        world.media.iter().for_each(Media::clear_log);
        for _ in 0..20 {
            world.check(0, 8, 1).await;
        }
        array.stop().await.unwrap();
        let array = start(sim, &world.disks, &RW).await.unwrap();
        let rdev = array.members().get(1).unwrap();
        assert_eq!(rdev.bad_blocks().text(), format!("{DATA} 8\n"));
        assert!(rdev.bad_blocks().unacknowledged_text().is_empty());
        array.stop().await.unwrap();
    });
}
