//! Random changes of a group while its volumes are written, with power cuts at any step.

use ashlar_block::byte_volume::OpenVolume;
use ashlar_lvm::command::{Command, Restore, Sign};
use ashlar_sim::scheduler::Stop;
use ashlar_sim::{Media, Oracle, Rng, Sim, Value, Workload, seeds};

use crate::live::{LiveStack, create, group, remove, rename, resize, snapshot};
use crate::live_load::loads;
use crate::volume_groups::names;

pub(crate) fn restore(text: &str) -> Command {
    Command::Restore(Restore { text: text.to_owned(), force: false })
}

/// Opens a volume, as a client does.
pub(crate) fn open(live: &LiveStack, name: &str) -> OpenVolume {
    let all = live.stack.devices.volumes();
    let device = all.iter().find(|device| device.export_name() == name).unwrap();
    device.bytes.open().unwrap()
}

/// One of the changes that leave the contents of `data` and `other` as they are. A copy in which one of them has another size is refused,
/// because they are open.
fn random(rng: &mut Rng, live: &LiveStack, round: u64, copies: &[String]) -> Command {
    if !copies.is_empty() && rng.below(4) == 0 {
        return restore(&copies[rng.below(copies.len() as u64) as usize]);
    }
    let all = names(&live.stack);
    let extra: Vec<&str> = all
        .iter()
        .filter_map(|name| name.strip_prefix("vg/"))
        .filter(|name| !matches!(*name, "data" | "other"))
        .collect();
    let one = |rng: &mut Rng| extra[rng.below(extra.len() as u64) as usize];
    let name = format!("v{round}");
    match rng.below(8) {
        0 | 1 => create(&name, 1 + rng.below(3) as u32),
        2 | 3 => snapshot(&name, ["data", "other"][rng.below(2) as usize], 2 + rng.below(2) as u32),
        4 if !extra.is_empty() => resize(one(rng), Sign::Plus, 1 + 40 * rng.below(2) as u32),
        5 if !extra.is_empty() => rename(one(rng), &name),
        6 | 7 if !extra.is_empty() => remove(one(rng)),
        _ => resize("other", Sign::Plus, 1),
    }
}

#[test]
fn volumes_keep_what_was_written_through_changes_cut_anywhere() {
    let (mut done, mut restored, mut refused, mut cut) = (0_u32, 0_u32, 0_u32, 0_u32);
    for seed in seeds(40) {
        let sim = Sim::new(seed);
        let mut media = sim.block_on(group(&sim));
        media.push(Media::new(media[0].capacity()));
        drop(sim);
        let mut copies = Vec::new();
        let oracles = ["data", "other"].map(|_| Oracle::new(seed, Value::Zeroes));
        let work = Workload { tolerate_errors: false, ios: 30, ..Workload::over(0..4 * 2048) };
        // The power is cut twice.
        for part in 0..3 {
            let sim = Sim::new(seed.wrapping_mul(31) + part);
            let stop = match part {
                2 => Stop::AfterSteps(u64::MAX),
                _ => Stop::AfterSteps(400 + Rng::new(seed + part).below(4000)),
            };
            let ended = sim.block_on_until(
                async {
                    let mut live = LiveStack::boot(&sim, &media).await;
                    let mut rng = sim.rng();
                    let loads = loads(&live, &work, &oracles);
                    let open = ["vg/data", "vg/other"].map(|name| open(&live, name));
                    for load in &loads {
                        load.verify().await;
                    }
                    for load in &loads {
                        drop(load.start(&mut rng));
                    }
                    for round in 0..8 {
                        copies.push(live.text());
                        let before = names(&live.stack);
                        let changed = match rng.below(6) {
                            0 => live.turn_third().await,
                            _ => {
                                let command = random(&mut rng, &live, 10 * part + round, &copies);
                                let is_restored = matches!(command, Command::Restore(_));
                                let done = live.run(command).await;
                                restored += u32::from(is_restored && done.is_ok());
                                done
                            }
                        };
                        match changed {
                            Ok(applied) => {
                                assert_eq!(applied.unsure, None);
                                done += 1;
                            }
                            Err(_) => {
                                refused += 1;
                                assert_eq!(names(&live.stack), before);
                            }
                        }
                    }
                    for load in &loads {
                        load.verify().await;
                    }
                    drop(open);
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
    assert!(
        done > 300 && restored > 30 && refused > 5 && cut > 30,
        "{done} {restored} {refused} {cut}"
    );
}
