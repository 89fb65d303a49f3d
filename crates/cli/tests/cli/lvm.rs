//! `ashlar lvm`: groups on image files, created, shown, changed; a refused command changes nothing.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::support::{Daemon, Images, MIB, Run, program};

/// `ashlar lvm` with archives below the images' directory.
fn command(images: &Images, args: &[&str]) -> Command {
    let mut command = program();
    command.arg("lvm").args(args).current_dir(images.dir.path());
    command.env("XDG_STATE_HOME", images.path("state"));
    command
}

pub(super) fn lvm(images: &Images, args: &[&str]) -> Run {
    let output = command(images, args).output().unwrap();
    let run = Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    };
    assert!(run.code.is_some() && !run.err.contains("panicked"), "{args:?}: {run:?}");
    run
}

/// `ashlar lvm VERB --devices d0,d1,... ARGS`.
pub(super) fn on(images: &Images, verb: &str, args: &[&str]) -> Run {
    let devices = images.names.join(",");
    lvm(images, &[&[verb, "--devices", &devices], args].concat())
}

/// A group `vg` with extents of 1 MiB on all images.
pub(super) fn group(count: usize) -> Images {
    let images = Images::new(count, 40 * MIB);
    let args = [&["vgcreate", "-s", "1M", "vg"][..], &images.refs()].concat();
    lvm(&images, &args).ok();
    images
}

/// The rows of a report.
fn rows(images: &Images, verb: &str, args: &[&str]) -> Vec<Value> {
    let run = on(images, verb, &[&["--json"], args].concat()).ok();
    let report: Value = serde_json::from_str(&run.out).unwrap();
    let rows = report["report"][0].as_object().unwrap().values().next().unwrap().clone();
    rows.as_array().unwrap().clone()
}

/// The values of some fields, one row each, separated by blanks.
pub(super) fn values(images: &Images, verb: &str, fields: &str, args: &[&str]) -> Vec<String> {
    let rows = rows(images, verb, &[&["-o", fields], args].concat());
    let row = |row: &Value| {
        let texts = fields.split(',').map(|field| row[field].as_str().unwrap().trim().to_owned());
        texts.collect::<Vec<_>>().join(" ")
    };
    rows.iter().map(row).collect()
}

/// The position of a volume's first extent: the image, and the byte.
pub(super) fn place(images: &Images, volume: &str) -> (String, u64) {
    let devices = values(images, "lvs", "devices", &["-a", volume]).remove(0);
    let (disk, extent) = devices.split(',').next().unwrap().split_once('(').unwrap();
    let extent: u64 = extent.trim_end_matches(')').parse().unwrap();
    (disk.to_owned(), (extent + 1) * MIB)
}

pub(super) fn write(images: &Images, (disk, at): &(String, u64), bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(images.path(disk)).unwrap();
    file.write_all_at(bytes, *at).unwrap();
}

pub(super) fn read(images: &Images, (disk, at): &(String, u64), len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let file = fs::File::open(images.path(disk)).unwrap();
    file.read_exact_at(&mut bytes, *at).unwrap();
    bytes
}

