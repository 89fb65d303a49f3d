//! Extents that move to other disks while their volumes are in use: on simulated disks, with power cuts.

use std::time::Duration;

use ashlar_block::Runtime;
use ashlar_lvm::alloc::Wish;
use ashlar_lvm::command::{Command, Move, PhysicalPart, Sign};
use ashlar_lvm::metadata::Header;
use ashlar_sim::scheduler::Stop;
use ashlar_sim::{DiscardReads, Media, Oracle, Rng, Sim, SimRuntime, Value, Workload, seeds};
use ashlar_stack::volume_groups::{MovingState, ServedMove};

use crate::common::{boot, device, media, plain};
use crate::live::{LiveStack, create, remove, resize, snapshot};
use crate::live_load::loads;
use crate::volume_groups::{GroupRig, named, names, read, write};

fn part(path: &str) -> PhysicalPart {
    PhysicalPart { path: path.to_owned(), ranges: Vec::new() }
}

fn move_from(path: &str) -> Command {
    Command::Move(Move { from: part(path), volume: None, to: Vec::new(), policy: None })
}

fn abort() -> Command {
    Command::AbortMove { from: None }
}

/// A group on three disks, whose volumes `data`, of several pieces, and `other`, which is striped, are on the first two.
async fn group(sim: &Sim) -> Vec<Media> {
    let media = media(3, 24);
    // Else each place of an extent might return something of its own for what was discarded.
    media.iter().for_each(|disk| disk.set_discard_reads(DiscardReads::Zeroes));
    let stack = boot(sim, &media, plain()).await;
    let disks = ["d0.img", "d1.img", "d2.img"].map(|name| device(&stack, name));
    let mut made = GroupRig::new(disks.to_vec()).await;
    let first = |wish: Wish| Wish { only: vec![0], ..wish };
    made.add("data", first(Wish::linear(2))).await;
    let stripe = ashlar_block::Sectors(128);
    made.add("other", Wish { only: vec![0, 1], ..Wish::striped(4, 2, stripe) }).await;
    drop(stack);
    let mut live = LiveStack::boot(sim, &media).await;
    live.run(resize("data", Sign::Plus, 2)).await.unwrap();
    live.stack.stop().await.unwrap();
    media
}

impl LiveStack {
    /// Records what was copied, as the daemon does; returns how many moves there are.
    async fn advance(&mut self) -> Result<usize, String> {
        let all = self.collector.moving();
        for moving in all.iter().filter(|moving| moving.state == MovingState::Copied) {
            let change = self.collector.prepare_advance(moving)?;
            let applied = self.collector.apply(change, Header::default()).await?;
            assert_eq!(applied.unsure, None);
        }
        Ok(all.len())
    }

    async fn end_moves(&mut self) {
        while self.advance().await.unwrap() > 0 {
            SimRuntime.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether a volume has extents on a disk.
    fn uses(&self, disk: &str) -> bool {
        let (physical, groups) = self.collector.groups();
        let metadata = groups[0].metadata().unwrap();
        let at = physical.iter().position(|pv| pv.path.ends_with(disk)).unwrap();
        let uuid = physical[at].uuid.parse().unwrap();
        let index = metadata.group.pv_index(&uuid).unwrap();
        metadata.group.lvs.iter().flat_map(|lv| lv.pv_extents()).any(|on| on.pv == index)
    }

    fn only_move(&self) -> ServedMove {
        let mut all = self.collector.moving();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }
}

#[test]
fn extents_leave_a_disk_which_can_then_leave_the_group() {
    let sim = Sim::new(1);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        live.run(snapshot("snap", "data", 2)).await.unwrap();
        for at in [0, 3 * 2048, 4 * 2048 - 8] {
            write(&live.stack, "vg/data", at, 5).await;
            write(&live.stack, "vg/other", at, 6).await;
        }
        assert!(live.uses("d0.img"));
        let devices = live.stack.devices.all().len();
        live.run(move_from("d0.img")).await.unwrap();
        assert_eq!(live.stack.devices.all().len(), devices + 1);
        let refused = live.run(move_from("d0.img")).await.err().unwrap();
        assert_eq!(refused, "Detected pvmove in progress for d0.img.");
        // The volumes are locked, and others are not.
        for command in [
            resize("data", Sign::Plus, 1),
            resize("other", Sign::Minus, 2),
            remove("other"),
            snapshot("late", "other", 2),
            Command::Rename { from: "data".into(), to: "x".into() },
            Command::Merge { snapshot: "snap".into() },
        ] {
            let refused = live.run(command).await.err().unwrap();
            assert!(refused.contains("is locked"), "{refused}");
        }
        live.run(create("new", 1)).await.unwrap();
        live.run(resize("new", Sign::Plus, 1)).await.unwrap();
        live.run(Command::RenameGroup { to: "wg".into() }).await.unwrap();
        live.run_in("wg", Command::RenameGroup { to: "vg".into() }).await.unwrap();
        write(&live.stack, "vg/data", 8, 7).await;
        let moving = live.only_move();
        assert_eq!((&*moving.full_name(), &*moving.source), ("vg/pvmove0", "/dev/d0.img"));
        live.end_moves().await;
        assert!(!live.uses("d0.img"));
        // The device of the move is gone; `new` was made meanwhile.
        assert_eq!(live.stack.devices.all().len(), devices + 1);
        for again in 0..2 {
            for at in [0, 3 * 2048, 4 * 2048 - 8] {
                assert_eq!(read(&live.stack, "vg/data", at).await, 5);
                assert_eq!(read(&live.stack, "vg/other", at).await, 6);
            }
            assert_eq!(read(&live.stack, "vg/data", 8).await, 7);
            assert_eq!(read(&live.stack, "vg/snap", 8).await, 0);
            if again == 0 {
                live.stack.stop().await.unwrap();
                live = LiveStack::boot(&sim, &media).await;
            }
        }
        let nothing = live.run(move_from("d0.img")).await.err().unwrap();
        assert_eq!(nothing, "No data to move for vg.");
        live.stack.stop().await.unwrap();
    });
}

