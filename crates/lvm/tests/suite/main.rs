//! Integration tests of LVM2, in one program: a module per subject.

mod activate;
mod change;
mod common;
mod formats;
mod moves;
mod reports;
mod snapshots;
