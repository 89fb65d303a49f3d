//! `md create`, `examine`, `detail`, `assemble` and `scan` on image files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;

use uuid::Uuid;

use super::support::{Daemon, Images, MIB, program};

#[test]
fn what_is_created_is_found_again() {
    let cases: &[(usize, &[&str], &[&str])] = &[
        (2, &["--level=0"], &["raid0", "original", "512K"]),
        (2, &["-l", "stripe", "-c", "64", "--layout=alternate"], &["raid0", "alternate", "64K"]),
        (2, &["--level=mirror"], &["raid1"]),
        (4, &["-l10", "-pf2", "-c64K"], &["raid10", "far=2", "64K"]),
        (3, &["--level=raid10", "--layout=o2"], &["raid10", "offset=2", "512K"]),
        (4, &["--level=10", "-e1.0", "--size=16M"], &["raid10", "near=2"]),
        (2, &["--level=1", "--metadata=1.1", "--name=data"], &["raid1"]),
    ];
    for (count, options, facts) in cases {
        let images = Images::array(*count, 32 * MIB, options);
        let refs = images.refs();
        let scan = images.run(&["scan"], &refs).ok().out;
        let detail = images.run(&["md", "detail"], &refs).ok().out;
        let examine = images.run(&["md", "examine"], &refs).ok().out;
        for fact in *facts {
            assert!(scan.contains(fact) && detail.contains(fact), "{fact}: {scan}\n{detail}");
        }
        assert!(examine.contains(facts[0]), "{examine}");
        let name = if options.contains(&"--name=data") { "md127" } else { "md0" };
        let expected = format!("ashlar: /dev/{name} can be started with {count} drives.\n");
        assert_eq!(images.run(&["md", "assemble"], &refs).ok().out, expected);
    }
}

#[test]
fn mdadm_reads_what_is_created_as_we_do() {
    let images = Images::array(4, 32 * MIB, &["--level=10", "--layout=f2", "--name=x"]);
    let theirs = Command::new("mdadm").arg("--examine").arg(images.path("d2")).output();
    let Ok(theirs) = theirs else { return eprintln!("skipped: no mdadm") };
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    let ours = images.run(&["md", "examine"], &["d2"]).ok().out;
    // The first line is the path, and mdadm adds to names whether the host is this one.
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().skip(1).map(|line| line.trim_end().to_owned());
        lines.filter(|line| !line.contains("Name :") && !line.is_empty()).collect()
    };
    assert_eq!(lines(&ours), lines(&theirs));
}

/// mdadm reads a bitmap from a device, or from a separate file as here.
#[test]
fn mdadm_reads_our_bitmaps_as_we_do() {
    let images = Images::new(2, 32 * MIB);
    let create = ["md", "create", "-l1", "-n2", "--bitmap=internal", "--bitmap-chunk=64K"];
    images.run(&[&create[..], &["--write-behind=9"]].concat(), &["d0", "-W", "d1"]).ok();
    let bytes = fs::read(images.path("d0")).unwrap();
    // 8 sectors after the superblock at 8: see docs/formats/md.md.
    fs::write(images.path("bitmap"), &bytes[16 * 512..][..256 + 62]).unwrap();
    let theirs = Command::new("mdadm").arg("-X").arg(images.path("bitmap")).output();
    let Ok(theirs) = theirs else { return eprintln!("skipped: no mdadm") };
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    let ours = images.run(&["md", "examine", "-X"], &["d0"]).ok().out;
    let lines = |text: &str| -> Vec<String> {
        text.lines().skip(1).map(|line| line.trim_end().to_owned()).collect()
    };
    assert_eq!(lines(&ours), lines(&theirs));
    assert!(ours.contains("496 bits (chunks), "), "{ours}");
}

#[test]
fn a_policy_is_a_bitmap_or_none() {
    for (policy, bitmap) in [("bitmap", true), ("resync", false)] {
        let images = Images::new(2, 32 * MIB);
        images.create(&["--level=1", "--consistency-policy", policy]).ok();
        let detail = images.run(&["md", "detail"], &images.refs()).ok().out;
        let expected = format!("Consistency Policy : {policy}\n");
        assert!(detail.contains(&expected), "{detail}");
        assert_eq!(detail.contains("Intent Bitmap : Internal"), bitmap, "{detail}");
    }
}

