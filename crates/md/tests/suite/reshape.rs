//! Arrays under reshape, read: pairs of geometries, both directions, every position, complete and without as many members as may be lost.
//!
//! `tests/interop/md-reshape.sh` reads what a kernel leaves.

mod rig;

use ashlar_block::{Buffer, Sector, Sectors, Status};
use ashlar_md::canary::Rule;
use ashlar_md::ondisk::Level;
use ashlar_md::ondisk::superblock_1::Block1;
use ashlar_md::{Array, AssembleError, BackupFile, Options, plan_with_backups};
use ashlar_sim::{Media, Sim, SimDisk};

use crate::common::{candidates, gateway};
use crate::parity::{READ_ONLY, contents, read_all};
use rig::{DATA, LS, Map, NEAR, Pair, RA, Rig, USED, losses, pairs};

#[test]
fn every_sector_reads_as_before_the_reshape_at_every_position_without_any_member() {
    let sim = Sim::new(1);
    for pair in pairs() {
        let (before, after) = (Map::new(pair.level, pair.before), Map::new(pair.level, pair.after));
        let size = before.size().min(after.size());
        let unit = after.row() * (pair.before.2.max(pair.after.2) / pair.after.2);
        for position in (0..=size.next_multiple_of(unit)).step_by(unit as usize) {
            let rig = Rig::new(pair, position);
            let (near, far) = (position > 0, position < size);
            let sides = if pair.backwards { (far, near) } else { (near, far) };
            let all = rig.all();
            for lost in losses(rig.media.len()) {
                let of = |members: usize| {
                    lost.iter().copied().filter(|slot| *slot < members).collect::<Vec<_>>()
                };
                let readable = (!sides.0 || after.is_readable_without(&of(pair.after.0)))
                    && (!sides.1 || before.is_readable_without(&of(pair.before.0)));
                let case = format!("{pair:?} at {position} without {lost:?}");
                sim.block_on(async {
                    match rig.start(&sim, &lost, &READ_ONLY).await {
                        Err(AssembleError::NotEnough { .. }) => assert!(!readable, "{case}"),
                        Err(error) => panic!("{case}: {error}"),
                        Ok(array) => {
                            assert!(readable, "{case}");
                            assert!(read_all(&array).await == all, "{case}");
                            array.stop().await.unwrap();
                        }
                    }
                });
            }
            rig.media.iter().for_each(|medium| assert_eq!(medium.counts().writes, 0));
        }
    }
}

#[test]
fn a_position_that_chooses_nothing_is_noticed() {
    let broken = ashlar_block::canary::break_rule(Rule::PositionChoosesGeometry);
    let sim = Sim::new(2);
    let rig = Rig::new(pairs()[1], 48);
    let read = sim.block_on(async {
        let array = rig.start(&sim, &[], &READ_ONLY).await.unwrap();
        let volume = gateway(&array);
        volume.read(Sector(0), volume.capacity()).await
    });
    drop(broken);
    assert!(!read.is_ok_and(|read| read.as_slice() == rig.all()));
}

#[test]
fn the_array_is_only_read_and_says_what_it_is() {
    let sim = Sim::new(3);
    let rig = Rig::new(pairs()[1], 48);
    sim.block_on(async {
        let writable = Options { run: true, ..Options::default() };
        let refused = rig.start(&sim, &[], &writable).await.err().expect("refused");
        assert_eq!(
            refused.to_string(),
            "an array with a reshape under way can be read, but not yet written"
        );
        let array = rig.start(&sim, &[], &READ_ONLY).await.unwrap();
        let volume = gateway(&array);
        let mut data = Buffer::zeroed(512);
        let written = volume.write(Sector(0), &mut data, ashlar_block::Flags::empty()).await;
        assert_eq!(written, Err(Status::ReadOnly));
        let status = array.status().await;
        assert_eq!((status.raid_disks, status.layout, status.chunk), (4, LS, Sectors(8)));
        assert_eq!(status.size, Sectors(2 * USED));
        let reshape = status.reshape.expect("a reshape");
        assert_eq!((reshape.position.at, reshape.delta_disks), (Sector(48), 1));
        assert_eq!(
            status.notes,
            ["a reshape has moved 37 % of the data, up to sector 48 of the array: the array is only read, and the reshape does not continue"]
        );
        array.stop().await.unwrap();
        assert_eq!(volume.read(Sector(0), Sectors(1)).await.err(), Some(Status::Offline));
    });
}

