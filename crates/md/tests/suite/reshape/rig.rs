//! Arrays under reshape. The rows of both sides are made by a model: the layouts as [`Geometry`] has them, which `geometry_raid5` compares with
//! the kernels', and sums byte by byte. Every place of a member that no side uses has bytes that no sector has.

use ashlar_block::{Sector, Sectors};
use ashlar_md::internals::raid5::{Geometry, Held, ParityLevel};
use ashlar_md::internals::raid10;
use ashlar_md::ondisk::create::create;
use ashlar_md::ondisk::superblock_1::Block1;
use ashlar_md::ondisk::{Level, Superblock};
use ashlar_md::{Array, AssembleError, Options};
use ashlar_sim::{Media, Sim, SimDisk};

use crate::common::{Shape, disks, media, spec, start};
use crate::parity::{contents, power, times};

/// What a member has of data, on both sides.
pub(super) const USED: u64 = 64;
/// Where data begins before the reshape.
pub(super) const DATA: u64 = 512;
/// Where a member ends.
pub(super) const END: u64 = 1024;

/// One side: members, layout word, chunk size in sectors.
pub(super) type Shaped = (usize, u32, u64);

#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) level: Level,
    pub(super) before: Shaped,
    pub(super) after: Shaped,
    /// Where data is after it, as the distance.
    pub(super) moved: i64,
    pub(super) backwards: bool,
}

impl Pair {
    pub(super) const fn new(level: Level, before: Shaped, after: Shaped) -> Self {
        let backwards = after.0 < before.0;
        Self { level, before, after, moved: if backwards { 192 } else { -192 }, backwards }
    }
}

/// The map of one side.
pub(super) enum Map {
    Parity(Geometry),
    Raid10(raid10::geometry::Geometry),
}

impl Map {
    pub(super) fn new(level: Level, (members, layout, chunk): Shaped) -> Self {
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

    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Parity(geometry) => geometry.size().0,
            Self::Raid10(geometry) => geometry.size().0,
        }
    }

    pub(super) fn is_readable_without(&self, lost: &[usize]) -> bool {
        let present = |slot: usize| !lost.contains(&slot);
        match self {
            Self::Parity(geometry) => geometry.is_readable_with(present),
            Self::Raid10(geometry) => geometry.is_readable_with(present),
        }
    }

    /// The array sectors that a position of a reshape to this side may be.
    pub(super) fn row(&self) -> u64 {
        match self {
            Self::Parity(geometry) => geometry.row_len().0,
            Self::Raid10(geometry) => geometry.chunk().0,
        }
    }

    /// Writes a sector of the array, with the parity of its place, for data areas that begin at `data`.
    pub(super) fn write(&self, media: &[Media], data: u64, sector: u64) {
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
pub(super) struct Rig {
    pub(super) pair: Pair,
    pub(super) media: Vec<Media>,
    pub(super) before: Map,
    pub(super) after: Map,
}

impl Rig {
    pub(super) fn new(pair: Pair, position: u64) -> Self {
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

    pub(super) fn size(&self) -> u64 {
        self.before.size().min(self.after.size())
    }

    /// Writes the superblocks, after `change` of the block of each member.
    pub(super) fn record(&self, position: u64, change: impl Fn(usize, &mut Block1)) {
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

    pub(super) fn all(&self) -> Vec<u8> {
        (0..self.size()).map(contents).collect::<Vec<_>>().concat()
    }

    pub(super) fn present(&self, lost: &[usize]) -> Vec<SimDisk> {
        let present = disks(&self.media).into_iter().enumerate();
        present.filter(|(slot, _)| !lost.contains(slot)).map(|(_, disk)| disk).collect()
    }

    pub(super) async fn start(
        &self,
        sim: &Sim,
        lost: &[usize],
        options: &Options,
    ) -> Result<std::sync::Arc<Array>, AssembleError> {
        start(sim, &self.present(lost), options).await
    }
}

pub(super) const LS: u32 = 2;
pub(super) const RA: u32 = 1;
/// The layouts of RAID 10: two near copies, two copies with an offset.
pub(super) const NEAR: u32 = 0x102;
pub(super) const OFFSET: u32 = 0x1_0201;

pub(super) fn pairs() -> Vec<Pair> {
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
pub(super) fn losses(members: usize) -> Vec<Vec<usize>> {
    let pairs = (0..members).flat_map(|one| (0..one).map(move |other| vec![other, one]));
    std::iter::once(vec![]).chain((0..members).map(|one| vec![one])).chain(pairs).collect()
}
