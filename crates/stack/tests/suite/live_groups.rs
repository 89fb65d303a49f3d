//! Tests of served groups on simulated disks, with power cuts: disks join and leave a group, volumes are deactivated and
//! activated again, commits fail.

use std::cell::Cell;

use ashlar_block::Sectors;
use ashlar_lvm::command::{Command, Sign};
use ashlar_sim::scheduler::Stop;
use ashlar_sim::{Media, Rng, Sim, seeds};

use crate::common::notes;
use crate::live::{LiveStack, create, group, merge, remove, rename, resize, snapshot};
use crate::volume_groups::{named, names, read, write};

#[test]
fn disks_join_and_leave_a_group_and_are_free_again_whatever_cuts_it() {
    let (mut joined, mut left, mut marked) = (0, 0, 0);
    for seed in seeds(60) {
        let sim = Sim::new(seed);
        let mut media = sim.block_on(group(&sim));
        media.push(Media::new(media[0].capacity()));
        drop(sim);
        let sim = Sim::new(seed ^ 3);
        let acknowledged = Cell::new(0);
        let steps = if seed % 8 == 0 { u64::MAX } else { Rng::new(seed).below(500) };
        let done = sim.block_on_until(
            async {
                let mut live = LiveStack::boot(&sim, &media).await;
                for turn in 1..=4 {
                    live.turn_third().await.unwrap();
                    acknowledged.set(turn);
                    if turn == 1 {
                        // A volume on it keeps it.
                        live.run(create("new", 46)).await.unwrap();
                        let refused = live.turn_third().await.err().unwrap();
                        assert!(refused.contains("new"), "{refused}");
                        live.run(remove("new")).await.unwrap();
                    }
                }
                live.stack.stop().await.unwrap();
            },
            Stop::AfterSteps(steps),
        );
        let is_done = done.is_some();
        sim.power_cut();
        let sim = Sim::new(seed ^ 4);
        sim.block_on(async {
            let mut live = LiveStack::boot(&sim, &media).await;
            let (physical, groups) = live.collector.groups();
            assert_eq!(groups.len(), 1);
            let is_member = groups[0].members.len() == 3;
            joined += u32::from(is_member);
            // A turn that was acknowledged is there; the next one is, or is not.
            let turns = acknowledged.get();
            let may_be = [turns, if is_done { turns } else { turns + 1 }];
            assert!(may_be.iter().any(|turns| (turns % 2 == 1) == is_member), "{turns}");
            let is_marked = physical.len() == 3 && physical.iter().all(|it| it.facts.is_used);
            match live.turn_third().await {
                Ok(_) => left += u32::from(is_member),
                Err(why) if is_member => assert!(why.contains("new"), "{why}"),
                Err(why) => {
                    assert!(is_marked && why.contains("marked as used"), "{why}");
                    marked += 1;
                }
            }
            live.stack.stop().await.unwrap();
        });
    }
    assert!(joined > 5 && left > 3 && marked > 0, "{joined} {left} {marked}");
}

impl LiveStack {
    async fn activate(&mut self, volumes: &[&str], active: bool) -> Result<(), String> {
        let volumes: Vec<String> = volumes.iter().map(|name| (*name).to_owned()).collect();
        let change = self.collector.prepare_activation("vg", &volumes, active)?;
        match active {
            true => self.collector.activate(change).await,
            false => self.collector.deactivate(change).await,
        }
    }
}

#[test]
fn volumes_end_and_are_made_again_with_what_was_changed_meanwhile() {
    let sim = Sim::new(1);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        live.run(snapshot("snap", "data", 3)).await.unwrap();
        write(&live.stack, "vg/data", 8, 2).await;
        write(&live.stack, "vg/other", 8, 3).await;
        assert_eq!(live.collector.active_volumes("vg"), 3);
        let held = named(&live.stack, "vg/data");
        // A snapshot and its origin end together, whichever is named.
        live.activate(&["snap"], false).await.unwrap();
        assert_eq!(names(&live.stack), ["vg/other"]);
        assert!(held.read(ashlar_block::Sector(8), Sectors(1)).await.is_err());
        live.activate(&["data"], false).await.unwrap();
        let refused = live.activate(&["nothing"], false).await.err().unwrap();
        assert_eq!(refused, "Failed to find logical volume \"vg/nothing\"");

        // Changes pass them by, and are seen when they are made again.
        live.run(create("new", 2)).await.unwrap();
        live.run(resize("other", Sign::Plus, 2)).await.unwrap();
        assert_eq!(names(&live.stack), ["vg/other", "vg/new"]);
        live.activate(&[], false).await.unwrap();
        assert_eq!((names(&live.stack), live.collector.active_volumes("vg")), (vec![], 0));
        live.run(resize("new", Sign::Plus, 1)).await.unwrap();
        live.run(remove("other")).await.unwrap();
        live.run(merge("snap")).await.unwrap();
        live.activate(&["new"], true).await.unwrap();
        assert_eq!(named(&live.stack, "vg/new").capacity(), Sectors(3 * 2048));
        live.activate(&[], true).await.unwrap();
        assert_eq!(names(&live.stack), ["vg/new", "vg/data"]);
        // The merge begins with the activation.
        live.end_merges().await;
        assert_eq!(read(&live.stack, "vg/data", 8).await, 0);
        assert!(live.activate(&[], true).await.is_ok(), "nothing is left to do");
        live.stack.stop().await.unwrap();
        let live = LiveStack::boot(&sim, &media).await;
        assert_eq!(names(&live.stack), ["vg/data", "vg/new"]);
        assert_eq!(notes(&live.stack), [""; 0]);
        live.stack.stop().await.unwrap();
    });
}

