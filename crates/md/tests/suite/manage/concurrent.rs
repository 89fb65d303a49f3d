//! Changes of members that begin at the same time, by users or by the daemon itself, on virtual time: the scheduler chooses at each await
//! which of them continues.
//!
//! Afterwards each disk has at most one membership, the superblocks on disk and in memory agree, a member whose removal was answered has
//! not returned by a change that named it, and what was flushed is read, also when the other member fails, and after a restart.

use std::rc::Rc;
use std::time::Duration;

use ashlar_block::Runtime;
use ashlar_md::ondisk::{Level, Role};
use ashlar_md::{AddOptions, Candidate, Index, ManageError, Place, probe};
use ashlar_sim::runs::wanted;
use ashlar_sim::scheduler::start as spawn;
use ashlar_sim::{Media, Rng, Sim, SimRuntime};
use futures_util::future::join_all;

use crate::common::{Shape, disks, start};
use crate::manage::world::{RUN, Recipe, World, check, options};

/// A change of the membership of the disk `d1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    /// The word `re-add` for the failed member.
    ReAddWord,
    /// A re-add of the failed member by its path.
    ReAddFailed,
    /// A re-add of a disk that is not a member.
    ReAdd,
    Add,
    AddSpare,
    Remove,
    Fail,
}

use Call::{Add, AddSpare, Fail, ReAdd, ReAddFailed, ReAddWord, Remove};

const ALL: [Call; 7] = [ReAddWord, ReAddFailed, ReAdd, Add, AddSpare, Remove, Fail];

/// The disk whose membership changes, and the index that it had when the calls began.
const DISK: usize = 1;
const OLD: Index = 1;

async fn candidate(world: &World) -> Result<Candidate, ManageError> {
    let (gateway, path) = (world.disks[DISK].gateway(), format!("d{DISK}"));
    let found = probe(&gateway).await;
    let found = found.map_err(|error| ManageError::Probe { path: path.clone(), error })?;
    Ok(Candidate { gateway, path, sb: found.expect("a superblock") })
}

/// Makes a call; returns the index that the disk got by it, if any.
async fn make(world: &World, call: Call) -> Result<Option<Index>, ManageError> {
    let array = &world.array;
    match call {
        ReAddWord => array.set_member_state(OLD, "re-add").await.map(|()| None),
        ReAddFailed => {
            array.re_add_failed(OLD, candidate(world).await?, options(0)).await.map(Some)
        }
        ReAdd => array.re_add(candidate(world).await?, options(0)).await.map(Some),
        Add => world.add(DISK).await.map(|added| Some(added.index())),
        AddSpare => {
            let options = AddOptions { spare_only: true, ..options(1000 + DISK as u128) };
            let gateway = world.disks[DISK].gateway();
            let added = array.add(gateway, &format!("d{DISK}"), options).await;
            added.map(|added| Some(added.index()))
        }
        Remove => array.remove(OLD).await.map(|()| None),
        Fail => array.fail(OLD).await.map(|()| None),
    }
}

fn recipe() -> Recipe {
    Recipe { extra: 0, ..Recipe::new(Shape::new(Level::Raid1, None, 0, 2)).internal() }
}

/// Fails a member, writes, and then makes calls at the same time.
fn run(seed: u64, calls: &[Call]) {
    let (recipe, sim) = (recipe(), Sim::new(seed));
    let media = recipe.media();
    let mut rng = sim.rng();
    let left = sim.block_on(async {
        let world = Rc::new(recipe.start(&sim, &media).await);
        world.array.fail(OLD).await.unwrap();
        world.write(64, 64, 2).await;
        let made = calls.iter().map(|call| {
            let (call, world) = (*call, Rc::clone(&world));
            let delay = Duration::from_micros(rng.below(400));
            spawn(async move {
                SimRuntime.sleep(delay).await;
                (call, make(&world, call).await)
            })
        });
        let results = join_all(made).await;
        let what = format!("seed {seed}: {results:?}");
        check_memberships(&world, &results, &what);
        world.array.sync_ended().await;
        check_superblocks(&world, &what).await;
        finish(&world, &mut rng).await
    });
    drop(sim);
    let sim = Sim::new(seed);
    sim.block_on(async {
        let array = start(&sim, &disks(&left), &RUN).await.unwrap();
        check(&array, 0, 64, 1).await;
        check(&array, 64, 64, 3).await;
        array.stop().await.unwrap();
    });
}

