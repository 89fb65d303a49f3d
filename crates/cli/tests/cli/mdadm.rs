//! What users of mdadm type and what their scripts parse: modes, `--brief`, `--export`, `--scan`.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::{Daemon, Images, MIB, Nbd};

/// Members as a real kernel left them, with mdadm's output about the running array: see
/// `tests/images/md/detail/make.sh`.
struct GoldenArray {
    case: PathBuf,
    dir: tempfile::TempDir,
    names: Vec<String>,
}

impl GoldenArray {
    fn load(case: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let case = root.join("../../tests/images/md/detail").join(case);
        let dir = tempfile::tempdir().unwrap();
        let table = fs::read_to_string(case.join("devices.txt")).unwrap();
        let member = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap() * 512;
            let file = File::create(dir.path().join(words[0])).unwrap();
            file.set_len(number(1)).unwrap();
            let block = fs::read(case.join(format!("{}.bin", words[0]))).unwrap();
            file.write_all_at(&block, number(2)).unwrap();
            words[0].to_owned()
        };
        let names = table.lines().map(member).collect();
        Self { case, dir, names }
    }

    /// mdadm's output, with our paths and device numbers.
    fn expected(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.case.join(name)).unwrap().replace("/dev/loop", "loop");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for line in &mut lines {
            for minor in 0..4 {
                *line = line.replace(&format!("    7     {minor:>4}"), "    0        0");
                *line = line.replace(
                    &format!("  {minor}       7        {minor}"),
                    &format!("  {minor}       0        0"),
                );
            }
        }
        lines
    }

    fn serve(&self) -> Daemon {
        let names = self.names.iter().map(String::as_str);
        Daemon::start(self.dir.path(), &std::iter::once("--run").chain(names).collect::<Vec<_>>())
    }
}

fn told(daemon: &Daemon, args: &[&str]) -> Vec<String> {
    let run = daemon.client(&[&["md"], args].concat()).ok();
    // The array may have another number here than in the recorded output, /dev/md0.
    run.out.lines().map(|line| line.replace("/dev/md127", "/dev/md0")).collect()
}

#[test]
fn the_details_of_an_array_are_told_as_mdadm_tells_them() {
    for case in ["raid0", "raid1-spare", "raid10-degraded", "old"] {
        let golden = GoldenArray::load(case);
        let daemon = golden.serve();
        let name = if daemon.greeting.contains("md127") { "md127" } else { "md0" };
        assert_eq!(told(&daemon, &["--detail", "--brief", name]), golden.expected("brief.txt"));
        assert_eq!(told(&daemon, &["-Dbv", name]), golden.expected("verbose.txt"));
        assert_eq!(told(&daemon, &["--detail", "--scan", name]), golden.expected("scan.txt"));
        // mdadm lists the devices in directory order, and there was no link in /dev/md.
        let sorted = |mut lines: Vec<String>| {
            lines.retain(|line| !line.starts_with("MD_DEVNAME"));
            lines.sort();
            lines
        };
        let export = sorted(told(&daemon, &["-D", "--export", name]));
        assert_eq!(export, sorted(golden.expected("export.txt")));
        // mdadm 4.2 does not know the layout of a RAID0 of equal members.
        let known = |mut lines: Vec<String>| {
            let layout = lines.iter().position(|line| case == "raid0" && line.contains("Layout"));
            layout.map(|at| lines.remove(at));
            lines
        };
        let detail = known(told(&daemon, &["--detail", name]));
        assert_eq!(detail, known(golden.expected("detail.txt")), "{case}");
        daemon.end();
    }
}

