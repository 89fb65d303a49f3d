//! Changes of running arrays: members, size, bitmap, checks; with a real daemon on image files.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::support::{Daemon, Images, MIB, Run, program};

/// Images, of which the first `used` form an array.
fn array(count: usize, used: usize, options: &[&str]) -> Images {
    let images = Images::new(count, 32 * MIB);
    let raid = format!("--raid-devices={used}");
    let create = [&["md", "create", "--homehost=any", &raid], options].concat();
    images.run(&create, &images.refs()[..used]).ok();
    images
}

/// The offset and length of a member's data.
fn data(images: &Images, name: &str) -> (u64, u64) {
    let json = images.run(&["md", "examine", "--json"], &[name]).ok().out;
    let json: Value = serde_json::from_str(&json).unwrap();
    let field = |key: &str| json[0][key].as_u64().unwrap();
    (field("data_offset") * 512, field("used_dev_size_kib") * 1024)
}

/// Fills the data of members with a pattern, so that they are the same.
fn fill(images: &Images, names: &[&str]) {
    for name in names {
        let (at, len) = data(images, name);
        let bytes: Vec<u8> = (0..len).map(|n| (n / 512) as u8 ^ (n % 251) as u8).collect();
        let file = OpenOptions::new().write(true).open(images.path(name)).unwrap();
        file.write_all_at(&bytes, at).unwrap();
    }
}

fn contents(images: &Images, name: &str) -> Vec<u8> {
    let (at, len) = data(images, name);
    let mut bytes = vec![0; len as usize];
    File::open(images.path(name)).unwrap().read_exact_at(&mut bytes, at).unwrap();
    bytes
}

fn serve(images: &Images, args: &[&str]) -> Daemon {
    Daemon::start(images.dir.path(), args)
}

/// Waits until no background work is running.
fn settle(daemon: &Daemon) {
    let run = daemon.client(&["md", "wait", "md0"]);
    assert!(matches!(run.code, Some(0 | 1)) && run.err.is_empty(), "{run:?}");
}

fn attribute(daemon: &Daemon, path: &str) -> String {
    daemon.client(&["get", &format!("sys/block/md0/{path}")]).ok().out.trim_end().to_owned()
}

/// The last lines of the details: number, slot, state and path of each member.
fn members(daemon: &Daemon) -> Vec<String> {
    let detail = daemon.client(&["md", "detail", "md0"]).ok().out;
    let (_, rows) = detail.split_once("RaidDevice State\n").unwrap();
    let row = |line: &str| {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        // Only the last component of a path.
        if let Some(last) = words.last_mut() {
            *last = last.rsplit('/').next().unwrap();
        }
        format!("{} {} {}", words[0], words[3], words[4..].join(" "))
    };
    rows.lines().filter(|line| !line.is_empty()).map(row).collect()
}

#[test]
fn a_failed_member_is_removed_and_another_disk_takes_its_place() {
    let images = array(3, 2, &["--level=1", "--assume-clean"]);
    fill(&images, &["d0", "d1"]);
    let daemon = serve(&images, &["d0", "d1"]);
    let out = |args: &[&str]| daemon.client(&[&["md"], args].concat()).ok().out;
    assert_eq!(out(&["fail", "md0", "d1"]), "set d1 faulty in /dev/md0\n");
    assert_eq!(members(&daemon), ["0 0 active sync d0", "- 1 removed", "1 - faulty d1"]);
    let mdstat = daemon.client(&["get", "proc/mdstat"]).ok().out;
    assert!(mdstat.contains("\nmd0 : active raid1 d1[1](F) d0[0]\n"), "{mdstat}");
    assert!(mdstat.contains(" [2/1] [U_]\n"), "{mdstat}");
    assert_eq!(attribute(&daemon, "md/dev-d1/state"), "faulty");
    assert_eq!(out(&["remove", "md0", "failed"]), "hot removed d1 from /dev/md0\n");
    assert_eq!(out(&["remove", "md0", "failed"]), "");
    daemon.client(&["get", "sys/block/md0/md/dev-d1/state"]).fails(1, &["no such thing"]);
    let path = images.path("d2").canonicalize().unwrap();
    let path = path.display();
    let naming = format!("{path} is a disk of the daemon now: name it when it is started again.");
    assert_eq!(out(&["add", "md0", "d2"]), format!("added {path}\n{naming}\n"));
    settle(&daemon);
    assert_eq!(members(&daemon), ["0 0 active sync d0", "2 1 active sync d2"]);
    assert_eq!(attribute(&daemon, "md/rd1/state"), "in_sync");
    assert_eq!(attribute(&daemon, "md/last_sync_action"), "recover");
    assert_eq!(attribute(&daemon, "slaves/d2/size"), "65536");
    let holder = daemon.client(&["get", "sys/block/d2/holders/md0/md/degraded"]).ok().out;
    assert_eq!(holder, "0\n");
    daemon.end();
    assert!(contents(&images, "d0") == contents(&images, "d2"));
    let offline = images.run(&["md", "detail"], &["d0", "d2"]).ok().out;
    assert!(offline.contains("State : clean \n"), "{offline}");
}

