//! Partition tables made by the real tools, compared with these tools' reading; and damaged ones.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ashlar_block::{Sector, Sectors};
use ashlar_sim::{Media, Sim, SimDisk};
use ashlar_stack::partitions::{Entry, Scheme, Table, TableState, read};
use ashlar_stack::probe::signatures;
use serde_json::Value;

use crate::common::mbr;

const MIB: u64 = 1 << 20;

/// A partition: number, start, length in blocks, type, and name.
type Row = (u32, u64, u64, String, String);

/// An image with a table that a tool made.
struct Image {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    fn new(size: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        File::create(&path).unwrap().set_len(size).unwrap();
        Self { _dir: dir, path }
    }

    /// Passes `script` to sfdisk, which the tests require.
    fn sfdisk(size: u64, script: &str) -> Self {
        let image = Self::new(size);
        let mut child = Command::new("sfdisk")
            .args(["--quiet", "--no-reread"])
            .arg(&image.path)
            .stdin(Stdio::piped())
            .spawn()
            .expect("sfdisk: see scripts/setup");
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        image
    }

    fn sgdisk(&self, args: &[&str]) {
        let output = Command::new("sgdisk").args(args).arg(&self.path).output();
        let output = output.expect("sgdisk: see scripts/setup");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    /// sfdisk's reading: number, start, length in blocks, type, and name.
    fn theirs(&self) -> Vec<Row> {
        let mut command = Command::new("sfdisk");
        let output = command.arg("--json").arg(&self.path).output().unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let path = self.path.to_str().unwrap();
        let number = |node: &str| node.strip_prefix(path).unwrap().parse().unwrap();
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let rows = json["partitiontable"]["partitions"].as_array().unwrap().iter();
        rows.map(|row| {
            let (start, len) = (row["start"].as_u64().unwrap(), row["size"].as_u64().unwrap());
            let kind = text(row, "type").to_lowercase();
            (number(row["node"].as_str().unwrap()), start, len, kind, text(row, "name"))
        })
        // ashlar makes no device for an extended partition.
        .filter(|row| !matches!(row.3.as_str(), "5" | "f" | "85"))
        .collect()
    }
}

/// A disk with these bytes.
fn load(bytes: &[u8]) -> Media {
    let media = Media::new(Sectors(bytes.len() as u64 / 512));
    for (sector, data) in (0..).zip(bytes.chunks_exact(512)) {
        if data.iter().any(|byte| *byte != 0) {
            media.poke(Sector(sector), data);
        }
    }
    media
}

/// A disk of `mib` MiB whose table sfdisk makes.
pub(crate) fn gpt_disk(mib: u64, script: &str) -> Media {
    load(&Image::sfdisk(mib * MIB, script).bytes())
}

/// Changes a byte of a disk.
fn flip(media: &Media, at: usize, bits: u8) {
    let sector = Sector(at as u64 / 512);
    let mut data = media.peek(sector);
    data[at % 512] ^= bits;
    media.poke(sector, &data);
}

/// The table found on a disk with these bytes.
fn found(bytes: &[u8]) -> TableState {
    found_on(load(bytes))
}

fn found_on(media: Media) -> TableState {
    let gateway = SimDisk::over("disk", media).gateway();
    Sim::new(1).block_on(async {
        let signatures = signatures(&gateway).await.unwrap();
        read(&gateway, &signatures).await.unwrap()
    })
}

fn table(bytes: &[u8]) -> Table {
    of(found(bytes))
}

fn of(found: TableState) -> Table {
    match found {
        TableState::Table(table) => table,
        other @ (TableState::Nothing(_) | TableState::Damaged(_)) => panic!("{other:?}"),
    }
}

/// Our entries in the form of sfdisk's.
fn rows(table: &Table) -> Vec<Row> {
    let row = |entry: &Entry| {
        let Entry { number, start, len, kind, name, .. } = entry.clone();
        (number, start.0, len.0, kind, name)
    };
    table.entries.iter().map(row).collect()
}

/// Ranges as number, start and length.
fn places(table: &Table) -> Vec<(u32, u64, u64)> {
    table.entries.iter().map(|e| (e.number, e.start.0, e.len.0)).collect()
}

const GPT: &str = "label: gpt\n, 4M, L, *\n, 8M, R\n, 1M, U\nname=\"a b \u{e9}\", size=2M\n";

#[test]
fn a_gpt_is_read_as_sfdisk_reads_it() {
    let image = Image::sfdisk(64 * MIB, GPT);
    let table = table(&image.bytes());
    assert_eq!((table.scheme, table.notes.as_slice()), (Scheme::Gpt, &[][..]));
    assert_eq!(table.entries.len(), 4);
    assert_eq!(rows(&table), image.theirs());
}

#[test]
fn a_gpt_with_numbers_left_out_is_read_as_sfdisk_reads_it() {
    let image = Image::new(32 * MIB);
    image.sgdisk(&[
        "-n",
        "7:0:+4M",
        "-t",
        "7:fd00",
        "-c",
        "7:raid",
        "-n",
        "100:0:+1M",
        "-n",
        "3:0:0",
    ]);
    let table = table(&image.bytes());
    assert_eq!(rows(&table), image.theirs());
    assert_eq!(table.entries.iter().map(|e| e.number).collect::<Vec<_>>(), [3, 7, 100]);
}

#[test]
fn a_gpt_of_large_blocks_in_an_image_is_found() {
    let image = Image::new(64 * MIB);
    let path = image.path.to_str().unwrap();
    let fdisk = |args: &[&str], input: &str| {
        let mut command = Command::new("fdisk");
        command.args(["--sector-size", "4096"]).args(args).arg(path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("fdisk: see scripts/setup");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    fdisk(&[], "g\nn\n\n\n+4M\nn\n\n\n+8M\nw\n");
    let table = table(&image.bytes());
    let ours: Vec<(u64, u64)> =
        table.entries.iter().map(|e| (e.start.0 / 8, e.len.0 / 8)).collect();
    let list = fdisk(&["--list", "-o", "Start,Sectors"], "");
    let theirs: Vec<(u64, u64)> = list
        .lines()
        .filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        })
        .collect();
    assert_eq!((ours.len(), &ours), (2, &theirs), "{list}");
}

#[test]
fn primary_and_logical_partitions_are_read_as_sfdisk_reads_them() {
    let script =
        "label: dos\n, 4M, fd\n, 2M, 83, *\n, 40M, E\n, 1M, 82\n, 4M, fd\n, 8M, 8e\n, 2M\n";
    let image = Image::sfdisk(64 * MIB, script);
    let table = table(&image.bytes());
    assert_eq!((table.scheme, table.notes.as_slice()), (Scheme::Dos, &[][..]));
    let theirs = image.theirs();
    assert!(theirs.iter().any(|row| row.0 == 7) && theirs.len() == 6, "{theirs:?}");
    assert_eq!(rows(&table), theirs);
}

#[test]
fn each_byte_of_the_primary_gpt_may_be_damaged_and_the_backup_is_used() {
    let image = Image::sfdisk(16 * MIB, "label: gpt\n, 4M\n, 2M\n");
    let good = load(&image.bytes());
    let wanted = of(found_on(good.copy())).entries;
    for at in (512..512 + 92).chain([1024, 1024 + 300, 1024 + 128 * 128 - 1]) {
        let media = good.copy();
        flip(&media, at, 0x10);
        let table = of(found_on(media));
        assert_eq!(table.entries, wanted, "byte {at}");
        let note = table.notes.concat();
        assert!(
            note.starts_with("the primary GPT is damaged (") && note.ends_with("backup is used")
        );
    }
}

#[test]
fn a_damaged_backup_is_told_and_the_primary_counts() {
    let image = Image::sfdisk(16 * MIB, "label: gpt\n, 4M\n, 2M\n");
    let mut bytes = image.bytes();
    let wanted = table(&bytes).entries;
    let last = bytes.len() - 512;
    bytes[last] = 0;
    let table = table(&bytes);
    assert_eq!(table.entries, wanted);
    assert_eq!(table.notes, ["the backup GPT is damaged (no header); the primary counts"]);
}

#[test]
fn a_gpt_of_which_both_copies_are_damaged_is_refused() {
    let image = Image::sfdisk(16 * MIB, "label: gpt\n, 4M\n");
    let mut bytes = image.bytes();
    let last = bytes.len() - 512;
    bytes[512 + 60] ^= 1;
    bytes[last + 90] ^= 1;
    let why = "both copies of the GPT are unusable: the primary: the header's checksum is wrong; \
               the backup: the header's checksum is wrong";
    assert_eq!(found(&bytes), TableState::Damaged(why.to_owned()));
}

#[test]
fn a_grown_image_has_its_backup_where_the_primary_says() {
    let image = Image::sfdisk(16 * MIB, "label: gpt\n, 4M\n");
    let mut bytes = image.bytes();
    bytes.resize(20 << 20, 0);
    assert_eq!(table(&bytes).notes, [""; 0]);
    // A truncated image has no usable table: the last usable block is missing.
    bytes.truncate(12 << 20);
    assert!(matches!(found(&bytes), TableState::Damaged(why) if why.contains("last usable block")));
}

#[test]
fn the_gpt_behind_a_hybrid_mbr_counts() {
    let image = Image::sfdisk(16 * MIB, "label: gpt\n, 4M\n, 2M\n");
    let wanted = table(&image.bytes()).entries;
    image.sgdisk(&["--hybrid", "2"]);
    let table = table(&image.bytes());
    assert_eq!(table.entries, wanted);
    assert_eq!(table.notes, ["hybrid MBR: only the GPT's partitions count"]);
}

#[test]
fn a_gpt_that_no_mbr_names_is_not_used() {
    let image = Image::sfdisk(16 * MIB, "label: gpt\n, 4M\n");
    let mut bytes = image.bytes();
    bytes[..512].fill(0);
    assert!(matches!(found(&bytes), TableState::Nothing(Some(note)) if note.contains("no MBR")));
    bytes[..512].copy_from_slice(&mbr(&[(0x83, 8192, 1024)]));
    let table = table(&bytes);
    assert_eq!((table.scheme, places(&table)), (Scheme::Dos, vec![(1, 8192, 1024)]));
    assert!(table.notes[0].contains("the MBR counts"), "{:?}", table.notes);
}

#[test]
fn entries_that_overlap_or_reach_too_far_are_left_out_one_by_one() {
    let mut bytes = vec![0; 4 << 20];
    let entries = [(0x83, 64, 100), (0x83, 163, 10), (0x83, 200, 7992), (0x83, 200, 0xffff_ffff)];
    bytes[..512].copy_from_slice(&mbr(&entries));
    let table = table(&bytes);
    assert_eq!(places(&table), [(3, 200, 7992)]);
    assert_eq!(
        table.notes,
        [
            "partition 4 left out: it reaches beyond the end of the device",
            "partition 1 left out: it overlaps partition 2",
            "partition 2 left out: it overlaps partition 1",
        ]
    );
}

/// A sector, and its entries.
type Link<'a> = (usize, &'a [(u8, u32, u32)]);

