//! Pools, created, imported, scrubbed and exported by a worker process with libzpool.

mod imports;

use crate::support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::{Disks, Worker, assert_clean, import, new_pool, scan, spoil, texts};
use ashlar_zfs::protocol::{
    Command, NewVdev, NvValue, PoolStatus, Reply, Scrub, VdevClass, VdevKind, VdevStatus,
};

fn vdev<'a>(status: &'a PoolStatus, name: &str) -> &'a VdevStatus {
    let top = status.root.children.iter().find(|child| child.name == name);
    top.unwrap_or_else(|| panic!("{name}: {status:?}"))
}

fn states(vdev: &VdevStatus) -> Vec<&str> {
    vdev.children.iter().map(|child| child.state.as_str()).collect()
}

#[test]
fn all_forms_of_vdevs_make_pools() {
    let forms = [
        ("stripe", vec![(VdevKind::Single, &["a"][..]), (VdevKind::Single, &["b"])], None),
        ("mirror", vec![(VdevKind::Mirror, &["a", "b", "c"])], Some("mirror-0")),
        ("raidz1", vec![(VdevKind::Raidz(1), &["a", "b", "c"])], Some("raidz1-0")),
        ("raidz2", vec![(VdevKind::Raidz(2), &["a", "b", "c", "d"])], Some("raidz2-0")),
        ("raidz3", vec![(VdevKind::Raidz(3), &["a", "b", "c", "d", "e"])], Some("raidz3-0")),
    ];
    for (name, vdevs, expected) in forms {
        let Some(worker) = Worker::start() else { return };
        let disks = Disks::new();
        // Pool names must not look like vdev types.
        let pool = format!("p-{name}");
        let vdevs = vdevs
            .into_iter()
            .map(|(kind, files)| disks.vdev(kind, VdevClass::Normal, files))
            .collect();
        worker.create_pool(&pool, vdevs);
        worker.create_volume(&format!("{pool}/vol"), 16 << 20, &[]);
        let status = worker.status();
        assert_eq!((status.name.as_str(), status.state.as_str()), (pool.as_str(), "ONLINE"));
        assert_eq!(status.root.name, pool);
        assert!(status.size_bytes > 150 << 20 && status.allocated_bytes > 0, "{status:?}");
        assert_eq!(status.errors, 0);
        match expected {
            Some(expected) => {
                assert!(states(vdev(&status, expected)).iter().all(|state| *state == "ONLINE"));
            }
            None => assert_eq!(states(&status.root), ["ONLINE", "ONLINE"]),
        }
        worker.export();
        assert_clean(&pool, disks.path());
    }
}

#[test]
fn properties_and_features_of_a_new_pool_are_those_that_were_asked_for() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let log = disks.vdev(VdevKind::Single, VdevClass::Log, &["log"]);
    let mut vdevs = disks.single();
    vdevs.push(log);
    worker.run(Command::CreatePool {
        name: "tank".to_owned(),
        vdevs,
        properties: texts([
            ("ashift", "13"),
            ("autotrim", "on"),
            ("comment", "for a test"),
            ("feature@large_dnode", "disabled"),
        ]),
        dataset_properties: texts([("compression", "off"), ("org.example:of", "me")]),
        force: false,
        wiped: Vec::new(),
    });
    let status = worker.status();
    let property = |name: &str| status.properties[name].value.as_str();
    assert_eq!(property("ashift"), "13");
    assert_eq!(property("autotrim"), "on");
    assert_eq!(property("comment"), "for a test");
    assert_eq!(property("cachefile"), "none");
    assert_eq!(property("health"), "ONLINE");
    assert_eq!(property("feature@large_dnode"), "disabled");
    assert_eq!(property("feature@large_blocks"), "enabled");
    assert_eq!(property("feature@spacemap_histogram"), "active");
    assert_eq!(property("guid"), status.guid.to_string());
    let classes: Vec<VdevClass> = status.root.children.iter().map(|vdev| vdev.class).collect();
    assert_eq!(classes, [VdevClass::Normal, VdevClass::Log]);
    assert_eq!(worker.get("tank", "compression"), ("off".to_owned(), "local".to_owned()));
    assert_eq!(worker.get("tank", "org.example:of"), ("me".to_owned(), "local".to_owned()));
    assert_eq!(worker.get("tank", "canmount").0, "off");

    worker.run(Command::SetPool { name: "comment".to_owned(), value: "changed".to_owned() });
    worker.run(Command::SetPool {
        name: "feature@large_dnode".to_owned(),
        value: "enabled".to_owned(),
    });
    let status = worker.status();
    assert_eq!(status.properties["comment"].value, "changed");
    assert_eq!(status.properties["feature@large_dnode"].value, "enabled");
    worker.export();
    assert_clean("tank", disks.path());

    let labels = support::read_labels(&disks.path().join("disk"));
    let config = &labels.label().unwrap().config;
    assert_eq!(config.list("vdev_tree").unwrap().number("ashift"), Some(13));
    // A kernel opens a block device only for a vdev of this type.
    assert_eq!(config.list("vdev_tree").unwrap().text("type"), Some("disk"));
}

