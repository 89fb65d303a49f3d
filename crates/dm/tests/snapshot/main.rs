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
mod documents;
mod flushes;
mod merges;
mod rig;
mod stores;
mod targets;
mod threads;
mod world;

use std::ops::Range;

use world::World;

/// Most lives of one origin.
const LIVES: usize = 5;

struct NameTheSeed(u64);

impl Drop for NameTheSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the run's seed: try ASHLAR_SEED={}", self.0);
        }
    }
}

/// Which seeds to run, if the environment says so.
fn wanted() -> Option<Range<u64>> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(one) = number("ASHLAR_SEED") {
        return Some(one..one + 1);
    }
    if let Some(count) = number("ASHLAR_SEEDS") {
        return Some(0..count);
    }
    let text = std::env::var("ASHLAR_SEEDS").ok()?;
    let (from, to) = text.split_once("..")?;
    Some(from.parse().ok()?..to.parse().ok()?)
}

#[test]
fn origins_and_snapshots_keep_what_they_promised() {
    for seed in wanted().unwrap_or(0..500) {
        let _name_the_seed = NameTheSeed(seed);
        let mut world = World::new(seed);
        (0..LIVES).for_each(|_| world.live());
    }
}
