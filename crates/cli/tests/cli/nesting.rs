//! Partitions, arrays in partitions, partitions in arrays: scanned, served, stopped.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::support::{Daemon, Images, MIB, in_one_line, program_in};

/// Where the first partition begins, and its size.
const FIRST: (u64, u64) = (MIB, 16 * MIB);
/// The size of the second one, which reaches to the end of a GPT, in MiB.
const SECOND_MIB: u64 = 22;

/// Runs a tool that the tests need.
fn tool(name: &str, args: &[&str], input: &str) {
    let mut command = Command::new(name);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

fn partition(images: &Images, name: &str, script: &str) {
    let path = images.path(name);
    tool("sfdisk", &["--quiet", "--no-reread", path.to_str().unwrap()], script);
}

/// Disks `d0` and `d1` with two partitions each; the first ones form the mirror md0.
fn mirrored() -> Images {
    let images = Images::new(2, 40 * MIB);
    let members = Images::array(2, FIRST.1, &["--level=1"]);
    for (name, bytes) in images.names.iter().zip(members.bytes()) {
        partition(&images, name, &format!("label: gpt\nsize=16M, type=R\nsize={SECOND_MIB}M\n"));
        write(&images, name, FIRST.0, &bytes);
    }
    images
}

fn write(images: &Images, name: &str, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(images.path(name)).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// A daemon with a mount, or `None` where mounting is not possible.
fn mounted(images: &Images, args: &[&str]) -> Option<(Daemon, PathBuf)> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: no /dev/fuse");
        return None;
    }
    let mount = images.path("mnt");
    fs::create_dir_all(&mount).unwrap();
    Some((images.serve(&[&["--mount", "mnt"], args].concat()), mount))
}

/// The names in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_file_system_on_a_mirror_of_partitions_is_served_and_survives_the_loss_of_a_disk() {
    let images = mirrored();
    let Some((daemon, mount)) = mounted(&images, &[]) else { return };
    assert_eq!(
        daemon.greeting,
        "md0: raid1 15M, clean, 2 of 2 devices\nd0p2: part 22M\nd1p2: part 22M\nready\n"
    );
    assert_eq!(names(&mount.join("dev")), ["d0p2", "d1p2", "md0"]);
    let files = images.path("files");
    fs::create_dir(&files).unwrap();
    fs::write(files.join("hello"), "from within").unwrap();
    let volume = mount.join("dev/md0");
    let (files, volume) = (files.to_str().unwrap(), volume.to_str().unwrap());
    tool("mkfs.ext4", &["-q", "-F", "-d", files, volume], "");
    daemon.end();

    let args = ["--mount", "mnt", "--run", "--read-only", "d1"];
    let daemon = Daemon::start(images.dir.path(), &args);
    let output = Command::new("debugfs").args(["-R", "cat /hello", volume]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "from within");
    daemon.end();
    let scan = images.run(&["scan"], &images.refs()).ok().out;
    assert!(
        scan.lines().any(|line| line.starts_with("| `-md0") || line.contains("ext4")),
        "{scan}"
    );
}

#[test]
fn every_device_has_its_place_in_sysfs() {
    let images = mirrored();
    let Some((daemon, mount)) = mounted(&images, &[]) else { return };
    let read = |path: &str| fs::read_to_string(mount.join("sys/block").join(path)).unwrap();
    assert_eq!(read("d0/size"), format!("{}\n", 40 * MIB / 512));
    assert_eq!(read("d0p1/size"), "32768\n");
    assert_eq!((read("d0p1/partition"), read("d0p2/partition")), ("1\n".into(), "2\n".into()));
    assert_eq!((read("d0p1/start"), read("d0p2/start")), ("2048\n".into(), "34816\n".into()));
    assert_eq!(read("d0/d0p2/start"), "34816\n");
    assert_eq!(read("d1p1/holders/md0/md/level"), "raid1\n");
    assert_eq!(read("md0/slaves/d1p1/size"), "32768\n");
    assert_eq!(read("d1p2/queue/logical_block_size"), "512\n");
    assert_eq!(read("md0/dev"), "9:0\n");
    let numbers: Vec<String> =
        names(&mount.join("sys/block")).iter().map(|name| read(&format!("{name}/dev"))).collect();
    let mut different = numbers.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 7, "{numbers:?}");
    assert!(read("d0p2/stat").split_whitespace().count() >= 11);
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("d0p2: part 22M"), "{status}");
    daemon.end();
}

