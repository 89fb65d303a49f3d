//! Signatures made by the real tools, found where `wipefs(8)` finds them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use ashlar_stack::signature::{Image, detect, identity};

/// Types and offsets.
type SignatureList = Vec<(String, u64)>;

/// Runs a tool; its absence skips the test (`None`), its failure fails it.
fn run(tool: &str, args: &[&str]) -> Option<String> {
    match Command::new(tool).args(args).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{tool} {args:?}: {text}");
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: no {tool}");
            None
        }
        Err(error) => panic!("{tool}: {error}"),
    }
}

/// The ranges that an image asks for.
fn image(path: &Path) -> Image {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut image = Image::new(size);
    for range in Image::wanted(size) {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut bytes, range.start).unwrap();
        image.add(range.start, bytes);
    }
    image
}

/// Our signatures.
fn ours(path: &Path) -> SignatureList {
    detect(&image(path)).iter().map(|found| (found.name.to_owned(), found.offset)).collect()
}

/// The signatures that `wipefs` finds.
fn theirs(path: &Path) -> Option<SignatureList> {
    let text = run("wipefs", &["--json", path.to_str().unwrap()])?;
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut found: SignatureList = json["signatures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let offset = row["offset"].as_str().unwrap().trim_start_matches("0x");
            let name = row["type"].as_str().unwrap().to_owned();
            (name, u64::from_str_radix(offset, 16).unwrap())
        })
        .collect();
    found.sort_by_key(|(name, offset)| (*offset, name.clone()));
    Some(found)
}

fn blank(dir: &Path, size: u64) -> std::path::PathBuf {
    let path = dir.join("disk.img");
    File::create(&path).unwrap().set_len(size).unwrap();
    path
}