#[test]
fn what_would_do_harm_is_refused_with_the_reason() {
    let images = array(5, 2, &["--level=1"]);
    let other = ["md", "create", "--level=1", "-n1", "--force", "--name=other", "--homehost=any"];
    images.run(&other, &["d3"]).ok();
    let ext4 = OpenOptions::new().write(true).open(images.path("d2")).unwrap();
    ext4.write_all_at(&[0x53, 0xef], 0x438).unwrap();
    let before = images.bytes();
    let daemon = serve(&images, &["d0", "d1", "d4"]);
    let md = |args: &[&str]| daemon.client(&[&["md"], args].concat());
    md(&["add", "md0", "d2"]).fails(1, &["d2 has ext2 file system at 0x438", "--force"]);
    md(&["add", "md0", "d3"]).fails(1, &["d3 has md member of other (raid1", "--force"]);
    md(&["add", "md0", "d4"]).fails(1, &["d4 is in use: it is served as the volume d4"]);
    md(&["add", "md0", "d1"]).fails(1, &["d1 is in use: it is a member of /dev/md0"]);
    md(&["add", "md0", "d9"]).fails(1, &["cannot open", "d9"]);
    md(&["re-add", "md0", "d2"]).fails(1, &["is not possible"]);
    md(&["remove", "md0", "d1"]).fails(1, &["hot remove failed for d1: Device or resource busy"]);
    md(&["remove", "md0", "d2"]).fails(1, &["d2 does not appear to be a component of /dev/md0"]);
    md(&["fail", "md1", "d1"]).fails(1, &["md1", "there is no such thing"]);
    md(&["action", "md0", "reshape"]).fails_usage("reshape");
    md(&["grow", "md0", "--size=8M"]).fails(1, &["--force"]);
    md(&["grow", "md0", "--size=1G"]).fails(1, &["has room for"]);
    md(&["grow", "md0", "--bitmap=none"]).fails(1, &["no bitmap found on md0"]);
    for (option, value) in [("--level", "10"), ("--layout", "f2"), ("--chunk", "64")] {
        let why = format!("cannot grow: md0: {option}: this needs a reshape");
        md(&["grow", "md0", option, value, "--size=max"]).fails(1, &[&why, "mdadm"]);
    }
    md(&["grow", "md0"]).fails_usage("--size");
    assert!(images.bytes() == before, "something was written");
    md(&["fail", "md0", "d1"]).ok();
    md(&["fail", "md0", "d0"]).fails(1, &["set device faulty failed for d0", "would lack data"]);
    md(&["add", "md0", "d1"]).fails(1, &["d1 is in use", "or remove it first"]);
    md(&["add", "md0", "d2", "--force"]).ok();
    settle(&daemon);
    assert_eq!(attribute(&daemon, "md/degraded"), "0");
    daemon.end();
    let daemon = serve(&images, &["d0", "d2", "--read-only"]);
    daemon.client(&["md", "fail", "md0", "d0"]).fails(1, &["read-only"]);
    daemon.client(&["md", "action", "md0", "check"]).fails(1, &["the array is read-only"]);
    daemon.end();
}

