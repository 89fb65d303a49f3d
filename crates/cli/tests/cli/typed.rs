//! What people type who know other tools: mdadm's further verbs, names of arrays, words of tools that have other ones here.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::support::{Daemon, Images, MIB, Run, ashlar_in, program, run, until};

impl Run {
    /// It was refused as wrong usage, with a message that contains `part`.
    #[track_caller]
    fn misused(self, part: &str) -> Self {
        self.ended_with(2, part)
    }

    /// It ended with this code, and a message that contains `part`.
    #[track_caller]
    fn ended_with(self, code: i32, part: &str) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.err.contains(part), "no {part:?} in {self:?}");
        self
    }
}

/// What mdadm prints, and its exit code; `None` without mdadm.
fn mdadm(dir: &Path, args: &[&str]) -> Option<(String, Option<i32>)> {
    let Ok(theirs) = Command::new("mdadm").args(args).current_dir(dir).output() else {
        eprintln!("skipped in part: no mdadm");
        return None;
    };
    Some((String::from_utf8(theirs.stdout).unwrap(), theirs.status.code()))
}

#[test]
fn devices_are_queried_as_by_mdadm() {
    let images = Images::new(4, 32 * MIB);
    images
        .run(&["md", "-C", "md0", "-l1", "-n2", "-x1", "--homehost=any"], &["d0", "d1", "d2"])
        .ok();
    let dir = images.dir.path();
    for devices in [&["d0"][..], &["d3"], &["d1", "d2", "d3"], &["nonexistent"]] {
        let ours = ashlar_in(dir, &[&["md", "-Q"], devices].concat());
        let Some((out, code)) = mdadm(dir, &[&["-Q"], devices].concat()) else { continue };
        assert_eq!(ours.out, out.replace("mdadm --examine", "ashlar md examine"), "{devices:?}");
        assert_eq!(ours.code, code, "{devices:?}");
    }
    ashlar_in(dir, &["md", "-Q"]).misused("NAME|DEVICE");
    let daemon = Daemon::start(dir, &["d0", "d1", "d2"]);
    let told = daemon.client(&["md", "--query", "d1", "d3", "/dev/md0"]).ok().out;
    assert_eq!(
        told,
        "/dev/md0: 31.00MiB raid1 2 devices, 1 spare. Use ashlar md detail for more detail.\n\
         d1: is not an md array\n\
         d1: device 1 in 2 device active raid1 /dev/md0.  Use ashlar md examine for more detail.\n\
         d3: is not an md array\n"
    );
    daemon.client(&["md", "query", "md5"]).fails(1, &["md5"]);
    daemon.end();
}

#[test]
fn superblocks_of_all_versions_are_erased_as_by_mdadm() {
    for version in ["0.90", "1.0", "1.1", "1.2"] {
        let images = Images::array(2, 32 * MIB, &["-l1", "--bitmap=internal", "-e", version]);
        let dir = images.dir.path();
        fs::copy(images.path("d0"), images.path("theirs")).unwrap();
        let run = images.run(&["md", "--zero-superblock"], &["d0"]).ok();
        assert_eq!(run.out, "erased the md superblock of d0\n");
        images.run(&["md", "-E"], &["d0"]).fails(1, &["no md superblock"]);
        // A second time there is nothing to erase, which is not an error for mdadm either.
        let run = images.run(&["md", "--zero-superblock"], &["d0"]).ok();
        assert_eq!((run.out.as_str(), run.err.as_str()), ("", "d0 has no md superblock\n"));
        let Some((_, code)) = mdadm(dir, &["--zero-superblock", "theirs"]) else { continue };
        assert_eq!(code, Some(0));
        let same = fs::read(images.path("d0")).unwrap() == fs::read(images.path("theirs")).unwrap();
        assert!(same, "{version}: mdadm erases other bytes");
        assert_eq!(mdadm(dir, &["--zero-superblock", "theirs"]).unwrap().1, Some(0));
        assert_eq!(mdadm(dir, &["-E", "d0"]).unwrap().1, Some(1));
    }
}

