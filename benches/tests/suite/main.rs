//! `ashlar-bench` from a user's view. It runs the program `ashlar`, which must have been built beside it.

mod generated;
mod lvm_snapshot;
#[path = "../../../crates/cli/tests/cli/run.rs"]
mod run;
mod zvol;

use std::process::{Command, Stdio};

/// Runs `ashlar-bench`.
fn bench(args: &[&str]) -> run::Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar-bench"));
    command.args(args).current_dir("/").env_remove("ASHLAR_LOG").stdin(Stdio::null());
    run::run(command)
}