#[test]
fn used_devices_are_refused_and_left_alone() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let before = images.bytes();
    images
        .create(&["--level=0"])
        .fails(1, &["cannot create: d0: has md member of 0 (raid1", "at 0x1000", "--force"]);
    assert_eq!(images.bytes(), before);
    images.create(&["--level=0", "--force"]).ok();
    assert!(images.run(&["scan"], &images.refs()).ok().out.contains("raid0"));
}

#[test]
fn foreign_signatures_are_refused_by_name_and_place() {
    let cases: &[(u64, &[u8], &str)] = &[
        (0x438, &[0x53, 0xef], "ext2 file system at 0x438"),
        (0, b"XFSB", "xfs file system at 0x0"),
        (0x1_0040, b"_BHRfS_M", "btrfs file system at 0x10040"),
        (4086, b"SWAPSPACE2", "swap swap space at 0xff6"),
        (512, b"EFI PART", "gpt partition table at 0x200"),
        (510, &[0x55, 0xaa], "dos partition table at 0x1fe"),
        (0, b"LUKS\xba\xbe", "crypto_LUKS encrypted volume at 0x0"),
        (0, b"QFI\xfb\0\0\0\x03", "qcow2 disk image at 0x0"),
    ];
    for (offset, magic, text) in cases {
        let images = Images::new(2, 32 * MIB);
        let file = OpenOptions::new().write(true).open(images.path("d1")).unwrap();
        file.write_all_at(magic, *offset).unwrap();
        let before = images.bytes();
        images.create(&["--level=0"]).fails(1, &["cannot create: d1: has ", text, "hint: "]);
        assert_eq!(images.bytes(), before, "{text}");
        images.create(&["--level=0", "--force"]).ok();
    }
}

#[test]
fn a_damaged_member_is_refused_as_well() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let file = OpenOptions::new().write(true).open(images.path("d0")).unwrap();
    file.write_all_at(&[1, 2, 3], 4096 + 216).unwrap();
    let refused = images.create(&["--level=0"]);
    refused.fails(1, &["cannot create: d0: has md member, damaged: ", "hecksum"]);
}

#[test]
fn options_that_make_no_sense_are_refused_before_anything_is_written() {
    let cases: &[(&[&str], i32, &str)] = &[
        (&["--level=7"], 2, "--level"),
        (&["--level=10", "--layout=x2"], 2, "--layout"),
        (&["--level=1", "--layout=n2"], 2, "--layout"),
        (&["--level=0", "--chunk=abc"], 2, "--chunk"),
        (&["--level=0", "--chunk=3"], 1, "chunk"),
        (&["--level=1", "--chunk=64"], 1, "chunk"),
        (&["--level=0", "--metadata=0.91"], 2, "--metadata"),
        (&["--level=0", "--bitmap=internal"], 1, "bitmap"),
        (&["--level=1", "--bitmap=clustered"], 2, "--bitmap"),
        (&["--level=1", "--bitmap=internal", "--bitmap-chunk=3K"], 1, "bitmap chunk"),
        (&["--level=1", "--write-behind"], 2, "--write-mostly"),
        (&["--level=1", "--consistency-policy=ppl"], 2, "is for raid5"),
        (&["--level=5", "--consistency-policy=ppl", "--bitmap=internal"], 2, "contradicts"),
        (&["--level=5", "--consistency-policy=ppl", "--metadata=0.90"], 1, "partial parity log"),
        (&["--level=1", "-k", "resync", "--bitmap=internal"], 2, "contradicts"),
        (&["--level=1", "-k", "bitmap", "--bitmap=none"], 2, "contradicts"),
        (&["--level=1", "--write-behind=0"], 2, "--write-behind"),
        (&["--level=1", "--spare-devices=1"], 2, "--spare-devices=1 but 2 devices"),
        (&["--level=1", "--size=1G"], 1, "room"),
        (&["--level=0", "--name=0123456789012345678901234567890123456789"], 0, ""),
    ];
    for (options, code, text) in cases {
        let images = Images::new(2, 32 * MIB);
        let before = images.bytes();
        let run = images.create(options);
        assert_eq!(run.code, Some(*code), "{options:?}: {run:?}");
        assert!(run.err.contains(text), "{options:?}: {run:?}");
        assert_eq!(images.bytes() == before, *code != 0, "{options:?}");
    }
}

