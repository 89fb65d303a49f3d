//! Images with maps of ddrescue: what was not read comes from other disks, or fails, and is never the zeroes in the image.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use super::btrfs_get::made;
use super::support::{Daemon, Images, MIB, Nbd, READ, ashlar, ashlar_in};

const EIO: u32 = 5;

/// Where an area begins, and its length, in bytes.
type Area = (u64, u64);

const SOCKET: [&str; 2] = ["--nbd", "unix:nbd"];

/// Whole sectors whose bytes say where they are, none of them zero.
fn pattern(at: u64, len: u64) -> Vec<u8> {
    let sector = |sector: u64| [(sector.wrapping_mul(37) % 251) as u8 + 1; 512];
    (at / 512..(at + len) / 512).map(sector).collect::<Vec<_>>().into_flattened()
}

/// An array of images that is full of [`pattern`], and its size.
fn filled(count: usize, options: &[&str]) -> (Images, u64) {
    let images = Images::array(count, 16 * MIB, options);
    let daemon = images.serve(&SOCKET);
    let mut client = Nbd::open(&images.path("nbd"), "");
    let size = (1..64).take_while(|n| readable(&mut client, n * MIB - 512)).count() as u64 * MIB;
    assert!(size >= 8 * MIB, "{size}");
    for at in (0..size).step_by(MIB as usize) {
        client.write_at(at, &pattern(at, MIB));
    }
    client.flush();
    drop(client);
    daemon.end();
    (images, size)
}

/// Whether a sector is there and can be read.
fn readable(client: &mut Nbd, at: u64) -> bool {
    error(client, at, 512) == 0
}

/// The error of a read.
fn error(client: &mut Nbd, at: u64, len: u32) -> u32 {
    client.request(READ, at, len);
    let error = client.reply();
    if error == 0 {
        std::io::Read::read_exact(&mut client.0, &mut vec![0; len as usize]).unwrap();
    }
    error
}

/// A map of an image of `size` bytes that lacks `areas`.
fn map(size: u64, areas: &[Area]) -> String {
    let mut text =
        "# Mapfile. Created by GNU ddrescue version 1.27\n0x0 + 1\n# pos size status\n".to_owned();
    let mut end = 0;
    for (n, (at, len)) in areas.iter().enumerate() {
        let status = ["-", "*", "/", "?"][n % 4];
        text += &format!("{end:#x} {:#x} +\n{at} {len:#x} {status}\n", at - end);
        end = at + len;
    }
    text + &format!("{end:#x} {:#x} +\n", size - end)
}

/// Has ddrescue not read `areas` of an image: they are zeroes, which only the map says.
fn lose(images: &Images, name: &str, areas: &[Area]) {
    let file = OpenOptions::new().write(true).open(images.path(name)).unwrap();
    for (at, len) in areas {
        file.write_all_at(&vec![0; *len as usize], *at).unwrap();
    }
    let size = file.metadata().unwrap().len();
    fs::write(images.path(&format!("{name}.rescue")), map(size, areas)).unwrap();
}

/// What a volume of all images reads as, read-only and with these options: `None` where it fails.
fn contents(images: &Images, options: &[&str], size: u64) -> Vec<Option<Vec<u8>>> {
    let daemon = images.serve(&[&SOCKET[..], &["--read-only"], options].concat());
    let mut client = Nbd::open(&images.path("nbd"), "");
    let parts = (0..size).step_by(64 << 10).map(|at| match error(&mut client, at, 64 << 10) {
        0 => Some(client.read_at(at, 64 << 10)),
        failed => {
            assert_eq!(failed, EIO);
            None
        }
    });
    let parts = parts.collect();
    drop(client);
    daemon.end();
    parts
}

fn expected(size: u64) -> Vec<Option<Vec<u8>>> {
    (0..size).step_by(64 << 10).map(|at| Some(pattern(at, 64 << 10))).collect()
}

#[test]
fn a_mirror_has_what_one_of_its_images_lacks() {
    let (images, size) = filled(2, &["--level=1", "--assume-clean"]);
    lose(&images, "d0", &[(2 * MIB, 5 * MIB), (12 * MIB, 4096)]);
    lose(&images, "d1", &[(8 * MIB, 3 * MIB)]);
    let maps = ["--map", "d0=d0.rescue", "--map", "d1=d1.rescue"];
    assert!(contents(&images, &maps, size) == expected(size));
    assert!(contents(&images, &[], size) != expected(size), "the maps are not needed");
}

