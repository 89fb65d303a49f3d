//! Descriptions of served groups that are restored, on simulated disks.

use ashlar_lvm::command::Sign;
use ashlar_sim::Sim;

use crate::live::{LiveStack, create, group, merge, remove, rename, resize, snapshot};
use crate::live_cuts::{open, restore};
use crate::volume_groups::{named, names, read, write};

#[test]
fn what_a_copy_leaves_alone_stays_open_and_the_rest_must_be_closed() {
    let sim = Sim::new(1);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        write(&live.stack, "vg/other", 100, 1).await;
        let first = live.text();
        let held = open(&live, "vg/data");
        let devices = live.stack.devices.all().len();

        // Two volumes exchange their names, and clients keep the volumes that they have open.
        for (from, to) in [("data", "x"), ("other", "data"), ("x", "other")] {
            live.run(rename(from, to)).await.unwrap();
        }
        let exchanged = live.text();
        live.run(restore(&first)).await.unwrap();
        assert_eq!(read(&live.stack, "vg/other", 100).await, 1);
        live.run(restore(&exchanged)).await.unwrap();
        assert_eq!(read(&live.stack, "vg/data", 100).await, 1);
        live.run(restore(&first)).await.unwrap();

        // A snapshot of an open volume goes; a larger volume must be closed.
        live.run(snapshot("snap", "data", 2)).await.unwrap();
        live.run(resize("other", Sign::Plus, 3)).await.unwrap();
        write(&live.stack, "vg/other", 5 * 2048, 2).await;
        let larger = live.text();
        let busy = open(&live, "vg/other");
        let refused = live.run(restore(&first)).await.err().unwrap();
        assert_eq!(refused, "vg/other is open");
        assert_eq!(live.text(), larger);
        drop(busy);
        live.run(restore(&first)).await.unwrap();
        assert_eq!(names(&live.stack), ["vg/data", "vg/other"]);
        assert_eq!(live.stack.devices.all().len(), devices);
        assert_eq!(named(&live.stack, "vg/other").capacity().0, 4 * 2048);
        live.run(restore(&larger)).await.unwrap();
        assert_eq!(read(&live.stack, "vg/other", 5 * 2048).await, 2);
        assert_eq!(read(&live.stack, "vg/other", 100).await, 1);
        write(&live.stack, "vg/data", 0, 3).await;
        assert_eq!(
            read(&live.stack, "vg/snap", 0).await,
            0,
            "the snapshot that came back is kept up"
        );

        // A snapshot with other space.
        live.run(resize("snap", Sign::Plus, 1)).await.unwrap();
        let refused = live.run(restore(&larger)).await.err().unwrap();
        assert!(refused.contains("vg/snap is not as the copy has it"), "{refused}");
        // A merge, and a copy of a time with one.
        drop(held);
        live.run(merge("snap")).await.unwrap();
        let merging = live.text();
        assert!(live.run(restore(&first)).await.err().unwrap().contains("is being merged"));
        live.end_merges().await;
        let refused = live.run(restore(&merging)).await.err().unwrap();
        assert!(refused.contains("of a time when a snapshot was being merged"), "{refused}");
        live.run(restore(&first)).await.unwrap();

        // A volume that is not active may change in any way.
        let volume = ["other".to_owned()];
        let change = live.collector.prepare_activation("vg", &volume, false).unwrap();
        live.collector.deactivate(change).await.unwrap();
        live.run(remove("other")).await.unwrap();
        live.run(create("new", 1)).await.unwrap();
        live.run(restore(&first)).await.unwrap();
        assert_eq!(names(&live.stack), ["vg/data", "vg/other"]);
        assert_eq!(read(&live.stack, "vg/data", 0).await, 0, "merged");
        live.stack.stop().await.unwrap();
        let live = LiveStack::boot(&sim, &media).await;
        assert_eq!(names(&live.stack), ["vg/data", "vg/other"]);
        assert_eq!(read(&live.stack, "vg/other", 100).await, 1);
        live.stack.stop().await.unwrap();
    });
}

#[test]
fn a_restore_that_cannot_be_recorded_leaves_the_group_as_it_was() {
    let sim = Sim::new(2);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        let first = live.text();
        live.run(create("new", 2)).await.unwrap();
        live.run(resize("other", Sign::Plus, 2)).await.unwrap();
        live.run(remove("data")).await.unwrap();
        let (before, devices) = (live.text(), live.stack.devices.all().len());
        write(&live.stack, "vg/other", 5 * 2048, 7).await;
        media.iter().for_each(|disk| disk.fail_writes(0..2048));
        assert!(live.run(restore(&first)).await.is_err());
        media.iter().for_each(ashlar_sim::Media::heal);
        assert_eq!(live.text(), before);
        assert_eq!(live.stack.devices.all().len(), devices);
        assert_eq!(names(&live.stack), ["vg/other", "vg/new"]);
        assert_eq!(read(&live.stack, "vg/other", 5 * 2048).await, 7);
        write(&live.stack, "vg/other", 5 * 2048, 8).await;
        // A disk's loss is reported once, to the next commit.
        let mut tries = 0;
        while live.run(restore(&first)).await.is_err() {
            tries += 1;
            assert!(tries <= media.len());
        }
        assert_eq!(names(&live.stack), ["vg/data", "vg/other"]);
        let (Ok(()) | Err(_)) = live.stack.stop().await;
    });
}
