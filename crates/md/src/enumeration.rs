//! Every small RAID 10, every range of a few stripes, through the array as it runs.
//!
//! The members only record which sectors each command touches. The sectors that an operation must
//! touch follow from md(4)'s definition of the layouts; the two must be equal: no sector missing,
//! none outside, none twice.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ashlar_block::{
    Bio, BlockDevice, Buffer, Disk, Gateway, IoFuture, Limits, LocalFuture, Op, Runtime, Sector,
    Sectors,
};
use futures_util::FutureExt;
use uuid::Uuid;

use crate::array::Array;
use crate::assemble::Plan;
use crate::badblocks::BadBlocks;
use crate::membership::rdev::{Rdev, State};
use crate::membership::slots::Place;
use crate::ondisk::create::{CreateSpec, NewBitmap, NewMember, create};
use crate::ondisk::{DeviceFlags, Level, Superblock, Version};
use crate::personality::Personality;
use crate::raid10::geometry::Geometry;

/// Where data begins on the member in a slot: different on each, so that a missing or wrong offset
/// is noticed.
fn data_offset(slot: usize) -> u64 {
    1000 + 100 * slot as u64
}

type Log = Arc<Mutex<Vec<(Op, usize, u64)>>>;

/// A member that records each sector of each command.
struct Notebook {
    disk: Disk,
    slot: usize,
    log: Log,
}

impl BlockDevice for Notebook {
    fn disk(&self) -> &Disk {
        &self.disk
    }

    fn submit_bio(&self, bio: Bio) -> IoFuture<'_> {
        let mut log = self.log.lock().unwrap();
        log.extend((bio.sector.0..bio.end().0).map(|sector| (bio.op, self.slot, sector)));
        IoFuture::ready(Ok(()))
    }
}

/// A runtime that runs no other task.
struct Alone;

impl Runtime for Alone {
    fn now_ns(&self) -> u64 {
        0
    }
    fn wall_clock(&self) -> Duration {
        Duration::ZERO
    }
    fn sleep(&self, _: Duration) -> LocalFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
    fn spawn(&self, task: LocalFuture<'static, ()>) {
        drop(task);
    }
}

/// Any superblock: its geometry is not used.
fn any_superblock() -> Superblock {
    let member = NewMember {
        device: Sectors(1 << 20),
        device_uuid: Uuid::nil(),
        flags: DeviceFlags::default(),
    };
    let spec = CreateSpec {
        version: Version::V1_2,
        level: Level::Raid1,
        layout: None,
        chunk: None,
        raid_devices: 2,
        members: vec![Some(member), Some(member)],
        size: None,
        data_offset: None,
        set_uuid: Uuid::nil(),
        name: "x".into(),
        ctime: 1,
        assume_clean: true,
        bitmap: NewBitmap::None,
        write_behind: 0,
        daemon_sleep: 5,
        ppl: false,
        bad_block_log: false,
        numbers: Default::default(),
    };
    create(&spec).unwrap().remove(0).unwrap().superblock
}

fn array(personality: Personality, disks: usize, dev: Sectors, sb: &Superblock) -> (Gateway, Log) {
    let log = Log::default();
    let members = (0..disks).map(|slot| {
        let limits = Limits {
            max_hw_discard: Sectors(1 << 30),
            max_write_zeroes: Sectors(1 << 30),
            ..Limits::default()
        };
        let disk = Disk::new(format!("m{slot}"), Sectors(1 << 20), limits);
        let gateway = Gateway::new(Arc::new(Notebook { disk, slot, log: log.clone() }));
        let mut own = sb.clone();
        (own.dev_number, own.data_size) = (slot as u32, dev);
        own.data_offset = Sector(data_offset(slot));
        let bad = BadBlocks::none();
        let rdev = Rdev::new(gateway, format!("m{slot}"), &own, State::IN_SYNC, bad);
        (rdev, Place::Slot(slot))
    });
    let plan = Plan {
        personality,
        members: members.collect(),
        // Empty, so that none are written.
        superblocks: Vec::new(),
        freshest: Box::new(sb.clone()),
        read_only: false,
        in_sync_to: Sectors::MAX,
        forced: false,
        bitmap: None,
        replayed: Vec::new(),
        reshape: None,
        notes: Vec::new(),
    };
    (Gateway::new(Array::start(plan, "md0", Arc::new(Alone))), log)
}

