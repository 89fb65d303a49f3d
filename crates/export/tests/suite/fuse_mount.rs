//! The FUSE export under the real kernel: files, attributes, loop devices with file systems on them, an ordinary user.
//!
//! Needs Linux with FUSE; most tests need root, loop devices and common tools. A test without them prints what is
//! missing and passes, except in CI (`CI=true`), where it fails.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use ashlar_block::{BlockDevice, Flags, Op, Status};
use ashlar_export::fuse::mount::{MountError, MountOptions, mount};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

use crate::common::mounted::{
    Loop, MountedFileSystem, ServedTree, TempDir, available, can_mount, run,
};
use crate::common::ram::{Ram, RecordedBio};

const MIB: usize = 1 << 20;
/// In the copy of this program that runs as an ordinary user: the directory to use.
const USER_ENV: &str = "ASHLAR_TEST_FUSE_AS_USER";
/// In the copy of this program that mounts and dies: the directory to use.
const DEAD_ENV: &str = "ASHLAR_TEST_FUSE_DIE";

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31) ^ (i >> 9) ^ seed) as u8).collect()
}

/// A slice of `len` bytes at an address that is a multiple of 4096, as O_DIRECT requires.
fn aligned(memory: &mut [u8], len: usize) -> &mut [u8] {
    let start = memory.as_ptr().align_offset(4096);
    &mut memory[start..start + len]
}