#[test]
fn the_number_of_devices_must_be_right() {
    let images = Images::new(3, 32 * MIB);
    let create = ["md", "create", "--level=0", "--raid-devices=2"];
    images.run(&create, &["d0", "d1", "d2"]).fails(2, &["--raid-devices=2 but 3 devices"]);
    images.run(&create, &["d0"]).fails(2, &["--raid-devices=2 but 1 devices"]);
    images.run(&create, &["/dev/md/data", "d0", "d1"]).ok();
    assert!(images.run(&["md", "examine"], &["d0"]).ok().out.contains(":data"));
}

#[test]
fn a_mirror_of_devices_with_data_is_to_be_resynced() {
    for (options, clean) in [(&["--level=1"][..], false), (&["--level=1", "--assume-clean"], true)]
    {
        let images = Images::new(2, 32 * MIB);
        fs::write(images.path("d1"), vec![1; 32 << 20]).unwrap();
        images.create(options).ok();
        let json = images.run(&["md", "examine", "--json"], &["d0"]).ok().out;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json[0]["clean"], clean);
    }
}

#[test]
fn spares_flags_and_bitmaps_are_made_as_asked_for() {
    let images = Images::new(3, 32 * MIB);
    let create = ["md", "create", "--homehost=any", "-l1", "-n2", "-x1", "--bitmap=internal"];
    let more = ["--bitmap-chunk=1M", "--write-behind=100", "d0", "--write-mostly", "d1", "d2"];
    let run = images.run(&create, &more).ok();
    assert!(run.out.contains(": raid1, 2 devices, 1 spare, 31M, "), "{run:?}");
    let examine = |name: &str| images.run(&["md", "examine"], &[name]).ok().out;
    assert!(examine("d2").contains("Device Role : spare\n"), "{}", examine("d2"));
    assert!(!examine("d0").contains("write-mostly") && examine("d1").contains("write-mostly"));
    let bitmap = images.run(&["md", "examine", "--bitmap"], &["d0"]).ok().out;
    assert!(bitmap.starts_with("        Filename : d0\n           Magic : 6d746962\n"), "{bitmap}");
    assert!(bitmap.contains("      Write Mode : Allow write behind, max 100\n"), "{bitmap}");
    assert!(bitmap.contains("          Bitmap : 31 bits (chunks), "), "{bitmap}");
    let bad = images.run(&["md", "examine", "--badblocks"], &["d0"]).ok().out;
    assert_eq!(bad, "Bad-blocks list is empty in d0\n");
}

#[test]
fn a_device_may_come_later() {
    let images = Images::new(1, 32 * MIB);
    let create = ["md", "create", "--level=1", "--raid-devices=2"];
    let run = images.run(&create, &["d0", "missing"]).ok();
    assert!(run.out.contains("--run d0"), "{run:?}");
    let run = images.run(&["md", "assemble", "--run"], &["d0"]).ok();
    assert_eq!(run.out, "ashlar: /dev/md0 can be started with 1 drive (out of 2).\n");
    let stripe = ["md", "create", "--force", "--level=0", "--raid-devices=2"];
    images.run(&stripe, &["d0", "missing"]).fails(1, &["missing"]);
}

#[test]
fn a_trial_changes_nothing_and_tells_what_would_be() {
    let images = Images::array(4, 32 * MIB, &["--level=10"]);
    let before = images.bytes();
    let assemble =
        |args: &[&str], files: &[&str]| images.run(&[&["md", "assemble"], args].concat(), files);
    assemble(&[], &["d0", "d1", "d2"]).fails(1, &["3 of the 4", "missing slots 3", "--run"]);
    let run = assemble(&["--run"], &["d0", "d1", "d2"]).ok();
    assert_eq!(run.out, "ashlar: /dev/md0 can be started with 3 drives (out of 4).\n");
    assemble(&["--run"], &["d0", "d1"]).fails(1, &["not enough members", "missing slots 2, 3"]);
    let run = assemble(&["md7"], &images.refs()).ok();
    assert_eq!(run.out, "ashlar: /dev/md7 can be started with 4 drives.\n");
    assert_eq!(images.bytes(), before);
}

