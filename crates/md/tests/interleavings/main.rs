//! Things that happen together and seldom do: what a change of the array, a write, a flush, a sync and
//! a stop find of each other half way, and what a power cut then leaves.

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "shared with the tests of syncs")]
#[path = "../sync/world.rs"]
mod states;

mod behind;
mod bitmaps;
mod flushes;
mod reads;
mod recording;
mod stopping;
mod syncs;
mod world;
