//! The command line as a user has it: the program is run, its output, exit codes and effects are
//! looked at.

mod arrays;
mod bench;
mod bench_zvol;
mod btrfs_files;
mod btrfs_scrub;
mod conformance;
mod control;
mod generated;
mod incremental;
mod lvm;
mod managing;
mod models;
mod nesting;
mod serving;
mod support;
mod takeover;
mod zvol;
mod zvol_failing;
mod zvol_memory;
