//! Disks that are in use: by the kernel, through loop devices and in other namespaces, and by processes that live or
//! have just been killed.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::FlockOperation;

use super::early::can_mount;
use super::support::{Daemon, Images, MIB, Run, program, until};
use super::zvol::mounted;

/// Runs a tool, which must succeed. `None`, with the reason printed, if this machine does not support it.
fn tool(command: &mut Command) -> Option<String> {
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Some(String::from_utf8(output.stdout).unwrap()),
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            eprintln!("skipped: {command:?}: {why}");
            None
        }
        Err(error) => {
            eprintln!("skipped: {command:?}: {error}");
            None
        }
    }
}

/// A loop device over an image, detached at the end.
pub(crate) struct Loop(pub(crate) PathBuf);

impl Loop {
    pub(crate) fn over(path: &Path) -> Option<Self> {
        let made = tool(Command::new("losetup").args(["--find", "--show"]).arg(path))?;
        Some(Self(made.trim_end().into()))
    }

    /// With its partitions, which not every kernel detects by itself.
    fn with_partitions(path: &Path) -> Option<(Self, PathBuf)> {
        let device = Self::over(path)?;
        let first = PathBuf::from(format!("{}p1", device.0.display()));
        tool(Command::new("partx").args(["--update"]).arg(&device.0))?;
        Some((device, first))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let (Ok(_) | Err(_)) = Command::new("partx").arg("--delete").arg(&self.0).output();
        let detached = Command::new("losetup").arg("--detach").arg(&self.0).status();
        assert!(detached.is_ok_and(|status| status.success()));
    }
}

/// A mount in a separate mount namespace, while its shell runs.
struct NamespaceMount(Child);

impl NamespaceMount {
    fn of(device: &Path, at: &Path) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        Self::with("mount \"$0\" \"$1\"", &[device, at])
    }

    /// A shell in a mount namespace of its own, with copies of all mounts, that has run `script` with `args`.
    fn with(script: &str, args: &[&Path]) -> Option<Self> {
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-c", &format!("{script} && echo done && read line")]);
        shell.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take()?).read_line(&mut line).unwrap();
        let this = Self(child);
        if line.is_empty() {
            eprintln!("skipped: cannot mount in a namespace of its own");
            return None;
        }
        Some(this)
    }
}

impl Drop for NamespaceMount {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// One image of 32 MiB.
fn one_image() -> Images {
    Images::new(1, 32 * MIB)
}

/// Opens a disk for writing and for reading; returns the results: a disk that can be opened is not a member.
fn opened(images: &Images, disk: &str) -> [Run; 2] {
    [&["md", "assemble"][..], &["md", "assemble", "--read-only"]]
        .map(|verb| images.run(verb, &[disk]))
}

#[track_caller]
fn is_refused(images: &Images, disk: &str, parts: &[&str]) {
    for run in opened(images, disk) {
        run.fails(1, parts);
    }
}

#[track_caller]
fn is_opened(images: &Images, disk: &str) {
    for run in opened(images, disk) {
        run.fails(1, &["holds no array"]);
    }
}

fn make_ext4(path: &Path) -> Option<String> {
    tool(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(path))
}

#[test]
fn a_loop_device_that_is_not_used_keeps_its_image_usable() {
    let images = one_image();
    let Some(device) = Loop::over(&images.path("d0")) else { return };
    is_opened(&images, "d0");
    is_opened(&images, device.0.to_str().unwrap());
}

#[test]
fn an_image_mounted_in_another_mount_namespace_is_in_use() {
    let images = one_image();
    if make_ext4(&images.path("d0")).is_none() {
        return;
    }
    let Some(device) = Loop::over(&images.path("d0")) else { return };
    let Some(mounted) = NamespaceMount::of(&device.0, &images.path("mnt")) else { return };
    let node = device.0.to_str().unwrap();
    let place = format!("{node} is mounted on {}", images.path("mnt").display());
    is_refused(&images, "d0", &["in use by the kernel: d0", &place, "in the mount namespace of"]);
    is_refused(&images, node, &["in use by the kernel: /dev/loop", &place]);
    drop(mounted);
    is_opened(&images, "d0");
}

#[test]
fn an_image_of_which_a_partition_is_mounted_is_in_use() {
    let images = one_image();
    let table = "label: gpt\nstart=2048, size=40960\n";
    fs::write(images.path("table"), table).unwrap();
    let made = Command::new("sfdisk")
        .arg("--quiet")
        .arg(images.path("d0"))
        .stdin(File::open(images.path("table")).unwrap())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        return eprintln!("skipped: no sfdisk");
    }
    let Some((device, partition)) = Loop::with_partitions(&images.path("d0")) else { return };
    if make_ext4(&partition).is_none() {
        return;
    }
    is_opened(&images, "d0");
    let Some(mounted) = NamespaceMount::of(&partition, &images.path("mnt")) else { return };
    let used = format!("{} is mounted on", partition.display());
    is_refused(&images, "d0", &["in use by the kernel", &used]);
    is_refused(&images, device.0.to_str().unwrap(), &["in use by the kernel", &used]);
    is_refused(&images, partition.to_str().unwrap(), &["in use by the kernel", &used]);
    drop(mounted);
}

