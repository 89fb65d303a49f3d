//! How a daemon ends (cleanly, after a second signal, after a defect), and what commands that wait for its end see.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::support::{Daemon, Images, MIB, Nbd, program};

fn has_fuse() -> bool {
    let has = PathBuf::from("/dev/fuse").exists();
    if !has {
        eprintln!("skipped: no /dev/fuse");
    }
    has
}

#[track_caller]
fn assert_clean(images: &Images, members: &[&str]) {
    let examine = images.run(&["md", "examine", "--json"], members).ok().out;
    assert_eq!(examine.matches("\"clean\": true").count(), members.len(), "{examine}");
}

/// Images `d0` and `d1` with one array, `m0` and `m1` with another.
fn two_arrays() -> Images {
    Images::two_arrays(&["--level=1", "--name=one"], "--name=two")
}

/// Waits until a write to an array is in flight.
fn await_write(daemon: &Daemon) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let status = daemon.client(&["status", "--json"]).ok().out;
        let status: Value = serde_json::from_str(&status).unwrap();
        let is_written = |volume: &Value| {
            let path = format!("sys/block/{}/inflight", volume["name"].as_str().unwrap());
            daemon.client(&["get", &path]).ok().out.split_whitespace().nth(1) == Some("1")
        };
        if status["volumes"].as_array().unwrap().iter().any(is_written) {
            return;
        }
        assert!(Instant::now() < deadline, "{status}");
    }
}

/// A disk that takes a minute for a write blocks one array and the client that wrote to it.
#[test]
fn a_second_signal_ends_it_whatever_keeps_an_array_busy_and_stops_the_others() {
    let images = two_arrays();
    let slow = "m1=custom:write=60s";
    let args = ["--nbd", "unix:nbd", "--model", slow, "m0", "m1"];
    let daemon = images.serve(&args);
    let mut one = Nbd::open(&images.path("nbd"), "md/one");
    one.write(0, &[1; 4096]);
    assert_eq!(one.reply(), 0);
    one.flush();
    let mut two = Nbd::open(&images.path("nbd"), "md/two");
    two.write(0, &[2; 4096]);
    await_write(&daemon);
    // A client in the middle of the handshake, and one that takes no replies.
    let _silent = Nbd::connect(&images.path("nbd"));
    let mut deaf = Nbd::open(&images.path("nbd"), "md/one");
    for n in 0..32 {
        deaf.request(0, n % 16 * MIB, MIB as u32);
    }
    signal_and_hear(&daemon, "TERM");
    daemon.signal_again("TERM");
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    for part in ["the end is forced", "not stopped cleanly", "did not stop in time", "resync"] {
        assert!(log.contains(part), "no {part:?} in {log}");
    }
    assert_clean(&images, &["d0", "d1"]);
    // Acknowledged data is on both copies.
    for bytes in &images.bytes() {
        assert!(bytes.windows(4096).any(|window| window == [1; 4096]));
    }
}

#[test]
fn a_third_signal_ends_it_at_once() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=one"]);
    let daemon = images.serve(&["--nbd", "unix:nbd", "--model", "d1=custom:write=60s"]);
    let mut client = Nbd::open(&images.path("nbd"), "md/one");
    client.write(0, &[2; 4096]);
    await_write(&daemon);
    signal_and_hear(&daemon, "INT");
    for _ in 0..2 {
        daemon.signal_again("INT");
    }
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("a third signal"), "{log}");
}

/// As from timeout(1), which signals its child and then its group, and from ^C in a terminal.
#[test]
fn signals_at_once_are_one_request_and_wait_for_clients() {
    let images = Images::array(1, 32 * MIB, &["--level=1", "--force", "--name=one"]);
    let daemon = images.serve(&["--nbd", "unix:nbd", "--model", "d0=custom:write=200ms"]);
    let mut client = Nbd::open(&images.path("nbd"), "md/one");
    client.write(0, &[2; 4096]);
    await_write(&daemon);
    for name in ["TERM", "TERM", "INT"] {
        signal_and_hear(&daemon, name);
    }
    assert_eq!(client.reply(), 0);
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("is the same request") && !log.contains("forced"), "{log}");
    assert_clean(&images, &["d0"]);
}

#[test]
fn a_forced_end_names_no_clients_when_there_are_none() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=one"]);
    let daemon = images.serve(&["--nbd", "unix:nbd"]);
    daemon.client(&["stop", "--force"]).ok();
    let log = daemon.wait().1;
    assert!(log.contains("the end is forced") && !log.contains("NBD clients"), "{log}");
}

/// A set of signals from the process's status.
fn told(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0, |mask| u64::from_str_radix(mask.trim_start_matches(':').trim(), 16).unwrap())
}

