//! `ashlar btrfs get` from file systems made with `mkfs.btrfs --rootdir`, and onto a target where files already exist.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use tempfile::TempDir;

use super::btrfs_files::unpacked;
use super::support::{Run, ashlar_in, program};

/// A directory with `0.img`, a file system with the contents that `fill` creates.
pub(super) fn made(fill: impl FnOnce(&Path)) -> TempDir {
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

/// The value of an attribute, if it is set.
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

/// The names in a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut all: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| name(entry).into_string().unwrap()).collect();
    all.sort();
    all
}

#[test]
fn a_killed_run_leaves_no_half_file_and_the_next_one_goes_on() {
    let large: Vec<u8> = (0..24 << 20).map(|n: u32| (n >> 8) as u8).collect();
    let dir = made(|root| {
        fs::write(root.join("large"), &large).unwrap();
        fs::write(root.join("small"), "small").unwrap();
        symlink("small", root.join("link")).unwrap();
    });
    let out = dir.path().join("out");
    let is_half = |left: &[String]| left.iter().any(|it| it.starts_with(".large.ashlar-"));
    let kill_half_way = || {
        let mut run = program();
        run.args(["btrfs", "get", "/", "out", "0.img"]).current_dir(dir.path());
        let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while run.try_wait().unwrap().is_none() {
            if out.exists() && is_half(&names(&out)) {
                run.kill().unwrap();
            }
        }
        names(&out)
    };
    // It may have ended before it was killed: then try again.
    let mut left = kill_half_way();
    for _ in 0..50 {
        if is_half(&left) {
            break;
        }
        fs::remove_dir_all(&out).unwrap();
        left = kill_half_way();
    }
    assert!(is_half(&left) && !left.contains(&"large".to_owned()), "{left:?}");
    // Without an option the target is refused as before.
    get(&dir, &[]).fails(1, &["nothing is overwritten", "out", "--resume"]);
    assert_eq!(names(&out), left);
    let run = get(&dir, &["--resume"]).ok();
    assert!(run.out.starts_with("extracted: ") && run.out.lines().count() == 1, "{run:?}");
    assert_eq!(names(&out), ["large", "link", "small"]);
    assert!(fs::read(out.join("large")).unwrap() == large);
    assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("small"));
    // Complete files are not copied again.
    let inode = |name: &str| out.join(name).symlink_metadata().unwrap().ino();
    let before = ["large", "link", "small"].map(inode);
    let run = get(&dir, &["--resume", "--json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert!(json["ended"] == true && json["files"] == 0 && json["there"] == 3, "{json}");
    assert_eq!(["large", "link", "small"].map(inode), before);
    assert_eq!(get(&dir, &["--resume", "--quiet"]).ok().out, "");
}

#[test]
fn another_file_at_the_target_is_replaced_only_if_that_is_said() {
    let dir = made(|root| {
        fs::create_dir(root.join("sub")).unwrap();
        fs::write(root.join("sub/file"), "as it was").unwrap();
        fs::write(root.join("other"), "another").unwrap();
    });
    let out = dir.path().join("out");
    get(&dir, &[]).ok();
    let changed = out.join("sub/file");
    fs::write(&changed, "as it is!").unwrap();
    let words = ["/sub/file", "of another size or time", "--overwrite replaces it"];
    get(&dir, &["--resume"]).fails(1, &words);
    assert_eq!(fs::read(&changed).unwrap(), b"as it is!");
    let inode = fs::metadata(out.join("other")).unwrap().ino();
    get(&dir, &["--resume", "--overwrite"]).ok();
    assert_eq!(fs::read(&changed).unwrap(), b"as it was");
    assert_eq!(fs::metadata(out.join("other")).unwrap().ino(), inode);
    get(&dir, &["--overwrite"]).ok();
    assert_ne!(fs::metadata(out.join("other")).unwrap().ino(), inode);
    // A directory is not replaced by a file, and a link to one is not followed.
    fs::remove_dir_all(out.join("sub")).unwrap();
    fs::remove_file(out.join("other")).unwrap();
    fs::create_dir(out.join("other")).unwrap();
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, out.join("sub")).unwrap();
    let run = get(&dir, &["--overwrite"]);
    assert_eq!(run.code, Some(1));
    assert!(run.err.contains("/other: ") && run.err.contains("/sub: "), "{run:?}");
    assert!(names(&elsewhere).is_empty() && out.join("other").is_dir());
}

