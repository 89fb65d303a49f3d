//! Reads that name their copy: each returns the bytes of one member, whatever the others hold.

use std::sync::Arc;

use ashlar_block::{CopyNumber, Gateway, Sector, Sectors, Status};
use ashlar_md::create::{NewDevice, create};
use ashlar_md::ondisk::{DeviceFlags, Level};
use ashlar_md::{Array, Candidate, Options, SyncRequest, plan, probe};
use ashlar_sim::{Media, Sim, SimDisk};

use crate::common::{
    DATA, Shape, disks, gateway, make, make_with, media, spec, stamped, start, write,
};
use crate::sync::world::{edit, raid1, shapes};

const DISK: Sectors = Sectors(4096);
const RUN: Options = Options { run: true, read_only: false, force: false };
const READ_ONLY: Options = Options { run: true, read_only: true, force: false };

/// Gives each member its own bytes: every sector is stamped with its place and the member's number.
fn tell_apart(media: &[Media]) {
    for (number, medium) in (1..).zip(media) {
        let len = medium.capacity().0 - DATA;
        medium.poke(Sector(DATA), &stamped(0, len, number));
    }
}

/// What the member in `slot` has at a sector of its data area.
fn of(slot: usize, sector: Sector) -> Vec<u8> {
    stamped(sector.0, 1, slot as u8 + 1)
}

async fn named(volume: &Gateway, at: u64, len: u64, copy: u16) -> Result<Vec<u8>, Status> {
    let read = volume.read_copy(Sector(at), Sectors(len), CopyNumber(copy)).await;
    read.map(|data| data.as_slice().to_vec())
}

/// An array on these devices, named `name`.
async fn array_on(sim: &Sim, shape: &Shape, devices: &[Gateway], name: &str) -> Arc<Array> {
    let sizes: Vec<Sectors> = devices.iter().map(Gateway::capacity).collect();
    let new = |device: &Gateway| {
        let (gateway, path) = (device.clone(), device.disk().name().to_owned());
        Some(NewDevice { gateway, path, known_zero: true, wiped: Vec::new() })
    };
    let mut spec = spec(shape, &sizes);
    spec.data_offset = Some(Sectors(64));
    create(&spec, &devices.iter().map(new).collect::<Vec<_>>()).await.unwrap();
    let mut found = Vec::new();
    for device in devices {
        let sb = probe(device).await.unwrap().unwrap();
        let path = device.disk().name().to_owned();
        found.push(Candidate { path, gateway: device.clone(), sb });
    }
    Array::start(plan(found, &RUN).await.unwrap(), name, sim.runtime())
}

#[test]
fn copy_n_of_a_sector_is_what_the_member_with_its_nth_place_has() {
    for shape in shapes() {
        let media = media(shape.members, DISK);
        let sim = Sim::new(1);
        sim.block_on(async {
            let disks = disks(&media);
            make(&shape, &disks).await;
            let array = start(&sim, &disks, &READ_ONLY).await.unwrap();
            tell_apart(&media);
            let volume = gateway(&array);
            let (at, len) = (3, 700);
            let count = array.personality().map(Sector(at)).len() as u16;
            assert_eq!(volume.copies(Sector(at), Sectors(len)), count, "{shape:?}");
            for copy in 1..=count {
                let found = named(&volume, at, len, copy).await.unwrap();
                for (sector, found) in (at..).zip(found.chunks(512)) {
                    let places = array.personality().map(Sector(sector));
                    let place = places[usize::from(copy) - 1];
                    assert!(found == of(place.disk, place.sector), "{shape:?} {copy} {sector}");
                }
            }
            let none = named(&volume, at, len, count + 1).await;
            assert_eq!(none, Err(Status::Invalid), "{shape:?}");
        });
    }
}

