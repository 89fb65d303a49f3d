//! What another host may be writing to is read, and written to only if the user says so.

use std::sync::Arc;

use ashlar_lvm::alloc::Wish;
use ashlar_lvm::metadata::{SystemIds, VgFlag};
use ashlar_md::Candidate;
use ashlar_md::ondisk::Version;
use ashlar_sim::{Media, Sim, SimDisk, Snapshot};
use ashlar_stack::assemble::{Disk, Options, Stack, probe_all};
use ashlar_stack::devices::Role;
use ashlar_stack::incremental::{AttachOutcome, Collector};
use ashlar_stack::turn::Turns;
use ashlar_stack::volume_groups;

use crate::common::{boot, device, media, mirror, notes, plain, role};
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
    let groups = stack.refused_groups.iter();
    groups.map(|group| (group.name.clone(), group.why())).collect()
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
        assert_eq!(stack.refused_groups[0].below, ["md0"]);
        assert!(names(&stack).is_empty(), "{:?}", names(&stack));
        assert_eq!(role(&stack, "md0"), Role::PhysicalVolume);
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
            let groups = volume_groups::Options { local, force };
            Options { groups, ..plain() }
        };
        let stack = boot(&sim, &media, on(own("here"), false)).await;
        assert!(refused(&stack)[0].1.contains("this host has here"), "{:?}", refused(&stack));
        let stack = boot(&sim, &media, on(own("there"), false)).await;
        assert_eq!((names(&stack), notes(&stack)), (vec!["vg/data".to_owned()], Vec::new()));
        let stack = boot(&sim, &media, on(own("here"), true)).await;
        assert!(notes(&stack)[0].contains("as --force says"), "{:?}", notes(&stack));
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
        let turns = Turns::new(collector, &Arc::new(stack.attributes()), || false);
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
