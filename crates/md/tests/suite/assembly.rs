//! Grouping devices into arrays, and starting them.

use crate::common::{
    DATA, Shape, all_clean, candidates, disks, gateway, make, make_with, media, spec, stamped,
    start, write,
};
use ashlar_block::{Limits, Sector, Sectors};
use ashlar_md::ondisk::{Features, Level, Role, Superblock};
use ashlar_md::{AssembleError, Candidate, Options, plan, probe};
use ashlar_sim::{Media, Model, Sim, SimDisk, Stop};
use uuid::Uuid;

const DISK: Sectors = Sectors(4096);
const RW: Options = Options { run: false, read_only: false, force: false };
const RUN: Options = Options { run: true, read_only: false, force: false };
const READ_ONLY: Options = Options { run: true, read_only: true, force: false };

fn raid1(members: usize) -> Shape {
    Shape::new(Level::Raid1, None, 0, members)
}

fn raid10(layout: u32, members: usize) -> Shape {
    Shape::new(Level::Raid10, Some(layout), 4, members)
}

/// Changes a disk's superblock.
async fn edit(disk: &SimDisk, change: impl FnOnce(&mut Superblock)) {
    let mut sb = probe(&disk.gateway()).await.unwrap().unwrap();
    change(&mut sb);
    disk.media().poke(sb.super_offset, &sb.encode(512).unwrap());
}

/// Runs a test on a new array of the shape.
fn on_new<T>(shape: &Shape, test: impl AsyncFnOnce(&Sim, &[Media], &[SimDisk]) -> T) -> T {
    let media = media(shape.members, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        make(shape, &disks).await;
        test(&sim, &media, &disks).await
    })
}

async fn in_sync(sim: &Sim, disks: &[SimDisk], options: &Options) -> Vec<bool> {
    let array = start(sim, disks, options).await.unwrap();
    array.status().await.members.iter().map(|m| m.in_sync).collect()
}

#[test]
fn a_member_one_event_behind_is_current_and_one_two_behind_is_not() {
    on_new(&raid1(3), async |sim, _, disks| {
        for disk in disks {
            edit(disk, |sb| sb.events = 100).await;
        }
        edit(&disks[0], |sb| sb.events = 101).await;
        assert_eq!(in_sync(sim, disks, &RW).await, [true, true, true]);
        edit(&disks[0], |sb| sb.events = 102).await;
        assert_eq!(in_sync(sim, disks, &RUN).await, [true, false, false]);
        let refused = start(sim, disks, &RW).await.err();
        assert!(matches!(refused, Some(AssembleError::NeedsRun { present: 1, expected: 3, .. })));
    });
}

#[test]
fn the_freshest_member_knows_who_has_failed() {
    on_new(&raid1(3), async |sim, _, disks| {
        edit(&disks[2], |sb| {
            sb.events += 1;
            sb.roles[0] = Role::Faulty;
        })
        .await;
        assert_eq!(in_sync(sim, disks, &RW).await, [false, true, true]);
    });
}

#[test]
fn a_device_that_is_there_twice_is_refused() {
    on_new(&raid1(2), async |_, media, disks| {
        let twin = SimDisk::over("twin", media[0].copy());
        let all = [&disks[0], &disks[1], &twin];
        let refused = plan(candidates(&all).await, &RW).await.err();
        assert!(matches!(refused, Some(AssembleError::SameMember { .. })), "{refused:?}");
        edit(&twin, |sb| sb.device_uuid = Uuid::from_u128(999)).await;
        let refused = plan(candidates(&all).await, &RW).await.err();
        assert!(matches!(refused, Some(AssembleError::SameSlot { slot: 0, .. })), "{refused:?}");
        // An old copy of a member is only stale.
        edit(&disks[0], |sb| sb.events += 10).await;
        edit(&disks[1], |sb| sb.events += 10).await;
        let plan = plan(candidates(&all).await, &RW).await.unwrap();
        assert_eq!(plan.notes.len(), 1);
    });
}

