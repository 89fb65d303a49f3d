//! `ashlar zpool`, `ashlar zvol`, and served pools. Without OpenZFS's library a test prints that it was skipped; in CI
//! (`CI=true`) it fails.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

#[path = "../../../zfs/tests/suite/zdb/mod.rs"]
mod zdb;

mod layers;

use self::layers::boot_sector;
use super::support::{Daemon, Images, MIB, Run, ashlar_in};

/// Whether libzpool can be loaded; prints a message if not.
pub(crate) fn has_libzpool(test: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", "test -n \"$ASHLAR_LIBZPOOL\" || ldconfig -p 2>/dev/null | grep -q 'libzpool\\.so\\.[567]' || ls /lib/*/libzpool.so.[567] >/dev/null 2>&1"])
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        assert!(
            std::env::var_os("CI").is_none_or(|ci| ci != "true"),
            "{test}: there is no libzpool"
        );
        eprintln!("{test}: skipped, there is no libzpool");
    }
    found
}

/// Images with the mirrored pool `tank`.
pub(crate) fn pool() -> Images {
    let images = Images::new(2, 256 * MIB);
    images.run(&["zpool", "create", "tank", "mirror"], &images.refs()).ok();
    images
}

/// `ashlar ARGS --devices d0,d1,...`.
pub(crate) fn on(images: &Images, args: &[&str]) -> Run {
    let devices = images.names.join(",");
    ashlar_in(images.dir.path(), &[args, &["--devices", &devices]].concat())
}

/// Asserts that `zdb` finds no error in the pool, which must not be in use.
pub(crate) fn zdb_agrees(images: &Images) {
    zdb::assert_clean("tank", images.dir.path());
}

pub(crate) fn mounted(images: &Images, args: &[&str]) -> Daemon {
    fs::create_dir_all(images.path("mnt")).unwrap();
    images.serve(&[&["--mount", "mnt"], args].concat())
}

pub(crate) fn has_fuse(test: &str) -> bool {
    let found = fs::metadata("/dev/fuse").is_ok();
    if !found {
        eprintln!("{test}: skipped, there is no /dev/fuse");
    }
    found
}

