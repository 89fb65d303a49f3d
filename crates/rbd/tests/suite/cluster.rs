//! Real clusters, in a directory each; other crates' tests use this file, too.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

/// A cluster. It ends with this process, however that ends.
pub(crate) struct Cluster {
    dir: PathBuf,
    /// Ends the cluster when its input is closed.
    _shell: Child,
}

fn ceph_run() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracle/ceph-run")
}

/// The output of a command that succeeds.
pub(crate) fn output(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|error| {
        panic!("{command:?}: {error} (scripts/setup test installs what the tests need)")
    });
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(
        status.success(),
        "{command:?}: {status}: {stderr}\n(needed: the Debian packages ceph-mon ceph-osd ceph-common librbd1, \
         which scripts/setup test installs)"
    );
    String::from_utf8(stdout).unwrap()
}

impl Cluster {
    /// The one that the tests of this process share: one OSD, in memory. It misses a dead client after 3 s.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&["--osds", "1", "--size", "1"]))
    }

    /// One of its own, with more options of `ceph-run up`.
    pub(crate) fn start(options: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("ashlar-ceph.").tempdir().unwrap().keep();
        let mut shell = Command::new("sh");
        let script = "read -r _; exec \"$0\" down \"$1\"";
        shell.args(["-c", script]).arg(ceph_run()).arg(&dir);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let shell = shell.spawn().unwrap();
        let mut up = Command::new(ceph_run());
        up.arg("up").arg(&dir).args(["--store", "memstore", "--pgs", "8"]);
        up.args(["--conf", "osd_client_watch_timeout = 5"]).args(options);
        output(&mut up);
        Self { dir, _shell: shell }
    }

    /// Its configuration file.
    pub(crate) fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    /// The URI of an image, with a pool.
    pub(crate) fn uri(&self, image: &str) -> String {
        format!("rbd:{image}?conf={}", self.conf().display())
    }

    /// Runs a verb of `ceph-run`.
    pub(crate) fn verb(&self, verb: &str, arguments: &[&str]) {
        output(Command::new(ceph_run()).arg(verb).arg(&self.dir).args(arguments));
    }

    /// A command as one of its clients.
    pub(crate) fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("CEPH_CONF", self.conf());
        command
    }

    /// Runs `rbd`.
    pub(crate) fn rbd(&self, arguments: &[&str]) -> String {
        output(self.client("rbd").args(arguments))
    }

    /// Makes an image in the pool `rbd`, and returns its URI.
    pub(crate) fn image(&self, name: &str, size: &str) -> String {
        self.rbd(&["create", "--size", size, name]);
        self.uri(&format!("rbd/{name}"))
    }
}
