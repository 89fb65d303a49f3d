//! Arrays with parity, read: every layout on three to six members, without each one, without each pair; read errors; every way to name
//! a copy; arrays that were not stopped cleanly.
//!
//! The rows are made by a model of its own: the layout as [`Geometry`] has it, which `geometry_raid5` compares with the kernels', and
//! sums byte by byte.

use ashlar_block::stats::GroupTotals;
use ashlar_block::{Bio, Buffer, CopyNumber, Flags, Sector, Sectors, Status};
use ashlar_md::internals::raid5::{Geometry, Held, ParityLevel};
use ashlar_md::ondisk::create::create;
use ashlar_md::ondisk::{Level, Superblock};
use ashlar_md::{Array, AssembleError, Options};
use ashlar_sim::{Media, Sim, SimDisk};

use crate::common::{DATA, Shape, disks, gateway, media, spec, start};

pub(crate) const CHUNK: u64 = 8;
pub(crate) const ROWS: u64 = 12;
pub(crate) const READ_ONLY: Options = Options { run: true, read_only: true, force: false };
const FORCE: Options = Options { force: true, ..READ_ONLY };

/// The contents of a sector of the array. No two sectors have a byte in common at a place.
pub(crate) fn contents(sector: u64) -> Vec<u8> {
    (0..512u64).map(|at| (sector * 7 + at * 13 + sector * at / 3) as u8).collect()
}

/// The product in the field of Q.
pub(crate) fn times(mut left: u8, mut right: u8) -> u8 {
    let mut product = 0;
    while right != 0 {
        product ^= if right & 1 == 1 { left } else { 0 };
        left = left << 1 ^ if left & 0x80 != 0 { 0x1d } else { 0 };
        right >>= 1;
    }
    product
}

pub(crate) fn power(exponent: u8) -> u8 {
    (0..exponent).fold(1, |power, _| times(power, 2))
}

/// An array on media, complete and clean.
pub(crate) struct Rig {
    pub(crate) media: Vec<Media>,
    pub(crate) geometry: Geometry,
    superblocks: Vec<Superblock>,
}

impl Rig {
    pub(crate) fn new(level: ParityLevel, layout: u32, members: usize) -> Self {
        let of_md = match level {
            ParityLevel::Raid4 => Level::Raid4,
            ParityLevel::Raid5 => Level::Raid5,
            ParityLevel::Raid6 => Level::Raid6,
        };
        let layout_word = (level != ParityLevel::Raid4).then_some(layout);
        let shape = Shape::new(of_md, layout_word, CHUNK / 2, members);
        let media = media(members, Sectors(DATA + ROWS * CHUNK));
        let sizes: Vec<Sectors> = media.iter().map(Media::capacity).collect();
        let made = create(&spec(&shape, &sizes)).expect("superblocks");
        let superblocks = made.into_iter().map(|made| made.expect("a member").superblock).collect();
        let used = Sectors(ROWS * CHUNK);
        let geometry = Geometry::new(level, layout, members, Sectors(CHUNK), used).unwrap();
        let rig = Self { media, geometry, superblocks };
        rig.record(|_| {});
        for at in 0..ROWS * CHUNK {
            rig.write_row(Sector(at));
        }
        rig
    }

    /// The same array on media of its own.
    pub(crate) fn copy(&self) -> Self {
        let media = self.media.iter().map(Media::copy).collect();
        Self { media, geometry: self.geometry, superblocks: self.superblocks.clone() }
    }

    /// Writes the superblocks after a change.
    pub(crate) fn record(&self, change: impl Fn(&mut Superblock)) {
        for (medium, superblock) in self.media.iter().zip(&self.superblocks) {
            let mut superblock = superblock.clone();
            change(&mut superblock);
            let bytes = superblock.encode(512).expect("a superblock");
            for (sector, bytes) in (superblock.super_offset.0..).zip(bytes.chunks(512)) {
                medium.poke(Sector(sector), bytes);
            }
        }
    }