#[test]
fn no_superblock_is_erased_that_may_be_needed() {
    let images = Images::array(3, 32 * MIB, &["-l1", "-e1.0"]);
    let write = |name: &str, at: u64, bytes: &[u8]| {
        let file = OpenOptions::new().write(true).open(images.path(name)).unwrap();
        file.write_all_at(bytes, at).unwrap();
    };
    let zero = |args: &[&str]| images.run(&[&["md", "zero-superblock"], args].concat(), &[]);
    let daemon = Daemon::start(images.dir.path(), &["d0", "d1", "d2"]);
    let before = images.bytes();
    zero(&["d1"]).fails(1, &["d1", "in use", "ashlar stop"]);
    daemon.end();
    zero(&["d1", "nonexistent"]).fails(1, &["nonexistent"]);
    assert!(images.bytes() == before, "something was erased");

    // A partition of Linux from 1 MiB to the end, whose superblock this may be.
    let mut table = [0; 66];
    table[4] = 0x83;
    table[8..12].copy_from_slice(&2048_u32.to_le_bytes());
    table[12..16].copy_from_slice(&(63488_u32).to_le_bytes());
    table[64..].copy_from_slice(&[0x55, 0xaa]);
    write("d1", 446, &table);
    write("d2", 32 * MIB - 8192 + 100, b"damaged");
    let before = images.bytes();
    zero(&["d0", "d1"]).fails(1, &["d1", "last partition", "--force", "nothing was changed"]);
    zero(&["d0", "d2"]).fails(1, &["d2", "damaged", "--force", "nothing was changed"]);
    assert!(images.bytes() == before, "something was erased");
    zero(&["-f", "d0", "d1", "d2"]).ok();
    for name in ["d0", "d1", "d2"] {
        let run = zero(&[name]).ok();
        assert_eq!(run.err, format!("{name} has no md superblock\n"));
    }

    // What only has the magic number where a superblock can be stays without --force.
    let magic = 0xa92b_4efc_u32.to_le_bytes();
    write("d0", 32 * MIB - 8192, &magic);
    let before = images.bytes();
    assert_eq!(zero(&["d0"]).ok().out, "");
    assert!(images.bytes() == before, "something was erased");
    assert_eq!(zero(&["--force", "d0"]).ok().out, "erased the md superblock of d0\n");
    assert!(images.bytes()[0].iter().all(|byte| *byte == 0));
}

#[test]
fn a_running_array_becomes_read_only_and_writable_again() {
    let images = Images::array(2, 32 * MIB, &["-l1", "--assume-clean", "--name=data"]);
    let daemon = Daemon::start(images.dir.path(), &["d0", "d1"]);
    let state = || daemon.client(&["get", "sys/block/md127/md/array_state"]).ok().out;
    let told = daemon.client(&["md", "--readonly", "/dev/md127"]).ok().out;
    assert_eq!((told.as_str(), state().as_str()), ("/dev/md127 is read-only now\n", "readonly\n"));
    let told = daemon.client(&["md", "-w", "/dev/md/data"]).ok().out;
    assert_eq!((told.as_str(), state().as_str()), ("/dev/md127 is writable now\n", "clean\n"));
    daemon.client(&["md", "data", "-o"]).misused("data");
    daemon.client(&["md", "md127", "-o"]).ok();
    assert_eq!(state(), "readonly\n");
    daemon.client(&["md", "readwrite", "data"]).ok();
    daemon.client(&["md", "readonly", "md5"]).fails(1, &["md5"]);
    daemon.end();
    let daemon = Daemon::start(images.dir.path(), &["d0", "d1", "--read-only"]);
    daemon.client(&["md", "-w", "md127"]).fails(1, &["read-only"]);
    daemon.end();
}

