//! Servers as processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ashlar_nbd::{ConnectError, NbdDisk, Uri};
use tempfile::TempDir;

/// A server that is killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) socket: PathBuf,
}

impl Server {
    /// Runs nbdkit with these arguments.
    pub(crate) fn nbdkit(dir: &Path, args: &[&str]) -> Self {
        let socket = dir.join("socket");
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).args(args);
        Self::start(command, socket)
    }

    /// Runs a command that listens on `socket`.
    pub(crate) fn start(mut command: Command, socket: PathBuf) -> Self {
        // That of a killed one.
        let (Ok(()) | Err(_)) = std::fs::remove_file(&socket);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let this = Self { child, socket };
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::os::unix::net::UnixStream::connect(&this.socket).is_err() {
            assert!(Instant::now() < deadline, "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        this
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Stops it, and waits until all of its threads have stopped.
    pub(crate) fn stop(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.child.id());
        let has_stopped = || {
            std::fs::read_dir(&tasks).unwrap().all(|task| {
                let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
                // The state is behind the name, which is in parentheses.
                stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
            })
        };
        while !has_stopped() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until it has ended by itself.
    pub(crate) fn ended(mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Opens its default export.
    pub(crate) fn open(&self, read_only: bool) -> Result<NbdDisk, ConnectError> {
        self.open_export("", read_only)
    }

    pub(crate) fn open_export(&self, name: &str, read_only: bool) -> Result<NbdDisk, ConnectError> {
        let uri = format!("nbd+unix:///{name}?socket={}", self.socket.display());
        ashlar_nbd::open(&Uri::parse(&uri).unwrap(), "disk", read_only)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let (Ok(()) | Err(_)) = self.child.kill();
        let (Ok(_) | Err(_)) = self.child.wait();
    }
}

pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}