#[test]
fn a_group_is_made_shown_and_changed() {
    let images = group(2);
    let run = on(&images, "lvcreate", &["-n", "data", "-L", "4.5M", "--addtag", "t", "vg"]).ok();
    let said = "  Rounding up size to full physical extent 5.00 MiB\n";
    assert_eq!(run.out, format!("{said}  Logical volume \"data\" created.\n"));
    on(&images, "lvcreate", &["-n", "wide", "-l", "6", "-i", "2", "-I", "16", "vg"]).ok();
    on(&images, "lvcreate", &["-s", "-n", "snap", "-l", "60%ORIGIN", "-c", "8", "vg/data"]).ok();
    on(&images, "lvcreate", &["-l", "50%FREE", "-p", "r", "vg", "d1"]).ok();
    assert_eq!(
        values(&images, "lvs", "lv_name,lv_attr,lv_size,origin,segtype,lv_tags", &[]),
        [
            "data owi---s--- 5.00m  linear t",
            "lvol0 -ri------- 32.00m  linear ",
            "snap swi---s--- 3.00m data linear ",
            "wide -wi------- 6.00m  striped ",
        ]
    );
    let run = on(&images, "lvextend", &["-L", "+1M", "vg/wide"]).ok();
    assert!(run.out.contains("up to stripe boundary size 2.00 MiB (2 extents)"), "{run:?}");
    assert!(run.out.contains("changed from 6.00 MiB (6 extents) to 8.00 MiB (8 extents)"));
    // More than can differ is refused.
    let run = on(&images, "lvextend", &["-l", "7", "vg/snap"]).ok();
    assert!(run.out.contains("to 6.00 MiB (6 extents)"), "{run:?}");
    on(&images, "lvextend", &["-l", "7", "vg/snap"]).fails(5, &["room for all of its origin"]);
    let table = on(&images, "vgs", &["-o", "name,pv_count,lv_count,snap_count,vg_seqno"]).ok();
    assert_eq!(table.out, "  VG #PV #LV #SN Seq\n  vg   2   4   1   7\n");
    let run = on(&images, "lvremove", &["-y", "vg/data", "vg/lvol0"]).ok();
    assert_eq!(run.out.matches("successfully removed").count(), 3, "{run:?}");
    assert_eq!(values(&images, "lvs", "lv_name", &[]), ["wide"]);
    // One archive for each change but the first, and the newest text.
    let archives = fs::read_dir(images.path("state/ashlar/lvm/archive")).unwrap().count();
    assert_eq!(archives, 7);
    let backup = fs::read_to_string(images.path("state/ashlar/lvm/backup/vg")).unwrap();
    assert!(backup.contains("Created *after* executing 'ashlar lvm lvremove"), "{backup}");
    assert!(backup.contains("seqno = 8"), "{backup}");
}

#[test]
fn what_is_refused_changes_nothing() {
    let images = group(2);
    for args in
        [&["-n", "data", "-L", "4M", "vg"][..], &["-s", "-n", "snap", "-L", "1M", "vg/data"]]
    {
        on(&images, "lvcreate", args).ok();
    }
    let state = images.path("state/ashlar/lvm/archive");
    let (before, archives) = (images.bytes(), fs::read_dir(&state).unwrap().count());
    let cases: &[(i32, &str, &[&str], &str)] = &[
        (5, "lvcreate", &["-L", "4M", "nothing"], "\"nothing\" not found"),
        (5, "lvcreate", &["-n", "data", "-L", "4M", "vg"], "already exists"),
        (5, "lvcreate", &["-L", "1G", "vg"], "extents are needed"),
        (5, "lvcreate", &["-L", "0", "vg"], "at least one extent"),
        (5, "lvcreate", &["-L", "16000p", "vg"], "too large"),
        (5, "lvcreate", &["--name=-x", "-L", "4M", "vg"], "not a name"),
        (5, "lvcreate", &["-n", "snapshot7", "-L", "4M", "vg"], "LVM gives"),
        (5, "lvcreate", &["-L", "4M", "-i", "3", "vg"], "3 stripes"),
        (5, "lvcreate", &["-L", "4M", "-i", "2", "-I", "3", "vg"], "stripe size"),
        (5, "lvcreate", &["-L", "4M", "vg", "d7"], "\"d7\" not found"),
        (5, "lvcreate", &["-s", "-L", "4M", "-c", "3", "vg/data"], "chunk size"),
        (5, "lvcreate", &["-s", "-L", "4M", "vg/snap"], "snapshots of snapshots"),
        (5, "lvcreate", &["-s", "-L", "4M", "vg/none"], "no logical volume \"none\""),
        (3, "lvcreate", &["-s", "-L", "4M", "vg"], "origin"),
        (5, "lvextend", &["-L", "4M", "vg/data"], "not larger"),
        (5, "lvextend", &["-L", "+4M", "vg/data"], "origin keeps its size"),
        (5, "lvextend", &["-L", "+4M", "vg/none"], "\"vg/none\""),
        (3, "lvextend", &["-L", "+4M", "vg"], "names no volume"),
        (5, "lvremove", &["-y", "vg/none"], "\"none\""),
        (5, "lvremove", &["vg/data"], "vg/snap"),
        (5, "lvconvert", &["--merge", "vg/data"], "not a snapshot"),
        (5, "pvremove", &["d0"], "of volume group \"vg\" without -ff"),
        (5, "pvcreate", &["d0"], "of volume group \"vg\" without -ff"),
        (5, "pvcreate", &["nothing"], "No device found"),
        (5, "vgcreate", &["other", "d0"], "already in volume group 'vg'"),
        (5, "vgcreate", &["vg", "d0"], "already exists"),
        (3, "vgcreate", &["b/d", "d0"], "not a name"),
    ];
    for (code, verb, args, part) in cases {
        on(&images, verb, args).fails(*code, &[part]);
        assert!(images.bytes() == before, "{verb} {args:?} changed a disk");
    }
    for nonsense in ["4MB", "", "-4M", "4,5M", "1e3"] {
        let size = format!("--size={nonsense}");
        assert_eq!(on(&images, "lvcreate", &[&size, "vg"]).code, Some(3), "{nonsense}");
    }
    lvm(&images, &["lvs", "--control", "none"]).fails(5, &["--devices"]);
    assert_eq!(fs::read_dir(&state).unwrap().count(), archives, "nothing was archived");
    assert!(images.bytes() == before);
}