#[test]
fn arrays_are_chosen_by_name_and_uuid() {
    let images = Images::new(4, 32 * MIB);
    let uuid = "01234567:89abcdef:01234567:89abcdef";
    let create = ["md", "create", "--level=1", "--raid-devices=2"];
    images.run(&[&create[..], &["--name=a", "--uuid", uuid]].concat(), &["d0", "d1"]).ok();
    images.run(&[&create[..], &["--name=b"]].concat(), &["d2", "d3"]).ok();
    let all = images.refs();
    let both = images.run(&["md", "assemble"], &all).ok().out;
    assert_eq!(both.lines().count(), 2, "{both}");
    for filter in [&["--uuid", uuid][..], &["--name=a"]] {
        let one = images.run(&[&["md", "assemble"], filter].concat(), &all).ok().out;
        assert_eq!(one, "ashlar: /dev/md127 can be started with 2 drives.\n", "{filter:?}");
    }
    images.run(&["md", "assemble", "--name=c"], &all).fails(2, &["no member of that array"]);
}

#[test]
fn json_says_what_the_text_says() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let json = |args: &[&str]| -> serde_json::Value {
        serde_json::from_str(&images.run(args, &images.refs()).ok().out).unwrap()
    };
    let scan = json(&["scan", "--json"]);
    assert_eq!(scan["blockdevices"][1]["children"][0]["type"], "raid1");
    let examine = json(&["md", "examine", "--json"]);
    assert_eq!((&examine[1]["role"], &examine[1]["clean"]), (&"active 1".into(), &true.into()));
    let detail = json(&["md", "detail", "--json"]);
    assert_eq!((&detail[0]["level"], &detail[0]["raid_devices"]), (&"raid1".into(), &2.into()));
}

/// Any byte of a superblock may be wrong: nothing panics, and nothing is written.
#[test]
fn damaged_superblocks_are_told_and_harm_nobody() {
    let images = Images::array(2, 8 * MIB, &["--level=10"]);
    let file = OpenOptions::new().read(true).write(true).open(images.path("d1")).unwrap();
    let mut superblock = [0; 264];
    file.read_exact_at(&mut superblock, 4096).unwrap();
    for offset in (0..superblock.len()).step_by(11) {
        let mut damaged = superblock;
        damaged[offset] ^= 0x41;
        file.write_all_at(&damaged, 4096).unwrap();
        images.run(&["scan"], &["d0", "d1"]).ok();
        let examine = images.run(&["md", "examine"], &["d1"]);
        assert_eq!(examine.code, Some(1), "offset {offset}: {examine:?}");
        let assemble = images.run(&["md", "assemble"], &["d0", "d1"]);
        assert_eq!(assemble.code, Some(1), "offset {offset}: {assemble:?}");
        // A disk without a recognizable superblock belongs to no array.
        let is_none = assemble.err.contains("holds no array");
        let assemble = images.run(&["md", "assemble", "--run"], &["d0", "d1"]);
        let without = assemble.out.contains("1 drive (out of 2)")
            && assemble.out.contains("d1 left out: md superblock version 1.2");
        assert_eq!(without, !is_none, "offset {offset}: {assemble:?}");
    }
}

#[test]
fn a_disk_without_array_is_told_what_it_has() {
    let images = Images::new(1, 32 * MIB);
    let file = OpenOptions::new().write(true).open(images.path("d0")).unwrap();
    images.run(&["md", "detail"], &["d0"]).fails(1, &["d0: holds no array"]);
    file.write_all_at(b"XFSB", 0).unwrap();
    let found = "d0: holds no array (found: xfs file system at 0x0)";
    images.run(&["md", "assemble"], &["d0"]).fails(1, &[found]);
    let nobody = ["md", "assemble", "--nbd", "unix:n", "--control", "c"];
    images.run(&nobody, &["d0"]).fails(1, &[found]);
    images.run(&["md", "examine"], &["d0"]).fails(1, &["no md superblock: d0"]);
}

fn truncate(images: &Images, name: &str, size: u64) {
    OpenOptions::new().write(true).open(images.path(name)).unwrap().set_len(size).unwrap();
}

