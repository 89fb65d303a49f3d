//! The daemon: what it serves and refuses, and how it ends.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::support::{Daemon, Images, MIB, Nbd, program};

/// An array served through a mount, or `None` where mounting is not possible.
fn mounted(images: &Images, args: &[&str]) -> Option<(Daemon, PathBuf)> {
    if !PathBuf::from("/dev/fuse").exists() {
        eprintln!("skipped: no /dev/fuse");
        return None;
    }
    let mount = images.path("mnt");
    fs::create_dir_all(&mount).unwrap();
    Some((images.serve(&[&["--mount", "mnt"], args].concat()), mount))
}

fn pattern(seed: u8) -> Vec<u8> {
    (0..MIB).map(|n| (n / 512) as u8 ^ (n % 251) as u8 ^ seed).collect()
}

#[test]
fn what_is_written_to_the_mount_is_there_after_a_restart() {
    let images = Images::array(4, 32 * MIB, &["--level=10", "--layout=f2", "--chunk=64K"]);
    let Some((daemon, mount)) = mounted(&images, &[]) else { return };
    assert_eq!(daemon.greeting, "md0: raid10 62M, clean, 4 of 4 devices\nready\n");
    let volume = OpenOptions::new().read(true).write(true).open(mount.join("dev/md0")).unwrap();
    assert_eq!(volume.metadata().unwrap().len(), 62 * MIB);
    volume.write_all_at(&pattern(1), 12_345).unwrap();
    volume.sync_all().unwrap();
    drop(volume);
    daemon.end();
    // A far layout of two copies survives the loss of d0 or d3.
    for missing in ["d0", "d3"] {
        let rest: Vec<&str> = images.refs().into_iter().filter(|name| *name != missing).collect();
        let args = [&["--mount", "mnt", "--run", "--read-only"][..], &rest].concat();
        let daemon = Daemon::start(images.dir.path(), &args);
        let mut bytes = vec![0; MIB as usize];
        let volume = File::open(mount.join("dev/md0")).unwrap();
        volume.read_exact_at(&mut bytes, 12_345).unwrap();
        assert!(bytes == pattern(1), "without {missing}");
        let write = OpenOptions::new().write(true).open(mount.join("dev/md0"));
        assert!(write.is_err(), "a read-only volume was opened for writing");
        drop(volume);
        daemon.end();
    }
}

#[test]
fn the_mount_shows_attributes_as_sysfs_does() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=data"]);
    let Some((daemon, mount)) = mounted(&images, &[]) else { return };
    let read = |path: &str| fs::read_to_string(mount.join(path)).unwrap();
    assert_eq!(
        read("proc/mdstat"),
        "Personalities : [linear] [raid0] [raid1] [raid6] [raid5] [raid4] [raid10] \nmd127 : active raid1 d1[1] d0[0]\n      \
         31744 blocks super 1.2 [2/2] [UU]\n      \nunused devices: <none>\n"
    );
    assert_eq!(read("sys/block/md127/md/rd0/state"), "in_sync\n");
    assert_eq!(read("sys/block/md127/slaves/d1/size"), "65536\n");
    assert_eq!(read("sys/block/d0/holders/md127/md/level"), "raid1\n");
    assert_eq!(read("sys/block/md127/dev"), "9:127\n");
    assert_eq!(fs::read_link(mount.join("dev/md/data")).unwrap(), PathBuf::from("../md127"));
    assert_eq!(fs::metadata(mount.join("dev/md/data")).unwrap().len(), 31 * MIB);
    let knob = mount.join("sys/block/md127/queue/nomerges");
    fs::write(&knob, "2\n").unwrap();
    assert_eq!(daemon.client(&["get", "sys/block/md127/queue/nomerges"]).ok().out, "2\n");
    let refused = fs::write(&knob, "7\n").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(22));
    let hidden = OpenOptions::new().write(true).open(mount.join("sys/block/md127/size"));
    assert!(hidden.is_err());
    daemon.end();
}

