//! Imports: under another name, read-only, with force, without a disk or the log device, and refused ones.

use ashlar_zfs::protocol::{Command, NvValue, VdevClass, VdevKind};

use super::{states, vdev};
use crate::support::{self, Disks, Worker, assert_clean, import, import_read_only, scan, spoil};

#[test]
fn an_exported_pool_is_imported_as_its_labels_say_and_under_another_name() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    worker.create_volume("tank/vol", 16 << 20, &[]);
    let guid = worker.status().guid;
    worker.export();

    let disk = disks.path().join("disk");
    let worker = Worker::start().unwrap();
    worker.run(import(scan(&[&disk])));
    assert_eq!(worker.status().guid, guid);
    assert_eq!(worker.names(), ["tank", "tank/vol"]);
    worker.run(Command::ExportPool);
    // After that, the worker can import another pool.
    worker.run(Command::ImportPool {
        config: scan(&[&disk]),
        name: Some("cistern".to_owned()),
        read_only: false,
        force: false,
        missing_log: false,
    });
    assert_eq!(worker.names(), ["cistern", "cistern/vol"]);
    worker.export();
    assert_clean("cistern", disks.path());
}

#[test]
fn a_pool_that_is_imported_read_only_is_not_written() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    worker.create_volume("tank/vol", 16 << 20, &[]);
    worker.export();

    let disk = disks.path().join("disk");
    let before = std::fs::read(&disk).unwrap();
    let worker = Worker::start().unwrap();
    worker.run(import_read_only(scan(&[&disk])));
    assert_eq!(worker.status().properties["readonly"].value, "on");
    let opened = worker.open("tank/vol");
    assert!(opened.read_only);
    worker.run(Command::Close { volume: opened.volume });
    let refusal = worker.refused(support::set("tank/vol", "compression", "off"));
    assert_eq!(
        (refusal.errno, refusal.message.as_str()),
        (libc::EROFS, "cannot change 'tank': pool is read-only")
    );
    worker.export();
    assert!(std::fs::read(&disk).unwrap() == before, "the disk was written");
}

/// For its pool, a killed worker is a power failure: this host may import the pool again, another host may not.
#[test]
fn a_pool_that_another_host_had_is_imported_only_by_force() {
    let Some(worker) = Worker::start_as_host(0x1001) else { return };
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    worker.create_volume("tank/vol", 16 << 20, &[]);
    worker.kill();

    let disk = disks.path().join("disk");
    let config = scan(&[&disk]);
    assert_eq!(config.0["state"], NvValue::Uint64(0), "active");
    let worker = Worker::start_as_host(0x1001).unwrap();
    worker.run(import(config));
    worker.kill();

    let config = scan(&[&disk]);
    let worker = Worker::start_as_host(0x1002).unwrap();
    let refusal = worker.refused(import(config.clone()));
    assert_eq!(refusal.errno, libc::EREMOTEIO);
    let words =
        "cannot import 'tank': pool was previously in use from another system. Last accessed by";
    assert!(refusal.message.starts_with(words), "{refusal}");
    assert!(refusal.message.ends_with("(hostid=1001)"), "{refusal}");
    assert!(refusal.hint.unwrap().contains("-f"));
    worker.run(Command::ImportPool {
        config,
        name: None,
        read_only: false,
        force: true,
        missing_log: false,
    });
    worker.export();
    assert_clean("tank", disks.path());

    // Any host may import an exported pool.
    let worker = Worker::start_as_host(0x1001).unwrap();
    worker.run(import(scan(&[&disk])));
    worker.end();
}

#[test]
fn a_mirror_without_a_disk_is_degraded_and_a_stripe_is_not_imported() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    worker.create_pool("tank", vec![disks.vdev(VdevKind::Mirror, VdevClass::Normal, &["a", "b"])]);
    worker.create_volume("tank/vol", 16 << 20, &[]);
    worker.export();
    let (a, b) = (disks.path().join("a"), disks.path().join("b"));
    std::fs::remove_file(&b).unwrap();

    let worker = Worker::start().unwrap();
    worker.run(import(scan(&[&a])));
    let status = worker.status();
    assert_eq!(status.state, "DEGRADED");
    let mirror = vdev(&status, "mirror-0");
    assert_eq!(states(mirror), ["ONLINE", "UNAVAIL"]);
    worker.export();
    assert_clean("tank", disks.path());

    let worker = Worker::start().unwrap();
    let disks = Disks::new();
    worker.create_pool(
        "tank",
        vec![
            disks.vdev(VdevKind::Single, VdevClass::Normal, &["a"]),
            disks.vdev(VdevKind::Single, VdevClass::Normal, &["b"]),
        ],
    );
    worker.export();
    let (a, b) = (disks.path().join("a"), disks.path().join("b"));
    let whole = scan(&[&a, &b]);
    std::fs::remove_file(&b).unwrap();
    let worker = Worker::start().unwrap();
    let refusal = worker.refused(import(whole));
    assert!(
        refusal
            .message
            .starts_with("cannot import 'tank': one or more devices is currently unavailable"),
        "{refusal}"
    );
    assert!(refusal.message.contains(b.to_str().unwrap()), "{refusal}");
    assert!(refusal.hint.is_some());
    worker.end();
}

