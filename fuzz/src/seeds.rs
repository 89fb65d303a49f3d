//! Good inputs for each target: the golden images of `tests/images`, converted to the target's layout, and handwritten
//! inputs for targets without images (tables, partitions, the protocols).

use std::path::{Path, PathBuf};
use std::{fs, iter};

use ashlar_block::Sectors;
use ashlar_dm::snapshot::ondisk::{Exception, Geometry, Header};
use ashlar_dm::thin::ondisk::BLOCK_BYTES;
use ashlar_export::nbd::transmission::REQUEST_LEN;
use ashlar_nbd::wire::{
    INIT_PASSWD, OPTS_MAGIC, REP_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
};
use ashlar_zfs::ondisk::layout::{LABEL_BYTES, PHYS_OFFSET, RING_OFFSET};
use ashlar_zfs::ondisk::nvlist::NvList;
use zerocopy::IntoBytes;

/// The sector size of LVM and of partition tables.
const SECTOR: usize = 512;

/// The golden images below `folder` of `tests/images` whose names end in one of `ends`, sorted by name.
fn images(folder: &str, ends: &[&str]) -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/images").join(folder);
    let mut found = Vec::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of golden images") {
            let path = entry.expect("an entry").path();
            let name = path.to_string_lossy();
            if path.is_dir() {
                folders.push(path);
            } else if ends.iter().any(|end| name.ends_with(end)) {
                let bytes = fs::read(&path).expect("a golden image");
                found.push((path, bytes));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no images in {folder} whose names end in {ends:?}");
    found
}

/// Concatenates parts.
fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// Changes of a btrfs image: none, and one in each of some tree blocks.
pub fn btrfs_image() -> Vec<Vec<u8>> {
    let change = |block: u8| vec![block, 0, block.wrapping_add(120), 0, 1];
    iter::once(Vec::new()).chain([255, 0, 1, 2, 3, 5, 8, 13, 21, 34].map(change)).collect()
}

/// The superblock of a btrfs image, its tree blocks, and their items.
pub fn btrfs_structs() -> Vec<Vec<u8>> {
    use crate::btrfs_structs::{CHUNKS, ITEM, NODE, SUPERBLOCK};
    let superblock = crate::btrfs_image::superblock();
    // `sys_chunk_array`, up to its used length.
    let used = u32::from_le_bytes(superblock[160..164].try_into().expect("four bytes")) as usize;
    let chunks = &superblock[811..811 + used];
    let mut seeds = vec![join(&[&[SUPERBLOCK], &superblock]), join(&[&[CHUNKS], chunks])];
    for (_, block) in crate::btrfs_image::blocks() {
        seeds.push(join(&[&[NODE], block]));
        let count = u32::from_le_bytes(block[96..100].try_into().expect("four bytes"));
        for slot in block[101..].chunks_exact(25).take(count as usize).filter(|_| block[100] == 0) {
            let number = |at: usize| {
                u32::from_le_bytes(slot[at..at + 4].try_into().expect("four bytes")) as usize
            };
            let from = 101 + number(17);
            seeds.push(join(&[&[ITEM], &slot[..17], &block[from..from + number(21)]]));
        }
    }
    seeds
}

/// Changes of a member's superblock of each version: its number, events and the role table.
pub fn md_assembly() -> Vec<Vec<u8>> {
    let change = |place: u16, word: u32| join(&[&place.to_le_bytes(), &word.to_le_bytes()]);
    let mut seeds = Vec::new();
    for flags in [0, 1, 2, 4, 5, 6, 8, 9, 10, 14] {
        // dev_number, events, resync_offset, roles, raid_disks, max_dev, bitmap_offset, features, and the log's place.
        for (place, word) in [
            (160, 0),
            (160, 2),
            (160, 1000),
            (160, 1920),
            (160, 0x8000_0000),
            (200, 20),
            (208, 8),
            (256, 0xffff_0000),
            (256, 0x0001_fffe),
            (92, 3),
            (220, 1920),
            (96, 9),
            (8, 2),
            (188, 4),
        ] {
            seeds.push(join(&[&[flags], &change(place, word)]));
        }
    }
    for (place, word) in [
        (3968, 0),
        (3968, 2),
        (3968, 27),
        (3968, 0x8000_0000),
        (156, 39),
        (156, 41),
        (132, 0),
        (512 + 16, 0),
        (512 + 16, 9),
        (512 + 128 + 16, 0),
        (512 + 256 + 16, 6),
        (512 + 128 + 12, 3),
        (40, 3),
    ] {
        seeds.push(join(&[&[3], &change(place, word)]));
        seeds.push(join(&[&[3], &change(156, 39), &change(place, word)]));
    }
    seeds
}