#[test]
fn impossible_reshapes_are_refused() {
    let sim = Sim::new(4);
    type Change = fn(&mut Block1);
    let cases: [(Change, &str); 6] = [
        (|block| block.header.reshape_position = 49.into(), "not at the start of a row"),
        (|block| block.header.new_level = 6.into(), "another level"),
        (|block| block.header.new_chunk = 9.into(), "power of two"),
        (|block| block.header.new_chunk = 0.into(), "power of two"),
        (|block| block.header.delta_disks = 4.into(), "impossible number of members"),
        (|block| block.header.delta_disks = (i32::MIN as u32).into(), "members, not 2147483652"),
    ];
    for (change, why) in cases {
        let rig = Rig::new(pairs()[1], 48);
        rig.record(48, |_, block| change(block));
        let refused = sim.block_on(async { rig.start(&sim, &[], &READ_ONLY).await.err() });
        let refused = refused.map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains(why), "{why}: {refused:?}");
    }
}

#[test]
fn a_member_whose_data_the_reshape_moves_off_the_disk_is_left_out() {
    let sim = Sim::new(5);
    let rig = Rig::new(pairs()[1], 48);
    for offset in [i32::MIN, i32::MAX, -(DATA as i32) - 1] {
        rig.record(48, |slot, block| {
            if slot == 1 {
                block.header.new_offset = (offset as u32).into();
            }
        });
        sim.block_on(async {
            let array = rig.start(&sim, &[], &READ_ONLY).await.unwrap();
            assert!(read_all(&array).await == rig.all(), "{offset}");
            let notes = array.status().await.notes;
            assert!(notes.iter().any(|note| note.contains("d1 left out")), "{notes:?}");
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn an_array_that_crashed_and_lacks_a_member_is_refused_without_force() {
    let sim = Sim::new(6);
    let rig = Rig::new(pairs()[1], 48);
    rig.record(48, |_, block| block.header.resync_offset = 0.into());
    sim.block_on(async {
        let refused = rig.start(&sim, &[0], &READ_ONLY).await.err();
        assert!(matches!(refused, Some(AssembleError::DirtyDegraded { .. })), "{refused:?}");
        let array = rig.start(&sim, &[], &READ_ONLY).await.unwrap();
        assert!(read_all(&array).await == rig.all());
        array.stop().await.unwrap();
        let force = Options { force: true, ..READ_ONLY };
        let array = rig.start(&sim, &[0], &force).await.unwrap();
        assert!(read_all(&array).await == rig.all());
        // All of both sides, and nothing twice.
        let suspects = array.suspects();
        assert_eq!(suspects.iter().map(|at| (at.end - at.start).0).sum::<u64>(), rig.size());
        array.stop().await.unwrap();
    });
}

#[test]
fn a_member_that_the_reshape_fills_is_read_where_it_is_filled() {
    let sim = Sim::new(7);
    // RAID 5 becomes RAID 6: the member with Q is new, and the old side has no Q.
    let pair = pairs()[7];
    for (filled, is_used) in [(16, true), (15, false)] {
        let rig = Rig::new(pair, 48);
        rig.record(48, |slot, block| {
            if slot == 4 {
                block.header.feature_map = (block.header.feature_map.get() | 2).into();
                block.header.recovery_offset = filled.into();
            }
        });
        sim.block_on(async {
            for lost in [vec![], vec![1]] {
                let array = rig.start(&sim, &lost, &READ_ONLY).await.unwrap();
                assert_eq!(array.degraded(), lost.len() + usize::from(!is_used));
                assert!(read_all(&array).await == rig.all(), "{filled} without {lost:?}");
                array.stop().await.unwrap();
            }
        });
    }
}

#[test]
fn members_that_do_not_record_the_end_of_a_reshape_are_read_where_it_has_put_their_data() {
    let sim = Sim::new(8);
    let pair = pairs()[1];
    let size = Map::new(pair.level, pair.after).size();
    let rig = Rig::new(pair, size);
    rig.record(size, |slot, block| {
        if slot != 0 {
            return;
        }
        let header = &mut block.header;
        header.events = (header.events.get() + 1).into();
        header.feature_map = (header.feature_map.get() & !(4 | 64)).into();
        header.data_offset = (header.data_offset.get() - 192).into();
        header.data_size = (header.data_size.get() + 192).into();
    });
    sim.block_on(async {
        let writable = Options { run: true, ..Options::default() };
        let refused = rig.start(&sim, &[], &writable).await.err();
        assert!(matches!(refused, Some(AssembleError::OnlyRead(_))), "{refused:?}");
        for lost in [vec![], vec![1]] {
            let array = rig.start(&sim, &lost, &READ_ONLY).await.unwrap();
            let read = gateway(&array).read(Sector(0), Sectors(rig.size())).await.unwrap();
            assert!(read.as_slice() == rig.all(), "without {lost:?}");
            array.stop().await.unwrap();
        }
    });
}

/// A backup file of mdadm with these sections: where each begins, and how long it is.
fn backup_file(sections: &[(u64, u64)], change: impl FnOnce(&mut [u8])) -> Media {
    let medium = Media::new(Sectors(1024));
    let mut header = vec![0; 512];
    header[..15].copy_from_slice(b"md_backup_data-");
    header[15] = b'0' + sections.len() as u8;
    header[16..32].copy_from_slice(uuid::Uuid::from_u128(7).as_bytes());
    let mut put = |at: usize, value: u64| header[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(32, 1_700_000_000);
    put(40, 8);
    let mut at = 0;
    for ((start, len), fields) in sections.iter().zip([[0, 48, 56], [72, 80, 88]]) {
        if fields[0] > 0 {
            put(fields[0], at);
        }
        put(fields[1], *start);
        put(fields[2], *len);
        for sector in 0..*len {
            medium.poke(Sector(8 + at + sector), &contents(start + sector));
        }
        at += len;
    }
    change(&mut header);
    medium.poke(Sector(0), &header);
    medium
}

#[test]
fn what_was_moved_in_place_is_read_from_the_backup() {
    let sim = Sim::new(9);
    // The chunk size changes in place: rows are written over rows that are not yet recorded as moved.
    let pair = Pair { moved: 0, ..Pair::new(Level::Raid5, (3, LS, 8), (3, LS, 16)) };
    let rig = Rig::new(pair, 64);
    for medium in &rig.media {
        (DATA + 32..DATA + 48).for_each(|at| medium.poke(Sector(at), &[0xdd; 512]));
    }
    let present = || rig.present(&[]);
    let plan = |file: Option<Media>, options: Options| {
        let disks = present();
        async move {
            let backups = file.map(|medium| BackupFile {
                gateway: SimDisk::over("backup", medium).gateway(),
                path: "backup".to_owned(),
            });
            let backups: Vec<BackupFile> = backups.into_iter().collect();
            plan_with_backups(candidates(&disks).await, &backups, &options).await
        }
    };
    sim.block_on(async {
        let refused = plan(None, READ_ONLY).await.err().expect("refused");
        assert_eq!(
            refused.to_string(),
            "the array was being reshaped in place, and the data being moved at sector 64 of the array is only in mdadm's backup file"
        );
        for sections in [&[(64, 32)][..], &[(32, 64)], &[(32, 32), (64, 32)], &[(64, 96)]] {
            let plan = plan(Some(backup_file(sections, |_| {})), READ_ONLY).await.unwrap();
            let array = Array::start(plan, "md0", sim.runtime());
            assert!(read_all(&array).await == rig.all(), "{sections:?}");
            array.stop().await.unwrap();
        }
        type Change = fn(&mut [u8]);
        let cases: [(Change, &str); 7] = [
            (|header| header[56..64].fill(0), "does not have sector 64 of the array"),
            (|header| header[49] = 1, "does not have sector 64 of the array"),
            (|header| header[40..48].fill(0xfe), "data outside of the file"),
            (|header| header[41] = 4, "data outside of the file"),
            (|header| header[16] ^= 1, "(the backup on backup is not used: it belongs to another array)"),
            (|header| header[33] ^= 0x80, "minutes before the superblocks"),
            (|header| header[0] = 0, "backup file"),
        ];
        for (change, why) in cases {
            let file = backup_file(&[(64, 32)], change);
            let refused = plan(Some(file), READ_ONLY).await.err().map(|error| error.to_string());
            assert!(refused.as_ref().is_some_and(|text| text.contains(why)), "{refused:?}");
        }
        let forced = plan(None, Options { force: true, ..READ_ONLY }).await.unwrap();
        assert!(forced.notes.iter().any(|note| note.contains("only in mdadm's backup file")));
    });
}

#[test]
fn the_backup_of_a_grow_is_on_its_new_members() {
    let sim = Sim::new(10);
    // A grow without room in front of the data: its first rows lie where rows were.
    let pair = Pair { moved: 0, ..Pair::new(Level::Raid5, (3, LS, 8), (4, LS, 8)) };
    let rig = Rig::new(pair, 0);
    for medium in &rig.media {
        (DATA..DATA + 8).for_each(|at| medium.poke(Sector(at), &[0xdd; 512]));
    }
    let refused = sim.block_on(async { rig.start(&sim, &[], &READ_ONLY).await.err() });
    assert!(matches!(refused, Some(AssembleError::CriticalSection { .. })), "{refused:?}");
    // Header, 4 KiB further the data, and behind it the copy that is looked for.
    let mut header = backup_file(&[(0, 32)], |_| {}).peek(Sector(0)).to_vec();
    let at = DATA + USED - 8 - 32;
    header[40..48].copy_from_slice(&at.to_le_bytes());
    for sector in [at - 8, DATA + USED - 8] {
        rig.media[3].poke(Sector(sector), &header);
    }
    (0..32).for_each(|sector| rig.media[3].poke(Sector(at + sector), &contents(sector)));
    sim.block_on(async {
        let array = rig.start(&sim, &[], &READ_ONLY).await.unwrap();
        assert!(read_all(&array).await == rig.all());
        array.stop().await.unwrap();
    });
}

#[test]
fn members_that_are_out_of_date_make_no_side_of_their_own() {
    let sim = Sim::new(11);
    // Nothing has moved yet, and the freshest member is one that the old side does not have.
    let rig = Rig::new(Pair::new(Level::Raid10, (4, NEAR, 8), (5, NEAR, 8)), 0);
    rig.record(0, |slot, block| {
        let header = &mut block.header;
        if slot == 4 {
            header.events = (header.events.get() + 50).into();
        } else {
            header.feature_map = (header.feature_map.get() & !(4 | 64)).into();
            header.raid_disks = 4.into();
        }
    });
    let refused = sim.block_on(async { rig.start(&sim, &[1, 3], &READ_ONLY).await.err() });
    let refused = refused.map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("out of date"), "{refused}");
}

#[test]
fn what_linux_moves_without_a_record_is_named() {
    let sim = Sim::new(12);
    let grown = Pair::new(Level::Raid5, (3, LS, 8), (4, LS, 8));
    let shrunk = Pair::new(Level::Raid5, (4, LS, 8), (3, LS, 8));
    // The distance by which data moves, the position, and whether the data there may have moved.
    let cases = [
        (grown, -24, 0, true),
        (grown, -24, 24, true),
        (grown, -24, 120, false),
        (grown, -192, 0, false),
        (shrunk, 24, 96, true),
        (shrunk, 24, 48, false),
        (shrunk, 192, 96, false),
    ];
    for (pair, moved, position, is_unsure) in cases {
        let rig = Rig::new(Pair { moved, ..pair }, position);
        let notes = sim.block_on(async {
            let array = rig.start(&sim, &[], &READ_ONLY).await.unwrap();
            let notes = array.status().await.notes;
            array.stop().await.unwrap();
            notes
        });
        let is_named = notes.iter().any(|note| note.contains("more than the superblocks record"));
        assert_eq!(is_named, is_unsure, "{pair:?} by {moved} at {position}: {notes:?}");
    }
}

#[test]
fn an_aborted_reshape_is_not_taken_for_one_that_has_ended() {
    let sim = Sim::new(13);
    let pair = Pair::new(Level::Raid5, (3, LS, 8), (3, LS, 8));
    let rig = Rig::new(pair, 0);
    rig.record(0, |slot, block| {
        if slot == 0 {
            let header = &mut block.header;
            header.events = (header.events.get() + 1).into();
            header.feature_map = (header.feature_map.get() & !(4 | 64)).into();
        }
    });
    sim.block_on(async {
        let refused = rig.start(&sim, &[], &READ_ONLY).await.err();
        assert!(refused.is_some_and(|error| error.to_string().contains("records a reshape")));
    });
}

#[test]
fn reshapes_that_linux_does_not_do_are_refused() {
    let sim = Sim::new(14);
    const FAR: u32 = 0x201;
    let far = Rig::new(Pair::new(Level::Raid10, (4, NEAR, 8), (5, NEAR, 8)), 0);
    far.record(0, |_, block| block.header.new_layout = FAR.into());
    let in_place = Pair { moved: 192, ..Pair::new(Level::Raid5, (3, LS, 8), (3, RA, 16)) };
    let in_place = Rig::new(in_place, 64);
    for (rig, why) in [(far, "far layout"), (in_place, "backup file")] {
        let refused = sim.block_on(async { rig.start(&sim, &[], &READ_ONLY).await.err() });
        let refused = refused.map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains(why), "{refused}");
    }
}
