//! Changes of running arrays: members are added, removed and replaced; sizes and bitmaps change; and power
//! cuts at any step of that.

mod bitmaps;
mod concurrent;
mod crashes;
mod creation;
mod flags;
mod flapping;
mod grow;
mod members;
mod replacing;
mod returning;
mod updates;
pub(crate) mod world;
