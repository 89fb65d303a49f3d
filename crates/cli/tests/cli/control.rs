//! The control socket: raw varlink, and the commands that use it.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Daemon, Images, MIB, program, until};

/// A raw connection.
pub(super) struct RawConnection(UnixStream);

impl RawConnection {
    fn to(daemon: &Daemon) -> Self {
        Self::at(&daemon.control)
    }

    pub(super) fn at(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self(stream)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn receive(&mut self) -> Value {
        let mut message = Vec::new();
        let mut byte = [0];
        loop {
            self.0.read_exact(&mut byte).unwrap();
            if byte == [0] {
                return serde_json::from_slice(&message).unwrap();
            }
            message.push(byte[0]);
        }
    }

    pub(super) fn call(&mut self, method: &str, parameters: Value) -> Value {
        let call = json!({ "method": method, "parameters": parameters });
        self.send(format!("{call}\0").as_bytes());
        self.receive()
    }

    /// Whether the daemon has closed the connection.
    fn is_closed(&mut self) -> bool {
        match self.0.read(&mut [0]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

fn daemon() -> (Images, Daemon) {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=data"]);
    let daemon = images.serve(&[]);
    (images, daemon)
}

const CONTROL: &str = "io.ashlar.Control";

fn own(method: &str) -> String {
    format!("{CONTROL}.{method}")
}

#[test]
fn the_service_describes_itself() {
    let (_images, daemon) = daemon();
    let mut raw = RawConnection::to(&daemon);
    let info = raw.call("org.varlink.service.GetInfo", json!({}));
    assert_eq!(info["parameters"]["interfaces"], json!(["org.varlink.service", CONTROL]));
    for interface in ["org.varlink.service", CONTROL] {
        let method = "org.varlink.service.GetInterfaceDescription";
        let reply = raw.call(method, json!({ "interface": interface }));
        let text = reply["parameters"]["description"].as_str().unwrap();
        assert!(text.contains(&format!("interface {interface}\n")), "{text}");
    }
    let unknown = json!({ "interface": "a.b" });
    let reply = raw.call("org.varlink.service.GetInterfaceDescription", unknown.clone());
    let error = json!({ "error": "org.varlink.service.InterfaceNotFound", "parameters": unknown });
    assert_eq!(reply, error);
    daemon.end();
}

#[test]
fn values_are_read_and_written() {
    let (_images, daemon) = daemon();
    let mut raw = RawConnection::to(&daemon);
    let path = "sys/block/md127/queue/nomerges";
    let get = |raw: &mut RawConnection| raw.call(&own("Get"), json!({ "path": path }));
    assert_eq!(get(&mut raw), json!({ "parameters": { "value": "0\n" } }));
    let set = raw.call(&own("Set"), json!({ "path": path, "value": "2" }));
    assert_eq!(set, json!({ "parameters": {} }));
    assert_eq!(get(&mut raw)["parameters"]["value"], "2\n");
    let list = raw.call(&own("List"), json!({ "path": "dev" }));
    let entries = json!([
        { "name": "md127", "kind": "volume" },
        { "name": "md", "kind": "directory" },
    ]);
    assert_eq!(list["parameters"]["entries"], entries);
    let status = raw.call(&own("Status"), json!({}));
    let volume = &status["parameters"]["status"]["volumes"][0];
    assert_eq!((&volume["alias"], &volume["level"]), (&json!("md/data"), &json!("raid1")));
    for name in ["md127", "md/data"] {
        let detail = raw.call(&own("Detail"), json!({ "name": name }));
        assert_eq!(detail["parameters"]["detail"]["raid_devices"], 2);
    }
    daemon.end();
}

#[test]
fn errors_have_their_names() {
    let (_images, daemon) = daemon();
    let mut raw = RawConnection::to(&daemon);
    let path = |path: &str| json!({ "path": path });
    let set = |at: &str, value: &str| json!({ "path": at, "value": value });
    let cases = [
        (own("Get"), path("no/such"), own("NotFound")),
        (own("Get"), path("sys"), own("IsDirectory")),
        (own("Get"), path("dev/md127"), own("NotReadable")),
        (own("Set"), set("sys/block/md127/size", "1"), own("NotWritable")),
        (own("Set"), set("sys/block/md127/queue/nomerges", "9"), own("InvalidValue")),
        (own("Set"), set("sys/block/md127/queue/nomerges", ""), own("InvalidValue")),
        (own("List"), path("proc/mdstat"), own("NotADirectory")),
        (own("List"), path("nowhere"), own("NotFound")),
        (own("Detail"), json!({ "name": "md1" }), own("NotFound")),
        (own("Get"), json!({}), "org.varlink.service.InvalidParameter".to_owned()),
        (own("Get"), json!({ "path": 1 }), "org.varlink.service.InvalidParameter".to_owned()),
        (own("Status"), path("a"), "org.varlink.service.InvalidParameter".to_owned()),
        (own("Frobnicate"), json!({}), "org.varlink.service.MethodNotFound".to_owned()),
        ("a.b.C".to_owned(), json!({}), "org.varlink.service.InterfaceNotFound".to_owned()),
        ("C".to_owned(), json!({}), "org.varlink.service.MethodNotFound".to_owned()),
    ];
    for (method, parameters, error) in cases {
        let reply = raw.call(&method, parameters.clone());
        assert_eq!(reply["error"], json!(error), "{method} {parameters}: {reply}");
    }
    daemon.end();
}

#[test]
fn garbage_costs_its_own_connection_only() {
    let (_images, daemon) = daemon();
    let mut good = RawConnection::to(&daemon);
    let deep = [b"{\"method\":".repeat(5000), b"\0".to_vec()].concat();
    for garbage in [
        &b"\0"[..],
        b"hello\0",
        b"{}\0",
        b"[]\0",
        b"{\"method\":1}\0",
        b"\xff\xfe\0",
        b"{\"method\":\"a.B\",\"unknown\":1}\0",
        &deep,
        &vec![b'x'; (1 << 20) + 1],
    ] {
        let mut bad = RawConnection::to(&daemon);
        bad.send(garbage);
        assert!(
            bad.is_closed(),
            "{:?}",
            String::from_utf8_lossy(&garbage[..garbage.len().min(40)])
        );
        let status = good.call(&own("Status"), json!({}));
        assert_eq!(status["parameters"]["status"]["pid"], daemon.pid());
    }
    // A client that disconnects in the middle of a message.
    RawConnection::to(&daemon).send(b"{\"method\":");
    assert!(good.call(&own("Status"), json!({}))["error"].is_null());
    daemon.end();
}

#[test]
fn calls_may_be_cut_and_joined_and_oneway() {
    let (_images, daemon) = daemon();
    let mut raw = RawConnection::to(&daemon);
    let get = json!({ "method": own("Get"), "parameters": { "path": "proc/mdstat" } });
    let oneway = json!({
        "method": own("Set"),
        "parameters": { "path": "sys/block/md127/queue/nomerges", "value": "1" },
        "oneway": true,
    });
    let check = json!({
        "method": own("Get"), "parameters": { "path": "sys/block/md127/queue/nomerges" }
    });
    let stream = format!("{get}\0{oneway}\0{check}\0");
    for piece in stream.as_bytes().chunks(7) {
        raw.send(piece);
    }
    let first = raw.receive();
    let mdstat = first["parameters"]["value"].as_str().unwrap();
    assert!(mdstat.contains("\nmd127 : active raid1 d1[1] d0[0]\n"), "{mdstat}");
    assert_eq!(raw.receive()["parameters"]["value"], "1\n");
    daemon.end();
}

#[test]
fn connections_without_calls_keep_no_command_out() {
    let (_images, daemon) = daemon();
    let mut many: Vec<RawConnection> = (0..80).map(|_| RawConnection::to(&daemon)).collect();
    // Those that have waited longest have given their places to later ones.
    assert!(many[0].is_closed());
    assert!(many[79].call(&own("Status"), json!({}))["error"].is_null());
    daemon.client(&["status"]).ok();
    daemon.client(&["stop", "--timeout", "10"]).ok();
    assert_eq!(daemon.wait().0.code(), Some(0));
}

/// As one may that has no place for it: this is not the daemon's end.
#[test]
fn stop_fails_when_it_is_not_answered_at_all() {
    let images = Images::new(0, 0);
    let listener = UnixListener::bind(images.path("control")).unwrap();
    let closing = std::thread::spawn(move || {
        // The command tries again once.
        listener.incoming().take(2).for_each(drop);
    });
    let stopped = images.run(&["stop", "--control", "control", "--timeout", "5"], &[]);
    stopped.fails(1, &["cannot talk to the daemon"]);
    drop(UnixStream::connect(images.path("control")));
    closing.join().unwrap();
}

#[test]
fn the_socket_is_its_owners_alone() {
    let (_images, daemon) = daemon();
    let mode = std::fs::metadata(&daemon.control).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let path = daemon.control.clone();
    daemon.end();
    assert!(!path.exists());
}

#[test]
fn the_commands_ask_the_daemon() {
    let (_images, daemon) = daemon();
    let path = "sys/block/md127/queue/discard_max_bytes";
    daemon.client(&["set", path, "1048576"]).ok();
    assert_eq!(daemon.client(&["get", path]).ok().out, "1048576\n");
    assert_eq!(daemon.client(&["get", &format!("/{path}/")]).ok().out, "1048576\n");
    daemon.client(&["set", path, "x"]).fails(1, &[path, "`x` is not a number"]);
    daemon.client(&["set", path, "-1"]).fails(1, &["`-1` is not a number"]);
    daemon.client(&["set", "sys/block/md127/size", "1"]).fails(1, &["cannot be written"]);
    daemon.client(&["get", "sys/nothing"]).fails(1, &["sys/nothing", "there is no such thing"]);
    let all = daemon.client(&["get", "sys/block/md127"]).ok().out;
    assert!(all.contains(&format!("{path}: 1048576\n")), "{all}");
    assert!(all.contains("sys/block/md127/md/dev-d1/state: in_sync\n"), "{all}");
    let json: Value =
        serde_json::from_str(&daemon.client(&["get", "--json", ""]).ok().out).unwrap();
    assert_eq!(json["sys/block/md127/md/level"], "raid1");
    assert_eq!(json["sys/block/d0/size"], "65536");
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("md127 (md/data): raid1 31M, clean, 2 of 2 devices\n"), "{status}");
    let detail = daemon.client(&["md", "detail", "/dev/md/data"]).ok().out;
    assert!(detail.starts_with("/dev/md127:\n           Version : 1.2\n"), "{detail}");
    daemon.client(&["md", "detail", "md3"]).fails(1, &["md3"]);
    daemon.client(&["stop"]).ok();
    assert_eq!(daemon.wait().0.code(), Some(0));
}

const PATIENCE: Duration = Duration::from_secs(10);

/// A read of a socket with a time limit returns EINTR when the process is stopped and continued (signal(7)).
#[test]
fn a_client_that_is_stopped_for_a_moment_still_gets_its_answer() {
    let (_images, daemon) = daemon();
    daemon.signal("STOP");
    let child = program()
        .args(["status", "--control"])
        .arg(&daemon.control)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    until(PATIENCE, "it waits for an answer", || {
        let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        call.starts_with("45 ") || call.starts_with("207 ") // recvfrom(2) on x86-64, and elsewhere
    });
    for signal in ["-STOP", "-CONT"] {
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let stopped = signal == "-STOP";
        until(PATIENCE, "it is stopped, and runs again", || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.contains(" T ") == stopped
        });
    }
    daemon.signal("CONT");
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
