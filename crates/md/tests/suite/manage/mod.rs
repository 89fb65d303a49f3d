//! Changes of running arrays: members that come, go and are replaced, other sizes, bitmaps; and what a
//! power cut at any step of them leaves.

mod bitmaps;
mod crashes;
mod creation;
mod flags;
mod grow;
mod members;
mod replacing;
mod returning;
mod updates;
pub(crate) mod world;
