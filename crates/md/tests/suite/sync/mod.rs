//! The array's own I/O on simulated disks: resync, recovery, check, repair; how it meets regular I/O,
//! failures and crashes; how fast it is.

mod checks;
mod control;
mod crashes;
mod recovery;
mod resync;
mod speed;
pub(crate) mod world;
