//! One block of a disk cannot be read, each of the probed ones in turn: all else is served as always, and the disk is named.

use std::collections::BTreeSet;

use ashlar_block::Sectors;
use ashlar_lvm::alloc::Wish;
use ashlar_md::ondisk::Version;
use ashlar_sim::{Media, Sim};
use ashlar_stack::assemble::{Options, Stack};
use ashlar_stack::devices::Role;
use ashlar_stack::signature::Image;
use ashlar_stack::volume_groups::PHYSICAL;

use crate::common::{
    boot, device, media, mirror, notes, old_mirror, plain, role, volumes, write_mbr,
};
use crate::partitions::gpt_disk;
use crate::volume_groups::{GroupRig, names};

/// The disk that cannot be read everywhere; the others are a mirror, a disk, and what belongs to it.
const BAD: &str = "d3.img";
/// Sectors of a block.
const BLOCK: u64 = 8;

/// How the stack is assembled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Plain,
    Run,
    ReadOnly,
    Whole,
}

const MODES: [Mode; 4] = [Mode::Plain, Mode::Run, Mode::ReadOnly, Mode::Whole];

impl Mode {
    fn options(self) -> Options {
        let md = ashlar_md::Options {
            run: self != Self::Plain,
            read_only: self == Self::ReadOnly,
            force: false,
        };
        Options { md, whole: self == Self::Whole, ..Options::default() }
    }
}

/// A healthy mirror, a healthy disk, and two more.
async fn five(sim: &Sim, mib: u64) -> Vec<Media> {
    let media = media(5, mib);
    let stack = boot(sim, &media, plain()).await;
    mirror(&[device(&stack, "d0.img"), device(&stack, "d1.img")], 0, Version::V1_2).await;
    media
}

/// The first sectors of the blocks that may hold a superblock of md.
fn superblocks(size: Sectors) -> BTreeSet<u64> {
    Version::ALL.iter().filter_map(|version| version.super_offset(size)).map(|at| at.0).collect()
}

/// The first sectors of blocks of the probed parts: those around superblocks, the first and the last ones, and a share of the others.
fn blocks(size: Sectors, salt: u64) -> Vec<u64> {
    let near = |at: u64| superblocks(size).iter().any(|sb| sb.abs_diff(at) <= BLOCK);
    let all = Image::wanted(size.bytes()).into_iter();
    let all = all.flat_map(|range| (range.start / 512..range.end / 512).step_by(BLOCK as usize));
    let is_chosen = |at: &u64| {
        near(*at) || *at < 64 || at + 64 > size.0 || (at / BLOCK + salt).is_multiple_of(17)
    };
    all.filter(is_chosen).collect()
}

/// Assembles the disks in all ways, with each of these blocks unreadable in turn. `check` gets the block, the way and the stack; what
/// holds for all disks is checked here.
async fn each(sim: &Sim, media: &[Media], salt: u64, check: impl AsyncFn(u64, Mode, &Stack)) {
    let size = media[3].capacity();
    for (n, block) in (salt as usize..).zip(blocks(size, salt)) {
        let is_superblock = superblocks(size).contains(&block);
        for mode in MODES {
            // Where no superblock may be, one of the ways has to do.
            if !is_superblock && mode != MODES[n % MODES.len()] {
                continue;
            }
            let media: Vec<Media> = media.iter().map(Media::copy).collect();
            media[3].fail_reads(block..block + 1);
            let before = media[3].snapshot();
            let stack = boot(sim, &media, mode.options()).await;
            let shown = format!("{mode:?}, sector {block}: {:?}", notes(&stack));
            for healthy in ["md0", "d2.img"] {
                assert!(volumes(&stack).iter().any(|name| name == healthy), "{healthy}, {shown}");
            }
            let told =
                format!("{BAD}: cannot be read at {:#x} to {:#x}", block * 512, block * 512 + 4096);
            assert!(notes(&stack).iter().any(|note| note.starts_with(&told)), "{shown}");
            let refused = stack.refused(mode != Mode::Plain);
            assert!(refused.iter().all(|disk| disk.is_unreadable && disk.is_left_out), "{shown}");
            assert_eq!(refused.len(), usize::from(used(&stack) == Role::Refused), "{shown}");
            check(block, mode, &stack).await;
            stack.stop().await.unwrap();
            // A member may have its superblock updated.
            if mode == Mode::ReadOnly || used(&stack) != MEMBER {
                assert_eq!(media[3].diff(&before), [], "{shown}");
            }
        }
    }
}

