//! `ashlar btrfs ls`, `cat`, `get` and `inspect` on golden images of real file systems.

use ashlar_files::Name;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::support::{ashlar_in, program};

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/btrfs").join(name)
}

/// A directory with the devices of a golden image as `0.img` and so on, and their names.
pub(crate) fn unpacked(name: &str) -> (TempDir, Vec<String>) {
    let dir = TempDir::new().unwrap();
    let map = fs::read_to_string(golden(name).join("image.map")).unwrap();
    let bin = fs::read(golden(name).join("image.bin")).unwrap();
    let mut files: Vec<File> = Vec::new();
    for line in map.lines() {
        let (kind, numbers) = line.split_once(' ').unwrap();
        let numbers: Vec<u64> = numbers.split(' ').map(|it| it.parse().unwrap()).collect();
        if kind == "device" {
            let file = File::create(dir.path().join(format!("{}.img", numbers[0]))).unwrap();
            file.set_len(numbers[1]).unwrap();
            files.push(file);
        } else {
            let [index, at, len, source] = numbers[..] else { panic!("{line}") };
            let bytes = &bin[source as usize..(source + len) as usize];
            files[index as usize].write_all_at(bytes, at).unwrap();
        }
    }
    let names = (0..files.len()).map(|index| format!("{index}.img")).collect();
    (dir, names)
}

/// The arguments followed by the devices.
pub(crate) fn with<'a>(args: &[&'a str], devices: &'a [String]) -> Vec<&'a str> {
    args.iter().copied().chain(devices.iter().map(String::as_str)).collect()
}

/// Lines of a manifest: type, mode, size, contents, path.
fn manifest(name: &str) -> Vec<[String; 5]> {
    let text = fs::read_to_string(golden(name).join("manifest.txt")).unwrap();
    let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
    text.lines().map(|line| words(line).try_into().unwrap()).collect()
}

/// A path in a manifest, in which all bytes except printable ASCII are escaped, as `ls` prints it as text.
fn as_listed(path: &str) -> String {
    Name::from_shown(path.as_bytes()).to_string()
}

#[test]
fn texts_are_those_of_btrfs_progs() {
    for name in ["single-16k", "raid1-sha256", "halved"] {
        let (dir, devices) = unpacked(name);
        let text = |file: &str| fs::read_to_string(golden(name).join(file)).unwrap();
        let run = ashlar_in(dir.path(), &with(&["btrfs", "inspect", "super", "-f"], &devices)).ok();
        assert_eq!(run.out, text("super.txt"));
        let run = ashlar_in(dir.path(), &with(&["btrfs", "inspect", "usage"], &devices)).ok();
        assert_eq!(run.out, text("usage.txt"));
        let run = ashlar_in(dir.path(), &with(&["btrfs", "inspect", "chunks"], &devices)).ok();
        assert!(run.out.lines().any(|line| line.starts_with("chunk ")), "{run:?}");
    }
    let (dir, devices) = unpacked("halved");
    let all = with(&["btrfs", "inspect", "tree"], &devices);
    let output = program().args(all).current_dir(dir.path()).output().unwrap();
    let wanted = fs::read(golden("halved").join("tree.txt")).unwrap();
    let first = wanted.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    assert!(output.status.success() && output.stdout == wanted[first..]);
    let one =
        ashlar_in(dir.path(), &with(&["btrfs", "inspect", "tree", "-t", "csum"], &devices)).ok();
    assert!(one.out.starts_with("checksum tree key (CSUM_TREE ROOT_ITEM 0)"), "{}", one.out);
    let none = with(&["btrfs", "inspect", "tree", "-t", "99"], &devices);
    ashlar_in(dir.path(), &none).fails(1, &["there is no tree 99"]);
}

/// The remainder of CRC-32C.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| bit(crc));
    !bytes.iter().fold(!0, byte)
}

