//! The memory that the daemon and a pool's process share.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use super::support::MIB;
use super::zvol::{has_fuse, has_libzpool, mounted, on, pool, zdb_agrees};
use super::zvol_failing::worker;

/// A worker outside of the sandbox reads written data from its mapping of the daemon's buffers, so some pages of the mapping are resident.
/// The mapping is read-only.
#[test]
fn a_pools_process_reads_the_daemons_buffers_and_cannot_write_them() {
    if !has_libzpool("memory") || !has_fuse("memory") {
        return;
    }
    let images = pool();
    on(&images, &["zvol", "create", "-V", "64M", "tank/vol"]).ok();
    let daemon = mounted(&images, &["--no-sandbox"]);
    let path = images.path("mnt/dev/zvol/tank/vol");
    let volume = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let data: Vec<u8> = (0..8 * MIB).map(|at| (at / 4096 + at % 251) as u8).collect();
    volume.write_all_at(&data, MIB).unwrap();
    volume.sync_all().unwrap();
    let mut found = vec![0; data.len()];
    volume.read_exact_at(&mut found, MIB).unwrap();
    assert!(found == data);

    let maps = fs::read_to_string(format!("/proc/{}/smaps", worker(&daemon))).unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.contains("ashlar-buffers"));
    let mapping = lines.next().expect("the worker has not mapped the daemon's buffers");
    assert!(mapping.contains(" r--s "), "{mapping}");
    let resident = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let kibibytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kibibytes >= 64, "{resident}");
    assert!(lines.all(|line| !line.contains("ashlar-buffers")), "mapped twice");
    drop(volume);
    daemon.end();
    zdb_agrees(&images);
}
