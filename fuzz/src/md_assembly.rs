//! A healthy member of an array beside one whose superblock is hostile: whatever it says, in memory that does not depend on it, the array is
//! refused, or starts and takes writes, also after the next start; and the healthy member keeps a superblock that can be used.
//!
//! Input: a byte of flags; then changes of the superblock that the second member had: 2 bytes of place, 4 bytes of data. The checksum is corrected.

use std::fs;

use ashlar_block::units::{Sector, Sectors};
use ashlar_block::{Buffer, Flags, Gateway};
use ashlar_md::create::{NewDevice, create};
use ashlar_md::ondisk::create::{CreateSpec, DEFAULT_DAEMON_SLEEP, NewBitmap, NewMember};
use ashlar_md::ondisk::superblock_0_90::{self, Block090};
use ashlar_md::ondisk::superblock_1::Block1;
use ashlar_md::ondisk::{DeviceFlags, Level, Version};
use ashlar_md::{Array, AssembleError, Candidate, Options, plan, probe};
use ashlar_sim::{Media, Sim, SimDisk};
use uuid::Uuid;
use zerocopy::IntoBytes;

const DISK: Sectors = Sectors(1024);
const OLD: Version = Version::V0_90;
/// The array has a bitmap, except with version 0.90.
const BITMAP: u8 = 4;
/// The array has a bad block log, likewise.
const LOG: u8 = 8;
/// The resident memory of the process at most, whatever other tests run: an allocation of the size that a field of 32 bits names is larger.
const MOST_KIB: u64 = 1 << 20;

/// Checks one input against the module text; returns whether the second member was accepted.
pub fn run(data: &[u8]) -> bool {
    let Some((flags, changes)) = data.split_first() else { return false };
    let version = [Version::V1_0, Version::V1_1, Version::V1_2, OLD][usize::from(flags & 3)];
    let media = [(); 2].map(|()| Media::new(DISK));
    let sim = Sim::new(1);
    let accepted = sim.block_on(async {
        let disks = make(&media, version, *flags).await;
        let at = version.super_offset(DISK).expect("large enough");
        let mut block = media[1].peek_range(at, Sectors(8));
        for change in changes.as_chunks::<6>().0 {
            let [low, high, bytes @ ..] = *change;
            let place = usize::from(u16::from_le_bytes([low, high])) % (block.len() - 3);
            block[place..place + 4].copy_from_slice(&bytes);
        }
        seal(&mut block, version);
        media[1].poke(at, &block);
        let accepted = used(&sim, &disks).await;
        if accepted.is_some() {
            assert!(used(&sim, &disks).await.is_some(), "what was started starts again");
        }
        assert!(probe(&disks[0].gateway()).await.is_ok(), "the healthy superblock is damaged");
        accepted
    });
    // Where there is no such file nothing is known.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next());
    let peak = peak.and_then(|kib| kib.parse().ok()).unwrap_or(0);
    assert!(peak <= MOST_KIB, "{peak} KiB of memory");
    accepted == Some(true)
}

