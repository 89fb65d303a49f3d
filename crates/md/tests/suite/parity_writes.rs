//! Arrays with parity, written: every layout on three to six members, complete and without as many as it can lose; how much a write reads;
//! read errors that writes and reads correct.

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::canary::break_rule;
use ashlar_block::{Bio, Buffer, Features, Flags, Limits, Sector, Sectors, Status};
use ashlar_md::canary::Rule;
use ashlar_md::internals::raid5::ParityLevel;
use ashlar_md::ondisk::create::NewBitmap;
use ashlar_md::{Array, Options};
use ashlar_sim::{Media, Model as Timing, Rng, Sim, SimDisk};
use futures_util::future::{join, join_all};

use crate::common::{DATA, gateway, start};
use crate::parity::{CHUNK, READ_ONLY, ROWS, Rig, layouts, power, times};

pub(crate) const RW: Options = Options { run: true, read_only: false, force: false };

/// What the sectors of an array must hold.
pub(crate) struct Model(Vec<u8>);

impl Model {
    pub(crate) fn of(rig: &Rig) -> Self {
        Self(rig.all())
    }

    /// Writes a random range on the array and here.
    async fn write(&mut self, array: &Arc<Array>, rng: &mut Rng) {
        let size = self.0.len() as u64 / 512;
        let len = match rng.below(4) {
            0 => 1 + rng.below(3),
            1 => CHUNK,
            2 => 1 + rng.below(3 * CHUNK),
            _ => 1 + rng.below(8 * CHUNK),
        };
        let len = len.min(size);
        let at = rng.below(size - len + 1);
        let fill = rng.next_u64();
        let bytes: Vec<u8> =
            (0..len * 512).map(|at| (fill >> (at % 8 * 8)) as u8 ^ at as u8).collect();
        let mut data = Buffer::from_slice(&bytes);
        gateway(array).write(Sector(at), &mut data, Flags::empty()).await.expect("a write");
        self.0[at as usize * 512..][..bytes.len()].copy_from_slice(&bytes);
    }

    pub(crate) async fn check(&self, array: &Arc<Array>, what: &str) {
        assert!(crate::parity::read_all(array).await == self.0, "{what}");
    }
}

impl Rig {
    /// The first sector of the members whose parity does not fit, if there is one.
    pub(crate) fn misfit(&self) -> Option<u64> {
        (0..ROWS * CHUNK).find(|at| {
            let row = self.geometry.row_at(Sector(*at));
            let block = |slot: usize| self.media[slot].peek(Sector(DATA + at));
            let (mut p, mut q) = ([0; 512], [0; 512]);
            for index in 0..self.geometry.data_disks() {
                let slot = row.data(index);
                let factor = row.exponent(slot).map_or(0, power);
                for (at, byte) in block(slot).iter().enumerate() {
                    p[at] ^= byte;
                    q[at] ^= times(factor, *byte);
                }
            }
            block(row.p)[..] != p[..] || row.q.is_some_and(|slot| block(slot)[..] != q[..])
        })
    }

    /// The commands of all members since the last call: reads, writes.
    fn commands(&self) -> (u64, u64) {
        let counts: Vec<_> = self.media.iter().map(|medium| medium.counts()).collect();
        self.media.iter().for_each(|medium| medium.clear_log());
        (counts.iter().map(|one| one.reads).sum(), counts.iter().map(|one| one.writes).sum())
    }
}

