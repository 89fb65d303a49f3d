//! Calls that come at once and want the same disk.

use std::rc::Rc;

use ashlar_client::interface::ManageAction;
use ashlar_sim::Sim;
use ashlar_sim::scheduler::start;
use serde_json::{Value, json};

use super::{MD0, MD1, SEEDS, STATE, Scene, cut_power, each, is_done};
use crate::simulation::world::World;

fn re_add(scene: &Scene) -> Value {
    let path = format!("{STATE}/dev-{}/state", scene.disk(MD0[1]).name());
    json!({ "path": path, "value": "re-add" })
}

#[test]
fn a_disk_that_two_arrays_want_at_once_joins_one() {
    each(&[0, 1, 2, 3], async |scene| {
        scene.give_bitmap().await;
        let attach = json!({ "disk": scene.disk(MD0[1]).path });
        for (method, parameters) in [
            ("Manage", scene.manage("md0", ManageAction::Add, MD0[1], false)),
            ("Manage", scene.manage("md0", ManageAction::ReAdd, MD0[1], false)),
            ("Attach", attach),
        ] {
            scene.take_out(&["md0", "md1"]).await;
            let other = scene.manage("md1", ManageAction::Add, MD0[1], true);
            let first = (method, parameters.clone());
            let replies = scene.both([first, ("Manage", other)]).await;
            let done = replies.iter().filter(|reply| is_done(reply)).count();
            assert_eq!((done, scene.owners(MD0[1])), (1, 1), "{parameters}: {replies:?}");
            scene.rest().await;
            scene.take_out(&["md0", "md1"]).await;
            // It was a member of the first one last.
            let back = scene.manage("md0", ManageAction::Add, MD0[1], true);
            scene.done("Manage", back).await;
            scene.rest().await;
        }
    });
}

#[test]
fn a_member_that_is_re_added_twice_at_once_is_one_member() {
    for seed in 0..SEEDS {
        let world = Rc::new(World::new(seed));
        let sim = Sim::new(seed);
        sim.block_on(async {
            let scene = Scene::start(&world, &MD0).await;
            scene.give_bitmap().await;
            scene.write().await;
            let fail = scene.manage("md0", ManageAction::Fail, MD0[1], false);
            scene.done("Manage", fail).await;
            scene.write().await;
            let call = ("Set", re_add(&scene));
            let replies = scene.both([call.clone(), call]).await;
            assert_eq!(replies.iter().filter(|reply| is_done(reply)).count(), 1, "{replies:?}");
            scene.rest().await;
            let volume = scene.daemon.service.stack.arrays.of(world.arrays[0].uuid).expect("md0");
            assert_eq!(volume.view.degraded(), 0);
            world.check_superblocks(&scene.daemon, &volume);
            // The other member fails: what is flushed then must survive a restart.
            let fail = scene.manage("md0", ManageAction::Fail, MD0[0], false);
            scene.done("Manage", fail).await;
            scene.write().await;
            assert!(scene.daemon.end().await, "a clean end");
        });
        cut_power(sim, &world);
        Sim::new(seed).block_on(async {
            let scene = Scene::start(&world, &[0, 1, 2, 3]).await;
            world.check_started(&scene.daemon).await;
        });
    }
}

#[test]
fn a_member_that_was_removed_stays_removed() {
    each(&MD0, async |scene| {
        scene.give_bitmap().await;
        scene.write().await;
        let fail = scene.manage("md0", ManageAction::Fail, MD0[1], false);
        scene.done("Manage", fail).await;
        scene.write().await;
        let remove = scene.manage("md0", ManageAction::Remove, MD0[1], false);
        let [removed, added] = scene.both([("Manage", remove), ("Set", re_add(scene))]).await;
        assert!(is_done(&removed) || is_done(&added), "{removed:?} {added:?}");
        scene.rest().await;
        let is_member = scene.owners(MD0[1]) == 1;
        assert_eq!(is_member, !is_done(&removed), "{removed:?} {added:?}");
    });
}

#[test]
fn a_member_that_is_detached_from_an_inactive_array_is_closed_at_once() {
    each(&MD1[..1], async |scene| {
        let disk = scene.disk(MD1[0]);
        assert!(disk.is_open() && scene.daemon.service.stack.arrays.waiting().len() == 1);
        scene.done("Detach", json!({ "disk": disk.path })).await;
        assert!(!disk.is_open(), "{} is open", disk.path);
        assert!(scene.daemon.service.stack.arrays.waiting().is_empty());
    });
}

/// As udev hands them in at boot.
#[test]
fn members_that_come_at_once_make_one_array() {
    for seed in 0..SEEDS {
        let world = Rc::new(World::new(seed));
        let sim = Sim::new(seed);
        sim.block_on(async {
            let made = world.make(5, &[0, 1, 2, 3, 4, 5]).await;
            let scene = Scene::start(&world, &[]).await;
            let all: Vec<_> = (0..6)
                .map(|at| {
                    let daemon = Rc::clone(&scene.daemon);
                    let disk = json!({ "disk": scene.disk(at).path });
                    start(async move { daemon.call("Attach", disk).await })
                })
                .collect();
            let mut started = 0;
            for reply in all {
                let reply = reply.await;
                assert!(is_done(&reply), "{reply:?}");
                started +=
                    usize::from(reply.parameters.to_string().contains("which has been started"));
            }
            assert_eq!(started, 1);
            let volume = scene.daemon.service.stack.arrays.of(made.uuid).expect("an array");
            assert_eq!(volume.view.degraded(), 0);
            scene.rest().await;
        });
    }
}