#[test]
fn without_a_place_for_archives_nothing_is_changed() {
    let images = group(1);
    let before = images.bytes();
    let mut create = command(&images, &["lvcreate", "--devices", "d0", "-L", "1M", "vg"]);
    let state = images.path("d0");
    let output = create.env("XDG_STATE_HOME", &state).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.contains("cannot archive") && err.contains("-A n"), "{err}");
    assert_eq!(output.status.code(), Some(5));
    assert!(images.bytes() == before);
    let mut create =
        command(&images, &["lvcreate", "--devices", "d0", "-A", "n", "-L", "1M", "vg"]);
    assert!(create.env("XDG_STATE_HOME", &state).output().unwrap().status.success());
}

#[test]
fn a_read_only_disk_is_shown_and_not_changed() {
    let images = group(1);
    fs::set_permissions(images.path("d0"), Permissions::from_mode(0o444)).unwrap();
    assert_eq!(values(&images, "vgs", "vg_name", &[]), ["vg"]);
    if OpenOptions::new().write(true).open(images.path("d0")).is_ok() {
        eprintln!("skipped: this user may write to files that are read-only");
        return;
    }
    on(&images, "lvcreate", &["-L", "1M", "vg"]).fails(5, &["d0"]);
}

#[test]
fn a_group_with_a_missing_or_doubled_disk_is_shown_and_not_changed() {
    let mut images = group(2);
    on(&images, "lvcreate", &["-n", "data", "-L", "50M", "vg"]).ok();
    let all = images.names.clone();
    images.names.truncate(1);
    let before = images.bytes();
    let run = on(&images, "lvs", &["-o", "lv_attr,devices", "--noheadings"]).ok();
    assert!(run.out.contains("-wi-----p-") && run.out.contains("[unknown]"), "{run:?}");
    assert!(run.err.contains("is missing PV"), "{run:?}");
    assert_eq!(values(&images, "vgs", "vg_attr", &[]), ["wz-pn-"]);
    on(&images, "lvcreate", &["-L", "1M", "vg"]).fails(5, &["are missing"]);
    on(&images, "lvremove", &["-y", "vg/data"]).fails(5, &["are missing"]);
    assert!(images.bytes() == before);
    images.names = all;
    fs::copy(images.path("d0"), images.path("copy")).unwrap();
    images.names.push("copy".to_owned());
    let before = images.bytes();
    let run = on(&images, "lvs", &["-o", "lv_attr", "--noheadings"]).ok();
    assert_eq!(run.out, "  -wi-------\n");
    assert!(run.err.contains("copy has the identity of another"), "{run:?}");
    on(&images, "lvcreate", &["-L", "1M", "vg"]).fails(5, &["copy is a copy"]);
    assert!(images.bytes() == before);
}