#[test]
fn every_layout_is_written_complete_and_without_as_many_members_as_it_can_lose() {
    for (level, layout) in layouts() {
        for members in level.least_members().max(3)..=6 {
            let mut rng = Rng::new(u64::from(layout) * 10 + members as u64);
            let mut losses = vec![vec![]];
            losses.extend((0..members).map(|one| vec![one]));
            if level == ParityLevel::Raid6 {
                let pairs =
                    (0..members).flat_map(|one| (0..one).map(move |other| vec![other, one]));
                losses.extend(pairs);
            }
            let complete = Rig::new(level, layout, members);
            for lost in losses {
                let case = format!("{level:?} {layout} of {members} without {lost:?}");
                let rig = complete.copy();
                let mut model = Model::of(&rig);
                let sim = Sim::new(1);
                sim.block_on(async {
                    let array = rig.start(&sim, &lost, &RW).await.expect("a start");
                    for _ in 0..12 {
                        model.write(&array, &mut rng).await;
                    }
                    model.check(&array, &case).await;
                    array.stop().await.unwrap();
                    if lost.is_empty() {
                        assert_eq!(rig.misfit(), None, "{case}");
                    }
                    // Without as many more as it can lose.
                    let also = (0..members).find(|slot| !lost.contains(slot));
                    let more = also.filter(|_| lost.len() < level.parities());
                    let lost: Vec<usize> = lost.into_iter().chain(more).collect();
                    let array = rig.start(&sim, &lost, &READ_ONLY).await.expect("a start");
                    model.check(&array, &format!("{case}, then {lost:?}")).await;
                    array.stop().await.unwrap();
                });
            }
        }
    }
}

#[test]
fn a_write_reads_the_least_that_leaves_parity_right() {
    use ParityLevel::{Raid4, Raid5, Raid6};
    for (level, members, len, reads, writes) in [
        // A whole row.
        (Raid4, 4, 3 * CHUNK, 0, 4),
        (Raid5, 4, 3 * CHUNK, 0, 4),
        (Raid6, 6, 4 * CHUNK, 0, 6),
        // The old data and parity, or the rest of the row.
        (Raid5, 3, CHUNK, 1, 2),
        (Raid5, 4, CHUNK, 2, 2),
        (Raid5, 6, CHUNK, 2, 2),
        (Raid5, 6, 4 * CHUNK, 1, 5),
        (Raid6, 5, CHUNK, 2, 3),
        (Raid6, 6, CHUNK, 3, 3),
        (Raid6, 8, CHUNK, 3, 3),
        (Raid6, 8, 5 * CHUNK, 1, 7),
    ] {
        let rig = Rig::new(level, if level == Raid4 { 0 } else { 2 }, members);
        let sim = Sim::new(2);
        sim.block_on(async {
            let array = rig.start(&sim, &[], &RW).await.unwrap();
            let volume = gateway(&array);
            let mut data = Buffer::zeroed(512);
            // The array is active from here on.
            volume.write(Sector(0), &mut data, Flags::empty()).await.unwrap();
            rig.commands();
            let row = CHUNK * rig.geometry.data_disks() as u64;
            let mut data = Buffer::zeroed((len * 512) as usize);
            volume.write(Sector(2 * row), &mut data, Flags::empty()).await.unwrap();
            assert_eq!(rig.commands(), (reads, writes), "{level:?} {members} {len}");
            array.stop().await.unwrap();
        });
        assert_eq!(rig.misfit(), None);
    }
}

#[test]
fn writes_of_one_turn_that_fill_a_row_read_nothing() {
    let rig = Rig::new(ParityLevel::Raid5, 2, 4);
    let sim = Sim::new(3);
    sim.block_on(async {
        let array = rig.start(&sim, &[], &RW).await.unwrap();
        let volume = gateway(&array);
        let mut data = Buffer::zeroed(512);
        volume.write(Sector(0), &mut data, Flags::empty()).await.unwrap();
        rig.commands();
        let row = 3 * CHUNK;
        let writes = (0..row).map(|at| {
            let bio = Bio::write_from(Sector(row + at), &mut Buffer::from_slice(&[at as u8; 512]));
            let volume = &volume;
            async move { volume.submit(bio).await }
        });
        for done in join_all(writes).await {
            done.unwrap();
        }
        assert_eq!(rig.commands(), (0, 4));
        for at in 0..row {
            let read = volume.read(Sector(row + at), Sectors(1)).await.unwrap();
            assert!(read.as_slice() == [at as u8; 512]);
        }
        array.stop().await.unwrap();
    });
    assert_eq!(rig.misfit(), None);
}