impl Run {
    /// clap refused it.
    #[track_caller]
    fn fails_usage(self, part: &str) {
        assert_eq!(self.code, Some(2), "{self:?}");
        assert!(self.err.contains(part), "{self:?}");
    }
}

#[test]
fn a_disk_of_the_same_name_as_one_that_was_removed_is_another_disk() {
    let images = array(2, 2, &["--level=1", "--assume-clean"]);
    fill(&images, &["d0", "d1"]);
    let daemon = serve(&images, &["d0", "d1"]);
    let md = |args: &[&str]| daemon.client(&[&["md"], args].concat());
    md(&["fail", "md0", "d1"]).ok();
    fs::remove_file(images.path("d1")).unwrap();
    File::create(images.path("d1")).unwrap().set_len(32 * MIB).unwrap();
    // The failed member's device is gone, whatever is at its path now.
    assert_eq!(md(&["remove", "md0", "detached"]).ok().out, "hot removed d1 from /dev/md0\n");
    md(&["add", "md0", "d1"]).ok();
    settle(&daemon);
    assert_eq!(attribute(&daemon, "md/degraded"), "0");
    daemon.end();
    assert!(contents(&images, "d0") == contents(&images, "d1"));
}

/// The refused file had the path's identity from then on: the next add by that path took the old file, which has no name.
#[test]
fn a_disk_that_was_refused_is_not_taken_for_another_one_of_its_path() {
    let images = array(2, 2, &["--level=1", "--assume-clean"]);
    let file = OpenOptions::new().write(true).open(images.path("d1")).unwrap();
    file.write_all_at(b"damaged", 4096 + 100).unwrap();
    // As clients name it: the same path in another spelling would be another one.
    let path = images.path("d1").display().to_string();
    let daemon = serve(&images, &["--run", "d0", &path]);
    let md = |args: &[&str]| daemon.client(&[&["md"], args].concat());
    fs::remove_file(images.path("d1")).unwrap();
    let file = File::create(images.path("d1")).unwrap();
    file.set_len(MIB).unwrap();
    md(&["add", "md0", "d1"]).fails(1, &["d1 not large enough to join array"]);
    file.set_len(32 * MIB).unwrap();
    assert_eq!(md(&["add", "md0", "d1"]).ok().out, format!("added {path}\n"));
    settle(&daemon);
    assert_eq!(attribute(&daemon, "md/degraded"), "0");
    daemon.end();
    assert!(contents(&images, "d0") == contents(&images, "d1"));
}

#[test]
fn a_check_finds_what_differs_and_a_repair_makes_it_the_same() {
    let images = array(2, 2, &["--level=1", "--assume-clean"]);
    fill(&images, &["d0", "d1"]);
    let file = OpenOptions::new().write(true).open(images.path("d1")).unwrap();
    file.write_all_at(b"different", data(&images, "d1").0 + 5 * MIB).unwrap();
    let daemon = serve(&images, &["d0", "d1"]);
    let action = |args: &[&str]| daemon.client(&[&["md", "action", "md0"], args].concat()).ok().out;
    let last = |text: String| text.lines().last().unwrap().to_owned();
    let check = last(action(&["check"]));
    assert!(
        check.starts_with("md0: check ended, 128 sectors differ; `ashlar md action md0 repair`")
    );
    assert_eq!(attribute(&daemon, "md/mismatch_cnt"), "128");
    assert_ne!(attribute(&daemon, "md/barrier_raises"), "0");
    let repair: Value = serde_json::from_str(&last(action(&["repair", "--json"]))).unwrap();
    assert_eq!((&repair["ended"], &repair["mismatch_count"]), (&"repair".into(), &128.into()));
    let check = last(action(&["check"]));
    assert_eq!(check, "md0: check ended, all copies are the same; clean");
    assert_eq!(attribute(&daemon, "md/last_sync_action"), "check");
    daemon.end();
    assert!(contents(&images, "d0") == contents(&images, "d1"));
}