#[test]
fn pools_and_volumes_are_made_shown_and_changed_without_a_daemon() {
    if !has_libzpool("one-shot") {
        return;
    }
    let images = pool();
    let shown = on(&images, &["zpool", "import"]).ok().out;
    assert!(shown.contains("   pool: tank\n") || shown.contains("  pool: tank\n"), "{shown}");
    assert!(shown.contains("mirror-0") && shown.contains("ONLINE"), "{shown}");
    let list = on(&images, &["zpool", "list", "-H", "-o", "name,health"]).ok();
    assert_eq!(list.out, "tank\tONLINE\n");
    on(&images, &["zvol", "create", "-V", "32M", "-b", "8K", "-o", "compression=zstd", "tank/vol"])
        .ok();
    on(&images, &["zvol", "create", "-s", "-V", "1G", "tank/a/thin", "-p"]).ok();
    let list = on(&images, &["zvol", "list", "-H", "-p", "-o", "name,volsize,volblocksize"]).ok();
    assert_eq!(list.out, "tank/a/thin\t1073741824\t16384\ntank/vol\t33554432\t8192\n");
    let get = on(&images, &["zvol", "get", "-H", "compression,volsize", "tank/vol"]).ok();
    assert_eq!(get.out, "tank/vol\tcompression\tzstd\tlocal\ntank/vol\tvolsize\t32M\tlocal\n");
    on(&images, &["zvol", "inherit", "compression", "tank/vol"]).ok();
    on(&images, &["zvol", "set", "volsize=64M", "sync=always", "tank/vol"]).ok();
    on(&images, &["zvol", "snapshot", "tank/vol@one"]).ok();
    on(&images, &["zvol", "clone", "tank/vol@one", "tank/copy"]).ok();
    on(&images, &["zvol", "destroy", "tank/vol"]).fails(1, &["cannot destroy 'tank/vol'"]);
    on(&images, &["zvol", "promote", "tank/copy"]).ok();
    on(&images, &["zvol", "rename", "tank/vol", "tank/old"]).ok();
    let list = on(&images, &["zvol", "list", "-H", "-t", "all", "-o", "name"]).ok();
    assert_eq!(list.out, "tank\ntank/a\ntank/a/thin\ntank/copy\ntank/copy@one\ntank/old\n");
    on(&images, &["zvol", "destroy", "tank/old"]).ok();
    on(&images, &["zvol", "destroy", "-r", "tank/copy"]).ok();
    let json: Value =
        serde_json::from_str(&on(&images, &["zvol", "list", "--json"]).ok().out).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 1);
    assert_eq!(json[0]["name"], "tank/a/thin");
    let scrub = on(&images, &["zpool", "scrub", "tank"]).ok();
    assert!(
        scrub.out.contains("scrub repaired 0B in 00:00:0") && scrub.out.contains("with 0 errors"),
        "{scrub:?}"
    );
    let status = on(&images, &["zpool", "status"]).ok().out;
    for part in ["  pool: tank\n state: ONLINE\n", "  mirror-0", "errors: No known data errors"] {
        assert!(status.contains(part), "{part:?} in {status}");
    }
    zdb_agrees(&images);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    if !has_libzpool("refusals") {
        return;
    }
    let images = pool();
    let before = images.bytes();
    on(&images, &["zpool", "status", "none"])
        .fails(1, &["cannot open 'none': no such pool", "hint: "]);
    images.run(&["zpool", "create", "other"], &images.refs()).fails(1, &["tank"]);
    images.run(&["zpool", "create", "-n", "other", "mirror"], &images.refs()).ok();
    images
        .run(&["zpool", "create", "other", "mirror"], &["d0"])
        .fails(2, &["mirror requires at least 2 devices"]);
    images
        .run(&["zvol", "list"], &["--control", "none.sock"])
        .fails(1, &["cannot reach the daemon", "--devices"]);
    assert!(before == images.bytes(), "something was written");
    let foreign = Images::new(1, 256 * MIB);
    let made = Command::new("mkfs.ext4").arg("-qF").arg(foreign.path("d0")).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfs.ext4");
    let held = foreign.bytes();
    foreign.run(&["zpool", "create", "other"], &["d0"]).fails(1, &["has ext", "--force"]);
    assert!(held == foreign.bytes(), "something was written");
    foreign.run(&["zpool", "create", "--force", "other"], &["d0"]).ok();
    on(&images, &["zvol", "create", "-V", "10T", "tank/vol"])
        .fails(1, &["cannot create 'tank/vol'", "space"]);
    on(&images, &["zvol", "create", "-V", "1M", "-b", "3K", "tank/vol"])
        .fails(1, &["volblocksize"]);
    on(&images, &["zvol", "create", "-V", "1M", "tank/v%l"]).fails(1, &["tank/v%l"]);
    on(&images, &["zvol", "create", "-V", "1M", "-o", "nosuch=1", "tank/vol"])
        .fails(1, &["nosuch"]);
    on(&images, &["zvol", "set", "volsize=10T", "tank/none"])
        .fails(1, &["tank/none", "does not exist"]);
    // One of two disks: the pool works, and is shown as degraded.
    let half = images.run(&["zpool", "status"], &["d0"]).ok().out;
    assert!(half.contains("DEGRADED") && half.contains("UNAVAIL"), "{half}");
    zdb_agrees(&images);
}

