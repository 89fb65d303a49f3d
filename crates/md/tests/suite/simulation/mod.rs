//! Thousands of short lives of random arrays: random I/O, members that fail in every way, are absent and
//! are re-added, bitmaps of both kinds, write-behind, bad block logs, an operator that changes everything
//! that can be changed, members on a network whose links break, power cuts and kills at random steps, and
//! assembly again; the oracle checks all reads.
//!
//! A run is a function of its seed. `ASHLAR_SEED=n` runs only seed n, `ASHLAR_SEEDS=n` the first n,
//! `ASHLAR_SEEDS=a..b` those from a up to b (a long run: `make soak`).
//!
//! Checked besides every read:
//! - an I/O fails only if more members misbehave than the array can lose;
//! - an array that was not stopped cleanly is resynced during I/O, and no sector reads differently because
//!   of that;
//! - after a stop, once the array is idle, and when a sync or a repair has ended, copies are the same, and parity fits its row,
//!   sector by sector;
//! - an array always starts again, but for one with parity that was not stopped cleanly and lacks a member;
//! - a failed member is not used again before it is added again;
//! - only data areas and metadata are ever written;
//! - no operation waits forever.

mod canaries;
mod world;

use ashlar_md::ondisk::Level;
use ashlar_sim::runs::{RunReminder, wanted};
use world::World;

/// Seeds that once found a defect, by level. After a change of the simulation they are different runs:
/// the defects have tests in `found.rs`.
const REGRESSIONS: [(Level, &[u64]); 6] = [
    (Level::Raid4, &[]),
    (Level::Raid5, &[]),
    (Level::Raid6, &[]),
    (Level::Raid0, &[]),
    (Level::Raid1, &[533, 29956, 13448, 26671, 49804]),
    (Level::Raid10, &[19, 322, 31688, 60667]),
];

/// Most lives of one array.
const LIVES: usize = 5;

fn run(level: Level, count: u64) {
    run_in(World::new, level, count);
}

fn run_in(world: impl Fn(Level, u64) -> World, level: Level, count: u64) {
    let seeds = wanted(|name| std::env::var(name).ok()).unwrap_or(0..count);
    let known = REGRESSIONS.iter().filter(|(of, _)| *of == level);
    for seed in known.flat_map(|(_, seeds)| seeds.iter().copied()).chain(seeds) {
        let _reminder = RunReminder::new(level, seed);
        let mut world = world(level, seed);
        for _ in 0..LIVES {
            world.live();
        }
    }
}

#[test]
fn raid1_keeps_what_it_promised() {
    run(Level::Raid1, 200);
}

#[test]
fn raid10_keeps_what_it_promised() {
    run(Level::Raid10, 200);
}

#[test]
fn raid0_keeps_what_it_promised() {
    run(Level::Raid0, 100);
}

#[test]
fn raid4_keeps_what_it_promised() {
    run(Level::Raid4, 50);
}

#[test]
fn raid5_keeps_what_it_promised() {
    run(Level::Raid5, 120);
}

#[test]
fn raid6_keeps_what_it_promised() {
    run(Level::Raid6, 120);
}

#[test]
fn raid1_on_a_network_keeps_what_it_promised() {
    run_in(World::networked, Level::Raid1, 60);
}

#[test]
fn raid10_on_a_network_keeps_what_it_promised() {
    run_in(World::networked, Level::Raid10, 60);
}

#[test]
fn raid5_on_a_network_keeps_what_it_promised() {
    run_in(World::networked, Level::Raid5, 40);
}

#[test]
fn raid6_on_a_network_keeps_what_it_promised() {
    run_in(World::networked, Level::Raid6, 40);
}