/// Sends a signal, and waits until it is received: pending signals of one kind are merged.
fn signal_and_hear(daemon: &Daemon, name: &str) {
    daemon.signal(name);
    await_hearing(daemon.pid());
}

fn await_hearing(pid: u32) {
    while told(pid, "ShdPnd") != 0 {
        std::thread::yield_now();
    }
}

/// The reader of the log has stopped.
#[test]
fn a_log_that_is_not_read_keeps_no_signal_from_ending_it() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let (_reader, mut writer) = std::io::pipe().unwrap();
    // The capacity of a pipe (pipe(7)).
    writer.write_all(&[b'x'; 1 << 16]).unwrap();
    let mut command = program();
    command.current_dir(images.dir.path()).args(["serve", "--control", "control", "d0", "d1"]);
    let mut child = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    drop(command);
    let term = 1 << 14;
    while told(child.id(), "SigBlk") & term == 0 {
        std::thread::yield_now();
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_clean(&images, &["d0", "d1"]);
}

#[test]
fn a_closed_terminal_ends_it_in_good_order() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=one"]);
    let daemon = images.serve(&["--nbd", "unix:nbd"]);
    let mut client = Nbd::open(&images.path("nbd"), "md/one");
    client.write(0, &[1; 4096]);
    assert_eq!(client.reply(), 0);
    // However often it is sent.
    for _ in 0..3 {
        daemon.signal("HUP");
    }
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert_clean(&images, &["d0", "d1"]);
}

#[test]
fn nohup_keeps_it_from_ending_with_its_terminal() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let mut command = program();
    let args = ["serve", "--control", "control", "d0", "d1"];
    command.current_dir(images.dir.path());
    let mut nohup = Command::new("nohup");
    nohup.arg(command.get_program()).args(args).current_dir(images.dir.path());
    nohup.env_remove("ASHLAR_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    let mut daemon = Daemon::of(nohup, images.dir.path());
    daemon.signal("HUP");
    daemon.client(&["status"]).ok();
    assert!(daemon.is_running() && told(daemon.pid(), "SigBlk") & 1 == 0);
    daemon.end();
}

#[test]
fn it_ends_in_good_order_when_its_output_is_gone() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=one"]);
    let mut daemon = images.serve(&["--nbd", "unix:nbd", "-vv"]);
    daemon.close_output();
    let mut client = Nbd::open(&images.path("nbd"), "md/one");
    client.write(0, &[1; 4096]);
    assert_eq!(client.reply(), 0);
    daemon.signal("HUP");
    assert_eq!(daemon.wait().0.code(), Some(0));
    assert_clean(&images, &["d0", "d1"]);
}

#[test]
fn it_serves_although_ready_cannot_be_said() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let mut command = program();
    command.current_dir(images.dir.path());
    command.args(["serve", "--control", "control", "--nbd", "unix:nbd", "d0", "d1"]);
    command.stdout(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    while UnixStream::connect(images.path("nbd")).is_err() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    images.run(&["stop", "--control", "control"], &[]).ok();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_write_beyond_the_limit_of_file_sizes_fails_and_ends_nothing() {
    let images = Images::new(1, 8 * MIB);
    let daemon = images.serve(&["--nbd", "unix:nbd"]);
    let limit = format!("--fsize={}:", 4 * MIB);
    let pid = daemon.pid().to_string();
    if !Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap().success() {
        eprintln!("skipped: no prlimit");
        return;
    }
    let mut client = Nbd::open(&images.path("nbd"), "d0");
    client.write(6 * MIB, &[1; 4096]);
    assert_ne!(client.reply(), 0);
    client.write(MIB, &[1; 4096]);
    assert_eq!(client.reply(), 0);
    daemon.client(&["stop"]).ok();
    assert_eq!(daemon.wait().0.code(), Some(0));
}

#[test]
fn after_stop_the_disks_are_free() {
    let images = Images::array(4, 32 * MIB, &["--level=10", "--name=one"]);
    for round in 0..20_u8 {
        let daemon = images.serve(&["--nbd", "unix:nbd"]);
        let mut client = Nbd::open(&images.path("nbd"), "md/one");
        client.write(0, &[round; 4096]);
        assert_eq!(client.reply(), 0);
        drop(client);
        daemon.client(&["stop"]).ok();
        // Immediately, and exclusively.
        images.run(&["md", "assemble"], &images.refs()).ok();
        assert_eq!(daemon.wait().0.code(), Some(0));
    }
}

#[test]
fn stop_says_what_it_waits_for_and_gives_up_in_time() {
    if !has_fuse() {
        return;
    }
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    fs::create_dir_all(images.path("mnt")).unwrap();
    let mut daemon = images.serve(&["--mount", "mnt"]);
    let volume = OpenOptions::new().write(true).open(images.path("mnt/dev/md0")).unwrap();
    volume.write_all_at(&[1; 4096], 0).unwrap();
    let own = format!("(process {})", std::process::id());
    let waited = daemon.client(&["stop", "--timeout", "1"]);
    assert!(waited.err.contains(&format!("waiting: {}", images.path("mnt").display())));
    waited.fails(1, &["still stopping", "within 1 s", &own, "--force"]);
    assert!(daemon.is_running());
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("\nstopping\nwaiting: ") && status.contains(&own), "{status}");
    let status = daemon.client(&["status", "--json"]).ok().out;
    assert!(status.contains("\"stopping\": [\n"), "{status}");
    let at_once = daemon.client(&["stop", "--no-wait", "--quiet"]).ok();
    assert_eq!((at_once.out.as_str(), at_once.err.as_str()), ("", ""));
    assert!(daemon.is_running());
    assert_eq!(daemon.client(&["stop", "--no-wait", "--timeout", "1"]).code, Some(2));
    daemon.client(&["stop", "--force"]).ok();
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(volume.write_all_at(&[2; 4096], 0).is_err());
    assert_clean(&images, &["d0", "d1"]);
}