#[test]
fn volumes_are_served_by_their_names_and_follow_what_is_done() {
    if !has_libzpool("serving") || !has_fuse("serving") {
        return;
    }
    let images = pool();
    on(&images, &["zvol", "create", "-V", "16M", "tank/vol"]).ok();
    let daemon = mounted(&images, &[]);
    assert!(daemon.greeting.contains("tank: zpool of 2 devices"), "{}", daemon.greeting);
    assert!(daemon.greeting.contains("zvol/tank/vol: zvol 16M"), "{}", daemon.greeting);
    let volume = images.path("mnt/dev/zvol/tank/vol");
    let data: Vec<u8> = (0..3 * MIB as u32).map(|at| (at / 11) as u8).collect();
    {
        let file = OpenOptions::new().read(true).write(true).open(&volume).unwrap();
        file.write_all_at(&data, 12_345).unwrap();
        file.sync_all().unwrap();
        let mut back = vec![0; data.len()];
        file.read_exact_at(&mut back, 12_345).unwrap();
        assert!(back == data);
        // In use: it stays.
        daemon.client(&["zvol", "destroy", "tank/vol"]).fails(1, &["dataset is busy", "is open"]);
        daemon.client(&["zpool", "export", "tank"]).fails(1, &["pool is busy"]);
        file.read_exact_at(&mut back, 12_345).unwrap();
    }
    // The daemon holds the disks.
    on(&images, &["zvol", "create", "-V", "1M", "tank/x"]).fails(1, &["in use by another ashlar"]);
    // A new volume appears at once, and a destroyed one disappears.
    daemon.client(&["zvol", "create", "-V", "8M", "tank/new"]).ok();
    let new = images.path("mnt/dev/zvol/tank/new");
    assert_eq!(fs::metadata(&new).unwrap().len(), 8 * MIB);
    daemon.client(&["zvol", "set", "volsize=24M", "tank/new"]).ok();
    // The kernel caches file attributes for a second.
    let deadline = Instant::now() + Duration::from_secs(5);
    while fs::metadata(&new).unwrap().len() != 24 * MIB {
        assert!(Instant::now() < deadline, "the volume does not grow");
        std::thread::sleep(Duration::from_millis(50));
    }
    daemon.client(&["zvol", "rename", "tank/new", "tank/newer"]).ok();
    assert!(!new.exists() && images.path("mnt/dev/zvol/tank/newer").exists());
    daemon.client(&["zvol", "destroy", "tank/newer"]).ok();
    assert!(!images.path("mnt/dev/zvol/tank/newer").exists());
    // Snapshots appear when they are made visible, and are read-only.
    daemon.client(&["zvol", "snapshot", "tank/vol@snap"]).ok();
    let snapshot = images.path("mnt/dev/zvol/tank/vol@snap");
    assert!(!snapshot.exists());
    daemon.client(&["zvol", "set", "snapdev=visible", "tank/vol"]).ok();
    assert!(OpenOptions::new().write(true).open(&snapshot).is_err());
    let file = OpenOptions::new().write(true).open(&volume).unwrap();
    file.write_all_at(&vec![0xee; data.len()], 12_345).unwrap();
    let mut old = vec![0; data.len()];
    File::open(&snapshot).unwrap().read_exact_at(&mut old, 12_345).unwrap();
    assert!(old == data, "the snapshot keeps what was there");
    drop(file);
    daemon.client(&["zvol", "rollback", "tank/vol@snap"]).ok();
    File::open(&volume).unwrap().read_exact_at(&mut old, 12_345).unwrap();
    assert!(old == data, "the volume is what it was");
    {
        let file = OpenOptions::new().read(true).write(true).open(&volume).unwrap();
        daemon.client(&["zvol", "set", "volmode=none", "tank/vol"]).ok();
        // A client that has it open keeps it.
        file.write_all_at(&data, 12_345).unwrap();
        file.sync_all().unwrap();
    }
    daemon.client(&["zvol", "set", "volmode=none", "tank/vol"]).ok();
    assert!(!volume.exists() && !snapshot.exists());
    let scrub = daemon.client(&["zpool", "scrub", "-w", "tank"]).ok();
    assert!(scrub.out.contains("with 0 errors"), "{scrub:?}");
    // Its disks are free once the daemon has exported the pool.
    daemon.client(&["zpool", "export", "tank"]).ok();
    on(&images, &["zvol", "inherit", "volmode", "tank/vol"]).ok();
    daemon.end();
    zdb_agrees(&images);
}

