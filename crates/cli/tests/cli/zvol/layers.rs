//! Volumes with something on them, and pools on parts of disks.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use super::{has_fuse, has_libzpool, mounted, on, pool, zdb_agrees};
use crate::support::{Images, MIB, Nbd};
use serde_json::Value;

/// A volume contains a volume group, whose volume is served like any other; at the end the pool waits for it.
#[test]
fn what_is_on_a_volume_is_served_too() {
    if !has_libzpool("layers") || !has_fuse("layers") {
        return;
    }
    let images = pool();
    on(&images, &["zvol", "create", "-V", "64M", "tank/pv"]).ok();
    // Created in an image, and copied there.
    let disk = images.path("pv");
    File::create(&disk).unwrap().set_len(64 * MIB).unwrap();
    images.run(&["lvm", "vgcreate", "-A", "n", "vg"], &["pv"]).ok();
    images
        .run(&["lvm", "lvcreate", "-A", "n", "-n", "lv", "-L", "16M", "vg", "--devices"], &["pv"])
        .ok();
    let daemon = mounted(&images, &[]);
    let pv = OpenOptions::new().write(true).open(images.path("mnt/dev/zvol/tank/pv")).unwrap();
    pv.write_all_at(&fs::read(&disk).unwrap(), 0).unwrap();
    pv.sync_all().unwrap();
    drop(pv);
    daemon.end();
    let daemon = mounted(&images, &[]);
    assert!(daemon.greeting.contains("vg/lv: lvm 16M"), "{}", daemon.greeting);
    let lv = OpenOptions::new().read(true).write(true).open(images.path("mnt/dev/vg/lv")).unwrap();
    lv.write_all_at(b"through all layers", 4096).unwrap();
    drop(lv);
    daemon.client(&["zpool", "export", "tank"]).fails(1, &["pool is busy", "is made of 'tank/pv'"]);
    daemon.end();
    let daemon = mounted(&images, &[]);
    let mut back = [0; 18];
    File::open(images.path("mnt/dev/vg/lv")).unwrap().read_exact_at(&mut back, 4096).unwrap();
    assert_eq!(&back, b"through all layers");
    daemon.end();
    zdb_agrees(&images);
}

