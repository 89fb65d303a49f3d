//! Each rule of the control plane is broken once, and the simulation must find it: otherwise it is too weak to find a real bug
//! there. Mutual exclusion of changes needs no canary: a change without a turn does not compile.

use std::fmt::Debug;

use ashlar_block::canary::break_rule;
use ashlar_dm::snapshot::canary::Rule as Snapshots;
use ashlar_sim::runs::first_failure;
use ashlar_stack::canary::Rule;

use super::run;

/// Fails if more than `bound` runs are needed to find the broken rule. The first is that of the seed `known`, which found it when
/// this was written; a long run (`make soak`) begins at 0.
fn is_found<R: Copy + Debug + 'static>(rule: R, known: u64, bound: u64) {
    let broken = break_rule(rule);
    let is_long = std::env::var_os("ASHLAR_SEEDS").is_some();
    let seed = |number: u64| if is_long { number } else { (known + number) % bound };
    let found = first_failure(bound, |number| run(seed(number)));
    drop(broken);
    match found {
        Some((number, text)) => {
            println!("{rule:?}: found by run {} (seed {}): {text}", number + 1, seed(number));
        }
        None => panic!("{rule:?} is broken and {bound} runs did not find it"),
    }
}

macro_rules! canaries {
    ($($name:ident: $rule:expr, $known:expr, $bound:expr;)*) => {
        $(
            #[test]
            fn $name() {
                is_found($rule, $known, $bound);
            }
        )*
    };
}

canaries! {
    an_answer_before_the_change: Rule::AnswersComeLast, 0, 50;
    a_claim_that_nobody_takes_back: Rule::ClaimsAreTakenBack, 21, 50;
    a_detached_disk_that_stays_open: Rule::DetachedDisksAreClosed, 16, 50;
    a_change_of_an_origin_before_its_copy: Snapshots::CommitComesFirst, 0, 50;
    a_change_of_an_origin_that_a_snapshot_misses: Snapshots::AllSnapshots, 10, 50;
    a_write_that_a_merge_undoes: Snapshots::MergeHoldsWrites, 6, 300;
    an_invalid_snapshot_that_is_back: Snapshots::InvalidIsRecorded, 41, 150;
    a_change_after_the_end: Rule::EndComesLast, 0, 150;
    a_volume_that_clients_do_not_find: Rule::FrontEndsAreTold, 0, 50;
    a_change_of_a_group_that_is_not_written: Rule::GroupsAreWritten, 0, 50;
    a_disk_without_identity: Rule::IdentitiesAreKept, 45, 50;
    a_member_without_a_claim: Rule::MembersKeepTheirClaim, 1, 50;
    other_contents_that_are_overwritten: Rule::OtherContentsAreKept, 0, 50;
    a_physical_volume_without_a_mark: Rule::PhysicalVolumesAreMarked, 4, 300;
    two_uses_of_a_disk: Rule::OneUse, 107, 300;
    a_registry_that_does_not_follow: Rule::RegistryIsSettled, 3, 50;
    an_array_that_runs_and_waits: Rule::StartedArraysWaitNoMore, 3, 50;
    an_array_that_stops_in_use: Rule::UsedArraysRun, 16, 50;
}