#[test]
fn only_what_was_free_is_zeroed() {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "a", "-L", "2M", "vg"]).ok();
    let a = place(&images, "vg/a");
    write(&images, &(a.0.clone(), MIB), &[b'x'; 30 << 20]);
    let before = read(&images, &(a.0.clone(), MIB), 30 << 20);
    on(&images, "lvcreate", &["-n", "b", "-L", "2M", "vg"]).ok();
    on(&images, "lvcreate", &["-n", "c", "-L", "2M", "-Z", "n", "vg"]).ok();
    on(&images, "lvcreate", &["-s", "-n", "s", "-L", "2M", "-c", "64", "-Zn", "vg/a"]).ok();
    let mut wanted = before;
    for (volume, zeroed) in [("vg/b", 4096), ("vg/s", 65536)] {
        let (_, at) = place(&images, volume);
        wanted[(at - MIB) as usize..][..zeroed].fill(0);
    }
    assert!(read(&images, &(a.0, MIB), 30 << 20) == wanted);
}

#[test]
fn what_is_on_a_disk_is_not_overwritten_unless_this_is_asked_for() {
    let images = Images::array(2, 40 * MIB, &["--level=1"]);
    let before = images.bytes();
    lvm(&images, &["pvcreate", "d0"]).fails(5, &["d0"]);
    lvm(&images, &["vgcreate", "vg", "d0", "d1"]).fails(5, &["d0"]);
    assert!(images.bytes() == before);
    // A file system's magic number.
    let other = Images::new(1, 40 * MIB);
    write(&other, &("d0".to_owned(), 0), b"XFSB");
    let before = other.bytes();
    lvm(&other, &["pvcreate", "d0"]).fails(5, &["xfs", "--force"]);
    lvm(&other, &["vgcreate", "vg", "d0"]).fails(5, &["xfs"]);
    assert!(other.bytes() == before);
    lvm(&other, &["pvcreate", "--force", "--metadatacopies", "2", "d0"]).ok();
    assert_eq!(values(&other, "pvs", "pv_name,vg_name,pv_mda_count", &[]), ["d0  2"]);
    lvm(&other, &["pvremove", "d0"]).ok();
    assert!(rows(&other, "pvs", &[]).is_empty());
}

#[test]
fn physical_volumes_lie_on_arrays_and_partitions_too() {
    let images = Images::array(2, 40 * MIB, &["--level=1", "--assume-clean"]);
    on(&images, "vgcreate", &["vg", "/dev/md0"]).ok();
    on(&images, "lvcreate", &["-n", "data", "-L", "4M", "vg"]).ok();
    assert_eq!(values(&images, "pvs", "pv_name,vg_name", &[]), ["/dev/md0 vg"]);
    let examined = images.run(&["md", "examine"], &["d0"]).ok();
    assert!(examined.out.contains("State : clean"), "{examined:?}");
    // A partition table with one partition from 1 MiB to 33 MiB.
    let images = Images::new(1, 40 * MIB);
    let mut table = [0; 512];
    table[446..462].copy_from_slice(&[0, 0, 2, 0, 0x8e, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0]);
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    write(&images, &("d0".to_owned(), 0), &table);
    lvm(&images, &["pvcreate", "d0"]).fails(5, &["d0"]);
    on(&images, "vgcreate", &["vg", "d0p1"]).ok();
    assert_eq!(values(&images, "pvs", "pv_name,vg_name,dev_size", &[]), ["d0p1 vg 32.00m"]);
}

