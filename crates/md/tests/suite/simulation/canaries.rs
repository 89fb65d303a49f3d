//! Each rule of the crash model is broken once, and the simulation must find it: otherwise it is too weak
//! to find a real bug there. Rules whose violation it cannot find, or hardly, have no canary; other tests
//! cover them: flushes and reads wait for writes behind (`interleavings`), a failed member is two events
//! behind, not one (`failures`: for old kernels), `events_cleared` is written before marks are cleared
//! (`bitmap`), marks stay for an absent member (`interleavings`: each of these two keeps data safe without
//! the other), and while copies may differ a replacement inherits write-mostly from the member that it
//! replaces (`found`: this would take thousands of runs). With parity the rows' locks keep windows from writes as the barrier does; that
//! rows are held has a canary in `parity_writes`.

use super::world::World;
use ashlar_block::canary::break_rule;
use ashlar_md::canary::Rule;
use ashlar_md::ondisk::Level;
use ashlar_sim::runs::first_failure;

/// Number of lives of each array.
const LIVES: usize = 5;

/// Runs arrays of these levels in turn until the broken rule is found; fails if that takes more than
/// `bound` runs. The first is that of the seed `known`, which found it when this was written; a long run
/// (`make soak`) begins at 0.
fn is_found(rule: Rule, levels: &[Level], known: u64, bound: u64) {
    let broken = break_rule(rule);
    fails(&format!("{rule:?}"), World::new, levels, known, bound);
    drop(broken);
}

/// Runs worlds of these levels in turn until one fails.
fn fails(
    what: &str,
    world: impl Fn(Level, u64) -> World,
    levels: &[Level],
    known: u64,
    bound: u64,
) {
    let level = |seed: u64| levels[seed as usize % levels.len()];
    let is_long = std::env::var_os("ASHLAR_SEEDS").is_some();
    let seed = |run: u64| if is_long { run } else { (known + run) % bound };
    let found = first_failure(bound, |run| {
        let mut world = world(level(seed(run)), seed(run));
        (0..LIVES).for_each(|_| world.live());
    });
    match found {
        Some((run, text)) => {
            let seed = seed(run);
            println!("{what}: found by run {} ({}, seed {seed}): {text}", run + 1, level(seed));
        }
        None => panic!("{what} is broken and {bound} runs did not find it"),
    }
}

/// A rule of drivers: they keep a change until the device cannot execute it any more.
#[test]
fn a_late_write_that_the_driver_has_given_up() {
    fails("KeepsLateChanges", World::networked_by_forgetful_drivers, MIRROR, 46, 1000);
}

const MIRROR: &[Level] = &[Level::Raid1];
const STRIPED: &[Level] = &[Level::Raid10];
const BOTH: &[Level] = &[Level::Raid1, Level::Raid10];
const PARITY: &[Level] = &[Level::Raid5, Level::Raid6];

macro_rules! canaries {
    ($($name:ident: $rule:ident, $levels:expr, $known:expr, $bound:expr;)*) => {
        $(
            #[test]
            fn $name() {
                is_found(Rule::$rule, $levels, $known, $bound);
            }
        )*
    };
}

canaries! {
    a_write_before_the_array_is_active: ActiveIsRecorded, BOTH, 0, 250;
    a_bad_block_that_is_not_recorded: BadBlocksAreRecorded, BOTH, 117, 800;
    a_bad_block_that_is_read: BadBlocksAreNotRead, BOTH, 507, 800;
    a_barrier_that_does_not_wait_for_writes: BarrierWaitsForWrites, BOTH, 1, 600;
    a_write_behind_without_a_mark: BehindIsMarked, MIRROR, 22, 800;
    a_bound_that_is_recorded_ahead: BoundIsReached, BOTH, 146, 800;
    clean_without_a_flush: CleanIsFlushed, BOTH, 3, 250;
    corrections_without_a_barrier: CorrectionsRaise, BOTH, 952, 1000;
    a_discard_that_is_rounded_outwards: DiscardsRoundInwards, STRIPED, 0, 250;
    a_failed_write_that_fails_nobody: FailedWritesFailMembers, BOTH, 32, 250;
    a_failure_that_is_not_recorded: FailuresAreRecorded, BOTH, 33, 250;
    a_flush_that_leaves_out_a_member: FlushReachesAll, BOTH, 2, 250;
    a_bitmap_that_forgets_what_was_discarded_in_part: ForgetsWholeChunks, BOTH, 63, 1200;
    a_last_copy_that_fails: LastCopyStays, BOTH, 19, 250;
    data_before_its_mark: MarksComeFirst, BOTH, 21, 250;
    marks_in_caches: MarksAreDurable, BOTH, 932, 1000;
    marks_taken_away_before_a_flush: MarksGoAfterFlush, BOTH, 21, 250;
    a_member_that_is_rebuilt_and_not_written: RebuildingIsWritten, BOTH, 0, 250;
    a_member_that_is_read_before_it_is_rebuilt: RebuildingIsNotRead, BOTH, 0, 250;
    a_rebuilt_member_that_was_not_flushed: RebuiltIsFlushed, BOTH, 15, 600;
    superblocks_in_caches: SuperblocksAreDurable, BOTH, 50, 300;
    parity_before_the_array_is_active: ActiveIsRecorded, PARITY, 0, 400;
    parity_without_a_recorded_bad_block: BadBlocksAreRecorded, PARITY, 125, 1600;
    parity_from_a_bad_block: BadBlocksAreNotRead, PARITY, 125, 800;
    parity_called_clean_without_a_flush: CleanIsFlushed, PARITY, 15, 400;
    a_failed_write_of_a_row_that_fails_nobody: FailedWritesFailMembers, PARITY, 27, 400;
    a_failure_in_a_row_that_is_not_recorded: FailuresAreRecorded, PARITY, 19, 400;
    a_flush_of_rows_that_leaves_out_a_member: FlushReachesAll, PARITY, 0, 400;
    a_row_written_before_its_mark: MarksComeFirst, PARITY, 66, 400;
    marks_of_rows_taken_away_before_a_flush: MarksGoAfterFlush, PARITY, 221, 400;
    a_member_that_is_recovered_and_not_written: RebuildingIsWritten, PARITY, 1, 400;
    a_member_that_is_read_before_it_is_recovered: RebuildingIsNotRead, PARITY, 1, 400;
    a_recovered_member_that_was_not_flushed: RebuiltIsFlushed, PARITY, 15, 800;
    any_copy_of_an_unsynced_array: UnsyncedReadsFirst, BOTH, 28, 250;
}
