//! Reads that name their copy, through partitions and mapped devices on arrays.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ashlar_block::{Buffer, CopyNumber, Flags, Gateway, Sector, Sectors, Status};
use ashlar_btrfs::scrub::{self, Counters, Problem, ProblemKind, Scrub, Sink};
use ashlar_btrfs::volume::{FileSystem, OpenOptions, Source};
use ashlar_dm::{Context, Device, Devices, Table, text};
use ashlar_md::ondisk::Version;
use ashlar_sim::{Media, Sim};
use ashlar_stack::assemble::Stack;

use crate::common::{boot, device, mbr, media, mirror, plain};

/// Where the data of a member begins.
const DATA: u64 = 256;

struct Arrays<'a>(&'a Stack);

impl Devices for Arrays<'_> {
    fn find(&self, name: &str) -> Option<Gateway> {
        self.0.devices.find(name).map(|device| device.gateway().clone())
    }
}

/// Stacks and media with md0 of two disks, and md1 of three.
async fn arrays(sim: &Sim) -> (Stack, Vec<Media>) {
    let media = media(5, 20);
    let stack = boot(sim, &media, plain()).await;
    let disks: Vec<Gateway> = (0..5).map(|n| device(&stack, &format!("d{n}.img"))).collect();
    mirror(&disks[..2], 0, Version::V1_2).await;
    mirror(&disks[2..], 1, Version::V1_2).await;
    (boot(sim, &media, plain()).await, media)
}

async fn mapped(sim: &Sim, stack: &Stack, table: &str) -> Gateway {
    let (runtime, origins) = (sim.runtime(), Arc::default());
    let context = Context { devices: &Arrays(stack), runtime, origins };
    let table = Table::load(&text::parse(table).unwrap(), &context).await.unwrap();
    Gateway::new(Device::start("dm-0", table, sim.runtime()).await.unwrap())
}

/// Puts `byte` into a sector of a member's data.
fn poke(medium: &Media, sector: u64, byte: u8) {
    medium.poke(Sector(DATA + sector), &[byte; 512]);
}

async fn named(volume: &Gateway, at: u64, copy: u16) -> Result<u8, Status> {
    let read = volume.read_copy(Sector(at), Sectors(1), CopyNumber(copy)).await;
    read.map(|data| data.as_slice()[0])
}

#[test]
fn a_partition_passes_the_copy_on_to_its_array() {
    let sim = Sim::new(1);
    sim.block_on(async {
        let (stack, media) = arrays(&sim).await;
        let mut table = Buffer::from_slice(&mbr(&[(0x83, 2048, 4096)]));
        device(&stack, "md0").write(Sector::ZERO, &mut table, Flags::empty()).await.unwrap();
        stack.stop().await.unwrap();
        let stack = boot(&sim, &media, plain()).await;
        (0..2).for_each(|n| poke(&media[n], 2048 + 7, n as u8 + 1));
        let part = device(&stack, "md0p1");
        assert_eq!(part.copies(Sector(7), Sectors(1)), 2);
        let found = [named(&part, 7, 1).await, named(&part, 7, 2).await, named(&part, 7, 3).await];
        assert_eq!(found, [Ok(1), Ok(2), Err(Status::Invalid)]);
        stack.stop().await.unwrap();
    });
}

#[test]
fn linear_and_striped_pass_the_copy_on_to_the_array_with_the_sector() {
    let sim = Sim::new(2);
    sim.block_on(async {
        let (stack, media) = arrays(&sim).await;
        let volume =
            mapped(&sim, &stack, "0 1000 linear md0 100\n1000 64 striped 2 8 md0 2000 md1 0").await;
        for (n, medium) in (1..).zip(&media) {
            for sector in [105, 2000, 0] {
                poke(medium, sector, n + 10 * (sector > 1000) as u8);
            }
        }
        let copies = |at, len| volume.copies(Sector(at), Sectors(len));
        let counts =
            [copies(5, 1), copies(1000, 8), copies(1008, 8), copies(1000, 64), copies(990, 20)];
        // A range has as many as the part of it with the most.
        assert_eq!(counts, [2, 2, 3, 3, 3]);
        for (at, found) in [(5, &[1, 2][..]), (1000, &[11, 12]), (1008, &[3, 4, 5])] {
            for (copy, byte) in (1..).zip(found) {
                assert_eq!(named(&volume, at, copy).await, Ok(*byte), "{at} {copy}");
            }
            let none = named(&volume, at, found.len() as u16 + 1).await;
            assert_eq!(none, Err(Status::Invalid), "{at}");
        }
        drop(volume);
        stack.stop().await.unwrap();
    });
}

#[test]
fn a_snapshot_has_the_copies_of_the_device_with_the_chunk() {
    let sim = Sim::new(3);
    sim.block_on(async {
        let (stack, media) = arrays(&sim).await;
        let volume = mapped(&sim, &stack, "0 800 snapshot md0 md1 P 8").await;
        let mut data = Buffer::from_slice(&[9; 512]);
        volume.write(Sector(17), &mut data, Flags::FUA).await.unwrap();
        // The chunk's copy is somewhere on md1.
        let sectors = 0..media[2].capacity().0 - DATA;
        let is_it = |at: &u64| media[2].peek(Sector(DATA + at)) == [9; 512];
        let at = sectors.into_iter().find(is_it).unwrap();
        (2..5).for_each(|n| poke(&media[n], at, n as u8));
        (0..2).for_each(|n| poke(&media[n], 24, n as u8 + 20));
        let copies = |at, len| volume.copies(Sector(at), Sectors(len));
        assert_eq!([copies(17, 1), copies(24, 8), copies(0, 800)], [3, 2, 3]);
        for (at, found) in [(17, &[2, 3, 4][..]), (24, &[20, 21])] {
            for (copy, byte) in (1..).zip(found) {
                assert_eq!(named(&volume, at, copy).await, Ok(*byte), "{at} {copy}");
            }
        }
        assert_eq!(named(&volume, 24, 3).await, Err(Status::Invalid));
        drop(volume);
        stack.stop().await.unwrap();
    });
}

