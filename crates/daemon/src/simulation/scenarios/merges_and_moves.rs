//! Long work on volumes: merges, also those that are put off, and moves of extents.

use std::time::Duration;

use ashlar_block::{Runtime, Sectors};
use ashlar_client::interface::JobAction;
use ashlar_lvm::command::{Command, Create, Direction, Move, PhysicalPart};
use ashlar_sim::SimRuntime;
use serde_json::json;

use super::groups::{
    EXTENT, activate, activate_refused, control, create, jobs, lvm, lvm_refused, resize, served,
    snapshot,
};
use super::{Scene, VG, each, each_twice, each_with_room, has, put};
use crate::simulation::disks::LARGE;

const LATER: &str = "  Merging of snapshot vg/snap will occur on next activation of vg/data.";

fn merge() -> Command {
    Command::Merge { snapshot: "snap".to_owned() }
}

/// Waits until clients find only the volumes of `group`, without the snapshot.
async fn hidden(scene: &Scene, wanted: &[&str]) {
    scene.until("end of the snapshot", async || scene.found() == wanted).await;
}

async fn merged(scene: &Scene, group: &str) {
    let has_none = async || served(scene, group).await.0.snapshots().count() == 0;
    scene.until("end of the merge", has_none).await;
}

#[test]
fn a_merge_waits_for_the_next_activation_while_a_volume_of_it_is_open() {
    let course = async |scene: &Scene| {
        lvm(scene, "vg", Command::Create(create("data", 8))).await;
        let data = scene.open("vg/data");
        put(&data, 64, 1).await;
        lvm(scene, "vg", snapshot("snap", "data")).await;
        put(&data, 64, 2).await;
        let snap = scene.open("vg/snap");
        let delayed = ["  Delaying merge since origin is open.", LATER];
        assert_eq!(lvm(scene, "vg", merge()).await, delayed);
        lvm_refused(scene, "vg", merge(), "it is being merged already").await;
        // The clients that have the two volumes open use them as before.
        put(&data, 128, 3).await;
        assert!(has(&data, 64, 2).await && has(&snap, 64, 1).await && has(&snap, 128, 0).await);
        // As for every merge that is under way.
        let remove = Command::Remove { volumes: vec!["snap".to_owned()] };
        lvm_refused(scene, "vg", remove, "snap").await;
        let grow = Command::Resize(resize("snap", Direction::Extend, 1));
        lvm_refused(scene, "vg", grow, "it is being merged").await;
        let reason = "a snapshot is being merged into it";
        lvm_refused(scene, "vg", snapshot("t", "data"), reason).await;
        activate_refused(scene, &["data"], false, "in use").await;
        // Clients find the snapshot no more once it is closed. Other changes leave both alone.
        assert!(scene.found().contains(&"vg/snap".to_owned()));
        drop(snap);
        hidden(scene, &["vg/a", "vg/b", "vg/data"]).await;
        lvm(scene, "vg", Command::Create(create("new", 1))).await;
        lvm(scene, "vg", Command::RenameGroup { to: "wg".to_owned() }).await;
        assert!(has(&data, 64, 2).await);
        drop(data);
        let data = scene.open("wg/data");
        assert!(has(&data, 64, 2).await, "it has not been activated again");
        drop(data);
        activate(scene, "wg", &["data"], false).await;
        activate(scene, "wg", &["data"], true).await;
        let data = scene.open("wg/data");
        assert!(has(&data, 64, 1).await && has(&data, 128, 0).await);
        merged(scene, "wg").await;
        assert!(has(&data, 64, 1).await && has(&data, 128, 0).await);
        // The names of the snapshot's devices are free again.
        lvm(scene, "wg", snapshot("snap", "data")).await;
        assert!(scene.found().contains(&"wg/snap".to_owned()));

        // With the snapshot open, and a new daemon instead of an activation.
        put(&data, 64, 4).await;
        drop(data);
        let snap = scene.open("wg/snap");
        let said = lvm(scene, "wg", merge()).await;
        assert_eq!(said[0], "  Delaying merge since snapshot is open.");
        assert!(has(&scene.open("wg/data"), 64, 4).await && has(&snap, 64, 1).await);
    };
    let then = async |scene: &Scene| {
        let all = ["wg/a", "wg/b", "wg/data", "wg/new"];
        assert!(has(&scene.open("wg/data"), 64, 1).await);
        hidden(scene, &all).await;
        merged(scene, "wg").await;
        assert!(has(&scene.open("wg/data"), 64, 1).await);

        // A volume that is not active.
        lvm(scene, "wg", snapshot("snap", "data")).await;
        put(&scene.open("wg/data"), 64, 5).await;
        activate(scene, "wg", &["data"], false).await;
        let said = lvm(scene, "wg", merge()).await;
        let later = LATER.replace("vg/", "wg/");
        assert_eq!(said, ["  Conversion starts after activation.", &later]);
        activate(scene, "wg", &["data"], true).await;
        assert!(has(&scene.open("wg/data"), 64, 1).await);
        hidden(scene, &all).await;
        merged(scene, "wg").await;
        assert!(has(&scene.open("wg/data"), 64, 1).await);
    };
    each_twice(LARGE, (&VG, course), (&VG, then));
}

