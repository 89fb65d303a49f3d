//! dm-snapshot on simulated disks: what each target promises, the bugs that others had, bad stores, and
//! thousands of short lives of random origins with random snapshots under power cuts and faults.
//!
//! A run of the simulation is a function of its seed. `ASHLAR_SEED=n` runs seed n alone,
//! `ASHLAR_SEEDS=n` the first n, `ASHLAR_SEEDS=a..b` those from a to b.
//!
//! What is checked, beside every read:
//! - the origin never loses what was flushed, and goes on whatever happens to snapshots;
//! - a snapshot shows the origin of its moment and what was written to it, or is invalid, says so and
//!   has a reason to be;
//! - a merge ends with the origin showing the snapshot, through any number of crashes;
//! - nothing waits for ever.

mod bugs;
#[cfg(debug_assertions)]
mod canaries;
mod documents;
mod flushes;
mod merges;
mod rig;
mod stores;
mod targets;
mod threads;
mod world;

use ashlar_sim::runs::{Named, wanted};
use world::World;

/// Most lives of one origin.
const LIVES: usize = 5;

#[test]
fn origins_and_snapshots_keep_what_they_promised() {
    for seed in wanted(|name| std::env::var(name).ok()).unwrap_or(0..500) {
        let _named = Named::new("origins", seed);
        let mut world = World::new(seed);
        (0..LIVES).for_each(|_| world.live());
    }
}
