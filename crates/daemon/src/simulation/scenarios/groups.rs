//! Calls that change volume groups, and volumes that are active at times.

use ashlar_client::interface::{Activate, JobAction, JobControl, Lvm};
use ashlar_lvm::VolumeGroup;
use ashlar_lvm::command::{Amount, Command, Create, Direction, NewSize, Resize, Sign};
use ashlar_stack::volume_groups::ServedGroup;
use serde_json::{Value, json};

use super::{Scene, VG, each, has, put};

/// The sectors of an extent.
pub(super) const EXTENT: u64 = crate::simulation::groups::EXTENT;

/// The lines of a reply, in their order.
pub(super) fn lines(reply: &Value) -> Vec<String> {
    let lines = |field: &str| reply[field].as_array().expect("lines").clone();
    let all = lines("notes").into_iter().chain(lines("done"));
    all.map(|line| line.as_str().expect("a line").to_owned()).collect()
}

fn call(group: &str, command: Command) -> Value {
    let (group, line) = (group.to_owned(), "sim".to_owned());
    json!(Lvm { group, command, confirmed: Some(true), archive: None, line })
}

/// Changes a group; returns what was said.
pub(super) async fn lvm(scene: &Scene, group: &str, command: Command) -> Vec<String> {
    lines(&scene.done("Lvm", call(group, command)).await)
}

pub(super) async fn lvm_refused(scene: &Scene, group: &str, command: Command, reason: &str) {
    scene.refused("Lvm", call(group, command), reason).await;
}

/// A new volume of this many extents.
pub(super) fn create(name: &str, extents: u32) -> Create {
    Create {
        name: Some(name.to_owned()),
        origin: None,
        amount: Amount::Extents(extents),
        chunk_sectors: 8,
        stripes: 1,
        stripe_sectors: None,
        policy: None,
        writable: true,
        tags: Vec::new(),
        zero: true,
        physical: Vec::new(),
    }
}

/// A snapshot with four extents for its store.
pub(super) fn snapshot(name: &str, of: &str) -> Command {
    Command::Create(Create { origin: Some(of.to_owned()), ..create(name, 4) })
}

/// A change of a volume's size by this many extents.
pub(super) fn resize(volume: &str, direction: Direction, extents: u32) -> Resize {
    let sign = if direction == Direction::Extend { Sign::Plus } else { Sign::Minus };
    let (size, volume) = (NewSize { sign, amount: Amount::Extents(extents) }, volume.to_owned());
    Resize { volume, size, direction, force: false, physical: Vec::new() }
}

fn activation(group: &str, volumes: &[&str], active: bool) -> Value {
    let volumes = volumes.iter().map(|&volume| volume.to_owned()).collect();
    json!(Activate { group: group.to_owned(), volumes, active })
}

/// Has volumes active or not; returns how many are.
pub(super) async fn activate(scene: &Scene, group: &str, volumes: &[&str], active: bool) -> u64 {
    let reply = scene.done("Activate", activation(group, volumes, active)).await;
    reply["active"].as_u64().expect("a number")
}

pub(super) async fn activate_refused(scene: &Scene, volumes: &[&str], active: bool, reason: &str) {
    scene.refused("Activate", activation("vg", volumes, active), reason).await;
}

/// A group as the daemon has it, and the names of its volumes with a device.
pub(super) async fn served(scene: &Scene, name: &str) -> (VolumeGroup, Vec<String>) {
    let reply = scene.done("Groups", json!({})).await;
    let groups: Vec<ServedGroup> = serde_json::from_value(reply["groups"].clone()).expect("groups");
    let all = groups.into_iter().map(|served| {
        let volumes = served.volumes.iter().map(|volume| volume.name.clone()).collect();
        (served.metadata().expect("a description").group, volumes)
    });
    let mut all = all.filter(|(group, _)| group.name == name);
    all.next().unwrap_or_else(|| panic!("there is no group {name}"))
}

/// The jobs.
pub(super) async fn jobs(scene: &Scene) -> Vec<Value> {
    scene.done("Jobs", json!({})).await["jobs"].as_array().expect("jobs").clone()
}

pub(super) fn control(name: &str, action: JobAction) -> Value {
    json!(JobControl { name: name.to_owned(), action })
}

#[test]
fn volumes_are_active_at_times() {
    each(&VG, async |scene| {
        lvm(scene, "vg", Command::Create(create("data", 8))).await;
        let data = scene.open("vg/data");
        put(&data, 64, 1).await;
        for reason in ["vg/data in use", "is open"] {
            activate_refused(scene, &["data"], false, reason).await;
        }
        activate_refused(scene, &[], false, "vg/data in use").await;
        assert_eq!(scene.found(), ["vg/a", "vg/b", "vg/data"]);
        put(&data, 64, 2).await;
        drop(data);
        assert_eq!(activate(scene, "vg", &["data"], false).await, 2);
        assert_eq!(scene.found(), ["vg/a", "vg/b"]);
        let (group, active) = served(scene, "vg").await;
        assert!(group.lv("data").is_some() && !active.contains(&"data".to_owned()), "{active:?}");
        let reduce = || Command::Resize(resize("data", Direction::Reduce, 1));
        for reason in ["NOT reduced", "not active"] {
            lvm_refused(scene, "vg", reduce(), reason).await;
        }
        lvm(scene, "vg", Command::Resize(resize("data", Direction::Extend, 2))).await;
        assert_eq!(activate(scene, "vg", &[], true).await, 3);
        let data = scene.open("vg/data");
        assert!(has(&data, 64, 2).await);
        let last = 10 * EXTENT - 8;
        put(&data, last, 3).await;
        assert!(has(&data, last, 3).await);
        drop(data);
        assert_eq!(activate(scene, "vg", &[], false).await, 0);
        assert_eq!(scene.found(), [""; 0]);
        let reason = "Failed to find logical volume \\\"vg/none\\\"";
        activate_refused(scene, &["none"], true, reason).await;
    });
}