/// How far the only job is, which is paused.
async fn paused(scene: &Scene, name: &str, kind: &str) -> (u64, u64) {
    let jobs = jobs(scene).await;
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let job = &jobs[0];
    assert_eq!((&job["name"], &job["kind"]), (&json!(name), &json!(kind)));
    assert_eq!((&job["state"], &job["seconds_left"]), (&json!("paused"), &json!(null)));
    let bytes = |field: &str| job[field].as_u64().expect("a number");
    (bytes("done_bytes"), bytes("total_bytes"))
}

/// Pauses a job that has just begun, and checks that it does not continue.
async fn pause(scene: &Scene, name: &str, kind: &str) {
    scene.done("ControlJob", control(name, JobAction::Pause)).await;
    paused(scene, name, kind).await;
    // What was being copied ends.
    SimRuntime.sleep(Duration::from_secs(20)).await;
    let (done, total) = paused(scene, name, kind).await;
    SimRuntime.sleep(Duration::from_secs(200)).await;
    assert_eq!(paused(scene, name, kind).await.0, done);
    assert!(done < total, "{done} of {total}");
    scene.refused("ControlJob", control(name, JobAction::Pause), "is paused already").await;
}

#[test]
fn a_move_is_paused_and_cancelled_as_a_job() {
    // Three pieces of what a move copies at once.
    const SIZE: u64 = 3 << 14;
    // It copies much.
    const SEEDS: u64 = 6;
    each_with_room((SEEDS, Sectors(4 << 14)), &VG, async |scene| {
        let [from, to] = VG.map(|at| scene.path(at));
        let new = create("data", (SIZE / EXTENT) as u32);
        let new = Create { physical: vec![from.clone()], ..new };
        lvm(scene, "vg", Command::Create(new)).await;
        let data = scene.open("vg/data");
        put(&data, 0, 1).await;
        scene.disk(VG[1]).media.slow_down(50);
        let places = async || {
            let group = served(scene, "vg").await.0;
            let lv = group.lv("data").expect("data").clone();
            lv.pv_extents().map(|on| on.pv).collect::<Vec<_>>()
        };
        let before = places().await;
        let part = PhysicalPart { path: from.clone(), ranges: Vec::new() };
        let volume = Some("data".to_owned());
        let to = vec![PhysicalPart { path: to, ranges: Vec::new() }];
        lvm(scene, "vg", Command::Move(Move { from: part, volume, to, policy: None })).await;
        pause(scene, "vg/pvmove0", "move").await;
        put(&data, 16, 2).await;
        put(&data, SIZE - 8, 3).await;
        scene.done("ControlJob", control("vg/pvmove0", JobAction::Resume)).await;
        put(&data, 32, 4).await;
        scene.done("ControlJob", control("vg/pvmove0", JobAction::Cancel)).await;
        assert_eq!(jobs(scene).await, [json!(null); 0]);
        assert_eq!(places().await, before);
        for (at, byte) in [(0, 1), (16, 2), (SIZE - 8, 3), (32, 4)] {
            assert!(has(&data, at, byte).await, "{at}");
        }
    });
}

#[test]
fn a_merge_is_paused_until_it_is_resumed_and_its_end_removes_the_snapshot() {
    const CHUNK: u64 = 8;
    each(&VG, async |scene| {
        lvm(scene, "vg", Command::Create(create("data", 64))).await;
        let store = Create { origin: Some("data".to_owned()), ..create("snap", 40) };
        lvm(scene, "vg", Command::Create(store)).await;
        let data = scene.open("vg/data");
        // Every other chunk, so that a batch of the merge has few of them.
        for chunk in 0..120 {
            put(&data, chunk * 2 * CHUNK, 7).await;
        }
        drop(data);
        for at in VG {
            scene.disk(at).media.slow_down(50);
        }
        lvm(scene, "vg", merge()).await;
        pause(scene, "vg/data", "merge").await;
        assert_eq!(jobs(scene).await[0]["actions"], json!(["resume"]));
        let cancel = control("vg/data", JobAction::Cancel);
        scene.refused("ControlJob", cancel.clone(), "cannot cancel the merge").await;
        scene.refused("ControlJob", cancel, "part of it").await;
        let data = scene.open("vg/data");
        // Also what is not merged yet is the snapshot's.
        put(&data, 16 * CHUNK, 8).await;
        assert!(has(&data, 118 * 2 * CHUNK, 0).await);
        scene.done("ControlJob", control("vg/data", JobAction::Resume)).await;
        scene.until("end of the merge", async || jobs(scene).await.is_empty()).await;
        merged(scene, "vg").await;
        for chunk in (0..120).filter(|chunk| *chunk != 8) {
            assert!(has(&data, chunk * 2 * CHUNK, 0).await, "chunk {chunk}");
        }
        assert!(has(&data, 16 * CHUNK, 8).await);
    });
}
