//! The daemon in its sandbox: disks that clients pass it, the cleanup helper of its mount and sockets, and what it says of itself.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};

use super::early::{can_mount, is_mounted};
use super::in_use::Loop;
use super::run::run;
use super::support::{Daemon, Images, MIB, Nbd, as_user, has_io_uring, program, until};

const USER: u32 = 54321;

/// The cleanup helper of a daemon.
fn helper(daemon: &Daemon) -> u32 {
    let pid = daemon.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let mut all = children.split_whitespace().map(|child| child.parse().unwrap());
    let is_keeper = |child: &u32| {
        fs::read_to_string(format!("/proc/{child}/comm"))
            .is_ok_and(|name| name == "ashlar-cleanup\n")
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

/// The daemon of an ordinary user, to whom `d0`, `d1` and the directory belong from now on. `None` where that is not possible.
fn daemon_of_user(images: &Images) -> Option<Daemon> {
    let mut command = as_user(images, USER, USER, &[])?;
    for name in ["d0", "d1", "."] {
        chown(images.path(name), Some(USER), Some(USER)).unwrap();
    }
    command.args(["serve", "--control", "control", "d0", "d1"]);
    command.env("HOME", images.dir.path());
    Some(Daemon::of(command, images.dir.path()))
}

#[test]
fn a_disk_that_the_daemons_user_cannot_open_is_lent_by_a_client_that_can() {
    let images = Images::new(3, 16 * MIB);
    images.run(&["md", "create", "--homehost=any", "-l1", "-n2"], &["d0", "d1"]).ok();
    fs::set_permissions(images.path("d2"), Permissions::from_mode(0o600)).unwrap();
    let Some(daemon) = daemon_of_user(&images) else { return };
    daemon.client(&["md", "add", "md0", "d2"]).ok();
    let detail = daemon.client(&["md", "detail", "md0"]).ok().out;
    assert!(detail.lines().any(|line| line.ends_with("/d2")), "{detail}");
    // It is locked as one that the daemon opened.
    images.run(&["serve", "--control", "other"], &["d2"]).fails(1, &["d2", "in use"]);
    daemon.client(&["md", "fail", "md0", "d0"]).ok();
    daemon.client(&["md", "remove", "md0", "d0"]).ok();
    until(Duration::from_secs(20), "the passed disk is not recovered", || {
        let state = daemon.client(&["md", "detail", "md0"]).ok().out;
        state.contains("active sync")
            && !state.contains("rebuilding")
            && !state.contains("degraded")
    });
    daemon.end();
    images.run(&["md", "examine"], &["d2"]).ok();
}

#[test]
fn a_block_device_is_lent_too() {
    let images = Images::new(3, 16 * MIB);
    images.run(&["lvm", "vgcreate", "--devices", "d0,d1", "vg"], &["d0", "d1"]).ok();
    images.run(&["lvm", "lvcreate", "--devices", "d0,d1", "-L4M", "-nlv", "vg"], &[]).ok();
    let Some(device) = Loop::over(&images.path("d2")) else { return };
    let node = device.0.to_str().unwrap();
    let Some(daemon) = daemon_of_user(&images) else { return };
    daemon.client(&["lvm", "vgextend", "vg", node]).ok();
    // What is on it goes through the device.
    daemon.client(&["lvm", "lvcreate", "-l3", "-non", "vg", node]).ok();
    let reported = daemon.client(&["lvm", "pvs", "--noheadings", "-o", "pv_name,pv_used"]).ok().out;
    let line = reported.lines().find(|line| line.contains(node));
    assert!(line.is_some_and(|line| line.ends_with("12.00m")), "{reported}");
    images.run(&["serve", "--control", "other"], &[node]).fails(1, &[node, "in use"]);
    daemon.end();
    images.run(&["lvm", "lvs", "--devices", &format!("d0,d1,{node}"), "vg/on"], &[]).ok();
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
    run(command).fails(1, &["d2", "Permission denied"]);
    let detail = daemon.client(&["md", "detail", "md0"]).ok().out;
    assert!(!detail.lines().any(|line| line.ends_with("/d2")), "{detail}");
    daemon.end();
}

/// It controls arrays, but it borrows no right of root's: outside of the sandbox, too, it passes what it can open.
#[test]
fn a_member_of_the_control_group_has_no_file_of_roots_overwritten_and_nothing_connected_to() {
    let images = Images::new(4, 16 * MIB);
    let create = ["md", "create", "--homehost=any", "-l1", "-n2"];
    images.run(&create, &["d0", "d1"]).ok();
    if as_user(&images, USER, USER, &[]).is_none() {
        return;
    }
    fs::set_permissions(images.path("d2"), Permissions::from_mode(0o600)).unwrap();
    let secret = fs::read(images.path("d2")).unwrap();
    let group = USER.to_string();
    let args = ["--no-sandbox", "--control-group", &group, "d0", "d1"];
    let daemon = Daemon::start(images.dir.path(), &args);
    let by_member = |args: &[&str]| {
        let mut command = as_user(&images, USER, USER, &[]).unwrap();
        command.args(args).args(["--control", "control"]);
        run(command)
    };
    for change in [&["md", "add", "md0", "d2"][..], &["md", "re-add", "md0", "d2"]] {
        by_member(change).fails(1, &["d2", "Permission denied"]);
    }
    by_member(&["md", "incremental", "d2"]).fails(1, &["d2", "Permission denied"]);
    assert!(fs::read(images.path("d2")).unwrap() == secret, "it was written to");
    // A server that only root may reach.
    let place = images.path("server");
    let server = UnixListener::bind(&place).unwrap();
    server.set_nonblocking(true).unwrap();
    fs::set_permissions(&place, Permissions::from_mode(0o600)).unwrap();
    let uri = format!("nbd+unix:///?socket={}", place.display());
    for far in [&*uri, "rbd:rbd/image", "ram:16M"] {
        by_member(&["md", "add", "md0", far]).fails(1, &["user 54321 may not have", far]);
    }
    assert_eq!(server.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "it was called");
    // What the member can open, it passes; and what the daemon has, it controls.
    chown(images.path("d3"), Some(USER), Some(USER)).unwrap();
    by_member(&["md", "add", "md0", "d3"]).ok();
    let detail = daemon.client(&["md", "detail", "md0"]).ok().out;
    assert!(detail.lines().any(|line| line.ends_with("/d3")), "{detail}");
    by_member(&["md", "fail", "md0", "d3"]).ok();
    // Root's own calls are carried out with the daemon's rights, as before.
    daemon.client(&["md", "add", "md0", "d2"]).ok();
    daemon.end();
}

/// Sends a call with descriptors, as no client of ours would; returns the reply.
fn pass(daemon: &Daemon, disk: &str, label: &str, file: &File) -> Value {
    let stream = UnixStream::connect(&daemon.control).unwrap();
    let parameters = json!({ "name": "md0", "action": "add", "disk": disk });
    let method = "io.ashlar.Control.Manage";
    let call = json!({ "method": method, "parameters": parameters, "passed": [label] });
    let message = format!("{call}\0");
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let bytes = [IoSlice::new(message.as_bytes())];
    let sent = sendmsg(&stream, &bytes, &mut control, SendFlags::empty()).unwrap();
    assert_eq!(sent, message.len());
    let mut said = Vec::new();
    BufReader::new(&stream).read_until(0, &mut said).unwrap();
    serde_json::from_slice(said.strip_suffix(b"\0").unwrap()).unwrap()
}

/// A path that the daemon would take for something else later: what root's client then names by it is not this file.
#[test]
fn the_path_of_a_lent_disk_is_no_other_disk_and_no_connection() {
    let images = Images::new(4, 16 * MIB);
    images.run(&["md", "create", "--homehost=any", "-l1", "-n2"], &["d0", "d1"]).ok();
    let daemon = Daemon::start(images.dir.path(), &["d0", "d1"]);
    let file = File::options().read(true).write(true).open(images.path("d2")).unwrap();
    let before = fs::read(images.path("d2")).unwrap();
    let path = |name: &str| images.path(name).to_str().unwrap().to_owned();
    let gone = path("moved");
    fs::rename(images.path("d1"), &gone).unwrap();
    let cases = [
        // Another file is there.
        (path("d3"), "the daemon sees another file there"),
        // Nothing is there, and the daemon has a member by that path.
        ("d1".to_owned(), "by that path the daemon has another disk"),
        ("nbd+unix:///?socket=/run/none".to_owned(), "passed"),
        ("ram:16M".to_owned(), "passed"),
    ];
    for (label, why) in cases {
        let reply = pass(&daemon, &label, &label, &file);
        assert!(reply["error"].is_string() && reply.to_string().contains(why), "{label}: {reply}");
    }
    let detail = daemon.client(&["md", "detail", "md0"]).ok().out;
    assert!(detail.contains("State : clean") || detail.contains("State : active"), "{detail}");
    assert!(fs::read(images.path("d2")).unwrap() == before, "it was written to");
    assert!(pass(&daemon, &path("d2"), &path("d2"), &file)["error"].is_null());
    daemon.end();
}

/// The path of a passed disk is its client's word: it does not hide the disk that others find there.
#[test]
fn a_member_is_found_by_what_its_path_leads_to_before_the_word_of_a_client() {
    let images = Images::new(3, 16 * MIB);
    images.run(&["md", "create", "--homehost=any", "-l1", "-n2"], &["d0", "d1"]).ok();
    let daemon = Daemon::start(images.dir.path(), &["d0", "d1"]);
    let file = File::options().read(true).write(true).open(images.path("d2")).unwrap();
    let label = images.path("label").to_str().unwrap().to_owned();
    assert!(pass(&daemon, &label, &label, &file)["error"].is_null());
    for change in ["fail", "remove", "add"] {
        daemon.client(&["md", change, "md0", "d1"]).ok();
    }
    fs::hard_link(images.path("d1"), &label).unwrap();
    let done = daemon.client(&["md", "fail", "md0", &label]).ok();
    assert!(done.out.contains("d1 faulty") || done.err.contains("d1 faulty"), "{done:?}");
    daemon.end();
}

/// The author of an image does not choose where it is parsed.
#[test]
fn no_byte_of_a_disk_switches_the_sandbox_off() {
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    let plain = File::create(images.path("plain")).unwrap();
    plain.set_len(16 * MIB).unwrap();
    // A uberblock of ZFS, in the first and the second label, of the disk and of its first partition.
    let magic = 0x00ba_b10c_u64.to_le_bytes();
    for at in [128 << 10, 384 << 10, (1 << 20) + (128 << 10), (1 << 20) + (384 << 10)] {
        plain.write_all_at(&magic, at).unwrap();
    }
    let member = File::options().write(true).open(images.path("d0")).unwrap();
    member.write_all_at(&magic, 128 << 10).unwrap();
    let daemon = images.serve(&["plain"]);
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("sandbox: on\n"), "{status}");
    daemon.end();
}

#[test]
fn the_keeper_survives_signals_and_ends_with_its_daemon() {
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    let daemon = images.serve(&[]);
    for signal in ["TERM", "INT", "HUP"] {
        kill(helper(&daemon), signal);
    }
    daemon.end();
    assert!(!images.path("control").exists(), "the cleanup helper has not removed it");
    let daemon = images.serve(&[]);
    let helper = helper(&daemon);
    daemon.signal("KILL");
    until(Duration::from_secs(10), "the cleanup helper stays", || !is_process(helper));
    // As ever after this: the next daemon takes the socket's place.
    assert!(images.path("control").exists());
    images.serve(&[]).end();
    assert!(!images.path("control").exists());
}

#[test]
fn without_its_keeper_a_daemon_serves_until_the_user_unmounts() {
    if !can_mount("a daemon without cleanup helper") {
        return;
    }
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    let mount = images.path("mnt");
    fs::create_dir(&mount).unwrap();
    let mut daemon = images.serve(&["--mount", "mnt"]);
    kill(helper(&daemon), "KILL");
    daemon.signal("TERM");
    std::thread::sleep(Duration::from_millis(300));
    assert!(daemon.is_running() && is_mounted(&mount.canonicalize().unwrap()));
    assert!(fs::metadata(Path::new(&mount).join("dev/md0")).unwrap().len() > 0, "it still serves");
    assert!(Command::new("umount").arg(&mount).status().unwrap().success());
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("cleanup helper"), "{log}");
}