/// The names were printed as they are on the disk.
#[test]
fn a_name_on_a_disk_is_no_command_to_the_terminal() {
    let (dir, devices) = unpacked("single-16k");
    let mut image = fs::read(dir.path().join("0.img")).unwrap();
    let (name, evil) = (&b"inline"[..], b"\x1b[2J\x9b\n");
    let mut changed = 0;
    for at in (0..image.len() - (16 << 10)).step_by(4096) {
        let node = &mut image[at..at + (16 << 10)];
        if node[..4] == [0; 4]
            || !node.windows(name.len()).any(|bytes| bytes == name)
            || node[..4] != crc32c(&node[32..]).to_le_bytes()
        {
            continue;
        }
        while let Some(at) = node.windows(name.len()).position(|bytes| bytes == name) {
            node[at..at + evil.len()].copy_from_slice(evil);
        }
        let sum = crc32c(&node[32..]);
        node[..4].copy_from_slice(&sum.to_le_bytes());
        changed += 1;
    }
    assert!(changed > 0, "the name is in no tree block");
    fs::write(dir.path().join("0.img"), image).unwrap();
    for args in [&["btrfs", "inspect", "tree"][..], &["btrfs", "ls", "-R", "/"]] {
        let output = program().args(with(args, &devices)).current_dir(dir.path()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let shown = text.contains("\\u001b[2J\\x9b") || text.contains("\\x1b[2J\\x9b");
        assert!(shown && !text.contains('\u{1b}'), "{args:?}: {text}");
    }
}

#[test]
fn what_is_no_superblock_is_said_so() {
    let dir = TempDir::new().unwrap();
    File::create(dir.path().join("empty")).unwrap().set_len(1 << 20).unwrap();
    ashlar_in(dir.path(), &["btrfs", "inspect", "super", "empty"])
        .fails(1, &["empty, byte 65536", "magic", "--force"]);
    let run = ashlar_in(dir.path(), &["btrfs", "inspect", "super", "--force", "empty"]).ok();
    assert!(run.out.contains("magic\t\t\t........ [DON'T MATCH]"), "{}", run.out);
    ashlar_in(dir.path(), &["btrfs", "ls", "/", "empty"]).fails(1, &["no btrfs file system"]);
}

#[test]
fn directories_are_listed_as_they_are() {
    let (dir, devices) = unpacked("single-4k");
    let run = ashlar_in(dir.path(), &with(&["btrfs", "ls", "-R", "/"], &devices)).ok();
    let mut listed: Vec<&str> = run.out.lines().collect();
    listed.sort_unstable();
    let all = manifest("single-4k");
    let mut wanted: Vec<String> = all.iter().map(|line| as_listed(&line[4])).collect();
    wanted.sort_unstable();
    assert_eq!(listed, wanted);
    let run = ashlar_in(dir.path(), &with(&["btrfs", "ls", "-l", "/"], &devices)).ok();
    let device = run.out.lines().find(|line| line.ends_with(" block")).unwrap();
    assert!(device.starts_with("brw-r----- ") && device.contains(" 300:70000 "), "{device}");
    assert!(
        run.out.lines().any(|line| line.starts_with("lrwxrwxrwx ") && line.contains(" link -> "))
    );
    let run = ashlar_in(dir.path(), &with(&["btrfs", "ls", "--json", "-R", "/"], &devices)).ok();
    let json: Vec<serde_json::Value> = serde_json::from_str(&run.out).unwrap();
    assert_eq!(json.len(), wanted.len());
    let inline = json.iter().find(|it| it["path"] == "/inline").unwrap();
    assert!(inline["size"] == 1000 && inline["kind"] == "file" && inline["mode"] == "0644");
    assert!(json.iter().any(|it| it["path_base64"].is_string()), "a name that is not UTF-8");
    let file = ashlar_in(dir.path(), &with(&["btrfs", "ls", "/inline"], &devices)).ok();
    assert_eq!(file.out, "/inline\n");
    let nothing = with(&["btrfs", "ls", "/nothing"], &devices);
    ashlar_in(dir.path(), &nothing).fails(1, &["/nothing", "no such file"]);
}

#[test]
fn everything_is_taken_out() {
    let (dir, devices) = unpacked("raid6");
    // Two of the devices are enough.
    let left = &devices[2..];
    let run = ashlar_in(dir.path(), &with(&["btrfs", "get", "/", "out", "--degraded"], left)).ok();
    assert!(!run.err.contains("ashlar: "), "{run:?}");
    let mut compared = 0;
    for [kind, mode, size, _, path] in manifest("raid6") {
        if path.contains("\\x") || !["f", "d", "l"].contains(&kind.as_str()) {
            continue;
        }
        let taken = dir.path().join("out").join(path.trim_start_matches('/'));
        let metadata = taken.symlink_metadata().unwrap_or_else(|why| panic!("{path}: {why}"));
        if kind != "l" {
            let kept = u32::from_str_radix(&mode, 8).unwrap() & 0o1777;
            assert_eq!(metadata.mode() & 0o7777, kept, "{path}");
        }
        if kind == "f" {
            assert_eq!(metadata.len().to_string(), size, "{path}");
            let cat = with(&["btrfs", "cat", &path, "--degraded"], left);
            let output = program().args(cat).current_dir(dir.path()).output().unwrap();
            assert!(
                output.status.success() && output.stdout == fs::read(&taken).unwrap(),
                "{path}"
            );
            compared += 1;
        }
    }
    assert!(compared > 10, "{compared}");
    let again = with(&["btrfs", "get", "/", "out", "--degraded"], left);
    ashlar_in(dir.path(), &again).fails(1, &["nothing is overwritten", "out"]);
    let few = with(&["btrfs", "ls", "/"], left);
    ashlar_in(dir.path(), &few).fails(1, &["missing", "--degraded"]);
}

#[test]
fn a_file_that_has_lost_something_is_named_and_not_kept() {
    let (dir, devices) = unpacked("single-4k");
    let image = File::options().read(true).write(true).open(dir.path().join("0.img")).unwrap();
    let cat = |options: &[&str]| {
        let args = [&["btrfs", "cat", "/large", "0.img"], options].concat();
        program().args(args).current_dir(dir.path()).output().unwrap()
    };
    let whole = cat(&[]).stdout;
    // On one device without redundancy, a data address is where it says. The ninth sector:
    let owners = |at: u64| {
        let at = at.to_string();
        let args = ["btrfs", "inspect", "paths", at.as_str(), "0.img"];
        ashlar_in(dir.path(), &args)
    };
    let mut place = None;
    for at in (0..200 << 20).step_by(4096) {
        let mut sector = [0; 4096];
        image.read_exact_at(&mut sector, at).unwrap();
        if sector == whole[8 * 4096..9 * 4096] {
            place = Some(at);
        }
    }
    let at = place.unwrap();
    let run = owners(at).ok();
    let line = "inode 261 offset 32768 path /large";
    assert!(run.out.starts_with("data ") && run.out.contains(line), "{run:?}");
    image.write_all_at(&[0xee; 16], at).unwrap();
    let output = cat(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, whole[..8 * 4096]);
    let output = cat(&["--ignore-errors"]);
    assert_eq!(output.status.code(), Some(1));
    let mut wanted = whole.clone();
    wanted[8 * 4096..9 * 4096].fill(0);
    assert!(output.stdout == wanted);
    let get = |options: &[&str], dest: &str| {
        let args = [&["btrfs", "get", "/", dest], options, &["0.img"]].concat();
        ashlar_in(dir.path(), &args)
    };
    get(&[], "first").fails(1, &["/large", "bytes 32768 to 36863 are lost", "checksum"]);
    assert!(!dir.path().join("first/large").exists() && dir.path().join("first/inline").exists());
    get(&["--keep-partial"], "second").fails(1, &["bytes 32768 to 36863 are lost"]);
    assert!(fs::read(dir.path().join("second/large")).unwrap() == wanted);
    assert_eq!(devices, ["0.img"]);
}

#[test]
fn a_log_that_is_not_replayed_is_spoken_of() {
    let (dir, devices) = unpacked("log");
    let run = ashlar_in(dir.path(), &with(&["btrfs", "ls", "/"], &devices)).ok();
    assert!(run.err.contains("is not replayed"), "{run:?}");
    assert!(!run.out.contains("synced"), "{run:?}");
}

#[test]
fn an_address_leads_to_files_and_trees() {
    let (dir, devices) = unpacked("shared");
    let paths =
        |at: &str| ashlar_in(dir.path(), &with(&["btrfs", "inspect", "paths", at], &devices));
    let usage = ashlar_in(dir.path(), &with(&["btrfs", "inspect", "super"], &devices)).ok();
    let root =
        usage.out.lines().find_map(|line| line.strip_prefix("root\t\t\t")).unwrap().to_owned();
    let run = paths(&root).ok();
    assert!(run.out.starts_with(&format!("tree block {root} level ")), "{run:?}");
    assert!(run.out.contains("\troot 1 (ROOT_TREE)\n"), "{run:?}");
    paths("1").fails(1, &["nobody has the bytes at 1"]);
    ashlar_in(dir.path(), &with(&["btrfs", "inspect", "paths", "x"], &devices)).code.unwrap();
}

#[test]
fn one_of_a_volume_and_its_snapshot_is_chosen() {
    let (dir, devices) = unpacked("single-16k");
    let run = |args: &[&str]| ashlar_in(dir.path(), args);
    let lvm = |verb: &str, args: &[&str]| {
        let output = program()
            .args([&["lvm", verb], args].concat())
            .current_dir(dir.path())
            .env("XDG_STATE_HOME", dir.path().join("state"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let mut device = fs::read(dir.path().join(&devices[0])).unwrap();
    let disk = File::create(dir.path().join("disk.img")).unwrap();
    disk.set_len(2 * device.len() as u64).unwrap();
    lvm("vgcreate", &["-s", "1M", "vg", "disk.img"]);
    let size = format!("{}b", device.len());
    lvm("lvcreate", &["--devices", "disk.img", "-n", "data", "-L", &size, "vg"]);
    lvm("lvcreate", &["--devices", "disk.img", "-s", "-n", "old", "-L", "8M", "vg/data"]);
    // The first extent follows a MiB of metadata.
    disk.write_all_at(&device, 1 << 20).unwrap();
    // The superblock is that of the volumes on the disk.
    let inspect = |device: &str| run(&["btrfs", "inspect", "super", device]).ok().out;
    let (direct, through) = (inspect(&devices[0]), inspect("disk.img"));
    let fields = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    let volumes = through.split("superblock: ").skip(1);
    assert_eq!(volumes.clone().count(), 2, "{through}");
    for volume in volumes {
        assert!(volume.starts_with("bytenr=65536, device=/dev/vg/"), "{volume}");
        assert_eq!(fields(volume.trim_end()), fields(direct.trim_end()));
    }
    let ls = ["btrfs", "ls", "/", "disk.img"];
    run(&ls).fails(1, &["vg/data", "vg/old", "both device 1", "--on chooses"]);
    let wanted = run(&with(&["btrfs", "ls", "/"], &devices)).ok().out;
    for volume in ["vg/data", "/dev/vg/old"] {
        assert_eq!(run(&[&ls[..], &["--on", volume]].concat()).ok().out, wanted);
    }
    run(&[&ls[..], &["--on", "vg/new"]].concat()).fails(1, &["vg/new", "there are", "vg/data"]);
    // The volume that was not chosen is not written, and the other sees the old contents.
    device[(64 << 20) + 100] ^= 1;
    disk.write_all_at(&device[64 << 20..][..512], (65 << 20) as u64).unwrap();
    let scrub =
        ["btrfs", "scrub", "start", "-B", "--status-dir", ".", "--on", "vg/data", "disk.img"];
    let found = run(&scrub).ok();
    assert!(found.out.contains("super=1"), "{found:?}");
}

#[test]
fn the_superblock_of_an_array_is_that_of_its_file_system_whichever_members_are_given() {
    let (dir, devices) = unpacked("single-16k");
    let run = |args: &[&str]| ashlar_in(dir.path(), args).ok().out;
    let device = fs::read(dir.path().join(&devices[0])).unwrap();
    for name in ["a", "b"] {
        let member = File::create(dir.path().join(name)).unwrap();
        member.set_len(device.len() as u64 + (64 << 20)).unwrap();
    }
    run(&[
        "md",
        "create",
        "-l1",
        "-n2",
        "--homehost=any",
        "--assume-clean",
        "/dev/md/data",
        "a",
        "b",
    ]);
    let examined = run(&["md", "examine", "a"]);
    let offset = examined.split("Data Offset : ").nth(1).unwrap().split(' ').next().unwrap();
    for name in ["a", "b"] {
        let member = File::options().write(true).open(dir.path().join(name)).unwrap();
        member.write_all_at(&device, 512 * offset.parse::<u64>().unwrap()).unwrap();
    }
    let fields = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    let inspect = |given: &[&str]| run(&[&["btrfs", "inspect", "super"], given].concat());
    let wanted = fields(&inspect(&[&devices[0]]));
    for given in [&["a", "b"][..], &["b"]] {
        let through = inspect(given);
        assert!(through.starts_with("superblock: bytenr=65536, device=/dev/md"), "{through}");
        assert_eq!(fields(&through), wanted, "{given:?}");
    }
}
