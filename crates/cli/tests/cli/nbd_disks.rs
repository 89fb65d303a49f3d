//! Exports of other NBD servers as disks.

use std::os::unix::fs::FileExt;
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
        Self::with(dir, name, file, &[])
    }

    /// As [`Self::start`], with delays of nbdkit's filter.
    fn with(dir: &Path, name: &str, file: &str, delays: &[&str]) -> Self {
        let socket = dir.join(name);
        let (Ok(()) | Err(_)) = std::fs::remove_file(&socket);
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--unix"]).arg(&socket).args(["--filter=delay", "file"]);
        command.arg(dir.join(file)).args(delays);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let this = Self { child, uri };
        until(PATIENCE, "nbdkit", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        this
    }
}

impl Nbdkit {
    /// The connections that it has.
    fn clients(&self) -> usize {
        let (_, socket) = self.uri.split_once('=').unwrap();
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        // The sixth column is the state: 03 is connected. The ends of the clients have no path.
        let is_client = |line: &&str| {
            let columns = line.split_whitespace().collect::<Vec<_>>();
            columns.get(5) == Some(&"03") && columns.get(7) == Some(&socket)
        };
        table.lines().filter(is_client).count()
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

/// Makes a RAID1 with a bitmap of the file `d0` and an export.
fn mirror(dir: &Path, uri: &str) {
    let create = [
        "md",
        "create",
        "--level=1",
        "--raid-devices=2",
        "--name=data",
        "--bitmap=internal",
        "--bitmap-chunk=64K",
        "--assume-clean",
    ];
    ashlar_in(dir, &[&create[..], &["d0", uri]].concat()).ok();
}

/// A number of the statistics of the disk of this name.
fn stat(daemon: &Daemon, name: &str, column: usize) -> u64 {
    let stat = daemon.client(&["get", &format!("sys/block/{name}/stat")]).ok().out;
    stat.split_whitespace().nth(column).unwrap().parse().unwrap()
}

/// The bytes written so far to the disk of this name.
fn written(daemon: &Daemon, name: &str) -> u64 {
    512 * stat(daemon, name, 6)
}

/// This member of the array alone holds two blocks of these bytes.
pub(super) fn holds_alone(dir: &Path, uri: &str, bytes: [u8; 2]) {
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "--run", uri]);
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    assert_eq!(volume.read_at(0, 8192), bytes.map(|byte| [byte; 4096]).concat());
    drop(volume);
    daemon.end();
}

/// A new bitmap has all bits set, until the first write is done with.
fn clear_bits(dir: &Path, volume: &mut Nbd) {
    volume.write_at(0, &[9; 4096]);
    until(PATIENCE, "the bits are cleared", || {
        let bitmap = ashlar_in(dir, &["md", "examine", "--bitmap", "d0"]).ok().out;
        !bitmap.contains("100.0%")
    });
}

/// The daemon ends while the server is away, so the next one starts the array without the export.
#[test]
fn a_member_that_was_away_when_the_last_daemon_ended_is_re_added() {
    let dir = images(&[64 * MIB, 64 * MIB]);
    let dir = dir.path();
    let server = Nbdkit::start(dir, "far", "d1");
    let uri = server.uri.clone();
    mirror(dir, &uri);
    let serve = |readd: &str| Daemon::start(dir, &["--nbd", "unix:nbd", readd, "d0", &uri]);
    let daemon = serve("--readd=auto");
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    clear_bits(dir, &mut volume);
    volume.write_at(0, &[1; 4096]);
    drop(server);
    volume.write_at(4096, &[2; 4096]);
    volume.flush();
    drop(volume);
    daemon.end();
    let _server = Nbdkit::start(dir, "far", "d1");
    let daemon = serve("--readd=manual");
    std::thread::sleep(Duration::from_millis(1500));
    assert!(daemon.client(&["status"]).ok().out.contains("1 of 2 devices"));
    daemon.end();
    let daemon = serve("--readd=auto");
    until(PATIENCE, "the member comes back", || {
        daemon.client(&["status"]).ok().out.contains("2 of 2 devices")
    });
    // Exits with 1 if the recovery has ended.
    daemon.client(&["md", "wait", "md/data"]);
    let copied = written(&daemon, "far");
    assert!(copied < 4 * MIB, "{copied} bytes copied");
    daemon.end();
    holds_alone(dir, &uri, [1, 2]);
}

