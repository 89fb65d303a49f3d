//! btrfs without copies of its own on a mirror of md: what a checksum finds wrong on one disk is read from the other,
//! and repaired, although md itself cannot tell which of the two is right.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use super::support::{Images, MIB, Run, program};

/// Where the data of a member begins.
const DATA: u64 = MIB;
/// Where the first extent of a volume group begins.
const FIRST_EXTENT: u64 = MIB;
const BLOCK: usize = 16 << 10;

/// Two disks with a mirror of md, on it btrfs, and what the file system holds.
struct Nas {
    disks: Images,
    files: BTreeMap<String, Vec<u8>>,
    /// The file system.
    bytes: Vec<u8>,
    /// Where it begins on each disk.
    start: u64,
}

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?} {output:?}");
}

/// Bytes that do not compress and do not repeat.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

impl Nas {
    fn new(is_in_group: bool) -> Self {
        let disks = Images::array(2, 32 * MIB, &["--level=1", "--assume-clean", "--bitmap=none"]);
        let root = disks.path("root");
        fs::create_dir(&root).unwrap();
        // From the leaf of the tree to several extents.
        let sizes = [100, 5_000, 70_000, 300_000, 1_000_000];
        let file = |n: u64| {
            (format!("file{n}"), noise(n + 1, sizes[n as usize % sizes.len()] + n as usize))
        };
        let files: BTreeMap<String, Vec<u8>> = (0..10).map(file).collect();
        for (name, bytes) in &files {
            fs::write(root.join(name), bytes).unwrap();
        }
        let image = disks.path("image");
        File::create(&image).unwrap().set_len(128 * MIB).unwrap();
        let mkfs = ["-q", "-m", "single", "-d", "single", "--shrink", "--rootdir"];
        succeeds(Command::new("mkfs.btrfs").args(mkfs).args([&root, &image]));
        let bytes = fs::read(&image).unwrap();
        let mut start = DATA;
        if is_in_group {
            let group = disks.path("group");
            File::create(&group).unwrap().set_len(30 * MIB).unwrap();
            let lvm = |args: &[&str]| {
                let mut command = program();
                command.arg("lvm").args(args).current_dir(disks.dir.path());
                succeeds(command.env("XDG_STATE_HOME", disks.path("state")));
            };
            lvm(&["vgcreate", "-s", "1M", "vg", "group"]);
            let size = format!("{}b", bytes.len());
            lvm(&["lvcreate", "--devices", "group", "-n", "data", "-L", &size, "vg"]);
            let metadata = fs::read(&group).unwrap();
            for name in &disks.names {
                write(&disks.path(name), DATA, &metadata[..FIRST_EXTENT as usize]);
            }
            start += FIRST_EXTENT;
        }
        for name in &disks.names {
            write(&disks.path(name), start, &bytes);
        }
        Self { disks, files, bytes, start }
    }

    /// Changes a byte of every used 16 KiB, superblock, tree or data, on one of the disks, in turn.
    fn damage(&self) {
        let mut disk = 0;
        for (block, bytes) in self.bytes.chunks(BLOCK).enumerate() {
            let Some(byte) = bytes.iter().position(|byte| *byte != 0) else { continue };
            let at = (block * BLOCK + byte) as u64;
            write(&self.disks.path(&self.disks.names[disk]), self.start + at, &[bytes[byte] ^ 1]);
            disk = 1 - disk;
        }
    }

    fn run(&self, args: &[&str], disks: &[&str]) -> Run {
        let degraded: &[&str] = if disks.len() < 2 { &["--degraded"] } else { &[] };
        self.disks.run(&[&["btrfs"], args, degraded].concat(), disks)
    }

    fn scrub(&self, options: &[&str], disks: &[&str]) -> Run {
        let args = ["scrub", "start", "-B", "-R", "--status-dir", "status"];
        self.run(&[&args[..], options].concat(), disks)
    }

