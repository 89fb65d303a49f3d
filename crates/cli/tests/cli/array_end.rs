//! Ending one array while the daemon continues: `clear` and `inactive` written to its `array_state`.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::support::{Daemon, Images, Nbd, Run, until};

const STATE: &str = "sys/block/md0/md/array_state";

fn set(daemon: &Daemon, value: &str) -> Run {
    daemon.client(&["set", STATE, value])
}

/// Images `d0` and `d1` with the array md0, and `m0` and `m1` with md1.
fn two_arrays() -> Images {
    Images::two_arrays(&["--level=1", "--bitmap=internal", "--name=0"], "--name=1")
}

fn serve(images: &Images, args: &[&str]) -> Daemon {
    Daemon::start(images.dir.path(), &[&["--nbd", "unix:nbd"], args].concat())
}

/// Writes to an array through NBD.
fn write(images: &Images, export: &str, bytes: &[u8]) {
    let mut client = Nbd::open(&images.path("nbd"), export);
    client.write(0, bytes);
    assert_eq!(client.reply(), 0);
}

/// Whether a member's superblock is clean, and the first bytes of the member's data.
fn data(images: &Images, name: &str) -> (bool, Vec<u8>) {
    let json = images.run(&["md", "examine", "--json"], &[name]).ok().out;
    let json: Value = serde_json::from_str(&json).unwrap();
    let mut bytes = vec![0; 4096];
    let at = json[0]["data_offset"].as_u64().unwrap() * 512;
    File::open(images.path(name)).unwrap().read_exact_at(&mut bytes, at).unwrap();
    (json[0]["clean"].as_bool().unwrap(), bytes)
}

/// As many as the server keeps in the handshake.
#[test]
fn clients_in_their_handshake_keep_no_array_from_ending() {
    let images = two_arrays();
    let daemon = serve(&images, &["d0", "d1", "m0", "m1"]);
    let mut silent: Vec<Nbd> = (0..256).map(|_| Nbd::greet(&images.path("nbd"))).collect();
    set(&daemon, "clear").ok();
    images.run(&["md", "assemble"], &["d0", "d1"]).ok();
    // One of them wakes up.
    let last = silent.last_mut().unwrap();
    last.choose("md0");
    assert_eq!(last.0.read(&mut [0]).unwrap(), 0, "the connection is closed");
    write(&images, "md1", &[8; 4096]);
    drop(silent);
    daemon.end();
}

/// What becomes of such an array, its disks and its data is tested on the simulator: crates/daemon/src/simulation/scenarios/ending.rs.
#[test]
fn a_client_of_an_array_keeps_it_from_ending() {
    let images = two_arrays();
    let daemon = serve(&images, &["d0", "d1", "m0", "m1"]);
    let mut client = Nbd::open(&images.path("nbd"), "md0");
    let held = ["md0 cannot be stopped: 'md0' is open"];
    set(&daemon, "clear").fails(1, &held);
    set(&daemon, "inactive").fails(1, &held);
    for word in ["readonly", "read-auto"] {
        set(&daemon, word).fails(1, &["md0 cannot become read-only: 'md0' is open"]);
    }
    client.write(0, &[7; 4096]);
    assert_eq!(client.reply(), 0, "it is served on");
    drop(client);
    set(&daemon, "readonly").ok();
    // `readonly` succeeds on an array that is read-only already, also while a client has it open.
    let reader = Nbd::open(&images.path("nbd"), "md0");
    set(&daemon, "readonly").ok();
    drop(reader);
    set(&daemon, "active").ok();
    images.run(&["md", "assemble"], &["d0", "d1"]).fails(1, &["d0"]);
    set(&daemon, "clear").ok();
    assert_eq!(data(&images, "d1"), (true, vec![7; 4096]));
    daemon.client(&["get", STATE]).fails(1, &["there is no such thing"]);
    assert_eq!(daemon.client(&["md", "detail", "md0"]).code, Some(1));
    // The disks are free: another command opens them for writing.
    images.run(&["md", "assemble"], &["d0", "d1"]).ok();
    daemon.end();
}

#[test]
fn a_mount_follows_an_array_that_ends_and_is_told_that_it_is_busy() {
    if !Path::new("/dev/fuse").exists() {
        return eprintln!("skipped: no /dev/fuse");
    }
    let images = two_arrays();
    let mount = images.path("mnt");
    fs::create_dir(&mount).unwrap();
    let daemon = Daemon::start(images.dir.path(), &["--mount", "mnt", "d0", "d1", "m0", "m1"]);
    let volume = File::options().read(true).write(true).open(mount.join("dev/md0")).unwrap();
    volume.write_all_at(&[7; 4096], 0).unwrap();
    for word in ["clear", "inactive\n", "readonly"] {
        let busy = fs::write(mount.join(STATE), word).unwrap_err();
        assert_eq!(busy.raw_os_error(), Some(16), "{word}");
    }
    volume.sync_all().unwrap();
    drop(volume);
    fs::write(mount.join(STATE), "inactive\n").unwrap();
    until(Duration::from_secs(5), "dev/md0 stays", || !mount.join("dev/md0").exists());
    assert_eq!(fs::read_to_string(mount.join(STATE)).unwrap(), "inactive\n");
    daemon.client(&["md", "incremental", "--run", "--scan"]).ok();
    fs::write(mount.join(STATE), "clear\n").unwrap();
    until(Duration::from_secs(5), "md0 stays", || !mount.join("sys/block/md0").exists());
    assert!(mount.join("dev/md1").exists());
    daemon.end();
    assert_eq!(data(&images, "d0"), (true, vec![7; 4096]));
}
