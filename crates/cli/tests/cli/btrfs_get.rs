//! `ashlar btrfs get` from file systems that `mkfs.btrfs --rootdir` makes, and onto a target where something is
//! already.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use tempfile::TempDir;

use super::support::{Run, ashlar_in};

/// A directory with `0.img`, a file system of what `fill` puts into a directory.
fn made(fill: impl FnOnce(&Path)) -> TempDir {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    fill(&root);
    let image = dir.path().join("0.img");
    File::create(&image).unwrap().set_len(128 << 20).unwrap();
    let output =
        Command::new("mkfs.btrfs").arg("-q").arg("--rootdir").args([&root, &image]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    dir
}

/// Runs `ashlar btrfs get / out 0.img` with more options.
fn get(dir: &TempDir, options: &[&str]) -> Run {
    ashlar_in(dir.path(), &[&["btrfs", "get", "/", "out", "0.img"], options].concat())
}

#[test]
fn a_link_of_mkfs_which_ends_with_a_zero_byte_is_taken_out() {
    let dir = made(|root| symlink("some/target", root.join("link")).unwrap());
    let listed = ashlar_in(dir.path(), &["btrfs", "ls", "-l", "/", "0.img"]).ok();
    assert!(listed.out.ends_with(" link -> some/target\n"), "{listed:?}");
    get(&dir, &[]).ok();
    let target = fs::read_link(dir.path().join("out/link")).unwrap();
    assert_eq!(target, Path::new("some/target"));
}

/// `cap_net_raw=ep`, as the kernel stores it.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The value of an attribute; `None` if there is none.
fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 64];
    getxattr(path, name, &mut value).ok().map(|len| value[..len].to_vec())
}

#[test]
fn attributes_that_give_rights_are_set_with_the_owner_only() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give a file capabilities");
        return;
    }
    let names = ["security.capability", "trusted.note", "user.note"];
    let dir = made(|root| {
        let file = root.join("ping");
        fs::write(&file, "a program").unwrap();
        std::os::unix::fs::chown(&file, Some(1234), Some(1234)).unwrap();
        for name in names {
            let value = if name == "security.capability" { &CAPABILITY[..] } else { b"a note" };
            setxattr(&file, name, value, XattrFlags::empty()).unwrap();
        }
    });
    let taken = dir.path().join("out/ping");
    let run = get(&dir, &["--xattrs"]).ok();
    let words = "left out: 2 attributes of security.* and trusted.*, which --owners sets";
    assert_eq!(run.err.matches(words).count(), 1, "{run:?}");
    let found = names.map(|name| attribute(&taken, name).is_some());
    assert_eq!(found, [false, false, true]);
    fs::remove_dir_all(dir.path().join("out")).unwrap();
    let run = get(&dir, &["--xattrs", "--owners"]).ok();
    assert!(!run.err.contains("left out"), "{run:?}");
    assert_eq!(attribute(&taken, "security.capability").as_deref(), Some(&CAPABILITY[..]));
    assert_eq!(attribute(&taken, "trusted.note").as_deref(), Some(&b"a note"[..]));
    assert_eq!(fs::metadata(&taken).unwrap().uid(), 1234);
}