#[test]
fn writes_to_a_partition_stay_inside_it() {
    let images = mirrored();
    let before = images.bytes();
    let Some((daemon, mount)) = mounted(&images, &[]) else { return };
    let volume = OpenOptions::new().write(true).open(mount.join("dev/d0p2")).unwrap();
    let len = SECOND_MIB * MIB;
    assert_eq!(volume.metadata().unwrap().len(), len);
    volume.write_all_at(&[1; 4096], 0).unwrap();
    volume.write_all_at(&[2; 4096], len - 4096).unwrap();
    assert!(volume.write_all_at(&[3; 512], len).is_err());
    volume.sync_all().unwrap();
    drop(volume);
    daemon.end();
    let mut wanted = before[0].clone();
    let start = (FIRST.0 + FIRST.1) as usize;
    wanted[start..][..4096].fill(1);
    wanted[start + len as usize - 4096..][..4096].fill(2);
    let after = images.bytes();
    assert!(after[0] == wanted && after[1] == before[1]);
}

#[test]
fn a_volume_is_overwritten_as_a_file_is_also_with_holes() {
    let images = mirrored();
    let Some((daemon, mount)) = mounted(&images, &[]) else { return };
    let volume = mount.join("dev/d0p2");
    let len = (SECOND_MIB * MIB) as usize;
    let old = vec![1; len];
    OpenOptions::new().write(true).open(&volume).unwrap().write_all_at(&old, 0).unwrap();
    fs::write(&volume, "short").unwrap();
    let mut expected = old;
    expected[..5].copy_from_slice(b"short");
    assert!(fs::read(&volume).unwrap() == expected, "more than what was written has changed");
    // A hole, data, a hole, data.
    let sparse = images.path("sparse");
    let file = File::create(&sparse).unwrap();
    for at in [MIB, 3 * MIB] {
        file.write_all_at(&[2; 4096], at).unwrap();
        expected[at as usize..][..4096].fill(2);
    }
    expected[..MIB as usize].fill(0);
    expected[MIB as usize + 4096..3 * MIB as usize].fill(0);
    let (from, to) = (sparse.to_str().unwrap(), volume.to_str().unwrap());
    for copy in [&["cp", "--sparse=always"][..], &["cp"]] {
        OpenOptions::new().write(true).open(&volume).unwrap().write_all_at(&[3; 4096], 0).unwrap();
        tool(copy[0], &[&copy[1..], &[from, to]].concat(), "");
        assert!(fs::read(&volume).unwrap() == expected, "{copy:?}");
    }
    tool("dd", &[&format!("if={from}"), &format!("of={to}"), "bs=1M", "conv=sparse"], "");
    assert!(fs::read(&volume).unwrap() == expected);
    let file = OpenOptions::new().write(true).open(&volume).unwrap();
    assert!(file.set_len(4096).is_err() && file.set_len(0).is_err());
    assert!(fs::read(&volume).unwrap() == expected);
    drop(file);
    daemon.end();
}

#[test]
fn a_whole_disk_is_served_as_it_is() {
    let images = mirrored();
    let daemon = images.serve(&["--whole", "--nbd", "unix:nbd"]);
    assert_eq!(daemon.greeting, "d0: disk 40M\nd1: disk 40M\nready\n");
    daemon.end();
    fs::write(images.path("stack.toml"), "disks = [\"d0\"]\nwhole = true\n").unwrap();
    let daemon = Daemon::start(images.dir.path(), &["--config", "stack.toml"]);
    assert_eq!(daemon.greeting, "d0: disk 40M\nready\n");
    daemon.end();
}

