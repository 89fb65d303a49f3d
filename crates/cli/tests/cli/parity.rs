//! Arrays with parity as users meet them: made, written, served for reading, and what may be wrong of them.
//!
//! The contents are those of kernels in tests/interop/md.sh; here all data are zeroes, of which parity is zero, too.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use ashlar_block::Sectors;
use ashlar_md::ondisk::create::{CreateSpec, DEFAULT_DAEMON_SLEEP, NewBitmap, NewMember, create};
use ashlar_md::ondisk::{DeviceFlags, Level, Version};
use uuid::Uuid;

use super::support::{Daemon, Images, MIB, Nbd, program, until};

/// The members d0, d1 and d2 of a RAID5 with chunks of 64 KiB.
fn raid5(is_clean: bool) -> Images {
    let images = Images::new(3, 4 * MIB);
    let member = |slot: u128| {
        let device_uuid = Uuid::from_u128(100 + slot);
        let device = Sectors(4 * MIB / 512);
        Some(NewMember { device, device_uuid, flags: DeviceFlags::default() })
    };
    let spec = CreateSpec {
        version: Version::V1_2,
        level: Level::Raid5,
        layout: None,
        chunk: Some(Sectors(128)),
        raid_devices: 3,
        members: (0..3).map(member).collect(),
        size: None,
        data_offset: None,
        set_uuid: Uuid::from_u128(7),
        name: "any:0".into(),
        ctime: 1_700_000_000,
        assume_clean: is_clean,
        bitmap: NewBitmap::None,
        write_behind: 0,
        daemon_sleep: DEFAULT_DAEMON_SLEEP,
        ppl: false,
        bad_block_log: false,
        numbers: Default::default(),
    };
    for (slot, made) in create(&spec).unwrap().into_iter().enumerate() {
        let superblock = made.unwrap().superblock;
        let bytes = superblock.encode(512).unwrap();
        let file = OpenOptions::new().write(true).open(images.path(&format!("d{slot}"))).unwrap();
        file.write_all_at(&bytes, superblock.super_offset.bytes()).unwrap();
    }
    images
}

const MEMBERS: [&str; 3] = ["d0", "d1", "d2"];