fn errno_of<T: std::fmt::Debug>(result: io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn files_and_directories_look_as_they_should() {
    if !can_mount(&[]) {
        return;
    }
    let dir = TempDir::new("fuse-look");
    let served = ServedTree::new(&dir.sub("m"), 8 * MIB, 1).unwrap();
    let volume = std::fs::metadata(served.path("dev/md0")).unwrap();
    assert_eq!((volume.len(), volume.mode(), volume.uid()), (8 << 20, 0o100_600, 0));
    assert_eq!(volume.mtime(), 1_000_000);
    assert_eq!(std::fs::read_link(served.path("dev/link")).unwrap(), Path::new("md0"));
    let names = |path: &str| {
        let entries = std::fs::read_dir(served.path(path)).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(""), ["dev", "many", "sys"]);
    assert_eq!(names("dev"), ["link", "md0"]);
    assert_eq!(names("many").len(), 3000);
    assert!(!served.path("dev/md1").exists());
    assert_eq!(errno_of(std::fs::create_dir(served.path("dev/x"))), Some(Errno::PERM));
    assert_eq!(errno_of(File::create(served.path("dev/x"))), Some(Errno::PERM));
    assert_eq!(errno_of(std::fs::remove_file(served.path("dev/md0"))), Some(Errno::PERM));
}

#[test]
fn a_volume_holds_what_was_written_with_and_without_o_direct() {
    if !can_mount(&[]) {
        return;
    }
    let dir = TempDir::new("fuse-data");
    let served = ServedTree::new(&dir.sub("m"), 16 * MIB, 2).unwrap();
    let mut oracle = vec![0; 16 * MIB];
    let (buffered, direct) = (served.volume(OFlags::empty()), served.volume(OFlags::DIRECT));
    let mut memory = vec![0; 6 * MIB];
    for (round, (offset, len)) in
        [(0, 4 * MIB), (4096, 512), (777, 12_345), (5 * MIB + 1, MIB - 1), (16 * MIB - 1, 1)]
            .into_iter()
            .enumerate()
    {
        let data = pattern(len, round);
        buffered.write_all_at(&data, offset as u64).unwrap();
        oracle[offset..offset + len].copy_from_slice(&data);
    }
    for (round, (offset, len)) in
        [(8 * MIB, 4 * MIB), (512, 512), (12 * MIB - 4096, 2 * MIB)].into_iter().enumerate()
    {
        let part = aligned(&mut memory, len);
        part.copy_from_slice(&pattern(len, 100 + round));
        direct.write_all_at(part, offset as u64).unwrap();
        oracle[offset..offset + len].copy_from_slice(part);
    }
    assert_eq!(served.ram.bytes(0, 16 * MIB), oracle);
    let mut all = Vec::new();
    (&buffered).read_to_end(&mut all).unwrap();
    assert_eq!(all, oracle);
    for (offset, len) in [(0, 5 * MIB), (4096, 4096), (15 * MIB, MIB)] {
        let part = aligned(&mut memory, len);
        direct.read_exact_at(part, offset as u64).unwrap();
        assert_eq!(part, &oracle[offset..offset + len]);
    }
    // Large transfers arrive as requests of 1 MiB.
    served.ram.take_seen();
    buffered.write_all_at(aligned(&mut memory, 4 * MIB), 0).unwrap();
    let lens: Vec<_> = served.ram.take_seen().iter().map(|s| s.len.bytes()).collect();
    assert_eq!(lens, [1 << 20; 4]);
    assert_eq!(errno_of(buffered.write_at(b"x", 16 << 20)), Some(Errno::NOSPC));
    assert_eq!(buffered.read_at(&mut [0; 10], 16 << 20).unwrap(), 0);
}

#[test]
fn what_must_be_durable_is_flushed() {
    if !can_mount(&[]) {
        return;
    }
    let dir = TempDir::new("fuse-sync");
    let served = ServedTree::new(&dir.sub("m"), 8 * MIB, 1).unwrap();
    let durable = |seen: &[RecordedBio]| {
        // Written data is durable if the write was FUA or a flush came after it.
        let write = seen.iter().rposition(|s| s.op == Op::Write).expect("a write");
        seen[write].flags.contains(Flags::FUA) || seen[write..].iter().any(|s| s.op == Op::Flush)
    };
    for flags in [OFlags::DSYNC, OFlags::SYNC, OFlags::DSYNC | OFlags::DIRECT] {
        let file = served.volume(flags);
        served.ram.take_seen();
        file.write_all_at(aligned(&mut vec![7; 16_384], 4096), 4096).unwrap();
        assert!(durable(&served.ram.take_seen()), "{flags:?}");
    }
    let file = served.volume(OFlags::empty());
    served.ram.take_seen();
    file.write_all_at(&[7; 100], 0).unwrap();
    assert!(!durable(&served.ram.take_seen()), "a plain write does not pay for a flush");
    for sync in [File::sync_all, File::sync_data] {
        sync(&file).unwrap();
        assert_eq!(served.ram.take_seen().iter().map(|s| s.op).collect::<Vec<_>>(), [Op::Flush]);
    }
    drop(file);
    assert_eq!(served.ram.take_seen(), []);
}

#[test]
fn space_management_reaches_the_device() {
    if !can_mount(&[]) {
        return;
    }
    let dir = TempDir::new("fuse-space");
    let served = ServedTree::new(&dir.sub("m"), 8 * MIB, 1).unwrap();
    let file = served.volume(OFlags::empty());
    file.write_all_at(&vec![0xff; MIB], 0).unwrap();
    served.ram.take_seen();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, hole, 65_536, 65_536).unwrap();
    let seen = served.ram.take_seen();
    assert_eq!((seen[0].op, seen[0].sector.0, seen[0].len.0), (Op::WriteZeroes, 128, 128));
    assert!(!seen[0].flags.contains(Flags::NOUNMAP));
    let zero = FallocateFlags::ZERO_RANGE;
    fallocate(&file, zero, 0, 4096).unwrap();
    assert!(served.ram.take_seen()[0].flags.contains(Flags::NOUNMAP));
    let data = served.ram.bytes(0, MIB);
    assert!(data[..4096].iter().chain(&data[65_536..131_072]).all(|&b| b == 0));
    assert!(data[4096..65_536].iter().chain(&data[131_072..]).all(|&b| b == 0xff));
    assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 4096), Err(Errno::OPNOTSUPP));
    assert_eq!(fallocate(&file, zero, 0, 9 << 20), Err(Errno::INVAL));
    // A size that the device cannot have is refused. An open with O_TRUNC leaves the data, as for a block device.
    file.set_len(8 << 20).unwrap();
    assert_eq!(errno_of(file.set_len(4096)), Some(Errno::INVAL));
    let truncating = OpenOptions::new().write(true).truncate(true).open(served.path("dev/md0"));
    drop(truncating.unwrap());
    assert!(served.ram.bytes(0, MIB) == data);
    assert_eq!(file.metadata().unwrap().len(), 8 << 20);
}

