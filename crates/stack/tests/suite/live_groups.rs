//! Served groups whose disks come and go, and whose volumes are active at times: on simulated disks, with power cuts.

use std::cell::Cell;

use ashlar_block::Sectors;
use ashlar_lvm::command::Sign;
use ashlar_sim::scheduler::Stop;
use ashlar_sim::{Media, Rng, Sim, seeds};

use crate::common::notes;
use crate::live::{Live, create, group, merge, remove, resize, snapshot};
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
                let mut live = Live::boot(&sim, &media).await;
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
            let mut live = Live::boot(&sim, &media).await;
            let (physical, groups) = live.collector.groups();
            assert_eq!(groups.len(), 1);
            let is_member = groups[0].members.len() == 3;
            joined += u32::from(is_member);
            // A turn that was acknowledged is there; the next one is, or is not.
            let turns = acknowledged.get();
            let may_be = [turns, if is_done { turns } else { turns + 1 }];
            assert!(may_be.iter().any(|turns| (turns % 2 == 1) == is_member), "{turns}");
            let is_marked = physical.len() == 3 && physical.iter().all(|it| it.is_used);
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

impl Live {
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
        let mut live = Live::boot(&sim, &media).await;
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
        let live = Live::boot(&sim, &media).await;
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
        let mut live = Live::boot(&sim, &media).await;
        live.activate(&["data"], false).await.unwrap();
        let refused = live.run(snapshot("snap", "data", 3)).await.err().unwrap();
        assert!(refused.contains("vg/data is not active"), "{refused}");
        live.activate(&["data"], true).await.unwrap();
        live.run(snapshot("snap", "data", 3)).await.unwrap();
        live.stack.stop().await.unwrap();
    });
}