/// Superblocks, bitmaps and bad block logs of md.
pub fn md_superblock() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (path, bytes) in images("md", &[".bin"]) {
        let device = fs::read_to_string(path.with_file_name("device.txt")).unwrap_or_default();
        let device: u64 = device.trim().parse().unwrap_or(204_800);
        let block = &bytes[..bytes.len().min(4096)];
        seeds.extend([0, 1].map(|flags| join(&[&device.to_le_bytes(), &[flags], block])));
    }
    seeds
}

/// Labels of physical volumes, each combined with each of its metadata area headers.
pub fn lvm_label() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (_, bytes) in images("lvm", &[".pv"]) {
        let (label, headers) = bytes.split_at(SECTOR);
        let before = vec![0; SECTOR * usize::from(label[8] % 4)];
        for header in [&[0; SECTOR]].into_iter().chain(headers.as_chunks().0) {
            seeds.extend([0, 1].map(|flags| join(&[&[flags], header, &before, label])));
        }
    }
    seeds
}

/// Texts of volume groups, as on disk and as backups.
pub fn lvm_text() -> Vec<Vec<u8>> {
    let mut all = images("lvm", &[".disk", ".backup"]);
    all.extend(images("lvm-tables", &[".text"]));
    all.into_iter().map(|(_, text)| text).collect()
}

/// Superblocks and bitmaps of dm-raid: all legs of a volume in one input.
pub fn dm_raid() -> Vec<Vec<u8>> {
    let mut seeds: Vec<(String, Vec<u8>)> = Vec::new();
    for (path, bytes) in images("dm-raid", &[".meta"]) {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let volume = name.split('.').next().expect("a name");
        let shape = fs::read_to_string(path.with_file_name(format!("{volume}.shape")));
        let shape = shape.expect("the shape of a golden image");
        if seeds.last().is_none_or(|(last, _)| last != volume) {
            let numbers: Vec<u64> =
                shape.split_whitespace().map(|word| word.parse().expect("a number")).collect();
            let [level, copies, chunk, legs, ..] = numbers[..] else { panic!("{volume}: {shape}") };
            let head = [level, copies, chunk / 8, legs].map(|number| number as u8);
            seeds.push((volume.to_owned(), head.to_vec()));
        }
        let (_, seed) = seeds.last_mut().expect("just pushed");
        seed.extend(crate::dm_raid::pack(&bytes));
    }
    seeds.into_iter().map(|(_, seed)| seed).collect()
}

/// Maps as versions of ddrescue before and after 1.20 write them, in each notation of numbers, and of a part of a disk.
pub fn ddrescue_map() -> Vec<Vec<u8>> {
    const MAPS: &[&str] = &[
        "# Mapfile. Created by GNU ddrescue version 1.27\n# Command line: ddrescue /dev/sdb disk.img disk.map\n# Finished\n\
         # current_pos  current_status  current_pass\n0x00120000     /               1\n#      pos        size  status\n\
         0x00000000  0x00117000  +\n0x00117000  0x00000200  -\n0x00117200  0x00001000  /\n0x00118200  0x00007E00  *\n\
         0x00120000  0x00048000  +\n0x00168000  0x00098000  ?\n",
        "# Rescue Logfile. Created by GNU ddrescue version 1.16\n0x0 +\n0 512 +\n512 01000 -  # octal\n1024 0x200 +\n",
        "4096 F 2\r\n4096 4096 +\r\n8192 0 -\r\n8192 1 ?\r\n",
        "0 G\n0 9223372036854775807 +",
    ];
    MAPS.iter().map(|map| map.as_bytes().to_vec()).collect()
}

