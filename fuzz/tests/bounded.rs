//! A bounded amount of fuzzing: each target with its seeds, and with a fixed number of random changes of them. The
//! changes are a function of a fixed seed, so that failures are reproducible.
//!
//! `ASHLAR_FUZZ_ROUNDS=n` runs n times as many rounds, beginning with the same ones.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::{env, fs};

use ashlar_fuzz::mutate::mutate;
use ashlar_fuzz::{TARGETS, Target};
use ashlar_sim::Rng;

/// Runs the target; returns whether it accepts the input. An input that makes a check fail is saved to a file, whose
/// name is printed.
fn check(target: &Target, what: &str, input: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).unwrap_or_else(|panic| {
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.input", target.name));
        fs::write(&path, input).expect("the input can be kept");
        eprintln!("{}: {what} does not hold, the input is {}", target.name, path.display());
        resume_unwind(panic)
    })
}

fn bounded(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    let seeds = (target.seeds)();
    let good =
        (0..).zip(&seeds).filter(|(n, seed)| check(target, &format!("seed {n}"), seed)).count();
    let times = env::var("ASHLAR_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let rounds = u64::from(target.rounds) * times;
    let mut rng = Rng::new(1);
    let accepted = (0..rounds)
        .filter(|round| check(target, &format!("round {round}"), &mutate(&seeds, &mut rng)))
        .count();
    println!(
        "{name}: {good} of {} seeds, {accepted} of {rounds} changed ones accepted",
        seeds.len()
    );
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            bounded(stringify!($name));
        })*

        #[test]
        fn each_target_has_a_test() {
            let tests: Vec<&str> = vec![$(stringify!($name)),*];
            let targets: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(tests, targets);
            for name in targets {
                let bin = format!("[[bin]]\nname = \"{name}\"\n");
                assert!(include_str!("../Cargo.toml").contains(&bin), "{name} is not in Cargo.toml");
            }
        }
    };
}

tests! {
    btrfs_image
    btrfs_structs
    ddrescue_map
    dm_exception_store
    dm_raid
    dm_table
    dm_thin_metadata
    fuse_request
    lvm_label
    lvm_text
    md_assembly
    md_superblock
    nbd_client
    nbd_handshake
    nbd_transmission
    partition_table
    vhost_message
    vhost_ring
    zfs_label
}
