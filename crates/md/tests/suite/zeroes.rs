//! Write-zeroes that may be refused: by all members before anything is written, or by none.

use crate::common::{Shape, gateway, make, media, stamped, start, write};
use ashlar_block::{Bio, Features, Flags, Gateway, Limits, Op, Sector, Sectors, Status};
use ashlar_md::Options;
use ashlar_md::ondisk::Level;
use ashlar_sim::{Media, Model, Sim, SimDisk};

const DISK: Sectors = Sectors(4096);

fn shapes() -> Vec<Shape> {
    vec![
        Shape::new(Level::Raid0, None, 4, 3),
        Shape::new(Level::Raid1, None, 0, 2),
        Shape::new(Level::Raid10, Some(0x102), 4, 4),
        Shape::new(Level::Raid10, Some(0x102), 4, 3),
        Shape::new(Level::Raid10, Some(0x201), 4, 4),
        Shape::new(Level::Raid10, Some(0x1_0201), 4, 4),
    ]
}

/// Disks, of which the second has limits changed by `change`.
fn disks(media: &[Media], change: impl Fn(&mut Limits)) -> Vec<SimDisk> {
    let disk = |(slot, medium): (usize, &Media)| {
        let mut limits = Model::nvme().limits();
        if slot == 1 {
            change(&mut limits);
        }
        SimDisk::with(format!("d{slot}"), medium.clone(), limits, Model::nvme())
    };
    media.iter().enumerate().map(disk).collect()
}

/// Zeroes sectors 5 to 1004, of 1024 that hold something else. Returns whether it did, after a look at them.
async fn zeroes(volume: &Gateway, flags: Flags) -> bool {
    write(volume, 0, 1024, 1).await.unwrap();
    let bio = Bio::write_zeroes(Sector(5), Sectors(1000)).with_flags(flags);
    let result = volume.submit(bio).await;
    let mut expected = stamped(0, 1024, 1);
    match result {
        Ok(()) => expected[5 * 512..1005 * 512].fill(0),
        refused => assert_eq!(refused, Err(Status::NotSupported)),
    }
    assert!(volume.read(Sector(0), Sectors(1024)).await.unwrap().as_slice() == expected);
    result.is_ok()
}

/// The number of commands for zeroes that the disks had, and of those that may be refused.
fn commands(media: &[Media]) -> (usize, usize) {
    let log: Vec<_> = media.iter().flat_map(Media::log).collect();
    let zeroes = log.iter().filter(|command| command.op == Op::WriteZeroes);
    let refusable = zeroes.clone().filter(|command| command.flags.intersects(Flags::REFUSABLE));
    (zeroes.count(), refusable.count())
}

#[test]
fn fast_zeroes_need_members_that_are_all_fast() {
    for shape in shapes() {
        for (change, expected) in [
            ((|_| {}) as fn(&mut Limits), [true, true]),
            (|limits| limits.features -= Features::FAST_ZERO, [false, true]),
            (|limits| limits.max_write_zeroes = Sectors::ZERO, [false, false]),
        ] {
            let media = media(shape.members, DISK);
            let sim = Sim::new(1);
            sim.block_on(async {
                let disks = disks(&media, change);
                make(&shape, &disks).await;
                let array = start(&sim, &disks, &Options::default()).await.unwrap();
                let volume = gateway(&array);
                for (flags, expected) in [Flags::FAST, Flags::NOFALLBACK].into_iter().zip(expected)
                {
                    media.iter().for_each(Media::clear_log);
                    assert_eq!(zeroes(&volume, flags).await, expected, "{shape:?} {flags:?}");
                    let (all, refusable) = commands(&media);
                    assert_eq!((all > 0, refusable > 0), (expected, expected), "{shape:?}");
                    assert!(media.iter().flat_map(Media::log).all(|c| c.result.is_ok()));
                }
                // Zeroes are written where there is no other way.
                assert!(zeroes(&volume, Flags::empty()).await);
                assert_eq!(array.degraded(), 0);
                array.stop().await.unwrap();
            });
        }
    }
}

#[test]
fn what_a_member_refuses_late_is_refused_by_all_or_written() {
    for shape in shapes() {
        for flags in [Flags::FAST, Flags::NOFALLBACK] {
            for refusing in 1..=shape.members {
                let media = media(shape.members, DISK);
                let sim = Sim::new(2);
                sim.block_on(async {
                    let disks = disks(&media, |_| {});
                    make(&shape, &disks).await;
                    let array = start(&sim, &disks, &Options::default()).await.unwrap();
                    let volume = gateway(&array);
                    media[..refusing].iter().for_each(|m| m.drop_support(Op::WriteZeroes));
                    let all = refusing == shape.members;
                    let text = format!("{shape:?} {flags:?}, {refusing} refuse");
                    assert_eq!(zeroes(&volume, flags).await, !all, "{text}");
                    if flags == Flags::FAST {
                        // From now on it is known.
                        media.iter().for_each(Media::clear_log);
                        assert!(!zeroes(&volume, flags).await, "{text}");
                        assert_eq!(commands(&media), (0, 0), "{text}");
                    }
                    assert_eq!(array.degraded(), 0, "{text}");
                    array.stop().await.unwrap();
                });
                // Each copy is the same: two members of a RAID1, or of the first near copies.
                if shape.level == Level::Raid1 || shape.layout == Some(0x102) && shape.members == 4
                {
                    let data = 256..DISK.0;
                    let differs = media[0].differences(&media[1]);
                    assert!(
                        differs.iter().all(|r| r.end <= data.start || r.start >= data.end),
                        "{shape:?} {flags:?} {differs:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn an_error_beside_a_refusal_fails_the_member_that_has_it() {
    let media = media(3, DISK);
    let sim = Sim::new(3);
    sim.block_on(async {
        let disks = disks(&media, |_| {});
        make(&Shape::new(Level::Raid1, None, 0, 3), &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        let volume = gateway(&array);
        write(&volume, 0, 1024, 1).await.unwrap();
        media[1].drop_support(Op::WriteZeroes);
        media[2].fail_writes(256..DISK.0);
        let bio = Bio::write_zeroes(Sector(5), Sectors(1000)).with_flags(Flags::FAST);
        assert_eq!(volume.submit(bio).await, Ok(()));
        assert_eq!(array.degraded(), 1);
        let differs = media[0].differences(&media[1]);
        assert!(differs.iter().all(|range| range.end <= 256), "{differs:?}");
        array.stop().await.unwrap();
    });
}
