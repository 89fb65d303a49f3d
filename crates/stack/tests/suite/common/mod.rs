//! Stacks on simulated disks.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

use ashlar_block::{Gateway, Sector, Sectors};
use ashlar_md::create::{NewDevice, create};
use ashlar_md::ondisk::create::{CreateSpec, DEFAULT_DAEMON_SLEEP, NewBitmap, NewMember};
use ashlar_md::ondisk::superblock_0_90::{self, Block090, state};
use ashlar_md::ondisk::{DeviceFlags, Level, MAGIC, Version};
use ashlar_sim::{Media, Sim, SimDisk};
use ashlar_stack::assemble::{Disk, Options, Stack, assemble, probe_all};
use ashlar_stack::devices::Role;
use uuid::Uuid;
use zerocopy::IntoBytes;

/// A mebibyte.
pub const MIB: Sectors = Sectors(2048);

/// Disks `d0`, `d1` and so on, of `mib` MiB each.
pub fn media(count: usize, mib: u64) -> Vec<Media> {
    (0..count).map(|_| Media::new(Sectors(mib * MIB.0))).collect()
}

/// Assembles the disks as after a boot.
pub async fn boot(sim: &Sim, media: &[Media], options: Options) -> Stack {
    let disk = |(n, media): (usize, &Media)| Disk {
        path: PathBuf::from(format!("/images/d{n}.img")),
        gateway: SimDisk::over(format!("d{n}"), media.clone()).gateway(),
    };
    let disks = media.iter().enumerate().map(disk).collect();
    assemble(&probe_all(disks).await, options, &sim.runtime()).await
}

/// The default options.
pub fn plain() -> Options {
    Options::default()
}

/// The options to start arrays that lack members.
pub fn run() -> Options {
    let md = ashlar_md::Options { run: true, read_only: false, force: false };
    Options { md, ..Options::default() }
}

/// Writes an MBR with these entries: type, start and length in sectors.
pub fn write_mbr(media: &Media, entries: &[(u8, u32, u32)]) {
    media.poke(Sector::ZERO, &mbr(entries));
}

