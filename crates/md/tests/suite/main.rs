//! Integration tests of md, in one program: a module for each subject.

mod array;
mod assembly;
mod bitmap;
mod common;
mod copies;
mod corrections;
mod discards;
mod distance;
mod dm_raid;
mod docs_formats;
mod failures;
mod found;
mod geometry_kernel;
mod geometry_raid0;
mod geometry_raid10;
mod hosts;
mod interleavings;
mod manage;
mod roles;
mod silent;
mod simulation;
mod superblocks;
mod sync;
mod threads;
mod upstream_bugs;
mod write_behind;
