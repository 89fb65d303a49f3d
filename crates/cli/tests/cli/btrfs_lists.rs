//! `ashlar btrfs filesystem show`, `subvolume list` and `device stats` compared with those of btrfs-progs, on file
//! systems that the kernel mounts where needed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::btrfs_files::{unpacked, with};
use super::support::ashlar_in;

/// Runs a program, which must succeed; returns its output.
#[track_caller]
pub(super) fn run(dir: &Path, program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(dir).env("TZ", "UTC").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// An image that the kernel has mounted at `mnt` beside it.
pub(super) struct MountedImage<'a>(&'a Path);

impl<'a> MountedImage<'a> {
    /// Needs root; `None` without.
    pub(super) fn new(dir: &'a Path, options: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can mount");
            return None;
        }
        fs::create_dir_all(dir.join("mnt")).unwrap();
        run(dir, "mount", &["-t", "btrfs", "-o", options, "0.img", "mnt"]);
        Some(Self(dir))
    }
}

impl Drop for MountedImage<'_> {
    fn drop(&mut self) {
        run(self.0, "umount", &["mnt"]);
    }
}

/// A loop device of an image.
struct Loop(String);

impl Loop {
    /// Needs root; `None` without.
    fn new(dir: &Path, image: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can attach loop devices");
            return None;
        }
        let name = run(dir, "losetup", &["--find", "--show", image]);
        Some(Self(name.trim_end().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run(Path::new("/"), "losetup", &["--detach", &self.0]);
    }
}

/// A new file system on `count` images, `0.img` and so on.
pub(super) fn made(count: usize, options: &[&str]) -> TempDir {
    let dir = TempDir::new().unwrap();
    let names: Vec<String> = (0..count).map(|index| format!("{index}.img")).collect();
    for name in &names {
        File::create(dir.path().join(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let names = names.iter().map(String::as_str);
    let args: Vec<&str> = ["-q"].into_iter().chain(options.iter().copied()).chain(names).collect();
    run(dir.path(), "mkfs.btrfs", &args);
    dir
}

#[test]
fn a_file_system_is_shown_as_btrfs_progs_do() {
    for options in [&["-L", "a label"][..], &[]] {
        let dir = made(1, options);
        let theirs = run(dir.path(), "btrfs", &["filesystem", "show", "0.img"]);
        let path = dir.path().canonicalize().unwrap().join("0.img");
        let theirs = theirs.replace(path.to_str().unwrap(), "0.img");
        let ours = ashlar_in(dir.path(), &["btrfs", "filesystem", "show", "0.img"]).ok();
        assert_eq!(ours.out, theirs);
        let ours = ashlar_in(dir.path(), &["btrfs", "fi", "show", "--raw", "0.img"]).ok();
        assert!(ours.out.contains(" size 134217728 used "), "{ours:?}");
    }
    // btrfs-progs find the second device by themselves, if it is a block device.
    let dir = made(2, &["-d", "raid1", "-m", "raid1"]);
    let Some(first) = Loop::new(dir.path(), "0.img") else { return };
    let as_images = |text: String| text.replace(&first.0, "0.img");
    let theirs = as_images(run(dir.path(), "btrfs", &["filesystem", "show", &first.0]));
    let ours = ashlar_in(dir.path(), &["btrfs", "filesystem", "show", "0.img"]).ok();
    // btrfs-progs print their warnings on the same stream.
    assert!(theirs.ends_with(&ours.out), "{ours:?} {theirs}");
    assert!(theirs.contains("\t*** Some devices missing\n"), "{theirs}");
    let second = Loop::new(dir.path(), "1.img").unwrap();
    let theirs = as_images(run(dir.path(), "btrfs", &["filesystem", "show", &first.0]));
    let ours = ashlar_in(dir.path(), &["btrfs", "filesystem", "show", "1.img", "0.img"]).ok();
    assert_eq!(ours.out, theirs.replace(&second.0, "1.img"));
}

#[test]
fn subvolumes_are_listed_as_btrfs_progs_do() {
    let (dir, devices) = unpacked("single-4k");
    // The kernel mounts only one file system of a UUID at a time.
    run(dir.path(), "btrfstune", &["-f", "-u", "0.img"]);
    let cases: [&[&str]; 12] = [
        &[],
        &["-a"],
        &["-o"],
        &["-p"],
        &["-c"],
        &["-u", "-q", "-R"],
        &["-s"],
        &["-r", "-g"],
        &["-t"],
        &["-t", "-s", "-u", "-p"],
        &["--sort=-gen"],
        &["--sort=path,-rootid", "-pcuqR"],
    ];
    let Some(mounted) = MountedImage::new(dir.path(), "ro") else { return };
    let theirs = cases.map(|options| {
        run(dir.path(), "btrfs", &[&["subvolume", "list"], options, &["mnt"]].concat())
    });
    drop(mounted);
    for (options, theirs) in cases.into_iter().zip(theirs) {
        let args = [&["btrfs", "subvolume", "list"], options].concat();
        let ours = ashlar_in(dir.path(), &with(&args, &devices)).ok();
        assert_eq!(ours.out, theirs, "{options:?}");
        assert!(!theirs.is_empty(), "{options:?}");
    }
    let args = with(&["btrfs", "subvolume", "list", "--sort=size"], &devices);
    assert_eq!(ashlar_in(dir.path(), &args).code, Some(2));
}

#[test]
fn errors_that_the_kernel_counted_are_told_as_btrfs_progs_do() {
    let dir = made(1, &["-d", "single", "-m", "dup"]);
    let stats = |options: &[&str]| {
        ashlar_in(dir.path(), &[&["btrfs", "device", "stats", "0.img"], options].concat())
    };
    assert!(stats(&["-c"]).ok().out.starts_with("[0.img].write_io_errs    0\n"));
    let text = b"this is what is to be found and damaged".repeat(1000);
    let Some(mounted) = MountedImage::new(dir.path(), "rw") else { return };
    fs::write(dir.path().join("mnt/file"), &text).unwrap();
    drop(mounted);
    let image = File::options().read(true).write(true).open(dir.path().join("0.img")).unwrap();
    let mut sector = [0; 4096];
    let mut all = (0..128_u64 << 20).step_by(4096);
    let at = all.find(|at| image.read_exact_at(&mut sector, *at).is_ok() && sector == text[..4096]);
    image.write_all_at(b"T", at.unwrap()).unwrap();
    let mounted = MountedImage::new(dir.path(), "rw").unwrap();
    assert!(fs::read(dir.path().join("mnt/file")).is_err(), "the kernel finds it");
    fs::write(dir.path().join("mnt/other"), "so that there is a transaction").unwrap();
    let theirs = run(dir.path(), "btrfs", &["device", "stats", "mnt"]);
    drop(mounted);
    let device = theirs[1..].split_once(']').unwrap().0.to_owned();
    let theirs = theirs.replace(&device, "0.img");
    assert_eq!(stats(&[]).ok().out, theirs);
    let counted = theirs.lines().find(|line| line.contains(".corruption_errs ")).unwrap();
    assert!(!counted.ends_with(" 0"), "{theirs}");
    assert_eq!(stats(&["-c"]).code, Some(64));
    let json: serde_json::Value = serde_json::from_str(&stats(&["--json"]).ok().out).unwrap();
    assert!(json[0]["devid"] == 1 && json[0]["corruption_errs"] != 0, "{json}");
}
