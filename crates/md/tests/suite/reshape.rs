//! Arrays under reshape, read: pairs of geometries, both directions, every position, complete and without as many members as may be lost.
//!
//! The rows of both sides are made by a model: the layouts as [`Geometry`] has them, which `geometry_raid5` compares with the kernels', and sums
//! byte by byte. Every place of a member that no side uses has bytes that no sector has. `tests/interop/md-reshape.sh` reads what a kernel leaves.

use ashlar_block::{Buffer, Sector, Sectors, Status};
use ashlar_md::canary::Rule;
use ashlar_md::internals::raid5::{Geometry, Held, ParityLevel};
use ashlar_md::internals::raid10;
use ashlar_md::ondisk::create::create;
use ashlar_md::ondisk::superblock_1::Block1;
use ashlar_md::ondisk::{Level, Superblock};
use ashlar_md::{Array, AssembleError, BackupFile, Options, plan_with_backups};
use ashlar_sim::{Media, Sim, SimDisk};

use crate::common::{Shape, candidates, disks, gateway, media, spec, start};
use crate::parity::{READ_ONLY, contents, power, read_all, times};

/// What a member has of data, on both sides.
const USED: u64 = 64;
/// Where data begins before the reshape.
const DATA: u64 = 512;
/// Where a member ends.
const END: u64 = 1024;

/// One side: members, layout word, chunk size in sectors.
type Shaped = (usize, u32, u64);

#[derive(Clone, Copy, Debug)]
struct Pair {
    level: Level,
    before: Shaped,
    after: Shaped,
    /// Where data is after it, as the distance.
    moved: i64,
    backwards: bool,
}

impl Pair {
    const fn new(level: Level, before: Shaped, after: Shaped) -> Self {
        let backwards = after.0 < before.0;
        Self { level, before, after, moved: if backwards { 192 } else { -192 }, backwards }
    }
}

/// The map of one side.
enum Map {
    Parity(Geometry),
    Raid10(raid10::geometry::Geometry),
}

impl Map {
    fn new(level: Level, (members, layout, chunk): Shaped) -> Self {
        let (chunk, used) = (Sectors(chunk), Sectors(USED));
        let parity = |level| {
            Self::Parity(Geometry::new(level, layout, members, chunk, used).expect("a geometry"))
        };
        match level {
            Level::Raid4 => parity(ParityLevel::Raid4),
            Level::Raid5 => parity(ParityLevel::Raid5),
            Level::Raid6 => parity(ParityLevel::Raid6),
            Level::Raid10 => Self::Raid10(
                raid10::geometry::Geometry::new(layout, members, chunk, used).expect("a geometry"),
            ),
            Level::Linear
            | Level::Raid0
            | Level::Raid1
            | Level::Multipath
            | Level::Faulty
            | Level::Other(_) => panic!("{level} cannot be reshaped"),
        }
    }

    fn size(&self) -> u64 {
        match self {
            Self::Parity(geometry) => geometry.size().0,
            Self::Raid10(geometry) => geometry.size().0,
        }
    }

    fn is_readable_without(&self, lost: &[usize]) -> bool {
        let present = |slot: usize| !lost.contains(&slot);
        match self {
            Self::Parity(geometry) => geometry.is_readable_with(present),
            Self::Raid10(geometry) => geometry.is_readable_with(present),
        }
    }

    /// The array sectors that a position of a reshape to this side may be.
    fn row(&self) -> u64 {
        match self {
            Self::Parity(geometry) => geometry.row_len().0,
            Self::Raid10(geometry) => geometry.chunk().0,
        }
    }

    /// Writes a sector of the array, with the parity of its place, for data areas that begin at `data`.
    fn write(&self, media: &[Media], data: u64, sector: u64) {
        match self {
            Self::Raid10(geometry) => {
                for at in geometry.map(Sector(sector)) {
                    media[at.disk].poke(at.sector + Sectors(data), &contents(sector));
                }
            }
            Self::Parity(geometry) => {
                let at = geometry.map(Sector(sector)).sector;
                let row = geometry.row_at(at);
                let (mut p, mut q) = (vec![0; 512], vec![0; 512]);
                for (slot, medium) in media.iter().enumerate() {
                    let Held::Data(sector) = geometry.unmap(slot, at) else { continue };
                    let bytes = contents(sector.0);
                    let factor = row.exponent(slot).map_or(0, power);
                    for (at, byte) in bytes.iter().enumerate() {
                        p[at] ^= byte;
                        q[at] ^= times(factor, *byte);
                    }
                    medium.poke(at + Sectors(data), &bytes);
                }
                media[row.p].poke(at + Sectors(data), &p);
                if let Some(slot) = row.q {
                    media[slot].poke(at + Sectors(data), &q);
                }
            }
        }
    }
}

/// An array under reshape on media.
struct Rig {
    pair: Pair,
    media: Vec<Media>,
    before: Map,
    after: Map,
}

