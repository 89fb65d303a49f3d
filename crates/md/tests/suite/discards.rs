//! Discards of arrays some of whose members do not support them, or fail them.

use crate::common::{Shape, gateway, make, media, stamped, start, write};
use ashlar_block::{Bio, Limits, Op, Sector, Sectors, Status};
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

/// Disks, of which those in `without` do not support discards.
fn mixed(media: &[Media], without: &[usize]) -> Vec<SimDisk> {
    let disk = |(slot, medium): (usize, &Media)| {
        let model = Model::nvme();
        let mut limits = model.limits();
        if without.contains(&slot) {
            limits = Limits { max_hw_discard: Sectors::ZERO, ..limits };
        }
        SimDisk::with(format!("d{slot}"), medium.clone(), limits, model)
    };
    media.iter().enumerate().map(disk).collect()
}

#[test]
fn members_without_discard_are_passed_over() {
    for shape in shapes() {
        for late in [false, true] {
            for without in [vec![0], vec![0, 1], (0..shape.members).collect()] {
                let media = media(shape.members, DISK);
                let sim = Sim::new(1);
                sim.block_on(async {
                    let disks = mixed(&media, if late { &[] } else { &without });
                    make(&shape, &disks).await;
                    let array = start(&sim, &disks, &Options::default()).await.unwrap();
                    let volume = gateway(&array);
                    write(&volume, 0, 1024, 1).await.unwrap();
                    if late {
                        without.iter().for_each(|slot| media[*slot].drop_support(Op::Discard));
                    }
                    let all = without.len() == shape.members;
                    for (at, len) in [(5, 1000), (8, 512)] {
                        let result = volume.submit(Bio::discard(Sector(at), Sectors(len))).await;
                        let want = if all { Err(Status::NotSupported) } else { Ok(()) };
                        assert_eq!(result, want, "{shape:?} without {without:?}, late: {late}");
                    }
                    assert_eq!(array.degraded(), 0);
                    for (sector, len) in [(0, 5), (1005, 19)] {
                        let got = volume.read(Sector(sector), Sectors(len)).await.unwrap();
                        assert!(got.as_slice() == stamped(sector, len, 1), "{shape:?}");
                    }
                    array.stop().await.unwrap();
                });
            }
        }
    }
}

/// With 4 members of 128 MiB and chunks of 64 KiB, of 30,001,152 bytes from byte 1,372,160 on. The numbers for each member are
/// those that Linux 7.2 was seen to send.
#[test]
fn a_discard_takes_no_more_commands_than_linux_sends() {
    for (layout, linux) in [(0x102, [3, 3, 2, 2]), (0x201, [5, 6, 6, 5]), (0x1_0201, [3, 4, 4, 3])]
    {
        let media = media(4, Sectors((128 << 20) / 512));
        let sim = Sim::new(1);
        sim.block_on(async {
            // A command has one range, as in most disks.
            let limits = Limits { max_discard_segments: 1, ..Model::nvme().limits() };
            let disk = |(slot, medium): (usize, &Media)| {
                SimDisk::with(format!("d{slot}"), medium.clone(), limits, Model::nvme())
            };
            let disks: Vec<SimDisk> = media.iter().enumerate().map(disk).collect();
            make(&Shape::new(Level::Raid10, Some(layout), 64, 4), &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            media.iter().for_each(Media::clear_log);
            let discard = Bio::discard(Sector(1_372_160 / 512), Sectors(30_001_152 / 512));
            gateway(&array).submit(discard).await.unwrap();
            let ours: Vec<usize> =
                media.iter().map(|medium| medium.counts().discards as usize).collect();
            assert!(
                ours.iter().zip(linux).all(|(ours, linux)| *ours <= linux),
                "{layout:#x}: {ours:?}"
            );
            let log = media.iter().flat_map(Media::log);
            let all = log.filter(|command| command.op == Op::Discard);
            assert_eq!(all.map(|command| command.sectors()).sum::<u64>(), 117_192);
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn a_discard_that_fails_everywhere_is_an_error_and_fails_no_member() {
    for shape in shapes() {
        let media = media(shape.members, DISK);
        let sim = Sim::new(2);
        sim.block_on(async {
            let disks = mixed(&media, &[]);
            make(&shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            write(&volume, 0, 8, 1).await.unwrap();
            media.iter().for_each(|m| m.fail_writes(256..DISK.0));
            let result = volume.submit(Bio::discard(Sector(0), Sectors(1024))).await;
            assert_eq!(result, Err(Status::Io), "{shape:?}");
            assert_eq!(array.degraded(), 0, "{shape:?}");
            media.iter().for_each(Media::heal);
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn a_discard_that_fails_on_one_copy_is_good_and_fails_no_member() {
    for shape in shapes().into_iter().filter(|s| s.level != Level::Raid0) {
        let media = media(shape.members, DISK);
        let sim = Sim::new(3);
        sim.block_on(async {
            let disks = mixed(&media, &[]);
            make(&shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            media[1].fail_writes(256..DISK.0);
            let discard = Bio::discard(Sector(0), Sectors(1024));
            assert_eq!(gateway(&array).submit(discard).await, Ok(()), "{shape:?}");
            assert_eq!(array.degraded(), 0, "{shape:?}");
        });
    }
}
