//! Merges that wait for the next activation of their origin, on simulated disks, with power cuts.

use ashlar_block::{Buffer, Flags, Sector, Sectors};
use ashlar_lvm::Uuid;
use ashlar_lvm::change::Author;
use ashlar_lvm::metadata::{Creation, Header};
use ashlar_sim::scheduler::Stop;
use ashlar_sim::{Rng, Sim, seeds};
use ashlar_stack::volume_groups::Request;

use crate::common::notes;
use crate::live::{LiveStack, create, group, merge, remove, resize, snapshot, with_snapshot};
use crate::live_cuts::open;
use crate::volume_groups::{named, read, write};

impl LiveStack {
    /// Puts a merge off, as the daemon does if one of its volumes is open.
    async fn put_off(&mut self, name: &str) -> Result<Vec<String>, String> {
        let mut new_uuid = || Uuid::from_random([9; 32]);
        let creation = Creation { time: 1_700_000_000, host: "host".into() };
        let mut author = Author { creation, new_uuid: &mut new_uuid };
        let (command, physical) = (merge(name), |path: &str| Some(path.to_owned()));
        let request = Request { group: "vg", command: &command, physical: &physical };
        let change = self.collector.prepare(&request, &mut author)?;
        let change = self.collector.put_off(change, "Delaying merge.")?;
        assert!(change.shut.is_empty());
        let done = change.effect.done.clone();
        self.collector.apply(change, Header::default()).await?;
        self.collector.hide_put_off();
        Ok(done)
    }

    /// Ends a volume and makes it again.
    async fn activate_again(&mut self, name: &str) {
        let volume = [name.to_owned()];
        let change = self.collector.prepare_activation("vg", &volume, false).unwrap();
        self.collector.deactivate(change).await.unwrap();
        let change = self.collector.prepare_activation("vg", &volume, true).unwrap();
        self.collector.activate(change).await.unwrap();
    }
}

#[test]
fn a_merge_that_is_put_off_changes_nothing_until_the_origin_is_activated_again() {
    let sim = Sim::new(1);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        write(&live.stack, "vg/data", 8, 1).await;
        live.run(snapshot("snap", "data", 3)).await.unwrap();
        live.run(snapshot("more", "data", 3)).await.unwrap();
        write(&live.stack, "vg/data", 8, 2).await;
        let held = open(&live, "vg/snap");
        let devices = live.stack.devices.all().len();
        let said = live.put_off("snap").await.unwrap();
        assert_eq!(
            said,
            [
                "  Delaying merge.",
                "  Merging of snapshot vg/snap will occur on next activation of vg/data."
            ]
        );
        assert_eq!(live.stack.devices.all().len(), devices);
        assert_eq!(
            live.put_off("snap").await.err().unwrap(),
            "Cannot merge: snap: it is being merged already"
        );
        assert!(live.put_off("more").await.is_err(), "one at a time");
        assert!(live.put_off("other").await.is_err());
        // Other changes continue at the same time.
        for command in
            [create("new", 2), resize("new", ashlar_lvm::command::Sign::Plus, 1), remove("more")]
        {
            live.run(command).await.unwrap();
        }
        assert!(live.collector.merging().is_empty());
        assert_eq!(read(&live.stack, "vg/snap", 8).await, 1);
        assert_eq!(read(&live.stack, "vg/data", 8).await, 2);
        assert!(live.run(remove("snap")).await.is_err());
        // Clients find the snapshot until it is closed.
        live.collector.hide_put_off();
        assert!(live.has("snap"));
        drop(held);
        live.collector.hide_put_off();
        assert!(!live.has("snap"));
        write(&live.stack, "vg/data", 16, 2).await;

        live.activate_again("data").await;
        assert_eq!(live.collector.merging().len(), 1);
        assert_eq!(read(&live.stack, "vg/data", 8).await, 1);
        assert_eq!(read(&live.stack, "vg/data", 16).await, 0);
        live.end_merges().await;
        live.run(snapshot("snap", "data", 3)).await.unwrap();
        assert!(live.has("snap"), "its name is free again");
        live.stack.stop().await.unwrap();
    });
}

#[test]
fn a_merge_that_was_put_off_happens_whatever_cuts_it() {
    let (mut merged, mut kept, mut ended) = (0, 0, 0);
    for seed in seeds(60) {
        let media = with_snapshot(seed, 32);
        let sim = Sim::new(seed ^ 5);
        let steps = if seed % 8 == 0 { u64::MAX } else { Rng::new(seed).below(900) };
        let (mut acknowledged, mut rewritten) = (false, false);
        let done = sim.block_on_until(
            async {
                let mut live = LiveStack::boot(&sim, &media).await;
                live.put_off("snap").await.unwrap();
                acknowledged = true;
                // What is written before the activation is gone after it.
                for at in 32..48 {
                    write(&live.stack, "vg/data", at * 16, 3).await;
                    assert_eq!(read(&live.stack, "vg/data", at * 16).await, 3);
                }
                assert_eq!(read(&live.stack, "vg/data", 16).await, 2);
                live.activate_again("data").await;
                assert_eq!(read(&live.stack, "vg/data", 16).await, 1);
                rewritten = true;
                write(&live.stack, "vg/data", 5 * 16, 4).await;
                live.end_merges().await;
                live.stack.stop().await.unwrap();
            },
            Stop::AfterSteps(steps),
        );
        let done = done.is_some();
        ended += u32::from(done);
        sim.power_cut();
        let sim = Sim::new(seed ^ 6);
        sim.block_on(async {
            let mut live = LiveStack::boot(&sim, &media).await;
            let is_kept = live.has("snap");
            if is_kept {
                assert!(!acknowledged, "the merge was acknowledged");
                assert_eq!(named(&live.stack, "vg/snap").capacity(), Sectors(4 * 2048));
            }
            kept += u32::from(is_kept);
            merged += u32::from(!is_kept);
            live.end_merges().await;
            for at in (0..64).filter(|at| *at != 5 || !rewritten) {
                let wanted = if is_kept && at < 32 { 2 } else { 1 };
                assert_eq!(read(&live.stack, "vg/data", at * 16).await, wanted, "{at}");
            }
            if done {
                assert_eq!(read(&live.stack, "vg/data", 5 * 16).await, 4);
            }
            live.stack.stop().await.unwrap();
        });
    }
    assert!(merged > 10 && kept > 5 && ended > 5, "{merged} merged, {kept} kept, {ended} ended");
}