/// The daemon starts while the server is away.
#[test]
fn a_member_that_is_away_when_the_daemon_starts_is_taken_when_it_is_back() {
    let dir = images(&[64 * MIB, 64 * MIB]);
    let dir = dir.path();
    let server = Nbdkit::start(dir, "far", "d1");
    let uri = server.uri.clone();
    mirror(dir, &uri);
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "d0", &uri]);
    clear_bits(dir, &mut Nbd::open(&dir.join("nbd"), "md/data"));
    daemon.end();
    drop(server);
    let refused = ashlar_in(dir, &["serve", "--control", "control", "d0", &uri]);
    refused.fails(1, &["cannot open", &uri, "hint: use --run to start"]);
    let daemon = Daemon::start(dir, &["--run", "--nbd", "unix:nbd", "d0", &uri]);
    let has = |count: &str| daemon.client(&["status"]).ok().out.contains(count);
    assert!(has("1 of 2 devices"));
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    volume.write_at(0, &[1; 4096]);
    volume.flush();
    let server = Nbdkit::start(dir, "far", "d1");
    volume.write_at(4096, &[2; 4096]);
    volume.flush();
    until(PATIENCE, "the member comes back", || has("2 of 2 devices"));
    // Exits with 1 if the recovery has ended.
    daemon.client(&["md", "wait", "md/data"]);
    let copied = written(&daemon, "far");
    assert!(copied < 4 * MIB, "{copied} bytes copied");
    drop(volume);
    let log = daemon.end();
    assert_eq!(log.matches("absent: the daemon starts without it").count(), 1, "{log}");
    holds_alone(dir, &uri, [1, 2]);
    drop(server);
}

/// It is behind, like a member that was away, but a user has taken it out.
#[test]
fn a_member_that_a_user_has_removed_stays_removed() {
    let dir = images(&[64 * MIB, 64 * MIB]);
    let dir = dir.path();
    let server = Nbdkit::start(dir, "far", "d1");
    mirror(dir, &server.uri);
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "d0", &server.uri]);
    std::thread::sleep(Duration::from_millis(1500));
    for action in ["fail", "remove"] {
        daemon.client(&["md", action, "md/data", &server.uri]).ok();
    }
    std::thread::sleep(Duration::from_millis(2500));
    assert!(daemon.client(&["status"]).ok().out.contains("1 of 2 devices"));
    daemon.end();
}

#[test]
fn a_member_that_was_removed_leaves_its_server_and_may_come_back() {
    let dir = images(&[64 * MIB, 64 * MIB]);
    let dir = dir.path();
    let server = Nbdkit::start(dir, "far", "d1");
    let uri = server.uri.as_str();
    mirror(dir, uri);
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "d0", uri]);
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    // Enough for a connection of the thread's own.
    let write_some = |volume: &mut Nbd, byte: u8| {
        (0..100).for_each(|_| volume.write_at(0, &[byte; 4096]));
        volume.flush();
    };
    for (verb, byte) in [("add", 1), ("re-add", 2)] {
        write_some(&mut volume, byte);
        daemon.client(&["md", "fail", "md/data", uri]).ok();
        assert!(server.clients() > 0);
        daemon.client(&["md", "remove", "md/data", uri]).ok();
        until(PATIENCE, "it leaves", || server.clients() == 0);
        write_some(&mut volume, byte + 10);
        // Longer than the wait before the next connection.
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(server.clients(), 0);
        daemon.client(&["md", verb, "md/data", uri]).ok();
        assert!(server.clients() > 0);
        // Exits with 1 if the recovery has ended.
        daemon.client(&["md", "wait", "md/data"]);
        assert!(daemon.client(&["status"]).ok().out.contains("2 of 2 devices"));
    }
    volume.write_at(4096, &[3; 4096]);
    drop(volume);
    daemon.end();
    until(PATIENCE, "the daemon leaves", || server.clients() == 0);
    holds_alone(dir, uri, [12, 3]);
}

/// The export's server restarts while a write is in flight, and between two writes.
#[test]
fn a_member_that_comes_back_is_re_added_by_the_bitmap() {
    let dir = images(&[64 * MIB, 64 * MIB]);
    let dir = dir.path();
    let mut server = Some(Nbdkit::start(dir, "far", "d1"));
    let uri = server.as_ref().unwrap().uri.clone();
    mirror(dir, &uri);
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "d0", &uri]);
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    clear_bits(dir, &mut volume);
    let has = |count: &str| daemon.client(&["status"]).ok().out.contains(count);
    for round in 0..2_u8 {
        volume.write_at(0, &[2 * round + 1; 4096]);
        drop(server.take());
        if round == 1 {
            server = Some(Nbdkit::start(dir, "far", "d1"));
        }
        volume.write_at(4096, &[2 * round + 2; 4096]);
        volume.flush();
        let before = written(&daemon, "far");
        if round == 0 {
            assert!(has("1 of 2 devices"));
            server = Some(Nbdkit::start(dir, "far", "d1"));
        }
        until(PATIENCE, "the member comes back", || has("2 of 2 devices"));
        // Exits with 1 if the recovery has ended.
        daemon.client(&["md", "wait", "md/data"]);
        let copied = written(&daemon, "far") - before;
        assert!(copied < 4 * MIB, "{copied} bytes copied");
    }
    drop(volume);
    daemon.end();
    holds_alone(dir, &uri, [3, 4]);
}

