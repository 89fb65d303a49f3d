//! Whether the superblocks have what acknowledgements depend on.
//!
//! A write that leaves out a failed member may be acknowledged only when the superblocks of the others record the failure. So a failure
//! is a *change*, which is counted before it takes effect, and a write asks afterwards whether all changes are recorded.
//!
//! A recorder notes how many changes there are before it looks at the members, and counts that many as recorded when the superblocks are
//! written. A change that was counted and has not taken effect yet would be missing in these superblocks and count as recorded: a write
//! that then leaves out the member would be acknowledged too early. So members fail under a lock, and a recorder takes the count under
//! the same lock. The tests check this with loom.

use ashlar_block::sync::{Lock, Primitives, Std, Word};

/// See the module text.
pub(crate) struct Records<P: Primitives = Std> {
    /// Counts the changes that acknowledgements depend on.
    changes: P::Word,
    /// How many of `changes` are in the superblocks. The rest are on their way or could not be recorded.
    recorded: P::Word,
    /// Held while a member is judged and fails: of two members that hold the same data only one may fail.
    failing: P::Lock<()>,
}

impl<P: Primitives> Default for Records<P> {
    fn default() -> Self {
        Self {
            changes: Default::default(),
            recorded: Default::default(),
            failing: Default::default(),
        }
    }
}

impl<P: Primitives> Records<P> {
    /// Requires that a change is recorded before any write is acknowledged. Either no write depends on the change before this call, or
    /// the caller is in [`Self::one_at_a_time`] or has the superblocks locked.
    pub(crate) fn must_record(&self) {
        self.changes.add(1);
    }

    /// Runs `fail`, which decides whether a member fails. A recorder sees all of it or nothing.
    pub(super) fn one_at_a_time<T>(&self, fail: impl FnOnce() -> T) -> T {
        self.failing.with(|()| fail())
    }

    /// The changes that superblocks contain if they are put together from now on.
    pub(super) fn changes(&self) -> u64 {
        self.failing.with(|()| self.changes.load())
    }

    /// Notes that the superblocks have `changes`.
    pub(super) fn set_recorded(&self, changes: u64) {
        let later = |before| (before < changes).then_some(changes);
        let (Ok(_) | Err(_)) = self.recorded.update(later);
    }

    /// Whether the superblocks record all changes.
    #[inline]
    pub(crate) fn is_recorded(&self) -> bool {
        // In this order: `recorded` never exceeds `changes`.
        let recorded = self.recorded.load();
        recorded == self.changes.load()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use ashlar_block::sync::model::loom::sync::atomic::AtomicU64;
    use ashlar_block::sync::model::{Loom, explore};

    use super::*;

    /// One member, and what the superblocks of the others say about it.
    #[derive(Default)]
    struct World {
        records: Records<Loom>,
        is_faulty: AtomicU64,
        is_known_as_faulty: AtomicU64,
    }

    fn fails(world: &World) {
        world.records.one_at_a_time(|| {
            world.records.must_record();
            Word::set(&world.is_faulty, 1);
        });
    }

    /// Writes superblocks for any reason.
    fn records(world: &World) {
        world.records.must_record();
        let changes = world.records.changes();
        let is_faulty = Word::load(&world.is_faulty);
        Word::set(&world.is_known_as_faulty, is_faulty);
        world.records.set_recorded(changes);
    }

    /// A write that leaves out a failed member, and is acknowledged if everything is recorded.
    fn writes(world: &World) {
        if Word::load(&world.is_faulty) != 0 && world.records.is_recorded() {
            assert_eq!(Word::load(&world.is_known_as_faulty), 1, "acknowledged too early");
        }
    }

    /// Counts the change before and after it takes effect: superblocks may be written in between.
    fn fails_without_the_lock(world: &World) {
        world.records.must_record();
        Word::set(&world.is_faulty, 1);
        world.records.must_record();
    }

    #[test]
    fn the_model_finds_a_failure_without_the_lock() {
        let threads: &[fn(&World)] = &[writes, fails_without_the_lock, records];
        let panic = catch_unwind(|| explore(3, World::default, threads, |_| ())).unwrap_err();
        let found = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(found.contains("acknowledged too early"), "{found}");
    }

    #[test]
    fn a_write_that_leaves_out_a_member_waits_until_its_failure_is_recorded() {
        explore(3, World::default, &[fails, records, writes], |world| {
            assert_eq!(Word::load(&world.is_faulty), 1);
            if world.records.is_recorded() {
                assert_eq!(Word::load(&world.is_known_as_faulty), 1);
            }
        });
    }
}
