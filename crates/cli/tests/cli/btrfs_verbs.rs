//! Verbs of btrfs-progs, compared with btrfs-progs: some of them on file systems that the kernel mounts.

use std::fs;
use std::path::Path;

use super::btrfs_lists::{MountedImage, made, run};
use super::support::ashlar_in;

/// What btrfs-progs print about the file system at `mnt`, with the image in place of its loop device.
fn of_mounted(dir: &Path, args: &[&str]) -> String {
    let usage = run(dir, "btrfs", &["device", "usage", "mnt"]);
    let device = usage.split_once(", ID: ").unwrap().0;
    run(dir, "btrfs", args).replace(device, "0.img")
}

#[test]
fn usage_is_that_of_btrfs_progs() {
    let mkfs: [&[&str]; 3] = [&[], &["--mixed"], &["-d", "single", "-m", "single"]];
    for options in mkfs {
        let dir = made(1, options);
        let Some(mounted) = MountedImage::new(dir.path(), "rw") else { return };
        fs::write(dir.path().join("mnt/file"), vec![7; 3 << 20]).unwrap();
        drop(mounted);
        let cases: [&[&str]; 6] = [
            &["filesystem", "df"],
            &["filesystem", "df", "-b"],
            &["filesystem", "usage"],
            &["filesystem", "usage", "-b"],
            &["device", "usage"],
            &["device", "usage", "-b"],
        ];
        let mounted = MountedImage::new(dir.path(), "rw").unwrap();
        let theirs = cases.map(|case| of_mounted(dir.path(), &[case, &["mnt"]].concat()));
        drop(mounted);
        for (case, theirs) in cases.into_iter().zip(theirs) {
            let ours = ashlar_in(dir.path(), &[&["btrfs"], case, &["0.img"]].concat()).ok();
            assert_eq!(ours.out, theirs, "{options:?} {case:?}");
        }
    }
}

/// Makes a file, a directory, a subvolume and a snapshot.
fn filled(dir: &Path) -> Option<()> {
    let mounted = MountedImage::new(dir, "rw")?;
    fs::create_dir(dir.join("mnt/d")).unwrap();
    fs::write(dir.join("mnt/f"), vec![7; 1 << 20]).unwrap();
    run(dir, "btrfs", &["subvolume", "create", "mnt/s"]);
    fs::write(dir.join("mnt/s/inner"), vec![8; 1 << 20]).unwrap();
    run(dir, "btrfs", &["subvolume", "snapshot", "-r", "mnt/s", "mnt/d/snap"]);
    drop(mounted);
    Some(())
}

#[test]
fn subvolumes_are_shown_as_by_btrfs_progs() {
    let dir = made(1, &[]);
    let Some(()) = filled(dir.path()) else { return };
    let places = ["", "s", "d/snap"];
    let mounted = MountedImage::new(dir.path(), "rw").unwrap();
    let theirs = places
        .map(|place| run(dir.path(), "btrfs", &["subvolume", "show", &format!("mnt/{place}")]));
    drop(mounted);
    let show = |what: &str| ashlar_in(dir.path(), &["btrfs", "subvolume", "show", what, "0.img"]);
    for ((place, id), theirs) in places.into_iter().zip(["5", "256", "257"]).zip(theirs) {
        // btrfs-progs 6.2 print the creation time if there is no time of a send.
        let (before, after) = theirs.split_once("\tSend time: \t\t").unwrap();
        let after = after.split_once('\n').unwrap().1;
        let wanted = format!("{before}\tSend time: \t\t-\n{after}");
        assert_eq!(show(&format!("/{place}")).ok().out, wanted);
        assert_eq!(show(id).ok().out, wanted);
        let uuid = wanted.lines().find_map(|line| line.strip_prefix("\tUUID: \t\t\t")).unwrap();
        assert_eq!(show(uuid).ok().out, wanted);
    }
    show("/f").fails(1, &["/f", "a file or directory in the subvolume 5", "subvolume list"]);
    show("/none").fails(1, &["/none"]);
    show("999").fails(1, &["no such subvolume", "999", "subvolume list"]);
}