#[test]
fn without_its_log_device_a_pool_is_imported_only_if_that_is_wanted() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let mut vdevs = disks.single();
    vdevs.push(disks.vdev(VdevKind::Single, VdevClass::Log, &["log"]));
    worker.create_pool("tank", vdevs);
    worker.create_volume("tank/vol", 16 << 20, &[]);
    worker.export();
    let (disk, log) = (disks.path().join("disk"), disks.path().join("log"));
    let config = scan(&[&disk, &log]);
    std::fs::remove_file(&log).unwrap();

    let worker = Worker::start().unwrap();
    let refusal = worker.refused(import(config.clone()));
    assert!(refusal.message.contains("log devices are missing or corrupted"), "{refusal}");
    assert!(refusal.message.contains(log.to_str().unwrap()), "{refusal}");
    worker.run(support::import_without_log(config, false));
    assert_eq!(worker.status().state, "DEGRADED");
    worker.export();
    assert_clean("tank", disks.path());
}

/// The labels of the other disks do not say that a log device was there: only the pool's own configuration does.
#[test]
fn a_log_device_without_a_label_here_is_told_from_a_disk() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    let mut vdevs = disks.single();
    vdevs.push(disks.vdev(VdevKind::Single, VdevClass::Log, &["log"]));
    worker.create_pool("tank", vdevs);
    worker.create_volume("tank/vol", 16 << 20, &[]);
    worker.export();
    let log = disks.path().join("log");
    std::fs::remove_file(&log).unwrap();
    let config = scan(&[&disks.path().join("disk")]);
    let worker = Worker::start().unwrap();
    let refusal = worker.refused(import(config.clone()));
    assert!(refusal.message.contains("log devices are missing or corrupted"), "{refusal}");
    assert!(refusal.message.contains(log.to_str().unwrap()), "{refusal}");
    worker.run(support::import_without_log(config.clone(), true));
    let volume = worker.open("tank/vol").volume;
    worker.run(Command::Close { volume });
    worker.export();
    let worker = Worker::start().unwrap();
    worker.run(support::import_without_log(config, false));
    assert_eq!(worker.status().state, "DEGRADED");
    worker.export();
    assert_clean("tank", disks.path());

    // A disk with data is not accepted as a log device, whatever the caller allows.
    let disks = Disks::new();
    let vdev = |name: &str| disks.vdev(VdevKind::Single, VdevClass::Normal, &[name]);
    let worker = Worker::start().unwrap();
    worker.create_pool("pond", vec![vdev("a"), vdev("b")]);
    worker.export();
    let lost = disks.path().join("b");
    std::fs::remove_file(&lost).unwrap();
    for read_only in [false, true] {
        let worker = Worker::start().unwrap();
        let config = scan(&[&disks.path().join("a")]);
        let refusal = worker.refused(support::import_without_log(config, read_only));
        assert!(refusal.message.contains("unavailable"), "{refusal}");
        worker.end();
    }
}

#[test]
fn a_damaged_pool_and_a_damaged_configuration_are_refused() {
    let Some(worker) = Worker::start() else { return };
    let disks = Disks::new();
    worker.create_pool("tank", disks.single());
    worker.export();
    let disk = disks.path().join("disk");

    let worker = Worker::start().unwrap();
    let mut config = scan(&[&disk]);
    config.0.remove("vdev_tree");
    let refusal = worker.refused(import(config));
    assert!(refusal.message.starts_with("cannot import 'tank': "), "{refusal}");

    // Everything except the labels.
    let config = scan(&[&disk]);
    spoil(&disk, 4 << 20, (256 - 8) << 20);
    let refusal = worker.refused(import(config));
    assert!(refusal.message.starts_with("cannot import 'tank': "), "{refusal}");
    assert!(refusal.hint.is_some(), "{refusal}");
    assert!([libc::EIO, libc::EBADE].contains(&refusal.errno), "{refusal} {}", refusal.errno);
    // Nothing is left of the pool: the name is free.
    worker.create_pool("tank", vec![disks.vdev(VdevKind::Single, VdevClass::Normal, &["new"])]);
    worker.end();
}