#[test]
fn an_array_of_an_export_and_a_file_survives_the_server() {
    let dir = images(&[64 * MIB, 64 * MIB]);
    let dir = dir.path();
    let server = Nbdkit::start(dir, "far", "d1");
    let uri = server.uri.clone();
    mirror(dir, &uri);
    let scanned = ashlar_in(dir, &["scan", "d0", &uri]).ok().out;
    assert!(scanned.contains("raid1") && scanned.contains(&uri), "{scanned}");
    ashlar_in(dir, &["md", "examine", &uri]).ok();

    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "--readd=manual", "d0", &uri]);
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

    // The server is back, and a user re-adds it: what it missed is copied.
    let server = Nbdkit::start(dir, "far", "d1");
    std::thread::sleep(Duration::from_secs(3));
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("1 of 2 devices"), "{status}");
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
    holds_alone(dir, &uri, [1, 2]);
    drop(server);
}

#[test]
fn an_export_that_cannot_be_used_is_refused() {
    let dir = images(&[8 * MIB]);
    let dir = dir.path();
    let open = |uri: &str| ashlar_in(dir, &["serve", "--control", "control", uri]);
    open("nbd://").fails(1, &["nbd://", "a host is missing", "nbd://HOST[:PORT]/EXPORT"]);
    open("nbd://h:x/e").fails(1, &["`x` is not a port"]);
    let exclusive = "nbds://h/e?tls-psk-file=k&tls-certificates=c";
    open(exclusive).fails(1, &["tls-psk-file and tls-certificates exclude each other"]);
    open("nbds://h/e?tls-psk-file=k").fails(1, &["k: No such file"]);
    open("nbd+unix:///e").fails(1, &["the socket is missing"]);
    open("nbd+unix:///?socket=nothing").fails(1, &["nothing: No such file"]);
    let server = Nbdkit::start(dir, "far", "d0");
    let uri = server.uri.as_str();
    let twice = ashlar_in(dir, &["serve", "--control", "control", uri, uri]);
    twice.fails(1, &["given twice", "is the same as nbd+unix:///?socket="]);
}

#[test]
fn reads_prefer_the_near_member_and_wait_no_longer_than_the_hedge_for_the_far_one() {
    let dir = images(&[64 * MIB, 64 * MIB]);
    let dir = dir.path();
    let server = Nbdkit::with(dir, "far", "d1", &["rdelay=30ms"]);
    mirror(dir, &server.uri);
    let daemon = Daemon::start(dir, &["--nbd", "unix:nbd", "d0", &server.uri]);
    let mut volume = Nbd::open(&dir.join("nbd"), "md/data");
    let latency_us = || {
        let latency = daemon.client(&["get", "sys/block/md127/md/dev-far/latency_us"]).ok().out;
        latency.trim().parse::<u64>().unwrap()
    };
    until(PATIENCE, "the far member is probed", || {
        volume.read_at(0, 4096);
        latency_us() >= 30_000
    });
    // Its reads are one probe in a second, however many clients make.
    until(PATIENCE, "reads prefer the near member", || {
        let before = stat(&daemon, "far", 0);
        for at in 0..200 {
            volume.read_at(at * 8192, 4096);
        }
        stat(&daemon, "far", 0) - before <= 2
    });
    let hedge = "sys/block/md127/md/read_hedge_us";
    daemon.client(&["set", hedge, "never"]).fails(1, &["not a number"]);
    daemon.client(&["set", hedge, "2000"]).ok();
    assert_eq!(daemon.client(&["get", hedge]).ok().out, "2000\n");
    volume.write_at(0, &[7; 4096]);
    assert_eq!(volume.read_at(0, 4096), [7; 4096]);
    drop(volume);
    daemon.end();
}

