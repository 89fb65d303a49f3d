//! `ashlar trace --plot` and `--files`: numbers of pictures against blkparse and btt, names against known files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{FLUSH, Images, MIB, Nbd, READ, WRITE, ashlar_in};
use crate::trace::{Tracer, reads, tool};

/// Asserts that python's parser takes the file for XML; returns the texts of its titles.
fn xml_titles(images: &Images, name: &str) -> String {
    let code = "import sys, xml.etree.ElementTree as e\n\
                print([t.text for t in e.parse(sys.argv[1]).iter() if t.tag.endswith('title')])";
    tool(images, "python3", &["-c", code, name])
}

/// The cells of each row of a page's tables.
fn rows(page: &str) -> Vec<Vec<String>> {
    let row = |row: &str| -> Vec<String> {
        let cells = row.split("</td>").filter_map(|cell| cell.rsplit_once('>'));
        cells.map(|(_, text)| text.replace(',', "")).collect()
    };
    page.lines().filter(|line| line.starts_with("<tr>")).map(row).collect()
}

/// The part of blkparse's summary about all threads: with one thread there is only that.
fn totals(sums: &str) -> &str {
    let parts = sums.split_once("\nTotal (").or_else(|| sums.split_once("\nCPU0 ("));
    parts.unwrap_or_else(|| panic!("{sums}")).1
}