#[test]
fn a_move_that_is_given_up_leaves_everything_where_it_counts() {
    let sim = Sim::new(1);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        write(&live.stack, "vg/data", 0, 5).await;
        write(&live.stack, "vg/other", 0, 6).await;
        live.run(move_from("d0.img")).await.unwrap();
        let first = live.only_move().total;
        while live.only_move().state != MovingState::Copied {
            SimRuntime.sleep(Duration::from_millis(1)).await;
        }
        live.advance().await.unwrap();
        let moving = live.only_move();
        assert!(moving.done.0 > 0 && moving.total == first, "the first piece has moved");
        moving.copying.pause().await.unwrap();
        assert!(moving.copying.is_paused().await);
        write(&live.stack, "vg/data", 8, 7).await;
        live.run(abort()).await.unwrap();
        assert!(live.collector.moving().is_empty() && live.uses("d0.img"));
        for _ in 0..2 {
            assert_eq!(read(&live.stack, "vg/data", 0).await, 5);
            assert_eq!(read(&live.stack, "vg/data", 8).await, 7);
            assert_eq!(read(&live.stack, "vg/other", 0).await, 6);
            live.run(remove("other")).await.ok();
            live.stack.stop().await.unwrap();
            live = LiveStack::boot(&sim, &media).await;
            if !names(&live.stack).contains(&"vg/other".to_owned()) {
                break;
            }
        }
        live.stack.stop().await.unwrap();
    });
}

#[test]
fn a_disk_that_fails_ends_the_move_and_not_the_volumes() {
    let sim = Sim::new(1);
    let media = sim.block_on(group(&sim));
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        write(&live.stack, "vg/data", 0, 5).await;
        let only_third = Move {
            from: part("d0.img"),
            volume: Some("data".to_owned()),
            to: vec![part("d2.img")],
            policy: None,
        };
        live.run(Command::Move(only_third)).await.unwrap();
        while live.only_move().state != MovingState::Copied {
            SimRuntime.sleep(Duration::from_millis(1)).await;
        }
        // It fails after all was copied, and before that is recorded: the data, not the metadata area.
        media[2].fail_writes(2048..48 * 1024);
        write(&live.stack, "vg/data", 0, 6).await;
        let refused = live.advance().await.err();
        assert!(refused.is_none() || live.only_move().state == MovingState::Failed);
        assert_eq!(live.only_move().state, MovingState::Failed);
        let stale = live.collector.prepare_advance(&live.only_move()).unwrap();
        let refused = live.collector.apply(stale, Header::default()).await.err().unwrap();
        assert!(refused.contains("cannot be relied upon"), "{refused}");
        write(&live.stack, "vg/data", 8, 7).await;
        named(&live.stack, "vg/data").flush().await.unwrap();
        live.run(abort()).await.unwrap();
        media[2].heal();
        assert_eq!(read(&live.stack, "vg/data", 0).await, 6);
        assert_eq!(read(&live.stack, "vg/data", 8).await, 7);
        let (Ok(()) | Err(_)) = live.stack.stop().await;
    });
}