#[test]
fn numbers_and_paths_are_resolved_as_by_btrfs_progs() {
    let dir = made(1, &[]);
    let Some(()) = filled(dir.path()) else { return };
    // The first data of a subvolume.
    let data = |subvolume: &str| {
        let dump = ["inspect-internal", "dump-tree", "-t", subvolume, "0.img"];
        let tree = run(dir.path(), "btrfs", &dump);
        let at = tree.split_once("extent data disk byte ").unwrap().1;
        at.split_once(' ').unwrap().0.to_owned()
    };
    let (at, shared) = (&data("5")[..], &data("256")[..]);
    // What is typed, and where the kernel has it.
    let cases: [(&[&str], &str); 9] = [
        (&["inode-resolve", "257"], "mnt"),
        (&["inode-resolve", "258"], "mnt"),
        (&["logical-resolve", at], "mnt"),
        (&["logical-resolve", "-P", at], "mnt"),
        (&["logical-resolve", "-P", shared], "mnt"),
        (&["subvolid-resolve", "257"], "mnt"),
        (&["subvolid-resolve", "5"], "mnt"),
        (&["rootid"], "mnt/s/inner"),
        (&["rootid"], "mnt/f"),
    ];
    let mounted = MountedImage::new(dir.path(), "rw").unwrap();
    let theirs = cases.map(|(typed, place)| {
        run(dir.path(), "btrfs", &[&["inspect-internal"], typed, &[place]].concat())
    });
    drop(mounted);
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(|it| it.replace("mnt/", "/")).collect();
        lines.sort();
        lines
    };
    for ((typed, place), theirs) in cases.into_iter().zip(theirs) {
        let path = place.strip_prefix("mnt").filter(|path| !path.is_empty());
        let path: Vec<&str> = path.into_iter().collect();
        let args = [&["btrfs", "inspect-internal"], typed, &path, &["0.img"]].concat();
        assert_eq!(sorted(&ashlar_in(dir.path(), &args).ok().out), sorted(&theirs), "{typed:?}");
    }
    let resolve = |what: &str, number: &str| {
        ashlar_in(dir.path(), &["btrfs", "inspect", what, number, "0.img"])
    };
    // btrfs-progs print only files of subvolumes that are mounted.
    let both = ["/d/snap/inner", "/s/inner"];
    assert_eq!(sorted(&resolve("logical-resolve", shared).ok().out), both);
    resolve("inode-resolve", "999").fails(1, &["no such inode", "999", "--subvolid"]);
    resolve("logical-resolve", "4096").fails(1, &["4096", "inspect paths"]);
    resolve("subvolid-resolve", "999").fails(1, &["999", "subvolume list"]);
}

#[test]
fn the_names_of_btrfs_progs_are_understood() {
    let dir = made(1, &[]);
    let ours = |args: &[&str]| ashlar_in(dir.path(), &[&["btrfs"], args, &["0.img"]].concat());
    let dump = ["inspect-internal", "dump-super", "-f"];
    let theirs = run(dir.path(), "btrfs", &[&dump[..], &["0.img"]].concat());
    assert_eq!(ours(&dump).ok().out, theirs);
    let dump = ["inspect-internal", "dump-tree"];
    let theirs = run(dir.path(), "btrfs", &[&dump[..], &["0.img"]].concat());
    // The first line is their version.
    assert_eq!(ours(&dump).ok().out, theirs.split_once('\n').unwrap().1);
    assert_eq!(ours(&["inspect", "list-chunks"]).ok().out, ours(&["inspect", "chunks"]).ok().out);
}

#[test]
fn what_needs_a_mounted_file_system_says_so() {
    for typed in [
        "balance start",
        "filesystem defragment",
        "filesystem resize",
        "filesystem sync",
        "property set",
        "quota enable",
        "qgroup show",
        "receive",
        "send",
        "subvolume create",
        "subvolume delete",
        "subvolume snapshot",
        "replace start",
        "device add",
        "device remove",
    ] {
        let args: Vec<&str> = ["btrfs"].into_iter().chain(typed.split(' ')).collect();
        let run = ashlar_in(Path::new("/"), &args);
        run.fails(2, &["mounted file system", "kernel", "--mount DIR"]);
    }
}
