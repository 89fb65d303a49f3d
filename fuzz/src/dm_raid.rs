//! dm-raid superblocks and bitmaps on hostile metadata devices: never a panic, never an unbounded loop or allocation;
//! arrays that are found are planned or refused, and a plan has the requested shape.
//!
//! Input: level, copies, chunk in units of 8 sectors, and number of legs, one byte each; then for each leg the first
//! [`SUPERBLOCK`] bytes of the superblock and the first [`BITMAP`] bytes of the bitmap.

use ashlar_block::{Sector, Sectors};
use ashlar_md::dm_raid::{BITMAP_AT, Leg, MAX_LEGS, Shape, candidates};
use ashlar_md::ondisk::Level;
use ashlar_md::{Options, plan};
use ashlar_sim::{Media, Sim, SimDisk};
use uuid::Uuid;

/// The used bytes of a superblock.
pub const SUPERBLOCK: usize = 148;
/// The bytes of a bitmap: its superblock and some marks.
pub const BITMAP: usize = 320;

const META: Sectors = Sectors(64);
const DATA: Sectors = Sectors(32 << 11);
const SECTOR: usize = 512;

/// The part of a metadata device that an input contains.
pub fn pack(device: &[u8]) -> Vec<u8> {
    let part = |at: usize, len: usize| {
        let mut part = device.get(at..).unwrap_or_default().to_vec();
        part.resize(len, 0);
        part
    };
    [part(0, SUPERBLOCK), part(BITMAP_AT.bytes() as usize, BITMAP)].concat()
}

/// Writes bytes to a device, padded with zeroes to the next sector.
fn poke(media: &Media, at: Sector, bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    media.poke(at, &bytes);
}

/// Checks one input against the module text; returns whether part of it was accepted.
pub fn run(data: &[u8]) -> bool {
    let Some((&[level, copies, chunk, legs], mut rest)) = data.split_first_chunk() else {
        return false;
    };
    let level = Level::from_raw(i32::from(level));
    let parity = u32::from(copies);
    let shape = Shape { level, copies, parity, chunk: Sectors(u64::from(chunk) * 8) };
    let legs: Vec<Leg> = (0..legs)
        .map(|n| {
            let media = Media::new(META);
            let (leg, behind) = rest.split_at(rest.len().min(SUPERBLOCK + BITMAP));
            rest = behind;
            let (superblock, bitmap) = leg.split_at(leg.len().min(SUPERBLOCK));
            poke(&media, Sector::ZERO, superblock);
            poke(&media, BITMAP_AT, bitmap);
            let data = SimDisk::new(format!("data{n}"), DATA).gateway();
            Leg {
                // A leg without input bytes has no metadata device.
                meta: (!leg.is_empty()).then(|| SimDisk::over(format!("meta{n}"), media).gateway()),
                data: Some(data),
            }
        })
        .collect();
    Sim::new(1).block_on(async move {
        let uuid = Uuid::from_u128(5);
        match candidates(uuid, shape, &legs).await {
            Ok(found) => {
                assert!(legs.len() <= MAX_LEGS && found.candidates.len() <= legs.len());
                let options = Options { run: true, read_only: true, force: false };
                let planned = plan(found.candidates, &options).await;
                assert!(planned.as_ref().err().is_none_or(|error| !error.to_string().is_empty()));
                planned.is_ok()
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        }
    })
}