#[test]
fn a_read_only_disk_gives_a_read_only_file() {
    if !can_mount(&[]) {
        return;
    }
    let dir = TempDir::new("fuse-ro");
    let ram = Ram::new("md0", MIB);
    ram.disk().set_read_only(true);
    let served = ServedTree::of(&dir.sub("m"), ram, 1).unwrap();
    let path = served.path("dev/md0");
    assert_eq!(std::fs::metadata(&path).unwrap().mode(), 0o100_400);
    assert_eq!(errno_of(OpenOptions::new().write(true).open(&path)), Some(Errno::ROFS));
    assert_eq!(std::fs::read(&path).unwrap(), vec![0; MIB]);
}

#[test]
fn the_errno_of_a_failing_disk_reaches_the_system_call() {
    if !can_mount(&[]) {
        return;
    }
    let dir = TempDir::new("fuse-fail");
    let served = ServedTree::new(&dir.sub("m"), MIB, 1).unwrap();
    let file = served.volume(OFlags::empty());
    for (status, errno) in [(Status::Medium, Errno::NODATA), (Status::Io, Errno::IO)] {
        served.ram.break_with(status);
        assert_eq!(errno_of(file.read_at(&mut [0; 4096], 0)), Some(errno));
        assert_eq!(errno_of(file.write_at(&[0; 4096], 0)), Some(errno));
        assert_eq!(errno_of(file.sync_data()), Some(errno));
    }
}

#[test]
fn attributes_are_read_and_written_as_in_sysfs() {
    if !can_mount(&["sh"]) {
        return;
    }
    let dir = TempDir::new("fuse-attr");
    let served = ServedTree::new(&dir.sub("m"), 8 * MIB, 1).unwrap();
    let nomerges = served.path("sys/nomerges");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    assert_eq!(read(&served.path("sys/size")), "16384\n");
    run("sh", &["-c", &format!("echo 2 >{}", nomerges.display())]);
    assert_eq!(read(&nomerges), "2\n");
    std::fs::write(&nomerges, "1").unwrap();
    assert_eq!(run("cat", &[nomerges.to_str().unwrap()]), "1");
    assert_eq!(errno_of(std::fs::write(&nomerges, "3")), Some(Errno::INVAL));
    assert_eq!(errno_of(std::fs::write(served.path("sys/size"), "3")), Some(Errno::ACCESS));
    assert_eq!(read(&nomerges), "1\n");
    // A file that stays open shows the new value after a seek to its start.
    let mut open = File::options().read(true).write(true).open(&nomerges).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    open.write_all(b"0\n").unwrap();
    let mut again = [0; 10];
    let n = open.read_at(&mut again, 0).unwrap();
    assert_eq!((text.as_str(), &again[..n]), ("1\n", &b"0\n"[..]));
    // Longer than the size that stat shows.
    assert_eq!(read(&served.path("many/n7")).len(), 16_000);
}