/// A copy of an image over two daemons needs no more space than the image.
#[test]
fn holes_of_an_image_are_told_through_two_daemons() {
    let dir = images(&[64 * MIB]);
    let dir = dir.path();
    let image = std::fs::OpenOptions::new().write(true).open(dir.join("d0")).unwrap();
    image.write_all_at(&[7; 4096], 32 * MIB).unwrap();
    std::fs::create_dir(dir.join("far")).unwrap();
    let far = Daemon::start(&dir.join("far"), &["--nbd", "unix:nbd", "../d0"]);
    let uri =
        |folder: &str| format!("nbd+unix:///d0?socket={}", dir.join(folder).join("nbd").display());
    let near = Daemon::start(dir, &["--nbd", "unix:nbd", &uri("far")]);
    let map = |uri: String| {
        let out = Command::new("nbdinfo").args(["--map", &uri]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let told = map(uri("."));
    assert_eq!(told, map(uri("far")));
    let words: Vec<Vec<&str>> =
        told.lines().map(|line| line.split_whitespace().collect()).collect();
    let hole = ["0", "33554432", "3", "hole,zero"];
    assert_eq!((words.len(), &words[0][..], words[1][3]), (3, &hole[..], "data"), "{told}");
    near.end();
    far.end();
}

/// OpenZFS's library opens disks itself: a mount makes an export a file.
#[test]
fn a_pool_lies_on_the_file_that_a_daemon_makes_of_an_export() {
    let dir = images(&[256 * MIB]);
    let dir = dir.path();
    let server = Nbdkit::start(dir, "far", "d0");
    for on_it in [&["zpool", "create", "tank"][..], &["zpool", "import", "--devices"]] {
        let refused = ashlar_in(dir, &[on_it, &[&server.uri]].concat());
        refused.fails(1, &["knows only files", "--mount DIR"]);
    }
    std::fs::create_dir(dir.join("mount")).unwrap();
    let daemon = Daemon::start(dir, &["--whole", &server.uri, "--mount", "mount"]);
    let file = "mount/dev/far";
    ashlar_in(dir, &["zpool", "create", "tank", file]).ok();
    let listed = ashlar_in(dir, &["zpool", "list", "--devices", file]).ok().out;
    assert!(listed.contains("tank") && listed.contains("ONLINE"), "{listed}");
    daemon.end();
}

/// Two hosts, as two daemons: a file is locked by the one that has it, an export by neither.
#[test]
fn an_array_on_exports_is_written_by_one_host() {
    let dir = images(&[64 * MIB, 64 * MIB]);
    let dir = dir.path();
    let servers = ["d0", "d1"].map(|file| Nbdkit::start(dir, &format!("{file}.sock"), file));
    let disks = servers.each_ref().map(|server| server.uri.as_str());
    let create = ["md", "create", "--level=1", "--raid-devices=2", "--name=data", "--assume-clean"];
    ashlar_in(dir, &[&create[..], &disks].concat()).ok();
    let hosts = ["one", "other", "third"].map(|name| dir.join(name));
    hosts.iter().for_each(|host| std::fs::create_dir(host).unwrap());
    let serve = |host: &Path| Daemon::start(host, &[&["--nbd", "unix:nbd"], &disks[..]].concat());
    let [one, other, third] = hosts.each_ref().map(|host| host.as_path());
    // It has written nothing yet, so another host may start the array, too.
    let (here, there) = (serve(one), serve(other));
    let mut volume = Nbd::open(&one.join("nbd"), "md/data");
    volume.write_at(0, &[1; 4096]);
    let mut late = Nbd::open(&other.join("nbd"), "md/data");
    late.write(0, &[2; 4096]);
    assert_ne!(late.reply(), 0);
    drop((late, there));
    volume.write_at(4096, &[1; 4096]);
    // While it writes, none may.
    let refused = std::thread::scope(|scope| {
        let serve = [&["serve", "--control", "control"], &disks[..]].concat();
        let serve = scope.spawn(move || ashlar_in(third, &serve));
        while !serve.is_finished() {
            volume.write_at(8192, &[1; 4096]);
            std::thread::sleep(Duration::from_millis(50));
        }
        serve.join().unwrap()
    });
    refused.fails(1, &["another host is writing", "stop the array there first"]);
    // Moved: stopped here, started there.
    drop(volume);
    here.end();
    let there = serve(other);
    let mut volume = Nbd::open(&other.join("nbd"), "md/data");
    assert_eq!(volume.read_at(0, 12288), [1; 12288]);
    volume.write_at(0, &[3; 4096]);
    volume.flush();
    // Its host dies: the next one waits until that is certain.
    drop((volume, there));
    let next = serve(third);
    assert_eq!(Nbd::open(&third.join("nbd"), "md/data").read_at(0, 4096), [3; 4096]);
    next.end();
}
