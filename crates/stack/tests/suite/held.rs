//! What another host may be writing to is read, and written to only if the user says so.

use ashlar_block::Sector;
use ashlar_lvm::alloc::Wish;
use ashlar_lvm::metadata::{SystemIds, VgFlag};
use ashlar_md::Candidate;
use ashlar_md::ondisk::Version;
use ashlar_sim::{Media, Sim, SimDisk, Snapshot};
use ashlar_stack::assemble::{Disk, Options, Others, Refused, Stack, probe_all};
use ashlar_stack::devices::Role;
use ashlar_stack::incremental::{AttachOutcome, Collector, Turns};
use ashlar_stack::volume_groups::PHYSICAL;

use crate::common::{boot, device, media, mirror, notes, plain, role, volumes, write_mbr};
use crate::volume_groups::{GroupRig, names, read, write};

/// A mirror with a group of the host `there`.
async fn mirror_of_another_host(sim: &Sim) -> Vec<Media> {
    let media = media(2, 32);
    let stack = boot(sim, &media, plain()).await;
    mirror(&[device(&stack, "d0.img"), device(&stack, "d1.img")], 0, Version::V1_2).await;
    let stack = boot(sim, &media, plain()).await;
    let mut made = GroupRig::new(vec![device(&stack, "md0")]).await;
    made.add("data", Wish::linear(5)).await;
    made.change(|group, _| group.system_id = Some("there".to_owned())).await;
    stack.stop().await.unwrap();
    media
}

/// That nothing was written since.
fn unchanged(media: &[Media], before: &[Snapshot]) -> bool {
    media.iter().zip(before).all(|(media, before)| media.diff(before).is_empty())
}

fn refused(stack: &Stack) -> Vec<(String, String)> {
    let groups = stack.refusals(Refused::Group);
    groups.map(|group| (group.name.clone(), group.why.clone())).collect()
}

#[test]
fn a_group_of_another_host_is_read_and_written_to_by_force_only() {
    let sim = Sim::new(31);
    sim.block_on(async {
        let media = mirror_of_another_host(&sim).await;
        let before: Vec<Snapshot> = media.iter().map(Media::snapshot).collect();
        let stack = boot(&sim, &media, plain()).await;
        let why =
            "it has the system ID there, and this host has none: another host may be writing to it";
        assert_eq!(refused(&stack), [("vg".to_owned(), why.to_owned())]);
        assert_eq!(stack.refusals(Refused::Group).next().unwrap().below, ["md0"]);
        assert!(names(&stack).is_empty(), "{:?}", names(&stack));
        assert_eq!(role(&stack, "md0"), PHYSICAL);
        stack.stop().await.unwrap();
        assert!(unchanged(&media, &before));

        let md = ashlar_md::Options { run: false, read_only: true, force: false };
        let stack = boot(&sim, &media, Options { md, ..plain() }).await;
        assert_eq!(names(&stack), ["vg/data"]);
        let told = notes(&stack).join("\n");
        assert!(told.starts_with("md0: volume group vg has the system ID there"), "{told}");
        assert!(told.ends_with("it is only read"), "{told}");
        stack.stop().await.unwrap();
        assert!(unchanged(&media, &before));

        let own = |own: &str| SystemIds { own: Some(own.to_owned()), extra: Vec::new() };
        let on = |local: SystemIds, force: bool| {
            let others = Others { local, force };
            Options { others, ..plain() }
        };
        let stack = boot(&sim, &media, on(own("here"), false)).await;
        assert!(refused(&stack)[0].1.contains("this host has here"), "{:?}", refused(&stack));
        let stack = boot(&sim, &media, on(own("there"), false)).await;
        assert_eq!((names(&stack), notes(&stack)), (vec!["vg/data".to_owned()], Vec::new()));
        let stack = boot(&sim, &media, on(own("here"), true)).await;
        assert!(
            notes(&stack)[0].contains("because of ashlar serve --force"),
            "{:?}",
            notes(&stack)
        );
        write(&stack, "vg/data", 3, 7).await;
        assert_eq!(read(&stack, "vg/data", 3).await, 7);
        stack.stop().await.unwrap();
    });
}

