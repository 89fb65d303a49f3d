//! Devices in devices, on simulated disks: each layer is made on the assembled result of the layers below.

use crate::common;

use ashlar_block::{Buffer, Flags, Sector, Sectors};
use ashlar_md::Candidate;
use ashlar_md::ondisk::Version;
use ashlar_sim::{Media, Sim};
use ashlar_stack::assemble::{Disk, Options, Stack, probe_all};
use ashlar_stack::devices::Role;
use ashlar_stack::incremental::{AttachOutcome, Collector, Turns};

use crate::common::{
    MIB, RAID, boot, device, media, mirror, notes, old_mirror, plain, role, run, two_mirrors,
    volumes, write_mbr,
};

async fn write(stack: &Stack, name: &str, at: u64, byte: u8) {
    let mut buffer = Buffer::from_slice(&[byte; 512]);
    device(stack, name).write(Sector(at), &mut buffer, Flags::empty()).await.unwrap();
}

async fn read(stack: &Stack, name: &str, at: u64) -> u8 {
    device(stack, name).read(Sector(at), Sectors(1)).await.unwrap().as_slice()[0]
}

#[test]
fn arrays_in_partitions_start_and_what_was_written_is_on_both_disks() {
    let sim = Sim::new(1);
    sim.block_on(async {
        let media = two_mirrors(&sim).await;
        let stack = boot(&sim, &media, plain()).await;
        assert_eq!(volumes(&stack), ["md0", "md1"]);
        assert_eq!(role(&stack, "d0.img"), Role::Partitioned);
        assert!(role(&stack, "d1.img2").is_of_md());
        write(&stack, "md1", 100, 7).await;
        stack.stop().await.unwrap();
        for media in &media {
            assert_eq!(media.peek(Sector(18432 + 256 + 100))[0], 7);
        }
    });
}

#[test]
fn an_array_with_a_lost_block_among_its_first_is_served_as_it_is_if_the_user_says_so() {
    let sim = Sim::new(1);
    sim.block_on(async {
        let media = media(2, 20);
        let stack = boot(&sim, &media, plain()).await;
        mirror(&[device(&stack, "d0.img"), device(&stack, "d1.img")], 0, Version::V1_2).await;
        let stack = boot(&sim, &media, plain()).await;
        write(&stack, "md0", 1000, 5).await;
        stack.stop().await.unwrap();
        let alone = &media[..1];
        // Where the superblock of another array may be, in the array.
        alone[0].fail_reads(256..264);

        let stack = boot(&sim, alone, run()).await;
        assert_eq!((role(&stack, "md0"), volumes(&stack)), (Role::Refused, vec![]));
        assert!(notes(&stack).iter().any(|note| note.contains("--whole")), "{:?}", notes(&stack));
        stack.stop().await.unwrap();

        let stack = boot(&sim, alone, Options { whole: true, ..run() }).await;
        assert_eq!(volumes(&stack), ["md0"]);
        assert_eq!(read(&stack, "md0", 1000).await, 5);
        let lost = device(&stack, "md0").read(Sector::ZERO, Sectors(1)).await;
        assert!(lost.is_err(), "{lost:?}");
        stack.stop().await.unwrap();
    });
}

#[test]
fn a_partition_begins_and_ends_where_its_table_says() {
    let sim = Sim::new(1);
    sim.block_on(async {
        let media = media(1, 20);
        write_mbr(&media[0], &[(0x83, 2048, 16384), (0x83, 18432, 16384)]);
        let stack = boot(&sim, &media, plain()).await;
        assert_eq!(volumes(&stack), ["d0.img1", "d0.img2"]);
        write(&stack, "d0.img1", 16383, 1).await;
        write(&stack, "d0.img2", 0, 2).await;
        assert_eq!((media[0].peek(Sector(18431))[0], media[0].peek(Sector(18432))[0]), (1, 2));
        let past = device(&stack, "d0.img1").read(Sector(16384), Sectors(1)).await;
        assert!(past.is_err());
        // Acknowledged writes are durable once the stack has stopped.
        stack.stop().await.unwrap();
        assert_eq!(media[0].peek_durable(Sector(18431))[0], 1);
    });
}