/// Starts the array, writes to it and stops it. `None` if it is refused; otherwise whether both disks are members.
async fn used(sim: &Sim, disks: &[SimDisk; 2]) -> Option<bool> {
    let mut candidates = Vec::new();
    for disk in disks {
        let gateway = disk.gateway();
        if let Ok(Some(sb)) = probe(&gateway).await {
            candidates.push(Candidate { path: disk.disk().name().to_owned(), gateway, sb });
        }
    }
    let candidates = ashlar_md::group(candidates).remove(&Uuid::from_u128(7))?;
    let made = plan(candidates.clone(), &Options { run: true, ..Options::default() }).await;
    let array = match made {
        Ok(plan) => Array::start(plan, "md0", sim.runtime()),
        Err(AssembleError::OnlyRead(_)) => {
            read(sim, candidates).await;
            return None;
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    let volume = Gateway::new(array.clone());
    let mut data = Buffer::from_slice(&[1; 4096]);
    let written = volume.write(Sector(0), &mut data, Flags::empty()).await;
    assert_eq!(written, Ok(()), "the array starts, and cannot be written");
    let got = volume.read(Sector(0), Sectors(8)).await;
    assert!(got.is_ok_and(|got| got.as_slice() == [1; 4096]), "what was written is not read");
    let members = array.status().await.members;
    assert_eq!(array.stop().await, Ok(()), "the array cannot be stopped");
    Some(members.iter().filter(|member| member.index.is_some() && !member.faulty).count() == 2)
}

/// Reads from an array with parity, if it starts.
async fn read(sim: &Sim, candidates: Vec<Candidate>) {
    let options = Options { run: true, read_only: true, force: true };
    let Ok(plan) = plan(candidates, &options).await else { return };
    let array = Array::start(plan, "md0", sim.runtime());
    let volume = Gateway::new(array.clone());
    let size = volume.capacity();
    for at in [Sector(0), Sector(size.0.saturating_sub(8))] {
        // Whatever it returns.
        drop(volume.read(at, Sectors(8).min(size)).await);
    }
    assert_eq!(array.stop().await, Ok(()), "the array cannot be stopped");
}

async fn make(media: &[Media; 2], version: Version, flags: u8) -> [SimDisk; 2] {
    let disks = [0, 1].map(|n: usize| SimDisk::over(format!("d{n}"), media[n].clone()));
    if version == OLD {
        for (number, medium) in (0..).zip(media) {
            let place = version.super_offset(DISK).expect("large enough");
            medium.poke(place, old(number).as_bytes());
        }
        return disks;
    }
    let member = |n: u128| {
        let device_uuid = Uuid::from_u128(100 + n);
        Some(NewMember { device: DISK, device_uuid, flags: DeviceFlags::default() })
    };
    let device = |disk: &SimDisk| {
        let path = disk.disk().name().to_owned();
        Some(NewDevice { gateway: disk.gateway(), path, known_zero: true, wiped: Vec::new() })
    };
    let bitmap = flags & BITMAP != 0;
    let spec = CreateSpec {
        version,
        level: Level::Raid1,
        layout: None,
        chunk: None,
        raid_devices: 2,
        members: vec![member(0), member(1)],
        size: None,
        data_offset: (version != Version::V1_0).then_some(Sectors(256)),
        set_uuid: Uuid::from_u128(7),
        name: "fuzz:0".into(),
        ctime: 1_700_000_000,
        assume_clean: true,
        bitmap: if bitmap { NewBitmap::Internal { chunk: None } } else { NewBitmap::None },
        write_behind: 0,
        daemon_sleep: DEFAULT_DAEMON_SLEEP,
        ppl: false,
        bad_block_log: flags & LOG != 0,
        numbers: Default::default(),
    };
    create(&spec, &disks.each_ref().map(device)).await.expect("an array");
    disks
}

/// The 0.90 superblock of a member of a RAID1 of two.
fn old(number: u32) -> Box<Block090> {
    let mut block = Block090::from_bytes(&[0; superblock_0_90::BLOCK_SIZE]).expect("long enough");
    block.md_magic = ashlar_md::ondisk::MAGIC.into();
    block.minor_version = 90.into();
    block.set_set_uuid(Uuid::from_u128(7).into_bytes());
    block.level = 1.into();
    block.size = 256.into();
    block.raid_disks = 2.into();
    block.set_events(40);
    for (number, entry) in (0..2).zip(&mut block.disks) {
        (entry.number, entry.raid_disk) = (number.into(), number.into());
        entry.state = (superblock_0_90::disk::ACTIVE | superblock_0_90::disk::SYNC).into();
    }
    block.this_disk = block.disks[number as usize].clone();
    block.set_resync_offset(u64::MAX);
    block.seal();
    block
}

fn seal(bytes: &mut [u8], version: Version) {
    if version == OLD {
        if let Some(mut block) = Block090::from_bytes(bytes) {
            block.seal();
            bytes.copy_from_slice(block.as_bytes());
        }
    } else if let Some(mut block) = Block1::from_bytes(bytes) {
        block.seal();
        bytes.copy_from_slice(block.as_bytes());
    }
}
