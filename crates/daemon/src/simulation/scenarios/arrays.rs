//! Changes of members and of the shape of an array, and its syncs.

use std::rc::Rc;
use std::time::Duration;

use ashlar_block::{Runtime, Sector, Sectors};
use ashlar_client::interface::{Grow, Manage, ManageAction};
use ashlar_sim::{Sim, SimRuntime};
use serde_json::{Value, json};

use super::{BLANK, DATA, MD0, SEEDS, STATE, Scene, cut_power, each, each_twice, has, put};
use crate::simulation::disks::LARGE;
use crate::simulation::world::World;

fn grow(raid_devices: usize) -> Value {
    let (name, raid_devices) = ("md0".to_owned(), Some(raid_devices));
    json!(Grow { name, raid_devices, ..Grow::default() })
}

#[test]
fn a_member_that_was_away_comes_back_by_the_bitmap() {
    each(&MD0, async |scene| {
        let bitmap = |kind: &str| {
            let (name, bitmap) = ("md0".to_owned(), Some(kind.to_owned()));
            let bitmap_chunk = Some(4096).filter(|_| kind == "internal");
            json!(Grow { name, bitmap, bitmap_chunk, ..Grow::default() })
        };
        // It may have one.
        scene.call("Grow", bitmap("none")).await;
        scene.done("Grow", bitmap("internal")).await;
        let attribute = async |name: &str| scene.get(&format!("{STATE}/{name}")).await;
        assert_eq!(attribute("consistency_policy").await, "bitmap");
        for (name, value) in [
            ("location", "+8"),
            ("metadata", "internal"),
            ("time_base", "5"),
            ("backlog", "0"),
            ("can_clear", "true"),
            ("chunksize", "4096"),
        ] {
            assert_eq!(attribute(&format!("bitmap/{name}")).await, value, "{name}");
        }
        assert!(attribute("bitmap/space").await.parse::<u32>().is_ok());
        scene.set(&format!("{STATE}/bitmap/time_base"), "4").await;
        assert_eq!(attribute("bitmap/time_base").await, "4");
        assert_eq!(attribute("max_read_errors").await, "20");
        scene.set(&format!("{STATE}/max_read_errors"), "5").await;
        assert_eq!(attribute("max_read_errors").await, "5");

        let (away, size) = (scene.disk(MD0[1]), scene.world.arrays[0].size);
        let state = format!("dev-{}/state", away.name());
        scene.write().await;
        // Until the marks of that are cleared.
        SimRuntime.sleep(Duration::from_secs(30)).await;
        scene.managed(ManageAction::Fail, MD0[1]).await;
        scene.managed(ManageAction::Remove, MD0[1]).await;
        scene.write_in(0..size / 2).await;
        // The recovery leaves alone what was not written meanwhile.
        let last = Sector(DATA.0 + size - 8);
        let (data, other) = (away.media.peek(last), [0xa5; 512]);
        away.media.poke(last, &other);
        let re_add = Manage::new("md0", ManageAction::ReAdd, &away.path);
        let done = scene.done("Manage", json!(Manage { write_mostly: Some(true), ..re_add })).await;
        let said = format!("re-added {}", away.path);
        assert_eq!(done["done"], json!([said]));
        scene.rest().await;
        assert!(away.media.peek(last) == other, "all was copied");
        away.media.poke(last, &data);
        let second = |words: &str| format!("1 1 active sync{words} disk 1");
        let first = "0 0 active sync disk 0".to_owned();
        assert_eq!(scene.members().await, [first.clone(), second(" writemostly")]);
        assert_eq!(attribute(&state).await, "in_sync,write_mostly");
        scene.check_md0().await;
        scene.set(&format!("{STATE}/{state}"), "-writemostly").await;
        assert_eq!(attribute(&state).await, "in_sync");

        let again = || scene.manage("md0", ManageAction::ReAdd, MD0[1], false);
        scene.refused("Manage", again(), "is in use").await;
        // It need not be removed first.
        scene.managed(ManageAction::Fail, MD0[1]).await;
        scene.write().await;
        assert_eq!(scene.managed(ManageAction::ReAdd, MD0[1]).await, [said]);
        scene.rest().await;
        assert_eq!(scene.members().await, [first, second("")]);
        scene.check_md0().await;
        scene.refused("Manage", again(), "is in use").await;
    });
}