#[test]
fn an_array_with_parity_is_served_for_reading() {
    let images = raid5(true);
    let before = MEMBERS.map(|name| std::fs::read(images.path(name)).unwrap());
    let scan = images.run(&["scan"], &MEMBERS).ok().out;
    assert!(scan.contains("raid5") && scan.contains("devices=3/3"), "{scan}");
    images
        .run(&["serve", "--read-only"], &MEMBERS[..2])
        .fails(1, &["use --run --read-only to start it without"]);

    let daemon = Daemon::start(images.dir.path(), &["--read-only", "--run", "d0", "d1"]);
    let mdstat = daemon.client(&["get", "proc/mdstat"]).ok().out;
    let line = "level 5, 64k chunk, algorithm 2 [3/2] [UU_]";
    assert!(mdstat.contains("active (read-only) raid5") && mdstat.contains(line), "{mdstat}");
    let detail = daemon.client(&["md", "detail", "md0"]).ok().out;
    for line in ["Raid Level : raid5", "Layout : left-symmetric", "Chunk Size : 64K"] {
        assert!(detail.contains(line), "{detail}");
    }
    let refused = daemon.client(&["md", "action", "check", "md0"]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    drop(daemon);
    let after = MEMBERS.map(|name| std::fs::read(images.path(name)).unwrap());
    assert!(before == after, "reading changed an image");
}

/// The KiB in the line `Array Size`.
fn detail_size(detail: &str) -> u64 {
    let line = detail.lines().find_map(|line| line.trim().strip_prefix("Array Size : "));
    line.and_then(|size| size.split(' ').next()?.parse().ok()).expect("a size")
}

#[test]
fn an_array_whose_parity_may_be_wrong_needs_force_without_a_member() {
    let images = raid5(false);
    let daemon = Daemon::start(images.dir.path(), &["--read-only", "d0", "d1", "d2"]);
    drop(daemon);
    let two = &MEMBERS[1..];
    let refused = images.run(&["serve", "--read-only", "--run"], two);
    refused.fails(
        1,
        &[
            "was not stopped cleanly and lacks members",
            "hint: ",
            "--force, beside --run and --read-only, to serve it",
        ],
    );
    let daemon = Daemon::start(images.dir.path(), &["--read-only", "--run", "--force", "d1", "d2"]);
    let detail = daemon.client(&["md", "detail", "md0"]).ok().out;
    assert!(detail.contains("degraded"), "{detail}");
    let suspect = daemon.client(&["md", "suspect", "md0"]);
    let size = detail_size(&detail) * 1024;
    assert_eq!((suspect.code, suspect.out), (Some(1), format!("0 {size}\n")));
    let json = daemon.client(&["md", "suspect", "md0", "--json"]).out;
    assert!(json.contains("\"offset\": 0") && json.contains(&size.to_string()), "{json}");
    drop(daemon);
    // mdadm's words.
    let assemble = ["md", "assemble", "--read-only", "--run"];
    images.run(&assemble, two).fails(1, &["was not stopped cleanly and lacks members"]);
    let tried = images.run(&[&assemble[..], &["-f"]].concat(), two).ok().out;
    assert!(tried.contains("can be started with 2 drives (out of 3)"), "{tried}");
    let mut command = program();
    command.args(assemble).args(["--force", "--nbd", "unix:nbd", "--control", "control"]);
    command.args(two).current_dir(images.dir.path());
    let daemon = Daemon::of(command, images.dir.path());
    assert_eq!(daemon.client(&["md", "suspect", "md0"]).code, Some(1));
    drop(daemon);
    // Nothing was written, and it is as suspect as before.
    images
        .run(&["serve", "--read-only", "--run"], two)
        .fails(1, &["--force, beside --run and --read-only, to serve it"]);
    let daemon = Daemon::start(images.dir.path(), &["--read-only", "d0", "d1", "d2"]);
    assert_eq!(daemon.client(&["md", "suspect", "md0"]).code, Some(1));
    drop(daemon);
    let daemon = Daemon::start(images.dir.path(), &["d0", "d1", "d2"]);
    daemon.client(&["md", "wait", "md0"]);
    let none = daemon.client(&["md", "suspect", "md0"]).ok();
    assert_eq!(none.out, "");
    drop(daemon);
}

#[test]
fn what_may_be_wrong_is_known_until_the_resync_after_a_recovery() {
    let images = raid5(false);
    std::fs::write(images.path("d0"), vec![0; 4 * MIB as usize]).unwrap();
    let daemon = Daemon::start(images.dir.path(), &["--run", "--force", "d1", "d2"]);
    let suspects = || daemon.client(&["md", "suspect", "md0"]);
    assert_eq!(suspects().code, Some(1));
    daemon.client(&["md", "add", "md0", "d0"]).ok();
    until(Duration::from_secs(20), "the list stays", || suspects().code == Some(0));
    let log = daemon.end();
    assert!(log.contains("recovers data that may be wrong"), "{log}");
}

#[test]
fn an_array_with_parity_is_made_written_and_read_without_a_member() {
    let images = Images::new(4, 8 * MIB);
    let all = ["d0", "d1", "d2", "d3"];
    images.run(&["md", "create", "-l6", "-n4", "-c64K", "-pra", "--homehost=any"], &all).ok();
    let examined = images.run(&["md", "examine"], &["d0"]).ok().out;
    assert!(examined.contains("Layout : right-asymmetric"), "{examined}");
    let daemon = Daemon::start(images.dir.path(), &[&["--nbd", "unix:nbd"], &all[..]].concat());
    let mut client = Nbd::open(&images.path("nbd"), "md0");
    let data: Vec<u8> = (0..300_000u32).map(|at| (at * 7 / 3) as u8).collect();
    let data = &data[..300_000 / 512 * 512];
    client.write(66_560, data);
    assert_eq!(client.reply(), 0);
    drop(client);
    daemon.client(&["md", "fail", "md0", "d1"]).ok();
    daemon.end();
    let daemon = Daemon::start(
        images.dir.path(),
        &["--nbd", "unix:nbd", "--read-only", "--run", "d2", "d3"],
    );
    let mut client = Nbd::open(&images.path("nbd"), "md0");
    assert!(client.read_at(66_560, data.len() as u32) == data);
    drop(daemon);
    let lacks =
        images.run(&["md", "create", "-l5", "-n3", "d0", "missing", "missing", "--force"], &[]);
    lacks.fails(1, &["too many members are missing for raid5"]);
}

#[test]
fn a_linear_array_is_made_and_served() {
    let images = Images::new(3, 4 * MIB);
    images.run(&["md", "create", "--level=linear", "-n3", "--homehost=any"], &MEMBERS).ok();
    let daemon = Daemon::start(images.dir.path(), &MEMBERS);
    let mdstat = daemon.client(&["get", "proc/mdstat"]).ok().out;
    assert!(mdstat.contains("active linear") && mdstat.contains("0k rounding"), "{mdstat}");
    drop(daemon);
    images.run(&["serve", "--run"], &MEMBERS[..2]).fails(1, &["not enough members"]);
}