/// The use of a member, whether an array has it or not.
const MEMBER: Role = Role::Former;

/// The use of the bad disk.
fn used(stack: &Stack) -> Role {
    let role = role(stack, BAD);
    if role.is_of_md() { MEMBER } else { role }
}

fn refused_or(is_in_doubt: bool, mode: Mode, role: Role) -> Role {
    match mode {
        Mode::Plain | Mode::Run if is_in_doubt => Role::Refused,
        Mode::Whole if is_in_doubt => Role::Refused,
        Mode::Whole => Role::Volume,
        Mode::Plain | Mode::Run | Mode::ReadOnly => role,
    }
}

#[test]
fn a_member_of_a_mirror_is_one_unless_its_own_superblock_cannot_be_read() {
    for (salt, version) in (0..).zip(Version::ALL) {
        let sim = Sim::new(salt);
        sim.block_on(async {
            let media = five(&sim, 2).await;
            let size = media[3].capacity();
            if version == Version::V0_90 {
                old_mirror(&media[3..], ashlar_block::Sector::ZERO, size);
            } else {
                let stack = boot(&sim, &media, plain()).await;
                mirror(&[device(&stack, BAD), device(&stack, "d4.img")], 1, version).await;
            }
            let own = version.super_offset(size).unwrap().0;
            each(&sim, &media, salt, async |block, mode, stack| {
                let shown = format!("{version}, {mode:?}, sector {block}: {:?}", notes(stack));
                let array = stack.arrays.running().into_iter().find(|a| a.name.device() != "md0");
                let degraded = array.map(|array| array.view.degraded());
                let (expected, wanted) = match mode {
                    _ if block != own => (MEMBER, Some(0)),
                    Mode::Plain => (Role::Refused, None),
                    // Of the same bytes as the array that lacks it, but nothing is written.
                    Mode::ReadOnly => (Role::Volume, Some(1)),
                    Mode::Run | Mode::Whole => (Role::Refused, Some(1)),
                };
                assert_eq!((used(stack), degraded), (expected, wanted), "{shown}");
                assert_eq!(stack.failures.len(), usize::from(wanted.is_none()), "{shown}");
            })
            .await;
        });
    }
}

#[test]
fn members_of_which_all_may_have_another_owner_are_not_written() {
    let sim = Sim::new(1);
    sim.block_on(async {
        let media = five(&sim, 2).await;
        let stack = boot(&sim, &media, plain()).await;
        mirror(&[device(&stack, BAD), device(&stack, "d4.img")], 1, Version::V1_2).await;
        for media in &media[3..] {
            media.fail_reads(0..1);
        }
        for mode in MODES {
            let stack = boot(&sim, &media, mode.options()).await;
            let expected = if mode == Mode::ReadOnly { MEMBER } else { Role::Refused };
            assert_eq!(used(&stack), expected, "{mode:?}: {:?}", notes(&stack));
            assert_eq!(volumes(&stack).contains(&"md1".to_owned()), mode == Mode::ReadOnly);
            assert!(volumes(&stack).contains(&"md0".to_owned()) && stack.failures.is_empty());
            stack.stop().await.unwrap();
        }
    });
}

#[test]
fn a_member_that_is_behind_and_may_have_another_owner_is_left_out() {
    let sim = Sim::new(1);
    sim.block_on(async {
        let media = five(&sim, 2).await;
        let stack = boot(&sim, &media, plain()).await;
        mirror(&[device(&stack, BAD), device(&stack, "d4.img")], 1, Version::V1_2).await;
        let old = media[3].copy();
        for _ in 0..2 {
            let stack = boot(&sim, &media, plain()).await;
            let mut byte = ashlar_block::Buffer::from_slice(&[7; 512]);
            let array = device(&stack, "md1");
            array
                .write(ashlar_block::Sector(9), &mut byte, ashlar_block::Flags::empty())
                .await
                .unwrap();
            stack.stop().await.unwrap();
        }
        let media = [&media[..3], &[old, media[4].clone()]].concat();
        media[3].fail_reads(0..1);
        let stack = boot(&sim, &media, Mode::Run.options()).await;
        assert_eq!(used(&stack), Role::Refused, "{:?}", notes(&stack));
        assert_eq!(volumes(&stack), ["d2.img", "md0", "md1"]);
        stack.stop().await.unwrap();
    });
}