#[test]
fn lines_of_members_are_those_of_mdadm_and_its_modes_are_understood() {
    let images = Images::array(3, 32 * MIB, &["-l1", "--name=a b", "--spare-devices=0"]);
    let other = Images::array(2, 32 * MIB, &["-l10", "-e1.0"]);
    let mut all: Vec<String> =
        images.refs().iter().map(|name| images.path(name).display().to_string()).collect();
    all.extend(other.refs().iter().map(|name| other.path(name).display().to_string()));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    for options in [
        &["-Eb"][..],
        &["-Ebv"],
        &["--examine", "--scan"],
        &["-E", "--export"],
        &["-EY"],
        &["-Esv"],
    ] {
        let theirs = Command::new("mdadm").args(options).args(&all).output();
        let Ok(theirs) = theirs else { return eprintln!("skipped: no mdadm") };
        let ours = images.run(&[&["md"], options].concat(), &all).ok();
        assert_eq!(ours.out, String::from_utf8(theirs.stdout).unwrap(), "{options:?}");
    }
}

#[test]
fn devices_without_array_are_passed_over_by_a_scan() {
    let images = Images::new(3, 32 * MIB);
    images.run(&["md", "-C", "md0", "-l1", "-n2", "--homehost=any"], &["d0", "d1"]).ok();
    let run = images.run(&["md", "-Es"], &["d2", "d0", "nonexistent", "d1"]).ok();
    assert!(
        run.out.starts_with("ARRAY /dev/md/0  metadata=1.2 UUID=") && run.err.is_empty(),
        "{run:?}"
    );
    assert_eq!(run.out.lines().count(), 1);
    images.run(&["md", "-E"], &["d2"]).fails(1, &["no md superblock", "d2"]);
    images.run(&["md", "-Eb"], &["d2"]).ok();

    let run = images.run(&["md", "-As"], &["d2", "d0", "d1"]).ok();
    assert_eq!(run.out, "ashlar: /dev/md0 can be started with 2 drives.\n");
    images.run(&["md", "-As"], &["d2"]).fails(1, &["no arrays found"]);
    images.run(&["md", "-As", "md5"], &["d0", "d1"]).fails(2, &["--scan"]);
    images.run(&["md", "--build", "md0", "-l1", "-n2"], &["d0", "d1"]).fails(1, &["superblock"]);
}