    /// Writes a sector of each member.
    fn write_row(&self, at: Sector) {
        let row = self.geometry.row_at(at);
        let (mut p, mut q) = (vec![0; 512], vec![0; 512]);
        for slot in 0..self.geometry.disks() {
            let Held::Data(sector) = self.geometry.unmap(slot, at) else { continue };
            let data = contents(sector.0);
            p.iter_mut().zip(&data).for_each(|(p, byte)| *p ^= byte);
            if let Some(exponent) = row.exponent(slot) {
                let factor = power(exponent);
                q.iter_mut().zip(&data).for_each(|(q, byte)| *q ^= times(factor, *byte));
            }
            self.poke(slot, at, &data);
        }
        self.poke(row.p, at, &p);
        if let Some(slot) = row.q {
            self.poke(slot, at, &q);
        }
    }

    pub(crate) fn poke(&self, slot: usize, at: Sector, bytes: &[u8]) {
        self.media[slot].poke(at + Sectors(DATA), bytes);
    }

    /// Starts the array without some members.
    pub(crate) async fn start(
        &self,
        sim: &Sim,
        without: &[usize],
        options: &Options,
    ) -> Result<std::sync::Arc<Array>, AssembleError> {
        let mut present: Vec<SimDisk> = disks(&self.media);
        let mut slot = 0;
        present.retain(|_| {
            slot += 1;
            !without.contains(&(slot - 1))
        });
        start(sim, &present, options).await
    }

    pub(crate) fn all(&self) -> Vec<u8> {
        (0..self.geometry.size().0).map(contents).collect::<Vec<_>>().concat()
    }
}

/// The levels with their layouts.
pub(crate) fn layouts() -> impl Iterator<Item = (ParityLevel, u32)> {
    let raid6 = (0..6).chain(8..11).chain(16..21).map(|word| (ParityLevel::Raid6, word));
    let raid5 = (0..6).map(|word| (ParityLevel::Raid5, word));
    [(ParityLevel::Raid4, 0)].into_iter().chain(raid5).chain(raid6)
}

/// Reads all, in one piece and in pieces that cross chunks.
pub(crate) async fn read_all(array: &std::sync::Arc<Array>) -> Vec<u8> {
    let volume = gateway(array);
    let size = volume.capacity().0;
    let whole = volume.read(Sector(0), Sectors(size)).await.expect("all data");
    let mut pieces = Vec::new();
    for at in (0..size).step_by(5) {
        let piece = volume.read(Sector(at), Sectors(5.min(size - at))).await.expect("a piece");
        pieces.extend_from_slice(piece.as_slice());
    }
    assert!(pieces == whole.as_slice(), "the pieces differ from the whole");
    pieces
}

#[test]
fn every_layout_is_read_complete_and_without_as_many_members_as_it_can_lose() {
    for (level, layout) in layouts() {
        for members in level.least_members().max(3)..=6 {
            let rig = Rig::new(level, layout, members);
            let all = rig.all();
            let sim = Sim::new(1);
            sim.block_on(async {
                let mut losses = vec![vec![]];
                losses.extend((0..members).map(|one| vec![one]));
                let pairs =
                    (0..members).flat_map(|one| (0..one).map(move |other| vec![other, one]));
                losses.extend(pairs);
                for lost in losses {
                    let case = format!("{level:?} {layout} of {members} without {lost:?}");
                    let array = rig.start(&sim, &lost, &READ_ONLY).await;
                    if lost.len() > level.parities() {
                        assert!(matches!(array, Err(AssembleError::NotEnough { .. })), "{case}");
                        continue;
                    }
                    let array = array.unwrap_or_else(|error| panic!("{case}: {error}"));
                    assert_eq!(array.degraded(), lost.len());
                    assert!(read_all(&array).await == all, "{case}");
                    array.stop().await.unwrap();
                }
            });
        }
    }
}

