//! Verbs of btrfs-progs, compared with btrfs-progs: some of them on file systems that the kernel mounts.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::btrfs_files::{crc32c, golden, unpacked, with};
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

/// The exit code of a program of btrfs-progs.
fn code(dir: &Path, args: &[&str]) -> Option<i32> {
    Command::new("btrfs").args(args).current_dir(dir).output().unwrap().status.code()
}

#[test]
fn sound_file_systems_have_no_errors() {
    let mut count = 0;
    for entry in fs::read_dir(golden("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !golden(&name).join("image.map").exists() {
            continue;
        }
        let (dir, devices) = unpacked(&name);
        let run = ashlar_in(dir.path(), &with(&["btrfs", "check"], &devices));
        assert!(run.code == Some(0) && run.err.is_empty(), "{name}: {run:?}");
        assert!(run.out.ends_with("\nno errors found\n"), "{name}: {run:?}");
        count += 1;
    }
    assert!(count > 20, "only {count} images");
}

#[test]
fn a_file_system_that_was_just_filled_has_no_errors() {
    let dir = made(1, &[]);
    let Some(()) = filled(dir.path()) else { return };
    let before = fs::read(dir.path().join("0.img")).unwrap();
    ashlar_in(dir.path(), &["btrfs", "check", "--readonly", "0.img"]).ok();
    assert!(fs::read(dir.path().join("0.img")).unwrap() == before, "it wrote");
}

/// Changes the first item with a key of this type in leaves of a tree, on all mirrors, with right checksums:
/// adds to the number at an offset of the item.
fn corrupt(image: &mut [u8], (tree, kind): (u64, u8), at: usize, by: u64) {
    const SIZE: usize = 16 << 10;
    let mut changed = 0;
    for start in (0..image.len() - SIZE).step_by(4096) {
        let node = &mut image[start..start + SIZE];
        let number =
            |node: &[u8], at: usize| u64::from_le_bytes(node[at..at + 8].try_into().unwrap());
        // The owner, the level, and the number of items.
        if number(node, 88) != tree
            || node[100] != 0
            || node[..4] != crc32c(&node[32..]).to_le_bytes()
        {
            continue;
        }
        let mut items = (0..usize::from(node[96])).map(|slot| 101 + slot * 25);
        let Some(item) = items.find(|item| node[item + 8] == kind) else { continue };
        let offset = u32::from_le_bytes(node[item + 17..item + 21].try_into().unwrap());
        let field = 101 + offset as usize + at;
        let value = number(node, field) + by;
        node[field..field + 8].copy_from_slice(&value.to_le_bytes());
        let sum = crc32c(&node[32..]);
        node[..4].copy_from_slice(&sum.to_le_bytes());
        changed += 1;
    }
    assert!(changed > 0, "tree {tree} has no item of type {kind}");
}