/// A round of superblocks that was tried twice with the same event count: the first try still had a member and its complete
/// replacement, the second one reached the replacement only.
#[test]
fn of_a_member_and_what_has_replaced_it_with_the_same_event_count_the_latter_is_used() {
    on_new(&raid1(2), async |sim, media, disks| {
        let new = SimDisk::over("new", media[0].copy());
        let active = Role::Active;
        for disk in disks {
            edit(disk, |sb| sb.roles = vec![active(0), active(1), active(0)]).await;
        }
        edit(&new, |sb| (sb.device_uuid, sb.dev_number) = (Uuid::from_u128(999), 2)).await;
        edit(&new, |sb| sb.roles = vec![active(0), active(1), active(0)]).await;
        let all = [
            ([&disks[0], &disks[1], &new], "new has replaced it"),
            // The superblock of the first is that of the array.
            ([&new, &disks[1], &disks[0]], "the other members know it as failed"),
        ];
        let refused = plan(candidates(&all[0].0).await, &RW).await.err();
        assert!(matches!(refused, Some(AssembleError::SameSlot { slot: 0, .. })), "{refused:?}");
        edit(&new, |sb| sb.roles[0] = Role::Faulty).await;
        for (disks, why) in all {
            let plan = plan(candidates(&disks).await, &RW).await.unwrap();
            assert_eq!(plan.notes, [format!("d0 left out: {why}")]);
            let array = start(sim, &disks, &RW).await.unwrap();
            assert_eq!(array.degraded(), 0);
            let members = array.status().await.members;
            let paths: Vec<_> = members.iter().map(|member| member.path.clone().unwrap()).collect();
            assert!(!paths.contains(&"d0".to_owned()), "{paths:?}");
        }
    });
}

#[test]
fn a_member_of_another_array_is_refused_however_fresh_it_is() {
    on_new(&raid1(2), async |_, media, disks| {
        let other = SimDisk::over("other", media[0].copy());
        for events in [0, 1, 1000] {
            edit(&other, |sb| (sb.set_uuid, sb.events) = (Uuid::from_u128(8), events)).await;
            edit(&disks[0], |sb| sb.events = 500).await;
            edit(&disks[1], |sb| sb.events = 500).await;
            let all = [&disks[0], &disks[1], &other];
            let refused = plan(candidates(&all).await, &RUN).await.err();
            assert!(matches!(refused, Some(AssembleError::OtherArray { .. })), "{refused:?}");
        }
    });
}

#[test]
fn members_that_are_equally_fresh_must_agree_about_the_array() {
    on_new(&raid10(0x102, 4), async |_, _, disks| {
        edit(&disks[3], |sb| sb.layout = 0x201).await;
        let refused = plan(candidates(disks).await, &RW).await.err();
        assert!(matches!(refused, Some(AssembleError::Disagree { what: "layout", .. })));
        // Two against two: it is unknown which are right.
        edit(&disks[2], |sb| sb.layout = 0x201).await;
        let refused = plan(candidates(disks).await, &RUN).await.err();
        assert!(matches!(refused, Some(AssembleError::Disagree { what: "layout", .. })));
    });
}

#[test]
fn one_member_that_contradicts_all_others_is_left_out_when_the_array_is_to_run() {
    for odd in 0..4 {
        for more in [0, 1] {
            on_new(&raid10(0x102, 4), async |sim, _, disks| {
                edit(&disks[odd], |sb| (sb.chunk, sb.events) = (Sectors(16), sb.events + more))
                    .await;
                let all: Vec<usize> = (0..4).filter(|slot| *slot != odd).collect();
                let plan = plan(candidates(disks).await, &RUN).await.unwrap();
                let note = format!("d{odd} left out: most members know another chunk size");
                assert!(plan.notes[0].starts_with(&note), "{:?}", plan.notes);
                let in_sync = in_sync(sim, disks, &RUN).await;
                assert!(all.iter().all(|slot| in_sync[*slot]) && !in_sync[odd], "{in_sync:?}");
            });
        }
    }
    // A member older by more than one event is stale; one fresher by more continued alone.
    on_new(&raid10(0x102, 4), async |_, _, disks| {
        edit(&disks[0], |sb| (sb.chunk, sb.events) = (Sectors(16), sb.events + 2)).await;
        let refused = plan(candidates(disks).await, &RUN).await.err();
        assert!(matches!(refused, Some(AssembleError::NotEnough { .. })), "{refused:?}");
    });
}