#[test]
fn a_group_of_another_host_that_comes_later_is_not_used() {
    let sim = Sim::new(32);
    sim.block_on(async {
        let media = mirror_of_another_host(&sim).await;
        let mut stack = boot(&sim, &media[..1], plain()).await;
        let collector = Collector::new(&mut stack, plain(), sim.runtime());
        let turns = Turns::new(collector, || (), || false);
        let late = SimDisk::over("late", media[1].clone());
        let disk = Disk { path: "late.img".into(), gateway: late.gateway() };
        let probed = probe_all(vec![disk]).await;
        let Candidate { path, gateway, sb } = probed[0].candidate().unwrap();
        let mut turn = turns.take().await.unwrap();
        let role = Role::Member(sb.set_uuid);
        let mut claim = stack.devices.claim_new(&turn, &path, gateway, role).ok().unwrap();
        let attached = turn.attach(&mut claim, sb, false).await;
        assert!(matches!(attached, Ok(AttachOutcome::Started(_))));
        assert!(names(&stack).is_empty(), "{:?}", names(&stack));
        let told: Vec<String> = turn.take_notes().iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("md0: volume group vg is not used: it has the system ID"));
        assert_eq!(turn.take_notes(), []);
        let why = turn.prepare_activation("vg", &[], true).err().unwrap();
        assert!(why.starts_with("Cannot access VG vg with system ID there"), "{why}");
        drop(turn);
        stack.stop().await.unwrap();
    });
}

#[test]
fn each_group_is_refused_by_itself() {
    let sim = Sim::new(33);
    sim.block_on(async {
        let media = media(2, 16);
        let stack = boot(&sim, &media, plain()).await;
        for (disk, name) in [("d0.img", "mine"), ("d1.img", "vg")] {
            let mut made = GroupRig::named(name, vec![device(&stack, disk)]).await;
            made.add("data", Wish::linear(4)).await;
            if name == "vg" {
                made.change(|group, _| group.flags.insert(VgFlag::Exported)).await;
            }
        }
        let stack = boot(&sim, &media, plain()).await;
        assert_eq!(names(&stack), ["mine/data"]);
        assert_eq!(refused(&stack)[0].1, "it is exported: another host may be writing to it");
    });
}