/// A boot sector with partitions: start and length of each, in sectors.
pub(super) fn boot_sector(partitions: &[(u32, u32)]) -> [u8; 512] {
    let mut sector = [0; 512];
    for (entry, (start, len)) in sector[446..510].chunks_exact_mut(16).zip(partitions) {
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&len.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// Disks given whole to `zpool create` have a partition table, and installers put two pools on one disk.
#[test]
fn pools_on_partitions_of_an_image_are_served() {
    const SIZE: u64 = 128 * MIB;
    const PLACES: [u64; 2] = [MIB, MIB + SIZE];
    if !has_libzpool("partitions") || !has_fuse("partitions") {
        return;
    }
    let made = Images::new(2, SIZE);
    let disk = Images::new(1, 2 * SIZE + 2 * MIB);
    let image = OpenOptions::new().read(true).write(true).open(disk.path("d0")).unwrap();
    let table = PLACES.map(|place| ((place / 512) as u32, (SIZE / 512) as u32));
    image.write_all_at(&boot_sector(&table), 0).unwrap();
    for ((pool, file), place) in [("boot", "d0"), ("tank", "d1")].into_iter().zip(PLACES) {
        made.run(&["zpool", "create", pool], &[file]).ok();
        made.run(&["zvol", "create", "-V", "16M", &format!("{pool}/vol"), "-d"], &[file]).ok();
        image.write_all_at(&fs::read(made.path(file)).unwrap(), place).unwrap();
    }
    let shown = on(&disk, &["zpool", "import"]).ok().out;
    assert!(shown.contains("pool: boot\n") && shown.contains("pool: tank\n"), "{shown}");
    let list = on(&disk, &["zvol", "list", "-H", "-o", "name"]).ok().out;
    assert_eq!(list, "boot/vol\ntank/vol\n");
    for round in 0..2 {
        let daemon = mounted(&disk, &[]);
        let status = daemon.client(&["zpool", "status", "tank"]).ok().out;
        assert!(status.contains("/d0p2 "), "{status}");
        for pool in ["boot", "tank"] {
            let path = disk.path(&format!("mnt/dev/zvol/{pool}/vol"));
            let volume = OpenOptions::new().read(true).write(true).open(path).unwrap();
            let text = format!("{pool}, on its partition");
            if round == 0 {
                volume.write_all_at(text.as_bytes(), 0).unwrap();
                volume.sync_all().unwrap();
            }
            let mut back = vec![0; text.len()];
            volume.read_exact_at(&mut back, 0).unwrap();
            assert_eq!(String::from_utf8(back).unwrap(), text);
        }
        // The other pool is still served.
        daemon.client(&["zpool", "export", "boot"]).ok();
        assert!(disk.path("mnt/dev/zvol/tank/vol").exists());
        daemon.end();
    }
    let mut back = vec![0; SIZE as usize];
    image.read_exact_at(&mut back, PLACES[1]).unwrap();
    fs::remove_file(made.path("d0")).unwrap();
    fs::write(made.path("d1"), back).unwrap();
    zdb_agrees(&made);
}

/// How many seccomp filters a process has.
fn seccomp_filters(process: &str) -> u32 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"));
    count.unwrap_or_else(|| panic!("no count: {status}")).trim().parse().unwrap()
}

/// Whatever is on its disks, a daemon enters its sandbox unless its user says otherwise, and the worker of a pool one of its own.
#[test]
fn a_pool_is_parsed_in_a_sandbox_unless_the_user_says_otherwise() {
    const SIZE: u64 = 64 * MIB;
    if !has_libzpool("a pool in the sandbox") {
        return;
    }
    let made = Images::new(1, SIZE);
    made.run(&["zpool", "create", "tank"], &["d0"]).ok();
    on(&made, &["zvol", "create", "-V", "8M", "tank/vol"]).ok();
    let pool = fs::read(made.path("d0")).unwrap();
    for place in [0, 4 * MIB] {
        let disk = Images::new(1, SIZE + 2 * place);
        let image = OpenOptions::new().write(true).open(disk.path("d0")).unwrap();
        image.write_all_at(&pool, place).unwrap();
        if place > 0 {
            let table = [((place / 512) as u32, (SIZE / 512) as u32)];
            image.write_all_at(&boot_sector(&table), 0).unwrap();
        }
        let ways = [(&[][..], "sandbox: on\n", true), (&["--no-sandbox"], "sandbox: off", false)];
        for (number, (args, said, has_own)) in (1..).zip(ways) {
            let daemon = disk.serve(&[args, &["--nbd", "unix:nbd"]].concat());
            assert!(daemon.greeting.contains("tank: zpool of 1 device"), "{}", daemon.greeting);
            let status = daemon.client(&["status"]).ok().out;
            assert!(status.contains(said), "{status}");
            let status = daemon.client(&["status", "--json"]).ok().out;
            let status: Value = serde_json::from_str(&status).unwrap();
            let worker = &status["pools"][0]["pid"];
            // A container has one, too.
            let inherited = seccomp_filters("self");
            assert_eq!(seccomp_filters(&worker.to_string()) > inherited, has_own);
            let mut client = Nbd::open(&disk.path("nbd"), "zvol/tank/vol");
            let before = vec![number - 1; 3 * 4096];
            assert_eq!(client.read_at(4096, 3 * 4096), before);
            client.write_at(4096, &vec![number; 3 * 4096]);
            client.flush();
            assert_eq!(client.read_at(4096, 3 * 4096), vec![number; 3 * 4096]);
            drop(client);
            daemon.end();
        }
    }
}
