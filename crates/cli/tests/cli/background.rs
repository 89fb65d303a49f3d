//! `serve --daemon`: a command that returns once its daemon serves, or with the daemon's error.

use std::fs::{self, File};
use std::io::Seek;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::support::{Images, MIB, Nbd, Run, program, until};
use super::zvol::{has_libzpool, pool};

const PATIENCE: Duration = Duration::from_secs(30);

/// What proc(5) says of a process, from its state on; nothing if it is gone.
fn stat(pid: Pid) -> Vec<String> {
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let stat = fs::read_to_string(stat).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().map(str::to_owned).collect()
}

/// Its session, or none if that is of another PID namespace: `getsid` returns 0 then, which rustix does not take.
fn session(pid: Pid) -> Option<Pid> {
    stat(pid).get(3).and_then(|session| Pid::from_raw(session.parse().unwrap()))
}

/// A process that is killed if its test ends early.
struct Process(Pid);

impl Process {
    /// The daemon at the socket `control` in the directory.
    fn of(images: &Images) -> Self {
        let status = images.run(&["status", "--json", "--control", "control"], &[]).ok().out;
        let status: Value = serde_json::from_str(&status).unwrap();
        let pid = status["pid"].as_i64().unwrap();
        Self(Pid::from_raw(pid.try_into().unwrap()).unwrap())
    }

    /// The child of a command, once it leads a session of its own.
    fn child_of(command: &Child) -> Self {
        let pid = command.id();
        let list = format!("/proc/{pid}/task/{pid}/children");
        let mut found = None;
        until(PATIENCE, "the command starts a daemon", || {
            let children = fs::read_to_string(&list).unwrap();
            let child = children.split_whitespace().next();
            found = child.and_then(|pid| Pid::from_raw(pid.parse().unwrap()));
            found.is_some_and(|pid| session(pid) == Some(pid))
        });
        Self(found.unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.0.as_raw_nonzero().to_string()).join(name)
    }

    fn link(&self, name: &str) -> PathBuf {
        fs::read_link(self.file(name)).unwrap()
    }

    /// Whether it runs: a process that has ended and waits for its parent does not.
    fn is_running(&self) -> bool {
        stat(self.0).first().is_some_and(|state| state != "Z")
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.0, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            self.signal(Signal::KILL);
        }
    }
}

/// `serve --daemon` with the socket `control`, in the directory of `images`.
fn serve(images: &Images, args: &[&str]) -> Command {
    let mut command = program();
    command.args(["serve", "--daemon", "--control", "control"]).args(args);
    command.current_dir(images.dir.path());
    command
}

/// Runs a command to its end. A daemon that keeps its output open does not hold the test up, as a pipe would.
fn run(mut command: Command) -> Run {
    let (out, err) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    command.stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap());
    let code = command.status().unwrap().code();
    let read = |mut file: File| {
        file.rewind().unwrap();
        std::io::read_to_string(file).unwrap()
    };
    Run { code, out: read(out), err: read(err) }
}

fn stop(images: &Images) {
    images.run(&["stop", "--control", "control"], &[]).ok();
}

#[test]
fn it_returns_once_everything_is_served_and_the_daemon_belongs_to_no_terminal() {
    let images = Images::new(1, 8 * MIB);
    let mut args = vec!["--nbd", "unix:nbd", "d0"];
    let has_fuse = Path::new("/dev/fuse").exists();
    if has_fuse {
        fs::create_dir(images.path("mnt")).unwrap();
        args.extend(["--mount", "mnt"]);
    }
    let served = run(serve(&images, &args)).ok();
    assert_eq!(served.out, "d0: disk 8M\nready\n");
    assert!(!served.err.contains("ashlar: "), "{served:?}");
    let daemon = Process::of(&images);
    let mut client = Nbd::open(&images.path("nbd"), "d0");
    client.write(0, &[7; 4096]);
    assert_eq!(client.reply(), 0);
    drop(client);
    assert!(!has_fuse || images.path("mnt/dev/d0").exists());

    assert_eq!(daemon.link("cwd"), Path::new("/"));
    for stream in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(daemon.link(stream), Path::new("/dev/null"));
    }
    assert_eq!(session(daemon.0), Some(daemon.0));
    assert_eq!(fs::read_to_string(daemon.file("comm")).unwrap(), "ashlar\n");

    // Also its relative paths: it removes the files of its sockets, and unmounts.
    stop(&images);
    assert!(!daemon.is_running());
    assert!(!images.path("control").exists() && !images.path("nbd").exists());
    assert!(!images.path("mnt/dev").exists());
    assert_eq!(images.bytes()[0][..4096], [7; 4096]);
    run(serve(&images, &["d0"])).ok();
    let _again = Process::of(&images);
    stop(&images);
}