/// LVM's tables, and lines of all targets with all their arguments.
pub fn dm_table() -> Vec<Vec<u8>> {
    const LINES: &[&str] = &[
        "0 8 linear a 0",
        "0 1024 linear b 8\n1024 8 error\n1032 8 zero",
        "0 64 striped 2 8 b 0 b 1024",
        "0 96 striped 3 16 b 0 c 1024 a 0",
        "0 64 delay a 0 10",
        "0 64 delay a 0 10 b 0 20",
        "0 64 delay a 0 10 b 8 20 c 16 30",
        "0 64 flakey a 0 5 1",
        "0 64 flakey a 0 5 1 1 drop_writes",
        "0 64 flakey b 0 5 1 2 error_reads error_writes",
        "0 64 flakey b 0 5 1 5 corrupt_bio_byte 32 r 1 0",
        "0 64 flakey b 0 5 1 4 random_read_corrupt 500000000 random_write_corrupt 1",
        "0 64 log-writes a b",
        "0 64 snapshot-origin a",
        "0 64 snapshot a b P 8",
        "0 64 snapshot a b N 16",
        "0 64 snapshot a b PO 8 2 discard_zeroes_cow discard_passdown_origin",
        "0 64 snapshot-merge a b P 8",
        "# a comment\n\n0 8 linear \"a\" 0\n8 8 linear 'a' 8",
        "0 8 linear a\\x20b 0",
    ];
    let mut seeds: Vec<Vec<u8>> = LINES.iter().map(|line| line.as_bytes().to_vec()).collect();
    for (_, tables) in images("lvm-tables", &[".tables"]) {
        let tables = String::from_utf8(tables).expect("a text");
        for table in tables.lines().filter_map(|line| line.split_once(": ")) {
            // The line without its start sector, so that it is a table by itself.
            let word = |word: &str| match word {
                "PV0" | "PV1" => "b".to_owned(),
                word if word.ends_with("-cow") => "b".to_owned(),
                word if word.starts_with("vg-") => "c".to_owned(),
                word => word.to_owned(),
            };
            let words = table.1.split_whitespace().skip(1).map(word);
            let words: Vec<String> = iter::once("0".to_owned()).chain(words).collect();
            seeds.push(words.join(" ").into_bytes());
        }
    }
    seeds
}

/// Stores with no, some, and more exceptions than an area holds, with chunks of 1 to 16 sectors.
pub fn dm_exception_store() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for shift in 0..5_u8 {
        let chunk = Sectors(1 << shift);
        let geometry = Geometry::new(chunk, Sectors(1)).expect("a power of two");
        let bytes = SECTOR << shift;
        let places = bytes / size_of::<Exception>();
        for count in [0, 3, places, places + 2] {
            let mut store = Header::new(geometry, true).as_bytes().to_vec();
            store.resize(bytes, 0);
            for n in 0..count {
                let (area, place) = (n / places, n % places);
                let at = bytes + area * (places + 1) * bytes;
                store.resize(store.len().max(at + bytes), 0);
                let new_chunk = (area * (places + 1) + 2 + place) as u64;
                let exception = Exception::new(n as u64 * 3 % 1000, new_chunk);
                store[at + place * 16..][..16].copy_from_slice(exception.as_bytes());
            }
            if store.len() < 64 << 10 {
                seeds.extend([0, 1, 3].map(|flags| join(&[&[flags | shift << 5], &store])));
            }
        }
    }
    seeds
}

/// Changes of the header and the first entries of each block.
pub fn dm_thin_metadata() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![1], vec![3]];
    for block in 0..crate::dm_thin_metadata::blocks() as u8 {
        for at in [4_u16, 8, 16, 20, 24, 32, 40, 64, (BLOCK_BYTES - 8) as u16] {
            let [high, low] = at.to_be_bytes();
            seeds.push(vec![1, block, high, low, 1, 0]);
        }
        seeds.push(vec![3, block, 0, 18, 1, 0, block, 0, 33, 255, 0]);
    }
    seeds
}