#[test]
fn members_that_have_not_all_data_are_left_out() {
    type Edit = fn(&mut Superblock);
    let edits: [(&str, Edit); 3] = [
        ("spare", |sb| sb.roles[1] = Role::Spare),
        ("being rebuilt", |sb| sb.recovery_offset = Some(Sectors(64))),
        ("failed", |sb| sb.roles[1] = Role::Faulty),
    ];
    for (what, change) in edits {
        on_new(&raid1(2), async |sim, _, disks| {
            for disk in disks.iter().filter(|_| what == "spare" || what == "failed") {
                edit(disk, change).await;
            }
            edit(&disks[1], change).await;
            assert_eq!(in_sync(sim, disks, &RUN).await[..2], [true, false], "{what}");
            assert_eq!(in_sync(sim, disks, &READ_ONLY).await, [true, false], "{what}");
            let found = plan(candidates(disks).await, &READ_ONLY).await.unwrap();
            assert!(found.notes[0].contains(what), "{:?}", found.notes);
            // None of them is missing.
            let options = Options { run: false, ..READ_ONLY };
            assert!(plan(candidates(disks).await, &options).await.is_ok(), "{what}");
        });
    }
    // One that is behind is missing, also if it was being rebuilt.
    on_new(&raid1(2), async |_, _, disks| {
        edit(&disks[1], |sb| sb.recovery_offset = Some(Sectors(64))).await;
        edit(&disks[0], |sb| sb.events += 2).await;
        let options = Options { run: false, ..READ_ONLY };
        let refused = plan(candidates(disks).await, &options).await.err();
        assert!(matches!(refused, Some(AssembleError::NeedsRun { .. })), "{refused:?}");
    });
}

