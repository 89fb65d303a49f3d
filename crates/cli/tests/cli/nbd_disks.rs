//! Exports of other NBD servers as disks.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::support::{Daemon, MIB, Nbd, ashlar_in, until};

const PATIENCE: Duration = Duration::from_secs(30);

/// nbdkit, which is killed when it is dropped.
struct Nbdkit {
    child: Child,
    uri: String,
}

impl Nbdkit {
    /// Serves a file on the socket `name`.
    fn start(dir: &Path, name: &str, file: &str) -> Self {
        let socket = dir.join(name);
        let (Ok(()) | Err(_)) = std::fs::remove_file(&socket);
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--unix"]).arg(&socket).arg("file").arg(dir.join(file));
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let this = Self { child, uri };
        until(PATIENCE, "nbdkit", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        this
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn images(sizes: &[u64]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for (number, size) in sizes.iter().enumerate() {
        let file = std::fs::File::create(dir.path().join(format!("d{number}"))).unwrap();
        file.set_len(*size).unwrap();
    }
    dir
}

#[test]
fn an_array_of_an_export_and_a_file_survives_the_server() {
    let dir = images(&[64 * MIB, 64 * MIB]);
    let dir = dir.path();
    let server = Nbdkit::start(dir, "far", "d1");
    let uri = server.uri.clone();
    let create = [
        "md",
        "create",
        "--level=1",
        "--raid-devices=2",
        "--name=data",
        "--bitmap=internal",
        "--assume-clean",
    ];
    ashlar_in(dir, &[&create[..], &["d0", &uri]].concat()).ok();
    let scanned = ashlar_in(dir, &["scan", "d0", &uri]).ok().out;
    assert!(scanned.contains("raid1") && scanned.contains(&uri), "{scanned}");
    ashlar_in(dir, &["md", "examine", &uri]).ok();

    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "d0", &uri]);
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    volume.write_at(0, &[1; 4096]);
    volume.flush();
    drop(server);
    volume.write_at(4096, &[2; 4096]);
    volume.flush();
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("1 of 2 devices"), "{status}");
    let detail = daemon.client(&["md", "detail", "md/data"]).ok().out;
    assert!(detail.contains("faulty"), "{detail}");

    // The server is back: what it missed is copied.
    let server = Nbdkit::start(dir, "far", "d1");
    daemon.client(&["md", "remove", "md/data", &uri]).ok();
    until(PATIENCE, "the member comes back", || {
        daemon.client(&["md", "re-add", "md/data", &uri]).code == Some(0)
    });
    daemon.client(&["md", "wait", "md/data"]).ok();
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("2 of 2 devices"), "{status}");
    drop(volume);
    daemon.end();

    // The export alone has all of it.
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "--run", &uri]);
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    assert_eq!(volume.read_at(0, 8192), [[1; 4096], [2; 4096]].concat());
    drop(volume);
    daemon.end();
    drop(server);
}

#[test]
fn an_export_that_cannot_be_used_is_refused() {
    let dir = images(&[8 * MIB]);
    let dir = dir.path();
    let open = |uri: &str| ashlar_in(dir, &["serve", "--control", "control", uri]);
    open("nbd://").fails(1, &["nbd://", "a host is missing", "nbd://HOST[:PORT]/EXPORT"]);
    open("nbd://h:x/e").fails(1, &["`x` is no port"]);
    open("nbds://h/e").fails(1, &["TLS is not supported"]);
    open("nbd+unix:///e").fails(1, &["the socket is missing"]);
    open("nbd+unix:///?socket=nothing").fails(1, &["nothing: No such file"]);
    let server = Nbdkit::start(dir, "far", "d0");
    let uri = server.uri.as_str();
    let twice = ashlar_in(dir, &["serve", "--control", "control", uri, uri]);
    twice.fails(1, &["given twice", "it is the same export"]);
}