/// The attacker as a library; with `stay` the daemon lives on.
fn attacker(images: &Images, stay: bool) -> PathBuf {
    let library = images.path("attack.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/confined/attack.c");
    let more = if stay { "-DSTAY" } else { "-DEXIT" };
    let args = ["-shared", "-fPIC", "-w", more, "-o", library.to_str().unwrap(), source];
    let output = Command::new("cc").args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    library
}

/// A daemon with the attacker inside, which serves by NBD and where possible a mount.
fn attacked(images: &Images, io: &str, args: &[&str], stay: bool) -> Command {
    let place = images.path("place");
    fs::create_dir_all(&place).unwrap();
    fs::create_dir_all(images.path("mnt")).unwrap();
    for name in ["other", "victim", "moved", "by-ring"] {
        File::create(place.join(name)).unwrap().set_len(MIB).unwrap();
    }
    let mut command = program();
    command.args(["serve", "--control", "control", "--nbd", "unix:nbd"]).args(args);
    if can_mount("a daemon under attack") {
        command.args(["--mount", "mnt"]);
    }
    command.args(images.refs()).current_dir(images.dir.path());
    command.env("ASHLAR_IO", io).env("LD_PRELOAD", attacker(images, stay));
    command.env("ATTACK_REPORT", images.path("report")).env("ATTACK_DIR", place);
    command
}