/// What becomes of members and data then is tested on the simulator: crates/daemon/src/simulation/scenarios.
#[test]
fn a_re_add_a_replacement_and_another_number_of_devices_are_told() {
    let images = array(4, 2, &["--level=1", "--bitmap=internal"]);
    let daemon = serve(&images, &["d0", "d1"]);
    let md = |args: &[&str]| daemon.client(&[&["md"], args].concat());
    md(&["fail", "md0", "d1"]).ok();
    md(&["remove", "md0", "d1"]).ok();
    let run = md(&["re-add", "md0", "d1", "--write-mostly"]).ok();
    assert_eq!(run.out, "re-added d1\n");
    settle(&daemon);
    assert_eq!(md(&["wait", "md0"]).code, Some(1), "there is nothing to wait for");
    assert_eq!(members(&daemon), ["0 0 active sync d0", "1 1 active sync writemostly d1"]);
    md(&["re-add", "md0", "d1"]).fails(1, &["d1 is in use"]);

    md(&["add", "md0", "d2"]).ok();
    let marked = md(&["replace", "md0", "d1", "--with", "d2"]).ok().out;
    assert!(marked.starts_with("Marked d1 (device 1 in /dev/md0) for replacement\nMarked "));
    settle(&daemon);
    let replaced = ["0 0 active sync d0", "2 1 active sync d2", "1 - faulty writemostly d1"];
    assert_eq!(members(&daemon), replaced);

    let grow = |args: &[&str]| md(&[&["grow", "md0"], args].concat());
    let run = grow(&["--raid-devices=3", "--add", images.path("d3").to_str().unwrap()]).ok();
    assert_eq!(run.out, "md0: 3 devices\n");
    settle(&daemon);
    assert_eq!(members(&daemon)[2], "3 2 active sync d3");
    grow(&["-n2"]).fails(1, &["d3", "slot 2", "fail it first"]);
    grow(&["-n1"]).fails(2, &["single device"]);
    daemon.end();
}

#[test]
fn an_array_grows_and_gets_and_loses_a_bitmap() {
    let images = array(2, 2, &["--level=1", "--size=16M"]);
    let daemon = serve(&images, &["d0", "d1"]);
    let out = |args: &[&str]| daemon.client(&[&["md", "grow", "md0"], args].concat()).ok().out;
    assert_eq!(attribute(&daemon, "size"), "32768");
    assert_eq!(out(&["--size=max"]), "md0: 31M\n");
    assert_eq!(attribute(&daemon, "size"), "63488");
    settle(&daemon);
    daemon.client(&["set", "sys/block/md0/md/component_size", "1"]).fails(1, &["--force"]);
    assert_eq!(out(&["--size=20M", "--force"]), "md0: 20M\n");
    assert_eq!(attribute(&daemon, "md/component_size"), "20480");
    assert_eq!(out(&["--bitmap=internal", "--bitmap-chunk=1M"]), "md0: bitmap internal\n");
    assert_eq!(attribute(&daemon, "md/bitmap/chunksize"), "1048576");
    assert_eq!(attribute(&daemon, "md/bitmap_type"), "none [bitmap] llbitmap");
    let mdstat = daemon.client(&["get", "proc/mdstat"]).ok().out;
    assert!(mdstat.contains(" pages [") && mdstat.contains("KB], 1024KB chunk\n\n"), "{mdstat}");
    daemon.client(&["set", "sys/block/md0/md/bitmap/location", "none"]).ok();
    assert_eq!(attribute(&daemon, "md/bitmap/location"), "none");
    out(&["--bitmap=lockless"]);
    assert!(attribute(&daemon, "md/llbitmap/bits").starts_with("unwritten "));
    daemon.client(&["get", "sys/block/md0/md/bitmap/location"]).fails(1, &["no such thing"]);
    daemon.end();
    let offline = images.run(&["md", "detail"], &["d0", "d1"]).ok().out;
    assert!(offline.contains("     Intent Bitmap : Internal\n"), "{offline}");
}

