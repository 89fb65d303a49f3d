//! RAID 10 against layouts dealt out by hand: the address map and the discard planner.

mod discard;
mod map;
mod oracle;