#[test]
fn an_array_is_called_by_its_name_alone() {
    let images = Images::array(2, 32 * MIB, &["-l1", "--assume-clean", "--name=data"]);
    let dir = images.dir.path();
    // Without a daemon the name might also be a mistyped file's.
    let args = ["md", "detail", "data", "--control", "none"];
    ashlar_in(dir, &args).fails(1, &["data: there is no such file", "none", "ashlar serve"]);
    ashlar_in(dir, &["md", "fail", "data", "d0", "--control", "none"])
        .fails(1, &["none", "ashlar serve"]);
    for command in [&["scan"][..], &["md", "examine"], &["serve"]] {
        ashlar_in(dir, &[command, &["/dev/md/data"]].concat())
            .fails(1, &["/dev/md/data", "ashlar serve DISK... --mount DIR"]);
    }
    for command in ["detail", "query"] {
        ashlar_in(dir, &["md", command, "/dev/md/data", "--control", "none"])
            .fails(1, &["nothing is served there", "ashlar serve DISK..."]);
    }
    let daemon = Daemon::start(dir, &["d0", "d1"]);
    let detail = daemon.client(&["md", "detail", "data"]).ok().out;
    assert!(detail.starts_with("/dev/md127:\n"), "{detail}");
    let brief = daemon.client(&["md", "detail", "--brief", "data"]).ok().out;
    assert!(brief.starts_with("ARRAY /dev/md/data "), "{brief}");
    daemon.client(&["md", "fail", "data", "d1"]).ok();
    daemon.client(&["md", "detail", "date"]).fails(1, &["date", "no such file"]);
    // A file of that name is meant before an array.
    fs::write(images.path("data"), "").unwrap();
    daemon.client(&["md", "detail", "data"]).fails(1, &["data"]);
    daemon.client(&["md", "stop", "data"]).ok();
    assert_eq!(daemon.wait().0.code(), Some(0));
}

#[test]
fn a_linear_array_is_among_all_arrays() {
    let images = Images::array(2, 32 * MIB, &["-l", "linear"]);
    let daemon = images.serve(&[]);
    let line = daemon.client(&["md", "-Ds"]).ok().out;
    assert!(line.starts_with("ARRAY /dev/md"), "{line}");
    daemon.end();
}

/// A member that missed writes is not used, whatever is forced: mdadm's `--assemble --force` would.
#[test]
fn forced_assembly_takes_no_member_that_is_out_of_date() {
    let images = Images::array(3, 32 * MIB, &["-l5", "--assume-clean"]);
    let daemon = images.serve(&[]);
    daemon.client(&["md", "fail", "md0", "d2"]).ok();
    daemon.end();
    let before = images.bytes();
    let assemble = |args: &[&str]| images.run(&[&["md", "--assemble"], args].concat(), &[]);
    let run = assemble(&["d1", "d2"]).fails(1, &["d2 left out", "name the disks"]);
    assert!(!run.err.contains("mdadm"), "{run:?}");
    assemble(&["--force", "--run", "d1", "d2"])
        .fails(1, &["d2 left out", "--force takes no members", "mdadm --assemble --force"]);
    let run = assemble(&["--force", "--run", "d0", "d1"]).ok();
    // Users of mdadm expect it to run now.
    assert!(run.err.contains("hint: nothing was started; --mount or --nbd serves it"), "{run:?}");
    assert!(images.bytes() == before);
}

