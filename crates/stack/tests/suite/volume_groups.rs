//! Volume groups among arrays and partitions, on simulated disks.

use ashlar_block::{Buffer, Flags, Gateway, Sector, Sectors, Status};
use ashlar_lvm::alloc::Wish;
use ashlar_lvm::change::{Author, NewVolume};
use ashlar_lvm::commit::{Member, commit};
use ashlar_lvm::format::{Layout, format_pv, write_label};
use ashlar_lvm::metadata::{Creation, Header};
use ashlar_lvm::{Metadata, PhysicalVolume, PvOnDisk, Uuid, VolumeGroup};
use ashlar_md::ondisk::Version;
use ashlar_sim::{Media, Sim};
use ashlar_stack::assemble::{Options, Refusal, Refused, Stack};
use ashlar_stack::volume_groups::PHYSICAL;

use crate::common::{boot, device, media, mirror, notes, plain, role, run};

const EXTENT: Sectors = Sectors(2048);

fn uuid(number: u8) -> Uuid {
    Uuid::from_random([number; 32])
}

/// The devices of a group, and its metadata.
pub(crate) struct GroupRig {
    devices: Vec<Gateway>,
    pvs: Vec<PvOnDisk>,
    group: VolumeGroup,
    next: u8,
}

impl GroupRig {
    /// A group `vg` on these devices.
    pub(crate) async fn new(devices: Vec<Gateway>) -> Self {
        Self::named("vg", devices).await
    }

    /// A group of this name on these devices.
    pub(crate) async fn named(name: &str, devices: Vec<Gateway>) -> Self {
        // Names of other lengths have other identities.
        let first = name.len() as u8 * 10;
        let mut group = VolumeGroup::new(name, uuid(first), EXTENT);
        let mut pvs = Vec::new();
        for (number, device) in (first + 1..).zip(&devices) {
            let mut pv = format_pv(device, uuid(number), &Layout::default()).await.unwrap();
            pv.label.set_used(true);
            write_label(device, &pv).await.unwrap();
            group.pvs.push(PhysicalVolume::of_label(&pv.label, EXTENT).unwrap());
            pvs.push(pv);
        }
        Self { devices, pvs, group, next: 100 }
    }