/// mkfs, mount, write, unmount, mount, compare, trim, check.
fn ext4_on_a_loop_device(name: &str, loop_options: &[&str]) {
    if !can_mount(&["losetup", "mkfs.ext4", "e2fsck", "fstrim", "mount", "umount"])
        || !available("loop devices", Path::new("/dev/loop-control").exists())
    {
        return;
    }
    let dir = TempDir::new(name);
    let (at, on) = (dir.sub("m"), dir.sub("fs"));
    let served = ServedTree::new(&at, 64 * MIB, 2).unwrap();
    {
        let device = Loop::new(&served.path("dev/md0"), loop_options);
        let direct = loop_options.contains(&"--direct-io=on");
        assert_eq!(device.sysfs("loop/dio"), if direct { "1" } else { "0" });
        assert_eq!(device.sysfs("queue/discard_granularity"), "4096");
        assert_eq!(device.sysfs("size"), (64 * MIB / 512).to_string());
        run("mkfs.ext4", &["-q", "-F", &device.0]);
        {
            let mounted = MountedFileSystem::new(&device.0, &on);
            for n in 0..20 {
                std::fs::write(mounted.0.join(n.to_string()), pattern(MIB + n, n)).unwrap();
            }
        }
        served.ram.take_seen();
        let mounted = MountedFileSystem::new(&device.0, &on);
        for n in 0..20 {
            assert_eq!(std::fs::read(mounted.0.join(n.to_string())).unwrap(), pattern(MIB + n, n));
        }
        std::fs::remove_file(mounted.0.join("3")).unwrap();
        File::open(mounted.0).unwrap().sync_all().unwrap();
        assert!(served.ram.take_seen().iter().any(|s| s.op == Op::Flush), "sync flushes");
        run("fstrim", &[mounted.0.to_str().unwrap()]);
        let trimmed: u64 = served
            .ram
            .take_seen()
            .iter()
            .filter(|s| s.op == Op::WriteZeroes && !s.flags.contains(Flags::NOUNMAP))
            .map(|s| s.len.bytes())
            .sum();
        assert!(trimmed > 20 << 20, "fstrim gave back {trimmed} bytes");
        for n in (0..20).filter(|&n| n != 3) {
            assert_eq!(std::fs::read(mounted.0.join(n.to_string())).unwrap(), pattern(MIB + n, n));
        }
    }
    run("e2fsck", &["-f", "-n", served.path("dev/md0").to_str().unwrap()]);
}

#[test]
fn ext4_lives_on_a_buffered_loop_device() {
    ext4_on_a_loop_device("fuse-loop", &[]);
}

#[test]
fn ext4_lives_on_a_direct_loop_device() {
    ext4_on_a_loop_device("fuse-loop-direct", &["--direct-io=on"]);
}

#[test]
fn many_requests_in_flight_do_not_mix_up_their_data() {
    if !can_mount(&["fio"]) {
        return;
    }
    let dir = TempDir::new("fuse-fio");
    let served = ServedTree::new(&dir.sub("m"), 32 * MIB, 2).unwrap();
    let file = format!("--filename={}", served.path("dev/md0").display());
    for bs in ["--bsrange=512-128k", "--bs=4k"] {
        let common =
            ["--name=v", "--rw=randwrite", "--ioengine=libaio", "--iodepth=32", "--direct=1"];
        let verify = ["--verify=crc32c", "--do_verify=1", "--verify_state_save=0", "--size=32m"];
        run("fio", &[&common[..], &verify, &[bs, "--bs_unaligned=0", "--minimal", &file]].concat());
    }
}

#[test]
fn unmounting_from_outside_ends_the_server_and_a_busy_mount_says_so() {
    if !can_mount(&["umount"]) {
        return;
    }
    let dir = TempDir::new("fuse-end");
    let at = dir.sub("a b");
    let mut served = ServedTree::new(&at, MIB, 2).unwrap();
    let open = served.volume(OFlags::empty());
    assert!(matches!(served.mount.unmount(), Err(MountError::Busy { .. })));
    open.write_all_at(b"still served", 0).unwrap();
    drop(open);
    served.mount.unmount().unwrap();
    assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0);
    served.wait_for_end();
    let served = ServedTree::new(&at, MIB, 1).unwrap();
    assert!(served.path("dev/md0").exists());
    run("umount", &[at.to_str().unwrap()]);
    served.wait_for_end();
    // Lazily: the open file is served until it is closed.
    let mut served = ServedTree::new(&at, MIB, 1).unwrap();
    let open = served.volume(OFlags::empty());
    served.mount.detach().unwrap();
    open.write_all_at(b"still served", 0).unwrap();
    drop(open);
    served.wait_for_end();
}