/// A program in `dir`. A process of its own writes it: see `program_in`.
fn script(dir: &Path, name: &str, text: &str) {
    let make = format!("mkdir -p $(dirname {name}) && cat >{name} && chmod +x {name}");
    let mut shell = Command::new("sh");
    let mut shell =
        shell.args(["-c", &make]).current_dir(dir).stdin(Stdio::piped()).spawn().unwrap();
    let text = format!("#!/bin/sh\n{text}\n");
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

#[test]
fn a_program_and_a_reader_of_mail_learn_of_events() {
    let images = Images::array(2, 32 * MIB, &["-l1", "--assume-clean"]);
    let dir = images.dir.path();
    script(dir, "page", r#"echo "$#: $*" >>page.txt"#);
    script(dir, "bin/sendmail", r#"echo "$*" >>mail.txt; cat >>mail.txt"#);
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
    let path = format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").unwrap());
    let monitor = |args: &[&str]| {
        let mut command = program();
        command.args(["md", "--monitor", "--scan", "--control", "control"]).args(args);
        command.current_dir(dir).env("PATH", &path);
        command
    };
    let daemon = images.serve(&[]);
    let mail = ["--mail", "root@nas", "--program", "./page"];
    let out = run(monitor(&[&["-1", "--test"][..], &mail].concat())).ok().out;
    assert_eq!(out, "", "as by mdadm, nothing is printed");
    assert_eq!(read("page.txt"), "2: TestMessage /dev/md0\n2: NewArray /dev/md0\n");
    let sent = read("mail.txt");
    assert!(
        sent.starts_with(
            "-t\nFrom: ashlar <root>\nTo: root@nas\nSubject: TestMessage event on /dev/md0:"
        ),
        "{sent}"
    );
    assert!(
        sent.contains("\nmd0 : active raid1 d1[1] d0[0]\n") && !sent.contains("NewArray"),
        "{sent}"
    );

    let mut watching =
        monitor(&["-d1", "-p", "./page", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    until(Duration::from_secs(10), "no event", || read("page.txt").lines().count() == 3);
    daemon.client(&["md", "fail", "md0", "d1"]).ok();
    until(Duration::from_secs(10), "no event", || read("page.txt").lines().count() == 4);
    watching.kill().unwrap();
    let mut lines = String::new();
    watching.stdout.take().unwrap().read_to_string(&mut lines).unwrap();
    watching.wait().unwrap();
    assert!(read("page.txt").ends_with("\n3: Fail /dev/md0 d1\n"), "{}", read("page.txt"));
    assert!(lines.contains(r#""event":"Fail""#), "{lines}");
    run(monitor(&[&["--oneshot"][..], &mail].concat())).ok();
    assert!(read("page.txt").ends_with("\n2: DegradedArray /dev/md0\n"));
    assert!(read("mail.txt").contains("\nSubject: DegradedArray event on /dev/md0:"));

    // A monitor whose alerts reach nobody must fail at its start.
    run(monitor(&["-1", "--program", "./nosuch"])).fails(1, &["cannot run", "./nosuch"]);
    script(dir, "page", "exit 3");
    run(monitor(&["-1", "--program", "./page"]))
        .ended_with(1, "cannot tell: ./page: exit status: 3");
    run(monitor(&["-1", "--mail", "a\nBcc: b"])).misused("not an address");
    if !Path::new("/usr/sbin/sendmail").exists() && !Path::new("/usr/lib/sendmail").exists() {
        let mut command = monitor(&["-1", "--mail", "root"]);
        command.env("PATH", "/nonexistent");
        run(command).fails(1, &["cannot send mail", "sendmail", "--program"]);
    }
    if !Path::new("/dev/log").exists() {
        run(monitor(&["-1", "--syslog"])).fails(1, &["the system's log", "/dev/log"]);
    }
    daemon.end();
}

#[test]
fn words_of_other_tools_are_answered_with_what_to_type_here() {
    let refused = |args: &[&str], parts: &[&str]| {
        let run = ashlar_in(Path::new("/"), args).fails(2, parts);
        assert!(run.err.contains("\nhint: ") && run.out.is_empty(), "{run:?}");
    };
    refused(&["zfs", "mount"], &["no such command: ashlar zvol mount", "not its file systems"]);
    refused(&["zfs", "send"], &["libzpool", "--mount DIR"]);
    refused(&["zpool", "split"], &["no such command: ashlar zpool split", "OpenZFS's zpool"]);
    refused(&["lvs"], &["no such command: ashlar lvs", "type ashlar lvm lvs"]);
    refused(&["lvnosuch"], &["no such command: ashlar lvnosuch", "ashlar lvm --help"]);
    refused(&["create"], &["ashlar md create or ashlar zpool create or ashlar zvol create"]);
    refused(&["help", "mount"], &["no such command: ashlar mount", "--mount DIR"]);
    refused(&["btrfs", "balance", "start", "/"], &["ashlar btrfs balance", "mounted file system"]);
    refused(&["btrfs", "start"], &["type ashlar btrfs scrub start"]);
    refused(&["btrfs", "status"], &["type ashlar btrfs scrub status"]);
    refused(&["md", "top"], &["type ashlar top"]);
    refused(&["-v", "md", "--detail-platform"], &["no such option: ashlar md --detail-platform"]);
    refused(&["md", "-As", "--config=/etc/mdadm.conf"], &["no mdadm.conf"]);
    // The parser's own offer, unless users do not see what it names.
    let run = ashlar_in(Path::new("/"), &["md", "detial"]).misused("'detail'");
    assert!(!run.err.contains("hint: "), "{run:?}");
    let run = ashlar_in(Path::new("/"), &["zfs-work"]).misused("'zfs-work'");
    assert!(!run.err.contains("zfs-worker"), "{run:?}");
    // LVM's exit codes for an unknown command and for wrong usage.
    for (words, code) in [(&["lvm", "nosuch"][..], 2), (&["lvm", "lvs", "--nosuch"], 3)] {
        let run = ashlar_in(Path::new("/"), words);
        assert_eq!(run.code, Some(code), "{run:?}");
    }
}

/// Words that a program prints about itself, behind blanks; none without it.
fn words_of(program: &str, args: &[&str], is_word: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let Ok(output) = Command::new(program).args(args).output() else {
        eprintln!("skipped in part: no {program}");
        return Vec::new();
    };
    let text = [output.stdout, output.stderr].concat();
    let mut words: Vec<String> =
        String::from_utf8_lossy(&text).lines().filter_map(is_word).collect();
    words.sort();
    words.dedup();
    assert!(words.len() > 2, "{program} {args:?} prints something else: {words:?}");
    words
}

#[test]
fn every_word_of_the_tools_is_one_of_ours_or_answered() {
    let is_unknown = |typed: &[&str], what: &str| {
        let run = ashlar_in(Path::new("/"), typed);
        run.err.contains(&format!("error: {what} '{}'", typed.last().unwrap()))
    };
    let mut unknown = Vec::new();
    // Lines such as `btrfs subvolume create [options]`.
    let command = |line: &str| {
        let mut words = line.trim_start().strip_prefix("btrfs ")?.split_whitespace();
        let first = words.next().filter(|word| *word != "help")?.replace("-internal", "");
        let second = words.next().filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
        Some(format!("{first} {}", second.unwrap_or_default()).trim_end().to_owned())
    };
    for words in words_of("btrfs", &["help"], command) {
        let typed: Vec<&str> = ["btrfs"].into_iter().chain(words.split(' ')).collect();
        unknown.extend(is_unknown(&typed, "unrecognized subcommand").then(|| typed.join(" ")));
    }
    let verb = |line: &str| {
        let word = line.strip_prefix('\t')?.split_whitespace().next()?;
        let is_verb = word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        (is_verb && !word.starts_with('-')).then(|| word.to_owned())
    };
    for (program, ours) in [("zpool", "zpool"), ("zfs", "zfs")] {
        for word in words_of(program, &[], verb) {
            let typed = [ours, word.as_str()];
            unknown.extend(is_unknown(&typed, "unrecognized subcommand").then(|| typed.join(" ")));
        }
    }
    // Lines such as `--uuid=  -u  : uuid of array`.
    let option = |line: &str| {
        let word = line.trim_start().strip_prefix("--")?.split([' ', '=', ':']).next()?;
        // An action is a part of its option.
        Some(format!("--{word}")).filter(|_| line.contains(':') && word != "action")
    };
    for (mode, ours) in [
        ("--misc", &["md"][..]),
        ("--monitor", &["md", "monitor"]),
        ("--assemble", &["md", "assemble"]),
        ("--create", &["md", "create"]),
        ("--grow", &["md", "grow"]),
        ("--incremental", &["md", "incremental"]),
    ] {
        for word in words_of("mdadm", &[mode, "--help"], option) {
            let typed = [ours, &[word.as_str()]].concat();
            let is_unknown = is_unknown(&typed, "unexpected argument");
            unknown.extend(is_unknown.then(|| typed.join(" ")));
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
}
