//! The threads of a limiter under loom; what it lets pass on virtual time is in the suite.

use super::*;
use crate::LocalFuture;
use crate::sync::model::loom::sync::atomic::AtomicU64;
use crate::sync::model::{Loom, block_on, explore, give_up};

/// A clock that stands, so that only a change lets a request pass.
struct Standing;

impl Runtime for Standing {
    fn now_ns(&self) -> u64 {
        0
    }

    fn wall_clock(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) -> LocalFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn spawn(&self, _: LocalFuture<'static, ()>) {}
}

/// A limiter whose one token was taken.
fn used() -> Limiter<Loom> {
    let limiter = Limiter::<Loom>::default();
    let runtime: Arc<dyn Runtime> = Arc::new(Standing);
    limiter.set(&"wiops=1 burst_ms=1".parse().unwrap(), &runtime);
    assert!(give_up(limiter.pass(Direction::Write, 0)).is_some());
    limiter
}

fn wait(limiter: &Limiter<Loom>) {
    block_on(limiter.pass(Direction::Write, 0));
}

fn raise(limiter: &Limiter<Loom>) {
    let runtime: Arc<dyn Runtime> = Arc::new(Standing);
    limiter.set(&"wiops=max".parse().unwrap(), &runtime);
}

fn all_left(limiter: &Limiter<Loom>) {
    assert_eq!(limiter.delays().1.waiting, 0);
}

#[test]
fn no_waiter_misses_a_change() {
    fn turn_off(limiter: &Limiter<Loom>) {
        limiter.lift();
    }
    explore(3, used, &[raise, wait], all_left);
    explore(3, used, &[raise, wait, wait], all_left);
    explore(3, used, &[turn_off, wait, wait], all_left);
}

#[test]
fn a_waiter_that_leaves_keeps_no_other_from_passing() {
    fn leave(limiter: &Limiter<Loom>) {
        // It may have passed, if the limit was raised before.
        let (Some(()) | None) = give_up(limiter.pass(Direction::Write, 0));
    }
    explore(3, used, &[raise, wait, leave], all_left);
}

#[test]
fn the_one_token_of_a_bucket_lets_one_thread_pass() {
    struct World {
        limiter: Limiter<Loom>,
        passed: AtomicU64,
    }
    fn try_once(world: &World) {
        if give_up(world.limiter.pass(Direction::Write, 0)).is_some() {
            let (0 | 1..) = world.passed.fetch_add(1, Relaxed);
        }
    }
    let world = || {
        let limiter = Limiter::<Loom>::default();
        let runtime: Arc<dyn Runtime> = Arc::new(Standing);
        limiter.set(&"wiops=1 burst_ms=1".parse().unwrap(), &runtime);
        World { limiter, passed: Default::default() }
    };
    explore(3, world, &[try_once, try_once, try_once], |world| {
        assert_eq!((world.passed.load(Relaxed), world.limiter.delays().1.waiting), (1, 0));
    });
}
