//! The array's own I/O on simulated disks: resync, recovery, check, repair; with regular I/O, failures and
//! crashes; and its speed.

mod checks;
mod control;
mod crashes;
mod recovery;
mod resync;
mod speed;
pub(crate) mod world;
