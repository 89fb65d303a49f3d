//! Each rule of the control plane is broken once, and the simulation must find it: otherwise it is too weak to find a real bug
//! there. That changes exclude each other has no canary: a change without a turn does not compile.

use ashlar_block::canary::break_rule;
use ashlar_sim::runs::first_failure;
use ashlar_stack::canary::Rule;

use super::run;

/// Fails if more than `bound` runs are needed to find the broken rule.
fn is_found(rule: Rule, bound: u64) {
    let broken = break_rule(rule);
    let found = first_failure(bound, run);
    drop(broken);
    match found {
        Some((seed, text)) => println!("{rule:?}: found by run {}: {text}", seed + 1),
        None => panic!("{rule:?} is broken and {bound} runs did not find it"),
    }
}

macro_rules! canaries {
    ($($name:ident: $rule:ident, $bound:expr;)*) => {
        $(
            #[test]
            fn $name() {
                is_found(Rule::$rule, $bound);
            }
        )*
    };
}

canaries! {
    an_answer_before_the_change: AnswersComeLast, 50;
    a_claim_that_nobody_takes_back: ClaimsAreTakenBack, 50;
    a_detached_disk_that_stays_open: DetachedDisksAreClosed, 50;
    a_change_after_the_end: EndComesLast, 150;
    a_volume_that_clients_do_not_find: FrontEndsAreTold, 50;
    a_disk_without_identity: IdentitiesAreKept, 50;
    a_member_without_a_claim: MembersKeepTheirClaim, 50;
    other_contents_that_are_overwritten: OtherContentsAreKept, 50;
    two_uses_of_a_disk: OneUse, 50;
    a_registry_that_does_not_follow: RegistryIsSettled, 50;
    an_array_that_runs_and_waits: StartedArraysWaitNoMore, 50;
    an_array_that_stops_in_use: UsedArraysRun, 50;
}