#[test]
fn unmounting_ends_the_daemon() {
    let images = Images::array(2, 32 * MIB, &["--level=0"]);
    let Some((daemon, mount)) = mounted(&images, &[]) else { return };
    let status = Command::new("umount").arg(&mount).status().unwrap();
    assert!(status.success());
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn a_mount_in_use_is_not_abandoned() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let Some((mut daemon, mount)) = mounted(&images, &[]) else { return };
    let volume = OpenOptions::new().read(true).write(true).open(mount.join("dev/md0")).unwrap();
    daemon.signal("TERM");
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert!(daemon.is_running());
    // It still serves.
    volume.write_all_at(&pattern(2), 0).unwrap();
    volume.sync_all().unwrap();
    drop(volume);
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("is in use") && log.contains("second signal"), "{log}");
    let own = format!("(process {})", std::process::id());
    assert!(log.contains(&own), "{log}");
    let examine = images.run(&["md", "examine", "--json"], &images.refs()).ok().out;
    assert_eq!(examine.matches("\"clean\": true").count(), 2, "{examine}");
}

#[test]
fn a_second_signal_ends_it_by_force() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let Some((mut daemon, mount)) = mounted(&images, &[]) else { return };
    let volume = OpenOptions::new().read(true).write(true).open(mount.join("dev/md0")).unwrap();
    volume.write_all_at(&pattern(3), 0).unwrap();
    daemon.signal("INT");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(daemon.is_running());
    daemon.signal_again("INT");
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("forced shutdown"), "{log}");
    assert!(volume.write_all_at(&pattern(4), 0).is_err());
    // Acknowledged data is there, and the arrays were stopped.
    let examine = images.run(&["md", "examine", "--json"], &images.refs()).ok().out;
    assert_eq!(examine.matches("\"clean\": true").count(), 2, "{examine}");
}

/// A forced shutdown during writes: each write ends on both copies, or the copies are not marked clean.
#[test]
fn copies_are_the_same_after_an_end_by_force_amid_writes() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let Some((daemon, mount)) = mounted(&images, &["--threads", "2"]) else { return };
    let writers: Vec<_> = (0..4_u64)
        .map(|writer| {
            let volume = OpenOptions::new().write(true).open(mount.join("dev/md0")).unwrap();
            std::thread::spawn(move || {
                let data = pattern(writer as u8);
                let mut written = 0;
                // Each writer has its own megabytes, with an offset so that blocks are written in part.
                while volume.write_all_at(&data, writer * 4 * MIB + written % MIB).is_ok() {
                    written += 12_289;
                }
                written
            })
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(300));
    daemon.signal("TERM");
    daemon.signal_again("TERM");
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    for writer in writers {
        assert!(writer.join().unwrap() > 0);
    }
    let examine = images.run(&["md", "examine", "--json"], &images.refs()).ok().out;
    assert_eq!(examine.matches("\"clean\": true").count(), 2, "{examine}");
    let bytes = images.bytes();
    assert!(bytes[0][MIB as usize..] == bytes[1][MIB as usize..], "the copies differ");
}

#[test]
fn a_member_that_missed_writes_is_left_out() {
    let images = Images::array(3, 32 * MIB, &["--level=1"]);
    let Some((daemon, mount)) = mounted(&images, &[]) else { return };
    daemon.end();
    let degraded = &["--mount", "mnt", "--run", "d0", "d1"];
    let daemon = Daemon::start(images.dir.path(), degraded);
    assert_eq!(daemon.greeting, "md0: raid1 31M, clean, 2 of 3 devices\nready\n");
    let mdstat = fs::read_to_string(mount.join("proc/mdstat")).unwrap();
    assert!(mdstat.contains("[3/2] [UU_]"), "{mdstat}");
    fs::OpenOptions::new()
        .write(true)
        .open(mount.join("dev/md0"))
        .unwrap()
        .write_all_at(&pattern(5), 0)
        .unwrap();
    let detail = daemon.client(&["md", "detail", "md0"]).ok().out;
    assert!(detail.contains("degraded"), "{detail}");
    daemon.end();
    let all = images.run(&["md", "assemble"], &images.refs()).ok().out;
    assert!(all.contains("2 drives (out of 3)") && all.contains("d2 left out"), "{all}");
    let alone = images.run(&["md", "assemble", "--run", "--read-only"], &["d2", "d0"]).ok().out;
    assert!(alone.contains("1 drive (out of 3)") && alone.contains("d2 left out"), "{alone}");
}