#[test]
fn an_image_that_is_swapped_to_is_in_use() {
    struct Swap<'a>(&'a Path);
    impl Drop for Swap<'_> {
        fn drop(&mut self) {
            assert!(Command::new("swapoff").arg(self.0).status().unwrap().success());
        }
    }
    let images = one_image();
    let Some(device) = Loop::over(&images.path("d0")) else { return };
    if tool(Command::new("mkswap").arg(&device.0)).is_none()
        || tool(Command::new("swapon").arg(&device.0)).is_none()
    {
        return;
    }
    let swap = Swap(&device.0);
    let used = format!("{} is swap space in use", device.0.display());
    is_refused(&images, "d0", &["in use by the kernel", &used]);
    is_refused(&images, device.0.to_str().unwrap(), &["in use by the kernel", &used]);
    drop(swap);
}

#[test]
fn an_image_whose_name_has_changed_is_still_the_one_that_is_mounted() {
    let images = one_image();
    if make_ext4(&images.path("d0")).is_none() {
        return;
    }
    fs::hard_link(images.path("d0"), images.path("other")).unwrap();
    let Some(device) = Loop::over(&images.path("d0")) else { return };
    let Some(mounted) = NamespaceMount::of(&device.0, &images.path("mnt")) else { return };
    fs::remove_file(images.path("d0")).unwrap();
    is_refused(&images, "other", &["in use by the kernel: other", "is mounted on"]);
    // Another file with the name that the loop device was given.
    File::create(images.path("d0")).unwrap().set_len(32 * MIB).unwrap();
    is_opened(&images, "d0");
    drop(mounted);
}

#[test]
fn a_loop_device_that_another_process_writes_to_keeps_its_image_from_being_used() {
    let images = one_image();
    let Some(device) = Loop::over(&images.path("d0")) else { return };
    let node = device.0.to_str().unwrap();
    let daemon = Daemon::start(images.dir.path(), &[node]);
    let by = format!("ashlar (process {})", daemon.pid());
    is_refused(&images, "d0", &["in use by the kernel: d0", node, &by]);
    daemon.end();
}

#[test]
fn disks_are_served_again_at_once_after_the_daemon_was_killed() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    for _ in 0..3 {
        let daemon = images.serve(&["--nbd", "unix:nbd.sock"]);
        daemon.signal("KILL");
        let again = images.serve(&["--nbd", "unix:nbd.sock"]);
        again.end();
    }
}

#[test]
fn a_living_holder_of_a_lock_is_named_at_once() {
    let images = one_image();
    let daemon = images.serve(&[]);
    let other = format!("d0: in use by another ashlar (process {})", daemon.pid());
    is_refused(&images, "d0", &[&other, "ashlar status"]);
    daemon.end();
    let file = File::options().read(true).write(true).open(images.path("d0")).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    let locked = format!("(process {}), which has locked it", std::process::id());
    is_refused(&images, "d0", &["d0: in use by cli-", &locked]);
}

/// A program that holds a shared lock on a file until its input ends.
struct SharedLock(Child);

impl SharedLock {
    fn on(path: &Path, user: u32) -> Option<Self> {
        const PROGRAM: &str = "import fcntl, sys\nf = open(sys.argv[1], 'rb')\n\
                               fcntl.lockf(f, fcntl.LOCK_SH)\nprint('locked', flush=True)\n\
                               sys.stdin.read()";
        let mut python = Command::new("python3");
        python.args(["-c", PROGRAM]).arg(path).uid(user).gid(user);
        let Ok(mut child) = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            eprintln!("skipped: no python3, or not root");
            return None;
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take()?).read_line(&mut line).unwrap();
        assert_eq!(line, "locked\n");
        Some(Self(child))
    }
}

