//! Repository tasks, run as `cargo xtask TASK`.
//!
//! `tidy` checks the house rules that no compiler lint covers: see [`tidy`]. `house` draws the crates and their modules from the code: see
//! [`house`].

#![forbid(unsafe_code)]

mod house;
mod mentions;
mod tidy;
mod tree;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask tidy
       cargo xtask house [--write | CRATE]

  tidy   check the house rules (ARCHITECTURE.md, \"Rules\")
  house  print the crates, their arrows and circles; fail if docs/house.md shows others
         --write  write docs/house.md and its picture
         CRATE    print the arrows inside of each circle of this crate";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(),
        ["house"] => house::check(),
        ["house", "--write"] => house::write(),
        ["house", name] if !name.starts_with('-') => house::circles_of(name),
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
