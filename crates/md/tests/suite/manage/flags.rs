//! Flags of members.

use ashlar_md::manage::{FlagChange, ManageError, MemberFlag};
use ashlar_md::ondisk::Level;
use ashlar_md::probe::probe;
use ashlar_sim::Media;

use crate::common::Shape;
use crate::manage::world::Recipe;

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
        // True already.
        world.array.set_member_state(0, "in_sync").await.unwrap();
        world.array.set_member_state(0, "-blocked").await.unwrap();
        // For those who cannot be replaced the kernel takes it and does nothing.
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
