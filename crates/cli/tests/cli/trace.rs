//! `ashlar trace`: its output for known I/O, and the output of blkparse and btt for its files.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::support::{Daemon, FLUSH, Images, MIB, Nbd, READ, Run, WRITE, ashlar_in, program};

impl Nbd {
    /// Sends all requests (command, sector, sectors) at once, then waits for all replies.
    pub(crate) fn run(&mut self, requests: &[(u16, u64, u32)]) {
        let mut bytes = Vec::new();
        let mut expected = 0;
        for (kind, sector, sectors) in requests {
            let len = sectors * 512;
            bytes.extend(Self::header(*kind, sector * 512, len));
            bytes.extend(vec![7; if *kind == WRITE { len as usize } else { 0 }]);
            expected += 16 + if *kind == READ { len as usize } else { 0 };
        }
        self.0.write_all(&bytes).unwrap();
        let mut answers = vec![0; expected];
        self.0.read_exact(&mut answers).unwrap();
        assert_eq!(answers[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "an error");
    }
}

impl Run {
    /// Asserts that it was refused as wrong usage, with all of `parts`.
    fn usage(self, parts: &[&str]) {
        assert_eq!(self.code, Some(2), "{self:?}");
        assert!(parts.iter().all(|part| self.err.contains(part)), "{self:?}");
    }
}

/// A running trace.
pub(crate) struct Tracer {
    child: Child,
    log: BufReader<ChildStderr>,
}

impl Tracer {
    /// Starts a trace; returns once it misses no more events.
    pub(crate) fn start(images: &Images, args: &[&str]) -> Self {
        let mut command = program();
        command.args(["trace", "-v", "--control", "control"]).args(args);
        command.current_dir(images.dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("tracing") {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "{:?}", child.wait().unwrap());
        }
        Self { child, log }
    }

    /// Interrupts it; returns its output.
    pub(crate) fn end(self) -> String {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
        self.wait()
    }

    fn wait(mut self) -> String {
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let mut log = String::new();
        self.log.read_to_string(&mut log).unwrap();
        assert!(self.child.wait().unwrap().success(), "{log}");
        assert!(!log.contains("panicked") && !log.contains("lost"), "{log}");
        out
    }
}

/// An image, and a daemon that serves it as a volume.
fn disk() -> (Images, Daemon) {
    let images = Images::new(1, 32 * MIB);
    let daemon = images.serve(&["--nbd", "unix:nbd", "--threads", "1"]);
    (images, daemon)
}

/// 64 consecutive reads of 4 KiB.
pub(crate) fn reads() -> Vec<(u16, u64, u32)> {
    (0..64).map(|n| (READ, 2048 + 8 * n, 8)).collect()
}

/// The action, the kind and the rest of each event line, without the thread's name.
fn events(out: &str) -> Vec<String> {
    let lines = out.lines().take_while(|line| !line.starts_with("CPU"));
    let event = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().skip(5).collect();
        fields.join(" ").replace(" [ashlar-0]", "")
    };
    lines.map(event).collect()
}

#[test]
fn neighbours_show_as_merges_and_one_request_and_not_without_merging() {
    let (images, daemon) = disk();
    let mut nbd = Nbd::open(&images.path("nbd"), "d0");
    let tracer = Tracer::start(&images, &["d0"]);
    nbd.run(&reads());
    let out = tracer.end();
    let mut expected = vec!["Q R 2048 + 8".to_owned(), "G R 2048 + 8".into(), "P N".into()];
    for n in 1..64 {
        expected.extend(["Q", "M"].map(|action| format!("{action} R {} + 8", 2048 + 8 * n)));
    }
    let end = ["U N 1", "I R 2048 + 512", "D R 2048 + 512", "C R 2048 + 512 [0]"];
    expected.extend(end.map(str::to_owned));
    assert_eq!(events(&out), expected);
    assert!(out.contains(" Read Merges:           63,      252KiB\t"), "{out}");
    assert!(out.contains(" Read Dispatches:        1,      256KiB\t"), "{out}");
    assert!(out.ends_with("Skips: 0 forward (0 -   0.0%)\n"), "{out}");

    daemon.client(&["set", "sys/block/d0/queue/nomerges", "2"]).ok();
    let tracer = Tracer::start(&images, &["d0"]);
    nbd.run(&reads());
    let events = events(&tracer.end());
    let with = |letter: &str| events.iter().filter(|event| event.starts_with(letter)).count();
    assert_eq!([with("Q"), with("G"), with("M"), with("F"), with("D")], [64, 64, 0, 0, 64]);
    assert!(events.iter().all(|event| !event.contains("+ 512")), "{events:?}");
    assert!(events.contains(&"D R 2552 + 8".to_owned()), "{events:?}");
    drop(nbd);
    daemon.end();
}