#[test]
fn a_member_that_was_damaged_at_the_start_is_added_again() {
    for seed in 0..SEEDS {
        let world = Rc::new(World::new(seed));
        let disk = Rc::clone(&world.disks[MD0[1]]);
        // A byte of the array's name.
        let mut superblock = disk.media.peek(Sector(8));
        superblock[100] ^= 0x41;
        disk.media.poke(Sector(8), &superblock);
        let sim = Sim::new(seed);
        sim.block_on(async {
            let by_force = ashlar_md::Options { run: true, ..ashlar_md::Options::default() };
            let scene = Scene::start_with(&world, &MD0, by_force).await;
            scene.write().await;
            let change = |action, force| scene.manage("md0", action, MD0[1], force);
            let add = |force| change(ManageAction::Add, force);
            scene.refused("Manage", add(false), "has md member, damaged").await;
            scene.refused("Manage", add(false), "--force overwrites what is there").await;
            let re_add = change(ManageAction::ReAdd, false);
            scene.refused("Manage", re_add, "is not a member of an array").await;
            let added = scene.done("Manage", add(true)).await;
            assert_eq!(added["done"], json!([format!("added {}", disk.path)]));
            scene.write().await;
            scene.rest().await;
            assert_eq!(scene.get(&format!("{STATE}/degraded")).await, "0");
            scene.refused("Manage", add(true), "is in use: it is a member of /dev/md0").await;
            scene.check_md0().await;
            assert!(scene.daemon.end().await, "a clean end");
        });
        cut_power(sim, &world);
        Sim::new(seed).block_on(async {
            let scene = Scene::start(&world, &MD0).await;
            assert_eq!(scene.md0().view.degraded(), 0);
            scene.check_md0().await;
        });
    }
}

#[test]
fn a_member_is_replaced_while_it_works() {
    each(&MD0, async |scene| {
        scene.write().await;
        let [old, new] = [MD0[1], BLANK[0]].map(|at| scene.path(at));
        let naming =
            format!("{new} is a disk of the daemon now: name it when it is started again.");
        let added = scene.managed(ManageAction::Add, BLANK[0]).await;
        assert_eq!(added, [format!("added {new}"), naming]);
        assert_eq!(scene.members().await[2], "2 - spare disk 4");
        let replace = Manage::new("md0", ManageAction::Replace, &old);
        let replace = Manage { with: Some(new.clone()), ..replace };
        let marked = scene.done("Manage", json!(replace)).await;
        let said = [
            format!("Marked {old} (device 1 in /dev/md0) for replacement"),
            format!("Marked {new} in /dev/md0 as replacement for device 1"),
        ];
        assert_eq!(marked["done"], json!(said));
        scene.write().await;
        scene.rest().await;
        let rows = ["0 0 active sync disk 0", "2 1 active sync disk 4", "1 - faulty disk 1"];
        assert_eq!(scene.members().await, rows);
        scene.check_md0().await;
    });
}

#[test]
fn a_mirror_gets_more_devices_and_fewer() {
    let course = async |scene: &Scene| {
        scene.write().await;
        scene.managed(ManageAction::Add, BLANK[0]).await;
        scene.done("Grow", grow(3)).await;
        scene.write().await;
        scene.rest().await;
        let both = ["0 0 active sync disk 0", "1 1 active sync disk 1"];
        assert_eq!(scene.members().await, [&both[..], &["2 2 active sync disk 4"]].concat());
        assert_eq!(scene.get(&format!("{STATE}/raid_disks")).await, "3");
        scene.check_md0().await;
        for part in [&scene.path(BLANK[0]), "slot 2", "fail it first"] {
            scene.refused("Grow", grow(2), part).await;
        }
        scene.managed(ManageAction::Fail, BLANK[0]).await;
        scene.done("Grow", grow(2)).await;
        scene.write().await;
        assert_eq!(scene.members().await, [&both[..], &["2 - faulty disk 4"]].concat());
    };
    // It needs the two only.
    let then = async |scene: &Scene| {
        assert_eq!((scene.md0().view.degraded(), scene.members().await.len()), (0, 2));
        scene.check_md0().await;
    };
    each_twice(LARGE, (&MD0, course), (&MD0, then));
}

