//! Read errors: other copies are read, and the bad one is rewritten.

use std::time::Duration;

use crate::common::{
    DATA, SUPERBLOCK, Shape, differing, disks, gateway, make, media, stamped, start, write,
};
use ashlar_block::{Bio, Buffer, Flags, Sector, Sectors, Status};
use ashlar_md::ondisk::Level;
use ashlar_md::{ArrayState, Options};
use ashlar_sim::Sim;
use futures_util::future::join;

const DISK: Sectors = Sectors(4096);

fn raid1(members: usize) -> Shape {
    Shape::new(Level::Raid1, None, 0, members)
}

fn raid10(layout: u32, members: usize) -> Shape {
    Shape::new(Level::Raid10, Some(layout), 4, members)
}

#[test]
fn a_read_is_good_even_if_its_correction_is_not_possible() {
    for (bad_superblocks, shape) in [(true, raid1(2)), (false, raid1(2)), (true, raid10(0x201, 3))]
    {
        let media = media(shape.members, DISK);
        let sim = Sim::new(13);
        sim.block_on(async {
            let disks = disks(&media);
            make(&shape, &disks).await;
            let array = start(&sim, &disks, &Options::default()).await.unwrap();
            let volume = gateway(&array);
            write(&volume, 0, 64, 1).await.unwrap();
            sim.runtime().sleep(Duration::from_secs(1)).await;
            assert_eq!(array.state(), ArrayState::Clean);
            media[0].fail_reads(DATA..DATA + 64);
            if bad_superblocks {
                media.iter().for_each(|m| m.fail_writes(SUPERBLOCK));
            } else {
                media[0].fail_writes(DATA..DATA + 64);
            }
            for _ in 0..4 {
                let got = volume.read(Sector(0), Sectors(64)).await.unwrap();
                assert!(got.as_slice() == stamped(0, 64, 1), "{shape:?}");
            }
        });
    }
}

#[test]
fn a_read_ahead_that_fails_is_not_tried_again() {
    let media = media(2, DISK);
    let sim = Sim::new(16);
    sim.block_on(async {
        let disks = disks(&media);
        make(&raid1(2), &disks).await;
        let array = start(&sim, &disks, &Options::default()).await.unwrap();
        media.iter().for_each(|m| m.fail_reads(DATA..DATA + 8));
        media.iter().for_each(|m| m.clear_log());
        let mut data = Buffer::zeroed(4096);
        let ahead = Bio::read_into(Sector(0), &mut data).with_flags(Flags::RAHEAD);
        assert_eq!(gateway(&array).submit(ahead).await, Err(Status::Medium));
        assert_eq!(media.iter().map(|m| m.log().len()).sum::<usize>(), 1);
    });
}

#[test]
fn a_correction_never_puts_old_data_over_a_write_that_meets_it() {
    for shape in [raid1(2), raid1(3), raid10(0x201, 3)] {
        let mut met = 0;
        for delay in 0..120 {
            let media = media(shape.members, DISK);
            let sim = Sim::new(delay);
            sim.block_on(async {
                let disks = disks(&media);
                make(&shape, &disks).await;
                let array = start(&sim, &disks, &Options::default()).await.unwrap();
                let volume = gateway(&array);
                write(&volume, 0, 8, 1).await.unwrap();
                let copies = array.personality().map(Sector(0));
                // The copy that is read first fails, and the good one is slow.
                let at = DATA + copies[0].sector.0;
                media[copies[0].disk].fail_reads(at..at + 1);
                media[copies[1].disk].slow_down(3);
                let read = async {
                    for _ in 0..4 {
                        volume.read(Sector(0), Sectors(8)).await.unwrap();
                    }
                };
                let late = async {
                    sim.runtime().sleep(Duration::from_micros(delay * 10)).await;
                    write(&volume, 0, 8, 2).await.unwrap();
                };
                join(read, late).await;
                assert!(differing(&array, &media, 8).await.is_empty(), "{shape:?} {delay}");
                met += array.status().await.members.iter().map(|m| m.corrected).sum::<u64>();
            });
        }
        assert!(met > 0, "{shape:?}: nothing was corrected");
    }
}