#[test]
fn filters_choose_what_is_shown() {
    let (images, daemon) = disk();
    let mut nbd = Nbd::open(&images.path("nbd"), "d0");
    let tracer = Tracer::start(&images, &["-a", "complete,flush", "/dev/d0"]);
    nbd.run(&[(WRITE, 16, 8)]);
    nbd.run(&[(FLUSH, 0, 0)]);
    let flush = ["Q FW", "G FW", "D FW", "C FW 0 [0]"].map(str::to_owned);
    let expected = [&["C W 16 + 8 [0]".to_owned()][..], &flush].concat();
    assert_eq!(events(&tracer.end()), expected);
    drop(nbd);
    daemon.end();
}

#[test]
fn a_trace_ends_with_its_time_and_with_the_daemon() {
    let (images, daemon) = disk();
    let mut nbd = Nbd::open(&images.path("nbd"), "d0");
    let timed = Tracer::start(&images, &["-w", "1", "d0"]);
    let other = Tracer::start(&images, &["--json", "d0"]);
    nbd.run(&[(READ, 8, 16)]);
    let out = timed.wait();
    assert!(out.contains("C   R 8 + 16 [0]\n") && out.contains("Events (d0): 7 entries"), "{out}");
    drop(nbd);
    daemon.end();
    let out = other.wait();
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["device"], &lines[0]["action"]), (&"d0".into(), &"Q".into()));
    assert_eq!((&lines[0]["sector"], &lines[0]["sectors"]), (&8.into(), &16.into()));
    let sums = &lines.last().unwrap()["summary"][0];
    assert_eq!((&sums["read"]["completed"]["bytes"], &sums["lost"]), (&8192.into(), &0.into()));
}