#[test]
fn the_queue_is_set_for_each_volume_while_it_is_used() {
    if !has_libzpool("queue") || !has_fuse("queue") {
        return;
    }
    let images = pool();
    on(&images, &["zvol", "create", "-V", "16M", "-b", "16K", "tank/vol"]).ok();
    let parameter = "sys/module/zfs/parameters/zvol_use_blk_mq=1";
    let daemon = mounted(&images, &["--set", parameter]);
    let get = |path: &str| daemon.client(&["get", path]).ok().out.trim().to_owned();
    assert_eq!(get("sys/block/zd0/zvol/name"), "tank/vol");
    assert_eq!(get("sys/block/zd0/zvol/use_blk_mq"), "1");
    assert_eq!(get("sys/block/zd0/queue/nomerges"), "0");
    assert_eq!(get("sys/block/zd0/queue/max_sectors_kb"), "16384");
    assert_eq!(get("sys/block/zd0/queue/physical_block_size"), "16384");
    assert_eq!(get("sys/block/zd0/queue/discard_granularity"), "16384");
    assert_eq!(get("sys/block/zd0/queue/optimal_io_size"), "33554432");
    assert_eq!(get("sys/block/zd0/dev"), "230:0");
    daemon.client(&["set", "sys/block/zd0/zvol/blk_mq_blocks_per_thread", "16"]).ok();
    assert_eq!(get("sys/block/zd0/queue/max_sectors_kb"), "16384");
    // Bios merge to 16 blocks, 256 KiB. What is larger stays whole.
    let writes = || get("sys/block/zd0/stat").split_whitespace().nth(4).unwrap().to_owned();
    assert_eq!(writes(), "0");
    let volume = OpenOptions::new().write(true).open(images.path("mnt/dev/zvol/tank/vol")).unwrap();
    volume.write_all_at(&[7; 512 << 10], 0).unwrap();
    assert_eq!(writes(), "1");
    drop(volume);
    daemon.client(&["set", "sys/block/zd0/zvol/use_blk_mq", "0"]).ok();
    assert_eq!(get("sys/block/zd0/queue/nomerges"), "2");
    assert_eq!(get("sys/block/zd0/queue/max_sectors_kb"), "16384");
    daemon.client(&["set", "sys/module/zfs/parameters/zvol_request_sync", "1"]).ok();
    assert_eq!(get("sys/module/zfs/parameters/zvol_request_sync"), "1");
    daemon
        .client(&["set", "sys/module/zfs/parameters/zvol_request_sync", "2"])
        .fails(1, &["out of range"]);
    daemon.end();
}

