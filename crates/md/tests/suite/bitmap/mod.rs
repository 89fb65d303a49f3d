//! The write-intent bitmap against an oracle: formats, batches, discards, power cuts.

mod batches;
mod discards;
mod format;
mod power_cuts;
mod store;
mod syncs;
mod world;

use ashlar_block::{Sector, Sectors};
use ashlar_md::Bitmap;
use ashlar_md::internals::bitmap::{ArrayFacts, Contents, Kind, Place};
use ashlar_md::ondisk::bitmap_super::BitmapSuper;

const UUID: [u8; 16] = *b"ashlar's bitmaps";

/// A place for `chunks` chunks, with room to spare.
fn place(chunks: u64, chunk: u64) -> Place {
    Place { size: Sectors(chunks * chunk), area: Sectors(256), block: 512 }
}

fn superblock(kind: Kind, place: Place, chunk: u64) -> BitmapSuper {
    match kind {
        Kind::Classic => BitmapSuper::new(UUID, place.size, (chunk * 512) as u32, 5, 0),
        Kind::Lockless => {
            let mut sb = BitmapSuper::new_lockless(UUID, place.size, 256, 5, false);
            sb.state = 0.into();
            sb.chunksize = (chunk as u32).into();
            sb
        }
    }
}

/// A bitmap with `chunks` chunks of `chunk` sectors, on no member yet.
fn bitmap(kind: Kind, chunks: u64, chunk: u64, contents: Contents) -> Bitmap {
    let place = place(chunks, chunk);
    Bitmap::new(&superblock(kind, place, chunk), place, contents).unwrap()
}

/// A complete array that crashed.
fn crashed(events: u64) -> ArrayFacts {
    ArrayFacts { uuid: UUID, events, synced_to: Sector::ZERO, complete: true }
}

/// The span of `count` chunks of 8 sectors from `first` on.
fn chunks(first: u64, count: u64) -> (Sector, Sectors) {
    (Sector(first * 8), Sectors(count * 8))
}