/// An image of 4 MiB with an extended partition at sector 1000, and links at these places.
fn chain(links: &[Link<'_>]) -> Vec<u8> {
    let mut bytes = vec![0; 4 << 20];
    bytes[..512].copy_from_slice(&mbr(&[(0x83, 64, 100), (0x5, 1000, 4000)]));
    for (at, entries) in links {
        bytes[at * 512..][..512].copy_from_slice(&mbr(entries));
    }
    bytes
}

#[test]
fn a_chain_that_leads_back_to_itself_ends() {
    let bytes = chain(&[
        (1000, &[(0x83, 1, 9), (0x5, 100, 50)]),
        (1100, &[(0x83, 1, 9), (0x5, 200, 50)]),
        (1200, &[(0x83, 1, 9), (0x5, 100, 50)]),
    ]);
    let table = table(&bytes);
    assert_eq!(places(&table), [(1, 64, 100), (5, 1001, 9), (6, 1101, 9), (7, 1201, 9)]);
    assert_eq!(table.notes, ["the extended partition is damaged: it leads back to block 1100"]);
}

#[test]
fn a_chain_into_nothing_ends() {
    let nowhere = chain(&[(1000, &[(0x83, 1, 9), (0x5, 0xffff_0000, 50)])]);
    let table = table(&nowhere);
    assert_eq!(places(&table), [(1, 64, 100), (5, 1001, 9)]);
    let note = format!(
        "the extended partition is damaged: block {} is not a partition table",
        1000 + 0xffff_0000_u64
    );
    assert_eq!(table.notes, [note]);
}

#[test]
fn a_chain_has_a_bound() {
    let mut bytes = chain(&[]);
    for n in 0..400_u32 {
        let at = (1000 + 2 * n as usize) * 512;
        bytes[at..][..512].copy_from_slice(&mbr(&[(0x83, 1, 1), (0x5, 2 * (n + 1), 2)]));
    }
    let table = table(&bytes);
    assert_eq!(table.entries.len(), 1 + 256);
    assert_eq!(table.notes, ["the extended partition is damaged: it has more than 256 links"]);
}

/// Random bit flips in real tables: nothing panics, and accepted partitions fit.
#[test]
fn damaged_tables_never_give_partitions_that_do_not_fit() {
    let dos = "label: dos\n, 4M, fd\n, 8M, E\n, 1M\n, 1M\n";
    for script in [dos, "label: gpt\n, 4M\n, 2M\n"] {
        let good = Image::sfdisk(16 * MIB, script).bytes();
        let used: Vec<usize> = (0..good.len()).filter(|at| good[*at] != 0).collect();
        let good = load(&good);
        let mut rng = ashlar_sim::Rng::new(7);
        for _ in 0..200 {
            let media = good.copy();
            for _ in 0..=rng.below(3) {
                flip(&media, used[rng.index(used.len())], 1 << rng.below(8));
            }
            let TableState::Table(table) = found_on(media) else { continue };
            let mut ranges: Vec<(u64, u64)> =
                table.entries.iter().map(|e| (e.start.0, e.start.0 + e.len.0)).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
            assert!(ranges.iter().all(|(start, end)| start < end && *end <= 32768), "{ranges:?}");
        }
    }
}

#[test]
fn boot_sectors_of_file_systems_are_no_tables() {
    // A FAT boot sector: the jump, bytes per sector, sectors per cluster and so on, and code in
    // place of entries.
    let mut bytes = vec![0; 4 << 20];
    bytes[..512].copy_from_slice(&mbr(&[(0x83, 64, 100)]));
    bytes[..3].copy_from_slice(&[0xeb, 0x3c, 0x90]);
    bytes[11..22].copy_from_slice(&[0, 2, 4, 1, 0, 2, 0, 2, 0, 0, 0xf8]);
    assert_eq!(found(&bytes), TableState::Nothing(None));
}
