//! Who may use the control socket, and where it is by default. The other users are ones that the system does not know.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::{Value, json};

use super::support::{Daemon, Images, MIB, Run, as_user, program, run};

const GROUP: u32 = 54400;
const USER: u32 = 54322;
const OTHER: u32 = 54323;

/// Runs `status` as a user, with the daemon's socket.
fn status_as(images: &Images, user: u32, group: u32, groups: &[u32]) -> Option<Run> {
    let mut command = as_user(images, user, group, groups)?;
    command.args(["status", "--control", "control"]);
    Some(run(command))
}

/// Lets every user connect, as an administrator may by mistake.
fn open_to_all(daemon: &Daemon) {
    fs::set_permissions(&daemon.control, Permissions::from_mode(0o666)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn another_user_is_refused_even_if_the_file_lets_it_in() {
    let images = Images::new(1, MIB);
    let daemon = images.serve(&[]);
    assert_eq!(mode(&daemon.control), 0o600);
    let Some(shut) = status_as(&images, USER, 0, &[]) else { return };
    shut.fails(1, &["cannot reach the daemon", "ermission denied", "--control-group"]);
    open_to_all(&daemon);
    let refused = status_as(&images, USER, 0, &[0]).unwrap();
    let me = rustix::process::geteuid().as_raw();
    let who = if me == 0 { "root".to_owned() } else { format!("root and user {me}") };
    refused.fails(
        1,
        &[
            &format!("ashlar: user {USER} may not control this daemon, only {who} may\n"),
            "hint: ashlar serve --control-group GROUP",
        ],
    );
    daemon.client(&["status"]).ok();
    let log = daemon.end();
    assert!(log.contains("refused to control the daemon") && log.contains("user=54322"), "{log}");
}

#[test]
fn the_daemon_s_own_user_and_root_may() {
    let images = Images::new(1, MIB);
    let Some(mut command) = as_user(&images, USER, USER, &[]) else { return };
    fs::set_permissions(images.dir.path(), Permissions::from_mode(0o777)).unwrap();
    command.args(["serve", "--control", "control", "ram:1M"]);
    let daemon = Daemon::of(command, images.dir.path());
    assert_eq!(mode(&daemon.control), 0o600);
    status_as(&images, USER, OTHER, &[]).unwrap().ok();
    daemon.client(&["status"]).ok();
    open_to_all(&daemon);
    let refused = status_as(&images, OTHER, USER, &[USER]).unwrap();
    refused.fails(1, &["only root and user 54322 may"]);
    daemon.end();
}

#[test]
fn members_of_the_control_group_may() {
    let images = Images::new(1, MIB);
    if as_user(&images, USER, USER, &[]).is_none() {
        return;
    }
    let daemon = images.serve(&["--control-group", "54400"]);
    assert_eq!(mode(&daemon.control), 0o660);
    assert_eq!(fs::metadata(&daemon.control).unwrap().gid(), GROUP);
    status_as(&images, USER, GROUP, &[]).unwrap().ok();
    // More groups than most users have.
    let many: Vec<u32> = (50000..50300).chain([GROUP]).collect();
    status_as(&images, USER, OTHER, &many).unwrap().ok();
    let shut = status_as(&images, OTHER, OTHER, &[USER]).unwrap();
    shut.fails(1, &["cannot reach the daemon", "ermission denied"]);
    open_to_all(&daemon);
    let refused = status_as(&images, GROUP, OTHER, &[USER]).unwrap();
    refused.fails(1, &["only root and members of the group 54400 may", "log in again"]);
    daemon.end();
}

#[test]
fn the_control_group_is_a_key_and_may_be_a_name() {
    let images = Images::new(1, MIB);
    if as_user(&images, USER, USER, &[]).is_none() {
        return;
    }
    let text = "disks = [\"d0\"]\ncontrol = \"control\"\ncontrol_group = \"daemon\"\n";
    fs::write(images.path("stack.toml"), text).unwrap();
    let gid = |daemon: &Daemon| fs::metadata(&daemon.control).unwrap().gid();
    let start = |args: &[&str]| {
        let mut command = program();
        command.args(["serve", "--config", "stack.toml"]).args(args);
        Daemon::of(
            {
                command.current_dir(images.dir.path());
                command
            },
            images.dir.path(),
        )
    };
    let daemon = start(&[]);
    let groups = fs::read_to_string("/etc/group").unwrap();
    let line = groups.lines().find_map(|line| line.strip_prefix("daemon:")).unwrap();
    assert_eq!(gid(&daemon).to_string(), line.split(':').nth(1).unwrap());
    daemon.end();
    let daemon = start(&["--control-group=54400"]);
    assert_eq!(gid(&daemon), GROUP, "the command line takes precedence");
    daemon.end();
}

#[test]
fn without_such_a_group_no_disk_is_opened() {
    let images = Images::new(0, 0);
    let serve = ["serve", "/no/such/disk", "--control", "control", "--control-group"];
    for group in ["no such group", "", "4294967295"] {
        images
            .run(&serve, &[group])
            .fails(1, &["no such group for the control socket", group, "--control-group"]);
    }
    assert!(!images.path("control").exists());
}

#[test]
fn a_user_gives_the_socket_only_to_a_group_of_its_own() {
    let images = Images::new(1, MIB);
    let Some(mut command) = as_user(&images, USER, USER, &[]) else { return };
    let to_all = || fs::set_permissions(images.dir.path(), Permissions::from_mode(0o777)).unwrap();
    let args = ["serve", "--control", "control", "--control-group=54400", "ram:1M"];
    command.args(args);
    to_all();
    run(command).fails(1, &["cannot open the control socket", "control", "root or a member"]);
    assert!(!images.path("control").exists());
    let mut command = as_user(&images, USER, USER, &[GROUP]).unwrap();
    command.args(args);
    to_all();
    let daemon = Daemon::of(command, images.dir.path());
    status_as(&images, OTHER, GROUP, &[]).unwrap().ok();
    daemon.end();
}

/// A socket that members cannot reach is worth a word.
#[test]
fn a_directory_that_keeps_the_group_out_is_mentioned() {
    let images = Images::new(1, MIB);
    if as_user(&images, USER, USER, &[]).is_none() {
        return;
    }
    for (mode, is_mentioned) in [(0o700, true), (0o750, false), (0o701, false)] {
        fs::set_permissions(images.dir.path(), Permissions::from_mode(mode)).unwrap();
        let control = images.path("control");
        let control = ["--control-group=54400", "--control", control.to_str().unwrap()];
        let mut command = program();
        command.arg("serve").args(control).arg("d0").current_dir(images.dir.path());
        let log = Daemon::of(command, images.dir.path()).end();
        assert_eq!(log.contains("cannot reach the control socket"), is_mentioned, "{log}");
    }
}

/// A connection that another user made.
fn connect_as_other(daemon: &Daemon) -> UnixStream {
    let control = daemon.control.clone();
    let connect = move || {
        // Of this thread only.
        let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        UnixStream::connect(control).unwrap()
    };
    let stream = std::thread::spawn(connect).join().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

#[test]
fn a_refused_peer_gets_one_error_whatever_it_calls_and_is_disconnected() {
    let images = Images::new(1, MIB);
    if as_user(&images, USER, USER, &[]).is_none() {
        return;
    }
    let daemon = images.serve(&[]);
    open_to_all(&daemon);
    // Sends `parts`; returns what the daemon says until it closes the connection.
    let talk = |parts: &[&str]| {
        let mut stream = connect_as_other(&daemon);
        for part in parts {
            stream.write_all(part.as_bytes()).unwrap();
        }
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said
    };
    for call in [
        r#"{"method":"io.ashlar.Control.Stop","parameters":{"force":true}}"#,
        r#"{"method":"io.ashlar.Control.Stop","parameters":{},"more":true}"#,
        r#"{"method":"io.ashlar.Control.Trace","parameters":{},"more":true}"#,
        r#"{"method":"org.varlink.service.GetInfo"}"#,
        r#"{"method":"no.such.Method"}"#,
    ] {
        let (first, rest) = call.split_at(9);
        let said = talk(&[first, rest, "\0"]);
        let said = said.strip_suffix('\0').unwrap();
        let reply: Value = serde_json::from_str(said).unwrap_or_else(|_| panic!("{said:?}"));
        assert_eq!(reply["error"], json!("io.ashlar.Control.Refused"), "{said}");
        let reason = reply["parameters"]["reason"].as_str().unwrap();
        assert!(reason.starts_with("user 54322 may not control this daemon"), "{said}");
    }
    assert_eq!(talk(&[r#"{"method":"io.ashlar.Control.Stop","oneway":true}"#, "\0"]), "");
    assert_eq!(talk(&["no call at all", "\0"]), "");
    daemon.client(&["status"]).ok();
    daemon.end();
}

#[test]
fn refused_peers_take_no_places_of_others() {
    let images = Images::new(1, MIB);
    if as_user(&images, USER, USER, &[]).is_none() {
        return;
    }
    let daemon = images.serve(&[]);
    open_to_all(&daemon);
    let silent: Vec<UnixStream> = (0..200).map(|_| connect_as_other(&daemon)).collect();
    daemon.client(&["status"]).ok();
    drop(silent);
    daemon.end();
}

/// A directory of a user in `/tmp`, removed with its contents.
struct UserDirectory(PathBuf);

impl UserDirectory {
    fn of(user: u32) -> Self {
        let own = Self(PathBuf::from(format!("/tmp/ashlar-{user}")));
        own.clear();
        own
    }

    fn clear(&self) {
        for result in [fs::remove_file(&self.0), fs::remove_dir_all(&self.0)] {
            let (Ok(()) | Err(_)) = result;
        }
    }
}

impl Drop for UserDirectory {
    fn drop(&mut self) {
        self.clear();
    }
}

#[test]
fn without_a_runtime_directory_the_daemon_and_its_clients_meet_all_the_same() {
    let user = 54331;
    let images = Images::new(1, MIB);
    let Some(mut command) = as_user(&images, user, user, &[]) else { return };
    let own = UserDirectory::of(user);
    let client = |args: &[&str]| {
        let mut command = as_user(&images, user, user, &[]).unwrap();
        command.args(args);
        run(command)
    };
    let socket = own.0.join("ashlar.sock");
    client(&["status"]).fails(1, &["cannot reach the daemon", socket.to_str().unwrap()]);
    assert!(!own.0.exists(), "a client makes nothing");
    command.args(["serve", "ram:1M"]);
    let daemon = Daemon::of(command, images.dir.path());
    assert_eq!(mode(&own.0), 0o700);
    assert_eq!(mode(&socket), 0o600);
    client(&["status"]).ok();
    client(&["stop"]).ok();
    let (ended, log) = daemon.wait();
    assert_eq!(ended.code(), Some(0), "{log}");
    assert!(!socket.exists());
    // The directory stays, and serves again.
    let mut command = as_user(&images, user, user, &[]).unwrap();
    command.args(["serve", "ram:1M"]).env("XDG_RUNTIME_DIR", "relative");
    let daemon = Daemon::of(command, images.dir.path());
    assert!(socket.exists());
    daemon.end();
}

#[test]
fn a_directory_of_somebody_else_in_its_place_is_refused() {
    let user = 54332;
    let images = Images::new(1, MIB);
    if as_user(&images, user, user, &[]).is_none() {
        return;
    }
    let own = UserDirectory::of(user);
    let path = own.0.to_str().unwrap();
    let both_refuse = |why: &str| {
        for args in [["serve", "ram:1M"].as_slice(), &["status"]] {
            let mut command = as_user(&images, user, user, &[]).unwrap();
            command.args(args);
            run(command).fails(1, &["no safe place for the control socket", path, why, "hint: "]);
        }
    };
    // That of an attacker, who could pose as the daemon.
    DirBuilder::new().mode(0o777).create(&own.0).unwrap();
    both_refuse("it belongs to user 0");
    chown(&own.0, Some(user), Some(user)).unwrap();
    fs::set_permissions(&own.0, Permissions::from_mode(0o755)).unwrap();
    both_refuse("its permissions are 755, not 700");
    own.clear();
    let safe = images.path("safe");
    DirBuilder::new().mode(0o700).create(&safe).unwrap();
    chown(&safe, Some(user), Some(user)).unwrap();
    symlink(&safe, &own.0).unwrap();
    both_refuse("it is not a directory");
}