#[test]
fn a_group_that_is_served_is_shown_and_not_changed() {
    let images = group(1);
    on(&images, "lvcreate", &["-n", "data", "-L", "4M", "vg"]).ok();
    let daemon = images.serve(&["--nbd", "unix:nbd"]);
    assert_eq!(values(&images, "lvs", "lv_name", &[]), ["data"]);
    let run = on(&images, "lvcreate", &["-L", "1M", "vg"]).fails(5, &["d0", "ashlar stop"]);
    assert!(run.out.is_empty(), "{run:?}");
    daemon.end();
    on(&images, "lvcreate", &["-L", "1M", "vg"]).ok();
}

/// Chunks of 4 KiB that the snapshot `snap` of [`with_snapshot`] has copied.
const COPIES: u64 = 250;

/// A group with the origin `data`, all `o`, and its snapshot `snap`, whose first [`COPIES`] chunks are `s`.
fn with_snapshot() -> Images {
    let images = group(2);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg", "d0"]).ok();
    on(&images, "lvcreate", &["-s", "-n", "snap", "-L", "8M", "-c", "4", "vg/data", "d1"]).ok();
    write(&images, &place(&images, "vg/data"), &[b'o'; 8 << 20]);
    let mut store = vec![0; 4096 * (COPIES as usize + 2)];
    let header: [u32; 4] = [0x7041_6e53, 1, 1, 8];
    for (place, word) in store.chunks_exact_mut(4).zip(header) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    // Every second chunk, so that runs are short.
    for (entry, chunk) in store[4096..8192].chunks_exact_mut(16).zip(0..COPIES) {
        entry[..8].copy_from_slice(&(chunk * 2).to_le_bytes());
        entry[8..].copy_from_slice(&(chunk + 2).to_le_bytes());
    }
    store[8192..].fill(b's');
    write(&images, &place(&images, "vg/snap"), &store);
    images
}

fn assert_is_merged(images: &Images) {
    assert_eq!(values(images, "lvs", "lv_name,lv_attr", &["-a"]), ["data -wi-------"]);
    let found = read(images, &place(images, "vg/data"), 8 << 20);
    for (chunk, bytes) in (0..).zip(found.chunks(4096)) {
        let merged = chunk % 2 == 0 && chunk / 2 < COPIES;
        let wanted = if merged { b's' } else { b'o' };
        assert!(bytes.iter().all(|byte| *byte == wanted), "chunk {chunk}");
    }
}

#[test]
fn a_snapshot_is_merged_into_its_origin() {
    let images = with_snapshot();
    let run = on(&images, "lvconvert", &["--merge", "vg/snap"]).ok();
    assert!(run.out.contains("vg/data has finished"), "{run:?}");
    assert_is_merged(&images);
}

#[test]
fn a_marked_snapshot_is_merged_later() {
    let images = with_snapshot();
    let run = on(&images, "lvconvert", &["--merge", "-b", "vg/snap"]).ok();
    assert!(run.out.contains("will occur on next activation of vg/data"), "{run:?}");
    assert_eq!(values(&images, "lvs", "lv_name,lv_attr", &[]), ["data Owi---s---"]);
    let before = images.bytes();
    on(&images, "lvremove", &["-y", "vg/data"]).fails(5, &["being merged"]);
    on(&images, "lvs", &[]).ok();
    assert!(images.bytes() == before, "a look does not merge");
    let run = on(&images, "lvconvert", &["--merge", "vg/snap"]).ok();
    assert!(run.out.contains("continues where it was"), "{run:?}");
    assert_is_merged(&images);
}