#[test]
fn what_does_not_stop_in_time_keeps_what_it_is_made_of() {
    let sim = Sim::new(3);
    sim.block_on(async {
        let media = two_mirrors(&sim).await;
        let stack = boot(&sim, &media, plain()).await;
        mirror(&[device(&stack, "md0"), device(&stack, "md1")], 5, Version::V1_2).await;
        stack.stop().await.unwrap();
        let stack = boot(&sim, &media, plain()).await;
        write(&stack, "md5", 3, 9).await;
        let at_once = |name: &str| -> ashlar_block::LocalFuture<'static, ()> {
            let is_late = name == "md5";
            Box::pin(async move {
                if !is_late {
                    std::future::pending::<()>().await;
                }
            })
        };
        let failed = stack.stop_within(&at_once).await.unwrap_err();
        let told: Vec<String> = failed.iter().map(ToString::to_string).collect();
        let kept = |name| format!("{name}: what is made of it has not stopped");
        assert_eq!(told, ["md5: it did not stop in time".to_owned(), kept("md1"), kept("md0")]);
        // They still take its writes when it stops later.
        stack.stop().await.unwrap();
        for at in [2048, 18432] {
            for media in &media {
                assert_eq!(media.peek_durable(Sector(at + 2 * 256 + 3))[0], 9);
            }
        }
    });
}

#[test]
fn nesting_goes_to_any_depth_and_stops_from_the_top() {
    let sim = Sim::new(2);
    sim.block_on(async {
        // A mirror of mirrors of partitions, with partitions on it.
        let media = two_mirrors(&sim).await;
        let stack = boot(&sim, &media, plain()).await;
        mirror(&[device(&stack, "md0"), device(&stack, "md1")], 5, Version::V1_2).await;
        stack.stop().await.unwrap();
        let stack = boot(&sim, &media, plain()).await;
        assert_eq!(volumes(&stack), ["md5"]);
        let mut table = Buffer::from_slice(&common::mbr(&[(0x83, 64, 1024), (0x83, 2048, 1024)]));
        device(&stack, "md5").write(Sector::ZERO, &mut table, Flags::empty()).await.unwrap();
        stack.stop().await.unwrap();

        let stack = boot(&sim, &media, plain()).await;
        assert_eq!(volumes(&stack), ["md5p1", "md5p2"]);
        let order: Vec<String> = stack.devices.all().into_iter().map(|d| d.name).collect();
        let place = |name: &str| order.iter().position(|other| other == name).unwrap();
        for (lower, upper) in
            [("d1.img", "d1.img1"), ("d1.img1", "md0"), ("md0", "md5"), ("md5", "md5p1")]
        {
            assert!(place(lower) < place(upper), "{order:?}");
        }
        write(&stack, "md5p2", 3, 9).await;
        stack.stop().await.unwrap();
        // Disk, partition, mirror, mirror, partition: 256 sectors before the data of each mirror.
        for at in [2048, 18432] {
            for media in &media {
                assert_eq!(media.peek_durable(Sector(at + 2 * 256 + 2048 + 3))[0], 9);
            }
        }
        let stack = boot(&sim, &media, plain()).await;
        assert_eq!(read(&stack, "md5p2", 3).await, 9);
        for volume in stack.arrays.running() {
            assert_eq!(volume.view.status().state.name(), "clean");
        }
    });
}

#[test]
fn a_member_that_lies_in_another_array_is_waited_for() {
    let sim = Sim::new(3);
    sim.block_on(async {
        // A mirror of a disk and of a mirror of partitions that lacks a member.
        let mut media = two_mirrors(&sim).await;
        media.push(Media::new(Sectors(MIB.0 * 8)));
        let stack = boot(&sim, &media, plain()).await;
        mirror(&[device(&stack, "d2.img"), device(&stack, "md0")], 3, Version::V1_2).await;
        stack.stop().await.unwrap();
        media.remove(1);
        let stack = boot(&sim, &media, run()).await;
        let state = |name: &str| stack.arrays.find(name).unwrap().view.status().degraded;
        assert_eq!((state("md0"), state("md1"), state("md3")), (1, 1, 0));
        assert_eq!(volumes(&stack), ["md3", "md1"]);
        stack.stop().await.unwrap();
    });
}