/// Writes the device of a golden image to a volume.
async fn pour(name: &str, volume: &Gateway) {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/images/btrfs");
    let map = fs::read_to_string(images.join(name).join("image.map")).unwrap();
    let bin = fs::read(images.join(name).join("image.bin")).unwrap();
    for line in map.lines().filter_map(|line| line.strip_prefix("copy 0 ")) {
        let numbers: Vec<u64> = line.split(' ').map(|it| it.parse().unwrap()).collect();
        let [at, len, source] = numbers[..] else { panic!("{line}") };
        let (first, end) = (at / 512, (at + len).div_ceil(512));
        let mut data = volume.read(Sector(first), Sectors(end - first)).await.unwrap();
        let start = (at % 512) as usize;
        data.as_mut_slice()[start..start + len as usize]
            .copy_from_slice(&bin[source as usize..(source + len) as usize]);
        volume.write(Sector(first), &mut data, Flags::empty()).await.unwrap();
    }
}

/// The problems that a scrub finds.
#[derive(Default)]
struct Notes(Mutex<Vec<Problem>>);

impl Sink for Notes {
    fn problem(&self, problem: &Problem) {
        self.0.lock().unwrap().push(problem.clone());
    }
}

async fn scrub(sim: &Sim, volume: &Gateway) -> (Vec<Problem>, Counters) {
    let source = Source { name: "md".to_owned(), gateway: volume.clone() };
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    let fs = FileSystem::open(vec![source], options, sim.runtime()).await.unwrap();
    let notes = Notes::default();
    let reports = Scrub::new(fs, scrub::Options::default()).run(&notes).await.unwrap();
    (notes.0.into_inner().unwrap(), reports[0].counters)
}

/// The first sectors of the blocks of data that have a checksum: those that a scrub repairs once every block of
/// the first copy is wrong.
async fn verified_data(sim: &Sim, volume: &Gateway, first: &Media, data: u64) -> Vec<u64> {
    for sector in (0..first.capacity().0 - data).step_by(8) {
        let mut bytes = first.peek(Sector(data + sector));
        if bytes.iter().any(|byte| *byte != 0) && sector > 1 << 13 {
            bytes[1] ^= 1;
            first.poke(Sector(data + sector), &bytes);
        }
    }
    let (problems, counters) = scrub(sim, volume).await;
    assert_eq!(counters.uncorrectable_errors, 0);
    assert!(problems.iter().all(|it| it.copy == CopyNumber(1) && it.is_repaired()));
    let data = problems.iter().filter(|it| it.kind == ProblemKind::Checksum);
    let mut places: Vec<u64> = data.map(|it| it.physical.0 / 512).collect();
    places.sort_unstable();
    places
}

#[test]
fn a_scrub_repairs_what_one_copy_cannot_return_and_no_member_is_failed_for_it() {
    let sim = Sim::new(4);
    sim.block_on(async {
        let media = media(2, 200 + 2);
        let stack = boot(&sim, &media, plain()).await;
        let disks: Vec<Gateway> = (0..2).map(|n| device(&stack, &format!("d{n}.img"))).collect();
        mirror(&disks, 0, Version::V1_2).await;
        let stack = boot(&sim, &media, plain()).await;
        let volume = device(&stack, "md0");
        pour("single-16k", &volume).await;
        let data = verified_data(&sim, &volume, &media[0], DATA).await;
        let [lost, wrong, .., both] = data[..] else { panic!("{data:?}") };
        media[0].fail_reads(DATA + lost..DATA + lost + 8);
        media[1].fail_reads(DATA + both..DATA + both + 8);
        for (medium, sector) in [(&media[1], wrong), (&media[0], both)] {
            let mut bytes = medium.peek(Sector(DATA + sector));
            bytes[3] ^= 1;
            medium.poke(Sector(DATA + sector), &bytes);
        }
        let (mut problems, counters) = scrub(&sim, &volume).await;
        problems.sort_by_key(|it| it.physical);
        let found: Vec<_> = problems
            .iter()
            .map(|it| (it.physical.0 / 512, it.copy.0, it.kind.clone(), it.is_repaired()))
            .collect();
        let read = ProblemKind::Read(Status::Medium);
        let wanted = [
            (lost, 1, read, true),
            (wrong, 2, ProblemKind::Checksum, true),
            // Unreadable on one copy, wrong on the other.
            (both, 0, ProblemKind::Checksum, false),
        ];
        assert_eq!(found, wanted);
        let errors = (counters.read_errors, counters.csum_errors);
        let outcome = (counters.corrected_errors, counters.uncorrectable_errors);
        assert_eq!((errors, outcome), ((1, 2), (2, 1)));
        // The next scrub meets what is left.
        let (problems, _) = scrub(&sim, &volume).await;
        assert_eq!(problems.len(), 1);
        let status = stack.arrays.running()[0].view.status();
        assert!(status.members.iter().all(|member| member.in_sync), "{status:?}");
        drop(volume);
        stack.stop().await.unwrap();
    });
}