#[test]
fn parity_makes_up_for_what_two_images_lack() {
    let cases = [
        ("--level=5", 3, &[(9 * MIB, 8192)][..]),
        // RAID6 lacks two blocks of one row.
        ("--level=6", 4, &[(4 * MIB, MIB), (9 * MIB, 8192)]),
    ];
    for (level, count, second) in cases {
        let (images, size) = filled(count, &[level, "--assume-clean", "--chunk=64"]);
        lose(&images, "d0", &[(4 * MIB, MIB), (12 * MIB, 512)]);
        lose(&images, "d2", second);
        let maps = ["--map", "d0=d0.rescue", "--map", "d2=d2.rescue"];
        assert!(contents(&images, &maps, size) == expected(size), "{level}");
        assert!(contents(&images, &[], size) != expected(size), "{level}: no map is needed");
    }
}

/// Without another copy there are errors, and nothing else is.
#[test]
fn a_single_image_fails_where_it_was_not_read() {
    let images = Images::new(1, 4 * MIB);
    fs::write(images.path("d0"), pattern(0, 4 * MIB)).unwrap();
    lose(&images, "d0", &[(MIB, 4096), (2 * MIB + 512, 512)]);
    let map = ["--map", "d0.rescue"];
    let daemon = images.serve(&[&SOCKET[..], &["--whole"], &map].concat());
    let mut client = Nbd::open(&images.path("nbd"), "");
    let lost: Vec<u64> =
        (0..8192).map(|n| n * 512).filter(|at| error(&mut client, *at, 512) == EIO).collect();
    let area = (0..8).map(|n| MIB + n * 512);
    assert_eq!(lost, area.chain([2 * MIB + 512]).collect::<Vec<_>>());
    assert_eq!(client.read_at(0, MIB as u32), pattern(0, MIB));
    assert_eq!(error(&mut client, MIB - 512, 1024), EIO);
    // What is written can be read, in this process.
    client.write(MIB + 512, &[7; 1024]);
    assert_eq!(client.reply(), 0);
    assert_eq!(client.read_at(MIB + 512, 1024), [7; 1024]);
    assert_eq!(error(&mut client, MIB, 512), EIO);
    assert_eq!(error(&mut client, MIB + 1536, 512), EIO);
    drop(client);
    let log = daemon.end();
    assert!(log.contains("4.5K not read by ddrescue, in 2 areas"), "{log}");
    let daemon = images.serve(&[&SOCKET[..], &["--whole"], &map].concat());
    let mut client = Nbd::open(&images.path("nbd"), "");
    assert_eq!(error(&mut client, MIB + 512, 512), EIO, "the map says so again");
    drop(client);
    daemon.end();
}

/// An array that may be written to writes its data into the image, as it does for bad sectors, and keeps the member although these are
/// more than md forgives within an hour.
#[test]
fn a_mirror_mends_an_image_that_may_be_written_to() {
    let (images, size) = filled(2, &["--level=1", "--assume-clean"]);
    let areas: Vec<Area> = (0..60).map(|n| (4 * MIB + n * 100 * 1024, 4096)).collect();
    lose(&images, "d0", &areas);
    let daemon = images.serve(&[&SOCKET[..], &["--map", "d0=d0.rescue"]].concat());
    let mut client = Nbd::open(&images.path("nbd"), "");
    for at in (0..size).step_by(4096) {
        assert!(client.read_at(at, 4096) == pattern(at, 4096), "{at}");
    }
    drop(client);
    let state = daemon.client(&["get", "proc/mdstat"]).ok().out;
    assert!(state.contains("[2/2] [UU]"), "{state}");
    daemon.client(&["md", "action", "md0", "repair"]).ok();
    // 1: it has ended already.
    let waited = daemon.client(&["md", "wait", "md0"]);
    assert!(matches!(waited.code, Some(0 | 1)), "{waited:?}");
    daemon.end();
    fs::remove_file(images.path("d1")).unwrap();
    let daemon = Daemon::start(images.dir.path(), &["--nbd", "unix:nbd", "--run", "-o", "d0"]);
    let mut client = Nbd::open(&images.path("nbd"), "");
    for at in (0..size).step_by(MIB as usize) {
        assert!(client.read_at(at, MIB as u32) == pattern(at, MIB), "{at}");
    }
    drop(client);
    daemon.end();
}

/// `[map, problem]` of the disk in a scan of it.
fn scanned(dir: &Path, disk: &str, options: &[&str]) -> [Option<String>; 2] {
    let run = ashlar_in(dir, &[&["scan", "--json", disk], options].concat()).ok();
    let scan: Value = serde_json::from_str(&run.out).unwrap();
    let node = &scan["blockdevices"][0];
    ["map", "problem"].map(|key| node[key].as_str().map(str::to_owned))
}

