//! The stop of one array while the daemon runs, and its next start: `clear` and `inactive` as its `array_state`.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ashlar_block::{Runtime, Sectors};
use ashlar_client::interface::ManageAction;
use ashlar_sim::SimRuntime;
use ashlar_sim::scheduler::start;
use serde_json::{Value, json};

use super::members_of_groups::{create_group, done_members};
use super::{BLANK, MD0, STATE, Scene, each, each_twice};

const ARRAYS: [usize; 4] = [0, 1, 2, 3];
const ARRAY_STATE: &str = "sys/block/md0/md/array_state";

async fn set(scene: &Scene, word: &str) {
    scene.set(ARRAY_STATE, word).await;
}

async fn not_found(scene: &Scene) {
    let reply = scene.call("Get", json!({ "path": ARRAY_STATE })).await;
    assert!(reply.error.is_some_and(|error| error.ends_with(".NotFound")));
}

/// Hands in the members of md0, one after the other; returns what was said.
async fn hand_in(scene: &Scene) -> Vec<Value> {
    let mut said = Vec::new();
    for at in MD0 {
        let disk = json!({ "disk": scene.path(at) });
        said.push(scene.done("Attach", disk).await["done"][0].clone());
    }
    said
}

#[test]
fn clear_ends_one_array_that_nobody_uses_and_lets_go_of_its_disks() {
    each(&ARRAYS, async |scene| {
        scene.write().await;
        // A client of another array.
        let other = scene.open("md1");
        let (open, is_open) = (scene.open("md0"), Rc::new(Cell::new(true)));
        for word in ["clear", "inactive"] {
            scene.set_refused(ARRAY_STATE, word, "md0 cannot be stopped: 'md0' is open").await;
        }
        // It is served on, until the client closes it.
        scene.write().await;
        let client = Rc::clone(&is_open);
        let closing = start(async move {
            SimRuntime.sleep(Duration::from_micros(200)).await;
            client.set(false);
            drop(open);
        });
        let clear = || json!({ "path": ARRAY_STATE, "value": "clear" });
        while scene.call("Set", clear()).await.error.is_some() {
            SimRuntime.sleep(Duration::from_micros(20)).await;
        }
        assert!(!is_open.get(), "it was stopped while a client has it open");
        closing.await;
        not_found(scene).await;
        assert!(scene.call("Detail", json!({ "name": "md0" })).await.error.is_some());
        let mdstat = scene.get("proc/mdstat").await;
        assert!(!mdstat.contains("md0") && mdstat.contains("md1 : active raid1"), "{mdstat}");
        for at in MD0 {
            scene.check_clean(at);
            assert!(!scene.disk(at).is_open(), "disk {at} is open");
        }
        super::put(&other, 0, 8).await;
        drop(other);
        // Both disks can be added again.
        let said = hand_in(scene).await;
        let started = said[1].as_str().is_some_and(|it| it.contains("which has been started"));
        assert!(started, "{said:?}");
        scene.write().await;
        scene.check_md0().await;
        assert_eq!(scene.found(), ["md0", "md1"]);
        assert!(super::has(&scene.open("md1"), 0, 8).await);
    });
}

#[test]
fn an_inactive_array_keeps_its_members_and_starts_again() {
    each(&ARRAYS, async |scene| {
        scene.write().await;
        set(scene, "inactive").await;
        assert_eq!(scene.get(ARRAY_STATE).await, "inactive");
        assert_eq!(scene.found(), ["md1"]);
        let [first, second] = MD0.map(|at| scene.disk(at).name());
        let mdstat = scene.get("proc/mdstat").await;
        let line = format!("md0 : inactive {second}[1](S) {first}[0](S)\n");
        assert!(mdstat.contains(&line), "{mdstat}");
        let status = scene.done("Status", json!({})).await;
        let volumes = status["status"]["volumes"].as_array().expect("volumes").iter();
        let md0 = volumes.clone().find(|volume| volume["name"] == "md0").expect("md0");
        assert_eq!((&md0["state"], &md0["size"]), (&json!("inactive"), &json!(0)));
        assert_eq!((&md0["raid_devices"], &md0["degraded"]), (&json!(2), &json!(0)));
        set(scene, "inactive").await;
        let why = "md0 is inactive and cannot be set to 'active': clear is possible";
        scene.set_refused(ARRAY_STATE, "active", why).await;
        for at in MD0 {
            scene.check_clean(at);
            assert!(scene.disk(at).is_open(), "disk {at} was released");
        }
        let started = scene.done("StartWaiting", json!({})).await;
        assert_eq!(started, json!({ "done": ["started array /dev/md0"], "failed": [] }));
        assert_eq!(scene.get(ARRAY_STATE).await, "clean");
        scene.write().await;
        scene.check_md0().await;
        set(scene, "inactive").await;
        set(scene, "clear").await;
        not_found(scene).await;
        for at in MD0 {
            scene.check_clean(at);
            assert!(!scene.disk(at).is_open(), "disk {at} is open");
        }
    });
}

#[test]
fn a_degraded_array_that_was_inactive_needs_run_and_leaves_out_what_is_stale() {
    each(&MD0, async |scene| {
        scene.write().await;
        // The one that has the first copy.
        scene.managed(ManageAction::Fail, MD0[0]).await;
        scene.write().await;
        set(scene, "inactive").await;
        SimRuntime.sleep(Duration::from_secs(10)).await;
        assert_eq!(scene.get(ARRAY_STATE).await, "inactive");
        scene.check_clean(MD0[1]);
        scene.done("StartWaiting", json!({})).await;
        assert_eq!(scene.get(&format!("{STATE}/degraded")).await, "1");
        scene.check_md0().await;
        scene.write().await;
        scene.check_md0().await;
        assert_eq!(scene.members().await, ["- 0 removed", "1 1 active sync disk 1"]);
    });
}

#[test]
fn an_array_that_a_volume_group_is_made_of_does_not_end() {
    let array = "sys/block/md5/md/array_state";
    let refused = async |scene: &Scene| {
        for word in ["clear", "inactive"] {
            let why = "md5 cannot be stopped: md5 is part of a volume group";
            scene.set_refused(array, word, why).await;
        }
        let why = "md5 cannot become read-only: md5 is part of a volume group";
        scene.set_refused(array, "readonly", why).await;
        // After the last write it says so for a moment.
        let state = scene.get(array).await;
        assert!(state == "clean" || state == "active", "{state}");
    };
    let course = async |scene: &Scene| {
        scene.world.make(5, &BLANK).await;
        for at in BLANK {
            scene.done("Attach", json!({ "disk": scene.path(at) })).await;
        }
        done_members(scene, "wg", create_group(&["md5".to_owned()])).await;
        refused(scene).await;
    };
    each_twice(Sectors(8192), (&[], course), (&BLANK, refused));
}