#[test]
fn pools_that_cannot_be_are_refused_in_words() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let single = disks.single();
    let refused = |command, words: &str, errno: i32| {
        let told = format!("{command:?}");
        let refusal = worker.refused(command);
        assert!(refusal.message.contains(words), "{told}: {refusal}");
        assert_eq!(refusal.errno, errno, "{told}: {refusal}");
    };
    let einval = libc::EINVAL;
    for (name, words) in [
        ("mirror", "cannot create 'mirror': name is reserved"),
        ("raidz2", "name is reserved"),
        ("log", "name is reserved"),
        ("0tank", "name must begin with a letter"),
        ("ta nk%", "invalid character '%' in name"),
        ("", "name must begin with a letter"),
        (&"x".repeat(300), "name is too long"),
    ] {
        refused(new_pool(name, single.clone()), words, einval);
    }
    let with = |properties, dataset_properties| Command::CreatePool {
        name: "tank".to_owned(),
        vdevs: single.clone(),
        properties,
        dataset_properties,
        force: false,
        wiped: Vec::new(),
    };
    for (name, value, words) in [
        ("ashift", "20", "only values between 9 and 16"),
        ("ashift", "many", "bad numeric value 'many'"),
        ("nosuch", "1", "invalid property 'nosuch'"),
        ("size", "1", "'size' is readonly"),
        ("autotrim", "maybe", "'autotrim' must be one of 'on | off'"),
        ("cachefile", "/etc/zfs/zpool.cache", "cachefile is always 'none'"),
        ("feature@nosuch", "enabled", "feature 'nosuch' is not known"),
        ("feature@large_blocks", "active", "can only be set to 'enabled' or 'disabled'"),
        ("comment", &"long".repeat(20), "must not exceed 32"),
    ] {
        refused(with(texts([(name, value)]), BTreeMap::new()), words, einval);
    }
    for (name, value, words) in [
        ("volsize", "1M", "does not apply to datasets of this type"),
        ("encryption", "on", "encryption is not supported"),
        ("canmount", "on", "canmount cannot be 'on'"),
        ("compression", "zip", "'compression' must be one of"),
    ] {
        refused(with(BTreeMap::new(), texts([(name, value)])), words, einval);
    }
    let pool_of = |vdevs| new_pool("tank", vdevs);
    let tiny = NewVdev {
        kind: VdevKind::Single,
        class: VdevClass::Normal,
        paths: vec![disks.file("tiny", 32)],
    };
    refused(pool_of(vec![tiny]), "less than the minimum size (64M)", libc::EOVERFLOW);
    refused(pool_of(vec![]), "at least one toplevel vdev", einval);
    let mirror = disks.vdev(VdevKind::Mirror, VdevClass::Normal, &["a", "b"]);
    refused(
        pool_of(vec![single[0].clone(), mirror.clone()]),
        "mismatched replication level",
        einval,
    );
    let twice = NewVdev { paths: vec![mirror.paths[0].clone(); 2], ..mirror };
    refused(pool_of(vec![twice]), "same device", libc::EBUSY);
    let few = disks.vdev(VdevKind::Raidz(2), VdevClass::Normal, &["c", "d"]);
    refused(pool_of(vec![few]), "raidz2 requires at least 3 devices", einval);
    let absent = NewVdev {
        kind: VdevKind::Single,
        class: VdevClass::Normal,
        paths: vec![disks.path().join("absent")],
    };
    refused(pool_of(vec![absent]), "cannot open", libc::ENOENT);
    let relative =
        NewVdev { kind: VdevKind::Single, class: VdevClass::Normal, paths: vec!["disk".into()] };
    refused(pool_of(vec![relative]), "must be an absolute path", einval);

    // The refused commands left nothing behind: the name and the disk are free.
    worker.create_pool("tank", single.clone());
    refused(new_pool("other", disks.single()), "has a pool already: 'tank'", einval);
    worker.end();
}