#[test]
fn a_member_under_rebuild_has_a_copy_of_what_it_holds() {
    let media = media(3, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        make(&raid1(3), &disks).await;
        // The first member was rebuilt up to sector 64.
        edit(&media[0], |sb| sb.recovery_offset = Some(Sectors(64)));
        let array = start(&sim, &disks, &RUN).await.unwrap();
        // Before the recovery's first window.
        array.request_sync(SyncRequest::Frozen).unwrap();
        tell_apart(&media);
        let volume = gateway(&array);
        let copies = |at, len| volume.copies(Sector(at), Sectors(len));
        assert_eq!([copies(56, 8), copies(60, 8), copies(64, 8)], [3, 2, 2]);
        assert_eq!(named(&volume, 63, 1, 1).await.unwrap(), of(0, Sector(63)));
        assert_eq!(named(&volume, 64, 1, 1).await.unwrap(), of(1, Sector(64)));
        assert_eq!(named(&volume, 64, 1, 2).await.unwrap(), of(2, Sector(64)));
        assert_eq!(named(&volume, 64, 1, 3).await, Err(Status::Invalid));
    });
}

#[test]
fn a_member_that_failed_has_no_copy() {
    let media = media(2, DISK);
    let sim = Sim::new(2);
    sim.block_on(async {
        let disks = disks(&media);
        make(&raid1(2), &disks).await;
        let array = start(&sim, &disks, &RUN).await.unwrap();
        tell_apart(&media);
        let volume = gateway(&array);
        let first = array.status().await.members[0].index.unwrap();
        array.fail(first).await.unwrap();
        assert_eq!(volume.copies(Sector(0), Sectors(8)), 1);
        assert_eq!(named(&volume, 5, 1, 1).await.unwrap(), of(1, Sector(5)));
        assert_eq!(named(&volume, 5, 1, 2).await, Err(Status::Invalid));
    });
}

#[test]
fn a_named_copy_that_cannot_be_read_fails_alone_and_changes_nothing() {
    let media = media(2, DISK);
    let sim = Sim::new(3);
    sim.block_on(async {
        let disks = disks(&media);
        make(&raid1(2), &disks).await;
        let array = start(&sim, &disks, &RUN).await.unwrap();
        array.members().set_max_read_errors(0);
        tell_apart(&media);
        let volume = gateway(&array);
        media[0].fail_reads(DATA + 8..DATA + 9);
        media.iter().for_each(Media::clear_log);
        for _ in 0..3 {
            assert_eq!(named(&volume, 0, 16, 1).await, Err(Status::Medium));
        }
        let commands: Vec<usize> = media.iter().map(|medium| medium.log().len()).collect();
        assert_eq!(commands, [3, 0], "one read each, of this member alone");
        assert_eq!(named(&volume, 8, 1, 2).await.unwrap(), of(1, Sector(8)));
        let status = array.status().await;
        assert!(status.members.iter().all(|member| member.in_sync && member.read_errors == 0));
        // A plain read is what it was: it comes from the good copy, and the bad one is rewritten.
        array.members().set_max_read_errors(20);
        media[1].poke(Sector(DATA), &stamped(0, 64, 1));
        for _ in 0..4 {
            assert!(
                volume.read(Sector(0), Sectors(16)).await.unwrap().as_slice() == stamped(0, 16, 1)
            );
        }
        assert_eq!(named(&volume, 8, 1, 1).await.unwrap(), of(0, Sector(8)));
    });
}

#[test]
fn known_bad_blocks_are_not_read_and_a_write_makes_them_a_copy_again() {
    let media = media(2, DISK);
    let sim = Sim::new(4);
    sim.block_on(async {
        let disks = disks(&media);
        let mut spec = spec(&raid1(2), &[DISK, DISK]);
        spec.bad_block_log = true;
        make_with(&spec, &disks).await;
        let array = start(&sim, &disks, &RUN).await.unwrap();
        let volume = gateway(&array);
        write(&volume, 0, 64, 1).await.unwrap();
        let second = array.status().await.members[1].index.unwrap();
        array.add_bad_blocks(second, &format!("{} 8", DATA + 16)).await.unwrap();
        assert_eq!(volume.copies(Sector(16), Sectors(8)), 2);
        media[1].clear_log();
        assert_eq!(named(&volume, 16, 8, 2).await, Err(Status::Medium));
        assert_eq!(media[1].log().len(), 0);
        assert!(named(&volume, 16, 8, 1).await.unwrap() == stamped(16, 8, 1));
        assert!(named(&volume, 24, 8, 2).await.unwrap() == stamped(24, 8, 1));
        write(&volume, 16, 8, 2).await.unwrap();
        assert!(named(&volume, 16, 8, 2).await.unwrap() == stamped(16, 8, 2));
    });
}