#[test]
fn disks_in_use_are_not_opened_twice() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let daemon = images.serve(&[]);
    let again = images.run(&["serve", "--control", "other"], &images.refs());
    again.fails(1, &["d0", "in use by another ashlar", "ashlar status"]);
    images.run(&["md", "assemble"], &images.refs()).fails(1, &["in use"]);
    images.create(&["--level=0", "--force"]).fails(1, &["in use"]);
    // Access without a lock is allowed.
    images.run(&["scan"], &images.refs()).ok();
    images.run(&["md", "examine"], &images.refs()).ok();
    daemon.end();
}

#[test]
fn two_daemons_want_two_control_sockets() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let others = Images::array(2, 32 * MIB, &["--level=1"]);
    let daemon = images.serve(&[]);
    let control = daemon.control.to_str().unwrap();
    let refused = others.run(&["serve", "--control", control], &others.refs());
    refused.fails(1, &["cannot open the control socket", control, "another --control PATH"]);
    let second = others.serve(&[]);
    assert!(daemon.client(&["status"]).ok().out.contains(&daemon.pid().to_string()));
    second.end();
    daemon.end();
}

#[test]
fn reading_only_changes_not_a_byte() {
    let images = Images::array(4, 32 * MIB, &["--level=10"]);
    let before = images.bytes();
    let Some((daemon, mount)) = mounted(&images, &["--read-only"]) else { return };
    assert_eq!(fs::read(mount.join("dev/md0")).unwrap().len() as u64, 60 * MIB);
    assert_eq!(fs::read_to_string(mount.join("sys/block/md0/ro")).unwrap(), "1\n");
    assert_eq!(
        fs::read_to_string(mount.join("sys/block/md0/md/array_state")).unwrap(),
        "readonly\n"
    );
    daemon.end();
    assert!(images.bytes() == before);
}

#[test]
fn a_writable_array_that_is_not_written_is_left_as_it_was() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let before = images.bytes();
    images.serve(&[]).end();
    assert!(images.bytes() == before);
}

#[test]
fn a_configuration_file_says_it_all() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let text = "disks = [\"d0\", \"d1\"]\ncontrol = \"control\"\nthreads = 1\n\
                nbd = [\"unix:nbd.sock\"]\n[set]\n\
                \"sys/block/md0/queue/discard_max_bytes\" = 65536\n";
    fs::write(images.path("stack.toml"), text).unwrap();
    let mut command = program();
    // From another directory: paths are relative to the file.
    command.current_dir("/").args(["serve", "--config"]).arg(images.path("stack.toml"));
    let daemon = Daemon::of(command, images.dir.path());
    let path = "sys/block/md0/queue/discard_max_bytes";
    assert_eq!(daemon.client(&["get", path]).ok().out, "65536\n");
    let nbd = format!("NBD at unix:{}", images.path("nbd.sock").display());
    assert!(daemon.client(&["status"]).ok().out.contains(&nbd));
    daemon.end();
    assert!(!images.path("nbd.sock").exists());
}

/// The exit code 2 tells service managers that another try fails, too; an attribute may exist the next time.
#[test]
fn a_wrong_configuration_is_refused_with_its_place() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let refuse = |text: &str, code: i32, parts: &[&str]| {
        fs::write(images.path("stack.toml"), text).unwrap();
        images.run(&["serve", "--control", "c", "--config", "stack.toml"], &[]).fails(code, parts);
    };
    refuse("disks = [\"d0\"]\nreadonly = true\n", 2, &["stack.toml:2:1: unknown field `readonly`"]);
    refuse("disks = [\n", 2, &["stack.toml:"]);
    refuse("", 2, &["no disks given"]);
    refuse("disks = [\"d0\", \"d1\"]\nthreads = 0\n", 2, &["threads"]);
    let set = "disks = [\"d0\", \"d1\"]\n[set]\n\"sys/block/md0/queue/nothing\" = 1\n";
    refuse(set, 1, &["cannot set: sys/block/md0/queue/nothing: no such attribute"]);
    let missing = images.run(&["serve", "--config", "none.toml"], &[]);
    missing.fails(2, &["none.toml", "No such file"]);
    images.run(&["serve", "--daemon", "--config", "none.toml"], &[]).fails(2, &["none.toml"]);
}

