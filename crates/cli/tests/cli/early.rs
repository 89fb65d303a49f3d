//! What a daemon makes before it reads a disk: clients that come early wait, and a start that fails leaves nothing behind.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::support::{Daemon, Images, MIB, Nbd, program, until};

/// A model with which assembly takes some seconds: long enough for a busy machine to come in between.
const SLOW: [&str; 2] = ["--model", "custom:read=250ms"];

pub(crate) fn can_mount(what: &str) -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        eprintln!("skipped: no mount for {what}");
    }
    can
}

pub(crate) fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

#[test]
fn clients_that_come_before_the_volumes_wait_for_them() {
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    fs::create_dir(images.path("mnt")).unwrap();
    let mut args = vec!["--nbd", "unix:nbd"];
    args.extend(SLOW);
    if can_mount("early clients") {
        args.extend(["--mount", "mnt"]);
    }
    let mut command = program();
    command.args(["serve", "--control", "control"]).args(&args).args(images.refs());
    command.current_dir(images.dir.path());
    let (sender, started) = std::sync::mpsc::channel();
    let (dir, control) = (images.dir.path().to_owned(), images.path("control"));
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(Daemon::of(command, &dir)).unwrap());
        until(Duration::from_secs(10), "there is no socket", || {
            UnixStream::connect(&control).is_ok() && images.path("nbd").exists()
        });
        if args.contains(&"mnt") {
            until(Duration::from_secs(10), "there is no mount", || {
                is_mounted(&images.path("mnt").canonicalize().unwrap())
            });
            let file = images.path("mnt/dev/md0");
            scope.spawn(move || assert!(fs::metadata(file).unwrap().len() > 0));
        }
        // The model has assembly take many times as long.
        let mut asking = UnixStream::connect(&control).unwrap();
        asking.write_all(b"{\"method\":\"io.ashlar.Control.Status\"}\0").unwrap();
        asking.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(asking.read(&mut [0]).is_err(), "there is an answer already");
        scope.spawn(|| {
            let status = images.run(&["status", "--control", "control"], &[]).ok().out;
            assert!(status.contains("md0"), "{status}");
        });
        assert_eq!(Nbd::open(&images.path("nbd"), "md0").read(4096), 0);
    });
    started.recv().unwrap().end();
    assert!(!control.exists() && !images.path("nbd").exists());
}

#[test]
fn a_start_that_fails_leaves_neither_mount_nor_sockets() {
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    fs::create_dir(images.path("mnt")).unwrap();
    let mut args = vec!["serve", "--control", "control", "--nbd", "unix:nbd", "--set", "no/such=1"];
    if can_mount("a failing start") {
        args.extend(["--mount", "mnt"]);
    }
    for more in [&[][..], &["--daemon"]] {
        let all = [&args[..], more].concat();
        images.run(&all, &images.refs()).fails(1, &["cannot set", "no/such"]);
        assert!(!images.path("control").exists() && !images.path("nbd").exists());
        assert!(!is_mounted(&images.path("mnt").canonicalize().unwrap()));
    }
}

#[test]
fn a_request_to_end_during_the_start_is_answered() {
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    fs::create_dir(images.path("mnt")).unwrap();
    let mut command = program();
    command.args(["serve", "--control", "control"]).args(SLOW).args(images.refs());
    if can_mount("an end during the start") {
        command.args(["--mount", "mnt"]);
    }
    command.current_dir(images.dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    until(Duration::from_secs(10), "there is no socket", || images.path("control").exists());
    // It may be between the socket and the mount: the signal waits.
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!images.path("control").exists());
    assert!(!is_mounted(&images.path("mnt").canonicalize().unwrap()));
}