#[test]
fn a_truncated_member_does_not_keep_its_array_from_running() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    truncate(&images, "d1", 16 * MIB);
    let why = "d1: md superblock version 1.2 at sector 8: data at sector 2048";
    let hint = "hint: use --run to start a redundant array without it";
    images.run(&["md", "assemble"], &["d0", "d1"]).fails(1, &["cannot serve", why, hint]);
    images.run(&["serve", "--control", "c"], &["d0", "d1"]).fails(1, &["cannot serve", why, hint]);
    let run = images.run(&["md", "assemble", "--run"], &["d0", "d1"]).ok();
    assert!(run.out.contains("with 1 drive (out of 2)"), "{run:?}");
    assert!(run.out.contains("d1 left out: md superblock version 1.2"), "{run:?}");
    let daemon = images.serve(&["--run"]);
    assert_eq!(daemon.greeting, "md0: raid1 31M, clean, 1 of 2 devices\nready\n");
    let log = daemon.end();
    assert!(log.contains("left out of its array") && log.contains("d1"), "{log}");
    let detail = images.run(&["md", "detail"], &["d0", "d1"]).ok();
    assert!(detail.out.contains("clean, degraded") && detail.err.contains(why), "{detail:?}");
    // Alone it is useless, and so is half of a stripe.
    images.run(&["md", "assemble", "--run"], &["d1"]).fails(1, &["cannot serve", why]);
    images.run(&["md", "assemble", "--read-only"], &["d1"]).fails(1, &["cannot serve", why]);
    let striped = Images::array(2, 32 * MIB, &["--level=0"]);
    truncate(&striped, "d1", 16 * MIB);
    let refused = striped.run(&["md", "assemble", "--run"], &["d0", "d1"]);
    refused.fails(1, &["cannot serve: d1: md superblock", "hint: use --read-only"]);
}

#[test]
fn a_truncated_spare_is_left_out_of_an_array_that_is_complete_without() {
    let images = Images::new(3, 32 * MIB);
    let create = ["md", "create", "--level=1", "--raid-devices=2", "--spare-devices=1"];
    images.run(&create, &images.refs()).ok();
    truncate(&images, "d2", 16 * MIB);
    let run = images.run(&["md", "assemble"], &images.refs()).ok();
    assert!(run.out.contains("with 2 drives") && run.out.contains("d2 left out"), "{run:?}");
}

#[test]
fn a_truncated_member_that_went_on_without_the_others_is_not_left_out() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let daemon = images.serve(&[]);
    daemon.client(&["md", "fail", "md0", "d0"]).ok();
    daemon.end();
    truncate(&images, "d1", 24 * MIB);
    let parts = ["cannot serve: d1: md superblock", "it is fresher (events ", "than the others"];
    images.run(&["md", "assemble", "--run"], &["d0", "d1"]).fails(1, &parts);
}

#[test]
fn a_file_that_is_not_a_backup_of_mdadm_is_refused_as_such_and_one_that_is_serves_beside_members() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--assume-clean"]);
    for (name, head) in [("notes", &b"not of mdadm"[..]), ("saved", b"md_backup_data-1")] {
        let mut file = head.to_vec();
        file.resize(1 << 20, 0);
        fs::write(images.path(name), file).unwrap();
    }
    let before = images.bytes();
    let why =
        "cannot use as backup file: notes: it does not begin with the header that mdadm writes";
    let uuid = Uuid::nil().to_string();
    for command in [
        &["serve", "--control", "c"][..],
        &["md", "assemble"],
        &["md", "assemble", "--uuid", &uuid],
        &["md", "assemble", "md0", "--nbd", "unix:n", "--control", "c"],
    ] {
        let named = [command, &["--backup-file", "notes", "d0", "d1"]].concat();
        images.run(&named, &[]).fails(1, &[why]);
    }
    assert!(images.bytes() == before && !images.path("n").exists());
    images.run(&["md", "assemble", "--backup-file", "saved"], &["d0", "d1"]).ok();
    let mut command = program();
    command.current_dir(images.dir.path());
    command.args(["md", "assemble", "md0", "--nbd", "unix:n", "--control", "control"]);
    command.args(["d0", "d1", "--backup-file", "saved"]);
    let daemon = Daemon::of(command, images.dir.path());
    assert_eq!(daemon.greeting, "md0: raid1 31M, clean, 2 of 2 devices\nready\n");
    daemon.end();
}
