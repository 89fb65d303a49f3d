//! Thousands of short lives of random arrays: random work, members that fail in every way, are away and
//! return, bitmaps of both kinds, write-behind, bad block logs, an operator who changes whatever can be
//! changed, power cuts and kills at random steps, and assembly again; everything that is read is
//! checked by the oracle.
//!
//! A run is a function of its seed. `ASHLAR_SEED=n` runs seed n alone, `ASHLAR_SEEDS=n` the first n,
//! `ASHLAR_SEEDS=a..b` those from a to b (a long hunt: `make soak`).
//!
//! What is checked, beside every read:
//! - an I/O fails only if more members misbehave than the array can do without;
//! - an array that was not stopped cleanly is resynced while there is work, and no sector reads
//!   differently for it;
//! - after a stop, once it is idle, and when a sync or a repair has ended, copies are the same, sector by
//!   sector;
//! - an array starts again whatever happened to it;
//! - a member that failed is not used again before it was added again;
//! - nothing but data areas and metadata is ever written;
//! - no operation waits forever.

#[cfg(debug_assertions)]
mod canaries;
mod world;

use ashlar_md::ondisk::Level;
use ashlar_sim::runs::{Named, wanted};
use world::World;

/// Seeds that once found something, by level. A change of the world makes other runs of them: what they
/// found before has tests in `found.rs`.
const REGRESSIONS: [(Level, &[u64]); 3] =
    [(Level::Raid0, &[]), (Level::Raid1, &[533]), (Level::Raid10, &[19, 322])];

/// Most lives of one array.
const LIVES: usize = 5;

fn run(level: Level, count: u64) {
    let seeds = wanted(|name| std::env::var(name).ok()).unwrap_or(0..count);
    let known = REGRESSIONS.iter().filter(|(of, _)| *of == level);
    for seed in known.flat_map(|(_, seeds)| seeds.iter().copied()).chain(seeds) {
        let _named = Named::new(level, seed);
        let mut world = World::new(level, seed);
        for _ in 0..LIVES {
            world.live();
        }
    }
}

#[test]
fn raid1_keeps_what_it_promised() {
    run(Level::Raid1, 500);
}

#[test]
fn raid10_keeps_what_it_promised() {
    run(Level::Raid10, 500);
}

#[test]
fn raid0_keeps_what_it_promised() {
    run(Level::Raid0, 300);
}