#[test]
fn a_bad_block_log_is_honoured_and_one_that_makes_no_sense_keeps_a_member_out() {
    let shape = raid1(2);
    let media: Vec<Media> = (0..2).map(|seed| Media::noisy(DISK, seed)).collect();
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        let mut spec = spec(&shape, &[DISK, DISK]);
        spec.bad_block_log = true;
        make_with(&spec, &disks).await;
        // Without the feature bit, the bytes at the log's place do not count.
        assert_eq!(in_sync(&sim, &disks, &RW).await, [true, true]);
        let log = |sb: &Superblock| sb.bad_block_log_start().unwrap();
        let sb = probe(&disks[1].gateway()).await.unwrap().unwrap();
        edit(&disks[1], |sb| sb.features |= Features::BAD_BLOCKS).await;
        media[1].poke(log(&sb), &[0xff; 4096]);
        assert_eq!(in_sync(&sim, &disks, &RW).await, [true, true], "an empty log");
        media[1].poke(log(&sb), &(300u64 << 10 | 8).to_le_bytes());
        assert_eq!(in_sync(&sim, &disks, &RW).await, [true, true], "a log with an entry");
        media[1].poke(log(&sb), &(300u64 << 10).to_le_bytes());
        let refused = start(&sim, &disks, &RW).await.err();
        assert!(matches!(refused, Some(AssembleError::BadBlocks { .. })), "{refused:?}");
        assert_eq!(in_sync(&sim, &disks, &READ_ONLY).await, [true, false]);
        assert_eq!(in_sync(&sim, &disks, &RUN).await, [true, false]);
        // The last member is used only for reading, and only with `force`.
        let last = &disks[1..];
        for options in [READ_ONLY, RUN, Options { force: true, ..RUN }] {
            let refused = start(&sim, last, &options).await.err();
            assert!(matches!(refused, Some(AssembleError::BadBlocks { .. })), "{refused:?}");
        }
        let force = Options { force: true, run: true, ..READ_ONLY };
        assert_eq!(in_sync(&sim, last, &force).await, [false, true]);
        // Not while the other member has all.
        assert_eq!(in_sync(&sim, &disks, &force).await, [true, false]);
        media[1].fail_reads(log(&sb).0..log(&sb).0 + 8);
        let refused = start(&sim, &disks, &RW).await.err();
        assert!(matches!(refused, Some(AssembleError::Read { .. })), "{refused:?}");
        assert_eq!(in_sync(&sim, &disks, &READ_ONLY).await, [true, false]);
        assert_eq!(in_sync(&sim, &disks, &RUN).await, [true, false]);
        // Without the other member some data are missing.
        let refused = start(&sim, &disks[1..], &RUN).await.err();
        assert!(
            matches!(refused, Some(AssembleError::NotEnough { present: 0, .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn a_member_that_cannot_be_written_is_good_enough_for_reading() {
    on_new(&raid1(2), async |sim, _, disks| {
        disks[1].disk().set_read_only(true);
        let refused = start(sim, disks, &RW).await.err();
        assert!(matches!(refused, Some(AssembleError::ReadOnlyMember(_))));
        assert_eq!(in_sync(sim, disks, &READ_ONLY).await, [true, true]);
    });
}

#[test]
fn a_raid0_needs_all_its_members() {
    on_new(&Shape::new(Level::Raid0, None, 4, 3), async |sim, _, disks| {
        for options in [RUN, READ_ONLY] {
            let refused = start(sim, &disks[..2], &options).await.err();
            let Some(AssembleError::NotEnough { present: 2, wanted: 3, missing }) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!(missing, "2");
        }
        edit(&disks[1], |sb| sb.events += 7).await;
        let refused = start(sim, disks, &RUN).await.err();
        let Some(AssembleError::NotEnough { missing, .. }) = refused else {
            panic!("stale members: {refused:?}");
        };
        assert!(missing.contains("d0 left out: it is out of date"), "{missing}");
    });
}

#[test]
fn what_cannot_be_done_safely_is_refused() {
    type Edit = fn(&mut Superblock);
    let edits: [(&str, Edit); 3] = [
        ("cluster", |sb| sb.features |= Features::CLUSTERED),
        ("journal", |sb| sb.features |= Features::JOURNAL),
        ("event", |sb| sb.events = u64::MAX),
    ];
    for (what, change) in edits {
        on_new(&raid1(2), async |_, _, disks| {
            for disk in disks {
                edit(disk, change).await;
            }
            let refused = plan(candidates(disks).await, &RUN).await.err();
            let text = refused.map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains(what), "{what}: {text}");
        });
    }
}

#[test]
fn halves_that_ran_without_each_other_are_not_put_together() {
    for more in [0, 1, 4] {
        on_new(&raid1(2), async |sim, _, disks| {
            for (half, writes) in [(0, 1), (1, 1 + more)] {
                let alone = std::slice::from_ref(&disks[half]);
                for generation in 0..writes {
                    let array = start(sim, alone, &RUN).await.unwrap();
                    write(&gateway(&array), 0, 8, generation).await.unwrap();
                    array.stop().await.unwrap();
                }
            }
            let refused = start(sim, disks, &RW).await.err();
            assert!(matches!(refused, Some(AssembleError::SplitBrain { .. })), "{refused:?}");
            // With `run`, the device with more updates is used.
            assert_eq!(in_sync(sim, disks, &RUN).await, [more == 0, more > 0]);
        });
    }
}

#[test]
fn unclean_arrays_with_two_copies_are_unsynced_and_those_with_one_are_not() {
    for resynced in [0, 64] {
        for (shape, missing) in [
            (raid1(2), None),
            (raid1(3), Some(1)),
            (raid10(0x102, 4), Some(1)),
            (raid10(0x201, 3), Some(0)),
            (raid1(2), Some(1)),
            (raid10(0x102, 2), Some(0)),
        ] {
            on_new(&shape, async |sim, _, disks| {
                for disk in disks {
                    edit(disk, |sb| sb.resync_offset = Sectors(resynced)).await;
                }
                let there = |slot: &usize| Some(*slot) != missing;
                let present: Vec<&SimDisk> =
                    (0..shape.members).filter(there).map(|slot| &disks[slot]).collect();
                let array = start(sim, &present, &RUN).await.unwrap();
                if present.len() > 1 {
                    assert_eq!(array.in_sync_to(), Sectors(resynced), "{shape:?}");
                    return;
                }
                assert!(!array.is_unsynced());
                write(&gateway(&array), 0, 8, 1).await.unwrap();
                array.stop().await.unwrap();
                let sb = probe(&present[0].gateway()).await.unwrap().unwrap();
                assert!(sb.is_clean() && sb.roles[missing.unwrap()] == Role::Faulty);
            });
        }
    }
}

#[test]
fn an_unsynced_array_reads_a_sector_the_same_whatever_is_read_with_it() {
    on_new(&raid1(2), async |sim, media, disks| {
        for (medium, generation) in media.iter().zip(1..) {
            medium.poke(Sector(DATA), &stamped(0, 64, generation));
        }
        for disk in disks {
            edit(disk, |sb| sb.resync_offset = Sectors::ZERO).await;
        }
        media[0].fail_reads(DATA + 10..DATA + 11);
        let array = start(sim, disks, &READ_ONLY).await.unwrap();
        let volume = gateway(&array);
        let want: Vec<u8> =
            (0..64).flat_map(|s| stamped(s, 1, if s == 10 { 2 } else { 1 })).collect();
        for from in 0..20 {
            for to in from + 1..32 {
                let got = volume.read(Sector(from), Sectors(to - from)).await.unwrap();
                assert!(got.as_slice() == &want[from as usize * 512..to as usize * 512]);
            }
        }
    });
}

#[test]
fn a_write_mostly_member_is_read_only_when_no_other_can_be() {
    let shape = raid1(3);
    let media = media(3, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        let mut spec = spec(&shape, &[DISK; 3]);
        for slot in [0, 1] {
            spec.members[slot].as_mut().unwrap().flags.write_mostly = true;
        }
        make_with(&spec, &disks).await;
        let array = start(&sim, &disks, &RW).await.unwrap();
        write(&gateway(&array), 0, 64, 1).await.unwrap();
        media.iter().for_each(Media::clear_log);
        for sector in 0..32 {
            gateway(&array).read(Sector(sector), Sectors(8)).await.unwrap();
        }
        assert_eq!(media.iter().map(|m| m.counts().reads).collect::<Vec<_>>(), [0, 0, 32]);
        media[2].kill();
        let got = gateway(&array).read(Sector(0), Sectors(64)).await.unwrap();
        assert!(got.as_slice() == stamped(0, 64, 1));
    });
}

fn with_blocks(media: &[Media], bytes: &[u32]) -> Vec<SimDisk> {
    let disk = |(slot, (medium, block)): (usize, (&Media, &u32))| {
        let model = Model::nvme();
        let limits = Limits { logical_block_bytes: *block, ..model.limits() };
        SimDisk::with(format!("d{slot}"), medium.clone(), limits, model)
    };
    media.iter().zip(bytes).enumerate().map(disk).collect()
}

#[test]
fn an_array_has_the_largest_logical_block_of_its_members() {
    for shape in [raid1(2), raid10(0x102, 2), Shape::new(Level::Raid0, None, 4, 2)] {
        for blocks in [[512, 512], [512, 4096], [4096, 512], [4096, 4096]] {
            let media = media(2, DISK);
            let sim = Sim::new(1);
            sim.block_on(async {
                let disks = with_blocks(&media, &blocks);
                make(&shape, &disks).await;
                let array = start(&sim, &disks, &RW).await.unwrap();
                let volume = gateway(&array);
                let block = u64::from(*blocks.iter().max().unwrap()) / 512;
                write(&volume, 0, 64, 1).await.unwrap();
                let odd = write(&volume, 1, 1, 2).await;
                assert_eq!(odd.is_ok(), block == 1, "{shape:?} {blocks:?}");
                write(&volume, 0, 64, 3).await.unwrap();
                array.stop().await.unwrap();
                assert!(all_clean(&disks).await);
                let array = start(&sim, &disks, &RW).await.unwrap();
                let got = gateway(&array).read(Sector(0), Sectors(64)).await.unwrap();
                assert!(got.as_slice() == stamped(0, 64, 3), "{shape:?} {blocks:?}");
            });
        }
    }
}

#[test]
fn data_that_begins_within_a_logical_block_is_refused_and_not_a_failure_of_every_member() {
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let small = with_blocks(&media, &[512, 512]);
        let mut spec = spec(&raid1(2), &[DISK; 2]);
        spec.data_offset = Some(Sectors(260));
        make_with(&spec, &small).await;
        assert_eq!(in_sync(&sim, &small, &RW).await, [true, true]);
        let large = with_blocks(&media, &[512, 4096]);
        let refused = start(&sim, &large, &RW).await.err();
        assert!(matches!(refused, Some(AssembleError::Misaligned { .. })), "{refused:?}");
        for options in [RUN, READ_ONLY] {
            assert_eq!(in_sync(&sim, &large, &options).await, [true, false]);
        }
    });
}

#[test]
fn a_crash_while_a_member_is_one_behind_does_not_leave_it_two_behind() {
    for shape in [raid1(2), raid10(0x102, 4), raid10(0x201, 4)] {
        for step in 0..40 {
            let media = media(shape.members, DISK);
            let sim = Sim::new(step);
            let array = sim.block_on(async {
                let disks = disks(&media);
                make(&shape, &disks).await;
                edit(&disks[0], |sb| sb.events += 1).await;
                start(&sim, &disks, &RW).await.unwrap()
            });
            let volume = gateway(&array);
            let work = write(&volume, 0, 8, 1);
            let done = sim.block_on_until(work, Stop::AfterSteps(step));
            assert!(done.is_none_or(|result| result.is_ok()));
            drop((array, volume));
            sim.power_cut();
            let sim = Sim::new(step);
            sim.block_on(async {
                let disks = disks(&media);
                let array = start(&sim, &disks, &READ_ONLY).await.unwrap();
                assert_eq!(array.degraded(), 0, "{shape:?} step {step}");
            });
        }
    }
}

#[test]
fn the_order_of_the_devices_does_not_matter() {
    on_new(&raid10(0x102, 4), async |sim, _, disks| {
        edit(&disks[2], |sb| sb.events += 1).await;
        edit(&disks[1], |sb| sb.events -= sb.events.min(1)).await;
        let mut order: Vec<&SimDisk> = disks.iter().collect();
        let want = in_sync(sim, disks, &READ_ONLY).await;
        for turn in 0..4 {
            order.rotate_left(1);
            let array = start(sim, &order, &READ_ONLY).await.unwrap();
            let members = array.status().await.members;
            assert_eq!(members.iter().map(|m| m.in_sync).collect::<Vec<_>>(), want, "{turn}");
        }
    });
}

#[test]
fn nothing_at_all_is_no_array() {
    let sim = Sim::new(1);
    let none: Vec<Candidate> = Vec::new();
    let refused = sim.block_on(plan(none, &RUN)).err();
    assert!(matches!(refused, Some(AssembleError::NoMembers)));
}