#[test]
fn what_a_dead_server_left_is_cleared_away() {
    if !can_mount(&[]) {
        return;
    }
    let dir = TempDir::new("fuse-stale");
    let at = dir.sub("m");
    let died = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fuse_mount::as_a_server_that_dies", "--nocapture"])
        .env(DEAD_ENV, &at)
        .status()
        .unwrap();
    assert_eq!(died.code(), Some(77));
    assert_eq!(errno_of(std::fs::read_dir(&at)), Some(Errno::NOTCONN));
    let served = ServedTree::new(&at, MIB, 1).unwrap();
    assert_eq!(std::fs::metadata(served.path("dev/md0")).unwrap().len(), 1 << 20);
}

/// Active only in the process that the test above starts.
#[test]
fn as_a_server_that_dies() {
    let Some(at) = std::env::var_os(DEAD_ENV).map(PathBuf::from) else { return };
    let mounted = mount(&at, MountOptions::default());
    std::process::exit(if mounted.is_ok() { 77 } else { 1 });
}

#[test]
fn a_mount_does_not_end_what_others_mounted_in_its_place() {
    if !can_mount(&["mount", "umount"]) {
        return;
    }
    let dir = TempDir::new("fuse-other");
    let at = dir.sub("m");
    let text = at.to_str().unwrap();
    let served = ServedTree::new(&at, MIB, 1).unwrap();
    run("umount", &[text]);
    run("mount", &["-t", "tmpfs", "none", text]);
    std::fs::write(at.join("theirs"), "x").unwrap();
    drop(served);
    assert!(at.join("theirs").exists());
    run("umount", &[text]);
}

#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    if !can_mount(&["fusermount3", "setpriv"]) {
        return;
    }
    let dir = TempDir::new("fuse-user");
    let at = dir.sub("m");
    std::fs::set_permissions(&dir.0, PermissionsExt::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&at, Some(65_534), Some(65_534)).unwrap();
    // The user may not have access to this program's directory.
    let program = dir.0.join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new("timeout")
        .args(["60", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["--exact", "fuse_mount::as_an_ordinary_user", "--nocapture"])
        .env(USER_ENV, &at)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("served as uid 65534"), "{said}");
}

/// Active only in the process that the test above starts.
#[test]
fn as_an_ordinary_user() {
    let Some(at) = std::env::var_os(USER_ENV).map(PathBuf::from) else { return };
    let refused = mount(&at, MountOptions { allow_other: true });
    assert!(matches!(refused, Err(MountError::OtherUsersDenied)), "{refused:?}");
    let mut served = ServedTree::new(&at, 4 * MIB, 1).unwrap();
    let file = served.volume(OFlags::empty());
    file.write_all_at(&pattern(MIB, 1), 4096).unwrap();
    assert_eq!(served.ram.bytes(4096, MIB), pattern(MIB, 1));
    let info = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        info.lines().any(|l| l.contains(" - fuse.ashlar ashlar ") && l.contains("user_id=65534"))
    );
    assert!(matches!(served.mount.unmount(), Err(MountError::Busy { .. })));
    drop(file);
    served.mount.unmount().unwrap();
    served.wait_for_end();
    // Dropping it unmounts, too.
    drop(ServedTree::new(&at, MIB, 1).unwrap());
    assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0);
    println!("served as uid {}", rustix::process::geteuid().as_raw());
}