#[test]
fn an_array_that_does_not_start_does_not_hide_its_neighbours() {
    let sim = Sim::new(4);
    sim.block_on(async {
        let media = two_mirrors(&sim).await;
        // The second partition of the second disk is overwritten: md1 would start with one member.
        media[1].poke(Sector(18432 + 8), &[0; 4096]);
        let stack = boot(&sim, &media, plain()).await;
        assert_eq!(volumes(&stack), ["d1.img2", "md0"]);
        let [failure] = stack.failures.as_slice() else { panic!("{}", stack.failures.len()) };
        assert!(!failure.is_nested && failure.to_string().contains("host:1"), "{failure}");
        assert!(role(&stack, "d0.img2").is_of_md());
        let stack = boot(&sim, &media, run()).await;
        assert_eq!(volumes(&stack), ["d1.img2", "md0", "md1"]);
    });
}

#[test]
fn a_superblock_that_an_older_array_left_on_the_members_is_not_used_in_their_array() {
    let size = Sectors(16 * MIB.0);
    let sim = Sim::new(15);
    sim.block_on(async {
        for options in [plain(), run(), Options { whole: true, ..plain() }] {
            let disks = media(2, 16);
            let stack = boot(&sim, &disks, plain()).await;
            mirror(&[device(&stack, "d0.img"), device(&stack, "d1.img")], 0, Version::V1_2).await;
            // At the end of the disks, where the data of the array has its end, too.
            old_mirror(&disks, Sector::ZERO, size);
            let stack = boot(&sim, &disks, options).await;
            assert_eq!(volumes(&stack), ["md0"]);
            assert!(stack.failures.is_empty());
            let said = "the md superblock of version 0.90 in it is not used";
            assert!(notes(&stack).iter().any(|note| note.contains(said)), "{:?}", notes(&stack));
        }
        // One that only the array shows is in its contents: the array was made anew to rescue them.
        let disks = media(2, 16);
        let stack = boot(&sim, &disks, plain()).await;
        mirror(&[device(&stack, "d0.img"), device(&stack, "d1.img")], 0, Version::V1_0).await;
        let len = device(&boot(&sim, &disks, plain()).await, "md0").capacity();
        old_mirror(&disks, Sector::ZERO, len);
        let stack = boot(&sim, &disks, plain()).await;
        assert_eq!(volumes(&stack), [""; 0]);
        assert_eq!((stack.failures.len(), stack.failures[0].is_nested), (1, true));
    });
}

#[test]
fn whole_devices_are_only_looked_at_for_members() {
    let sim = Sim::new(5);
    sim.block_on(async {
        let media = two_mirrors(&sim).await;
        let options = Options { whole: true, ..plain() };
        let stack = boot(&sim, &media, options).await;
        assert_eq!(volumes(&stack), ["d0.img", "d1.img"]);
        assert!(stack.arrays.running().is_empty() && stack.notes.is_empty());
    });
}

#[test]
fn a_superblock_at_the_end_is_the_disks_unless_a_partition_has_it() {
    let size = Sectors(16 * MIB.0);
    let last = (Sector(2048), Sectors(size.0 - 2048));
    let sim = Sim::new(6);
    sim.block_on(async {
        for version in [Version::V0_90, Version::V1_0] {
            let is_old = version == Version::V0_90;
            // On whole disks, with a table in the array: the superblock is after all partitions.
            let disks = media(2, 16);
            if is_old {
                old_mirror(&disks, Sector::ZERO, size);
            } else {
                let stack = boot(&sim, &disks, plain()).await;
                mirror(&[device(&stack, "d0.img"), device(&stack, "d1.img")], 0, version).await;
            }
            disks.iter().for_each(|media| write_mbr(media, &[(0x83, 2048, 8192)]));
            let stack = boot(&sim, &disks, plain()).await;
            assert_eq!(volumes(&stack).len(), 1, "{version}");
            assert!(volumes(&stack)[0].ends_with("p1"), "{version}");

            // In the last partition, which ends at the disk's end.
            let disks = media(2, 16);
            disks.iter().for_each(|media| write_mbr(media, &[(RAID, 2048, last.1.0 as u32)]));
            if is_old {
                old_mirror(&disks, last.0, last.1);
            } else {
                let stack = boot(&sim, &disks, plain()).await;
                mirror(&[device(&stack, "d0.img1"), device(&stack, "d1.img1")], 0, version).await;
            }
            let stack = boot(&sim, &disks, plain()).await;
            assert_eq!(role(&stack, "d0.img"), Role::Partitioned, "{version}");
            assert!(role(&stack, "d0.img1").is_of_md(), "{version}");
            assert_eq!(volumes(&stack).len(), 1, "{version}");
            let told = "the md superblock at the end is taken as that of partition 1";
            let is_told = notes(&stack).iter().any(|note| note.contains(told));
            assert_eq!(is_told, is_old, "{:?}", notes(&stack));
        }
    });
}