    /// Makes changes, and commits them.
    pub(crate) async fn change(&mut self, change: impl FnOnce(&mut VolumeGroup, &mut Author<'_>)) {
        let next = &mut self.next;
        let mut new_uuid = || {
            *next += 1;
            uuid(*next)
        };
        let creation = Creation { time: 1_700_000_000, host: "host".into() };
        change(&mut self.group, &mut Author { creation, new_uuid: &mut new_uuid });
        self.group.seqno += 1;
        self.group.check().unwrap();
        let metadata = Metadata::new(self.group.clone(), Header::default());
        let members = self.devices.iter().zip(&mut self.pvs);
        let mut members: Vec<Member<'_>> =
            members.map(|(gateway, pv)| Member { gateway, pv }).collect();
        let done = commit(&mut members, &metadata).await.unwrap();
        assert!(done.stale.is_empty());
    }

    pub(crate) async fn add(&mut self, name: &str, wish: Wish) {
        let new = volume(name, wish);
        self.change(|group, author| {
            group.create(&new, author).unwrap();
        })
        .await;
    }
}

pub(crate) fn volume(name: &str, wish: Wish) -> NewVolume {
    NewVolume { name: Some(name.into()), wish, tags: Vec::new(), writable: true }
}

/// The device with this name for users.
pub(crate) fn named(stack: &Stack, name: &str) -> Gateway {
    let all = stack.devices.volumes();
    let names: Vec<&str> = all.iter().map(|device| device.export_name()).collect();
    let found = all.iter().find(|device| device.export_name() == name);
    found.unwrap_or_else(|| panic!("no {name} among {names:?}")).gateway().clone()
}

pub(crate) fn names(stack: &Stack) -> Vec<String> {
    stack.devices.volumes().iter().map(|device| device.export_name().to_owned()).collect()
}

pub(crate) async fn write(stack: &Stack, name: &str, at: u64, byte: u8) {
    let mut buffer = Buffer::from_slice(&[byte; 512]);
    named(stack, name).write(Sector(at), &mut buffer, Flags::empty()).await.unwrap();
}

pub(crate) async fn read(stack: &Stack, name: &str, at: u64) -> u8 {
    named(stack, name).read(Sector(at), Sectors(1)).await.unwrap().as_slice()[0]
}

/// A group with an origin and a snapshot of it, on two disks.
async fn with_a_snapshot(sim: &Sim) -> Vec<Media> {
    let media = media(2, 16);
    let stack = boot(sim, &media, plain()).await;
    let mut made = GroupRig::new(vec![device(&stack, "d0.img"), device(&stack, "d1.img")]).await;
    made.add("data", Wish::linear(4)).await;
    let stack = boot(sim, &media, plain()).await;
    for at in 0..64 {
        write(&stack, "vg/data", at, 1).await;
    }
    stack.stop().await.unwrap();
    let new = volume("old", Wish::linear(3));
    made.change(|group, author| {
        group.create_snapshot("data", Sectors(8), &new, author).unwrap();
    })
    .await;
    media
}

#[test]
fn a_group_on_an_array_is_found_and_its_volumes_hold_what_was_written() {
    let sim = Sim::new(1);
    sim.block_on(async {
        let media = media(2, 32);
        let stack = boot(&sim, &media, plain()).await;
        let members = [device(&stack, "d0.img"), device(&stack, "d1.img")];
        mirror(&members, 0, Version::V1_2).await;
        let stack = boot(&sim, &media, plain()).await;
        let mut made = GroupRig::new(vec![device(&stack, "md0")]).await;
        made.add("data", Wish::linear(5)).await;
        made.add("more", Wish::linear(3)).await;
        stack.stop().await.unwrap();
        let stack = boot(&sim, &media, plain()).await;
        assert_eq!(names(&stack), ["vg/data", "vg/more"]);
        assert_eq!(role(&stack, "md0"), PHYSICAL);
        write(&stack, "vg/more", 17, 7).await;
        stack.stop().await.unwrap();
        // One MiB in front, and five of the first volume.
        for media in &media {
            assert_eq!(media.peek(Sector(256 + 6 * 2048 + 17))[0], 7);
        }
        let stack = boot(&sim, &media[..1], run()).await;
        assert_eq!(read(&stack, "vg/more", 17).await, 7);
    });
}

#[test]
fn an_array_of_logical_volumes_starts_and_they_belong_to_it() {
    let sim = Sim::new(2);
    sim.block_on(async {
        let media = media(2, 32);
        let stack = boot(&sim, &media, plain()).await;
        let mut made =
            GroupRig::new(vec![device(&stack, "d0.img"), device(&stack, "d1.img")]).await;
        for (name, pv) in [("a", 0), ("b", 1)] {
            made.add(name, Wish { only: vec![pv], ..Wish::linear(8) }).await;
        }
        let stack = boot(&sim, &media, plain()).await;
        mirror(&[named(&stack, "vg/a"), named(&stack, "vg/b")], 3, Version::V1_2).await;
        let stack = boot(&sim, &media, plain()).await;
        assert_eq!(names(&stack), ["md3"]);
        write(&stack, "md3", 40, 9).await;
        stack.stop().await.unwrap();
        let stack = boot(&sim, &media, plain()).await;
        assert_eq!(read(&stack, "md3", 40).await, 9);
    });
}

#[test]
fn a_snapshot_shows_its_moment_after_every_restart() {
    let sim = Sim::new(3);
    sim.block_on(async {
        let media = with_a_snapshot(&sim).await;
        for round in 0..3 {
            let stack = boot(&sim, &media, plain()).await;
            assert_eq!(names(&stack), ["vg/old", "vg/data"]);
            for at in 0..64 {
                assert_eq!(read(&stack, "vg/old", at).await, 1, "sector {at}, round {round}");
            }
            for at in (round * 16)..(round * 16 + 20) {
                write(&stack, "vg/data", at, 2).await;
            }
            assert_eq!(read(&stack, "vg/data", round * 16).await, 2);
            assert_eq!(read(&stack, "vg/old", round * 16).await, 1);
            stack.stop().await.unwrap();
        }
    });
}

#[test]
fn a_group_with_a_snapshot_can_be_looked_at_without_a_write() {
    let sim = Sim::new(4);
    sim.block_on(async {
        // Once with an unused store, once with a used one.
        let media = with_a_snapshot(&sim).await;
        let read_only = || {
            let md = ashlar_md::Options { run: true, read_only: true, force: false };
            Options { md, ..plain() }
        };
        for used in [false, true] {
            if used {
                let stack = boot(&sim, &media, plain()).await;
                write(&stack, "vg/data", 3, 5).await;
                stack.stop().await.unwrap();
            }
            let before: Vec<_> = media.iter().map(Media::snapshot).collect();
            let stack = boot(&sim, &media, read_only()).await;
            assert_eq!(read(&stack, "vg/old", 3).await, 1);
            assert_eq!(read(&stack, "vg/data", 3).await, if used { 5 } else { 1 });
            let mut buffer = Buffer::from_slice(&[9; 512]);
            for name in ["vg/data", "vg/old"] {
                let volume = named(&stack, name);
                assert!(volume.write(Sector(3), &mut buffer, Flags::empty()).await.is_err());
            }
            stack.stop().await.unwrap();
            for (media, before) in media.iter().zip(&before) {
                assert_eq!(media.diff(before), [], "used: {used}");
            }
        }
    });
}

#[test]
fn without_one_disk_the_other_volumes_are_served_and_with_partial_all_of_them() {
    let sim = Sim::new(5);
    sim.block_on(async {
        let media = media(2, 16);
        let stack = boot(&sim, &media, plain()).await;
        let mut made =
            GroupRig::new(vec![device(&stack, "d0.img"), device(&stack, "d1.img")]).await;
        made.add("here", Wish { only: vec![0], ..Wish::linear(4) }).await;
        made.add("both", Wish::striped(4, 2, Sectors(8))).await;
        let stack = boot(&sim, &media[..1], plain()).await;
        assert_eq!(names(&stack), ["vg/here"]);
        let refused: Vec<&Refusal> = stack.refusals(Refused::Volume).collect();
        let [refused] = refused[..] else { panic!("{refused:?}") };
        assert!(refused.name == "vg/both" && refused.why.contains("missing"), "{refused:?}");
        let partial = Options { partial: true, ..plain() };
        let stack = boot(&sim, &media[..1], partial).await;
        assert_eq!(names(&stack), ["vg/here", "vg/both"]);
        // Stripes of 8 sectors: the first is present, the second is missing.
        let both = named(&stack, "vg/both");
        assert!(both.read(Sector(0), Sectors(8)).await.is_ok());
        assert!(both.read(Sector(8), Sectors(8)).await.is_err());
    });
}

#[test]
fn a_group_of_which_a_disk_is_there_twice_is_not_used() {
    let sim = Sim::new(6);
    sim.block_on(async {
        let mut media = media(1, 16);
        let stack = boot(&sim, &media, plain()).await;
        let mut made = GroupRig::new(vec![device(&stack, "d0.img")]).await;
        made.add("data", Wish::linear(4)).await;
        let copy = Media::new(Sectors(16 * 2048));
        for at in 0..16 * 2048 {
            copy.poke(Sector(at), &media[0].peek(Sector(at)));
        }
        media.push(copy);
        let stack = boot(&sim, &media, plain()).await;
        assert_eq!(names(&stack), [""; 0]);
        let notes = notes(&stack);
        let said =
            |note: &String| note.starts_with("d1.img: is the same physical volume as d0.img");
        assert!(notes.iter().any(said), "{notes:?}");
    });
}

#[test]
fn a_leg_that_lost_its_superblock_does_not_stand_for_its_array() {
    let sim = Sim::new(7);
    sim.block_on(async {
        let media = media(2, 32);
        let stack = boot(&sim, &media, plain()).await;
        mirror(&[device(&stack, "d0.img"), device(&stack, "d1.img")], 0, Version::V1_0).await;
        let stack = boot(&sim, &media, plain()).await;
        let mut made = GroupRig::new(vec![device(&stack, "md0")]).await;
        made.add("data", Wish::linear(5)).await;
        stack.stop().await.unwrap();
        // The superblock of version 1.0 is in the last 12 KiB.
        let end = 32 * 2048;
        for at in end - 24..end {
            media[1].poke(Sector(at), &[0; 512]);
        }
        let before = media[1].snapshot();
        for options in [plain(), run()] {
            let stack = boot(&sim, &media, options).await;
            assert_eq!(names(&stack), [""; 0]);
            assert!(
                notes(&stack).iter().any(|note| note.contains("d1.img")),
                "{:?}",
                notes(&stack)
            );
            stack.stop().await.unwrap();
        }
        // Without the second leg, the owner is unambiguous.
        let stack = boot(&sim, &media[..1], run()).await;
        write(&stack, "vg/data", 0, 3).await;
        stack.stop().await.unwrap();
        assert_eq!(media[1].diff(&before), []);
    });
}

#[test]
fn an_array_and_a_physical_volume_on_the_same_disks_are_not_written() {
    for version in [Version::V1_0, Version::V1_2] {
        let sim = Sim::new(8);
        sim.block_on(async {
            let media = media(2, 32);
            let stack = boot(&sim, &media, plain()).await;
            let disks = [device(&stack, "d0.img"), device(&stack, "d1.img")];
            mirror(&disks, 0, version).await;
            let size = disks[0].capacity();
            let at = version.super_offset(size).unwrap();
            let superblocks: Vec<_> = media
                .iter()
                .map(|media| {
                    (0..8)
                        .map(|n| (at + Sectors(n), media.peek(at + Sectors(n))))
                        .collect::<Vec<_>>()
                })
                .collect();
            let mut made = GroupRig::new(disks.into()).await;
            made.add("data", Wish::linear(5)).await;
            for (media, superblock) in media.iter().zip(&superblocks) {
                superblock.iter().for_each(|(at, sector)| media.poke(*at, sector));
            }
            let stack = boot(&sim, &media, plain()).await;
            assert_eq!(names(&stack), [""; 0], "{version}");
            let notes = notes(&stack);
            let said = |note: &&String| {
                note.contains("the md array host:0") && note.contains("an LVM physical volume (")
            };
            assert_eq!(notes.iter().filter(said).count(), 2, "{notes:?}");
            stack.stop().await.unwrap();
        });
    }
}

#[test]
fn an_origin_keeps_still_while_one_of_its_snapshots_cannot_be_had() {
    let sim = Sim::new(8);
    sim.block_on(async {
        let media = media(2, 16);
        let stack = boot(&sim, &media, plain()).await;
        let mut made =
            GroupRig::new(vec![device(&stack, "d0.img"), device(&stack, "d1.img")]).await;
        made.add("data", Wish { only: vec![0], ..Wish::linear(4) }).await;
        let new = volume("old", Wish { only: vec![1], ..Wish::linear(3) });
        made.change(|group, author| {
            group.create_snapshot("data", Sectors(8), &new, author).unwrap();
        })
        .await;
        let refuses = async |stack: &Stack| {
            let mut buffer = Buffer::from_slice(&[9; 512]);
            let origin = named(stack, "vg/data");
            let written = origin.write(Sector(0), &mut buffer, Flags::empty()).await;
            assert_eq!(written, Err(Status::ReadOnly));
            assert!(
                notes(stack).iter().any(|n| n.contains("can only be read")),
                "{:?}",
                notes(stack)
            );
        };
        // The store's disk is missing.
        let stack = boot(&sim, &media[..1], plain()).await;
        refuses(&stack).await;
        stack.stop().await.unwrap();
        // The store cannot be read: the fourth MiB of the disk is the first of the store.
        media[1].fail_reads(2048..2049);
        let stack = boot(&sim, &media, plain()).await;
        refuses(&stack).await;
        stack.stop().await.unwrap();
    });
}

/// A group in which `first` is being merged into `data`, and `second` is another snapshot of
/// `data`. Sectors 0 to 511 of `data` were 1 when `first` was made, and 2 when `second` was made.
async fn merging(sim: &Sim) -> Vec<Media> {
    let media = media(2, 32);
    let stack = boot(sim, &media, plain()).await;
    let mut made = GroupRig::new(vec![device(&stack, "d0.img"), device(&stack, "d1.img")]).await;
    made.add("data", Wish::linear(4)).await;
    let fill = async |byte| {
        let stack = boot(sim, &media, plain()).await;
        for at in 0..512 {
            write(&stack, "vg/data", at, byte).await;
        }
        stack.stop().await.unwrap();
    };
    fill(1).await;
    for (name, byte) in [("first", 2), ("second", 3)] {
        let new = volume(name, Wish::linear(4));
        made.change(|group, author| {
            group.create_snapshot("data", Sectors(8), &new, author).unwrap();
        })
        .await;
        if byte == 2 {
            fill(byte).await;
        }
    }
    made.change(|group, _| {
        group.start_merge("first").unwrap();
    })
    .await;
    media
}

#[test]
fn a_merge_leaves_the_other_snapshots_as_they_were() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        sim.block_on(async {
            let media = merging(&sim).await;
            let stack = boot(&sim, &media, plain()).await;
            assert_eq!(names(&stack), ["vg/second", "vg/data"]);
            for at in 0..512 {
                assert_eq!(read(&stack, "vg/data", at).await, 1, "sector {at}, seed {seed}");
                assert_eq!(read(&stack, "vg/second", at).await, 2, "sector {at}, seed {seed}");
            }
            stack.stop().await.unwrap();
            let stack = boot(&sim, &media, plain()).await;
            for at in 0..512 {
                assert_eq!(read(&stack, "vg/second", at).await, 2, "sector {at}, seed {seed}");
            }
            stack.stop().await.unwrap();
        });
    }
}

