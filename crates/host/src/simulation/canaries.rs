//! Each rule of the control plane is broken once, and the simulation must find it: otherwise it is too weak to find a real bug
//! there. Mutual exclusion of changes needs no canary: a change without a turn does not compile.

use std::fmt::Debug;

use ashlar_block::canary::break_rule;
use ashlar_dm::snapshot::canary::Rule as Snapshots;
use ashlar_sim::runs::first_failure;
use ashlar_stack::canary::Rule;

use super::run;

/// Fails if more than `bound` runs are needed to find the broken rule.
fn is_found<R: Copy + Debug + 'static>(rule: R, bound: u64) {
    let broken = break_rule(rule);
    let found = first_failure(bound, run);
    drop(broken);
    match found {
        Some((seed, text)) => println!("{rule:?}: found by run {}: {text}", seed + 1),
        None => panic!("{rule:?} is broken and {bound} runs did not find it"),
    }
}

macro_rules! canaries {
    ($($name:ident: $rule:expr, $bound:expr;)*) => {
        $(
            #[test]
            fn $name() {
                is_found($rule, $bound);
            }
        )*
    };
}

canaries! {
    an_answer_before_the_change: Rule::AnswersComeLast, 50;
    a_claim_that_nobody_takes_back: Rule::ClaimsAreTakenBack, 50;
    a_detached_disk_that_stays_open: Rule::DetachedDisksAreClosed, 50;
    a_change_of_an_origin_before_its_copy: Snapshots::CommitComesFirst, 50;
    a_change_of_an_origin_that_a_snapshot_misses: Snapshots::AllSnapshots, 50;
    a_write_that_a_merge_undoes: Snapshots::MergeHoldsWrites, 300;
    an_invalid_snapshot_that_is_back: Snapshots::InvalidIsRecorded, 150;
    a_change_after_the_end: Rule::EndComesLast, 150;
    a_volume_that_clients_do_not_find: Rule::FrontEndsAreTold, 50;
    a_change_of_a_group_that_is_not_written: Rule::GroupsAreWritten, 50;
    a_disk_without_identity: Rule::IdentitiesAreKept, 50;
    a_member_without_a_claim: Rule::MembersKeepTheirClaim, 50;
    other_contents_that_are_overwritten: Rule::OtherContentsAreKept, 50;
    a_physical_volume_without_a_mark: Rule::PhysicalVolumesAreMarked, 300;
    two_uses_of_a_disk: Rule::OneUse, 300;
    a_registry_that_does_not_follow: Rule::RegistryIsSettled, 50;
    an_array_that_runs_and_waits: Rule::StartedArraysWaitNoMore, 50;
    an_array_that_stops_in_use: Rule::UsedArraysRun, 50;
}
