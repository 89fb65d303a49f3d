//! A tree mounted under the real kernel, and the tools for it.

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ashlar_block::byte_volume::{ByteVolume, Holes};
use ashlar_engine::{Engine, EngineRuntime, Receiver};
use ashlar_export::fuse::dev::KernelDev;
use ashlar_export::fuse::mount::{Mount, MountError, MountOptions, mount};
use ashlar_export::fuse::server::serve;
use ashlar_export::fuse::session::Session;
use ashlar_export::fuse::tree::{Access, Entry, Namespace, Owner};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::common::ram::Ram;

/// Whether a requirement is there; if not, prints that the test is skipped, and panics in CI.
pub(crate) fn available(what: &str, there: bool) -> bool {
    if !there {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{what} is not available");
        eprintln!("skipped: {what} is not available");
    }
    there
}

fn has_tool(name: &str) -> bool {
    let found = |dir: PathBuf| dir.join(name).exists();
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(found))
}

/// Root, with CAP_SYS_ADMIN.
fn may_mount() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    rustix::process::geteuid().is_root() && effective.is_some_and(|caps| caps & 1 << 21 != 0)
}

pub(crate) fn can_mount(tools: &[&str]) -> bool {
    available("/dev/fuse", Path::new("/dev/fuse").exists())
        && available("the privilege to mount", may_mount())
        && tools.iter().all(|tool| available(tool, has_tool(tool)))
}

/// A directory that is removed with its contents.
pub(crate) struct TempDir(pub(crate) PathBuf);

impl TempDir {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ashlar-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("temporary directories can be made");
        Self(path)
    }

    pub(crate) fn sub(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path).expect("temporary directories can be made");
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A failed test may leave something mounted; never delete below a mount.
        for _ in 0..2 {
            let removed = std::fs::read_dir(&self.0).map(|entries| {
                entries.flatten().all(|e| {
                    std::fs::remove_dir(e.path())
                        .or_else(|_| std::fs::remove_file(e.path()))
                        .is_ok()
                })
            });
            if removed.is_ok_and(|all| all) && std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
        }
        eprintln!("{} could not be removed", self.0.display());
    }
}

/// Runs a tool, which must succeed within a minute, and returns its output.
pub(crate) fn run(command: &str, args: &[&str]) -> String {
    let output = Command::new("timeout").arg("60").arg(command).args(args).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command} {args:?}: {} {said}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
}

/// Waits for a future that another thread completes.
fn wait<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("waited too long");
}

/// One volume and three attributes.
struct Tree {
    volume: Arc<ByteVolume>,
    nomerges: Mutex<String>,
}

impl Namespace for Tree {
    fn lookup(&self, path: &str) -> Option<Entry> {
        Some(match path {
            "dev" | "sys" | "many" => Entry::Directory,
            "dev/md0" => Entry::Volume(Arc::clone(&self.volume)),
            "dev/link" => Entry::Symlink("md0".into()),
            "sys/nomerges" => Entry::Attribute(Access::ReadWrite),
            "sys/size" => Entry::Attribute(Access::ReadOnly),
            other => {
                other.strip_prefix("many/n")?.parse::<u32>().ok()?;
                Entry::Attribute(Access::ReadOnly)
            }
        })
    }

    fn list(&self, path: &str) -> Vec<String> {
        match path {
            "" => vec!["dev".into(), "sys".into(), "many".into()],
            "dev" => vec!["md0".into(), "link".into()],
            "sys" => vec!["nomerges".into(), "size".into()],
            "many" => (0..3000).map(|n| format!("n{n}")).collect(),
            _ => Vec::new(),
        }
    }

    fn read(&self, path: &str) -> Result<String, Errno> {
        match path {
            "sys/nomerges" => Ok(format!("{}\n", self.nomerges.lock().unwrap())),
            "sys/size" => Ok(format!("{}\n", self.volume.size_bytes() / 512)),
            // Longer than a page, to be read in pieces.
            _ => Ok("0123456789abcde\n".repeat(1000)),
        }
    }