#[test]
fn a_plain_disk_is_a_volume_unless_it_may_be_a_member() {
    let sim = Sim::new(1);
    sim.block_on(async {
        let mut media = five(&sim, 2).await;
        media.pop();
        // A btrfs.
        let mut superblock = [0; 512];
        superblock[0x40..0x48].copy_from_slice(b"_BHRfS_M");
        media[3].poke(ashlar_block::Sector(128), &superblock);
        let places = superblocks(media[3].capacity());
        each(&sim, &media, 5, async |block, mode, stack| {
            let expected = refused_or(places.contains(&block), mode, Role::Volume);
            assert_eq!(used(stack), expected, "{mode:?}, sector {block}: {:?}", notes(stack));
        })
        .await;
    });
}

#[test]
fn partitions_are_served_unless_the_disk_may_be_a_member() {
    let sim = Sim::new(1);
    sim.block_on(async {
        for is_gpt in [false, true] {
            let mut media = five(&sim, 4).await;
            media.pop();
            if is_gpt {
                media[3] =
                    gpt_disk(4, "label: gpt\nstart=2064, size=2048\nstart=4112, size=1024\n");
            } else {
                write_mbr(&media[3], &[(0x83, 2064, 2048), (0x83, 4112, 1024)]);
            }
            let places = superblocks(media[3].capacity());
            each(&sim, &media, 6, async |block, mode, stack| {
                let shown = format!("{is_gpt}, {mode:?}, sector {block}: {:?}", notes(stack));
                // Its first block has the table.
                let whole = if block == 0 { Role::Volume } else { Role::Partitioned };
                let expected = refused_or(places.contains(&block), mode, whole);
                assert_eq!(used(stack), expected, "{shown}");
                if expected == Role::Partitioned {
                    let mut served = volumes(stack);
                    served.sort_unstable();
                    assert_eq!(served, ["d2.img", "d3.img1", "d3.img2", "md0"], "{shown}");
                }
            })
            .await;
        }
    });
}

#[test]
fn a_physical_volume_is_one_unless_it_may_be_a_member() {
    let sim = Sim::new(1);
    sim.block_on(async {
        let mut media = five(&sim, 4).await;
        media.pop();
        let stack = boot(&sim, &media, plain()).await;
        GroupRig::new(vec![device(&stack, BAD)]).await.add("data", Wish::linear(1)).await;
        let places = superblocks(media[3].capacity());
        let served = std::cell::Cell::new(0);
        each(&sim, &media, 7, async |block, mode, stack| {
            let shown = format!("{mode:?}, sector {block}: {:?}", notes(stack));
            let whole = if block == 0 { Role::Volume } else { PHYSICAL };
            let expected = refused_or(places.contains(&block), mode, whole);
            assert_eq!(used(stack), expected, "{shown}");
            served.set(served.get() + usize::from(names(stack).contains(&"vg/data".to_owned())));
        })
        .await;
        // In all ways but one, unless the text of its metadata cannot be read.
        assert!(served.get() > 20, "{}", served.get());
    });
}

#[test]
fn a_leg_whose_superblock_cannot_be_read_is_no_second_physical_volume() {
    let sim = Sim::new(1);
    sim.block_on(async {
        let media = five(&sim, 4).await;
        let stack = boot(&sim, &media, plain()).await;
        mirror(&[device(&stack, BAD), device(&stack, "d4.img")], 1, Version::V1_0).await;
        let stack = boot(&sim, &media, plain()).await;
        GroupRig::new(vec![device(&stack, "md1")]).await.add("data", Wish::linear(1)).await;
        stack.stop().await.unwrap();
        let at = Version::V1_0.super_offset(media[3].capacity()).unwrap().0;
        media[3].fail_reads(at..at + 1);
        for mode in [Mode::Run, Mode::ReadOnly] {
            let stack = boot(&sim, &media, mode.options()).await;
            let shown = format!("{mode:?}: {:?}", notes(&stack));
            assert!(names(&stack).contains(&"vg/data".to_owned()), "{shown}");
            stack.stop().await.unwrap();
        }
    });
}