#[test]
fn a_read_error_is_corrected_from_the_rest_of_the_row() {
    for (level, layout) in
        [(ParityLevel::Raid4, 0), (ParityLevel::Raid5, 2), (ParityLevel::Raid6, 9)]
    {
        let rig = Rig::new(level, layout, 5);
        let model = Model::of(&rig);
        let before: Vec<_> = rig.media.iter().map(|medium| medium.snapshot()).collect();
        let sim = Sim::new(4);
        sim.block_on(async {
            let array = rig.start(&sim, &[], &RW).await.unwrap();
            for (slot, at) in [(0, 10), (1, 40), (3, 70)] {
                rig.media[slot].fail_reads(DATA + at..DATA + at + 2);
            }
            model.check(&array, "with read errors").await;
            // What was rewritten is good again, and the same.
            rig.commands();
            model.check(&array, "after the correction").await;
            let corrected = |rdev: &ashlar_md::Rdev| rdev.errors().1;
            let sectors: u64 = array.members().placed().map(|(_, rdev)| corrected(rdev)).sum();
            assert!(sectors > 0 && sectors <= 24, "{sectors}");
            array.stop().await.unwrap();
        });
        for (medium, before) in rig.media.iter().zip(before) {
            let changed = medium.diff(&before);
            assert!(changed.iter().all(|range| range.end <= DATA), "{changed:?}");
        }
    }
}

#[test]
fn a_write_corrects_what_it_could_not_read() {
    let rig = Rig::new(ParityLevel::Raid5, 2, 6);
    let mut model = Model::of(&rig);
    let sim = Sim::new(5);
    sim.block_on(async {
        let array = rig.start(&sim, &[], &RW).await.unwrap();
        // Sector 0 is on slot 0, its parity on slot 5.
        let at = rig.geometry.map(Sector(0));
        assert_eq!(at.disk, 0);
        rig.media[0].fail_reads(DATA..DATA + 1);
        let mut data = Buffer::from_slice(&[9; 512]);
        gateway(&array).write(Sector(0), &mut data, Flags::empty()).await.unwrap();
        model.0[..512].fill(9);
        model.check(&array, "after the write").await;
        // Of a block that stays: the row is written where it has no other error.
        rig.media[1].fail_reads(DATA..DATA + 1);
        let mut data = Buffer::from_slice(&[7; 4 * CHUNK as usize * 512]);
        let from = Sector(CHUNK);
        let row = 5 * CHUNK;
        gateway(&array).write(from, &mut data, Flags::empty()).await.unwrap();
        model.0[CHUNK as usize * 512..row as usize * 512].fill(7);
        model.check(&array, "after the row").await;
        array.stop().await.unwrap();
    });
    assert_eq!(rig.misfit(), None);
}

