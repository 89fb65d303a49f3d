//! Disks that join volume groups and leave them.

use std::path::PathBuf;
use std::slice::from_ref;

use ashlar_block::Sector;
use ashlar_client::interface::LvmMembers;
use ashlar_lvm::command::{Command, Direction, Membership, NewGroup, Resize};
use serde_json::{Value, json};

use super::groups::{EXTENT, create, lines, lvm, resize, served};
use super::{BLANK, Scene, VG, each, each_twice, has, put};
use crate::simulation::disks::LARGE;
use crate::simulation::groups::LAYOUT;

/// Disks that are members of arrays in other courses, and too small for a physical volume.
const SMALL: [usize; 2] = [0, 2];

pub(super) fn create_group(physical: &[String]) -> Membership {
    Membership::Create(NewGroup {
        extent_sectors: EXTENT,
        max_lv: 0,
        max_pv: 0,
        tags: Vec::new(),
        physical: physical.to_vec(),
        layout: LAYOUT.into(),
    })
}

fn extend(physical: &[String]) -> Membership {
    Membership::Extend { physical: physical.to_vec(), layout: LAYOUT.into() }
}

fn reduce(physical: &[String]) -> Membership {
    Membership::Reduce { physical: physical.to_vec() }
}

fn call(group: &str, command: Membership, confirmed: bool) -> Value {
    let (group, line, directory) = (group.to_owned(), "sim".to_owned(), PathBuf::from("/"));
    let confirmed = Some(confirmed);
    json!(LvmMembers { group, command, directory, confirmed, archive: None, line })
}

/// Changes which disks a group has; returns what was said.
pub(super) async fn done_members(scene: &Scene, group: &str, command: Membership) -> Vec<String> {
    lines(&scene.done("LvmMembers", call(group, command, true)).await)
}

async fn refused(scene: &Scene, group: &str, command: Membership, reason: &str) {
    scene.refused("LvmMembers", call(group, command, true), reason).await;
}

#[test]
fn disks_join_and_leave_a_served_group() {
    // The last piece of the volume, which is on a new disk.
    const LAST: u64 = 58 * EXTENT - 8;
    let course = async |scene: &Scene| {
        let [new, other] = BLANK.map(|at| scene.path(at));
        lvm(scene, "vg", Command::Create(create("data", 8))).await;
        let data = scene.open("vg/data");
        put(&data, 64, 1).await;
        let said = done_members(scene, "vg", extend(&[new.clone(), other.clone()])).await;
        let made = |disk: &str| {
            [
                format!("  Physical volume \"{disk}\" successfully created."),
                format!("  {disk} is a disk of the daemon now: name it when it is started again."),
            ]
        };
        let extended = ["  Volume group \"vg\" successfully extended".to_owned()];
        assert_eq!(said, [&made(&new)[..], &made(&other), &extended].concat());
        assert_eq!(served(scene, "vg").await.0.pvs.len(), 4);
        // The new space is used at once, by a volume that is in use.
        let grow = resize("data", Direction::Extend, 50);
        let grow = Resize { physical: vec![new.clone()], ..grow };
        lvm(scene, "vg", Command::Resize(grow)).await;
        let grown = scene.open("vg/data");
        put(&grown, LAST, 2).await;
        let reason = "Cannot remove the physical volume";
        refused(scene, "vg", reduce(from_ref(&new)), reason).await;
        let removed = format!("  Removed \"{other}\" from volume group \"vg\"");
        assert_eq!(done_members(scene, "vg", reduce(from_ref(&other))).await, [removed]);
        let reason = "not found in volume group \\\"vg\\\"";
        refused(scene, "vg", reduce(from_ref(&other)), reason).await;
        let said = done_members(scene, "vg", reduce(&[])).await;
        assert_eq!(said, ["  No physical volumes are unused"]);

        // A free physical volume makes a group of its own, and is taken back.
        let make = || create_group(from_ref(&other));
        refused(scene, "vg", make(), "A volume group called vg already exists").await;
        let said = done_members(scene, "wg", make()).await;
        assert_eq!(said, ["  Volume group \"wg\" successfully created"]);
        let reason = "is already in volume group 'wg'";
        refused(scene, "vg", extend(from_ref(&other)), reason).await;
        lvm(scene, "wg", Command::Create(create("lv", 4))).await;
        assert_eq!(scene.found(), ["vg/a", "vg/b", "vg/data", "wg/lv"]);
        let lv = scene.open("wg/lv");
        let remove = || Membership::Remove { force: false };
        let asked = scene.done("LvmMembers", call("wg", remove(), false)).await;
        let question = "Do you really want to remove volume group \\\"wg\\\"";
        assert!(asked["questions"].to_string().contains(question), "{asked}");
        assert_eq!((lines(&asked).len(), scene.found().len()), (0, 4), "{asked}");
        refused(scene, "wg", remove(), "wg/lv in use").await;
        drop(lv);
        let said = done_members(scene, "wg", remove()).await;
        let last = said.last().map(String::as_str);
        assert_eq!(last, Some("  Volume group \"wg\" successfully removed"));
        assert_eq!(scene.found(), ["vg/a", "vg/b", "vg/data"]);
        done_members(scene, "vg", extend(from_ref(&other))).await;
        assert!(has(&data, 64, 1).await && has(&grown, LAST, 2).await);
    };
    // The disks have what the daemon had.
    let then = async |scene: &Scene| {
        assert_eq!(served(scene, "vg").await.0.pvs.len(), 4);
        let data = scene.open("vg/data");
        assert!(has(&data, 64, 1).await && has(&data, LAST, 2).await);
    };
    each_twice(LARGE, (&VG, course), (&[BLANK, VG].concat(), then));
}