/// The attempts that succeeded, and how many there were. No data were sent to an address, which takes no socket to be refused.
fn successes(images: &Images) -> (Vec<String>, usize) {
    let report = fs::read_to_string(images.path("report")).unwrap();
    fs::remove_file(images.path("report")).unwrap();
    assert!(report.ends_with("end\n"), "{report}");
    assert!(
        !report.contains("\nsocket-inet EPERM\n") || report.contains("\nsendto-address EPERM\n")
    );
    let ok = report.lines().filter_map(|line| line.strip_suffix(" ok")).map(str::to_owned);
    (ok.collect(), report.lines().count() - 1)
}

/// It may make a socket for a scrub, which it can bind in its own directory alone.
const ALLOWED: [&str; 1] = ["socket-unix"];

#[test]
fn a_daemon_that_is_taken_over_reaches_nothing_and_serves_on() {
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    let command = attacked(&images, "threads", &[], true);
    let daemon = Daemon::of(command, images.dir.path());
    let (ok, count) = successes(&images);
    assert_eq!((ok, count >= 67), (ALLOWED.map(str::to_owned).to_vec(), true), "{count}");
    let data = vec![7; 8192];
    let mut client = Nbd::open(&images.path("nbd"), "md0");
    client.write_at(4096, &data);
    client.flush();
    assert_eq!(Nbd::open(&images.path("nbd"), "md0").read_at(4096, 8192), data);
    drop(client);
    let mount = images.path("mnt");
    if is_mounted(&mount.canonicalize().unwrap()) {
        assert!(fs::metadata(mount.join("dev/md0")).unwrap().len() > 0);
    }
    daemon.end();
    assert!(!images.path("control").exists() && !images.path("nbd").exists());
    assert!(!is_mounted(&mount.canonicalize().unwrap()));
}