/// A read of a missing member's block is the most that a small read costs: no more than the read's own range is read, though chunks are larger.
#[test]
fn a_read_costs_one_read_or_if_its_member_is_missing_one_for_each_data_chunk_of_the_row() {
    use ParityLevel::{Raid4, Raid5, Raid6};
    for (level, layout, members, lost) in [
        (Raid4, 0, 4, vec![]),
        (Raid4, 0, 4, vec![1]),
        (Raid5, 2, 4, vec![]),
        (Raid5, 2, 4, vec![2]),
        (Raid5, 2, 6, vec![0]),
        (Raid6, 2, 5, vec![3]),
        (Raid6, 2, 6, vec![4]),
        (Raid6, 2, 6, vec![1, 4]),
        (Raid6, 8, 6, vec![0, 5]),
    ] {
        let rig = Rig::new(level, layout, members);
        let sim = Sim::new(10);
        sim.block_on(async {
            let case = format!("{level:?} {layout} of {members} without {lost:?}");
            let present = disks(&rig.media);
            let left: Vec<&SimDisk> = (0..members)
                .filter(|slot| !lost.contains(slot))
                .map(|slot| &present[slot])
                .collect();
            let array = start(&sim, &left, &READ_ONLY).await.unwrap();
            let volume = gateway(&array);
            let read = || {
                let of = |disk: &SimDisk| disk.disk().stats().totals().read;
                let sum = |number: fn(GroupTotals) -> u64| -> u64 {
                    left.iter().map(|disk| number(of(disk))).sum()
                };
                (sum(|read| read.ios), sum(|read| read.sectors))
            };
            for len in [1, 3, CHUNK] {
                for start in (0..volume.capacity().0).step_by(CHUNK as usize) {
                    let at = start + (start / CHUNK) % (CHUNK - len + 1);
                    let is_lost = lost.contains(&rig.geometry.map(Sector(at)).disk);
                    let expected = if is_lost { rig.geometry.data_disks() as u64 } else { 1 };
                    let before = read();
                    volume.read(Sector(at), Sectors(len)).await.unwrap();
                    let after = read();
                    let found = (after.0 - before.0, after.1 - before.1);
                    assert_eq!(found, (expected, expected * len), "{case}: {len} at {at}");
                }
            }
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn two_members_with_parity_are_a_mirror() {
    for level in [ParityLevel::Raid4, ParityLevel::Raid5] {
        let rig = Rig::new(level, 2, 2);
        let sim = Sim::new(2);
        sim.block_on(async {
            for lost in [vec![], vec![0], vec![1]] {
                let array = rig.start(&sim, &lost, &READ_ONLY).await.unwrap();
                assert!(read_all(&array).await == rig.all(), "{level:?} without {lost:?}");
                array.stop().await.unwrap();
            }
        });
    }
}

#[test]
fn what_a_member_cannot_return_comes_from_the_rest_of_its_row() {
    for (level, layout) in
        [(ParityLevel::Raid5, 2), (ParityLevel::Raid6, 2), (ParityLevel::Raid6, 8)]
    {
        let rig = Rig::new(level, layout, 5);
        // Different places of as many members as may be lost, and the same place of as many.
        rig.media[0].fail_reads(DATA + 3..DATA + 30);
        rig.media[2].fail_reads(DATA + 32..DATA + 33);
        if level == ParityLevel::Raid6 {
            rig.media[1].fail_reads(DATA + 8..DATA + 9);
            rig.media[3].fail_reads(DATA + 32..DATA + 33);
        }
        let sim = Sim::new(3);
        sim.block_on(async {
            let array = rig.start(&sim, &[], &READ_ONLY).await.unwrap();
            assert!(read_all(&array).await == rig.all(), "{level:?} {layout}");
            let errors: u64 = array.status().await.members.iter().map(|it| it.read_errors).sum();
            assert!(errors > 0);
            array.stop().await.unwrap();
        });
        rig.media.iter().for_each(|medium| assert_eq!(medium.counts().writes, 0));
    }
}

#[test]
fn only_the_pages_fail_of_which_too_much_is_lost() {
    let rig = Rig::new(ParityLevel::Raid5, 2, 4);
    // Sector 20 of two members: the page of 16 to 23.
    rig.media[0].fail_reads(DATA + 20..DATA + 21);
    rig.media[1].fail_reads(DATA + 20..DATA + 21);
    let sim = Sim::new(4);
    sim.block_on(async {
        let array = rig.start(&sim, &[], &READ_ONLY).await.unwrap();
        let volume = gateway(&array);
        for sector in 0..volume.capacity().0 {
            let at = rig.geometry.map(Sector(sector));
            let read = volume.read(Sector(sector), Sectors(1)).await;
            let is_lost = at.disk < 2 && at.sector.0 == 20;
            match read {
                Ok(read) => assert!(!is_lost && read.as_slice() == contents(sector), "{sector}"),
                Err(status) => assert!(is_lost && status == Status::Medium, "{sector}: {status}"),
            }
        }
        array.stop().await.unwrap();
    });
}

#[test]
fn a_read_error_without_redundancy_left_ends_the_read() {
    let rig = Rig::new(ParityLevel::Raid5, 2, 3);
    let lost = 21;
    let sim = Sim::new(9);
    sim.block_on(async {
        let array = rig.start(&sim, &[2], &READ_ONLY).await.unwrap();
        rig.media[1].fail_reads(DATA + lost..DATA + lost + 1);
        let before = rig.media[1].counts().reads;
        let volume = gateway(&array);
        let size = volume.capacity().0;
        for sector in 0..size {
            let at = rig.geometry.map(Sector(sector));
            // Its own sector, and what would be recovered with it.
            let needs = at.disk == 1 || at.disk == 2;
            let read = volume.read(Sector(sector), Sectors(1)).await;
            match read {
                Ok(read) => assert!(read.as_slice() == contents(sector)),
                Err(status) => {
                    assert!(needs && at.sector.0 == lost, "{sector}");
                    assert_eq!(status, Status::Medium);
                }
            }
        }
        assert!(volume.read(Sector(0), Sectors(size)).await.is_err());
        let reads = rig.media[1].counts().reads - before;
        assert!(reads < 4 * size, "{reads} reads of a member for {size} sectors");
        array.stop().await.unwrap();
    });
}

async fn named(array: &std::sync::Arc<Array>, sector: u64, copy: u16) -> Result<Vec<u8>, Status> {
    let mut buffer = Buffer::zeroed(512);
    let bio = Bio { copy: CopyNumber(copy), ..Bio::read(Sector(sector), [buffer.whole()]) };
    gateway(array).submit(bio).await?;
    Ok(buffer.as_slice().to_vec())
}

#[test]
fn some_way_returns_what_is_right_whatever_one_member_returns() {
    for (level, layout) in
        [(ParityLevel::Raid5, 2), (ParityLevel::Raid6, 2), (ParityLevel::Raid6, 9)]
    {
        let rig = Rig::new(level, layout, 5);
        let ways = if level == ParityLevel::Raid5 { 2 } else { 5 };
        let sim = Sim::new(5);
        sim.block_on(async {
            let array = rig.start(&sim, &[], &READ_ONLY).await.unwrap();
            let volume = gateway(&array);
            assert_eq!(volume.copies(Sector(0), Sectors(8)), ways);
            let size = volume.capacity().0;
            for sector in 0..size {
                for copy in 1..=ways {
                    let read = named(&array, sector, copy).await.unwrap();
                    assert!(read == contents(sector), "{level:?} {layout}: {sector} by {copy}");
                }
                assert_eq!(named(&array, sector, ways + 1).await, Err(Status::Invalid));
            }
            // Silent corruption of one member, and with RAID 6 of a second one, but of another's data.
            for wrong in 0..5 {
                for sector in (0..size).step_by(3) {
                    let at = rig.geometry.map(Sector(sector));
                    let second =
                        (level == ParityLevel::Raid6 && at.disk != wrong).then_some(at.disk);
                    for slot in [wrong].into_iter().chain(second) {
                        rig.poke(slot, at.sector, &[0xa5; 512]);
                    }
                    let mut reads = Vec::new();
                    for copy in 1..=ways {
                        reads.push(named(&array, sector, copy).await.unwrap());
                    }
                    assert!(
                        reads.contains(&contents(sector)),
                        "{level:?}: {sector}, {wrong} wrong"
                    );
                    rig.write_row(at.sector);
                }
            }
            array.stop().await.unwrap();
        });
    }
}

#[test]
fn a_way_that_a_missing_member_makes_impossible_does_not_count() {
    let sim = Sim::new(6);
    for level in [ParityLevel::Raid4, ParityLevel::Raid5, ParityLevel::Raid6] {
        let rig = Rig::new(level, if level == ParityLevel::Raid4 { 0 } else { 2 }, 5);
        let losses: &[&[usize]] = match level {
            ParityLevel::Raid6 => &[&[1], &[0, 3], &[2, 4]],
            ParityLevel::Raid4 | ParityLevel::Raid5 => &[&[0], &[4]],
        };
        sim.block_on(async {
            for lost in losses {
                let array = rig.start(&sim, lost, &READ_ONLY).await.unwrap();
                let volume = gateway(&array);
                let mut most = 0;
                for sector in 0..volume.capacity().0 {
                    let ways = volume.copies(Sector(sector), Sectors(1));
                    for copy in 1..=ways {
                        let read = named(&array, sector, copy).await;
                        assert!(read == Ok(contents(sector)), "{level:?} {lost:?} {sector} {copy}");
                    }
                    assert_eq!(named(&array, sector, ways + 1).await, Err(Status::Invalid));
                    most = most.max(ways);
                    // The member's own copy, and one way for each parity that is left beside what it recovers.
                    let at = rig.geometry.map(Sector(sector));
                    let spare = if level == ParityLevel::Raid6 { 2 - lost.len() } else { 0 };
                    let is_here = usize::from(!lost.contains(&at.disk));
                    assert!(usize::from(ways) >= is_here + spare, "{level:?} {lost:?} {sector}");
                    assert!(
                        is_here + spare > 0 || ways == 1,
                        "{level:?} {lost:?} {sector}: {ways}"
                    );
                }
                assert!(most > 0);
                array.stop().await.unwrap();
            }
        });
    }
}

#[test]
fn nothing_is_written_to_members_of_a_read_only_array() {
    let rig = Rig::new(ParityLevel::Raid5, 2, 3);
    let sim = Sim::new(7);
    sim.block_on(async {
        let array = rig.start(&sim, &[2], &READ_ONLY).await.unwrap();
        let volume = gateway(&array);
        let mut data = Buffer::zeroed(512);
        let written = volume.write(Sector(0), &mut data, Flags::empty()).await;
        assert_eq!(written, Err(Status::ReadOnly));
        assert!(read_all(&array).await == rig.all());
        volume.flush().await.unwrap();
        sim.runtime().sleep(std::time::Duration::from_secs(100)).await;
        array.stop().await.unwrap();
    });
    rig.media.iter().for_each(|medium| assert_eq!(medium.counts().writes, 0));
}

#[test]
fn parity_that_a_crash_may_have_left_wrong_is_not_used_unless_the_user_wants_it() {
    let rig = Rig::new(ParityLevel::Raid5, 2, 3);
    let from = Sectors(40);
    rig.record(|superblock| superblock.resync_offset = from);
    let sim = Sim::new(8);
    sim.block_on(async {
        // Complete: data is what members have. Of what cannot be read, only what is before the bound is recovered.
        let array = rig.start(&sim, &[], &READ_ONLY).await.unwrap();
        rig.media[0].fail_reads(DATA..DATA + ROWS * CHUNK);
        for sector in 0..gateway(&array).capacity().0 {
            let at = rig.geometry.map(Sector(sector));
            let read = gateway(&array).read(Sector(sector), Sectors(1)).await;
            let is_suspect = at.disk == 0 && at.sector.0 + 1 > from.0;
            assert_eq!(read.is_err(), is_suspect, "{sector}");
            // The user of a checksum judges.
            assert!(named(&array, sector, 2).await.is_ok() || at.disk != 0);
        }
        array.stop().await.unwrap();
        rig.media[0].heal();

        for missing in 0..3 {
            let refused = rig.start(&sim, &[missing], &READ_ONLY).await;
            assert!(matches!(refused, Err(AssembleError::DirtyDegraded { .. })), "{missing}");
            let array = rig.start(&sim, &[missing], &FORCE).await.unwrap();
            assert!(read_all(&array).await == rig.all());
            let notes = array.status().await.notes;
            assert!(notes.iter().any(|note| note.contains("from sector 40")), "{notes:?}");
            // Of two data chunks in each row.
            assert_eq!(array.suspects(), [Sector(80)..Sector(192)]);
            array.stop().await.unwrap();
        }
    });
    rig.media.iter().for_each(|medium| assert_eq!(medium.counts().writes, 0));
    // A member that has nothing but parity is not missed.
    for (level, layout, parity) in [
        (ParityLevel::Raid4, 0, 3),
        (ParityLevel::Raid5, 4, 0),
        (ParityLevel::Raid5, 5, 3),
        (ParityLevel::Raid6, 18, 3),
    ] {
        let rig = Rig::new(level, layout, 4);
        rig.record(|superblock| superblock.resync_offset = Sectors::ZERO);
        sim.block_on(async {
            for missing in 0..4 {
                let array = rig.start(&sim, &[missing], &READ_ONLY).await;
                assert_eq!(array.is_ok(), missing == parity, "{level:?} {layout}: {missing}");
                if let Ok(array) = array {
                    assert!(read_all(&array).await == rig.all());
                    array.stop().await.unwrap();
                }
            }
        });
    }
}