/// Count and KiB of a line of blkparse's summary: ` Reads Queued:  1,  4KiB  Writes Queued: ...`.
fn amount(sums: &str, heading: &str) -> (u64, u64) {
    let (_, rest) = sums.split_once(heading).unwrap_or_else(|| panic!("{heading}: {sums}"));
    let mut numbers = rest.split([',', 'K']).map(|it| it.trim().parse::<u64>().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn the_numbers_of_a_picture_are_those_of_blkparse_and_btt() {
    let images = Images::array(2, 32 * MIB, &["--level=1", "--name=0", "--assume-clean"]);
    let daemon = images.serve(&["--nbd", "unix:nbd", "--threads", "1"]);
    let mut nbd = Nbd::open(&images.path("nbd"), "md0");
    let live = Tracer::start(&images, &["-o", "t", "--plot", "live.svg", "md0", "d0", "d1"]);
    nbd.run(&reads());
    nbd.run(&[(WRITE, 100, 8), (WRITE, 108, 8), (WRITE, 4000, 1024), (WRITE, 7, 1)]);
    nbd.run(&[(FLUSH, 0, 0)]);
    let out = live.end();
    assert!(out.starts_with("CPU0 (md0):\n"), "sums and no lines: {out}");
    drop(nbd);
    daemon.end();
    // All devices of the trace, in a page; the array is above its members.
    let sums = ashlar_in(images.dir.path(), &["trace", "-i", "t", "--plot", "t.html"]).ok().out;
    assert!(!sums.contains(" Q "), "{sums}");
    let page = fs::read_to_string(images.path("t.html")).unwrap();
    let (command, unknown) =
        (">ashlar trace -i t --plot t.html<", ">not in the files of the trace<");
    for part in [command, " UTC</text>", unknown] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let picture = fs::read_to_string(images.path("live.svg")).unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for part in [&format!(">{host}, Linux ")[..], " UTC</text>", "--plot live.svg md0 d0 d1</text>"]
    {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    let rows = rows(&page);
    let mut compared = 0;
    for device in ["md0", "d0", "d1"] {
        let base = format!("t.{device}");
        let theirs = tool(&images, "blkparse", &["-i", &base, "-d", "bin"]);
        let theirs = totals(&theirs);
        for (kind, words) in [("reads", ["Reads", "Read"]), ("writes", ["Writes", "Write"])] {
            let is =
                |row: &&Vec<String>| row[0].starts_with(&format!("{device} (")) && row[1] == kind;
            let row = rows.iter().find(is).unwrap_or_else(|| panic!("{device} {kind}: {page}"));
            let number = |at: usize| row[at].parse::<u64>().unwrap();
            let [many, one] = words;
            for (at, heading) in [
                (2, format!("{many} Queued:")),
                (4, format!("{one} Dispatches:")),
                (6, format!("{many} Completed:")),
                (8, format!("{one} Merges:")),
            ] {
                let ours = (number(at), number(at + 1) / 1024);
                assert_eq!(ours, amount(theirs, &heading), "{device} {heading}");
                compared += 1;
            }
        }
        let times = tool(&images, "btt", &["-i", "bin"]);
        // A layer has no requests; btt calls its times Q2Cdm.
        let parts: &[&str] = if device == "md0" { &["Q2C"] } else { &["Q2C", "D2C"] };
        for part in parts {
            let theirs = times.lines().find(|line| line.starts_with(*part)).unwrap();
            let theirs: Vec<f64> =
                theirs.split_whitespace().skip(1).map(|it| it.parse().unwrap()).collect();
            let is = |row: &&Vec<String>| row[0] == device && row[1] == *part;
            let ours = rows.iter().find(is).unwrap_or_else(|| panic!("{part}: {page}"));
            assert_eq!(ours[2].parse::<f64>().unwrap(), theirs[3], "{part}: {ours:?} {times}");
            for (at, seconds) in [(3, theirs[0]), (4, theirs[1]), (9, theirs[2])] {
                let (number, unit) = ours[at].split_once(' ').unwrap();
                let unit = match unit {
                    "ns" => 1e-9,
                    "\u{b5}s" => 1e-6,
                    "ms" => 1e-3,
                    _ => 1.0,
                };
                let ours = number.parse::<f64>().unwrap() * unit;
                assert!((ours - seconds).abs() <= seconds * 0.01 + 1e-9, "{part} {ours} {seconds}");
            }
        }
    }
    assert_eq!(compared, 24);
    assert_eq!(xml_titles(&images, "live.svg"), "['I/O of md0, d0, d1']\n");
    let [above, below] =
        ["aria-label=\"md0 (", "aria-label=\"d0 ("].map(|it| page.find(it).unwrap());
    assert!(above < below);
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="));
}

/// A btrfs of one image `d0` with files of known sizes.
fn btrfs() -> (Images, BTreeMap<String, u64>) {
    let images = Images::new(1, 128 * MIB);
    let root = images.path("root");
    fs::create_dir_all(root.join("dir")).unwrap();
    let sizes = [("/first", 256 << 10), ("/dir/second & <last>", 1 << 20), ("/dir/third", 5000)];
    for (name, size) in sizes {
        let bytes: Vec<u8> =
            (0..size).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        fs::write(root.join(name.trim_start_matches('/')), bytes).unwrap();
    }
    let mut mkfs = Command::new("mkfs.btrfs");
    let made = mkfs.arg("-q").arg("--rootdir").args([&root, &images.path("d0")]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let blocks = |size: u32| u64::from(size).next_multiple_of(4096);
    (images, sizes.map(|(name, size)| (name.to_owned(), blocks(size))).into())
}

#[test]
fn each_byte_that_is_read_belongs_to_a_file_or_has_another_name() {
    let (images, sizes) = btrfs();
    let daemon = images.serve(&["--nbd", "unix:nbd", "--threads", "1"]);
    let mut nbd = Nbd::open(&images.path("nbd"), "d0");
    let live = Tracer::start(&images, &["-a", "complete", "d0", "--files", "d0"]);
    let kept = Tracer::start(&images, &["-o", "t", "d0"]);
    for n in 0..128 {
        nbd.run(&[(READ, 2048 * n, 2048)]);
    }
    let live = live.end();
    kept.end();
    drop(nbd);
    daemon.end();
    let (lines, table) = live.split_once("\nI/O by file (bytes)\n").unwrap();
    assert!(lines.contains(" C   R 0 + ") && lines.contains("  free space, superblock"), "{lines}");

    let args = ["trace", "-i", "t", "--json", "--files", "d0", "--plot", "t.html"];
    let out = ashlar_in(images.dir.path(), &args).ok().out;
    let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    let files = last["files"].as_array().unwrap();
    let read = |name: &str| {
        let row = files.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("{name}: {last}"))["read_bytes"].as_u64().unwrap()
    };
    for (name, size) in &sizes {
        assert_eq!(read(name), *size, "{name}");
        assert!(table.lines().any(|line| line.ends_with(name) && line.contains(&size.to_string())));
    }
    assert_eq!(read("superblock"), 2 * 4096);
    for tree in
        ["root tree level 0", "fs tree 5 level 0", "extent tree level 0", "chunk tree level 0"]
    {
        assert!(read(tree).is_multiple_of(16384) && read(tree) > 0, "{tree}");
    }
    let all: u64 = files.iter().map(|row| row["read_bytes"].as_u64().unwrap()).sum();
    assert_eq!(all, 128 * MIB);
    assert!(files.iter().all(|row| row["written_bytes"] == 0));
    let events = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut issued = events.filter(|it| it["action"] == "D");
    let first = issued.next().unwrap();
    assert_eq!(first["files"][1]["name"], "superblock");
    let page = fs::read_to_string(images.path("t.html")).unwrap();
    assert!(
        page.contains("<td class=\"name\">/dir/second &amp; &lt;last&gt;</td><td>1,048,576</td>")
    );
}

#[test]
fn pictures_and_names_that_cannot_be_had_say_why() {
    let (images, _) = btrfs();
    let run = |args: &[&str]| ashlar_in(images.dir.path(), &[&["trace"], args].concat());
    for name in ["p.png", "p", "svg", "p.SVG"] {
        let refused = run(&["md0", "--plot", name]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains("a FILE.svg or a FILE.html"), "{refused:?}");
    }
    let daemon = images.serve(&["--nbd", "unix:nbd"]);
    daemon.client(&["trace", "--plot", "no/p.svg", "d0"]).fails(1, &["no/p.svg", "No such file"]);
    Nbd::open(&images.path("nbd"), "d0").run(&[(READ, 8, 8)]);
    let traced = Tracer::start(&images, &["-o", "t", "d0"]);
    Nbd::open(&images.path("nbd"), "d0").run(&[(READ, 8, 8)]);
    traced.end();
    daemon.end();
    // An array is not the disk, and an empty image is not a file system.
    let arrays = Images::array(2, 32 * MIB, &["--level=1", "--name=0", "--assume-clean"]);
    let daemon = arrays.serve(&[]);
    Tracer::start(&arrays, &["-o", "t", "md0"]).end();
    daemon.end();
    let array = arrays.path("t").to_str().unwrap().to_owned();
    run(&["-i", &array, "--files", "d0"]).fails(1, &["on no traced device", "9:0", "d0"]);
    fs::write(images.path("empty"), vec![0; 1 << 20]).unwrap();
    run(&["-i", "t", "--files", "empty"]).fails(1, &["no btrfs file system", "empty"]);
    // What was there stays when the new picture cannot be made.
    fs::write(images.path("p.svg"), "old").unwrap();
    run(&["-i", "none", "--plot", "p.svg"]).fails(1, &["none.blktrace.0"]);
    assert_eq!(fs::read(images.path("p.svg")).unwrap(), b"old");
    run(&["-i", "t", "--plot", "p.svg"]).ok();
    assert!(fs::read(images.path("p.svg")).unwrap().starts_with(b"<?xml"));
    let hidden = fs::read_dir(images.dir.path())
        .unwrap()
        .filter(|it| it.as_ref().unwrap().file_name().to_str().unwrap().starts_with('.'));
    assert_eq!(hidden.count(), 0);
}

/// blktrace of the kernel, version 6.12, for a disk of 32 MiB: see `make.sh` beside it.
#[test]
fn files_of_the_kernels_blktrace_are_read() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/blktrace/linux-6.12");
    let images = Images::new(0, 0);
    let base = kept.to_str().unwrap();
    let sums = ashlar_in(images.dir.path(), &["trace", "-i", base, "--plot", "k.svg"]).ok().out;
    let theirs = tool(&images, "blkparse", &["-i", base]);
    let theirs = totals(&theirs);
    for heading in ["Reads Queued:", "Writes Queued:", "Read Dispatches:", "Writes Completed:"] {
        assert_eq!(amount(&sums, heading), amount(theirs, heading), "{heading}");
    }
    assert!(amount(&sums, "Reads Queued:").0 > 60);
    xml_titles(&images, "k.svg");
}