    fn write(&self, path: &str, text: &str) -> Result<(), Errno> {
        if path != "sys/nomerges" {
            return Err(Errno::ACCESS);
        }
        let value: u8 = text.trim().parse().map_err(|_| Errno::INVAL)?;
        if value > 2 {
            return Err(Errno::INVAL);
        }
        *self.nomerges.lock().unwrap() = value.to_string();
        Ok(())
    }
}

/// A mounted tree, its server, and the disk behind it. Fields are dropped in order: the mount first.
pub(crate) struct ServedTree {
    pub(crate) mount: Mount,
    ended: Vec<Receiver<io::Result<()>>>,
    _engine: Engine,
    pub(crate) ram: Arc<Ram>,
}

impl ServedTree {
    pub(crate) fn new(at: &Path, bytes: usize, reactors: usize) -> Result<Self, MountError> {
        let ram = Ram::new("md0", bytes);
        Self::of(at, ram, reactors)
    }

    pub(crate) fn of(at: &Path, ram: Arc<Ram>, reactors: usize) -> Result<Self, MountError> {
        let (mount, fd) = mount(at, MountOptions::default())?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let owner =
            Owner { uid: uid.as_raw(), gid: gid.as_raw(), since: Duration::from_secs(1_000_000) };
        let tree = Tree { volume: ram.volume(), nomerges: Mutex::new("0".into()) };
        let session = Arc::new(Session::new(tree, owner, Holes::Fast));
        let engine = Engine::start(reactors).expect("io_uring is there");
        let serve_on = |handle: &ashlar_engine::Handle| {
            let (fd, session) = (fd.try_clone().expect("dup"), Arc::clone(&session));
            handle.spawn_on(move || async move {
                serve(Rc::new(KernelDev::new(fd)?), session, Arc::new(EngineRuntime), 0).await
            })
        };
        let ended = engine.handles().iter().map(serve_on).collect();
        Ok(Self { mount, ended, _engine: engine, ram })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    pub(crate) fn volume(&self, flags: OFlags) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags.bits() as i32);
        options.open(self.path("dev/md0")).expect("the volume opens")
    }

    /// Waits for the servers to end, which must happen without an error.
    pub(crate) fn wait_for_end(self) {
        for ended in self.ended {
            wait(ended).expect("the reactor lives").expect("the end of a mount is not an error");
        }
    }
}

/// A loop device on a file.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    pub(crate) fn new(file: &Path, options: &[&str]) -> Self {
        let args = [&["-f", "--show"], options, &[file.to_str().expect("UTF-8")]].concat();
        Self(run("losetup", &args))
    }

    pub(crate) fn sysfs(&self, name: &str) -> String {
        let name = format!("/sys/block/{}/{name}", self.0.trim_start_matches("/dev/"));
        std::fs::read_to_string(name).expect("sysfs").trim().to_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["-d", &self.0]);
    }
}

/// A file system mounted by mount(8).
pub(crate) struct MountedFileSystem<'a>(pub(crate) &'a Path);

impl<'a> MountedFileSystem<'a> {
    pub(crate) fn new(device: &str, at: &'a Path) -> Self {
        run("mount", &[device, at.to_str().expect("UTF-8")]);
        Self(at)
    }
}

impl Drop for MountedFileSystem<'_> {
    fn drop(&mut self) {
        // Another test's thread may be between fork(2) and exec(2): for that moment its child keeps this process's
        // files open, including those of this mount.
        let at = self.0.to_str().expect("UTF-8");
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            match Command::new("umount").arg(at).output().expect("umount runs") {
                done if done.status.success() => return,
                busy if String::from_utf8_lossy(&busy.stderr).contains("busy") => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                failed => panic!("umount {at}: {}", String::from_utf8_lossy(&failed.stderr)),
            }
        }
        panic!("{at} stays busy");
    }
}