    /// Asserts that all files can be listed and read from these disks.
    fn is_whole(&self, disks: &[&str]) {
        let listed = self.run(&["ls", "/"], disks).ok().out;
        assert_eq!(listed.lines().count(), self.files.len(), "{listed}");
        let out = self.disks.path("out");
        self.run(&["get", "/", "out"], disks).ok();
        for (name, bytes) in &self.files {
            assert!(fs::read(out.join(name)).unwrap() == *bytes, "{name} from {disks:?}");
        }
        fs::remove_dir_all(out).unwrap();
        let (name, bytes) = self.files.last_key_value().unwrap();
        let mut cat = program();
        cat.args(["btrfs", "cat", &format!("/{name}")]).args(disks);
        if disks.len() < 2 {
            cat.arg("--degraded");
        }
        let output = cat.current_dir(self.disks.dir.path()).output().unwrap();
        assert!(output.status.success() && output.stdout == *bytes, "{name} from {disks:?}");
    }

    fn is_sound(&self, disks: &[&str]) {
        let clean = self.scrub(&["--readonly"], disks).ok();
        for counter in ["csum_errors", "verify_errors", "super_errors", "uncorrectable_errors"] {
            assert!(clean.out.contains(&format!("{counter}: 0\n")), "{disks:?} {clean:?}");
        }
        self.is_whole(disks);
    }
}

fn write(path: &Path, at: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// Each disk has wrong bytes in data, trees and superblock where the other is right.
fn heals(is_in_group: bool) {
    let nas = Nas::new(is_in_group);
    nas.damage();
    let both = ["d0", "d1"];
    nas.is_whole(&both);
    let before = nas.disks.bytes();
    let found = nas.scrub(&["--readonly"], &both);
    assert_eq!(found.code, Some(3), "{found:?}");
    assert!(found.out.contains("to be repaired: copy 1 of device 1 at "), "{found:?}");
    assert!(nas.disks.bytes() == before, "a scrub that may not write wrote");
    let healed = nas.scrub(&[], &both).ok();
    for told in ["copy 1 of", "copy 2 of", "superblock"] {
        let line = |line: &&str| line.starts_with("repaired: ") && line.contains(told);
        assert!(healed.out.lines().any(|it| line(&it)), "{told} {healed:?}");
    }
    assert!(healed.out.contains("uncorrectable_errors: 0\n"), "{healed:?}");
    let count = |counter: &str| {
        let line =
            |run: &Run| run.out.lines().find(|line| line.contains(counter)).map(str::to_owned);
        assert_eq!(line(&found), line(&healed), "a repair counts what the check before it found");
        let line = line(&healed).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let (data, trees) = (count("csum_errors"), count("verify_errors"));
    assert!(data > 100 && trees > 10, "{data} {trees}");
    assert_eq!(count("corrected_errors"), data + trees);
    assert_eq!(count("super_errors"), 1);
    nas.is_sound(&both);
    for disk in both {
        nas.is_sound(&[disk]);
    }
}

#[test]
fn what_is_wrong_on_one_disk_of_a_mirror_is_read_from_the_other_and_repaired() {
    heals(false);
}

#[test]
fn it_is_repaired_through_a_volume_group_on_the_mirror_too() {
    heals(true);
}

#[test]
fn what_is_wrong_on_both_disks_is_one_problem_that_names_no_copy() {
    let nas = Nas::new(false);
    // The place of a sector of the largest file.
    let bytes = nas.files.values().max_by_key(|bytes| bytes.len()).unwrap();
    let sector = &bytes[8192..12288];
    let at = nas.bytes.chunks(4096).position(|other| other == sector).unwrap() as u64 * 4096;
    for (disk, byte) in nas.disks.names.iter().zip([1, 2]) {
        write(&nas.disks.path(disk), nas.start + at, &[sector[0] ^ byte]);
    }
    let before = nas.disks.bytes();
    let found = nas.scrub(&[], &["d0", "d1"]);
    assert_eq!(found.code, Some(3), "{found:?}");
    assert!(found.out.contains(&format!("not repaired: device 1 at {at}, ")), "{found:?}");
    for counter in ["csum_errors: 1\n", "corrected_errors: 0\n", "uncorrectable_errors: 1\n"] {
        assert!(found.out.contains(counter), "{found:?}");
    }
    assert!(nas.disks.bytes() == before, "nothing right is known to write");
}

#[test]
fn one_disk_of_a_mirror_alone_is_said_to_lack_the_other() {
    let disks = Images::array(2, 16 * MIB, &["--level=1"]);
    let run = disks.run(&["btrfs", "ls", "/"], &["d0"]);
    run.fails(1, &["no btrfs file system: d0: array ", "only 1 of the 2", "hint: --degraded"]);
}
