//! Repository tasks, run as `cargo xtask TASK`.
//!
//! `tidy` checks the house rules that no compiler lint covers: see [`tidy`].

#![forbid(unsafe_code)]

mod tidy;

use std::process::ExitCode;

const USAGE: &str =
    "usage: cargo xtask tidy\n\n  tidy   check the house rules (ARCHITECTURE.md, \"Rules\")";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