#[test]
fn an_interrupted_merge_goes_on() {
    for signal in ["INT", "KILL"] {
        let images = with_snapshot();
        let devices = images.names.join(",");
        let mut child =
            command(&images, &["lvconvert", "--devices", &devices, "--merge", "vg/snap"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("started"), "{line}");
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
        let status = child.wait().unwrap();
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        if status.success() {
            eprintln!("the merge was faster than SIG{signal}");
            assert_is_merged(&images);
            continue;
        }
        if signal == "INT" {
            assert!(status.code() == Some(5) && err.contains("was interrupted"), "{status} {err}");
        }
        let left = values(&images, "lvs", "lv_name", &["-a"]);
        if left.len() > 1 {
            let run = on(&images, "lvconvert", &["--merge", "vg/snap"]).ok();
            assert!(run.out.contains("continues where it was"), "{run:?}");
        }
        assert_is_merged(&images);
    }
}

/// A daemon that serves a group with a snapshot to be merged; archives go to `state`.
fn serving_a_merge(images: &Images, state: &str) -> Daemon {
    on(images, "lvconvert", &["--merge", "-b", "vg/snap"]).ok();
    serving(images, state)
}

/// A daemon that serves all images; archives go to `state`.
pub(super) fn serving(images: &Images, state: &str) -> Daemon {
    let mut command = program();
    command.args(["serve", "--control", "control"]).args(images.refs());
    command.current_dir(images.dir.path()).env("XDG_STATE_HOME", images.path(state));
    Daemon::of(command, images.dir.path())
}

#[test]
fn a_merge_that_ends_while_it_is_served_is_ended_in_the_metadata() {
    let images = with_snapshot();
    let daemon = serving_a_merge(&images, "state");
    daemon.end_once("the merge of vg/snap into vg/data has ended: the snapshot is removed");
    assert_is_merged(&images);
    let backup = fs::read_to_string(images.path("state/ashlar/lvm/backup/vg")).unwrap();
    assert!(backup.contains("ashlar serve") && !backup.contains("snap"), "{backup}");
}

#[test]
fn a_crash_between_a_merge_and_its_commit_undoes_no_later_write() {
    let images = with_snapshot();
    fs::write(images.path("file"), "").unwrap();
    let daemon = serving_a_merge(&images, "file");
    let (status, log) = daemon.signal_once("the snapshot could not be removed", "KILL");
    assert_eq!(status.code(), None, "{log}");
    assert_eq!(values(&images, "lvs", "lv_attr", &["vg/data"]), ["Owi---s---"], "not committed");
    // What a client wrote to a merged chunk before the crash.
    let (disk, at) = place(&images, "vg/data");
    write(&images, &(disk.clone(), at), &[b'n'; 4096]);

    serving(&images, "state").end_once("has ended: the snapshot is removed");
    assert_eq!(read(&images, &(disk.clone(), at), 4096), [b'n'; 4096]);
    write(&images, &(disk, at), &[b's'; 4096]);
    assert_is_merged(&images);
}

#[test]
fn a_merge_that_cannot_be_ended_while_it_is_served_tells_the_command_that_does() {
    let images = with_snapshot();
    fs::write(images.path("file"), "").unwrap();
    let daemon = serving_a_merge(&images, "file");
    let log = daemon.end_once("has ended, but the snapshot could not be removed");
    assert!(log.contains("ashlar lvm lvconvert --devices d0,d1 --merge vg/snap"), "{log}");
    on(&images, "lvconvert", &["--merge", "vg/snap"]).ok();
    assert_is_merged(&images);
}

#[test]
fn a_group_that_cannot_be_leaves_its_disks_alone() {
    let images = Images::new(2, 40 * MIB);
    let before = images.bytes();
    for (args, part) in [
        (&["-s", "1G", "vg", "d0"][..], "no room for an extent"),
        (&["-s", "3k", "vg", "d0"], "power of two"),
        (&["-p", "1", "vg", "d0", "d1"], "more than 1"),
        (&["vg", "d0", "d0"], "named twice"),
        (&["--metadatacopies", "0", "vg", "d0"], "metadata area"),
    ] {
        lvm(&images, &[&["vgcreate"], args].concat()).fails(5, &[part]);
        assert!(images.bytes() == before, "{args:?}");
    }
}

#[test]
fn a_damaged_snapshot_beside_it_keeps_one_from_being_merged() {
    let images = with_snapshot();
    on(&images, "lvcreate", &["-s", "-n", "other", "-L", "2M", "vg/data"]).ok();
    let (disk, at) = place(&images, "vg/other");
    // A magic number, and an impossible chunk size.
    write(&images, &(disk, at), &[0x53, 0x6e, 0x41, 0x70, 1, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0]);
    let before = images.bytes();
    on(&images, "lvconvert", &["--merge", "vg/snap"]).fails(5, &["other"]);
    assert!(images.bytes() == before);
}

#[test]
fn an_invalid_snapshot_is_not_merged() {
    let images = with_snapshot();
    let (disk, at) = place(&images, "vg/snap");
    write(&images, &(disk, at + 4), &[0]);
    let before = images.bytes();
    on(&images, "lvconvert", &["--merge", "vg/snap"]).fails(5, &["invalid"]);
    assert!(images.bytes() == before);
}

#[test]
fn a_group_gets_and_loses_physical_volumes_and_goes() {
    let images = Images::new(4, 40 * MIB);
    lvm(&images, &["vgcreate", "-s", "1M", "vg", "d0", "d1"]).ok();
    let run = lvm(&images, &["vgextend", "--devices", "d0,d1", "vg", "d2"]).ok();
    assert_eq!(
        run.out,
        "  Physical volume \"d2\" successfully created.\n  Volume group \"vg\" successfully extended\n"
    );
    on(&images, "lvcreate", &["-n", "last", "-L", "4M", "vg", "d2"]).ok();
    let before = images.bytes();
    on(&images, "vgreduce", &["vg", "d2"]).fails(5, &["\"last\" has extents there"]);
    on(&images, "vgreduce", &["vg", "d3"]).fails(5, &["\"d3\" not found"]);
    on(&images, "vgreduce", &["vg", "d1", "d1"]).fails(5, &["named twice"]);
    on(&images, "vgextend", &["vg", "d1"]).fails(5, &["already in volume group 'vg'"]);
    on(&images, "vgextend", &["none", "d3"]).fails(5, &["\"none\" not found"]);
    on(&images, "vgremove", &["vg"]).fails(5, &["containing 1 logical volumes?", "-y"]);
    assert!(images.bytes() == before, "nothing was changed");

    let at = place(&images, "vg/last");
    write(&images, &at, &[7; 4096]);
    let run = on(&images, "vgreduce", &["vg", "d0"]).ok();
    assert_eq!(run.out, "  Removed \"d0\" from volume group \"vg\"\n");
    assert_eq!(values(&images, "pvs", "pv_name,vg_name", &[]), ["d0 ", "d1 vg", "d2 vg"]);
    assert_eq!(values(&images, "lvs", "devices", &[]), ["d2(0)"], "it is where it was");
    assert_eq!(read(&images, &at, 4096), [7; 4096]);
    on(&images, "vgreduce", &["-a", "vg"]).ok();
    assert_eq!(values(&images, "pvs", "pv_name,vg_name", &[]), ["d0 ", "d1 ", "d2 vg"]);
    on(&images, "vgreduce", &["vg", "d2"]).fails(5, &["the last physical volume"]);
    // A free physical volume joins again.
    on(&images, "vgextend", &["vg", "d0"]).ok();
    let run = on(&images, "vgremove", &["-y", "vg"]).ok();
    assert_eq!(run.out, "  Volume group \"vg\" successfully removed\n");
    assert_eq!(values(&images, "pvs", "pv_name,vg_name", &[]), ["d0 ", "d1 ", "d2 "]);
    lvm(&images, &["vgcreate", "vg", "d0", "d1", "d2", "d3"]).ok();
}

/// The files of copies that `vgcfgrestore -l` lists, with what each is of.
fn copies(images: &Images) -> Vec<(String, String)> {
    let run = lvm(images, &["vgcfgrestore", "-l", "vg"]).ok();
    let field = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name).map(str::trim));
        line.unwrap().to_owned()
    };
    let listed = run.out.split("\n\n").filter(|text| text.contains("File:"));
    listed.map(|text| (field(text, "File:"), field(text, "Description:"))).collect()
}