impl Drop for SharedLock {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

#[test]
fn a_reader_without_rights_cannot_lock_the_owner_out() {
    const NOBODY: u32 = 65_534;
    let images = one_image();
    let set_mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    set_mode(images.dir.path(), 0o755).unwrap();
    set_mode(&images.path("d0"), 0o644).unwrap();
    let Some(lock) = SharedLock::on(&images.path("d0"), NOBODY) else { return };
    is_opened(&images, "d0");
    let daemon = images.serve(&[]);
    let other = format!("d0: in use by another ashlar (process {})", daemon.pid());
    is_refused(&images, "d0", &[&other]);
    drop(lock);
    // The daemon still has only a shared lock.
    is_refused(&images, "d0", &[&other]);
    let log = daemon.end();
    assert!(log.contains("the lock of a process that may only read the file is ignored"), "{log}");
    // Other users could write to it as well.
    set_mode(&images.path("d0"), 0o646).unwrap();
    let lock = SharedLock::on(&images.path("d0"), NOBODY).unwrap();
    let by = format!("(process {}), which has locked it", lock.0.id());
    let write = images.run(&["md", "assemble"], &["d0"]);
    write.fails(1, &["d0: in use by python3", &by, "hint: end that program first"]);
    images.run(&["md", "assemble", "--read-only"], &["d0"]).fails(1, &["holds no array"]);
    drop(lock);
    set_mode(&images.path("d0"), 0o644).unwrap();
    let lock = SharedLock::on(&images.path("d0"), 0).unwrap();
    let by = format!("(process {}), which has locked it", lock.0.id());
    images.run(&["md", "assemble"], &["d0"]).fails(1, &["d0: in use by python3", &by]);
}

/// A daemon with a mount, and a shell in a mount namespace with a copy of it, which has run `script` with the path of a volume. `None`
/// where that is not possible.
fn copied(images: &Images, script: &str) -> Option<(Daemon, NamespaceMount)> {
    if !can_mount("a copy of a mount") {
        return None;
    }
    let daemon = mounted(images, &["--raw"]);
    let copy = NamespaceMount::with(script, &[&images.path("mnt/dev/d0")])?;
    Some((daemon, copy))
}

/// Opens the volume, and keeps it open.
const OPEN: &str = "exec 3<>\"$0\"";

#[test]
fn a_copy_of_the_mount_that_is_not_used_does_not_keep_the_daemon() {
    let images = one_image();
    let Some((daemon, copy)) = copied(&images, "test -f \"$0\"") else { return };
    let log = daemon.end();
    assert!(
        log.contains("other mount namespaces keep the mount, which fails from now on"),
        "{log}"
    );
    drop(copy);
}

#[test]
fn a_volume_open_in_a_copy_of_the_mount_keeps_the_daemon_until_it_is_closed() {
    let images = one_image();
    let Some((daemon, copy)) = copied(&images, OPEN) else { return };
    let mount = images.path("mnt");
    let mut stop = program();
    stop.args(["stop", "--control", "control"]).current_dir(images.dir.path());
    let mut stop = stop.stderr(Stdio::piped()).spawn().unwrap();
    let mut waiting = String::new();
    let mut said = BufReader::new(stop.stderr.take().unwrap());
    said.read_line(&mut waiting).unwrap();
    let user = format!("{} is in use by sh (process {})", mount.display(), copy.0.id());
    assert!(waiting.contains(&user), "{waiting}");
    assert!(!mount.join("dev").exists(), "it is unmounted here");
    drop(copy);
    assert!(stop.wait().unwrap().success());
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn a_forced_end_does_not_wait_for_a_volume_open_in_a_copy_of_the_mount() {
    let images = one_image();
    let Some((daemon, copy)) = copied(&images, OPEN) else { return };
    daemon.signal("TERM");
    until(Duration::from_secs(20), "it is unmounted", || !images.path("mnt/dev").exists());
    daemon.signal_again("TERM");
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("forced shutdown while in use"), "{log}");
    drop(copy);
}