#[test]
fn the_backup_of_a_damaged_gpt_is_used_and_this_is_said() {
    let images = mirrored();
    write(&images, "d0", 512, &[0; 512]);
    let before = images.bytes();
    let said = "the primary GPT is damaged (no header); the backup is used";
    let scan = in_one_line(&images.run(&["scan"], &images.refs()).ok().out);
    assert!(scan.contains(said) && scan.contains("devices=2/2"), "{scan}");
    let daemon = images.serve(&["--nbd", "unix:nbd"]);
    assert!(daemon.greeting.starts_with("md0: raid1 15M, clean, 2 of 2 devices"));
    let log = daemon.end();
    assert!(log.contains(said), "{log}");
    assert!(images.bytes() == before, "a table was repaired");
}

#[test]
fn a_disk_with_a_ruined_table_is_refused_but_can_be_served_whole() {
    let images = mirrored();
    write(&images, "d1", 512, &[0; 512]);
    write(&images, "d1", 40 * MIB - 512, &[0; 512]);
    let args = ["serve", "--nbd", "unix:n", "--control", "c"];
    images
        .run(&args, &["d1"])
        .fails(1, &["cannot serve: d1: both copies of the GPT are unusable", "hint: use --whole"]);
    let scan = in_one_line(&images.run(&["scan"], &["d1"]).ok().out);
    assert!(scan.contains("both copies of the GPT"), "{scan}");
    let daemon = Daemon::start(images.dir.path(), &["--whole", "--nbd", "unix:n", "d1"]);
    assert_eq!(daemon.greeting, "d1: disk 40M\nready\n");
    daemon.end();
}

#[test]
fn an_array_of_partitions_that_does_not_start_is_a_failure_unless_arrays_may_wait() {
    let images = mirrored();
    let args = ["serve", "--nbd", "unix:n", "--control", "c"];
    let fails = |options: &[&str], hint: &str| {
        let run = images.run(&[&args, options].concat(), &["d0"]);
        run.fails(1, &["cannot start: array 0 (", "only 1 of the 2 members", hint]);
    };
    fails(
        &[],
        "hint: name the disks with the others, too; if these are lost, use --run to start it",
    );
    fails(&[], "use --incremental to serve what starts, and to add members later");
    fails(&["--read-only"], "if these are lost, use --run --read-only to start it without them");
    fails(&["--read-only"], "use --incremental --read-only to serve what starts");
    let daemon = Daemon::start(images.dir.path(), &["-I", "--nbd", "unix:n", "d0"]);
    assert_eq!(daemon.greeting, "md0: raid1, inactive, 1 of 2 devices\nd0p2: part 22M\nready\n");
    daemon.end();
    let daemon = Daemon::start(images.dir.path(), &["--run", "--nbd", "unix:n", "d0"]);
    assert_eq!(daemon.greeting, "md0: raid1 15M, clean, 1 of 2 devices\nd0p2: part 22M\nready\n");
    daemon.end();
    let members = Images::array(2, 32 * MIB, &["--level=1"]);
    members.run(&args, &["d0"]).fails(1, &["cannot start: array 0 ("]);
}

#[test]
fn all_arrays_that_cannot_start_are_named_and_no_option_that_was_given_is_advised() {
    let images = Images::two_arrays(&["--level=0", "--name=striped"], "--name=mirrored");
    let args = ["serve", "--nbd", "unix:n", "--control", "c"];
    let run = images
        .run(&args, &["d0", "m0"])
        .fails(1, &["array striped (", "array mirrored (", "; array"]);
    assert!(!run.err.contains("--incremental"), "{run:?}");
    let options = ["--run", "--read-only"];
    let run = images.run(&[&args[..], &options].concat(), &["d0", "m0"]).fails(1, &["striped ("]);
    assert!(!run.err.contains("mirrored") && !run.err.contains("--run"), "{run:?}");
    assert!(run.err.contains("use --incremental --read-only to serve what starts"), "{run:?}");
}

