//! Messages of `serve` before it serves: names of arrays, states of pools, missing requirements.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::support::{Daemon, Images, MIB, Nbd, Run, as_user, program, run};
use super::zvol::{has_libzpool, pool};

#[test]
fn an_array_of_version_0_90_has_the_number_it_was_made_with() {
    let images = Images::new(2, 16 * MIB);
    images.run(&["md", "create", "md5", "-e0.90", "-l1", "-n2"], &images.refs()).ok();
    let scan = images.run(&["scan"], &images.refs()).ok().out;
    assert!(scan.contains("md5 "), "{scan}");
    assert!(!scan.contains("set= ") && !scan.contains("member= "), "{scan}");
    let daemon = images.serve(&[]);
    assert!(daemon.greeting.starts_with("md5: raid1"), "{}", daemon.greeting);
    daemon.end();
}

#[test]
fn scan_calls_an_array_that_cannot_start_what_serve_calls_it() {
    let images = Images::new(4, 16 * MIB);
    let create = ["md", "create", "--homehost=any", "-n2"];
    let uuid = |digit: &str| format!("--uuid={}", vec![digit.repeat(8); 4].join(":"));
    let (first, second) = (uuid("1"), uuid("2"));
    images.run(&[&create[..], &["-l0", "--name=a", &first]].concat(), &["d0", "d1"]).ok();
    images.run(&[&create[..], &["-l1", "--name=b", &second]].concat(), &["d2", "d3"]).ok();
    // The array `a` comes first, and lacks a member.
    let scan = images.run(&["scan"], &["d0", "d2", "d3"]).ok().out;
    let daemon = Daemon::start(images.dir.path(), &["-I", "d0", "d2", "d3"]);
    for (device, name) in [("md127", "a"), ("md126", "b")] {
        let line = scan.lines().find(|line| line.contains(&format!("set={name} "))).unwrap();
        assert!(line.contains(device), "{line}");
        assert!(daemon.greeting.contains(device), "{}", daemon.greeting);
    }
    assert!(daemon.greeting.contains("md127: raid0, inactive"), "{}", daemon.greeting);
    daemon.end();
}

#[test]
fn an_array_that_is_looked_into_has_its_name_in_the_log() {
    let images = Images::new(4, 16 * MIB);
    let create = ["md", "create", "--homehost=any", "-l1", "-n2"];
    images.run(&[&create[..], &["--name=a"]].concat(), &["d0", "d1"]).ok();
    images.run(&[&create[..], &["--name=b"]].concat(), &["d2", "d3"]).ok();
    let daemon = Daemon::start(images.dir.path(), &["-v", "--run", "d0", "d2"]);
    let log = daemon.end();
    assert!(log.contains("md127") && !log.contains("md?"), "{log}");
}

/// A model of `disk` with 4 KiB that cannot be read.
fn unreadable(disk: &str, at: &str) -> String {
    format!("--model={disk}=custom:unreadable={at}+4K")
}

#[test]
fn a_sector_that_cannot_be_read_keeps_no_other_disk_from_being_served() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=data"]);
    fs::File::create(images.path("plain")).unwrap().set_len(32 * MIB).unwrap();
    let disks = ["d0", "d1", "plain"];
    let serve = |options: &[&str], model: &str| {
        let daemon = Daemon::start(images.dir.path(), &[options, &[model], &disks].concat());
        let greeting = daemon.greeting.clone();
        (greeting, daemon.end())
    };
    // A member of a mirror is one, wherever it cannot be read but in its superblock.
    for at in ["0", "512K", "32696K"] {
        let (greeting, log) = serve(&[], &unreadable("d1", at));
        assert!(greeting.contains("2 of 2 devices"), "{at}: {greeting}");
        assert!(log.contains("cannot be read at 0x"), "{at}: {log}");
    }
    let model = unreadable("d1", "4K");
    for options in [&["--run"][..], &["--run", "--whole"], &["--run", "--read-only"]] {
        let (greeting, log) = serve(options, &model);
        assert!(
            greeting.contains("1 of 2 devices") && log.contains("cannot be read at 0x1000"),
            "{greeting}{log}"
        );
    }
    let run =
        |args: &[&str]| images.run(&[&["serve", "--control", "control"], args].concat(), &disks);
    run(&[&model]).fails(1, &["cannot start: array", "d1 cannot be read: use --run to start it"]);
    // Another disk is a volume, unless it may be a member.
    for (at, is_served) in [("64K", true), ("4K", false)] {
        let (greeting, log) = serve(&[], &unreadable("plain", at));
        assert!(greeting.contains("2 of 2 devices"), "{greeting}");
        assert_eq!(greeting.contains("plain: "), is_served, "{at}: {greeting}");
        assert!(log.contains("cannot be read at 0x"), "{log}");
    }
    let alone = ["serve", "--control", "control", &unreadable("plain", "4K"), "plain"];
    let hint = "use --read-only to serve what can be read";
    images.run(&alone, &[]).fails(1, &["cannot serve: plain: cannot be read at 0x1000", hint]);
}