#[test]
fn a_start_without_a_member_that_was_added_meanwhile_says_which_one_is_missing() {
    let images = array(3, 2, &["--level=1", "--assume-clean"]);
    let daemon = serve(&images, &["d0", "d1"]);
    let md = |args: &[&str]| daemon.client(&[&["md"], args].concat()).ok();
    md(&["fail", "md0", "d1"]);
    md(&["remove", "md0", "d1"]);
    md(&["add", "md0", "d2"]);
    settle(&daemon);
    daemon.end();
    // As a configuration does that was not changed.
    let said = ["d1 left out: ", "added in its place (number 2) is not among the devices"];
    let run = images.run(&["serve"], &["d0", "d1"]).fails(1, &said);
    assert!(run.err.contains("hint: name the disks with the others, too"), "{run:?}");
    let daemon = serve(&images, &["d0", "d2"]);
    assert_eq!(attribute(&daemon, "md/degraded"), "0");
    daemon.end();
}

#[test]
fn mdadms_own_spelling_is_understood() {
    let images = array(3, 2, &["--level=1"]);
    let daemon = serve(&images, &["d0", "d1"]);
    let words = ["md", "manage", "/dev/md0", "--fail", "d1", "--remove", "failed", "--add", "d2"];
    let out = daemon.client(&words).ok().out;
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..2], ["set d1 faulty in /dev/md0", "hot removed d1 from /dev/md0"]);
    assert!(lines[2].starts_with("added "), "{out}");
    settle(&daemon);
    assert_eq!(attribute(&daemon, "md/degraded"), "0");
    daemon.client(&["md", "manage", "md0", "d1"]).fails(2, &["what to do with d1?"]);
    daemon.end();
}

#[test]
fn events_are_told_as_they_happen() {
    let images = array(3, 2, &["--level=1"]);
    let daemon = serve(&images, &["d0", "d1"]);
    let once = daemon.client(&["md", "monitor", "--oneshot"]).ok().out;
    assert_eq!(once, "NewArray event detected on md device /dev/md0\n");
    let test = daemon.client(&["md", "monitor", "--oneshot", "--test", "md0"]).ok().out;
    assert_eq!(test, format!("TestMessage event detected on md device /dev/md0\n{once}"));
    daemon.client(&["md", "monitor", "-1", "md5"]).fails(1, &["md5", "there is no such thing"]);
    let mut command = program();
    command.args(["md", "monitor", "--json", "--control", "control"]);
    let child = command.current_dir(images.dir.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut child = KilledProcess(child);
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["event"], "NewArray");
    daemon.client(&["md", "fail", "md0", "d1"]).ok();
    let fail = next();
    assert_eq!((&fail["event"], &fail["array"]), (&"Fail".into(), &"/dev/md0".into()));
    assert_eq!(fail["device"], "d1");
    daemon.client(&["md", "add", "md0", "d2"]).ok();
    let active = std::iter::repeat_with(&mut next).find(|event| event["event"] == "SpareActive");
    assert!(active.unwrap()["device"].as_str().unwrap().ends_with("/d2"));
    daemon.end();
    let gone = std::iter::repeat_with(next).find(|event| event["event"] == "DeviceDisappeared");
    assert_eq!(gone.unwrap()["array"], "/dev/md0");
}

/// A process that is killed at the end of its test.
struct KilledProcess(std::process::Child);

