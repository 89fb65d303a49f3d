//! ZFS pools in `scan`: golden pools made by libzpool.

use std::path::PathBuf;

use ashlar_block::{Sector, Sectors};
use ashlar_lvm::metadata::SystemIds;
use ashlar_md::ondisk::Version;
use ashlar_sim::{Media, Sim, SimDisk};
use ashlar_stack::assemble::{Disk, Options, probe_all};
use ashlar_stack::probe::probe;
use ashlar_view::graph::Graph;
use ashlar_view::scan::scan;
use serde_json::Value;

use crate::common::{SECTOR, boot, device, disk, golden, mbr, mirror, volumes};

/// The result of a scan of disks `d0.img`, `d1.img` and so on.
fn scanned(media: &[Media]) -> Graph {
    let sim = Sim::new(1);
    sim.block_on(async {
        let disk = |(n, media): (usize, &Media)| Disk {
            path: PathBuf::from(format!("d{n}.img")),
            gateway: SimDisk::over(format!("d{n}"), media.clone()).gateway(),
        };
        let disks = media.iter().enumerate().map(disk).collect();
        scan(&probe_all(disks).await, SystemIds::default(), &sim.runtime()).await
    })
}

/// As scan prints it: names with their branches, types, defects.
fn tree(graph: &Graph) -> Vec<String> {
    let text = graph.to_text(1000);
    let line = |line: &str| {
        let words = line.split_whitespace().filter(|word| !word.contains('=') && *word != "64M");
        words.collect::<Vec<_>>().join(" ")
    };
    text.lines().skip(1).map(line).collect()
}

fn json(graph: &Graph) -> Value {
    serde_json::to_value(graph).expect("JSON")
}

#[test]
fn a_pool_is_shown_below_each_member_with_its_vdevs() {
    let graph = scanned(&golden("mirror").iter().map(|bytes| disk(bytes)).collect::<Vec<_>>());
    let expected = [
        "d0.img disk",
        "`-golden-mirror zpool",
        "`-mirror-0 mirror",
        "|-d0.img disk",
        "`-d1.img disk",
        "d1.img disk",
        "`-golden-mirror zpool",
    ];
    assert_eq!(tree(&graph), expected);
    let pool = &json(&graph)["blockdevices"][1]["children"][0];
    for (key, value) in [
        ("type", "zpool"),
        ("name", "golden-mirror"),
        ("state", "exported"),
        ("health", "online"),
        ("version", "5000"),
    ] {
        assert_eq!(pool[key], value, "{key}");
    }
    let leaf = &pool["children"][0]["children"][1];
    assert_eq!((leaf["name"].as_str(), leaf["type"].as_str()), (Some("d1.img"), Some("disk")));
    assert!(leaf["guid"].as_str().is_some_and(|guid| guid.parse::<u64>().is_ok()));
}

#[test]
fn missing_devices_and_wrong_checksums_are_told_of() {
    let devices = golden("raidz");
    let graph = scanned(&[disk(&devices[0]), disk(&devices[2])]);
    let pool = &json(&graph)["blockdevices"][0]["children"][0];
    assert_eq!(
        (pool["health"].as_str(), pool["state"].as_str()),
        (Some("degraded"), Some("active"))
    );
    assert!(tree(&graph).contains(&"|-1.img disk (is not here)".to_owned()), "{:?}", tree(&graph));

    let mut damaged = devices[1].clone();
    damaged[(256 << 10) + (16 << 10) + 1000] ^= 1;
    let graph = scanned(&[disk(&damaged)]);
    let pool = &json(&graph)["blockdevices"][0]["children"][0];
    assert_eq!(pool["health"], "unavailable");
    assert_eq!(pool["problem"], "unavailable; d0.img: label 1: its checksum is wrong");
    assert_eq!(pool["children"][0]["problem"], "2 of its 3 parts are missing");
}

#[test]
fn what_is_in_no_pool_is_told_of() {
    let devices = golden("stripe");
    let state = |device: &[u8]| {
        let found = &json(&scanned(&[disk(device)]))["blockdevices"][0]["children"];
        let [node] = &found.as_array().expect("a list")[..] else { panic!("{found}") };
        assert_eq!(node["type"], "zpool");
        (node["state"].as_str().expect("a state").to_owned(), node.get("problem").cloned())
    };
    assert_eq!(state(&devices[1]), ("released".to_owned(), None));
    assert_eq!(state(&devices[5]), ("spare".to_owned(), None));
    assert_eq!(state(&devices[6]), ("cache".to_owned(), None));
    let mut damaged = devices[5].clone();
    for label in [0, 256, 64 * 1024 - 512, 64 * 1024 - 256] {
        damaged[(label << 10) + (16 << 10) + 1000] ^= 1;
    }
    let (state, problem) = state(&damaged);
    assert_eq!(state, "damaged");
    let expected: Vec<String> =
        (0..4).map(|n| format!("label {n}: its checksum is wrong")).collect();
    assert_eq!(problem, Some(Value::String(expected.join("; "))));
}

#[test]
fn a_pool_is_found_in_partitions_and_in_arrays() {
    let devices = golden("mirror");
    let partitioned = |bytes: &[u8]| {
        let mut whole = mbr(&[(0xbf, 2048, (bytes.len() / SECTOR) as u32)]);
        whole.resize(2048 * SECTOR, 0);
        whole.extend(bytes);
        disk(&whole)
    };
    let graph = scanned(&[partitioned(&devices[0]), disk(&devices[1])]);
    // The partition's last labels are at the offsets of the disk's, but record another offset.
    assert_eq!(tree(&graph)[..2], ["d0.img 65M disk", "`-d0.img1 part"]);
    let pool = &json(&graph)["blockdevices"][0]["children"][0]["children"][0];
    assert_eq!(
        (pool["name"].as_str(), pool["health"].as_str()),
        (Some("golden-mirror"), Some("online"))
    );

    // A leg of the array looks like a member of the pool too: the superblock is after the pool's data.
    let sim = Sim::new(2);
    let media: Vec<Media> =
        (0..2).map(|_| Media::new(Sectors::from_bytes_floor((64 << 20) + (1 << 20)))).collect();
    sim.block_on(async {
        let disks = media.iter().map(|media| SimDisk::over("disk", media.clone()).gateway());
        mirror(&disks.collect::<Vec<_>>(), 0, Version::V1_0).await;
        for media in &media {
            for (n, sector) in devices[0].chunks_exact(SECTOR).enumerate() {
                if sector.iter().any(|byte| *byte != 0) {
                    media.poke(Sector(n as u64), sector);
                }
            }
        }
        let stack = boot(&sim, &media, Options::default()).await;
        assert_eq!(volumes(&stack), ["md0"]);
        let contents = probe(&device(&stack, "md0")).await.expect("readable");
        assert!(contents.zfs.is_some());
    });
    drop(sim);
    let pools = tree(&scanned(&media));
    let expected = "`-golden-mirror zpool";
    assert_eq!(pools.iter().filter(|line| line.contains("zpool")).count(), 1, "{pools:?}");
    assert!(pools.iter().any(|line| line.starts_with(expected)), "{pools:?}");
}
