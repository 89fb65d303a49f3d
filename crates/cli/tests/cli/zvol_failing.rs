//! Pools whose disks or process fail while they are served: nothing else is affected, and the daemon can end.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::support::{Daemon, Images, MIB};
use super::zvol::{has_fuse, has_libzpool, on, pool, zdb_agrees};

/// Serves the pool and an array on the images `m0` and `m1`. The I/O of the pool's process can be made to fail.
fn served_with_an_array(images: &Images) -> Daemon {
    for member in ["m0", "m1"] {
        File::create(images.path(member)).unwrap().set_len(64 * MIB).unwrap();
    }
    let create = ["md", "create", "--homehost=any", "--level=1", "--raid-devices=2", "md0"];
    images.run(&[&create[..], &["--assume-clean"]].concat(), &["m0", "m1"]).ok();
    fs::create_dir_all(images.path("mnt")).unwrap();
    images.serve(&["--mount", "mnt", "m0", "m1"])
}

/// The process of the daemon's only pool.
pub(crate) fn worker(daemon: &Daemon) -> String {
    let status = daemon.client(&["status", "--json"]).ok().out;
    let status: Value = serde_json::from_str(&status).unwrap();
    status["pools"][0]["pid"].to_string()
}

/// Makes all further writes of a process fail.
fn fail_writes(pid: &str) {
    let done = Command::new("prlimit").args(["--pid", pid, "--fsize=0:"]).status().unwrap();
    assert!(done.success(), "prlimit");
}

/// Writes to the array.
fn write_to_array(images: &Images) {
    let array = OpenOptions::new().write(true).open(images.path("mnt/dev/md0")).unwrap();
    array.write_all_at(b"beside the pool", 0).unwrap();
    array.sync_all().unwrap();
}

/// Asserts that the array was stopped cleanly.
#[track_caller]
fn array_is_clean(images: &Images) {
    let shown = images.run(&["md", "examine"], &["m0"]).ok().out;
    assert!(shown.contains("State : clean"), "{shown}");
}

/// The state that OpenZFS calls suspended: all writes of the pool fail.
#[test]
fn a_suspended_pool_keeps_nothing_from_ending() {
    if !has_libzpool("suspended") || !has_fuse("suspended") {
        return;
    }
    let images = pool();
    on(&images, &["zvol", "create", "-V", "16M", "tank/vol"]).ok();
    let daemon = served_with_an_array(&images);
    write_to_array(&images);
    let path = images.path("mnt/dev/zvol/tank/vol");
    let volume = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    volume.write_all_at(&[0x5a; 1 << 20], MIB).unwrap();
    volume.sync_all().unwrap();
    fail_writes(&worker(&daemon));
    let write = std::thread::spawn(move || {
        volume.write_all_at(&[0xa5; 1 << 20], MIB).and_then(|()| volume.sync_all())
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = daemon.client(&["zpool", "status", "tank"]).ok().out;
        if status.contains(" state: SUSPENDED\n") {
            break;
        }
        assert!(Instant::now() < deadline, "{status}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let suspended = "pool I/O is currently suspended";
    daemon.client(&["zpool", "export", "tank"]).fails(1, &["cannot export 'tank'", suspended]);
    daemon.client(&["zvol", "create", "-V", "1M", "tank/x"]).fails(1, &[suspended]);
    daemon.client(&["zvol", "destroy", "tank/vol"]).fails(1, &["cannot destroy 'tank/vol'"]);
    assert!(!write.is_finished(), "it waits");
    write_to_array(&images);
    daemon.signal("TERM");
    let error = write.join().unwrap().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    for part in [
        "pool abandoned: data written since the last flush is lost",
        "ashlar: not stopped cleanly: tank: ",
        "OpenZFS has suspended it",
        "hint: what was written to its volumes since their last flush may be lost",
    ] {
        assert!(log.contains(part), "no {part:?} in {log}");
    }
    array_is_clean(&images);
    // Flushed data is there.
    let daemon = images.serve(&["--mount", "mnt"]);
    let mut back = vec![0; 1 << 20];
    let volume = File::open(&path).unwrap();
    volume.read_exact_at(&mut back, MIB).unwrap();
    assert!(back.iter().all(|byte| *byte == 0x5a || *byte == 0xa5), "a flushed write is lost");
    drop(volume);
    daemon.end();
    zdb_agrees(&images);
}

/// A pool's process that hangs without a message.
#[test]
fn a_second_signal_ends_a_pool_that_does_not() {
    if !has_libzpool("hanging") || !has_fuse("hanging") {
        return;
    }
    let images = pool();
    on(&images, &["zvol", "create", "-V", "16M", "tank/vol"]).ok();
    let mut daemon = served_with_an_array(&images);
    write_to_array(&images);
    let stopped = Command::new("kill").args(["-STOP", &worker(&daemon)]).status().unwrap();
    assert!(stopped.success());
    // A command that waits for it blocks no other command.
    let mut waiting = Command::new(env!("CARGO_BIN_EXE_ashlar"))
        .args(["zvol", "create", "-V", "1M", "tank/x", "--control"])
        .arg(&daemon.control)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(200));
    daemon.client(&["md", "incremental", "--run", "--scan"]).ok();
    daemon.client(&["md", "detail", "md0"]).ok();
    daemon.signal("TERM");
    let deadline = Instant::now() + Duration::from_secs(10);
    while images.run(&["md", "examine"], &["m0"]).out.contains("State : active") {
        assert!(Instant::now() < deadline, "the array is not stopped");
        std::thread::sleep(Duration::from_millis(50));
    }
    array_is_clean(&images);
    assert!(daemon.is_running(), "it waits for its pool");
    daemon.signal_again("TERM");
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("pool abandoned") && log.contains("send a second signal"), "{log}");
    assert!(!waiting.wait().unwrap().success());
    array_is_clean(&images);
    zdb_agrees(&images);
}

/// The worker has the lock of its daemon, also after the daemon's death, until it has exported the pool.
#[test]
fn a_daemon_waits_for_the_worker_of_one_that_was_killed() {
    if !has_libzpool("a worker that is left") {
        return;
    }
    let images = pool();
    for args in [&[][..], &["--no-sandbox"]] {
        let daemon = images.serve(args);
        let worker = worker(&daemon);
        let signal = |name: &str| {
            Command::new("kill").args(["-s", name, &worker]).status().unwrap().success()
        };
        assert!(signal("STOP"));
        daemon.signal("KILL");
        drop(daemon);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(1500));
                // The kernel may have continued it already, as its group was orphaned while it was stopped.
                signal("CONT");
            });
            let next = images.serve(args);
            assert!(next.greeting.contains("tank: zpool of 2 devices"), "{}", next.greeting);
            next.end();
        });
    }
    zdb_agrees(&images);
}