/// The copies of each sector by md(4): (slot, sector of the member's data area).
fn places(
    near: u64,
    far: u64,
    offset: bool,
    disks: u64,
    chunk: u64,
    rows: u64,
) -> Vec<Vec<(usize, u64)>> {
    // The device is cut into `far` sections with equal numbers of rows; without far copies it is one.
    let section = rows / far;
    let mut table = Vec::new();
    for c in 0..section * disks / near {
        for within in 0..chunk {
            let mut copies = Vec::new();
            for n in 0..near {
                let (row, disk) = ((c * near + n) / disks, (c * near + n) % disks);
                for f in 0..far {
                    let on = (disk + f * near) % disks;
                    let at = if offset { row * far + f } else { f * section + row };
                    copies.push((on as usize, at * chunk + within));
                }
            }
            table.push(copies);
        }
    }
    table
}

fn submit(volume: &Gateway, bio: Bio) {
    volume.submit(bio).now_or_never().expect("nothing waits").expect("nothing fails");
}

fn check_all_ranges(near: u64, far: u64, offset: bool, disks: u64, sb: &Superblock) -> usize {
    const CHUNK: u64 = 2;
    let word = (far << 8 | near) as u32 | if offset { 1 << 16 } else { 0 };
    // One row more than three stripes; for far layouts in each section.
    let rows = 4 * far;
    let dev = Sectors(rows * CHUNK);
    let Ok(geometry) = Geometry::new(word, disks as usize, Sectors(CHUNK), dev) else { return 0 };
    let table = places(near, far, offset, disks, CHUNK, rows);
    assert_eq!(geometry.size().0, table.len() as u64, "n{near} f{far} {offset} on {disks}");
    let size = table.len() as u64;
    let (volume, log) = array(Personality::Raid10(geometry), disks as usize, dev, sb);
    let mut data = Buffer::zeroed(size as usize * 512);
    for start in 0..size {
        for end in start + 1..=size {
            let context = || format!("n{near} f{far} {offset} on {disks}: [{start}, {end})");
            let mut want: Vec<(usize, u64)> = table[start as usize..end as usize]
                .iter()
                .flatten()
                .map(|(slot, sector)| (*slot, sector + data_offset(*slot)))
                .collect();
            want.sort_unstable();
            let (at, len) = (Sector(start), Sectors(end - start));
            let bytes = len.bytes() as usize;
            let bios = [
                Bio::discard(at, len),
                Bio::write_zeroes(at, len),
                Bio::write(at, [data.segment(0..bytes)]),
            ];
            for bio in bios {
                let op = bio.op;
                submit(&volume, bio);
                let mut got: Vec<_> = log.lock().unwrap().drain(..).collect();
                assert!(got.iter().all(|entry| entry.0 == op), "{}", context());
                got.sort_unstable_by_key(|&(_, slot, sector)| (slot, sector));
                let got: Vec<_> = got.into_iter().map(|(_, slot, sector)| (slot, sector)).collect();
                assert!(got == want, "{op:?} {}: {got:?}, not {want:?}", context());
            }
            submit(&volume, Bio::read(at, [data.segment(0..bytes)]));
            // One copy of each sector, in order.
            let got: Vec<_> = log.lock().unwrap().drain(..).collect();
            assert_eq!(got.len() as u64, len.0, "{}", context());
            for ((op, slot, sector), copies) in got.iter().zip(&table[start as usize..]) {
                let place = (*slot, sector - data_offset(*slot));
                assert!(*op == Op::Read && copies.contains(&place), "read {}", context());
            }
        }
    }
    1
}

#[test]
fn every_range_of_every_small_raid10_touches_exactly_its_copies() {
    let sb = any_superblock();
    let mut arrays = 0;
    for disks in 2..=7 {
        for near in 1..=disks {
            for far in 1..=disks / near {
                arrays += check_all_ranges(near, far, false, disks, &sb);
                if far > 1 {
                    arrays += check_all_ranges(near, far, true, disks, &sb);
                }
            }
        }
    }
    assert!(arrays > 50, "only {arrays} arrays were enumerated");
}