#[test]
fn a_map_beside_an_image_is_found_and_shown() {
    let images = Images::new(1, 4 * MIB);
    let dir = images.dir.path();
    fs::rename(images.path("d0"), images.path("disk.img")).unwrap();
    assert_eq!(scanned(dir, "disk.img", &[]), [None, None]);
    // Files of such names that are no maps are others' business.
    fs::write(images.path("disk.map"), "symbols\n0 text\n").unwrap();
    fs::create_dir(images.path("disk.img.map")).unwrap();
    assert_eq!(scanned(dir, "disk.img", &[]), [None, None]);
    fs::remove_dir(images.path("disk.img.map")).unwrap();
    fs::write(images.path("disk.map"), map(4 * MIB, &[(3 * MIB, 12 << 10)])).unwrap();
    let [found, problem] = scanned(dir, "disk.img", &[]);
    assert_eq!(found.as_deref(), Some("disk.map"));
    assert_eq!(problem.as_deref(), Some("12K not read by ddrescue"));
    let text = images.run(&["scan", "disk.img"], &[]).ok().out;
    assert!(text.contains("map=disk.map unread=12288 (12K not read by ddrescue)"), "{text}");
    // The longer name is that image's only, and what the user says comes first.
    fs::write(images.path("disk.img.map"), map(4 * MIB, &[])).unwrap();
    assert_eq!(scanned(dir, "disk.img", &[]), [Some("disk.img.map".to_owned()), None]);
    fs::write(images.path("other"), map(4 * MIB, &[(3 * MIB, 512)])).unwrap();
    let [found, problem] = scanned(dir, "disk.img", &["--map", "other"]);
    assert!(found.unwrap().ends_with("/other"));
    assert_eq!(problem.as_deref(), Some("512B not read by ddrescue"));

    fs::remove_file(images.path("disk.img.map")).unwrap();
    let args = [&SOCKET[..], &["--whole", "--read-only", "disk.img"]].concat();
    let daemon = Daemon::start(dir, &args);
    let mut client = Nbd::open(&images.path("nbd"), "");
    assert_eq!(error(&mut client, 3 * MIB, 512), EIO);
    assert_eq!(error(&mut client, 0, 512), 0);
    drop(client);
    let log = daemon.end();
    assert!(log.contains("12K not read by ddrescue") && log.contains("disk.map"), "{log}");
}

#[test]
fn a_configuration_may_have_maps_with_paths_relative_to_it() {
    let images = Images::new(2, 4 * MIB);
    lose(&images, "d1", &[(MIB, 4096)]);
    let text = "disks = [\"d0\", \"d1\"]\nmap = [\"d1=d1.rescue\"]\n";
    fs::write(images.path("stack.toml"), text).unwrap();
    let daemon = Daemon::start(images.dir.path(), &["--config", "stack.toml"]);
    let log = daemon.end();
    assert!(log.contains("4K not read by ddrescue") && log.contains("d1.rescue"), "{log}");
    fs::write(images.path("stack.toml"), text.replace("d1=", "d7=")).unwrap();
    let run = images.run(&["serve", "--config", "stack.toml"], &[]);
    run.fails(2, &["a map for", "d7, which is not among the disks"]);
}

