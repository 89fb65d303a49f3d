//! dm-snapshot on simulated disks: the promises of each target, upstream bugs, bad stores, and
//! thousands of short lives of random origins with random snapshots under power cuts and faults.
//!
//! A run of the simulation is a function of its seed. `ASHLAR_SEED=n` runs only seed n,
//! `ASHLAR_SEEDS=n` the first n, `ASHLAR_SEEDS=a..b` those from a to b.
//!
//! Checked, besides every read:
//! - the origin never loses flushed data, and works whatever happens to snapshots;
//! - a snapshot shows the origin at its creation plus the snapshot's writes, or it is invalid,
//!   reports that and has a reason to be;
//! - a merge ends with the origin showing the snapshot, through any number of crashes;
//! - nothing waits forever.

mod bugs;
mod canaries;
mod documents;
mod extents;
mod flushes;
mod merges;
mod rig;
mod stores;
mod targets;
mod threads;
mod world;

use ashlar_sim::runs::{RunReminder, wanted};
use world::World;

/// Maximum of lives of one origin.
const LIVES: usize = 5;

/// So many find each of the rules that `canaries` breaks; `make soak` runs more.
const SEEDS: u64 = 125;

#[test]
fn origins_and_snapshots_keep_what_they_promised() {
    for seed in wanted(|name| std::env::var(name).ok()).unwrap_or(0..SEEDS) {
        let _reminder = RunReminder::new("origins", seed);
        let mut world = World::new(seed);
        (0..LIVES).for_each(|_| world.live());
    }
}