fn check_memberships(
    world: &World,
    results: &[(Call, Result<Option<Index>, ManageError>)],
    what: &str,
) {
    let members = world.array.members();
    let all: Vec<_> = members.iter().collect();
    for (at, (_, one)) in all.iter().enumerate() {
        for (_, other) in &all[..at] {
            let same = std::ptr::eq(one.gateway().disk(), other.gateway().disk())
                || one.number() == other.number()
                || one.device_uuid() == other.device_uuid();
            assert!(!same, "two memberships of {} and {}: {what}", one.path(), other.path());
        }
    }
    let ok = |call: Call| results.iter().filter(|(c, done)| *c == call && done.is_ok()).count();
    let took_old = ok(ReAddWord) + ok(ReAddFailed) + ok(Remove);
    assert!(took_old <= 1, "the failed member was taken {took_old} times: {what}");
    let added = ok(ReAdd) + ok(Add) + ok(AddSpare);
    assert!(added <= 1 && (added == 0 || ok(Remove) == 1), "it was still a member: {what}");
    let is_member = all.iter().any(|(_, rdev)| rdev.path() == format!("d{DISK}"));
    let is_removed = ok(Remove) == 1 && added == 0;
    assert_eq!(is_member, !is_removed, "{what}");
    for (_, done) in results {
        if let Ok(Some(index)) = done {
            assert!(all.iter().any(|(other, _)| other == index), "{index} is gone: {what}");
        }
    }
}

/// Asserts that each member that has not failed knows the role of each member.
async fn check_superblocks(world: &World, what: &str) {
    let members = world.array.members();
    for (_, reader) in members.iter().filter(|(_, rdev)| !rdev.is_faulty()) {
        let sb = probe(reader.gateway()).await.unwrap().expect("a superblock");
        for (index, rdev) in members.iter() {
            let wanted = match members.place(index) {
                _ if rdev.is_faulty() => Role::Faulty,
                Place::Slot(slot) | Place::Replacement(slot) => Role::Active(slot as u16),
                Place::Spare => Role::Spare,
            };
            let (path, of) = (reader.path(), rdev.path());
            assert_eq!(sb.role_of(rdev.number()), wanted, "{path} about {of}: {what}");
        }
    }
}

/// Writes generation 3 with or without the other member, and returns the media after a power cut.
async fn finish(world: &World, rng: &mut Rng) -> Vec<Media> {
    let array = &world.array;
    if array.degraded() == 0 && rng.chance(2, 3) {
        array.fail(0).await.unwrap();
    }
    world.check(64, 64, 2).await;
    world.write(64, 64, 3).await;
    world.media.iter().map(Media::copy).collect()
}

/// The first `count` seeds, or those that the environment says (`make soak`: more).
fn seeds(count: u64) -> std::ops::Range<u64> {
    wanted(|name| std::env::var(name).ok()).unwrap_or(0..count)
}

#[test]
fn two_re_adds_of_one_failed_member_leave_one_membership() {
    for seed in seeds(40) {
        run(seed, &[ReAddWord, ReAddWord]);
        run(seed, &[ReAddFailed, ReAddWord]);
    }
}

#[test]
fn a_removed_member_is_not_taken_back_by_a_re_add_that_was_under_way() {
    for seed in seeds(40) {
        run(seed, &[ReAddWord, Remove]);
        run(seed, &[Remove, ReAddFailed]);
    }
}

/// The daemon re-adds a member that was lost, while a user fails it.
#[test]
fn a_lost_member_that_a_user_fails_is_not_taken_back_by_a_re_add_that_was_under_way() {
    let mut ends = [0; 2];
    for seed in 0..100 {
        let (recipe, sim) = (recipe(), Sim::new(seed));
        let media = recipe.media();
        let mut rng = sim.rng();
        sim.block_on(async {
            let world = Rc::new(recipe.start(&sim, &media).await);
            media[DISK].vanish();
            world.write(64, 64, 2).await;
            media[DISK].heal();
            assert!(world.member(DISK).await.lost);
            let delays = [rng.below(400), rng.below(4000)].map(Duration::from_micros);
            let (other, array) = (Rc::clone(&world), Rc::clone(&world));
            let returned = spawn(async move {
                SimRuntime.sleep(delays[0]).await;
                array.array.re_add_lost(OLD).await
            });
            let failed = spawn(async move {
                SimRuntime.sleep(delays[1]).await;
                other.array.fail(OLD).await
            });
            let (returned, failed) = (returned.await, failed.await);
            let is_either = returned.is_ok() != failed.is_ok();
            assert!(is_either, "seed {seed}: returned {returned:?}, failed {failed:?}");
            ends[usize::from(failed.is_ok())] += 1;
            world.array.sync_ended().await;
            assert_eq!(world.member(DISK).await.faulty, failed.is_ok(), "seed {seed}");
            world.check(64, 64, 2).await;
            world.array.stop().await.unwrap();
        });
    }
    assert!(ends.iter().all(|count| *count > 0), "{ends:?}");
}

#[test]
fn changes_of_one_disk_that_meet_come_one_after_the_other() {
    for first in ALL {
        for second in ALL {
            for seed in 0..6 {
                run(seed, &[first, second]);
            }
        }
    }
    for seed in seeds(60) {
        let mut rng = Sim::new(seed).rng();
        let calls: Vec<Call> = (0..2 + rng.below(4)).map(|_| ALL[rng.index(ALL.len())]).collect();
        run(seed, &calls);
    }
}