#[test]
fn a_map_that_cannot_be_right_is_refused() {
    let images = Images::new(2, 4 * MIB);
    let write = |name: &str, text: &str| fs::write(images.path(name), text).unwrap();
    write("larger", &map(4 * MIB + 512, &[]));
    write("gap", "0 + 1\n0 512 +\n1024 512 +\n");
    let scan = |options: &[&str], disks: &[&str]| images.run(&[&["scan"], options].concat(), disks);
    scan(&["--map", "larger"], &["d0"]).fails(
        1,
        &[
            "cannot use the map of: d0: ",
            "/larger describes 4194816 bytes, and it has 4194304",
            "hint: ",
            "truncate -s 4194816 d0",
        ],
    );
    scan(&["--map", "gap"], &["d0"]).fails(1, &["/gap: line 3: ", "a gap", "hint: "]);
    scan(&["--map", "none"], &["d0"]).fails(1, &["cannot read the map: ", "/none: No such file"]);
    scan(&["--map", "."], &["d0"]).fails(1, &["cannot read the map: ", "it is not a regular file"]);
    scan(&["--map", "gap"], &["d0", "d1"]).fails(2, &["which disk is the map ", "--map DISK="]);
    scan(&["--map", "d7=gap"], &["d0"]).fails(2, &["d7, which is not among the disks"]);
    let run = scan(&["--map", "d0="], &["d0"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    let run = images.run(&["status", "--map", "gap"], &[]);
    run.fails(2, &["cannot use the map ", "/gap: the daemon opens the disks", "hint: "]);
    let run = images.run(&["zpool", "list", "--map", "gap"], &[]);
    run.fails(2, &["cannot use --map: OpenZFS's library reads the disks by itself"]);
    // One beside the image that ddrescue wrote is not passed over.
    write("d0.map", "# Mapfile. Created by GNU ddrescue version 1.27\n0x0 + 1\n0 512");
    scan(&[], &["d0"]).fails(1, &["cannot use the map: d0.map: line 3: a block is", "hint: "]);
    write("d0.map", &map(8 * MIB, &[]));
    images.run(&["serve"], &["d0"]).fails(1, &["cannot use the map of: d0: d0.map describes"]);
    images.run(&["md", "examine"], &["d0"]).fails(1, &["cannot use the map of: d0: "]);
    images.run(&["lvm", "pvs", "--devices"], &["d0"]).fails(5, &["cannot use the map of: d0: "]);
    images.run(&["btrfs", "ls", "/"], &["d0"]).fails(1, &["cannot use the map of: d0: "]);
}

/// A daemon in its sandbox opens no files, so it cannot read the map of a disk that it gets later.
#[test]
fn a_disk_with_a_map_is_not_handed_to_a_running_daemon_without_it() {
    let images = Images::array(2, 16 * MIB, &["--level=1", "--assume-clean"]);
    File::create(images.path("d2")).unwrap().set_len(16 * MIB).unwrap();
    lose(&images, "d2", &[(8 * MIB, 4096)]);
    fs::rename(images.path("d2.rescue"), images.path("d2.map")).unwrap();
    let daemon = images.serve(&[]);
    if daemon.client(&["status"]).ok().out.contains("sandbox: on") {
        let add = daemon.client(&["md", "add", "md0", "d2"]);
        add.fails(1, &["cannot hand in: ", "a running daemon takes no map", "hint: "]);
    }
    daemon.end();
    // Outside of it the daemon opens the disk by itself, with its map.
    let daemon = images.serve(&["--no-sandbox"]);
    daemon.client(&["md", "add", "md0", "d2"]).ok();
    let log = daemon.end();
    assert!(log.contains("4K not read by ddrescue"), "{log}");
}

/// A file without another copy: the message names it, and its bytes.
#[test]
fn files_that_were_not_read_are_named() {
    let letter = pattern(0, MIB);
    let dir = made(|root| {
        fs::write(root.join("letter"), &letter).unwrap();
        fs::write(root.join("other"), vec![b'x'; MIB as usize]).unwrap();
    });
    let image = fs::read(dir.path().join("0.img")).unwrap();
    let found = image.chunks(4096).position(|block| block == &letter[64 << 10..68 << 10]);
    let at = found.unwrap() as u64 * 4096;
    fs::write(dir.path().join("0.map"), map(image.len() as u64, &[(at + 512, 512)])).unwrap();
    let get = ["btrfs", "get", "/", "out", "0.img"];
    let run = ashlar_in(dir.path(), &get);
    run.fails(1, &["not extracted: /letter: bytes 65536 to 69631 are lost: "]);
    assert!(dir.path().join("out/other").exists() && !dir.path().join("out/letter").exists());
    fs::create_dir(dir.path().join("kept")).unwrap();
    let run = ashlar_in(dir.path(), &["btrfs", "restore", "-i", "0.img", "kept"]);
    run.fails(1, &["/letter: bytes 65536 to 69631 are lost: "]);
    fs::remove_file(dir.path().join("0.map")).unwrap();
    fs::remove_dir_all(dir.path().join("out")).unwrap();
    ashlar_in(dir.path(), &get).ok();
}

#[test]
fn the_help_says_what_a_map_is() {
    for command in [&["scan"][..], &["serve"], &["md", "examine"], &["btrfs", "get"]] {
        let help = ashlar(&[command, &["--help"]].concat()).ok().out;
        assert!(help.contains("--map <[DISK=]FILE>") && help.contains("ddrescue"), "{command:?}");
    }
    for (command, example) in [("scan", "disk0.img --map "), ("serve", "--map disk0.img=")] {
        let help = ashlar(&[command, "--help"]).ok().out;
        assert!(help.contains(example), "{command}");
    }
}