impl Rig {
    fn new(pair: Pair, position: u64) -> Self {
        let members = pair.before.0.max(pair.after.0);
        let rig = Self {
            pair,
            media: media(members, Sectors(END)),
            before: Map::new(pair.level, pair.before),
            after: Map::new(pair.level, pair.after),
        };
        for medium in &rig.media {
            (0..END).for_each(|at| medium.poke(Sector(at), &[0xee; 512]));
        }
        rig.record(position, |_, _| {});
        // Of a row that is only in part beyond the position, all is still there.
        let size = rig.size();
        let is_moved = |sector: u64| (sector < position) != pair.backwards;
        for sector in (0..size).filter(|sector| !is_moved(*sector)) {
            rig.before.write(&rig.media, DATA, sector);
        }
        let moved = DATA.checked_add_signed(pair.moved).unwrap();
        for sector in (0..size).filter(|sector| is_moved(*sector)) {
            rig.after.write(&rig.media, moved, sector);
        }
        rig
    }

    fn size(&self) -> u64 {
        self.before.size().min(self.after.size())
    }

    /// Writes the superblocks, after `change` of the block of each member.
    fn record(&self, position: u64, change: impl Fn(usize, &mut Block1)) {
        let Pair { level, before, after, moved, backwards } = self.pair;
        let layout = (level != Level::Raid4).then_some(before.1);
        let shape = Shape::new(level, layout, before.2 / 2, self.media.len());
        let sizes: Vec<Sectors> = self.media.iter().map(Media::capacity).collect();
        let mut spec = spec(&shape, &sizes);
        spec.data_offset = Some(Sectors(DATA));
        spec.size = Some(Sectors(USED));
        let made = create(&spec).expect("superblocks");
        for (slot, (medium, made)) in self.media.iter().zip(made).enumerate() {
            let superblock: Superblock = made.expect("a member").superblock;
            let bytes = superblock.encode(4096).expect("a superblock");
            let mut block = Block1::from_bytes(&bytes).expect("a block");
            let header = &mut block.header;
            let delta = after.0 as i32 - before.0 as i32;
            let in_place = if backwards && delta == 0 { 32 } else { 0 };
            let new_offset = if moved != 0 { 64 } else { 0 };
            header.feature_map = (header.feature_map.get() | 4 | in_place | new_offset).into();
            header.raid_disks = (after.0 as u32).into();
            header.delta_disks = (delta as u32).into();
            header.new_level = header.level;
            header.new_layout = after.1.into();
            header.new_chunk = (after.2 as u32).into();
            header.new_offset = (moved as i32 as u32).into();
            header.reshape_position = position.into();
            change(slot, &mut block);
            block.seal();
            let bytes = zerocopy::IntoBytes::as_bytes(&*block);
            for (sector, bytes) in (superblock.super_offset.0..).zip(bytes.chunks(512)).take(8) {
                medium.poke(Sector(sector), bytes);
            }
        }
    }

    fn all(&self) -> Vec<u8> {
        (0..self.size()).flat_map(contents).collect()
    }

    fn present(&self, lost: &[usize]) -> Vec<SimDisk> {
        let present = disks(&self.media).into_iter().enumerate();
        present.filter(|(slot, _)| !lost.contains(slot)).map(|(_, disk)| disk).collect()
    }

    async fn start(
        &self,
        sim: &Sim,
        lost: &[usize],
        options: &Options,
    ) -> Result<std::sync::Arc<Array>, AssembleError> {
        start(sim, &self.present(lost), options).await
    }
}

const LS: u32 = 2;
const RA: u32 = 1;
/// The layouts of RAID 10: two near copies, two copies with an offset.
const NEAR: u32 = 0x102;
const OFFSET: u32 = 0x1_0201;

fn pairs() -> Vec<Pair> {
    use Level::{Raid4, Raid5, Raid6, Raid10};
    let mut pairs = vec![
        Pair::new(Raid4, (3, 0, 8), (4, 0, 8)),
        Pair::new(Raid5, (3, LS, 8), (4, LS, 8)),
        Pair::new(Raid5, (3, LS, 8), (5, LS, 16)),
        Pair::new(Raid5, (5, LS, 8), (3, LS, 8)),
        Pair::new(Raid5, (4, RA, 16), (3, LS, 8)),
        Pair::new(Raid6, (4, LS, 8), (5, LS, 8)),
        Pair::new(Raid6, (6, 8, 8), (4, LS, 8)),
        // What RAID 5 becomes with another member.
        Pair::new(Raid6, (5, 18, 8), (5, LS, 8)),
        Pair::new(Raid10, (4, NEAR, 8), (5, NEAR, 8)),
        Pair::new(Raid10, (4, NEAR, 8), (6, NEAR, 16)),
        Pair::new(Raid10, (3, OFFSET, 8), (4, OFFSET, 8)),
    ];
    let chunks = Pair::new(Raid5, (3, LS, 8), (3, RA, 16));
    pairs.push(chunks);
    pairs.push(Pair { backwards: true, moved: 192, ..chunks });
    pairs
}

/// The members that may be lost, alone and in pairs.
fn losses(members: usize) -> Vec<Vec<usize>> {
    let pairs = (0..members).flat_map(|one| (0..one).map(move |other| vec![other, one]));
    std::iter::once(vec![]).chain((0..members).map(|one| vec![one])).chain(pairs).collect()
}

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
                            assert!(read_all(&array).await == rig.all(), "{case}");
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
