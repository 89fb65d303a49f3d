//! A parser that was taken over reaches nothing. `sandbox/attack.c` is preloaded into the program and plays it: once the program
//! has parsed its disks, it tries what an attacker would, and reports what came of it. Outside of the sandbox most of it succeeds.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use tempfile::TempDir;

use super::btrfs_get::made;
use super::lvm::group;
use super::support::{Images, MIB, ashlar_in, has_io_uring, program};

/// The library, which is compiled once.
fn library() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, library) = BUILT.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        let library = dir.path().join("attack.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/sandbox/attack.c");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-Wall", "-o"])
            .args([library.as_path(), Path::new(source)])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        (dir, library)
    });
    library
}

/// Each attempt, and `ok` or its error.
type Attempts = BTreeMap<String, String>;

/// Runs the program in `dir` with the attacker inside, and returns what it tried.
fn attacked(dir: &Path, io: &str, args: &[&str]) -> Attempts {
    let mut command = program();
    command.args(args).current_dir(dir).env("ASHLAR_IO", io);
    attempts(command, |command| command.output().unwrap())
}

/// Runs a command by `run` with the attacker inside, and returns what it tried.
fn attempts(mut command: Command, run: impl FnOnce(&mut Command) -> Output) -> Attempts {
    let place = TempDir::new().unwrap();
    for name in ["other", "victim", "moved", "by-ring"] {
        File::create(place.path().join(name)).unwrap().set_len(MIB).unwrap();
    }
    let _listener = UnixListener::bind(place.path().join("sock")).unwrap();
    let reports = TempDir::new().unwrap();
    let report = reports.path().join("report");
    command.env("LD_PRELOAD", library());
    command.env("ATTACK_REPORT", &report).env("ATTACK_DIR", place.path());
    let output = run(&mut command);
    let text = fs::read_to_string(&report).unwrap_or_else(|_| panic!("{output:?}"));
    assert!(text.ends_with("end\n"), "{text}: {output:?}");
    let attempts = text.lines().filter_map(|line| line.split_once(' '));
    attempts.map(|(name, result)| (name.to_owned(), result.to_owned())).collect()
}

/// What succeeds where there is no sandbox, for root and for every user.
const OUTSIDE: [&str; 32] = [
    "open-read",
    "open-write",
    "open-passwd",
    "open-directory",
    "creat",
    "unlink",
    "rename",
    "mkdir",
    "symlink",
    "link",
    "truncate",
    "chmod",
    "fchmod-setuid",
    "fchmod-setgid",
    "creat-setuid",
    "fchmodat",
    "times",
    "fork",
    "execve",
    "clone3",
    "socket-unix",
    "socket-inet",
    "connect-unix",
    "bind-unix",
    "bind-inet",
    "kill-parent",
    "pidfd_open",
    "much-memory",
    "much-shared-memory",
    "mmap-exec",
    "is-dumpable",
    "set-dumpable",
];

/// What succeeds through the program's own ring, if it still has it when it writes its first byte.
const BY_RING: [&str; 2] = ["ring-openat", "ring-socket"];

/// Runs a command with both back ends inside the sandbox, where everything but `allowed` must fail, and outside.
#[track_caller]
fn is_safe(dir: impl Fn() -> TempDir, args: &[&str], has_ring: bool, allowed: &[&str]) {
    let is_contained = !has_io_uring(args[0]);
    let ways = if is_contained { &["threads"][..] } else { &["threads", "uring"] };
    for io in ways.iter().copied() {
        let inside = attacked(dir().path(), io, args);
        let got: Vec<_> = inside.iter().filter(|(_, result)| *result == "ok").collect();
        let wrong: Vec<_> = got.iter().filter(|(name, _)| !allowed.contains(&&***name)).collect();
        assert!(wrong.is_empty(), "{io}: {wrong:?} among {inside:?}");
        assert!(inside.len() >= 72, "{inside:?}");
        assert_eq!(inside["sendto-address"], "EPERM", "{inside:?}");
        let outside = attacked(dir().path(), io, &[&["--no-sandbox"], args].concat());
        let by_ring = if has_ring && io == "uring" { &BY_RING[..] } else { &[] };
        // Containers refuse this one to all.
        let is_free = |name: &&&str| !is_contained || **name != "clone3";
        for name in OUTSIDE.iter().filter(is_free).chain(by_ring) {
            assert_eq!(outside.get(*name).map(String::as_str), Some("ok"), "{io}: {outside:?}");
            assert!(inside.contains_key(*name), "{name}: {inside:?}");
        }
        for name in by_ring {
            // The kernel's answer to an operation that the ring may not do; landlock's to a file.
            assert_eq!(inside[*name], "EACCES", "{inside:?}");
        }
    }
}

fn array() -> TempDir {
    Images::array(2, 16 * MIB, &["--level=1"]).dir
}

fn file_system() -> TempDir {
    made(|root| fs::write(root.join("file"), "contents").unwrap())
}

#[test]
fn a_parser_taken_over_in_scan_reaches_nothing() {
    is_safe(array, &["scan", "d0", "d1"], true, &[]);
}

#[test]
fn a_parser_taken_over_in_md_examine_reaches_nothing() {
    is_safe(array, &["md", "examine", "d0", "d1"], true, &[]);
}

#[test]
fn a_parser_taken_over_in_a_report_of_lvm_reaches_nothing() {
    is_safe(|| group(2).dir, &["lvm", "lvs", "--devices", "d0,d1"], false, &[]);
}

#[test]
fn a_parser_taken_over_in_btrfs_get_reaches_only_the_place_it_writes_to() {
    // Symbolic links get their times by path.
    is_safe(file_system, &["btrfs", "get", "/", "out", "0.img"], true, &["times"]);
}

#[test]
fn a_parser_taken_over_in_a_scrub_can_only_listen_among_its_own_files() {
    let args = ["btrfs", "scrub", "start", "-B", "--status-dir", "status", "0.img"];
    is_safe(file_system, &args, true, &["socket-unix"]);
}

#[test]
fn the_log_says_whether_there_is_a_sandbox_and_why_not() {
    let dir = array();
    let log = |args: &[&str]| {
        let run = ashlar_in(dir.path(), &[&["--verbose"], args].concat());
        run.err
    };
    assert!(log(&["scan", "d0"]).contains("in the sandbox"));
    assert!(log(&["--no-sandbox", "scan", "d0"]).contains("no sandbox: --no-sandbox"));
    let of_network = log(&["scan", "nbd+unix:///?socket=/nonexistent"]);
    assert!(of_network.contains("no sandbox: the disk"), "{of_network}");
}

/// The worker of a pool in its sandbox. It writes its first byte when its control channel says what it does not understand.
#[test]
fn a_worker_of_a_pool_that_is_taken_over_reaches_nothing() {
    let attacked = |args: &[&str]| {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut command = program();
        command.arg("zfs-worker").args(args).stdin(Stdio::from(theirs));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let tried = attempts(command, |command| {
            let child = command.spawn().unwrap();
            send(&ours, b"?", SendFlags::empty()).unwrap();
            child.wait_with_output().unwrap()
        });
        let done = tried.into_iter().filter(|(_, result)| result == "ok");
        done.map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(attacked(&["--confined"]), Vec::<String>::new());
    let outside = attacked(&[]);
    for name in ["open-write", "execve", "socket-inet", "kill-parent"] {
        assert!(outside.iter().any(|it| it == name), "{name}: {outside:?}");
    }
}