#[test]
fn volumes_keep_what_was_written_through_moves_cut_anywhere() {
    let (mut moved, mut given_up, mut cut) = (0_u32, 0_u32, 0_u32);
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let media = sim.block_on(group(&sim));
        drop(sim);
        let oracles = ["data", "other"].map(|_| Oracle::new(seed, Value::Zeroes));
        let work = Workload { tolerate_errors: false, ios: 30, ..Workload::over(0..4 * 2048) };
        for part in 0..4 {
            let sim = Sim::new(seed.wrapping_mul(31) + part);
            let stop = match part {
                3 => Stop::AfterSteps(u64::MAX),
                _ => Stop::AfterSteps(400 + Rng::new(seed + part).below(6000)),
            };
            let ended = sim.block_on_until(
                async {
                    let mut live = LiveStack::boot(&sim, &media).await;
                    let mut rng = sim.rng();
                    let loads = loads(&live, &work, &oracles);
                    for load in &loads {
                        load.verify().await;
                    }
                    let tasks = [loads[0].start(&mut rng), loads[1].start(&mut rng)];
                    for _ in 0..30 {
                        SimRuntime.sleep(Duration::from_micros(rng.below(2000))).await;
                        let before = live.collector.moving().len();
                        match rng.below(12) {
                            0 => {
                                live.run(abort()).await.unwrap();
                                given_up += u32::from(before > 0);
                            }
                            1..=3 if before == 0 => {
                                let disk = ["d0.img", "d1.img", "d2.img"][rng.index(3)];
                                live.run(move_from(disk)).await.ok();
                            }
                            _ => {
                                live.advance().await.unwrap();
                                moved += u32::from(before > live.collector.moving().len());
                            }
                        }
                    }
                    for task in tasks {
                        task.await;
                    }
                    if rng.chance(1, 2) {
                        live.end_moves().await;
                    }
                    for load in &loads {
                        load.verify().await;
                    }
                    live.stack.stop().await.unwrap();
                },
                stop,
            );
            cut += u32::from(ended.is_none());
            sim.power_cut();
            if ended.is_none() {
                oracles.iter().for_each(Oracle::power_cut);
            }
        }
    }
    assert!(moved > 20 && given_up > 10 && cut > 40, "{moved} {given_up} {cut}");
}

/// If it is unknown whether a step of a move was recorded, both places have what is written later.
#[test]
fn a_step_of_a_move_whose_outcome_is_unknown_loses_nothing_whatever_became_of_it() {
    for step in 0..3 {
        let mut unsure = 0;
        for nth in 0..27 {
            unsure += u32::from(is_unsure(step, [nth / 9, nth / 3 % 3, nth % 3]));
        }
        assert!(unsure > 0, "step {step} is never unsure");
    }
}

/// Whether a step (begin, record, abort) becomes unsure if the `nth` durable write of each disk fails. Checks what follows.
fn is_unsure(step: u64, nth: [u64; 3]) -> bool {
    let sim = Sim::new(step);
    let media = sim.block_on(group(&sim));
    let is_unsure = sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        for name in ["vg/data", "vg/other"] {
            write(&live.stack, name, 8, 1).await;
            named(&live.stack, name).flush().await.unwrap();
        }
        if step > 0 {
            live.run(move_from("d0.img")).await.unwrap();
            while live.only_move().state != MovingState::Copied {
                SimRuntime.sleep(Duration::from_millis(1)).await;
            }
        }
        media.iter().zip(nth).for_each(|(media, nth)| media.fail_nth_fua(nth));
        let done = match step {
            0 => live.run(move_from("d0.img")).await.map(|applied| applied.unsure),
            1 => {
                let change = live.collector.prepare_advance(&live.only_move()).unwrap();
                let applied = live.collector.apply(change, Header::default()).await;
                applied.map(|applied| applied.unsure)
            }
            _ => live.run(abort()).await.map(|applied| applied.unsure),
        };
        media.iter().for_each(Media::heal);
        let why = done.unwrap_or_else(Some);
        let is = why.is_some_and(|why| why.contains("will be known when it is read again"));
        // Those in use continue, and what they flush stays.
        for name in ["vg/data", "vg/other"] {
            write(&live.stack, name, 16, 2).await;
            // Each disk that lost something says so once.
            let mut tries = 0;
            while named(&live.stack, name).flush().await.is_err() {
                write(&live.stack, name, 16, 2).await;
                write(&live.stack, name, 8, 1).await;
                tries += 1;
                assert!(tries <= media.len());
            }
        }
        if is {
            let refused = live.run(create("later", 1)).await.err().unwrap();
            assert!(refused.contains("until it is served again"), "{refused}");
        }
        is
    });
    sim.power_cut();
    let sim = Sim::new(100 + step);
    sim.block_on(async {
        let mut live = LiveStack::boot(&sim, &media).await;
        for _ in 0..2 {
            for name in ["vg/data", "vg/other"] {
                assert_eq!(read(&live.stack, name, 8).await, 1, "{name}, step {step}, {nth:?}");
                assert_eq!(read(&live.stack, name, 16).await, 2, "{name}, step {step}, {nth:?}");
            }
            live.end_moves().await;
        }
        live.run(create("later", 1)).await.unwrap();
        live.stack.stop().await.unwrap();
    });
    is_unsure
}