#[test]
fn a_superblock_of_larger_members_than_the_partition_is_the_disks() {
    let sim = Sim::new(7);
    sim.block_on(async {
        let disks = media(2, 16);
        old_mirror(&disks, Sector::ZERO, Sectors(16 * MIB.0));
        // An older table, or one from an image: its partition contains the offset of the
        // superblock, but is smaller than the array's part of each member.
        let len = (16 * MIB.0 - 2048) as u32;
        disks.iter().for_each(|media| write_mbr(media, &[(RAID, 2048, len)]));
        let stack = boot(&sim, &disks, plain()).await;
        assert!(role(&stack, "d0.img").is_of_md());
        // Seen through the array, this partition reaches beyond the end.
        assert_eq!(volumes(&stack), [""; 0]);
        let told = "md0: partition 1 left out: it reaches beyond the end of the device";
        assert_eq!(notes(&stack), [told]);
    });
}

#[test]
fn what_is_in_an_array_that_is_completed_later_is_looked_into() {
    let sim = Sim::new(8);
    sim.block_on(async {
        let media = media(3, 20);
        let stack = boot(&sim, &media, plain()).await;
        let gateways = ["d0.img", "d1.img"].map(|name| device(&stack, name));
        mirror(&gateways, 0, Version::V1_2).await;
        let stack = boot(&sim, &media, plain()).await;
        // The array has two partitions; the second one and a disk are a mirror.
        let mut table = Buffer::from_slice(&common::mbr(&[(0x83, 64, 1024), (RAID, 2048, 16384)]));
        device(&stack, "md0").write(Sector::ZERO, &mut table, Flags::empty()).await.unwrap();
        stack.stop().await.unwrap();
        let stack = boot(&sim, &media, plain()).await;
        mirror(&[device(&stack, "md0p2"), device(&stack, "d2.img")], 7, Version::V1_2).await;
        stack.stop().await.unwrap();

        let mut stack =
            boot(&sim, &[media[0].clone(), Media::new(MIB), media[2].clone()], plain()).await;
        assert_eq!(volumes(&stack), ["d1.img"]);
        let collector = Collector::new(&mut stack, plain(), sim.runtime());
        let turns = Turns::new(collector, || (), || false);
        assert_eq!(stack.arrays.waiting().len(), 2);
        let late = ashlar_sim::SimDisk::over("late", media[1].clone());
        let disk = Disk { path: "late.img".into(), gateway: late.gateway() };
        let probed = probe_all(vec![disk]).await;
        let Candidate { path, gateway, sb } = probed[0].candidate().unwrap();
        let mut turn = turns.take().await.unwrap();
        let role = Role::Member(sb.set_uuid);
        let mut claim = stack.devices.claim_new(&turn, &path, gateway, role).ok().unwrap();
        let attached = turn.attach(&mut claim, sb, false).await;
        assert!(
            matches!(attached, Ok(AttachOutcome::Started(volume)) if volume.name.device() == "md0")
        );
        assert_eq!(volumes(&stack), ["d1.img", "md0p1", "md7"]);
        assert_eq!(stack.arrays.waiting().len(), 0);
        assert_eq!(turn.take_notes(), []);
        drop(turn);
        stack.stop().await.unwrap();
    });
}
