//! Running the program, disk images, and daemons that end with their test.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;

/// What a run of the program gave.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
    command.env_remove("ASHLAR_LOG").env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
    command
}

/// Runs the program in `dir`. Whatever it is given, it must not panic.
pub(crate) fn ashlar_in(dir: &Path, args: &[&str]) -> Run {
    let output = program().args(args).current_dir(dir).output().unwrap();
    let run = Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    };
    assert!(run.code.is_some() && !run.err.contains("panicked"), "{args:?}: {run:?}");
    run
}

pub(crate) fn ashlar(args: &[&str]) -> Run {
    ashlar_in(Path::new("/"), args)
}

impl Run {
    /// It succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// It failed with this code and one line of error that has all of `parts`.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        let lines: Vec<&str> = self.err.lines().collect();
        let ours = lines.iter().filter(|line| line.starts_with("ashlar: ")).count();
        assert_eq!(ours, 1, "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "no {part:?} in {self:?}");
        }
        self
    }
}

/// A directory with disk images `d0`, `d1` and so on, which are holes.
pub(crate) struct Images {
    pub(crate) dir: TempDir,
    pub(crate) names: Vec<String>,
}

impl Images {
    pub(crate) fn new(count: usize, size: u64) -> Self {
        let dir = TempDir::new().unwrap();
        let names: Vec<String> = (0..count).map(|n| format!("d{n}")).collect();
        for name in &names {
            File::create(dir.path().join(name)).unwrap().set_len(size).unwrap();
        }
        Self { dir, names }
    }

    /// Images with an array on them.
    pub(crate) fn array(count: usize, size: u64, options: &[&str]) -> Self {
        let images = Self::new(count, size);
        images.create(options).ok();
        images
    }

    pub(crate) fn create(&self, options: &[&str]) -> Run {
        let count = format!("--raid-devices={}", self.names.len());
        self.run(&[&["md", "create", "--homehost=any", &count], options].concat(), &self.refs())
    }

    pub(crate) fn refs(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the program in the directory, with `files` after `args`.
    pub(crate) fn run(&self, args: &[&str], files: &[&str]) -> Run {
        ashlar_in(self.dir.path(), &[args, files].concat())
    }

    /// All images' bytes.
    pub(crate) fn bytes(&self) -> Vec<Vec<u8>> {
        self.names.iter().map(|name| fs::read(self.path(name)).unwrap()).collect()
    }

    /// Starts a daemon on all images, its control socket at `control` in the directory.
    pub(crate) fn serve(&self, args: &[&str]) -> Daemon {
        Daemon::start(self.dir.path(), &[args, &self.refs()].concat())
    }
}

/// A running daemon, which is killed if its test ends early.
pub(crate) struct Daemon {
    child: Child,
    out: BufReader<ChildStdout>,
    /// What it printed up to `ready`.
    pub(crate) greeting: String,
    pub(crate) control: PathBuf,
    dir: PathBuf,
}

impl Daemon {
    pub(crate) fn start(dir: &Path, args: &[&str]) -> Self {
        let mut command = program();
        command.args(["serve", "--control", "control"]).args(args).current_dir(dir);
        Self::of(command, dir)
    }

    pub(crate) fn of(mut command: Command, dir: &Path) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut greeting = String::new();
        while !greeting.ends_with("ready\n") {
            if out.read_line(&mut greeting).unwrap() == 0 {
                let mut text = String::new();
                child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
                panic!("the daemon did not start: {:?} {text}", child.wait().unwrap());
            }
        }
        Self { child, out, greeting, control: dir.join("control"), dir: dir.to_owned() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A client command with this daemon's control socket.
    pub(crate) fn client(&self, args: &[&str]) -> Run {
        ashlar_in(&self.dir, &[args, &["--control", "control"]].concat())
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end; the exit status and the log.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.is_running() {
            assert!(Instant::now() < deadline, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "nothing is printed behind ready");
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert!(!log.contains("panicked"), "{log}");
        (self.child.wait().unwrap(), log)
    }

    /// Ends it with SIGTERM, in good order.
    pub(crate) fn end(self) -> String {
        self.signal("TERM");
        let (status, log) = self.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        log
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}
