//! The command line as a user has it: the program is run, its output, exit codes and effects are
//! looked at.

mod arrays;
mod bench;
mod bench_zvol;
mod btrfs_files;
mod btrfs_get;
mod btrfs_lists;
mod btrfs_scrub;
mod conformance;
mod control;
mod ending;
mod escaping;
mod generated;
mod hints;
mod in_use;
mod incremental;
mod lvm;
mod managing;
mod mdadm;
mod models;
mod nbd_clients;
mod nesting;
mod serving;
mod starting;
mod support;
mod takeover;
mod trace;
mod zvol;
mod zvol_failing;
mod zvol_memory;