#[test]
fn a_disk_of_another_pool_is_taken_only_by_force() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let vdevs = disks.single();
    worker.create_pool("tank", vdevs.clone());
    worker.export();

    let worker = Worker::start().unwrap();
    let refusal = worker.refused(new_pool("other", vdevs.clone()));
    assert!(refusal.message.contains("is part of exported pool 'tank'"), "{refusal}");
    assert!(refusal.hint.unwrap().contains("-f"));
    worker.run(Command::CreatePool {
        name: "other".to_owned(),
        vdevs,
        properties: BTreeMap::new(),
        dataset_properties: BTreeMap::new(),
        force: true,
        wiped: Vec::new(),
    });
    worker.export();
    assert_clean("other", disks.path());
}

fn wait_for_scrub(worker: &Worker) -> PoolStatus {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = worker.status();
        let scan = status.scan.as_ref().unwrap();
        match scan.state.as_str() {
            "finished" => return status,
            "scanning" => assert!(Instant::now() < deadline, "{status:?}"),
            state => panic!("{state}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_scrub_finds_and_repairs_what_is_spoilt_on_one_side_of_a_mirror() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    worker.create_pool("tank", vec![disks.vdev(VdevKind::Mirror, VdevClass::Normal, &["a", "b"])]);
    worker.create_volume("tank/vol", 16 << 20, &[("compression", "off")]);
    let volume = worker.open("tank/vol");
    support::write(&worker, volume, 0, &vec![0x5a; 8 << 20]);
    worker.run(Command::Close { volume: volume.volume });
    assert!(worker.status().scan.is_none());
    worker.export();
    // Not the labels, which are in the first and last half MiB.
    spoil(&disks.path().join("a"), 4 << 20, 184 << 20);

    let worker = Worker::start().unwrap();
    let (a, b) = (disks.path().join("a"), disks.path().join("b"));
    worker.run(import(scan(&[&a, &b])));
    worker.scrub(Scrub::Start);
    let status = wait_for_scrub(&worker);
    let scrub = status.scan.as_ref().unwrap();
    assert_eq!(scrub.function, "scrub");
    assert!(scrub.repaired_bytes > 8 << 20, "{scrub:?}");
    assert!(scrub.examined_bytes >= scrub.repaired_bytes / 2, "{scrub:?}");
    assert!(scrub.to_examine_bytes > 8 << 20 && scrub.end_time >= scrub.start_time, "{scrub:?}");
    assert_eq!(scrub.errors, 0);
    let mirror = vdev(&status, "mirror-0");
    assert!(mirror.children[0].checksum_errors > 0, "{mirror:?}");
    assert_eq!(mirror.children[1].checksum_errors, 0);
    for (what, words) in [
        (Scrub::Pause, "cannot pause scrubbing tank: there is no active scrub"),
        (Scrub::Stop, "cannot cancel scrubbing tank: there is no active scrub"),
    ] {
        assert_eq!(worker.refused(Command::Scrub(what)).message, words);
    }
    worker.export();
    assert_clean("tank", disks.path());
}

#[test]
fn a_scrub_is_paused_goes_on_and_is_stopped() {
    // The scrub makes no progress until it is allowed to, so that it is still running when paused.
    let Some(worker) = Worker::start_with(&[("zfs_scan_suspend_progress", 1)]) else { return };
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    worker.create_volume("tank/vol", 16 << 20, &[]);
    worker.scrub(Scrub::Start);
    let state = |worker: &Worker| worker.status().scan.unwrap().state;
    assert_eq!(state(&worker), "scanning");
    let refusal = worker.refused(Command::Scrub(Scrub::Start));
    assert_eq!(refusal.message, "cannot scrub tank: currently scrubbing or resilvering");
    assert_eq!(refusal.errno, libc::EBUSY);
    worker.scrub(Scrub::Pause);
    assert_eq!(state(&worker), "paused");
    worker.scrub(Scrub::Start);
    assert_eq!(state(&worker), "scanning");
    worker.scrub(Scrub::Stop);
    assert_eq!(state(&worker), "canceled");
    let progress = Command::SetParameter { name: "zfs_scan_suspend_progress".to_owned(), value: 0 };
    worker.run(progress);
    worker.scrub(Scrub::Start);
    wait_for_scrub(&worker);
    worker.export();
    assert_clean("tank", disks.path());
}

#[test]
fn parameters_are_set_at_start_and_live_and_wrong_ones_are_refused() {
    let Some(worker) = Worker::start_with(&[("zfs_arc_max", 128 << 20), ("zvol_threads", 4)])
    else {
        return;
    };
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    let set = |name: &str, value| Command::SetParameter { name: name.to_owned(), value };
    worker.run(set("zfs_arc_max", 96 << 20));
    worker.run(set("zfs_txg_timeout", 1));
    worker.run(set("zvol_request_sync", 1));
    worker.run(set("zvol_num_taskqs", 2));
    let refusal = worker.refused(set("spa_config_path", 0));
    assert!(refusal.message.contains("there is no parameter 'spa_config_path'"), "{refusal}");
    let refusal = worker.refused(set("zfs_arc_max", 1 << 20));
    assert_eq!(
        refusal.message,
        "cannot set parameter: 'zfs_arc_max' cannot be 1048576: it must be 64M or more"
    );
    let refusal = worker.refused(set("zfs_arc_max", 1 << 60));
    assert!(refusal.message.contains("less than half of the memory"), "{refusal}");
    let refusal = worker.refused(set("zfs_txg_timeout", 1 << 40));
    assert!(refusal.message.contains("is more than 'zfs_txg_timeout' can hold"), "{refusal}");
    worker.export();
    assert_clean("tank", disks.path());
}

/// The daemon died: acknowledged data is kept, and the pool is exported.
#[test]
fn when_its_channel_ends_a_worker_exports_its_pool() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    worker.create_volume("tank/vol", 16 << 20, &[]);
    let volume = worker.open("tank/vol");
    support::write(&worker, volume, 0, &vec![0x77; 1 << 20]);
    worker.end();
    let disk = disks.path().join("disk");
    assert_eq!(scan(&[&disk]).0["state"], NvValue::Uint64(1), "exported");
    assert_clean("tank", disks.path());

    let worker = Worker::start().unwrap();
    worker.run(import(scan(&[&disk])));
    let volume = worker.open("tank/vol");
    assert_eq!(support::read(&worker, volume, 0, 1 << 20), vec![0x77; 1 << 20]);
    worker.end();
}

#[test]
fn signals_of_a_terminal_do_not_end_a_worker() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let pid = rustix::process::Pid::from_raw(worker.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
    assert_eq!(worker.status().state, "ONLINE");
    worker.export();
}

#[test]
fn what_makes_no_sense_to_a_worker_is_refused() {
    let worker = Worker::spawn();
    let refusal = worker.refused(Command::PoolStatus);
    assert_eq!(refusal.message, "the worker is not started");
    assert!(
        worker.send_raw(b"{\"command\":\"dance\"}").unwrap_err().message.contains("not a command")
    );
    assert!(worker.send_raw(b"").unwrap_err().message.contains("not a command"));
    worker.end();

    let Some(worker) = Worker::start() else { return };
    assert_eq!(worker.refused(Command::PoolStatus).message, "the worker has no pool");
    assert_eq!(worker.refused(Command::ExportPool).message, "the worker has no pool");
    let again = Command::Start { parameters: BTreeMap::new() };
    assert_eq!(worker.refused(again).message, "the worker is started already");
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    assert_eq!(worker.refused(Command::Close { volume: 7 }).message, "volume 7 is not open");
    assert_eq!(
        worker.refused(Command::Attach { volume: 7, window: None }).message,
        "no data channel came with the command"
    );
    let refusal = worker.refused(Command::Open { name: "tank".to_owned(), read_only: false });
    assert!(refusal.message.contains("not applicable to datasets of this type"), "{refusal}");
    let refusal = worker.refused(Command::Open { name: "tank/none".to_owned(), read_only: false });
    assert_eq!(refusal.message, "cannot open 'tank/none': dataset does not exist");
    assert!(matches!(worker.call(Command::PoolStatus), Ok(Reply::Pool(_))));
    worker.end();
}
