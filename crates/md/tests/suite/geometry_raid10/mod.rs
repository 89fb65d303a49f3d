//! RAID 10 against an oracle built from lists: the address map and the discard planner.

mod discard;
mod map;
mod oracle;