#[test]
fn a_write_mostly_copy_is_read_once_the_writes_behind_it_have_ended() {
    let media = media(2, DISK);
    let sim = Sim::new(5);
    sim.block_on(async {
        let disks = disks(&media);
        let mut spec = spec(&raid1(2), &[DISK, DISK]);
        spec.bitmap = ashlar_md::ondisk::create::NewBitmap::Internal { chunk: None };
        spec.write_behind = 256;
        // It is in the first slot, but ranks last.
        if let Some(member) = spec.members[0].as_mut() {
            member.flags = DeviceFlags { write_mostly: true, failfast: false };
        }
        make_with(&spec, &disks).await;
        let array = start(&sim, &disks, &RUN).await.unwrap();
        let volume = gateway(&array);
        media[0].slow_down(200);
        write(&volume, 0, 8, 2).await.unwrap();
        let slow = media[0].peek(Sector(DATA)).to_vec();
        assert!(slow != stamped(0, 1, 2), "the write waited for the slow member");
        assert!(named(&volume, 0, 8, 2).await.unwrap() == stamped(0, 8, 2));
        array.stop().await.unwrap();
    });
}

#[test]
fn a_mirror_in_a_mirror_counts_with_all_its_copies() {
    let media = media(4, DISK);
    let sim = Sim::new(6);
    sim.block_on(async {
        let disks: Vec<Gateway> = disks(&media).iter().map(SimDisk::gateway).collect();
        let inner = array_on(&sim, &raid1(3), &disks[..3], "md0").await;
        let outer = array_on(&sim, &raid1(2), &[gateway(&inner), disks[3].clone()], "md1").await;
        let volume = gateway(&outer);
        for (number, medium) in (1..).zip(&media) {
            let data = if number == 4 { 64 } else { 128 };
            medium.poke(Sector(data), &stamped(0, 512, number));
        }
        assert_eq!(volume.copies(Sector(0), Sectors(512)), 4);
        for copy in 1..=4 {
            assert!(named(&volume, 7, 100, copy).await.unwrap() == stamped(7, 100, copy as u8));
        }
        assert_eq!(named(&volume, 7, 100, 5).await, Err(Status::Invalid));
        outer.stop().await.unwrap();
        inner.stop().await.unwrap();
    });
}

#[test]
fn stripes_pass_the_copy_on_to_the_member_with_the_chunk() {
    let media = media(3, DISK);
    let sim = Sim::new(7);
    sim.block_on(async {
        let disks: Vec<Gateway> = disks(&media).iter().map(SimDisk::gateway).collect();
        let inner = array_on(&sim, &raid1(2), &disks[..2], "md0").await;
        let striped = Shape::new(Level::Raid0, None, 4, 2);
        let outer = array_on(&sim, &striped, &[gateway(&inner), disks[2].clone()], "md1").await;
        let volume = gateway(&outer);
        media[0].poke(Sector(128), &stamped(0, 64, 1));
        media[1].poke(Sector(128), &stamped(0, 64, 2));
        media[2].poke(Sector(64), &stamped(0, 64, 3));
        let copies = |at, len| volume.copies(Sector(at), Sectors(len));
        // Chunks of eight sectors: the second one has no other copy.
        assert_eq!([copies(0, 8), copies(8, 8), copies(4, 8), copies(8, 1)], [2, 1, 2, 1]);
        assert!(named(&volume, 1, 7, 1).await.unwrap() == stamped(1, 7, 1));
        assert!(named(&volume, 1, 7, 2).await.unwrap() == stamped(1, 7, 2));
        assert!(named(&volume, 8, 8, 1).await.unwrap() == stamped(0, 8, 3));
        assert_eq!(named(&volume, 8, 8, 2).await, Err(Status::Invalid));
        // A part without the copy makes the whole read fail.
        assert!(named(&volume, 0, 16, 1).await.is_ok());
        assert_eq!(named(&volume, 0, 16, 2).await, Err(Status::Invalid));
        outer.stop().await.unwrap();
        inner.stop().await.unwrap();
    });
}