#[test]
fn a_quiet_command_prints_nothing() {
    let images = Images::new(1, MIB);
    let Run { out, err, .. } = run(serve(&images, &["-q", "d0"])).ok();
    let _daemon = Process::of(&images);
    assert_eq!((out.as_str(), err.as_str()), ("", ""));
    stop(&images);
}

#[test]
fn paths_of_a_configuration_and_of_models_are_those_of_the_command() {
    let images = Images::new(2, MIB);
    fs::create_dir(images.path("etc")).unwrap();
    let text = "disks = [\"../d0\"]\nnbd = [\"unix:../nbd\"]\ncontrol = \"../control\"\n\
                [model]\n\"../d0\" = \"custom\"\n";
    fs::write(images.path("etc/stack.toml"), text).unwrap();
    let mut command = program();
    command.args(["serve", "--config", "etc/stack.toml", "--daemon", "--model", "d1=custom", "d1"]);
    command.current_dir(images.dir.path());
    assert_eq!(run(command).ok().out, "d0: disk 1M\nd1: disk 1M\nready\n");
    let daemon = Process::of(&images);
    drop(Nbd::open(&images.path("nbd"), "d1"));
    let status = images.run(&["status", "--json", "--control", "control"], &[]).ok().out;
    let status: Value = serde_json::from_str(&status).unwrap();
    for disk in ["d0", "d1"] {
        let models = status["models"].as_array().unwrap();
        let has = |model: &Value| {
            let path = Path::new(model["disk"].as_str().unwrap());
            path.is_absolute() && path.canonicalize().unwrap().ends_with(disk)
        };
        assert!(models.iter().any(has), "{status}");
    }
    stop(&images);
    assert!(!daemon.is_running());
}

#[test]
fn what_a_script_has_open_does_not_stay_open() {
    let images = Images::new(1, MIB);
    let mut script = Command::new("sh");
    script.args([
        "-c",
        "exec 9>lock; exec \"$0\" \"$@\" 9>&9",
        program().get_program().to_str().unwrap(),
    ]);
    script.args(["serve", "--daemon", "--control", "control", "d0"]);
    script.current_dir(images.dir.path());
    run(script).ok();
    let daemon = Process::of(&images);
    let lock = images.path("lock");
    let mut open = fs::read_dir(daemon.file("fd")).unwrap();
    assert!(!open.any(|fd| fs::read_link(fd.unwrap().path()).is_ok_and(|path| path == lock)));
    stop(&images);
}

#[test]
fn the_error_and_the_code_of_a_daemon_that_cannot_start_are_the_command_s() {
    let images = Images::new(1, MIB);
    run(serve(&images, &["/no/such/disk"])).fails(1, &["cannot open", "/no/such/disk"]);
    run(serve(&images, &[])).fails(2, &["no disks given"]);
    run(serve(&images, &["d0", "--nbd", "unix:no/such/nbd"])).fails(1, &["NBD", "no/such/nbd"]);
    run(serve(&images, &["d0", "--mount", "d0"])).fails(1, &["cannot mount", "d0"]);
    run(serve(&images, &["d0"])).ok();
    let _daemon = Process::of(&images);
    File::create(images.path("d1")).unwrap().set_len(MIB).unwrap();
    run(serve(&images, &["d1"])).fails(1, &["another daemon listens there"]);
    stop(&images);
}