/// Each operation with plausible arguments, and several in a row.
pub fn fuse_request() -> Vec<Vec<u8>> {
    let argument = |how: u8, opcode: u8, words: [u64; 5], payload: u8| {
        let arguments = words.map(u64::to_le_bytes).concat();
        let head = [how, opcode, arguments.len() as u8, payload];
        join(&[&head, &arguments, &vec![0x5a; usize::from(payload) * 32]])
    };
    let mut seeds = Vec::new();
    // The upper half of the byte is a node, see `fuse_request::TREE`.
    for how in [0x00, 0x04, 0x0c, 0x10, 0x20, 0x24, 0x34, 0x40, 0x54] {
        let all: Vec<Vec<u8>> = (0..24)
            .map(|opcode| argument(how, opcode, [2, 4096, 8192, 1, 0], u8::from(opcode % 3 == 0)))
            .collect();
        seeds.push(all.concat());
        seeds.extend(all);
    }
    let names: [&[u8]; 6] = [b"d\0", b"v\0", b"l\0", b"r\0", b"gone\0", b"no zero"];
    for (node, name) in [1_u8, 1, 1, 2, 1, 1].into_iter().zip(names) {
        seeds.push(join(&[&[2 | node << 4, 1, name.len() as u8, 0], name]));
    }
    // INIT, and a header with a wrong length.
    seeds.push(join(&[&[0, 0, 16, 0], &[7, 0, 0, 0, 40, 0, 0, 0, 0, 0, 2, 0, 255, 255, 255, 0]]));
    let raw = [[48, 0, 0, 0, 26, 0, 0, 0], [9; 8], [1, 0, 0, 0, 0, 0, 0, 0]].concat();
    seeds.push(join(&[&[1, 0, 48, 0], &raw, &[0; 24]]));
    seeds
}

/// Servers with and without structured replies and sizes of blocks; with replies of each kind to the first read.
pub fn nbd_client() -> Vec<Vec<u8>> {
    let be = |parts: &[(u64, usize)]| {
        let bytes = parts.iter().map(|(value, len)| value.to_be_bytes()[8 - len..].to_vec());
        bytes.collect::<Vec<_>>().concat()
    };
    let option = |option: u64, kind: u64, data: &[u8]| {
        let head = be(&[(REP_MAGIC, 8), (option, 4), (kind, 4), (data.len() as u64, 4)]);
        join(&[&head, data])
    };
    let greeting = be(&[(INIT_PASSWD, 8), (OPTS_MAGIC, 8), (3, 2)]);
    let (ack, info, unsupported) = (1, 3, (1 << 31) + 1);
    // All that can be offered.
    let export = be(&[(0, 2), (1 << 20, 8), (0x1fd, 2)]);
    let sizes = be(&[(3, 2), (512, 4), (4096, 4), (1 << 25, 4)]);
    let go = [option(7, info, &export), option(7, info, &sizes), option(7, ack, &[])].concat();
    let simple = u64::from(SIMPLE_REPLY_MAGIC);
    let chunk = |flags: u64, kind: u64, data: &[u8]| {
        let magic = u64::from(STRUCTURED_REPLY_MAGIC);
        let head = [(magic, 4), (flags, 2), (kind, 2), (0, 8), (data.len() as u64, 4)];
        join(&[&be(&head), data])
    };
    let data = [7; 4096];
    let at = |at: u64| be(&[(at, 8)]);
    let replies = [
        (false, join(&[&be(&[(simple, 4), (0, 4), (0, 8)]), &data])),
        (false, be(&[(simple, 4), (5, 4), (0, 8)])),
        (true, chunk(1, 1, &join(&[&at(4096), &data]))),
        (
            true,
            join(&[
                &chunk(0, 2, &be(&[(4096, 8), (2048, 4)])),
                &chunk(1, 1, &join(&[&at(6144), &data[..2048]])),
            ]),
        ),
        (true, chunk(1, (1 << 15) + 1, &be(&[(108, 4), (2, 2), (0x6e6f, 2)]))),
        (
            true,
            join(&[&chunk(0, (1 << 15) + 2, &be(&[(5, 4), (0, 2), (4096, 8)])), &chunk(1, 0, &[])]),
        ),
        (true, be(&[(simple, 4), (108, 4), (0, 8)])),
        (true, {
            let read = chunk(1, 2, &be(&[(4096, 8), (4096, 4)]));
            let done = |cookie: u64| be(&[(simple, 4), (0, 4), (cookie, 8)]);
            let magic = u64::from(STRUCTURED_REPLY_MAGIC);
            let status = [(magic, 4), (1, 2), (5, 2), (3, 8), (20, 4), (7, 4)];
            let extents = be(&[(4096, 4), (3, 4), (8192, 4), (0, 4)]);
            join(&[&read, &done(1), &done(2), &be(&status), &extents])
        }),
    ];
    let mut seeds = Vec::new();
    for (is_structured, reply) in replies {
        let structured = option(8, if is_structured { ack } else { unsupported }, &[]);
        let context = [option(10, 4, b"\0\0\0\x07base:allocation"), option(10, ack, &[])].concat();
        let context = if is_structured { context } else { Vec::new() };
        let handshake = join(&[&greeting, &structured, &context, &go]);
        seeds.push(join(&[&be(&[(handshake.len() as u64, 2)]), &handshake, &reply]));
    }
    // A server without GO.
    let old = [option(8, unsupported, &[]), option(7, unsupported, &[])].concat();
    let handshake = join(&[&greeting, &old, &be(&[(1 << 20, 8), (0x1fd, 2)])]);
    seeds.push(join(&[&be(&[(handshake.len() as u64, 2)]), &handshake]));
    seeds
}