#[test]
fn a_stack_stops_in_the_middle_of_a_merge() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        sim.block_on(async {
            let media = merging(&sim).await;
            let stack = boot(&sim, &media, plain()).await;
            stack.stop().await.unwrap();
            let md = ashlar_md::Options { run: true, read_only: true, force: false };
            let stack = boot(&sim, &media, Options { md, ..plain() }).await;
            for at in 0..512 {
                assert_eq!(read(&stack, "vg/data", at).await, 1, "sector {at}, seed {seed}");
                assert_eq!(read(&stack, "vg/second", at).await, 2, "sector {at}, seed {seed}");
            }
        });
    }
}

#[test]
fn an_origin_whose_merging_snapshot_is_invalid_shows_what_it_is() {
    let sim = Sim::new(9);
    sim.block_on(async {
        let media = merging(&sim).await;
        // The second snapshot's store is still unused: there is one header.
        let starts = media.iter().flat_map(|disk| (1..31).map(move |n| (disk, Sector(n * 2048))));
        let mut headers = starts.filter(|(disk, at)| disk.peek(*at)[..4] == *b"SnAp");
        let (disk, header) = headers.next().expect("the header of the first snapshot");
        assert!(headers.next().is_none());
        let mut bytes = disk.peek(header);
        bytes[4] = 0;
        disk.poke(header, &bytes);
        let md = ashlar_md::Options { run: true, read_only: true, force: false };
        for options in [Options { md, ..plain() }, plain()] {
            let stack = boot(&sim, &media, options).await;
            assert_eq!(read(&stack, "vg/data", 7).await, 2);
            stack.stop().await.unwrap();
        }
    });
}