/// The output of one of blktrace's programs.
pub(crate) fn tool(images: &Images, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C").current_dir(images.dir.path());
    let output = command.output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{program} {args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn blkparse_and_btt_read_the_files() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=0", "--assume-clean"]);
    let daemon = images.serve(&["--nbd", "unix:nbd", "--threads", "1"]);
    let mut nbd = Nbd::open(&images.path("nbd"), "md0");
    let tracer = Tracer::start(&images, &["-o", "t", "md0", "d0", "d1"]);
    nbd.run(&reads());
    nbd.run(&[(WRITE, 100, 8), (WRITE, 108, 8), (WRITE, 4000, 1024), (WRITE, 7, 1)]);
    nbd.run(&[(FLUSH, 0, 0)]);
    let sums = tracer.end();
    let offset = daemon.client(&["get", "sys/block/md0/md/dev-d0/offset"]).ok().out;
    let offset: u64 = offset.trim().parse().unwrap();
    drop(nbd);
    daemon.end();

    let mut all = String::new();
    for device in ["md0", "d0", "d1"] {
        let base = format!("t.{device}");
        let theirs = tool(&images, "blkparse", &["-i", &base]);
        let theirs: String = theirs
            .lines()
            .filter(|line| !line.starts_with("Input file"))
            .map(|l| l.to_owned() + "\n")
            .collect();
        let ours = ashlar_in(images.dir.path(), &["trace", "-i", &base]).ok().out;
        for (ours, theirs) in ours.lines().zip(theirs.lines()) {
            assert_eq!(ours, theirs);
        }
        assert_eq!(ours.lines().count(), theirs.lines().count());
        all += &ours;
        tool(&images, "blkparse", &["-q", "-O", "-i", &base, "-d", "bin"]);
        let times = tool(&images, "btt", &["-i", "bin"]);
        assert!(times.contains("Q2C"), "{times}");
    }
    let sector = 100 + offset;
    for line in [format!(" D   W {sector} + 16 ["), format!(" A   W {sector} + 8 <- (9,0) 100\n")] {
        assert_eq!(all.matches(&line).count(), 2, "{line}: {all}");
    }
    assert!(all.contains("  9,0 ") && all.contains(" C   W 100 + 8 [0]\n"), "{all}");
    assert!(sums.starts_with("CPU0 (md0):\n") && sums.contains("Events (d1): "), "{sums}");
}

#[test]
fn the_same_bytes_go_through_a_pipe() {
    let (images, daemon) = disk();
    let mut nbd = Nbd::open(&images.path("nbd"), "d0");
    // Whether a trace still has the flush with which the daemon ends is a matter of moments.
    let tracer = Tracer::start(&images, &["-a", "read", "-o", "t", "d0"]);
    let mut piped = program();
    piped.args(["trace", "-v", "--control", "control", "-a", "read", "-o", "-", "d0"]);
    piped.current_dir(images.dir.path()).stderr(Stdio::piped());
    piped.stdout(fs::File::create(images.path("bytes")).unwrap());
    let mut piped = piped.spawn().unwrap();
    let mut log = BufReader::new(piped.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("tracing") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "{:?}", piped.wait().unwrap());
    }
    nbd.run(&reads());
    drop(nbd);
    daemon.end();
    assert!(piped.wait().unwrap().success());
    tracer.wait();
    let (bytes, file) = (fs::read(images.path("bytes")), fs::read(images.path("t.blktrace.0")));
    let (bytes, file) = (bytes.unwrap(), file.unwrap());
    // Only the times differ.
    assert_eq!(bytes.len(), file.len());
    let actions = |bytes: &[u8]| bytes.windows(4).filter(|word| *word == b"\x07tae").count();
    assert_eq!((actions(&bytes), actions(&file)), (2 + 133, 2 + 133));
    let text = tool(&images, "sh", &["-c", "blkparse -i - < bytes"]);
    assert!(text.contains("  D   R 2048 + 512 [ashlar-0]\n"), "{text}");
}

#[test]
fn what_cannot_be_traced_says_why() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=0", "--assume-clean"]);
    images
        .run(&["trace", "--control", "nowhere", "md0"], &[])
        .fails(1, &["nowhere", "ashlar serve"]);
    let daemon = images.serve(&[]);
    let unknown = daemon.client(&["trace", "md0", "md7"]);
    unknown.fails(1, &["there is no device md7", "there are md0, d0, d1"]);
    daemon.client(&["trace", "-a", "reads", "md0"]).usage(&["reads", "requeue, issue"]);
    daemon.client(&["trace"]).usage(&["DEVICE"]);
    fs::write(images.path("t.blktrace.0"), "old").unwrap();
    daemon.client(&["trace", "-o", "t", "md0"]).fails(1, &["t.blktrace.0", "exists", "remove it"]);
    assert_eq!(fs::read(images.path("t.blktrace.0")).unwrap(), b"old");
    daemon.client(&["trace", "-o", "no/t", "md0"]).fails(1, &["no/t.blktrace.0", "No such file"]);
    daemon.end();
    images.run(&["trace", "-i", "t"], &[]).fails(1, &["t.blktrace.0", "incomplete"]);
    fs::write(images.path("t.blktrace.0"), [b'x'; 100]).unwrap();
    images.run(&["trace", "-i", "t"], &[]).fails(1, &["t.blktrace.0", "not a trace"]);
    images.run(&["trace", "-i", "none"], &[]).fails(1, &["none.blktrace.0"]);
}

#[test]
fn a_call_without_more_is_told_so() {
    let (images, daemon) = disk();
    let mut stream = UnixStream::connect(&daemon.control).unwrap();
    let call = br#"{"method":"io.ashlar.Control.Trace","parameters":{"devices":["d0"]}}"#;
    stream.write_all(&[&call[..], b"\0"].concat()).unwrap();
    let mut answer = Vec::new();
    BufReader::new(&stream).read_until(0, &mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("org.varlink.service.ExpectedMore"));
    daemon.end();
    drop(images);
}