#[test]
fn what_cannot_be_served_is_said_before_ready() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let serve =
        |args: &[&str]| images.run(&[&["serve", "--control", "c"], args].concat(), &images.refs());
    serve(&["--mount", "nowhere"])
        .fails(1, &["cannot mount: nowhere: No such", "mkdir -p nowhere"]);
    serve(&["--nbd", "unix:no/such/dir/sock"]).fails(1, &["cannot listen", "no/such/dir/sock"]);
    serve(&["--nbd", "tcp:192.0.2.1:1"]).fails(1, &["cannot listen", "tcp:192.0.2.1:1"]);
    assert_eq!(serve(&["--nbd", "nonsense"]).code, Some(2));
    assert_eq!(serve(&["--threads", "0"]).code, Some(2));
    images.run(&["serve", "--control", "c"], &["d0"]).fails(1, &["1 of the 2", "--run"]);
    // The socket of a daemon that is gone does not matter.
    assert!(!images.path("c").exists());
}

#[test]
fn it_raises_its_limit_of_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    let args = ["serve", "--control", "control", "ram:64K"];
    command.args(["-c", "ulimit -Sn 99 && exec \"$@\"", "sh"]).arg(program().get_program());
    command.args(args).current_dir(dir.path());
    let daemon = Daemon::of(command, dir.path());
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert!(words[3] != "99" && words[3] == words[4], "{line}");
    daemon.end();
}

#[test]
fn nbd_clients_see_the_volume() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=data"]);
    let daemon = images.serve(&["--nbd", "unix:nbd.sock", "--nbd", "tcp:localhost:0"]);
    let uri = format!("nbd+unix:///?socket={}", images.path("nbd.sock").display());
    let output = Command::new("nbdinfo").args(["--json", &uri]).output();
    if let Ok(output) = output {
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("\"export-name\": \"md/data\""), "{text}");
        assert!(text.contains(&format!("\"export-size\": {}", 31 * MIB)), "{text}");
    } else {
        eprintln!("skipped: no nbdinfo");
    }
    daemon.end();
}

#[test]
fn reads_that_fail_one_after_the_other_do_not_fill_the_log() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=data"]);
    let args = ["--run", "--nbd", "unix:nbd", "d0"];
    let daemon = Daemon::start(images.dir.path(), &args);
    // Data beyond the new end cannot be read, and the last member has to stay.
    OpenOptions::new().write(true).open(images.path("d0")).unwrap().set_len(2 * MIB).unwrap();
    let mut client = Nbd::open(&images.path("nbd"), "md/data");
    for n in 0..200 {
        client.request(0, 16 * MIB + n * 4096, 4096);
        assert_eq!(client.reply(), 5);
    }
    drop(client);
    let log = daemon.end();
    assert!((1..50).contains(&log.lines().count()) && log.contains("read error"), "{log}");
}

#[test]
fn the_service_manager_is_told() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let socket = UnixDatagram::bind(images.path("notify")).unwrap();
    let mut command = program();
    command.current_dir(images.dir.path()).env("NOTIFY_SOCKET", images.path("notify"));
    command.args(["serve", "--control", "control", "d0", "d1"]);
    let daemon = Daemon::of(command, images.dir.path());
    let receive = || {
        let mut buffer = [0; 64];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    };
    assert_eq!(receive(), "READY=1");
    daemon.end();
    assert_eq!(receive(), "STOPPING=1");
}

/// Units that are ordered behind ours start at once then.
#[test]
fn the_service_manager_is_told_only_once_everything_is_served() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let socket = UnixDatagram::bind(images.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut command = program();
    command.current_dir(images.dir.path()).env("NOTIFY_SOCKET", images.path("notify"));
    command.args(["serve", "--control", "control", "--nbd", "unix:nbd", "d0", "d1"]);
    let has_fuse = PathBuf::from("/dev/fuse").exists();
    if has_fuse {
        fs::create_dir(images.path("mnt")).unwrap();
        command.args(["--mount", "mnt"]);
    }
    let mut daemon = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut buffer = [0; 64];
    let len = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"READY=1");
    let mounted = images.path("mnt/dev/md0").exists();
    let nbd = UnixStream::connect(images.path("nbd"));
    let control = UnixStream::connect(images.path("control"));
    images.run(&["stop", "--control", "control"], &[]).ok();
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
    let len = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"STOPPING=1");
    assert!(nbd.is_ok() && control.is_ok() && mounted == has_fuse, "{nbd:?} {control:?} {mounted}");
}