/// Each option, well-formed, in pieces and in one piece.
pub fn nbd_handshake() -> Vec<Vec<u8>> {
    let name = |name: &str| join(&[&(name.len() as u32).to_be_bytes(), name.as_bytes()]);
    let info = |export: &str, items: &[u16]| {
        let items: Vec<u8> = items.iter().flat_map(|item| item.to_be_bytes()).collect();
        join(&[&name(export), &(items.len() as u16 / 2).to_be_bytes(), &items])
    };
    let meta = |queries: &[&str]| {
        let queries: Vec<u8> = queries.iter().flat_map(|query| name(query)).collect();
        join(&[&name("md0"), &1_u32.to_be_bytes(), &queries])
    };
    let options: Vec<(u32, Vec<u8>)> = vec![
        (2, vec![]),
        (3, vec![]),
        (5, vec![]),
        (6, info("md0", &[0, 1, 2, 3])),
        (8, vec![]),
        (9, meta(&["base:"])),
        (10, meta(&["base:allocation"])),
        (6, info("nobody", &[3])),
        (7, info("md0", &[3])),
        (7, info("", &[])),
        (1, b"md0".to_vec()),
    ];
    let options: Vec<Vec<u8>> = options
        .into_iter()
        .map(|(number, data)| {
            let len = data.len() as u32;
            join(&[&OPTS_MAGIC.to_be_bytes(), &number.to_be_bytes(), &len.to_be_bytes(), &data])
        })
        .collect();
    let mut seeds = Vec::new();
    for piece in [[0, 0], [6, 0], [255, 255]] {
        for client in 0..4_u32 {
            let head = join(&[&piece, &client.to_be_bytes()]);
            seeds.push(join(&[&head, &options[1..].concat()]));
            seeds.extend(options.iter().map(|option| join(&[&head, option])));
        }
    }
    seeds
}

