//! Pools with features that this release of OpenZFS does not know. They are written as zhack writes
//! them, with libzpool's functions: zhack itself requires a kernel module.

use crate::pool;
use crate::support;

use std::ffi::CStr;

use crate::pool::feature::{FEATURE, FOR_READING, FOR_WRITING, use_feature};
use crate::pool::{NewVolume, zpool};
use crate::support::{Disks, Worker, assert_clean, import, import_read_only, scan};
use ashlar_zfs::protocol::Command;
use ashlar_zfs::zvol::Volume;

/// A pool `name` that uses [`FEATURE`].
fn pool_with_feature(name: &str, list: &'static CStr) -> Option<Disks> {
    let zpool = zpool()?;
    let disks = Disks::new();
    zpool.create_pool(name, &[disks.file("disk", 256)], false);
    let volume = format!("{name}/vol");
    let new = NewVolume { name: &volume, volsize_bytes: 16 << 20, volblocksize_bytes: 16 << 10 };
    zpool.create_volume(&new, &[]);
    let open = Volume::open(&zpool.library, &volume, false).unwrap();
    pool::io::write(&open, 0, &vec![0x33; 1 << 20], false).unwrap();
    drop(open);
    use_feature(zpool, name, list);
    zpool.export(name);
    Some(disks)
}

#[test]
fn a_pool_with_an_unknown_feature_for_writing_is_imported_read_only() {
    let Some(disks) = pool_with_feature("writing", FOR_WRITING) else { return };
    let disk = disks.path().join("disk");
    let worker = Worker::start().unwrap();
    let refusal = worker.refused(import(scan(&[&disk])));
    assert!(
        refusal.message.starts_with("cannot import 'writing': unsupported version or feature: "),
        "{refusal}"
    );
    assert!(refusal.message.contains(FEATURE), "{refusal}");
    assert_eq!(refusal.errno, libc::EOPNOTSUPP);
    assert!(refusal.hint.as_ref().unwrap().contains("imported read-only"), "{refusal:?}");

    worker.run(import_read_only(scan(&[&disk])));
    let volume = worker.open("writing/vol");
    assert!(volume.read_only);
    assert_eq!(support::read(&worker, volume, 0, 1 << 20), vec![0x33; 1 << 20]);
    worker.run(Command::Close { volume: volume.volume });
    worker.export();
    assert_clean("writing", disks.path());
}

#[test]
fn a_pool_with_an_unknown_feature_for_reading_is_not_imported_at_all() {
    let Some(disks) = pool_with_feature("reading", FOR_READING) else { return };
    let disk = disks.path().join("disk");
    let worker = Worker::start().unwrap();
    for command in [import(scan(&[&disk])), import_read_only(scan(&[&disk]))] {
        let refusal = worker.refused(command);
        assert!(
            refusal
                .message
                .starts_with("cannot import 'reading': unsupported version or feature: "),
            "{refusal}"
        );
        assert!(refusal.message.contains(FEATURE), "{refusal}");
        assert_eq!(refusal.errno, libc::EOPNOTSUPP);
        assert!(!refusal.hint.as_ref().unwrap().contains("read-only"), "{refusal:?}");
    }
    // The worker is still usable.
    let others = Disks::new();
    worker.create_pool("tank", others.single());
    worker.end();
}