/// A command whose daemon takes a while to start, and that daemon.
fn slow(images: &Images) -> (Child, Process) {
    let mut command = serve(images, &["--model", "custom:read=500ms", "d0"]);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let daemon = Process::child_of(&command);
    (command, daemon)
}

fn end(command: Child) -> Run {
    let output = command.wait_with_output().unwrap();
    Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_daemon_that_is_killed_or_stopped_before_it_is_ready_did_not_start() {
    let images = Images::new(1, MIB);
    let (command, daemon) = slow(&images);
    daemon.signal(Signal::KILL);
    end(command).fails(1, &["ended before it was ready", "SIGKILL"]);
    let (command, daemon) = slow(&images);
    // Once it hears signals; before that one just kills it.
    until(PATIENCE, "the daemon hears signals", || {
        let status = fs::read_to_string(daemon.file("status")).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(blocked.trim(), 16).unwrap() & (1 << 14) != 0
    });
    daemon.signal(Signal::TERM);
    end(command).fails(1, &["stopped before it was ready"]);
    assert!(!images.path("control").exists());
}

#[test]
fn a_daemon_whose_command_was_killed_ends() {
    let images = Images::new(1, MIB);
    let (mut command, daemon) = slow(&images);
    command.kill().unwrap();
    command.wait().unwrap();
    until(PATIENCE, "the daemon ends", || !daemon.is_running());
    assert!(!images.path("control").exists());
}

/// The pool's process must not keep the command's output, session and directory either.
#[test]
fn a_pool_is_served_in_the_background_too() {
    if !has_libzpool("a pool in the background") {
        return;
    }
    let images = pool();
    let served = run(serve(&images, &[&[], &images.refs()[..]].concat())).ok();
    assert!(served.out.starts_with("tank: zpool") && served.out.ends_with("ready\n"), "{served:?}");
    let daemon = Process::of(&images);
    let status = images.run(&["status", "--json", "--control", "control"], &[]).ok().out;
    let status: Value = serde_json::from_str(&status).unwrap();
    let pid = status["pools"][0]["pid"].as_i64().unwrap();
    let worker = Process(Pid::from_raw(pid.try_into().unwrap()).unwrap());
    assert_eq!(worker.link("cwd"), Path::new("/"));
    assert_eq!(session(worker.0), Some(daemon.0));
    stop(&images);
    assert!(!daemon.is_running() && !worker.is_running());
}

#[test]
fn its_log_is_in_the_file_of_its_user_and_the_failure_of_its_start_too() {
    let images = Images::new(1, 8 * MIB);
    fs::write(images.path("log"), "before\n").unwrap();
    let args = ["--log", "log", "--nbd", "unix:nbd", "d0"];
    run(serve(&images, &args)).ok();
    // Another one cannot have the disk.
    let mut other = program();
    other.args(["serve", "--daemon", "--control", "other", "--log", "log", "d0"]);
    let refused = run({
        other.current_dir(images.dir.path());
        other
    });
    assert!(refused.code == Some(1) && refused.err.matches("in use").count() == 1, "{refused:?}");
    let mut client = Nbd::open(&images.path("nbd"), "d0");
    client.write(0, &[7; 4096]);
    assert_eq!(client.reply(), 0);
    drop(client);
    stop(&images);
    let log = fs::read_to_string(images.path("log")).unwrap();
    assert!(log.starts_with("before\n") && !log.contains('\u{1b}'), "{log}");
    for part in [" ERROR ", "in use", " INFO stopping\n"] {
        assert!(log.contains(part), "no {part:?} in {log}");
    }
    let nowhere = run(serve(&images, &["--log", "no/such/log", "d0"]));
    nowhere.fails(1, &["cannot write the log", "no/such/log"]);
}