/// Each command, with each flag, under several terms.
pub fn nbd_transmission() -> Vec<Vec<u8>> {
    let request = |flags: u16, number: u16, offset: u64, length: u32| {
        let bytes = join(&[
            &REQUEST_MAGIC.to_be_bytes(),
            &flags.to_be_bytes(),
            &number.to_be_bytes(),
            &7_u64.to_be_bytes(),
            &offset.to_be_bytes(),
            &length.to_be_bytes(),
        ]);
        assert_eq!(bytes.len(), REQUEST_LEN);
        bytes
    };
    let mut seeds = Vec::new();
    for terms in [[0, 34, 0, 0x6d], [3, 34, 0x0d, 0xff], [3, 0, 0, 3]] {
        for number in 0..9 {
            for flags in [0, 1, 2, 4, 8, 16] {
                seeds.push(join(&[&terms, &request(flags, number, 4096, 8192), &[4, 8, 1]]));
            }
        }
        let all: Vec<u8> = (0..8).flat_map(|number| request(0, number, 0, 512)).collect();
        seeds.push(join(&[&terms, &all]));
    }
    seeds
}

/// Disks with each kind of table, and other data that may be at a disk's start.
pub fn partition_table() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (flags, block) in [(1 | 4, 512), (3 | 4, 4096)] {
        // First and last block; in the last table partitions overlap.
        for entries in [&[][..], &[(6, 7)], &[(6, 7), (8, 8), (9, 10)], &[(6, 8), (7, 9)]] {
            seeds.push(join(&[&[flags], &gpt(block, entries)]));
        }
    }
    let linux = (0x83, 8, 16);
    for entries in [&[linux][..], &[linux, (5, 32, 64)], &[(0xee, 1, 127)], &[(0x0f, 32, 64)]] {
        let mut disk = mbr(entries);
        disk.resize(32 * SECTOR, 0);
        // The chain of an extended partition: one logical partition, then another.
        disk.extend(mbr(&[(0x83, 2, 6), (5, 16, 16)]));
        disk.resize(48 * SECTOR, 0);
        disk.extend(mbr(&[(0x83, 2, 8)]));
        seeds.push(join(&[&[0], &disk]));
    }
    let magics: [(usize, &[u8]); 4] =
        [(4086, b"SWAPSPACE2"), (0, b"XFSB"), (1080, b"\x53\xef"), (512, b"LABELONE")];
    for (at, magic) in magics {
        seeds.push(join(&[&[0], &vec![0; at], magic]));
    }
    for (_, bytes) in images("md", &["raid1-clean/superblock.bin", "old-raid5/superblock.bin"]) {
        seeds.push(join(&[&[0], &bytes]));
        seeds.push(join(&[&[0], &vec![0; 4096], &bytes]));
    }
    seeds
}

/// The first labels of golden pools: their lists, the labels with their first uberblocks, and all lists of a pool.
pub fn zfs_label() -> Vec<Vec<u8>> {
    use crate::zfs_label::{DEVICES, LABEL, LIST, RING};
    let mut seeds = Vec::new();
    for (path, map) in images("zfs", &[".map"]) {
        let map = String::from_utf8(map).expect("a text");
        let bin = fs::read(path.with_file_name("image.bin")).expect("image.bin");
        let mut labels: Vec<Vec<u8>> = Vec::new();
        for line in map.lines() {
            let words: Vec<&str> = line.split(' ').skip(1).collect();
            let numbers: Vec<usize> =
                words.iter().map(|word| word.parse().expect("a number")).collect();
            match numbers[..] {
                [_, _] => labels.push(vec![0; LABEL_BYTES]),
                [index, at, len, source] if at + len <= LABEL_BYTES => {
                    labels[index][at..at + len].copy_from_slice(&bin[source..source + len]);
                }
                _ => {}
            }
        }
        let mut all = vec![DEVICES];
        for label in &labels {
            let list = NvList::parse(&label[PHYS_OFFSET..]).expect("a golden label").encode();
            let len = (list.len() as u16).to_be_bytes();
            // The slot of the newest uberblock in them comes first.
            let ring =
                label[RING_OFFSET..].chunks(RING).rev().find(|ring| ring.iter().any(|b| *b != 0));
            seeds.push(join(&[&[LIST], &list]));
            seeds.push(join(&[&[LABEL], &len, &list, ring.unwrap_or_default()]));
            all.extend(join(&[&len, &list]));
        }
        seeds.push(all);
    }
    seeds
}