/// Why LVM does not merge an invalid snapshot.
const INVALIDATED: &str = "Unable to merge invalidated snapshot LV vg/snap.";

impl LiveStack {
    /// Writes to so much of the origin that its snapshot of 1 extent has no room for it.
    async fn fill_snapshot(&self) {
        let mut buffer = Buffer::from_slice(&[3; 2048 * 512]);
        for extent in 0..2 {
            let at = Sector(extent * 2048);
            named(&self.stack, "vg/data").write(at, &mut buffer, Flags::empty()).await.unwrap();
        }
    }
}

#[test]
fn a_merge_of_an_invalid_snapshot_is_refused() {
    let sim = Sim::new(2);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        write(&live.stack, "vg/data", 8, 1).await;
        live.run(snapshot("snap", "data", 1)).await.unwrap();
        live.fill_snapshot().await;
        for restarts in 0..2 {
            assert_eq!(live.run(merge("snap")).await.err().as_deref(), Some(INVALIDATED));
            assert_eq!(live.put_off("snap").await.err().as_deref(), Some(INVALIDATED));
            assert!(!live.text().contains("merging_store"));
            // Clients still use the origin.
            write(&live.stack, "vg/data", 8, 4).await;
            assert_eq!(read(&live.stack, "vg/data", 16).await, 3);
            if restarts == 0 {
                live.stack.stop().await.unwrap();
                live = LiveStack::boot(&sim, &media).await;
            }
        }
        live.run(remove("snap")).await.unwrap();
        assert_eq!(read(&live.stack, "vg/data", 8).await, 4);
        live.stack.stop().await.unwrap();
    });
}

#[test]
fn a_snapshot_that_is_invalid_before_its_merge_begins_can_be_removed() {
    for (way, volume) in [(0, "snap"), (1, "snap"), (2, "snap"), (2, "data")] {
        let sim = Sim::new(3);
        let media = sim.block_on(group(&sim));
        sim.block_on(async {
            let mut live = LiveStack::boot(&sim, &media).await;
            write(&live.stack, "vg/data", 8, 1).await;
            live.run(snapshot("snap", "data", 1)).await.unwrap();
            live.put_off("snap").await.unwrap();
            assert!(live.run(remove("snap")).await.is_err(), "it is to be merged");
            live.fill_snapshot().await;
            match way {
                0 => {}
                1 => live.activate_again("data").await,
                _ => {
                    live.stack.stop().await.unwrap();
                    live = LiveStack::boot(&sim, &media).await;
                }
            }
            assert_eq!(read(&live.stack, "vg/data", 8).await, 3, "way {way}");
            let held = (volume == "snap").then(|| open(&live, "vg/data"));
            live.run(remove(volume)).await.unwrap();
            drop(held);
            if volume == "snap" {
                assert_eq!(read(&live.stack, "vg/data", 8).await, 3, "way {way}");
                live.run(snapshot("more", "data", 1)).await.unwrap();
            }
            let text = live.text();
            assert!(!text.contains("merging_store") && !text.contains("snap {"), "{text}");
            live.stack.stop().await.unwrap();
        });
    }
}

#[test]
fn a_snapshot_that_a_merge_fills_during_the_start_is_called_invalid() {
    let mut refused = 0;
    for seed in seeds(20) {
        let sim = Sim::new(seed);
        let media = sim.block_on(group(&sim));
        sim.block_on(async {
            let mut live = LiveStack::boot(&sim, &media).await;
            live.run(snapshot("snap", "data", 3)).await.unwrap();
            live.fill_snapshot().await;
            live.run(snapshot("small", "data", 1)).await.unwrap();
            live.put_off("snap").await.unwrap();
            live.stack.stop().await.unwrap();

            let mut live = LiveStack::boot(&sim, &media).await;
            let notes = notes(&live.stack);
            match live.has("small") {
                true => assert!(notes.is_empty(), "{notes:?}"),
                false => {
                    refused += 1;
                    let [note] = &notes[..] else { panic!("{notes:?}") };
                    assert!(note.contains("the snapshot is invalid"), "{note}");
                }
            }
            live.end_merges().await;
            assert_eq!(read(&live.stack, "vg/data", 8).await, 0);
            live.run(remove("small")).await.unwrap();
            live.stack.stop().await.unwrap();
        });
    }
    assert!(refused > 0, "no merge was fast enough");
}
