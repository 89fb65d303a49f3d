//! Each rule of docs/internals/dm-snapshot.md is broken once, and the simulation must detect it: if
//! it does not, it is too weak to find a real bug there. One rule has no canary: that data of a
//! torn write after the end of the list is erased. That takes two crashes at two writes of full
//! pages; `stores` has a test for it.

use super::world::World;
use ashlar_block::canary::break_rule;
use ashlar_dm::snapshot::canary::Rule;
use ashlar_sim::runs::first_failure;

/// Lives per origin.
const LIVES: usize = 5;

/// Runs worlds until the broken rule is detected; fails after `bound` runs. The first is that of the seed `known`, which detected it
/// when this was written; a long run (`make soak`) begins at 0.
fn is_found(rule: Rule, known: u64, bound: u64) {
    let broken = break_rule(rule);
    let is_long = std::env::var_os("ASHLAR_SEEDS").is_some();
    let seed = |run: u64| if is_long { run } else { (known + run) % bound };
    let found = first_failure(bound, |run| {
        let mut world = World::new(seed(run));
        (0..LIVES).for_each(|_| world.live());
    });
    drop(broken);
    match found {
        Some((run, text)) => {
            println!("{rule:?}: found by run {} (seed {}): {text}", run + 1, seed(run));
        }
        None => panic!("{rule:?} is broken and {bound} runs did not find it"),
    }
}

macro_rules! canaries {
    ($($name:ident: $rule:ident, $known:expr, $bound:expr;)*) => {
        $(
            #[test]
            fn $name() {
                is_found(Rule::$rule, $known, $bound);
            }
        )*
    };
}

canaries! {
    an_exception_for_only_one_of_several_snapshots: AllSnapshots, 0, 300;
    an_origin_that_changes_before_the_exception_is_written: CommitComesFirst, 0, 300;
    an_exception_before_its_data_is_durable: CommitFlushes, 2, 300;
    exceptions_in_caches: CommitIsDurable, 6, 300;
    an_exception_before_its_data: DataComesFirst, 0, 300;
    a_discard_that_leaves_anything: DiscardsZero, 0, 300;
    a_flush_that_fails_beside_another: LossesAreKnown, 6, 600;
    a_partial_write_taken_for_a_whole_chunk: FullChunksOnly, 0, 300;
    an_invalid_snapshot_that_does_not_say_so: InvalidIsRecorded, 1, 300;
    exceptions_forgotten_before_merged_data_is_durable: MergeFlushes, 79, 600;
    a_write_to_what_is_being_merged: MergeHoldsWrites, 5, 600;
    a_merge_that_forgets_the_other_snapshots: MergeIsAWrite, 17, 300;
    a_full_area_with_no_empty_one_behind: NextAreaIsEmpty, 119, 700;
    an_origin_that_changes_while_it_is_read: ReadsAreTracked, 8, 300;
}
