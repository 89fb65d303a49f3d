//! New arrays: spares, bitmaps, and whether they need a resync.

use crate::common::{Shape, candidates, disks, media, new_devices, spec};
use ashlar_block::Sectors;
use ashlar_md::create::{CreateError, NewDevice, create};
use ashlar_md::ondisk::bitmap_super::state;
use ashlar_md::ondisk::create::{CreateError as SpecError, CreateSpec, NewBitmap};
use ashlar_md::ondisk::{Level, Role, Version};
use ashlar_sim::Sim;

const DISK: Sectors = Sectors(4096);

#[test]
fn an_array_of_devices_that_may_differ_is_made_to_be_resynced() {
    let shape = Shape::new(Level::Raid1, None, 0, 2);
    let media = media(3, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        let mut spec = spec(&shape, &[DISK; 3]);
        spec.assume_clean = false;
        let mut devices = new_devices(&disks);
        // The third is a spare: its contents do not matter.
        devices[2].as_mut().unwrap().known_zero = false;
        let is_clean = async |spec: &CreateSpec, devices: &[Option<NewDevice>]| {
            let made = create(spec, devices).await.unwrap();
            made.superblocks[0].as_ref().unwrap().superblock.is_clean()
        };
        assert!(is_clean(&spec, &devices).await);
        devices[1].as_mut().unwrap().known_zero = false;
        assert!(!is_clean(&spec, &devices).await);
        let found = candidates(&disks).await;
        assert!(found[..2].iter().all(|c| c.sb.resync_offset == Sectors::ZERO));
        assert_eq!(found[2].sb.role(), Role::Spare);
        spec.assume_clean = true;
        assert!(is_clean(&spec, &devices).await);
        // A single member cannot differ from others.
        spec.assume_clean = false;
        (spec.members[1], devices[1]) = (None, None);
        devices[0].as_mut().unwrap().known_zero = false;
        assert!(is_clean(&spec, &devices).await);
    });
}

#[test]
fn a_lockless_bitmap_of_a_new_array_is_clean_only_by_the_users_word() {
    let shape = Shape::new(Level::Raid1, None, 0, 2);
    let media = media(2, DISK);
    let sim = Sim::new(1);
    sim.block_on(async {
        let disks = disks(&media);
        let mut spec = spec(&shape, &[DISK; 2]);
        (spec.bitmap, spec.bad_block_log) = (NewBitmap::Lockless, true);
        for (word, known_zero) in [(true, false), (false, true), (false, false)] {
            spec.assume_clean = word;
            let mut devices = new_devices(&disks);
            devices.iter_mut().flatten().for_each(|device| device.known_zero = known_zero);
            let made = create(&spec, &devices).await.unwrap();
            let new = made.superblocks[0].as_ref().unwrap();
            let sb = &new.superblock;
            let bitmap = new.bitmap.as_ref().unwrap();
            assert_eq!(bitmap.state.get() & state::CLEAN != 0, word);
            assert!(bitmap.state.get() & state::FIRST_USE != 0);
            assert_eq!(sb.is_clean(), word || known_zero);
            let end = sb.bitmap_start().unwrap() + Sectors(bitmap.sectors_reserved.get().into());
            assert!(sb.bad_block_log_start().unwrap() >= end, "the log lies in the bitmap");
            assert!(sb.bad_block_log_start().unwrap() + Sectors(8) <= sb.data_offset);
        }
        spec.version = Version::V1_1;
        let refused = create(&spec, &new_devices(&disks)).await;
        assert!(matches!(refused, Err(CreateError::Spec(SpecError::LocklessVersion(_)))));
    });
}
