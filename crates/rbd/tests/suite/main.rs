//! Images of real clusters as disks, and other clients of them.

mod cluster;
mod faults;
mod images;
mod kit;
mod locks;
mod openings;
mod uris;