/// Bytes that say who uses a device of 16 MiB, and where they are.
const SIGNS: [(&str, u64, &[u8]); 5] = [
    ("ddf_raid_member", (16 << 20) - 512, b"\xde\x11\xde\x11"),
    ("isw_raid_member", (16 << 20) - 1024, b"Intel Raid ISM Cfg Sig. 1.1.00\0\0"),
    ("drbd", (16 << 20) - 4096 + 60, b"\x83\x74\x02\x6d"),
    ("bcache", 0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    ("VMFS_volume_member", 1 << 20, b"\x0d\xd0\x01\xc0"),
];

/// Puts bytes on a medium.
fn put(media: &Media, at: u64, bytes: &[u8]) {
    let sector = Sector::from_bytes_floor(at);
    let mut whole = media.peek(sector).to_vec();
    whole[(at - sector.bytes()) as usize..][..bytes.len()].copy_from_slice(bytes);
    media.poke(sector, &whole);
}

fn outsiders(stack: &Stack) -> Vec<&str> {
    stack.refused_outsiders.iter().map(|refused| &*refused.shown).collect()
}

#[test]
fn a_disk_that_something_else_writes_to_is_read_and_written_to_by_force_only() {
    let sim = Sim::new(34);
    sim.block_on(async {
        for (name, at, bytes) in SIGNS {
            let media = media(2, 16);
            put(&media[0], at, bytes);
            write_mbr(&media[0], &[(0x83, 8192, 8192)]);
            let is_apart = ["bcache", "VMFS_volume_member"].contains(&name);
            let stack = boot(&sim, &media, plain()).await;
            assert_eq!(outsiders(&stack), ["/images/d0.img"], "{name}");
            assert_eq!(volumes(&stack), ["d1.img"], "{name}");
            let told = stack.refused_outsiders[0].to_string();
            assert!(told.contains(&format!("{name} at {at:#x}")), "{told}");
            let stack = boot(&sim, &media, Options { whole: true, ..plain() }).await;
            assert_eq!(outsiders(&stack).is_empty(), is_apart, "{name}");

            let md = ashlar_md::Options { run: false, read_only: true, force: false };
            let stack = boot(&sim, &media, Options { md, ..plain() }).await;
            assert_eq!(volumes(&stack), ["d1.img", "d0.img1"], "{name}");
            assert!(notes(&stack)[0].starts_with("d0.img: is a "), "{:?}", notes(&stack));
            let others = Others { force: true, ..Others::default() };
            let stack = boot(&sim, &media, Options { others, ..plain() }).await;
            assert_eq!(volumes(&stack), ["d1.img", "d0.img1"], "{name}");
            assert!(
                notes(&stack)[0].ends_with("because of ashlar serve --force"),
                "{:?}",
                notes(&stack)
            );
        }
    });
}

#[test]
fn a_partition_is_of_something_else_unless_the_sign_is_its_disk_s() {
    let sim = Sim::new(35);
    sim.block_on(async {
        for (name, at, bytes) in SIGNS {
            let media = media(1, 24);
            // The partition has 16 MiB, and ends with the disk.
            write_mbr(&media[0], &[(0x83, 16384, 32768)]);
            put(&media[0], (8 << 20) + at, bytes);
            let stack = boot(&sim, &media, plain()).await;
            let is_of_disks = name.ends_with("raid_member") || name == "drbd";
            let shown = if is_of_disks { "/images/d0.img" } else { "d0.img1" };
            assert_eq!(outsiders(&stack), [shown], "{name}");
            assert_eq!(volumes(&stack).len(), 0);
        }
    });
}

#[test]
fn a_volume_is_drbd_s_but_has_the_caches_of_its_clients_and_no_firmware() {
    let sim = Sim::new(36);
    sim.block_on(async {
        for (name, at, bytes) in SIGNS {
            let media = media(1, 32);
            let stack = boot(&sim, &media, plain()).await;
            let mut made = GroupRig::new(vec![device(&stack, "d0.img")]).await;
            made.add("data", Wish::linear(16)).await;
            made.add("more", Wish::linear(4)).await;
            // One MiB in front.
            put(&media[0], (1 << 20) + at, bytes);
            let stack = boot(&sim, &media, plain()).await;
            if name == "drbd" {
                assert_eq!(
                    (outsiders(&stack), names(&stack)),
                    (vec!["vg/data"], vec!["vg/more".to_owned()])
                );
            } else {
                assert_eq!((outsiders(&stack), names(&stack).len()), (Vec::new(), 2), "{name}");
            }
        }
    });
}

#[test]
fn a_physical_volume_on_a_leg_is_not_used() {
    let sim = Sim::new(37);
    sim.block_on(async {
        let media = media(1, 16);
        let stack = boot(&sim, &media, plain()).await;
        let mut made = GroupRig::new(vec![device(&stack, "d0.img")]).await;
        made.add("data", Wish::linear(4)).await;
        let (_, at, bytes) = SIGNS[1];
        put(&media[0], at, bytes);
        let stack = boot(&sim, &media, plain()).await;
        assert_eq!((outsiders(&stack).len(), names(&stack).len()), (1, 0));
        assert_eq!(role(&stack, "d0.img"), Role::Refused);
    });
}

#[test]
fn a_member_of_an_array_is_one_whatever_a_former_owner_left() {
    let sim = Sim::new(38);
    sim.block_on(async {
        let media = media(2, 16);
        let stack = boot(&sim, &media, plain()).await;
        mirror(&[device(&stack, "d0.img"), device(&stack, "d1.img")], 0, Version::V1_2).await;
        let (_, at, bytes) = SIGNS[0];
        media.iter().for_each(|media| put(media, at, bytes));
        let stack = boot(&sim, &media, plain()).await;
        assert_eq!((outsiders(&stack), volumes(&stack)), (Vec::new(), vec!["md0".to_owned()]));
    });
}
