//! The control plane in one process, on the simulator: a daemon's `Service` over simulated disks and virtual time.
//!
//! Several clients call it at once, in all interleavings: the simulator's scheduler chooses at each await. Disks fail, stop
//! responding and recover; daemons are killed, lose power or end, and start again with the same disks. A run is a function of its
//! seed:
//! `ASHLAR_SEED=n` runs only seed n, `ASHLAR_SEEDS=n` the first n, `ASHLAR_SEEDS=a..b` those from a up to b (a long run: `make
//! soak`).
//!
//! Checked:
//! - at any time a disk is a member of one array at most, once, running or waiting, and its device has that role;
//! - a member whose removal was confirmed does not return before a call adds it again;
//! - every call is answered within bounded time;
//! - data reads back as acknowledged, through the array and, once it is idle, from each member in sync alone;
//! - superblocks on disk name the members in sync, and no others: flushed data is there after a kill and a start;
//! - an array starts again after each end of the daemon;
//! - the daemon holds no disk open that is not registered;
//! - volumes of a group exist from the answer that says so until one says that they are gone, in the metadata on all physical volumes;
//! - data of volumes reads back after snapshots, merges and moves of extents.
//!
//! docs/internals/simulated-daemon.md has the details.

// A failing run prints its course.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod calls;
mod canaries;
mod checks;
mod daemon;
mod disks;
mod group_calls;
mod groups;
mod record;
mod scenarios;
mod world;

use std::rc::Rc;

use ashlar_sim::runs::{RunReminder, wanted};

use world::World;

/// Seeds that once found a defect. After a change of the simulation they are different runs.
const REGRESSIONS: &[u64] = &[];

/// The runs of a test without other seeds, and the tests that share them.
const RUNS: u64 = 80;
const SHARES: u64 = 4;

/// Most lives of one set of disks.
const LIVES: usize = 3;

fn run(seed: u64) {
    let world = Rc::new(World::new(seed));
    for _ in 0..LIVES {
        world.live();
        if world.is_over.get() {
            return;
        }
    }
}

/// The runs of one of several tests, which run at once.
fn run_share(share: u64) {
    let seeds = wanted(|name| std::env::var(name).ok());
    let known = REGRESSIONS.iter().copied().filter(|_| seeds.is_none());
    let seeds = known.chain(seeds.clone().unwrap_or(0..RUNS));
    for seed in seeds.filter(|seed| seed % SHARES == share) {
        let _reminder = RunReminder::new("the daemon", seed);
        run(seed);
    }
}

#[test]
fn a_daemon_keeps_what_it_promised_0() {
    run_share(0);
}

#[test]
fn a_daemon_keeps_what_it_promised_1() {
    run_share(1);
}

#[test]
fn a_daemon_keeps_what_it_promised_2() {
    run_share(2);
}

#[test]
fn a_daemon_keeps_what_it_promised_3() {
    run_share(3);
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let course = |seed| {
        let world = Rc::new(World::new(seed));
        (0..LIVES).map(|_| world.live()).collect::<Vec<_>>()
    };
    for seed in 0..3 {
        assert_eq!(course(seed), course(seed), "seed {seed}");
    }
}
