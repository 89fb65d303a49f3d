//! The daemon in its sandbox: disks that clients lend it, the keeper of its mount and sockets, and what it says of itself.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::early::{can_mount, is_mounted};
use super::support::{Daemon, Images, MIB, Run, as_user, until};

const USER: u32 = 54321;

/// The keeper of a daemon.
fn keeper(daemon: &Daemon) -> u32 {
    let pid = daemon.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let mut all = children.split_whitespace().map(|child| child.parse().unwrap());
    let is_keeper = |child: &u32| {
        fs::read_to_string(format!("/proc/{child}/comm"))
            .is_ok_and(|name| name == "ashlar-keeper\n")
    };
    all.find(is_keeper).unwrap()
}

fn is_process(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

fn kill(pid: u32, signal: &str) {
    let status = Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

fn output(mut command: Command) -> Run {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn a_daemon_says_whether_it_is_in_its_sandbox() {
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    for (args, wanted) in [(&[][..], "sandbox: on\n"), (&["--no-sandbox"], "sandbox: off: --no-")] {
        let daemon = images.serve(args);
        let status = daemon.client(&["status"]).ok().out;
        assert!(status.contains(wanted), "{status}");
        daemon.end();
    }
    fs::write(images.path("s.toml"), "disks = [\"d0\", \"d1\"]\nno_sandbox = true\n").unwrap();
    let daemon = Daemon::start(images.dir.path(), &["--config", "s.toml"]);
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("sandbox: off"), "{status}");
    daemon.end();
}

#[test]
fn a_disk_that_the_daemons_user_cannot_open_is_lent_by_a_client_that_can() {
    let images = Images::new(3, 16 * MIB);
    let create = ["md", "create", "--homehost=any", "-l1", "-n2"];
    images.run(&create, &["d0", "d1"]).ok();
    let Some(mut command) = as_user(&images, USER, USER, &[]) else { return };
    for name in ["d0", "d1"] {
        chown(images.path(name), Some(USER), Some(USER)).unwrap();
    }
    fs::set_permissions(images.path("d2"), Permissions::from_mode(0o600)).unwrap();
    chown(images.dir.path(), Some(USER), Some(USER)).unwrap();
    command.args(["serve", "--control", "control", "d0", "d1"]);
    command.env("HOME", images.dir.path());
    let daemon = Daemon::of(command, images.dir.path());
    daemon.client(&["md", "add", "md0", "d2"]).ok();
    let detail = daemon.client(&["md", "detail", "md0"]).ok().out;
    assert!(detail.contains("d2"), "{detail}");
    // It is locked as one that the daemon opened.
    images.run(&["serve", "--control", "other"], &["d2"]).fails(1, &["d2", "in use"]);
    daemon.client(&["md", "fail", "md0", "d0"]).ok();
    daemon.client(&["md", "remove", "md0", "d0"]).ok();
    until(Duration::from_secs(20), "the lent disk is not recovered", || {
        let state = daemon.client(&["md", "detail", "md0"]).ok().out;
        state.contains("active sync")
            && !state.contains("rebuilding")
            && !state.contains("degraded")
    });
    daemon.end();
    images.run(&["md", "examine"], &["d2"]).ok();
}

#[test]
fn a_client_that_may_not_open_a_disk_cannot_have_it_added() {
    let images = Images::new(3, 16 * MIB);
    let create = ["md", "create", "--homehost=any", "-l1", "-n2"];
    images.run(&create, &["d0", "d1"]).ok();
    let Some(mut command) = as_user(&images, USER, USER, &[]) else { return };
    fs::set_permissions(images.path("d2"), Permissions::from_mode(0o600)).unwrap();
    let group = USER.to_string();
    let args = ["--control-group", &group, "d0", "d1"];
    let daemon = Daemon::start(images.dir.path(), &args);
    command.args(["md", "add", "md0", "d2", "--control", "control"]);
    output(command).fails(1, &["d2", "Permission denied"]);
    let detail = daemon.client(&["md", "detail", "md0"]).ok().out;
    assert!(!detail.contains("d2"), "{detail}");
    daemon.end();
}

#[test]
fn the_keeper_survives_signals_and_ends_with_its_daemon() {
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    let mut daemon = images.serve(&[]);
    let keeper = keeper(&daemon);
    for signal in ["TERM", "INT", "HUP"] {
        kill(keeper, signal);
    }
    assert!(is_process(keeper) && daemon.is_running());
    daemon.signal("KILL");
    until(Duration::from_secs(10), "the keeper stays", || !is_process(keeper));
    // As ever after this: the next daemon takes the socket's place.
    assert!(images.path("control").exists());
    images.serve(&[]).end();
    assert!(!images.path("control").exists());
}

#[test]
fn without_its_keeper_a_daemon_serves_until_the_user_unmounts() {
    if !can_mount("a daemon without keeper") {
        return;
    }
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    let mount = images.path("mnt");
    fs::create_dir(&mount).unwrap();
    let mut daemon = images.serve(&["--mount", "mnt"]);
    kill(keeper(&daemon), "KILL");
    daemon.signal("TERM");
    std::thread::sleep(Duration::from_millis(300));
    assert!(daemon.is_running() && is_mounted(&mount.canonicalize().unwrap()));
    assert!(fs::metadata(Path::new(&mount).join("dev/md0")).unwrap().len() > 0, "it still serves");
    assert!(Command::new("umount").arg(&mount).status().unwrap().success());
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("keeper"), "{log}");
}