/// A sector with these entries: type, start and length in sectors.
fn mbr(entries: &[(u8, u32, u32)]) -> Vec<u8> {
    let mut sector = vec![0; SECTOR];
    for (n, (kind, start, len)) in entries.iter().enumerate() {
        let entry = &mut sector[446 + 16 * n..][..16];
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..16].copy_from_slice(&len.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// The first six and the last six blocks of the smallest disk, with a GPT of 8 entries at both ends that contains these
/// entries: first and last block. The target fills in the checksums.
fn gpt(block: usize, entries: &[(u64, u64)]) -> Vec<u8> {
    const PART: usize = 6;
    let last = crate::partition_table::MIN_BYTES / block - 1;
    let places = 1024_usize.div_ceil(block);
    // The position of a disk's block in the two parts.
    let at =
        |number: usize| block * if number < PART { number } else { number + 2 * PART - 1 - last };
    let mut parts = vec![0; 2 * PART * block];
    parts[..SECTOR].copy_from_slice(&mbr(&[(0xee, 1, last as u32)]));
    for (header, other, table) in [(1, last, 2), (last, 1, last - places)] {
        for (n, (first, last)) in entries.iter().enumerate() {
            let entry = &mut parts[at(table) + n * 128..][..128];
            entry[..32].fill(0xa0 + n as u8);
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&last.to_le_bytes());
            entry[56..62].copy_from_slice(b"r\0o\0t\0");
        }
        let numbers = [
            (24, header),
            (32, other),
            (40, places + 2),
            (48, last - places - 1),
            (56, 77),
            (72, table),
            (80, 8 | 128 << 32),
        ];
        let header = &mut parts[at(header)..][..92];
        header[..8].copy_from_slice(b"EFI PART");
        header[8..12].copy_from_slice(&0x1_0000_u32.to_le_bytes());
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        for (offset, number) in numbers {
            header[offset..offset + 8].copy_from_slice(&(number as u64).to_le_bytes());
        }
    }
    parts
}

/// Rings of several sizes, with and without indirect tables, event indexes and an inflight region.
pub fn vhost_ring() -> Vec<Vec<u8>> {
    use crate::vhost_ring::{EVENT_IDX, INDIRECT, INFLIGHT, INFLIGHT_BYTES};
    let choices =
        [(0, 3), (EVENT_IDX, 4), (INDIRECT, 2), (INDIRECT | EVENT_IDX, 3), (0, 6), (EVENT_IDX, 5)];
    let mut seeds = Vec::new();
    for (flags, shift) in choices {
        let memory = crate::vhost_guest::memory(0x1000, 1 << shift, flags & INDIRECT != 0);
        seeds.push(join(&[&[flags, shift, 0, 0], &memory]));
        // Version and size; the former process has taken the first request.
        let mut region = vec![0; INFLIGHT_BYTES];
        region[8..12].copy_from_slice(&join(&[&[1, 0], &(1_u16 << shift).to_le_bytes()]));
        region[16] = 1;
        seeds.push(join(&[&[flags | INFLIGHT, shift, 0, 0], &region, &memory]));
    }
    seeds
}

/// What libblkio's driver and user-mode Linux send (recorded), and QEMU.
pub fn vhost_message() -> Vec<Vec<u8>> {
    use crate::vhost_message::{EVENT, MEMORY, NOTHING, SOCKET};
    let numbers = |numbers: &[u64]| -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    };
    let state = |index: u32, number: u32| join(&[&index.to_ne_bytes(), &number.to_ne_bytes()]);
    let piece = |what: u8, number: u32, flags: u32, body: &[u8]| {
        let header = [number, flags, body.len() as u32].map(u32::to_ne_bytes).concat();
        join(&[&[what, (header.len() + body.len()) as u8], &header, body])
    };
    // The ring is at the begin of the memory.
    let [_, descriptors, used, _] = crate::vhost_guest::places(64);
    let ring = |index: u32, user: u64| {
        let places = [descriptors as u64, used as u64, 0].map(|at| user + at);
        join(&[&state(index, 0), &numbers(&places), &numbers(&[0])])
    };
    let user = 0x7fc1_b166_b000_u64;
    let config = join(&[&[0; 4], &60_u32.to_ne_bytes(), &[0; 64]]);
    let mut driver = vec![
        piece(NOTHING, 3, 1, &[]),
        piece(NOTHING, 1, 1, &[]),
        piece(NOTHING, 2, 1, &numbers(&[0x1_6000_7240])),
        piece(NOTHING, 15, 1, &[]),
        piece(NOTHING, 16, 1, &numbers(&[0x8209])),
        piece(NOTHING, 17, 9, &[]),
        piece(NOTHING, 36, 9, &[]),
        piece(NOTHING, 24, 9, &config),
        piece(MEMORY, 37, 9, &numbers(&[0, user, 0x7640, user, 0])),
    ];
    for index in 0..2 {
        driver.extend([
            piece(NOTHING, 8, 9, &state(index, 64)),
            piece(NOTHING, 10, 9, &state(index, 0)),
            piece(NOTHING, 9, 9, &ring(index, user)),
            piece(EVENT, 12, 9, &numbers(&[index.into()])),
            piece(EVENT, 13, 9, &numbers(&[index.into()])),
            piece(NOTHING, 18, 9, &state(index, 1)),
        ]);
    }
    driver.push(piece(NOTHING, 38, 9, &numbers(&[0, user, 0x7640, user, 0])));
    // Of two regions one is used; sockets in the place of event descriptors.
    let table = join(&[&[1, 0, 0, 0, 0, 0, 0, 0], &numbers(&[0, 0x1_0000, user, 0]), &[0; 32]]);
    let kernel = [
        piece(NOTHING, 3, 1, &[]),
        piece(NOTHING, 1, 1, &[]),
        piece(NOTHING, 15, 1, &[]),
        piece(NOTHING, 16, 1, &numbers(&[0x0228])),
        piece(SOCKET, 21, 9, &[]),
        piece(NOTHING, 2, 9, &numbers(&[0x1_7000_7240])),
        piece(MEMORY, 5, 9, &table),
        piece(NOTHING, 8, 9, &state(0, 64)),
        piece(NOTHING, 10, 9, &state(0, 0)),
        piece(EVENT, 12, 9, &numbers(&[0])),
        piece(SOCKET, 13, 9, &numbers(&[0])),
        piece(NOTHING, 9, 9, &ring(0, user)),
        piece(NOTHING, 18, 9, &state(0, 1)),
    ];
    let inflight = |size: u64| join(&[&numbers(&[size, 0]), &[1, 0, 64, 0, 0, 0, 0, 0]]);
    let machine = [
        piece(NOTHING, 3, 1, &[]),
        piece(NOTHING, 1, 1, &[]),
        piece(NOTHING, 16, 1, &numbers(&[0xb229])),
        piece(NOTHING, 2, 1, &numbers(&[0x1_7000_7240])),
        piece(NOTHING, 31, 1, &inflight(0)),
        piece(MEMORY, 32, 9, &inflight(0x1000)),
        piece(MEMORY, 5, 9, &join(&[&[1, 0, 0, 0, 0, 0, 0, 0], &numbers(&[0, 0x1_0000, user, 0])])),
        piece(NOTHING, 8, 1, &state(0, 64)),
        piece(NOTHING, 10, 1, &state(0, 0)),
        piece(NOTHING, 9, 1, &ring(0, user)),
        piece(EVENT, 12, 1, &numbers(&[0])),
        piece(EVENT, 13, 1, &numbers(&[0])),
        piece(EVENT, 14, 1, &numbers(&[0])),
        piece(NOTHING, 18, 9, &state(0, 1)),
        piece(NOTHING, 24, 1, &config),
        piece(NOTHING, 11, 1, &state(0, 0)),
        piece(NOTHING, 34, 9, &[]),
    ];
    vec![driver.concat(), kernel.concat(), machine.concat()]
}