/// Flushed data survives the death of the pool's process, and other volumes are not affected.
#[test]
fn a_pools_process_that_dies_takes_nothing_with_it() {
    if !has_libzpool("death") || !has_fuse("death") {
        return;
    }
    let images = pool();
    on(&images, &["zvol", "create", "-V", "16M", "tank/vol"]).ok();
    File::create(images.path("plain")).unwrap().set_len(MIB).unwrap();
    let daemon = mounted(&images, &["plain"]);
    let volume = OpenOptions::new()
        .read(true)
        .write(true)
        .open(images.path("mnt/dev/zvol/tank/vol"))
        .unwrap();
    volume.write_all_at(&[0x5a; 1 << 20], MIB).unwrap();
    volume.sync_all().unwrap();
    let status: Value =
        serde_json::from_str(&daemon.client(&["status", "--json"]).ok().out).unwrap();
    let pid = status["pools"][0]["pid"].as_u64().unwrap();
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let text = daemon.client(&["status"]).ok().out;
        if text.contains("which ended by signal 9") && text.contains("zvol 16M, failed") {
            break;
        }
        assert!(Instant::now() < deadline, "{text}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut block = [0; 4096];
    assert_eq!(volume.read_exact_at(&mut block, MIB).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(volume.write_all_at(&block, 0).unwrap_err().raw_os_error(), Some(5));
    daemon.client(&["zvol", "list"]).fails(1, &["has ended: by signal 9", "hint: "]);
    let plain = OpenOptions::new().write(true).open(images.path("mnt/dev/plain")).unwrap();
    plain.write_all_at(b"alive", 0).unwrap();
    drop((volume, plain));
    daemon.signal("TERM");
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(1), "the pool was not exported: {log}");
    let daemon = mounted(&images, &[]);
    let volume = File::open(images.path("mnt/dev/zvol/tank/vol")).unwrap();
    let mut back = vec![0; 1 << 20];
    volume.read_exact_at(&mut back, MIB).unwrap();
    assert!(back.iter().all(|byte| *byte == 0x5a), "a flushed write is lost");
    drop(volume);
    daemon.end();
    zdb_agrees(&images);
}

#[test]
fn a_pool_that_is_only_read_is_not_changed() {
    if !has_libzpool("read-only") || !has_fuse("read-only") {
        return;
    }
    let images = pool();
    on(&images, &["zvol", "create", "-V", "16M", "tank/vol"]).ok();
    let before = images.bytes();
    let daemon = mounted(&images, &["--read-only"]);
    let path = images.path("mnt/dev/zvol/tank/vol");
    assert!(OpenOptions::new().write(true).open(&path).is_err());
    let mut block = [1; 4096];
    File::open(&path).unwrap().read_exact_at(&mut block, 0).unwrap();
    assert_eq!(block, [0; 4096]);
    daemon.client(&["zvol", "create", "-V", "1M", "tank/x"]).fails(1, &["read-only"]);
    daemon.end();
    assert!(before == images.bytes(), "something was written");
}

/// A refused command changes no setting, and a renamed volume keeps its device and partitions.
#[test]
fn a_volume_stays_the_device_that_it_is() {
    if !has_libzpool("devices") || !has_fuse("devices") {
        return;
    }
    let images = pool();
    on(&images, &["zvol", "create", "-V", "16M", "tank/vol"]).ok();
    on(&images, &["zvol", "create", "-V", "1M", "tank/other"]).ok();
    // A disk with a volume's device name.
    File::create(images.path("zd0")).unwrap().set_len(MIB).unwrap();
    let daemon = mounted(&images, &[]);
    let volume = images.path("mnt/dev/zvol/tank/vol");
    OpenOptions::new()
        .write(true)
        .open(&volume)
        .unwrap()
        .write_all_at(&boot_sector(&[(2048, 4096)]), 0)
        .unwrap();
    daemon.end();
    let daemon = mounted(&images, &["zd0"]);
    assert!(daemon.greeting.contains("zd0: disk 1M\n"), "{}", daemon.greeting);
    let get = |path: &str| daemon.client(&["get", path]).ok().out.trim().to_owned();
    let names = ["zd16", "zd32"].map(|zd| get(&format!("sys/block/{zd}/zvol/name")));
    let at = names.iter().position(|name| name == "tank/vol").unwrap();
    let zd = ["zd16", "zd32"][at];
    let depth = format!("sys/block/{zd}/queue/nr_requests");
    daemon.client(&["set", &depth, "77"]).ok();
    daemon.client(&["zvol", "snapshot", "tank/vol@s"]).ok();
    daemon.client(&["zvol", "destroy", "tank/vol"]).fails(1, &["volume has snapshots"]);
    daemon.client(&["zvol", "rename", "tank/vol", "tank/other"]).fails(1, &["cannot rename"]);
    let partition = images.path("mnt/dev/zvol/tank/vol1");
    assert!(partition.exists());
    assert_eq!(
        (get(&depth), get(&format!("sys/block/{zd}/zvol/name"))),
        ("77".into(), "tank/vol".into())
    );
    {
        let open = OpenOptions::new().read(true).write(true).open(&partition).unwrap();
        open.write_all_at(b"in the partition", 0).unwrap();
        let busy = ["dataset is busy", "'zvol/tank/vol1' is open"];
        daemon.client(&["zvol", "rename", "tank/vol", "tank/new2"]).fails(1, &busy);
        daemon.client(&["zpool", "export", "tank"]).fails(1, &["pool is busy"]);
        open.sync_all().unwrap();
    }
    daemon.client(&["zvol", "rename", "tank/vol", "tank/new2"]).ok();
    assert!(!partition.exists());
    assert_eq!(
        (get(&depth), get(&format!("sys/block/{zd}/zvol/name"))),
        ("77".into(), "tank/new2".into())
    );
    let mut text = [0; 16];
    let moved = File::open(images.path("mnt/dev/zvol/tank/new2p1")).unwrap();
    moved.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"in the partition");
    drop(moved);
    daemon.client(&["zvol", "destroy", "-r", "tank/new2"]).ok();
    assert!(!images.path("mnt/dev/zvol/tank/new2p1").exists());
    daemon.client(&["zpool", "export", "tank"]).ok();
    daemon.end();
    zdb_agrees(&images);
}