#[test]
fn a_daemon_that_is_taken_over_reaches_nothing_by_its_ring() {
    if !has_io_uring("an attack by the ring") {
        return;
    }
    for (args, is_inside) in [(&[][..], true), (&["--no-sandbox"], false)] {
        let images = Images::array(2, 16 * MIB, &["-l1"]);
        let run = run(attacked(&images, "uring", args, false));
        let (ok, count) = successes(&images);
        if is_inside {
            assert_eq!((ok, count >= 77), (ALLOWED.map(str::to_owned).to_vec(), true), "{count}");
        } else {
            for name in ["open-passwd", "open-write", "execve", "socket-inet", "ring-openat"] {
                assert!(ok.iter().any(|it| it == name), "{name}: {ok:?} {}", run.err);
            }
        }
        // The process has gone without a word: its mount is dead.
        if is_mounted(&images.path("mnt").canonicalize().unwrap_or_else(|_| images.path("mnt"))) {
            assert!(Command::new("umount").arg(images.path("mnt")).status().unwrap().success());
        }
    }
}

/// The kernel's ring needs a thread for each operation on such a file.
#[test]
fn an_image_on_fuse_is_served_in_the_sandbox() {
    if !can_mount("an image on FUSE") {
        return;
    }
    let images = Images::array(2, 16 * MIB, &["-l1"]);
    fs::create_dir(images.path("mnt")).unwrap();
    let below = images.serve(&["--mount", "mnt"]);
    let mut command = program();
    command.args(["serve", "--control", "other", "--nbd", "unix:nbd", "mnt/dev/md0"]);
    command.current_dir(images.dir.path());
    let above = Daemon::of(command, images.dir.path());
    let data = vec![5; 4096];
    let mut client = Nbd::open(&images.path("nbd"), "md0");
    client.write_at(8192, &data);
    client.flush();
    assert_eq!(client.read_at(8192, 4096), data);
    drop(client);
    above.end();
    below.end();
}