#[test]
fn damaged_structures_are_found_as_by_btrfs_progs() {
    let dir = made(1, &[]);
    let Some(()) = filled(dir.path()) else { return };
    let sound = fs::read(dir.path().join("0.img")).unwrap();
    // Each of several errors is a line.
    let check = |dir: &Path, words: &[&str]| {
        let run = ashlar_in(dir, &["btrfs", "check", "0.img"]);
        let all = words.iter().all(|word| run.err.contains(word));
        assert!(run.code == Some(1) && all, "no {words:?} in {run:?}");
        run
    };
    // A tree, a type of items, a number there, and what is added to it.
    for (item, at, by, words) in [
        ((2, 169), 0, 1, &["references in the extent tree", "counts"][..]),
        ((2, 168), 0, 1, &["has 3 references in the extent tree, and 2 in trees"]),
        ((2, 192), 0, 4096, &["bytes as used, and its extents have", "the superblock counts"]),
        ((5, 108), 21, 64 << 10, &["is used, but not in the extent tree"]),
        ((4, 204), 24, 4096, &["the device tree lacks the extent"]),
    ] {
        let mut image = sound.clone();
        corrupt(&mut image, item, at, by);
        fs::write(dir.path().join("0.img"), image).unwrap();
        check(dir.path(), words);
        assert_eq!(code(dir.path(), &["check", "0.img"]), Some(1), "{item:?}");
    }
    // A damaged tree block of a tree with one copy.
    let dir = made(1, &["-m", "single"]);
    let mut image = fs::read(dir.path().join("0.img")).unwrap();
    let is_fs_tree =
        |at: &usize| image[at + 88..at + 96] == 5_u64.to_le_bytes() && image[at + 64] != 0;
    let starts = (1 << 20..image.len() - 4096).step_by(4096);
    let leaf = starts.into_iter().filter(is_fs_tree).collect::<Vec<usize>>();
    assert!(!leaf.is_empty());
    leaf.into_iter().for_each(|at| image[at + 200] ^= 1);
    fs::write(dir.path().join("0.img"), image).unwrap();
    let run = check(dir.path(), &["tree block", "bad checksum"]);
    assert!(run.out.contains("references were not compared: a part of the trees"), "{run:?}");
    assert_eq!(code(dir.path(), &["check", "0.img"]), Some(1));
    for option in ["--repair", "--init-extent-tree"] {
        let run = ashlar_in(dir.path(), &["btrfs", "check", option, "0.img"]);
        run.fails(2, &[option, "does not change the structures"]);
    }
    ashlar_in(dir.path(), &["btrfs", "check", "--check-data-csum", "0.img"])
        .fails(2, &["ashlar btrfs scrub start --readonly"]);
}

#[test]
fn superblocks_are_recovered_as_by_btrfs_progs() {
    let dir = made(1, &[]);
    let path = dir.path().join("0.img");
    let sound = fs::read(&path).unwrap();
    let recover = |options: &[&str]| {
        ashlar_in(dir.path(), &[&["btrfs", "rescue", "super-recover", "0.img"], options].concat())
    };
    let run = recover(&[]).ok();
    assert!(run.out.contains("nothing to recover") && run.err.is_empty(), "{run:?}");
    assert!(fs::read(&path).unwrap() == sound, "it wrote");
    for at in [64 << 10, 64 << 20] {
        let mut image = sound.clone();
        image[at + 300] ^= 1;
        fs::write(&path, &image).unwrap();
        // Nobody is there to answer.
        recover(&[]).fails(1, &["bad superblock checksum", "Rewrite 1 superblocks", "-y"]);
        assert!(fs::read(&path).unwrap() == image, "it wrote");
        ashlar_in(dir.path(), &["btrfs", "check", "0.img"]).fails(1, &["bad superblock checksum"]);
        let run = recover(&["-y"]).ok();
        assert!(run.out.starts_with("repaired: device 1 at "), "{run:?}");
        assert!(fs::read(&path).unwrap() == sound, "at {at} it wrote something else");
        assert_eq!(code(dir.path(), &["rescue", "super-recover", "0.img"]), Some(0));
    }
    let mut image = sound.clone();
    for at in [64 << 10, 64 << 20] {
        image[at + 300] ^= 1;
    }
    fs::write(&path, &image).unwrap();
    recover(&["-y"]).fails(1, &["0.img", "no superblock of it is found"]);
    assert!(fs::read(&path).unwrap() == image, "it wrote");
    // The superblock of another file system may be all that is left of it.
    let other = fs::read(made(1, &[]).path().join("0.img")).unwrap();
    let mut image = sound;
    let place = 64 << 20..(64 << 20) + 4096;
    image[place.clone()].copy_from_slice(&other[place]);
    fs::write(&path, &image).unwrap();
    recover(&["-y"]).fails(3, &["it is of the device", "no superblock can be recovered"]);
    assert!(fs::read(&path).unwrap() == image, "it wrote");
    ashlar_in(dir.path(), &["btrfs", "rescue", "zero-log", "0.img"])
        .fails(2, &["fsyncs", "btrfs get"]);
}
