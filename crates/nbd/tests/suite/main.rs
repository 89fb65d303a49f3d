//! Exports of real servers as disks, and servers that break the protocol.

mod kit;
mod servers;
mod violations;