/// Formats a blank image with `tool` and compares; the type `expected` must be found.
fn check(expected: &str, size: u64, tool: &str, args: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let path = blank(dir.path(), size);
    let args: Vec<&str> = args.iter().copied().chain([path.to_str().unwrap()]).collect();
    if run(tool, &args).is_none() {
        return;
    }
    let found = ours(&path);
    assert!(found.iter().any(|(name, _)| name == expected), "{tool} {args:?}: {found:?}");
    if let Some(theirs) = theirs(&path) {
        assert_eq!(found, theirs, "{tool} {args:?}");
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn ext2_ext3_and_ext4_are_told_apart_as_wipefs_does() {
    check("ext2", 16 * MIB, "mkfs.ext2", &["-q", "-F"]);
    check("ext3", 16 * MIB, "mkfs.ext3", &["-q", "-F"]);
    check("ext4", 16 * MIB, "mkfs.ext4", &["-q", "-F"]);
    check("ext4", 64 * MIB, "mkfs.ext4", &["-q", "-F", "-b", "4096", "-O", "^has_journal"]);
    check("jbd", 16 * MIB, "mkfs.ext4", &["-q", "-F", "-b", "4096", "-O", "journal_dev"]);
}

#[test]
fn xfs_and_btrfs_are_found() {
    check("xfs", 400 * MIB, "mkfs.xfs", &["-q", "-f"]);
    check("xfs", 400 * MIB, "mkfs.xfs", &["-q", "-f", "-s", "size=4096"]);
    check("btrfs", 256 * MIB, "mkfs.btrfs", &["-q", "-f"]);
}

#[test]
fn swap_is_found_for_each_page_size() {
    check("swap", 16 * MIB, "mkswap", &[]);
    check("swap", 16 * MIB, "mkswap", &["-p", "65536"]);
}

#[test]
fn labels_and_uuids_are_those_of_wipefs() {
    let luks = ["luksFormat", "-q", "--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
    let luks = [&luks[..], &["--key-file=/proc/self/exe", "--keyfile-size=32"]].concat();
    let cases: [(&str, &[&str]); 11] = [
        ("mkfs.ext4", &["-q", "-F", "-L", "a label of 16 B."]),
        ("mkfs.ext2", &["-q", "-F"]),
        ("mkfs.xfs", &["-q", "-f", "-L", "xfs_label_12"]),
        ("mkfs.btrfs", &["-q", "-f", "-L", "the label of a btrfs"]),
        ("mkfs.btrfs", &["-q", "-f"]),
        ("mkswap", &["-L", "swap"]),
        ("mkfs.vfat", &["-F", "16", "-n", "EFI"]),
        ("mkfs.vfat", &["-F", "32", "-n", "EFI SYSTEM"]),
        ("mkfs.vfat", &["-F", "32"]),
        ("cryptsetup", &[&luks[..], &["--type=luks2", "--label=crypt"]].concat()),
        ("cryptsetup", &[&luks[..], &["--type=luks1"]].concat()),
    ];
    for (tool, args) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = blank(dir.path(), 400 * MIB);
        let name = path.to_str().unwrap();
        let made = run(tool, &[args, &[name]].concat());
        let Some(theirs) = made.and_then(|_| run("wipefs", &["--json", name])) else { continue };
        let json: serde_json::Value = serde_json::from_str(&theirs).unwrap();
        let theirs = &json["signatures"][0];
        let image = image(&path);
        let all = detect(&image);
        let first = all.iter().find(|found| theirs["type"] == found.name).unwrap();
        let ours = identity(&image, first);
        assert_eq!(ours.uuid.as_deref(), theirs["uuid"].as_str(), "{tool} {args:?}");
        assert_eq!(ours.label.as_deref(), theirs["label"].as_str(), "{tool} {args:?}");
        assert!(ours.uuid.is_some());
    }
}

#[test]
fn two_formats_on_one_disk_are_both_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = blank(dir.path(), 256 * MIB);
    let name = path.to_str().unwrap();
    // mkswap does not touch ext4's signature.
    let made = run("mkfs.ext4", &["-q", "-F", name]).and_then(|_| run("mkswap", &["-f", name]));
    if made.is_none() {
        return;
    }
    let found = ours(&path);
    if let Some(theirs) = theirs(&path) {
        assert_eq!(found, theirs);
    }
    assert!(found.iter().any(|(name, _)| name == "swap"));
}

/// A loop device that is detached at the end.
struct Loop(String);

impl Loop {
    /// `None` where loop devices are not available.
    fn attach(path: &Path) -> Option<Self> {
        let args = ["--find", "--show", path.to_str().unwrap()];
        let output = Command::new("losetup").args(args).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        output.status.success().then_some(Self(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let status = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(status.is_ok_and(|status| status.success()), "{} stays attached", self.0);
    }
}

#[test]
fn a_physical_volume_of_lvm_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = blank(dir.path(), 32 * MIB);
    let Some(device) = Loop::attach(&path) else {
        return eprintln!("skipped: no loop devices");
    };
    let filter = format!("devices {{ filter=[\"a|^{}$|\", \"r|.*|\"] }}", device.0);
    let made = run("pvcreate", &["-q", "-ff", "-y", "--config", &filter, &device.0]);
    drop(device);
    if made.is_none() {
        return;
    }
    assert_eq!(ours(&path), [("LVM2_member".to_owned(), 0x218)]);
    if let Some(theirs) = theirs(&path) {
        assert_eq!(ours(&path), theirs);
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// A GPT header block for a disk of 512-byte blocks, with an empty table.
fn gpt_header(own: u64, other: u64, last: u64, table: u64) -> Vec<u8> {
    let mut header = vec![0; 92];
    header[..8].copy_from_slice(b"EFI PART");
    header[8..12].copy_from_slice(&[0, 0, 1, 0]);
    header[12] = 92;
    for (offset, value) in [(24, own), (32, other), (40, 34), (48, last - 33), (72, table)] {
        header[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
    header[56..72].fill(0x5a);
    header[80] = 128;
    header[84] = 128;
    let table = crc32(&[0; 128 * 128]);
    header[88..92].copy_from_slice(&table.to_le_bytes());
    let crc = crc32(&header);
    header[16..20].copy_from_slice(&crc.to_le_bytes());
    header
}

#[test]
fn a_gpt_its_backup_and_its_protective_mbr_are_found_as_wipefs_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = blank(dir.path(), 16 * MIB);
    let last = 16 * MIB / 512 - 1;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let entry = [0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    file.write_all_at(&entry, 446).unwrap();
    file.write_all_at(&[0x55, 0xaa], 510).unwrap();
    file.write_all_at(&gpt_header(1, last, last, 2), 512).unwrap();
    file.write_all_at(&gpt_header(last, 1, last, last - 32), last * 512).unwrap();
    let gpt = |offset| ("gpt".to_owned(), offset);
    assert_eq!(ours(&path), [("PMBR".to_owned(), 510), gpt(512), gpt(last * 512)]);
    if let Some(theirs) = theirs(&path) {
        assert_eq!(ours(&path), theirs);
    }
}

#[test]
fn an_md_member_is_no_foreign_signature() {
    let dir = tempfile::tempdir().unwrap();
    let path = blank(dir.path(), 16 * MIB);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&0xa92b_4efc_u32.to_le_bytes(), 4096).unwrap();
    assert_eq!(ours(&path), []);
}

/// Signs of firmware RAIDs, DRBD and VMFS on a disk of 16 MiB: the type, the offset of the magic number, and bytes with their
/// distance from there. The anchors of DDF are their own primary headers, which wipefs looks at.
type Sign = (&'static str, u64, &'static [(u64, &'static [u8])]);

const SIGNS: [Sign; 15] = [
    (
        "ddf_raid_member",
        16 * MIB - 512,
        &[(0, b"\xde\x11\xde\x11"), (32, b"01.02.00"), (102, b"\x7f\xff")],
    ),
    (
        "ddf_raid_member",
        16 * MIB - 512,
        &[(0, b"\x11\xde\x11\xde"), (32, b"01.02.00"), (96, b"\xff\x7f")],
    ),
    (
        "ddf_raid_member",
        16 * MIB - 257 * 512,
        &[(0, b"\xde\x11\xde\x11"), (32, b"01.02.00"), (102, b"\x7e\xff")],
    ),
    ("isw_raid_member", 16 * MIB - 1024, &[(0, b"Intel Raid ISM Cfg Sig. 1.1.00\0\0")]),
    ("nvidia_raid_member", 16 * MIB - 1024, &[(0, b"NVIDIA\0\0")]),
    ("lsi_mega_raid_member", 16 * MIB - 512, &[(0, b"$XIDE$")]),
    ("hpt45x_raid_member", 16 * MIB - 11 * 512, &[(0, b"\xf3\x16\x78\x5a")]),
    ("hpt37x_raid_member", 0x1220, &[(0, b"\xf0\x16\x78\x5a")]),
    ("promise_fasttrack_raid_member", 16 * MIB - 63 * 512, &[(0, b"Promise Technology, Inc.")]),
    ("promise_fasttrack_raid_member", 16 * MIB - 951 * 512, &[(0, b"Promise Technology, Inc.")]),
    ("adaptec_raid_member", 16 * MIB - 512, &[(0, b"\x37\xfc\x4d\x1e"), (256, b"DPTM")]),
    ("drbd", 16 * MIB - 4096 + 60, &[(0, b"\x83\x74\x02\x6b")]),
    ("drbd", 16 * MIB - 4096 + 60, &[(0, b"\x83\x74\x02\x6c")]),
    ("drbd", 16 * MIB - 4096 + 60, &[(0, b"\x83\x74\x02\x6d")]),
    ("VMFS_volume_member", MIB, &[(0, b"\x0d\xd0\x01\xc0")]),
];

#[test]
fn what_other_systems_write_to_is_found_as_wipefs_does() {
    for (name, at, parts) in SIGNS {
        let dir = tempfile::tempdir().unwrap();
        let path = blank(dir.path(), 16 * MIB);
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for (distance, bytes) in parts {
            file.write_all_at(bytes, at + distance).unwrap();
        }
        assert_eq!(ours(&path), [(name.to_owned(), at)]);
        if let Some(theirs) = theirs(&path) {
            assert_eq!(ours(&path), theirs, "{name}");
        }
    }
}
