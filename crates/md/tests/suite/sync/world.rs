//! Arrays in states that need a sync, made by editing superblocks.
#![allow(unreachable_pub, reason = "shared by the modules of one test")]

use std::sync::Arc;
use std::time::Duration;

use ashlar_block::{Runtime, Sector, Sectors};
use ashlar_md::ondisk::{Features, Level, Role, Superblock, Version};
use ashlar_md::{Array, Options};
use ashlar_sim::{Media, Rng, Sim, SimRuntime};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::common::{DATA, Shape, disks, gateway, make, start, write};

pub const RUN: Options = Options { run: true, read_only: false, force: false };

pub fn raid1(members: usize) -> Shape {
    Shape::new(Level::Raid1, None, 0, members)
}

pub fn raid10(layout: u32, members: usize, chunk_kib: u64) -> Shape {
    Shape::new(Level::Raid10, Some(layout), chunk_kib, members)
}

/// Mirrors, and near, far and offset copies on numbers of members that divide evenly and that do not.
pub fn shapes() -> Vec<Shape> {
    vec![
        raid1(2),
        raid1(3),
        raid10(0x102, 4, 4),
        raid10(0x102, 3, 64),
        raid10(0x103, 5, 8),
        raid10(0x201, 3, 16),
        raid10(0x201, 4, 512),
        raid10(0x1_0201, 4, 64),
        raid10(0x202, 4, 16),
        raid10(0x102, 2, 64),
    ]
}

/// Where a superblock of version 1.2 is.
const SUPER: Sector = Sector(8);

pub fn superblock(medium: &Media) -> Superblock {
    let bytes = medium.peek_range(SUPER, Sectors(8));
    Superblock::parse(Version::V1_2, &bytes, medium.capacity()).expect("a superblock")
}

/// Changes the superblock on a medium.
pub fn edit(medium: &Media, change: impl FnOnce(&mut Superblock)) {
    let mut sb = superblock(medium);
    change(&mut sb);
    medium.poke(SUPER, &sb.encode(512).expect("fits"));
}

/// Creates the array, and fills all of it with stamps.
pub fn fill(sim: &Sim, shape: &Shape, media: &[Media]) {
    sim.block_on(async {
        let disks = disks(media);
        make(shape, &disks).await;
        let array = start(sim, &disks, &Options::default()).await.unwrap();
        write_all(&array, 1).await;
        array.stop().await.unwrap();
    });
}

/// Writes the whole array.
pub async fn write_all(array: &Arc<Array>, generation: u8) {
    let volume = gateway(array);
    let size = volume.capacity().0;
    let mut at = 0;
    while at < size {
        let len = 512.min(size - at);
        write(&volume, at, len, generation).await.unwrap();
        at += len;
    }
}

/// Makes the members' copies differ as after a crash: some blocks of each hold old data. The superblocks
/// say that the array was being written.
pub fn crash(media: &[Media], used: u64, rng: &mut Rng) {
    for medium in media {
        edit(medium, |sb| sb.resync_offset = Sectors::ZERO);
        for _ in 0..used / 64 {
            let at = rng.below(used / 8) * 8;
            let old = vec![rng.below(256) as u8; 512 * 8];
            medium.poke(Sector(DATA + at), &old);
        }
    }
}

/// Makes the member in a slot need a full rebuild: it holds only noise.
pub fn empty_out(media: &[Media], slot: usize, seed: u64) {
    let medium = &media[slot];
    edit(medium, |sb| sb.recovery_offset = Some(Sectors::ZERO));
    wipe(medium, seed);
}

fn wipe(medium: &Media, seed: u64) {
    let mut rng = Rng::new(seed ^ 0x77);
    let noise: Vec<u8> = (0..64 * 512).map(|_| rng.below(256) as u8).collect();
    let mut at = DATA;
    while at < medium.capacity().0 {
        let len = 64.min(medium.capacity().0 - at) as usize;
        medium.poke(Sector(at), &noise[..len * 512]);
        at += 64;
    }
}

/// Adds a disk as the replacement of the member in a slot.
pub fn replacement(media: &mut Vec<Media>, slot: usize) {
    let new = Media::new(media[slot].capacity());
    new.poke(SUPER, &media[slot].peek_range(SUPER, Sectors(1)));
    wipe(&new, 5);
    let number = media.len();
    media.push(new);
    for medium in media.iter() {
        edit(medium, |sb| {
            sb.roles.resize(sb.roles.len().max(number + 1), Role::Spare);
            sb.roles[number] = Role::Active(slot as u16);
        });
    }
    edit(&media[number], |sb| {
        sb.dev_number = number as u32;
        sb.device_uuid = Uuid::from_u128(1000 + number as u128);
        sb.recovery_offset = Some(Sectors::ZERO);
        sb.features = sb.features.set_to(Features::REPLACEMENT, true);
    });
}

/// The first copy of every array sector, from the media.
pub fn first_copies(array: &Array, media: &[Media]) -> Vec<u8> {
    let copy = |sector| {
        let copy = array.personality().map(Sector(sector))[0];
        media[copy.disk].peek(copy.sector + Sectors(DATA))
    };
    (0..array.personality().size().0).map(copy).collect::<Vec<[u8; 512]>>().into_flattened()
}

/// Reads the whole array.
pub async fn read_all(array: &Arc<Array>) -> Vec<u8> {
    let volume = gateway(array);
    let mut all = Vec::new();
    let mut at = 0;
    while at < volume.capacity().0 {
        let len = 1024.min(volume.capacity().0 - at);
        all.extend_from_slice(volume.read(Sector(at), Sectors(len)).await.unwrap().as_slice());
        at += len;
    }
    all
}

/// Writes to random places.
pub struct Writer {
    pub ios: usize,
    pub max_len: u64,
    pub pause: Duration,
}

impl Writer {
    /// Writes one generation after the other, each of four tasks in its own part of the array; returns the
    /// last generation of each sector.
    pub async fn run(&self, array: &Arc<Array>, rng: &mut Rng) -> Vec<Option<u8>> {
        let volume = gateway(array);
        let size = volume.capacity().0;
        let mut last = vec![None; size as usize];
        let parts: Vec<(std::ops::Range<u64>, Rng)> =
            (0..4).map(|i| (size * i / 4..size * (i + 1) / 4, rng.fork())).collect();
        let writers = parts.into_iter().map(|(part, mut rng)| {
            let volume = &volume;
            async move {
                let mut done = Vec::new();
                for io in 0..self.ios {
                    let at = part.start + rng.below(part.end - part.start);
                    let len = (1 + rng.below(self.max_len)).min(part.end - at);
                    let generation = 2 + (io % 250) as u8;
                    write(volume, at, len, generation).await.unwrap();
                    done.push((at, len, generation));
                    SimRuntime.sleep(self.pause).await;
                }
                done
            }
        });
        for (at, len, generation) in join_all(writers).await.into_iter().flatten() {
            last[at as usize..(at + len) as usize].fill(Some(generation));
        }
        last
    }
}

/// Starts the array on the media, also if it is degraded.
pub async fn start_on(sim: &Sim, media: &[Media]) -> Arc<Array> {
    start(sim, &disks(media), &RUN).await.unwrap()
}