#[test]
fn what_cannot_join_a_served_group_is_refused_and_left_as_it_was() {
    // A volume of its own, and a member of an array.
    let served_too = BLANK[0];
    each(&[VG[0], VG[1], served_too, 1, 3], async |scene| {
        let new = BLANK[1];
        let [small, ext4] = SMALL;
        for at in SMALL {
            scene.disk(at).make_blank();
        }
        scene.disk(ext4).media.poke(Sector(2), &[&[0; 0x38][..], &[0x53, 0xef]].concat());
        let paths = |disks: &[usize]| disks.iter().map(|at| scene.path(*at)).collect::<Vec<_>>();
        let before: Vec<_> = scene.world.disks.iter().map(|disk| disk.media.snapshot()).collect();
        let name = scene.disk(served_too).name();
        let open = scene.open(name);
        for (disks, reason) in [
            (&[new, ext4][..], "there is something on it: ext2 file system at 0x438"),
            (&[new, small], "a physical volume needs at least"),
            (&[new, new], "is named twice"),
            (&[new, VG[0]], "is already in volume group 'vg'"),
            (&[new, 1], "it is used by an array"),
            (&[new, served_too], &format!("'{}' is open", scene.path(served_too))),
        ] {
            refused(scene, "vg", extend(&paths(disks)), reason).await;
        }
        let nothing = [scene.path(new), "/disks/nothing".to_owned()];
        refused(scene, "vg", extend(&nothing), "no such disk").await;
        let none = "Volume group \\\"none\\\" not found";
        refused(scene, "none", extend(&paths(&[new])), none).await;
        drop(open);
        for (disk, before) in scene.world.disks.iter().zip(&before) {
            assert_eq!(disk.media.diff(before), [], "{} was written to", disk.path);
        }
        for at in [new, ext4, small] {
            assert!(!scene.disk(at).is_open(), "disk {at} is open");
        }
        // A volume that is not in use can join; clients find it no more.
        assert_eq!(scene.found(), [name, "vg/a", "vg/b"]);
        done_members(scene, "vg", extend(&paths(&[served_too]))).await;
        assert_eq!(scene.found(), ["vg/a", "vg/b"]);
        assert_eq!(served(scene, "vg").await.0.pvs.len(), 3);
    });
}

#[test]
fn a_volume_that_does_not_join_after_all_is_found_by_clients_again() {
    let volume = BLANK[0];
    each(&[VG[0], VG[1], volume], async |scene| {
        let (failing, name) = (scene.disk(BLANK[1]), scene.disk(volume).name());
        let both = [failing.path.clone(), scene.path(volume)];
        // Which shows only when it is written to.
        failing.media.fail_writes(0..LARGE.0);
        let reason = format!("Cannot make a physical volume: {}", failing.path);
        refused(scene, "vg", extend(&both), &reason).await;
        assert_eq!(scene.found(), [name, "vg/a", "vg/b"]);
        let open = scene.open(name);
        put(&open, 0, 1).await;
        assert!(has(&open, 0, 1).await);
        drop(open);
        assert!(!failing.is_open(), "{} is open", failing.path);
        failing.media.heal();
        done_members(scene, "vg", extend(&both)).await;
        assert_eq!(served(scene, "vg").await.0.pvs.len(), 4);
    });
}