impl Drop for KilledProcess {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn the_exit_code_of_detail_tells_how_an_array_does() {
    let images = array(4, 4, &["--level=10"]);
    let files =
        |args: &[&str], files: &[&str]| images.run(&[&["md", "detail"], args].concat(), files);
    let test = |files_given: &[&str]| files(&["--test"], files_given).code;
    assert_eq!(test(&["d0", "d1", "d2", "d3"]), Some(0));
    assert_eq!(test(&["d0", "d1", "d2"]), Some(1));
    assert_eq!(test(&["d0", "d1"]), Some(2));
    assert_eq!(test(&["nothing"]), Some(4));
    files(&[], &["d0", "d1", "d2"]).ok();
    files(&[], &["d0", "d1"]).fails(1, &["cannot tell", "not enough members"]);
    let daemon = serve(&images, &["d0", "d1", "d2", "d3"]);
    let running = |name: &str| daemon.client(&["md", "detail", "--test", name]).code;
    assert_eq!((running("md0"), running("md1")), (Some(0), Some(4)));
    daemon.client(&["md", "fail", "md0", "d1"]).ok();
    assert_eq!(running("md0"), Some(1));
    daemon.end();
    let daemon = serve(&images, &["--incremental", "d0"]);
    assert_eq!(daemon.client(&["md", "detail", "-t", "md0"]).code, Some(2));
    daemon.end();
}

#[test]
fn the_mount_follows_members_and_takes_changes() {
    if !Path::new("/dev/fuse").exists() {
        return eprintln!("skipped: no /dev/fuse");
    }
    let images = array(3, 2, &["--level=1"]);
    let mount = images.path("mnt");
    fs::create_dir(&mount).unwrap();
    let daemon = serve(&images, &["--mount", "mnt", "d0", "d1"]);
    let md = mount.join("sys/block/md0/md");
    let read = |name: &str| fs::read_to_string(md.join(name)).unwrap();
    fs::write(md.join("dev-d1/state"), "faulty\n").unwrap();
    assert_eq!(read("dev-d1/state"), "faulty\n");
    fs::write(md.join("array_state"), "readonly\n").unwrap();
    assert_eq!(read("array_state"), "readonly\n");
    for word in ["suspended", "write-pending", "active-idle", "broken", "nonsense"] {
        let refused = fs::write(md.join("array_state"), word).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(22), "{word}");
    }
    let set = |value: &str| daemon.client(&["set", "sys/block/md0/md/array_state", value]);
    let words = "clear, inactive, readonly, read-auto, clean and active are possible";
    set("broken").fails(1, &["md0 cannot be set to 'broken'", words]);
    fs::write(md.join("array_state"), "read-auto\n").unwrap();
    assert_eq!(read("array_state"), "read-auto\n");
    let mdstat = fs::read_to_string(mount.join("proc/mdstat")).unwrap();
    assert!(mdstat.contains("md0 : active (auto-read-only) raid1 "), "{mdstat}");
    let detail = daemon.client(&["md", "detail", "md0"]).ok().out;
    assert!(detail.contains("             State : clean, degraded \n"), "{detail}");
    fs::write(md.join("array_state"), "active\n").unwrap();
    assert_eq!(read("dev-d0/unacknowledged_bad_blocks"), "");
    let acknowledged = md.join("dev-d0/unacknowledged_bad_blocks");
    assert_eq!(fs::write(acknowledged, "8 8").unwrap_err().raw_os_error(), Some(13));
    daemon
        .client(&["set", "sys/block/md0/md/dev-d0/unacknowledged_bad_blocks", "8 8"])
        .fails(1, &["unacknowledged_bad_blocks", "cannot be written"]);
    // The writer gets the error when that is not possible.
    let last = fs::write(md.join("dev-d0/state"), "faulty\n").unwrap_err();
    assert_eq!(last.raw_os_error(), Some(16));
    let word = fs::write(md.join("sync_action"), "reshape").unwrap_err();
    assert_eq!(word.raw_os_error(), Some(22));
    fs::write(md.join("dev-d1/state"), "remove").unwrap();
    daemon.client(&["md", "add", "md0", "d2"]).ok();
    settle(&daemon);
    let mut names: Vec<_> = fs::read_dir(&md)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("dev-") || name.starts_with("rd"))
        .collect();
    names.sort();
    assert_eq!(names, ["dev-d0", "dev-d2", "rd0", "rd1"]);
    assert_eq!(fs::read_link(md.join("rd1")).unwrap(), Path::new("dev-d2"));
    assert_eq!(read("rd1/bad_blocks"), "");
    assert_eq!(read("mismatch_cnt"), "0\n");
    daemon.end();
}

#[test]
fn other_levels_keep_their_number_of_devices() {
    let images = array(2, 2, &["--level=10", "--assume-clean"]);
    let daemon = serve(&images, &["d0", "d1"]);
    daemon.client(&["md", "grow", "md0", "-n3"]).fails(1, &["raid10", "reshape"]);
}