#[test]
fn a_file_that_is_missing_at_the_start_is_a_member_later() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--bitmap=internal", "--assume-clean"]);
    fs::rename(images.path("d1"), images.path("away")).unwrap();
    let serve = ["serve", "--control", "control"];
    let hint = "use --run to start what has all data";
    images.run(&serve, &["d0", "d1"]).fails(1, &["cannot open: d1: No such file", hint]);
    images.run(&serve, &["--run", "d1"]).fails(1, &["cannot open: d1: No such file"]);
    let daemon = images.serve(&["--run", "--nbd", "unix:nbd"]);
    assert!(daemon.greeting.contains("1 of 2 devices"), "{}", daemon.greeting);
    let mut volume = Nbd::open(&images.path("nbd"), "md0");
    volume.write_at(0, &[1; 4096]);
    volume.flush();
    fs::rename(images.path("away"), images.path("d1")).unwrap();
    daemon.client(&["md", "incremental", "d1"]).ok();
    let status = daemon.client(&["status"]).ok().out;
    assert!(status.contains("sandbox"), "{status}");
    daemon.client(&["md", "wait", "md0"]);
    assert!(daemon.client(&["status"]).ok().out.contains("2 of 2 devices"));
    drop(volume);
    let log = daemon.end();
    assert_eq!(log.matches("absent: the daemon starts without it").count(), 1, "{log}");
    images.run(&["scan"], &["d0", "d1"]).ok();
}

#[test]
fn the_configuration_of_an_unraid_array_is_named_and_refused() {
    let images = Images::new(0, 0);
    fs::write(images.path("super.dat"), [&[0xfc, 0x4e, 0x2b, 0xb9, 2][..], &[0; 4091]].concat())
        .unwrap();
    let what = "unraid array configuration at 0x0";
    let scan = images.run(&["scan"], &["super.dat"]).ok().out;
    assert!(scan.contains("unraid") && scan.contains("array configuration"), "{scan}");
    images.run(&["md", "examine"], &["super.dat"]).fails(1, &["super.dat", what]);
    let refused = ["cannot serve: super.dat: it is the configuration of an Unraid array"];
    let run = images.run(&["serve", "--nbd", "unix:n"], &["super.dat"]).fails(1, &refused);
    assert!(run.err.contains("hint: each data disk has a file system of its own"), "{run:?}");
}

#[test]
fn a_group_of_which_no_volume_can_be_made_is_a_failure() {
    let images = Images::new(2, 16 * MIB);
    let devices = "--devices=d0,d1";
    images.run(&["lvm", "vgcreate", "vg", devices], &images.refs()).ok();
    // Without volumes the daemon waits for commands.
    let daemon = images.serve(&["--nbd", "unix:n"]);
    assert_eq!(daemon.greeting, "nothing is served: there is no volume yet\nready\n");
    daemon.end();
    images.run(&["lvm", "lvcreate", "-l100%FREE", "-n", "data", "vg", devices], &[]).ok();
    let args = ["serve", "--nbd", "unix:n", "--control", "c"];
    let why = ["there is nothing to serve: vg/data: it needs the physical volume"];
    let run = images.run(&args, &["d0"]).fails(1, &why);
    assert!(run.err.contains("hint: use --partial to serve"), "{run:?}");
    let run = images.run(&[&args[..], &["--read-only"]].concat(), &["d0"]).fails(1, &why);
    assert!(run.err.contains("hint: use --partial --read-only to serve"), "{run:?}");
}

