//! Things that happen together and seldom do: what a change of the array, a write, a flush, a sync and
//! a stop find of each other half way, and what a power cut then leaves.

mod behind;
mod bitmaps;
mod flushes;
mod reads;
mod recording;
mod stopping;
mod syncs;
mod world;
