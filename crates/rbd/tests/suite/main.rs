//! Images of real clusters as disks, and other clients of them.

mod cluster;
#[path = "../../../nbd/tests/suite/disk_checks.rs"]
mod disk_checks;
mod faults;
mod images;
mod kit;
mod locks;
mod openings;
mod uris;