#[test]
fn an_array_with_a_ruined_partition_table_is_refused_but_can_be_served_whole() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--metadata=1.0"]);
    // An MBR that announces a GPT that is missing.
    let mut sector = [0; 512];
    sector[446..462].copy_from_slice(&[0, 0, 2, 0, 0xee, 255, 255, 255, 1, 0, 0, 0, 0, 0xf0, 0, 0]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    images.names.iter().for_each(|name| write(&images, name, 0, &sector));
    let args = ["serve", "--nbd", "unix:n", "--control", "c"];
    let why = "cannot serve: md0: both copies of the GPT are unusable";
    let whole = "hint: use --whole to serve it as it is";
    images.run(&args, &images.refs()).fails(1, &[why, whole]);
    let whole = "hint: use --whole --read-only to serve it as it is";
    images.run(&[&args[..], &["--read-only"]].concat(), &images.refs()).fails(1, &[why, whole]);
    let daemon = images.serve(&["--whole", "--nbd", "unix:n"]);
    assert_eq!(daemon.greeting.lines().count(), 2, "{}", daemon.greeting);
    daemon.end();
    // Beside another volume, the array is left out if it is only to be read, or if the user says so.
    File::create(images.path("plain")).unwrap().set_len(MIB).unwrap();
    let run = images.run(&[&args[..], &["plain"]].concat(), &images.refs()).fails(1, &[why]);
    assert!(run.err.contains("; use --incremental to serve the others"), "{run:?}");
    for option in ["--read-only", "--incremental"] {
        let daemon = images.serve(&[option, "--nbd", "unix:n", "plain"]);
        assert!(daemon.greeting.contains("plain: disk 1M"), "{}", daemon.greeting);
        let log = daemon.end();
        assert!(log.contains("WARN both copies of the GPT are unusable"), "{log}");
    }
}

#[test]
fn an_ordinary_user_may_scan_images_that_can_only_be_read() {
    let images = mirrored();
    for name in &images.names {
        fs::set_permissions(images.path(name), fs::Permissions::from_mode(0o444)).unwrap();
    }
    fs::set_permissions(images.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = program_in(&images);
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = Command::new("setpriv");
    command.args(user).arg(&copy).arg("scan").args(images.refs()).current_dir(images.dir.path());
    let output = command.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    if error.contains("setpriv: ") {
        return eprintln!("skipped: not root: {error}");
    }
    let scan = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && scan.contains("devices=2/2"), "{scan}{error}");
}

/// The names, labels and identifiers in the JSON of a scan.
fn identities(node: &serde_json::Value, found: &mut Vec<String>) {
    for key in ["name", "label", "set", "vg", "partlabel", "uuid", "partuuid", "map"] {
        found.extend(node[key].as_str().map(str::to_owned));
    }
    for children in [&node["blockdevices"], &node["children"]] {
        children.as_array().into_iter().flatten().for_each(|child| identities(child, found));
    }
}

#[test]
fn the_widest_scan_has_no_line_beyond_100_columns_and_cuts_nothing() {
    let images = Images::new(2, 40 * MIB);
    let name = "--name=an-array-whose-name-has-32-bytes";
    let members = Images::array(2, FIRST.1, &["--level=1", name]);
    for (disk, bytes) in images.names.iter().zip(members.bytes()) {
        let table = "label: gpt\nsize=16M, type=R, name=\"a label of a partition, 36 letters.\"\n";
        partition(&images, disk, table);
        write(&images, disk, FIRST.0, &bytes);
    }
    let devices = "--devices=d0,d1";
    let lvm = |args: &[&str]| images.run(&[&["lvm"], args, &[devices]].concat(), &[]).ok();
    let group = format!("group-{}", "g".repeat(30));
    lvm(&["vgcreate", "-s", "1M", &group, "/dev/md127"]);
    lvm(&["lvcreate", "-n", "a-volume-with-a-long-name", "-l", "100%FREE", &group]);
    let Some((daemon, mount)) = mounted(&images, &[]) else { return };
    let volume = mount.join("dev").join(&group).join("a-volume-with-a-long-name");
    tool("mkfs.ext4", &["-q", "-F", "-L", "label, 16 bytes.", volume.to_str().unwrap()], "");
    daemon.end();

    let directory = images.path("dev/disk/by-id");
    fs::create_dir_all(&directory).unwrap();
    let disk = directory.join("ata-WDC_WD40EFRX-68N32N0_WD-WCC7K0123456");
    fs::rename(images.path("d1"), &disk).unwrap();
    let map = "0 + 1\n0 0x1200000 +\n0x1200000 0x100000 -\n0x1300000 0x1500000 +\n";
    fs::write(directory.join("ata-WDC_WD40EFRX-68N32N0_WD-WCC7K0123456.map"), map).unwrap();
    let disk = disk.strip_prefix(images.dir.path()).unwrap().to_str().unwrap();
    let text = images.run(&["scan"], &[disk]).ok().out;
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{text}");
    assert_eq!(
        text.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["NAME", "SIZE", "TYPE", "DETAILS"]
    );
    let json = images.run(&["scan", "--json"], &[disk]).ok().out;
    let mut found = Vec::new();
    identities(&serde_json::from_str(&json).unwrap(), &mut found);
    // The disk, its map, its partition with label and UUID, the array with name and UUID, the group, its volume, the file system.
    assert_eq!(found.len(), 13, "{found:?}");
    for part in found {
        assert!(text.contains(&part), "{part}: {text}");
    }
    for problem in ["(degraded)", "(1M not read by ddrescue)"] {
        assert!(in_one_line(&text).contains(problem), "{text}");
    }
}