#[test]
fn assembling_with_a_mount_serves() {
    let images = Images::array(2, 32 * MIB, &["--level=1"]);
    let mut command = program();
    command.current_dir(images.dir.path());
    command.args(["md", "assemble", "md9", "--nbd", "unix:nbd.sock", "--control", "control"]);
    command.args(["d0", "d1"]);
    let daemon = Daemon::of(command, images.dir.path());
    assert_eq!(daemon.greeting, "md9: raid1 31M, clean, 2 of 2 devices\nready\n");
    daemon.end();
}

#[test]
fn disks_without_an_array_and_ram_disks_are_volumes_themselves() {
    let images = Images::new(1, 8 * MIB);
    if !PathBuf::from("/dev/fuse").exists() {
        eprintln!("skipped: no /dev/fuse");
        return;
    }
    let mount = images.path("mnt");
    fs::create_dir_all(&mount).unwrap();
    let daemon =
        Daemon::start(images.dir.path(), &["--mount", "mnt", "--buffered", "d0", "ram:1M"]);
    assert_eq!(daemon.greeting, "d0: disk 8M\nram:1M: disk 1M\nready\n");
    let volume = OpenOptions::new().write(true).open(mount.join("dev/d0")).unwrap();
    volume.write_all_at(&pattern(3), MIB).unwrap();
    drop(volume);
    let stat = daemon.client(&["get", "sys/block/d0/size"]).ok();
    assert_eq!(stat.out, "16384\n");
    daemon.end();
    assert!(fs::read(images.path("d0")).unwrap()[MIB as usize..][..MIB as usize] == pattern(3));
    let taken = images.path("md0");
    fs::rename(images.path("d0"), &taken).unwrap();
    let other = Images::array(2, 8 * MIB, &["--level=1"]);
    let members = [other.path("d0"), other.path("d1")];
    let files =
        [taken.to_str().unwrap(), members[0].to_str().unwrap(), members[1].to_str().unwrap()];
    images.run(&["serve", "--control", "c"], &files).fails(1, &["md0", "name of one"]);
}

#[test]
fn an_image_of_a_hypervisor_is_served_only_when_its_own_bytes_are_wanted() {
    let end = 8 * MIB - 512;
    let cases: &[(u64, &[u8], &str)] = &[
        (0, b"QFI\xfb\0\0\0\x01", "qcow"),
        (0, b"QFI\xfb\0\0\0\x03", "qcow2"),
        (0, b"KDMV", "vmdk"),
        (0, b"# Disk DescriptorFile\n", "vmdk"),
        (0x40, b"\x7f\x10\xda\xbe", "vdi"),
        (0, b"conectix", "vpc"),
        (end, b"conectix", "vpc"),
        (0, b"vhdxfile", "vhdx"),
    ];
    for (at, magic, format) in cases {
        let images = Images::new(1, 8 * MIB);
        let file = OpenOptions::new().write(true).open(images.path("d0")).unwrap();
        file.write_all_at(magic, *at).unwrap();
        let before = images.bytes();
        let why = format!("cannot serve: d0: it is not raw: {format} disk image at {at:#x}");
        let options: &[&[&str]] = match *format {
            "qcow2" => &[&[], &["--read-only"], &["--whole"], &["--incremental"]],
            _ => &[&[]],
        };
        for options in options {
            let serve = [&["serve", "--control", "c"], *options].concat();
            images.run(&serve, &["d0"]).fails(1, &[&why, "hint: qemu-nbd", "--raw"]);
        }
        images.run(&["lvm", "pvcreate"], &["d0"]).fails(5, &[format, "--force"]);
        let scan = images.run(&["scan"], &["d0"]).ok().out;
        assert!(scan.contains("disk image") && scan.contains(format), "{scan}");
        assert!(images.bytes() == before, "{format}");
    }
    let images = Images::new(1, 8 * MIB);
    let file = OpenOptions::new().write(true).open(images.path("d0")).unwrap();
    file.write_all_at(b"vhdxfile", 0).unwrap();
    let daemon = images.serve(&["--raw"]);
    assert_eq!(daemon.greeting, "d0: disk 8M\nready\n");
    daemon.end();
    fs::write(images.path("stack.toml"), "disks = [\"d0\"]\nraw = true\n").unwrap();
    Daemon::start(images.dir.path(), &["--config", "stack.toml"]).end();
}