/// A sector with these entries.
pub fn mbr(entries: &[(u8, u32, u32)]) -> Vec<u8> {
    let mut sector = vec![0; 512];
    for (n, (kind, start, len)) in entries.iter().enumerate() {
        let entry = &mut sector[446 + 16 * n..][..16];
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..16].copy_from_slice(&len.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// The device with this name.
pub fn device(stack: &Stack, name: &str) -> Gateway {
    let names: Vec<String> = stack.devices.all().into_iter().map(|device| device.name).collect();
    let found = stack.devices.find(name);
    found.unwrap_or_else(|| panic!("no {name} among {names:?}")).gateway().clone()
}

/// The names of the exported volumes.
pub fn volumes(stack: &Stack) -> Vec<String> {
    stack.devices.volumes().into_iter().map(|device| device.name).collect()
}

/// The use of a device.
pub fn role(stack: &Stack, name: &str) -> Role {
    stack.devices.find(name).unwrap().role
}

/// All notes, as logged.
pub fn notes(stack: &Stack) -> Vec<String> {
    stack.notes.iter().map(ToString::to_string).collect()
}

/// Makes a RAID 1 `host:NAME` of these devices.
pub async fn mirror(devices: &[Gateway], name: u32, version: Version) {
    let spec = CreateSpec {
        version,
        level: Level::Raid1,
        layout: None,
        chunk: None,
        raid_devices: devices.len() as u32,
        members: (0..).zip(devices).map(|(n, device)| Some(new_member(name, n, device))).collect(),
        size: None,
        // Small, so that arrays fit small disks whatever the version's default is.
        data_offset: matches!(version, Version::V1_1 | Version::V1_2).then_some(Sectors(256)),
        set_uuid: Uuid::from_u128(0x1000 + u128::from(name)),
        name: format!("host:{name}"),
        ctime: 1_700_000_000,
        assume_clean: true,
        bitmap: NewBitmap::None,
        write_behind: 0,
        daemon_sleep: DEFAULT_DAEMON_SLEEP,
        ppl: false,
        bad_block_log: false,
        numbers: Default::default(),
    };
    let new = |device: &Gateway| {
        let path = device.disk().name().to_owned();
        Some(NewDevice { gateway: device.clone(), path, known_zero: false, wiped: Vec::new() })
    };
    create(&spec, &devices.iter().map(new).collect::<Vec<_>>()).await.unwrap();
}

/// Type of a partition for Linux RAID.
pub const RAID: u8 = 0xfd;

/// Two partitions of 8 MiB on each of two disks; mirrors of the first ones and of the second ones.
pub async fn two_mirrors(sim: &Sim) -> Vec<Media> {
    let media = media(2, 20);
    for media in &media {
        write_mbr(media, &[(RAID, 2048, 16384), (RAID, 18432, 16384)]);
    }
    let stack = boot(sim, &media, plain()).await;
    mirror(&[device(&stack, "d0.img1"), device(&stack, "d1.img1")], 0, Version::V1_2).await;
    mirror(&[device(&stack, "d0.img2"), device(&stack, "d1.img2")], 1, Version::V1_2).await;
    media
}

/// Makes a mirror with metadata 0.90 of the `len` sectors of two disks from `start` on; the array
/// uses as much of them as it can.
pub fn old_mirror(media: &[Media], start: Sector, len: Sectors) {
    let at = Version::V0_90.super_offset(len).unwrap();
    for (this, medium) in media.iter().enumerate() {
        let mut block = Block090::from_bytes(&[0; 4096]).unwrap();
        block.md_magic = MAGIC.into();
        block.minor_version = 90.into();
        (block.set_uuid0, block.set_uuid3) = (7.into(), 9.into());
        block.level = 1.into();
        block.size = ((at.0 / 2) as u32).into();
        (block.nr_disks, block.raid_disks) = (2.into(), 2.into());
        (block.active_disks, block.working_disks) = (2.into(), 2.into());
        block.state = state::CLEAN.into();
        block.set_events(40);
        for (number, entry) in (0..).zip(&mut block.disks[..2]) {
            (entry.number, entry.raid_disk) = (number.into(), number.into());
            entry.state = (superblock_0_90::disk::ACTIVE | superblock_0_90::disk::SYNC).into();
        }
        block.this_disk = block.disks[this].clone();
        block.set_resync_offset(u64::MAX);
        block.seal();
        medium.poke(start + Sectors(at.0), block.as_bytes());
    }
}

fn new_member(array: u32, number: u32, device: &Gateway) -> NewMember {
    NewMember {
        device: device.capacity(),
        device_uuid: Uuid::from_u128(u128::from(array) << 32 | u128::from(number)),
        flags: DeviceFlags::default(),
    }
}

/// The bytes of a sector.
pub const SECTOR: usize = 512;

/// The devices of a golden pool.
pub fn golden(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/zfs").join(name);
    let map = fs::read_to_string(folder.join("image.map")).expect("image.map");
    let bin = fs::read(folder.join("image.bin")).expect("image.bin");
    let mut devices: Vec<Vec<u8>> = Vec::new();
    for line in map.lines() {
        let numbers = line.split(' ').skip(1).map(|number| number.parse().expect("a number"));
        match numbers.collect::<Vec<usize>>()[..] {
            [_, bytes] => devices.push(vec![0; bytes]),
            [index, at, len, source] => {
                devices[index][at..at + len].copy_from_slice(&bin[source..source + len]);
            }
            _ => panic!("{name}: {line}"),
        }
    }
    devices
}

/// A disk with these bytes.
pub fn disk(bytes: &[u8]) -> Media {
    let media = Media::new(Sectors::from_bytes_floor(bytes.len() as u64));
    for (n, sector) in bytes.chunks_exact(SECTOR).enumerate() {
        if sector.iter().any(|byte| *byte != 0) {
            media.poke(Sector(n as u64), sector);
        }
    }
    media
}