/// The tree of a directory: relative paths, each with its contents; `None` for directories.
fn tree(dir: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let (mut all, mut open) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let contents = if metadata.is_dir() {
                open.push(path.clone());
                None
            } else if metadata.is_symlink() {
                Some(fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes())
            } else {
                Some(fs::read(&path).unwrap())
            };
            all.push((path.strip_prefix(dir).unwrap().to_owned(), contents));
        }
    }
    all.sort();
    all
}

#[test]
fn restore_does_what_that_of_btrfs_progs_does() {
    let (dir, _) = unpacked("single-4k");
    let theirs = |options: &[&str], dest: &str| {
        let mut command = Command::new("btrfs");
        command.arg("restore").args(options).args(["0.img", dest]).current_dir(dir.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let ours = |options: &[&str], dest: &str| {
        ashlar_in(dir.path(), &[&["btrfs", "restore"], options, &["0.img", dest]].concat())
    };
    let home = ["--path-regex", "^/(|deep(|/.*)|zlib(|/w.*))$"];
    let cases: [&[&str]; 4] = [&[], &["-S", "-s", "-x"], &["-mS"], &home];
    for (index, options) in cases.into_iter().enumerate() {
        let [a, b] = ["theirs", "ours"].map(|name| {
            let name = format!("{name}-{index}");
            fs::create_dir(dir.path().join(&name)).unwrap();
            name
        });
        theirs(options, &a);
        let run = ours(options, &b).ok();
        let [mut a, b] = [a, b].map(|name| tree(&dir.path().join(name)));
        // A subvolume inside a snapshot is an empty directory, as kernels show it.
        a.retain(|(path, _)| path != Path::new("deep/second/nested/inner"));
        let paths = |all: &[(PathBuf, Option<Vec<u8>>)]| -> Vec<PathBuf> {
            all.iter().map(|(path, _)| path.clone()).collect()
        };
        assert_eq!(paths(&a), paths(&b), "{options:?} {run:?}");
        assert!(a == b && a.len() > 10, "{options:?}");
        assert_eq!(run.out.contains("Skipping snapshot snapshot\n"), index % 3 != 1 && index < 3);
    }
    let times = |name: &str| {
        let found = fs::metadata(dir.path().join(name).join("inline")).unwrap();
        (found.mode(), found.uid(), found.mtime())
    };
    assert_eq!(times("theirs-2"), times("ours-2"));
    // Existing files stay without -o.
    let changed = dir.path().join("ours-0/inline");
    fs::write(&changed, "changed").unwrap();
    let run = ours(&[], "ours-0").ok();
    let words = "Skipping existing file ours-0/inline\n";
    assert!(run.out.contains(words), "{run:?}");
    assert_eq!(run.out.matches("If you wish to overwrite use -o\n").count(), 1);
    assert_eq!(fs::read(&changed).unwrap(), b"changed");
    let run = ours(&["-D", "-o"], "ours-0").ok();
    assert!(run.out.contains("Restoring ours-0/inline\n"), "{run:?}");
    assert_eq!(fs::read(&changed).unwrap(), b"changed");
    ours(&["-o"], "ours-0").ok();
    assert_eq!(fs::metadata(&changed).unwrap().len(), 1000);
    for (options, parts) in [
        (&["-u", "1"][..], ["-u of btrfs restore is not supported", "superblock"]),
        (&["-t", "4096"], ["-t of btrfs restore is not supported", "superblock"]),
        (&["-d"], ["-d of btrfs restore is not supported", "directory"]),
        (&["--path-regex", "("], ["--path-regex (", "unclosed"]),
    ] {
        ours(options, "ours-0").fails(2, &parts);
    }
    ours(&[], "nothing").fails(1, &["nothing", "not a directory"]);
    ours(&["-f", "4096"], "ours-0").fails(1, &["4096", "-l lists"]);
}

#[test]
fn restore_lists_roots_as_btrfs_progs_do() {
    let (dir, _) = unpacked("single-4k");
    let mut command = Command::new("btrfs");
    let theirs = command.args(["restore", "-l", "0.img"]).current_dir(dir.path()).output().unwrap();
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    let lines: Vec<&str> = theirs.lines().filter(|it| it.starts_with(" tree key")).collect();
    let run = ashlar_in(dir.path(), &["btrfs", "restore", "-l", "0.img"]).ok();
    assert_eq!(run.out.lines().collect::<Vec<_>>(), lines);
    assert!(lines.len() > 8, "{theirs}");
}

#[test]
fn several_directories_are_taken_out_without_what_is_excluded() {
    let dir = made(|root| {
        for name in ["home/a/.cache/x", "home/a/disk.iso", "home/a/keep", "srv/keep", "etc/fstab"] {
            let file = root.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, name).unwrap();
        }
        symlink("keep", root.join("home/a/link")).unwrap();
    });
    let run = |options: &[&str]| {
        let some = ["btrfs", "get", "/home", "out", "0.img", "--also", "srv", "--also=/etc/fstab"];
        let except = ["--exclude", "*.iso", "--exclude", "/home/*/.cache"];
        ashlar_in(dir.path(), &[&some[..], &except, options].concat())
    };
    let out = dir.path().join("out");
    let would = run(&["--dry-run"]).ok().out;
    let mut lines: Vec<&str> = would.lines().collect();
    lines.sort_unstable();
    let files = ["out/fstab", "out/home/a/keep", "out/home/a/link", "out/srv/keep"];
    assert_eq!(lines[..4], files);
    assert_eq!(lines[4], "would be extracted: 3 files (28.00B), 3 directories, 1 link");
    assert!(!out.exists() && lines.len() == 5, "{would}");

    let done = run(&[]).ok().out;
    assert_eq!(done, "extracted: 3 files (28.00B), 3 directories, 1 link\n");
    let taken: Vec<_> = tree(&out).into_iter().filter(|(_, contents)| contents.is_some()).collect();
    let paths: Vec<String> =
        taken.iter().map(|(path, _)| format!("out/{}", path.display())).collect();
    assert_eq!(paths, files);
    assert_eq!(taken[0].1.as_deref(), Some(&b"etc/fstab"[..]));
    run(&[]).fails(1, &["nothing is overwritten", "out"]);
    let again = run(&["--resume", "--json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!((&json["there"], &json["files"]), (&4.into(), &0.into()), "{json}");
    assert_eq!(json["paths"], serde_json::json!(["/home", "srv", "/etc/fstab"]));

    fs::remove_dir_all(&out).unwrap();
    run(&["--also", "/home/a/.cache/../../home"]).fails(2, &["two paths would be home in out"]);
    run(&["--also", "/"]).fails(2, &["/ has no name"]);
    run(&["--also", "/nosuch"]).fails(1, &["cannot extract: /nosuch"]);
    assert!(!out.exists(), "a refusal makes nothing");
    let wrong = run(&["--exclude", "[a"]);
    assert!(wrong.code == Some(2) && wrong.err.contains("a ] is missing"), "{wrong:?}");
}

#[test]
fn snapshots_are_left_out_if_that_is_said() {
    let (dir, _) = unpacked("single-4k");
    let get = |dest: &str, options: &[&str]| {
        ashlar_in(dir.path(), &[&["btrfs", "get", "/", dest, "0.img"], options].concat()).ok().out
    };
    get("all", &[]);
    let told = get("some", &["--no-snapshots"]);
    let skipped = "Skipping snapshot snapshot\nSkipping snapshot second\n";
    assert!(told.starts_with(skipped), "{told}");
    let [all, mut some] = ["all", "some"].map(|name| tree(&dir.path().join(name)));
    let in_snapshot = |path: &Path| path.starts_with("snapshot") || path.starts_with("deep/second");
    assert!(all.iter().any(|(path, _)| path.starts_with("volume/nested")));
    assert!(some.iter().all(|(path, _)| !in_snapshot(path)));
    some.extend(all.iter().filter(|(path, _)| in_snapshot(path)).cloned());
    some.sort();
    assert!(some == all);
}