#[test]
fn a_sync_can_be_throttled_stopped_and_goes_on() {
    for seed in 0..SEEDS {
        // Larger than what a sync has in flight.
        let world = Rc::new(World::with_room(seed, Sectors(16 << 11)));
        Sim::new(seed).block_on(async {
            let made = world.make(5, &BLANK).await;
            let scene = Scene::start(&world, &BLANK).await;
            let md = format!("sys/block/{}/md", made.name);
            let get = async |name: &str| scene.get(&format!("{md}/{name}")).await;
            let set = async |name: &str, value| scene.set(&format!("{md}/{name}"), value).await;
            let refused = async |name: &str, value, why| {
                scene.set_refused(&format!("{md}/{name}"), value, why).await;
            };
            assert_eq!(get("sync_speed_max").await, "200000 (system)");
            set("sync_speed_max", "1").await;
            set("sync_speed_min", "1").await;
            assert_eq!(get("sync_speed_max").await, "1 (local)");
            set("sync_action", "check").await;
            scene.until("check", async || get("sync_action").await == "check").await;
            let completed = get("sync_completed").await;
            assert!(completed.ends_with(&format!(" / {}", made.size)), "{completed}");
            let mdstat = scene.get("proc/mdstat").await;
            let has_bar = mdstat.contains("\n      [") && mdstat.contains("]  check =");
            assert!(has_bar, "{mdstat}");
            let detail = scene.done("Detail", json!({ "name": made.name })).await;
            assert_eq!(detail["detail"]["state"], "clean, checking");
            assert_eq!(detail["detail"]["sync"]["kind"], "Check");
            refused("sync_action", "check", "under way").await;
            set("sync_action", "idle").await;
            scene.rest().await;
            assert_eq!(get("sync_completed").await, "none");
            set("sync_speed_max", "system").await;
            refused("sync_speed_max", "0", "`0`").await;
            set("sync_max", "8192").await;
            assert_eq!(get("sync_max").await, "8192");
            set("sync_max", "max").await;
            set("sync_action", "frozen").await;
            assert_eq!(get("sync_action").await, "frozen");
            set("sync_action", "idle").await;
            // Where it was stopped.
            let begun: u64 = get("sync_min").await.parse().expect("a number");
            assert!(begun < made.size, "{begun}");
            set("sync_action", "check").await;
            scene.until("end", async || get("sync_action").await == "idle").await;
            assert_eq!(get("last_sync_action").await, "check");
        });
    }
}

/// A table of MS-DOS: the partitions by first sector and size.
fn table(partitions: &[(u32, u32)]) -> [u8; 512] {
    let mut sector = [0; 512];
    for (entry, (first, size)) in sector[446..].chunks_exact_mut(16).zip(partitions) {
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..].copy_from_slice(&size.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

#[test]
fn partitions_of_an_array_appear_with_its_last_member() {
    for seed in 0..SEEDS {
        let world = Rc::new(World::new(seed));
        let partitions = [(16, 32), (64, 32)];
        for at in MD0 {
            world.disks[at].media.poke(DATA, &table(&partitions));
        }
        Sim::new(seed).block_on(async {
            let scene = Scene::start(&world, &MD0[..1]).await;
            assert_eq!(scene.found(), [""; 0]);
            scene.done("Attach", json!({ "disk": scene.path(MD0[1]) })).await;
            assert_eq!(scene.found(), ["md0p1", "md0p2"]);
            let all = ["md0p1", "md0p2"].map(|name| scene.open(name));
            for (part, byte) in all.iter().zip(1..) {
                put(part, 8, byte).await;
            }
            for (part, byte) in all.iter().zip(1..) {
                assert!(has(part, 8, byte).await);
            }
            for (at, (first, size)) in MD0.into_iter().flat_map(|at| partitions.map(|it| (at, it)))
            {
                let media = &scene.disk(at).media;
                let at = |sector: u32| media.peek(Sector(DATA.0 + u64::from(sector)))[0];
                assert_eq!(at(first + 8), if first == 16 { 1 } else { 2 });
                assert_eq!((at(first), at(first + size)), (0, 0));
            }
        });
    }
}