#[test]
fn scans_of_nested_disks_in_json_are_nested() {
    let images = mirrored();
    let text = images.run(&["scan", "--json"], &images.refs()).ok().out;
    let scan: serde_json::Value = serde_json::from_str(&text).unwrap();
    let disks = scan["blockdevices"].as_array().unwrap();
    assert_eq!(disks.len(), 2);
    for (disk, name) in disks.iter().zip(["d0p1", "d1p1"]) {
        assert_eq!((&disk["type"], &disk["pttype"]), (&"disk".into(), &"gpt".into()));
        let part = &disk["children"][0];
        assert_eq!((&part["type"], &part["name"]), (&"part".into(), &name.into()));
        assert_eq!(part["size"], FIRST.1);
        assert_eq!(part["children"][0]["type"], "raid1");
        assert_eq!(part["children"][0]["devices"], "2/2");
    }
    assert!(File::open(images.path("d0")).is_ok());
}

#[test]
fn members_in_partitions_are_examined_and_told_of() {
    let images = mirrored();
    let examined = images.run(&["md", "examine"], &["d0"]).ok().out;
    let table = "d0:\n   MBR Magic : aa55\n\
                 Partition[0] :        81919 sectors at            1 (type ee)\nd0p1:\n";
    assert!(examined.starts_with(table), "{examined}");
    assert!(examined.contains("Device Role : Active device 0"), "{examined}");
    assert!(!examined.contains("d0p2"), "{examined}");
    if let Ok(theirs) = Command::new("mdadm").arg("-E").arg(images.path("d0")).output() {
        let theirs = String::from_utf8(theirs.stdout).unwrap();
        let lines =
            |text: &str| text.lines().skip(1).take(2).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(&examined), lines(&theirs));
    }
    let json = images.run(&["md", "examine", "--json"], &["d0", "d1"]).ok().out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let names = [&json[0]["device"], &json[1]["device"]].map(|name| name.as_str().unwrap());
    assert_eq!(names, ["d0p1", "d1p1"]);
    let bad = images.run(&["md", "examine", "--badblocks"], &["d1"]).ok().out;
    assert_eq!(bad, "Bad-blocks list is empty in d1p1\n");
    let detail = images.run(&["md", "detail"], &["d0", "d1"]).ok().out;
    assert!(detail.contains("raid1") && detail.contains("d1p1\n"), "{detail}");
    // Partitions, but no members.
    let plain = Images::new(1, 40 * MIB);
    partition(&plain, "d0", "label: dos\nsize=16M\n");
    let nothing = plain.run(&["md", "examine"], &["d0"]).fails(1, &["no md superblock: d0"]);
    assert!(nothing.out.contains("        32768 sectors at         2048 (type 83)"), "{nothing:?}");
    plain.run(&["md", "detail"], &["d0"]).fails(1, &["d0: holds no array (found: dos partition"]);
}