#[test]
fn readonly_takes_effect_at_once() {
    if !has_libzpool("readonly") || !has_fuse("readonly") {
        return;
    }
    let images = pool();
    on(&images, &["zvol", "create", "-V", "16M", "tank/vol"]).ok();
    let daemon = mounted(&images, &[]);
    let path = images.path("mnt/dev/zvol/tank/vol");
    let volume = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    volume.write_all_at(b"before", 0).unwrap();
    daemon.client(&["zvol", "set", "readonly=on", "tank/vol"]).ok();
    assert!(volume.write_all_at(b"between", 0).is_err());
    assert!(OpenOptions::new().write(true).open(&path).is_err());
    let mut back = [0; 6];
    volume.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"before");
    // An inherited value takes effect at once, too.
    daemon.client(&["zvol", "inherit", "readonly", "tank/vol"]).ok();
    volume.write_all_at(b"behind", 0).unwrap();
    volume.sync_all().unwrap();
    volume.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"behind");
    drop(volume);
    daemon.end();
    zdb_agrees(&images);
}

/// A command on all pools of some disks imports all of them or none, and leaves none imported.
#[test]
fn of_several_pools_all_are_had_or_none() {
    if !has_libzpool("several") {
        return;
    }
    let images = Images::new(3, 128 * MIB);
    for (pool, disk) in ["a", "b", "c"].iter().zip(images.refs()) {
        images.run(&["zpool", "create", pool], &[disk]).ok();
    }
    let list = |disks: &[&str]| images.run(&["zpool", "list", "-H", "-o", "name", "-d"], disks);
    assert_eq!(list(&["d0,d1,d2"]).ok().out, "a\nb\nc\n");
    // Everything except the labels.
    let spoilt = OpenOptions::new().write(true).open(images.path("d1")).unwrap();
    spoilt.write_all_at(&vec![0; 120 << 20], 4 * MIB).unwrap();
    list(&["d0,d1,d2"]).fails(1, &["cannot import 'b'", "damaged"]);
    let shown = images.run(&["zpool", "import", "-d"], &["d0,d2"]).ok().out;
    assert!(!shown.contains("was not exported"), "{shown}");
    assert_eq!(list(&["d0,d2"]).ok().out, "a\nc\n");
}

/// A pool is not confused with a directory of its name.
#[test]
fn a_directory_called_like_a_pool_is_not_looked_into() {
    if !has_libzpool("names") {
        return;
    }
    let images = pool();
    fs::create_dir(images.path("tank")).unwrap();
    let shown = on(&images, &["zpool", "status", "tank"]).ok().out;
    assert!(shown.contains("  pool: tank\n"), "{shown}");
}

/// More datasets than fit in one message of the control socket. A daemon lists all datasets after each command, so these are few
/// and have a long property, which snapshots inherit.
#[test]
fn more_snapshots_than_fit_in_a_message_are_listed() {
    if !has_libzpool("many snapshots") {
        return;
    }
    const VOLUMES: usize = 20;
    const ROUNDS: usize = 25;
    let images = pool();
    let daemon = images.serve(&["--nbd", "unix:nbd"]);
    let note = format!("org.ashlar:note={}", "long ".repeat(1600));
    for volume in 0..VOLUMES {
        let name = format!("tank/v{volume}");
        daemon.client(&["zvol", "create", "-s", "-V", "1M", "-o", &note, &name]).ok();
    }
    for round in 0..ROUNDS {
        let names: Vec<String> = (0..VOLUMES).map(|v| format!("tank/v{v}@s{round}")).collect();
        let names = names.iter().map(String::as_str);
        daemon.client(&["zvol", "snapshot"].into_iter().chain(names).collect::<Vec<_>>()).ok();
    }
    let list = daemon.client(&["zvol", "list", "-H", "-t", "snapshot", "-o", "name"]).ok().out;
    assert_eq!(list.lines().count(), VOLUMES * ROUNDS);
    let json = daemon.client(&["zvol", "list", "--json", "-t", "all"]).ok().out;
    assert!(json.len() > 4 << 20, "{} bytes would fit into a message", json.len());
    let datasets: Value = serde_json::from_str(&json).unwrap();
    // With the pool's own.
    assert_eq!(datasets.as_array().unwrap().len(), VOLUMES * (ROUNDS + 1) + 1);
    daemon.end();
}