#[test]
fn a_snapshot_of_a_volume_that_is_not_active_is_refused() {
    let sim = Sim::new(2);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        live.activate(&["data"], false).await.unwrap();
        let refused = live.run(snapshot("snap", "data", 3)).await.err().unwrap();
        assert!(refused.contains("vg/data is not active"), "{refused}");
        live.activate(&["data"], true).await.unwrap();
        live.run(snapshot("snap", "data", 3)).await.unwrap();
        live.stack.stop().await.unwrap();
    });
}

/// If it is unknown whether a change took place, the volumes continue in a way that is right in both cases, and the group
/// refuses further changes.
#[test]
fn a_commit_whose_outcome_is_unknown_loses_nothing_whatever_became_of_it() {
    let commands: [(fn() -> Command, bool); 6] = [
        (|| create("new", 1), false),
        (|| snapshot("new", "other", 3), true),
        (|| resize("other", Sign::Plus, 1), false),
        (|| resize("extra", Sign::Minus, 1), true),
        (|| remove("extra"), false),
        (|| rename("extra", "new"), true),
    ];
    for (number, (command, is_ahead)) in commands.into_iter().enumerate() {
        let mut unsure = 0;
        for nth in 0..16 {
            let nth = [nth / 4, nth % 4];
            unsure += u32::from(is_unsure(number as u64, command, is_ahead, nth));
        }
        assert!(unsure > 0, "{:?} is never unsure", command());
    }
}

/// Whether a change becomes unsure if the `nth` durable write of each disk fails. Checks what follows.
fn is_unsure(seed: u64, command: fn() -> Command, is_ahead: bool, nth: [u64; 2]) -> bool {
    let sim = Sim::new(seed);
    let media = sim.block_on(group(&sim));
    let is_unsure = sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        live.run(create("extra", 2)).await.unwrap();
        for name in ["vg/other", "vg/extra"] {
            write(&live.stack, name, 8, 1).await;
            named(&live.stack, name).flush().await.unwrap();
        }
        let before = names(&live.stack);
        media.iter().zip(nth).for_each(|(media, nth)| media.fail_nth_fua(nth));
        let done = live.run(command()).await;
        media.iter().for_each(Media::heal);
        let why = match done {
            Ok(applied) => applied.unsure.inspect(|_| assert!(is_ahead)),
            Err(why) => {
                assert_eq!(names(&live.stack), before);
                Some(why)
            }
        };
        let why = why.filter(|why| why.contains("will be known when it is read again"));
        let Some(why) = why else {
            let (Ok(()) | Err(_)) = live.stack.stop().await;
            return false;
        };
        if matches!(command(), Command::Resize(_)) {
            let sizes = ["vg/other", "vg/extra"].map(|name| named(&live.stack, name).capacity());
            let reduced = [Sectors(4 * 2048), Sectors(if is_ahead { 2048 } else { 2 * 2048 })];
            assert_eq!(sizes, reduced, "{why}");
        } else {
            assert_eq!(names(&live.stack) != before, is_ahead, "{why}");
        }
        // Those in use continue.
        write(&live.stack, "vg/other", 16, 2).await;
        write(&live.stack, "vg/data", 16, 2).await;
        assert_eq!(read(&live.stack, "vg/other", 8).await, 1);
        for again in [create("later", 1), remove("data")] {
            let refused = live.run(again).await.err().unwrap();
            assert!(refused.contains("until it is served again"), "{refused}");
        }
        // A disk that lost something says so once.
        let (Ok(()) | Err(_)) = live.stack.stop().await;
        true
    });
    sim.power_cut();
    let sim = Sim::new(100 + seed);
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        assert_eq!(read(&live.stack, "vg/other", 8).await, 1);
        let all = names(&live.stack);
        let extra = if all.contains(&"vg/extra".to_owned()) { "vg/extra" } else { "vg/new" };
        if !matches!(command(), Command::Remove { .. }) {
            assert_eq!(read(&live.stack, extra, 8).await, 1);
        }
        live.run(create("later", 1)).await.unwrap();
        live.stack.stop().await.unwrap();
    });
    is_unsure
}