#[test]
fn an_image_that_its_user_may_only_read_is_served_read_only() {
    let images = Images::new(1, MIB);
    let Some(mut command) = as_user(&images, 54321, 54321, &[]) else { return };
    let image = images.path("d0");
    std::os::unix::fs::chown(&image, Some(54321), Some(54321)).unwrap();
    fs::set_permissions(&image, Permissions::from_mode(0o400)).unwrap();
    command.args(["serve", "--control", "/tmp/ashlar-test-c", "d0"]);
    let run = run(command).fails(1, &["cannot open: d0", "it can be read: use --read-only"]);
    assert!(!run.err.contains("root?"), "{run:?}");
}

#[test]
fn a_pool_without_volumes_says_that_nothing_is_served() {
    if !has_libzpool("a pool without volumes") {
        return;
    }
    let images = pool();
    let daemon = images.serve(&[]);
    let lines: Vec<&str> = daemon.greeting.lines().collect();
    assert!(lines[0].starts_with("tank: zpool of 2 devices, by OpenZFS"), "{lines:?}");
    assert!(lines[0].ends_with(", without volumes"), "{lines:?}");
    assert_eq!(lines[1..], ["nothing is served: there is no volume yet", "ready"]);
    daemon.end();
}

#[test]
fn half_a_mirrored_pool_is_called_degraded() {
    if !has_libzpool("half a pool") {
        return;
    }
    let images = pool();
    let scan = images.run(&["scan"], &["d0"]).ok().out;
    assert!(scan.lines().any(|line| line.contains("tank") && line.contains("(degraded")), "{scan}");
    let daemon = Daemon::start(images.dir.path(), &["d0"]);
    let first = daemon.greeting.lines().next().unwrap();
    assert!(first.starts_with("tank: zpool of 1 devices, degraded, by OpenZFS"), "{first}");
    daemon.end();
}

/// Runs `serve` on a disk that does not exist: any other error is reported before disks are opened.
fn serve(mut command: Command, args: &[&str]) -> Run {
    let output = command.args(["serve", "/no/such/disk"]).args(args).output().unwrap();
    Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn without_a_place_for_the_control_socket_no_disk_is_opened() {
    let images = Images::new(0, 0);
    serve(program(), &["--control", "/no/such/directory/control"])
        .fails(1, &["control socket", "/no/such/directory/control", "--control PATH"]);
    if let Some(mut command) = as_user(&images, 54321, 54321, &[]) {
        command.env("XDG_RUNTIME_DIR", "/no/such/directory");
        serve(command, &[])
            .fails(1, &["control socket", "/no/such/directory/ashlar.sock", "--control PATH"]);
    }
}

#[test]
fn without_what_a_mount_needs_no_disk_is_opened() {
    let images = Images::new(1, MIB);
    let file = images.path("d0");
    let directory = images.dir.path().to_str().unwrap();
    serve(program(), &["--control", "/c", "--mount", file.to_str().unwrap()])
        .fails(1, &["cannot mount", "ot a directory", "--nbd"]);
    let has = |path: &str| fs::metadata(path).is_ok();
    if has("/dev/fuse")
        && has("/usr/bin/fusermount3")
        && let Some(command) = as_user(&images, 54321, 54321, &[])
    {
        serve(command, &["--control", "/tmp/c", "--mount", directory])
            .fails(1, &["user 54321 has no entry in the user database", "--nbd"]);
    }
    // In a separate mount namespace, so that the machine's device stays.
    let script = "mount --bind /etc/hostname /dev/fuse 2>/dev/null || exit 77; exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(program().get_program());
    let run = serve(command, &["--control", "/tmp/c", "--mount", directory]);
    if run.err.contains("unshare: ") || run.code == Some(77) {
        return eprintln!("skipped: no mount namespace, or no device to hide: {}", run.err);
    }
    run.fails(1, &["/dev/fuse", "modprobe fuse", "--nbd"]);
}