#[test]
fn stop_fails_when_the_daemon_does_not_end_in_good_order() {
    let images = two_arrays();
    let daemon = images.serve(&["--nbd", "unix:nbd", "--model", "m1=custom:write=60s", "m0", "m1"]);
    let mut client = Nbd::open(&images.path("nbd"), "md/two");
    client.write(0, &[2; 4096]);
    await_write(&daemon);
    let stopped = daemon.client(&["stop", "--force"]);
    stopped.fails(1, &["did not stop cleanly", "not stopped cleanly", "in time"]);
    assert_eq!(daemon.wait().0.code(), Some(1));
    let gone = images.run(&["stop", "--control", "control"], &[]);
    gone.fails(1, &["cannot reach the daemon"]);
}

#[test]
fn a_panic_of_a_thread_ends_it_and_the_exit_code_says_so() {
    if !has_fuse() {
        return;
    }
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    fs::create_dir_all(images.path("mnt")).unwrap();
    let mut command = program();
    command.current_dir(images.dir.path()).env("ASHLAR_PANIC_AT", images.path("now"));
    command.args(["serve", "--control", "control", "--mount", "mnt", "--threads", "2", "d0", "d1"]);
    let daemon = Daemon::of(command, images.dir.path());
    let volume = OpenOptions::new().write(true).open(images.path("mnt/dev/md0")).unwrap();
    volume.write_all_at(&[1; 4096], 0).unwrap();
    drop(volume);
    File::create(images.path("now")).unwrap();
    let (status, log) = daemon.end_of_defect();
    assert_eq!(status.code(), Some(101), "{log}");
    for part in ["ashlar-0", "ordered by", "a thread that serves has panicked", "stopping"] {
        assert!(log.contains(part), "no {part:?} in {log}");
    }
    assert_clean(&images, &["d0", "d1"]);
}

#[test]
fn a_quiet_daemon_says_nothing() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let mut command = program();
    command.current_dir(images.dir.path());
    command.args(["serve", "-q", "--control", "control", "--nbd", "unix:nbd", "d0", "d1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while UnixStream::connect(images.path("nbd")).is_err() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    let asked = images.run(&["get", "--quiet", "--control", "control", "sys/block/md0/size"], &[]);
    assert_eq!(asked.ok().out, "63488\n");
    images.run(&["stop", "--control", "control", "-q"], &[]).ok();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.stdout.len(), output.stderr.len()), (0, 0), "{output:?}");
}

/// A terminal that was stopped with ^S, or a program that reads no more.
#[test]
fn a_daemon_whose_log_nothing_takes_serves_and_ends() {
    let images = Images::new(1, 8 * MIB);
    let (_reader, writer) = std::io::pipe().unwrap();
    let mut command = program();
    let args = ["serve", "-vv", "--control", "control", "--nbd", "unix:nbd", "d0"];
    command.current_dir(images.dir.path()).args(args);
    let mut child = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    drop(command);
    while UnixStream::connect(images.path("nbd")).is_err() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::yield_now();
    }
    // More than a pipe takes.
    for _ in 0..1000 {
        drop(Nbd::open(&images.path("nbd"), "d0"));
    }
    let mut client = Nbd::open(&images.path("nbd"), "d0");
    client.write(0, &[7; 4096]);
    assert_eq!(client.reply(), 0);
    drop(client);
    images.run(&["stop", "--control", "control", "--timeout", "10"], &[]).ok();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
