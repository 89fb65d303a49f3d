//! Exports of real servers as disks, and servers that break the protocol.

mod disk_checks;
mod kit;
mod lanes;
mod late;
mod release;
mod servers;
mod violations;