#[test]
fn a_running_array_is_told_managed_and_stopped_in_mdadms_words() {
    let images = Images::new(3, 32 * MIB);
    images.run(&["md", "-C", "/dev/md/data", "-l1", "-n2", "--homehost=any"], &["d0", "d1"]).ok();
    let daemon = Daemon::start(images.dir.path(), &["d0", "d1"]);
    let line = daemon.client(&["md", "-Ds"]).ok().out;
    assert!(line.starts_with("ARRAY /dev/md/data metadata=1.2 name=data UUID="), "{line}");
    let line = daemon.client(&["md", "-Db", "md127"]).ok().out;
    assert!(line.starts_with("ARRAY /dev/md127 metadata=1.2 name=data UUID="), "{line}");
    let export = daemon.client(&["md", "-D", "--export", "md127"]).ok().out;
    assert!(
        export.contains("\nMD_DEVNAME=data\nMD_NAME=data\nMD_DEVICE_dev_d0_ROLE=0\n"),
        "{export}"
    );
    daemon.client(&["md", "/dev/md127", "--fail", "d1", "--remove", "d1", "--add", "d2"]).ok();
    daemon.client(&["md", "--wait", "md127"]);
    let export = daemon.client(&["md", "-DY", "md127"]).ok().out;
    assert!(export.contains("MD_DEVICE_dev_d2_ROLE=1\n"), "{export}");
    daemon.client(&["md", "-S", "md5"]).fails(1, &["md5"]);
    daemon.client(&["md", "-S", "/dev/md/data"]).ok();
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn the_only_array_is_not_stopped_while_a_client_has_it_and_an_action_returns_at_once() {
    let images = Images::array(2, 32 * MIB, &["-l1", "--name=one"]);
    let nbd = ["d0", "d1", "--nbd", "unix:nbd", "--model", "d1=custom:bandwidth=1M"];
    let daemon = Daemon::start(images.dir.path(), &nbd);
    let mut client = Nbd::open(&images.path("nbd"), "md/one");
    for stop in [&["md", "--stop", "md127"][..], &["md", "-S", "--scan"]] {
        daemon.client(stop).fails(1, &["'md/one' is open"]);
    }
    client.write(0, &[7; 4096]);
    assert_eq!(client.reply(), 0);
    // As mdadm's, which --wait waits for.
    daemon.client(&["md", "--action=check", "md127"]).ok();
    let action = daemon.client(&["get", "sys/block/md127/md/sync_action"]).ok().out;
    assert_eq!(action, "check\n");
    daemon.client(&["md", "--action=idle", "md127"]).ok();
    drop(client);
    daemon.client(&["md", "--stop", "md127"]).ok();
    assert_eq!(daemon.wait().0.code(), Some(0));
}

#[test]
fn one_of_several_volumes_is_stopped_alone_unless_a_client_has_it() {
    let images = Images::new(3, 32 * MIB);
    images.run(&["md", "-C", "md0", "-l1", "-n2", "--homehost=any"], &["d0", "d1"]).ok();
    let nbd = ["d0", "d1", "d2", "--nbd", "unix:nbd"];
    let daemon = Daemon::start(images.dir.path(), &nbd);
    let client = Nbd::open(&images.path("nbd"), "md0");
    daemon.client(&["md", "--stop", "md0"]).fails(1, &["md0", "is open"]);
    drop(client);
    let stopped = daemon.client(&["md", "--stop", "/dev/md0"]).ok().out;
    assert_eq!(stopped, "stopped /dev/md0\n");
    // Its disks are free, the other volume is served.
    images.run(&["md", "create", "-l1", "-n2", "--homehost=any", "--force"], &["d0", "d1"]).ok();
    let client = Nbd::open(&images.path("nbd"), "d2");
    daemon.client(&["md", "--stop", "md0"]).fails(1, &["md0"]);
    daemon.client(&["md", "--stop", "--scan"]).fails(1, &["'d2' is open"]);
    // It is served on, also to others.
    drop((client, Nbd::open(&images.path("nbd"), "d2")));
    daemon.client(&["md", "--stop", "--scan"]).ok();
    assert_eq!(daemon.wait().0.code(), Some(0));
}

#[test]
fn a_dry_run_tells_what_would_be_made_and_touches_nothing() {
    let images = Images::new(3, 32 * MIB);
    let before = images.bytes();
    let create = ["md", "create", "--dry-run", "-l1", "-n2", "-x1", "--homehost=any"];
    let out = images.run(&create, &images.refs()).ok().out;
    for part in [
        "array would be created: raid1, 2 devices, 1 spare, 31M, UUID ",
        "d2: spare, superblock 1.2 at sector 8",
        "nothing was changed\n",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert_eq!(images.bytes(), before);
    // A refused creation is also refused with --dry-run, which says what would be lost.
    images.run(&["md", "create", "-l1", "-n2"], &["d0", "d1"]).ok();
    let before = images.bytes();
    let run = images.run(&create, &images.refs());
    assert!(run.out.contains("overwrites"), "{run:?}");
    run.fails(1, &["d0", "member", "--force"]);
    images.run(&[&create[..], &["--force"]].concat(), &images.refs()).ok();
    images
        .run(&["md", "create", "--dry-run", "-l1", "-n2", "--size=1G", "--force"], &["d0", "d1"])
        .fails(1, &["room"]);
    assert_eq!(images.bytes(), before);
}

#[test]
fn arrays_with_old_superblocks_are_made_and_read_by_mdadm() {
    let images = Images::new(3, 32 * MIB);
    let create = ["md", "create", "md0", "-l1", "-n2", "-x1", "-e0", "--bitmap=internal", "-W"];
    images.run(&create, &images.refs()).ok();
    let ours = images.run(&["md", "examine"], &["d1"]).ok().out;
    assert!(
        ours.contains("        Version : 0.90.00\n") && ours.contains("Preferred Minor : 0\n"),
        "{ours}"
    );
    assert!(ours.contains(" active sync write-mostly\n"), "{ours}");
    if let Ok(theirs) = Command::new("mdadm").arg("-E").arg(images.path("d1")).output() {
        let tail = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(tail(&ours), tail(&String::from_utf8(theirs.stdout).unwrap()));
    }
    let daemon = Daemon::start(images.dir.path(), &["d0", "d1", "d2"]);
    let name = if daemon.greeting.contains("md127") { "md127" } else { "md0" };
    daemon.client(&["md", "wait", name]);
    let detail = daemon.client(&["md", "detail", name]).ok().out;
    assert!(
        detail.contains("           Version : 0.90\n") && detail.contains("active sync"),
        "{detail}"
    );
    daemon.end();

    images
        .run(&["md", "create", "-e0.90", "-l1", "-n2", "--force", "--name=x"], &["d0", "d1"])
        .fails(2, &["--name"]);
    images
        .run(&["md", "create", "-e0.90", "-l0", "-n2", "--force"], &["d0", "d1"])
        .fails(1, &["raid0"]);
}

/// mdadm 4.2 works the words out by itself when it is asked whether an array is of a host.
#[test]
fn the_host_of_an_old_array_is_in_its_uuid_where_mdadm_finds_it() {
    let images = Images::new(2, 32 * MIB);
    let create = |args: &[&str]| {
        let all = [&["md", "create", "md0", "-l1", "-n2", "-e0", "-f"], args].concat();
        images.run(&all, &images.refs()).ok();
    };
    let uuid = || {
        let text = images.run(&["md", "examine"], &["d1"]).ok().out;
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix("UUID : "));
        line.unwrap().to_owned()
    };
    let is_of = |host: &str| {
        let mut mdadm = Command::new("mdadm");
        let homehost = format!("--homehost={host}");
        let text = mdadm.arg("-E").arg(homehost).arg(images.path("d1")).output().ok()?.stdout;
        let text = String::from_utf8(text).unwrap();
        let expected = format!("UUID : {} (local to host {host})\n", uuid());
        Some(text.contains(&expected))
    };
    let has_words = |uuid: &str, words: &str| uuid.split_at(17).1 == words;
    // SHA-1 of "nas" begins with these eight bytes, each word of which is stored with its lowest byte first.
    const NAS: &str = ":c7780c0e:bc15422d";
    create(&["--homehost=nas", "--bitmap=internal"]);
    assert!(has_words(&uuid(), NAS), "{}", uuid());
    let assemble = |args: &[&str]| {
        images.run(&[&["md", "assemble"], args].concat(), &images.refs()).ok();
    };
    let before = uuid();
    assemble(&["--update=homehost", "--homehost=box"]);
    assert_eq!(uuid()[..17], before[..17], "the other words stay");
    assert!(!has_words(&uuid(), NAS));
    if let Some(found) = is_of("box") {
        assert!(found && is_of("nas") == Some(false));
    }
    // The bitmap has it as well.
    let bitmap = images.run(&["md", "examine", "--bitmap"], &["d1"]).ok().out;
    assert!(bitmap.contains(&format!("UUID : {}\n", uuid())), "{bitmap}");
    let boxed = uuid();
    images
        .run(&["md", "assemble", "--update=homehost", "--homehost=any"], &images.refs())
        .fails(2, &["no host name"]);
    assemble(&["--update=homehost", "--homehost=nas", "--uuid", &boxed]);
    assert_eq!(uuid(), before);
    assemble(&["--update=uuid", "--homehost=box"]);
    assert_eq!(uuid()[17..], boxed[17..]);
    assert_ne!(uuid()[..17], boxed[..17]);
    let exactly = "01234567:89abcdef:01234567:89abcdef";
    assemble(&["--update=uuid", "--homehost=box", "--uuid", exactly]);
    assert_eq!(uuid(), exactly);
    create(&["--homehost=nas", "--uuid", exactly]);
    assert_eq!(uuid(), exactly);
    create(&["--homehost=any"]);
    assert!(!has_words(&uuid(), NAS));
    // This host's name, unless another is given.
    create(&[]);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert!(uuid().ends_with(&format!(" (local to host {})", host.trim())), "{}", uuid());
}

#[test]
fn superblocks_are_changed_at_assembly_as_by_mdadm() {
    let images = Images::new(3, 32 * MIB);
    images
        .run(
            &["md", "-C", "md0", "-l1", "-n3", "--homehost=any", "--bitmap=internal"],
            &images.refs(),
        )
        .ok();
    let field = |name: &str, key: &str| {
        let text = images.run(&["md", "-E"], &[name]).ok().out;
        let line = text.lines().find(|line| line.trim_start().starts_with(key)).map(str::to_owned);
        line.and_then(|line| Some(line.split_once(" : ")?.1.to_owned()))
    };
    let update =
        |args: &[&str]| images.run(&[&["md", "--assemble"], args].concat(), &images.refs());
    let uuid = "01234567:89abcdef:01234567:89abcdef";
    let out = update(&["--update=uuid", "--uuid", uuid]).ok().out;
    let expected = format!(
        "ashlar: the UUID becomes {uuid}\nashlar: 3 members have UUID {uuid}\n\
         ashlar: /dev/md0 can be started with 3 drives.\n"
    );
    assert_eq!(out, expected);
    update(&["-U", "name", "--name=data", "--homehost=box"]).ok();
    update(&["--update=no-bbl"]).ok();
    for name in ["d0", "d1", "d2"] {
        assert_eq!(field(name, "Array UUID").as_deref(), Some(uuid));
        assert_eq!(field(name, "Name").as_deref(), Some("box:data"));
        assert_eq!(field(name, "Bad Block Log"), None);
    }
    update(&["--update=bbl"]).ok();
    assert!(field("d2", "Bad Block Log").is_some());
    update(&["--update=homehost", "--homehost=other"]).ok();
    assert_eq!(field("d1", "Name").as_deref(), Some("other:data"));
    update(&["--update=no-bitmap"]).ok();
    assert_eq!(field("d0", "Internal Bitmap"), None);
    fs::OpenOptions::new().write(true).open(images.path("d1")).unwrap().set_len(40 * MIB).unwrap();
    update(&["--update=devicesize"]).ok();
    assert!(field("d1", "Avail Dev Size").unwrap() > field("d0", "Avail Dev Size").unwrap());
    assert!(field("d0", "State").as_deref() == Some("clean"));
    update(&["--update=resync"]).ok();
    assert!(field("d0", "State").as_deref() == Some("active"));

    let before = images.bytes();
    update(&["--update=super-minor"]).fails(2, &["number"]);
    images
        .run(&["md", "-A", "--update=super-minor", "md7"], &images.refs())
        .fails(1, &["1.2", "preferred minor"]);
    update(&["--update=ppl"]).fails(2, &["--update=ppl is not supported"]);
    update(&["--update=nonsense"]).fails(2, &["no such change"]);
    update(&["--update=name", "--name=0123456789012345678901234567890123456789", "--homehost=any"])
        .ok();
    assert!(images.bytes() != before);
}

#[test]
fn the_preferred_minor_of_an_old_array_is_changed_at_assembly() {
    let images = Images::new(2, 32 * MIB);
    images.run(&["md", "-C", "md0", "-l1", "-n2", "-e0.90"], &images.refs()).ok();
    images.run(&["md", "-A", "--update=super-minor", "/dev/md7"], &images.refs()).ok();
    let line = images.run(&["md", "-Eb"], &images.refs()).ok().out;
    assert!(line.starts_with("ARRAY /dev/md7 UUID="), "{line}");
}