#[test]
fn a_member_that_fails_in_a_write_is_not_missed() {
    for (level, layout) in [(ParityLevel::Raid5, 3), (ParityLevel::Raid6, 18)] {
        let rig = Rig::new(level, layout, 5);
        let mut model = Model::of(&rig);
        let mut rng = Rng::new(6);
        let sim = Sim::new(6);
        sim.block_on(async {
            let array = rig.start(&sim, &[], &RW).await.unwrap();
            for victim in 0..level.parities() {
                model.write(&array, &mut rng).await;
                rig.media[victim].kill();
                for _ in 0..8 {
                    model.write(&array, &mut rng).await;
                }
                assert_eq!(array.degraded(), victim + 1);
                model.check(&array, "with failed members").await;
            }
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn a_write_beyond_what_the_array_can_lose_fails_and_what_is_there_stays() {
    let rig = Rig::new(ParityLevel::Raid5, 2, 4);
    let all = rig.all();
    let sim = Sim::new(7);
    sim.block_on(async {
        let array = rig.start(&sim, &[3], &RW).await.unwrap();
        let volume = gateway(&array);
        rig.media[0].fail_writes(DATA..DATA + ROWS * CHUNK);
        let at = (0..rig.geometry.size().0).find(|at| rig.geometry.map(Sector(*at)).disk == 0);
        let mut data = Buffer::zeroed(512);
        let written = volume.write(Sector(at.unwrap()), &mut data, Flags::empty()).await;
        assert!(written.is_err());
        assert_eq!(array.degraded(), 1, "it must stay");
        for sector in 0..volume.capacity().0 {
            let at = rig.geometry.map(Sector(sector));
            let read = volume.read(Sector(sector), Sectors(1)).await;
            // What only parity has may be wrong now.
            match read {
                Ok(read) => assert!(
                    at.sector.0 == 0 || read.as_slice() == &all[sector as usize * 512..][..512]
                ),
                Err(status) => {
                    assert!(at.disk == 3 && status == Status::Medium, "{sector}: {status}")
                }
            }
        }
        sim.runtime().sleep(Duration::from_secs(1)).await;
        assert!(array.stop().await.is_ok() || array.is_unsynced());
    });
}

/// Disks that zero fast, or do not.
fn zeroing(rig: &Rig, fast: bool) -> Vec<SimDisk> {
    let fast = if fast { Features::FAST_ZERO } else { Features::empty() };
    let limits = Limits {
        max_hw_discard: Sectors(1 << 20),
        max_write_zeroes: Sectors(1 << 20),
        features: Features::WRITE_CACHE | Features::FUA | fast,
        ..Limits::default()
    };
    let media = rig.media.iter().enumerate();
    let disk = |(at, medium): (usize, &Media)| {
        SimDisk::with(format!("d{at}"), medium.clone(), limits, Timing::nvme())
    };
    media.map(disk).collect()
}

#[test]
fn a_discard_zeroes_whole_rows_with_one_command_for_each_member() {
    for (level, layout) in [(ParityLevel::Raid5, 2), (ParityLevel::Raid6, 10)] {
        let rig = Rig::new(level, layout, 5);
        let mut model = Model::of(&rig);
        let sim = Sim::new(8);
        sim.block_on(async {
            let array = start(&sim, &zeroing(&rig, true), &RW).await.unwrap();
            let row = CHUNK * rig.geometry.data_disks() as u64;
            let volume = gateway(&array);
            assert_eq!(u64::from(volume.disk().limits().discard_granularity_bytes), row * 512);
            rig.commands();
            volume.submit(Bio::discard(Sector(row + 3), Sectors(4 * row))).await.unwrap();
            let zeroes: u64 = rig.media.iter().map(|one| one.counts().write_zeroes).sum();
            assert_eq!((zeroes, rig.commands().0), (5, 0));
            model.0[2 * row as usize * 512..5 * row as usize * 512].fill(0);
            model.check(&array, "after the discard").await;
            // Less than a row changes nothing.
            let short = Bio::discard(Sector(7 * row + 1), Sectors(2 * row - 2));
            volume.submit(short).await.unwrap();
            model.check(&array, "after the short discard").await;
            array.stop().await.unwrap();
        });
        assert_eq!(rig.misfit(), None);
    }
}

#[test]
fn zeroes_are_written_to_the_last_sector_and_parity_fits() {
    for fast in [true, false] {
        for lost in [vec![], vec![1]] {
            let rig = Rig::new(ParityLevel::Raid5, 2, 4);
            let mut model = Model::of(&rig);
            let sim = Sim::new(9);
            sim.block_on(async {
                let mut present = zeroing(&rig, fast);
                lost.iter().for_each(|slot| drop(present.remove(*slot)));
                let array = start(&sim, &present, &RW).await.unwrap();
                let volume = gateway(&array);
                let row = 3 * CHUNK;
                for (at, len) in [(5, 2), (row - 1, 2), (2 * row + 7, 3 * row), (7 * row, row)] {
                    let zeroes = Bio::write_zeroes(Sector(at), Sectors(len));
                    volume.submit(zeroes).await.unwrap();
                    model.0[at as usize * 512..(at + len) as usize * 512].fill(0);
                }
                model.check(&array, "after the zeroes").await;
                let fast_zero = Bio::write_zeroes(Sector(0), Sectors(row)).with_flags(Flags::FAST);
                assert_eq!(volume.submit(fast_zero).await, Err(Status::NotSupported));
                let discard = volume.submit(Bio::discard(Sector(0), Sectors(row))).await;
                assert_eq!(discard.is_ok(), fast, "only what zeroes fast discards");
                array.stop().await.unwrap();
            });
            if lost.is_empty() {
                assert_eq!(rig.misfit(), None);
            }
        }
    }
}

#[test]
fn a_member_that_fails_to_zero_rows_is_not_missed() {
    let rig = Rig::new(ParityLevel::Raid5, 2, 4);
    let mut model = Model::of(&rig);
    let sim = Sim::new(10);
    sim.block_on(async {
        let array = start(&sim, &zeroing(&rig, true), &RW).await.unwrap();
        let row = 3 * CHUNK;
        rig.media[2].fail_writes(DATA..DATA + ROWS * CHUNK);
        gateway(&array).submit(Bio::write_zeroes(Sector(0), Sectors(3 * row))).await.unwrap();
        assert_eq!(array.degraded(), 1);
        model.0[..3 * row as usize * 512].fill(0);
        model.check(&array, "after the failure").await;
        array.stop().await.unwrap();
    });
}

/// Reads what only parity has, beside writes of the same row; whether it ever changed.
fn a_lost_block_changes(seed: u64) -> bool {
    let rig = Rig::new(ParityLevel::Raid5, 2, 4);
    let all = rig.all();
    let sim = Sim::new(seed);
    sim.block_on(async {
        let array = rig.start(&sim, &[1], &RW).await.unwrap();
        let volume = gateway(&array);
        let row = 3 * CHUNK;
        // Data and parity of a write arrive at different times.
        rig.media[3].slow_down(2 + seed);
        let lost: Vec<u64> =
            (0..row).filter(|at| rig.geometry.map(Sector(*at)).disk == 1).collect();
        let writes = async {
            for fill in 0..20 {
                for at in (0..row).filter(|at| !lost.contains(at)).step_by(5) {
                    let mut data = Buffer::from_slice(&[fill; 512]);
                    volume.write(Sector(at), &mut data, Flags::empty()).await.unwrap();
                }
            }
        };
        let reads = async {
            let mut changed = false;
            for _ in 0..60 {
                for at in &lost {
                    let read = volume.read(Sector(*at), Sectors(1)).await.unwrap();
                    changed |= read.as_slice() != &all[*at as usize * 512..][..512];
                }
            }
            changed
        };
        let ((), changed) = join(writes, reads).await;
        array.stop().await.unwrap();
        changed
    })
}

#[test]
fn a_block_that_only_parity_has_stays_the_same_beside_writes_of_its_row() {
    assert!((0..5).all(|seed| !a_lost_block_changes(seed)));
    let broken = break_rule(Rule::RowsAreHeld);
    assert!((0..5).any(a_lost_block_changes), "the rule is not needed");
    drop(broken);
}

#[test]
fn a_row_whose_parity_has_no_member_needs_a_sync() {
    // Slot 3 has all parity.
    let rig = Rig::new(ParityLevel::Raid4, 0, 4);
    let sim = Sim::new(11);
    sim.block_on(async {
        let array = rig.start(&sim, &[], &RW).await.unwrap();
        array.set_bitmap(NewBitmap::Internal { chunk: Some(4096) }).await.unwrap();
        array.stop().await.unwrap();
        let array = rig.start(&sim, &[3], &RW).await.unwrap();
        let needed = || array.bitmap().expect("a bitmap").needed_chunks();
        assert_eq!(needed(), 0);
        let mut data = Buffer::zeroed(512);
        gateway(&array).write(Sector(0), &mut data, Flags::empty()).await.unwrap();
        assert_eq!(needed(), 1);
        array.stop().await.unwrap();
    });
}