#[test]
fn a_group_is_kept_and_restored() {
    let images = group(2);
    on(&images, "lvcreate", &["-n", "data", "-L", "8M", "vg"]).ok();
    let at = place(&images, "vg/data");
    write(&images, &at, &[7; 4096]);
    on(&images, "lvremove", &["-y", "vg/data"]).ok();
    on(&images, "vgreduce", &["vg", "d1"]).ok();
    let text = |name: &str| images.path(name).to_str().unwrap().to_owned();
    on(&images, "vgcfgbackup", &["-f", &text("reduced"), "vg"]).ok();
    let all = copies(&images);
    assert!(all.is_sorted_by_key(|(file, _)| file.contains("/backup/")), "{all:?}");
    let before =
        all.iter().find(|(_, what)| what.contains("*before*") && what.contains("lvremove"));
    let (before, _) = before.unwrap();

    // The copy has a physical volume that is free now, and a volume that is gone.
    on(&images, "vgcfgrestore", &["-f", "/dev/null", "vg"]).fails(5, &["cannot use the file"]);
    on(&images, "vgcfgrestore", &["-f", before, "wg"]).fails(5, &["it is of the group \"vg\""]);
    let run = lvm(&images, &["vgcfgrestore", "--devices", "d0", "-f", before, "vg"]);
    run.fails(5, &["Couldn't find device with uuid", "pvcreate --uuid"]);
    let run = on(&images, "vgcfgrestore", &["-f", before, "vg"]).ok();
    assert_eq!(run.out, "  Restored volume group vg.\n");
    assert_eq!(values(&images, "lvs", "lv_name,lv_size", &[]), ["data 8.00m"]);
    assert_eq!(read(&images, &place(&images, "vg/data"), 4096), [7; 4096]);
    assert_eq!(values(&images, "vgs", "pv_count,vg_seqno", &[]), ["2 5"]);

    on(&images, "vgcfgbackup", &["-f", &text("%s.txt")]).ok();
    // Back to one physical volume: the other is free again.
    on(&images, "vgcfgrestore", &["-f", &text("reduced"), "vg"]).ok();
    assert_eq!(values(&images, "pvs", "pv_name,vg_name", &[]), ["d0 vg", "d1 "]);
    assert_eq!(values(&images, "lvs", "lv_name", &[]), [""; 0]);
    // A group that was removed comes back.
    on(&images, "vgremove", &["-f", "vg"]).ok();
    on(&images, "vgcfgrestore", &["-f", &text("vg.txt"), "vg"]).ok();
    assert_eq!(read(&images, &place(&images, "vg/data"), 4096), [7; 4096]);
    on(&images, "vgcfgrestore", &["vg"]).ok();
    // One that has another name now: its text gets a number above the present one.
    for name in ["wg", "xg", "yg"] {
        let now = &values(&images, "vgs", "vg_name", &[])[0];
        on(&images, "vgrename", &[now, name]).ok();
    }
    let number = || values(&images, "vgs", "vg_seqno", &[])[0].parse::<u32>().unwrap();
    let before = number();
    on(&images, "vgcfgrestore", &["-f", &text("vg.txt"), "vg"]).ok();
    assert_eq!(number(), before + 1);
    let run = on(&images, "vgcfgbackup", &[]).ok();
    assert_eq!(run.out, "  Volume group \"vg\" successfully backed up.\n");
}
