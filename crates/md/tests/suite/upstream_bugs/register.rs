//! The list of bugs.

use std::path::Path;

/// A bug that upstream had, or is suspected to have.
struct Bug {
    /// The title of the upstream change that fixed it, and the first release with it. A bug without such a
    /// change is suspected from reading the source.
    name: &'static str,
    here: BugStatus,
}

/// The bug's status in ashlar.
enum BugStatus {
    /// It could occur. The files (below `crates/md`) and functions of the tests that would find it.
    Tested(&'static [(&'static str, &'static str)]),
    /// It cannot occur, and why.
    Cannot(&'static str),
}

use BugStatus::{Cannot, Tested};

const DISCARDS: &str = "tests/suite/upstream_bugs/discards.rs";
const METADATA: &str = "tests/suite/upstream_bugs/metadata.rs";
const PENDING: &str = "tests/suite/upstream_bugs/pending.rs";
const READS: &str = "tests/suite/upstream_bugs/reads.rs";
const SYNCS: &str = "tests/suite/upstream_bugs/syncs.rs";
const WRITES: &str = "tests/suite/upstream_bugs/writes.rs";
const GEOMETRY: &str = "tests/suite/geometry_raid10/discard.rs";
const PARITY: &str = "tests/suite/parity.rs";
const LAYOUTS: &str = "tests/suite/geometry_raid10/map.rs";

const BUGS: &[Bug] = &[
    Bug {
        name: "raid10: discards from the wrong start on the second and later members (LP 1907262)",
        here: Tested(&[(
            GEOMETRY,
            "discard_start_offset_is_right_on_the_second_and_later_members",
        )]),
    },
    Bug {
        name: "raid10: wrong stripe size of discards for far layouts (LP 1907262)",
        here: Tested(&[(GEOMETRY, "discard_stripe_size_is_right_for_far_layouts")]),
    },
    Bug {
        name: "raid10: Remove unnecessary rcu_dereference in raid10_handle_discard (5.14.4)",
        here: Cannot(
            "members stay in their table as long as the array; nothing is freed under a reader",
        ),
    },
    Bug {
        name: "raid1,raid10: don't call bio_start_io_acct twice for bio which experienced read error (6.1.28)",
        here: Tested(&[(READS, "a_read_that_experienced_an_error_is_not_accounted_twice")]),
    },
    Bug {
        name: "raid10: fix missing discard IO accounting (6.12.25)",
        here: Tested(&[(DISCARDS, "discard_io_is_accounted_once_and_marked_as_a_whole")]),
    },
    Bug {
        name: "raid1,raid10: Handle bio_split() errors (6.12.55)",
        here: Cannot(
            "a part of a bio is a value that is computed; there is no allocation or rule to fail",
        ),
    },
    Bug {
        name: "raid10: wait barrier before returning discard request with REQ_NOWAIT (6.12.64)",
        here: Tested(&[
            (DISCARDS, "a_discard_with_nowait_does_not_pass_the_barrier_of_a_recovery"),
            (PENDING, "nowait_io_that_is_given_up_leaves_nothing_behind"),
        ]),
    },
    Bug {
        name: "raid10: fix any_working flag handling in raid10_sync_request (6.12.75)",
        here: Tested(&[(
            SYNCS,
            "any_working_source_that_has_only_bad_blocks_does_not_hang_a_recovery",
        )]),
    },
    Bug {
        name: "raid1,raid10: fix deadlock with check operation and nowait requests (6.12.86)",
        here: Tested(&[(
            "tests/suite/sync/checks.rs",
            "a_check_and_requests_that_must_not_wait_do_not_lock_each_other_out",
        )]),
    },
    Bug {
        name: "raid10: fix divide-by-zero in setup_geo() with zero far_copies (6.12.88)",
        here: Tested(&[(LAYOUTS, "zero_far_copies_is_refused")]),
    },
    Bug {
        name: "raid10: reset read_slot when reusing r10bio for discard (6.12.97)",
        here: Cannot("no I/O has a structure that was another one's before"),
    },
    Bug {
        name: "raid10: fix still_degraded being inverted in raid10_sync_request() (6.12.109)",
        here: Tested(&[(SYNCS, "still_degraded_is_not_inverted_in_a_raid10_sync")]),
    },
    Bug {
        name: "raid10: fix writes_pending and barrier reference leaks on discard failures \
               (CVE-2026-72438, 6.12.111)",
        here: Tested(&[(
            PENDING,
            "discard_failures_leak_no_writes_pending_and_no_barrier_reference",
        )]),
    },
    Bug {
        name: "md: fix writes_pending leak on write request failures (6.12.114)",
        here: Tested(&[(
            PENDING,
            "write_failures_leak_no_writes_pending_and_no_barrier_reference",
        )]),
    },
    Bug {
        name: "raid1: fix writes_pending and barrier reference leaks on write failures (6.12.114)",
        here: Tested(&[(
            PENDING,
            "write_failures_leak_no_writes_pending_and_no_barrier_reference",
        )]),
    },
    Bug {
        name: "raid1,raid10: fix deadlock in read error recovery path (CVE-2026-74375, 6.12.114)",
        here: Tested(&[(SYNCS, "the_read_error_recovery_path_does_not_deadlock")]),
    },
    Bug {
        name: "raid1,raid10: fix error-path detection with md_cloned_bio() (6.12.114)",
        here: Cannot(
            "an error is the value that a future gives; nobody guesses from pointers whose it is",
        ),
    },
    Bug {
        name: "raid10: fstrim crashes after a backport (Ubuntu 2117395)",
        here: Tested(&[(
            "tests/suite/array.rs",
            "a_large_discard_of_a_raid10_is_one_range_for_each_member_and_pass",
        )]),
    },
    Bug {
        name: "raid0: add discard support for the 'original' layout (e836007089ba)",
        here: Tested(&[(
            "tests/suite/geometry_raid0.rs",
            "original_layout_multi_zone_discard_uses_the_shifted_disk",
        )]),
    },
    Bug {
        name: "raid10: layout words with bits above 18, or without near copies",
        here: Tested(&[
            (LAYOUTS, "layout_bits_above_18_are_refused"),
            (LAYOUTS, "any_layout_word_and_any_numbers_give_an_answer"),
        ]),
    },
    Bug {
        name: "raid5: a read error of an array without redundancy left never ends (7.2.13)",
        here: Tested(&[(PARITY, "a_read_error_without_redundancy_left_ends_the_read")]),
    },
    Bug {
        name: "raid5: a discard during a reshape never ends (7.2.13); marks of a write ahead of a reshape",
        here: Cannot("an array under reshape is only read"),
    },
    Bug {
        name: "raid5: ranges that were discarded are not in a classic bitmap (2026-06)",
        here: Cannot("an array with parity is only read"),
    },
    Bug {
        name: "suspected: wait_blocked_dev() looks at the first members, not at those of the write",
        here: Tested(&[(
            WRITES,
            "a_write_waits_for_the_record_of_its_own_members_not_of_the_first",
        )]),
    },
    Bug {
        name: "suspected: discards of near and offset copies together, odd number of members",
        here: Tested(&[
            (GEOMETRY, "every_discard_touches_all_copies_of_its_range_and_nothing_else"),
            (LAYOUTS, "layouts_in_which_chunks_would_share_a_place_are_refused_and_no_others"),
            (
                "tests/suite/geometry_kernel/mod.rs",
                "raid10_discards_zero_what_the_kernels_do_but_for_its_fault_with_mixed_layouts",
            ),
        ]),
    },
    Bug {
        name: "suspected: llbitmap_start_discard() rounds the end of a discard outwards",
        here: Tested(&[(
            "tests/suite/bitmap/discards.rs",
            "a_discard_is_rounded_inwards_at_both_ends_not_up_at_its_end",
        )]),
    },
    Bug {
        name: "suspected: freeze_array() looks for readers without a fence before",
        here: Tested(&[
            ("src/barrier/model.rs", "a_freeze_excludes_reads_writes_and_raises_and_all_end"),
            ("src/barrier/model.rs", "two_words_need_a_fence_on_both_sides_of_freeze_and_read"),
        ]),
    },
    Bug {
        name: "raid1: fix missing bitmap update w/o WriteMostly devices (5.15.14)",
        here: Tested(&[(WRITES, "the_bitmap_is_updated_with_and_without_write_mostly_devices")]),
    },
    Bug {
        name: "raid1: Fix data corruption for degraded array with slow disk (6.10.7)",
        here: Tested(&[(
            READS,
            "a_degraded_array_with_a_slow_disk_reads_nothing_that_was_not_rebuilt",
        )]),
    },
    Bug {
        name: "raid1: fix choose next idle in read_balance() (6.7.11)",
        here: Tested(&[(READS, "read_balance_chooses_the_next_idle_member")]),
    },
    Bug {
        name: "raid1: Add check for missing source disk in process_checks() (6.12.26)",
        here: Tested(&[(
            "tests/suite/sync/checks.rs",
            "a_check_does_without_a_first_copy_and_without_any",
        )]),
    },
    Bug {
        name: "raid1: Fix stack memory use after return in raid1_reshape (6.12.39)",
        here: Cannot(
            "a mirror keeps its number of slots; and safe Rust keeps no pointer to a stack frame",
        ),
    },
    Bug {
        name: "raid1,raid10: don't ignore IO flags (CVE-2025-22125)",
        here: Tested(&[(READS, "io_flags_are_not_ignored")]),
    },
    Bug {
        name: "raid1,raid10: don't handle IO error for REQ_RAHEAD and REQ_NOWAIT (6.12.46)",
        here: Tested(&[
            (READS, "no_io_error_is_handled_for_rahead_and_nowait"),
            ("tests/suite/corrections.rs", "a_read_ahead_that_fails_is_not_tried_again"),
            ("tests/suite/failures.rs", "a_write_that_would_rather_fail_than_wait_fails_no_member"),
        ]),
    },
    Bug {
        name: "raid1: fix data lost for writemostly rdev (6.12.46)",
        here: Tested(&[(WRITES, "data_is_not_lost_for_a_writemostly_rdev")]),
    },
    Bug {
        name: "raid1: fix the comparing region of interval tree (6.12.91)",
        here: Tested(&[(WRITES, "the_compared_region_of_serialized_writes_is_exact")]),
    },
    Bug {
        name: "raid1: free r1_bio when REQ_NOWAIT (6.12.97)",
        here: Tested(&[(PENDING, "nowait_io_that_is_given_up_leaves_nothing_behind")]),
    },
    Bug {
        name: "raid1: don't set array_frozen in raid1_takeover() (CVE-2026-90275, 6.12.110)",
        here: Cannot(
            "levels are not changed, and a frozen array is a guard that thaws it when it goes",
        ),
    },
    Bug {
        name: "raid1: create serial pool (6.12.110)",
        here: Tested(&[(WRITES, "writes_are_serialized_for_a_member_that_becomes_write_mostly")]),
    },
    Bug {
        name: "md: fix bio accounting for split md cloned bios (6.12.114)",
        here: Tested(&[(WRITES, "accounting_of_split_bios_is_exact")]),
    },
    Bug {
        name: "md: no longer compare spare disk superblock events (6.12.109)",
        here: Tested(&[(METADATA, "events_of_a_spare_disk_superblock_are_not_compared")]),
    },
    Bug {
        name: "md: do overflow check for sb->bblog_shift in super_1_load() (6.12.109)",
        here: Tested(&[
            (
                "src/ondisk/tests/damaged.rs",
                "bitmaps_and_bad_block_logs_in_impossible_places_are_refused",
            ),
            ("src/ondisk/tests/bad_blocks.rs", "impossible_logs_are_refused"),
        ]),
    },
    Bug {
        name: "md: validate bblog_size",
        here: Tested(&[(
            "src/ondisk/tests/damaged.rs",
            "bitmaps_and_bad_block_logs_in_impossible_places_are_refused",
        )]),
    },
    Bug {
        name: "md: prevent incorrect update of resync/recovery offset",
        here: Tested(&[(
            "tests/suite/sync/recovery.rs",
            "a_frozen_array_does_not_move_the_offsets_of_a_recovery",
        )]),
    },
    Bug {
        name: "md: fix update super 1.0 on rdev size change",
        here: Tested(&[(METADATA, "super_1_0_is_updated_in_its_place_when_the_size_changes")]),
    },
    Bug {
        name: "dm-raid: don't set io_min and io_opt for raid1 (6.12.49)",
        here: Tested(&[(METADATA, "io_min_and_io_opt_of_a_raid1_are_its_members")]),
    },
];

fn source(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn tests() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of = |bug: &'static Bug| match bug.here {
        Tested(tests) => tests,
        Cannot(_) => &[],
    };
    BUGS.iter().flat_map(of).copied()
}

#[test]
fn every_bug_has_a_test_that_exists_or_a_reason() {
    for bug in BUGS {
        match bug.here {
            Tested(tests) => assert!(!tests.is_empty(), "{}", bug.name),
            Cannot(why) => assert!(!why.is_empty(), "{}", bug.name),
        }
    }
    for (file, test) in tests() {
        let text = source(file);
        assert!(text.contains(&format!("fn {test}(")), "{file} has no {test}");
        assert!(text.contains("#[test]"), "{file} has no tests");
    }
}

#[test]
fn every_test_here_is_of_a_bug_in_the_list() {
    for file in [DISCARDS, METADATA, PENDING, READS, SYNCS, WRITES] {
        let text = source(file);
        for after in text.split("#[test]\nfn ").skip(1) {
            let (name, _) = after.split_once('(').unwrap();
            assert!(tests().any(|listed| listed == (file, name)), "{file}: {name}");
        }
    }
}
