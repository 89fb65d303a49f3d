//! Checks writes against a change to clean, and against a stop, with loom, under the C11 memory model.
//!
//! Checked: no write is under way on an array that is clean or has wound up; what the writes did is seen by the thread that
//! marks the array clean.

use ashlar_block::sync::model::loom::cell::UnsafeCell;
use ashlar_block::sync::model::loom::sync::Mutex;
use ashlar_block::sync::model::loom::sync::atomic::AtomicU64;
use ashlar_block::sync::model::{self, Loom, overlaps};
use ashlar_block::sync::{Lock, Primitives};

use super::{Activity, Shards, Word};

/// The active state, and the data that only an active array may change.
struct World<P: Shards> {
    activity: Activity<P>,
    /// The superblocks' lock; whether they say clean.
    clean: P::Lock<bool>,
    data: UnsafeCell<()>,
}

impl<P: Shards> World<P> {
    fn new() -> Self {
        let this = Self {
            activity: Activity::default(),
            clean: Default::default(),
            data: UnsafeCell::new(()),
        };
        this.activity.activate();
        this
    }
}

/// Two shards.
type Two = Loom<2>;

/// The shard that one thread has alone.
const OWN: usize = 1;

fn write<P: Shards>(world: &World<P>, shard: usize) {
    let flow = &world.activity.shards[shard].writes;
    flow.begin();
    if !world.activity.is_active() {
        world.clean.with(|clean| {
            *clean = false;
            world.activity.activate();
        });
    }
    // Regular writes do not exclude each other.
    world.data.with(|_| ());
    flow.end(shard == OWN);
}

fn writes<P: Shards>(world: &World<P>) {
    write(world, 0);
}

fn writes_elsewhere<P: Shards>(world: &World<P>) {
    write(world, OWN);
}

/// Marks the array clean; a write that began meanwhile waits for the lock.
fn cleans<P: Shards>(world: &World<P>) {
    world.clean.with(|clean| {
        if world.activity.try_deactivate() {
            world.data.with_mut(|_| ());
            *clean = true;
        }
    });
}

#[test]
fn no_write_is_under_way_when_the_array_is_marked_clean() {
    let explore = |threads: &[fn(&World<Two>)]| {
        model::explore(3, World::new, threads, |world| {
            let clean = world.clean.with(|clean| *clean);
            assert_eq!(clean, !world.activity.is_active());
        });
    };
    explore(&[cleans, writes, writes]);
    explore(&[cleans, writes, writes_elsewhere]);
}

/// A load in place of the addition may return an old value: the model finds that.
struct Loads;

/// A word whose additions of zero are loads.
#[derive(Default)]
struct Weak(AtomicU64);

impl Word for Weak {
    fn load(&self) -> u64 {
        Word::load(&self.0)
    }
    fn add(&self, n: u64) -> u64 {
        if n == 0 { Word::load(&self.0) } else { self.0.add(n) }
    }
    fn sub(&self, n: u64) -> u64 {
        self.0.sub(n)
    }
    fn update(&self, next: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        self.0.update(next)
    }
}

impl Primitives for Loads {
    type Word = Weak;
    type Lock<T: Default> = Mutex<T>;
}

impl Shards for Loads {
    const SHARDS: usize = 2;
    fn shard() -> usize {
        0
    }
    fn is_own(_shard: usize) -> bool {
        false
    }
}

#[test]
fn the_model_finds_a_change_that_only_loads() {
    assert!(overlaps(|| model::explore(3, World::<Loads>::new, &[cleans, writes], |_| ())));
}
